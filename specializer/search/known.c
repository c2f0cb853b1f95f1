/* SPDX-License-Identifier: Apache-2.0 */
/* known.c - see known.h.
 *
 * How far is a row from a slot? Every doubling of a width, of the context or of the threads counts
 * a quarter, every doubling of the tokens in a step one. Other numerics, which left a search other
 * points, count a tenth, but rows of full precision say nothing of lower ones; another maker of the
 * processor, whose units are as many and as wide but not as fast, counts as much. A row at a
 * distance of one or more is not taken, since the START rows of the knob tables are nearer. What a
 * kernel is made of depends most on the instruction set and the formats of the weights, so these
 * must be the same.
 */
#include "specializer/search/known.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "engine/quant.h"
#include "kernels/sources.h"

enum { VERSION = 1, LINE_MOST = 600 };
static const char kv_bf16[] = " kv=bf16"; /* ends the line of a model whose cache is that */
static const double far = 1, per_doubling = 0.25, other_numerics = 0.1, other_maker = 0.1;

/* What the lines before a row said. */
struct origin_lines {
    enum machine_kind kind;
    char isa[24], device[96];
    int32_t threads;
    int numerics;                  /* enum numerics; -1: not said */
    struct facts shape;            /* dimensions, and KV_BF16 */
    int32_t type[REGION_NODES][3]; /* enum dtype; -1: not said */
    bool machine, model;
};

struct row {
    int origin;
    enum region region;
    int32_t m, context;
    bool typed;      /* its slot is a format class's, */
    int32_t type[3]; /* which is of these; else the origin's */
    double speed;
    const struct template *template;
    struct point point;
};

struct known {
    struct origin_lines **origin; /* [origins] */
    int origins;
    struct row *row; /* [rows] */
    int rows;
};

/* ---- what runs here ------------------------------------------------------------------------- */

/* The best instruction set that these facts allow: the last such ISA_FLAGS row. */
static const char *best_isa(const struct facts *f)
{
    const char *best = "none";
#define FACT(name, help)            \
    const int32_t name = (f)->name; \
    (void)name;
#include "kernels/templates.def"
#define ISA_FLAGS(value, name, flags, needs) \
    if (needs)                               \
        best = name;
#include "kernels/templates.def"
    return best;
}

static const char *type_name(int32_t type)
{
    return type >= 0 && type < DTYPE_COUNT ? dtype_name((enum dtype)type) : "mixed";
}

/* Regions whose kernels read weights. */
static bool has_weights(enum region r)
{
    return r != REGION_EMBED && r != REGION_ATTN && r != REGION_REDUCE;
}

char *known_heading(const struct machine *machine, const struct model *model, int32_t threads,
                    enum numerics numerics)
{
    char *text = NULL;
    size_t n = 0;
    struct facts f;
    FILE *out = xmemstream(&text, &n);
    facts_fill(&f, model, REGION_HEAD, 1, NUMERICS_TOLERANCE);
    const struct target *target = target_of(machine->kind);
    fprintf(out, "machine %s %s %d %s\n", target->name,
            target->device_target ? machine->target : best_isa(&f),
            (int)(target->device_target ? machine->sms : threads), machine->device);
    fprintf(out, "numerics %s\n", numerics_name(numerics_proofs(numerics)));
    fprintf(out, "model hidden=%d heads=%d kv_heads=%d head_dim=%d ffn=%d vocab=%d%s\nweights",
            f.HIDDEN, f.HEADS, f.KV_HEADS, f.HEAD_DIM, f.FFN, f.VOCAB, f.KV_BF16 ? kv_bf16 : "");
    for (int r = 0; r < REGION_NODES; r++)
        if (has_weights((enum region)r)) {
            facts_fill(&f, model, (enum region)r, 1, NUMERICS_TOLERANCE);
            fprintf(out, " %s=%s,%s,%s", region_name((enum region)r), type_name(f.WTYPE),
                    type_name(f.WTYPE_2), type_name(f.WTYPE_3));
        }
    fputs("\n", out);
    fclose(out);
    return text;
}

