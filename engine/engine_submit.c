/* SPDX-License-Identifier: Apache-2.0 */
/* engine_submit.c - how requests come in and go out.
 *
 * The inbox is a mutex, a list and a condition. The lock is held for a few pointer writes and
 * never while a step, a slice or an event runs, so submitting waits for nobody. An atomic flag
 * tells the engine thread whether to look at all: the usual step boundary takes no lock.
 *
 * Everything wrong with a request is said here, at submit: what was accepted can be served, and
 * gets exactly one EVENT_END.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "engine/engine_private.h"

/* ---- checks -------------------------------------------------------------------------------- */

static int check_ids(const int32_t *id, int32_t n, int32_t vocab, const char *what, struct err *err)
{
    for (int32_t i = 0; i < n; i++)
        if (id[i] < 0 || id[i] >= vocab)
            return err_set(err, "%s: token id %d is not in the vocabulary (0 to %d)", what, id[i],
                           vocab - 1);
    return 0;
}

SAMPLING_NUMBERS_ARE(6);

static int check_sampling(const struct sampling *s, int32_t vocab, struct err *err)
{
    if (!isfinite(s->temperature) || s->temperature < 0)
        return err_set(err, "temperature must be a number of at least 0");
    if (!(s->top_p > 0 && s->top_p <= 1))
        return err_set(err, "top_p must be above 0 and at most 1");
    if (!(s->min_p >= 0 && s->min_p <= 1))
        return err_set(err, "min_p must be between 0 and 1");
    if (s->top_k < 0)
        return err_set(err, "top_k must be at least 0");
    if (!isfinite(s->repetition_penalty) || s->repetition_penalty <= 0)
        return err_set(err, "repetition_penalty must be above 0");
    if (!isfinite(s->presence_penalty) || !isfinite(s->frequency_penalty))
        return err_set(err, "penalties must be finite numbers");
    if (s->top_logprobs < -1 || s->top_logprobs > SAMPLER_TOP_MAX)
        return err_set(err, "at most %d log-probabilities can be given", SAMPLER_TOP_MAX);
    for (int32_t i = 0; i < s->biases; i++)
        if (!isfinite(s->bias[i].bias) || check_ids(&s->bias[i].id, 1, vocab, "logit_bias", err))
            return err_set(err, "logit_bias: token id %d with bias %g", s->bias[i].id,
                           (double)s->bias[i].bias);
    return 0;
}

static enum submit_result check(const struct engine *e, const struct engine_request *r,
                                struct err *err)
{
    int32_t vocab = e->model->shape.vocab;
    int bad = 0;
    if (r->prompt_n < 1)
        bad = err_set(err, "the prompt is empty");
    else if (r->max_tokens < 0 || r->min_tokens < 0 || r->min_tokens > r->max_tokens)
        bad = err_set(err, "min_tokens %d and max_tokens %d do not fit together", r->min_tokens,
                      r->max_tokens);
    else
        bad = check_ids(r->prompt, r->prompt_n, vocab, "prompt", err) ||
              check_ids(r->stop_token, r->stop_tokens, vocab, "stop_token_ids", err) ||
              check_ids(r->predicted, r->predicted_n, vocab, "prediction", err) ||
              check_sampling(&r->sampling, vocab, err);
    for (int32_t i = 0; !bad && i < r->stops; i++)
        if (!r->stop[i][0])
            bad = err_set(err, "stop string %d is empty", i);
    if (bad)
        return SUBMIT_BAD;
    int64_t longest = (int64_t)r->prompt_n + r->max_tokens;
    if (longest > e->info.max_context || !scheduler_fits(e->kv, longest)) {
        err_set(
            err,
            "This model's maximum context length is %d tokens, but the prompt has %d tokens and "
            "%d more were asked for, together %lld",
            e->info.max_context, r->prompt_n, r->max_tokens, (long long)longest);
        return SUBMIT_TOO_LONG;
    }
    return SUBMIT_OK;
}

/* ---- any thread ---------------------------------------------------------------------------- */

enum submit_result engine_room(struct engine *e, uint64_t client,
                               const struct request_limits *limits, struct err *err)
{
    pthread_mutex_lock(&e->lock);
    enum submit_result result = backlog_admit(&e->backlog, client, limits, err);
    pthread_mutex_unlock(&e->lock);
    return result;
}

int32_t engine_retry_s(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    int32_t waiting = e->backlog.waiting - e->backlog.displacing;
    int32_t s = drain_wait_s(&e->drain, waiting, clock_ns());
    pthread_mutex_unlock(&e->lock);
    return s;
}

int32_t engine_active(const struct engine *e)
{
    return atomic_load(&e->active);
}

