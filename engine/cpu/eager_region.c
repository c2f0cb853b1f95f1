/* SPDX-License-Identifier: Apache-2.0 */
/* eager_region.c - the regions of a step out of linear layers and attention.
 *
 * Every rank takes pieces of the output rows (weight rows) of all tokens; only attn_in and wide
 * attention need a barrier. What ranks share is in the outputs themselves: k and v are projected
 * straight into their cache positions and turned there, so no kernel asks for team scratch. Where
 * the cache has bf16, which is too little to turn, a rank has whole heads of k and turns them
 * before it rounds them.
 */
#include "engine/cpu/eager_impl.h"
#include "engine/cpu/vec.h"
#include "engine/quant.h"

#if defined(__AVX512F__)
enum { TAKEN = 1 };
#else
enum { TAKEN = 0 }; /* OpenBLAS packs all of x for every piece: few large ones */
#endif

/* ---- pieces --------------------------------------------------------------------------------- */

struct eager_pieces EAGER(pieces)(const struct team *t, int32_t m, int32_t n, int count)
{
    struct eager_pieces p = {.team = t, .n = n, .count = count, .end = n};
    if ((!TAKEN && m > EAGER_NARROW) || !t->taken || t->size == 1) {
        /* Units keep panels and row blocks whole. */
        eager_share(t, n, m > EAGER_NARROW ? LANES : EAGER_ROWS, &p.at, &p.end);
        p.count = -1;
    }
    return p;
}

/* Of the rows that are left a half is for one piece of each rank. A register tile takes 64. */
static int32_t piece_rows(const struct eager_pieces *p)
{
    int32_t rows = (p->n - p->at) / (2 * p->team->size);
    rows = rows >= 64 ? rows / 64 * 64 : p->n / p->team->size >= 32 ? 32 : LANES;
    return rows < EAGER_PANEL ? rows : EAGER_PANEL;
}

bool EAGER(piece)(struct eager_pieces *p)
{
    if (p->count < 0) {
        p->from = p->at;
        p->to = p->end - p->from < EAGER_PANEL ? p->end : p->from + EAGER_PANEL;
        p->at = p->to;
        return p->from < p->to;
    }
    int32_t mine = __atomic_fetch_add(&p->team->taken[p->count], 1, __ATOMIC_RELAXED);
    for (; p->number < mine && p->at < p->n; p->number++)
        p->at += piece_rows(p);
    p->from = p->at;
    p->to = p->n - p->from < piece_rows(p) ? p->n : p->from + piece_rows(p);
    return p->from < p->n;
}

/* ---- embed ---------------------------------------------------------------------------------- */

static void embed(const void *args, const struct team *team)
{
    const struct embed_args *a = args;
    const struct weight *w = &a->table;
    int64_t stride = EAGER(row_bytes)(w);
    int32_t from, to;
    eager_share(team, a->m, 1, &from, &to);
    for (int32_t i = from; i < to; i++)
        EAGER(format)
    [w->type].expand((const uint8_t *)w->data + a->tokens[i] * stride, a->x + (int64_t)i * w->cols,
                     w->cols);
}

/* ---- attn_in -------------------------------------------------------------------------------- */

/* Where head `h` of token `i` lives: heads of q, then of k, then of v. */
static float *head_at(const struct attn_in_args *a, int32_t i, int32_t h)
{
    if (h < a->heads)
        return a->q + ((int64_t)i * a->heads + h) * a->head_dim;
    int32_t kvh = (h - a->heads) % a->kv_heads;
    float *pages = h < a->heads + a->kv_heads ? a->k_pages : a->v_pages;
    int64_t page = a->kv_at[i] / KV_PAGE, offset = a->kv_at[i] % KV_PAGE;
    return pages + ((page * a->kv_heads + kvh) * KV_PAGE + offset) * a->head_dim;
}

