/* SPDX-License-Identifier: Apache-2.0 */
/* wide_tiles.h - tiles of 16 tokens times panels of 16 rows on the tile unit (AMX).
 *
 * Part of wide.h. Activations are split into XPARTS bf16 parts (3: exact), so a block of 32 columns
 * is XPARTS tile products per weight part, summed in float by the tile unit. For quantized formats
 * the integers are multiplied and the block's scales applied to the tile's sums: 1 multiply-add for
 * 32. Products of parts below 2^-24 are left out.
 */
#ifndef WHET_KERNELS_CPU_LIB_WIDE_TILES_H
#define WHET_KERNELS_CPU_LIB_WIDE_TILES_H

#include "cpu/lib/amx.h"

/* ---- weights ------------------------------------------------------------------------------ */

/* Where the scales of an expanded panel begin, behind its tiles, and the bytes of both. */
INLINE int64_t wide_panel_scales(const int type)
{
    return (int64_t)(K / BLOCK) * TILE_PARTS(type) * TILE_BYTES;
}

INLINE int64_t wide_panel_bytes(const int type)
{
    return wide_panel_scales(type) + (PANEL_TYPE(type) ? (int64_t)(K / BLOCK) * 2 * PANEL * 4 : 0);
}

INLINE void wide_expand_block(const int type, const struct panel_source *s, int b, uint8_t *panel)
{
    expand_tiles(type, PACK, s, b, panel + (int64_t)b * TILE_PARTS(type) * TILE_BYTES,
                 (float *)(panel + wide_panel_scales(type)) + b * 2 * PANEL);
}

/* ---- activations -------------------------------------------------------------------------- */

/* A tile of 16 tokens in parts: [K/32][XPARTS] tiles, [K/32][16] sums, [16][2] row scales. */
enum { WIDE_SUM = PANEL * 4, WIDE_SCALES = 2 * PANEL * 4 };
INLINE int64_t wide_tile_bytes(void)
{
    return (int64_t)(K / BLOCK) * (XPARTS * TILE_BYTES + WIDE_SUM) + WIDE_SCALES;
}

/* The factors of 2^row of a tile's tokens, [TILE][2]. */
INLINE float *wide_back(const uint8_t *tile)
{
    return (float *)(tile + wide_tile_bytes()) - 2 * TILE;
}

/* Splits token row x (already near 1) into the parts of tile row `r`, and sums its blocks. */
INLINE void wide_split(uint8_t *tile, int r, const float *x)
{
    float *sums = (float *)(tile + (int64_t)(K / BLOCK) * XPARTS * TILE_BYTES);
    for (int b = 0; b < K / BLOCK; b++) {
        __m512 a = _mm512_loadu_ps(x + b * BLOCK), c = _mm512_loadu_ps(x + b * BLOCK + 16);
        sums[b * PANEL + r] = _mm512_reduce_add_ps(_mm512_add_ps(a, c));
        UNROLLED
        for (int p = 0; p < XPARTS; p++) {
            uint8_t *to = tile + (int64_t)(b * XPARTS + p) * TILE_BYTES + 64 * r;
            __m512i low = _mm512_srli_epi32(split_part(&a), 16);
            __m512i high = _mm512_srli_epi32(split_part(&c), 16);
            _mm256_store_si256((__m256i *)to, _mm512_cvtepi32_epi16(low));
            _mm256_store_si256((__m256i *)to + 1, _mm512_cvtepi32_epi16(high));
        }
    }
}

/* ---- products ----------------------------------------------------------------------------- */

/* acc[i] += the products c[i] of one block with its scales applied. sums: of the block, by token.
 */
INLINE void wide_combine(const int type, const float *c, const float *scales, const float *sums,
                         __m512 acc[16])
{
    if (!PANEL_TYPE(type)) {
        UNROLLED
        for (int i = 0; i < 16; i++)
            acc[i] = _mm512_add_ps(_mm512_load_ps(c + 16 * i), acc[i]);
        return;
    }
    __m512 d = _mm512_load_ps(scales), middle = _mm512_load_ps(scales + PANEL);
    UNROLLED
    for (int i = 0; i < 16; i++) {
        acc[i] = _mm512_fmadd_ps(_mm512_load_ps(c + 16 * i), d, acc[i]);
        if (HAS_MINIMUM(type))
            acc[i] = _mm512_fmadd_ps(middle, _mm512_set1_ps(sums[i]), acc[i]);
    }
}

/* A sum that each block is added to in turn is rounded at its full size K / 32 times, twice with
 * offsets: in one probe of eighty some output was then more than 4 times as wrong as eager's, and
 * the kernel refused. So FLUSH blocks are summed apart and join the total in `out`: errors a
 * quarter smaller, below eager's, for 1 % of the time (Q4_1, K = 1536; Xeon with AMX, 2026-11). */
enum { FLUSH = 16 };

/* The sums of a group of blocks up to `end` join the total, and begin anew; the last stay. */
INLINE void wide_flush(__m512 acc[16], int end, float *out, int64_t ldo)
{
    if (end == K / BLOCK)
        return;
    UNROLLED
    for (int i = 0; i < 16; i++) {
        __m512 total = end > FLUSH ? _mm512_loadu_ps(out + i * ldo) : _mm512_setzero_ps();
        _mm512_storeu_ps(out + i * ldo, _mm512_add_ps(total, acc[i]));
        acc[i] = _mm512_setzero_ps();
    }
}

