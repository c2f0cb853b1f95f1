/* SPDX-License-Identifier: Apache-2.0 */
/* avx2_rows.h - dot products of a few weight rows with a few tokens, on AVX2. Included by rows.h.
 *
 * The 16 lanes of a sum are two of 16 registers here, so a few sums would leave none for a block's
 * weights: lanes 8 h to 8 h + 7 of all sums take their part of a run of blocks before the others
 * take theirs. Sums wait in memory meanwhile, those of ROWS_TOGETHER rows, all of which go through
 * a run of K before the next one: what the tokens have of a run stays in the first-level cache.
 *
 * Each lane of a sum sees what it sees in rows.h, in the same order.
 */
#ifndef WHET_KERNELS_CPU_LIB_AVX2_ROWS_H
#define WHET_KERNELS_CPU_LIB_AVX2_ROWS_H

#define ROWS_TOGETHER(rows) (16 / (rows) * (rows))

/* Halves of a row's sums: [h][token]. */
typedef __m256 row_sums[2][TOKENS_MOST];

/* Eight numbers of a plain format, or bytes of Q8_0, as floats. */
INLINE __m256 block_eight(const int type, const uint8_t *p)
{
    if (type == DTYPE_F32)
        return _mm256_loadu_ps((const float *)p);
    if (type == DTYPE_Q8_0)
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
    __m128i halves = _mm_loadu_si128((const __m128i *)p);
    if (type == DTYPE_F16)
        return _mm256_cvtph_ps(halves);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

/* Numbers 8 h .. 8 h + 7 and 16 + 8 h .. of a block as block_numbers() has them, from the bytes q,
 * whose nibbles they are. */
INLINE void block_eight_nibbles(const int type, bytes16 q, uint32_t fifth, const int h,
                                __m256i n[2])
{
    if (TABLE_TYPE(type)) {
        n[0] = _mm256_cvtepi8_epi32(block_look_up(block_low(q), CODE_TABLE(type)));
        n[1] = _mm256_cvtepi8_epi32(block_look_up(block_high(q), CODE_TABLE(type)));
        return;
    }
    const __m256i bytes = _mm256_cvtepu8_epi32(q), lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    n[0] = _mm256_and_si256(bytes, _mm256_set1_epi32(15));
    n[1] = _mm256_srli_epi32(bytes, 4);
    UNROLLED
    for (int i = 0; i < 2; i++) {
        const int first = 8 * h + 16 * i - 4; /* to be bit 4 */
        if (HIGH_BITS(type)) {
            __m256i bits = _mm256_set1_epi32((int)(first < 0 ? fifth << 4 : fifth));
            bits = _mm256_and_si256(
                _mm256_srlv_epi32(
                    bits, first < 0 ? lane : _mm256_add_epi32(lane, _mm256_set1_epi32(first))),
                _mm256_set1_epi32(16));
            n[i] = _mm256_or_si256(n[i], bits);
        }
        if (!HAS_MINIMUM(type))
            n[i] = _mm256_sub_epi32(n[i], _mm256_set1_epi32(MIDDLE_CODE(type)));
    }
}

/* Weights 8 h .. 8 h + 7 and 16 + 8 h .. of a block, as block_load_scaled() has them. */
INLINE void block_load_half(const int type, const uint8_t *p, const float *scale, const int h,
                            __m256 w[2])
{
    if (type <= DTYPE_Q8_0) {
        const int bytes = BLOCK_BYTES(type) - BLOCK_HEAD(type);
        UNROLLED
        for (int i = 0; i < 2; i++) {
            w[i] = block_eight(type, p + BLOCK_HEAD(type) + (2 * i + h) * bytes / 4);
            if (type == DTYPE_Q8_0)
                w[i] = _mm256_mul_ps(_mm256_broadcast_ss(scale), w[i]);
        }
        return;
    }
    const bytes16 q = _mm_loadl_epi64((const __m128i *)(p + BLOCK_CODES(type) + 8 * h));
    const __m256 d = _mm256_broadcast_ss(scale);
    __m256i n[2];
    block_eight_nibbles(type, q, HIGH_BITS(type) ? load_u32(p + BLOCK_HEAD(type)) : 0, h, n);
    UNROLLED
    for (int i = 0; i < 2; i++) {
        w[i] = _mm256_cvtepi32_ps(n[i]);
        w[i] = HAS_MINIMUM(type) ? _mm256_fmadd_ps(d, w[i], _mm256_broadcast_ss(scale + 1))
                                 : _mm256_mul_ps(d, w[i]);
    }
}

/* The same of block j of the BLOCKS_TOGETHER ones at p. */
INLINE void row_load_half(const int type, const uint8_t *p, const int j, const float *scale,
                          const int h, __m256 w[2])
{
    if (!SUPER_TYPE(type)) {
        block_load_half(type, p, scale, h, w);
        return;
    }
    UNROLLED
    for (int i = 0; i < 2; i++) {
        bytes16 q = super_codes(type, p, j, i);
        w[i] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(h ? _mm_srli_si128(q, 8) : q));
        const __m256 d = _mm256_broadcast_ss(scale + SUPER_SCALE(type, j, i));
        w[i] =
            HAS_MINIMUM(type)
                ? _mm256_fmadd_ps(d, w[i], _mm256_broadcast_ss(scale + SUPER_MINIMUM(type, j, i)))
                : _mm256_mul_ps(d, w[i]);
    }
}

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

/* Half h of `rows` rows' sums += `run` blocks from `w` times those of x; scale[r]: row r's. */
INLINE void rows_half(const int type, const uint8_t *w, int64_t stride, const int rows,
                      const float (*scale)[RUN_SCALES], const int run, const float *x, int64_t ldx,
                      const int tokens, const int h, const int ahead, row_sums *sum)
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
                if (ahead && h == 0)
                    __builtin_prefetch(p + j * DTYPE_BYTES(type) / together + ahead);
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
                     const int run, const float *x, int64_t ldx, const int tokens, const int ahead,
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

/* y[t * ldy + r] = row r . token t for r < count, up to ROWS_TOGETHER, and t < tokens, with `rows`
 * of them in registers. Otherwise as rows_dot(). */
INLINE void rows_together(const int type, const uint8_t *w, int64_t stride, const int rows,
                          int count, const float *x, int64_t ldx, const int tokens, const int k,
                          const int ahead, float *y, int64_t ldy)
{
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
            rows_run(type, from + r * stride, stride, rows, run, x + b * BLOCK, ldx, tokens, ahead,
                     sum + r);
        for (; rows > 1 && r < count; r++)
            rows_run(type, from + r * stride, stride, 1, run, x + b * BLOCK, ldx, tokens, ahead,
                     sum + r);
    }
    for (int r = 0; r < count; r++) {
        UNROLLED
        for (int t = 0; t < tokens; t++)
            y[t * ldy + r] = vf_fold((vf){sum[r][0][t], sum[r][1][t]});
    }
}

/* y[t * ldy + r] = row r . token t for r < rows, t < tokens, as rows.h has it elsewhere. */
INLINE void rows_dot(const int type, const uint8_t *w, int64_t stride, const int rows,
                     const float *x, int64_t ldx, const int tokens, const int k, const int ahead,
                     float *y, int64_t ldy)
{
    rows_together(type, w, stride, rows, rows, x, ldx, tokens, k, ahead, y, ldy);
}

#endif
