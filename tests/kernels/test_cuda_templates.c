/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda_templates.c - every CUDA template compiles, for sm_90a, without a GPU: at its defaults,
 * at every point that a START row names for the shapes we know, and at a seeded spread of legal
 * points.
 *
 * NVRTC is what compiles candidates at run time. What a kernel needs is read from the cubin itself,
 * an ELF file whose .nv.info sections give registers and stack. A default or start that keeps
 * anything on the stack is a failure: the stack is memory, and a spill there costs more than any
 * knob gains. Of the spread, which the LEGAL rows only estimate, a few may spill (the specializer
 * refuses those), but all must compile, and none may need more registers than a block can have.
 *
 *   test_cuda_templates SOURCE_ROOT [points a region [FAMILY]]     or WHET_CUDA_POINTS=n
 *
 * With one point a region, the usual, one of five shapes and numbers of tokens has its turn, and
 * one shape of three a point of the spread; with more than two every value of every knob is tried,
 * too. With none, only START rows, but all: of every shape and more numbers of tokens, which a
 * change of a template's registers wants.
 */
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/args.h"
#include "kernels/images.h"
#include "tests/kernels/cuda_points.h"
#include "tests/kernels/sample.h"

static const struct model_shape shapes[] = {
    {ARCH_LLAMA, 16, 2048, 32, 8, 64, 8192, 128256, 0, 0, 0, 0, 0, {0}},  /* Llama-3.2-1B */
    {ARCH_QWEN3, 28, 2048, 16, 8, 128, 6144, 151936, 0, 0, 0, 0, 0, {0}}, /* Qwen3-1.7B */
    {ARCH_QWEN3, 36, 2560, 32, 8, 128, 9728, 151936, 0, 0, 0, 0, 0, {0}}, /* Qwen3-4B */
    {ARCH_QWEN2, 28, 1536, 12, 2, 128, 8960, 151936, 0, 0, 0, 0, 0, {0}}, /* Qwen2.5-1.5B */
    /* from here on M = 1: Qwen3-0.6B, Llama-3.2-3B, Llama-3.1-8B, a rank's half of Qwen3-4B */
    {ARCH_QWEN3, 28, 1024, 16, 8, 128, 3072, 151936, 0, 0, 0, 0, 0, {0}},
    {ARCH_LLAMA, 28, 3072, 24, 8, 128, 8192, 128256, 0, 0, 0, 0, 0, {0}},
    {ARCH_LLAMA, 32, 4096, 32, 8, 128, 14336, 128256, 0, 0, 0, 0, 0, {0}},
    {ARCH_QWEN3, 36, 2560, 16, 4, 128, 4864, 75968, 0, 0, 0, 0, 0, {0}},
};
enum { SMS = 132, NARROW_ONLY = 3, ONE_ONLY = 4 /* from these shapes on */ };

/* ---- what a cubin needs -------------------------------------------------------------------- */

struct needs {
    int registers, stack;
};

/* Attributes of .nv.info: a format byte (4: sized), a number, a size, then pairs of symbol and
 * value. The largest over the object's functions. */
static int attributes(const char *data, size_t size, struct needs *n)
{
    enum { SIZED = 4, REGISTERS = 0x2f, FRAME = 0x11, STACK = 0x12 };
    int found = 0;
    for (size_t at = 0; at + 4 <= size;) {
        uint8_t format = (uint8_t)data[at], id = (uint8_t)data[at + 1];
        uint16_t bytes;
        uint32_t value;
        memcpy(&bytes, data + at + 2, 2);
        if (format != SIZED) {
            at += 4;
            continue;
        }
        if (at + 4 + bytes > size)
            return -1;
        if (bytes >= 8) {
            memcpy(&value, data + at + 8, 4);
            if (id == REGISTERS && ++found && (int)value > n->registers)
                n->registers = (int)value;
            if ((id == FRAME || id == STACK) && (int)value > n->stack)
                n->stack = (int)value;
        }
        at += 4 + bytes;
    }
    return found;
}

