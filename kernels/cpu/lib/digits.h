/* SPDX-License-Identifier: Apache-2.0 */
/* digits.h - activations as integers: 8-bit digits of a fixed-point number per block of 32.
 *
 * Integer dot products are many times faster than floating-point ones (64 multiply-adds an
 * instruction on AVX-512 VNNI, 16384 on AMX, 32 on AVX2) and exact. A row x is written as
 *
 *   x[i] ~ 2^row * unit[b] * X[i],   X[i] = sum_d digit[d][i] * 256^(D-1-d),   b = i / 32
 *
 * with signed digits, unit[b] a power of two chosen so that the largest |X| of the block fills
 * the D digits, and 2^row bringing the row's largest value near 1 so that tiny rows keep their
 * precision. D = 4 keeps 30 bits below the largest value of each block: as good as float sums. D =
 * 3 keeps 22, as good but in a block with an outlier, where the others lose what float would keep:
 * with DIGITS_FINE such a block has a fourth digit, fine[i], of X[i] + fine[i] / 256. Without it
 * fewer than 4 digits are lower precisions, legal only under the `reduced` policy.
 * All scales are powers of two, so integer inputs give exact results.
 */
#ifndef WHET_KERNELS_CPU_LIB_DIGITS_H
#define WHET_KERNELS_CPU_LIB_DIGITS_H

#include "cpu/lib/shape.h"
#include "cpu/lib/super.h"

#define DIGITS_FINE(d) ((d) == 3 && (ISA == ISA_VNNI || ISA == ISA_AVX2))

/* Sums that are kept of a block's digits: of all, and of its first half where some weights have
 * scales of halves. */
#define TOTALS (HALVES(WTYPE) == 2 || HALVES(WTYPE_2) == 2 || HALVES(WTYPE_3) == 2 ? 2 : 1)
/* The same of a block's values: of its halves where some weights have minima of halves. */
#define MINIMA(t) (HAS_MINIMUM(t) && HALVES(t) == 2)
#define SUMS (MINIMA(WTYPE) || MINIMA(WTYPE_2) || MINIMA(WTYPE_3) ? 2 : 1)

/* A value is an outlier if it is more than `times` the mean size of the others of its row of k,
 * which is this share of the sum of all sizes. Not the row's root mean square, which is the
 * outliers' own: with three of one size no value is more than sqrt(k / 3) times that. */
#define DIGITS_OUTLIER(k, times) ((float)(times) / ((k)-1 + (times)))

/* Few tokens are compared with 16 float sums, which err a third as much as the one of wide tiles.
 */
enum { FEW_OUTLIER = 10 };

/* One token's row of k values in digits. Arrays are views into scratch, see digits_bytes(). */
struct digits {
    int8_t *digit; /* [k/32, D, 32], most significant first */
    float *unit;   /* [k/32] */
    float *sum;    /* [k/32, SUMS] unit * sum of X over the block, or over each half */
    int32_t
        *total;   /* [k/32, D, TOTALS] sum of each digit over the block, and over its first half */
    float *scale; /* [2] whose product is 2^row */
    /* DIGITS_FINE: [k/32] whether the block has fourth digits, [k/32, 32] those, and
     * [k/32, TOTALS] their sums */
    int32_t *deep;
    int8_t *fine;
    int32_t *fine_total;
};

#define DIGITS_ROW_BYTES(k, d) \
    ((int64_t)(k) / BLOCK *    \
     ((d) * (BLOCK + 4 * TOTALS) + 4 + 4 * SUMS + (DIGITS_FINE(d) ? BLOCK + 4 + 4 * TOTALS : 0)))

/* Bytes of scratch for m rows, a multiple of 64. */
INLINE int64_t digits_bytes(int k, const int d, int m)
{
    return (m * (DIGITS_ROW_BYTES(k, d) + 64) + 63) & ~(int64_t)63;
}

/* Row t of the digits in scratch `at`. Its scale is kept behind the other arrays. */
INLINE struct digits digits_row(void *at, int k, const int d, int t)
{
    int blocks = k / BLOCK;
    uint8_t *p = (uint8_t *)at + t * (DIGITS_ROW_BYTES(k, d) + 64);
    struct digits g;
    g.digit = (int8_t *)p;
    g.unit = (float *)(p + blocks * d * BLOCK);
    g.sum = g.unit + blocks;
    g.total = (int32_t *)(g.sum + blocks * SUMS);
    g.deep = g.total + blocks * d * TOTALS;
    g.fine_total = g.deep + (DIGITS_FINE(d) ? blocks : 0);
    g.fine = (int8_t *)(g.fine_total + (DIGITS_FINE(d) ? blocks * TOTALS : 0));
    g.scale = (float *)(g.fine + (DIGITS_FINE(d) ? blocks * BLOCK : 0));
    return g;
}

