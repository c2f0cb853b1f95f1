/* SPDX-License-Identifier: Apache-2.0 */
/* eager.c - each region as primitive kernels with matrix products of the vendor's between them.
 *
 *   attn_in   norm, product, rope (bias, q/k norm, RoPE, append)
 *   attn      decode for single tokens, prefill for runs of them
 *   attn_out  product that adds the residual          mlp_out  the same
 *   mlp_in    norm, product, silu                     head     norm of rows, product, best
 *
 * Products take bf16, and so does their library: a matrix that is kept in another format is
 * multiplied by kernels of ours where tokens are few, and else expanded first (bricks_run.c),
 * unless there is bf16 beside it. In narrow steps a region's outside interface is float, because
 * any kernel may sit on either side of it; the eager kernels write a bf16 copy beside it, and only
 * when the copy is missing (another kernel filled the slot before) is it made here. In wide steps
 * the bf16 copy is all there is.
 */
#include <math.h>

#include "config/err.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/device_model.h"
#include "engine/cuda/loaded.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/prefill.h"
#include "engine/cuda/products.h"
#include "engine/cuda/ranks.h"
#include "engine/cuda/walk.h"

int32_t decode_group(const struct backend *b)
{
    const struct model_shape *s = &b->model->shape;
    int32_t group = s->heads / s->kv_heads, g = 1;
    while (g < group && g < EAGER_GROUP)
        g *= 2;
    return g;
}

static int32_t decode_chunks(const struct backend *b)
{
    const struct model_shape *s = &b->model->shape;
    int32_t g = decode_group(b);
    return (s->heads / s->kv_heads + g - 1) / g;
}

/* Blocks of a token and key head. Few tokens are cut until the device is full. Many fill it uncut,
 * but one that is much longer than the others would be worked on when all others are done: so they
 * are cut as well, into parts of `*least` positions and more, of which most tokens have one. */
static int32_t decode_splits(const struct backend *b, int32_t tokens, int32_t context,
                             int32_t *least)
{
    enum { LEAST = 512, USUAL = 1024 };
    int64_t blocks = (int64_t)tokens * b->model->shape.kv_heads * decode_chunks(b);
    int64_t part = (int64_t)decode_group(b) * (b->model->shape.head_dim + 2) * 4;
    int64_t want = 2 * b->device.multiProcessorCount / blocks;
    int64_t most = (context + 4 * KV_PAGE - 1) / (4 * KV_PAGE);
    want = want > most ? most : want;
    *least = 0;
    if (want <= 1 && context > USUAL) {
        most = b->work_bytes / (part * blocks);
        want = context / USUAL < most ? context / USUAL : most;
        *least = LEAST;
    }
    return want < 1 ? 1 : want > MAX_SPLITS ? MAX_SPLITS : (int32_t)want;
}

/* ---- pieces -------------------------------------------------------------------------------- */

static dim3 grid2(int32_t x, int32_t y)
{
    return (dim3){(unsigned)x, (unsigned)y, 1};
}

static int norm(struct walk *w, const float *x, const float *gain, const int32_t *row, int32_t m,
                struct err *e)
{
    const struct model_shape *s = &w->b->model->shape;
    const struct cuda_counts *c = w->block->counts;
    struct eager_norm_args a = {row ? &c->rows : &c->m, x, gain, row, w->b->n16, s->hidden, s->eps};
    return launch(w, PRIM_NORM, grid2(m, 1), 256, 0, &a, e);
}

static int product(struct walk *w, enum region r, int32_t layer, const void *x16, const float *c,
                   void *d, bool d16, int32_t m, struct err *e)
{
    struct matrix at = bricks_eager(matrix_of(w->b, r, layer, m), m);
    struct product p = {x16, at.data, c, d, d16, m, at.rows, at.cols, 0};
    if (at.type != DTYPE_BF16)
        return bricks_run(w, &p, at.type, e);
    w->launches[w->place]++;
    return blas_run(w->b, w->stream, &p, w->lt, e);
}

int need16(struct walk *w, enum region from, const float *x, void *y16, int32_t n, struct err *e)
{
    if (w->have16[from])
        return 0;
    struct eager_round_args a = {&w->block->counts->m, x, y16, n};
    return launch(w, PRIM_ROUND, grid2((n + 1023) / 1024, w->m), 256, 0, &a, e);
}

static void *pages_of(const struct walk *w, int32_t layer, int v)
{
    void *other = v ? w->v_pages : w->k_pages;
    return other ? other : kv_pages(w->b, layer, v);
}

/* ---- regions ------------------------------------------------------------------------------- */

