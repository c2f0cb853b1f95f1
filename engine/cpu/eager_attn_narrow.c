/* SPDX-License-Identifier: Apache-2.0 */
/* eager_attn_narrow.c - attention of few tokens, in the canonical order of lanes.h.
 *
 * For each head of each token all scores, their maximum, exponentials summed in 16 lanes, then
 * values in rising position. A long context comes out of memory, so keys and values are read once,
 * in the order in which they lie there, for all heads and tokens that a rank has: a page's rows of
 * a kv head meet all that look at them while they are in the first-level cache
 * (docs/lab/2026-11-30-cpu-long-contexts.md). Those in bf16 are widened in registers
 * (eager_attn_pairs.c), or become floats there first, once for all, so that what is computed of
 * them is the same code. Ranks take heads.
 */
#include "engine/cpu/eager_attn_narrow.h"

/* acc[i] += q . k_i for four neighbouring keys; a head is `sets` whole sets of 16 */
static inline __attribute__((always_inline)) void
dot4(const float *q, const float *k, const int64_t sets, struct stream *next, struct lanes acc[4])
{
    for (int i = 0; i < 4; i++)
        acc[i] = lanes_zero();
    for (int64_t d = 0; d < sets * LANES; d += LANES) {
        struct lanes part = lanes_load(q + d);
        ask(next);
        for (int i = 0; i < 4; i++)
            lanes_fma(&acc[i], &part, k + i * sets * LANES + d);
    }
}

/* p[j] = q . k_j * scale for the 16 keys of a page. Four at a time, in the order in which they lie
 * in memory; their sums are folded together as far as there are registers for. */
static inline __attribute__((always_inline)) void whole_scores(const float *q, const float *k,
                                                               const int64_t sets, float scale,
                                                               struct stream *next, float *p)
{
#if defined(__AVX512F__)
    struct lanes acc[KV_PAGE];
    dot4(q, k, sets, next, acc);
    dot4(q, k + 4 * sets * LANES, sets, next, acc + 4);
    dot4(q, k + 8 * sets * LANES, sets, next, acc + 8);
    dot4(q, k + 12 * sets * LANES, sets, next, acc + 12);
    vec sums = lanes_fold16(acc) * scale;
    memcpy(p, &sums, sizeof sums);
#else
    for (int j = 0; j < KV_PAGE; j += 4, k += 4 * sets * LANES) {
        struct lanes acc[4];
        dot4(q, k, sets, next, acc);
        lanes_fold4(acc, p + j);
        for (int i = 0; i < 4; i++)
            p[j + i] *= scale;
    }
#endif
}

/* The same for heads of any size; the usual ones as constants. */
static void page_scores(const float *q, const float *k, int64_t head_dim, float scale,
                        struct stream *next, float *p)
{
    if (head_dim == 64) {
        whole_scores(q, k, 4, scale, next, p);
    } else if (head_dim == 128) {
        whole_scores(q, k, 8, scale, next, p);
    } else if (head_dim % LANES == 0) {
        whole_scores(q, k, head_dim / LANES, scale, next, p);
    } else {
        for (int j = 0; j < KV_PAGE; j++)
            p[j] = lanes_dot(q, k + j * head_dim, head_dim) * scale;
    }
}

/* The rows of a page as floats, if that is how they are multiplied. */
static const float *floats_of(const struct work *w, const char *rows)
{
    if (!w->kv->halves)
        return (const float *)(const void *)rows;
    if (!w->pairs)
        widen(rows, (int64_t)KV_PAGE * w->a->head_dim, w->room);
    return w->room;
}

/* Head's q of token t in pairs. */
static float *q_of(const struct work *w, int32_t t, int32_t head)
{
    return w->room + (t * (int64_t)(w->h1 - w->h0) + head - w->h0) * w->a->head_dim;
}

