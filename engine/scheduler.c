/* scheduler.c - continuous batching with chunked prefill.
 *
 * Two lists, both in order of arrival: waiting and running. A plan is made in three passes.
 *   1. Every running sequence that decodes gets one token. If it needs a page and none is left,
 *      the youngest running sequence gives up its pages and goes back to waiting, to be computed
 *      again later (preemption by recompute); that may be the sequence itself.
 *   2. Waiting sequences are admitted while there is room. All pages of the tokens known so far
 *      are taken at once, less those found in the prefix cache, and one page a running sequence
 *      that can still grow is left over, so that admission does not cause the next preemption.
 *   3. Running sequences that still prefill share what is left of the token budget, oldest first.
 *
 * Why every request ends: the oldest running sequence is never preempted while another runs, and
 * alone it fits (scheduler_fits was asked at submit), so it gains a token every step until it is
 * done. Then the next one is the oldest. Nothing is ever admitted past the head of the waiting
 * list, so the head's wait ends when those before it have ended. Decode is never starved, because
 * it is planned first; prefill is not, because it keeps a budget of its own however many decode.
 *
 * A sequence may be in a step that is under way. Its count of tokens then includes those the step
 * draws (sequence_length); one that reaches its end with them is left alone, and one that loses its
 * pages is not admitted again before the step has landed, when its tokens are known.
 *
 * The last known token is always computed, never taken from the cache: its logits are the point.
 * That also is the copy-on-write rule: only whole pages before it are shared, so no sequence ever
 * writes into a page that another one can see.
 */
#include "engine/scheduler.h"

#include <assert.h>
#include <stdlib.h>

#include "config/err.h"

struct list {
    struct sequence *oldest, *newest;
    int32_t n;
};

struct scheduler {
    struct kvcache *kv;
    struct scheduler_limits limits;
    struct list running, waiting;
    int32_t pace; /* prompt tokens beside decodes */
    uint64_t preemptions;
};

/* Prefill tokens a step may have even if decodes alone use up the budget. */
enum { PREFILL_LEAST = 16 };

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
    return s;
}

