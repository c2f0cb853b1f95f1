/* SPDX-License-Identifier: Apache-2.0 */
/* mlp_in_wide.c - mlp_in for many tokens: n = rmsnorm(x) * norm; h = silu(n Wg^T) * (n Wu^T).
 *
 * x [M, HIDDEN], Wg and Wu [FFN, HIDDEN], h [M, FFN]. Compute-bound. A unit is the same PANELS
 * panels of gate and up, so SiLU and product happen on a tile of sums in the first-level cache. The
 * products are lib/wide.h's.
 *
 * Invariant: (token, row) pairs of h are divided among ranks; each is written by one rank only.
 */
#include "cpu/lib/shape.h"

/* ---- knobs -------------------------------------------------------------------------------- */

/* cpu/mlp_in_wide.def has them; whoever compiles this gives each a value. */

/* ---- legality ----------------------------------------------------------------------------- */

#define KNOB(name, role, value, values, help) _Static_assert((name) == (name), "has a value");
#define LEGAL(expression, why) _Static_assert(expression, why);
#include "cpu/mlp_in_wide.def"

/* ---- code --------------------------------------------------------------------------------- */

enum { K = HIDDEN, UNIT = PANELS * 16 };

#include "cpu/lib/vexp.h"
#include "cpu/lib/wide.h"

/* h[t0 .. t0+tokens, n .. n+count) = silu(gate) * up */
INLINE void finish(const struct mlp_in_args *a, int t0, int tokens, int n, int count,
                   const float *gate, const float *up)
{
    for (int t = 0; t < tokens; t++) {
        float *h = a->h + (int64_t)(t0 + t) * FFN + n;
        float out[UNIT];
        for (int i = 0; i < UNIT; i += LANES)
            vf_store(out + i,
                     vf_silu_mul(vf_load(gate + t * UNIT + i), vf_load(up + t * UNIT + i)));
        for (int i = 0; i < count; i++)
            h[i] = out[i];
    }
}

/* Gate and up have slots of the larger format's size each. */
#define WTYPE_LARGE (TILE_PARTS(WTYPE) > TILE_PARTS(WTYPE_2) || PANEL_TYPE(WTYPE) ? WTYPE : WTYPE_2)

static void run(const void *args, const struct team *team)
{
    const struct mlp_in_args *a = args;
    struct wide w, w2;
    float gate[TILE * UNIT] = {0}, up[TILE * UNIT] = {0};
    wide_begin(&w, team, (FFN + UNIT - 1) / UNIT, a->x, NULL, a->m, a->norm, a->eps, WTYPE_LARGE,
               2 * PANELS);
    w2 = w;
    w2.panels += PANELS * wide_panel_bytes(WTYPE);
    amx_begin();
    for (int u = share_first(&w.units); u < w.units.end; u = share_next(&w.units, u)) {
        int n = u * UNIT, left = FFN - n, count = left < UNIT ? left : UNIT;
        int panels = (count + PANEL - 1) / PANEL;
        wide_expand(&w, WTYPE, &a->gate, n, count, 0);
        wide_expand(&w2, WTYPE_2, &a->up, n, count, 0);
        for (int t = w.t0, tokens; t < w.t1; t += tokens) {
            tokens = wide_tile(&w, WTYPE, 0, panels, t, gate, UNIT);
            wide_tile(&w2, WTYPE_2, 0, panels, t, up, UNIT);
            finish(a, t, tokens, n, count, gate, up);
        }
    }
    amx_end();
}

static int64_t scratch_bytes(int32_t m, int32_t size)
{
    return wide_scratch(WTYPE_LARGE, m, size, 1, 2 * PANELS);
}

/* ---- entry -------------------------------------------------------------------------------- */

const struct cpu_kernel whet_kernel = {
    .abi = WHET_CPU_ABI,
    .region = REGION_MLP_IN,
    .m_max = M_MAX,
    .run = run,
    .scratch_bytes = scratch_bytes,
#if PACK
    .layout = PANEL_LAYOUT,
    .packed_bytes = panel_packed_bytes,
    .pack = panel_pack,
#endif
};
