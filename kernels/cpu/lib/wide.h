/* SPDX-License-Identifier: Apache-2.0 */
/* wide.h - the linear layer for many tokens: tiles of tokens times panels of 16 rows.
 *
 * Reads the knobs ISA, PACK, TOKENS, COLS, CHUNK, DIGITS, XPARTS and SPLIT of the template that
 * includes it, and K, its constant number of columns. Weights are expanded a few panels at a time
 * into the rank's scratch, where they stay in the second-level cache while all tokens of the rank
 * pass by (expand.h). What they are expanded to, and how a tile is multiplied, is one of
 *
 *   wide_floats.h  floats and multiply-adds
 *   wide_digits.h  VNNI: integers, activations in DIGITS 8-bit digits
 *   wide_tiles.h   AMX: bf16 numbers, activations in XPARTS parts
 *
 * each of which brings wide_panel_bytes(), wide_expand_block() and wide_tile(), and the latter two
 * wide_tile_bytes() and wide_split() for activations that are taken apart beforehand. Rows of
 * those are scaled by a power of two to have their largest value near 1: the tile unit takes
 * subnormal numbers for 0, and digits are of fixed point.
 *
 * SPLIT 0, 1: ranks share the units of rows, after preparing x together, a range each or as they
 * come for them; 2: each rank does all rows for its own tokens, needs no barrier, and expands
 * weights for itself.
 */
#ifndef WHET_KERNELS_CPU_LIB_WIDE_H
#define WHET_KERNELS_CPU_LIB_WIDE_H

#include "cpu/lib/isa.h"

/* The format of two whose panels are the larger ones once expanded: slots have their size. */
#define WIDE_LARGER(a, b) (wide_panel_bytes(a) > wide_panel_bytes(b) ? (a) : (b))

#if ISA >= ISA_DOTPROD /* integers: the same functions, otherwise */
#include "cpu/lib/neon_wide.h"
#else

#include "cpu/lib/expand.h"
#include "cpu/lib/norm.h"
#include "cpu/lib/shape.h"
#include "cpu/lib/taken.h"

#define APART \
    (ISA == ISA_AMX || DIGITS) /* activations are taken apart before they are multiplied */
enum { TILE = ISA == ISA_AMX ? 16 : TOKENS };

#define ROUND64(n) (((n) + 63) & ~(int64_t)63)

/* What a rank works on. */
struct wide {
    struct share units; /* of rows */
    int t0, t1;         /* tokens; t0 is a multiple of TILE */
    const float *x;     /* floats: [m, K] */
    uint8_t *tiles;     /* activations taken apart, tile by tile */
    uint8_t *panels;    /* the rank's expanded panels */
};

#if ISA == ISA_AMX
#include "cpu/lib/wide_tiles.h"
#elif DIGITS
#include "cpu/lib/wide_digits.h"
#else
#include "cpu/lib/wide_floats.h"
#endif
#if ISA != ISA_AMX
#define amx_begin()
#define amx_end()
#endif

/* ---- scratch ------------------------------------------------------------------------------ */

INLINE int64_t wide_input_bytes(int m, int normed)
{
#if APART
    (void)normed;
    return (m + TILE - 1) / TILE * wide_tile_bytes();
#else
    return normed ? ROUND64((int64_t)m * K * 4) : 0;
#endif
}

/* Input of all tokens, then the expanded panels of each rank: `panels` of K columns. */
INLINE int64_t wide_scratch(const int type, int m, int size, int normed, int panels)
{
    return wide_input_bytes(m, normed) + size * panels * wide_panel_bytes(type);
}

/* ---- who does what ------------------------------------------------------------------------ */

/* Tokens [from, to) of the rank, in whole tiles. */
INLINE void wide_tokens(const struct team *team, int m, int *from, int *to)
{
    int tiles = (m + TILE - 1) / TILE;
    *from = (int)((int64_t)tiles * team->rank / team->size) * TILE;
    *to = (int)((int64_t)tiles * (team->rank + 1) / team->size) * TILE;
    *to = *to < m ? *to : m;
}

#if APART

/* max |x| of a row, in four sums: one would wait for itself. */
INLINE float wide_top(const float *x)
{
    __m512 top[4];
    UNROLLED
    for (int i = 0; i < 4; i++)
        top[i] = _mm512_setzero_ps();
    int k = 0;
    for (; k + 64 <= K; k += 64) {
        UNROLLED
        for (int i = 0; i < 4; i++)
            top[i] = _mm512_max_ps(top[i], _mm512_abs_ps(_mm512_loadu_ps(x + k + 16 * i)));
    }
    for (; k < K; k += 16)
        top[0] = _mm512_max_ps(top[0], _mm512_abs_ps(_mm512_loadu_ps(x + k)));
    return _mm512_reduce_max_ps(
        _mm512_max_ps(_mm512_max_ps(top[0], top[1]), _mm512_max_ps(top[2], top[3])));
}

/* Token t, which is the row of x at `from`, as a row of its tile. */
INLINE void wide_row(uint8_t *tiles, int t, const float *from, const float *gain, float eps)
{
    float row[K];
    uint8_t *tile = tiles + t / TILE * wide_tile_bytes();
    float *scale = wide_back(tile) + t % TILE * 2;
    if (gain) {
        norm_row(row, from, gain, K, eps, 0, K);
        from = row;
    }
    float top = wide_top(from);
    int e = top > 0 ? exponent_of(top) : 0;
    float down = pow2(-e / 2), down2 = pow2(-e - -e / 2);
    for (int i = 0; i < K; i += 16)
        vf_store(row + i, vf_mul(vf_mul(vf_load(from + i), vf_set(down)), vf_set(down2)));
    scale[0] = pow2(e / 2);
    scale[1] = pow2(e - e / 2);
    wide_split(tile, t % TILE, row);
}

#endif

/* Makes the input ready and says what is the rank's. `units` units of rows. Token t is row row[t]
 * of x, or row t if `row` is null; others are taken with a `gain` only. The last token fills up the
 * last tile. */
INLINE void wide_begin(struct wide *w, const struct team *team, int units, const float *x,
                       const int32_t *row, int m, const float *gain, float eps, const int type,
                       int panels)
{
    uint8_t *at = team->scratch;
    int64_t input = wide_input_bytes(m, gain != NULL);
    int from, to;
    wide_tokens(team, m, &from, &to);
    w->x = x;
    w->tiles = at;
    w->panels = at + input + team->rank * panels * wide_panel_bytes(type);
#if APART
    for (int t = from; t < to || (t > from && t % TILE); t++) {
        const int token = t < m ? t : m - 1;
        wide_row(at, t, x + (int64_t)(row ? row[token] : token) * K, gain, eps);
    }
#else
    if (gain) {
        w->x = (float *)at;
        for (int t = from; t < to; t++)
            norm_row((float *)at + (int64_t)t * K, x + (int64_t)(row ? row[t] : t) * K, gain, K,
                     eps, 0, K);
    }
#endif
    if (SPLIT < 2 && (APART || gain))
        team->barrier(team);
    w->units = SPLIT < 2 ? share_taken(team, units, SPLIT) : (struct share){0, units, 1, {0}};
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
        for (int b = 0; b < K / BLOCK; b++)
            wide_expand_block(type, &s, b, to);
    }
}

#endif

#endif
