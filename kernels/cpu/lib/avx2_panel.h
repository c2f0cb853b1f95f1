/* SPDX-License-Identifier: Apache-2.0 */
/* avx2_panel.h - panels of 16 rows times activations in digits, on AVX2. Included by panel.h.
 *
 * vpmaddubsw multiplies 32 unsigned bytes with signed ones and adds the products of neighbours, in
 * 16 bits: 4 k of 8 rows and a broadcast dword of x. A nibble is at most 15 and a digit 128 in
 * size, so the sums of a block's eight dwords, 8 x 2 x 15 x 128 = 30720, still fit 16 bits, and
 * only then become integers of 32. For a digit a block of 8 rows costs 8 products, 7 additions and
 * one more product. Codes of 5 and 6 bits, at most 31 and 63, leave room for four dwords and two.
 * Bytes of Q8_0 and of IQ4_NL's table would not fit: they have no panels here.
 *
 * Sums of a block are exact integers; the rest is panel.h's arithmetic in the same order.
 */
#ifndef WHET_KERNELS_CPU_LIB_AVX2_PANEL_H
#define WHET_KERNELS_CPU_LIB_AVX2_PANEL_H

/* Bits of codes, `bits` of each at p, that are to lie from bit `to` on: the eighth vector i of
 * them. */
INLINE __m256i panel_bits(const uint8_t *p, const int bits, const int to, const int i)
{
    const int step = 8 / bits, left = to - i % step * bits;
    __m256i v = _mm256_load_si256((const __m256i *)(p + i / step * 64));
    v = left >= 0 ? _mm256_slli_epi16(v, left) : _mm256_srli_epi16(v, -left);
    return _mm256_and_si256(v, _mm256_set1_epi8((char)(((1 << bits) - 1) << to)));
}

/* Nibbles of a TABLE_TYPE become the codes that they stand for. */
INLINE void panel_look_up(const int type, __m256i w[8])
{
    __m128i table = _mm_loadu_si128((const __m128i *)CODE_TABLE(type));
    table = _mm_add_epi8(table, _mm_set1_epi8((char)MIDDLE_CODE(type)));
    UNROLLED
    for (int j = 0; j < 8; j++)
        w[j] = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), w[j]);
}

/* Codes of rows 8 s .. 8 s + 7 of block b: register j has their k = 4 j .. 4 j + 3. */
INLINE void panel_load8(const int type, const uint8_t *panel, int b, const int s, __m256i w[8])
{
    const uint8_t *p = panel + (int64_t)b * PANEL_QUANTS(type) + 32 * s;
    const __m256i low = _mm256_set1_epi8(15);
    UNROLLED
    for (int i = 0; i < 8; i++) {
        if (LOW_BITS(type) == 2) {
            w[i] = panel_bits(p, 2, 0, i);
        } else {
            w[i] = _mm256_load_si256((const __m256i *)(p + 64 * (i % 4)));
            w[i] = _mm256_and_si256(i < 4 ? w[i] : _mm256_srli_epi16(w[i], 4), low);
        }
        if (HIGH_BITS(type))
            w[i] = _mm256_or_si256(
                w[i], panel_bits(p + 64 * LOW_BITS(type), HIGH_BITS(type), LOW_BITS(type), i));
    }
    if (TABLE_TYPE(type))
        panel_look_up(type, w);
}

/* The sums of n products of four, which fit 16 bits. */
INLINE __m256i panel_fours(const __m256i *w, const int32_t *x, const int n)
{
    __m256i pairs = _mm256_maddubs_epi16(w[0], _mm256_set1_epi32(x[0]));
    UNROLLED
    for (int j = 1; j < n; j++)
        pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w[j], _mm256_set1_epi32(x[j])));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

/* Lane i is the sum over half h of a block, or all of it, of the codes of row i, less the middle
 * one, times a digit, whose own sum is `total`. */
