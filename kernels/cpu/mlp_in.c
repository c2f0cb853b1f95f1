/* SPDX-License-Identifier: Apache-2.0 */
/* mlp_in.c - mlp_in for a few tokens: n = rmsnorm(x) * norm; h = silu(n Wg^T) * (n Wu^T).
 *
 * x [M, HIDDEN], Wg and Wu [FFN, HIDDEN], h [M, FFN]. Bytes moved: both matrices once. A rank
 * computes the same rows of gate and up, so SiLU and product happen on sums that are still in the
 * first-level cache, 16 at a time. PACK as in lib/linear.h.
 *
 * Invariant: a rank writes the columns of h of its own units of rows, all tokens; nobody else does.
 */
#include "cpu/lib/shape.h"

/* ---- knobs -------------------------------------------------------------------------------- */

/* cpu/mlp_in.def has them; whoever compiles this gives each a value. */

/* ---- legality ----------------------------------------------------------------------------- */

#define KNOB(name, role, value, values, help) _Static_assert((name) == (name), "has a value");
#define LEGAL(expression, why) _Static_assert(expression, why);
#include "cpu/mlp_in.def"

/* ---- code --------------------------------------------------------------------------------- */

#include "cpu/lib/linear.h"
#include "cpu/lib/vexp.h"

enum { UNIT = WIDE > 16 ? WIDE : 16 }; /* rows of gate and up that are finished together */

/* h[:, n .. n+count) = silu(gate) * up */
INLINE void finish(const struct mlp_in_args *a, int n, int count, const float *gate,
                   const float *up)
{
    for (int t = 0; t < a->m; t++) {
        float *h = a->h + (int64_t)t * FFN + n;
        float out[UNIT];
        for (int i = 0; i < UNIT; i += LANES)
            vf_store(out + i,
                     vf_silu_mul(vf_load(gate + t * UNIT + i), vf_load(up + t * UNIT + i)));
        for (int i = 0; i < count; i++)
            h[i] = out[i];
    }
}

static void run(const void *args, const struct team *team)
{
    const struct mlp_in_args *a = args;
    struct input in;
    float gate[M_MAX * UNIT] = {0}, up[M_MAX * UNIT] = {0};
    input_prepare(team, &in, a->x, NULL, a->norm, a->eps, HIDDEN, a->m);
    struct share s = share_guided(team, (FFN + UNIT - 1) / UNIT, SPLIT, 0);
    for (int g = share_first(&s); g < s.end; g = share_next(&s, g)) {
        int n = g * UNIT, left = FFN - n, count = left < UNIT ? left : UNIT;
        linear_rows(WTYPE, &a->gate, HIDDEN, n, count, &in, a->m, gate, UNIT);
        linear_rows(WTYPE_2, &a->up, HIDDEN, n, count, &in, a->m, up, UNIT);
        finish(a, n, count, gate, up);
    }
}

static int64_t scratch_bytes(int32_t m, int32_t size)
{
    return input_scratch(HIDDEN, m, size, 1);
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
