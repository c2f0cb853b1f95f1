/* SPDX-License-Identifier: Apache-2.0 */
/* block.h - stored weights, 32 at a time, as two vectors of 16 floats.
 *
 * block_load() and block_load_scaled() are dequant_row() of engine/quant.h for one block: the same
 * value for every weight, one rounding (d q is exact in float, d q + m rounds once). `type` is
 * always a constant where it is called, so the branches vanish. Plain formats are read in blocks of
 * 32 as well; a row whose length is no multiple of 32 is legal for them only in templates that say
 * so.
 *
 * A block of integers is its scales (a half; two of Q4_1 and Q5_1; a byte of MXFP4), of Q5_0 and
 * Q5_1 four bytes of fifth bits, bit k that of code k, and its codes: bytes of Q8_0, else nibbles,
 * byte i those of codes i and i + 16.
 */
#ifndef WHET_KERNELS_CPU_LIB_BLOCK_H
#define WHET_KERNELS_CPU_LIB_BLOCK_H

#include "args.h"
#include "cpu/lib/isa.h"

enum { BLOCK = ROW_BLOCK };

/* Bytes of 32 weights of a BLOCK_TYPE. */
#define BLOCK_BYTES(t) (BLOCK / DTYPE_BLOCK(t) * DTYPE_BYTES(t))

/* Formats that add a minimum. */
#define HAS_MINIMUM(t)                                                                   \
    ((t) == DTYPE_Q4_1 || (t) == DTYPE_Q5_1 || (t) == DTYPE_Q4_K || (t) == DTYPE_Q5_K || \
     (t) == DTYPE_Q2_K)
/* Stored codes are bytes, nibbles or pairs of bits, and in some formats have more bits elsewhere.
 */
#define LOW_BITS(t) ((t) == DTYPE_Q8_0 ? 8 : (t) == DTYPE_Q2_K || (t) == DTYPE_Q3_K ? 2 : 4)
#define HIGH_BITS(t)                                                                        \
    ((t) == DTYPE_Q6_K                                                                  ? 2 \
     : (t) == DTYPE_Q5_0 || (t) == DTYPE_Q5_1 || (t) == DTYPE_Q5_K || (t) == DTYPE_Q3_K ? 1 \
                                                                                        : 0)
/* Bits of what is multiplied, w = d (code - middle) or d code + minimum: of a TABLE_TYPE the number
 * that four bits are looked up as, with the middle added so that it has no sign. */
#define CODE_BITS(t) ((t) == DTYPE_MXFP4 ? 5 : TABLE_TYPE(t) ? 8 : LOW_BITS(t) + HIGH_BITS(t))
/* Codes of Q8_0 have a sign. */
#define MIDDLE_CODE(t) ((t) == DTYPE_Q8_0 ? 0 : 1 << (CODE_BITS(t) - 1))

INLINE uint16_t load_u16(const void *p)
{
    uint16_t v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}

INLINE uint32_t load_u32(const void *p)
{
    uint32_t v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}

INLINE float bits_float(uint32_t bits)
{
    float f;
    __builtin_memcpy(&f, &bits, sizeof f);
    return f;
}

INLINE uint32_t float_bits(float f)
{
    uint32_t bits;
    __builtin_memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* f16 -> f32, exact for every value (subnormals through the scale by 2^112). */
INLINE float half_float(uint16_t h)
{
#if ISA >= ISA_NEON
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h))), 0);
#elif ISA >= ISA_AVX2
    return _cvtsh_ss(h);
#else
    /* Infinity and NaN have all bits of the exponent, whatever the product made of them. Without a
     * branch, so that compilers make vectors of loops over this. */
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = (uint32_t)(h & 0x7fffu) << 13;
    uint32_t special = (int32_t)rest >= 0x0f800000 ? 0x7f800000u : 0;
    return bits_float(sign | special | float_bits(bits_float(rest) * 0x1p112f));
#endif
}

/* ---- scales, a run of blocks at a time ----------------------------------------------------- */

/* Turning a block's half-precision scale into a vector costs six operations on the one port that
 * shuffles; read back from memory as a float, a broadcast costs a load. So the scales of a run of
 * blocks are converted together: scale[b * SCALES(type)], followed by the minimum if there is one.
 */

enum { SCALE_RUN = 16 }; /* blocks */

/* Floats of scale a block has: d, and m of Q4_1 and Q5_1; their bytes, which come first; and how
 * far on codes are. */
#define SCALES(t) (!PANEL_TYPE(t) || SUPER_TYPE(t) ? 0 : HAS_MINIMUM(t) ? 2 : 1)
#define BLOCK_HEAD(t) ((t) == DTYPE_MXFP4 ? 1 : 2 * SCALES(t))
#define BLOCK_CODES(t) (BLOCK_HEAD(t) + 4 * HIGH_BITS(t))

