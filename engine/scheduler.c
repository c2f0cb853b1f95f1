/* SPDX-License-Identifier: Apache-2.0 */
/* scheduler.c - continuous batching with chunked prefill, fair between clients.
 *
 * Two lists, both in order of arrival: waiting and running. A plan is made in three passes.
 *   1. Waiting sequences are admitted while there is room, always the oldest one of the client that
 *      was served least (fair.h). All pages of the tokens known so far are taken at once, less
 *      those found in the prefix cache, and one page a running sequence that can still grow is left
 *      over, so that admission does not cause the next preemption.
 *   2. Every running sequence that decodes gets one token. If it needs a page and none is left, the
 *      newest sequence of the client that holds the most pages gives up its own and goes back to
 *      waiting, to be computed again later (preemption by recompute); that may be itself.
 *   3. Running sequences that still prefill share what is left of the token budget: of the client
 *      that was served least first, in pieces, so that clients with the same claim share it.
 *
 * Where there is no room for who is next, room is made, but only at the cost of a client that was
 * served no less and has more than it would have afterwards: two places of the batch more, or more
 * pages than its share of all. So the batch and the cache are shared by clients that want them, and
 * whoever is next gets its place within a step, however many streams of another client fill it.
 *
 * Why every request ends: nothing is ever admitted past the one that is next, so its wait ends when
 * enough of those before it have; and every client is next in the end (fair.c). When pages run out
 * the oldest running sequence is never preempted while another runs, and alone it fits
 * (scheduler_fits was asked at submit). Who makes room for another client is ahead of it in work,
 * and cannot be made to again before it was served more than that client. Decode is never starved,
 * because it is planned before prompts; prefill is not, because it keeps a budget of its own
 * however many decode.
 *
 * A sequence may be in a step that is under way. Its count of tokens then includes those the step
 * draws (sequence_length); one that reaches its end with them is left alone, and one that loses its
 * pages is not admitted again before the step has landed, when its tokens are known.
 *
 * The last known token is always computed, never taken from the cache: its logits are the point.
 * That also is the copy-on-write rule: only whole pages before it are shared, so no sequence ever
 * writes into a page that another one can see.
 */
#include "engine/scheduler_private.h"

#include <assert.h>
#include <stdlib.h>

#include "config/err.h"
#include "engine/backlog.h"

int32_t scheduler_max_tokens(const struct scheduler_limits *l)
{
    int32_t crowded = l->max_batch + PREFILL_LEAST;
    return l->prefill_chunk > crowded ? l->prefill_chunk : crowded;
}

struct scheduler *scheduler_open(struct kvcache *kv, const struct scheduler_limits *l)
{
    struct scheduler *s = xcalloc(1, sizeof *s);
    s->kv = kv;
    s->limits = *l;
    s->pace = l->prefill_chunk;
    s->fair = fair_open();
    s->chunk = xcalloc((size_t)l->max_batch, sizeof *s->chunk);
    s->flow = xcalloc((size_t)l->max_batch, sizeof *s->flow);
    return s;
}

void scheduler_close(struct scheduler *s)
{
    if (!s)
        return;
    assert(s->running.n == 0 && s->waiting.n == 0);
    fair_close(s->fair);
    free(s->chunk);
    free(s->flow);
    free(s);
}

void scheduler_pace(struct scheduler *s, int32_t tokens)
{
    s->pace = tokens;
}

int32_t scheduler_running(const struct scheduler *s)
{
    return s->running.n;
}

int32_t scheduler_waiting(const struct scheduler *s)
{
    return s->waiting.n;
}

uint64_t scheduler_preemptions(const struct scheduler *s)
{
    return s->preemptions;
}

uint64_t scheduler_yields(const struct scheduler *s)
{
    return s->yields;
}

uint64_t scheduler_cached(const struct scheduler *s)
{
    return s->cached;
}

uint64_t scheduler_forgotten(const struct scheduler *s)
{
    return s->forgotten;
}

uint64_t scheduler_work(const struct scheduler *s)
{
    return s->work;
}

