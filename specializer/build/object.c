/* SPDX-License-Identifier: Apache-2.0 */
/* object.c - reading a shared object as data.
 *
 * Kernels are freestanding: they compute on what their arguments point to and call nothing but
 * memory and maths functions, which the compiler may insert by itself. Anything else that an
 * object asks for is either a mistake in a template or an attempt to reach outside, and both are
 * refused by name here, before dlopen() would run the object's constructors. The probe's seccomp
 * filter stands behind this for what a reader of symbols cannot see.
 *
 * The loader goes by program headers and the dynamic section; names are easier to find by section
 * headers. Both are read, and must agree where they tell the same thing. The file may be damaged or
 * hostile, so every offset is checked against the mapping.
 *
 * What is not looked for: calls and jumps through registers. A text calls the team's barrier that
 * way, and a switch becomes a table, so their bytes say nothing; that a text has no other function
 * to call is seen to before it is compiled (agent_calls.h), and that it has no address of one that
 * the loader would tell it, here.
 */
#include "specializer/build/object.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/args.h"
#include "specializer/build/build.h"
#include "specializer/build/object_code.h"
#include "specializer/candidate/hash.h"

#ifndef DT_RELR /* a C library before glibc 2.36; compilers of other systems may use them */
#define DT_RELRSZ 35
#define DT_RELR 36
#define DT_RELRENT 37
#endif

/* The machine, and its relocations: of the object's own addresses, and of a function's, for data,
 * for code that wants to know it, and for calls. */
#if defined(__x86_64__)
enum { MACHINE = EM_X86_64, OWN = R_X86_64_RELATIVE, DATA = R_X86_64_64 };
enum { ADDRESS = R_X86_64_GLOB_DAT, CALL = R_X86_64_JUMP_SLOT };
#elif defined(__aarch64__)
enum { MACHINE = EM_AARCH64, OWN = R_AARCH64_RELATIVE, DATA = R_AARCH64_ABS64 };
enum { ADDRESS = R_AARCH64_GLOB_DAT, CALL = R_AARCH64_JUMP_SLOT };
#elif defined(__riscv)
enum { MACHINE = EM_RISCV, OWN = R_RISCV_RELATIVE, DATA = R_RISCV_64 };
enum { ADDRESS = R_RISCV_64, CALL = R_RISCV_JUMP_SLOT };
#else
enum { MACHINE = EM_NONE, OWN = -1, DATA = -1, ADDRESS = -1, CALL = -1 };
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
    const Elf64_Phdr *segment;
    const struct object_frame *frame; /* of a text; NULL: a template's */
    const Elf64_Sym *symbol, *entry;  /* dynamic symbols; whet_kernel */
    uint64_t symbols;
    const Elf64_Shdr *names;
    uint64_t layout; /* address of the name of its packed weights; 0: it packs none */
};

/* The loader's tables, by address. */
struct dynamic {
    uint64_t symtab, strtab, strsz, rela, relasz, jmprel, pltrelsz;
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
        h->e_ident[EI_DATA] != ELFDATA2LSB || h->e_type != ET_DYN || h->e_machine != MACHINE)
        return err_set(err, "not a shared object of this machine");
    o->head = h;
    o->section = part(o, h->e_shoff, h->e_shnum, sizeof *o->section);
    if (h->e_shentsize != sizeof *o->section || !o->section || h->e_shnum == 0)
        return err_set(err, "damaged: section table outside the file");
    o->segment = part(o, h->e_phoff, h->e_phnum, sizeof *o->segment);
    if (!o->segment || h->e_phentsize != sizeof *o->segment)
        return err_set(err, "damaged: program header outside the file");
    return 0;
}

/* `n` bytes of the file that are loaded to an address, or NULL; `room`: how many there are. */
static const void *loaded(const struct object *o, uint64_t address, uint64_t n, uint64_t *room)
{
    for (int i = 0; i < o->head->e_phnum; i++) {
        const Elf64_Phdr *p = &o->segment[i];
        if (p->p_type != PT_LOAD || address < p->p_vaddr || address - p->p_vaddr > p->p_filesz ||
            n > p->p_filesz - (address - p->p_vaddr))
            continue;
        if (room)
            *room = p->p_filesz - (address - p->p_vaddr);
        return o->data + p->p_offset + (address - p->p_vaddr);
    }
    return NULL;
}

