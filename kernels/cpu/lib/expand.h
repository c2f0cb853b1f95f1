/* SPDX-License-Identifier: Apache-2.0 */
/* expand.h - stored weights of 16 rows turned into what wide kernels multiply with.
 *
 * Wide steps use a weight many times, so it is converted once per run, panel by panel of 16 rows,
 * into the rank's own scratch:
 *
 *   floats  [K][16]: w[k][row], exactly the dequantized value
 *   tiles   for AMX: [K/32][TILE_PARTS] tiles of 1 KB, a tile being 16 pairs of k by 16 rows of
 *           bf16. Quantized formats store the integer, centred, which bf16 holds exactly, and
 *           beside it the block's scales as floats; bf16 has one part, f16 two and f32 three
 *           parts whose sum is the weight exactly (8 bits of significand each)
 *
 * Sources: rows of the model (gathered 16 at a time), or panels repacked by panel_pack().
 */
#ifndef WHET_KERNELS_CPU_LIB_EXPAND_H
#define WHET_KERNELS_CPU_LIB_EXPAND_H

#include "cpu/lib/panel.h"
#include "cpu/lib/turn.h"

enum { TILE_BYTES = 1024 };

#define TILE_PARTS(t) ((t) == DTYPE_F32 ? 3 : (t) == DTYPE_F16 ? 2 : 1)

/* 16 rows of a matrix from row `row0`; rows past the end repeat the last one. */
struct panel_source {
    const uint8_t *data; /* first row; or the panel, if packed */
    int64_t stride;      /* bytes a row */
    int rows;            /* rows there are, 1 .. 16 */
    int blocks;          /* K / 32 */
};

INLINE struct panel_source panel_source(const int type, const int packed, const struct weight *w,
                                        const int k, int row0)
{
    struct panel_source s;
    s.rows = w->rows - row0 < PANEL ? w->rows - row0 : PANEL;
    s.blocks = k / BLOCK;
    s.stride = ROW_BYTES(type, k);
    s.data = packed ? (const uint8_t *)w->packed + row0 / PANEL * panel_bytes(type, k)
                    : (const uint8_t *)w->data + row0 * s.stride;
    return s;
}

#if ISA >= ISA_NEON

/* out[k][16] for the 32 columns of block b, from rows of the model: panels are
 * for integers. Four rows are decoded side by side and turned around in registers. */
INLINE void expand_floats(const int type, const int packed, const struct panel_source *s, int b,
                          float *out)
{
    (void)packed;
    for (int r = 0; r < PANEL; r += 4) {
        vf w[4][2];
        UNROLLED
        for (int i = 0; i < 4; i++) {
            int row = r + i < s->rows ? r + i : s->rows - 1;
            row_load(type, s->data + row * s->stride, b, w[i]);
        }
        UNROLLED
        for (int k = 0; k < BLOCK / 4; k++)
            store_turned(w[0][k / 4].p[k % 4], w[1][k / 4].p[k % 4], w[2][k / 4].p[k % 4],
                         w[3][k / 4].p[k % 4], out + 4 * k * PANEL + r);
    }
}

#elif ISA >= ISA_AVX512

/* The dword `offset` bytes into what holds block b of each row. */
INLINE __m512i row_dwords(const int type, const struct panel_source *s, int b, int offset)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i row = _mm512_min_epi32(lane, _mm512_set1_epi32(s->rows - 1));
    __m512i at = _mm512_mullo_epi32(row, _mm512_set1_epi32((int)s->stride));
    return _mm512_i32gather_epi32(at, row_at(type, s->data, b) + offset, 1);
}

/* Bits [shift, shift + bits) of every byte. */
INLINE __m512i byte_bits(__m512i v, int shift, int bits)
{
    v = _mm512_srl_epi32(v, _mm_cvtsi32_si128(shift));
    return _mm512_and_si512(v, _mm512_set1_epi8((char)((1 << bits) - 1)));
}

/* Codes 4 i .. 4 i + 3 of block b of each row, of super-blocks. */
INLINE __m512i super_quads(const int type, const struct panel_source *s, int b, int i)
{
    const int j = b % BLOCKS_TOGETHER(type);
    const int h = i / 4, at = i % 4 * 4;
    __m512i q = row_dwords(type, s, b, SUPER_LOW(type, j, h) + at), high;
    q = byte_bits(q, SUPER_LOW_SHIFT(type, j, h), LOW_BITS(type));
    if (!HIGH_BITS(type))
        return q;
    high = row_dwords(type, s, b, SUPER_HIGH(type, j, h) + at);
    high = byte_bits(high, SUPER_HIGH_SHIFT(type, j), HIGH_BITS(type));
    return _mm512_or_si512(q, _mm512_slli_epi32(high, LOW_BITS(type)));
}

/* Adds the fifth bits of block b of each row, of Q5_0 and Q5_1: vector i takes bits 4 i to 4 i + 3,
 * one a byte. */