/* Moves columns [n0, n0 + n) of a projection, [m, n] in `tmp`, to the heads from `first` on. */
static void scatter(const struct attn_in_args *a, const float *tmp, const float *bias,
                    int32_t first, int32_t n0, int32_t n)
{
    for (int32_t i = 0; i < a->m; i++) {
        for (int32_t j = 0; j < n;) {
            int32_t at = n0 + j, d = at % a->head_dim;
            int32_t run = a->head_dim - d < n - j ? a->head_dim - d : n - j;
            float *dst = head_at(a, i, first + at / a->head_dim) + d;
            for (int32_t e = 0; e < run; e++)
                dst[e] =
                    bias ? tmp[(int64_t)i * n + j + e] + bias[at + e] : tmp[(int64_t)i * n + j + e];
            j += run;
        }
    }
}

static void project(const struct attn_in_args *a, const struct eager_input *in, float *tmp,
                    const struct weight *w, const float *bias, int32_t first, struct eager_pieces p)
{
    while (EAGER(piece)(&p)) {
        EAGER(linear)(w, in, p.from, p.to, tmp, p.to - p.from);
        scatter(a, tmp, bias, first, p.from, p.to - p.from);
    }
}

/* q/k norm and rotation of one head. */
static void rope(const struct attn_in_args *a, float *x, const float *gain, int32_t position)
{
    int32_t half = a->head_dim / 2, step = a->rope_interleaved ? 2 : 1;
    int32_t apart = a->rope_interleaved ? 1 : half;
    const float *c = a->rope_cos + (int64_t)position * half;
    const float *s = a->rope_sin + (int64_t)position * half;
    float *n = eager_arena(EAGER_INNER, a->head_dim * (int64_t)sizeof *n);
    if (gain)
        lanes_rmsnorm(n, x, gain, a->head_dim, a->eps);
    else
        memcpy(n, x, (size_t)a->head_dim * sizeof *n);
    for (int32_t i = 0; i < half; i++) {
        float p = n[step * i], q = n[step * i + apart];
        x[step * i] = lane_fma(p, c[i], -(q * s[i]));
        x[step * i + apart] = lane_fma(q, c[i], p * s[i]);
    }
}

/* n floats, and a bias, to where the cache has their bf16. */
static void round_to(uint16_t *to, const float *from, const float *bias, int32_t n)
{
    for (int32_t e = 0; e < n; e++)
        to[e] = f32_to_bf16(bias ? from[e] + bias[e] : from[e]);
}

/* The cache's elements of kv head `kvh` for token i. */
static uint16_t *half_at(const struct attn_in_args *a, void *pages, int32_t i, int32_t kvh)
{
    int64_t page = a->kv_at[i] / KV_PAGE, offset = a->kv_at[i] % KV_PAGE;
    return (uint16_t *)pages + ((page * a->kv_heads + kvh) * KV_PAGE + offset) * a->head_dim;
}

/* v: rows [n0, n0 + n) of a piece, [m, n] in `tmp`. */
static void round_values(const struct attn_in_args *a, const float *tmp, int32_t n0, int32_t n)
{
    for (int32_t i = 0; i < a->m; i++) {
        for (int32_t j = 0, run; j < n; j += run) {
            int32_t at = n0 + j, d = at % a->head_dim;
            run = a->head_dim - d < n - j ? a->head_dim - d : n - j;
            round_to(half_at(a, a->v_pages, i, at / a->head_dim) + d, tmp + (int64_t)i * n + j,
                     a->bv ? a->bv + at : NULL, run);
        }
    }
}

/* k: the whole of a head, [m, head_dim] in `tmp`. */
static void round_key(const struct attn_in_args *a, float *tmp, int32_t kvh)
{
    for (int32_t i = 0; i < a->m; i++) {
        float *x = tmp + (int64_t)i * a->head_dim;
        for (int32_t d = 0; a->bk && d < a->head_dim; d++)
            x[d] += a->bk[(int64_t)kvh * a->head_dim + d];
        rope(a, x, a->k_norm, a->position[i]);
        round_to(half_at(a, a->k_pages, i, kvh), x, NULL, a->head_dim);
    }
}

