/* SPDX-License-Identifier: Apache-2.0 */
/* attn.c - attn for sequences of few tokens: a = softmax(q k^T * scale, causal) v, grouped-query.
 *
 * q, a [M, HEADS, HEAD_DIM]; keys and values in pages of [KV_HEADS, 16, HEAD_DIM]. Bytes moved: the
 * context's keys and values, 2 * HEAD_DIM elements (lib/kv.h) a position and kv head: the larger
 * part of a decode step once contexts grow, so heads that share a kv head should share its loads
 * (SHARE=1), and all of it should be read in the order in which it lies in memory (SHARE=2,
 * lib/page_order.h).
 *
 * A work item is (token; head, kv head or neighbouring kv heads; part of the context). Its scores
 * come a page of 16 keys at a time, are kept for CHUNK positions, and become exponentials against
 * the part's maximum. With one part (SPLITS=1) that is the canonical order of lanes.h. More parts
 * give an item of each to more threads; their maxima, sums and values are merged behind a barrier.
 *
 * Invariant: positions at or beyond a token's context are loaded (whole pages) but never used.
 */
#include "cpu/lib/shape.h"

/* ---- knobs -------------------------------------------------------------------------------- */

/* cpu/attn.def has them; whoever compiles this gives each a value. */

/* ---- legality ----------------------------------------------------------------------------- */

#define KNOB(name, role, value, values, help) _Static_assert((name) == (name), "has a value");
#define LEGAL(expression, why) _Static_assert(expression, why);
#include "cpu/attn.def"

/* ---- code --------------------------------------------------------------------------------- */

#include "cpu/lib/page_order.h"
#include "cpu/lib/taken.h"
#include "cpu/lib/vexp.h"

/* The most heads of an item. */
#if SHARE == 2
enum { ITEM_HEADS = HEADS };
#else
enum { ITEM_HEADS = SHARE ? GROUP : 1 };
#endif

enum { PARTIAL = HEAD_DIM + 16 }; /* floats a head's part leaves for the merge: values, max, sum */

/* One item: heads [head, head + heads) of token `token`, which kv heads from kv_head on serve,
 * positions of pages [page0, page1), `end` of which (counted from page0) are in the token's
 * context. */
struct item {
    const struct span *span;
    int token, head, heads, kv_head;
    int page0, page1, end;
};

INLINE void prefetch_page(const kv_element *rows)
{
    for (int i = 0; i < 16 * HEAD_DIM; i += KV_LINE)
        __builtin_prefetch(rows + i, 0, PAGES_INTO);
}

/* Scores of pages [from, to) for one head: score[j], -inf beyond the context. */
INLINE void scores(const struct attn_args *a, const struct item *it, int h, int from, int to,
                   float *score)
{
    const float *q = a->q + ((int64_t)it->token * HEADS + it->head + h) * HEAD_DIM;
    for (int p = from; p < to; p++) {
        if (PREFETCH && p + PREFETCH < to)
            prefetch_page(page_rows(a, a->k_pages, it->span, p + PREFETCH, it->kv_head));
        vf s = page_scores(q, page_rows(a, a->k_pages, it->span, p, it->kv_head));
        s = vf_mul(s, vf_set(a->scale));
        s = keep_lanes(s, it->end - (p - it->page0) * 16, -__builtin_inff());
        vf_store(score + (p - from) * 16, s);
    }
}

INLINE float highest(const float *score, int pages, float most)
{
    vf m = vf_set(most);
    for (int p = 0; p < pages; p++)
        m = vf_max(m, vf_load(score + p * 16));
    return vf_largest(m);
}

/* score = e^(score - most), added to the 16 lanes of `sum`; e^-inf is 0. */
INLINE void exponentials(float *score, int pages, float most, float *sum)
{
    vf total = vf_load(sum);
    for (int p = 0; p < pages; p++) {
        vf e = vf_exp(vf_sub(vf_load(score + p * 16), vf_set(most)));
        vf_store(score + p * 16, e);
        total = vf_add(total, e);
    }
    vf_store(sum, total);
}

