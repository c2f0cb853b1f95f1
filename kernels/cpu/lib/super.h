/* SPDX-License-Identifier: Apache-2.0 */
/* super.h - stored weights of which 256 share scales of scales: Q2_K to Q6_K and IQ4_XS.
 *
 * A super-block is eight blocks of 32, each with numbers of its own: in Q4_K and Q5_K a scale and a
 * minimum, w = (d s) q - (dmin m), in Q2_K one of both for each half of it; in Q3_K and Q6_K a
 * scale for each half, w = (d s) (q - 4) or (q - 32), and in IQ4_XS one, w = (d s) table[q].
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
#define HALVES(t) ((t) == DTYPE_Q6_K || (t) == DTYPE_Q2_K || (t) == DTYPE_Q3_K ? 2 : 1)

/* ---- integers ------------------------------------------------------------------------------ */

/* Bytes from the start of a super-block to its d, behind which is dmin if there is one. */
#define SUPER_D(t) ((t) == DTYPE_Q6_K ? 208 : (t) == DTYPE_Q2_K ? 80 : (t) == DTYPE_Q3_K ? 108 : 0)
/* To the low bits of codes 16 h .. 16 h + 15 of block j: of IQ4_XS the nibbles of the same bytes,
 * of other formats bytes of their own, which blocks share; and by how much they are shifted there.
 */
#define SUPER_LOW(t, j, h)                                                       \
    ((t) == DTYPE_IQ4_XS ? 8 + (j)*16                                            \
     : LOW_BITS(t) == 2  ? ((t) == DTYPE_Q2_K ? 16 : 32) + (j) / 4 * 32 + (h)*16 \
     : (t) == DTYPE_Q6_K ? (j) / 4 * 64 + (j) % 2 * 32 + (h)*16                  \
                         : ((t) == DTYPE_Q5_K ? 48 : 16) + (j) / 2 * 32 + (h)*16)
#define SUPER_LOW_SHIFT(t, j, h)           \
    ((t) == DTYPE_IQ4_XS ? (h)*4           \
     : LOW_BITS(t) == 2  ? (j) % 4 * 2     \
     : (t) == DTYPE_Q6_K ? (j) % 4 / 2 * 4 \
                         : (j) % 2 * 4)
/* The same of the bits above them. */
#define SUPER_HIGH(t, j, h) \
    (((t) == DTYPE_Q6_K ? 128 + (j) / 4 * 32 : (t) == DTYPE_Q5_K ? 16 : 0) + (h)*16)
#define SUPER_HIGH_SHIFT(t, j) ((t) == DTYPE_Q6_K ? (j) % 4 * 2 : (j))

/* The lowest `bits` bits of every byte of a word. */
#define SUPER_MASK(bits) (0x01010101u * ((1u << (bits)) - 1))

/* Codes 4 i .. 4 i + 3 of block j of the super-block at p, a byte each: as they are stored. */
INLINE uint32_t super_quad(const int type, const uint8_t *p, int j, int i)
{
    const int h = i / 4, at = i % 4 * 4;
    uint32_t q = load_u32(p + SUPER_LOW(type, j, h) + at) >> SUPER_LOW_SHIFT(type, j, h);
    q &= SUPER_MASK(LOW_BITS(type));
    if (HIGH_BITS(type)) {
        uint32_t high = load_u32(p + SUPER_HIGH(type, j, h) + at) >> SUPER_HIGH_SHIFT(type, j);
        q |= (high & SUPER_MASK(HIGH_BITS(type))) << LOW_BITS(type);
    }
    return q;
}

/* The numbers that belong to a block, and where that of half h of block j is, the scale or the
 * minimum, among those of a super-block: scales come first. */
#define SUPER_FACTORS(t) (HALVES(t) * (HAS_MINIMUM(t) ? 2 : 1))
#define SUPER_SCALE(t, j, h) ((j)*HALVES(t) + (HALVES(t) == 2 ? (h) : 0))
#define SUPER_MINIMUM(t, j, h) (8 * HALVES(t) + SUPER_SCALE(t, j, h))
enum { SUPER_NUMBERS = 32 }; /* of a super-block, at most */

/* Each byte, a number of six bits, less 32. */
INLINE uint64_t super_signed(uint64_t six)
{
    return (six & 0x1f1f1f1f1f1f1f1fu) | (~six & 0x2020202020202020u) * 7;
}

/* Six bits each: of the 12 bytes that hold them, four have the scales of blocks 0 to 3 together,
 * four their minima, and of blocks 4 to 7 four bits and two are apart. */