/* attn_in where the cache has bf16. `tmp` is for m * EAGER_PANEL floats, and a head of k may be
 * wider. */
static void attn_in_halves(const void *args, const struct team *team)
{
    const struct attn_in_args *a = args;
    int32_t hd = a->head_dim, wide = hd > EAGER_PANEL ? hd : EAGER_PANEL, from, to;
    struct eager_input in = {.x = a->x, .m = a->m, .k = a->wq.cols, .gain = a->norm, .eps = a->eps};
    float *tmp = EAGER(input)(&in, NULL, (int64_t)a->m * wide * (int64_t)sizeof *tmp);
    project(a, &in, tmp, &a->wq, a->bq, 0, EAGER(pieces)(team, a->m, a->wq.rows, 0));
    eager_share(team, a->kv_heads, 1, &from, &to);
    for (int32_t h = from; h < to; h++) {
        for (int32_t n = 0; n < hd; n += EAGER_PANEL) /* as many rows as a product has at most */
            EAGER(linear)
        (&a->wk, &in, h * hd + n, h * hd + (hd - n < EAGER_PANEL ? hd : n + EAGER_PANEL), tmp + n,
         hd);
        round_key(a, tmp, h);
    }
    struct eager_pieces p = EAGER(pieces)(team, a->m, a->wv.rows, 2);
    while (EAGER(piece)(&p)) {
        EAGER(linear)(&a->wv, &in, p.from, p.to, tmp, p.to - p.from);
        round_values(a, tmp, p.from, p.to - p.from);
    }
    team->barrier(team); /* a head of q may have been projected by two ranks */
    eager_share(team, a->m * a->heads, 1, &from, &to);
    for (int32_t i = from; i < to; i++)
        rope(a, head_at(a, i / a->heads, i % a->heads), a->q_norm, a->position[i / a->heads]);
}

static void attn_in(const void *args, const struct team *team)
{
    const struct attn_in_args *a = args;
    struct eager_input in = {.x = a->x, .m = a->m, .k = a->wq.cols, .gain = a->norm, .eps = a->eps};
    float *tmp = EAGER(input)(&in, NULL, (int64_t)a->m * EAGER_PANEL * (int64_t)sizeof *tmp);
    project(a, &in, tmp, &a->wq, a->bq, 0, EAGER(pieces)(team, a->m, a->wq.rows, 0));
    project(a, &in, tmp, &a->wk, a->bk, a->heads, EAGER(pieces)(team, a->m, a->wk.rows, 1));
    project(a, &in, tmp, &a->wv, a->bv, a->heads + a->kv_heads,
            EAGER(pieces)(team, a->m, a->wv.rows, 2));
    team->barrier(team); /* a head may have been projected by two ranks */
    int32_t heads = a->heads + a->kv_heads, from, to;
    eager_share(team, a->m * heads, 1, &from, &to);
    for (int32_t i = from; i < to; i++)
        rope(a, head_at(a, i / heads, i % heads), i % heads < a->heads ? a->q_norm : a->k_norm,
             a->position[i / heads]);
}

/* ---- the other linear regions --------------------------------------------------------------- */

/* attn_out, mlp_out and the second half of mlp, each with a count of its own */
static void out_counted(const struct out_args *a, const struct team *team, int count)
{
    struct eager_input in = {.x = a->in, .m = a->m, .k = a->w.cols};
    EAGER(input)(&in, NULL, 0);
    int64_t ld = a->w.rows;
    struct eager_pieces p = EAGER(pieces)(team, a->m, a->w.rows, count);
    while (EAGER(piece)(&p)) {
        EAGER(linear)(&a->w, &in, p.from, p.to, a->y + p.from, ld);
        for (int64_t i = 0; i < a->m; i++)
            for (int64_t j = p.from; j < p.to; j++)
                a->y[i * ld + j] += a->x[i * ld + j];
    }
}

static void out(const void *args, const struct team *team)
{
    out_counted(args, team, 0);
}