/* Scale i of the block at p. */
INLINE float block_scale(const int type, const uint8_t *p, int i)
{
    return type == DTYPE_MXFP4 ? bits_float(MXFP4_SCALE(p[0])) : half_float(load_u16(p + 2 * i));
}

#if ISA >= ISA_AVX2 && ISA < ISA_NEON

/* The first four bytes of each of four blocks. */
INLINE __m128i scales_words(const uint8_t *p, const int size)
{
    __m128i four = _mm_cvtsi32_si128((int)load_u32(p));
    four = _mm_insert_epi32(four, (int)load_u32(p + size), 1);
    four = _mm_insert_epi32(four, (int)load_u32(p + 2 * size), 2);
    return _mm_insert_epi32(four, (int)load_u32(p + 3 * size), 3);
}

#endif

#if ISA >= ISA_AVX512 && ISA < ISA_NEON

/* MXFP4_SCALE() of 16 exponents: the second number is the larger one of 0 and 1 only. */
INLINE __m512 exponent_floats(__m512i e)
{
    const __m512i one = _mm512_set1_epi32(1);
    __m512i bits = _mm512_slli_epi32(_mm512_sub_epi32(e, one), 23);
    __m512i least = _mm512_slli_epi32(_mm512_add_epi32(_mm512_min_epi32(e, one), one), 21);
    return _mm512_castsi512_ps(_mm512_max_epi32(bits, least));
}

#endif

/* Scales are loaded one by one: with a gather of 16, products of rows took a Zen 4 1.25 times as
 * long.
 */
INLINE void scales_load(const int type, const uint8_t *p, int blocks, float *scale)
{
    int b = 0;
#if ISA >= ISA_AVX2 && ISA < ISA_NEON
    const int size = BLOCK_BYTES(type), halves = type == DTYPE_MXFP4 ? 0 : SCALES(type);
    for (; halves == 2 && b + 4 <= blocks; b += 4)
        _mm256_storeu_ps(scale + 2 * b, _mm256_cvtph_ps(scales_words(p + b * size, size)));
    for (; halves == 2 && b + 2 <= blocks; b += 2) {
        __m128i both = _mm_cvtsi32_si128((int)load_u32(p + b * size));
        both = _mm_insert_epi32(both, (int)load_u32(p + (b + 1) * size), 1);
        _mm_storeu_ps(scale + 2 * b, _mm_cvtph_ps(both));
    }
    for (; halves == 1 && b + 4 <= blocks; b += 4) {
        __m128i four = _mm_setzero_si128();
        four = _mm_insert_epi16(four, load_u16(p + b * size), 0);
        four = _mm_insert_epi16(four, load_u16(p + (b + 1) * size), 1);
        four = _mm_insert_epi16(four, load_u16(p + (b + 2) * size), 2);
        four = _mm_insert_epi16(four, load_u16(p + (b + 3) * size), 3);
        _mm_storeu_ps(scale + b, _mm_cvtph_ps(four));
    }
#endif
#if ISA >= ISA_AVX512 && ISA < ISA_NEON
    for (; type == DTYPE_MXFP4 && b + 4 <= blocks; b += 4) {
        const __m512i four = _mm512_castsi128_si512(scales_words(p + b * size, size));
        const __m512 e = exponent_floats(_mm512_and_si512(four, _mm512_set1_epi32(255)));
        _mm_storeu_ps(scale + b, _mm512_castps512_ps128(e));
    }
#endif
    for (; b < blocks; b++)
        for (int i = 0; i < SCALES(type); i++)
            scale[b * SCALES(type) + i] = block_scale(type, p + b * BLOCK_BYTES(type), i);
}

/* ---- 16 weights as a vector, in the terms of each instruction set -------------------------- */

/* block_float16(), block_half16() and block_brain16() read 16 numbers of 32 or 16 bits, which have
 * no alignment; block_bytes() 16 bytes. block_ints() makes floats of signed bytes, block_low() and
 * block_high() pick the nibbles of bytes, block_less() takes n from each. block_fifth() adds 16 to
 * byte i where bit i is set, block_look_up() takes what a table of 16 has for each. */

static const int8_t iq4_table[16] = {IQ4_VALUES}, mxfp4_table[16] = {MXFP4_VALUES};
#define CODE_TABLE(t) ((t) == DTYPE_MXFP4 ? mxfp4_table : iq4_table)

#if ISA >= ISA_NEON

#include "cpu/lib/neon_block.h"

#elif ISA >= ISA_AVX512

typedef __m128i bytes16;

INLINE bytes16 block_less(bytes16 b, int n)
{
    return _mm_sub_epi8(b, _mm_set1_epi8((char)n));
}

