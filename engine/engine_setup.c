/* SPDX-License-Identifier: Apache-2.0 */
/* engine_setup.c - from a configuration to an engine that can run a step.
 *
 * Order: model, backend (which measures the machine), dispatch table with the eager kernels,
 * KV pages, scheduler. Everything built here is constant afterwards and taken down in reverse by
 * engine_teardown, which also serves a load that failed half-way.
 *
 * Memory for the KV cache is decided here once: allocating later would stall steps, and running
 * out later would lose requests.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/cgroup.h"
#include "config/clock.h"
#include "config/log.h"
#include "engine/device_weights.h"
#include "engine/engine_private.h"
#include "engine/kv_dtype.h"
#include "engine/memory.h"
#include "engine/numa.h"

/* Prompt positions scored in one step beside everything else that needs logits. */
enum { SCORING_ROWS = 64, LEAST_PAGES = 16 };

void engine_say(struct engine *e, double progress, const char *fmt, ...)
{
    va_list args;
    pthread_mutex_lock(&e->state_lock);
    e->progress = progress;
    va_start(args, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, args);
    va_end(args);
    pthread_mutex_unlock(&e->state_lock);
}

static void on_progress(void *ctx, double fraction)
{
    struct engine *e = ctx;
    engine_say(e, 0.9 * fraction, "loading %s", e->options.model);
}

/* ---- which backend ------------------------------------------------------------------------- */

/* What `auto` means: the GPU if there is one that works, otherwise the CPU, and the log says why.
 */
const struct backend_ops *engine_choose_backend(const char *wish, struct err *err)
{
    if (!strcmp(wish, "cpu"))
        return &backend_cpu;
    struct err why = {""};
    const struct backend_ops *cuda = backend_cuda_load(&why);
    if (cuda)
        return cuda;
    if (!strcmp(wish, "cuda")) {
        err_set(err, "engine.backend = cuda: %s", why.msg);
        return NULL;
    }
    log_info("engine", "backend cpu, because cuda is not usable: %s", why.msg);
    return &backend_cpu;
}

/* ---- memory for keys and values ------------------------------------------------------------ */

/* MiB for pages when nobody said how many, and bytes of one page, of the draft model too. */
static int64_t usual_mib(const struct engine *e, const struct backend_options *b, int64_t *page)
{
    const struct model_shape *s = &e->model->shape;
    *page = kv_page_bytes(s);
    int64_t room = e->ops->kv_room ? e->ops->kv_room(e->model, b, page) : 0, more = 0;
    if (e->draft_model) {
        struct backend_options o = engine_draft_options(e, b);
        more = kv_page_bytes(&e->draft_model->shape);
        if (e->ops->kv_room)
            e->ops->kv_room(e->draft_model, &o, &more);
    }
    *page += more;
    if (room > 0)
        return room / 1048576;
    char why[CGROUP_FILE + 64];
    int64_t left = memory_available_in("", why, sizeof why);
    log_info("engine", "memory left: %lld MiB (%s)", (long long)(left / 1048576), why);
    return memory_usual_mib(left, e->ranks ? ranks_local(e->ranks) : 1);
}

/* The pages that an operator asked for. On a CPU there may be memory for fewer: then a warning says
 * how many; a device that has no room for them fails to open, with a message of its own. */
static int32_t pages_asked_for(const struct engine *e, int64_t n, int64_t bytes)
{
    char why[CGROUP_FILE + 64] = "the largest cache there is";
    int64_t most = INT32_MAX / KV_PAGE, left = 0;
    int64_t fit = n < most ? n : most;
    if (!e->ops->kv_room) {
        left = memory_available_in("", why, sizeof why);
        fit = memory_pages(fit, bytes, left / (e->ranks ? ranks_local(e->ranks) : 1));
    }
    fit = fit < LEAST_PAGES && n >= LEAST_PAGES ? LEAST_PAGES : fit;
    if (fit < n)
        log_warn("engine",
                 "engine.%s asks for %lld KV pages of %lld bytes: there are %lld, for want of "
                 "memory (%lld MiB left: %s)",
                 e->options.kv_pages > 0 ? "kv_pages" : "kv_mib", (long long)n, (long long)bytes,
                 (long long)fit, (long long)(left / 1048576), why);
    return (int32_t)fit;
}

/* As many as every running sequence at full length could use: nobody asked for a prefix cache
 * beside them. */
static int64_t most_pages(const struct engine *e)
{
    return (int64_t)e->options.limits.max_batch * ((e->info.max_context + KV_PAGE - 1) / KV_PAGE);
}

