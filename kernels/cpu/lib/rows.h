/* SPDX-License-Identifier: Apache-2.0 */
/* rows.h - dot products of a few weight rows with a few tokens, in the canonical order.
 *
 * The weights stay in the model's own format. `rows` x `tokens` accumulators of 16 lanes are held
 * in registers; a block of 32 weights is turned into floats once and used for every token. All of
 * type, rows and tokens are constants where rows_dot() is called, and which of the eight blocks of
 * a super-block is read is one in its loop.
 *
 * Invariant: accumulator (r, t) sees the blocks of K in rising order and nothing else, so its 16
 * lanes are those of lane_dot() (lanes.h) whatever ROWS, TOKENS or the thread split.
 */
#ifndef WHET_KERNELS_CPU_LIB_ROWS_H
#define WHET_KERNELS_CPU_LIB_ROWS_H

#include "cpu/lib/super.h"

enum { ROWS_MOST = 8, TOKENS_MOST = 8 };

/* Memory is asked for before it is needed, because the processor's own prefetchers do not follow
 * short streams beside each other (docs/lab/2026-11-30-cpu-rows-memory.md). Behind the last row it
 * is nobody's memory, which a prefetch may name.
 *
 * Rows that are read whole lie behind each other. Up to SHORT_ROW bytes they are asked for as the
 * one stream that they are, in the order of addresses, `ahead` bytes behind the last row in flight:
 * the processor sees that stream and runs ahead of it. What was asked for and not yet read has to
 * stay in the first-level cache beside x, or the stream breaks. So of longer rows the same block of
 * rows to come is asked for, whole groups of them and `ahead` bytes away at least, and into the
 * second-level cache: the first has buffers for fewer lines under way. ARM was not measured. */
enum { SHORT_ROW = 2048 };

/* Bytes of the fewest whole groups of `rows` rows that are `ahead` or more. */
INLINE int64_t rows_apart(int64_t stride, const int rows, const int ahead)
{
    return (ahead + rows * stride - 1) / (rows * stride) * (rows * stride);
}

/* Called for each of `rows` rows in flight before its block b, of k / BLOCK, is read. */
INLINE void rows_ask(const int type, const uint8_t *w, int64_t stride, const int rows, const int k,
                     int b, const int r, const int ahead)
{
    const int bytes = BLOCK_SHARE(type);
    if (!ahead)
        return;
#if ISA >= ISA_NEON
    (void)rows, (void)k;
    __builtin_prefetch(w + r * stride + (int64_t)b * bytes + ahead);
#else
    if (stride == ROW_BYTES(type, k) && stride <= SHORT_ROW) {
        const uint8_t *p = w + (rows - 1) * stride + ahead + (int64_t)b * rows * bytes;
        for (int i = 0; r == 0 && i < rows * bytes; i += 64)
            __builtin_prefetch(p + i);
        return;
    }
    const uint8_t *p = w + r * stride + rows_apart(stride, rows, ahead) + (int64_t)b * bytes;
    for (int i = 0; i < bytes; i += 64)
        __builtin_prefetch(p + i, 0, 2);
#endif
}

#if ISA == ISA_AVX2
#include "cpu/lib/avx2_eight.h"
#define ROW_LOAD row_load_eights
#else
#define ROW_LOAD row_load_scaled
#endif

/* acc[t] += a block of weights times that of token t, at x. */
INLINE void rows_add(vf acc[TOKENS_MOST], const vf w[2], const float *x, int64_t ldx,
                     const int tokens)
{
    UNROLLED
    for (int t = 0; t < tokens; t++) {
        acc[t] = vf_fma(w[0], vf_load(x + t * ldx), acc[t]);
        acc[t] = vf_fma(w[1], vf_load(x + t * ldx + LANES), acc[t]);
    }
}

