/* SPDX-License-Identifier: Apache-2.0 */
/* block.h - stored weights, 32 at a time, as two vectors of 16 floats.
 *
 * block_load() and block_load_scaled() are dequant_row() of engine/quant.h for one block: the same
 * value for every weight, one rounding (d q is exact in float, d q + m rounds once). `type` is
 * always a constant where it is called, so the branches vanish. Plain formats are read in blocks of
 * 32 as well; a row whose length is no multiple of 32 is legal for them only in templates that say
 * so.
 */
#ifndef WHET_KERNELS_CPU_LIB_BLOCK_H
#define WHET_KERNELS_CPU_LIB_BLOCK_H

#include "args.h"
#include "cpu/lib/isa.h"

enum { BLOCK = ROW_BLOCK };

/* Bytes of 32 weights of a BLOCK_TYPE. */
#define BLOCK_BYTES(t) (BLOCK / DTYPE_BLOCK(t) * DTYPE_BYTES(t))

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
 * blocks are converted together: scale[b * SCALES(type)], followed by the minimum for Q4_1. */

enum { SCALE_RUN = 16 }; /* blocks */

/* Floats of scale a block has: d, and m for Q4_1; the bytes of these halves, before its quants. */
#define SCALES(t) ((t) == DTYPE_Q4_1 ? 2 : (t) == DTYPE_Q8_0 || (t) == DTYPE_Q4_0 ? 1 : 0)
#define BLOCK_HEAD(t) (2 * SCALES(t))

INLINE void scales_load(const int type, const uint8_t *p, int blocks, float *scale)
{
#if ISA >= ISA_AVX512 && ISA < ISA_NEON
    if (SCALES(type) == 0)
        return;
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i at = _mm512_mullo_epi32(lane, _mm512_set1_epi32(BLOCK_BYTES(type)));
    __mmask16 some = (__mmask16)(blocks >= 16 ? 0xffff : (1 << blocks) - 1);
    __m512i first = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), some, at, p, 1);
    if (type == DTYPE_Q4_1) { /* d and m are neighbours: 32 halves in order */
        _mm512_storeu_ps(scale, _mm512_cvtph_ps(_mm512_castsi512_si256(first)));
        _mm512_storeu_ps(scale + 16, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(first, 1)));
    } else {
        _mm512_storeu_ps(scale, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(first)));
    }
#else
    int b = 0;
#if ISA == ISA_AVX2 /* four halves at once */
    const int size = BLOCK_BYTES(type);
    for (; type == DTYPE_Q4_1 && b + 2 <= blocks; b += 2) {
        __m128i both = _mm_cvtsi32_si128((int)load_u32(p + b * size));
        both = _mm_insert_epi32(both, (int)load_u32(p + (b + 1) * size), 1);
        _mm_storeu_ps(scale + 2 * b, _mm_cvtph_ps(both));
    }
    for (; SCALES(type) == 1 && b + 4 <= blocks; b += 4) {
        __m128i four = _mm_setzero_si128();
        four = _mm_insert_epi16(four, load_u16(p + b * size), 0);
        four = _mm_insert_epi16(four, load_u16(p + (b + 1) * size), 1);
        four = _mm_insert_epi16(four, load_u16(p + (b + 2) * size), 2);
        four = _mm_insert_epi16(four, load_u16(p + (b + 3) * size), 3);
        _mm_storeu_ps(scale + b, _mm_cvtph_ps(four));
    }
#endif
    for (; b < blocks; b++)
        for (int i = 0; i < SCALES(type); i++)
            scale[b * SCALES(type) + i] = half_float(load_u16(p + b * BLOCK_BYTES(type) + 2 * i));
#endif
}

/* ---- 16 weights as a vector, in the terms of each instruction set -------------------------- */

/* block_float16(), block_half16() and block_brain16() read 16 numbers of 32 or 16 bits, which have
 * no alignment; block_bytes() 16 bytes. block_ints() makes floats of signed bytes, block_low() and
 * block_high() pick the nibbles of bytes. */

#if ISA >= ISA_NEON

#include "cpu/lib/neon_block.h"

#elif ISA >= ISA_AVX512

typedef __m128i bytes16;

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

INLINE bytes16 block_less8(bytes16 b)
{
    return _mm_sub_epi8(b, _mm_set1_epi8(8));
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

INLINE bytes16 block_less8(bytes16 b)
{
    for (int i = 0; i < LANES; i++)
        b.l[i] = (int8_t)(b.l[i] - 8);
    return b;
}

#endif

/* ---- a block as floats --------------------------------------------------------------------- */

/* Weights of Q4_0 and Q4_1 from their nibbles at p: the low ones first. */
INLINE void block_nibbles(const int type, const uint8_t *p, const float *scale, vf w[2])
{
    vf d = vf_set(scale[0]);
#if ISA >= ISA_AVX512 && ISA < ISA_NEON
    /* the 16 values a nibble can mean, then a lookup: vpermps reads 4 index bits */
    const __m512 iota = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    vf table = type == DTYPE_Q4_1 ? vf_fma(d, iota, vf_set(scale[1]))
                                  : vf_mul(d, vf_sub(iota, vf_set(8.0f)));
    __m512i q = _mm512_cvtepu8_epi32(block_bytes(p));
    w[0] = _mm512_permutexvar_ps(q, table);
    w[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(q, 4), table);
#else
    bytes16 q = block_bytes(p), low = block_low(q), high = block_high(q);
    if (type == DTYPE_Q4_1) {
        vf m = vf_set(scale[1]);
        w[0] = vf_mla(d, block_ints(low), m); /* d q is exact: one rounding in any case */
        w[1] = vf_mla(d, block_ints(high), m);
    } else {
        w[0] = vf_mul(d, block_ints(block_less8(low)));
        w[1] = vf_mul(d, block_ints(block_less8(high)));
    }
#endif
}

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
        block_nibbles(type, p + BLOCK_HEAD(type), scale, w);
    }
}

/* One block on its own. */
INLINE void block_load(const int type, const uint8_t *p, vf w[2])
{
    float scale[2] = {0, 0};
    for (int i = 0; i < SCALES(type); i++)
        scale[i] = half_float(load_u16(p + 2 * i));
    block_load_scaled(type, p, scale, w);
}

#endif
