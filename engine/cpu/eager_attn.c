/* SPDX-License-Identifier: Apache-2.0 */
/* eager_attn.c - attention over paged keys and values, causal, grouped-query.
 *
 * Narrow steps: one item a (head, token), in the canonical order of lanes.h: all scores, their
 * maximum, exponentials summed in 16 lanes, then values in rising position. Ranks take heads, so a
 * kv head's pages stay in one core's cache from layer to layer.
 *
 * Wide steps: spans of many tokens (prefill chunks) go by blocks of QUERIES tokens of one kv head:
 * KEYS keys and values at a time are gathered out of their pages and multiplied, TILE tokens of a
 * head after the other, with the running maximum and sum of online softmax (Milakov and Gimelshein
 * 2018), so working memory does not grow with the context. The products are of eager_product.c,
 * which takes keys turned around, 16 positions a panel, or of OpenBLAS, which packs both factors
 * first, and that costs more than products of this size do. Spans of few tokens in a wide step take
 * the narrow way.
 */
#include <math.h>

#include "engine/cpu/eager_impl.h"
#include "engine/cpu/vec.h"

#if defined(EAGER_HAS_PRODUCT)
enum { TILE = 12, QUERIES = 60, KEYS = 256, STRIDE = KEYS + 16 };
#else
enum { TILE = 64, QUERIES = 64, KEYS = 256, STRIDE = KEYS };
#endif
enum { BLOCKED_FROM = 8 };

/* Rows of one kv head in one page. */
static const float *page_rows(const struct attn_args *a, const void *pages, const struct span *s,
                              int64_t page, int32_t kvh)
{
    int64_t number = a->page_table[s->pages_at + page];
    return (const float *)pages + (number * a->kv_heads + kvh) * KV_PAGE * a->head_dim;
}

/* ---- narrow --------------------------------------------------------------------------------- */

/* A kv head is read as a stream: the pages of its keys, then those of its values, then the next
 * head's keys. What will be read so many pages later is asked for, since a page is too short for
 * the processor's prefetchers; into the second-level cache, as the first has buffers for fewer
 * lines under way (docs/lab/2026-11-30-cpu-eager-memory.md). NULL: nothing is. */
enum { PAGES_AHEAD = 2 };
static const float *page_ahead(const struct attn_args *a, const struct span *s, int32_t kvh,
                               int32_t n, int32_t at)
{
    int32_t pages = (n + KV_PAGE - 1) / KV_PAGE, page = at + PAGES_AHEAD;
    if (page >= 2 * pages) {
        page -= 2 * pages;
        kvh++;
    }
    if (kvh == a->kv_heads || page >= 2 * pages)
        return NULL;
    return page < pages ? page_rows(a, a->k_pages, s, page, kvh)
                        : page_rows(a, a->v_pages, s, page - pages, kvh);
}

static inline void ask(const float *p, int64_t floats)
{
    for (int64_t i = 0; p && i < floats; i += LANES)
        __builtin_prefetch(p + i, 0, 2);
}

/* p[i] = q . k_i for four neighbouring keys */
static void score4(const float *q, const float *k, int64_t head_dim, float p[4])
{
    struct lanes acc[4] = {0};
    int64_t whole = head_dim / LANES * LANES;
    for (int64_t d = 0; d < whole; d += LANES) {
        struct lanes part = lanes_load(q + d);
        for (int i = 0; i < 4; i++)
            lanes_fma(&acc[i], &part, k + i * head_dim + d);
    }
    for (int i = 0; whole < head_dim && i < 4; i++)
        lanes_tail(&acc[i], q + whole, k + i * head_dim + whole, (int)(head_dim - whole));
    lanes_fold4(acc, p);
}

/* p[j] = q . k_j * scale for j < n; `cold`: no head before has read these keys */
static void scores(const struct attn_args *a, const struct span *s, const float *q, int32_t kvh,
                   int32_t n, bool cold, float *p)
{
    int64_t hd = a->head_dim;
    for (int32_t j = 0; j < n; j += KV_PAGE) {
        const float *k = page_rows(a, a->k_pages, s, j / KV_PAGE, kvh);
        const float *next = cold ? page_ahead(a, s, kvh, n, j / KV_PAGE) : NULL;
        int32_t keys = n - j < KV_PAGE ? n - j : KV_PAGE, e = 0;
        for (; e + 4 <= keys; e += 4) {
            ask(next ? next + e * hd : NULL, 4 * hd);
            score4(q, k + e * hd, hd, p + j + e);
        }
        for (; e < keys; e++)
            p[j + e] = lanes_dot(q, k + e * hd, hd);
    }
    for (int32_t j = 0; j < n; j++)
        p[j] *= a->scale;
}

