/* SPDX-License-Identifier: Apache-2.0 */
/* eager_format.c - reading stored weights: one decoder a format, two loops over each.
 *
 * decode_<format>() turns one block into sets of 16 lanes with the arithmetic of dequant_row():
 * products of an 11-bit scale and a small integer are exact, so d q + m is one rounding whether or
 * not the multiply is fused. FORMAT() makes from it
 *
 * - expand_<format>(), a row to floats: panels for BLAS, row blocks that several tokens share
 * - dot_<format>(), eight rows against one x without leaving registers: decode. Several, because
 *   one chain of fused multiply-adds would wait for itself (4 cycles a step)
 *
 * Plain formats are read as blocks of 16 values, with a scalar tail.
 */
#include <stddef.h>

#include "engine/cpu/eager_impl.h"
#include "engine/cpu/vec.h"
#include "engine/quant.h"

#define INLINE static inline __attribute__((always_inline))

/* Behind a vector that was stored for its numbers: they are read as such, which is a load each, and
 * not picked out of the vector by permutations. */
#define READ_ONE_BY_ONE() __asm__ volatile("" ::: "memory")

/* The half-precision number at `src`. */
INLINE float half_float(const uint8_t *src)
{
    return eager_half[VEC_LOAD(uint16_t, src)];
}

/* ---- decoders ------------------------------------------------------------------------------- */

INLINE void decode_f32(const uint8_t *b, struct lanes *w)
{
    for (int i = 0; i < PARTS; i++)
        w->p[i] = VEC_LOAD(vec, b + 4 * VEC * i);
}

INLINE void decode_f16(const uint8_t *b, struct lanes *w)
{
    for (int i = 0; i < PARTS; i++)
        w->p[i] = vec_from_half(b + 2 * VEC * i);
}

INLINE void decode_bf16(const uint8_t *b, struct lanes *w)
{
    for (int i = 0; i < PARTS; i++)
        w->p[i] = vec_from_bf16(b + 2 * VEC * i);
}

INLINE void decode_q8_0(const uint8_t *b, struct lanes *w)
{
    float d = half_float(b);
    for (int i = 0; i < 2 * PARTS; i++) {
        vec_int q = vec_from_sbytes(b + 2 + VEC * i);
        w[i / PARTS].p[i % PARTS] = vec_float(q) * d;
    }
}

