/* SPDX-License-Identifier: Apache-2.0 */
/* case.c - the memory of one run of one region.
 *
 * Every input and output is a buffer of its own (guarded.h), so a stray read or write meets a band
 * or a wall instead of a neighbour that happens to fit. Building a case has three parts:
 *
 *   sequences   attn and attn_in: spans, positions, page table. Page numbers may be permuted, and
 *               the pool has pages that belong to nobody
 *   inputs      activations by fill, KV of every position that is attended to. What must not be
 *               read (the rest of a last page, pages of nobody) holds finite garbage of 1e6, as
 *               live pages hold what earlier sequences left: a kernel may load it, not use it
 *   parameters  norms and biases are copied into buffers; weights point into the model, or into
 *               buffers when they are random
 *
 * Filling is repeatable: case_refill() with the seed of case_random() restores the same inputs.
 */
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "engine/cpu/case_private.h"
#include "engine/cpu/case_random.h"
#include "engine/cpu/kv.h"
#include "engine/quant.h"

enum { SPARE_PAGES = 2, SPARE_ROWS = 3 };

static void *input(struct kernel_case *c, enum buffer b, int64_t count, size_t size)
{
    guarded_open(&c->in[b], (size_t)count * size, c->guard);
    return c->in[b].data;
}

static void *input_copy(struct kernel_case *c, enum buffer b, const void *src, int64_t bytes)
{
    void *p = input(c, b, bytes, 1);
    if (bytes)
        memcpy(p, src, (size_t)bytes);
    return p;
}

static void *output_bytes(struct kernel_case *c, int i, int64_t bytes)
{
    guarded_open(&c->out[i], (size_t)bytes, c->guard);
    return c->out[i].data;
}

static void *output(struct kernel_case *c, int i, int64_t floats)
{
    return output_bytes(c, i, floats * (int64_t)sizeof(float));
}

/* ---- sequences ------------------------------------------------------------------------------ */

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* Spans of nearly equal token counts; contexts all equal, or ragged: shorter and shorter. */
static int32_t build_spans(struct kernel_case *c, struct random *r)
{
    int32_t n = c->shape.sequences, first = 0, pages = 0;
    struct span *span = input(c, BUF_SPAN, n, sizeof *span);
    for (int32_t i = 0; i < n; i++) {
        int32_t count = c->m / n + (i < c->m % n);
        int32_t context = c->shape.context > count ? c->shape.context : count;
        if (c->shape.ragged && i > 0)
            context = count + random_below(r, context - count + 1);
        span[i] = (struct span){first, count, context, pages};
        first += count;
        pages += (context + KV_PAGE - 1) / KV_PAGE;
    }
    return pages;
}

static void build_pages(struct kernel_case *c, struct random *r, int32_t used)
{
    c->pages = used + SPARE_PAGES;
    int32_t *table = input(c, BUF_PAGE_TABLE, used, sizeof *table);
    int32_t *number = xmalloc((size_t)c->pages * sizeof *number);
    for (int32_t i = 0; i < c->pages; i++)
        number[i] = i;
    for (int32_t i = c->pages - 1; c->shape.permuted_pages && i > 0; i--) {
        int32_t j = random_below(r, i + 1), t = number[i];
        number[i] = number[j];
        number[j] = t;
    }
    memcpy(table, number, (size_t)used * sizeof *table);
    free(number);
}

static void build_sequences(struct kernel_case *c, uint64_t seed)
{
    struct random r = {seed ^ 0x5e9};
    c->shape.sequences = c->shape.sequences < 1 ? 1 : least(c->shape.sequences, c->m);
    build_pages(c, &r, build_spans(c, &r));
    int32_t *position = input(c, BUF_POSITION, c->m, sizeof *position);
    int32_t *kv_at = input(c, BUF_KV_AT, c->m, sizeof *kv_at);
    const struct span *span = c->in[BUF_SPAN].data;
    const int32_t *table = c->in[BUF_PAGE_TABLE].data;
    for (int32_t i = 0; i < c->shape.sequences; i++) {
        for (int32_t t = 0; t < span[i].count; t++) {
            int32_t p = span[i].context - span[i].count + t;
            int32_t page = table[span[i].pages_at + p / KV_PAGE];
            position[span[i].first + t] = p;
            kv_at[span[i].first + t] = page * KV_PAGE + p % KV_PAGE;
        }
    }
}

/* ---- inputs --------------------------------------------------------------------------------- */

/* Signs by lot; the same few over and over, of a number that is no multiple of a row's length. */
static void fill_garbage(struct random *r, bool bf16, void *pages, int64_t n)
{
    float garbage[1021];
    const int64_t most = sizeof garbage / sizeof *garbage;
    for (int64_t i = 0; i < most; i++)
        garbage[i] = random_u64(r) & 1 ? 1e6f : -1e6f;
    for (int64_t i = 0; i < n; i += most)
        kv_write(bf16, garbage, n - i < most ? n - i : most, pages, i);
}