static int choose_pages(struct engine *e, struct backend_options *b, struct err *err)
{
    const struct engine_options *o = &e->options;
    int64_t bytes, usual = usual_mib(e, b, &bytes), n = o->kv_pages;
    int64_t mib = o->kv_mib > 0 ? o->kv_mib : usual;
    e->page_bytes = bytes;
    if (n == 0) {
        n = mib * 1048576 / bytes;
        if (n < LEAST_PAGES && o->kv_mib > 0)
            return err_set(err,
                           "engine.kv_mib = %lld holds %lld pages of %lld bytes; at least %d "
                           "pages are needed",
                           (long long)mib, (long long)n, (long long)bytes, LEAST_PAGES);
        n = n < LEAST_PAGES ? LEAST_PAGES : n;
    }
    if (o->kv_pages > 0 || o->kv_mib > 0) {
        b->kv_pages = pages_asked_for(e, n, bytes);
        return 0;
    }
    int64_t most = most_pages(e);
    n = n > most ? most : n;
    b->kv_pages = (int32_t)(n > INT32_MAX / KV_PAGE ? INT32_MAX / KV_PAGE : n);
    return 0;
}

/* ---- opening it ---------------------------------------------------------------------------- */

int32_t backend_chunk(const struct backend_ops *ops, int64_t asked)
{
    enum { LEAST = 16, USUAL = 512 };
    if (asked <= 0)
        asked = ops->usual_chunk > 0 ? ops->usual_chunk : USUAL;
    return asked < LEAST ? LEAST : (int32_t)asked;
}

int32_t backend_batch(const struct backend_ops *ops, int64_t asked)
{
    enum { USUAL = 64 };
    if (asked > 0)
        return (int32_t)asked;
    return ops->usual_batch > 0 ? ops->usual_batch : USUAL;
}

static int try_backend(struct engine *e, struct backend_options *o, struct err *err)
{
    struct scheduler_limits *l = &e->options.limits;
    l->prefill_chunk = backend_chunk(e->ops, e->options.prefill_chunk);
    l->max_batch = backend_batch(e->ops, e->options.max_batch);
    l->max_rows = o->max_rows = l->max_batch + SCORING_ROWS;
    double itl = e->options.itl_ms, ttft = e->options.ttft_ms;
    pace_open(&e->pace, itl < 0 ? e->ops->usual_itl_ms : itl,
              ttft < 0 ? e->ops->usual_ttft_ms : ttft);
    o->max_tokens = scheduler_max_tokens(l);
    if (e->draft_model && e->ops->fixed_bytes) {
        struct backend_options draft = engine_draft_options(e, o);
        o->keep_bytes = e->ops->fixed_bytes(e->draft_model, &draft);
    }
    struct kv_wish kv = {e->options.kv_pages, e->options.kv_mib, most_pages(e)};
    device_weights_settle(e->model, e->options.device_weights, e->options.e4m3, e->ops, o, &kv);
    if (choose_pages(e, o, err) || (e->ranks && engine_ranks_agree(e, o, err)))
        return -1;
    e->backend = e->ops->open(e->model, o, err);
    return e->backend ? 0 : err_prefix(err, "backend %s", e->ops->name);
}

static int settle_kv(struct engine *e, struct err *err)
{
    const char *wish = e->options.kv_dtype;
    if (kv_dtype_settle(e->model, wish, e->ops, err))
        return -1;
    return e->draft_model ? kv_dtype_settle(e->draft_model, wish, e->ops, err) : 0;
}

static int open_backend(struct engine *e, struct backend_options *o, struct err *err)
{
    if (!e->ops)
        e->ops = engine_choose_backend(e->options.backend, err);
    if (!e->ops || settle_kv(e, err))
        return -1;
    if (e->ranks)
        engine_ranks_ops(e, o);
    int failed = try_backend(e, o, err);
    if (failed && !e->ranks && !strcmp(e->options.backend, "auto") && e->ops != &backend_cpu) {
        log_warn("engine", "backend cpu, because %s did not open: %s", e->ops->name, err->msg);
        e->ops = &backend_cpu;
        failed = settle_kv(e, err) || try_backend(e, o, err);
    }
    if (failed)
        return -1;
    if (e->ranks)
        engine_ranks_drop(e->model, e->ops);
    e->plan = plan_build_ranks(&e->model->shape, e->ranks ? ranks_world(e->ranks) : 1);
    e->dispatch = e->ranks ? engine_ranks_table(e->ops, e->backend, e->model)
                           : dispatch_open_alone(e->ops, e->backend, e->model);
    if (e->ops->step_start)
        dispatch_pipelined(e->dispatch);
    e->ops->set_dispatch(e->backend, e->dispatch);
    return e->ranks ? ranks_begin(e->ranks, err) : 0;
}

/* ---- what the engine says about itself ----------------------------------------------------- */