struct sequence *scheduler_newest(const struct scheduler *s, const struct backlog_group *answer)
{
    const struct flow *flow = fair_flow(s->fair, answer->client);
    struct sequence *seq = flow ? flow->newest : NULL;
    while (seq && seq->group != answer)
        seq = seq->flow_older;
    return seq;
}

struct sequence *scheduler_oldest(const struct scheduler *s)
{
    return s->running.oldest ? s->running.oldest : s->waiting.oldest;
}

struct sequence *scheduler_find(const struct scheduler *s, uint64_t id)
{
    struct sequence *seq = s->running.oldest;
    for (; seq && seq->id != id; seq = seq->newer)
        ;
    if (!seq)
        for (seq = s->waiting.oldest; seq && seq->id != id; seq = seq->newer)
            ;
    return seq;
}

/* ---- lists in order of arrival ------------------------------------------------------------- */

/* Keeps the order of arrival. The search is short: a newcomer is the newest, and a preempted
 * sequence among the oldest. */
static void list_insert(struct list *l, struct sequence *seq)
{
    struct sequence *after = l->oldest;
    if (l->newest && l->newest->id < seq->id)
        after = NULL;
    while (after && after->id < seq->id)
        after = after->newer;
    seq->newer = after;
    seq->older = after ? after->older : l->newest;
    *(after ? &after->older : &l->newest) = seq;
    *(seq->older ? &seq->older->newer : &l->oldest) = seq;
    l->n++;
}

static void list_remove(struct list *l, struct sequence *seq)
{
    *(seq->older ? &seq->older->newer : &l->oldest) = seq->newer;
    *(seq->newer ? &seq->newer->older : &l->newest) = seq->older;
    seq->older = seq->newer = NULL;
    l->n--;
}

static void move(struct scheduler *s, struct sequence *seq, enum place to)
{
    enum place from = seq->place;
    if (from != PLACE_NONE)
        list_remove(from == PLACE_RUNNING ? &s->running : &s->waiting, seq);
    if (from == PLACE_NONE)
        fair_enter(s->fair, seq);
    else
        (to == PLACE_NONE ? fair_leave : to == PLACE_RUNNING ? fair_run : fair_wait)(s->fair, seq);
    seq->place = to;
    if (to != PLACE_NONE)
        list_insert(to == PLACE_RUNNING ? &s->running : &s->waiting, seq);
}

void scheduler_add(struct scheduler *s, struct sequence *seq)
{
    move(s, seq, PLACE_WAITING);
}

/* ---- pages --------------------------------------------------------------------------------- */

static int32_t pages_for(int64_t tokens)
{
    return (int32_t)((tokens + KV_PAGE - 1) / KV_PAGE);
}

bool scheduler_fits(const struct kvcache *kv, int64_t longest)
{
    return (longest + KV_PAGE - 1) / KV_PAGE <= kvcache_pages(kv);
}

static void drop_pages(struct scheduler *s, struct sequence *seq)
{
    seq->flow->pages -= seq->pages;
    while (seq->pages > 0)
        kvcache_drop(s->kv, seq->page[--seq->pages]);
    seq->sealed = 0;
    seq->computed = 0;
    seq->guesses = 0;
    seq->drafted = seq->draft_beyond = 0;
    seq->doubted = false;
    seq->stays++;
}

static void clear_suspect(struct scheduler *s, struct sequence *seq)
{
    s->suspects -= seq->suspect;
    seq->suspect = false;
}

void scheduler_remove(struct scheduler *s, struct sequence *seq)
{
    clear_suspect(s, seq);
    drop_pages(s, seq);
    move(s, seq, PLACE_NONE);
}

static void reserve_table(struct sequence *seq, int32_t pages)
{
    if (pages <= seq->pages_size)
        return;
    seq->pages_size = pages + pages / 2 + 8;
    seq->page = xrealloc(seq->page, (size_t)seq->pages_size * sizeof *seq->page);
}

static bool take_page(struct scheduler *s, struct sequence *seq)
{
    int32_t page = kvcache_take(s->kv);
    if (page < 0)
        return false;
    reserve_table(seq, seq->pages + 1);
    seq->page[seq->pages++] = page;
    seq->flow->pages++;
    return true;
}