static int embed(struct walk *w, struct err *e)
{
    const struct backend *b = w->b;
    struct cuda_embed_args a = {.counts = w->block->counts,
                                .tokens = w->block->token,
                                .drawn = b->best,
                                .seen = b->seen,
                                .table = b->on.embed.data,
                                .x = w->y,
                                .hidden = b->model->shape.hidden};
    struct eager_embed_args kept = {a, (int32_t)b->on.embed.type};
    if (kept.type != DTYPE_BF16)
        return launch(w, PRIM_EMBED_BRICKS, grid2(w->m, 1), 256, 0, &kept, e);
    return launch(w, PRIM_EMBED, grid2(w->m, 1), 256, 0, &a, e);
}

static int attn_in(struct walk *w, int32_t layer, struct err *e)
{
    struct backend *b = w->b;
    const struct model_shape *s = &b->model->shape;
    const struct device_layer *l = &b->on.layer[layer];
    int32_t total = s->heads + 2 * s->kv_heads;
    bool runs = w->wide || !w->decode, beside = w->wide && w->lead;
    if (norm(w, w->x, l->attn_norm, NULL, w->m, e) ||
        product(w, REGION_ATTN_IN, layer, b->n16, NULL, b->raw, w->wide, w->m, e))
        return -1;
    struct eager_rope_args a = {.count = &w->block->counts->m,
                                .raw = w->wide ? NULL : b->raw,
                                .raw16 = w->wide ? b->raw : NULL,
                                .bias = l->bias,
                                .q_norm = l->q_norm,
                                .k_norm = l->k_norm,
                                .rope_cos = b->on.rope_cos,
                                .rope_sin = b->on.rope_sin,
                                .position = w->block->position,
                                .kv_at = w->kv_at ? w->kv_at : w->block->kv_at,
                                .q = beside ? b->q : w->q,
                                .q_rows = beside ? walk_padded(w->lead) : INT32_MAX,
                                .q16 = !runs      ? NULL
                                       : w->out16 ? w->out16
                                                  : b->q16,
                                .k_pages = pages_of(w, layer, 0),
                                .v_pages = pages_of(w, layer, 1),
                                .heads = s->heads,
                                .kv_heads = s->kv_heads,
                                .head_dim = s->head_dim,
                                .eps = s->eps};
    w->have16[REGION_ATTN_IN] = runs;
    int32_t each = 8 * EAGER_ROPE;
    return launch(w, PRIM_ROPE, grid2((total * s->head_dim + each - 1) / each, w->m), EAGER_ROPE, 0,
                  &a, e);
}

static int attn_decode(struct walk *w, int32_t layer, int32_t tokens, const int32_t *token,
                       struct err *e)
{
    struct backend *b = w->b;
    const struct model_shape *s = &b->model->shape;
    int32_t g = decode_group(b), chunks = decode_chunks(b);
    int32_t step = g == 1 ? 0 : g == 2 ? 1 : g == 4 ? 2 : 3;
    int32_t least, splits = decode_splits(b, tokens, w->context, &least);
    enum primitive first = s->head_dim == 64 ? PRIM_DECODE_64_1 : PRIM_DECODE_128_1;
    struct eager_decode_args a = {.count = &w->block->counts->m,
                                  .token = token,
                                  .q = w->q,
                                  .q16 = b->q16,
                                  .k_pages = pages_of(w, layer, 0),
                                  .v_pages = pages_of(w, layer, 1),
                                  .position = w->block->position,
                                  .pages_at = w->block->pages_at,
                                  .page_table = w->block->page_table,
                                  .a = w->a,
                                  .a16 = b->a16,
                                  .part = (float *)(void *)b->work,
                                  .counter = b->counter,
                                  .heads = s->heads,
                                  .kv_heads = s->kv_heads,
                                  .chunks = chunks,
                                  .least = least,
                                  .scale = (float)(1 / sqrt((double)s->head_dim))};
    dim3 grid = {(unsigned)splits, (unsigned)(s->kv_heads * chunks), (unsigned)tokens};
    return launch(w, (enum primitive)((int)first + step), grid, 128, 0, &a, e);
}

static int attn_prefill(struct walk *w, int32_t layer, struct err *e)
{
    struct backend *b = w->b;
    const struct model_shape *s = &b->model->shape;
    struct prefill p = {{.tile = w->block->tile,
                         .q16 = b->q16,
                         .k_pages = pages_of(w, layer, 0),
                         .v_pages = pages_of(w, layer, 1),
                         .page_table = w->block->page_table,
                         .a = w->a,
                         .a16 = b->a16,
                         .heads = s->heads,
                         .kv_heads = s->kv_heads,
                         .scale = (float)(1 / sqrt((double)s->head_dim))},
                        s->head_dim,
                        w->tiles,
                        w->m};
    return prefill_launch(w, &p, e);
}