/* out[h] += sum_j e[h][j] v_j over pages [from, to), in rising j, for `heads` heads. */
INLINE void values(const struct attn_args *a, const struct item *it, const int heads, int from,
                   int to, const float *e, float *out)
{
    vf acc[4][DIMS];
    UNROLLED
    for (int h = 0; h < heads; h++) {
        UNROLLED
        for (int d = 0; d < DIMS; d++)
            acc[h][d] = vf_load(out + h * HEAD_DIM + 16 * d);
    }
    for (int p = from; p < to; p++) {
        const kv_element *v = page_rows(a, a->v_pages, it->span, p, it->kv_head);
        const int left = it->end - (p - it->page0) * 16, n = left < 16 ? left : 16;
        if (PREFETCH && p + PREFETCH < to)
            prefetch_page(page_rows(a, a->v_pages, it->span, p + PREFETCH, it->kv_head));
        for (int j = 0; j < n; j++) {
            UNROLLED
            for (int h = 0; h < heads; h++) {
                vf one = vf_set(e[h * CHUNK + (p - from) * 16 + j]);
                UNROLLED
                for (int d = 0; d < DIMS; d++)
                    acc[h][d] = vf_fma(one, kv_load(v + j * HEAD_DIM + 16 * d), acc[h][d]);
            }
        }
    }
    UNROLLED
    for (int h = 0; h < heads; h++) {
        UNROLLED
        for (int d = 0; d < DIMS; d++)
            vf_store(out + h * HEAD_DIM + 16 * d, acc[h][d]);
    }
}

INLINE struct chunk chunk_of(const struct attn_args *a, const struct item *it, int from, int to)
{
    const int kv1 = it->kv_head + it->heads / GROUP, seen = it->end - (from - it->page0) * 16;
    return (struct chunk){a, it->span, it->kv_head, kv1, from, to, it->page1, seen};
}

/* Scores and values of the item's heads over pages [from, to), at most CHUNK positions. */
INLINE void item_scores(const struct attn_args *a, const struct item *it, int from, int to,
                        float *score)
{
    const struct chunk c = chunk_of(a, it, from, to);
    if (SHARE == 2)
        order_scores(&c, a->q + ((int64_t)it->token * HEADS + it->head) * HEAD_DIM, score, CHUNK);
    for (int h = 0; SHARE < 2 && h < ITEM_HEADS; h++)
        scores(a, it, h, from, to, score + h * CHUNK);
}

INLINE void item_values(const struct attn_args *a, const struct item *it, int from, int to,
                        const float *e, float *out)
{
    const struct chunk c = chunk_of(a, it, from, to);
    int h = 0;
    if (SHARE == 2)
        order_values(&c, e, CHUNK, out);
    for (; SHARE < 2 && h + FLIGHT <= ITEM_HEADS; h += FLIGHT)
        values(a, it, FLIGHT, from, to, e + h * CHUNK, out + h * HEAD_DIM);
    for (; FLIGHT > 1 && h < ITEM_HEADS; h++)
        values(a, it, 1, from, to, e + h * CHUNK, out + h * HEAD_DIM);
}

/* The item's heads: unnormalized values out[h], maxima most[h], sums total[h]. */
INLINE void attend(const struct attn_args *a, const struct item *it, float *out, float *most,
                   float *total)
{
    enum { PAGES = CHUNK / 16 };
    float score[ITEM_HEADS * CHUNK] __attribute__((aligned(64)));
    float sum[ITEM_HEADS][16] __attribute__((aligned(64))) = {{0}};
    const int kept = it->page1 - it->page0 <= PAGES;
    for (int h = 0; h < it->heads; h++)
        most[h] = -__builtin_inff();
    for (int d = 0; d < it->heads * HEAD_DIM; d++)
        out[d] = 0.0f;
    for (int p = it->page0; p < it->page1; p += PAGES) {
        int to = p + PAGES < it->page1 ? p + PAGES : it->page1;
        item_scores(a, it, p, to, score);
        for (int h = 0; h < it->heads; h++)
            most[h] = highest(score + h * CHUNK, to - p, most[h]);
    }
    for (int p = it->page0; p < it->page1; p += PAGES) {
        int to = p + PAGES < it->page1 ? p + PAGES : it->page1;
        if (!kept)
            item_scores(a, it, p, to, score);
        for (int h = 0; h < it->heads; h++)
            exponentials(score + h * CHUNK, to - p, most[h], sum[h]);
        item_values(a, it, p, to, score, out);
    }
    for (int h = 0; h < it->heads; h++)
        total[h] = vf_fold(vf_load(sum[h]));
}

/* ---- items over threads ------------------------------------------------------------------- */

/* Items that heads are for each token and part. Of neighbouring kv heads as many are one as come
 * out even for all threads; where none do, a kv head is an item. */
INLINE int head_items(const struct attn_args *a, const struct team *team)
{
    int items = SHARE == 2 ? 1 : HEADS / ITEM_HEADS;
    while (SHARE == 2 && items < KV_HEADS &&
           (KV_HEADS % items != 0 || a->m * SPLITS * items % team->size != 0))
        items++;
    return items;
}