#if defined(__AVX512F__)
static const float sixteen[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#endif

/* Four bits have 16 values: where a vector holds them all, they are computed once a block and
 * looked up (a permute ignores the high bits of its index), instead of converted one by one. */
INLINE void decode_nibbles(const uint8_t *q, float d, float m, struct lanes *w)
{
#if defined(__AVX512F__)
    vec value = vec_scale(VEC_LOAD(vec, sixteen), vec_set(d), vec_set(m));
    vec_int n = vec_from_bytes(q);
    w[0].p[0] = (vec)_mm512_permutexvar_ps((__m512i)n, (__m512)value);
    w[1].p[0] = (vec)_mm512_permutexvar_ps((__m512i)(n >> 4), (__m512)value);
#else
    for (int i = 0; i < PARTS; i++) {
        vec_int n = vec_from_bytes(q + VEC * i);
        w[0].p[i] = vec_scale(vec_float(n & 15), vec_set(d), vec_set(m));
        w[1].p[i] = vec_scale(vec_float(n >> 4), vec_set(d), vec_set(m));
    }
#endif
}

static const int8_t iq4_numbers[LANES] = {IQ4_VALUES}, mxfp4_numbers[LANES] = {MXFP4_VALUES};

/* 32 codes that stand for the 16 numbers of a table: looked up as bytes, or after scaling, which is
 * exact. */
INLINE void decode_table(const uint8_t *q, float d, const int8_t *table, struct lanes *w)
{
#if defined(__AVX512F__)
    vec value = vec_float(vec_from_sbytes((const uint8_t *)table)) * d;
    vec_int n = vec_from_bytes(q);
    w[0].p[0] = (vec)_mm512_permutexvar_ps((__m512i)n, (__m512)value);
    w[1].p[0] = (vec)_mm512_permutexvar_ps((__m512i)(n >> 4), (__m512)value);
#else
    int8_t number[2 * LANES];
#if defined(__AVX2__)
    const __m128i t = _mm_loadu_si128((const __m128i *)table), four = _mm_set1_epi8(15);
    __m128i n = _mm_loadu_si128((const __m128i *)q), high = _mm_srli_epi16(n, 4);
    _mm_storeu_si128((__m128i *)number, _mm_shuffle_epi8(t, _mm_and_si128(n, four)));
    _mm_storeu_si128((__m128i *)(number + LANES), _mm_shuffle_epi8(t, _mm_and_si128(high, four)));
#elif defined(__aarch64__)
    int8x16_t t = vld1q_s8(table);
    uint8x16_t n = vld1q_u8(q);
    vst1q_s8(number, vqtbl1q_s8(t, vandq_u8(n, vdupq_n_u8(15))));
    vst1q_s8(number + LANES, vqtbl1q_s8(t, vshrq_n_u8(n, 4)));
#else
    for (int i = 0; i < 2 * LANES; i++)
        number[i] = table[i < LANES ? q[i] & 15 : q[i - LANES] >> 4];
#endif
    for (int i = 0; i < 2 * PARTS; i++) {
        vec_int v = vec_from_sbytes((const uint8_t *)number + VEC * i);
        w[i / PARTS].p[i % PARTS] = vec_float(v) * d;
    }
#endif
}

INLINE void decode_iq4_nl(const uint8_t *b, struct lanes *w)
{
    decode_table(b + 2, half_float(b), iq4_numbers, w);
}

INLINE void decode_iq4_xs(const uint8_t *b, struct lanes *w)
{
    float d = half_float(b);
    int high = VEC_LOAD(uint16_t, b + 2);
    for (int j = 0; j < 8; j++) {
        int s = (b[4 + j / 2] >> j % 2 * 4 & 15) | (high >> 2 * j & 3) << 4;
        decode_table(b + 8 + 16 * j, d * (float)(s - 32), iq4_numbers, w + 2 * j);
    }
}

INLINE void decode_mxfp4(const uint8_t *b, struct lanes *w)
{
    decode_table(b + 1, mxfp4_scale(b[0]), mxfp4_numbers, w);
}

/* Shifted into the places of a float's bits, a code is its number times 2^-120, exactly. */
INLINE void decode_f8(const uint8_t *b, struct lanes *w)
{
    float d = VEC_LOAD(float, b);
    for (int i = 0; i < 2 * PARTS; i++) {
        vec_int n = vec_from_bytes(b + 4 + VEC * i);
        vec number = (vec)((n & 0x80) << 24 | (n & 0x7f) << 20) * 0x1p120f;
        w[i / PARTS].p[i % PARTS] = number * d;
    }
}

INLINE void decode_q4_0(const uint8_t *b, struct lanes *w)
{
    float d = half_float(b);
    decode_nibbles(b + 2, d, -8 * d, w); /* exact, up to the sign of a zero */
}

INLINE void decode_q4_1(const uint8_t *b, struct lanes *w)
{
    decode_nibbles(b + 4, half_float(b), half_float(b + 2), w);
}

/* 32 numbers of five bits times d, plus m: the fifth bits are at `high`, the others at q. Of Q5_0
 * m is -16 d, and so the sum exact up to the sign of a zero. */
INLINE void decode_five(const uint8_t *high, const uint8_t *q, float d, float m, struct lanes *w)
{
    uint32_t fifth = VEC_LOAD(uint32_t, high);
#if defined(__AVX512F__)
    vec less = VEC_LOAD(vec, sixteen), more = less + 16;
    less = vec_scale(less, vec_set(d), vec_set(m)), more = vec_scale(more, vec_set(d), vec_set(m));
    vec_int n = vec_from_bytes(q);
    for (int h = 0; h < 2; h++) {
        __m512i at = (__m512i)(h ? n >> 4 : n);
        __m512 v = _mm512_permutexvar_ps(at, (__m512)less);
        v = _mm512_mask_permutexvar_ps(v, (__mmask16)(fifth >> 16 * h), at, (__m512)more);
        w[h].p[0] = (vec)v;
    }
#else
    vec_int iota, fifths = (int32_t)fifth - (vec_int){0};
    for (int j = 0; j < VEC; j++)
        iota[j] = j;
    for (int i = 0; i < 2 * PARTS; i++) {
        vec_int n = vec_from_bytes(q + VEC * (i % PARTS));
        vec_int bits = i ? fifths >> (iota + (VEC * i - 4)) : fifths << 4 >> iota;
        n = (i >= PARTS ? n >> 4 : n & 15) | (bits & 16); /* brought to bit 4 in one shift */
        w[i / PARTS].p[i % PARTS] = vec_scale(vec_float(n), vec_set(d), vec_set(m));
    }
#endif
}

INLINE void decode_q5_0(const uint8_t *b, struct lanes *w)
{
    float d = half_float(b);
    decode_five(b + 2, b + 6, d, -16 * d, w);
}

INLINE void decode_q5_1(const uint8_t *b, struct lanes *w)
{
    decode_five(b + 4, b + 8, half_float(b), half_float(b + 2), w);
}

/* out[j] = d times the scale of sub-block j, out[8 + j] = -dmin times its minimum: six bits each,
 * of which the 12 packed bytes have four together and, of the last four of each, two apart. */
INLINE void six_bits(const uint8_t *s, float d, float dmin, float out[LANES])
{
    uint32_t a = VEC_LOAD(uint32_t, s), b = VEC_LOAD(uint32_t, s + 4),
             c = VEC_LOAD(uint32_t, s + 8);
    uint32_t byte[4] = {a & 0x3f3f3f3f, (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030), b & 0x3f3f3f3f,
                        (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030)};
    for (int i = 0; i < PARTS; i++) {
        vec times = vec_set(i * VEC < 8 ? d : -dmin);
#if defined(__AVX512F__)
        times =
            SHUFFLE(times, vec_set(-dmin), 0, 1, 2, 3, 4, 5, 6, 7, 16, 16, 16, 16, 16, 16, 16, 16);
#endif
        vec v = vec_float(vec_from_bytes((const uint8_t *)byte + VEC * i)) * times;
        memcpy(out + VEC * i, &v, sizeof v);
    }
    READ_ONE_BY_ONE();
}

/* 8 sub-blocks of 32; sub-blocks 2i and 2i + 1 are the low and high nibbles of 32 bytes. */
INLINE void decode_q4_k(const uint8_t *b, struct lanes *w)
{
    float of[LANES];
    six_bits(b + 4, half_float(b), half_float(b + 2), of);
    for (int j = 0; j < 8; j++) {
        vec scale = vec_set(of[j]), minimum = vec_set(of[8 + j]);
        const uint8_t *q = b + 16 + j / 2 * 32;
        for (int i = 0; i < 2 * PARTS; i++) {
            vec_int n = vec_from_bytes(q + VEC * i);
            n = j & 1 ? n >> 4 : n & 15;
            w[2 * j + i / PARTS].p[i % PARTS] = vec_scale(vec_float(n), scale, minimum);
        }
    }
}

/* The same, and bit j of 32 bytes before them is the fifth of sub-block j. */
INLINE void decode_q5_k(const uint8_t *b, struct lanes *w)
{
    float of[LANES];
    six_bits(b + 4, half_float(b), half_float(b + 2), of);
    for (int j = 0; j < 8; j++) {
        vec scale = vec_set(of[j]), minimum = vec_set(of[8 + j]);
        const uint8_t *q = b + 48 + j / 2 * 32;
        for (int i = 0; i < 2 * PARTS; i++) {
            vec_int n = vec_from_bytes(q + VEC * i), h = vec_from_bytes(b + 16 + VEC * i);
            n = (j & 1 ? n >> 4 : n & 15) | (h >> j & 1) << 4;
            w[2 * j + i / PARTS].p[i % PARTS] = vec_scale(vec_float(n), scale, minimum);
        }
    }
}

/* Two halves of 128; in each, quarter k of 32 values takes a nibble of low[] and two bits of
 * high[]. */
INLINE void decode_q6_k(const uint8_t *b, struct lanes *w)
{
    float d = half_float(b + 208), scale[LANES];
    for (int i = 0; i < PARTS; i++) {
        vec v = vec_float(vec_from_sbytes(b + 192 + VEC * i)) * d;
        memcpy(scale + VEC * i, &v, sizeof v);
    }
    READ_ONE_BY_ONE();
    for (int half = 0; half < 2; half++) {
        for (int k = 0; k < 4; k++) {
            const uint8_t *low = b + half * 64 + (k & 1) * 32, *high = b + 128 + half * 32;
            for (int i = 0; i < 2 * PARTS; i++) {
                vec_int l = vec_from_bytes(low + VEC * i);
                vec_int h = vec_from_bytes(high + VEC * i) >> (2 * k) & 3;
                int set = half * 8 + 2 * k + i / PARTS;
                vec n = vec_float(((k < 2 ? l & 15 : l >> 4) | h << 4) - 32);
                w[set].p[i % PARTS] = n * scale[set];
            }
        }
    }
}

/* Two halves of 128; in each, quarter k of 32 values has two bits of 32 bytes, and each 16 values a
 * scale and a minimum of four bits. */
INLINE void decode_q2_k(const uint8_t *b, struct lanes *w)
{
    float d = half_float(b + 80), dmin = half_float(b + 82), scale[LANES], minimum[LANES];
    for (int i = 0; i < PARTS; i++) {
        vec_int n = vec_from_bytes(b + VEC * i);
        vec s = vec_float(n & 15) * d, m = vec_float(n >> 4) * -dmin;
        memcpy(scale + VEC * i, &s, sizeof s);
        memcpy(minimum + VEC * i, &m, sizeof m);
    }
    READ_ONE_BY_ONE();
    _Pragma("GCC unroll 16") for (int set = 0; set < 16; set++)
    {
        const uint8_t *q = b + 16 + set / 8 * 32 + set % 2 * LANES;
        for (int i = 0; i < PARTS; i++) {
            vec_int n = vec_from_bytes(q + VEC * i) >> (set % 8 / 2 * 2) & 3;
            w[set].p[i] = vec_scale(vec_float(n), vec_set(scale[set]), vec_set(minimum[set]));
        }
    }
}

/* The same places; the third bits are bit j of 32 bytes for values 32 j and up. A scale has six
 * bits, four of them in eight bytes and two in the next four. */
INLINE void decode_q3_k(const uint8_t *b, struct lanes *w)
{
    typedef uint32_t four __attribute__((vector_size(16)));
    float d = half_float(b + 108), scale[LANES];
    uint32_t first = VEC_LOAD(uint32_t, b + 96), second = VEC_LOAD(uint32_t, b + 100);
    four low = {first, second, first, second}, above = VEC_LOAD(uint32_t, b + 104) - (four){0};
    four byte =
        (low >> (four){0, 0, 4, 4} & 0x0f0f0f0f) | (above >> (four){0, 2, 4, 6} & 0x03030303) << 4;
    for (int i = 0; i < PARTS; i++) {
        vec s = vec_float(vec_from_bytes((const uint8_t *)&byte + VEC * i) - 32) * d;
        memcpy(scale + VEC * i, &s, sizeof s);
    }
    READ_ONE_BY_ONE();
    _Pragma("GCC unroll 16") for (int set = 0; set < 16; set++)
    {
        const uint8_t *q = b + 32 + set / 8 * 32 + set % 2 * LANES, *third = b + set % 2 * LANES;
        for (int i = 0; i < PARTS; i++) {
            vec_int n = vec_from_bytes(q + VEC * i) >> (set % 8 / 2 * 2) & 3;
            n |= (vec_from_bytes(third + VEC * i) >> set / 2 & 1) << 2;
            w[set].p[i] = vec_float(n - 4) * scale[set];
        }
    }
}

/* ---- loops over a row ----------------------------------------------------------------------- */

/* Groups of 16 values in a block, and the bytes of these groups; plain formats have one. */
#define SETS(t) (DTYPE_BLOCK(t) < LANES ? 1 : DTYPE_BLOCK(t) / LANES)
#define BYTES(t) (DTYPE_BYTES(t) * (SETS(t) * LANES / DTYPE_BLOCK(t)))
/* Memory is asked for before it is needed, because the processor's own prefetchers do not follow
 * short streams beside each other (docs/lab/2026-11-30-cpu-eager-memory.md). Behind the last row it
 * is nobody's memory, which a prefetch may name.
 *
 * Rows that are expanded one after the other are one stream, but one that stands still while they
 * are multiplied; AHEAD bytes are four or five rows of a small model.
 *
 * Rows of a dot lie behind each other. Up to SHORT_ROW bytes they are asked for as the one stream
 * that they are, in the order of addresses, whatever the order they are read in: the processor sees
 * that stream and runs ahead of it. AHEAD bytes before the last of the rows in flight leave time
 * for the first of them, too. What was asked for and not yet read has to stay in the first-level
 * cache beside x, or the stream breaks. So of longer rows the same block of the rows to come is
 * asked for, and into the second-level cache: the first has buffers for fewer lines under way. */
enum { AHEAD = 2048, SHORT_ROW = 2048 };
enum { SOON = 3, LATER = 2 }; /* __builtin_prefetch()'s: into the first-level cache, the second */
#define ASK(p, bytes, when)                        \
    for (int line = 0; line < (bytes); line += 64) \
    __builtin_prefetch((p) + line, 0, when)
/* Of rows longer than SHORT_ROW so many are multiplied at a time: the more streams, the more memory
 * is under way. Larger blocks keep a core busy without, and vectors of four have no registers. */
#define LONG_ROWS(t) (SETS(t) <= 2 && PARTS <= 2 ? EAGER_DOTS : 4)
#define FORMAT(x, t)                                                                               \
    static void expand_##x(const uint8_t *src, float *dst, int64_t n)                              \
    {                                                                                              \
        struct lanes w[SETS(t)];                                                                   \
        for (int64_t i = 0; i < n / (LANES * SETS(t)); i++) {                                      \
            ASK(src + i * BYTES(t) + AHEAD, BYTES(t), SOON);                                       \
            decode_##x(src + i * BYTES(t), w);                                                     \
            for (int s = 0; s < SETS(t); s++)                                                      \
                lanes_store(dst + (i * SETS(t) + s) * LANES, &w[s]);                               \
        }                                                                                          \
        if (SETS(t) == 1 && n % LANES)                                                             \
            expand_tail(BYTES(t), decode_##x, src + n / LANES * BYTES(t), dst + n / LANES * LANES, \
                        (int)(n % LANES));                                                         \
    }                                                                                              \
    INLINE void dot_rows_##x(const uint8_t *const row[EAGER_DOTS], const float *x, int64_t n,      \
                             float y[EAGER_DOTS], const int rows, const bool one_stream)           \
    {                                                                                              \
        struct lanes acc[EAGER_DOTS] = {0}, w[SETS(t)];                                            \
        int64_t stride = row[1] - row[0];                                                          \
        int64_t ahead = one_stream ? (rows - 1) * stride + AHEAD : EAGER_DOTS * stride;            \
        for (int64_t i = 0; i < n / (LANES * SETS(t)); i++) {                                      \
            if (one_stream)                                                                        \
                ASK(row[0] + ahead + i * rows * BYTES(t), rows * BYTES(t), SOON);                  \
            for (int r = 0; r < rows; r++) {                                                       \
                if (!one_stream)                                                                   \
                    ASK(row[r] + ahead + i * BYTES(t), BYTES(t), LATER);                           \
                decode_##x(row[r] + i * BYTES(t), w);                                              \
                for (int s = 0; s < SETS(t); s++)                                                  \
                    lanes_fma(&acc[r], &w[s], x + (i * SETS(t) + s) * LANES);                      \
            }                                                                                      \
        }                                                                                          \
        for (int r = 0; r < rows; r += 4)                                                          \
            lanes_fold4(&acc[r], y + r);                                                           \
    }                                                                                              \
    static void dot_##x(const uint8_t *const row[EAGER_DOTS], const float *x, int64_t n,           \
                        float y[EAGER_DOTS])                                                       \
    {                                                                                              \
        if (n / (LANES * SETS(t)) * BYTES(t) <= SHORT_ROW) {                                       \
            for (int r = 0; r < EAGER_DOTS; r += 4)                                                \
                dot_rows_##x(row + r, x, n, y + r, 4, true);                                       \
        } else {                                                                                   \
            for (int r = 0; r < EAGER_DOTS; r += LONG_ROWS(t))                                     \
                dot_rows_##x(row + r, x, n, y + r, LONG_ROWS(t), false);                           \
        }                                                                                          \
    }