INLINE void row_fifths(const int type, const struct panel_source *s, int b, __m512i q[8])
{
    const __m512i fifth = row_dwords(type, s, b, BLOCK_HEAD(type));
    const __m512i first =
        _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c));
    UNROLLED
    for (int i = 0; i < 8; i++) {
        __m512i at = _mm512_add_epi8(first, _mm512_set1_epi8((char)(i / 2)));
        __m512i bit = _mm512_set1_epi32(i % 2 ? (int)0x80402010 : 0x08040201);
        __mmask64 set = _mm512_test_epi8_mask(_mm512_shuffle_epi8(fifth, at), bit);
        q[i] = _mm512_mask_add_epi8(q[i], set, q[i], _mm512_set1_epi8(16));
    }
}

/* panel_quads() of block b, from panels or rows. */
INLINE void source_quads(const int type, const int packed, const struct panel_source *s, int b,
                         __m512i q[8])
{
    if (packed) {
        panel_quads(type, s->data + (int64_t)b * PANEL_QUANTS(type), q);
        return;
    }
    const int n = type == DTYPE_Q8_0 || SUPER_TYPE(type) ? 8 : 4;
    UNROLLED
    for (int j = 0; j < n; j++)
        q[j] = SUPER_TYPE(type) ? super_quads(type, s, b, j)
                                : row_dwords(type, s, b, BLOCK_CODES(type) + 4 * j);
    UNROLLED
    for (int j = 0; j < 8 - n; j++) {
        q[j + 4] = byte_bits(q[j], 4, 4);
        q[j] = byte_bits(q[j], 0, 4);
    }
    if (HIGH_BITS(type) && !SUPER_TYPE(type))
        row_fifths(type, s, b, q);
    if (TABLE_TYPE(type))
        panel_look_up(type, q);
}

/* panel_scales() of block b of super-blocks in rows, one row after the other. */
INLINE void super_row_scales(const int type, const struct panel_source *s, int b, __m512 scale[2],
                             __m512 minimum[2])
{
    const int j = b % BLOCKS_TOGETHER(type), halves = HALVES(type);
    float of[2][2][PANEL] = {{{0}}};
    for (int r = 0; r < PANEL; r++) {
        const int row = r < s->rows ? r : s->rows - 1;
        float all[SUPER_NUMBERS];
        super_scales(type, row_at(type, s->data + row * s->stride, b), all);
        for (int h = 0; h < halves; h++) {
            of[h][0][r] = all[SUPER_SCALE(type, j, h)];
            if (HAS_MINIMUM(type))
                of[h][1][r] = all[SUPER_MINIMUM(type, j, h)];
        }
    }
    for (int h = 0; h < 2; h++) {
        scale[h] = _mm512_loadu_ps(of[h][0]);
        minimum[h] = _mm512_loadu_ps(of[h][1]);
    }
}

/* panel_scales() of block b, from panels or rows. */
INLINE void source_scales(const int type, const int packed, const struct panel_source *s, int b,
                          __m512 scale[2], __m512 minimum[2])
{
    if (packed) {
        panel_scales(type, s->data, s->blocks, b, scale, minimum);
    } else if (SUPER_TYPE(type)) {
        super_row_scales(type, s, b, scale, minimum);
    } else {
        __m512i both = row_dwords(type, s, b, 0);
        scale[0] = scale[1] = type == DTYPE_MXFP4
                                  ? exponent_floats(_mm512_and_si512(both, _mm512_set1_epi32(255)))
                                  : _mm512_cvtph_ps(_mm512_cvtepi32_epi16(both));
        minimum[0] = _mm512_setzero_ps();
        if (HAS_MINIMUM(type))
            minimum[0] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(both, 16)));
    }
}

/* Columns 2i and 2i + 1 of block b of each row, for the plain formats. */
INLINE void panel_pair(const int type, const struct panel_source *s, int b, int i, __m512 *even,
                       __m512 *odd)
{
    if (type == DTYPE_F32) {
        *even = _mm512_castsi512_ps(row_dwords(type, s, b, 8 * i));
        *odd = _mm512_castsi512_ps(row_dwords(type, s, b, 8 * i + 4));
        return;
    }
    __m512i both = row_dwords(type, s, b, 4 * i), high = _mm512_srli_epi32(both, 16);
    if (type == DTYPE_F16) {
        *even = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(both));
        *odd = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(high));
    } else {
        *even = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
        *odd = _mm512_castsi512_ps(_mm512_slli_epi32(high, 16));
    }
}

