/* SPDX-License-Identifier: Apache-2.0 */
/* engine_step.c - one step: planned, started, landed, delivered.
 *
 * A backend that keeps drawn tokens on its device (backend_ops.step_start) is kept busy: step n + 1
 * is planned and started while step n is under way, and only then is n waited for and delivered.
 *
 *   plan n+1   start n+1   land n   deliver n   (inbox)   plan n+2   start n+2   land n+1 ...
 *
 * The plan needs counts only, and counts are known before tokens are (scheduler.h). Where a token
 * of step n is read by step n + 1, the step names its row instead (batch.h). What the host learns
 * one step late is thrown away: when a sequence ends with step n (end of generation, stop string,
 * cancel), its row in step n + 1 belongs to nobody. Such a sequence has told its owner and given
 * back its pages, and is freed when the last step with it has landed. Its pages may be somebody
 * else's by then, which is safe, because a device runs steps in the order in which they started.
 *
 * Nothing is started ahead while a sequence is suspected of breaking steps, when the backend says
 * that the last tokens are not on the device, or when a slice of time is due to the specializer.
 * With any other backend a step lands at once, and this is the plain loop: plan, run, deliver.
 *
 * A failed step delivers nothing, nor does the one started after it; what they computed is computed
 * again. Since one request may be what makes a step fail, those of the failed step run alone until
 * each has passed a step; one that fails alone STRIKES times ends with an error, and the others go
 * on. A lost device is another matter: nothing will ever run again, so all requests end at once.
 */
#include "config/clock.h"
#include "config/log.h"
#include "engine/engine_private.h"

enum { STRIKES = 2 };

/* ---- delivering ---------------------------------------------------------------------------- */

static void observe_token(struct engine *e, struct sequence *seq, int64_t now)
{
    bool first = seq->last_token_ns == 0;
    double waited = (double)(now - (first ? seq->submit_ns : seq->last_token_ns)) * 1e-9;
    histogram_observe(first ? &e->stats.first_token : &e->stats.inter_token, waited);
    if (first)
        histogram_observe(&e->stats.first_work,
                          (double)(scheduler_work(e->scheduler) - seq->submit_work));
    (first ? history_first : history_gap)(&e->stats.history, now, waited);
    seq->last_token_ns = now;
    atomic_fetch_add(&e->stats.generated_tokens, 1);
}

/* False if it was the last one: the sequence may be gone. */
static bool deliver_token(struct engine *e, struct sequence *seq, const struct sampled *sampled,
                          int64_t now)
{
    if (sampled->token < 0 || sampled->token >= e->model->shape.vocab) {
        engine_finish(e, seq, FINISH_ERROR, "the model gave no token a probability");
        return false;
    }
    observe_token(e, seq, now);
    sequence_token(seq, sampled);
    if (seq->finish == FINISH_NONE)
        return true;
    engine_finish(e, seq, seq->finish, NULL);
    return false;
}

/* Before the token is delivered: whoever has its answer finds all of it in the metrics. */
static void count_accepted(struct engine *e, struct sequence *seq, bool drafted)
{
    seq->accepted++;
    atomic_fetch_add(&e->stats.accepted_tokens, 1);
    if (drafted)
        atomic_fetch_add(&e->stats.draft_accepted, 1);
}

/* The token that was drawn, and behind right guesses those after it, as long as it goes on. Returns
 * their number. */
static int32_t deliver_draws(struct engine *e, const struct schedule_item *item,
                             const struct sample_row *row, bool same_bits, int64_t now)
{
    struct sequence *seq = item->seq;
    int32_t drawn = 0;
    bool drafted = item->guesses > 0 && speculate_is_draft(seq);
    if (item->guesses > 0) {
        speculate_score(e->speculator, seq, item->guesses, item->right);
        seq->guessed += item->guesses;
        seq->other_bits |= !same_bits;
        atomic_fetch_add(&e->stats.speculations, 1);
        atomic_fetch_add(&e->stats.guessed_tokens, (uint64_t)item->guesses);
        if (drafted)
            atomic_fetch_add(&e->stats.draft_guessed, (uint64_t)item->guesses);
    }
    bool more;
    do {
        if (drawn > 0)
            count_accepted(e, seq, drafted);
        more = deliver_token(e, seq, &row[drawn++].out, now);
    } while (more && drawn <= item->right);
    return drawn;
}

