/* SPDX-License-Identifier: Apache-2.0 */
/* cubin.c - reading cubins: ELF with sections of NVIDIA's own.
 *
 * Registers and stack are attributes in the section .nv.info: a format byte, a number, a size, and
 * for sized ones pairs of symbol and value. whet_info is initialized data, found through the symbol
 * table. Local memory is refused without a second look: it is device memory, and a template that
 * spills is slower than the same template at another point. */
#include "specializer/build/cubin.h"

#include <elf.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SM_REGISTERS = 65536, WARP = 32, REGISTERS_STEP = 8, THREADS_MOST = 1024 };
static const long cubin_max = 64 << 20;

struct file {
    const char *data;
    size_t size;
    Elf64_Ehdr header;
};

static char *read_all(const char *path, size_t *size, struct err *err)
{
    FILE *in = fopen(path, "rbe");
    char *data = NULL;
    long n = -1;
    if (in && fseek(in, 0, SEEK_END) == 0)
        n = ftell(in);
    if (n > (long)sizeof(Elf64_Ehdr) && n <= cubin_max) {
        data = xmalloc((size_t)n);
        rewind(in);
        *size = fread(data, 1, (size_t)n, in);
    }
    if (in)
        fclose(in);
    if (data && *size == (size_t)n)
        return data;
    free(data);
    err_set(err, "cannot be read: %s", strerror(errno));
    return NULL;
}

/* A copy: CUDA 13.5 begins the section headers at any multiple of four bytes. */
static Elf64_Shdr section_of(const struct file *f, uint32_t i)
{
    Elf64_Shdr s;
    memcpy(&s, f->data + f->header.e_shoff + i * sizeof s, sizeof s);
    return s;
}

static int open_elf(struct file *f, struct err *err)
{
    Elf64_Ehdr *h = &f->header;
    if (f->size >= sizeof *h)
        memcpy(h, f->data, sizeof *h);
    bool elf = f->size >= sizeof *h && memcmp(h->e_ident, ELFMAG, SELFMAG) == 0 &&
               h->e_ident[EI_CLASS] == ELFCLASS64 && h->e_ident[EI_DATA] == ELFDATA2LSB &&
               h->e_machine == EM_CUDA && h->e_shentsize == sizeof(Elf64_Shdr) &&
               h->e_shoff <= f->size && h->e_shnum <= (f->size - h->e_shoff) / sizeof(Elf64_Shdr) &&
               h->e_shstrndx < h->e_shnum;
    if (!elf)
        return err_set(err, "is no cubin");
    for (uint32_t i = 0; i < h->e_shnum; i++) {
        Elf64_Shdr s = section_of(f, i);
        if (s.sh_type != SHT_NOBITS && (s.sh_offset > f->size || s.sh_size > f->size - s.sh_offset))
            return err_set(err, "has a section that ends outside of it");
    }
    return 0;
}

/* A section's bytes, which end with the file or before; none of one that has a size and no bytes
 * (NOBITS), whatever its size. */
static const char *bytes_of(const struct file *f, uint32_t section, size_t *n)
{
    *n = 0;
    if (section >= f->header.e_shnum)
        return NULL;
    Elf64_Shdr s = section_of(f, section);
    if (s.sh_type == SHT_NOBITS)
        return NULL;
    *n = s.sh_size;
    return f->data + s.sh_offset;
}

/* A text in string table `table`; "" when it is not there whole. */
static const char *text_at(const struct file *f, uint32_t table, uint32_t at)
{
    size_t n;
    const char *text = bytes_of(f, table, &n);
    return at < n && memchr(text + at, 0, n - at) ? text + at : "";
}

static void read_attributes(const char *data, size_t size, struct cubin_facts *out)
{
    enum { SIZED = 4, REGISTERS = 0x2f, FRAME = 0x11, STACK = 0x12 };
    for (size_t at = 0; at + 4 <= size;) {
        uint8_t format = (uint8_t)data[at], id = (uint8_t)data[at + 1];
        uint16_t bytes;
        int32_t value;
        memcpy(&bytes, data + at + 2, 2);
        if (format != SIZED)
            bytes = 0;
        if (bytes >= 8 && at + 4 + bytes <= size) {
            memcpy(&value, data + at + 8, 4);
            if (id == REGISTERS && value > out->registers)
                out->registers = value;
            if ((id == FRAME || id == STACK) && value > out->stack)
                out->stack = value;
        }
        at += 4 + (size_t)bytes;
    }
}