static float maximum(const float *p, int32_t n)
{
    vec most = vec_set(-INFINITY);
    int32_t j = 0;
    for (; j + VEC <= n; j += VEC) {
        vec v = VEC_LOAD(vec, p + j);
        most = vec_max(v, most);
    }
    float top = vec_largest(most);
    for (; j < n; j++)
        top = p[j] > top ? p[j] : top;
    return top;
}

/* p[j] = e^(p[j] - top); returns the sum, position j in lane j % 16 */
static float exponentials(float *p, int32_t n, float top)
{
    float sum[LANES];
    struct lanes acc = lanes_zero();
    int32_t j = 0;
    for (; j + LANES <= n; j += LANES) {
        for (int i = 0; i < PARTS; i++) {
            vec e = vec_exp(VEC_LOAD(vec, p + j + i * VEC) - top);
            memcpy(p + j + i * VEC, &e, sizeof e);
            acc.p[i] += e;
        }
    }
    lanes_store(sum, &acc);
    for (int32_t l = 0; j < n; j++, l++) {
        p[j] = lane_exp(p[j] - top);
        sum[l] += p[j];
    }
    return lane_fold(sum);
}

/* out[d] = r * sum_j p[j] v_j[d] for 16 * sets dimensions from d0 on */
static inline __attribute__((always_inline)) void
values(const struct attn_args *a, const struct span *s, const float *p, int32_t kvh, int32_t n,
       float r, int32_t d0, int sets, bool cold, float *out)
{
    struct lanes acc[4] = {0};
    int32_t pages = (n + KV_PAGE - 1) / KV_PAGE;
    for (int32_t j = 0; j < n;) {
        const float *v = page_rows(a, a->v_pages, s, j / KV_PAGE, kvh) + d0;
        const float *next = cold ? page_ahead(a, s, kvh, n, pages + j / KV_PAGE) : NULL;
        for (int32_t e = 0; e < KV_PAGE && j < n; e++, j++) {
            struct lanes weight;
            ask(next ? next + (int64_t)e * a->head_dim + d0 : NULL, sets * LANES);
            for (int i = 0; i < PARTS; i++)
                weight.p[i] = vec_set(p[j]);
            for (int i = 0; i < sets; i++)
                lanes_fma(&acc[i], &weight, v + (int64_t)e * a->head_dim + i * LANES);
        }
    }
    for (int i = 0; i < sets; i++) {
        for (int part = 0; part < PARTS; part++)
            acc[i].p[part] *= r;
        lanes_store(out + d0 + i * LANES, &acc[i]);
    }
}

/* Dimensions that fill no set of 16. */
static void values_tail(const struct attn_args *a, const struct span *s, const float *p,
                        int32_t kvh, int32_t n, float r, int32_t d, float *out)
{
    for (; d < a->head_dim; d++) {
        float sum = 0;
        for (int32_t j = 0; j < n; j++) {
            const float *v = page_rows(a, a->v_pages, s, j / KV_PAGE, kvh);
            sum = lane_fma(p[j], v[(int64_t)(j % KV_PAGE) * a->head_dim + d], sum);
        }
        out[d] = sum * r;
    }
}

static void attend(const struct attn_args *a, const struct span *s, int32_t t, int32_t h, bool cold)
{
    int32_t n = s->context - s->count + t + 1, kvh = h / (a->heads / a->kv_heads), d = 0;
    int64_t at = ((int64_t)(s->first + t) * a->heads + h) * a->head_dim;
    float *p = eager_arena(EAGER_INNER, (n + LANES) * (int64_t)sizeof *p), *out = a->a + at;
    scores(a, s, a->q + at, kvh, n, cold, p);
    float r = 1.0f / exponentials(p, n, maximum(p, n));
    for (; d + 4 * LANES <= a->head_dim; d += 4 * LANES)
        values(a, s, p, kvh, n, r, d, 4, cold, out);
    for (; d + LANES <= a->head_dim; d += LANES)
        values(a, s, p, kvh, n, r, d, 1, cold, out);
    values_tail(a, s, p, kvh, n, r, d, out);
}

/* Heads of a group follow each other, so their shared keys and values come from cache. */
static void attn_narrow(const struct attn_args *a, const struct team *team)
{
    int32_t from, to, item = 0, group = a->heads / a->kv_heads;
    eager_share(team, a->m * a->heads, 1, &from, &to);
    for (int32_t kvh = 0; kvh < a->kv_heads; kvh++)
        for (int32_t i = 0; i < a->spans; i++)
            for (int32_t t = 0; t < a->span[i].count; t++)
                for (int32_t g = 0; g < group; g++, item++)
                    if (item >= from && item < to)
                        attend(a, &a->span[i], t, kvh * group + g, g == 0 || item == from);
}