/* ---- reading -------------------------------------------------------------------------------- */

static int32_t parse_type(const char *name)
{
    for (int t = 0; t < DTYPE_COUNT; t++)
        if (strcmp(dtype_name((enum dtype)t), name) == 0)
            return t;
    return -1;
}

static int read_machine(struct origin_lines *o, const char *line, struct err *err)
{
    char kind[8];
    int threads, at = 0;
    if (sscanf(line, "machine %7s %23s %d %n", kind, o->isa, &threads, &at) != 3 || at == 0 ||
        threads < 1 || !target_find(kind, &o->kind))
        return err_set(err, "not \"machine cpu|cuda ISA THREADS DEVICE\"");
    o->threads = threads;
    snprintf(o->device, sizeof o->device, "%s", line + at);
    o->machine = true;
    return 0;
}

static int read_numerics(struct origin_lines *o, const char *line, struct err *err)
{
    enum numerics n;
    o->numerics = -1;
    if (!numerics_find(line + strlen("numerics "), &n) || n != numerics_proofs(n))
        return err_set(err, "not \"numerics tolerance|bit_equal|reduced|fp8\"");
    o->numerics = (int)n;
    return 0;
}

static int read_model(struct origin_lines *o, const char *line, struct err *err)
{
    struct facts *f = &o->shape;
    if (sscanf(line, "model hidden=%d heads=%d kv_heads=%d head_dim=%d ffn=%d vocab=%d", &f->HIDDEN,
               &f->HEADS, &f->KV_HEADS, &f->HEAD_DIM, &f->FFN, &f->VOCAB) != 6 ||
        f->HIDDEN < 1 || f->HEADS < 1 || f->KV_HEADS < 1 || f->HEAD_DIM < 1 || f->FFN < 1 ||
        f->VOCAB < 1)
        return err_set(err, "not \"model hidden=N heads=N kv_heads=N head_dim=N ffn=N vocab=N\"");
    f->KV_BF16 = strstr(line, kv_bf16) != NULL;
    o->model = true;
    return 0;
}

static int read_weights(struct origin_lines *o, const char *line, struct err *err)
{
    char name[24], type[3][16];
    int used = 0;
    for (line += strlen("weights"); *line; line += used) {
        if (sscanf(line, " %23[a-z_]=%15[^, ],%15[^, ],%15[^, ]%n", name, type[0], type[1], type[2],
                   &used) != 4)
            return err_set(err, "not \"weights REGION=FORMAT,FORMAT,FORMAT ...\"");
        int r = region_parse(name);
        for (int i = 0; i < 3 && r >= 0; i++)
            o->type[r][i] = parse_type(type[i]);
    }
    return 0;
}

/* "head/m1", "attn/m1/c256", "mlp_out/m1/q6_k". */
static int read_slot(const char *slot, struct row *row, struct err *err)
{
    char region[24];
    int m = 0, context = 0;
    int n = sscanf(slot, "%23[a-z_]/m%d/c%d", region, &m, &context);
    int r = n >= 2 ? region_parse(region) : -1;
    if (r < 0 || m < 1 || context < 0)
        return err_set(err, "\"%s\" is no slot", slot);
    const char *formats = strchr(strchr(slot, '/') + 1, '/');
    if (formats && n == 2) {
        enum dtype type[3] = {0};
        int types = formats_parse((enum region)r, formats + 1, type);
        if (types == 0)
            return err_set(err, "\"%s\" is no slot", slot);
        for (int i = 0; i < 3; i++)
            row->type[i] = (int32_t)type[i < types ? i : 0];
        row->typed = true;
    }
    row->region = (enum region)r;
    row->m = m;
    row->context = context;
    return 0;
}

