/* SPDX-License-Identifier: Apache-2.0 */
/* avx512_panel.h - panels of 16 rows on AVX-512, and with VNNI their products with activations in
 * digits. Included by panel.h.
 *
 * A row is a lane. vpdpbusd multiplies unsigned bytes, which codes of weights are as they are
 * stored, with signed ones, the digits; what is to be taken from each code goes into what a sum
 * starts with, times the sum of the digits.
 */
#ifndef WHET_KERNELS_CPU_LIB_AVX512_PANEL_H
#define WHET_KERNELS_CPU_LIB_AVX512_PANEL_H

/* ---- reading ------------------------------------------------------------------------------- */

/* Bits of codes, `bits` of each at p, that are to lie from bit `to` on: the eighth vector i of
 * them. */
INLINE __m512i panel_bits(const uint8_t *p, const int bits, const int to, const int i)
{
    const int step = 8 / bits, left = to - i % step * bits;
    __m512i v = _mm512_load_si512(p + i / step * 64);
    v = left >= 0 ? _mm512_slli_epi16(v, left) : _mm512_srli_epi16(v, -left);
    return _mm512_and_si512(v, _mm512_set1_epi8((char)(((1 << bits) - 1) << to)));
}

/* Nibbles of a TABLE_TYPE become the codes that they stand for. */
INLINE void panel_look_up(const int type, __m512i w[8])
{
    __m128i table = _mm_loadu_si128((const __m128i *)CODE_TABLE(type));
    table = _mm_add_epi8(table, _mm_set1_epi8((char)MIDDLE_CODE(type)));
    UNROLLED
    for (int j = 0; j < 8; j++)
        w[j] = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), w[j]);
}

/* The codes of a block at p as 8 vectors of bytes, 4 consecutive k of each row: signed ones of
 * Q8_0. */
INLINE void panel_quads(const int type, const uint8_t *p, __m512i w[8])
{
    const __m512i low = _mm512_set1_epi8(15);
    UNROLLED
    for (int i = 0; i < 8; i++) {
        if (LOW_BITS(type) == 2) {
            w[i] = panel_bits(p, 2, 0, i);
        } else {
            w[i] = _mm512_load_si512(p + 64 * (i % LOW_BITS(type)));
            if (LOW_BITS(type) == 4)
                w[i] = _mm512_and_si512(i < 4 ? w[i] : _mm512_srli_epi16(w[i], 4), low);
        }
        if (HIGH_BITS(type))
            w[i] = _mm512_or_si512(
                w[i], panel_bits(p + 64 * LOW_BITS(type), HIGH_BITS(type), LOW_BITS(type), i));
    }
    if (TABLE_TYPE(type))
        panel_look_up(type, w);
}

/* 16 halves, exponents and bytes of a block's factors as floats. */
INLINE __m512 panel_halves(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)p));
}

INLINE __m512 panel_exponents(const uint8_t *p)
{
    return exponent_floats(_mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)p)));
}

INLINE __m512 panel_bytes16(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128((const __m128i *)p)));
}

/* The scale of block b, or those of its halves, and their minima, which are 0 if there are none. */
INLINE void panel_scales(const int type, const uint8_t *panel, int blocks, int b, __m512 scale[2],
                         __m512 minimum[2])
{
    const uint8_t *head = panel_head(type, panel, blocks, b);
    const __m512 d = type == DTYPE_MXFP4 ? panel_exponents(head) : panel_halves(head);
    const __m512 none = _mm512_setzero_ps();
    const __m512 m = HAS_MINIMUM(type) ? panel_halves(head + 2 * PANEL) : none;
    scale[0] = scale[1] = d;
    minimum[0] = minimum[1] = m;
    if (!SUPER_TYPE(type))
        return;
    const uint8_t *factor = panel_factors(type, panel, blocks, b);
    const int halves = HALVES(type);
    UNROLLED
    for (int h = 0; h < halves; h++, factor += PANEL) {
        scale[h] = _mm512_mul_ps(d, panel_bytes16(factor));
        if (HAS_MINIMUM(type))
            minimum[h] = _mm512_fnmadd_ps(m, panel_bytes16(factor + halves * PANEL), none);
    }
}

