/* SPDX-License-Identifier: Apache-2.0 */
/* super.h - stored weights of which 256 share scales of scales: Q4_K, Q5_K and Q6_K.
 *
 * A super-block is eight blocks of 32, each with numbers of its own: in Q4_K and Q5_K a scale and a
 * minimum, w = (d s) q - (dmin m), in Q6_K a scale for each half of it, w = (d s) (q - 32).
 * engine/quant.c has the layouts. What is here reads one of the eight by its number `j`:
 *
 *   super_quad()    four codes as the bytes of a word, for those who put them in another order
 *   super_factors() the small integers that scale and shift them
 *   super_load()    32 weights as floats, with what super_scales() made of those integers: products
 *                   of 11-bit halves and such integers are exact, and so are theirs with a code, so
 *                   a weight is rounded once, by its minimum, as in dequant_row()
 *
 * row_at(), row_scales() and row_load() are for all formats: block b of a row, whatever it is in.
 */
#ifndef WHET_KERNELS_CPU_LIB_SUPER_H
#define WHET_KERNELS_CPU_LIB_SUPER_H

#include "cpu/lib/block.h"

/* Blocks of 32 that are stored together, and bytes of k weights of a row. */
#define BLOCKS_TOGETHER(t) (SUPER_TYPE(t) ? DTYPE_BLOCK(t) / BLOCK : 1)
#define ROW_BYTES(t, k) ((int64_t)(k) / DTYPE_BLOCK(t) * DTYPE_BYTES(t))
/* Halves of a block that have a scale each. */
#define HALVES(t) ((t) == DTYPE_Q6_K ? 2 : 1)

/* ---- integers ------------------------------------------------------------------------------ */

/* Where nibbles begin in Q4_K and Q5_K, fifth bits in Q5_K; in Q6_K upper bits, scales and d. */
enum {
    SUPER_NIBBLES = 16,
    SUPER_FIFTH = 16,
    SUPER_UPPER = 128,
    SUPER_SIXTEEN = 192,
    SUPER_D = 208
};

/* Bytes from the start of a super-block to the low four bits of block j. */
#define SUPER_LOW(t, j)                              \
    ((t) == DTYPE_Q6_K ? (j) / 4 * 64 + (j) % 2 * 32 \
                       : SUPER_NIBBLES + ((t) == DTYPE_Q5_K ? 32 : 0) + (j) / 2 * 32)
/* By how much they are shifted there. */
#define SUPER_LOW_SHIFT(t, j) ((t) == DTYPE_Q6_K ? (j) % 4 / 2 * 4 : (j) % 2 * 4)
/* The same of the bits above them: two in Q6_K, one in Q5_K. */
#define SUPER_HIGH(t, j) ((t) == DTYPE_Q6_K ? SUPER_UPPER + (j) / 4 * 32 : SUPER_FIFTH)
#define SUPER_HIGH_SHIFT(t, j) ((t) == DTYPE_Q6_K ? (j) % 4 * 2 : (j))

/* Codes 4 i .. 4 i + 3 of block j of the super-block at p, a byte each: as they are stored. */
INLINE uint32_t super_quad(const int type, const uint8_t *p, int j, int i)
{
    uint32_t q = load_u32(p + SUPER_LOW(type, j) + 4 * i) >> SUPER_LOW_SHIFT(type, j);
    q &= 0x0f0f0f0f;
    if (HIGH_BITS(type)) {
        uint32_t high = load_u32(p + SUPER_HIGH(type, j) + 4 * i) >> SUPER_HIGH_SHIFT(type, j);
        q |= (high & (type == DTYPE_Q6_K ? 0x03030303u : 0x01010101u)) << 4;
    }
    return q;
}

/* Q6_K: 16 signed scales, of 16 codes each. Else scales of the eight blocks, then minima, six bits
 * each: of the 12 bytes that hold them, four have those of blocks 0 to 3 together, and of blocks 4
 * to 7 four bits and two are apart. */
