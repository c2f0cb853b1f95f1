/* SPDX-License-Identifier: Apache-2.0 */
/* agent_cubin.c - see agent_cubin.h.
 *
 * A cubin is an ELF file. Kernels are .text.<name> sections; device variables live in .nv.global
 * (zeroed), .nv.global.init and .nv.constant3, and the frame owns exactly one of them, whet_info.
 * What the device runtime would have to provide shows as an undefined symbol, and its code is read
 * by agent_sass.c. The file may be damaged, so every offset is checked.
 */
#include "specializer/agent/agent_cubin.h"

#include <elf.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "specializer/agent/agent_sass.h"

enum { CUBIN_MOST = 16 << 20 };
/* The frame's own limits (kernels/cuda/agent.cu). */
enum { THREADS_MOST = 1024, GRID_MOST = 1 << 20, SMEM_MOST = 227 * 1024, CLUSTER_MOST = 8 };
static const int64_t work_most = INT64_C(256) << 20;

struct cubin {
    const unsigned char *data;
    size_t n;
    Elf64_Ehdr head;
};

static bool inside(const struct cubin *c, uint64_t offset, uint64_t size)
{
    return offset <= c->n && size <= c->n - offset;
}

static bool section_at(const struct cubin *c, unsigned i, Elf64_Shdr *out)
{
    if (i >= c->head.e_shnum || !inside(c, c->head.e_shoff, (i + UINT64_C(1)) * sizeof *out))
        return false;
    memcpy(out, c->data + c->head.e_shoff + (uint64_t)i * sizeof *out, sizeof *out);
    return out->sh_type == SHT_NOBITS || inside(c, out->sh_offset, out->sh_size);
}

/* A name in string section `table`; NULL if it is not whole. */
static const char *name_at(const struct cubin *c, unsigned table, uint64_t at)
{
    Elf64_Shdr s;
    if (!section_at(c, table, &s) || s.sh_type != SHT_STRTAB || at >= s.sh_size)
        return NULL;
    const char *name = (const char *)c->data + s.sh_offset + at;
    return memchr(name, 0, s.sh_size - at) ? name : NULL;
}

static int check_symbol(const struct cubin *c, const Elf64_Sym *sym, const char *name,
                        struct err *err)
{
    Elf64_Shdr home;
    int type = ELF64_ST_TYPE(sym->st_info);
    /* What the driver keeps for itself at the foot of every block's shared memory. */
    if (strncmp(name, ".nv.reservedSmem", 16) == 0)
        return 0;
    if (sym->st_shndx == SHN_UNDEF)
        return *name ? err_set(err, "refers to %.80s", name) : 0;
    if (type == STT_OBJECT && strcmp(name, "whet_info") != 0 &&
        section_at(c, sym->st_shndx, &home)) {
        const char *in = name_at(c, c->head.e_shstrndx, home.sh_name);
        /* Shared memory is the block's own and ends with it. */
        if (in && strncmp(in, ".nv.shared", 10) != 0)
            return err_set(err,
                           "keeps state between launches: %.80s in %.40s (constants: enum or "
                           "#define)",
                           name, in);
    }
    return 0;
}

static int check_symbols(const struct cubin *c, const Elf64_Shdr *s, struct err *err)
{
    for (uint64_t i = 1; i < s->sh_size / sizeof(Elf64_Sym); i++) {
        Elf64_Sym sym;
        memcpy(&sym, c->data + s->sh_offset + i * sizeof sym, sizeof sym);
        const char *name = name_at(c, s->sh_link, sym.st_name);
        if (!name)
            return err_set(err, "damaged: symbol name outside the file");
        if (check_symbol(c, &sym, name, err) != 0)
            return -1;
    }
    return 0;
}

/* The frame has one variable, its description. Whatever else is written before the launch, or is
 * there after it, is the text's. */
static int check_section(const struct cubin *c, const Elf64_Shdr *s, const char *name,
                         struct err *err)
{
    static const char text[] = ".text.";
    if (strncmp(name, text, sizeof text - 1) == 0) {
        if (strcmp(name + sizeof text - 1, "whet_kernel") != 0)
            return err_set(err, "has the function %.80s of its own", name + sizeof text - 1);
        if (s->sh_type != SHT_PROGBITS)
            return err_set(err, "damaged: code without bytes");
        return agent_sass_inspect(c->data + s->sh_offset, s->sh_size, err);
    }
    bool described = strcmp(name, ".nv.global.init") == 0;
    if (s->sh_size > 0 && ((described && s->sh_size != sizeof(struct cuda_kernel_info)) ||
                           (!described && strncmp(name, ".nv.global", 10) == 0) ||
                           strncmp(name, ".nv.constant3", 13) == 0))
        return err_set(err, "keeps state between launches: %llu bytes in %.40s",
                       (unsigned long long)s->sh_size, name);
    return s->sh_type == SHT_SYMTAB ? check_symbols(c, s, err) : 0;
}

