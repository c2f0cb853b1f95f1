/* SPDX-License-Identifier: Apache-2.0 */
/* qkv.h - what attn_in does with the sums of a part of a head: bias, norm, RoPE, store.
 *
 * The unit of work is a part of a head: HEAD_DIM / PARTS rows of Wq, Wk or Wv that hold whole RoPE
 * pairs, so everything after the sums stays inside one unit. With interleaved pairs a part is one
 * run of rows; with split pairs (i, i + HEAD_DIM/2) it is two runs, half a head apart. A per-head
 * norm needs the whole head (PARTS = 1). Canonical arithmetic (lanes.h). PARTS is a knob of the
 * template that includes this.
 */
#ifndef WHET_KERNELS_CPU_LIB_QKV_H
#define WHET_KERNELS_CPU_LIB_QKV_H

#include "cpu/lib/block.h"
#include "cpu/lib/kv.h"
#include "cpu/lib/shape.h"

enum {
    UNITS = (HEADS + 2 * KV_HEADS) * PARTS,
    UNIT = HEAD_DIM / PARTS,                       /* rows of a part of a head */
    RUNS = ROPE_INTERLEAVED || PARTS == 1 ? 1 : 2, /* runs of neighbouring rows in it */
    RUN = UNIT / RUNS,
    HALF = HEAD_DIM / 2,
    SLOT = (UNIT + 15) / 16 * 16, /* floats kept for a token's part */
    /* Of one format: their products stand in the object once. */
    ALIKE = WTYPE == WTYPE_2 && WTYPE == WTYPE_3,
};

enum qkv_kind { QKV_Q, QKV_K, QKV_V };

/* Part `part` of head `head` of q, k or v. */
struct qkv_unit {
    enum qkv_kind kind;
    int head, part;
};

INLINE struct qkv_unit qkv_unit(int unit)
{
    int head = unit / PARTS, part = unit % PARTS;
    if (head < HEADS)
        return (struct qkv_unit){QKV_Q, head, part};
    if (head < HEADS + KV_HEADS)
        return (struct qkv_unit){QKV_K, head - HEADS, part};
    return (struct qkv_unit){QKV_V, head - HEADS - KV_HEADS, part};
}

/* The head-local row that row i of part p is. */
INLINE int qkv_row(int p, int i)
{
    return RUNS == 1 ? p * UNIT + i : p * RUN + i % RUN + i / RUN * HALF;
}

INLINE const struct weight *qkv_weight(const struct attn_in_args *a, enum qkv_kind kind)
{
    return kind == QKV_Q ? &a->wq : kind == QKV_K ? &a->wk : &a->wv;
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

/* Where the row of kv head `head` at cache position `at` lies in the pages. */
INLINE kv_element *cache_row(void *pages, int32_t at, int head)
{
    int64_t page = at / KV_PAGE, offset = at % KV_PAGE;
    return (kv_element *)pages + ((page * KV_HEADS + head) * KV_PAGE + offset) * HEAD_DIM;
}

/* The unit's rows of token t, where they belong. */
INLINE void qkv_store(const struct attn_in_args *a, struct qkv_unit u, int t, const float *v)
{
    if (u.kind == QKV_Q) {
        float *to = a->q + (int64_t)t * HEADS * HEAD_DIM + u.head * HEAD_DIM;
        for (int i = 0; i < UNIT; i++)
            to[qkv_row(u.part, i)] = v[i];
        return;
    }
    kv_element *to = cache_row(u.kind == QKV_K ? a->k_pages : a->v_pages, a->kv_at[t], u.head);
    for (int i = 0; i < UNIT; i++)
        to[qkv_row(u.part, i)] = kv_round(v[i]);
}

/* Everything after the sums, for tokens [t0, t0 + tokens): v[i * SLOT + r] is row r of the unit for
 * token t0 + i. */
INLINE void qkv_finish(const struct attn_in_args *a, struct qkv_unit u, int t0, int tokens,
                       float *v)
{
    const float *bias = u.kind == QKV_Q ? a->bq : u.kind == QKV_K ? a->bk : a->bv;
    const float *gain = u.kind == QKV_Q ? a->q_norm : u.kind == QKV_K ? a->k_norm : NULL;
    for (int t = t0; t < t0 + tokens; t++, v += SLOT) {
        const int64_t angles = (int64_t)a->position[t] * HALF;
        for (int i = 0; HAS_BIAS && bias && i < UNIT; i++)
            v[i] += bias[u.head * HEAD_DIM + qkv_row(u.part, i)];
        if (HAS_QK_NORM && PARTS == 1 && gain)
            head_norm(v, gain, a->eps);
        if (u.kind != QKV_V)
            rotate(v, u.part, a->rope_cos + angles, a->rope_sin + angles);
        qkv_store(a, u, t, v);
    }
}

#endif
