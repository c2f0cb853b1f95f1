/* SPDX-License-Identifier: Apache-2.0 */
/* head.c - head for a few rows: logits[i] = (rmsnorm(x[row[i]]) * norm) W^T.
 *
 * x [M, HIDDEN], W [VOCAB, HIDDEN], logits [m, VOCAB]. Bytes moved: W once, the largest matrix of
 * a small model (28 of 97 MB in SmolLM2-135M). PACK as in lib/linear.h.
 *
 * Invariant: a rank writes the columns of logits of its own rows of W, all tokens; nobody else
 * does.
 */
#include "cpu/lib/shape.h"

/* ---- knobs -------------------------------------------------------------------------------- */

/* cpu/head.def has them; whoever compiles this gives each a value. */

/* ---- legality ----------------------------------------------------------------------------- */

#define KNOB(name, role, value, values, help) _Static_assert((name) == (name), "has a value");
#define LEGAL(expression, why) _Static_assert(expression, why);
#include "cpu/head.def"

/* ---- code --------------------------------------------------------------------------------- */

#include "cpu/lib/linear.h"

/* logits[:, n .. n+count) = dot */
INLINE void finish(const struct head_args *a, int n, const int count, const float *dot)
{
    for (int t = 0; t < a->m; t++)
        for (int i = 0; i < count; i++)
            a->logits[(int64_t)t * VOCAB + n + i] = dot[t * WIDE + i];
}

static void run(const void *args, const struct team *team)
{
    const struct head_args *a = args;
    struct input in;
    float dot[M_MAX * WIDE];
    input_prepare(team, &in, a->x, a->row, a->norm, a->eps, HIDDEN, a->m);
    struct share s = share_guided(team, (VOCAB + WIDE - 1) / WIDE, SPLIT, 0);
    for (int g = share_first(&s); g < s.end; g = share_next(&s, g)) {
        const int n = g * WIDE, count = VOCAB - n < WIDE ? VOCAB % WIDE : WIDE;
        linear_rows(WTYPE, &a->w, HIDDEN, n, count, &in, a->m, dot, WIDE);
        if (count == WIDE)
            finish(a, n, WIDE, dot);
        else
            finish(a, n, VOCAB % WIDE, dot);
    }
}

static int64_t scratch_bytes(int32_t m, int32_t size)
{
    return input_scratch(HIDDEN, m, size, 1);
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
