/* SPDX-License-Identifier: Apache-2.0 */
/* page_order.h - attention of one token's heads over keys and values in the order of memory.
 *
 * Pages are [KV_HEADS, 16, HEAD_DIM], so that order is page by page, and in a page one kv head
 * after the other; the rows of a kv head meet all heads that share it while they are in the
 * first-level cache. A core reads memory that comes like this faster than rows of one kv head after
 * another (docs/lab/2026-11-30-cpu-long-contexts.md). Rows that come PREFETCH kv heads later are
 * asked for meanwhile, a few lines at a time, since what is asked for at once is waited for; behind
 * the last keys come the first values. Sums are those of paged.h, in the canonical order of
 * lanes.h.
 */
#ifndef WHET_KERNELS_CPU_LIB_PAGE_ORDER_H
#define WHET_KERNELS_CPU_LIB_PAGE_ORDER_H

#include "cpu/lib/paged.h"

/* Kv heads [kv0, kv1) of pages [from, to) of a span, `seen` positions of which, counted from the
 * first, are the token's; pages up to `end` are read after them. */
struct chunk {
    const struct attn_args *a;
    const struct span *span;
    int kv0, kv1, from, to, end, seen;
};

/* The rows that are read PREFETCH kv heads after those of kv head `kv` in page `page`. */
INLINE const kv_element *rows_ahead(const struct chunk *c, int values, int page, int kv)
{
    for (kv += PREFETCH; kv >= c->kv1; kv -= c->kv1 - c->kv0)
        page++;
    if (page >= c->to && !values) {
        values = 1;
        page += c->from - c->to;
    }
    page = page < c->end ? page : c->end - 1; /* behind the last there is nothing to come */
    return page_rows(c->a, values ? c->a->v_pages : c->a->k_pages, c->span, page, kv);
}

/* ---- scores -------------------------------------------------------------------------------- */

/* Lines of a kv head's rows in a page, and how many of them a step of four_keys() asks for. */
enum { LINES = KV_PAGE * HEAD_DIM / KV_LINE, STEP_LINES = LINES / (4 * DIMS) };

/* sum[j] = q . k_j, lane by lane, for keys 4 * four and its three neighbours of a page. Each of
 * GROUP heads asks for its share of the LINES at `ahead`. */
INLINE void four_keys(const float *q, const float *k, int four, const kv_element *ahead, vf sum[4])
{
    UNROLLED
    for (int j = 0; j < 4; j++)
        sum[j] = vf_zero();
    UNROLLED
    for (int d = 0; d < DIMS; d++) {
        const int step = four * DIMS + d;
        vf part = vf_load(q + 16 * d);
        UNROLLED
        for (int i = (STEP_LINES * step + GROUP - 1) / GROUP;
             PREFETCH && i * GROUP < STEP_LINES * (step + 1); i++)
            __builtin_prefetch(ahead + KV_LINE * i, 0, PAGES_INTO);
        UNROLLED
        for (int j = 0; j < 4; j++)
            sum[j] = vf_fma(part, vf_load(k + (4 * four + j) * HEAD_DIM + 16 * d), sum[j]);
    }
}

/* page_scores() with keys in the order of memory, four at a time. */
INLINE vf ordered_scores(const float *q, const float *k, const kv_element *ahead)
{
#if ISA >= ISA_NEON || ISA == ISA_AVX2
    vf4 score[4];
    UNROLLED
    for (int four = 0; four < 4; four++) {
        vf sum[4];
        NO_SOONER();
        four_keys(q, k, four, ahead, sum);
        score[four] = vf_fold4(sum);
    }
    return vf_join4(score);
#else
    vf sum[16];
    UNROLLED
    for (int four = 0; four < 4; four++) {
        NO_SOONER();
        four_keys(q, k, four, ahead, sum + 4 * four);
    }
    return vf_fold16(sum);
#endif
}

/* score[h * lds + j] = q_h . k_j * scale, -inf where the token sees nothing, for the heads of the
 * chunk, whose q are [heads, HEAD_DIM]. */
