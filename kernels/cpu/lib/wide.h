/* SPDX-License-Identifier: Apache-2.0 */
/* wide.h - the linear layer for many tokens: tiles of tokens times panels of 16 rows.
 *
 * Reads the knobs ISA, PACK, TOKENS, COLS, CHUNK, XPARTS and SPLIT of the template that includes
 * it, and K, its constant number of columns. Weights are expanded a few panels at a time into the
 * rank's scratch, where they stay in the second-level cache while all tokens of the rank pass by
 * (expand.h). Then, per tile of tokens,
 *
 *   float ISAs  TOKENS x COLS accumulators of 16 rows, one broadcast x and one multiply-add each
 *               per k
 *   AMX         16 tokens x 16 rows. Activations are split into XPARTS bf16 parts (3: exact), so a
 *               block of 32 columns is XPARTS tile products per weight part, summed in float by
 *               the tile unit. For quantized formats the integers are multiplied and the block's
 *               scales applied to the tile's sums: 1 multiply-add for 32
 *
 * Products of parts below 2^-24 are left out. Rows of x are scaled by a power of two to have their
 * largest value near 1, because the tile unit takes subnormal numbers for 0.
 *
 * SPLIT 0, 1: ranks share the units of rows, after preparing x together; 2: each rank does all
 * rows for its own tokens, needs no barrier, and expands weights for itself.
 */
#ifndef WHET_KERNELS_CPU_LIB_WIDE_H
#define WHET_KERNELS_CPU_LIB_WIDE_H

#include "cpu/lib/expand.h"
#include "cpu/lib/norm.h"
#include "cpu/lib/shape.h"
#include "cpu/lib/share.h"
#include "cpu/lib/tile.h"

#define TILED (ISA == ISA_AMX)
enum { TILE = TILED ? 16 : TOKENS };

/* ---- scratch ------------------------------------------------------------------------------ */

#define ROUND64(n) (((n) + 63) & ~(int64_t)63)

/* Bytes of one expanded panel of K columns, and where its scales begin. */
INLINE int64_t wide_panel_scales(const int type)
{
    return TILED ? (int64_t)(K / BLOCK) * TILE_PARTS(type) * TILE_BYTES : (int64_t)K * PANEL * 4;
}

INLINE int64_t wide_panel_bytes(const int type)
{
    return wide_panel_scales(type) +
           (TILED && PANEL_TYPE(type) ? (int64_t)(K / BLOCK) * 2 * PANEL * 4 : 0);
}

/* A tile of 16 tokens in parts: [K/32][XPARTS] tiles, [K/32][16] sums, [16][2] row scales. */
enum { WIDE_SUM = PANEL * 4, WIDE_SCALES = 2 * PANEL * 4 };
INLINE int64_t wide_tile_bytes(void)
{
    return (int64_t)(K / BLOCK) * (XPARTS * TILE_BYTES + WIDE_SUM) + WIDE_SCALES;
}

INLINE int64_t wide_input_bytes(int m, int normed)
{
    if (TILED)
        return (m + TILE - 1) / TILE * wide_tile_bytes();
    return normed ? ROUND64((int64_t)m * K * 4) : 0;
}

/* Input of all tokens, then the expanded panels of each rank: `panels` of K columns. */
INLINE int64_t wide_scratch(const int type, int m, int size, int normed, int panels)
{
    return wide_input_bytes(m, normed) + size * panels * wide_panel_bytes(type);
}

/* ---- who does what ------------------------------------------------------------------------ */

struct wide {
    struct share units; /* of rows */
    int t0, t1;         /* tokens; t0 is a multiple of TILE */
    const float *x;     /* float ISAs: [m, K] */
    uint8_t *tiles;     /* AMX */
    uint8_t *panels;    /* the rank's expanded panels */
};

/* Tokens [from, to) of the rank, in whole tiles. */
INLINE void wide_tokens(const struct team *team, int m, int *from, int *to)
{
    int tiles = (m + TILE - 1) / TILE;
    *from = (int)((int64_t)tiles * team->rank / team->size) * TILE;
    *to = (int)((int64_t)tiles * (team->rank + 1) / team->size) * TILE;
    *to = *to < m ? *to : m;
}

#if TILED

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

/* Token t as a row of its tile; t >= m fills the last tile with zeros. */
INLINE void wide_row(uint8_t *tiles, int t, int m, const float *x, const float *gain, float eps)
{
    float row[K];
    uint8_t *tile = tiles + t / TILE * wide_tile_bytes();
    float *scale = (float *)(tile + wide_tile_bytes() - WIDE_SCALES) + t % TILE * 2;
    for (int i = 0; t >= m && i < K; i++)
        row[i] = 0;
    if (t < m && gain)
        norm_row(row, x + (int64_t)t * K, gain, K, eps, 0, K);
    else if (t < m)
        __builtin_memcpy(row, x + (int64_t)t * K, sizeof row);
    float top = largest(row, K);
    int e = top > 0 ? exponent_of(top) : 0;
    float down = pow2(-e / 2), down2 = pow2(-e - -e / 2);
    for (int i = 0; i < K; i++)
        row[i] = row[i] * down * down2;
    scale[0] = pow2(e / 2);
    scale[1] = pow2(e - e / 2);
    wide_split(tile, t % TILE, row);
}