/* Segments: thread-locals, memory or a stack that is both writable and executable. */
static int check_segments(const struct object *o, struct err *err)
{
    bool stack = false;
    for (int i = 0; i < o->head->e_phnum; i++) {
        const Elf64_Phdr *p = &o->segment[i];
        if (p->p_type == PT_TLS)
            return err_set(err, "has thread-local variables");
        if (p->p_type == PT_INTERP)
            return err_set(err, "is a program");
        if (p->p_type == PT_GNU_STACK && (p->p_flags & PF_X))
            return err_set(err, "wants an executable stack");
        stack |= p->p_type == PT_GNU_STACK;
        if (p->p_type != PT_LOAD)
            continue;
        if ((p->p_flags & PF_W) && (p->p_flags & PF_X))
            return err_set(err, "has memory that is writable and executable");
        if (p->p_offset > o->n || p->p_filesz > o->n - p->p_offset || p->p_filesz > p->p_memsz ||
            p->p_vaddr > UINT64_MAX - p->p_memsz)
            return err_set(err, "damaged: a segment outside the file");
    }
    return stack ? 0 : err_set(err, "does not say that its stack is not executable");
}

/* What linkers write into every object. Everything else asks the loader for something: libraries,
 * paths, filters, auditors, versions. */
static int check_tag(const Elf64_Dyn *d, struct err *err)
{
    enum { PROCESSOR_FIRST = 0x70000000, PROCESSOR_LAST = 0x70000005 };
    static const int64_t plain[] = {DT_HASH,    DT_GNU_HASH,  DT_STRTAB, DT_SYMTAB,
                                    DT_STRSZ,   DT_SYMENT,    DT_RELA,   DT_RELASZ,
                                    DT_RELAENT, DT_RELACOUNT, DT_JMPREL, DT_PLTRELSZ,
                                    DT_PLTGOT,  DT_RELR,      DT_RELRSZ, DT_RELRENT};
    switch (d->d_tag) {
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
    case DT_FLAGS:
        return d->d_un.d_val & ~(uint64_t)DF_BIND_NOW ? err_set(err, "has relocations in its code")
                                                      : 0;
    case DT_FLAGS_1:
        return d->d_un.d_val & ~(uint64_t)DF_1_NOW ? err_set(err, "asks the loader for flags") : 0;
    case DT_PLTREL:
        return d->d_un.d_val == DT_RELA ? 0 : err_set(err, "damaged: its kind of relocations");
    }
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (d->d_tag == plain[i])
            return 0;
    if (d->d_tag >= PROCESSOR_FIRST && d->d_tag <= PROCESSOR_LAST)
        return 0;
    return err_set(err, "asks the loader for tag 0x%llx", (unsigned long long)d->d_tag);
}

static void keep_tag(struct dynamic *y, const Elf64_Dyn *d)
{
    const struct {
        int64_t tag;
        uint64_t *to;
    } kept[] = {{DT_SYMTAB, &y->symtab},    {DT_STRTAB, &y->strtab}, {DT_STRSZ, &y->strsz},
                {DT_RELA, &y->rela},        {DT_RELASZ, &y->relasz}, {DT_JMPREL, &y->jmprel},
                {DT_PLTRELSZ, &y->pltrelsz}};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (d->d_tag == kept[i].tag)
            *kept[i].to = d->d_un.d_val;
}

/* The dynamic section as the loader finds it. */
static int read_dynamic(const struct object *o, struct dynamic *out, struct err *err)
{
    const Elf64_Phdr *s = NULL;
    for (int i = 0; i < o->head->e_phnum; i++)
        if (o->segment[i].p_type == PT_DYNAMIC) {
            if (s)
                return err_set(err, "damaged: two dynamic sections");
            s = &o->segment[i];
        }
    const Elf64_Dyn *d = s ? part(o, s->p_offset, s->p_filesz / sizeof *d, sizeof *d) : NULL;
    if (!d || loaded(o, s->p_vaddr, s->p_filesz, NULL) != d)
        return err_set(err, "damaged: dynamic section outside the file");
    for (uint64_t i = 0; i < s->p_filesz / sizeof *d; i++) {
        if (d[i].d_tag == DT_NULL)
            return 0;
        if (check_tag(&d[i], err) != 0)
            return -1;
        keep_tag(out, &d[i]);
    }
    return err_set(err, "damaged: dynamic section without an end");
}

