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

#if ISA == ISA_AVX2

#include "cpu/lib/avx2_rows.h"

#else

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

/* y[t * ldy + r] = row r . token t for r < rows, t < tokens. `w`: first row, `stride` bytes a row;
 * x: [tokens, k], ldx floats a token. `ahead`: bytes to prefetch past the block in use, 0 none. */
INLINE void rows_dot(const int type, const uint8_t *w, int64_t stride, const int rows,
                     const float *x, int64_t ldx, const int tokens, const int k, const int ahead,
                     float *y, int64_t ldy)
{
    const int together = BLOCKS_TOGETHER(type);
    vf acc[ROWS_MOST][TOKENS_MOST];
    UNROLLED
    for (int r = 0; r < rows; r++) {
        UNROLLED
        for (int t = 0; t < tokens; t++)
            acc[r][t] = vf_zero();
    }
    for (int b0 = 0; b0 < k / BLOCK; b0 += SCALE_RUN) {
        const int run = k / BLOCK - b0 < SCALE_RUN ? k / BLOCK - b0 : SCALE_RUN;
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
                    const float *xb = x + (int64_t)(b + j) * BLOCK;
                    vf v[2];
                    if (ahead)
                        __builtin_prefetch(p + j * DTYPE_BYTES(type) / together + ahead);
                    row_load_scaled(type, p, j, scale[r] + (b - b0) * ROW_SCALES(type), v);
                    rows_add(acc[r], v, xb, ldx, tokens);
                }
            }
        }
    }
    UNROLLED
    for (int r = 0; r < rows; r++) {
        UNROLLED
        for (int t = 0; t < tokens; t++)
            y[t * ldy + r] = vf_fold(acc[r][t]);
    }
}

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