/* Everything garbage, then what the spans attend to as `fill` says. */
static void fill_kv(struct kernel_case *c, struct random *r, enum fill fill, void *pages)
{
    const struct model_shape *s = &c->model->shape;
    const struct span *span = c->in[BUF_SPAN].data;
    const int32_t *table = c->in[BUF_PAGE_TABLE].data;
    int64_t row = case_kv_row(c);
    float *token = xmalloc((size_t)row * sizeof *token);
    fill_garbage(r, s->kv_bf16, pages, case_kv_elements(c));
    for (int32_t i = 0; i < c->shape.sequences; i++) {
        for (int32_t p = 0; p < span[i].context; p++) {
            int64_t page = table[span[i].pages_at + p / KV_PAGE];
            random_rows(r, fill, token, 1, row);
            for (int32_t h = 0; h < s->kv_heads; h++)
                kv_write(s->kv_bf16, token + (int64_t)h * s->head_dim, s->head_dim, pages,
                         ((page * s->kv_heads + h) * KV_PAGE + p % KV_PAGE) * s->head_dim);
        }
    }
    free(token);
}

static void fill_ids(struct kernel_case *c, struct random *r)
{
    int32_t *id = c->in[BUF_IDS].data;
    for (int32_t i = 0; id && i < c->m; i++)
        id[i] = c->shape.region == REGION_EMBED ? random_below(r, c->model->shape.vocab)
                                                : (i * 2 + 1) % (c->m + SPARE_ROWS);
}

static void seal(struct kernel_case *c)
{
    for (int i = 0; i < BUF_INPUTS; i++) {
        if (!c->in[i].map)
            continue;
        c->checksum[i] = c->guard ? 0 : guarded_checksum(&c->in[i]);
        guarded_readonly(&c->in[i], c->guard);
    }
}

void case_refill(struct kernel_case *c, enum fill fill, uint64_t seed)
{
    struct random r = {seed};
    for (int i = 0; i < BUF_INPUTS; i++)
        guarded_readonly(&c->in[i], false);
    fill_ids(c, &r);
    const struct model_shape *s = &c->model->shape;
    if (c->in[BUF_X].map)
        random_rows(&r, fill, c->in[BUF_X].data, (int64_t)c->in[BUF_X].bytes / 4 / s->hidden,
                    s->hidden);
    if (c->in[BUF_IN].map)
        random_rows(&r, fill, c->in[BUF_IN].data, c->m, (int64_t)c->in[BUF_IN].bytes / 4 / c->m);
    if (c->in[BUF_K].map) {
        fill_kv(c, &r, fill, c->in[BUF_K].data);
        fill_kv(c, &r, fill, c->in[BUF_V].data);
    }
    seal(c);
}

/* ---- parameters ----------------------------------------------------------------------------- */

/* A copy of a gain or bias, or random values about `middle`; keeps NULL. */
static const float *param(struct kernel_case *c, struct random *r, bool random, enum buffer b,
                          const float *src, int32_t n, float middle)
{
    if (!src)
        return NULL;
    float *p = input_copy(c, b, src, (int64_t)n * (int64_t)sizeof *p);
    for (int32_t i = 0; random && i < n; i++)
        p[i] = middle + (float)random_unit(r) - 0.5f;
    return p;
}

static void build_params(struct kernel_case *c, bool random, bool integers, uint64_t seed)
{
    const struct model_shape *s = &c->model->shape;
    struct random r = {seed ^ 0x9a4a};
    union region_args *a = &c->args;
    struct weight *w[3];
    bind_layer(c->model, c->shape.region, c->shape.layer, a);
    if (c->shape.region == REGION_ATTN_IN) {
        struct attn_in_args *in = &a->attn_in;
        const float **bias[3] = {&in->bq, &in->bk, &in->bv};
        int32_t rows[3] = {in->wq.rows, in->wk.rows, in->wv.rows};
        in->norm = param(c, &r, random, BUF_NORM, in->norm, s->hidden, 1);
        in->q_norm = param(c, &r, random, BUF_Q_NORM, in->q_norm, s->head_dim, 1);
        in->k_norm = param(c, &r, random, BUF_K_NORM, in->k_norm, s->head_dim, 1);
        for (int i = 0; i < 3; i++)
            *bias[i] = param(c, &r, random, (enum buffer)(BUF_BIAS + i), *bias[i], rows[i], 0);
    } else if (c->shape.region == REGION_MLP_IN) {
        a->mlp_in.norm = param(c, &r, random, BUF_NORM, a->mlp_in.norm, s->hidden, 1);
    } else if (c->shape.region == REGION_MLP) {
        a->mlp.norm = param(c, &r, random, BUF_NORM, a->mlp.norm, s->hidden, 1);
    } else if (c->shape.region == REGION_HEAD) {
        a->head.norm = param(c, &r, random, BUF_NORM, a->head.norm, s->hidden, 1);
    }
    int n = bind_weights(a, c->shape.region, w);
    if (c->shape.region == REGION_EMBED)
        w[n++] = &a->embed.table;
    for (int i = 0; random && i < n; i++) {
        int64_t bytes = dtype_bytes((enum dtype)w[i]->type, (int64_t)w[i]->rows * w[i]->cols);
        void *data = input(c, (enum buffer)(BUF_WEIGHT + i), bytes, 1);
        random_weight(&r, w[i], data, integers);
        w[i]->data = data;
    }
}