/* p[j] = q . k_j * scale, -inf from the end of what a token sees up to whole pages */
static void scores(const struct work *w, struct stream *next)
{
    const struct attn_args *a = w->a;
    int32_t hd = a->head_dim, at_once = w->pairs ? PAIRS_KEYS : 4, first;
    int32_t sets = (hd + LANES - 1) / LANES * (KV_PAGE / at_once);
    for (int32_t t = 0; PAIRS && w->pairs && t < w->tokens; t++)
        for (int32_t h = w->h0; h < w->h1; h++)
            EAGER(pairs_of)(a->q + place_of(w, t, h), hd, q_of(w, t, h));
    for (int32_t page = 0; page < next->pages; page++) {
        for (int32_t kvh = next->kvh0; kvh < next->kvh1; kvh++) {
            const char *rows = page_rows(w->kv, a->k_pages, w->s, page, kvh);
            const float *k = floats_of(w, rows);
            int32_t count = heads_of(w, kvh, &first);
            share(next, sets * count * w->tokens);
            for (int32_t t = 0; t < w->tokens; t++) {
                for (int32_t h = first; h < first + count && page * KV_PAGE < seen(w, t); h++) {
                    float *p = row_of(w, t, h) + (int64_t)page * KV_PAGE;
                    if (PAIRS && w->pairs)
                        EAGER(pairs_scores)(q_of(w, t, h), rows, hd, a->scale, next, p);
                    else
                        page_scores(a->q + place_of(w, t, h), k, hd, a->scale, next, p);
                }
            }
        }
    }
    for (int32_t t = 0; t < w->tokens; t++)
        for (int32_t h = w->h0; h < w->h1; h++)
            for (int32_t j = seen(w, t); j % KV_PAGE; j++)
                row_of(w, t, h)[j] = -INFINITY;
}

/* out[d] += sum_j p[j] v_j[d] over the `keys` positions of a page, for `heads` neighbouring heads
 * and 16 * sets dimensions. */
static inline __attribute__((always_inline)) void
values_page(const float *p, int64_t ldp, const float *v, int32_t hd, int32_t keys, const int heads,
            const int sets, struct stream *next, float *out)
{
    struct lanes acc[HEADS * SETS];
    for (int g = 0; g < heads; g++)
        for (int s = 0; s < sets; s++)
            acc[g * sets + s] = lanes_load(out + g * hd + s * LANES);
    for (int32_t e = 0; e < keys; e++, v += hd) {
        struct lanes value[SETS];
        ask(next);
        for (int s = 0; s < sets; s++)
            value[s] = lanes_load(v + s * LANES);
        for (int g = 0; g < heads; g++) {
            vec weight = vec_set(p[g * ldp + e]);
            for (int s = 0; s < sets; s++)
                for (int part = 0; part < PARTS; part++)
                    acc[g * sets + s].p[part] =
                        vec_fma(weight, value[s].p[part], acc[g * sets + s].p[part]);
        }
    }
    for (int g = 0; g < heads; g++)
        for (int s = 0; s < sets; s++)
            lanes_store(out + g * hd + s * LANES, &acc[g * sets + s]);
}

/* The same for all dimensions of up to HEADS heads. */
static void values_heads(const float *p, int64_t ldp, const float *v, int32_t hd, int32_t keys,
                         int32_t heads, struct stream *next, float *out)
{
    int32_t d = 0;
    for (; d + SETS * LANES <= hd; d += SETS * LANES) {
        if (heads == HEADS)
            values_page(p, ldp, v + d, hd, keys, HEADS, SETS, next, out + d);
        else if (heads == HEADS - 1)
            values_page(p, ldp, v + d, hd, keys, HEADS - 1, SETS, next, out + d);
        else if (heads == 2)
            values_page(p, ldp, v + d, hd, keys, 2, SETS, next, out + d);
        else
            values_page(p, ldp, v + d, hd, keys, 1, SETS, next, out + d);
    }
    for (int32_t g = 0; g < heads; g++, p += ldp, out += hd) {
        int32_t rest = d;
        for (; rest + LANES <= hd; rest += LANES)
            values_page(p, ldp, v + rest, hd, keys, 1, 1, next, out + rest);
        for (; rest < hd; rest++) /* dimensions that fill no set of 16 */
            for (int32_t e = 0; e < keys; e++)
                out[rest] = lane_fma(p[e], v[(int64_t)e * hd + rest], out[rest]);
    }
}

/* out = sum_j p[j] v_j */
static void values(const struct work *w, struct stream *next)
{
    const struct attn_args *a = w->a;
    int32_t hd = a->head_dim, blocks = (hd + SETS * LANES - 1) / (SETS * LANES), first;
    for (int32_t page = 0; page < next->pages; page++) {
        for (int32_t kvh = next->kvh0; kvh < next->kvh1; kvh++) {
            const char *rows = page_rows(w->kv, a->v_pages, w->s, page, kvh);
            const float *v = floats_of(w, rows);
            int32_t count = heads_of(w, kvh, &first), end = first + count;
            share(next, KV_PAGE * blocks * ((count + HEADS - 1) / HEADS) * w->tokens);
            for (int32_t t = 0; t < w->tokens; t++) {
                int32_t left = seen(w, t) - page * KV_PAGE, keys = left < KV_PAGE ? left : KV_PAGE;
                for (int32_t h = first; h < end && keys > 0; h += HEADS) {
                    const float *p = row_of(w, t, h) + (int64_t)page * KV_PAGE;
                    float *out = a->a + place_of(w, t, h);
                    int32_t heads = end - h < HEADS ? end - h : HEADS;
                    if (PAIRS && w->pairs)
                        EAGER(pairs_values)(p, w->ldp, rows, hd, keys, heads, next, out);
                    else
                        values_heads(p, w->ldp, v, hd, keys, heads, next, out);
                }
            }
        }
    }
}