/* ---- wide ----------------------------------------------------------------------------------- */

/* Working memory of one block: the heads of a group share gathered keys and values. */
struct block {
    float *k, *v;     /* [KEYS, head_dim]; k for eager_product.c: [KEYS / 16, head_dim, 16] */
    float *p;         /* [TILE, STRIDE] */
    float *top, *sum; /* [group, QUERIES] */
    float *o;         /* [group, QUERIES, head_dim] */
};

static struct block block_open(const struct attn_args *a)
{
    int64_t hd = a->head_dim, group = a->heads / a->kv_heads;
    int64_t floats = 2 * KEYS * hd + TILE * STRIDE + group * QUERIES * (2 + hd);
    struct block b = {.k = eager_arena(EAGER_INNER, floats * (int64_t)sizeof(float))};
    b.v = b.k + KEYS * hd;
    b.p = b.v + KEYS * hd;
    b.top = b.p + TILE * STRIDE;
    b.sum = b.top + group * QUERIES;
    b.o = b.sum + group * QUERIES;
    for (int64_t i = 0; i < group * QUERIES; i++) {
        b.top[i] = -INFINITY;
        b.sum[i] = 0;
    }
    memset(b.o, 0, (size_t)(group * QUERIES * hd) * sizeof *b.o);
    return b;
}

#if defined(EAGER_HAS_PRODUCT)

/* Whole pages: what lies behind the context is multiplied, and then hidden. */
static void keys_of_page(const float *k, int32_t head_dim, int32_t rows, float *to)
{
    (void)rows;
    EAGER(turn)(k, head_dim, head_dim, to);
}

/* p = scale q k^T for `rows` rows of q and p and `keys` positions, or up to 15 more. */
static void product_scores(const struct block *b, const float *q, int32_t ldq, float scale,
                           int32_t hd, int32_t rows, int32_t keys)
{
    float scales[TILE];
    for (int i = 0; i < TILE; i++)
        scales[i] = scale;
    struct eager_product p = {.m = rows,
                              .columns = (keys + LANES - 1) / LANES * LANES,
                              .k = hd,
                              .x = q,
                              .ldx = ldq,
                              .w = b->k,
                              .panel = (int64_t)hd * LANES,
                              .row = LANES,
                              .y = b->p,
                              .ldy = STRIDE,
                              .scale = scales};
    EAGER(product)(&p);
}

/* o += p v */
static void product_values(const struct block *b, int32_t hd, int32_t rows, int32_t keys, float *o)
{
    struct eager_product p = {.m = rows,
                              .columns = hd,
                              .k = keys,
                              .add = 1,
                              .x = b->p,
                              .ldx = STRIDE,
                              .w = b->v,
                              .panel = LANES,
                              .row = hd,
                              .y = o,
                              .ldy = hd};
    EAGER(product)(&p);
}

#else

static void keys_of_page(const float *k, int32_t head_dim, int32_t rows, float *to)
{
    memcpy(to, k, (size_t)rows * (size_t)head_dim * sizeof *to);
}

/* p = scale q k^T for `rows` rows of q and p and `keys` positions. */
static void product_scores(const struct block *b, const float *q, int32_t ldq, float scale,
                           int32_t hd, int32_t rows, int32_t keys)
{
    eager_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, keys, hd, scale, q, ldq, b->k, hd, 0,
                b->p, STRIDE);
}

/* o += p v */
static void product_values(const struct block *b, int32_t hd, int32_t rows, int32_t keys, float *o)
{
    eager_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, hd, keys, 1, b->p, STRIDE, b->v,
                hd, 1, o, hd);
}

#endif

static void gather(const struct attn_args *a, const struct span *s, int32_t kvh, int32_t first,
                   int32_t n, const struct block *b)
{
    for (int32_t j = 0; j < n; j += KV_PAGE) {
        int32_t rows = n - j < KV_PAGE ? n - j : KV_PAGE;
        size_t bytes = (size_t)rows * (size_t)a->head_dim * sizeof(float);
        int64_t page = (first + j) / KV_PAGE, at = (int64_t)j * a->head_dim;
        keys_of_page(page_rows(a, a->k_pages, s, page, kvh), a->head_dim, rows, b->k + at);
        memcpy(b->v + at, page_rows(a, a->v_pages, s, page, kvh), bytes);
    }
}

/* One row of scores to weights against the running maximum; the first `n` are attended to, the
 * rest of `keys` become 0. Rescales the row of o when the maximum grows. */