static int cubin_needs(const char *cubin, size_t size, struct needs *n)
{
    Elf64_Ehdr h;
    int found = 0;
    if (size < sizeof h)
        return -1;
    memcpy(&h, cubin, sizeof h);
    if (memcmp(h.e_ident, ELFMAG, SELFMAG) != 0 || h.e_shentsize != sizeof(Elf64_Shdr) ||
        h.e_shoff + (size_t)h.e_shnum * sizeof(Elf64_Shdr) > size)
        return -1;
    const Elf64_Shdr *section = (const Elf64_Shdr *)(const void *)(cubin + h.e_shoff);
    const char *names = cubin + section[h.e_shstrndx].sh_offset;
    for (int i = 0; i < h.e_shnum; i++)
        if (strcmp(names + section[i].sh_name, ".nv.info") == 0)
            found += attributes(cubin + section[i].sh_offset, section[i].sh_size, n);
    return found > 0 ? 0 : -1;
}

/* ---- compiling ------------------------------------------------------------------------------ */

static const char *root;
static int compiled, failed, spilled;

static void describe(const char *what, const struct template *t, const struct facts *f,
                     const struct point *p)
{
    char text[512];
    cuda_point_text(t, p, text, sizeof text);
    printf("%s: %s M %d hidden %d weights %d: %s\n", what, t->id, f->M_MAX, f->HIDDEN, f->WTYPE,
           text);
}

static void fail(const char *what, const struct template *t, const struct facts *f,
                 const struct point *p)
{
    describe(what, t, f, p);
    failed++;
}

/* Bytes of stack that a point may need: what START names, none. Defaults are no choice: the 13.5 of
 * NVRTC puts eight bytes of one there. What is drawn may be anything. */
enum { OF_START = 0, OF_DEFAULTS = 8, OF_DRAWN = INT32_MAX };

/* Compiles one point and looks at what it needs. */
static void try_point(const struct template *t, const struct facts *f, const struct point *p,
                      int most)
{
    struct needs n = {0, 0};
    char why[WHY_SIZE], what[64];
    size_t size = 0;
    char *cubin = cuda_point_build(root, "sm_90a", t, f, p, &size, why);
    compiled++;
    if (!cubin) {
        printf("%s\n", why);
        fail("does not compile", t, f, p);
        return;
    }
    if (cubin_needs(cubin, size, &n) != 0) {
        fail("its cubin cannot be read", t, f, p);
    } else if (n.stack > 0) {
        spilled++;
        failed += n.stack > most;
        snprintf(what, sizeof what, "%s %d bytes of stack",
                 n.stack > most ? "FAIL" : "note:", n.stack);
        describe(what, t, f, p);
    }
    if (n.registers < 1 || n.registers > 255)
        fail("an impossible number of registers", t, f, p);
    free(cubin);
}

/* A shape may have no legal start; the first START row that holds, or the defaults, must be legal
 * for the shapes we know. Not first: whatever a search would begin with. */
static void try_start(const struct template *t, const struct facts *f, bool first)
{
    struct point p;
    if (!first) {
        if (template_start(t, f, &p) && !template_illegal(t, &p, f))
            try_point(t, f, &p, OF_START);
        return;
    }
    const char *knobs = t->start(f, 0), *why;
    if (!template_start_row(t, f, 0, &p) && knobs)
        fail("START names a knob that is not there", t, f, &p);
    why = template_illegal(t, &p, f);
    if (!why)
        try_point(t, f, &p, knobs ? OF_START : OF_DEFAULTS);
    else if (knobs)
        fail(why, t, f, &p);
}

/* Where activations may be e4m3, a search begins with another row. */
static void try_e4m3(const struct template *t, struct facts f)
{
    f.WTYPE = f.WTYPE_2 = f.WTYPE_3 = DTYPE_F8;
    f.POLICY_REDUCED = f.POLICY_FP8 = 1;
    try_start(t, &f, true);
}

/* Every knob at each of its values, the others at the start's: no value is left uncompiled. */
static void try_values(const struct template *t, const struct facts *f)
{
    const struct point p = cuda_start(t, f);
    for (int k = 0; k < t->knobs; k++)
        for (int i = 0; i < t->knob[k].values; i++) {
            struct point q = p;
            q.value[k] = t->knob[k].value[i];
            if (q.value[k] != p.value[k] && !template_illegal(t, &q, f))
                try_point(t, f, &q, OF_DRAWN);
        }
}

