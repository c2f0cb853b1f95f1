/* SPDX-License-Identifier: Apache-2.0 */
/* solo_question.c - drawing a region's inputs, the oracle's answer to them, and both on the device.
 *
 * Rows from m up to the bucket, and this step's data of them, hold garbage, as they may in a step.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "engine/quant.h"
#include "tests/device/device_test.h"
#include "tests/device/solo.h"

enum { LAYER = 1, GUARD_BYTES = 4096, POSITIONS = 4096 };

/* ---- drawing ------------------------------------------------------------------------------- */

/* [bucket, cols] with m rows drawn; one channel in 64 is an outlier if there are to be any. */
static float *draw_rows(const struct question *q, int32_t cols, enum numbers numbers,
                        uint64_t *state)
{
    int64_t n = (int64_t)q->bucket * cols;
    float *v = xmalloc((size_t)n * sizeof *v);
    for (int64_t i = 0; i < n; i++) {
        v[i] = numbers == NUMBERS_ZERO ? 0 : rng_normal(state);
        if (numbers == NUMBERS_OUTLIER && i % cols % 64 == 5)
            v[i] *= 300;
        if (i / cols >= q->m)
            v[i] = NAN;
    }
    return v;
}

static void own(struct question *q, enum operand at, void *master, int64_t bytes)
{
    q->at[at].master = master;
    q->at[at].bytes = (size_t)bytes;
}

static void *copy_of(const void *from, int64_t bytes)
{
    return from ? memcpy(xmalloc((size_t)bytes + 1), from, (size_t)bytes) : NULL;
}

static void own_copy(struct question *q, enum operand at, const void *from, int64_t bytes)
{
    if (from)
        own(q, at, copy_of(from, bytes), bytes);
}

/* Sequences of up to `context` positions whose pages are shuffled; the first has all of them. */
static int32_t draw_spans(struct question *q, struct span *span, int32_t *table, uint64_t *state)
{
    int32_t each = (q->context + KV_PAGE - 1) / KV_PAGE, all = each * q->m;
    for (int32_t i = 0; i < all; i++)
        table[i] = i;
    for (int32_t i = all - 1; i > 0; i--) {
        int32_t j = (int32_t)(rng(state) % (uint64_t)(i + 1)), t = table[i];
        table[i] = table[j];
        table[j] = t;
    }
    for (int32_t i = 0; i < q->m; i++) {
        int32_t less = i == 0 ? 0 : (int32_t)(rng(state) % (uint64_t)q->context);
        span[i] = (struct span){i, 1, q->context - less, i * each};
    }
    return all;
}

/* Pages of bf16; positions beyond the end of their sequence are NaN. *wide: the same as floats. */
static uint16_t *draw_pages(const struct question *q, const struct span *span, const int32_t *table,
                            int32_t pages, float **wide, uint64_t *state)
{
    const struct model_shape *s = &q->model->shape;
    int64_t page = (int64_t)KV_PAGE * s->kv_heads * s->head_dim, n = pages * page;
    uint16_t *half = xmalloc((size_t)n * sizeof *half);
    *wide = xmalloc((size_t)n * sizeof **wide);
    for (int64_t i = 0; i < n; i++)
        half[i] = f32_to_bf16(rng_normal(state));
    for (int32_t i = 0; i < q->m; i++)
        for (int32_t p = span[i].context; p % KV_PAGE != 0; p++)
            for (int32_t h = 0; h < s->kv_heads; h++)
                for (int32_t d = 0; d < s->head_dim; d++)
                    half[table[span[i].pages_at + p / KV_PAGE] * page +
                         ((int64_t)h * KV_PAGE + p % KV_PAGE) * s->head_dim + d] = 0x7fff;
    for (int64_t i = 0; i < n; i++)
        (*wide)[i] = bf16_to_f32(half[i]);
    return half;
}

/* ---- regions ------------------------------------------------------------------------------- */

static int32_t *words(int32_t n, int32_t value)
{
    int32_t *p = xmalloc((size_t)n * sizeof *p + 1);
    for (int32_t i = 0; i < n; i++)
        p[i] = value;
    return p;
}

static void step_data(struct question *q)
{
    int32_t *position = words(q->bucket, 0x3fffffff), *row = words(q->bucket, 0x3fffffff);
    struct cuda_counts counts = {q->m, q->m, q->m, q->context, {0}};
    for (int32_t i = 0; i < q->m; i++)
        row[i] = q->m - 1 - i; /* another order than rows have */
    own(q, AT_POSITION, position, q->bucket * 4);
    own(q, AT_ROW, row, q->bucket * 4);
    own_copy(q, AT_COUNTS, &counts, sizeof counts);
}