INLINE void order_scores(const struct chunk *c, const float *q, float *score, int lds)
{
    float room[KV_PAGE * HEAD_DIM] __attribute__((aligned(64)));
    for (int p = 0; p < c->to - c->from; p++) {
        for (int kv = c->kv0; kv < c->kv1; kv++) {
            const float *k =
                page_floats(page_rows(c->a, c->a->k_pages, c->span, c->from + p, kv), room);
            const kv_element *ahead = rows_ahead(c, 0, c->from + p, kv);
            for (int g = 0; g < GROUP; g++) {
                const int h = (kv - c->kv0) * GROUP + g;
                vf s = ordered_scores(q + h * HEAD_DIM, k, ahead + g * LINES / GROUP * KV_LINE);
                s = vf_mul(s, vf_set(c->a->scale));
                s = keep_lanes(s, c->seen - p * 16, -__builtin_inff());
                vf_store(score + h * lds + p * 16, s);
            }
        }
    }
}

/* ---- values -------------------------------------------------------------------------------- */

/* Of a head SETS vectors are summed at once, for as many heads as there are registers for. */
enum {
    SUMS = ISA == ISA_AVX512     ? 24
           : ISA == ISA_PORTABLE ? 2
                                 : 6,
    EVEN_SETS = DIMS % 4 == 0 && SUMS > 6   ? 4
                : DIMS % 2 == 0 && SUMS > 2 ? 2
                                            : 1,
    SETS = SUMS > 6 && DIMS <= 8 ? DIMS : EVEN_SETS,
    MOST_HEADS = SUMS / SETS,
    ROUNDS = (GROUP + MOST_HEADS - 1) / MOST_HEADS, /* over the heads of a group */
    TOGETHER = (GROUP + ROUNDS - 1) / ROUNDS,
};

/* out[h] += sum_j e[h][j] v_j over `keys` positions of a page, in rising j, for dimensions
 * [0, 16 * SETS) of `heads` heads. Row j of what is ahead is asked for with row j. */
INLINE void order_sums(const kv_element *v, int keys, const int heads, const kv_element *ahead,
                       const float *e, int lds, float *out)
{
    vf acc[TOGETHER][SETS];
    UNROLLED
    for (int h = 0; h < heads; h++) {
        UNROLLED
        for (int d = 0; d < SETS; d++)
            acc[h][d] = vf_load(out + h * HEAD_DIM + 16 * d);
    }
    for (int j = 0; j < keys; j++) {
        UNROLLED
        for (int d = 0; PREFETCH && ahead && d < SETS; d += KV_LINE / 16)
            __builtin_prefetch(ahead + j * HEAD_DIM + 16 * d, 0, PAGES_INTO);
        UNROLLED
        for (int h = 0; h < heads; h++) {
            vf one = vf_set(e[h * lds + j]);
            UNROLLED
            for (int d = 0; d < SETS; d++)
                acc[h][d] = vf_fma(one, kv_load(v + j * HEAD_DIM + 16 * d), acc[h][d]);
        }
    }
    UNROLLED
    for (int h = 0; h < heads; h++) {
        UNROLLED
        for (int d = 0; d < SETS; d++)
            vf_store(out + h * HEAD_DIM + 16 * d, acc[h][d]);
    }
}

/* out[h] += sum_j e[h * lds + j] v_j for the heads of the chunk; out [heads, HEAD_DIM]. */
INLINE void order_values(const struct chunk *c, const float *e, int lds, float *out)
{
    for (int p = 0; p < c->to - c->from; p++) {
        const int left = c->seen - p * 16, keys = left < 16 ? left : 16;
        for (int kv = c->kv0; kv < c->kv1; kv++) {
            const kv_element *v = page_rows(c->a, c->a->v_pages, c->span, c->from + p, kv);
            const kv_element *ahead = rows_ahead(c, 1, c->from + p, kv);
            for (int d = 0; d < HEAD_DIM; d += 16 * SETS) {
                int g = 0;
                for (; g + TOGETHER <= GROUP; g += TOGETHER) {
                    const int h = (kv - c->kv0) * GROUP + g;
                    order_sums(v + d, keys, TOGETHER, g ? NULL : ahead + d, e + h * lds + p * 16,
                               lds, out + h * HEAD_DIM + d);
                }
                if (GROUP % TOGETHER) {
                    const int h = (kv - c->kv0) * GROUP + g;
                    order_sums(v + d, keys, GROUP % TOGETHER, NULL, e + h * lds + p * 16, lds,
                               out + h * HEAD_DIM + d);
                }
            }
        }
    }
}

#endif