static int read_row(const struct origin_lines *o, const char *line, struct row *row,
                    struct err *err)
{
    char slot[40], name[40];
    int at = 0;
    if (!o->machine || !o->model)
        return err_set(err, "no machine and model are named before it");
    if (sscanf(line, "%39s %lf %39s %n", slot, &row->speed, name, &at) != 3 || at == 0 ||
        !isfinite(row->speed) || row->speed <= 0)
        return err_set(err, "not \"SLOT SPEED TEMPLATE NAME=value ...\"");
    row->template = template_find(name);
    if (!row->template)
        return err_set(err, "there is no template \"%s\"", name);
    if (read_slot(slot, row, err) != 0)
        return -1;
    if (!template_fits(row->template, o->kind, row->region, row->m))
        return err_set(err, "%s does not fill %s", name, slot);
    return point_parse(row->template, line + at, &row->point, err);
}

/* Begins an origin that rows can name, with what `like` said of its machine, if anything. */
static struct origin_lines *begin_origin(struct known *k, const struct origin_lines *like)
{
    struct origin_lines *o = xcalloc(1, sizeof *o);
    if (like)
        *o = *like;
    if (!like)
        o->numerics = -1;
    o->model = false;
    memset(o->type, -1, sizeof o->type);
    k->origin = xrealloc(k->origin, (size_t)(k->origins + 1) * sizeof *k->origin);
    k->origin[k->origins++] = o;
    return o;
}

/* 0, or -1 with why the line is of no use. */
static int read_line(struct known *k, const char *line, struct err *err)
{
    struct origin_lines *now = k->origin[k->origins - 1];
    if (strncmp(line, "machine ", 8) == 0)
        return read_machine(begin_origin(k, NULL), line, err);
    if (strncmp(line, "numerics ", 9) == 0)
        return read_numerics(begin_origin(k, now), line, err);
    if (strncmp(line, "model ", 6) == 0)
        return read_model(begin_origin(k, now), line, err);
    if (strncmp(line, "weights ", 8) == 0)
        return read_weights(now, line, err);
    struct row row = {.origin = k->origins - 1};
    if (read_row(now, line, &row, err) != 0)
        return -1;
    k->row = xrealloc(k->row, (size_t)(k->rows + 1) * sizeof *k->row);
    k->row[k->rows++] = row;
    return 0;
}

int known_add(struct known *k, const char *name, const char *text)
{
    int number = 0, left_out = 0, version = 0;
    char line[LINE_MOST];
    begin_origin(k, NULL); /* nothing that another text said holds */
    for (const char *at = text; *at; number++) {
        size_t n = strcspn(at, "\n");
        struct err err = {""};
        bool whole = n < sizeof line;
        snprintf(line, sizeof line, "%.*s", (int)(whole ? n : 0), at);
        at += n + (at[n] == '\n');
        if (number == 0) {
            if (sscanf(line, "whet-known %d", &version) != 1 || version != VERSION) {
                log_warn("known", "%s: begins with \"%.40s\", not with \"whet-known %d\"", name,
                         line, (int)VERSION);
                return -1;
            }
        } else if (whole && (!*line || *line == '#')) {
            continue;
        } else if (!whole || read_line(k, line, &err) != 0) {
            left_out++;
            log_warn("known", "%s, line %d is left out: %s", name, number + 1,
                     whole ? err.msg : "it is too long");
        }
    }
    return left_out;
}

struct known *known_open(void)
{
    struct known *k = xcalloc(1, sizeof *k);
    for (int i = 0; i < kernel_source_count; i++)
        if (strncmp(kernel_sources[i].name, "known/", 6) == 0)
            known_add(k, kernel_sources[i].name, kernel_sources[i].text);
    return k;
}

int known_rows(const struct known *k)
{
    return k->rows;
}

void known_close(struct known *k)
{
    for (int i = 0; k && i < k->origins; i++)
        free(k->origin[i]);
    if (k) {
        free(k->origin);
        free(k->row);
    }
    free(k);
}

/* ---- finding -------------------------------------------------------------------------------- */

static double doublings(double a, double b)
{
    return a > 0 && b > 0 ? fabs(log2(a / b)) : 0;
}