/* 2^e, for e in [-126, 127]. */
INLINE float pow2(int e)
{
    return bits_float((uint32_t)(e + 127) << 23);
}

/* floor(log2 |f|) of a positive finite float, or -149 .. -127 for subnormals. */
INLINE int exponent_of(float f)
{
    int e = (int)(float_bits(f) >> 23 & 255) - 127;
    return e > -127 ? e : (int)(float_bits(f * 0x1p64f) >> 23 & 255) - 127 - 64;
}

/* max |x| over n floats, n a multiple of 16. */
INLINE float largest(const float *x, int n)
{
#if ISA >= ISA_NEON
    vf m = vf_zero();
    for (int i = 0; i < n; i += LANES) {
        vf v = vf_load(x + i);
        for (int p = 0; p < 4; p++)
            m.p[p] = vmaxq_f32(m.p[p], vabsq_f32(v.p[p]));
    }
    return vf_largest(m);
#elif ISA >= ISA_AVX512
    __m512 m = _mm512_setzero_ps();
    for (int i = 0; i < n; i += LANES)
        m = _mm512_max_ps(m, _mm512_abs_ps(_mm512_loadu_ps(x + i)));
    return _mm512_reduce_max_ps(m);
#elif ISA == ISA_AVX2
    vf m = vf_zero();
    for (int i = 0; i < n; i += LANES) {
        vf v = vf_load(x + i);
        m = vf_max(m, vf_max(v, vf_sub(vf_zero(), v)));
    }
    return vf_largest(m);
#else
    float m[LANES] = {0};
    for (int i = 0; i < n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float a = __builtin_fabsf(x[i + l]);
            m[l] = a > m[l] ? a : m[l];
        }
    for (int l = 1; l < LANES; l++)
        m[0] = m[l] > m[0] ? m[l] : m[0];
    return m[0];
#endif
}

/* q[i] = x[i] * up rounded to nearest even, 32 values. */
INLINE void digits_round(int32_t *q, const float *x, float up)
{
#if ISA >= ISA_NEON
    for (int i = 0; i < BLOCK; i += 4)
        vst1q_s32(q + i, vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i), up)));
#elif ISA >= ISA_AVX512
    for (int i = 0; i < BLOCK; i += LANES) {
        __m512 v = _mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(up));
        _mm512_storeu_si512(q + i, _mm512_cvtps_epi32(v));
    }
#else
    for (int i = 0; i < BLOCK; i++)
        q[i] = (int32_t)__builtin_rintf(x[i] * up);
#endif
}

/* The digits of block b of g, X = x * up rounded to nearest even, and their sums; returns the sum
 * of X, or with `deep`, for which the block gets fourth digits, 256 times that. */
#if ISA >= ISA_VNNI && ISA < ISA_NEON

INLINE int64_t digits_split(struct digits *g, const int d, int b, const float *x, float up,
                            int deep)
{
    /* X + 0x80808080 has bytes that are the digits + 128. Byte 3 of the 4 numbers in 128 bits, then
     * byte 2, 1 and 0; then those of all 32 numbers. */
    const __m512i bytes =
        _mm512_broadcast_i32x4(_mm_setr_epi8(3, 7, 11, 15, 2, 6, 10, 14, 1, 5, 9, 13, 0, 4, 8, 12));
    const __m512i high =
        _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    const __m512i offset = _mm512_set1_epi8(-128);
    const __m128i left = _mm_cvtsi32_si128(32 - 8 * d - (deep ? 8 : 0));
    __m512i q[2];
    up = deep ? up * 256 : up;
    UNROLLED
    for (int h = 0; h < 2; h++) {
        q[h] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * h), _mm512_set1_ps(up)));
        q[h] = _mm512_add_epi32(_mm512_sll_epi32(q[h], left), offset);
        q[h] = _mm512_shuffle_epi8(q[h], bytes);
    }
    int64_t sum = 0;
    UNROLLED
    for (int j = 0; j < d; j += 2) { /* two digits */
        __m512i pair =
            _mm512_permutex2var_epi32(q[0], _mm512_add_epi32(high, _mm512_set1_epi32(j)), q[1]);
        pair = _mm512_xor_si512(pair, offset);
        int8_t *to = g->digit + (b * d + j) * BLOCK;
        __m512i t = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), pair);
        t = _mm512_add_epi32(t, _mm512_shuffle_i32x4(t, t, 0xb1));
        t = _mm512_add_epi32(t, _mm512_shuffle_epi32(t, 0x4e));
        t = _mm512_add_epi32(t, _mm512_shuffle_epi32(t, 0xb1));
        _mm256_storeu_si256((__m256i *)to, _mm512_castsi512_si256(pair));
        int32_t *total = g->total + (b * d + j) * TOTALS;
        total[0] = _mm_cvtsi128_si32(_mm512_castsi512_si128(t));
        sum = sum * 256 + total[0];
        __m256i other = _mm512_extracti64x4_epi64(pair, 1);
        int32_t others = _mm_cvtsi128_si32(_mm512_extracti32x4_epi32(t, 2));
        if (j + 1 < d) {
            _mm256_storeu_si256((__m256i *)(to + BLOCK), other);
            total[TOTALS] = others;
            sum = sum * 256 + others;
        } else if (DIGITS_FINE(d)) {
            _mm256_storeu_si256((__m256i *)(g->fine + b * BLOCK), other);
            g->fine_total[b * TOTALS] = others;
            g->deep[b] = deep;
            sum = deep ? sum * 256 + others : sum;
        }
    }
    return sum;
}