/* The total with what is left in `acc`, brought back to the tokens' own scale. */
INLINE void wide_store(const __m512 acc[16], const float *back, float *out, int64_t ldo)
{
    UNROLLED
    for (int i = 0; i < 16; i++) {
        __m512 sum = acc[i];
        if (K / BLOCK > FLUSH)
            sum = _mm512_add_ps(_mm512_loadu_ps(out + i * ldo), sum);
        _mm512_storeu_ps(out + i * ldo,
                         _mm512_mul_ps(_mm512_mul_ps(sum, _mm512_set1_ps(back[2 * i])),
                                       _mm512_set1_ps(back[2 * i + 1])));
    }
}

/* out[i * ldo + r] = token (t0 + i) . row r of the 16 of panel `slot`, for the tile at t0. The
 * products of a block are combined LAG blocks later, when the tile unit has long stored them. */
INLINE void wide_tile_panel(const struct wide *w, const int type, int slot, int t0, float *out,
                            int64_t ldo)
{
    enum { BLOCKS = K / BLOCK, LAG = 3 };
    const uint8_t *x = w->tiles + t0 / TILE * wide_tile_bytes();
    const uint8_t *panel = w->panels + slot * wide_panel_bytes(type);
    const float *scales = (const float *)(panel + wide_panel_scales(type));
    const float *sums = (const float *)(x + (int64_t)BLOCKS * XPARTS * TILE_BYTES);
    const float *back = wide_back(x);
    float product[LAG + 1][16 * 16] __attribute__((aligned(64)));
    __m512 acc[16];
    UNROLLED
    for (int i = 0; i < 16; i++)
        acc[i] = _mm512_setzero_ps();
    for (int b = -LAG, end = 0; end < BLOCKS;) {
        end = end + FLUSH < BLOCKS ? end + FLUSH : BLOCKS;
        for (; b < end; b++) {
            const int ahead = b + LAG;
            if (ahead < BLOCKS)
                amx_product(TILE_PARTS(type), XPARTS,
                            panel + (int64_t)ahead * TILE_PARTS(type) * TILE_BYTES,
                            x + (int64_t)ahead * XPARTS * TILE_BYTES, product[ahead % (LAG + 1)]);
            if (b >= 0)
                wide_combine(type, product[b % (LAG + 1)], scales + b * 2 * PANEL, sums + b * PANEL,
                             acc);
        }
        wide_flush(acc, end, out, ldo);
    }
    wide_store(acc, back, out, ldo);
}

/* The same for the two panels from `slot` on: x is loaded once for both, 10-18 % faster (Xeon with
 * AMX, 2026-11). One-part weights only. */
INLINE void wide_tile_panel2(const struct wide *w, const int type, int slot, int t0, float *out,
                             int64_t ldo)
{
    enum { BLOCKS = K / BLOCK, LAG = 2 };
    const uint8_t *x = w->tiles + t0 / TILE * wide_tile_bytes();
    const uint8_t *one = w->panels + slot * wide_panel_bytes(type);
    const uint8_t *two = one + wide_panel_bytes(type);
    const float *scales = (const float *)(one + wide_panel_scales(type));
    const float *scales2 = (const float *)(two + wide_panel_scales(type));
    const float *sums = (const float *)(x + (int64_t)BLOCKS * XPARTS * TILE_BYTES);
    const float *back = wide_back(x);
    float product[LAG + 1][2][16 * 16] __attribute__((aligned(64)));
    __m512 acc[16], acc2[16];
    UNROLLED
    for (int i = 0; i < 16; i++)
        acc[i] = acc2[i] = _mm512_setzero_ps();
    for (int b = -LAG, end = 0; end < BLOCKS;) {
        end = end + FLUSH < BLOCKS ? end + FLUSH : BLOCKS;
        for (; b < end; b++) {
            const int ahead = b + LAG;
            if (ahead < BLOCKS)
                amx_product2(XPARTS, one + (int64_t)ahead * TILE_BYTES,
                             two + (int64_t)ahead * TILE_BYTES,
                             x + (int64_t)ahead * XPARTS * TILE_BYTES,
                             product[ahead % (LAG + 1)][0], product[ahead % (LAG + 1)][1]);
            if (b < 0)
                continue;
            const float *c = product[b % (LAG + 1)][0];
            wide_combine(type, c, scales + b * 2 * PANEL, sums + b * PANEL, acc);
            wide_combine(type, c + 256, scales2 + b * 2 * PANEL, sums + b * PANEL, acc2);
        }
        wide_flush(acc, end, out, ldo);
        wide_flush(acc2, end, out + PANEL, ldo);
    }
    wide_store(acc, back, out, ldo);
    wide_store(acc2, back, out + PANEL, ldo);
}

/* out[i * ldo + r] for the tokens from t0 to the end of their tile and the rows of `panels` panels
 * from `slot`; returns how many tokens are real. */
INLINE int wide_tile(const struct wide *w, const int type, int slot, int panels, int t0, float *out,
                     int64_t ldo)
{
    int p = 0;
    for (; TILE_PARTS(type) == 1 && p + 2 <= panels; p += 2)
        wide_tile_panel2(w, type, slot + p, t0, out + p * PANEL, ldo);
    for (; p < panels; p++)
        wide_tile_panel(w, type, slot + p, t0, out + p * PANEL, ldo);
    return w->t1 - t0 < TILE ? w->t1 - t0 : TILE;
}

#endif