INLINE void super_factors(const int type, const uint8_t *p, uint8_t of[16])
{
    if (type == DTYPE_Q6_K) {
        __builtin_memcpy(of, p + SUPER_SIXTEEN, 16);
        return;
    }
    const uint32_t a = load_u32(p + 4), b = load_u32(p + 8), c = load_u32(p + 12);
    const uint32_t six[4] = {a & 0x3f3f3f3f, (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030),
                             b & 0x3f3f3f3f, (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030)};
    __builtin_memcpy(of, six, 16);
}

/* ---- floats -------------------------------------------------------------------------------- */

/* super_field(): bits [shift, shift + bits) of every byte. super_above(): with those of `high` four
 * bits further up. super_sides(): `a` in lanes 0 to 7, `b` in the others. */

#if ISA >= ISA_NEON

INLINE bytes16 super_field(bytes16 b, int shift, int bits)
{
    uint8x16_t v = vshlq_u8(vreinterpretq_u8_s8(b), vdupq_n_s8((int8_t)-shift));
    return vreinterpretq_s8_u8(vandq_u8(v, vdupq_n_u8((uint8_t)((1 << bits) - 1))));
}

INLINE bytes16 super_above(bytes16 low, bytes16 high)
{
    return vorrq_s8(low, vshlq_n_s8(high, 4));
}

INLINE vf super_sides(float a, float b)
{
    return (vf){{vdupq_n_f32(a), vdupq_n_f32(a), vdupq_n_f32(b), vdupq_n_f32(b)}};
}

#elif ISA >= ISA_AVX2

INLINE bytes16 super_field(bytes16 b, int shift, int bits)
{
    return _mm_and_si128(_mm_srli_epi16(b, shift), _mm_set1_epi8((char)((1 << bits) - 1)));
}

INLINE bytes16 super_above(bytes16 low, bytes16 high)
{
    return _mm_or_si128(low, _mm_slli_epi16(high, 4));
}

INLINE vf super_sides(float a, float b)
{
#if ISA >= ISA_AVX512
    return _mm512_mask_blend_ps(0xff00, _mm512_set1_ps(a), _mm512_set1_ps(b));
#else
    return (vf){_mm256_set1_ps(a), _mm256_set1_ps(b)};
#endif
}

#else

INLINE bytes16 super_field(bytes16 b, int shift, int bits)
{
    for (int i = 0; i < LANES; i++)
        b.l[i] = (int8_t)((uint8_t)b.l[i] >> shift & ((1 << bits) - 1));
    return b;
}

INLINE bytes16 super_above(bytes16 low, bytes16 high)
{
    for (int i = 0; i < LANES; i++)
        low.l[i] = (int8_t)(low.l[i] | high.l[i] << 4);
    return low;
}

INLINE vf super_sides(float a, float b)
{
    vf v;
    for (int i = 0; i < LANES; i++)
        v.l[i] = i < LANES / 2 ? a : b;
    return v;
}

#endif

/* Q6_K: the scales of the 16 halves. Else those of the eight blocks, then what each adds. */
INLINE void super_scales(const int type, const uint8_t *p, float scale[LANES])
{
    uint8_t of[LANES];
    super_factors(type, p, of);
    vf times = type == DTYPE_Q6_K
                   ? vf_set(half_float(load_u16(p + SUPER_D)))
                   : super_sides(half_float(load_u16(p)), -half_float(load_u16(p + 2)));
    vf_store(scale, vf_mul(block_ints(block_bytes(of)), times));
}

/* Codes 16 h .. 16 h + 15 of block j as signed bytes, 32 less in Q6_K. */
INLINE bytes16 super_codes(const int type, const uint8_t *p, int j, int h)
{
    bytes16 q = block_bytes(p + SUPER_LOW(type, j) + LANES * h);
    q = super_field(q, SUPER_LOW_SHIFT(type, j), 4);
    if (HIGH_BITS(type)) {
        bytes16 high = block_bytes(p + SUPER_HIGH(type, j) + LANES * h);
        high = super_field(high, SUPER_HIGH_SHIFT(type, j), HIGH_BITS(type));
        q = super_above(q, high);
    }
    return type == DTYPE_Q6_K ? block_less(q, 32) : q;
}

