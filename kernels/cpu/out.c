/* SPDX-License-Identifier: Apache-2.0 */
/* out.c - attn_out and mlp_out for a few tokens: y = in W^T + x.
 *
 * in [M, K], W [HIDDEN, K], x and y [M, HIDDEN]; K = HEADS*HEAD_DIM for attn_out, FFN for mlp_out.
 * Bytes moved: W once (Q4_1: 20 per 32 weights), in and x once, y once. Two ways to do it:
 *
 *   PACK=0  rows in the model's own format, every dot product in the canonical order: bit-equal
 *           to the eager kernel on every ISA (lib/rows.h)
 *   PACK=1  panels of 16 rows times activations in 8-bit digits (lib/panel.h, lib/digits.h)
 *
 * W is the only large operand and each of its bytes is read once for all tokens up to TOKENS, and
 * from the first-level cache for further ones.
 *
 * Invariant: a rank writes the columns of y of its own rows, all tokens; nobody else does.
 */
#include "cpu/lib/shape.h"

/* ---- knobs -------------------------------------------------------------------------------- */

/* cpu/out.def has them; whoever compiles this gives each a value. */

/* ---- legality ----------------------------------------------------------------------------- */

#define KNOB(name, role, value, values, help) _Static_assert((name) == (name), "has a value");
#define LEGAL(expression, why) _Static_assert(expression, why);
#include "cpu/out.def"

/* ---- code --------------------------------------------------------------------------------- */

#include "cpu/lib/linear.h"

enum { K = REGION == REGION_ATTN_OUT ? HEADS * HEAD_DIM : FFN };

/* y[:, n .. n+count) = dot + x */
INLINE void finish(const struct out_args *a, int n, int count, const float *dot)
{
    for (int t = 0; t < a->m; t++) {
        const float *x = a->x + (int64_t)t * HIDDEN + n;
        float *y = a->y + (int64_t)t * HIDDEN + n;
        for (int i = 0; i < count; i++)
            y[i] = dot[t * WIDE + i] + x[i];
    }
}

static void run(const void *args, const struct team *team)
{
    const struct out_args *a = args;
    struct input in;
    float dot[M_MAX * WIDE];
    input_prepare(team, &in, a->in, NULL, NULL, 0.0f, K, a->m);
    struct share s = share_guided(team, (HIDDEN + WIDE - 1) / WIDE, SPLIT, 0);
    for (int g = share_first(&s); g < s.end; g = share_next(&s, g)) {
        int n = g * WIDE, left = HIDDEN - n, count = left < WIDE ? left : WIDE;
        linear_rows(WTYPE, &a->w, K, n, count, &in, a->m, dot, WIDE);
        finish(a, n, count, dot);
    }
}

static int64_t scratch_bytes(int32_t m, int32_t size)
{
    return input_scratch(K, m, size, 0);
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