/* ---- building ------------------------------------------------------------------------------- */

/* Activation buffers that the region reads: x [rows, hidden] and in [m, K]. */
static void build_activations(struct kernel_case *c)
{
    const struct model_shape *s = &c->model->shape;
    enum region r = c->shape.region;
    int32_t rows = r == REGION_HEAD ? c->m + SPARE_ROWS : c->m;
    if (r != REGION_EMBED && r != REGION_ATTN)
        input(c, BUF_X, (int64_t)rows * s->hidden, sizeof(float));
    if (r == REGION_ATTN || r == REGION_ATTN_OUT)
        input(c, BUF_IN, (int64_t)c->m * s->heads * s->head_dim, sizeof(float));
    if (r == REGION_REDUCE)
        input(c, BUF_IN, (int64_t)c->m * s->hidden, sizeof(float));
    if (r == REGION_MLP_OUT)
        input(c, BUF_IN, (int64_t)c->m * s->ffn, sizeof(float));
    if (r == REGION_EMBED || r == REGION_HEAD)
        input(c, BUF_IDS, c->m, sizeof(int32_t));
    if (r == REGION_ATTN) {
        input(c, BUF_K, case_kv_bytes(c), 1);
        input(c, BUF_V, case_kv_bytes(c), 1);
    }
}

static void build_rope(struct kernel_case *c)
{
    int32_t top = 0;
    const int32_t *position = c->in[BUF_POSITION].data;
    for (int32_t i = 0; i < c->m; i++)
        top = position[i] > top ? position[i] : top;
    int64_t n = (int64_t)(top + 1) * (c->model->shape.head_dim / 2);
    float *cosine = input(c, BUF_COS, n, sizeof(float));
    float *sine = input(c, BUF_SIN, n, sizeof(float));
    rope_tables(&c->model->shape, top + 1, cosine, sine);
}

static void aim_attn_in(struct kernel_case *c)
{
    struct attn_in_args *a = &c->args.attn_in;
    build_rope(c);
    a->x = c->in[BUF_X].data;
    a->rope_cos = c->in[BUF_COS].data;
    a->rope_sin = c->in[BUF_SIN].data;
    a->position = c->in[BUF_POSITION].data;
    a->kv_at = c->in[BUF_KV_AT].data;
    a->q = output(c, 0, (int64_t)c->m * a->wq.rows);
    a->k_pages = output_bytes(c, 1, case_kv_bytes(c));
    a->v_pages = output_bytes(c, 2, case_kv_bytes(c));
}

/* Points the args at the buffers and opens the outputs. */
static void aim(struct kernel_case *c)
{
    union region_args *a = &c->args;
    a->embed.m = c->m; /* first in every struct */
    switch (c->shape.region) {
    case REGION_EMBED:
        a->embed.tokens = c->in[BUF_IDS].data;
        a->embed.x = output(c, 0, (int64_t)c->m * a->embed.table.cols);
        break;
    case REGION_ATTN_IN:
        aim_attn_in(c);
        break;
    case REGION_ATTN:
        a->attn.spans = c->shape.sequences;
        a->attn.q = c->in[BUF_IN].data;
        a->attn.k_pages = c->in[BUF_K].data;
        a->attn.v_pages = c->in[BUF_V].data;
        a->attn.span = c->in[BUF_SPAN].data;
        a->attn.page_table = c->in[BUF_PAGE_TABLE].data;
        a->attn.a = output(c, 0, (int64_t)c->m * a->attn.heads * a->attn.head_dim);
        break;
    case REGION_ATTN_OUT:
    case REGION_MLP_OUT:
        a->out.in = c->in[BUF_IN].data;
        a->out.x = c->in[BUF_X].data;
        a->out.y = output(c, 0, (int64_t)c->m * a->out.w.rows);
        break;
    case REGION_REDUCE: /* its area is for whoever has ranks to say */
        a->reduce.x = c->in[BUF_IN].data;
        a->reduce.residual = c->in[BUF_X].data;
        a->reduce.out = output(c, 0, (int64_t)c->m * a->reduce.n);
        break;
    case REGION_MLP_IN:
        a->mlp_in.x = c->in[BUF_X].data;
        a->mlp_in.h = output(c, 0, (int64_t)c->m * a->mlp_in.gate.rows);
        break;
    case REGION_MLP:
        guarded_open(&c->work, (size_t)c->m * (size_t)a->mlp.gate.rows * sizeof(float), c->guard);
        a->mlp.x = c->in[BUF_X].data;
        a->mlp.h = c->work.data;
        a->mlp.y = output(c, 0, (int64_t)c->m * a->mlp.down.rows);
        break;
    default:
        a->head.row = c->in[BUF_IDS].data;
        a->head.x = c->in[BUF_X].data;
        a->head.logits = output(c, 0, (int64_t)c->m * a->head.w.rows);
        break;
    }
}