/* Copies the initialized object of exactly `size` bytes; of a function, which has none, `to` is
 * NULL. False if there is no such symbol, or more than one: the driver would take either. */
static bool read_symbol(const struct file *f, const char *name, int type, void *to, size_t size)
{
    int found = 0;
    for (uint32_t i = 0; i < f->header.e_shnum; i++) {
        size_t n = 0, home_n;
        Elf64_Sym s;
        Elf64_Shdr section = section_of(f, i);
        const char *table = section.sh_type == SHT_SYMTAB ? bytes_of(f, i, &n) : NULL;
        for (size_t k = 0; k + sizeof s <= n; k += sizeof s) {
            memcpy(&s, table + k, sizeof s);
            if (ELF64_ST_TYPE(s.st_info) != type ||
                strcmp(text_at(f, section.sh_link, s.st_name), name) != 0)
                continue;
            const char *home = bytes_of(f, s.st_shndx, &home_n);
            if (++found > 1 || !home || s.st_value > home_n ||
                (to && (s.st_size != size || size > home_n - s.st_value)))
                return false;
            if (to)
                memcpy(to, home + s.st_value, size);
        }
    }
    return found == 1;
}

static int check(const struct cubin_facts *c, struct err *err)
{
    if (c->info.launches < 1 || c->info.launches > CUDA_LAUNCHES)
        return err_set(err, "says it has %d launches", c->info.launches);
    if (c->registers < 1 || c->registers > 255)
        return err_set(err, "needs %d registers a thread", c->registers);
    if (c->stack > 0)
        return err_set(err, "keeps %d bytes of each thread in local memory (%d registers)",
                       c->stack, c->registers);
    for (int i = 0; i < c->info.launches; i++) {
        if (c->info.launch[i].threads < 1 || c->info.launch[i].threads > THREADS_MOST)
            return err_set(err, "says it has blocks of %d threads", c->info.launch[i].threads);
        int32_t warps = (c->info.launch[i].threads + WARP - 1) / WARP;
        int32_t each = (c->registers + REGISTERS_STEP - 1) / REGISTERS_STEP * REGISTERS_STEP;
        if (warps * WARP * each > SM_REGISTERS)
            return err_set(err, "%d threads of %d registers do not fit a multiprocessor",
                           c->info.launch[i].threads, c->registers);
    }
    return 0;
}

static int inspect(const struct file *f, struct cubin_facts *out, struct err *err)
{
    for (uint32_t i = 0; i < f->header.e_shnum; i++) {
        size_t n;
        const char *data = bytes_of(f, i, &n);
        uint32_t name = section_of(f, i).sh_name;
        if (data && strcmp(text_at(f, f->header.e_shstrndx, name), ".nv.info") == 0)
            read_attributes(data, n, out);
    }
    if (!read_symbol(f, "whet_kernel", STT_FUNC, NULL, 0))
        return err_set(err, "has no function whet_kernel");
    if (!read_symbol(f, "whet_info", STT_OBJECT, &out->info, sizeof out->info))
        return err_set(err, "has no whet_info of %zu bytes", sizeof out->info);
    return check(out, err);
}

int cubin_inspect_bytes(const void *data, size_t n, struct cubin_facts *out, struct err *err)
{
    struct file f = {.data = data, .size = n};
    memset(out, 0, sizeof *out);
    return open_elf(&f, err) == 0 ? inspect(&f, out, err) : -1;
}

int cubin_inspect(const char *path, struct cubin_facts *out, struct err *err)
{
    size_t n = 0;
    char *data = read_all(path, &n, err);
    memset(out, 0, sizeof *out);
    int rc = data ? cubin_inspect_bytes(data, n, out, err) : -1;
    free(data);
    return rc;
}