/* The events of one sequence, from its rows on; returns the number of tokens drawn. */
static int32_t deliver_item(struct engine *e, const struct schedule_item *item,
                            const struct sample_row *row, bool same_bits, int64_t now)
{
    struct sequence *seq = item->seq;
    if (seq->ended) { /* while the step was under way */
        engine_release(seq);
        return 0;
    }
    if (seq->prompt_logprobs && seq->scored == 0)
        sequence_scored(seq, 0, NULL);
    for (int32_t n = 0; n < item->scores; n++)
        sequence_scored(seq, seq->scored, &row[n].out);
    if (item->draw)
        return deliver_draws(e, item, row + item->scores, same_bits, now);
    if (item->first + item->count == sequence_longest(seq))
        engine_finish(e, seq, FINISH_LENGTH, NULL); /* max_tokens 0 */
    return 0;
}

/* Events of every sequence in the step. Rows come in the order in which batch_fill() made them. */
static int32_t deliver(struct engine *e, struct batch *b)
{
    const struct sample_row *row = b->sample;
    int64_t now = clock_ns();
    int32_t generated = 0;
    for (int32_t i = 0; i < b->schedule.items; i++) {
        const struct schedule_item item = b->schedule.item[i];
        generated += deliver_item(e, &item, row, b->same_bits, now);
        row += item.scores + item.draw + item.guesses;
    }
    return generated;
}

/* How many guesses of each sequence were what was drawn in their place. */
static void check_guesses(struct engine *e, struct batch *b)
{
    const struct sample_row *row = b->sample;
    for (int32_t i = 0; i < b->schedule.items; i++) {
        struct schedule_item *item = &b->schedule.item[i];
        const struct sequence *seq = item->seq;
        const struct sample_row *draw = row + item->scores;
        item->right = 0;
        while (!seq->ended && item->right < item->guesses &&
               draw[item->right].out.token == seq->tokens[seq->n + item->right])
            item->right++;
        if (item->guesses > 0)
            engine_draft_checked(e, item);
        row += item->scores + item->draw + item->guesses;
    }
}

/* ---- failing ------------------------------------------------------------------------------- */

/* Takes back a started step that will not be delivered. Its schedule keeps the sequences that have
 * not ended meanwhile. */
static void take_back(struct engine *e, struct batch *b)
{
    struct schedule *s = &b->schedule;
    int32_t kept = 0;
    scheduler_undone(e->scheduler, s);
    for (int32_t i = 0; i < s->items; i++)
        if (s->item[i].seq->ended)
            engine_release(s->item[i].seq);
        else
            s->item[kept++] = s->item[i];
    s->items = kept;
}

/* The sequences of a step that did not start, or was taken back, and why. */
static void step_failed(struct engine *e, struct batch *b, int rc, const char *why)
{
    atomic_fetch_add(&e->stats.failed_steps, 1);
    if (rc == STEP_LOST) {
        if (b->report.fault)
            crash_device(&b->inside, why);
        engine_lost(e, why);
        return;
    }
    if (b->trial) {
        /* The candidate is the likely culprit: nobody else is blamed, and it is not tried again. */
        atomic_store(&e->canary->failed, true);
        for (int i = 0; i < b->trial->n; i++)
            log_error("engine", "a step with candidate %s failed: %s", b->trial->of[i].kernel->name,
                      why);
        return;
    }
    log_error("engine", "a step of %d tokens in %d sequences failed: %s", b->step.m,
              b->schedule.items, why);
    struct sequence *alone = b->schedule.items == 1 ? b->schedule.item[0].seq : NULL;
    if (alone && ++alone->failures >= STRIKES)
        engine_finish(e, alone, FINISH_ERROR, why);
    else
        scheduler_suspect(e->scheduler, &b->schedule);
}

