/* SPDX-License-Identifier: Apache-2.0 */
/* kernel.h - honest kernels for every region, in the plainest form; each bad kernel is one of them
 * with one thing wrong. Weights F32 or BF16 (the tiny test model has nothing else). */
#ifndef WHET_TESTS_KERNELS_BAD_KERNEL_H
#define WHET_TESTS_KERNELS_BAD_KERNEL_H

#include "args.h"
#include "cpu/lib/lanes.h"

#define PAGE_OF(a, page, head) (((int64_t)(page) * (a)->kv_heads + (head)) * KV_PAGE)
enum { WIDE = 4096 }; /* longest row of any test model */

#define KERNEL(region_, m_max_, run_, scratch_)                 \
    __attribute__((visibility("default")))                      \
    const struct cpu_kernel whet_kernel = {.abi = WHET_CPU_ABI, \
                                           .region = region_,   \
                                           .m_max = m_max_,     \
                                           .run = run_,         \
                                           .scratch_bytes = scratch_}

__attribute__((unused)) static int64_t no_scratch(int32_t m, int32_t size)
{
    (void)m;
    (void)size;
    return 0;
}

static inline float bf16(uint16_t h)
{
    union {
        uint32_t u;
        float f;
    } v = {(uint32_t)h << 16};
    return v.f;
}

static inline void row_float(const struct weight *w, int32_t row, float *dst)
{
    for (int32_t i = 0; i < w->cols; i++)
        dst[i] = w->type == DTYPE_F32
                     ? ((const float *)w->data)[(int64_t)row * w->cols + i]
                     : bf16(((const uint16_t *)w->data)[(int64_t)row * w->cols + i]);
}

/* Rank's share of n rows. */
static inline void share(const struct team *t, int32_t n, int32_t *from, int32_t *to)
{
    *from = (int32_t)((int64_t)n * t->rank / t->size);
    *to = (int32_t)((int64_t)n * (t->rank + 1) / t->size);
}

static inline void good_out(const struct out_args *a, const struct team *t)
{
    float row[WIDE];
    int32_t from, to, k = a->w.cols, n = a->w.rows;
    share(t, n, &from, &to);
    for (int32_t r = from; r < to; r++) {
        row_float(&a->w, r, row);
        for (int32_t i = 0; i < a->m; i++)
            a->y[(int64_t)i * n + r] =
                lane_dot(row, a->in + (int64_t)i * k, k) + a->x[(int64_t)i * n + r];
    }
}

static inline void mlp_rows(const struct mlp_in_args *a, const float *norm, int32_t i, int32_t from,
                            int32_t to)
{
    float row[WIDE];
    int32_t k = a->gate.cols, n = a->gate.rows;
    for (int32_t r = from; r < to; r++) {
        row_float(&a->gate, r, row);
        float g = lane_dot(row, norm, k);
        row_float(&a->up, r, row);
        a->h[(int64_t)i * n + r] = lane_silu_mul(g, lane_dot(row, norm, k));
    }
}

static inline void good_mlp_in(const struct mlp_in_args *a, const struct team *t)
{
    float norm[WIDE];
    int32_t from, to, k = a->gate.cols;
    share(t, a->gate.rows, &from, &to);
    for (int32_t i = 0; i < a->m; i++) {
        lane_rmsnorm(norm, a->x + (int64_t)i * k, a->norm, k, a->eps);
        mlp_rows(a, norm, i, from, to);
    }
}

static inline void good_rope(const struct attn_in_args *a, float *head, int32_t position)
{
    int32_t half = a->head_dim / 2;
    const float *c = a->rope_cos + (int64_t)position * half;
    const float *s = a->rope_sin + (int64_t)position * half;
    for (int32_t i = 0; i < half; i++) {
        int32_t p = a->rope_interleaved ? 2 * i : i, q = a->rope_interleaved ? p + 1 : i + half;
        float x = head[p], y = head[q];
        head[p] = lane_fma(x, c[i], -(y * s[i]));
        head[q] = lane_fma(y, c[i], x * s[i]);
    }
}

/* Rows [from, from + n) of w times norm, with bias. */
static inline void project(const struct weight *w, const float *bias, const float *norm,
                           int32_t from, int32_t n, float *out)
{
    float row[WIDE];
    for (int32_t r = 0; r < n; r++) {
        row_float(w, from + r, row);
        out[r] = lane_dot(row, norm, w->cols) + (bias ? bias[from + r] : 0);
    }
}

/* One token's heads: `position` and `at` are arguments so that a bad kernel can pass others. */
static inline void attn_in_token(const struct attn_in_args *a, int32_t i, int32_t position,
                                 int32_t at)
{
    float norm[WIDE], head[WIDE];
    int32_t d = a->head_dim, hidden = a->wq.cols;
    lane_rmsnorm(norm, a->x + (int64_t)i * hidden, a->norm, hidden, a->eps);
    for (int32_t h = 0; h < a->heads; h++) {
        float *q = a->q + ((int64_t)i * a->heads + h) * d;
        project(&a->wq, a->bq, norm, h * d, d, q);
        good_rope(a, q, position);
    }
    for (int32_t h = 0; h < a->kv_heads; h++) {
        int64_t to = (PAGE_OF(a, at / KV_PAGE, h) + at % KV_PAGE) * d;
        project(&a->wk, a->bk, norm, h * d, d, head);
        good_rope(a, head, position);
        for (int32_t j = 0; j < d; j++)
            ((float *)a->k_pages)[to + j] = head[j];
        project(&a->wv, a->bv, norm, h * d, d, head);
        for (int32_t j = 0; j < d; j++)
            ((float *)a->v_pages)[to + j] = head[j];
    }
}

