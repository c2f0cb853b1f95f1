/* attn_in.c - attn_in for a few tokens: norm, q/k/v projection, RoPE, append to the KV pages.
 *
 *   n = rmsnorm(x) * norm;  q, k, v = n Wq^T + bq, ...;  q, k normed per head if the model does;
 *   RoPE on q and k;  q -> q [M, HEADS*HEAD_DIM], k and v -> cache position kv_at[m]
 *
 * Bytes moved: Wq, Wk, Wv once. The unit of work is a part of a head: HEAD_DIM / PARTS rows that
 * hold whole RoPE pairs, so everything after the sums stays inside one unit. With interleaved
 * pairs a part is one run of rows; with split pairs (i, i + HEAD_DIM/2) it is two runs, half a
 * head apart. A per-head norm needs the whole head (PARTS = 1). PACK as in lib/linear.h.
 *
 * Invariant: a unit writes its own columns of q, or its own elements of its head's cache rows.
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
#ifndef PARTS
#define PARTS 1
#endif

/* ---- legality ----------------------------------------------------------------------------- */

#define LEGAL(expression, why) _Static_assert(expression, why);
#include "cpu/attn_in.def"

/* ---- code --------------------------------------------------------------------------------- */

#include "cpu/lib/linear.h"

enum {
    UNIT = HEAD_DIM / PARTS,                       /* rows of a part of a head */
    RUNS = ROPE_INTERLEAVED || PARTS == 1 ? 1 : 2, /* runs of neighbouring rows in it */
    RUN = UNIT / RUNS,
    HALF = HEAD_DIM / 2,
    SLOT = (UNIT + PANEL - 1) / PANEL * PANEL, /* floats kept for a token's part */
};

/* The head-local row that a unit's row i is: part `p` starts at p * RUN, its second run at HALF
 * more. */
INLINE int unit_row(int p, int i)
{
    return RUNS == 1 ? p * UNIT + i : p * RUN + i % RUN + i / RUN * HALF;
}

/* v = v * r * gain over one head: the canonical norm of HEAD_DIM values. */
INLINE void head_norm(float *v, const float *gain, float eps)
{
    float out[HEAD_DIM];
    lane_rmsnorm(out, v, gain, HEAD_DIM, eps);
    for (int i = 0; i < HEAD_DIM; i++)
        v[i] = out[i];
}

/* Rotates the pairs of part p in place. c, s: [HEAD_DIM/2] of the token's position. */
INLINE void rotate(float *v, int p, const float *c, const float *s)
{
    for (int i = 0; i < UNIT / 2; i++) {
        int one = ROPE_INTERLEAVED ? 2 * i : i;
        int two = ROPE_INTERLEAVED ? 2 * i + 1 : i + UNIT / 2;
        int angle = p * (UNIT / 2) + i;
        float a = v[one], b = v[two];
        v[one] = lane_fma(a, c[angle], -(b * s[angle]));
        v[two] = lane_fma(b, c[angle], a * s[angle]);
    }
}

/* Where token t's row of kv head `head` lies in the pages. */
INLINE float *cache_row(void *pages, int32_t at, int head)
{
    int64_t page = at / KV_PAGE, offset = at % KV_PAGE;
    return (float *)pages + ((page * KV_HEADS + head) * KV_PAGE + offset) * HEAD_DIM;
}

/* Everything after the sums, for part p of a head of q, k (`spin`) or v. `bias` and `gain` belong
 * to the head, or are null. */
INLINE void finish(float *v, int p, int spin, const float *bias, const float *gain, float eps,
                   const float *c, const float *s, float *to)
{
    if (HAS_BIAS && bias)
        for (int i = 0; i < UNIT; i++)
            v[i] += bias[unit_row(p, i)];
    if (HAS_QK_NORM && PARTS == 1 && gain)
        head_norm(v, gain, eps);
    if (spin)
        rotate(v, p, c, s);
    for (int i = 0; i < UNIT; i++)
        to[unit_row(p, i)] = v[i];
}

/* Sums of part p of head `head` of w for all tokens: out[t * SLOT + i]. */
INLINE void project(const int type, const struct weight *w, int head, int p, const struct input *in,
                    int m, float *out)
{
    for (int r = 0; r < RUNS; r++)
        linear_rows(type, w, HIDDEN, head * HEAD_DIM + unit_row(p, r * RUN), RUN, in, m,
                    out + r * RUN, SLOT);
}

static void unit(const struct attn_in_args *a, const struct input *in, int head, int p)
{
    float v[M_MAX * SLOT];
    const int kind = head < HEADS ? 0 : head < HEADS + KV_HEADS ? 1 : 2; /* q, k, v */
    head -= kind == 0 ? 0 : kind == 1 ? HEADS : HEADS + KV_HEADS;
    if (kind == 0)
        project(WTYPE, &a->wq, head, p, in, a->m, v);
    else if (kind == 1)
        project(WTYPE_2, &a->wk, head, p, in, a->m, v);
    else
        project(WTYPE_3, &a->wv, head, p, in, a->m, v);
    const float *bias = kind == 0 ? a->bq : kind == 1 ? a->bk : a->bv;
    const float *gain = kind == 0 ? a->q_norm : kind == 1 ? a->k_norm : NULL;
    for (int t = 0; t < a->m; t++) {
        const int64_t angles = (int64_t)a->position[t] * HALF;
        float *to = kind == 0 ? a->q + (int64_t)t * HEADS * HEAD_DIM + head * HEAD_DIM
                              : cache_row(kind == 1 ? a->k_pages : a->v_pages, a->kv_at[t], head);
        finish(v + t * SLOT, p, kind < 2, bias ? bias + head * HEAD_DIM : NULL, gain, a->eps,
               a->rope_cos + angles, a->rope_sin + angles, to);
    }
}

static void run(const void *args, const struct team *team)
{
    const struct attn_in_args *a = args;
    struct input in;
    input_prepare(team, &in, a->x, NULL, a->norm, a->eps, HIDDEN, a->m);
    struct share s = share_groups(team, (HEADS + 2 * KV_HEADS) * PARTS, SPLIT);
    for (int g = s.first; g < s.end; g += s.step)
        unit(a, &in, g / PARTS, g % PARTS);
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