/* ---- starting ------------------------------------------------------------------------------ */

static void set_pace(struct engine *e)
{
    struct step_size size;
    struct prompt_load load;
    scheduler_load(e->scheduler, &size, &load);
    load.lent_ns = e->lent_ns;
    e->gaps.decodes_ns = (int64_t)pace_ns(&e->pace, &size);
    int32_t chunk = e->options.limits.prefill_chunk;
    scheduler_pace(e->scheduler, pace_tokens(&e->pace, &size, &load, clock_ns(), chunk));
}

/* False if nothing can run beside what is under way. */
static bool plan(struct engine *e, struct batch *b)
{
    set_pace(e);
    b->admitted_n = scheduler_plan(e->scheduler, &b->schedule, b->admitted);
    int64_t now = clock_ns();
    engine_started(e, b->admitted, b->admitted_n);
    for (int32_t i = 0; i < b->admitted_n; i++) {
        const struct sequence *seq = b->admitted[i];
        histogram_observe(&e->stats.queue, (double)(now - seq->submit_ns) * 1e-9);
        history_prompt(&e->stats.history, now, seq->prompt_n);
        atomic_fetch_add(&e->stats.prompt_tokens, (uint64_t)seq->prompt_n);
    }
    if (b->schedule.items == 0)
        return false;
    batch_fill(b);
    return true;
}

static int run(struct engine *e, struct batch *b, struct err *err)
{
    const struct step *s = &b->step;
    batch_inside(&b->inside, e->dispatch, e->ops, s, b->trial);
    crash_step(&b->inside);
    int rc = e->ranks ? engine_ranks_step(e, s, b->trial, err)
                      : (e->ops->step_start ? e->ops->step_start : e->ops->step)(e->backend, s,
                                                                                 b->trial, err);
    crash_step(NULL);
    return rc;
}

static bool bit_equal(const struct overrides *o)
{
    bool all = true;
    for (int i = 0; o && i < o->n; i++)
        all &= o->of[i].kernel->bit_equal;
    return all;
}

/* What is in the slots before a step: whether other kernels than before, in how wide steps they are
 * known to round alike, and whether a wrong one has left. The swaps are read once, and before the
 * slots are: one that comes later is seen before the next step. */
static void look_at_slots(struct engine *e)
{
    uint64_t swaps = dispatch_swaps(e->dispatch), distrusts = dispatch_distrusts(e->dispatch);
    e->swapped |= swaps != e->swaps;
    if (swaps != e->swaps || !e->bits_known)
        speculate_equal(e->speculator, dispatch_bit_equal(e->dispatch, e->ops->same_bits_tokens));
    if (distrusts != e->distrusts)
        scheduler_distrust(e->scheduler);
    e->bits_known = true;
    e->swaps = swaps;
    e->distrusts = distrusts;
}

/* The step that is now under way, or NULL. */
static struct batch *start(struct engine *e)
{
    struct batch *b = e->batch[e->flying == e->batch[0]];
    struct err err = {""};
    dispatch_boundary(e->dispatch, false);
    look_at_slots(e);
    if (!e->flying && speculate_plan(e->speculator, e->scheduler, false))
        engine_draft_run(e);
    if (!plan(e, b))
        return NULL;
    engine_gauges(e);
    b->swapped = e->swapped;
    b->after_slice = e->lent;
    e->swapped = e->lent = false;
    e->lent_ns = 0;
    b->report = (struct step_report){.uncaptured = false};
    b->step.report = &b->report;
    b->step.progress_ns = &e->progress_ns;
    b->trial = engine_canary_toss(e, &b->step, &b->live);
    b->start_ns = clock_ns();
    int rc = run(e, b, &err);
    b->same_bits = speculate_is_equal(e->speculator, b->step.m) && bit_equal(b->trial) &&
                   dispatch_unchanged(e->dispatch, e->swaps);
    if (rc < 0) {
        step_failed(e, b, rc, err.msg);
        return NULL;
    }
    b->feeds_next = e->ops->step_start && rc == 0;
    e->starts++;
    scheduler_started(e->scheduler, &b->schedule);
    return b;
}

