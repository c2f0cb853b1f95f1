/* SPDX-License-Identifier: Apache-2.0 */
/* scheduler_world.h - a scheduler, requests that arrive, and steps that "run", for its tests. */
#ifndef WHET_TESTS_UNIT_ENGINE_SCHEDULER_WORLD_H
#define WHET_TESTS_UNIT_ENGINE_SCHEDULER_WORLD_H

#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "engine/scheduler_private.h"

enum { MOST = 64, CLIENTS = 8 };

struct bench {
    struct kvcache *kv;
    struct scheduler *s;
    struct scheduler_limits limits;
    struct schedule plan;
    struct schedule_item item[MOST];
    struct sequence *admitted[MOST];
    uint64_t next_id;
    uint64_t work[CLIENTS]; /* computed for the first time, by client (the last: all others) */
    int32_t waiting[CLIENTS];
    bool distrust;            /* a wrong kernel leaves while the next step is under way */
    int32_t (*held)[KV_PAGE]; /* [pages] tokens whose keys and values a page has */
};

static inline struct bench *bench_open(int32_t pages, int32_t batch, int32_t chunk)
{
    struct bench *b = xcalloc(1, sizeof *b);
    b->limits = (struct scheduler_limits){.max_batch = batch,
                                          .prefill_chunk = chunk,
                                          .max_rows = batch + 4,
                                          .prefix_cache = PREFIX_SALTED};
    b->kv = kvcache_open(pages);
    b->held = xcalloc((size_t)pages, sizeof *b->held);
    b->s = scheduler_open(b->kv, &b->limits);
    b->plan.item = b->item;
    b->next_id = 1;
    return b;
}

static inline void bench_close(struct bench *b)
{
    struct sequence *seq;
    while ((seq = scheduler_oldest(b->s))) {
        scheduler_remove(b->s, seq);
        sequence_free(seq);
    }
    assert_int_equal(kvcache_used(b->kv), 0);
    scheduler_close(b->s);
    kvcache_close(b->kv);
    free(b->held);
    free(b);
}

static inline int row_of(const struct sequence *seq)
{
    return seq->client < CLIENTS ? (int)seq->client : CLIENTS - 1;
}

/* A request of `client` whose prompt counts up from `first` and that will draw `output` tokens. */
static inline struct sequence *arrive_from(struct bench *b, uint64_t client, int32_t prompt,
                                           int32_t output, int32_t first)
{
    int32_t *tokens = xmalloc((size_t)prompt * sizeof *tokens);
    for (int32_t i = 0; i < prompt; i++)
        tokens[i] = first + i;
    struct engine_request r = {
        .client = client, .prompt = tokens, .prompt_n = prompt, .max_tokens = output};
    struct sequence *seq = sequence_new(&r, &(struct sequence_model){0});
    seq->id = b->next_id++;
    b->waiting[row_of(seq)]++;
    scheduler_add(b->s, seq);
    free(tokens);
    return seq;
}

static inline struct sequence *arrive(struct bench *b, int32_t prompt, int32_t output,
                                      int32_t first)
{
    return arrive_from(b, 0, prompt, output, first);
}

/* A client's pages are those of its running sequences. */
static inline void check_pages(const struct bench *b)
{
    for (const struct sequence *seq = b->s->running.oldest; seq; seq = seq->newer) {
        int32_t pages = 0;
        for (const struct sequence *s = b->s->running.oldest; s; s = s->newer)
            pages += s->flow == seq->flow ? s->pages : 0;
        assert_int_equal(seq->flow->pages, pages);
    }
    for (const struct sequence *seq = b->s->waiting.oldest; seq; seq = seq->newer)
        assert_int_equal(seq->pages, 0);
}

