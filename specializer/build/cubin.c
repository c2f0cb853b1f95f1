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

enum { SM_REGISTERS = 65536, WARP = 32, REGISTERS_STEP = 8 };
static const long cubin_max = 64 << 20;

struct file {
    char *data;
    size_t size;
    const Elf64_Ehdr *header;
    const Elf64_Shdr *section;
};

static int read_all(const char *path, struct file *f, struct err *err)
{
    FILE *in = fopen(path, "rbe");
    long n = -1;
    if (in && fseek(in, 0, SEEK_END) == 0)
        n = ftell(in);
    if (n > (long)sizeof(Elf64_Ehdr) && n <= cubin_max) {
        f->data = xmalloc((size_t)n);
        rewind(in);
        f->size = fread(f->data, 1, (size_t)n, in);
    }
    if (in)
        fclose(in);
    return f->data && f->size == (size_t)n ? 0
                                           : err_set(err, "cannot be read: %s", strerror(errno));
}

static int open_elf(struct file *f, struct err *err)
{
    const Elf64_Ehdr *h = (const Elf64_Ehdr *)(const void *)f->data;
    bool elf = memcmp(h->e_ident, ELFMAG, SELFMAG) == 0 && h->e_ident[EI_CLASS] == ELFCLASS64 &&
               h->e_machine == EM_CUDA && h->e_shentsize == sizeof(Elf64_Shdr) &&
               h->e_shoff <= f->size && h->e_shnum <= (f->size - h->e_shoff) / sizeof(Elf64_Shdr) &&
               h->e_shstrndx < h->e_shnum;
    if (!elf)
        return err_set(err, "is no cubin");
    f->header = h;
    f->section = (const Elf64_Shdr *)(const void *)(f->data + h->e_shoff);
    for (int i = 0; i < h->e_shnum; i++) {
        const Elf64_Shdr *s = &f->section[i];
        if (s->sh_type != SHT_NOBITS &&
            (s->sh_offset > f->size || s->sh_size > f->size - s->sh_offset))
            return err_set(err, "has a section that ends outside of it");
    }
    return 0;
}

/* A text in string table `table`; "" when it is not there whole. */
static const char *text_at(const struct file *f, uint32_t table, uint32_t at)
{
    if (table >= f->header->e_shnum || at >= f->section[table].sh_size)
        return "";
    const char *text = f->data + f->section[table].sh_offset + at;
    return memchr(text, 0, f->section[table].sh_size - at) ? text : "";
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

/* Copies an initialized object of exactly `size` bytes; false if there is no such symbol. */
static bool read_symbol(const struct file *f, const char *name, void *to, size_t size)
{
    for (int i = 0; i < f->header->e_shnum; i++) {
        const Elf64_Shdr *table = &f->section[i];
        if (table->sh_type != SHT_SYMTAB || table->sh_entsize != sizeof(Elf64_Sym))
            continue;
        const Elf64_Sym *s = (const Elf64_Sym *)(const void *)(f->data + table->sh_offset);
        for (size_t k = 0; k < table->sh_size / sizeof *s; k++) {
            if (strcmp(text_at(f, table->sh_link, s[k].st_name), name) != 0 ||
                s[k].st_shndx >= f->header->e_shnum)
                continue;
            if (!to)
                return true;
            const Elf64_Shdr *home = &f->section[s[k].st_shndx];
            if (s[k].st_size != size || home->sh_type == SHT_NOBITS ||
                s[k].st_value > home->sh_size || size > home->sh_size - s[k].st_value)
                return false;
            memcpy(to, f->data + home->sh_offset + s[k].st_value, size);
            return true;
        }
    }
    return false;
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
    for (int i = 0; i < f->header->e_shnum; i++)
        if (strcmp(text_at(f, f->header->e_shstrndx, f->section[i].sh_name), ".nv.info") == 0)
            read_attributes(f->data + f->section[i].sh_offset, f->section[i].sh_size, out);
    if (!read_symbol(f, "whet_kernel", NULL, 0))
        return err_set(err, "has no function whet_kernel");
    if (!read_symbol(f, "whet_info", &out->info, sizeof out->info))
        return err_set(err, "has no whet_info of %zu bytes", sizeof out->info);
    return check(out, err);
}

int cubin_inspect(const char *path, struct cubin_facts *out, struct err *err)
{
    struct file f = {0};
    memset(out, 0, sizeof *out);
    int rc = read_all(path, &f, err);
    if (rc == 0)
        rc = open_elf(&f, err);
    if (rc == 0)
        rc = inspect(&f, out, err);
    free(f.data);
    return rc;
}
