/* SPDX-License-Identifier: Apache-2.0 */
/* scheduler_plan.c - passes 2 and 3 of a plan: a token for whoever decodes, pieces for prompts.
 *
 * What a step may have of prompts is a budget: what decodes leave of the chunk, less where the pace
 * is slower, and never less than the tokens that one other client decodes beside it. It goes in
 * pieces to the client that was served least, counting what it gets in this very step. So it is one
 * client's as long as it is behind, and then everybody's. Within a client the prompt with the least
 * left goes first, which makes the mean wait the shortest; but each token that the server computes
 * meanwhile counts for those that wait, so that a long prompt's turn comes however many short ones
 * follow it.
 */
#include "engine/scheduler_private.h"

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

/* How many of its guesses can run: each needs a row, a token of the step and a place in the
 * sequence's pages. Nobody gives up a page, or the last row there is, for a guess. */
static int32_t room_for_guesses(struct scheduler *s, const struct schedule *out,
                                struct sequence *seq, int32_t guesses)
{
    int32_t others = s->running.n - out->items - 1;
    int32_t rows = s->limits.max_rows - out->rows - 1 - others;
    int32_t tokens = scheduler_max_tokens(&s->limits) - out->tokens - 1 - others;
    int32_t room = rows < tokens ? rows : tokens;
    room = room < guesses ? room : guesses;
    return room > 0 ? scheduler_reserve(s, seq, room) : 0;
}

/* Adds the next tokens of `seq`, at most `budget`, within the rows that are left. */
static void add_item(struct scheduler *s, struct schedule *out, struct sequence *seq,
                     int32_t budget)
{
    int32_t rows = s->limits.max_rows - out->rows;
    int32_t count = to_compute(seq) < budget ? to_compute(seq) : budget, guesses = seq->guesses;
    bool scores = seq->prompt_logprobs && seq->scored < seq->prompt_n;
    seq->guesses = 0; /* they are of this step alone */
    if (scores && count > rows)
        count = rows;
    if (count <= 0 || rows <= 0)
        return;
    struct schedule_item item = {
        .seq = seq, .first = seq->computed, .count = count, .stay = seq->stays};
    int32_t length = sequence_length(seq);
    item.draw = item.first + count == length && length < sequence_longest(seq);
    if (item.draw && decodes(seq))
        item.guesses = room_for_guesses(s, out, seq, guesses);
    item.count += item.guesses;
    if (scores) {
        /* The row of position p scores the token at p + 1; those up to `scored` are done. */
        int32_t from = seq->scored > 0 ? seq->scored - 1 : 0;
        int32_t to = item.first + count < seq->prompt_n ? item.first + count : seq->prompt_n - 1;
        from = from > item.first ? from : item.first;
        item.scores = to > from ? to - from : 0;
    }
    out->item[out->items++] = item;
    out->tokens += item.count;
    out->rows += item.scores + item.draw + item.guesses;
    out->guesses += item.guesses;
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
    /* All pages first: until then any sequence may be preempted. One that was is in the list no
     * more, nor the way on from it: the list is walked again. */
    for (struct sequence *seq = s->running.oldest; seq;)
        seq = !decodes(seq) || scheduler_grow(s, seq) ? seq->newer : s->running.oldest;
    for (struct sequence *seq = s->running.oldest; seq; seq = seq->newer)
        if (decodes(seq))
            add_item(s, out, seq, 1);
    out->decodes = out->items;
}

/* Smaller goes first: what is left of the prompt, less what the server has computed since. */
static int64_t rank_of(const struct scheduler *s, const struct chunk *t)
{
    return t->want - (int64_t)(s->work - t->seq->submit_work) / AGEING;
}

/* Puts chunk `i` into its flow's list, before those of the same rank: these came later. */
static void insert_chunk(struct scheduler *s, struct flow *flow, int32_t i)
{
    int64_t rank = rank_of(s, &s->chunk[i]);
    int32_t *at = &flow->chunk;
    while (*at >= 0 && rank_of(s, &s->chunk[*at]) < rank)
        at = &s->chunk[*at].next;
    s->chunk[i].next = *at;
    *at = i;
}