static inline void good_attn_in(const struct attn_in_args *a, const struct team *t)
{
    for (int32_t i = t->rank; i < a->m; i += t->size)
        attn_in_token(a, i, a->position[i], a->kv_at[i]);
}

/* Which page holds position p of span s; what the exponential is: hooks for bad kernels. */
#ifndef PAGE
#define PAGE(a, s, p) (a)->page_table[(s)->pages_at + (p) / KV_PAGE]
#endif
#ifndef EXP
#define EXP(s, top) lane_exp((s) - (top))
#endif
#ifndef FIRST
#define FIRST(context) 0
#endif
#ifndef LAST
#define LAST(s, token, context) (context)
#endif

static inline void attn_head(const struct attn_args *a, const struct span *s, int32_t token,
                             int32_t h)
{
    float score[WIDE];
    int32_t d = a->head_dim, kv = h / (a->heads / a->kv_heads);
    int32_t context = s->context - (s->first + s->count - 1 - token);
    const float *q = a->q + ((int64_t)token * a->heads + h) * d;
    float *out = a->a + ((int64_t)token * a->heads + h) * d, top = -3e38f, sum = 0;
    int32_t first = FIRST(context), last = LAST(s, token, context);
    (void)context;
    for (int32_t p = first; p < last; p++) {
        int64_t at = (PAGE_OF(a, PAGE(a, s, p), kv) + p % KV_PAGE) * d;
        score[p] = lane_dot(q, (const float *)a->k_pages + at, d) * a->scale;
        top = score[p] > top ? score[p] : top;
    }
    float lanes[LANES] = {0};
    for (int32_t j = 0; j < d; j++)
        out[j] = 0;
    for (int32_t p = first; p < last; p++) {
        int64_t at = (PAGE_OF(a, PAGE(a, s, p), kv) + p % KV_PAGE) * d;
        float e = EXP(score[p], top);
        lanes[p % LANES] += e;
        for (int32_t j = 0; j < d; j++)
            out[j] = lane_fma(e, ((const float *)a->v_pages)[at + j], out[j]);
    }
    sum = lane_fold(lanes);
    for (int32_t j = 0; j < d; j++)
        out[j] *= 1 / sum;
}

static inline void good_attn(const struct attn_args *a, const struct team *t)
{
    for (int32_t s = 0; s < a->spans; s++)
        for (int32_t i = 0; i < a->span[s].count; i++)
            for (int32_t h = t->rank; h < a->heads; h += t->size)
                attn_head(a, &a->span[s], a->span[s].first + i, h);
}

static inline void good_head(const struct head_args *a, const struct team *t)
{
    float norm[WIDE], row[WIDE];
    int32_t from, to, k = a->w.cols, n = a->w.rows;
    share(t, n, &from, &to);
    for (int32_t i = 0; i < a->m; i++) {
        lane_rmsnorm(norm, a->x + (int64_t)a->row[i] * k, a->norm, k, a->eps);
        for (int32_t r = from; r < to; r++) {
            row_float(&a->w, r, row);
            a->logits[(int64_t)i * n + r] = lane_dot(row, norm, k);
        }
    }
}

/* ---- weights repacked to rows of floats ---- */

static inline int64_t float_rows_bytes(const struct weight *w)
{
    return (int64_t)w->rows * w->cols * 4;
}

static inline void pack_float_rows(const struct weight *w, void *packed, int32_t row0, int32_t row1)
{
    for (int32_t r = row0; r < row1; r++)
        row_float(w, r, (float *)packed + (int64_t)r * w->cols);
}

static inline void packed_head(const void *args, const struct team *t)
{
    struct head_args a = *(const struct head_args *)args;
    a.w.data = a.w.packed;
    a.w.type = DTYPE_F32;
    good_head(&a, t);
}

#define PACKED_KERNEL(REGION, RUN, BYTES, PACK)                         \
    const struct cpu_kernel whet_kernel = {.abi = WHET_CPU_ABI,         \
                                           .region = REGION,            \
                                           .m_max = 16,                 \
                                           .run = RUN,                  \
                                           .scratch_bytes = no_scratch, \
                                           .layout = "float rows",      \
                                           .packed_bytes = BYTES,       \
                                           .pack = PACK}

/* Raw system calls, for kernels that would reach outside without naming a library function. */
#if defined(__x86_64__)
static inline long system_call(long number, long a, long b, long c)
{
    long r;
    __asm__ volatile("syscall"
                     : "=a"(r)
                     : "a"(number), "D"(a), "S"(b), "d"(c)
                     : "rcx", "r11", "memory");
    return r;
}
#endif

#endif