/* The symbols that the loader looks at are those of the one section of them. */
static int find_symbols(struct object *o, const struct dynamic *y, struct err *err)
{
    const Elf64_Shdr *s = NULL;
    for (int i = 0; i < o->head->e_shnum; i++)
        if (o->section[i].sh_type == SHT_DYNSYM) {
            if (s)
                return err_set(err, "damaged: two tables of symbols");
            s = &o->section[i];
        }
    o->symbols = s ? s->sh_size / sizeof *o->symbol : 0;
    o->symbol = s ? part(o, s->sh_offset, o->symbols, sizeof *o->symbol) : NULL;
    if (!o->symbol || s->sh_link >= o->head->e_shnum)
        return err_set(err, "damaged: symbol table outside the file");
    o->names = &o->section[s->sh_link];
    if (loaded(o, y->symtab, s->sh_size, NULL) != o->symbol || o->names->sh_offset > o->n ||
        o->names->sh_size != y->strsz ||
        loaded(o, y->strtab, y->strsz, NULL) != o->data + o->names->sh_offset)
        return err_set(err, "damaged: the loader would see other symbols");
    return 0;
}

static int check_symbols(struct object *o, struct err *err)
{
    for (uint64_t i = 1; i < o->symbols; i++) {
        const Elf64_Sym *sym = &o->symbol[i];
        const char *name = name_at(o, o->names, sym->st_name);
        int type = ELF64_ST_TYPE(sym->st_info);
        if (!name)
            return err_set(err, "damaged: symbol name outside the file");
        if (type == STT_GNU_IFUNC)
            return err_set(err, "has the IFUNC %.80s", name);
        if (type == STT_TLS)
            return err_set(err, "has the thread-local variable %.80s", name);
        if (sym->st_shndx == SHN_UNDEF && !is_allowed(name))
            return err_set(err, "refers to %.80s", name);
        bool entry = strcmp(name, "whet_kernel") == 0;
        if (o->frame && !entry && sym->st_shndx != SHN_UNDEF && type != STT_SECTION)
            return err_set(err, "exports %.80s: make it static", name);
        if (sym->st_shndx != SHN_UNDEF && entry)
            o->entry = sym;
    }
    return o->entry ? 0 : err_set(err, "does not export whet_kernel");
}

/* ---- relocations --------------------------------------------------------------------------- */

/* Memory that is written while loading is not code. */
static bool is_data(const struct object *o, uint64_t address)
{
    for (int i = 0; i < o->head->e_phnum; i++) {
        const Elf64_Phdr *p = &o->segment[i];
        if (p->p_type == PT_LOAD && (p->p_flags & PF_W) && address >= p->p_vaddr &&
            address - p->p_vaddr < p->p_memsz && p->p_memsz - (address - p->p_vaddr) >= 8)
            return true;
    }
    return false;
}

static int check_relocation(struct object *o, const Elf64_Rela *r, struct err *err)
{
    const int type = (int)ELF64_R_TYPE(r->r_info);
    const uint64_t symbol = ELF64_R_SYM(r->r_info);
    if (type == 0)
        return 0;
    if (type != OWN && type != DATA && type != ADDRESS && type != CALL)
        return err_set(err, "has relocations of type %d", type);
    if (symbol >= o->symbols || !is_data(o, r->r_offset))
        return err_set(err, "damaged: relocation outside of its data");
    /* A call goes through a table of calls. */
    const Elf64_Sym *of = &o->symbol[symbol];
    if (o->frame && symbol > 0 && of->st_shndx == SHN_UNDEF && type != CALL)
        return err_set(err, "takes the address of %.80s", name_at(o, o->names, of->st_name));
    return 0;
}