double engine_stalled_s(const struct engine *e)
{
    bool waited_for = atomic_load(&e->active) > 0 || atomic_load(&e->quitting);
    double s = (double)(clock_ns() - atomic_load(&e->progress_ns)) * 1e-9;
    double least = waited_for ? 0 : atomic_load(&e->at_work) ? 1 : INFINITY;
    return s > least ? s : 0;
}

/* Every request of an engine without engine.seed gets a seed of its own. */
static uint64_t seed_for(const struct engine *e, uint64_t asked, uint64_t id)
{
    if (asked)
        return asked;
    if (e->options.seed)
        return e->options.seed;
    uint32_t w[4];
    philox(e->seed, id, 0, w);
    return (uint64_t)w[0] << 32 | w[1];
}

static void add_id(uint64_t **list, int32_t *n, int32_t *size, uint64_t id)
{
    if (*n == *size) {
        *size = 2 * *size + 16;
        *list = xrealloc(*list, (size_t)*size * sizeof **list);
    }
    (*list)[(*n)++] = id;
}

static void add_displaced(struct engine *e, struct backlog_group *group)
{
    if (e->displaces == e->displaces_size) {
        e->displaces_size = 2 * e->displaces_size + 16;
        e->displace = xrealloc(e->displace, (size_t)e->displaces_size * sizeof(group));
    }
    group->listed = true;
    e->displace[e->displaces++] = group;
}

/* Under the lock, when requests have come or gone. */
static void note_full(struct engine *e, int64_t now)
{
    drain_full(&e->drain, e->backlog.active >= e->backlog.max_batch, now);
}

/* Into the inbox. Under the lock; the backlog has counted it. */
static void enqueue(struct engine *e, struct sequence *seq)
{
    seq->id = e->next_id++;
    seq->sampling.seed = seed_for(e, seq->sampling.seed, seq->id);
    *(e->incoming ? &e->incoming_last->newer : &e->incoming) = seq;
    e->incoming_last = seq;
    if (atomic_load(&e->active) == 0)
        atomic_store(&e->progress_ns, seq->submit_ns);
    atomic_fetch_add(&e->active, 1);
    atomic_fetch_add(&e->stats.waiting, 1);
    atomic_store(&e->inbox, true);
    pthread_cond_signal(&e->wake);
}

/* Takes the sequences if there is room for all of them, in the place of another answer if need be.
 */
static enum submit_result enqueue_all(struct engine *e, struct sequence **seq, int32_t n,
                                      const struct request_limits *limits, uint64_t *id,
                                      struct err *err)
{
    enum submit_result result = SUBMIT_NOT_READY;
    struct backlog_group *displaced = NULL;
    int64_t now = clock_ns();
    pthread_mutex_lock(&e->lock);
    if (e->stopping)
        err_set(err, "the server is shutting down");
    else
        result =
            backlog_enter(&e->backlog, seq[0]->client, limits, seq[0]->group, n, &displaced, err);
    if (displaced)
        add_displaced(e, displaced);
    note_full(e, now);
    for (int32_t i = 0; i < n && result == SUBMIT_OK; i++) {
        seq[i]->submit_ns = now;
        if (id)
            id[i] = e->next_id;
        enqueue(e, seq[i]);
    }
    pthread_mutex_unlock(&e->lock);
    return result;
}

enum submit_result engine_submit_all(struct engine *e, const struct engine_request *r, int32_t n,
                                     uint64_t *id, struct err *err)
{
    if (atomic_load(&e->state) != ENGINE_READY) {
        err_set(err, atomic_load(&e->state) == ENGINE_LOST ? "the device is lost"
                                                           : "the model is not loaded");
        return SUBMIT_NOT_READY;
    }
    for (int32_t i = 0; i < n; i++) {
        enum submit_result wrong = check(e, &r[i], err);
        if (wrong != SUBMIT_OK)
            return wrong;
    }
    struct sequence **seq = xcalloc((size_t)n, sizeof *seq);
    struct backlog_group *group = xcalloc(1, sizeof *group);
    for (int32_t i = 0; i < n; i++) {
        seq[i] = sequence_new(&r[i], &e->for_sequences);
        seq[i]->group = group;
    }
    enum submit_result result = enqueue_all(e, seq, n, r->limits, id, err);
    if (result != SUBMIT_OK) {
        for (int32_t i = 0; i < n; i++)
            sequence_free(seq[i]);
        free(group);
    }
    free(seq);
    return result;
}

enum submit_result engine_submit(struct engine *e, const struct engine_request *r, uint64_t *id,
                                 struct err *err)
{
    return engine_submit_all(e, r, 1, id, err);
}