void scheduler_close(struct scheduler *s)
{
    assert(!s || (s->running.n == 0 && s->waiting.n == 0));
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

static void list_insert(struct list *l, struct sequence *seq)
{
    struct sequence *before = l->newest;
    while (before && before->id > seq->id)
        before = before->older;
    seq->older = before;
    seq->newer = before ? before->newer : l->oldest;
    *(seq->newer ? &seq->newer->older : &l->newest) = seq;
    *(before ? &before->newer : &l->oldest) = seq;
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
    if (seq->place != PLACE_NONE)
        list_remove(seq->place == PLACE_RUNNING ? &s->running : &s->waiting, seq);
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
    while (seq->pages > 0)
        kvcache_drop(s->kv, seq->page[--seq->pages]);
    seq->sealed = 0;
    seq->computed = 0;
    seq->stays++;
}

void scheduler_remove(struct scheduler *s, struct sequence *seq)
{
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
    return true;
}

static void preempt(struct scheduler *s, struct sequence *seq)
{
    drop_pages(s, seq);
    move(s, seq, PLACE_WAITING);
    s->preemptions++;
}

/* Pages for all tokens of a running sequence; false if it had to give up its own. */
static bool grow(struct scheduler *s, struct sequence *seq)
{
    while (seq->pages < pages_for(sequence_length(seq))) {
        if (take_page(s, seq))
            continue;
        struct sequence *youngest = s->running.newest;
        preempt(s, youngest);
        if (youngest == seq)
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

static bool admit(struct scheduler *s, struct sequence *seq)
{
    int32_t need = pages_for(seq->n), shared = 0;
    reserve_table(seq, need);
    /* Scoring a prompt needs the logits of every position, so nothing of it may be skipped. */
    bool scores = seq->prompt_logprobs && seq->scored < seq->prompt_n;
    if (s->limits.prefix_cache && !scores)
        shared = kvcache_match(s->kv, seq->tokens, (seq->n - 1) / KV_PAGE, seq->page);
    seq->pages = shared;
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

/* ---- the plan ------------------------------------------------------------------------------ */

/* Tokens to compute. None if the step under way draws the last one: it ends when that lands. */
static int32_t to_compute(const struct sequence *seq)
{
    bool complete = seq->ahead > 0 && sequence_length(seq) >= sequence_longest(seq);
    return complete ? 0 : sequence_pending(seq);
}

static bool decodes(const struct sequence *seq)
{
    return to_compute(seq) == 1 && sequence_length(seq) > seq->prompt_n;
}

/* Adds the next tokens of `seq`, at most `budget`, within the rows that are left. */
static void add_item(struct scheduler *s, struct schedule *out, struct sequence *seq,
                     int32_t budget)
{
    int32_t rows = s->limits.max_rows - out->rows;
    int32_t count = to_compute(seq) < budget ? to_compute(seq) : budget;
    bool scores = seq->prompt_logprobs && seq->scored < seq->prompt_n;
    if (scores && count > rows)
        count = rows;
    if (count <= 0 || rows <= 0)
        return;
    struct schedule_item item = {
        .seq = seq, .first = seq->computed, .count = count, .stay = seq->stays};
    int32_t length = sequence_length(seq);
    item.draw = item.first + count == length && length < sequence_longest(seq);
    if (scores) {
        /* The row of position p scores the token at p + 1; those up to `scored` are done. */
        int32_t from = seq->scored > 0 ? seq->scored - 1 : 0;
        int32_t to = item.first + count < seq->prompt_n ? item.first + count : seq->prompt_n - 1;
        from = from > item.first ? from : item.first;
        item.scores = to > from ? to - from : 0;
    }
    out->item[out->items++] = item;
    out->tokens += count;
    out->rows += item.scores + item.draw;
    out->decodes += decodes(seq);
}

static struct sequence *first_suspect(const struct scheduler *s)
{
    struct sequence *seq = s->running.oldest;
    while (seq && !seq->suspect)
        seq = seq->newer;
    return seq;
}

static void plan_decodes(struct scheduler *s, struct schedule *out)
{
    /* grow() may preempt `seq` itself or younger ones, so the way on is read afterwards. */
    for (struct sequence *seq = s->running.oldest, *next; seq; seq = next) {
        bool runs = !decodes(seq) || grow(s, seq);
        next = runs ? seq->newer : NULL; /* it was the youngest */
        if (runs && decodes(seq))
            add_item(s, out, seq, 1);
    }
}

/* Everything running that pass 1 has not planned: prompts, and what was just admitted again with
 * a single token to compute. Both lists are in order of arrival, so one cursor tells which. */
static void plan_prefill(struct scheduler *s, struct schedule *out)
{
    int32_t planned = out->items, cursor = 0;
    int32_t budget = s->limits.prefill_chunk - out->tokens;
    if (planned > 0 && budget > s->pace)
        budget = s->pace;
    if (budget < PREFILL_LEAST)
        budget = PREFILL_LEAST;
    for (struct sequence *seq = s->running.oldest; seq && budget > 0; seq = seq->newer) {
        if (cursor < planned && out->item[cursor].seq == seq) {
            cursor++;
            continue;
        }
        int32_t before = out->tokens;
        add_item(s, out, seq, budget);
        budget -= out->tokens - before;
    }
}

int32_t scheduler_plan(struct scheduler *s, struct schedule *out, struct sequence **admitted)
{
    int32_t fresh = 0;
    out->items = out->tokens = out->rows = out->decodes = 0;
    struct sequence *seq;
    while ((seq = first_suspect(s))) {
        if (!grow(s, seq))
            continue; /* no longer running */
        add_item(s, out, seq, s->limits.prefill_chunk);
        return 0;
    }
    plan_decodes(s, out);
    while ((seq = s->waiting.oldest) && s->running.n < s->limits.max_batch && seq->flights == 0 &&
           admit(s, seq)) {
        if (seq->admitted)
            continue;
        seq->admitted = true;
        seq->cached_tokens = seq->computed;
        admitted[fresh++] = seq;
    }
    plan_prefill(s, out);
    return fresh;
}

/* Those that are full up to position `end`. */
static void seal_pages(struct scheduler *s, struct sequence *seq, int32_t end)
{
    for (; (seq->sealed + 1) * KV_PAGE <= end; seq->sealed++) {
        int32_t i = seq->sealed;
        seq->page[i] = kvcache_seal(s->kv, seq->page[i], i > 0 ? seq->page[i - 1] : -1,
                                    seq->tokens + (int64_t)i * KV_PAGE);
    }
}

void scheduler_started(struct scheduler *s, const struct schedule *started)
{
    (void)s;
    int32_t row = 0;
    for (int32_t i = 0; i < started->items; i++) {
        const struct schedule_item *item = &started->item[i];
        struct sequence *seq = item->seq;
        seq->computed += item->count;
        seq->flights++;
        seq->ahead += item->draw;
        row += item->scores + item->draw;
        if (item->draw)
            seq->drawn_row = row - 1;
    }
}

void scheduler_done(struct scheduler *s, const struct schedule *done)
{
    for (int32_t i = 0; i < done->items; i++) {
        const struct schedule_item *item = &done->item[i];
        struct sequence *seq = item->seq;
        seq->flights--;
        seq->ahead -= item->draw;
        seq->suspect = false;
        seq->failures = 0;
        if (s->limits.prefix_cache && item->stay == seq->stays)
            seal_pages(s, seq, item->first + item->count);
    }
}

void scheduler_undone(struct scheduler *s, const struct schedule *failed)
{
    (void)s;
    for (int32_t i = 0; i < failed->items; i++) {
        const struct schedule_item *item = &failed->item[i];
        struct sequence *seq = item->seq;
        seq->flights--;
        seq->ahead -= item->draw;
        if (item->stay == seq->stays)
            seq->computed = item->first;
    }
}

void scheduler_suspect(struct scheduler *s, const struct schedule *failed)
{
    (void)s;
    for (int32_t i = 0; i < failed->items; i++)
        failed->item[i].seq->suspect = true;
}

bool scheduler_suspects(const struct scheduler *s)
{
    for (int which = 0; which < 2; which++) {
        const struct sequence *seq = which ? s->waiting.oldest : s->running.oldest;
        for (; seq; seq = seq->newer)
            if (seq->suspect)
                return true;
    }
    return false;
}
