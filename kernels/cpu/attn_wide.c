/* SPDX-License-Identifier: Apache-2.0 */
/* attn_wide.c - attn for many tokens a sequence: a = softmax(q k^T * scale, causal) v.
 *
 * q, a [M, HEADS, HEAD_DIM]; keys and values in pages of [KV_HEADS, 16, HEAD_DIM]. Compute-bound:
 * 4 HEAD_DIM operations a (head, token, position). A work item is a block of QUERIES tokens and the
 * GROUP heads that share a kv head: QUERIES x GROUP rows that meet the same keys and values. KEYS
 * positions at a time,
 *
 *   scores are dot products in the canonical order, whose 16 short sums keep what large products
 *   would drown in one long sum, and scores are exponents: their errors are multiplied;
 *   with TURNED keys are turned around once for all rows, and scores are register tiles, too, each
 *   one sum over the head, as eager's are, and none across lanes;
 *   rows keep a running maximum and sum (online softmax: Milakov and Gimelshein 2018) and scale
 *   what they have by e^(old maximum - new);
 *   exponentials times values are added in register tiles, a page at a time, or all KEYS of them
 *   where values are gathered (TURNED).
 *
 * Invariant: a position at or beyond a row's own has weight e^-inf = 0; whole pages are loaded.
 */
#include "cpu/lib/shape.h"

/* ---- knobs -------------------------------------------------------------------------------- */

/* cpu/attn_wide.def has them; whoever compiles this gives each a value. */

/* ---- legality ----------------------------------------------------------------------------- */

#define KNOB(name, role, value, values, help) _Static_assert((name) == (name), "has a value");
#define LEGAL(expression, why) _Static_assert(expression, why);
#include "cpu/attn_wide.def"

/* ---- code --------------------------------------------------------------------------------- */

#include "cpu/lib/paged.h"
#include "cpu/lib/taken.h"
#include "cpu/lib/tile.h"
#include "cpu/lib/turn.h"
#include "cpu/lib/vexp.h"

enum { ROWS = (QUERIES * GROUP + TOKENS - 1) / TOKENS * TOKENS };

/* A rank's working memory. Row r is token r / GROUP of the block, head r % GROUP of the kv head. */
struct work {
    float q[ROWS * HEAD_DIM]; /* rows past the block's are 0 */
    float score[ROWS * KEYS]; /* then the exponentials */
    float out[ROWS * HEAD_DIM];
    float most[ROWS], total[ROWS];
#if TURNED
    float key[KEYS * HEAD_DIM];   /* [KEYS / 16, HEAD_DIM, 16] */
    float value[KEYS * HEAD_DIM]; /* [KEYS, HEAD_DIM] */
#endif
    float pad[16];
};

struct block {
    const struct span *span;
    int first, count; /* tokens of the span */
    int kv_head;
    int rows, end; /* rows in use, in whole tiles; positions any of them may look at */
};

INLINE void load_rows(const struct attn_args *a, const struct block *b, struct work *w)
{
    for (int r = 0; r < b->rows; r++) {
        int token = b->span->first + b->first + r / GROUP, head = b->kv_head * GROUP + r % GROUP;
        const float *q = a->q + ((int64_t)token * HEADS + head) * HEAD_DIM;
        for (int d = 0; d < HEAD_DIM; d++) {
            w->q[r * HEAD_DIM + d] = r < b->count * GROUP ? q[d] : 0.0f;
            w->out[r * HEAD_DIM + d] = 0.0f;
        }
        w->most[r] = -__builtin_inff();
        w->total[r] = 0.0f;
    }
}

/* score[r][j] of `pages` pages from page `page` on. */
INLINE void scores(const struct attn_args *a, const struct block *b, int page, int pages,
                   struct work *w)
{
    float room[KV_PAGE * HEAD_DIM] __attribute__((aligned(64)));
    for (int p = 0; p < pages; p++) {
        const float *k = page_floats(page_rows(a, a->k_pages, b->span, page + p, b->kv_head), room);
        for (int r = 0; r < b->count * GROUP; r++)
            vf_store(w->score + r * KEYS + p * 16, page_dots(w->q + r * HEAD_DIM, k, 1));
    }
}

/* Scales row r's scores, hides those from position `visible` on, and turns them into exponentials
 * against the row's new maximum; what the row had is scaled to it. */