INLINE void super_factors_k(const uint8_t *p, uint8_t of[SUPER_NUMBERS])
{
    const uint32_t a = load_u32(p + 4), b = load_u32(p + 8), c = load_u32(p + 12);
    const uint32_t six[4] = {a & 0x3f3f3f3f, (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030),
                             b & 0x3f3f3f3f, (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030)};
    __builtin_memcpy(of, six, 16);
}

/* Q3_K: 16 scales, of which eight bytes have four bits of two each, four bytes the two above. */
INLINE void super_factors_q3(const uint8_t *p, uint8_t of[SUPER_NUMBERS])
{
    uint64_t low, high = load_u32(p + 104), all[2];
    __builtin_memcpy(&low, p + 96, 8);
    high |= high >> 2 << 32; /* of scales 0 to 7, and four bits further up of the others */
    for (int i = 0; i < 2; i++)
        all[i] = super_signed((low >> 4 * i & 0x0f0f0f0f0f0f0f0fu) |
                              (high >> 4 * i & 0x0303030303030303u) << 4);
    __builtin_memcpy(of, all, 16);
}

/* IQ4_XS: eight scales, four bits of each in a row, and two above them in another. */
INLINE void super_factors_iq4(const uint8_t *p, uint8_t of[SUPER_NUMBERS])
{
    uint64_t low = load_u32(p + 4), high = load_u16(p + 2);
    low = (low | low << 16) & 0x0000ffff0000ffffu;
    low = (low | low << 8) & 0x00ff00ff00ff00ffu;
    low = (low | low << 4) & 0x0f0f0f0f0f0f0f0fu;
    high = (high | high << 24) & 0x000000ff000000ffu;
    high = (high | high << 12) & 0x000f000f000f000fu;
    high = (high | high << 6) & 0x0303030303030303u;
    low = super_signed(low | high << 4);
    __builtin_memcpy(of, &low, 8);
    __builtin_memset(of + 8, 0, 8);
}

/* The integers of the super-block at p, signed bytes. */
INLINE void super_factors(const int type, const uint8_t *p, uint8_t of[SUPER_NUMBERS])
{
    if (type == DTYPE_Q6_K)
        __builtin_memcpy(of, p + 192, 16);
    else if (type == DTYPE_Q3_K)
        super_factors_q3(p, of);
    else if (type == DTYPE_IQ4_XS)
        super_factors_iq4(p, of);
    else if (type == DTYPE_Q2_K)
        for (int i = 0; i < 16; i++) {
            of[i] = p[i] & 15;
            of[16 + i] = p[i] >> 4;
        }
    else
        super_factors_k(p, of);
}

/* ---- floats -------------------------------------------------------------------------------- */

/* super_field(): bits [shift, shift + bits) of every byte. super_above(): with those of `high` `by`
 * bits further up. super_sides(): `a` in lanes 0 to 7, `b` in the others. */

#if ISA >= ISA_NEON

INLINE bytes16 super_field(bytes16 b, int shift, int bits)
{
    uint8x16_t v = vshlq_u8(vreinterpretq_u8_s8(b), vdupq_n_s8((int8_t)-shift));
    return vreinterpretq_s8_u8(vandq_u8(v, vdupq_n_u8((uint8_t)((1 << bits) - 1))));
}