static void preempt(struct scheduler *s, struct sequence *seq)
{
    drop_pages(s, seq);
    move(s, seq, PLACE_WAITING);
}

static struct sequence *newest_of(const struct scheduler *s, const struct flow *flow)
{
    struct sequence *seq = s->running.newest;
    while (seq->flow != flow)
        seq = seq->older;
    return seq;
}

/* The sequence that is preempted when pages run out. */
static struct sequence *who_pays(const struct scheduler *s)
{
    const struct flow *most = s->running.oldest->flow;
    for (const struct sequence *seq = s->running.oldest; seq; seq = seq->newer)
        if (seq->flow->pages > most->pages)
            most = seq->flow;
    struct sequence *newest = newest_of(s, most);
    return newest == s->running.oldest ? s->running.newest : newest;
}

bool scheduler_grow(struct scheduler *s, struct sequence *seq)
{
    while (seq->pages < pages_for(sequence_length(seq))) {
        if (take_page(s, seq))
            continue;
        preempt(s, who_pays(s));
        s->preemptions++;
        if (seq->place != PLACE_RUNNING)
            return false;
    }
    return true;
}

/* Running sequences that may yet ask for a page. */
static int32_t growing(const struct scheduler *s)
{
    int32_t n = 0;
    for (const struct sequence *seq = s->running.oldest; seq; seq = seq->newer)
        n += seq->pages < pages_for(sequence_longest(seq));
    return n;
}

int32_t scheduler_reserve(struct scheduler *s, struct sequence *seq, int32_t more)
{
    int32_t length = sequence_length(seq);
    while (seq->pages < pages_for(length + more) && kvcache_available(s->kv) > growing(s) &&
           take_page(s, seq))
        ;
    int32_t room = seq->pages * KV_PAGE - length;
    return room < more ? room : more;
}

/* ---- admission ----------------------------------------------------------------------------- */

uint64_t scheduler_owner(const struct scheduler *s, const struct sequence *seq)
{
    return s->limits.prefix_cache == PREFIX_SALTED ? seq->client : 0;
}

static bool admit(struct scheduler *s, struct sequence *seq)
{
    int32_t need = pages_for(seq->n), shared = 0;
    reserve_table(seq, need);
    /* Scoring a prompt needs the logits of every position, so nothing of it may be skipped. */
    bool scores = seq->prompt_logprobs && seq->scored < seq->prompt_n;
    if (s->limits.prefix_cache && !scores)
        shared = kvcache_match(s->kv, scheduler_owner(s, seq), seq->tokens, (seq->n - 1) / KV_PAGE,
                               seq->page);
    seq->pages = shared;
    seq->flow->pages += shared;
    if (kvcache_available(s->kv) < need - shared + growing(s)) {
        drop_pages(s, seq);
        return false;
    }
    seq->sealed = shared;
    seq->computed = shared * KV_PAGE;
    while (seq->pages < need)
        take_page(s, seq);
    move(s, seq, PLACE_RUNNING);
    return true;
}

/* The flow with the most places in the batch (or pages) of those other than `mine` that were served
 * as much (for pages: more, since what makes room may have to be computed again). */
static struct flow *richest(const struct scheduler *s, const struct flow *mine, bool pages)
{
    struct flow *most = NULL;
    for (const struct sequence *seq = s->running.oldest; seq; seq = seq->newer) {
        struct flow *flow = seq->flow;
        if (flow == mine || flow->served < mine->served + pages)
            continue;
        if (!most || (pages ? flow->pages > most->pages : flow->running > most->running))
            most = flow;
    }
    return most;
}

static bool make_place(struct scheduler *s, const struct flow *mine)
{
    const struct flow *most = richest(s, mine, false);
    if (!most || most->running < mine->running + 2)
        return false;
    preempt(s, newest_of(s, most));
    s->yields++;
    return true;
}

static bool make_pages(struct scheduler *s, const struct flow *mine, const struct sequence *seq)
{
    const struct flow *most = richest(s, mine, true);
    int32_t share = kvcache_pages(s->kv) / fair_active(s->fair);
    if (!most || most->pages <= share || mine->pages + pages_for(seq->n) > share)
        return false;
    preempt(s, newest_of(s, most));
    s->preemptions++;
    return true;
}