INLINE vf block_float16(const uint8_t *p)
{
    return _mm512_loadu_ps(p);
}

INLINE vf block_half16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE vf block_brain16(const uint8_t *p)
{
    __m512i v = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
}

INLINE bytes16 block_bytes(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

INLINE vf block_ints(bytes16 b)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b));
}

#elif ISA == ISA_AVX2

typedef __m128i bytes16;

INLINE vf block_float16(const uint8_t *p)
{
    return (vf){_mm256_loadu_ps((const float *)p), _mm256_loadu_ps((const float *)p + 8)};
}

INLINE vf block_half16(const uint8_t *p)
{
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p + 1))};
}

INLINE vf block_brain16(const uint8_t *p)
{
    __m256i a = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    __m256i b = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p + 1));
    return (vf){_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
                _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
}

INLINE bytes16 block_bytes(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

INLINE vf block_ints(bytes16 b)
{
    return (vf){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(b, 8)))};
}

INLINE bytes16 block_low(bytes16 b)
{
    return _mm_and_si128(b, _mm_set1_epi8(15));
}

INLINE bytes16 block_high(bytes16 b)
{
    return _mm_and_si128(_mm_srli_epi16(b, 4), _mm_set1_epi8(15));
}

INLINE bytes16 block_less(bytes16 b, int n)
{
    return _mm_sub_epi8(b, _mm_set1_epi8((char)n));
}

INLINE bytes16 block_fifth(bytes16 b, uint32_t bits)
{
    const __m128i spread = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m128i one = _mm_set1_epi64x((int64_t)0x8040201008040201u);
    __m128i set = _mm_and_si128(_mm_shuffle_epi8(_mm_cvtsi32_si128((int)bits), spread), one);
    return _mm_or_si128(b, _mm_and_si128(_mm_cmpeq_epi8(set, one), _mm_set1_epi8(16)));
}

INLINE bytes16 block_look_up(bytes16 b, const int8_t *table)
{
    return _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)table), b);
}

#else

typedef struct {
    int8_t l[LANES];
} bytes16;

INLINE vf block_float16(const uint8_t *p)
{
    vf v;
    __builtin_memcpy(v.l, p, sizeof v.l);
    return v;
}

/* half_float() in vectors of four: left to itself, gcc 12 unrolls the loop before it would make
 * vectors of it. */
INLINE vf block_half16(const uint8_t *p)
{
    typedef uint16_t halves __attribute__((vector_size(8)));
    typedef int32_t words __attribute__((vector_size(16)));
    typedef float floats __attribute__((vector_size(16)));
    vf v;
    for (int i = 0; i < LANES; i += 4) {
        halves h;
        __builtin_memcpy(&h, p + 2 * i, sizeof h);
        words n = __builtin_convertvector(h, words), rest = (n & 0x7fff) << 13;
        words finite = (words)((floats)rest * 0x1p112f), sign = (n & 0x8000) << 16;
        words value = sign | ((rest >= 0x0f800000) & 0x7f800000) | finite;
        __builtin_memcpy(v.l + i, &value, sizeof value);
    }
    return v;
}

INLINE vf block_brain16(const uint8_t *p)
{
    vf v;
    for (int i = 0; i < LANES; i++)
        v.l[i] = bits_float((uint32_t)load_u16(p + 2 * i) << 16);
    return v;
}

INLINE bytes16 block_bytes(const uint8_t *p)
{
    bytes16 b;
    __builtin_memcpy(b.l, p, sizeof b.l);
    return b;
}

INLINE vf block_ints(bytes16 b)
{
    vf v;
    for (int i = 0; i < LANES; i++)
        v.l[i] = (float)b.l[i];
    return v;
}

INLINE bytes16 block_low(bytes16 b)
{
    for (int i = 0; i < LANES; i++)
        b.l[i] &= 15;
    return b;
}

INLINE bytes16 block_high(bytes16 b)
{
    for (int i = 0; i < LANES; i++)
        b.l[i] = (int8_t)((uint8_t)b.l[i] >> 4);
    return b;
}

INLINE bytes16 block_less(bytes16 b, int n)
{
    for (int i = 0; i < LANES; i++)
        b.l[i] = (int8_t)(b.l[i] - n);
    return b;
}

INLINE bytes16 block_fifth(bytes16 b, uint32_t bits)
{
    for (int i = 0; i < LANES; i++)
        b.l[i] = (int8_t)(b.l[i] + (int)(bits >> i & 1) * 16);
    return b;
}

INLINE bytes16 block_look_up(bytes16 b, const int8_t *table)
{
    for (int i = 0; i < LANES; i++)
        b.l[i] = table[b.l[i]];
    return b;
}

#endif

/* ---- a block as floats --------------------------------------------------------------------- */

#if ISA >= ISA_AVX512 && ISA < ISA_NEON