static void attention(struct question *q, struct attn_args *a, uint64_t *state)
{
    const struct model_shape *s = &q->model->shape;
    int32_t each = (q->context + KV_PAGE - 1) / KV_PAGE, *position = q->at[AT_POSITION].master;
    int32_t *table = words(each * q->m, 0), *pages_at = words(q->bucket, 0x3fffffff);
    struct span *span = xcalloc((size_t)q->bucket, sizeof *span);
    int32_t pages = draw_spans(q, span, table, state);
    float *wide[2];
    int64_t bytes = (int64_t)pages * KV_PAGE * s->kv_heads * s->head_dim * 2;
    own(q, AT_K, draw_pages(q, span, table, pages, &wide[0], state), bytes);
    own(q, AT_V, draw_pages(q, span, table, pages, &wide[1], state), bytes);
    for (int32_t i = 0; i < q->m; i++) {
        position[i] = span[i].context - 1;
        pages_at[i] = span[i].pages_at;
    }
    own(q, AT_TABLE, table, (int64_t)pages * 4);
    own(q, AT_PAGES_AT, pages_at, q->bucket * 4);
    own(q, AT_SPAN, span, q->bucket * (int64_t)sizeof *span);
    a->spans = q->m;
    a->span = span;
    a->page_table = table;
    a->q = q->at[AT_IN].master;
    a->k_pages = wide[0];
    a->v_pages = wide[1];
    oracle_run(REGION_ATTN, a, &q->want);
    free(wide[0]);
    free(wide[1]);
}

static void attention_in(struct question *q, struct attn_in_args *a, uint64_t *state)
{
    const struct model_shape *s = &q->model->shape;
    int64_t half = s->head_dim / 2, table = POSITIONS * half * 4;
    float *cosine = xmalloc((size_t)table), *sine = xmalloc((size_t)table);
    int32_t *position = q->at[AT_POSITION].master, *at = words(q->bucket, 0x3fffffff);
    int32_t slots = (q->bucket / KV_PAGE + 2) * KV_PAGE;
    rope_tables(s, POSITIONS, cosine, sine);
    own(q, AT_COS, cosine, table);
    own(q, AT_SIN, sine, table);
    q->kv_at = at;
    bool prompt = rng(state) % 2 && q->m < POSITIONS; /* tokens that follow each other */
    int32_t from = prompt ? (int32_t)(rng(state) % (uint64_t)(POSITIONS - q->m + 1)) : 0;
    for (int32_t i = 0; i < q->m; i++) {
        position[i] = prompt || i == 0 ? from + i : (int32_t)(rng(state) % POSITIONS);
        at[i] = (i * 7 + 3) % slots; /* 7 and the slots, a power of two, have no common factor */
    }
    own(q, AT_KV_AT, at, q->bucket * 4);
    own_copy(q, AT_Q_NORM, a->q_norm, s->head_dim * 4);
    own_copy(q, AT_K_NORM, a->k_norm, s->head_dim * 4);
    if (a->bq) {
        int64_t n = (int64_t)s->heads * s->head_dim, kv = (int64_t)s->kv_heads * s->head_dim;
        float *bias = xmalloc((size_t)(n + 2 * kv) * sizeof *bias);
        memcpy(bias, a->bq, (size_t)n * 4);
        memcpy(bias + n, a->bk, (size_t)kv * 4);
        memcpy(bias + n + kv, a->bv, (size_t)kv * 4);
        own(q, AT_BIAS, bias, (n + 2 * kv) * 4);
    }
    a->x = q->at[AT_X].master;
    a->position = position;
    a->rope_cos = cosine;
    a->rope_sin = sine;
    oracle_run(REGION_ATTN_IN, a, &q->want);
    q->at[AT_OUT_K].bytes = (size_t)slots * (size_t)(s->kv_heads * s->head_dim) * 2;
    q->at[AT_OUT_V].bytes = q->at[AT_OUT_K].bytes;
}

/* q, k and v rows one after the other; gate and up rows in turn. */
static void weights(struct question *q, union region_args *a)
{
    struct weight *w[3];
    int n = bind_weights(a, q->region, w);
    int64_t bytes = 0, done = 0;
    for (int i = 0; i < n; i++)
        bytes += (int64_t)w[i]->rows * w[i]->cols * 2;
    if (n == 0)
        return;
    char *all = xmalloc((size_t)bytes);
    for (int i = 0; i < n; i++) {
        int64_t row = (int64_t)w[i]->cols * 2;
        const char *from = w[i]->data;
        for (int32_t r = 0; r < w[i]->rows; r++)
            memcpy(all + (q->region == REGION_MLP_IN ? 2 * r + i : done + r) * row, from + r * row,
                   (size_t)row);
        done += w[i]->rows;
    }
    own(q, AT_W, all, bytes);
}

