/* engine.c - the engine thread: receive, plan, step, deliver, lend, again.
 *
 * One thread owns everything that changes with a step, so nothing in the step needs a lock. Other
 * threads leave their wishes in an inbox (engine_submit.c) that is emptied at step boundaries.
 *
 * A step is planned on counts (scheduler), written out (batch), run by the backend, which also
 * samples, and delivered: events to the owners of requests, numbers to the statistics. Planning
 * reads no token of the step before, so a backend that keeps tokens on its device could be given
 * step n + 1 before step n was delivered; the loop would then hold two batches instead of one.
 *
 * When the backend reports a failed step nothing was delivered, and keys and values written
 * half-way are written again by the next try. Since one request may be what makes it fail, those
 * of the failed step run alone until each has passed a step; one that fails alone STRIKES times
 * ends with an error, and the others go on.
 */
#include "engine/engine.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "config/clock.h"
#include "config/log.h"
#include "engine/engine_private.h"

enum { STRIKES = 2, PACE_LEAST = 16, PACE_MOST = 1 << 20 };

/* ---- delivering a step --------------------------------------------------------------------- */

static void observe_token(struct engine *e, struct sequence *seq, int64_t now)
{
    if (seq->last_token_ns == 0)
        histogram_observe(&e->stats.first_token, (double)(now - seq->submit_ns) * 1e-9);
    else
        histogram_observe(&e->stats.inter_token, (double)(now - seq->last_token_ns) * 1e-9);
    seq->last_token_ns = now;
    atomic_fetch_add(&e->stats.generated_tokens, 1);
}

static void deliver_token(struct engine *e, struct sequence *seq, const struct sampled *sampled,
                          int64_t now)
{
    if (sampled->token < 0 || sampled->token >= e->model->shape.vocab) {
        engine_finish(e, seq, FINISH_ERROR, "the model gave no token a probability");
        return;
    }
    observe_token(e, seq, now);
    sequence_token(seq, sampled);
    if (seq->finish != FINISH_NONE)
        engine_finish(e, seq, seq->finish, NULL);
}

/* Events of every sequence in the step; returns the number of tokens drawn. Rows come in the
 * order in which batch_fill() made them. */
static int32_t deliver(struct engine *e, struct batch *b)
{
    const struct sample_row *row = b->sample;
    int64_t now = clock_ns();
    int32_t generated = 0;
    for (int32_t i = 0; i < b->schedule.items; i++) {
        const struct schedule_item *item = &b->schedule.item[i];
        struct sequence *seq = item->seq;
        if (seq->prompt_logprobs && seq->scored == 0)
            sequence_scored(seq, 0, NULL);
        for (int32_t n = 0; n < item->scores; n++, row++)
            sequence_scored(seq, seq->scored, &row->out);
        if (item->draw) {
            generated++;
            deliver_token(e, seq, &(row++)->out, now);
        } else if (sequence_pending(seq) == 0) {
            engine_finish(e, seq, FINISH_LENGTH, NULL); /* max_tokens 0 */
        }
    }
    return generated;
}

/* ---- one step ------------------------------------------------------------------------------ */

static void plan(struct engine *e, struct batch *b)
{
    b->admitted_n = scheduler_plan(e->scheduler, &b->schedule, b->admitted);
    assert(b->schedule.items > 0); /* work is there, so some of it can run */
    int64_t now = clock_ns();
    for (int32_t i = 0; i < b->admitted_n; i++) {
        const struct sequence *seq = b->admitted[i];
        histogram_observe(&e->stats.queue, (double)(now - seq->submit_ns) * 1e-9);
        atomic_fetch_add(&e->stats.prompt_tokens, (uint64_t)seq->prompt_n);
        atomic_fetch_add(&e->stats.cached_tokens, (uint64_t)seq->cached_tokens);
    }
    batch_fill(b);
}