void engine_cancel(struct engine *e, uint64_t id)
{
    pthread_mutex_lock(&e->lock);
    add_id(&e->cancel, &e->cancels, &e->cancels_size, id);
    atomic_store(&e->inbox, true);
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

/* ---- engine thread ------------------------------------------------------------------------- */

void engine_gauges(struct engine *e)
{
    struct engine_stats *s = &e->stats;
    int32_t running = scheduler_running(e->scheduler), active = atomic_load(&e->active);
    atomic_store(&s->running, running);
    atomic_store(&s->waiting, active > running ? active - running : 0);
    atomic_store(&s->pages_used, kvcache_used(e->kv));
    atomic_store(&s->preemptions, scheduler_preemptions(e->scheduler));
    atomic_store(&s->yields, scheduler_yields(e->scheduler));
    atomic_store(&s->cached_tokens, scheduler_cached(e->scheduler));
    atomic_store(&s->forgotten_pages, scheduler_forgotten(e->scheduler));
}

void engine_started(struct engine *e, struct sequence *const *seq, int32_t n)
{
    if (n == 0)
        return;
    pthread_mutex_lock(&e->lock);
    for (int32_t i = 0; i < n; i++)
        backlog_started(&e->backlog, seq[i]->group);
    pthread_mutex_unlock(&e->lock);
}

/* By the time its owner hears of the end, the request's pages and place are free. */
void engine_finish(struct engine *e, struct sequence *seq, enum finish why, const char *error)
{
    scheduler_remove(e->scheduler, seq);
    int64_t now = clock_ns();
    pthread_mutex_lock(&e->lock);
    if (seq->admitted)
        drain_ended(&e->drain, now);
    backlog_leave(&e->backlog, seq->group, !seq->admitted);
    note_full(e, now);
    bool last = seq->group->active == 0 && !seq->group->listed;
    pthread_mutex_unlock(&e->lock);
    if (last)
        free(seq->group);
    seq->group = NULL;
    atomic_fetch_add(&e->stats.ended[why], 1);
    atomic_fetch_sub(&e->active, 1);
    engine_gauges(e);
    sequence_end(seq, why, error);
    engine_release(seq);
}

void engine_release(struct sequence *seq)
{
    if (seq->ended && seq->in_flight == 0)
        sequence_free(seq);
}

static void receive_sequences(struct engine *e, struct sequence *seq)
{
    while (seq) {
        struct sequence *next = seq->newer;
        seq->newer = NULL;
        seq->submit_work = scheduler_work(e->scheduler);
        scheduler_add(e->scheduler, seq);
        seq = next;
    }
}

static void receive_cancels(struct engine *e, const uint64_t *id, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        struct sequence *seq = scheduler_find(e->scheduler, id[i]);
        if (seq)
            engine_finish(e, seq, FINISH_CANCELLED, NULL);
    }
}

/* Ends the answers whose places in the queue were given to others, but for those that have begun or
 * gone meanwhile. */
static void receive_displaced(struct engine *e, struct backlog_group *const *group, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        pthread_mutex_lock(&e->lock);
        group[i]->listed = false;
        pthread_mutex_unlock(&e->lock);
        int32_t left = group[i]->active; /* of one that was displaced, all wait */
        if (left == 0) {
            free(group[i]);
            continue;
        }
        for (left *= group[i]->displaced; left > 0; left--) /* it goes with the last one */
            engine_finish(e, scheduler_newest(e->scheduler, group[i]), FINISH_DISPLACED, NULL);
    }
}

bool engine_receive(struct engine *e, bool wait)
{
    if (!wait && !atomic_load(&e->inbox))
        return true;
    if (e->flying && e->flying->live)
        engine_land(e); /* its canary may be what changes */
    pthread_mutex_lock(&e->lock);
    while (wait && !atomic_load(&e->inbox) && !e->slice)
        pthread_cond_wait(&e->wake, &e->lock);
    atomic_store(&e->inbox, false);
    struct sequence *incoming = e->incoming;
    e->incoming = e->incoming_last = NULL;
    uint64_t *cancel = e->cancel;
    int32_t cancels = e->cancels;
    e->cancel = NULL;
    e->cancels = e->cancels_size = 0;
    struct backlog_group **displace = e->displace;
    int32_t displaces = e->displaces;
    e->displace = NULL;
    e->displaces = e->displaces_size = 0;
    if (e->canary_changed) {
        e->canary = e->canary_wanted;
        e->canary_changed = false;
        pthread_cond_broadcast(&e->reply);
    }
    bool stopping = e->stopping;
    pthread_mutex_unlock(&e->lock);

    receive_sequences(e, incoming);
    receive_cancels(e, cancel, cancels);
    receive_displaced(e, displace, displaces);
    free(cancel);
    free(displace);
    return !stopping;
}
