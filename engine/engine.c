/* SPDX-License-Identifier: Apache-2.0 */
/* engine.c - the engine thread: receive, step, lend, again; and its life from start to stop.
 *
 * One thread owns everything that changes with a step, so nothing in the step needs a lock. Other
 * threads leave their wishes in an inbox (engine_submit.c) that is emptied at step boundaries. What
 * a step is, and how the next is started before it has ended, is in engine_step.c.
 */
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "config/clock.h"
#include "config/log.h"
#include "engine/crash.h"
#include "engine/engine_private.h"

/* ---- serving ------------------------------------------------------------------------------- */

static bool has_work(const struct engine *e)
{
    return e->flying || scheduler_oldest(e->scheduler);
}

static void end_all(struct engine *e, enum finish why, const char *error)
{
    struct sequence *seq;
    while ((seq = scheduler_oldest(e->scheduler)))
        engine_finish(e, seq, why, error);
}

static void lend_no_more(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->gone = true;
    pthread_cond_broadcast(&e->reply);
    pthread_mutex_unlock(&e->lock);
}

static void tell_lost(struct engine *e)
{
    pthread_mutex_lock(&e->state_lock);
    engine_lost_fn *fn = e->on_lost;
    void *ctx = e->on_lost_ctx;
    e->on_lost = NULL;
    pthread_mutex_unlock(&e->state_lock);
    if (fn)
        fn(ctx);
}

void engine_on_lost(struct engine *e, engine_lost_fn *fn, void *ctx)
{
    pthread_mutex_lock(&e->state_lock);
    e->on_lost = fn;
    e->on_lost_ctx = ctx;
    pthread_mutex_unlock(&e->state_lock);
    if (atomic_load(&e->state) == ENGINE_LOST)
        tell_lost(e);
}

void engine_lost(struct engine *e, const char *why)
{
    bool first = atomic_load(&e->state) != ENGINE_LOST;
    if (first) {
        log_error("engine", "the device is lost, and all requests with it: %s", why);
        engine_say(e, 1, "the device is lost: %s", why);
        snprintf(e->lost, sizeof e->lost, "%s", why);
        atomic_store(&e->state, ENGINE_LOST);
    }
    end_all(e, FINISH_ERROR, e->lost);
    if (first)
        tell_lost(e);
}

/* What it waits for may take any time; what it does, not. */
static bool receive(struct engine *e, bool wait)
{
    atomic_store(&e->at_work, false);
    bool more = engine_receive(e, wait);
    atomic_store(&e->progress_ns, clock_ns());
    atomic_store(&e->at_work, true);
    return more;
}

static void serve(struct engine *e)
{
    bool busy = false;
    while (receive(e, !busy)) {
        busy = has_work(e);
        if (atomic_exchange(&e->rank_lost, false))
            engine_lost(e, ranks_lost(e->ranks));
        if (atomic_load(&e->state) == ENGINE_LOST) {
            /* Not before: a step under way may run what the specializer, once told, frees. */
            lend_no_more(e);
            end_all(e, FINISH_ERROR, e->lost); /* submitted while it was lost */
            if (!e->flying) /* no step will come that whoever unloads kernels could wait for */
                dispatch_boundary(e->dispatch, true);
            busy = false;
        } else if (busy) {
            engine_advance(e);
            if (!e->flying && atomic_load(&e->state) == ENGINE_READY)
                engine_lend(e, false);
        } else if (atomic_load(&e->state) == ENGINE_READY) {
            e->landed_decode = false; /* what comes next waited for its request, not for us */
            dispatch_boundary(e->dispatch, true);
            if (e->ops->idle)
                e->ops->idle(e->backend);
            busy = engine_lend(e, true);
        }
        engine_gauges(e);
    }
    engine_land(e);
    end_all(e, FINISH_CANCELLED, NULL);
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
    crash_thread();
    int failed = engine_setup(e, &start->parts, &err);
    free(start);
    if (failed) {
        log_error("engine", "%s", err.msg);
        engine_say(e, 1, "%s", err.msg);
        atomic_store(&e->state, ENGINE_FAILED);
    } else {
        engine_say(e, 1, "ready");
        if (e->ops->settle)
            e->ops->settle(e->backend);
        engine_open_meters(e);
        atomic_store(&e->state, ENGINE_READY);
        serve(e);
    }
    lend_no_more(e);
    crash_thread_end();
    return NULL;
}

static enum prefix_cache prefix_cache_of(const char *name)
{
    bool off = name && !strcmp(name, "off"), shared = name && !strcmp(name, "shared");
    return off ? PREFIX_OFF : shared ? PREFIX_SHARED : PREFIX_SALTED;
}