static void try_template(const struct template *t, int spread, uint32_t *z)
{
    static const int ms[] = {1,  2,  8,   32,  48, 64, 128, 256, 2048, /* all STARTs: */ 4,
                             16, 24, 512, 1024};
    enum { USUAL = 9 };
    const size_t count = spread > 0 ? USUAL : sizeof ms / sizeof *ms;
    int types = template_index(t); /* of the next point: all formats come in turn */
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        struct facts f = cuda_facts_in(&shapes[s], t->region, 1, SMS, cuda_type(t, 1, types));
        struct point p;
        for (size_t m = 0; m < count; m++) {
            bool turn = (s + m + (size_t)template_index(t)) % 5 == 0;
            if (ms[m] < t->m_min || ms[m] > t->m_max)
                continue;
            if (spread > 0 && ((ms[m] >= 32 && s >= NARROW_ONLY) || (ms[m] > 1 && s >= ONE_ONLY)))
                continue;
            f = cuda_facts_in(&shapes[s], t->region, ms[m], SMS, cuda_type(t, ms[m], types));
            if (spread != 1 || turn) {
                try_start(t, &f, spread > 0);
                types++;
            }
            if (ms[m] > 64 && strcmp(t->file, "brick_wide") == 0)
                try_e4m3(t, f);
        }
        f.M_MAX = t->m_min == 1 ? 1 : t->m_min > 8 ? 256 : 8;
        if (spread > 2 && s == 1)
            try_values(t, &f);
        const bool skip = spread == 1 && (s + (size_t)template_index(t)) % 3 != 0;
        for (int i = 0; i < spread && s < ONE_ONLY && !skip; i++) {
            *z = *z * 1664525u + 1013904223u;
            int m = t->m_min + (int)((*z >> 16) % (uint32_t)(t->m_max - t->m_min + 1));
            f = cuda_facts_in(&shapes[s], t->region, m, SMS, cuda_type(t, m, types++));
            if (cuda_point_random(t, &f, z, &p))
                try_point(t, &f, &p, OF_DRAWN);
        }
    }
}

/* The eager kernels, as the build has embedded them for sm_90a: no stack, but for the sampler (80
 * bytes), which runs once a step and only for rows that are not greedy. */
static void try_eager(void)
{
    static const struct {
        const char *file;
        bool stack;
    } eager[] = {{"eager.cu", false},       {"eager_decode.cu", false}, {"eager_prefill.cu", false},
                 {"eager_wgmma.cu", false}, {"eager_tools.cu", false},  {"eager_bricks.cu", false},
                 {"eager_sample.cu", true}};
    for (size_t i = 0; i < sizeof eager / sizeof *eager; i++) {
        const struct cuda_image *image = NULL;
        for (int k = 0; k < cuda_image_count && !image; k++)
            if (cuda_images[k].arch == 90 && cuda_images[k].exact &&
                strcmp(cuda_images[k].file, eager[i].file) == 0)
                image = &cuda_images[k];
        struct needs n = {0, 0};
        if (!image ||
            cubin_needs((const char *)cuda_image_data + image->at, image->size, &n) != 0 ||
            (n.stack > 0 && !eager[i].stack)) {
            printf("FAIL %s: %s, %d bytes of stack\n", eager[i].file,
                   image ? "embedded" : "not embedded for sm_90a", n.stack);
            failed++;
        }
    }
}

int main(int argc, char **argv)
{
    int spread = argc > 2 ? atoi(argv[2]) : sample_size("WHET_CUDA_POINTS", 1);
    uint32_t z = 4;
    if (argc < 2) {
        fprintf(stderr, "usage: test_cuda_templates SOURCE_ROOT [points a region [FILE]]\n"
                        "FILE: of templates below kernels/cuda, without its ending (gemv)\n");
        return 2;
    }
    root = argv[1];
    const char *file = argc > 3 ? argv[3] : NULL;
    int templates = 0;
    try_eager();
    for (int i = 0; i < template_count(); i++)
        if (template_at(i)->machine == MACHINE_CUDA && !template_at(i)->library &&
            (!file || strcmp(template_at(i)->file, file) == 0)) {
            try_template(template_at(i), spread, &z);
            templates++;
        }
    printf("%d points compiled, %d with stack, %d failed\n", compiled, spilled, failed);
    if (templates == 0) {
        printf("FAIL no template is in the file kernels/cuda/%s.cu\n", file);
        failed++;
    }
    if (spilled * 5 > compiled) {
        printf("FAIL more than a fifth of the points spill\n");
        failed++;
    }
    return failed > 0;
}