/* h = silu(h) * up over n floats; the tail with the scalar forms of the vector functions. */
static void silu_mul(float *h, const float *up, int32_t n)
{
    int32_t i = 0;
    for (; i + VEC <= n; i += VEC) {
        vec g = VEC_LOAD(vec, h + i), u = VEC_LOAD(vec, up + i);
        g = g / (1.0f + vec_exp(-g)) * u;
        memcpy(h + i, &g, sizeof g);
    }
    for (; i < n; i++)
        h[i] = lane_silu_mul(h[i], up[i]);
}

static void mlp_in(const void *args, const struct team *team)
{
    const struct mlp_in_args *a = args;
    struct eager_input in = {
        .x = a->x, .m = a->m, .k = a->gate.cols, .gain = a->norm, .eps = a->eps};
    float *up = EAGER(input)(&in, NULL, (int64_t)a->m * EAGER_PANEL * (int64_t)sizeof *up);
    int64_t ld = a->gate.rows;
    struct eager_pieces p = EAGER(pieces)(team, a->m, a->gate.rows, 0);
    while (EAGER(piece)(&p)) {
        int32_t n = p.to - p.from;
        EAGER(linear)(&a->gate, &in, p.from, p.to, a->h + p.from, ld);
        EAGER(linear)(&a->up, &in, p.from, p.to, up, n);
        for (int64_t i = 0; i < a->m; i++)
            silu_mul(a->h + i * ld + p.from, up + i * n, n);
    }
}

static void mlp(const void *args, const struct team *team)
{
    const struct mlp_args *a = args;
    const struct mlp_in_args in = {.m = a->m,
                                   .eps = a->eps,
                                   .x = a->x,
                                   .norm = a->norm,
                                   .gate = a->gate,
                                   .up = a->up,
                                   .h = a->h};
    const struct out_args down = {.m = a->m, .in = a->h, .x = a->x, .w = a->down, .y = a->y};
    mlp_in(&in, team);
    team->barrier(team); /* every rank reads all of h */
    out_counted(&down, team, 1);
}

static void head(const void *args, const struct team *team)
{
    const struct head_args *a = args;
    struct eager_input in = {.x = a->x, .m = a->m, .k = a->w.cols, .gain = a->norm, .eps = a->eps};
    EAGER(input)(&in, a->row, 0);
    int64_t ld = a->w.rows;
    struct eager_pieces p = EAGER(pieces)(team, a->m, a->w.rows, 0);
    while (EAGER(piece)(&p))
        EAGER(linear)(&a->w, &in, p.from, p.to, a->logits + p.from, ld);
}

static int64_t no_scratch(int32_t m, int32_t size)
{
    (void)m;
    (void)size;
    return 0;
}

#define KERNEL(r, fn)           \
    [r] = {.abi = WHET_CPU_ABI, \
           .region = r,         \
           .m_max = INT32_MAX,  \
           .run = fn,           \
           .scratch_bytes = no_scratch}
const struct cpu_kernel EAGER(eager)[REGION_LOCAL] = {
    KERNEL(REGION_EMBED, embed),  KERNEL(REGION_ATTN_IN, attn_in), KERNEL(REGION_ATTN, EAGER(attn)),
    KERNEL(REGION_ATTN_OUT, out), KERNEL(REGION_MLP_IN, mlp_in),   KERNEL(REGION_MLP_OUT, out),
    KERNEL(REGION_HEAD, head),    KERNEL(REGION_MLP, mlp),
};
const struct cpu_kernel EAGER(halves)[REGION_LOCAL] = {
    KERNEL(REGION_EMBED, embed),
    KERNEL(REGION_ATTN_IN, attn_in_halves),
    KERNEL(REGION_ATTN, EAGER(attn_halves)),
    KERNEL(REGION_ATTN_OUT, out),
    KERNEL(REGION_MLP_IN, mlp_in),
    KERNEL(REGION_MLP_OUT, out),
    KERNEL(REGION_HEAD, head),
    KERNEL(REGION_MLP, mlp),
};
