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
 *   test_cuda_templates SOURCE_ROOT [points a region]
 */
#include <elf.h>
#include <nvrtc.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/args.h"

enum { KNOBS = 24, VALUES = 16, SM_REGISTERS = 65536, OPTIONS = 64 };

/* ---- tables -------------------------------------------------------------------------------- */

struct facts {
    int REGION, M_MAX, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB, HAS_BIAS, HAS_QK_NORM, SMS;
};

struct knob {
    const char *name;
    int first, n, values[VALUES];
};

struct template
{
    const char *file;
    const struct knob *knob;
    int knobs;
    const char *(*legal)(const struct facts *f, const int *p);
    const char *(*start)(const struct facts *f);
};

#define FACTS_IN_SCOPE                                                                        \
    const int REGION = f->REGION, M_MAX = f->M_MAX, HIDDEN = f->HIDDEN, HEADS = f->HEADS,     \
              KV_HEADS = f->KV_HEADS, HEAD_DIM = f->HEAD_DIM, FFN = f->FFN, VOCAB = f->VOCAB, \
              HAS_BIAS = f->HAS_BIAS, HAS_QK_NORM = f->HAS_QK_NORM, SMS = f->SMS;             \
    (void)REGION, (void)M_MAX, (void)HIDDEN, (void)HEADS, (void)KV_HEADS, (void)HEAD_DIM;     \
    (void)FFN, (void)VOCAB, (void)HAS_BIAS, (void)HAS_QK_NORM, (void)SMS;

#define V(...) __VA_ARGS__
#define KNOB_ROW(id, value, list, help) \
    {#id, value, (int)(sizeof((int[]){list}) / sizeof(int)), {list}},
#define KNOB_VALUE(id, value, list, help) __attribute__((unused)) const int id = p[at++];
#define LEGAL_ROW(expression, why) \
    if (!(expression))             \
        return why;
#define START_ROW(when, knobs) \
    if (when)                  \
        return knobs;

static const struct knob gemv_knobs[] = {
#define KNOB KNOB_ROW
#include "kernels/gemv.def"
};
static const char *gemv_legal(const struct facts *f, const int *p)
{
    int at = 0;
    FACTS_IN_SCOPE
#define KNOB KNOB_VALUE
#define LEGAL LEGAL_ROW
#include "kernels/gemv.def"
    return NULL;
}
static const char *gemv_start(const struct facts *f)
{
    FACTS_IN_SCOPE
#define START START_ROW
#include "kernels/gemv.def"
    return "";
}

static const struct knob mma_knobs[] = {
#define KNOB KNOB_ROW
#include "kernels/mma.def"
};
static const char *mma_legal(const struct facts *f, const int *p)
{
    int at = 0;
    FACTS_IN_SCOPE
#define KNOB KNOB_VALUE
#define LEGAL LEGAL_ROW
#include "kernels/mma.def"
    return NULL;
}
static const char *mma_start(const struct facts *f)
{
    FACTS_IN_SCOPE
#define START START_ROW
#include "kernels/mma.def"
    return "";
}

static const struct knob attn_knobs[] = {
#define KNOB KNOB_ROW
#include "kernels/attn_decode.def"
};
static const char *attn_legal(const struct facts *f, const int *p)
{
    int at = 0;
    FACTS_IN_SCOPE
#define KNOB KNOB_VALUE
#define LEGAL LEGAL_ROW
#include "kernels/attn_decode.def"
    return NULL;
}
static const char *attn_start(const struct facts *f)
{
    FACTS_IN_SCOPE
#define START START_ROW
#include "kernels/attn_decode.def"
    return "";
}

#define KNOBS_OF(table) table, (int)(sizeof table / sizeof *table)
static const struct template templates[] = {
    {"gemv", KNOBS_OF(gemv_knobs), gemv_legal, gemv_start},
    {"mma", KNOBS_OF(mma_knobs), mma_legal, mma_start},
    {"attn_decode", KNOBS_OF(attn_knobs), attn_legal, attn_start},
};

static const struct row {
    const char *id;
    int region;
    const char *file;
    int m_min, m_max;
} rows[] = {
#define TEMPLATE(id, region, file, m_min, m_max, help) {#id, region, #file, m_min, m_max},
#include "kernels/templates_cuda.def"
};

static const struct facts shapes[] = {
    {0, 0, 2048, 32, 8, 64, 8192, 128256, 0, 0, 132},  /* Llama-3.2-1B */
    {0, 0, 2048, 16, 8, 128, 6144, 151936, 0, 1, 132}, /* Qwen3-1.7B */
    {0, 0, 2560, 32, 8, 128, 9728, 151936, 0, 1, 132}, /* Qwen3-4B */
    {0, 0, 1536, 12, 2, 128, 8960, 151936, 1, 0, 132}, /* Qwen2.5-1.5B */
};

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

static char *read_source(const char *file)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/kernels/%s.cu", root, file);
    FILE *f = fopen(path, "rb");
    char *text = calloc(1, 1 << 20);
    if (!f || !text || !fread(text, 1, (1 << 20) - 1, f)) {
        fprintf(stderr, "%s cannot be read\n", path);
        exit(1);
    }
    fclose(f);
    return text;
}