/* out[k][16] for the 32 columns of block b. */
INLINE void expand_floats(const int type, const int packed, const struct panel_source *s, int b,
                          float *out)
{
    if (!PANEL_TYPE(type)) {
        UNROLLED
        for (int i = 0; i < BLOCK / 2; i++) {
            __m512 even, odd;
            panel_pair(type, s, b, i, &even, &odd);
            _mm512_store_ps(out + 2 * i * PANEL, even);
            _mm512_store_ps(out + (2 * i + 1) * PANEL, odd);
        }
        return;
    }
    __m512i q[8];
    __m512 scale[2], minimum[2];
    source_quads(type, packed, s, b, q);
    source_scales(type, packed, s, b, scale, minimum);
    UNROLLED
    for (int k = 0; k < BLOCK; k++) {
        const int h = k * HALVES(type) / BLOCK;
        __m512i v = _mm512_slli_epi32(q[k / 4], 24 - k % 4 * 8);
        v = type == DTYPE_Q8_0 ? _mm512_srai_epi32(v, 24) : _mm512_srli_epi32(v, 24);
        __m512 f = _mm512_cvtepi32_ps(v);
        if (!HAS_MINIMUM(type))
            f = _mm512_sub_ps(f, _mm512_set1_ps(MIDDLE_CODE(type)));
        f = HAS_MINIMUM(type) ? _mm512_fmadd_ps(scale[h], f, minimum[h])
                              : _mm512_mul_ps(scale[h], f);
        _mm512_store_ps(out + k * PANEL, f);
    }
}

#else

INLINE void expand_floats(const int type, const int packed, const struct panel_source *s, int b,
                          float *out)
{
    (void)packed;
    for (int r = 0; r < PANEL; r++) {
        int row = r < s->rows ? r : s->rows - 1;
        float w[BLOCK];
        vf v[2];
        row_load(type, s->data + row * s->stride, b, v);
        vf_store(w, v[0]);
        vf_store(w + LANES, v[1]);
        for (int k = 0; k < BLOCK; k++)
            out[k * PANEL + r] = w[k];
    }
}

#endif

#if ISA == ISA_AMX

/* Rounds to 8 bits of significand and takes the result out of *f. */
INLINE __m512i split_part(__m512 *f)
{
    __m512i bits = _mm512_add_epi32(_mm512_castps_si512(*f), _mm512_set1_epi32(0x8000));
    bits = _mm512_and_si512(bits, _mm512_set1_epi32((int)0xffff0000));
    *f = _mm512_sub_ps(*f, _mm512_castsi512_ps(bits));
    return bits;
}

/* Pairs (k, k+1) of codes of each row as bf16, less the one in their middle. `half` picks bytes 0,
 * 1 or 2, 3 of the quad. */
INLINE __m512i quad_brain(const int type, __m512i quad, const int half)
{
    if (CODE_BITS(type) > 4) {
        quad = _mm512_sub_epi8(quad, _mm512_set1_epi8((char)MIDDLE_CODE(type)));
        __m512i even = _mm512_srai_epi32(_mm512_slli_epi32(quad, half ? 8 : 24), 24);
        __m512i odd = _mm512_srai_epi32(_mm512_slli_epi32(quad, half ? 0 : 16), 24);
        even = _mm512_srli_epi32(_mm512_castps_si512(_mm512_cvtepi32_ps(even)), 16);
        odd = _mm512_castps_si512(_mm512_cvtepi32_ps(odd));
        return _mm512_or_si512(even, _mm512_and_si512(odd, _mm512_set1_epi32((int)0xffff0000)));
    }
    /* bf16 of -8 .. 7 */
    const __m512i table = _mm512_broadcast_i64x4(_mm256_setr_epi16(
        (short)0xc100, (short)0xc0e0, (short)0xc0c0, (short)0xc0a0, (short)0xc080, (short)0xc040,
        (short)0xc000, (short)0xbf80, 0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0));
    const __m512i spread =
        half ? _mm512_broadcast_i32x4(
                   _mm_setr_epi8(2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1))
             : _mm512_broadcast_i32x4(
                   _mm_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1));
    return _mm512_permutexvar_epi16(_mm512_shuffle_epi8(quad, spread), table);
}

/* The tiles of block b, and its scales ([16] d, [16] m + 8 d: what is left once quants are centred)
 * if the format has any. */
INLINE void expand_tiles(const int type, const int packed, const struct panel_source *s, int b,
                         uint8_t *tile, float *scales)
{
    if (PANEL_TYPE(type)) {
        __m512i q[8];
        __m512 scale[2], minimum[2], middle = _mm512_set1_ps(MIDDLE_CODE(type));
        source_quads(type, packed, s, b, q);
        source_scales(type, packed, s, b, scale, minimum);
        UNROLLED
        for (int i = 0; i < BLOCK / 2; i++)
            _mm512_store_si512(tile + 64 * i, quad_brain(type, q[i / 2], i % 2));
        _mm512_store_ps(scales, scale[0]);
        _mm512_store_ps(scales + PANEL, _mm512_fmadd_ps(scale[0], middle, minimum[0]));
        return;
    }
    for (int i = 0; i < BLOCK / 2; i++) {
        __m512 even, odd;
        panel_pair(type, s, b, i, &even, &odd);
        for (int p = 0; p < TILE_PARTS(type); p++) {
            __m512i low = _mm512_srli_epi32(split_part(&even), 16);
            _mm512_store_si512(tile + p * TILE_BYTES + 64 * i,
                               _mm512_or_si512(low, split_part(&odd)));
        }
    }
}

#endif

#endif
