/* SPDX-License-Identifier: Apache-2.0 */
/* avx2_rows.h - dot products of a few weight rows with a few tokens, on AVX2. Included by rows.h.
 *
 * The 16 lanes of a sum are two of 16 registers here, so more than four sums would leave none for a
 * block's weights. Up to four are rows.h's, WHOLE_SUMS at a time. Of more, lanes 8 h to 8 h + 7 of
 * all take their part of a run of blocks before the others take theirs. Sums wait in memory
 * meanwhile, those of ROWS_TOGETHER rows, all of which go through a run of K before the next one:
 * what the tokens have of a run stays in the first-level cache.
 *
 * Each lane of a sum sees what it sees in rows.h, in the same order.
 */
#ifndef WHET_KERNELS_CPU_LIB_AVX2_ROWS_H
#define WHET_KERNELS_CPU_LIB_AVX2_ROWS_H

#define ROWS_TOGETHER(rows) (16 / (rows) * (rows))

/* Whole rows are read four or fewer at a time, so the tokens, if they are more than one, have to
 * stay in the first-level cache: bytes of them. What is asked for stays there, too, where it is no
 * more than SOON_MOST bytes away. */
enum { WHOLE_SUMS = 4, WHOLE_X = 24 * 1024, SOON_MOST = 12 * 1024 };

/* Halves of a row's sums: [h][token]. */
typedef __m256 row_sums[2][TOKENS_MOST];

/* acc[t] += those weights times those of token t, at x. */
INLINE void rows_half_add(__m256 acc[TOKENS_MOST], const __m256 w[2], const float *x, int64_t ldx,
                          const int tokens)
{
    UNROLLED
    for (int t = 0; t < tokens; t++) {
        acc[t] = _mm256_fmadd_ps(w[0], _mm256_loadu_ps(x + t * ldx), acc[t]);
        acc[t] = _mm256_fmadd_ps(w[1], _mm256_loadu_ps(x + t * ldx + LANES), acc[t]);
    }
}

/* The block that is `ahead` bytes behind p is asked for, if it is not 0. */
INLINE void row_ask(const int type, const uint8_t *p, int64_t ahead)
{
    for (int i = 0; ahead && i < BLOCK_SHARE(type); i += 64) {
        if (ahead <= SOON_MOST)
            __builtin_prefetch(p + ahead + i);
        else
            __builtin_prefetch(p + ahead + i, 0, 2);
    }
}

/* Half h of `rows` rows' sums += `run` blocks from `w` times those of x; scale[r]: row r's. */
INLINE void rows_half(const int type, const uint8_t *w, int64_t stride, const int rows,
                      const float (*scale)[RUN_SCALES], const int run, const float *x, int64_t ldx,
                      const int tokens, const int h, int64_t ahead, row_sums *sum)
{
    const int together = BLOCKS_TOGETHER(type);
    __m256 acc[ROWS_MOST][TOKENS_MOST];
    UNROLLED
    for (int r = 0; r < rows; r++) {
        UNROLLED
        for (int t = 0; t < tokens; t++)
            acc[r][t] = sum[r][h][t];
    }
    for (int b = 0; b < run; b += together) {
        UNROLLED
        for (int j = 0; j < together; j++) {
            UNROLLED
            for (int r = 0; r < rows; r++) {
                const uint8_t *p = row_at(type, w + r * stride, b);
                __m256 v[2];
                if (h == 0)
                    row_ask(type, p + j * BLOCK_SHARE(type), ahead);
                row_load_half(type, p, j, scale[r] + b * ROW_SCALES(type), h, v);
                rows_half_add(acc[r], v, x + (b + j) * BLOCK + 8 * h, ldx, tokens);
            }
        }
    }
    UNROLLED
    for (int r = 0; r < rows; r++) {
        UNROLLED
        for (int t = 0; t < tokens; t++)
            sum[r][h][t] = acc[r][t];
    }
}

INLINE void rows_run(const int type, const uint8_t *w, int64_t stride, const int rows,
                     const int run, const float *x, int64_t ldx, const int tokens, int64_t ahead,
                     row_sums *sum)
{
    float scale[ROWS_MOST][RUN_SCALES];
    UNROLLED
    for (int r = 0; r < rows; r++)
        row_scales(type, w + r * stride, run, scale[r]);
    UNROLLED
    for (int h = 0; h < 2; h++)
        rows_half(type, w, stride, rows, (const float(*)[RUN_SCALES])scale, run, x, ldx, tokens, h,
                  ahead, sum);
}

/* rows_dot() for `count` rows, up to ROWS_TOGETHER, with `rows` of them in registers: by halves. */
INLINE void rows_by_halves(const int type, const uint8_t *w, int64_t stride, const int rows,
                           int count, const float *x, int64_t ldx, const int tokens, const int k,
                           const int ahead, float *y, int64_t ldy)
{
    const int64_t apart = rows_apart(stride, ROWS_TOGETHER(rows), ahead);
    row_sums sum[16];
    for (int r = 0; r < count; r++) {
        UNROLLED
        for (int t = 0; t < tokens; t++)
            sum[r][0][t] = sum[r][1][t] = _mm256_setzero_ps();
    }
    for (int b = 0; b < k / BLOCK; b += SCALE_RUN) {
        const int run = k / BLOCK - b < SCALE_RUN ? k / BLOCK - b : SCALE_RUN;
        const uint8_t *from = row_at(type, w, b);
        int r = 0;
        for (; r + rows <= count; r += rows)
            rows_run(type, from + r * stride, stride, rows, run, x + b * BLOCK, ldx, tokens, apart,
                     sum + r);
        for (; rows > 1 && r < count; r++)
            rows_run(type, from + r * stride, stride, 1, run, x + b * BLOCK, ldx, tokens, apart,
                     sum + r);
    }
    for (int r = 0; r < count; r++) {
        UNROLLED
        for (int t = 0; t < tokens; t++)
            y[t * ldy + r] = vf_fold((vf){sum[r][0][t], sum[r][1][t]});
    }
}

/* rows_dot() for `count` rows, up to ROWS_TOGETHER, with `rows` of them in registers or as many as
 * fit. */
INLINE void rows_together(const int type, const uint8_t *w, int64_t stride, const int rows,
                          int count, const float *x, int64_t ldx, const int tokens, const int k,
                          const int ahead, float *y, int64_t ldy)
{
    if (tokens > 1 && (tokens > WHOLE_SUMS || 4LL * tokens * k > WHOLE_X)) {
        rows_by_halves(type, w, stride, rows, count, x, ldx, tokens, k, ahead, y, ldy);
        return;
    }
    const int some = rows * tokens <= WHOLE_SUMS ? rows : WHOLE_SUMS / tokens;
    int r = 0;
    for (; r + some <= count; r += some)
        rows_dot(type, w + r * stride, stride, some, x, ldx, tokens, k, ahead, y + r, ldy);
    for (; some > 1 && r < count; r++)
        rows_dot(type, w + r * stride, stride, 1, x, ldx, tokens, k, ahead, y + r, ldy);
}

#endif