static void describe(const struct template *t, const struct facts *f, const int *p)
{
    printf("  %s region %d M %d hidden %d:", t->file, f->REGION, f->M_MAX, f->HIDDEN);
    for (int i = 0; i < t->knobs; i++)
        if (p[i] != t->knob[i].first)
            printf(" %s=%d", t->knob[i].name, p[i]);
    printf("\n");
}

static nvrtcResult build(const struct template *t, const struct facts *f, const int *p,
                         nvrtcProgram *program)
{
    static char text[OPTIONS][64], include[4200];
    const char *option[OPTIONS + 3] = {"-std=c++17", "-arch=sm_90a", include};
    char *source = read_source(t->file), name[64];
    int n = 0;
    snprintf(include, sizeof include, "-I%s/kernels", root);
    snprintf(name, sizeof name, "%s.cu", t->file);
#define DEFINE(id, value) snprintf(text[n++], sizeof text[0], "-D%s=%d", id, value)
#define SHAPE(id, value, help) DEFINE(#id, f->id);
#include "kernels/templates_cuda.def"
    for (int i = 0; i < t->knobs; i++)
        DEFINE(t->knob[i].name, p[i]);
    for (int i = 0; i < n; i++)
        option[3 + i] = text[i];
    nvrtcResult r = nvrtcCreateProgram(program, source, name, 0, NULL, NULL);
    if (r == NVRTC_SUCCESS)
        r = nvrtcCompileProgram(*program, 3 + n, option);
    free(source);
    return r;
}

/* Compiles one point and looks at what it needs. */
static void try_point(const struct template *t, const struct facts *f, const int *p, bool strict)
{
    nvrtcProgram program;
    struct needs n = {0, 0};
    nvrtcResult r = build(t, f, p, &program);
    size_t size = 0;
    compiled++;
    if (r != NVRTC_SUCCESS) {
        char log[65536] = "";
        if (nvrtcGetProgramLogSize(program, &size) == NVRTC_SUCCESS && size < sizeof log)
            nvrtcGetProgramLog(program, log);
        printf("does not compile:\n");
        describe(t, f, p);
        printf("%s\n", log);
        failed++;
        nvrtcDestroyProgram(&program);
        return;
    }
    nvrtcGetCUBINSize(program, &size);
    char *cubin = malloc(size);
    if (!cubin || nvrtcGetCUBIN(program, cubin) != NVRTC_SUCCESS ||
        cubin_needs(cubin, size, &n) != 0) {
        printf("its cubin cannot be read:\n");
        describe(t, f, p);
        failed++;
    } else if (n.stack > 0) {
        spilled++;
        printf("%s %d bytes of stack:\n", strict ? "FAIL" : "note:", n.stack);
        describe(t, f, p);
        failed += strict;
    }
    if (n.registers < 1 || n.registers > 255) {
        printf("%d registers?\n", n.registers);
        describe(t, f, p);
        failed++;
    }
    free(cubin);
    nvrtcDestroyProgram(&program);
}