static void step_failed(struct engine *e, struct batch *b, const char *why)
{
    atomic_fetch_add(&e->stats.failed_steps, 1);
    log_error("engine", "a step of %d tokens in %d sequences failed: %s", b->step.m,
              b->schedule.items, why);
    struct sequence *alone = b->schedule.items == 1 ? b->schedule.item[0].seq : NULL;
    if (alone && ++alone->failures >= STRIKES)
        engine_finish(e, alone, FINISH_ERROR, why);
    else
        scheduler_suspect(e->scheduler, &b->schedule);
}

/* How many prompt tokens a step may read beside decodes follows from how long steps take: were
 * this one a little too long, the next has a little less. A 512-token chunk takes a second on two
 * CPU cores, in which nobody else would get a token. */
static void set_pace(struct engine *e, const struct batch *b, int64_t ns)
{
    double prompt = b->schedule.tokens - b->schedule.decodes,
           allowed_ns = e->options.mixed_ms * 1e6;
    if (allowed_ns > 0 && prompt >= PACE_LEAST)
        scheduler_pace(e->scheduler, (int32_t)fmin(prompt * allowed_ns / (double)ns, PACE_MOST));
}

static void run_step(struct engine *e, struct batch *b)
{
    dispatch_boundary(e->dispatch, false);
    plan(e, b);
    engine_gauges(e);
    bool live;
    const struct kernel *trial = engine_canary_toss(e, &b->step, &live);
    struct err err = {""};
    int64_t start = clock_ns();
    int failed = e->ops->step(e->backend, &b->step, trial ? e->canary->slot : NULL, trial, &err);
    int64_t ns = clock_ns() - start;
    if (failed && trial) {
        /* The candidate is the likely culprit: nobody else is blamed, and it is not tried again. */
        atomic_store(&e->canary->failed, true);
        log_error("engine", "a step with candidate %s failed: %s", trial->name, err.msg);
        return;
    }
    if (failed) {
        step_failed(e, b, err.msg);
        return;
    }
    if (live)
        engine_canary_record(e, &b->step, trial != NULL, ns);
    scheduler_done(e->scheduler, &b->schedule);
    int32_t generated = deliver(e, b);
    engine_stats_step(e, b, trial, ns, generated);
    set_pace(e, b, ns);
}

static bool has_work(const struct engine *e)
{
    return scheduler_oldest(e->scheduler) != NULL;
}

static void serve(struct engine *e)
{
    bool busy = false;
    while (engine_receive(e, !busy)) {
        atomic_store(&e->progress_ns, clock_ns());
        busy = has_work(e);
        if (busy) {
            run_step(e, e->batch);
            engine_lend(e, false);
        } else {
            dispatch_boundary(e->dispatch, true);
            if (e->ops->idle)
                e->ops->idle(e->backend);
            busy = engine_lend(e, true);
        }
        engine_gauges(e);
    }
    struct sequence *seq;
    while ((seq = scheduler_oldest(e->scheduler)))
        engine_finish(e, seq, FINISH_CANCELLED, NULL);
}

/* ---- life ---------------------------------------------------------------------------------- */

struct start {
    struct engine *e;
    struct engine_parts parts;
};