INLINE bytes16 super_above(bytes16 low, bytes16 high, const int by)
{
    return vorrq_s8(low, vshlq_s8(high, vdupq_n_s8((int8_t)by)));
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

INLINE bytes16 super_above(bytes16 low, bytes16 high, const int by)
{
    return _mm_or_si128(low, _mm_slli_epi16(high, by));
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

INLINE bytes16 super_above(bytes16 low, bytes16 high, const int by)
{
    for (int i = 0; i < LANES; i++)
        low.l[i] = (int8_t)(low.l[i] | high.l[i] << by);
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

/* super_factors() as floats: scales, then what each adds. */
INLINE void super_scales(const int type, const uint8_t *p, float scale[SUPER_NUMBERS])
{
    uint8_t of[SUPER_NUMBERS];
    super_factors(type, p, of);
    const float d = half_float(load_u16(p + SUPER_D(type)));
    const float add = HAS_MINIMUM(type) ? -half_float(load_u16(p + SUPER_D(type) + 2)) : d;
    vf times = HALVES(type) == 2 ? vf_set(d) : super_sides(d, add);
    vf_store(scale, vf_mul(block_ints(block_bytes(of)), times));
    if (SUPER_FACTORS(type) == 4)
        vf_store(scale + 16, vf_mul(block_ints(block_bytes(of + 16)), vf_set(add)));
}

#if ISA >= ISA_AVX512 && ISA < ISA_NEON

/* Whether weights are looked up: the 16 values that a nibble can mean, then a permutation, which
 * reads four bits of an index. A dot product of rows in Q4_K takes 0.74 of the time without (Zen
 * 5).
 */
#define SUPER_LOOKED_UP(t) ((t) == DTYPE_Q4_K || TABLE_TYPE(t))

INLINE vf super_look_up(const int type, const uint8_t *p, int j, int h, const float *scale)
{
    const vf iota = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const vf d = vf_set(scale[SUPER_SCALE(type, j, h)]);
    const vf table = TABLE_TYPE(type)
                         ? vf_mul(d, block_ints(block_bytes((const uint8_t *)CODE_TABLE(type))))
                         : vf_fma(d, iota, vf_set(scale[SUPER_MINIMUM(type, j, h)]));
    __m512i q = _mm512_cvtepu8_epi32(block_bytes(p + SUPER_LOW(type, j, h)));
    q = _mm512_srl_epi32(q, _mm_cvtsi32_si128(SUPER_LOW_SHIFT(type, j, h)));
    return _mm512_permutexvar_ps(q, table);
}

#endif

/* Codes 16 h .. 16 h + 15 of block j as numbers: less the middle, but with a minimum as they are.
 */
INLINE bytes16 super_codes(const int type, const uint8_t *p, int j, int h)
{
    bytes16 q = block_bytes(p + SUPER_LOW(type, j, h));
    q = super_field(q, SUPER_LOW_SHIFT(type, j, h), LOW_BITS(type));
#if ISA < ISA_AVX512 || ISA >= ISA_NEON
    if (TABLE_TYPE(type))
        return block_look_up(q, CODE_TABLE(type));
#endif
    if (HIGH_BITS(type)) {
        bytes16 high = block_bytes(p + SUPER_HIGH(type, j, h));
        high = super_field(high, SUPER_HIGH_SHIFT(type, j), HIGH_BITS(type));
        q = super_above(q, high, LOW_BITS(type));
    }
    return HAS_MINIMUM(type) ? q : block_less(q, MIDDLE_CODE(type));
}

/* Block j of the super-block at p, whose scales are at `scale`. */
INLINE void super_load(const int type, const uint8_t *p, int j, const float *scale, vf w[2])
{
    UNROLLED
    for (int h = 0; h < 2; h++) {
#if ISA >= ISA_AVX512 && ISA < ISA_NEON
        if (SUPER_LOOKED_UP(type)) {
            w[h] = super_look_up(type, p, j, h, scale);
            continue;
        }
#endif
        vf n = block_ints(super_codes(type, p, j, h)), d = vf_set(scale[SUPER_SCALE(type, j, h)]);
        w[h] = HAS_MINIMUM(type) ? vf_mla(d, n, vf_set(scale[SUPER_MINIMUM(type, j, h)]))
                                 : vf_mul(d, n);
    }
}

/* ---- any format ---------------------------------------------------------------------------- */

/* What block b of a row is stored in: itself, or its super-block. */
INLINE const uint8_t *row_at(const int type, const uint8_t *row, int64_t b)
{
    return SUPER_TYPE(type) ? row + b / BLOCKS_TOGETHER(type) * DTYPE_BYTES(type)
                            : row + b * BLOCK_BYTES(type);
}

/* Bytes of a block, on average, rounded up. */
#define BLOCK_SHARE(t)                                                              \
    (SUPER_TYPE(t) ? (DTYPE_BYTES(t) + BLOCKS_TOGETHER(t) - 1) / BLOCKS_TOGETHER(t) \
                   : BLOCK_BYTES(t))

/* Floats of scale a block has, on average, and those of a run of blocks, at most. */
#define ROW_SCALES(t) (SUPER_TYPE(t) ? (SUPER_FACTORS(t) == 4 ? 4 : 2) : SCALES(t))
enum { RUN_SCALES = 4 * SCALE_RUN };

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
    float scale[SUPER_NUMBERS];
    if (SUPER_TYPE(type)) {
        super_scales(type, p, scale);
        super_load(type, p, b % BLOCKS_TOGETHER(type), scale, w);
    } else {
        block_load(type, p, w);
    }
}

#endif