#elif ISA == ISA_AVX2

/* The sum of 32 signed bytes. */
INLINE int32_t digits_total(__m256i digit)
{
    __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), digit);
    __m256i t = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(t), _mm256_extracti128_si256(t, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

/* byte[j] = digit j of all 32 numbers, of which q[h] has 8. */
INLINE void digits_bytes_of(const __m256i q[4], __m256i byte[4])
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i low[2], high[2];
    UNROLLED
    for (int h = 0; h < 2; h++) { /* digits 0 and 1, digits 2 and 3, of eight numbers in a lane */
        low[h] = _mm256_unpacklo_epi32(q[2 * h], q[2 * h + 1]);
        high[h] = _mm256_unpackhi_epi32(q[2 * h], q[2 * h + 1]);
    }
    byte[0] = _mm256_permutevar8x32_epi32(_mm256_unpacklo_epi64(low[0], low[1]), order);
    byte[1] = _mm256_permutevar8x32_epi32(_mm256_unpackhi_epi64(low[0], low[1]), order);
    byte[2] = _mm256_permutevar8x32_epi32(_mm256_unpacklo_epi64(high[0], high[1]), order);
    byte[3] = _mm256_permutevar8x32_epi32(_mm256_unpackhi_epi64(high[0], high[1]), order);
}

/* As on AVX-512. */
INLINE int64_t digits_split(struct digits *g, const int d, int b, const float *x, float up,
                            int deep)
{
    const __m256i bytes = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(3, 7, 11, 15, 2, 6, 10, 14, 1, 5, 9, 13, 0, 4, 8, 12));
    const __m256i offset = _mm256_set1_epi8(-128);
    const __m128i left = _mm_cvtsi32_si128(32 - 8 * d - (deep ? 8 : 0));
    __m256i q[4], byte[4];
    int64_t sum = 0;
    up = deep ? up * 256 : up;
    UNROLLED
    for (int h = 0; h < 4; h++) {
        q[h] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * h), _mm256_set1_ps(up)));
        q[h] = _mm256_add_epi32(_mm256_sll_epi32(q[h], left), offset);
        q[h] = _mm256_shuffle_epi8(q[h], bytes);
    }
    digits_bytes_of(q, byte);
    UNROLLED
    for (int j = 0; j < d; j++) {
        __m256i digit = _mm256_xor_si256(byte[j], offset);
        _mm256_storeu_si256((__m256i *)(g->digit + (b * d + j) * BLOCK), digit);
        int32_t total = digits_total(digit);
        g->total[(b * d + j) * TOTALS] = total;
        sum = sum * 256 + total;
    }
    if (DIGITS_FINE(d)) {
        __m256i digit = _mm256_xor_si256(byte[d & 3], offset);
        _mm256_storeu_si256((__m256i *)(g->fine + b * BLOCK), digit);
        g->fine_total[b * TOTALS] = digits_total(digit);
        g->deep[b] = deep;
        sum = deep ? sum * 256 + g->fine_total[b * TOTALS] : sum;
    }
    return sum;
}

#else

INLINE int64_t digits_split(struct digits *g, const int d, int b, const float *x, float up,
                            int deep)
{
    int32_t q[BLOCK];
    int64_t sum = 0;
    (void)deep;
    digits_round(q, x, up);
    for (int j = d - 1; j >= 0; j--) {
        int8_t *out = g->digit + (b * d + j) * BLOCK;
        int32_t total = 0;
        for (int i = 0; i < BLOCK; i++) {
            int32_t low = (int8_t)q[i];
            out[i] = (int8_t)low;
            total += low;
            q[i] = (q[i] - low) >> 8;
        }
        g->total[(b * d + j) * TOTALS] = total;
        sum += (int64_t)total * (1 << 8 * (d - 1 - j));
    }
    return sum;
}

#endif