/* The last n < 16 values of a plain row: decoded from a copy, so nothing past it is read. */
static void expand_tail(int bytes, void (*decode)(const uint8_t *, struct lanes *),
                        const uint8_t *src, float *dst, int n)
{
    uint8_t copy[LANES * sizeof(float)] = {0};
    struct lanes w;
    memcpy(copy, src, (size_t)(n * bytes / LANES));
    decode(copy, &w);
    memcpy(dst, &w, (size_t)n * sizeof *dst);
}

FORMAT(f32, DTYPE_F32)
FORMAT(f16, DTYPE_F16)
FORMAT(bf16, DTYPE_BF16)
FORMAT(q8_0, DTYPE_Q8_0)
FORMAT(q4_0, DTYPE_Q4_0)
FORMAT(q4_1, DTYPE_Q4_1)
FORMAT(q5_0, DTYPE_Q5_0)
FORMAT(q5_1, DTYPE_Q5_1)
FORMAT(q4_k, DTYPE_Q4_K)
FORMAT(q6_k, DTYPE_Q6_K)
FORMAT(q5_k, DTYPE_Q5_K)
FORMAT(q2_k, DTYPE_Q2_K)
FORMAT(q3_k, DTYPE_Q3_K)
FORMAT(iq4_nl, DTYPE_IQ4_NL)
FORMAT(iq4_xs, DTYPE_IQ4_XS)
FORMAT(mxfp4, DTYPE_MXFP4)
FORMAT(f8, DTYPE_F8)