static void collect_stops(struct engine *e)
{
    const struct tokenizer *t = e->model->tokenizer;
    int32_t *stop = NULL, stops = 0, vocab = tokenizer_vocab(t);
    for (int32_t id = 0; id < vocab; id++)
        if (tokenizer_is_stop(t, id)) {
            stop = xrealloc(stop, (size_t)(stops + 1) * sizeof *stop);
            stop[stops++] = id;
        }
    e->for_sequences = (struct sequence_model){.tokenizer = t, .stop = stop, .stops = stops};
}

static void describe_model(struct engine *e)
{
    const struct engine_options *o = &e->options;
    const struct model *m = e->model;
    int32_t context = m->shape.max_context;
    if (o->max_context > context)
        log_warn("engine", "engine.max_context = %d is more than the model's %d, which is used",
                 o->max_context, context);
    else if (o->max_context > 0)
        context = o->max_context;
    e->info = (struct engine_info){.model_name = *o->model_name ? o->model_name : m->name,
                                   .description = m->description,
                                   .model_hash = m->hash,
                                   .chat_template = m->chat_template,
                                   .tokenizer = m->tokenizer,
                                   .max_context = context,
                                   .created = clock_wall_s()};
}

/* ---- up and down --------------------------------------------------------------------------- */

/* The model, a draft model's too, and what is known once they are there. */
static int open_models(struct engine *e, const struct engine_parts *parts, struct err *err)
{
    const struct engine_options *o = &e->options;
    engine_say(e, 0, "opening %s", o->model);
    if (!e->model && e->ranks)
        e->model = engine_ranks_model(e, on_progress, err);
    else if (!e->model)
        e->model = model_open(o->model, true, on_progress, e, err);
    if (!e->model)
        return -1;
    if (!e->model->tokenizer)
        return err_set(err, "%s has no tokenizer", o->model);
    if (engine_draft_model(e, parts, err))
        return -1;
    describe_model(e);
    collect_stops(e);
    log_info("engine", "model %s: %s", e->info.model_name, e->info.description);
    return 0;
}

int engine_setup(struct engine *e, const struct engine_parts *parts, struct err *err)
{
    struct engine_options *o = &e->options;
    int64_t start = clock_ns();
    e->ops = parts->ops;
    e->model = parts->model;
    numa_open(o->numa);
    if (parts->place.world > 1 && engine_ranks_open(e, &parts->place, err))
        return -1;
    if (open_models(e, parts, err))
        return -1;
    engine_say(e, 0.9, "preparing the backend");
    struct backend_options b = {.threads = o->threads,
                                .pack_bytes = o->pack_bytes,
                                .probes = o->probes,
                                .texts = o->texts,
                                .huge_pages = o->huge_pages,
                                .pin_threads = o->pin_threads};
    if (open_backend(e, &b, err))
        return -1;
    int32_t pages = b.kv_pages;
    e->info.backend = e->ops->name;
    e->info.max_batch = o->limits.max_batch;
    pthread_mutex_lock(&e->lock);
    backlog_batch(&e->backlog, o->limits.max_batch);
    pthread_mutex_unlock(&e->lock);
    e->info.device = e->ops->machine(e->backend)->device;
    if ((int64_t)pages * KV_PAGE < e->info.max_context) {
        e->info.max_context = pages * KV_PAGE;
        log_warn("engine", "the KV cache limits sequences to %d tokens (engine.kv_mib)",
                 e->info.max_context);
    }
    e->kv = kvcache_open(pages);
    e->scheduler = scheduler_open(e->kv, &o->limits);
    int32_t same_bits = e->ops->same_bits_tokens > 1 ? e->ops->same_bits_tokens : 1;
    e->speculator = speculate_open(o->bit_equal ? same_bits : 0);
    for (int i = 0; i < 2; i++)
        e->batch[i] = batch_open(&o->limits);
    if (engine_draft_open(e, parts, &b, err))
        return -1;
    log_info("engine",
             "backend %s on %s; up to %d sequences at once, %d KV pages, %lld MiB%s; ready after "
             "%.2f s",
             e->ops->name, e->info.device, e->info.max_batch, pages,
             (long long)(pages * e->page_bytes / 1048576), e->model->shape.kv_bf16 ? " (bf16)" : "",
             (double)(clock_ns() - start) * 1e-9);
    return 0;
}

void engine_teardown(struct engine *e)
{
    for (int i = 0; i < 2; i++)
        batch_close(e->batch[i]);
    speculate_close(e->speculator);
    engine_draft_close(e);
    scheduler_close(e->scheduler);
    kvcache_close(e->kv);
    if (e->backend)
        e->ops->close(e->backend);
    ranks_close(e->ranks);
    free(e->changes);
    plan_free(e->plan);
    if (e->dispatch)
        dispatch_close(e->dispatch);
    free((void *)e->for_sequences.stop);
    if (e->model)
        model_close(e->model);
}