/* What must hold for every plan. */
static inline void check_plan(const struct bench *b)
{
    const struct schedule *p = &b->plan;
    int32_t tokens = 0, rows = 0;
    assert_in_range(p->tokens, 1, scheduler_max_tokens(&b->limits));
    for (int32_t i = 0; i < p->items; i++) {
        const struct schedule_item *item = &p->item[i];
        const struct sequence *seq = item->seq;
        assert_int_equal(seq->place, PLACE_RUNNING);
        assert_int_equal(item->first, seq->computed);
        assert_true(item->count > 0 && item->first + item->count <= seq->n);
        assert_true(seq->pages * KV_PAGE >= item->first + item->count);
        for (int32_t q = item->first; q < item->first + item->count; q++)
            assert_true(kvcache_writable(b->kv, seq->page[q / KV_PAGE]));
        for (int32_t j = 0; j < i; j++)
            assert_ptr_not_equal(p->item[j].seq, seq);
        tokens += item->count;
        rows += item->scores + item->draw;
    }
    assert_int_equal(tokens, p->tokens);
    assert_int_equal(rows, p->rows);
    assert_true(rows <= b->limits.max_rows);
    check_pages(b);
}

/* Rows of a step are those of its items in their order; the last of an item's draws. */
static inline void check_rows(const struct bench *b)
{
    int32_t row = 0;
    for (int32_t i = 0; i < b->plan.items; i++) {
        const struct schedule_item *item = &b->plan.item[i];
        row += item->scores;
        if (item->draw)
            assert_int_equal(item->seq->drawn_row, row++);
    }
}

/* "Runs" an item: what lies in front of it is what its tokens have in front of them. */
static inline void compute(struct bench *b, const struct schedule_item *item)
{
    const struct sequence *seq = item->seq;
    for (int32_t q = 0; q < item->first; q++)
        assert_int_equal(b->held[seq->page[q / KV_PAGE]][q % KV_PAGE], seq->tokens[q]);
    for (int32_t q = item->first; q < item->first + item->count; q++)
        b->held[seq->page[q / KV_PAGE]][q % KV_PAGE] = seq->tokens[q];
}

/* Plans and "runs" one step: rows that draw give a token. Frees what is complete, returns how
 * many were. */
static inline int32_t step(struct bench *b)
{
    int32_t ended = 0;
    int32_t fresh = scheduler_plan(b->s, &b->plan, b->admitted);
    check_plan(b);
    for (int32_t i = 0; i < fresh; i++)
        b->waiting[row_of(b->admitted[i])]--;
    for (int32_t i = 0; i < b->plan.items; i++) {
        const struct schedule_item *item = &b->plan.item[i];
        int32_t from = item->first > item->seq->charged ? item->first : item->seq->charged;
        if (item->first + item->count > from)
            b->work[row_of(item->seq)] += (uint64_t)(item->first + item->count - from);
        compute(b, item);
    }
    scheduler_started(b->s, &b->plan);
    check_rows(b);
    if (b->distrust)
        scheduler_distrust(b->s);
    b->distrust = false;
    scheduler_done(b->s, &b->plan);
    for (int32_t i = 0; i < b->plan.items; i++) {
        struct sequence *seq = b->plan.item[i].seq;
        seq->scored += b->plan.item[i].scores;
        if (b->plan.item[i].draw) {
            if (seq->n == seq->tokens_size) {
                seq->tokens_size *= 2;
                seq->tokens = xrealloc(seq->tokens, (size_t)seq->tokens_size * sizeof(int32_t));
            }
            seq->tokens[seq->n] = (int32_t)(seq->id * 1000) + seq->n;
            seq->n++;
        }
        if (seq->n == sequence_longest(seq)) {
            scheduler_remove(b->s, seq);
            sequence_free(seq);
            ended++;
        }
    }
    return ended;
}

static inline const struct schedule_item *item_of(const struct bench *b, const struct sequence *seq)
{
    for (int32_t i = 0; i < b->plan.items; i++)
        if (b->plan.item[i].seq == seq)
            return &b->plan.item[i];
    return NULL;
}

#endif