/* The sum of 16 digits. */
INLINE int32_t digits_sum16(const int8_t *digit)
{
#if ISA >= ISA_NEON
    return vaddlvq_s8(vld1q_s8(digit));
#elif ISA >= ISA_AVX2
    __m128i v = _mm_xor_si128(_mm_loadu_si128((const __m128i *)digit), _mm_set1_epi8(-128));
    v = _mm_sad_epu8(v, _mm_setzero_si128()); /* of 8 digits + 128 each */
    return _mm_cvtsi128_si32(v) + _mm_extract_epi16(v, 4) - 16 * 128;
#else
    int32_t sum = 0;
    for (int i = 0; i < BLOCK / 2; i++)
        sum += digit[i];
    return sum;
#endif
}

/* The sums of first halves of block b. */
INLINE void digits_halves(struct digits *g, const int d, int b)
{
    for (int j = 0; j < d; j++)
        g->total[(b * d + j) * TOTALS + 1] = digits_sum16(g->digit + (b * d + j) * BLOCK);
    if (DIGITS_FINE(d))
        g->fine_total[b * TOTALS + 1] = digits_sum16(g->fine + b * BLOCK);
}

/* Of the sums `total`, number `at`: that of half h of a block, or of all of it where weights of the
 * type have one scale. */
INLINE int32_t digits_share(const int type, const int32_t *total, int at, const int h)
{
    const int32_t *sum = total + at * TOTALS;
    if (HALVES(type) == 1)
        return sum[0];
    return h == 0 ? sum[TOTALS - 1] : sum[0] - sum[TOTALS - 1];
}

/* The sum of X over the first half of block b, or 256 times that with fourth digits. */
INLINE int64_t digits_first(const struct digits *g, const int d, int b, int deep)
{
    int64_t sum = 0;
    for (int j = 0; j < d; j++)
        sum = sum * 256 + g->total[(b * d + j) * TOTALS + TOTALS - 1];
    return deep ? sum * 256 + g->fine_total[b * TOTALS + TOTALS - 1] : sum;
}

/* The sum of the values of half h of block b, or of all of it where weights of the type have one
 * minimum. */
INLINE float digits_sum(const int type, const struct digits *g, int b, const int h)
{
    const float *sum = g->sum + b * SUMS;
    return SUMS == 1 ? sum[0] : HALVES(type) == 2 ? sum[h] : sum[0] + sum[1];
}

/* Writes block b of g from x[0, 32), which are at most 2 in size. A larger value than `most` is an
 * outlier. */
INLINE void digits_block(struct digits *g, const int d, int b, const float *x, float most)
{
    /* The largest sum of D signed digits is 127 (256^D - 1) / 255, a little below 2^(8D - 1): 1.01
     * moves values that would round past it to the next exponent. */
    float top = largest(x, BLOCK);
    int deep = DIGITS_FINE(d) && top > most;
    top *= 1.01f;
    int e = top > 0x1p-80f ? exponent_of(top) : -80;
    int bits = 8 * d - 2 - e;
    int64_t sum = digits_split(g, d, b, x, pow2(bits), deep);
    if (TOTALS == 2)
        digits_halves(g, d, b);
    const float unit = pow2(-bits), times = deep ? unit * (1.0f / 256) : unit;
    const int64_t first = SUMS == 2 ? digits_first(g, d, b, deep) : sum;
    g->unit[b] = unit;
    g->sum[b * SUMS] = (float)first * times;
    if (SUMS == 2)
        g->sum[b * SUMS + 1] = (float)(sum - first) * times;
}

/* What outliers of a row are above, once that is scaled by `down` and `down2`. */
INLINE float digits_most(const float *x, const int k, float down, float down2)
{
    vf sum = vf_zero();
    for (int i = 0; i < k; i += LANES) {
        vf v = vf_mul(vf_mul(vf_load(x + i), vf_set(down)), vf_set(down2));
        sum = vf_add(sum, vf_max(v, vf_sub(vf_zero(), v)));
    }
    return vf_fold(sum) * DIGITS_OUTLIER(k, FEW_OUTLIER);
}

/* Blocks [b0, b1) of row t of scratch `at` from x[0, k). The rank that fills block 0 also writes
 * the row's scale. */
INLINE void digits_fill(void *at, int k, const int d, int t, const float *x, int b0, int b1)
{
    struct digits g = digits_row(at, k, d, t);
    float top = largest(x, k), scaled[BLOCK];
    int e = top > 0 ? exponent_of(top) : 0;
    /* 2^-e in two factors: for subnormal rows it is beyond the range of float */
    float down = pow2(-e / 2), down2 = pow2(-e - -e / 2);
    float most = DIGITS_FINE(d) ? digits_most(x, k, down, down2) : 0;
    for (int b = b0; b < b1; b++) {
        for (int i = 0; i < BLOCK; i++)
            scaled[i] = x[b * BLOCK + i] * down * down2;
        digits_block(&g, d, b, scaled, most);
    }
    if (b0 == 0) {
        g.scale[0] = pow2(e / 2);
        g.scale[1] = pow2(e - e / 2);
    }
}

#endif
