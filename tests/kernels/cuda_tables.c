/* cuda_tables.c - kernels/templates_cuda.def and the knob tables that it names. */
#include "tests/kernels/cuda_tables.h"

#include <stdio.h>
#include <string.h>

#include "kernels/args.h"

/* ---- tables -------------------------------------------------------------------------------- */

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
static const struct table tables[] = {
    {"gemv", KNOBS_OF(gemv_knobs), gemv_legal, gemv_start},
    {"mma", KNOBS_OF(mma_knobs), mma_legal, mma_start},
    {"attn_decode", KNOBS_OF(attn_knobs), attn_legal, attn_start},
};

const struct cuda_template cuda_templates[] = {
#define TEMPLATE(id, region, file, m_min, m_max, help) {#id, region, #file, m_min, m_max},
#include "kernels/templates_cuda.def"
};
const int cuda_template_count = sizeof cuda_templates / sizeof *cuda_templates;

const struct table *table_of(const char *file)
{
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (strcmp(tables[i].file, file) == 0)
            return &tables[i];
    return NULL;
}

/* ---- points --------------------------------------------------------------------------------- */

void point_defaults(const struct table *t, int *p)
{
    for (int i = 0; i < t->knobs; i++)
        p[i] = t->knob[i].first;
}

bool point_apply(const struct table *t, const char *knobs, int *p)
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
        if (!known)
            return false;
        knobs += used;
    }
    return true;
}

bool point_random(const struct table *t, const struct facts *f, uint32_t *z, int *p)
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

void table_text(const struct table *t, const int *p, char *out, int size)
{
    int at = snprintf(out, (size_t)size, "%s", "");
    for (int i = 0; i < t->knobs && at < size; i++)
        if (p[i] != t->knob[i].first)
            at += snprintf(out + at, (size_t)(size - at), "%s%s=%d", at ? " " : "", t->knob[i].name,
                           p[i]);
    if (at == 0)
        snprintf(out, (size_t)size, "defaults");
}

int point_options(const struct table *t, const struct facts *f, const int *p,
                  char text[OPTIONS_MOST][OPTION_SIZE])
{
    int n = 0;
#define DEFINE(id, value) snprintf(text[n++], OPTION_SIZE, "-D%s=%d", id, value)
#define SHAPE(id, value, help) DEFINE(#id, f->id);
#include "kernels/templates_cuda.def"
    for (int i = 0; i < t->knobs; i++)
        DEFINE(t->knob[i].name, p[i]);
    return n;
}