/* Everything running that pass 2 has not planned, by flow; returns the number of flows. A prompt
 * that is scored leaves every other a row to draw with. */
static int32_t collect_chunks(struct scheduler *s, const struct schedule *out)
{
    int32_t chunks = 0, flows = 0, cursor = 0;
    int32_t rows = s->limits.max_rows - out->rows - (s->running.n - out->items - 1);
    for (struct sequence *seq = s->running.oldest; seq; seq = seq->newer) {
        seq->flow->chunk = -1;
        seq->planned = 0;
    }
    /* Newest first, so that of chunks that rank the same the oldest ends up first. */
    cursor = out->items - 1;
    for (struct sequence *seq = s->running.newest; seq; seq = seq->older) {
        if (cursor >= 0 && out->item[cursor].seq == seq) {
            cursor--;
            continue;
        }
        struct flow *flow = seq->flow;
        bool scores = seq->prompt_logprobs && seq->scored < seq->prompt_n;
        scheduler_catch_up(s, seq);
        struct chunk chunk = {.seq = seq, .want = to_compute(seq)};
        if (scores && chunk.want > rows)
            chunk.want = rows;
        if (chunk.want == 0)
            continue;
        if (flow->chunk < 0) {
            s->flow[flows++] = flow;
            flow->given = 0;
        }
        s->chunk[chunks] = chunk;
        insert_chunk(s, flow, chunks++);
    }
    return flows;
}

/* The place in s->flow of the one that was served least, with what it gets in this step. */
static int32_t least_served(const struct scheduler *s, int32_t flows)
{
    int32_t least = 0;
    uint64_t served = UINT64_MAX;
    for (int32_t i = 0; i < flows; i++) {
        const struct flow *flow = s->flow[i];
        uint64_t would = flow->served + (uint64_t)flow->given * FAIR_TOKEN;
        bool older = s->chunk[flow->chunk].seq->id < s->chunk[s->flow[least]->chunk].seq->id;
        if (would < served || (would == served && older)) {
            least = i;
            served = would;
        }
    }
    return least;
}

/* The first chunk of flow `i` of `flows` is out of the plan; returns the number of flows that have
 * one. */
static int32_t next_chunk(struct scheduler *s, int32_t i, int32_t flows)
{
    struct flow *flow = s->flow[i];
    flow->chunk = s->chunk[flow->chunk].next;
    if (flow->chunk < 0)
        s->flow[i] = s->flow[--flows];
    return flows;
}

/* Gives `budget` tokens to the flows that have chunks, and plans each chunk once it has all it
 * gets. True if all got all they want. */
static bool share_budget(struct scheduler *s, struct schedule *out, int32_t flows, int32_t budget)
{
    bool all = true;
    while (flows > 0 && budget > 0) {
        int32_t i = least_served(s, flows), piece = flows > 1 && budget > PIECE ? PIECE : budget;
        struct flow *flow = s->flow[i];
        struct chunk *t = &s->chunk[flow->chunk];
        if (t->get == 0 && scheduler_follows(s, t->seq)) {
            all = false;
            flows = next_chunk(s, i, flows);
            continue;
        }
        int32_t get = t->want - t->get < piece ? t->want - t->get : piece;
        t->get += get;
        t->seq->planned = t->get;
        flow->given += get;
        budget -= get;
        if (t->get < t->want)
            continue;
        add_item(s, out, t->seq, t->get);
        flows = next_chunk(s, i, flows);
    }
    for (int32_t i = 0; i < flows; i++) {
        const struct chunk *t = &s->chunk[s->flow[i]->chunk];
        if (t->get > 0)
            add_item(s, out, t->seq, t->get);
    }
    return all && flows == 0;
}

/* Prompt tokens that there must be in this step: those of whoever was served least are as many as
 * the tokens that one other client decodes in it, however slow that makes the step for that one. */