INLINE void soften(struct work *w, int r, float scale, int pages, int visible)
{
    float *score = w->score + r * KEYS;
    vf top = vf_set(w->most[r]), sum = vf_zero();
    for (int p = 0; p < pages; p++) {
        vf s = vf_mul(vf_load(score + 16 * p), vf_set(scale));
        s = keep_lanes(s, visible - 16 * p, -__builtin_inff());
        vf_store(score + 16 * p, s);
        top = vf_max(top, s);
    }
    float most = vf_largest(top);
    if (visible <= 0) /* nothing new: keep the row, add zeros */
        most = w->most[r];
    float back = w->most[r] == most ? 1.0f : lane_exp(w->most[r] - most);
    for (int p = 0; p < pages; p++) {
        vf e = visible <= 0 ? vf_zero() : vf_exp(vf_sub(vf_load(score + 16 * p), vf_set(most)));
        vf_store(score + 16 * p, e);
        sum = vf_add(sum, e);
    }
    w->total[r] = w->total[r] * back + vf_fold(sum);
    w->most[r] = most;
    for (int d = 0; d < HEAD_DIM && back != 1.0f; d++)
        w->out[r * HEAD_DIM + d] *= back;
}

/* out[r] += sum_j e[r][j] v_j, page by page, for the first `keys` positions from page `page` on. */
INLINE void values(const struct attn_args *a, const struct block *b, int page, int keys,
                   struct work *w)
{
    float room[KV_PAGE * HEAD_DIM] __attribute__((aligned(64)));
    for (int p = 0; p * 16 < keys; p++) {
        const int n = keys - p * 16 < 16 ? keys - p * 16 : 16;
        const float *v = page_floats(page_rows(a, a->v_pages, b->span, page + p, b->kv_head), room);
        for (int r = 0; r < b->rows; r += TOKENS)
            for (int d = 0; d < DIMS; d += COLS)
                tile_floats(TOKENS, COLS, n, w->score + r * KEYS + p * 16, KEYS, v + 16 * d, 16,
                            HEAD_DIM, w->out + r * HEAD_DIM + 16 * d, HEAD_DIM, 1);
    }
}

/* All rows against the positions from `at` on, `keys` of them; row 0 is at position `start`. */
INLINE void step_dotted(const struct attn_args *a, const struct block *b, int start, int at,
                        int keys, struct work *w)
{
    const int pages = (keys + 15) / 16;
    scores(a, b, at / 16, pages, w);
    for (int r = 0; r < b->count * GROUP; r++)
        soften(w, r, a->scale, pages, start + r / GROUP + 1 - at);
    values(a, b, at / 16, keys, w);
}

#if TURNED

/* A register tile of rows against `keys` positions in w->key and w->value. */
INLINE void step_tile(const struct attn_args *a, const struct block *b, int r, int visible,
                      int keys, struct work *w)
{
    const int pages = (keys + 15) / 16;
    int p = 0;
    for (; p + COLS <= pages; p += COLS)
        tile_floats(TOKENS, COLS, HEAD_DIM, w->q + r * HEAD_DIM, HEAD_DIM,
                    w->key + p * 16 * HEAD_DIM, 16 * HEAD_DIM, 16, w->score + r * KEYS + 16 * p,
                    KEYS, 0);
    for (; COLS > 1 && p < pages; p++)
        tile_floats(TOKENS, 1, HEAD_DIM, w->q + r * HEAD_DIM, HEAD_DIM, w->key + p * 16 * HEAD_DIM,
                    16 * HEAD_DIM, 16, w->score + r * KEYS + 16 * p, KEYS, 0);
    for (int i = r; i < r + TOKENS && i < b->count * GROUP; i++)
        soften(w, i, a->scale, pages, visible + i / GROUP - r / GROUP);
    for (int d = 0; d < DIMS; d += COLS)
        tile_floats(TOKENS, COLS, keys, w->score + r * KEYS, KEYS, w->value + 16 * d, 16, HEAD_DIM,
                    w->out + r * HEAD_DIM + 16 * d, HEAD_DIM, 1);
}

/* Few rows do not share enough to turn keys for them; and where eager sums in 16 lanes, of up to 16
 * tokens or a span of up to 7, sums over the head round worse than it does. */