/* Item `index` of span s: tokens, then `items` of heads, then parts. */
INLINE struct item item_of(const struct span *s, int items, int index)
{
    const int unit = SHARE ? GROUP : 1, units = HEADS / unit; /* heads that no item divides */
    int part = index % SPLITS, at = index / SPLITS % items;
    int token = index / SPLITS / items, context = s->context - s->count + token + 1;
    int pages = (context + KV_PAGE - 1) / KV_PAGE;
    struct item it = {.span = s, .token = s->first + token, .head = units * at / items * unit};
    it.heads = SHARE < 2 ? ITEM_HEADS : units * (at + 1) / items * unit - it.head;
    it.kv_head = it.head / GROUP;
    it.page0 = pages * part / SPLITS;
    it.page1 = pages * (part + 1) / SPLITS;
    it.end = (part == SPLITS - 1 ? context : it.page1 * KV_PAGE) - it.page0 * KV_PAGE;
    return it;
}

/* Where the part's results wait for the merge. */
INLINE float *partial(const struct team *team, int token, int head, int part)
{
    return (float *)team->scratch + (((int64_t)token * HEADS + head) * SPLITS + part) * PARTIAL;
}

INLINE void do_item(const struct attn_args *a, const struct team *team, struct item it, int part)
{
    float out[ITEM_HEADS * HEAD_DIM] __attribute__((aligned(64)));
    float most[ITEM_HEADS], total[ITEM_HEADS];
    attend(a, &it, out, most, total);
    for (int h = 0; h < it.heads; h++) {
        float *to = SPLITS > 1 ? partial(team, it.token, it.head + h, part)
                               : a->a + ((int64_t)it.token * HEADS + it.head + h) * HEAD_DIM;
        float r = SPLITS > 1 ? 1.0f : 1.0f / total[h];
        for (int d = 0; d < HEAD_DIM; d++)
            to[d] = out[h * HEAD_DIM + d] * r;
        if (SPLITS > 1) {
            to[HEAD_DIM] = most[h];
            to[HEAD_DIM + 1] = total[h];
        }
    }
}

/* a of one head of one token from its parts; empty parts have maximum -inf and count nothing. */
INLINE void merge(const struct attn_args *a, const struct team *team, int token, int head)
{
    float *to = a->a + ((int64_t)token * HEADS + head) * HEAD_DIM;
    float most = -__builtin_inff(), total = 0.0f, weight[SPLITS];
    for (int s = 0; s < SPLITS; s++) {
        const float *part = partial(team, token, head, s);
        most = part[HEAD_DIM] > most ? part[HEAD_DIM] : most;
    }
    for (int s = 0; s < SPLITS; s++) {
        const float *part = partial(team, token, head, s);
        weight[s] = lane_exp(part[HEAD_DIM] - most);
        total += weight[s] * part[HEAD_DIM + 1];
    }
    for (int d = 0; d < HEAD_DIM; d++) {
        float sum = 0.0f;
        for (int s = 0; s < SPLITS; s++)
            sum += weight[s] * partial(team, token, head, s)[d];
        to[d] = sum * (1.0f / total);
    }
}

static void run(const void *args, const struct team *team)
{
    const struct attn_args *a = args;
    const int items = head_items(a, team);
    int64_t all = 0, before = 0; /* positions that items read, for even ranges */
    int turn = 0, next = -1;
    for (int i = 0; i < a->spans; i++)
        all += (int64_t)a->span[i].count * a->span[i].context * items * SPLITS;
    for (int i = 0; i < a->spans; i++) {
        const struct span *s = &a->span[i];
        const int64_t each = s->context;
        for (int n = 0; n < s->count * items * SPLITS; n++, before += each, turn++)
            if (item_is_mine(team, DEAL, turn, &next, before + each / 2, all))
                do_item(a, team, item_of(s, items, n), n % SPLITS);
    }
    if (SPLITS == 1)
        return;
    team->barrier(team);
    for (int n = team->rank; n < a->m * HEADS; n += team->size)
        merge(a, team, n / HEADS, n % HEADS);
}

static int64_t scratch_bytes(int32_t m, int32_t size)
{
    (void)size;
    return SPLITS > 1 ? (int64_t)m * HEADS * SPLITS * PARTIAL * 4 : 0;
}

/* ---- entry -------------------------------------------------------------------------------- */

const struct cpu_kernel whet_kernel = {
    .abi = WHET_CPU_ABI,
    .region = REGION_ATTN,
    .m_max = M_MAX,
    .run = run,
    .scratch_bytes = scratch_bytes,
};