static int32_t least_budget(struct scheduler *s, const struct schedule *out, int32_t flows)
{
    int32_t least = PREFILL_LEAST;
    if (flows == 0)
        return least;
    const struct flow *mine = s->flow[least_served(s, flows)];
    for (int32_t i = 0; i < out->items; i++)
        out->item[i].seq->flow->decodes = 0;
    for (int32_t i = 0; i < out->items; i++) {
        struct flow *flow = out->item[i].seq->flow;
        if (++flow->decodes > least && flow != mine && flow->served >= mine->served)
            least = flow->decodes;
    }
    int32_t most = scheduler_max_tokens(&s->limits) - out->tokens;
    return least < most ? least : most;
}

static void plan_prefill(struct scheduler *s, struct schedule *out)
{
    int32_t flows = collect_chunks(s, out), least = least_budget(s, out, flows);
    int32_t budget = s->limits.prefill_chunk - out->tokens;
    if (out->items > 0 && budget > s->pace)
        budget = s->pace;
    if (budget < least)
        budget = least;
    bool all = share_budget(s, out, flows, budget);
    if (all && s->waiting.n == 0)
        fair_settle(s->fair);
}

/* Positions that `n` tokens behind `first` others attend to, in sum. */
static int64_t attended(int64_t first, int64_t n)
{
    return n * first + n * (n + 1) / 2;
}

static void add_prompt(struct prompt_load *load, const struct sequence *seq)
{
    int32_t n = to_compute(seq);
    load->tokens += n;
    load->attended += attended(seq->computed, n);
    if (seq->last_token_ns == 0 && (load->first_ns == 0 || seq->submit_ns < load->first_ns)) {
        load->first_ns = seq->submit_ns;
        load->first_tokens = n;
    }
}

void scheduler_load(const struct scheduler *s, struct step_size *size, struct prompt_load *load)
{
    *size = (struct step_size){0};
    *load = (struct prompt_load){0};
    for (const struct sequence *seq = s->running.oldest; seq; seq = seq->newer)
        if (!decodes(seq)) {
            if (to_compute(seq) > 0)
                add_prompt(load, seq);
        } else {
            size->decodes += 1 + seq->guesses;
            size->context += attended(seq->computed, 1 + seq->guesses);
        }
    /* A sequence that waits for a place in the batch gets none sooner by shorter or longer steps.
     */
    int32_t places = s->limits.max_batch - s->running.n;
    for (const struct sequence *seq = s->waiting.oldest; seq && places-- > 0; seq = seq->newer)
        add_prompt(load, seq);
    if (load->tokens > 0 && load->first_ns == 0) /* all have lost their pages since */
        load->first_ns = 1;
}

void scheduler_size(const struct schedule *s, struct step_size *size)
{
    *size = (struct step_size){0};
    for (int32_t i = 0; i < s->items; i++) {
        const struct schedule_item *item = &s->item[i];
        bool prompt = i >= s->decodes;
        *(prompt ? &size->prompt : &size->decodes) += item->count;
        *(prompt ? &size->prompt_context : &size->context) += attended(item->first, item->count);
    }
}

int32_t scheduler_decoding(const struct scheduler *s, struct sequence **out)
{
    int32_t n = 0;
    for (struct sequence *seq = s->running.oldest; seq; seq = seq->newer) {
        if (!decodes(seq) || seq->suspect)
            return 0;
        out[n++] = seq;
    }
    return n;
}

int32_t scheduler_plan(struct scheduler *s, struct schedule *out, struct sequence **admitted)
{
    out->items = out->tokens = out->rows = out->decodes = out->guesses = 0;
    struct sequence *seq;
    while (s->suspects > 0 && (seq = first_suspect(s))) {
        if (!scheduler_grow(s, seq))
            continue; /* no longer running */
        bool decode = decodes(seq);
        add_item(s, out, seq, s->limits.prefill_chunk);
        out->decodes = decode ? out->items : 0;
        return 0;
    }
    int32_t fresh = scheduler_admit(s, admitted);
    plan_decodes(s, out);
    plan_prefill(s, out);
    return fresh;
}
