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

/* Called before block b of panel p is read. A panel is two streams, of quants and of scales, and
 * neither is asked for by itself: what is behind both, `ahead` bytes behind the first scales of the
 * last of the panels in flight, is, in the order of addresses. The processor sees that stream and
 * runs ahead of it. It goes into the second-level cache: it may be far away, and a line on its way
 * to the first holds one of its few buffers until it is there. ARM was not measured
 * (docs/lab/2026-11-30-cpu-rows-memory.md). */
INLINE void panels_ask(const int type, const uint8_t *w, int64_t stride, const int panels,
                       const int blocks, int b, const int p, const int ahead)
{
    if (!ahead)
        return;
#if ISA >= ISA_NEON
    (void)panels, (void)blocks;
    const int bytes = PANEL_QUANTS(type);
    const uint8_t *from = w + p * stride + (int64_t)b * bytes + ahead;
    for (int i = 0; i < bytes; i += 64)
        __builtin_prefetch(from + i);
#else
    const int bytes = PANEL_QUANTS(type) + PANEL_SCALES(type);
    const uint8_t *from = w + (panels - 1) * stride + (int64_t)blocks * PANEL_QUANTS(type) + ahead;
    from += (int64_t)(b * panels + p) * bytes;
    for (int i = 0; i < bytes; i += 64)
        __builtin_prefetch(from + i, 0, 2);
#endif
}

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
            panels_ask(type, w, stride, panels, blocks, b, p, ahead);
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
