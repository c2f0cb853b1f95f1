/* SPDX-License-Identifier: Apache-2.0 */
/* avx2_panel.h - panels of 16 rows times activations in digits, on AVX2. Included by panel.h.
 *
 * The packed form is panel.h's. vpmaddubsw multiplies 32 unsigned bytes with signed ones and adds
 * the products of neighbours, in 16 bits: 4 k of 8 rows and a broadcast dword of x. A nibble is at
 * most 15 and a digit 128 in size, so the sums of a block's eight dwords, 8 x 2 x 15 x 128 = 30720,
 * still fit 16 bits, and only then become integers of 32. For a digit a block of 8 rows costs 8
 * products, 7 additions and one more product. Bytes of Q8_0 would not fit: they have no panels
 * here.
 *
 * Sums of a block are exact integers; the rest is panel.h's arithmetic in the same order.
 */
#ifndef WHET_KERNELS_CPU_LIB_AVX2_PANEL_H
#define WHET_KERNELS_CPU_LIB_AVX2_PANEL_H

/* Nibbles of rows 8 h .. 8 h + 7 of block b: register j has their k = 4 j .. 4 j + 3. */
INLINE void panel_load8(const int type, const uint8_t *panel, int b, const int h, __m256i w[8])
{
    const uint8_t *p = panel + (int64_t)b * PANEL_QUANTS(type) + 32 * h;
    const __m256i low = _mm256_set1_epi8(15);
    UNROLLED
    for (int j = 0; j < 4; j++) {
        __m256i q = _mm256_load_si256((const __m256i *)(p + 64 * j));
        w[j] = _mm256_and_si256(q, low);
        w[j + 4] = _mm256_and_si256(_mm256_srli_epi16(q, 4), low);
    }
}

/* Lane i is the sum over the block of (q - 8) of row i times a digit, whose own sum is `total`. */
INLINE __m256i panel_sum(const __m256i w[8], const int8_t *digit, int32_t total)
{
    const int32_t *x = (const int32_t *)digit;
    __m256i pairs = _mm256_maddubs_epi16(w[0], _mm256_set1_epi32(x[0]));
    UNROLLED
    for (int j = 1; j < 8; j++)
        pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w[j], _mm256_set1_epi32(x[j])));
    __m256i sum = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    return _mm256_sub_epi32(sum, _mm256_slli_epi32(_mm256_set1_epi32(total), 3));
}

/* sum over digits of s[j] * 256^(d-1-j), as float */
INLINE __m256 panel_join(const int d, const __m256i *s)
{
    if (d == 1)
        return _mm256_cvtepi32_ps(s[0]);
    __m256 high = _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_slli_epi32(s[0], 8), s[1]));
    if (d == 2)
        return high;
    if (d == 3)
        return _mm256_fmadd_ps(high, _mm256_set1_ps(256.0f), _mm256_cvtepi32_ps(s[2]));
    __m256i low = _mm256_add_epi32(_mm256_slli_epi32(s[2], 8), s[3]);
    return _mm256_fmadd_ps(high, _mm256_set1_ps(65536.0f), _mm256_cvtepi32_ps(low));
}

INLINE __m256 panel_halves(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)p));
}

/* acc[t] += block b of the panel . token t, without the tokens' own scale 2^row. */
INLINE void panel_block(const int type, const int d, const uint8_t *panel, int blocks, int b,
                        const struct digits *x, const int tokens, vf *acc)
{
    const uint8_t *s = panel + (int64_t)blocks * PANEL_QUANTS(type) + b * PANEL_SCALES(type);
    UNROLLED
    for (int h = 0; h < 2; h++) {
        __m256i w[8];
        NO_SOONER();
        panel_load8(type, panel, b, h, w);
        __m256 scale = panel_halves(s + 16 * h), middle = scale;
        if (type == DTYPE_Q4_1)
            middle = _mm256_fmadd_ps(scale, _mm256_set1_ps(8.0f), panel_halves(s + 32 + 16 * h));
        UNROLLED
        for (int t = 0; t < tokens; t++) {
            __m256i sum[4];
            UNROLLED
            for (int j = 0; j < d; j++) {
                NO_SOONER();
                sum[j] = panel_sum(w, x[t].digit + (b * d + j) * BLOCK, x[t].total[b * d + j]);
            }
            __m256 unit = _mm256_mul_ps(scale, _mm256_set1_ps(x[t].unit[b]));
            __m256 v = h ? acc[t].b : acc[t].a;
            v = _mm256_fmadd_ps(panel_join(d, sum), unit, v);
            if (DIGITS_FINE(d) && x[t].deep[b]) {
                __m256i fine = panel_sum(w, x[t].fine + b * BLOCK, x[t].fine_total[b]);
                unit = _mm256_mul_ps(unit, _mm256_set1_ps(1.0f / 256));
                v = _mm256_fmadd_ps(_mm256_cvtepi32_ps(fine), unit, v);
            }
            if (type == DTYPE_Q4_1)
                v = _mm256_fmadd_ps(middle, _mm256_set1_ps(x[t].sum[b]), v);
            if (h)
                acc[t].b = v;
            else
                acc[t].a = v;
        }
    }
}

#endif