struct kernel_case *case_random(const struct model *model, const struct case_shape *shape,
                                enum fill fill, bool random_params, bool guard, uint64_t seed)
{
    struct kernel_case *c = xcalloc(1, sizeof *c);
    c->model = model;
    c->shape = *shape;
    c->guard = guard;
    c->m = shape->m;
    if (shape->region == REGION_ATTN || shape->region == REGION_ATTN_IN)
        build_sequences(c, seed);
    build_activations(c);
    build_params(c, random_params, fill == FILL_BITS, seed);
    aim(c);
    case_refill(c, fill, seed);
    case_poison(c);
    return c;
}

/* Captured head inputs are the rows that needed logits, gathered: row i of x is row i. */
static void identity_rows(struct kernel_case *c)
{
    int32_t *row = input(c, BUF_IDS, c->m, sizeof *row);
    for (int32_t i = 0; i < c->m; i++)
        row[i] = i;
}

struct kernel_case *case_captured(const struct model *model, const struct capture *cap, bool guard)
{
    const struct model_shape *s = &model->shape;
    struct kernel_case *c = xcalloc(1, sizeof *c);
    int64_t m = cap->m, f = (int64_t)sizeof(float);
    c->model = model;
    c->shape = (struct case_shape){.region = cap->region,
                                   .layer = cap->layer,
                                   .m = cap->m,
                                   .sequences = cap->spans,
                                   .context = cap->context};
    c->guard = guard;
    c->m = cap->m;
    c->pages = cap->pages;
    int64_t width = cap->region == REGION_MLP_OUT  ? s->ffn
                    : cap->region == REGION_REDUCE ? s->hidden
                                                   : (int64_t)s->heads * s->head_dim;
    if (cap->x)
        input_copy(c, BUF_X, cap->x, m * s->hidden * f);
    if (cap->in)
        input_copy(c, BUF_IN, cap->in, m * width * f);
    if (cap->region == REGION_HEAD)
        identity_rows(c);
    if (cap->region == REGION_ATTN_IN) {
        input_copy(c, BUF_POSITION, cap->position, m * f);
        input_copy(c, BUF_KV_AT, cap->kv_at, m * f);
    }
    if (cap->region == REGION_ATTN) {
        int32_t used = 0;
        for (int32_t i = 0; i < cap->spans; i++)
            used += (cap->span[i].context + KV_PAGE - 1) / KV_PAGE;
        input_copy(c, BUF_SPAN, cap->span, cap->spans * (int64_t)sizeof *cap->span);
        input_copy(c, BUF_PAGE_TABLE, cap->page_table, used * f);
        input_copy(c, BUF_K, cap->k_pages, case_kv_bytes(c));
        input_copy(c, BUF_V, cap->v_pages, case_kv_bytes(c));
    }
    build_params(c, false, false, 0);
    aim(c);
    seal(c);
    case_poison(c);
    return c;
}

void case_free(struct kernel_case *c)
{
    if (!c)
        return;
    for (int i = 0; i < BUF_INPUTS; i++)
        guarded_close(&c->in[i]);
    for (int i = 0; i < 3; i++)
        guarded_close(&c->out[i]);
    guarded_close(&c->work);
    free(c);
}

/* ---- what a kernel is given ------------------------------------------------------------------ */

void case_poison(struct kernel_case *c)
{
    for (int i = 0; i < 3; i++)
        guarded_poison(&c->out[i]);
    guarded_poison(&c->work);
}

void *case_args(struct kernel_case *c)
{
    return &c->args;
}

enum region case_region(const struct kernel_case *c)
{
    return c->shape.region;
}

int case_weights(const struct kernel_case *c, struct weight *out[3])
{
    return bind_weights((union region_args *)&c->args, c->shape.region, out);
}

void case_set_packed(struct kernel_case *c, const void *const packed[3])
{
    struct weight *w[3];
    for (int i = 0, n = bind_weights(&c->args, c->shape.region, w); i < n; i++)
        w[i]->packed = packed ? packed[i] : NULL;
}
