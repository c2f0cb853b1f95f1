/* SPDX-License-Identifier: Apache-2.0 */
/* out_wide.c - attn_out and mlp_out for many tokens: y = in W^T + x.
 *
 * in [M, K], W [HIDDEN, K], x and y [M, HIDDEN]; K = HEADS*HEAD_DIM for attn_out, FFN for mlp_out.
 * Compute-bound: 2 M K HIDDEN operations over (M + HIDDEN) K values. The products are lib/wide.h's;
 * here a tile of sums meets its residual.
 *
 * Invariant: (token, row) pairs of y are divided among ranks; each is written by one rank only.
 */
#include "cpu/lib/shape.h"

/* ---- knobs -------------------------------------------------------------------------------- */

/* cpu/out_wide.def has them; whoever compiles this gives each a value. */

/* ---- legality ----------------------------------------------------------------------------- */

#define KNOB(name, role, value, values, help) _Static_assert((name) == (name), "has a value");
#define LEGAL(expression, why) _Static_assert(expression, why);
#include "cpu/out_wide.def"

/* ---- code --------------------------------------------------------------------------------- */

enum { K = REGION == REGION_ATTN_OUT ? HEADS * HEAD_DIM : FFN, UNIT = PANELS * 16 };

#include "cpu/lib/wide.h"

/* y[t0 .. t0+tokens, n .. n+count) = dot + x */
INLINE void finish(const struct out_args *a, int t0, int tokens, int n, int count, const float *dot)
{
    for (int t = 0; t < tokens; t++) {
        const float *x = a->x + (int64_t)(t0 + t) * HIDDEN + n;
        float *y = a->y + (int64_t)(t0 + t) * HIDDEN + n;
        for (int i = 0; i < count; i++)
            y[i] = dot[t * UNIT + i] + x[i];
    }
}

static void run(const void *args, const struct team *team)
{
    const struct out_args *a = args;
    struct wide w;
    float dot[TILE * UNIT] __attribute__((aligned(64)));
    wide_begin(&w, team, (HIDDEN + UNIT - 1) / UNIT, a->in, NULL, a->m, NULL, 0.0f, WTYPE, PANELS);
    amx_begin();
    for (int u = share_first(&w.units); u < w.units.end; u = share_next(&w.units, u)) {
        int n = u * UNIT, left = HIDDEN - n, count = left < UNIT ? left : UNIT;
        wide_expand(&w, WTYPE, &a->w, n, count, 0);
        for (int t = w.t0, tokens; t < w.t1; t += tokens) {
            tokens = wide_tile(&w, WTYPE, 0, (count + PANEL - 1) / PANEL, t, dot, UNIT);
            finish(a, t, tokens, n, count, dot);
        }
    }
    amx_end();
}

static int64_t scratch_bytes(int32_t m, int32_t size)
{
    return wide_scratch(WTYPE, m, size, 0, PANELS);
}

/* ---- entry -------------------------------------------------------------------------------- */

const struct cpu_kernel whet_kernel = {
    .abi = WHET_CPU_ABI,
    .region = REGION,
    .m_max = M_MAX,
    .run = run,
    .scratch_bytes = scratch_bytes,
#if PACK
    .layout = PANEL_LAYOUT,
    .packed_bytes = panel_packed_bytes,
    .pack = panel_pack,
#endif
};
