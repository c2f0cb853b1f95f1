/* SPDX-License-Identifier: Apache-2.0 */
/* head_wide.c - head for many rows of logits: logits[i] = (rmsnorm(x[row[i]]) * norm) W^T.
 *
 * x [M, HIDDEN], W [VOCAB, HIDDEN], logits [m, VOCAB]. Compute-bound, over the largest matrix of a
 * small model: W is read and expanded once a run, and m VOCAB sums are written. The products are
 * lib/wide.h's; a tile of sums is copied to its place, whose rows lie too far apart to be summed
 * in.
 *
 * Invariant: (i, row of W) pairs of logits are divided among ranks; each is written by one rank
 * only.
 */
#include "cpu/lib/shape.h"

/* ---- knobs -------------------------------------------------------------------------------- */

/* cpu/head_wide.def has them; whoever compiles this gives each a value. */

/* ---- legality ----------------------------------------------------------------------------- */

#define KNOB(name, role, value, values, help) _Static_assert((name) == (name), "has a value");
#define LEGAL(expression, why) _Static_assert(expression, why);
#include "cpu/head_wide.def"

/* ---- code --------------------------------------------------------------------------------- */

enum { K = HIDDEN, UNIT = PANELS * 16 };

#include "cpu/lib/wide.h"

/* logits[t0 .. t0+tokens, n .. n+count) = dot */
INLINE void finish(const struct head_args *a, int t0, int tokens, int n, const int count,
                   const float *dot)
{
    for (int t = 0; t < tokens; t++) {
        float *logits = a->logits + (int64_t)(t0 + t) * VOCAB + n;
        for (int i = 0; i < count; i++)
            logits[i] = dot[t * UNIT + i];
    }
}

static void run(const void *args, const struct team *team)
{
    const struct head_args *a = args;
    struct wide w;
    float dot[TILE * UNIT] __attribute__((aligned(64)));
    wide_begin(&w, team, (VOCAB + UNIT - 1) / UNIT, a->x, a->row, a->m, a->norm, a->eps, WTYPE,
               PANELS);
    amx_begin();
    for (int u = share_first(&w.units); u < w.units.end; u = share_next(&w.units, u)) {
        const int n = u * UNIT, count = VOCAB - n < UNIT ? VOCAB % UNIT : UNIT;
        wide_expand(&w, WTYPE, &a->w, n, count, 0);
        for (int t = w.t0, tokens; t < w.t1; t += tokens) {
            tokens = wide_tile(&w, WTYPE, 0, (count + PANEL - 1) / PANEL, t, dot, UNIT);
            if (count == UNIT)
                finish(a, t, tokens, n, UNIT, dot);
            else
                finish(a, t, tokens, n, VOCAB % UNIT, dot);
        }
    }
    amx_end();
}

static int64_t scratch_bytes(int32_t m, int32_t size)
{
    return wide_scratch(WTYPE, m, size, 1, PANELS);
}

/* ---- entry -------------------------------------------------------------------------------- */

const struct cpu_kernel whet_kernel = {
    .abi = WHET_CPU_ABI,
    .region = REGION_HEAD,
    .m_max = M_MAX,
    .run = run,
    .scratch_bytes = scratch_bytes,
#if PACK
    .layout = PANEL_LAYOUT,
    .packed_bytes = panel_packed_bytes,
    .pack = panel_pack,
#endif
};
