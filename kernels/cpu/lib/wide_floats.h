/* SPDX-License-Identifier: Apache-2.0 */
/* wide_floats.h - tiles of tokens times panels of 16 rows by float multiply-adds: TOKENS x COLS
 * accumulators of 16 rows, one broadcast x and one multiply-add each per k. Part of wide.h.
 */
#ifndef WHET_KERNELS_CPU_LIB_WIDE_FLOATS_H
#define WHET_KERNELS_CPU_LIB_WIDE_FLOATS_H

#include "cpu/lib/tile.h"

INLINE int64_t wide_panel_bytes(const int type)
{
    (void)type;
    return (int64_t)K * PANEL * 4;
}

INLINE void wide_expand_block(const int type, const struct panel_source *s, int b, uint8_t *panel)
{
    expand_floats(type, PACK, s, b, (float *)panel + b * BLOCK * PANEL);
}

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
        wide_floats(panel + (int64_t)p * K * PANEL, COLS, x, tokens, out + (int64_t)p * PANEL, ldo);
    for (; COLS > 1 && p < panels; p++)
        wide_floats(panel + (int64_t)p * K * PANEL, 1, x, tokens, out + (int64_t)p * PANEL, ldo);
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