#endif

/* Makes the input ready and says what is the rank's. `units` units of rows. */
INLINE void wide_begin(struct wide *w, const struct team *team, int units, const float *x, int m,
                       const float *gain, float eps, const int type, int panels)
{
    uint8_t *at = team->scratch;
    int64_t input = wide_input_bytes(m, gain != NULL);
    int from, to;
    wide_tokens(team, m, &from, &to);
    w->x = x;
    w->tiles = at;
    w->panels = at + input + team->rank * panels * wide_panel_bytes(type);
#if TILED
    for (int t = from; t < to || (t > from && t % TILE); t++)
        wide_row(at, t, m, x, gain, eps);
#else
    if (gain) {
        w->x = (float *)at;
        for (int t = from; t < to; t++)
            norm_row((float *)at + (int64_t)t * K, x + (int64_t)t * K, gain, K, eps, 0, K);
    }
#endif
    if (SPLIT < 2 && (TILED || gain))
        team->barrier(team);
    w->units = SPLIT < 2 ? share_groups(team, units, SPLIT) : (struct share){0, units, 1};
    w->t0 = SPLIT < 2 ? 0 : from;
    w->t1 = SPLIT < 2 ? m : to;
}

/* ---- weights ------------------------------------------------------------------------------ */

/* Expands the panels of rows [row0, row0 + count) into panel slot `slot` and the following. */
INLINE void wide_expand(const struct wide *w, const int type, const struct weight *weight, int row0,
                        int count, int slot)
{
    for (int p = 0; p * PANEL < count; p++) {
        struct panel_source s = panel_source(type, PACK, weight, K, row0 + p * PANEL);
        uint8_t *to = w->panels + (slot + p) * wide_panel_bytes(type);
        for (int b = 0; b < K / BLOCK; b++) {
#if TILED
            expand_tiles(type, PACK, &s, b, to + (int64_t)b * TILE_PARTS(type) * TILE_BYTES,
                         (float *)(to + wide_panel_scales(type)) + b * 2 * PANEL);
#else
            expand_floats(type, PACK, &s, b, (float *)to + b * BLOCK * PANEL);
#endif
        }
    }
}

/* ---- products ----------------------------------------------------------------------------- */

#if TILED

#include "cpu/lib/amx.h"

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
        if (type == DTYPE_Q4_1)
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
    const float *back = (const float *)(x + wide_tile_bytes() - WIDE_SCALES);
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
    const float *back = (const float *)(x + wide_tile_bytes() - WIDE_SCALES);
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

#else

#define amx_begin()
#define amx_end()

/* One register tile over all of K. Sums of CHUNK products are added up apart, which keeps rounding
 * errors near those of the 16 lanes of the canonical order. */
INLINE void wide_floats(const float *panel, const int panels, const float *x, const int tokens,
                        float *out, int64_t ldo)
{
    for (int k = 0; k < K; k += CHUNK)
        tile_floats(tokens, panels, K - k < CHUNK ? K - k : CHUNK, x + k, K, panel + k * PANEL,
                    (int64_t)K * PANEL, PANEL, out, ldo, k > 0);
}

/* `tokens` tokens (a constant) by any number of neighbouring panels. */
INLINE void wide_across(const float *panel, int panels, const float *x, const int tokens,
                        float *out, int64_t ldo)
{
    int p = 0;
    for (; p + COLS <= panels; p += COLS)
        wide_floats(panel + (int64_t)p * K * PANEL, COLS, x, tokens, out + p * PANEL, ldo);
    for (; COLS > 1 && p < panels; p++)
        wide_floats(panel + (int64_t)p * K * PANEL, 1, x, tokens, out + p * PANEL, ldo);
}

INLINE int wide_tile(const struct wide *w, const int type, int slot, int panels, int t0, float *out,
                     int64_t ldo)
{
    const int left = w->t1 - t0, tokens = left < TILE ? left : TILE;
    const float *panel = (const float *)(w->panels + slot * wide_panel_bytes(type));
    const float *x = w->x + (int64_t)t0 * K;
    if (tokens == TILE) {
        wide_across(panel, panels, x, TILE, out, ldo);
        return TILE;
    }
    int t = 0;
    for (; TILE > 4 && t + 4 <= tokens; t += 4)
        wide_across(panel, panels, x + (int64_t)t * K, 4, out + t * ldo, ldo);
    for (; t < tokens; t++)
        wide_across(panel, panels, x + (int64_t)t * K, 1, out + t * ldo, ldo);
    return tokens;
}

#endif

#endif