INLINE int is_turned(const struct attn_args *a, const struct block *b)
{
    return a->m > 16 && b->span->count >= 8 && b->count * GROUP >= TOKENS;
}

INLINE void step_turned(const struct attn_args *a, const struct block *b, int start, int at,
                        int keys, struct work *w)
{
    float room[KV_PAGE * HEAD_DIM] __attribute__((aligned(64)));
    for (int p = 0; p * 16 < keys; p++) {
        const float *k =
            page_floats(page_rows(a, a->k_pages, b->span, at / 16 + p, b->kv_head), room);
        const kv_element *v = page_rows(a, a->v_pages, b->span, at / 16 + p, b->kv_head);
        const int floats = (keys - p * 16 < 16 ? keys - p * 16 : 16) * HEAD_DIM;
        for (int d = 0; d < HEAD_DIM; d += 16)
            turn16(k + d, HEAD_DIM, w->key + (p * HEAD_DIM + d) * 16);
        for (int i = 0; i < floats; i += 16)
            vf_store(w->value + p * 16 * HEAD_DIM + i, kv_load(v + i));
    }
    for (int r = 0; r < b->rows; r += TOKENS) {
        int visible = start + r / GROUP + 1 - at; /* by the first row; by the last: */
        int most = start + (r + TOKENS - 1) / GROUP + 1 - at;
        if (most > 0)
            step_tile(a, b, r, visible, most < keys ? most : keys, w);
    }
}

#endif

INLINE void attend(const struct attn_args *a, const struct block *b, struct work *w)
{
    const int start = b->span->context - b->span->count + b->first; /* position of row 0 */
    load_rows(a, b, w);
    for (int at = 0; at < b->end; at += KEYS) {
        int left = b->end - at, keys = left < KEYS ? left : KEYS;
#if TURNED
        if (is_turned(a, b)) {
            step_turned(a, b, start, at, keys, w);
            continue;
        }
#endif
        step_dotted(a, b, start, at, keys, w);
    }
    for (int r = 0; r < b->count * GROUP; r++) {
        int token = b->span->first + b->first + r / GROUP, head = b->kv_head * GROUP + r % GROUP;
        float *to = a->a + ((int64_t)token * HEADS + head) * HEAD_DIM;
        float one = 1.0f / w->total[r];
        for (int d = 0; d < HEAD_DIM; d++)
            to[d] = w->out[r * HEAD_DIM + d] * one;
    }
}

/* Block `index` of a span: token blocks, then kv heads. */
INLINE struct block block_of(const struct span *s, int index)
{
    struct block b = {.span = s, .first = index / KV_HEADS * QUERIES, .kv_head = index % KV_HEADS};
    int left = s->count - b.first;
    b.count = left < QUERIES ? left : QUERIES;
    b.rows = (b.count * GROUP + TOKENS - 1) / TOKENS * TOKENS;
    b.end = s->context - s->count + b.first + b.count;
    return b;
}

INLINE int blocks_of(const struct span *s)
{
    return (s->count + QUERIES - 1) / QUERIES * KV_HEADS;
}

static void run(const void *args, const struct team *team)
{
    const struct attn_args *a = args;
    struct work *w = (struct work *)team->scratch + team->rank;
    int64_t all = 0, before = 0;
    int turn = 0, next = -1;
    for (int i = 0; i < a->spans; i++)
        for (int n = 0; n < blocks_of(&a->span[i]); n++)
            all += block_of(&a->span[i], n).end;
    for (int i = 0; i < a->spans; i++)
        for (int n = 0; n < blocks_of(&a->span[i]); n++, turn++) {
            struct block b = block_of(&a->span[i], n);
            if (item_is_mine(team, DEAL, turn, &next, before + b.end / 2, all))
                attend(a, &b, w);
            before += b.end;
        }
}

static int64_t scratch_bytes(int32_t m, int32_t size)
{
    (void)m;
    return (int64_t)sizeof(struct work) * size;
}

/* ---- entry -------------------------------------------------------------------------------- */

const struct cpu_kernel whet_kernel = {
    .abi = WHET_CPU_ABI,
    .region = REGION_ATTN,
    .m_max = M_MAX,
    .run = run,
    .scratch_bytes = scratch_bytes,
};
