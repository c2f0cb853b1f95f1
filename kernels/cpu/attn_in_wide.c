/* SPDX-License-Identifier: Apache-2.0 */
/* attn_in_wide.c - attn_in for many tokens: norm, q/k/v projection, RoPE, append to the KV pages.
 *
 *   n = rmsnorm(x) * norm;  q, k, v = n Wq^T + bq, ...;  q, k normed per head if the model does;
 *   RoPE on q and k;  q -> q [M, HEADS*HEAD_DIM], k and v -> cache position kv_at[m]
 *
 * Compute-bound. The unit of rows is a part of a head (lib/qkv.h), the products are lib/wide.h's.
 *
 * Invariant: (token, unit) pairs are divided among ranks; each is written by one rank only.
 */
#include "cpu/lib/shape.h"

/* ---- knobs -------------------------------------------------------------------------------- */

/* cpu/attn_in_wide.def has them; whoever compiles this gives each a value. */

/* ---- legality ----------------------------------------------------------------------------- */

#define KNOB(name, role, value, values, help) _Static_assert((name) == (name), "has a value");
#define LEGAL(expression, why) _Static_assert(expression, why);
#include "cpu/attn_in_wide.def"

/* ---- code --------------------------------------------------------------------------------- */

enum { K = HIDDEN };

#include "cpu/lib/qkv.h"
#include "cpu/lib/wide.h"

/* The format whose expanded panels are the largest sets the size of the rank's scratch. */
#define WTYPE_LARGE WIDE_LARGER(WIDE_LARGER(WTYPE, WTYPE_2), WTYPE_3)

INLINE void project(const int type, const struct attn_in_args *a, const struct wide *w,
                    struct qkv_unit u)
{
    float v[TILE * SLOT] __attribute__((aligned(64)));
    for (int r = 0; r < RUNS; r++)
        wide_expand(w, type, qkv_weight(a, u.kind), u.head * HEAD_DIM + qkv_row(u.part, r * RUN),
                    RUN, r * (RUN / PANEL));
    for (int t = w->t0, tokens; t < w->t1; t += tokens) {
        tokens = wide_tile(w, type, 0, UNIT / PANEL, t, v, SLOT);
        qkv_finish(a, u, t, tokens, v);
    }
}

static void run(const void *args, const struct team *team)
{
    const struct attn_in_args *a = args;
    struct wide w;
    wide_begin(&w, team, UNITS, a->x, NULL, a->m, a->norm, a->eps, WTYPE_LARGE, UNIT / PANEL);
    amx_begin();
    for (int g = share_first(&w.units); g < w.units.end; g = share_next(&w.units, g)) {
        struct qkv_unit u = qkv_unit(g);
        if (u.kind == QKV_Q || ALIKE)
            project(WTYPE, a, &w, u);
        else if (u.kind == QKV_K)
            project(WTYPE_2, a, &w, u);
        else
            project(WTYPE_3, a, &w, u);
    }
    amx_end();
}

static int64_t scratch_bytes(int32_t m, int32_t size)
{
    return wide_scratch(WTYPE_LARGE, m, size, 1, UNIT / PANEL);
}

/* ---- entry -------------------------------------------------------------------------------- */

const struct cpu_kernel whet_kernel = {
    .abi = WHET_CPU_ABI,
    .region = REGION_ATTN_IN,
    .m_max = M_MAX,
    .run = run,
    .scratch_bytes = scratch_bytes,
#if PACK
    .layout = PANEL_LAYOUT,
    .packed_bytes = panel_packed_bytes,
    .pack = panel_pack,
#endif
};
