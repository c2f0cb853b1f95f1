/* SPDX-License-Identifier: Apache-2.0 */
/* neon_wide.h - the linear layer for many tokens in int8 products of ARM. Included by wide.h, whose
 * functions it offers.
 *
 * Panels are multiplied as they lie in the packed weights (neon_panel.h): their bytes stay in the
 * first-level cache while all tokens pass by, TOKENS at a time, and nothing is expanded. A slot of
 * the rank's scratch holds no panel, but says where it is. Activations become digits (digits.h)
 * once, for all ranks.
 *
 * Beside products of float32, which eager takes for many tokens, three digits are enough: what they
 * leave out is 2^-22 of a block's largest value.
 */
#ifndef WHET_KERNELS_CPU_LIB_NEON_WIDE_H
#define WHET_KERNELS_CPU_LIB_NEON_WIDE_H

#include "cpu/lib/expand.h"
#include "cpu/lib/norm.h"
#include "cpu/lib/shape.h"
#include "cpu/lib/taken.h"

enum { TILE = TOKENS, WIDE_SLOT = 64 }; /* a slot is a cache line: ranks share none */

#define amx_begin()
#define amx_end()

struct wide {
    struct share units; /* of rows */
    int t0, t1;         /* tokens */
    uint8_t *digits;    /* of all tokens */
    uint8_t *panels;    /* the rank's slots */
};

INLINE int64_t wide_panel_bytes(const int type)
{
    (void)type;
    return WIDE_SLOT;
}

INLINE int64_t wide_scratch(const int type, int m, int size, int normed, int panels)
{
    (void)normed;
    return digits_bytes(K, DIGITS, m) + size * panels * wide_panel_bytes(type);
}

/* Digits of tokens [from, to). */
INLINE void wide_prepare(uint8_t *at, const float *x, const int32_t *row, int from, int to,
                         const float *gain, float eps)
{
    float normed[K];
    for (int t = from; t < to; t++) {
        const float *token = x + (int64_t)(row ? row[t] : t) * K;
        if (gain)
            norm_row(normed, token, gain, K, eps, 0, K);
        digits_fill(at, K, DIGITS, t, gain ? normed : token, 0, K / BLOCK);
    }
}

INLINE void wide_begin(struct wide *w, const struct team *team, int units, const float *x,
                       const int32_t *row, int m, const float *gain, float eps, const int type,
                       int panels)
{
    const int from = (int)((int64_t)m * team->rank / team->size);
    const int to = (int)((int64_t)m * (team->rank + 1) / team->size);
    w->digits = team->scratch;
    w->panels = w->digits + digits_bytes(K, DIGITS, m) +
                (int64_t)team->rank * panels * wide_panel_bytes(type);
    wide_prepare(w->digits, x, row, from, to, gain, eps);
    if (SPLIT < 2)
        team->barrier(team);
    w->units = SPLIT < 2 ? share_taken(team, units, SPLIT) : (struct share){0, units, 1, {0}};
    w->t0 = SPLIT < 2 ? 0 : from;
    w->t1 = SPLIT < 2 ? m : to;
}

/* Stores in slot `slot` and the following where the panels of rows [row0, row0 + count) are. */
INLINE void wide_expand(const struct wide *w, const int type, const struct weight *weight, int row0,
                        int count, int slot)
{
    const uint8_t *panel = (const uint8_t *)weight->packed + row0 / PANEL * panel_bytes(type, K);
    for (int p = 0; p * PANEL < count; p++, panel += panel_bytes(type, K))
        __builtin_memcpy(w->panels + (slot + p) * WIDE_SLOT, &panel, sizeof panel);
}

/* out[i * ldo + r] for up to TOKENS tokens from t0 on and the rows of `panels` panels from `slot`;
 * returns how many tokens. */
INLINE int wide_tile(const struct wide *w, const int type, int slot, int panels, int t0, float *out,
                     int64_t ldo)
{
    const int left = w->t1 - t0, tokens = left < TOKENS ? left : TOKENS;
    struct digits row[TOKENS];
    for (int i = 0; i < tokens; i++)
        row[i] = digits_row(w->digits, K, DIGITS, t0 + i);
    for (int p = 0; p < panels; p++) {
        const uint8_t *panel;
        __builtin_memcpy(&panel, w->panels + (slot + p) * WIDE_SLOT, sizeof panel);
        panel_dot_all(type, DIGITS, panel, 0, 1, row, tokens, TOKENS, K, 0, out + p * PANEL, ldo);
    }
    return tokens;
}

#endif