/* What wins where a page is a half as large is another thing to measure. */
static bool same_cache(enum region r, const struct facts *a, const struct facts *b)
{
    return (r != REGION_ATTN && r != REGION_ATTN_IN) || a->KV_BF16 == b->KV_BF16;
}

/* Of the dimensions that a kernel of the region sees. */
static double shape_distance(enum region r, const struct facts *a, const struct facts *b)
{
    double heads = doublings((double)a->HEADS * a->HEAD_DIM, (double)b->HEADS * b->HEAD_DIM);
    double hidden = doublings(a->HIDDEN, b->HIDDEN);
    switch (r) {
    case REGION_ATTN:
        return doublings(a->HEAD_DIM, b->HEAD_DIM) + doublings(a->HEADS, b->HEADS) +
               doublings(a->KV_HEADS, b->KV_HEADS);
    case REGION_ATTN_IN:
    case REGION_ATTN_OUT:
        return hidden + heads;
    case REGION_HEAD:
        return hidden + doublings(a->VOCAB, b->VOCAB);
    default:
        return hidden + doublings(a->FFN, b->FFN);
    }
}

static bool same_formats(const struct origin_lines *o, const struct row *row, const struct facts *f)
{
    const int32_t *type = row->typed ? row->type : o->type[row->region];
    return !has_weights(row->region) ||
           (type[0] == f->WTYPE && type[1] == f->WTYPE_2 && type[2] == f->WTYPE_3);
}

/* What won where activations keep a float's precision is not what wins where they may have less:
 * there a START row knows better. */
static bool other_precision(const struct origin_lines *o, const struct known_slot *slot)
{
    return numerics_allows(slot->numerics, PRECISION_BF16) &&
           (o->numerics < 0 || !numerics_allows((enum numerics)o->numerics, PRECISION_BF16));
}

/* Devices are named by their makers first: "Intel(R) Xeon(R) Processor", "AMD EPYC". */
static bool same_maker(const char *a, const char *b)
{
    size_t n = b ? strcspn(b, " ") : 0;
    return n > 0 && strcspn(a, " ") == n && strncmp(a, b, n) == 0;
}

/* HUGE_VAL: of no use there. */
static double distance_of(const struct known *k, const struct row *row,
                          const struct known_slot *slot, const char *isa)
{
    const struct origin_lines *o = k->origin[row->origin];
    const struct facts *f = slot->facts;
    if (o->kind != facts_kind(f) || !target_of(o->kind)->known_by_distance ||
        (int32_t)row->region != f->REGION || strcmp(o->isa, isa) != 0 || !same_formats(o, row, f) ||
        !same_cache(row->region, &o->shape, f) || other_precision(o, slot))
        return HUGE_VAL;
    double wide = shape_distance(row->region, &o->shape, f) + doublings(o->threads, slot->threads) +
                  doublings(row->context, slot->context);
    return wide * per_doubling + doublings(row->m, slot->m) +
           (o->numerics == (int)slot->numerics ? 0 : other_numerics) +
           (same_maker(o->device, slot->device) ? 0 : other_maker);
}

static int nearer(const void *a, const void *b)
{
    const struct known_point *x = a, *y = b;
    if (x->distance != y->distance)
        return x->distance < y->distance ? -1 : 1;
    return x->speed > y->speed ? -1 : x->speed < y->speed;
}

int known_find(const struct known *k, const struct known_slot *slot, struct known_point *out,
               int most)
{
    struct known_point *found = xcalloc((size_t)k->rows + 1, sizeof *found);
    const char *isa = best_isa(slot->facts);
    int n = 0;
    for (int i = 0; i < k->rows; i++) {
        const struct row *row = &k->row[i];
        double distance = distance_of(k, row, slot, isa);
        if (distance < far)
            found[n++] = (struct known_point){row->template, row->point, row->speed, distance,
                                              k->origin[row->origin]->device};
    }
    qsort(found, (size_t)n, sizeof *found, nearer);
    n = n < most ? n : most;
    memcpy(out, found, (size_t)n * sizeof *out);
    free(found);
    return n;
}
