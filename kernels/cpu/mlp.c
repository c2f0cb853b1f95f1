/* SPDX-License-Identifier: Apache-2.0 */
/* mlp.c - mlp_in and mlp_out for a few tokens in one kernel:
 * n = rmsnorm(x) * norm; h = silu(n Wg^T) * (n Wu^T); y = h Wd^T + x.
 *
 * x and y [M, HIDDEN], Wg and Wu [FFN, HIDDEN], Wd [HIDDEN, FFN]. Bytes moved: the three matrices
 * once. Two kernels would end one region and begin another between h and y: here the team only
 * meets once, and a rank that has done its part of h asks for the first AHEAD bytes of its rows of
 * Wd before it waits, so that memory works while ranks meet. Two ways for h to get to Wd:
 *
 * With SLICE=0 through a->h: every rank reads the whole row. PACK as in lib/linear.h; without it
 * every sum is in the canonical order, and the bits are those of the eager kernels.
 *
 * With SLICE=1 not at all: a rank multiplies its own columns of h with those of Wd at once, and
 * only the sums meet, M x HIDDEN floats a rank. Plain rows only, in another order of sums.
 *
 * Invariant: a rank writes the columns of h of its own units of rows, and the columns of y of its
 * own rows, all tokens; nobody else does.
 */
#include "cpu/lib/shape.h"

/* ---- knobs -------------------------------------------------------------------------------- */

/* cpu/mlp.def has them; whoever compiles this gives each a value. */

/* ---- legality ----------------------------------------------------------------------------- */

#define KNOB(name, role, value, values, help) _Static_assert((name) == (name), "has a value");
#define LEGAL(expression, why) _Static_assert(expression, why);
#include "cpu/mlp.def"

/* ---- code --------------------------------------------------------------------------------- */

#include "cpu/lib/linear.h"
#include "cpu/lib/vexp.h"

enum { UNIT = WIDE > 32 ? WIDE : 32 }; /* rows of gate and up that are finished together */

/* h[:, n .. n+count) = silu(gate) * up */
INLINE void finish_h(const struct mlp_args *a, int n, int count, const float *gate, const float *up)
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

INLINE void make_h(const struct mlp_args *a, const struct team *team, struct share s)
{
    struct input in;
    float gate[M_MAX * UNIT] = {0}, up[M_MAX * UNIT] = {0};
    input_prepare(team, &in, a->x, NULL, a->norm, a->eps, HIDDEN, a->m);
    for (int g = share_first(&s); g < s.end; g = share_next(&s, g)) {
        int n = g * UNIT, left = FFN - n, count = left < UNIT ? left : UNIT;
        linear_rows(WTYPE, &a->gate, HIDDEN, n, count, &in, a->m, gate, UNIT);
        linear_rows(WTYPE_2, &a->up, HIDDEN, n, count, &in, a->m, up, UNIT);
        finish_h(a, n, count, gate, up);
    }
}

/* Where row `row` of Wd begins, as linear_rows() reads it. */
INLINE const uint8_t *down_at(const struct mlp_args *a, int row)
{
    if (PACK)
        return (const uint8_t *)a->down.packed + row / 16 * panel_bytes(WTYPE_3, FFN);
    return (const uint8_t *)a->down.data + row * ROW_BYTES(WTYPE_3, FFN);
}

#if SLICE

/* Columns [first, end) of Wd, of which row `row` holds whole blocks, times the same of h. */
INLINE void partial_rows(const struct mlp_args *a, int row, const int rows, int first, int end,
                         float *sum)
{
    const int64_t stride = ROW_BYTES(WTYPE_3, FFN);
    rows_dot_all(WTYPE_3, down_at(a, row) + ROW_BYTES(WTYPE_3, first), stride, rows, a->h + first,
                 FFN, a->m, TOKENS, end - first, PREFETCH, sum + row, HIDDEN);
}

static void run(const void *args, const struct team *team)
{
    const struct mlp_args *a = args;
    const int64_t normed = input_scratch(HIDDEN, a->m, team->size, 1);
    float *sums = (float *)((uint8_t *)team->scratch + ((normed + 63) & ~(int64_t)63));
    float *own = sums + (int64_t)team->rank * a->m * HIDDEN;
    struct share s = share_groups(team, (FFN + UNIT - 1) / UNIT, 0);
    int first = s.first * UNIT, end = s.end * UNIT < FFN ? s.end * UNIT : FFN, row = 0;
    make_h(a, team, s);
    for (; row + ROWS <= HIDDEN; row += ROWS)
        partial_rows(a, row, ROWS, first, end, own);
    for (; row < HIDDEN; row++)
        partial_rows(a, row, 1, first, end, own);
    team->barrier(team);
    struct share c = share_groups(team, HIDDEN / 16, 0);
    for (int t = 0; t < a->m; t++)
        for (int i = c.first * 16; i < (c.end == HIDDEN / 16 ? HIDDEN : c.end * 16); i++) {
            float y = a->x[(int64_t)t * HIDDEN + i];
            for (int r = 0; r < team->size; r++)
                y += sums[((int64_t)r * a->m + t) * HIDDEN + i];
            a->y[(int64_t)t * HIDDEN + i] = y;
        }
}

static int64_t scratch_bytes(int32_t m, int32_t size)
{
    return input_scratch(HIDDEN, m, size, 1) + 64 + (int64_t)sizeof(float) * m * HIDDEN * size;
}

#else

/* y[:, n .. n+count) = dot + x */
INLINE void finish_y(const struct mlp_args *a, int n, int count, const float *dot)
{
    for (int t = 0; t < a->m; t++) {
        const float *x = a->x + (int64_t)t * HIDDEN + n;
        float *y = a->y + (int64_t)t * HIDDEN + n;
        for (int i = 0; i < count; i++)
            y[i] = dot[t * WIDE + i] + x[i];
    }
}

/* The digits of h go where those of n were: nobody reads these behind the barrier. */
static void run(const void *args, const struct team *team)
{
    const struct mlp_args *a = args;
    struct input in;
    float dot[M_MAX * WIDE];
    struct share s = share_guided(team, (HIDDEN + WIDE - 1) / WIDE, SPLIT, 1);
    make_h(a, team, share_guided(team, (FFN + UNIT - 1) / UNIT, SPLIT, 0));
    for (int i = 0; AHEAD && s.first < s.end && i < AHEAD; i += 64)
        __builtin_prefetch(down_at(a, s.first * WIDE) + i);
    team->barrier(team);
    input_prepare(team, &in, a->h, NULL, NULL, 0.0f, FFN, a->m);
    for (int g = share_first(&s); g < s.end; g = share_next(&s, g)) {
        int n = g * WIDE, left = HIDDEN - n, count = left < WIDE ? left : WIDE;
        linear_rows(WTYPE_3, &a->down, FFN, n, count, &in, a->m, dot, WIDE);
        finish_y(a, n, count, dot);
    }
}

static int64_t scratch_bytes(int32_t m, int32_t size)
{
    int64_t n = input_scratch(HIDDEN, m, size, 1), h = input_scratch(FFN, m, size, 0);
    return n > h ? n : h;
}

#endif

/* ---- entry -------------------------------------------------------------------------------- */

const struct cpu_kernel whet_kernel = {
    .abi = WHET_CPU_ABI,
    .region = REGION_MLP,
    .m_max = M_MAX,
    .run = run,
    .scratch_bytes = scratch_bytes,
#if PACK
    .layout = PANEL_LAYOUT,
    .packed_bytes = panel_packed_bytes,
    .pack = panel_pack,
#endif
};