static void compute(struct question *q, enum numbers numbers, uint64_t *state)
{
    const struct model_shape *s = &q->model->shape;
    union region_args a;
    memset(&a, 0, sizeof a);
    a.embed.m = q->m;
    bind_layer(q->model, q->region, LAYER, &a);
    int32_t in = q->region == REGION_MLP_OUT ? s->ffn : s->heads * s->head_dim;
    bool x = q->region != REGION_ATTN;
    bool second = !x || q->region == REGION_ATTN_OUT || q->region == REGION_MLP_OUT;
    if (x)
        own(q, AT_X, draw_rows(q, s->hidden, second ? NUMBERS_NORMAL : numbers, state),
            (int64_t)q->bucket * s->hidden * 4);
    if (second)
        own(q, AT_IN, draw_rows(q, in, numbers, state), (int64_t)q->bucket * in * 4);
    step_data(q);
    weights(q, &a);
    if (q->region == REGION_ATTN_IN) {
        own_copy(q, AT_NORM, a.attn_in.norm, s->hidden * 4);
        attention_in(q, &a.attn_in, state);
    } else if (q->region == REGION_ATTN) {
        attention(q, &a.attn, state);
    } else if (q->region == REGION_MLP_IN) {
        own_copy(q, AT_NORM, a.mlp_in.norm, s->hidden * 4);
        a.mlp_in.x = q->at[AT_X].master;
        oracle_run(q->region, &a, &q->want);
    } else if (q->region == REGION_HEAD) {
        own_copy(q, AT_NORM, a.head.norm, s->hidden * 4);
        a.head.x = q->at[AT_X].master;
        a.head.row = q->at[AT_ROW].master;
        oracle_run(q->region, &a, &q->want);
        q->at[AT_BEST].bytes = (size_t)q->bucket * 4;
    } else {
        a.out.x = q->at[AT_X].master;
        a.out.in = q->at[AT_IN].master;
        oracle_run(q->region, &a, &q->want);
    }
    q->at[AT_OUT_0].bytes = (size_t)q->bucket * (size_t)q->want.output[0].cols * 4;
}

/* ---- on the device --------------------------------------------------------------------------- */

static cudaError_t send_one(struct device_copy *d, size_t guard)
{
    char *p = NULL;
    cudaError_t code = cudaMalloc((void **)&p, d->bytes + 2 * guard);
    if (!code)
        code = cudaMemset(p, 0xff, d->bytes + 2 * guard);
    if (!code && d->master)
        code = cudaMemcpy(p + guard, d->master, d->bytes, cudaMemcpyHostToDevice);
    d->data = p + guard;
    return code;
}

static cudaError_t send(struct question *q)
{
    cudaError_t code = cudaSuccess;
    for (int i = 0; i < OPERANDS && !code; i++)
        if (q->at[i].bytes > 0)
            code = send_one(&q->at[i], q->guard);
    return code;
}

void question_swap(struct question *q, struct question *other)
{
    struct oracle_out want = q->want;
    int32_t *kv_at = q->kv_at;
    q->want = other->want;
    other->want = want;
    q->kv_at = other->kv_at;
    other->kv_at = kv_at;
    for (int i = 0; i < AT_OUT_0; i++) {
        void *master = q->at[i].master;
        if (!master)
            continue;
        q->at[i].master = other->at[i].master;
        other->at[i].master = master;
        cudaError_t code =
            cudaMemcpy(q->at[i].data, q->at[i].master, q->at[i].bytes, cudaMemcpyHostToDevice);
        check(!code, false, "other contents: %s", cudaGetErrorString(code));
    }
}

struct question *question_new(const struct model *m, enum region r, int32_t tokens, int32_t bucket,
                              int32_t context, enum numbers numbers, uint64_t seed, bool exact)
{
    struct question *q = xcalloc(1, sizeof *q);
    uint64_t state = seed;
    q->model = m;
    q->region = r;
    q->m = tokens;
    q->bucket = bucket;
    q->context = context;
    q->guard = exact ? 0 : GUARD_BYTES;
    compute(q, numbers, &state);
    cudaError_t code = send(q);
    check(!code, false, "a question's memory: %s", cudaGetErrorString(code));
    return q;
}

void question_free(struct question *q)
{
    for (int i = 0; q && i < OPERANDS; i++) {
        if (q->at[i].data)
            cudaFree((char *)q->at[i].data - q->guard);
        free(q->at[i].master);
    }
    if (q)
        oracle_free(&q->want);
    free(q);
}