#if ISA >= ISA_AVX512 && ISA < ISA_NEON

/* Weights 16 h .. of block j of Q4_K: the 16 values that a nibble can mean, then a lookup, which
 * reads four bits of an index. A dot product of rows takes 0.74 of the time without (Zen 5). */
INLINE vf super_look_up(const uint8_t *p, int j, int h, const float *scale)
{
    const vf iota = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const vf table = vf_fma(vf_set(scale[j]), iota, vf_set(scale[8 + j]));
    __m512i q = _mm512_cvtepu8_epi32(block_bytes(p + SUPER_LOW(DTYPE_Q4_K, j) + LANES * h));
    q = _mm512_srl_epi32(q, _mm_cvtsi32_si128(SUPER_LOW_SHIFT(DTYPE_Q4_K, j)));
    return _mm512_permutexvar_ps(q, table);
}

#else

INLINE vf super_look_up(const uint8_t *p, int j, int h, const float *scale)
{
    vf n = block_ints(super_codes(DTYPE_Q4_K, p, j, h));
    return vf_mla(vf_set(scale[j]), n, vf_set(scale[8 + j]));
}

#endif

/* Block j of the super-block at p, whose scales are at `scale`. */
INLINE void super_load(const int type, const uint8_t *p, int j, const float *scale, vf w[2])
{
    UNROLLED
    for (int h = 0; h < 2; h++) {
        if (type == DTYPE_Q4_K) {
            w[h] = super_look_up(p, j, h, scale);
            continue;
        }
        vf n = block_ints(super_codes(type, p, j, h));
        w[h] = type == DTYPE_Q6_K ? vf_mul(vf_set(scale[2 * j + h]), n)
                                  : vf_mla(vf_set(scale[j]), n, vf_set(scale[8 + j]));
    }
}

/* ---- any format ---------------------------------------------------------------------------- */

/* What block b of a row is stored in: itself, or its super-block. */
INLINE const uint8_t *row_at(const int type, const uint8_t *row, int64_t b)
{
    return SUPER_TYPE(type) ? row + b / BLOCKS_TOGETHER(type) * DTYPE_BYTES(type)
                            : row + b * BLOCK_BYTES(type);
}

/* Floats of scale a block has, on average. */
#define ROW_SCALES(t) (SUPER_TYPE(t) ? 2 : SCALES(t))

/* scales_load() for `blocks` blocks at p, which is the start of a super-block. */
INLINE void row_scales(const int type, const uint8_t *p, int blocks, float *scale)
{
    if (!SUPER_TYPE(type)) {
        scales_load(type, p, blocks, scale);
        return;
    }
    for (int b = 0; b < blocks; b += BLOCKS_TOGETHER(type))
        super_scales(type, row_at(type, p, b), scale + b * ROW_SCALES(type));
}

/* Block j of the BLOCKS_TOGETHER ones at p. */
INLINE void row_load_scaled(const int type, const uint8_t *p, int j, const float *scale, vf w[2])
{
    if (SUPER_TYPE(type))
        super_load(type, p, j, scale, w);
    else
        block_load_scaled(type, p, scale, w);
}

/* Block b of a row on its own. */
INLINE void row_load(const int type, const uint8_t *row, int b, vf w[2])
{
    const uint8_t *p = row_at(type, row, b);
    float scale[LANES];
    if (SUPER_TYPE(type)) {
        super_scales(type, p, scale);
        super_load(type, p, b % BLOCKS_TOGETHER(type), scale, w);
    } else {
        block_load(type, p, w);
    }
}

#endif