static void online_softmax(float *p, int32_t n, int32_t keys, float *top, float *sum, float *o,
                           int32_t head_dim)
{
    n = n < keys ? n : keys;
    for (; n % LANES; n++) /* e^-inf = 0: whole vectors, the same sum */
        p[n] = -INFINITY;
    float most = maximum(p, n), best = most > *top ? most : *top;
    float total = exponentials(p, n, best);
    for (; n < keys; n++)
        p[n] = 0;
    float shrink = lane_exp(*top - best); /* the first block: e^-inf = 0 */
    for (int32_t d = 0; shrink != 1 && d < head_dim; d++)
        o[d] *= shrink;
    *sum = *sum * shrink + total;
    *top = best;
}

/* Tokens [t0 + i, t0 + i + rows) of a span, no more than a tile of the block at t0, against keys
 * [first, first + keys), one head of the group. */
static void block_tile(const struct attn_args *a, const struct span *s, const struct block *b,
                       int32_t t0, int32_t i, int32_t rows, int32_t first, int32_t keys, int32_t h,
                       int32_t g)
{
    int32_t hd = a->head_dim, ld = a->heads * hd, row = g * QUERIES + i;
    const float *q = a->q + (int64_t)(s->first + t0 + i) * ld + (int64_t)h * hd;
    float *o = b->o + (int64_t)row * hd;
    int32_t attended = s->context - s->count + t0 + i + 1 - first; /* by the first row */
    if (attended + rows - 1 < keys)
        keys = attended + rows - 1;
    if (keys <= 0)
        return;
    product_scores(b, q, ld, a->scale, hd, rows, keys);
    for (int32_t r = 0; r < rows; r++, attended++) {
        float *p = b->p + (int64_t)r * STRIDE;
        if (attended > 0)
            online_softmax(p, attended, keys, &b->top[row + r], &b->sum[row + r],
                           o + (int64_t)r * hd, hd);
        else
            memset(p, 0, (size_t)keys * sizeof *p);
    }
    product_values(b, hd, rows, keys, o);
}

static void attend_block(const struct attn_args *a, const struct span *s, int32_t t0, int32_t kvh)
{
    int32_t rows = s->count - t0 < QUERIES ? s->count - t0 : QUERIES;
    int32_t n = s->context - s->count + t0 + rows, group = a->heads / a->kv_heads;
    struct block b = block_open(a);
    for (int32_t first = 0; first < n; first += KEYS) {
        int32_t keys = n - first < KEYS ? n - first : KEYS;
        gather(a, s, kvh, first, keys, &b);
        for (int32_t g = 0; g < group; g++)
            for (int32_t i = 0; i < rows; i += TILE)
                block_tile(a, s, &b, t0, i, rows - i < TILE ? rows - i : TILE, first, keys,
                           kvh * group + g, g);
    }
    for (int32_t g = 0; g < group; g++) {
        for (int32_t i = 0; i < rows; i++) {
            float r = 1 / b.sum[g * QUERIES + i], *o = b.o + (g * QUERIES + i) * a->head_dim;
            float *out = a->a + (int64_t)(s->first + t0 + i) * a->heads * a->head_dim +
                         (int64_t)(kvh * group + g) * a->head_dim;
            for (int32_t d = 0; d < a->head_dim; d++)
                out[d] = o[d] * r;
        }
    }
}

/* Items that a rank does: those it comes for, or those dealt to it. Later tokens look at more
 * positions, so dealing goes backwards every other round: a rank with a light item of one has a
 * heavy item of the next. */
struct turns {
    const struct team *team;
    int32_t mine;
};

static bool is_mine(struct turns *t, int32_t item)
{
    int32_t size = t->team->size, at = item % (2 * size);
    if (!t->team->taken)
        return (at < size ? at : 2 * size - 1 - at) == t->team->rank;
    if (t->mine < item)
        t->mine = __atomic_fetch_add(t->team->taken, 1, __ATOMIC_RELAXED);
    return t->mine == item;
}

static void attn_wide(const struct attn_args *a, const struct team *team)
{
    struct turns turns = {team, -1};
    int32_t item = 0;
    for (int32_t i = 0; i < a->spans; i++) {
        const struct span *s = &a->span[i];
        int blocked = s->count >= BLOCKED_FROM;
        for (int32_t t = 0; t < s->count; t += blocked ? QUERIES : 1) {
            for (int32_t h = 0; h < (blocked ? a->kv_heads : a->heads); h++, item++) {
                if (!is_mine(&turns, item))
                    continue;
                if (blocked)
                    attend_block(a, s, t, h);
                else
                    attend(a, s, t, h, h % (a->heads / a->kv_heads) == 0);
            }
        }
    }
}

void EAGER(attn)(const void *args, const struct team *team)
{
    const struct attn_args *a = args;
    if (a->m <= EAGER_NARROW)
        attn_narrow(a, team);
    else
        attn_wide(a, team);
}