/* Weights from their nibbles and what is above them: the values that 16 codes can mean, then a
 * lookup, which reads 4 bits of an index; of codes of 5 bits the values of 32, in two registers, of
 * which 5 bits pick one. Lane l of `fifth` has the block's fifth bits turned until that of code l
 * is bit 4, and that of code 16 + l bit 20. */
INLINE void block_nibbles(const int type, const uint8_t *p, const float *scale, vf w[2])
{
    const vf iota = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const vf d = vf_set(scale[0]);
    vf number = vf_sub(iota, vf_set(HAS_MINIMUM(type) ? 0 : MIDDLE_CODE(type)));
    if (TABLE_TYPE(type))
        number = block_ints(block_bytes((const uint8_t *)CODE_TABLE(type)));
    vf add = HAS_MINIMUM(type) ? vf_set(scale[1]) : vf_zero();
    vf low = HAS_MINIMUM(type) ? vf_fma(d, number, add) : vf_mul(d, number);
    __m512i q = _mm512_cvtepu8_epi32(block_bytes(p + BLOCK_CODES(type)));
    __m512i q2 = _mm512_srli_epi32(q, 4);
    if (!HIGH_BITS(type)) {
        w[0] = _mm512_permutexvar_ps(q, low);
        w[1] = _mm512_permutexvar_ps(q2, low);
        return;
    }
    number = vf_add(number, vf_set(16.0f));
    vf high = HAS_MINIMUM(type) ? vf_fma(d, number, add) : vf_mul(d, number);
    const __m512i lane = _mm512_setr_epi32(-4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11);
    const __m512i nibble = _mm512_set1_epi32(15);
    __m512i fifth = _mm512_set1_epi32((int)load_u32(p + BLOCK_HEAD(type)));
    fifth = _mm512_rorv_epi32(fifth, lane);
    q = _mm512_ternarylogic_epi32(nibble, q, fifth, 0xca);
    q2 = _mm512_ternarylogic_epi32(nibble, q2, _mm512_srli_epi32(fifth, 16), 0xca);
    w[0] = _mm512_permutex2var_ps(low, q, high);
    w[1] = _mm512_permutex2var_ps(low, q2, high);
}

#else

/* 16 codes as numbers from their nibbles and, where they have some, their fifth bits: less the
 * middle, but with a minimum as they are. */
INLINE bytes16 block_numbers(const int type, bytes16 nibbles, uint32_t fifth)
{
    if (TABLE_TYPE(type))
        return block_look_up(nibbles, CODE_TABLE(type));
    if (HIGH_BITS(type))
        nibbles = block_fifth(nibbles, fifth);
    return HAS_MINIMUM(type) ? nibbles : block_less(nibbles, MIDDLE_CODE(type));
}

INLINE void block_nibbles(const int type, const uint8_t *p, const float *scale, vf w[2])
{
    const bytes16 q = block_bytes(p + BLOCK_CODES(type));
    const uint32_t fifth = HIGH_BITS(type) ? load_u32(p + BLOCK_HEAD(type)) : 0;
    const vf d = vf_set(scale[0]);
    UNROLLED
    for (int h = 0; h < 2; h++) {
        bytes16 n = block_numbers(type, h ? block_high(q) : block_low(q), fifth >> 16 * h);
        w[h] = HAS_MINIMUM(type) /* d q is exact: one rounding in any case */
                   ? vf_mla(d, block_ints(n), vf_set(scale[1]))
                   : vf_mul(d, block_ints(n));
    }
}

#endif

/* A block whose scales scales_load() has read. */
INLINE void block_load_scaled(const int type, const uint8_t *p, const float *scale, vf w[2])
{
    if (type == DTYPE_F32) {
        w[0] = block_float16(p);
        w[1] = block_float16(p + LANES * 4);
    } else if (type == DTYPE_F16) {
        w[0] = block_half16(p);
        w[1] = block_half16(p + LANES * 2);
    } else if (type == DTYPE_BF16) {
        w[0] = block_brain16(p);
        w[1] = block_brain16(p + LANES * 2);
    } else if (type == DTYPE_Q8_0) {
        vf d = vf_set(scale[0]);
        w[0] = vf_mul(d, block_ints(block_bytes(p + BLOCK_HEAD(type))));
        w[1] = vf_mul(d, block_ints(block_bytes(p + BLOCK_HEAD(type) + LANES)));
    } else {
        block_nibbles(type, p, scale, w);
    }
}

/* One block on its own. */
INLINE void block_load(const int type, const uint8_t *p, vf w[2])
{
    float scale[2] = {0, 0};
    for (int i = 0; i < SCALES(type); i++)
        scale[i] = block_scale(type, p, i);
    block_load_scaled(type, p, scale, w);
}

#endif