static int attn(struct walk *w, int32_t layer, struct err *e)
{
    const struct model_shape *s = &w->b->model->shape;
    w->have16[REGION_ATTN] = true;
    if (w->decode)
        return attn_decode(w, layer, w->m, NULL, e);
    if (w->tiles && (need16(w, REGION_ATTN_IN, w->q, w->b->q16, s->heads * s->head_dim, e) ||
                     attn_prefill(w, layer, e)))
        return -1;
    return w->singles ? attn_decode(w, layer, w->singles, w->block->single, e) : 0;
}

/* A template reads and writes float, which a wide step does not have: the buffers of narrow ones
 * are free then, and as long as there may be decodes. */
int eager_attn_beside(struct walk *w, const struct kernel *k, int32_t layer, struct err *e)
{
    struct backend *b = w->b;
    int32_t q = b->model->shape.heads * b->model->shape.head_dim;
    struct walk lead = *w;
    lead.q = w->wide ? b->q : w->q;
    lead.a = w->wide ? b->a : w->a;
    lead.counts = w->block->lead;
    if (attn(w, layer, e) || loaded_region(&lead, k, REGION_ATTN, layer, e))
        return -1;
    w->launches[REGION_ATTN] += ((const struct loaded *)k->backend)->info.launches;
    if (lead.have16[REGION_ATTN])
        return 0;
    struct eager_round_args a = {&w->block->lead->m, lead.a, b->a16, q};
    return launch(w, PRIM_ROUND, grid2((q + 1023) / 1024, walk_padded(w->lead)), 256, 0, &a, e);
}

static int attn_out(struct walk *w, int32_t layer, struct err *e)
{
    struct backend *b = w->b;
    const struct model_shape *s = &b->model->shape;
    int32_t k = s->heads * s->head_dim;
    if (need16(w, REGION_ATTN, w->a, b->a16, k, e))
        return -1;
    return product(w, REGION_ATTN_OUT, layer, b->a16, ranks_residual(w), w->y, false, w->m, e);
}

static int mlp_in(struct walk *w, int32_t layer, struct err *e)
{
    struct backend *b = w->b;
    const struct model_shape *s = &b->model->shape;
    const struct device_layer *l = &b->on.layer[layer];
    if (norm(w, w->x, l->mlp_norm, NULL, w->m, e) ||
        product(w, REGION_MLP_IN, layer, b->n16, NULL, b->raw, w->wide, w->m, e))
        return -1;
    struct eager_silu_args a = {&w->block->counts->m,         w->wide ? NULL : b->raw,
                                w->wide ? b->raw : NULL,      w->h,
                                w->out16 ? w->out16 : b->h16, s->ffn};
    w->have16[REGION_MLP_IN] = true;
    return launch(w, PRIM_SILU, grid2((s->ffn + EAGER_SILU - 1) / EAGER_SILU, w->m), 256, 0, &a, e);
}

static int mlp_out(struct walk *w, int32_t layer, struct err *e)
{
    struct backend *b = w->b;
    const struct model_shape *s = &b->model->shape;
    if (need16(w, REGION_MLP_IN, w->h, b->h16, s->ffn, e))
        return -1;
    return product(w, REGION_MLP_OUT, layer, b->h16, ranks_residual(w), w->y, false, w->m, e);
}

int eager_best(struct walk *w, const float *logits, int32_t vocab, struct err *e)
{
    struct backend *b = w->b;
    struct eager_best_args a = {.count = &w->block->counts->rows,
                                .logits = logits,
                                .best = w->best,
                                .part = b->best_part,
                                .counter = b->counter,
                                .vocab = vocab};
    return launch(w, PRIM_BEST, grid2(BEST_PARTS, w->rows), 256, 0, &a, e);
}

static int head(struct walk *w, struct err *e)
{
    struct backend *b = w->b;
    if (norm(w, w->x, b->on.final_norm, w->block->row, w->rows, e) ||
        product(w, REGION_HEAD, 0, b->n16, NULL, w->logits, false, w->rows, e))
        return -1;
    if (b->own_logits && w->logits == b->own_logits) /* of a step: when all ranks' are there */
        return 0;
    return eager_best(w, w->logits, b->model->head.rows, e);
}

int eager_region(struct walk *w, enum region r, int32_t layer, struct err *e)
{
    switch (r) {
    case REGION_EMBED:
        return embed(w, e);
    case REGION_ATTN_IN:
        return attn_in(w, layer, e);
    case REGION_ATTN:
        return attn(w, layer, e);
    case REGION_ATTN_OUT:
        return attn_out(w, layer, e);
    case REGION_MLP_IN:
        return mlp_in(w, layer, e);
    case REGION_MLP_OUT:
        return mlp_out(w, layer, e);
    default:
        return head(w, e);
    }
}