/* With guesses under way nobody knows how many tokens there will be. And where guesses would pay,
 * the tokens that they follow must be known first. */
static bool may_run_ahead(struct engine *e)
{
    return e->flying->feeds_next && !scheduler_suspects(e->scheduler) && !engine_slice_due(e) &&
           e->flying->schedule.guesses == 0 && !speculate_plan(e->speculator, e->scheduler, true);
}

/* ---- landing ------------------------------------------------------------------------------- */

/* Nanoseconds of a step, counted from when the one before it had landed. */
static int64_t step_ns(struct engine *e, const struct batch *b)
{
    int64_t now = clock_ns(), from = b->start_ns > e->landed_ns ? b->start_ns : e->landed_ns;
    e->landed_ns = now;
    return now - from;
}

/* What a step of this size takes, if it was a plain one. */
static void learn_time(struct engine *e, const struct batch *b, int32_t generated, int64_t ns)
{
    const struct step_report *r = &b->report;
    bool decodes = b->schedule.decodes == b->schedule.items;
    bool plain =
        !b->trial && !b->after_slice && !r->hooked && !r->stood_in && !(decodes && r->uncaptured);
    if (b->swapped || r->swapped) {
        speculate_forget(e->speculator);
        pace_doubt(&e->pace);
    } else if (plain) {
        struct step_size size;
        scheduler_size(&b->schedule, &size);
        pace_learn(&e->pace, &size, ns);
        if (decodes)
            speculate_time(e->speculator, &b->schedule, generated - b->schedule.items, ns);
    }
}

/* Waits for `b` and delivers it. `next`, if any, was started after it; returns what is still under
 * way: `next`, or NULL. */
static struct batch *land(struct engine *e, struct batch *b, struct batch *next)
{
    struct err err = {""}, unused;
    int rc = 0;
    batch_refresh(b);
    if (e->ops->step_start)
        rc = e->ops->step_wait(e->backend, &b->step, &err);
    if (rc < 0) {
        if (next) {
            e->ops->step_wait(e->backend, &next->step, &unused);
            take_back(e, next);
        }
        take_back(e, b);
        step_failed(e, b, rc, err.msg);
        return NULL;
    }
    int64_t before = e->landed_ns, ns = step_ns(e, b);
    engine_meter_step(e, ns, b->schedule.decodes > 0);
    engine_stats_gap(e, b, before, ns);
    /* What ran in another way than its kind usually does is no fair sample of it. */
    if (b->live && !b->report.uncaptured && !b->report.stood_in)
        engine_canary_record(e, &b->step, b->trial != NULL, ns);
    check_guesses(e, b);
    scheduler_done(e->scheduler, &b->schedule);
    int32_t generated = deliver(e, b);
    learn_time(e, b, generated, ns);
    engine_stats_step(e, b, ns, generated);
    return next;
}

void engine_land(struct engine *e)
{
    struct batch *b = e->flying;
    e->flying = NULL;
    if (b)
        land(e, b, NULL);
}

void engine_advance(struct engine *e)
{
    if (e->flying && !may_run_ahead(e)) {
        engine_land(e);
        return;
    }
    struct batch *before = e->flying, *next = start(e);
    e->flying = before ? land(e, before, next) : next;
    if (!e->ops->step_start)
        engine_land(e);
}
