/* SPDX-License-Identifier: Apache-2.0 */
/* eager_attn.c - attention over paged keys and values, causal, grouped-query.
 *
 * Narrow steps and spans of few tokens: eager_attn_narrow.c.
 *
 * Wide steps: spans of many tokens (prefill chunks) go by blocks of QUERIES tokens of one kv head:
 * KEYS keys and values at a time are gathered out of their pages and multiplied, TILE tokens of a
 * head after the other, with the running maximum and sum of online softmax (Milakov and Gimelshein
 * 2018), so working memory does not grow with the context. The products are of eager_product.c,
 * which takes keys turned around, 16 positions a panel, or of OpenBLAS, which packs both factors
 * first, and that costs more than products of this size do.
 */
#include "engine/cpu/eager_attn.h"

#if defined(EAGER_HAS_PRODUCT)
enum { TILE = 12, QUERIES = 60, KEYS = 256, STRIDE = KEYS + 16 };
#else
enum { TILE = 64, QUERIES = 64, KEYS = 256, STRIDE = KEYS };
#endif
enum { BLOCKED_FROM = 8 };

/* Working memory of one block: the heads of a group share gathered keys and values. */
struct block {
    float *k, *v;     /* [KEYS, head_dim]; k for eager_product.c: [KEYS / 16, head_dim, 16] */
    float *room;      /* [KV_PAGE, head_dim] */
    float *p;         /* [TILE, STRIDE] */
    float *top, *sum; /* [group, QUERIES] */
    float *o;         /* [group, QUERIES, head_dim] */
};

static struct block block_open(const struct attn_args *a)
{
    int64_t hd = a->head_dim, group = a->heads / a->kv_heads;
    int64_t floats = (2 * KEYS + KV_PAGE) * hd + TILE * STRIDE + group * QUERIES * (2 + hd);
    struct block b = {.k = eager_arena(EAGER_INNER, floats * (int64_t)sizeof(float))};
    b.v = b.k + KEYS * hd;
    b.room = b.v + KEYS * hd;
    b.p = b.room + KV_PAGE * hd;
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

static void gather(const struct keys_values *kv, const struct span *s, int32_t kvh, int32_t first,
                   int32_t n, const struct block *b)
{
    const struct attn_args *a = kv->a;
    for (int32_t j = 0; j < n; j += KV_PAGE) {
        int32_t rows = n - j < KV_PAGE ? n - j : KV_PAGE;
        size_t bytes = (size_t)rows * (size_t)a->head_dim * sizeof(float);
        int64_t page = (first + j) / KV_PAGE, at = (int64_t)j * a->head_dim;
        keys_of_page(page_floats(kv, a->k_pages, s, page, kvh, KV_PAGE, b->room), a->head_dim, rows,
                     b->k + at);
        const float *v = page_floats(kv, a->v_pages, s, page, kvh, rows, b->v + at);
        if (v != b->v + at)
            memcpy(b->v + at, v, bytes);
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

static void attend_block(const struct keys_values *kv, const struct span *s, int32_t t0,
                         int32_t kvh)
{
    const struct attn_args *a = kv->a;
    int32_t rows = s->count - t0 < QUERIES ? s->count - t0 : QUERIES;
    int32_t n = s->context - s->count + t0 + rows, group = a->heads / a->kv_heads;
    struct block b = block_open(a);
    for (int32_t first = 0; first < n; first += KEYS) {
        int32_t keys = n - first < KEYS ? n - first : KEYS;
        gather(kv, s, kvh, first, keys, &b);
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

static void attn_wide(const struct keys_values *kv, const struct team *team)
{
    const struct attn_args *a = kv->a;
    struct turns turns = {team, -1};
    int32_t item = 0, group = a->heads / a->kv_heads;
    for (int32_t i = 0; i < a->spans; i++) {
        const struct span *s = &a->span[i];
        int blocked = s->count >= BLOCKED_FROM;
        for (int32_t t = 0; t < s->count; t += blocked ? QUERIES : 1) {
            for (int32_t h = 0; h < a->kv_heads; h++, item++) {
                if (!is_mine(&turns, item))
                    continue;
                if (blocked)
                    attend_block(kv, s, t, h);
                else
                    EAGER(attend)(kv, s, t, 1, h * group, (h + 1) * group);
            }
        }
    }
}

static void attn(const struct keys_values *kv, const struct team *team)
{
    if (kv->a->m <= EAGER_NARROW)
        EAGER(attn_narrow)(kv, team);
    else
        attn_wide(kv, team);
}

void EAGER(attn)(const void *args, const struct team *team)
{
    const struct keys_values kv = {args, false};
    attn(&kv, team);
}

void EAGER(attn_halves)(const void *args, const struct team *team)
{
    const struct keys_values kv = {args, true};
    attn(&kv, team);
}
