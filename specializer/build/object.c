/* object.c - reading a shared object as data.
 *
 * Kernels are freestanding: they compute on what their arguments point to and call nothing but
 * memory and maths functions, which the compiler may insert by itself. Anything else that an
 * object asks for is either a mistake in a template or an attempt to reach outside, and both are
 * refused by name here, before dlopen() would run the object's constructors. The probe's seccomp
 * filter stands behind this for what a reader of symbols cannot see.
 *
 * The file may be damaged or hostile, so every offset is checked against the mapping.
 */
#include "specializer/build/object.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "specializer/hash.h"
#include "specializer/stages.h"

#if defined(__x86_64__)
#define MACHINE EM_X86_64
#elif defined(__aarch64__)
#define MACHINE EM_AARCH64
#elif defined(__riscv)
#define MACHINE EM_RISCV
#else
#define MACHINE EM_NONE
#endif

static const char *const allowed[] = {
    "memcpy", "memset", "memmove", "memcmp", "expf",  "exp",   "exp2f", "exp2", "logf",
    "log",    "sqrtf",  "sqrt",    "fmaf",   "fma",   "sinf",  "cosf",  "powf", "tanhf",
    "floorf", "ceilf",  "rintf",   "roundf", "fmaxf", "fminf", "ldexpf"};

struct object {
    const unsigned char *data;
    size_t n;
    const Elf64_Ehdr *head;
    const Elf64_Shdr *section;
};

/* `count` things of `size` bytes at `offset`, or NULL if they are not all inside the file. */
static const void *part(const struct object *o, uint64_t offset, uint64_t count, uint64_t size)
{
    if (offset > o->n || (size && count > (o->n - offset) / size) || offset % 8)
        return NULL;
    return o->data + offset;
}

/* A NUL-terminated string in string table `table`. */
static const char *name_at(const struct object *o, const Elf64_Shdr *table, uint64_t at)
{
    if (table->sh_offset > o->n || table->sh_size > o->n - table->sh_offset || at >= table->sh_size)
        return NULL;
    const char *s = (const char *)o->data + table->sh_offset + at;
    return memchr(s, 0, table->sh_size - at) ? s : NULL;
}

static bool is_allowed(const char *name)
{
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
        if (strcmp(name, allowed[i]) == 0)
            return true;
    return false;
}

static int read_head(struct object *o, struct err *err)
{
    const Elf64_Ehdr *h = part(o, 0, 1, sizeof *h);
    if (!h || memcmp(h->e_ident, ELFMAG, SELFMAG) != 0 || h->e_ident[EI_CLASS] != ELFCLASS64 ||
        h->e_type != ET_DYN || h->e_machine != MACHINE)
        return err_set(err, "not a shared object of this machine");
    o->head = h;
    o->section = part(o, h->e_shoff, h->e_shnum, sizeof *o->section);
    if (h->e_shentsize != sizeof *o->section || !o->section || h->e_shnum == 0)
        return err_set(err, "damaged: section table outside the file");
    return 0;
}

/* syscall, sysenter and int 0x80 (svc on ARM), at any byte: a jump may lead into the middle of an
 * instruction. Immediates and displacements may hold these bytes too, about once in a hundred
 * kernels; such a false alarm costs an agent's kernel one attempt. */
static int check_code(const struct object *o, const Elf64_Phdr *s, struct err *err)
{
    if (s->p_offset > o->n || s->p_filesz > o->n - s->p_offset)
        return err_set(err, "damaged: code outside the file");
    const unsigned char *p = o->data + s->p_offset;
    for (uint64_t i = 0; i + 1 < s->p_filesz; i++) {
        bool call =
            MACHINE == EM_AARCH64
                ? i % 4 == 0 && i + 3 < s->p_filesz && p[i + 3] == 0xd4 && (p[i] & 0x1f) == 1
                : (p[i] == 0x0f && (p[i + 1] == 0x05 || p[i + 1] == 0x34)) ||
                      (p[i] == 0xcd && p[i + 1] == 0x80);
        if (call)
            return err_set(err,
                           "has a system-call instruction (bytes %02x %02x; if they are part of a "
                           "constant or an address by accident, any change of the code moves them)",
                           p[i], p[i + 1]);
    }
    return 0;
}

/* Segments: thread-locals, memory that is both writable and executable, system calls. */
static int check_segments(const struct object *o, bool agent, struct err *err)
{
    const Elf64_Phdr *p = part(o, o->head->e_phoff, o->head->e_phnum, sizeof *p);
    if (!p || o->head->e_phentsize != sizeof *p)
        return err_set(err, "damaged: program header outside the file");
    for (int i = 0; i < o->head->e_phnum; i++) {
        if (p[i].p_type == PT_TLS)
            return err_set(err, "has thread-local variables");
        if (p[i].p_type == PT_LOAD && (p[i].p_flags & PF_W) && (p[i].p_flags & PF_X))
            return err_set(err, "has memory that is writable and executable");
        if (agent && (p[i].p_flags & PF_X) && check_code(o, &p[i], err) != 0)
            return -1;
    }
    return 0;
}

static int check_dynamic(const struct object *o, const Elf64_Shdr *s, struct err *err)
{
    const Elf64_Dyn *d = part(o, s->sh_offset, s->sh_size / sizeof *d, sizeof *d);
    if (!d)
        return err_set(err, "damaged: dynamic section outside the file");
    for (uint64_t i = 0; i < s->sh_size / sizeof *d; i++) {
        switch (d[i].d_tag) {
        case DT_NULL:
            return 0;
        case DT_NEEDED:
            return err_set(err, "needs another library");
        case DT_INIT:
        case DT_INIT_ARRAY:
        case DT_PREINIT_ARRAY:
            return err_set(err, "has a constructor");
        case DT_FINI:
        case DT_FINI_ARRAY:
            return err_set(err, "has a destructor");
        case DT_TEXTREL:
            return err_set(err, "has relocations in its code");
        }
    }
    return 0;
}

