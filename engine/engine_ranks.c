/* SPDX-License-Identifier: Apache-2.0 */
/* engine_ranks.c - an engine whose model is computed by several processes.
 *
 * Rank 0 is the engine as ever, on its part of the model: it schedules and samples, and before it
 * runs a step it sends that step's inputs to the others, who do nothing but run what comes. Tokens
 * are drawn by rank 0 alone, out of logits that all ranks put together, so a step is started only
 * when the tokens before it are known on the host: nothing runs ahead here.
 */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/device_weights.h"
#include "engine/engine_private.h"

/* ---- both roles ------------------------------------------------------------------------------ */

static struct ranks_options ranks_options_of(const struct engine_options *o,
                                             const struct rank_place *place)
{
    return (struct ranks_options){.place = *place,
                                  .join_timeout_s = o->rank_join_s,
                                  .step_timeout_s = o->rank_step_s,
                                  .secret = getenv("WHET_RANKS_SECRET")};
}

/* Ranks of a machine share its cores, unless whoever started them has shared those out. */
static int32_t threads_of(const struct ranks *r, int32_t asked)
{
    cpu_set_t set;
    long all = sysconf(_SC_NPROCESSORS_ONLN);
    int32_t local = ranks_local(r);
    if (asked > 0 || local < 2 || sched_getaffinity(0, sizeof set, &set) || CPU_COUNT(&set) < all)
        return asked;
    int32_t share = (int32_t)all / local;
    return share > 0 ? share : 1;
}

static struct wire_part part_of(const struct model *m, const struct backend_ops *ops,
                                const struct backend_options *o)
{
    struct wire_part p = {.kv_room = 0};
    snprintf(p.hash, sizeof p.hash, "%s", m->hash);
    snprintf(p.backend, sizeof p.backend, "%s", ops->name);
    if (ops->ranks && ops->ranks->device)
        ops->ranks->device(p.device, sizeof p.device);
    if (ops->kv_room)
        p.kv_room = ops->kv_room(m, o, &p.page_bytes);
    return p;
}

static struct model *open_part(const char *path, const struct ranks *r, bool with_tokenizer,
                               model_progress_fn *progress, void *ctx, struct err *err)
{
    int64_t read = 0;
    int32_t rank = ranks_rank(r), world = ranks_world(r);
    struct model *m = model_open_part(path, world, rank, with_tokenizer, progress, ctx, &read, err);
    if (m)
        log_info("engine",
                 "rank %d of %d: heads %d to %d, KV heads %d to %d, feed-forward columns %d to %d, "
                 "tokens %d to %d; %.0f MiB read",
                 rank, world, m->shard.heads.from, m->shard.heads.from + m->shard.heads.count - 1,
                 m->shard.kv_heads.from, m->shard.kv_heads.from + m->shard.kv_heads.count - 1,
                 m->shard.ffn.from, m->shard.ffn.from + m->shard.ffn.count - 1, m->shard.vocab.from,
                 m->shard.vocab.from + m->shard.vocab.count - 1, (double)read / 1048576);
    return m;
}

/* ---- rank 0 ---------------------------------------------------------------------------------- */