static void *engine_main(void *arg)
{
    struct start *start = arg;
    struct engine *e = start->e;
    struct err err = {""};
    pthread_setname_np(pthread_self(), "whet-engine");
    engine_mark_hot_path();
    int failed = engine_setup(e, &start->parts, &err);
    free(start);
    if (failed) {
        log_error("engine", "%s", err.msg);
        engine_say(e, 1, "%s", err.msg);
        atomic_store(&e->state, ENGINE_FAILED);
    } else {
        engine_say(e, 1, "ready");
        slice_meter_init(&e->meter, e->options.share, (int64_t)(e->options.slice_ms * 1e6),
                         clock_ns());
        atomic_store(&e->state, ENGINE_READY);
        serve(e);
    }
    pthread_mutex_lock(&e->lock);
    e->gone = true;
    pthread_cond_broadcast(&e->reply);
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

static void take_options(struct engine *e, const struct config *c)
{
    struct engine_options *o = &e->options;
    o->model = xstrdup(c->engine_model ? c->engine_model : "");
    o->model_name = xstrdup(c->engine_model_name ? c->engine_model_name : "");
    o->backend = xstrdup(c->engine_backend ? c->engine_backend : "auto");
    o->threads = (int32_t)c->engine_threads;
    o->max_context = (int32_t)c->engine_max_context;
    o->kv_pages = (int32_t)c->engine_kv_pages;
    o->kv_mib = (int32_t)c->engine_kv_mib;
    o->max_queue = (int32_t)c->server_max_queue;
    o->pack_bytes = c->specializer_pack_mib * 1048576;
    o->probes = c->specializer_enabled;
    o->huge_pages = c->engine_huge_pages;
    o->seed = (uint64_t)c->engine_seed;
    o->limits.max_batch = (int32_t)c->engine_max_batch;
    o->limits.prefill_chunk = (int32_t)c->engine_prefill_chunk;
    o->limits.prefix_cache = c->engine_prefix_cache;
    o->mixed_ms = c->engine_mixed_ms;
    o->share = c->specializer_idle_only ? 0 : c->specializer_share;
    o->slice_ms = c->specializer_slice_ms;
}

static void engine_free(struct engine *e)
{
    engine_teardown(e);
    free(e->options.model);
    free(e->options.model_name);
    free(e->options.backend);
    free(e->cancel);
    pthread_mutex_destroy(&e->lock);
    pthread_mutex_destroy(&e->state_lock);
    pthread_mutex_destroy(&e->stats.recent_lock);
    pthread_cond_destroy(&e->wake);
    pthread_cond_destroy(&e->reply);
    free(e);
}

struct engine *engine_start_parts(const struct config *c, const struct engine_parts *parts,
                                  struct err *err)
{
    struct engine *e = xcalloc(1, sizeof *e);
    take_options(e, c);
    pthread_mutex_init(&e->lock, NULL);
    pthread_mutex_init(&e->state_lock, NULL);
    pthread_cond_init(&e->wake, NULL);
    pthread_cond_init(&e->reply, NULL);
    engine_stats_init(&e->stats);
    e->next_id = 1;
    atomic_store(&e->progress_ns, clock_ns());
    if (getrandom(&e->seed, sizeof e->seed, 0) != (ssize_t)sizeof e->seed)
        e->seed = (uint64_t)clock_ns(); /* seeds must differ between starts, no more */
    struct start *start = xcalloc(1, sizeof *start);
    *start = (struct start){e, *parts};
    int rc = pthread_create(&e->thread, NULL, engine_main, start);
    if (rc) {
        err_set(err, "the engine thread did not start: %s", strerror(rc));
        free(start);
        e->model = parts->model;
        engine_free(e);
        return NULL;
    }
    return e;
}

struct engine *engine_start(const struct config *c, struct err *err)
{
    if (!c->engine_model || !*c->engine_model) {
        err_set(err, "engine.model is not set: name a GGUF file or a model directory (--model)");
        return NULL;
    }
    return engine_start_parts(c, &(struct engine_parts){0}, err);
}

void engine_stop(struct engine *e)
{
    if (!e)
        return;
    pthread_mutex_lock(&e->lock);
    e->stopping = true;
    atomic_store(&e->inbox, true);
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
    engine_release_callers(e);
    engine_free(e);
}

enum engine_state engine_state(const struct engine *e, double *progress, char *message, size_t n)
{
    struct engine *w = (struct engine *)e; /* the lock is the only thing written */
    enum engine_state state = (enum engine_state)atomic_load(&w->state);
    pthread_mutex_lock(&w->state_lock);
    if (progress)
        *progress = e->progress;
    if (message && n > 0)
        snprintf(message, n, "%s", e->message);
    pthread_mutex_unlock(&w->state_lock);
    return state;
}

const struct engine_info *engine_info(const struct engine *e)
{
    return &e->info;
}

void engine_fingerprint(const struct engine *e, char out[40])
{
    char kernels[9];
    dispatch_fingerprint(e->dispatch, kernels);
    snprintf(out, 40, "fp_%s%s", e->model->hash, kernels);
}
