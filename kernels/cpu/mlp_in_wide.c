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

enum { LDO = 2 * UNIT }; /* sums of a token: of gate, then of up */

/* h[t0 .. t0+tokens, n .. n+count) = silu(gate) * up */
INLINE void finish(const struct mlp_in_args *a, int t0, int tokens, int n, int count,
                   const float *gate, const float *up)
{
    for (int t = 0; t < tokens; t++) {
        float *h = a->h + (int64_t)(t0 + t) * FFN + n;
        float out[UNIT];
        for (int i = 0; i < UNIT; i += LANES)
            vf_store(out + i, vf_silu_mul(vf_load(gate + t * LDO + i), vf_load(up + t * LDO + i)));
        for (int i = 0; i < count; i++)
            h[i] = out[i];
    }
}

/* Panels of both formats in slots of the larger one's size. */
#define WTYPE_LARGE WIDE_LARGER(WTYPE, WTYPE_2)

/* The sums of the tile at token t; up's panels are behind those of gate. Of one format they are
 * multiplied as one matrix: the products stand in the object once, and a register tile may have
 * rows of both. Returns how many of its tokens are real. */
INLINE int both_sums(const struct wide *gate, const struct wide *up, int panels, int t, float *dot)
{
    if (WTYPE == WTYPE_2)
        return wide_tile(gate, WTYPE, 0, 2 * panels, t, dot, LDO);
    wide_tile(up, WTYPE_2, 0, panels, t, dot + panels * PANEL, LDO);
    return wide_tile(gate, WTYPE, 0, panels, t, dot, LDO);
}

static void run(const void *args, const struct team *team)
{
    const struct mlp_in_args *a = args;
    struct wide gate, up;
    float dot[TILE * LDO] __attribute__((aligned(64))) = {0};
    wide_begin(&gate, team, (FFN + UNIT - 1) / UNIT, a->x, NULL, a->m, a->norm, a->eps, WTYPE_LARGE,
               2 * PANELS);
    up = gate;
    amx_begin();
    for (int u = share_first(&gate.units); u < gate.units.end; u = share_next(&gate.units, u)) {
        int n = u * UNIT, left = FFN - n, count = left < UNIT ? left : UNIT;
        int panels = (count + PANEL - 1) / PANEL;
        up.panels = gate.panels + panels * wide_panel_bytes(WTYPE);
        wide_expand(&gate, WTYPE, &a->gate, n, count, 0);
        wide_expand(&up, WTYPE_2, &a->up, n, count, 0);
        for (int t = gate.t0, tokens; t < gate.t1; t += tokens) {
            tokens = both_sums(&gate, &up, panels, t, dot);
            finish(a, t, tokens, n, count, dot, dot + panels * PANEL);
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
