/* SPDX-License-Identifier: Apache-2.0 */
/* probe_args.h - arguments of the kernels that surround a kernel under test (probe.cu) and of those
 * that say what it should have computed (oracle.cu). Shape-generic; shared with engine/cuda/. */
#ifndef WHET_KERNELS_PROBE_ARGS_H
#define WHET_KERNELS_PROBE_ARGS_H

#include "cuda.h"

/* ---- probe.cu ----------------------------------------------------------------------------- */

/* How numbers are drawn: enum fill of engine/cpu/case.h, and what only a device needs. */
enum probe_fill {
    PROBE_FILL_NORMAL,
    PROBE_FILL_SMALL,
    PROBE_FILL_LARGE,
    PROBE_FILL_SHIFTED,
    PROBE_FILL_OUTLIER,
    PROBE_FILL_ZERO,
    PROBE_FILL_DENORMAL,
    PROBE_FILL_BITS,
    PROBE_FILL_INTEGERS, /* -2 .. 2: sums of products with bits are exact in float */
    PROBE_FILL_GAIN,     /* 0.5 .. 1.5 */
    PROBE_FILL_GARBAGE,  /* 1e6 or -1e6: finite, and far from everything else */
};

/* n values in rows of `cols`, times scale. Any grid of 256 threads. */
struct probe_fill_args {
    void *to;
    int64_t n;
    uint64_t seed;
    float scale;
    int32_t cols, fill, half; /* half: bf16, else float */
};

/* Bricks of a drawn matrix (bricks.h): any codes, scales so that weights are about as large as
 * `scale`, or whole numbers. Any grid of 256 threads. */
struct probe_bricks_args {
    void *to;
    int64_t bricks;
    uint64_t seed;
    float scale;
    int32_t type, exact;
};

/* Every word becomes `value`. Any grid of 256 threads. */
struct probe_poison_args {
    unsigned *to;
    int64_t words;
    unsigned value;
};

/* Positions 0 .. context-1 of each span in pages. Grid: (blocks, spans), 256 threads. */
struct probe_pages_args {
    void *pages;
    const struct span *span;
    const int32_t *page_table;
    uint64_t seed;
    int32_t fill, kv_heads, head_dim;
};

/* The kernel before the one under test: lets it start at once, waits, and only then writes its
 * inputs, spoils its outputs and its working memory. Grid: any, 256 threads. */
struct probe_segment {
    const void *from; /* null: every byte becomes 0xff */
    void *to;
    int64_t bytes; /* a multiple of 4 */
};
struct probe_produce_args {
    const struct probe_segment *segment;
    const unsigned *delay_ns; /* on the device: another one for every replay */
    unsigned *work;
    int64_t work_words;
    int32_t segments;
    unsigned work_fill;
};

/* count[job.tally] += words in which a and b differ; b null: words that are not `value`. Grid:
 * (blocks, jobs), 256 threads. */
enum { PROBE_JOBS = 48 };
struct probe_differ_job {
    const unsigned *a, *b;
    int64_t words;
    unsigned value;
    int32_t tally;
};
struct probe_differ_args {
    unsigned long long *count;
    struct probe_differ_job job[PROBE_JOBS];
};

/* *sum += a sum over all words that sees where each of them is. */
struct probe_sum_args {
    const unsigned *data;
    int64_t words;
    unsigned long long *sum;
};

/* *count += numbers that are not x's as bf16. Any grid of 256 threads. */
struct probe_halves_args {
    const float *x;
    const void *y; /* bf16 */
    int64_t n;
    unsigned long long *count;
};

/* ---- oracle.cu ---------------------------------------------------------------------------- */

/* y[i, :] = x[row ? row[i] : i, :], normed with `gain` if that is not null. Grid: m, 256. */
struct oracle_rows_args {
    const float *x, *gain;
    const int32_t *row;
    double *y;
    int32_t n;
    float eps;
};

/* y[i, r] = sum of x[i, :] w[r, :]. Grid: (ceil(n / 8), ceil(m / 8)), 256 threads. */
struct oracle_product_args {
    const double *x;
    const void *w; /* [n, k]: bf16, or in bricks (bricks.h) */
    double *y;
    int32_t m, n, k;
    int32_t type; /* enum dtype */
};

/* Bias, q/k norm and RoPE of raw [m, (heads + 2 kv_heads) head_dim], in place. Grid: (heads + 2
 * kv_heads, m), 32 threads. */
struct oracle_heads_args {
    double *raw;
    const float *bias, *q_norm, *k_norm, *rope_cos, *rope_sin;
    const int32_t *position;
    int32_t heads, kv_heads, head_dim;
    float eps;
};

/* h[i, j] = silu(raw[i, 2j]) raw[i, 2j+1]; or, with x, h[i, j] = raw[i, j] + x[i, j]. Any grid. */
struct oracle_finish_args {
    const double *raw;
    const float *x;
    double *h;
    int64_t n; /* m * columns of h */
};

/* Attention of tokens with their own positions. Grid: (heads, m), 256 threads. */
struct oracle_attn_args {
    const float *q;
    const void *k_pages, *v_pages;
    const int32_t *position, *pages_at, *page_table;
    double *a;
    double *scores; /* [m, heads]: sums over the positions of weight times sum |q k| scale */
    int32_t heads, kv_heads, head_dim;
    float scale;
};

#endif
