/* out.c - attn_out and mlp_out for a few tokens: y = in W^T + x.
 *
 * in [M, K], W [HIDDEN, K], x and y [M, HIDDEN]; K = HEADS*HEAD_DIM for attn_out, FFN for mlp_out.
 * Bytes moved: W once (Q4_1: 20 per 32 weights), in and x once, y once. Two ways to do it:
 *
 *   PACK=0  rows in the model's own format, ROWS at a time, every dot product in the canonical
 *           order: bit-equal to the eager kernel on every ISA (lib/rows.h)
 *   PACK=1  panels of 16 rows times activations in 8-bit digits (lib/panel.h, lib/digits.h)
 *
 * W is the only large operand and each of its bytes is read once for all tokens up to TOKENS, and
 * from the first-level cache for further ones.
 *
 * Invariant: a rank writes the columns of y of its own rows, all tokens; nobody else does.
 */
#include "cpu/lib/shape.h"

/* ---- knobs -------------------------------------------------------------------------------- */

#ifndef ISA
#define ISA 0
#endif
#ifndef PACK
#define PACK 0
#endif
#ifndef DIGITS
#define DIGITS 0
#endif
#ifndef ROWS
#define ROWS 4
#endif
#ifndef TOKENS
#define TOKENS 1
#endif
#ifndef PREFETCH
#define PREFETCH 0
#endif
#ifndef SPLIT
#define SPLIT 0
#endif
#ifndef PREP
#define PREP 0
#endif

/* ---- legality ----------------------------------------------------------------------------- */

#define LEGAL(expression, why) _Static_assert(expression, why);
#include "cpu/out.def"

/* ---- code --------------------------------------------------------------------------------- */

#include "cpu/lib/panel.h"
#include "cpu/lib/rows.h"
#include "cpu/lib/share.h"

enum {
    K = REGION == REGION_ATTN_OUT ? HEADS * HEAD_DIM : FFN,
    WIDE = ROWS * (PACK ? PANEL : 1), /* rows of W in flight */
};

/* y[:, n .. n+count) = dot + x */
static void finish(const struct out_args *a, int n, int count, const float *dot)
{
    for (int t = 0; t < a->m; t++) {
        const float *x = a->x + (int64_t)t * HIDDEN + n;
        float *y = a->y + (int64_t)t * HIDDEN + n;
        for (int i = 0; i < count; i++)
            y[i] = dot[t * WIDE + i] + x[i];
    }
}

#if PACK

static void run(const void *args, const struct team *team)
{
    const struct out_args *a = args;
    const uint8_t *w = a->w.packed;
    const int64_t stride = panel_bytes(WTYPE, K);
    const int panels = (HIDDEN + PANEL - 1) / PANEL;
    struct digits in[M_MAX];
    float dot[M_MAX * WIDE];
    digits_prepare(team, PREP, K, DIGITS, a->in, K, a->m, in);
    struct share s = share_groups(team, (panels + ROWS - 1) / ROWS, SPLIT);
    for (int g = s.first; g < s.end; g += s.step) {
        int p = g * ROWS, left = HIDDEN - g * WIDE;
        if (left > WIDE - PANEL) {
            panel_dot_all(WTYPE, DIGITS, w + p * stride, stride, ROWS, in, a->m, TOKENS, K,
                          PREFETCH, dot, WIDE);
        } else {
            for (int i = 0; p + i < panels; i++)
                panel_dot_all(WTYPE, DIGITS, w + (p + i) * stride, stride, 1, in, a->m, TOKENS, K,
                              PREFETCH, dot + i * PANEL, WIDE);
        }
        finish(a, g * WIDE, left < WIDE ? left : WIDE, dot);
    }
}

#else

static void run(const void *args, const struct team *team)
{
    const struct out_args *a = args;
    const uint8_t *w = a->w.data;
    const int64_t stride = (int64_t)K / BLOCK * BLOCK_BYTES(WTYPE);
    float dot[M_MAX * WIDE];
    struct share s = share_groups(team, (HIDDEN + ROWS - 1) / ROWS, SPLIT);
    for (int g = s.first; g < s.end; g += s.step) {
        int n = g * ROWS, left = HIDDEN - n;
        if (left >= ROWS) {
            rows_dot_all(WTYPE, w + n * stride, stride, ROWS, a->in, K, a->m, TOKENS, K, PREFETCH,
                         dot, WIDE);
        } else {
            for (int i = 0; i < left; i++)
                rows_dot_all(WTYPE, w + (n + i) * stride, stride, 1, a->in, K, a->m, TOKENS, K,
                             PREFETCH, dot + i, WIDE);
        }
        finish(a, n, left < ROWS ? left : ROWS, dot);
    }
}

#endif

static int64_t scratch_bytes(int32_t m, int32_t size)
{
    return PACK ? digits_scratch(PREP, K, DIGITS, m, size) : 0;
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