/* On the watching thread, or the engine's own. */
static void on_lost(void *ctx, const char *why)
{
    struct engine *e = ctx;
    (void)why;
    pthread_mutex_lock(&e->lock);
    atomic_store(&e->rank_lost, true);
    atomic_store(&e->inbox, true);
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

int engine_ranks_open(struct engine *e, const struct rank_place *place, struct err *err)
{
    struct ranks_options o = ranks_options_of(&e->options, place);
    o.on_lost = on_lost;
    o.ctx = e;
    engine_say(e, 0, "waiting for %d ranks", place->world - 1);
    e->ranks = ranks_open(&o, err);
    if (e->ranks)
        e->options.threads = threads_of(e->ranks, e->options.threads);
    return e->ranks ? 0 : -1;
}

struct model *engine_ranks_model(struct engine *e, model_progress_fn *progress, struct err *err)
{
    return open_part(e->options.model, e->ranks, true, progress, e, err);
}

void engine_ranks_ops(struct engine *e)
{
    e->own_ops = *e->ops;
    e->own_ops.step_start = NULL;
    e->own_ops.step_wait = NULL;
    e->ops = &e->own_ops;
}

int engine_ranks_agree(struct engine *e, struct backend_options *o, struct err *err)
{
    struct wire_part part = part_of(e->model, e->ops, o);
    struct wire_setup setup = {.kv_pages = o->kv_pages,
                               .max_tokens = o->max_tokens,
                               .max_rows = o->max_rows,
                               .own_formats = e->model->own_formats};
    engine_say(e, 0.95, "waiting for the other ranks to load the model");
    if (ranks_agree(e->ranks, e->ops, &part, &setup, err))
        return -1;
    o->kv_pages = setup.kv_pages;
    o->collective = ranks_collective(e->ranks, e->ops, &setup, err);
    return o->collective ? 0 : -1;
}

int engine_ranks_step(struct engine *e, const struct step *s, struct slot *slot,
                      const struct kernel *override, struct err *err)
{
    if (ranks_send_step(e->ranks, s, err))
        return STEP_LOST;
    int rc = e->ops->step(e->backend, s, slot, override, err);
    ranks_step_ran(e->ranks);
    if (rc < 0) /* the others ran it, or wait for this rank: they are no longer where it is */
        rc = STEP_LOST;
    return rc;
}

/* ---- another rank ---------------------------------------------------------------------------- */

struct follower {
    const struct engine_options *options;
    struct ranks *ranks;
    const struct backend_ops *ops;
    struct model *model;
    struct backend *backend;
    struct dispatch *dispatch;
    struct wire_limits limits;
};

static int follower_backend(struct follower *f, struct err *err)
{
    struct backend_options o = {.threads = threads_of(f->ranks, f->options->threads),
                                .kv_pages = 1,
                                .max_tokens = backend_chunk(f->ops, f->options->prefill_chunk),
                                .max_rows = f->options->limits.max_batch,
                                .pack_bytes = 0};
    struct wire_setup setup;
    f->model->own_formats = strcmp(f->options->device_weights, "bf16") != 0;
    struct wire_part part = part_of(f->model, f->ops, &o);
    if (ranks_agree(f->ranks, f->ops, &part, &setup, err))
        return -1;
    f->model->own_formats = setup.own_formats;
    o.kv_pages = setup.kv_pages;
    o.max_tokens = setup.max_tokens;
    o.max_rows = setup.max_rows;
    o.collective = ranks_collective(f->ranks, f->ops, &setup, err);
    if (!o.collective || !(f->backend = f->ops->open(f->model, &o, err)))
        return -1;
    const struct kernel *eager[REGION_NODES];
    for (int r = 0; r < REGION_COUNT; r++)
        eager[r] = f->ops->eager(f->backend, (enum region)r);
    f->dispatch = dispatch_open(eager);
    f->ops->set_dispatch(f->backend, f->dispatch);
    f->limits = (struct wire_limits){.max_tokens = o.max_tokens,
                                     .max_rows = o.max_rows,
                                     .kv_pages = o.kv_pages,
                                     .vocab = f->model->shape.vocab,
                                     .max_context = f->model->shape.max_context};
    return 0;
}

static int follow_steps(struct follower *f, struct err *err)
{
    struct step s;
    int rc;
    while ((rc = ranks_next_step(f->ranks, &f->limits, &s, err)) > 0)
        if (f->ops->step(f->backend, &s, NULL, NULL, err) < 0)
            return -1;
    return rc;
}

static int follow(struct follower *f, const struct rank_place *place, struct err *err)
{
    struct ranks_options o = ranks_options_of(f->options, place);
    if (!(f->ranks = ranks_open(&o, err)))
        return -1;
    int rc = -1;
    f->ops = engine_choose_backend(f->options->backend, err);
    f->model = f->ops ? open_part(f->options->model, f->ranks, false, NULL, NULL, err) : NULL;
    if (f->model && follower_backend(f, err) == 0 && ranks_begin(f->ranks, err) == 0) {
        log_info("engine", "rank %d of %d is ready", place->rank, place->world);
        /* Whoever stops all ranks at once means rank 0's drain first; its end is this one's. */
        signal(SIGTERM, SIG_IGN);
        signal(SIGINT, SIG_IGN);
        rc = follow_steps(f, err);
    }
    if (rc)
        ranks_give_up(f->ranks, err->msg);
    return rc;
}

int engine_follow(const struct config *c, const struct rank_place *place, struct err *err)
{
    struct engine_options o = {0};
    struct follower f = {.options = &o};
    engine_take_options(&o, c);
    int rc = follow(&f, place, err);
    if (f.backend)
        f.ops->close(f.backend);
    if (f.dispatch)
        dispatch_close(f.dispatch);
    ranks_close(f.ranks);
    model_close(f.model);
    engine_free_options(&o);
    return rc;
}