/* Tokens [t0, t0 + tokens) of a span, heads [h0, h1). */
void EAGER(attend)(const struct keys_values *kv, const struct span *s, int32_t t0, int32_t tokens,
                   int32_t h0, int32_t h1)
{
    const struct attn_args *a = kv->a;
    int64_t ldp = (s->context - s->count + t0 + tokens + KV_PAGE - 1) / KV_PAGE * KV_PAGE;
    int64_t rows = (int64_t)tokens * (h1 - h0), hd = a->head_dim;
    bool pairs = PAIRS && kv->halves && hd % LANES == 0;
    int64_t floats = rows * (1 + ldp), room = kv->halves ? (pairs ? rows : KV_PAGE) * hd : 0;
    float *sum = eager_arena(EAGER_INNER, (floats + room) * (int64_t)sizeof *sum);
    struct work w = {a, kv, s, t0, tokens, h0, h1, sum + rows, ldp, sum + floats, pairs};
    struct stream next = stream_open(&w);
    scores(&w, &next);
    for (int32_t t = 0; t < tokens; t++) {
        int32_t n = (seen(&w, t) + KV_PAGE - 1) / KV_PAGE * KV_PAGE;
        memset(a->a + place_of(&w, t, h0), 0, (size_t)((h1 - h0) * hd) * sizeof(float));
        for (int32_t h = h0; h < h1; h++) {
            float *p = row_of(&w, t, h);
            sum[t * (h1 - h0) + h - h0] = exponentials(p, n, maximum(p, n));
        }
    }
    values(&w, &next);
    for (int32_t t = 0; t < tokens; t++) {
        for (int32_t h = h0; h < h1; h++) {
            float r = 1.0f / sum[t * (h1 - h0) + h - h0], *out = a->a + place_of(&w, t, h);
            if (PAIRS && pairs)
                EAGER(pairs_back)(out, hd);
            for (int32_t d = 0; d < hd; d++)
                out[d] *= r;
        }
    }
}

/* Items are (kv head, token, head of the group), shared out in this order, so that ranks read as
 * few pages twice as can be. Of token number `token` of the step a rank has the heads [*h0, *h1).
 */
static void rank_heads(const struct attn_args *a, int32_t token, int32_t from, int32_t to,
                       int32_t *h0, int32_t *h1)
{
    int32_t group = a->heads / a->kv_heads;
    *h0 = *h1 = 0;
    for (int32_t kvh = 0; kvh < a->kv_heads; kvh++) {
        int32_t item = (kvh * a->m + token) * group, first = from > item ? from - item : 0;
        int32_t end = to < item + group ? to - item : group;
        if (first >= end)
            continue;
        *h0 = *h0 < *h1 ? *h0 : kvh * group + first;
        *h1 = kvh * group + end;
    }
}

/* Tokens of a span go together as far as their scores fit the second-level cache. */
void EAGER(attn_narrow)(const struct keys_values *kv, const struct team *team)
{
    enum { FLOATS = 1 << 17 };
    const struct attn_args *a = kv->a;
    int32_t from, to, token = 0, h0, h1, next0, next1;
    eager_share(team, a->m * a->heads, 1, &from, &to);
    for (int32_t i = 0; i < a->spans; i++) {
        const struct span *s = &a->span[i];
        for (int32_t t = 0, tokens; t < s->count; t += tokens, token += tokens) {
            rank_heads(a, token, from, to, &h0, &h1);
            for (tokens = 1; t + tokens < s->count; tokens++) {
                rank_heads(a, token + tokens, from, to, &next0, &next1);
                if (next0 != h0 || next1 != h1 ||
                    (int64_t)s->context * (h1 - h0) * (tokens + 1) > FLOATS)
                    break;
            }
            if (h0 < h1)
                EAGER(attend)(kv, s, t, tokens, h0, h1);
        }
    }
}