int agent_cubin_inspect(const void *data, size_t n, struct err *err)
{
    struct cubin c = {.data = data, .n = n};
    int entries = 0;
    if (n < sizeof c.head)
        return err_set(err, "not a cubin");
    memcpy(&c.head, data, sizeof c.head);
    if (memcmp(c.head.e_ident, ELFMAG, SELFMAG) != 0 || c.head.e_ident[EI_CLASS] != ELFCLASS64 ||
        c.head.e_ident[EI_DATA] != ELFDATA2LSB || c.head.e_machine != EM_CUDA ||
        c.head.e_shentsize != sizeof(Elf64_Shdr))
        return err_set(err, "not a cubin");
    /* Symbols first: they name what a section only holds. */
    for (unsigned pass = 0; pass < 2; pass++)
        for (unsigned i = 0; i < c.head.e_shnum; i++) {
            Elf64_Shdr s;
            const char *name =
                section_at(&c, i, &s) ? name_at(&c, c.head.e_shstrndx, s.sh_name) : NULL;
            if (!name)
                return err_set(err, "damaged: section %u outside the file", i);
            if ((s.sh_type == SHT_SYMTAB) == (pass == 0) && check_section(&c, &s, name, err) != 0)
                return -1;
            entries += pass == 1 && strcmp(name, ".text.whet_kernel") == 0;
        }
    return entries == 1 ? 0 : err_set(err, "has %s whet_kernel", entries ? "more than one" : "no");
}

static int check_launch(const struct cuda_launch *l, struct err *err)
{
    if (l->threads < 32 || l->threads > THREADS_MOST || l->threads % 32 != 0)
        return err_set(err, "blocks of %d threads: whole warps, at most %d", l->threads,
                       (int)THREADS_MOST);
    if (l->grid[0] < 1 || l->grid[0] > GRID_MOST || l->grid[1] != 1 || l->grid[2] != 1)
        return err_set(err, "a grid of %d x %d x %d blocks: one dimension, at most %d", l->grid[0],
                       l->grid[1], l->grid[2], (int)GRID_MOST);
    if (l->smem < 0 || l->smem > SMEM_MOST)
        return err_set(err, "%d bytes of shared memory, at most %d", l->smem, (int)SMEM_MOST);
    if (l->cluster < 0 || l->cluster > CLUSTER_MOST ||
        (l->cluster > 1 && l->grid[0] % l->cluster != 0))
        return err_set(err, "clusters of %d blocks in a grid of %d", l->cluster, l->grid[0]);
    return l->pdl == 1 ? 0 : err_set(err, "is not launched as the frame launches");
}

/* What it says of itself is what the frame would say. A text can redefine the frame's words, so
 * this asks again what the frame asserts: the region and bucket it was built for, one launch of
 * whole warps, and sizes within limits. */
static int info_check(const struct cuda_kernel_info *info, int32_t region, int32_t m_max,
                      struct err *err)
{
    if (info->abi != WHET_CUDA_ABI || info->region != region || info->m_max != m_max)
        return err_set(err, "says it computes region %d for %d tokens, and is for %d and %d",
                       info->region, info->m_max, region, m_max);
    if (info->launches != 1 || info->packed_bytes != 0 || info->layout[0] || info->context_max != 0)
        return err_set(err, "says it has %d launches, %lld packed bytes, contexts up to %d",
                       info->launches, (long long)info->packed_bytes, info->context_max);
    if (info->work_bytes < 0 || info->work_bytes > work_most)
        return err_set(err, "wants %lld bytes to work in, at most %lld",
                       (long long)info->work_bytes, (long long)work_most);
    if (info->counters < 0 || info->counters > CUDA_COUNTERS)
        return err_set(err, "wants %d counters, at most %d", info->counters, (int)CUDA_COUNTERS);
    return check_launch(&info->launch[0], err);
}

int agent_cubin_check(const char *path, const struct cuda_kernel_info *info, int32_t region,
                      int32_t m_max, struct err *err)
{
    if (info_check(info, region, m_max, err) != 0)
        return -1;
    FILE *f = fopen(path, "rbe");
    char *data = xmalloc(CUBIN_MOST + 1);
    size_t n = f ? fread(data, 1, CUBIN_MOST + 1, f) : 0;
    if (f)
        fclose(f);
    int rc = n <= CUBIN_MOST ? agent_cubin_inspect(data, n, err)
                             : err_set(err, "is larger than %d bytes", (int)CUBIN_MOST);
    free(data);
    return rc;
}