/* acc[r][t] += blocks b0 to b0 + run, SCALE_RUN at most, of row r times those of token t. */
INLINE void rows_add_run(const int type, const uint8_t *w, int64_t stride, const int rows,
                         const float *x, int64_t ldx, const int tokens, const int k, const int b0,
                         const int run, const int ahead, vf acc[ROWS_MOST][TOKENS_MOST])
{
    const int together = BLOCKS_TOGETHER(type);
    float scale[ROWS_MOST][RUN_SCALES];
    UNROLLED
    for (int r = 0; r < rows; r++)
        row_scales(type, row_at(type, w + r * stride, b0), run, scale[r]);
    for (int b = b0; b < b0 + run; b += together) {
        UNROLLED
        for (int j = 0; j < together; j++) {
            UNROLLED
            for (int r = 0; r < rows; r++) {
                const uint8_t *p = row_at(type, w + r * stride, b);
                vf v[2];
                rows_ask(type, w, stride, rows, k, b + j, r, ahead);
                ROW_LOAD(type, p, j, scale[r] + (b - b0) * ROW_SCALES(type), v);
                rows_add(acc[r], v, x + (int64_t)(b + j) * BLOCK, ldx, tokens);
            }
        }
    }
}

/* y[t * ldy + r] = row r . token t for r < rows, t < tokens. `w`: first row, `stride` bytes a row;
 * x: [tokens, k], ldx floats a token. `ahead`: how far away memory is asked for, 0 not at all. */
INLINE void rows_dot(const int type, const uint8_t *w, int64_t stride, const int rows,
                     const float *x, int64_t ldx, const int tokens, const int k, const int ahead,
                     float *y, int64_t ldy)
{
    const int whole = k / BLOCK / SCALE_RUN * SCALE_RUN, rest = k / BLOCK - whole;
    vf acc[ROWS_MOST][TOKENS_MOST];
    UNROLLED
    for (int r = 0; r < rows; r++) {
        UNROLLED
        for (int t = 0; t < tokens; t++)
            acc[r][t] = vf_zero();
    }
    for (int b = 0; b < whole; b += SCALE_RUN)
        rows_add_run(type, w, stride, rows, x, ldx, tokens, k, b, SCALE_RUN, ahead, acc);
    if (rest) /* apart, so that the length of a run is a constant */
        rows_add_run(type, w, stride, rows, x, ldx, tokens, k, whole, rest, ahead, acc);
    UNROLLED
    for (int r = 0; r < rows; r++) {
        UNROLLED
        for (int t = 0; t < tokens; t++)
            y[t * ldy + r] = vf_fold(acc[r][t]);
    }
}

#if ISA == ISA_AVX2

#include "cpu/lib/avx2_rows.h"

#else

/* The rows that one call multiplies: as many as are in registers, or more. */
#define ROWS_TOGETHER(rows) (rows)

/* rows_dot() for `count` rows, which are `rows` or fewer. */
INLINE void rows_together(const int type, const uint8_t *w, int64_t stride, const int rows,
                          int count, const float *x, int64_t ldx, const int tokens, const int k,
                          const int ahead, float *y, int64_t ldy)
{
    if (count == rows)
        rows_dot(type, w, stride, rows, x, ldx, tokens, k, ahead, y, ldy);
    for (int r = 0; count < rows && r < count; r++)
        rows_dot(type, w + r * stride, stride, 1, x, ldx, tokens, k, ahead, y + r, ldy);
}

#endif

/* The same for any m: tiles of TOKENS tokens, then of 4, 2 and 1 for the rest. */
INLINE void rows_together_all(const int type, const uint8_t *w, int64_t stride, const int rows,
                              int count, const float *x, int64_t ldx, int m, const int tile,
                              const int k, const int ahead, float *y, int64_t ldy)
{
    for (int t = 0; t < m;) {
        int left = m - t;
        const float *xt = x + t * ldx;
        float *yt = y + t * ldy;
        if (left >= tile) {
            rows_together(type, w, stride, rows, count, xt, ldx, tile, k, ahead, yt, ldy);
            t += tile;
        } else if (tile > 4 && left >= 4) {
            rows_together(type, w, stride, rows, count, xt, ldx, 4, k, ahead, yt, ldy);
            t += 4;
        } else if (tile > 2 && left >= 2) {
            rows_together(type, w, stride, rows, count, xt, ldx, 2, k, ahead, yt, ldy);
            t += 2;
        } else {
            rows_together(type, w, stride, rows, count, xt, ldx, 1, k, ahead, yt, ldy);
            t += 1;
        }
    }
}

INLINE void rows_dot_all(const int type, const uint8_t *w, int64_t stride, const int rows,
                         const float *x, int64_t ldx, int m, const int tile, const int k,
                         const int ahead, float *y, int64_t ldy)
{
    rows_together_all(type, w, stride, rows, rows, x, ldx, m, tile, k, ahead, y, ldy);
}

#endif