/* All relocations, `seen` by a function until it says -1. */
static int each_relocation(struct object *o, const struct dynamic *y,
                           int (*seen)(struct object *o, const Elf64_Rela *r, struct err *err),
                           struct err *err)
{
    const struct {
        uint64_t at, size;
    } table[] = {{y->rela, y->relasz}, {y->jmprel, y->pltrelsz}};
    for (size_t t = 0; t < sizeof table / sizeof *table; t++) {
        const unsigned char *at = loaded(o, table[t].at, table[t].size, NULL);
        if (table[t].size == 0)
            continue;
        if (!at || table[t].size % sizeof(Elf64_Rela) != 0)
            return err_set(err, "damaged: relocations outside the file");
        for (uint64_t i = 0; i < table[t].size; i += sizeof(Elf64_Rela)) {
            Elf64_Rela r;
            memcpy(&r, at + i, sizeof r);
            if (seen(o, &r, err) != 0)
                return -1;
        }
    }
    return 0;
}

/* ---- what a text's object says of itself --------------------------------------------------- */

static int find_layout(struct object *o, const Elf64_Rela *r, struct err *err)
{
    (void)err;
    if ((int)ELF64_R_TYPE(r->r_info) == OWN &&
        r->r_offset == o->entry->st_value + offsetof(struct cpu_kernel, layout))
        o->layout = (uint64_t)r->r_addend;
    return 0;
}

/* The frame says these things, and a text that found a way to say them in its place could share
 * packed weights with a template, or serve where it was never tested. */
static int check_claims(struct object *o, const struct dynamic *y, struct err *err)
{
    struct cpu_kernel k;
    const struct object_frame *f = o->frame;
    uint64_t room = 0;
    const void *at = loaded(o, o->entry->st_value, sizeof k, NULL);
    if (!at || o->entry->st_size != sizeof k || ELF64_ST_TYPE(o->entry->st_info) != STT_OBJECT)
        return err_set(err, "has no description in its whet_kernel");
    memcpy(&k, at, sizeof k);
    if (k.abi != WHET_CPU_ABI || k.region != f->region || k.m_max != f->m_max)
        return err_set(err, "says it computes region %d for %d tokens, and is for %d and %d",
                       k.region, k.m_max, f->region, f->m_max);
    memcpy(&o->layout, (const char *)at + offsetof(struct cpu_kernel, layout), sizeof o->layout);
    if (each_relocation(o, y, find_layout, err) != 0)
        return -1;
    if (o->layout == 0)
        return 0;
    const char *name = loaded(o, o->layout, 1, &room);
    if (!name || !memchr(name, 0, room))
        return err_set(err, "damaged: the name of its layout");
    return f->layout && strcmp(name, f->layout) == 0
               ? 0
               : err_set(err, "calls its packed weights %.60s, and not by its own name", name);
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

/* Behind check_segments(). */
static int check_code(const struct object *o, struct err *err)
{
    for (int i = 0; i < o->head->e_phnum; i++) {
        const Elf64_Phdr *p = &o->segment[i];
        if (p->p_type == PT_LOAD && (p->p_flags & PF_X) &&
            object_code_check(o->data + p->p_offset, p->p_filesz, p->p_vaddr, err) != 0)
            return -1;
    }
    return 0;
}

static int inspect(struct object *o, struct err *err)
{
    struct dynamic y = {0};
    if (read_head(o, err) != 0 || check_segments(o, err) != 0)
        return -1;
    if (o->frame && check_code(o, err) != 0)
        return OBJECT_CALLS;
    if (read_dynamic(o, &y, err) != 0 || find_symbols(o, &y, err) != 0 ||
        check_symbols(o, err) != 0)
        return -1;
    if (each_relocation(o, &y, check_relocation, err) != 0)
        return -1;
    for (int i = 0; o->frame && i < o->head->e_shnum; i++)
        if (check_state(o, i, err) != 0)
            return -1;
    return o->frame ? check_claims(o, &y, err) : 0;
}

int object_inspect_bytes(const void *data, size_t n, const struct object_frame *frame,
                         struct err *err)
{
    struct object o = {.data = data, .n = n, .frame = frame};
    return n > 0 ? inspect(&o, err) : err_set(err, "is empty");
}

static int inspect_file(const char *path, const struct object_frame *frame, struct err *err)
{
    struct object o = {0};
    if (object_map(path, &o, err) != 0)
        return -1;
    int rc = object_inspect_bytes(o.data, o.n, frame, err);
    object_unmap(&o);
    return rc;
}

int object_inspect(const char *path, struct err *err)
{
    return inspect_file(path, NULL, err);
}

int object_inspect_text(const char *path, const struct object_frame *frame, struct err *err)
{
    return inspect_file(path, frame, err);
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
