/* SPDX-License-Identifier: Apache-2.0 */
/* eager_attn_narrow.h - what the two files of attention of few tokens share: what a rank computes
 * together, what it asks memory for meanwhile, and how much goes into registers.
 */
#ifndef WHET_ENGINE_CPU_EAGER_ATTN_NARROW_H
#define WHET_ENGINE_CPU_EAGER_ATTN_NARROW_H

#include "engine/cpu/eager_attn.h"

/* What a rank computes together: neighbouring heads of neighbouring tokens of a span. Keys, then
 * values are read in the order in which they lie in memory, page by page and in a page one kv head
 * after the other, and each page's rows of a kv head meet all that look at them. */
struct work {
    const struct attn_args *a;
    const struct keys_values *kv;
    const struct span *s;
    int32_t t0, tokens, h0, h1; /* tokens of the span; heads [h0, h1) */
    float *p;                   /* [tokens, h1 - h0, ldp]: scores, then weights */
    int64_t ldp;
    float *room; /* for a page's rows of a kv head; q in pairs, as p, if `pairs` */
    bool pairs;  /* keys and values are multiplied out of pairs of bf16 */
};

/* Positions that token t looks at. */
static inline int32_t seen(const struct work *w, int32_t t)
{
    return w->s->context - w->s->count + w->t0 + t + 1;
}

static inline float *row_of(const struct work *w, int32_t t, int32_t head)
{
    return w->p + (t * (int64_t)(w->h1 - w->h0) + head - w->h0) * w->ldp;
}

/* Where head's q, and its output, of token t begin. */
static inline int64_t place_of(const struct work *w, int32_t t, int32_t head)
{
    return ((int64_t)(w->s->first + w->t0 + t) * w->a->heads + head) * w->a->head_dim;
}

/* The heads of [h0, h1) that kv head kvh serves. */
static inline int32_t heads_of(const struct work *w, int32_t kvh, int32_t *first)
{
    int32_t group = w->a->heads / w->a->kv_heads, end = (kvh + 1) * group;
    *first = kvh * group > w->h0 ? kvh * group : w->h0;
    return (end < w->h1 ? end : w->h1) - *first;
}

/* Rows of a kv head in a page are read while those that come AHEAD bytes later are asked for: into
 * the second-level cache, as the first has buffers for fewer lines under way
 * (docs/lab/2026-11-30-cpu-eager-memory.md), and evenly, since what is asked for at once is waited
 * for. */
enum { AHEAD = 8192, LINE = 64 };
struct stream {
    const struct work *w;
    int32_t page, pages, kvh, kvh0, kvh1; /* what is asked for next; [kvh0, kvh1) are read */
    bool values;
    const char *at, *end; /* what is asked for now, */
    int64_t each;         /* so many bytes a call */
};

static inline void stream_step(struct stream *n)
{
    if (++n->kvh < n->kvh1)
        return;
    n->kvh = n->kvh0;
    if (++n->page < n->pages)
        return;
    n->page = n->values ? n->pages - 1 : 0; /* behind the last nothing follows: it again */
    n->values = true;
}

static inline struct stream stream_open(const struct work *w)
{
    int32_t group = w->a->heads / w->a->kv_heads;
    struct stream n = {.w = w, .kvh0 = w->h0 / group, .kvh1 = (w->h1 + group - 1) / group};
    n.pages = (seen(w, w->tokens - 1) + KV_PAGE - 1) / KV_PAGE;
    n.kvh = n.kvh0;
    for (int64_t bytes = 0; bytes < AHEAD; bytes += page_row_bytes(w->kv))
        stream_step(&n);
    return n;
}

/* The next rows will be asked for in so many calls of ask(). */
static inline void share(struct stream *n, int32_t calls)
{
    const struct attn_args *a = n->w->a;
    int64_t bytes = page_row_bytes(n->w->kv);
    n->at = page_rows(n->w->kv, n->values ? a->v_pages : a->k_pages, n->w->s, n->page, n->kvh);
    n->end = n->at + bytes;
    n->each = (bytes / LINE + calls - 1) / calls * LINE;
    stream_step(n);
}

static inline void ask(struct stream *n)
{
    const char *to = n->at + n->each;
    for (; n->at < to && n->at < n->end; n->at += LINE)
        __builtin_prefetch(n->at, 0, 2);
}

/* Heads and sets of 16 dimensions that are summed at once, as registers allow. */
#if defined(__AVX512F__)
enum { HEADS = 4, SETS = 4 };
#elif defined(__AVX2__)
enum { HEADS = 3, SETS = 2 };
#elif defined(__aarch64__)
enum { HEADS = 4, SETS = 1 };
#else
enum { HEADS = 2, SETS = 1 };
#endif

/* eager_attn_pairs.c, where vectors have 8 or 16 floats: for keys and values in bf16, and heads of
 * whole sets of 16 dimensions. Elsewhere nothing calls these. */
#if defined(__AVX2__)
enum { PAIRS = 1, PAIRS_KEYS = VEC / 2 }; /* so many keys at once, with a call of ask() a set */
#else
enum { PAIRS = 0, PAIRS_KEYS = 4 };
#endif
/* q of a head as pairs_scores() takes it. */
void EAGER(pairs_of)(const float *q, int64_t head_dim, float *to);
/* p[j] = q . k_j * scale for the 16 keys of a page. */
void EAGER(pairs_scores)(const float *q, const char *k, int64_t head_dim, float scale,
                         struct stream *next, float *p);
/* out += sum_j p[j] v_j over the `keys` positions of a page, for up to HEADS neighbouring heads,
 * whose out have their dimensions in an order of its own, */
void EAGER(pairs_values)(const float *p, int64_t ldp, const char *v, int32_t hd, int32_t keys,
                         int32_t heads, struct stream *next, float *out);
/* until this puts a head's right. */
void EAGER(pairs_back)(float *out, int64_t head_dim);

#endif