void engine_take_options(struct engine_options *o, const struct config *c)
{
    o->model = xstrdup(c->engine_model ? c->engine_model : "");
    o->model_name = xstrdup(c->engine_model_name ? c->engine_model_name : "");
    o->backend = xstrdup(c->engine_backend ? c->engine_backend : "auto");
    o->device_weights = xstrdup(c->engine_device_weights ? c->engine_device_weights : "auto");
    o->kv_dtype = xstrdup(c->engine_kv_dtype ? c->engine_kv_dtype : "auto");
    o->speculate = xstrdup(c->engine_speculate ? c->engine_speculate : "off");
    o->draft_tokens = (int32_t)c->engine_draft_tokens;
    o->threads = (int32_t)c->engine_threads;
    o->max_context = (int32_t)c->engine_max_context;
    o->kv_pages = (int32_t)c->engine_kv_pages;
    o->kv_mib = (int32_t)c->engine_kv_mib;
    o->max_queue = (int32_t)c->server_max_queue;
    o->pack_bytes = c->specializer_pack_mib * 1048576;
    o->probes = c->specializer_enabled;
    o->huge_pages = c->engine_huge_pages;
    o->pin_threads = c->engine_pin_threads;
    o->numa = !c->engine_numa || strcmp(c->engine_numa, "off") != 0;
    o->bit_equal = c->specializer_numerics && strcmp(c->specializer_numerics, "bit_equal") == 0;
    o->e4m3 = c->specializer_enabled && c->specializer_numerics &&
              strcmp(c->specializer_numerics, "fp8") == 0;
    o->texts = c->specializer_enabled && strcmp(c->specializer_agentic, "on") == 0;
    o->seed = (uint64_t)c->engine_seed;
    o->max_batch = (int32_t)c->engine_max_batch;
    o->prefill_chunk = (int32_t)c->engine_prefill_chunk;
    o->limits.prefix_cache = prefix_cache_of(c->engine_prefix_cache);
    o->itl_ms = c->engine_itl_target_ms;
    o->ttft_ms = c->engine_ttft_target_ms;
    o->share = c->specializer_idle_only ? 0 : c->specializer_share;
    o->slice_ms = c->specializer_slice_ms;
    o->gpu_slice_ms = c->specializer_gpu_slice_ms;
    o->gpu_slice_steps = c->specializer_gpu_slice_steps;
    o->cpu_slice_ms = c->specializer_cpu_slice_ms;
    o->cpu_slice_steps = c->specializer_cpu_slice_steps;
    o->rank_join_s = c->engine_rank_join_s;
    o->rank_step_s = c->engine_rank_step_s;
}

void engine_free_options(struct engine_options *o)
{
    free(o->model);
    free(o->model_name);
    free(o->backend);
    free(o->device_weights);
    free(o->kv_dtype);
    free(o->speculate);
}

static void engine_free(struct engine *e)
{
    engine_teardown(e);
    engine_free_options(&e->options);
    free(e->cancel);
    free(e->displace);
    backlog_free(&e->backlog);
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
    engine_take_options(&e->options, c);
    pthread_mutex_init(&e->lock, NULL);
    pthread_mutex_init(&e->state_lock, NULL);
    pthread_cond_init(&e->wake, NULL);
    pthread_cond_init(&e->reply, NULL);
    backlog_init(&e->backlog, e->options.max_batch, e->options.max_queue);
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
        e->draft_model = parts->draft_model;
        engine_free(e);
        return NULL;
    }
    return e;
}

struct engine *engine_start_ranks(const struct config *c, const struct rank_place *place,
                                  struct err *err)
{
    if (!c->engine_model || !*c->engine_model) {
        err_set(err, "engine.model is not set: name a GGUF file or a model directory (--model)");
        return NULL;
    }
    const char *draft;
    if (speculate_parse(c->engine_speculate, &draft, err))
        return NULL;
    return engine_start_parts(c, &(struct engine_parts){.place = *place}, err);
}

struct engine *engine_start(const struct config *c, struct err *err)
{
    return engine_start_ranks(c, &(struct rank_place){.world = 1}, err);
}

void engine_quit(struct engine *e)
{
    if (e->joined)
        return;
    atomic_store(&e->progress_ns, clock_ns());
    atomic_store(&e->quitting, true);
    pthread_mutex_lock(&e->lock);
    e->stopping = true;
    atomic_store(&e->inbox, true);
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
    e->joined = true;
}

void engine_stop(struct engine *e)
{
    if (!e)
        return;
    engine_quit(e);
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
