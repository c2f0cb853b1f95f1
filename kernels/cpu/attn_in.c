/* SPDX-License-Identifier: Apache-2.0 */
/* attn_in.c - attn_in for a few tokens: norm, q/k/v projection, RoPE, append to the KV pages.
 *
 *   n = rmsnorm(x) * norm;  q, k, v = n Wq^T + bq, ...;  q, k normed per head if the model does;
 *   RoPE on q and k;  q -> q [M, HEADS*HEAD_DIM], k and v -> cache position kv_at[m]
 *
 * Bytes moved: Wq, Wk, Wv once. The unit of work is a part of a head (lib/qkv.h): PARTS trades
 * even shares for the threads against rows in flight. PACK as in lib/linear.h.
 *
 * Invariant: a unit writes its own columns of q, or its own elements of its head's cache rows.
 */
#include "cpu/lib/shape.h"

/* ---- knobs -------------------------------------------------------------------------------- */

/* cpu/attn_in.def has them; whoever compiles this gives each a value. */

/* ---- legality ----------------------------------------------------------------------------- */

#define KNOB(name, role, value, values, help) _Static_assert((name) == (name), "has a value");
#define LEGAL(expression, why) _Static_assert(expression, why);
#include "cpu/attn_in.def"

/* ---- code --------------------------------------------------------------------------------- */

#include "cpu/lib/linear.h"
#include "cpu/lib/qkv.h"

/* Sums of a unit's rows for all tokens: out[t * SLOT + i]. */
INLINE void project(const int type, const struct attn_in_args *a, struct qkv_unit u,
                    const struct input *in, float *out)
{
    for (int r = 0; r < RUNS; r++)
        linear_rows(type, qkv_weight(a, u.kind), HIDDEN,
                    u.head * HEAD_DIM + qkv_row(u.part, r * RUN), RUN, in, a->m, out + r * RUN,
                    SLOT);
}

static void run(const void *args, const struct team *team)
{
    const struct attn_in_args *a = args;
    struct input in;
    float v[M_MAX * SLOT];
    input_prepare(team, &in, a->x, NULL, a->norm, a->eps, HIDDEN, a->m);
    struct share s = share_guided(team, UNITS, SPLIT, 0);
    for (int g = share_first(&s); g < s.end; g = share_next(&s, g)) {
        struct qkv_unit u = qkv_unit(g);
        if (u.kind == QKV_Q || ALIKE)
            project(WTYPE, a, u, &in, v);
        else if (u.kind == QKV_K)
            project(WTYPE_2, a, u, &in, v);
        else
            project(WTYPE_3, a, u, &in, v);
        qkv_finish(a, u, 0, a->m, v);
    }
}

static int64_t scratch_bytes(int32_t m, int32_t size)
{
    return input_scratch(HIDDEN, m, size, 1);
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