INLINE __m256i panel_sum(const int type, const __m256i w[8], const int h, const int8_t *digit,
                         int32_t total)
{
    const int n = 8 / HALVES(type), room = CODE_BITS(type) > 4 ? 8 >> (CODE_BITS(type) - 4) : 8;
    const int fit = room < n ? room : n;
    const int32_t *x = (const int32_t *)digit + h * n;
    __m256i sum = panel_fours(w + h * n, x, fit);
    UNROLLED
    for (int i = fit; i < n; i += fit)
        sum = _mm256_add_epi32(sum, panel_fours(w + h * n + i, x + i, fit));
    const __m256i middle = _mm256_slli_epi32(_mm256_set1_epi32(total), CODE_BITS(type) - 1);
    return _mm256_sub_epi32(sum, middle);
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

/* MXFP4_SCALE() of 8 exponents, as on AVX-512. */
INLINE __m256 panel_exponents(const uint8_t *p)
{
    const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    const __m256i one = _mm256_set1_epi32(1);
    __m256i bits = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
    __m256i least = _mm256_slli_epi32(_mm256_add_epi32(_mm256_min_epi32(e, one), one), 21);
    return _mm256_castsi256_ps(_mm256_max_epi32(bits, least));
}

INLINE __m256 panel_bytes8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

/* For rows 8 s .. of block b: its scale, or those of its halves, and what its weights have in the
 * middle of their codes. */
INLINE void panel_scales8(const int type, const uint8_t *panel, int blocks, int b, const int s,
                          __m256 scale[2], __m256 middle[2])
{
    const uint8_t *head = panel_head(type, panel, blocks, b) + 8 * PANEL_NUMBER(type) * s;
    const __m256 d = type == DTYPE_MXFP4 ? panel_exponents(head) : panel_halves(head);
    const __m256 centre = _mm256_set1_ps(MIDDLE_CODE(type));
    const __m256 m = HAS_MINIMUM(type) ? panel_halves(head + 2 * PANEL) : d;
    scale[0] = scale[1] = d;
    middle[0] = middle[1] = _mm256_fmadd_ps(d, centre, m);
    if (!SUPER_TYPE(type))
        return;
    const uint8_t *factor = panel_factors(type, panel, blocks, b) + 8 * s;
    const int halves = HALVES(type);
    UNROLLED
    for (int h = 0; h < halves; h++, factor += PANEL) {
        scale[h] = _mm256_mul_ps(d, panel_bytes8(factor));
        if (HAS_MINIMUM(type))
            middle[h] = _mm256_fmsub_ps(scale[h], centre,
                                        _mm256_mul_ps(m, panel_bytes8(factor + halves * PANEL)));
    }
}

/* Half h of block b, or all of it, times token x, on top of v. */
INLINE __m256 panel_half(const int type, const int d, const __m256i w[8], const int h, int b,
                         const struct digits *x, __m256 scale, __m256 v)
{
    __m256i sum[4];
    UNROLLED
    for (int j = 0; j < d; j++) {
        NO_SOONER();
        sum[j] = panel_sum(type, w, h, x->digit + (b * d + j) * BLOCK,
                           digits_share(type, x->total, b * d + j, h));
    }
    __m256 unit = _mm256_mul_ps(scale, _mm256_set1_ps(x->unit[b]));
    v = _mm256_fmadd_ps(panel_join(d, sum), unit, v);
    if (DIGITS_FINE(d) && x->deep[b]) {
        __m256i fine =
            panel_sum(type, w, h, x->fine + b * BLOCK, digits_share(type, x->fine_total, b, h));
        unit = _mm256_mul_ps(unit, _mm256_set1_ps(1.0f / 256));
        v = _mm256_fmadd_ps(_mm256_cvtepi32_ps(fine), unit, v);
    }
    return v;
}

/* acc[t] += block b of the panel . token t, without the tokens' own scale 2^row. */
INLINE void panel_block(const int type, const int d, const uint8_t *panel, int blocks, int b,
                        const struct digits *x, const int tokens, vf *acc)
{
    const int halves = HALVES(type);
    UNROLLED
    for (int s = 0; s < 2; s++) {
        __m256i w[8];
        __m256 scale[2], middle[2];
        NO_SOONER();
        panel_load8(type, panel, b, s, w);
        panel_scales8(type, panel, blocks, b, s, scale, middle);
        UNROLLED
        for (int t = 0; t < tokens; t++) {
            __m256 v = s ? acc[t].b : acc[t].a;
            UNROLLED
            for (int h = 0; h < halves; h++) {
                v = panel_half(type, d, w, h, b, x + t, scale[h], v);
                if (HAS_MINIMUM(type))
                    v = _mm256_fmadd_ps(middle[h], _mm256_set1_ps(digits_sum(type, x + t, b, h)),
                                        v);
            }
            if (s)
                acc[t].b = v;
            else
                acc[t].a = v;
        }
    }
}

#endif