int32_t scheduler_admit(struct scheduler *s, struct sequence **admitted)
{
    int32_t fresh = 0;
    struct flow *flow;
    while (fresh < s->limits.max_batch && (flow = fair_next(s->fair))) {
        struct sequence *seq = flow->oldest;
        if (seq->in_flight > 0)
            break;
        if (s->running.n >= s->limits.max_batch) {
            if (!make_place(s, flow))
                break;
        } else if (!admit(s, seq)) {
            if (!make_pages(s, flow, seq))
                break;
        } else {
            scheduler_count_cached(s, seq);
            if (!seq->admitted)
                admitted[fresh++] = seq;
            seq->admitted = true;
        }
    }
    return fresh;
}

/* ---- steps --------------------------------------------------------------------------------- */

/* Offers the pages that are full up to position `end` to the prefix cache. */
static void seal_pages(struct scheduler *s, struct sequence *seq, int32_t end)
{
    for (; (seq->sealed + 1) * KV_PAGE <= end; seq->sealed++) {
        int32_t i = seq->sealed;
        seq->page[i] =
            kvcache_seal(s->kv, scheduler_owner(s, seq), seq->page[i],
                         i > 0 ? seq->page[i - 1] : -1, seq->tokens + (int64_t)i * KV_PAGE);
    }
}

/* Charges the flow for tokens that it was not charged for yet; a sequence that has ended meanwhile
 * has no flow any more. */
static void charge(struct scheduler *s, const struct schedule_item *item)
{
    struct sequence *seq = item->seq;
    int32_t end = item->first + item->count;
    int32_t from = item->first > seq->charged ? item->first : seq->charged;
    if (end <= from || !seq->flow)
        return;
    seq->charged = end;
    s->work += (uint64_t)(end - from);
    fair_charge(s->fair, seq->flow, end - from);
}

void scheduler_started(struct scheduler *s, const struct schedule *started)
{
    int32_t row = 0;
    for (int32_t i = 0; i < started->items; i++) {
        const struct schedule_item *item = &started->item[i];
        struct sequence *seq = item->seq;
        charge(s, item);
        seq->computed += item->count;
        seq->in_flight++;
        seq->ahead += item->draw;
        row += item->scores + item->draw + item->guesses;
        if (item->draw)
            seq->drawn_row = row - 1;
    }
}

void scheduler_done(struct scheduler *s, const struct schedule *done)
{
    for (int32_t i = 0; i < done->items; i++) {
        const struct schedule_item *item = &done->item[i];
        struct sequence *seq = item->seq;
        seq->in_flight--;
        seq->ahead -= item->draw;
        clear_suspect(s, seq);
        seq->failures = 0;
        if (item->stay != seq->stays)
            continue;
        int32_t wrong = item->guesses - item->right;
        seq->computed -= wrong;
        if (s->limits.prefix_cache && !seq->doubted)
            seal_pages(s, seq, item->first + item->count - wrong);
    }
}

void scheduler_undone(struct scheduler *s, const struct schedule *failed)
{
    (void)s;
    for (int32_t i = 0; i < failed->items; i++) {
        const struct schedule_item *item = &failed->item[i];
        struct sequence *seq = item->seq;
        seq->in_flight--;
        seq->ahead -= item->draw;
        if (item->stay == seq->stays)
            seq->computed = item->first;
    }
}

void scheduler_suspect(struct scheduler *s, const struct schedule *failed)
{
    for (int32_t i = 0; i < failed->items; i++) {
        struct sequence *seq = failed->item[i].seq;
        s->suspects += !seq->suspect;
        seq->suspect = true;
    }
}

bool scheduler_suspects(const struct scheduler *s)
{
    return s->suspects > 0;
}

/* What a sequence has computed counts the steps under way. What it computes from here on is by
 * other kernels, but attends to what is in doubt, and is no better. */
void scheduler_distrust(struct scheduler *s)
{
    s->forgotten += (uint64_t)kvcache_forget(s->kv);
    for (struct sequence *seq = s->running.oldest; seq; seq = seq->newer)
        seq->doubted |= seq->computed > 0;
}