#define ROW(x, t, direct) SETS(t) * LANES, BYTES(t), direct, expand_##x, dot_##x
const struct eager_format EAGER(format)[] = {
    [DTYPE_F32] = {ROW(f32, DTYPE_F32, 2)},
    [DTYPE_F16] = {ROW(f16, DTYPE_F16, 2)},
    [DTYPE_BF16] = {ROW(bf16, DTYPE_BF16, 2)},
    [DTYPE_Q8_0] = {ROW(q8_0, DTYPE_Q8_0, 2)},
    [DTYPE_Q4_0] = {ROW(q4_0, DTYPE_Q4_0, 2)},
    [DTYPE_Q4_1] = {ROW(q4_1, DTYPE_Q4_1, 2)},
    [DTYPE_Q5_0] = {ROW(q5_0, DTYPE_Q5_0, 1)},
    [DTYPE_Q5_1] = {ROW(q5_1, DTYPE_Q5_1, 1)},
    [DTYPE_Q4_K] = {ROW(q4_k, DTYPE_Q4_K, 1)},
    [DTYPE_Q6_K] = {ROW(q6_k, DTYPE_Q6_K, 1)},
    [DTYPE_Q5_K] = {ROW(q5_k, DTYPE_Q5_K, 1)},
    [DTYPE_Q2_K] = {ROW(q2_k, DTYPE_Q2_K, 1)},
    [DTYPE_Q3_K] = {ROW(q3_k, DTYPE_Q3_K, 1)},
    [DTYPE_IQ4_NL] = {ROW(iq4_nl, DTYPE_IQ4_NL, 1)},
    [DTYPE_IQ4_XS] = {ROW(iq4_xs, DTYPE_IQ4_XS, 1)},
    [DTYPE_MXFP4] = {ROW(mxfp4, DTYPE_MXFP4, 1)},
    [DTYPE_F8] = {ROW(f8, DTYPE_F8, 1)},
};
EVERY_DTYPE(EAGER(format));

int64_t EAGER(row_bytes)(const struct weight *w)
{
    const struct eager_format *f = &EAGER(format)[w->type];
    return (int64_t)w->cols * f->bytes / f->block;
}