#if ISA >= ISA_VNNI

/* ---- products ------------------------------------------------------------------------------ */

/* Unsigned bytes: those of Q8_0 are q + 128. */
INLINE void panel_load(const int type, const uint8_t *panel, int b, __m512i w[8])
{
    panel_quads(type, panel + (int64_t)b * PANEL_QUANTS(type), w);
    UNROLLED
    for (int j = 0; type == DTYPE_Q8_0 && j < 8; j++)
        w[j] = _mm512_xor_si512(w[j], _mm512_set1_epi8(-128));
}

/* What to start a digit's sum with, to take out the offset that panel_load() leaves in q. */
INLINE __m512i panel_start(const int type, int32_t total)
{
    return _mm512_set1_epi32(total * (type == DTYPE_Q8_0 ? -128 : -MIDDLE_CODE(type)));
}

/* The sum of half h of a block, or all of it, times one digit, whose own sum is `total`. */
INLINE __m512i panel_sum(const int type, const __m512i w[8], const int h, const int8_t *digit,
                         int32_t total)
{
    const int n = 8 / HALVES(type);
    __m512i sum = panel_start(type, total);
    UNROLLED
    for (int i = h * n; i < h * n + n; i++)
        sum = _mm512_dpbusd_epi32(sum, w[i], _mm512_set1_epi32(((const int32_t *)digit)[i]));
    return sum;
}

/* sum over digits of s[j] * 256^(d-1-j), as float */
INLINE __m512 panel_join(const int d, const __m512i *s)
{
    if (d == 1)
        return _mm512_cvtepi32_ps(s[0]);
    __m512 high = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(s[0], 8), s[1]));
    if (d == 2)
        return high;
    if (d == 3)
        return _mm512_fmadd_ps(high, _mm512_set1_ps(256.0f), _mm512_cvtepi32_ps(s[2]));
    __m512i low = _mm512_add_epi32(_mm512_slli_epi32(s[2], 8), s[3]);
    return _mm512_fmadd_ps(high, _mm512_set1_ps(65536.0f), _mm512_cvtepi32_ps(low));
}

/* acc[t] += block b of the panel . token t, without the tokens' own scale 2^row. */
INLINE void panel_block(const int type, const int d, const uint8_t *panel, int blocks, int b,
                        const struct digits *x, const int tokens, vf *acc)
{
    const int halves = HALVES(type);
    __m512i w[8];
    __m512 scale[2], middle[2];
    panel_load(type, panel, b, w);
    panel_scales(type, panel, blocks, b, scale, middle);
    UNROLLED
    for (int h = 0; h < halves; h++)
        middle[h] = _mm512_fmadd_ps(scale[h], _mm512_set1_ps(MIDDLE_CODE(type)), middle[h]);
    UNROLLED
    for (int t = 0; t < tokens; t++) {
        UNROLLED
        for (int h = 0; h < halves; h++) {
            __m512i sum[4];
            UNROLLED
            for (int j = 0; j < d; j++)
                sum[j] = panel_sum(type, w, h, x[t].digit + (b * d + j) * BLOCK,
                                   digits_share(type, x[t].total, b * d + j, h));
            __m512 unit = _mm512_mul_ps(scale[h], _mm512_set1_ps(x[t].unit[b]));
            acc[t] = _mm512_fmadd_ps(panel_join(d, sum), unit, acc[t]);
            if (DIGITS_FINE(d) && x[t].deep[b]) {
                sum[0] = panel_sum(type, w, h, x[t].fine + b * BLOCK,
                                   digits_share(type, x[t].fine_total, b, h));
                unit = _mm512_mul_ps(unit, _mm512_set1_ps(1.0f / 256));
                acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[0]), unit, acc[t]);
            }
            if (HAS_MINIMUM(type))
                acc[t] = _mm512_fmadd_ps(middle[h], _mm512_set1_ps(digits_sum(type, x + t, b, h)),
                                         acc[t]);
        }
    }
}

#endif

#endif