/* ---- points --------------------------------------------------------------------------------- */

static void defaults(const struct template *t, int *p)
{
    for (int i = 0; i < t->knobs; i++)
        p[i] = t->knob[i].first;
}

/* Applies "NAME=value ..."; a name or value that the table does not have is a failure. */
static void apply(const struct template *t, const char *knobs, int *p)
{
    char name[64];
    int value, used;
    while (sscanf(knobs, " %63[A-Z_]=%d%n", name, &value, &used) == 2) {
        bool known = false;
        for (int i = 0; i < t->knobs; i++)
            for (int j = 0; j < t->knob[i].n && strcmp(name, t->knob[i].name) == 0; j++)
                if (t->knob[i].values[j] == value) {
                    known = true;
                    p[i] = value;
                }
        if (!known) {
            printf("FAIL %s.def: START names %s=%d\n", t->file, name, value);
            failed++;
        }
        knobs += used;
    }
}

static bool random_point(const struct template *t, const struct facts *f, uint32_t *z, int *p)
{
    for (int tries = 0; tries < 1000000; tries++) {
        for (int i = 0; i < t->knobs; i++) {
            *z = *z * 1664525u + 1013904223u;
            p[i] = t->knob[i].values[(*z >> 16) % (uint32_t)t->knob[i].n];
        }
        if (!t->legal(f, p))
            return true;
    }
    return false;
}

/* A shape may have no legal start; the START row that matches, or the defaults, must be legal. */
static void try_start(const struct template *t, const struct facts *f)
{
    int p[KNOBS];
    const char *knobs = t->start(f), *why;
    defaults(t, p);
    apply(t, knobs, p);
    why = t->legal(f, p);
    if (!why) {
        try_point(t, f, p, true);
    } else if (*knobs) {
        printf("FAIL START \"%s\": %s\n", knobs, why);
        describe(t, f, p);
        failed++;
    }
}

static const struct template *template_of(const char *file)
{
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++)
        if (strcmp(templates[i].file, file) == 0)
            return &templates[i];
    printf("FAIL templates_cuda.def: no table for %s\n", file);
    exit(1);
}

int main(int argc, char **argv)
{
    static const int ms[] = {1, 2, 4, 8, 16, 32};
    int spread = argc > 2 ? atoi(argv[2]) : 2;
    uint32_t z = 4;
    if (argc < 2) {
        fprintf(stderr, "usage: test_cuda_templates SOURCE_ROOT [points a region]\n");
        return 2;
    }
    root = argv[1];
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        const struct template *t = template_of(rows[r].file);
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            struct facts f = shapes[s];
            int p[KNOBS];
            f.REGION = rows[r].region;
            for (size_t m = 0; m < sizeof ms / sizeof *ms; m++) {
                f.M_MAX = ms[m];
                if (ms[m] == 1 || ms[m] == 8 || (ms[m] == 32 && s < 2))
                    if (ms[m] >= rows[r].m_min && ms[m] <= rows[r].m_max)
                        try_start(t, &f);
            }
            for (int i = 0; i < spread; i++) {
                z = z * 1664525u + 1013904223u;
                f.M_MAX = rows[r].m_min +
                          (int)((z >> 16) % (uint32_t)(rows[r].m_max - rows[r].m_min + 1));
                if (random_point(t, &f, &z, p))
                    try_point(t, &f, p, false);
            }
        }
    }
    printf("%d points compiled, %d with stack, %d failed\n", compiled, spilled, failed);
    if (spilled * 5 > compiled) {
        printf("FAIL more than a fifth of the points spill\n");
        failed++;
    }
    return failed > 0;
}
