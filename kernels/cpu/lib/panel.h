/* SPDX-License-Identifier: Apache-2.0 */
/* panel.h - weights repacked in panels of 16 rows, multiplied with activations in digits.
 *
 * One vector of a panel's quants (panel_pack.h) has 4 consecutive k of all 16 rows, so one vpdpbusd
 * multiplies them with a broadcast dword of x, and the 16 results are lanes of one vector: no
 * horizontal sums, and scales are applied 16 at a time.
 *
 * Quants are centred before they are summed (Q4_1: w = d (q - 8) + (m + 8 d)): the sums then stay
 * small where activations share a large mean, instead of cancelling against m.
 * Sums of a block are exact integers; over blocks they are added in float in rising order. For
 * D digits a block costs 8 D dot instructions for 512 weights (16 rows) a token. Those of Q2_K,
 * Q3_K and Q6_K, whose blocks have two scales, are two sums of half the products. Four bits that
 * stand for the numbers of a table are looked up as bytes first.
 */
#ifndef WHET_KERNELS_CPU_LIB_PANEL_H
#define WHET_KERNELS_CPU_LIB_PANEL_H

#include "cpu/lib/digits.h"
#include "cpu/lib/panel_pack.h"

enum { PANEL_TOKENS_MOST = 8 };

/* panel_block() is the instruction set's own; all around it is written once. */

#if ISA >= ISA_DOTPROD

#include "cpu/lib/neon_panel.h"

#elif ISA == ISA_AVX2

#include "cpu/lib/avx2_panel.h"

#elif ISA >= ISA_AVX512 && ISA < ISA_NEON

#include "cpu/lib/avx512_panel.h"

#endif

#if ISA >= ISA_DOTPROD || ISA == ISA_VNNI || ISA == ISA_AMX || ISA == ISA_AVX2

/* out[t][p * 16 + lane] for `panels` neighbouring panels from `w` and `tokens` tokens. */
INLINE void panel_dot(const int type, const int d, const uint8_t *w, int64_t stride,
                      const int panels, const struct digits *x, const int tokens, const int k,
                      const int ahead, float *out, int64_t ldo)
{
    const int blocks = k / BLOCK;
    vf acc[4][PANEL_TOKENS_MOST];
    UNROLLED
    for (int p = 0; p < panels; p++) {
        UNROLLED
        for (int t = 0; t < tokens; t++)
            acc[p][t] = vf_zero();
    }
    for (int b = 0; b < blocks; b++) {
        UNROLLED
        for (int p = 0; p < panels; p++) {
            const uint8_t *panel = w + p * stride;
            for (int i = 0; ahead && i < PANEL_QUANTS(type); i += 64)
                __builtin_prefetch(panel + (int64_t)b * PANEL_QUANTS(type) + i + ahead, 0,
                                   PANELS_INTO);
            panel_block(type, d, panel, blocks, b, x, tokens, acc[p]);
        }
    }
    UNROLLED
    for (int p = 0; p < panels; p++) {
        UNROLLED
        for (int t = 0; t < tokens; t++) {
            vf scaled = vf_mul(acc[p][t], vf_set(x[t].scale[0]));
            vf_store(out + t * ldo + p * PANEL, vf_mul(scaled, vf_set(x[t].scale[1])));
        }
    }
}

/* The same for any m: tiles of `tile` tokens, then of 4, 2 and 1 for the rest. */
INLINE void panel_dot_all(const int type, const int d, const uint8_t *w, int64_t stride,
                          const int panels, const struct digits *x, int m, const int tile,
                          const int k, const int ahead, float *out, int64_t ldo)
{
    for (int t = 0; t < m;) {
        int left = m - t;
        float *to = out + t * ldo;
        if (left >= tile) {
            panel_dot(type, d, w, stride, panels, x + t, tile, k, ahead, to, ldo);
            t += tile;
        } else if (tile > 4 && left >= 4) {
            panel_dot(type, d, w, stride, panels, x + t, 4, k, ahead, to, ldo);
            t += 4;
        } else if (tile > 2 && left >= 2) {
            panel_dot(type, d, w, stride, panels, x + t, 2, k, ahead, to, ldo);
            t += 2;
        } else {
            panel_dot(type, d, w, stride, panels, x + t, 1, k, ahead, to, ldo);
            t += 1;
        }
    }
}

#endif

#endif