static int check_symbols(const struct object *o, const Elf64_Shdr *s, bool agent, bool *exported,
                         struct err *err)
{
    const Elf64_Sym *sym = part(o, s->sh_offset, s->sh_size / sizeof *sym, sizeof *sym);
    if (!sym || s->sh_link >= o->head->e_shnum)
        return err_set(err, "damaged: symbol table outside the file");
    for (uint64_t i = 1; i < s->sh_size / sizeof *sym; i++) {
        const char *name = name_at(o, &o->section[s->sh_link], sym[i].st_name);
        int type = ELF64_ST_TYPE(sym[i].st_info);
        if (!name)
            return err_set(err, "damaged: symbol name outside the file");
        if (type == STT_GNU_IFUNC)
            return err_set(err, "has the IFUNC %.80s", name);
        if (type == STT_TLS)
            return err_set(err, "has the thread-local variable %.80s", name);
        if (sym[i].st_shndx == SHN_UNDEF && !is_allowed(name))
            return err_set(err, "refers to %.80s", name);
        bool entry = strcmp(name, "whet_kernel") == 0;
        if (agent && !entry && sym[i].st_shndx != SHN_UNDEF && type != STT_SECTION)
            return err_set(err, "exports %.80s: make it static", name);
        if (sym[i].st_shndx != SHN_UNDEF && entry)
            *exported = true;
    }
    return 0;
}

/* The name of something in section `index`, for whoever has to find it in the text. */
static const char *something_in(const struct object *o, int index)
{
    for (int i = 0; i < o->head->e_shnum; i++) {
        const Elf64_Shdr *s = &o->section[i];
        if (s->sh_type != SHT_SYMTAB || s->sh_link >= o->head->e_shnum)
            continue;
        const Elf64_Sym *sym = part(o, s->sh_offset, s->sh_size / sizeof *sym, sizeof *sym);
        for (uint64_t k = 1; sym && k < s->sh_size / sizeof *sym; k++)
            if (sym[k].st_shndx == index && ELF64_ST_TYPE(sym[k].st_info) == STT_OBJECT)
                return name_at(o, &o->section[s->sh_link], sym[k].st_name);
    }
    return NULL;
}

/* Writable data is state between calls. What the loader writes once (addresses in constants, its
 * own tables) is not: the linker puts it into sections of its own. */
static int check_state(const struct object *o, int index, struct err *err)
{
    static const char *const loaders[] = {".data.rel.ro", ".got", ".dynamic"};
    const Elf64_Shdr *s = &o->section[index];
    if (!(s->sh_flags & SHF_WRITE) || !(s->sh_flags & SHF_ALLOC) || s->sh_size == 0 ||
        o->head->e_shstrndx >= o->head->e_shnum)
        return 0;
    const char *name = name_at(o, &o->section[o->head->e_shstrndx], s->sh_name);
    for (size_t i = 0; name && i < sizeof loaders / sizeof *loaders; i++)
        if (strncmp(name, loaders[i], strlen(loaders[i])) == 0)
            return 0;
    const char *what = something_in(o, index);
    return err_set(err, "keeps state between calls: %.60s in section %.40s", what ? what : "data",
                   name ? name : "?");
}

static int check_sections(const struct object *o, bool agent, struct err *err)
{
    bool exported = false;
    for (int i = 0; i < o->head->e_shnum; i++) {
        const Elf64_Shdr *s = &o->section[i];
        int rc = 0;
        if (s->sh_type == SHT_DYNAMIC)
            rc = check_dynamic(o, s, err);
        else if (s->sh_type == SHT_DYNSYM)
            rc = check_symbols(o, s, agent, &exported, err);
        if (rc == 0 && agent)
            rc = check_state(o, i, err);
        if (rc != 0)
            return -1;
    }
    return exported ? 0 : err_set(err, "does not export whet_kernel");
}

/* Maps the file; n = 0 and no data for an empty one. */
static int object_map(const char *path, struct object *o, struct err *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        int rc = err_set(err, "%.300s: %s", path, fd < 0 ? strerror(errno) : "not a file");
        if (fd >= 0)
            close(fd);
        return rc;
    }
    o->n = (size_t)st.st_size;
    if (o->n > 0) {
        void *map = mmap(NULL, o->n, PROT_READ, MAP_PRIVATE, fd, 0);
        o->data = map == MAP_FAILED ? NULL : map;
    }
    close(fd);
    if (o->n > 0 && !o->data)
        return err_set(err, "%.300s: cannot be mapped: %s", path, strerror(errno));
    return 0;
}

static void object_unmap(struct object *o)
{
    if (o->data)
        munmap((void *)o->data, o->n);
}

int object_inspect(const char *path, bool agent, struct err *err)
{
    struct object o = {0};
    if (object_map(path, &o, err) != 0)
        return -1;
    int rc = o.data ? read_head(&o, err) : err_set(err, "is empty");
    if (rc == 0)
        rc = check_segments(&o, agent, err);
    if (rc == 0)
        rc = check_sections(&o, agent, err);
    object_unmap(&o);
    return rc;
}

int object_checksum(const char *path, char out[17])
{
    struct object o = {0};
    if (object_map(path, &o, NULL) != 0)
        return -1;
    hash_hex(hash_bytes(HASH_START, o.data, o.n), out);
    object_unmap(&o);
    return 0;
}
