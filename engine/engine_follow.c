/* SPDX-License-Identifier: Apache-2.0 */
/* engine_follow.c - a rank that is not the first: it runs what rank 0 says, and nothing else.
 *
 * It has a part of the model, a backend and a dispatch table, but no requests, no scheduler and no
 * specializer. Orders come one after the other: a step with the changes of the table that it runs
 * with, a kernel to load or to forget, a kernel of reduce to be timed with all others. What it
 * cannot do as it is told ends the world.
 */
#include <signal.h>
#include <string.h>

#include "config/log.h"
#include "engine/engine_private.h"
#include "engine/numa.h"
#include "engine/ranks_loader.h"

struct follower {
    const struct engine_options *options;
    struct ranks *ranks;
    const struct backend_ops *ops;
    struct model *model;
    struct backend *backend;
    struct dispatch *dispatch;
    struct loader *loader;
    struct wire_limits limits;
    struct ranks_order order[2];      /* of the next step and of the one before it, */
    struct crash_kernels inside[2];   /* what may end this process in it, */
    struct step_report report[2];     /* and what became of it */
    const struct ranks_order *flying; /* of the step under way; NULL: there is none */
};

static void take_setup(struct follower *f, struct backend_options *o, const struct wire_setup *s)
{
    f->model->own_formats = s->own_formats;
    f->model->bf16_copies = s->bf16_copies;
    f->model->e4m3_products = s->e4m3_products;
    f->model->shape.kv_bf16 = s->kv_bf16;
    o->kv_pages = s->kv_pages;
    o->max_tokens = s->max_tokens;
    o->max_rows = s->max_rows;
}

/* What this rank offers is reckoned by what rank 0 would open its own backend with: buffers and
 * forms of weights take their place before pages do. */
static int follower_backend(struct follower *f, struct err *err)
{
    const struct engine_options *fo = f->options;
    struct backend_options o = {
        .threads = engine_ranks_threads(f->ranks, fo->threads),
        .pack_bytes = engine_ranks_searched(f->ops) ? fo->pack_bytes : 0,
        .pin_threads = fo->pin_threads,
    };
    struct wire_setup setup;
    if (ranks_hear_wish(f->ranks, &setup, err))
        return -1;
    take_setup(f, &o, &setup);
    struct wire_part part = engine_ranks_part(f->model, f->ops, &o);
    if (ranks_agree(f->ranks, f->ops, &part, &setup, err))
        return -1;
    take_setup(f, &o, &setup);
    o.collective = ranks_collective(f->ranks, f->ops, &setup, err);
    if (!o.collective || !(f->backend = f->ops->open(f->model, &o, err)))
        return -1;
    engine_ranks_drop(f->model, f->ops);
    f->dispatch = engine_ranks_table(f->ops, f->backend, f->model);
    f->ops->set_dispatch(f->backend, f->dispatch);
    f->limits = (struct wire_limits){.max_tokens = o.max_tokens,
                                     .max_rows = o.max_rows,
                                     .kv_pages = o.kv_pages,
                                     .vocab = f->model->shape.vocab,
                                     .max_context = f->model->shape.max_context,
                                     .slots = dispatch_slots(f->dispatch)};
    f->loader = loader_open(f->ranks, f->ops, f->backend, dispatch_formats(f->dispatch), err);
    return f->loader ? 0 : -1;
}

/* NULL with a message: rank 0 names a kernel that is not here, or not one for this slot. */
static const struct kernel *kernel_for(struct follower *f, const struct slot *slot, int32_t number,
                                       struct err *err)
{
    const struct kernel *k = number ? loader_kernel(f->loader, number) : slot->eager;
    if (k && k->region == slot->region)
        return k;
    err_set(err, "rank 0 puts kernel %d into %s, which is not here", number, slot->name);
    return NULL;
}

/* A kernel of reduce that is no slot's: on trial, or timed. */
static const struct kernel *reduce_kernel(struct follower *f, int32_t number, struct err *err)
{
    const struct slot *slot = dispatch_slot(f->dispatch, REGION_REDUCE, 0, 1, 0);
    if (f->ops->time_reduce && slot)
        return kernel_for(f, slot, number, err);
    err_set(err, "rank 0 tries kernel %d of reduce, which backend %s does not", number,
            f->ops->name);
    return NULL;
}

/* Makes the dispatch table what the step is to run with; nothing else changes it. */
static int follow_table(struct follower *f, const struct wire_table *t, struct err *err)
{
    for (int32_t i = 0; i < t->changes; i++) {
        struct slot *slot = dispatch_slot_at(f->dispatch, t->change[i].slot);
        const struct kernel *k = kernel_for(f, slot, t->change[i].kernel, err);
        if (!k)
            return -1;
        dispatch_publish(f->dispatch, slot, k);
    }
    return 0;
}

/* A step that lost the device by what a kernel did there is told of like a fault. */
static int failed(const struct follower *f, const struct ranks_order *o, int rc,
                  const struct err *err)
{
    if (rc == STEP_LOST && f->report[o - f->order].fault)
        crash_device(&f->inside[o - f->order], err->msg);
    return rc;
}

/* The step under way is over. */
static int follow_land(struct follower *f, struct err *err)
{
    const struct ranks_order *o = f->flying;
    f->flying = NULL;
    if (o && f->ops->step_wait && failed(f, o, f->ops->step_wait(f->backend, &o->step, err), err))
        return -1;
    if (o && o->table.changes)
        ranks_ran_with(f->ranks, &o->table);
    return 0;
}

/* Nobody here wants the step's tokens: where the backend can, it is started, and waited for when
 * the next one is, which rank 0 may send before this one is over. */
static int follow_step(struct follower *f, struct ranks_order *o, struct err *err)
{
    const struct wire_table *t = &o->table;
    struct slot *slot = t->trial ? dispatch_slot_at(f->dispatch, t->trial_slot) : NULL;
    const struct kernel *trial = slot ? kernel_for(f, slot, t->trial, err) : NULL;
    struct step_trial beside = {.run = t->beside_run};
    if ((slot && !trial) || follow_table(f, t, err))
        return -1;
    if (t->beside_run >= 0) {
        if (!(beside.kernel = reduce_kernel(f, t->beside, err)))
            return -1;
        if (beside.kernel->m_max < o->step.m)
            return err_set(err, "rank 0 tries kernel %d of reduce with %d tokens", t->beside,
                           o->step.m);
        o->step.trial = &beside; /* backends that have trials run whole steps */
    }
    const struct overrides one = {1, {{slot, trial}}}, *of = trial ? &one : NULL;
    struct crash_kernels *inside = &f->inside[o - f->order];
    batch_inside(inside, f->dispatch, f->ops, &o->step, of);
    o->step.report = &f->report[o - f->order];
    *o->step.report = (struct step_report){0};
    crash_step(inside);
    int rc = f->ops->step_start ? f->ops->step_start(f->backend, &o->step, of, err)
                                : f->ops->step(f->backend, &o->step, of, err);
    crash_step(NULL);
    o->step.trial = NULL;
    if (failed(f, o, rc, err) < 0 || follow_land(f, err))
        return -1;
    f->flying = o;
    return f->ops->step_start ? 0 : follow_land(f, err);
}

static int follow_timing(struct follower *f, const struct wire_timing *t, struct err *err)
{
    const struct kernel *k = reduce_kernel(f, t->kernel, err);
    int64_t ns;
    return k ? f->ops->time_reduce(f->backend, k, t->m, t->calls, &ns, err) : -1;
}

/* Rank 0 may say so while its next step, which puts another kernel there, is on its way. */
static void follow_unload(struct follower *f, int32_t number)
{
    for (int i = 0; i < dispatch_slots(f->dispatch); i++) {
        struct slot *slot = dispatch_slot_at(f->dispatch, i);
        if (atomic_load(&slot->kernel)->number == number)
            dispatch_publish(f->dispatch, slot, slot->eager);
    }
    loader_unload(f->loader, number);
}

/* Anything but a step. */
static int follow_other(struct follower *f, int what, const struct ranks_order *o, struct err *err)
{
    if (what == ORDER_TIME)
        return follow_timing(f, &o->timing, err);
    if (what == ORDER_LOAD)
        loader_load(f->loader, &o->kernel, o->bytes);
    else
        follow_unload(f, o->number);
    if (f->ops->idle)
        f->ops->idle(f->backend);
    return 0;
}

static int follow_orders(struct follower *f, struct err *err)
{
    int rc, turn = 0;
    while ((rc = ranks_next(f->ranks, &f->limits, &f->order[turn], err)) > ORDER_END) {
        struct ranks_order *o = &f->order[turn];
        if (rc == ORDER_STEP) {
            turn = !turn;
            if (follow_step(f, o, err))
                return -1;
        } else if (follow_land(f, err) || follow_other(f, rc, o, err)) {
            return -1;
        }
    }
    return rc < 0 ? rc : follow_land(f, err);
}

static int follow(struct follower *f, const struct rank_place *place, struct err *err)
{
    struct ranks_options o = engine_ranks_options(f->options, place);
    if (!(f->ranks = ranks_open(&o, err)))
        return -1;
    int rc = -1;
    f->ops = engine_choose_backend(f->options->backend, err);
    f->model =
        f->ops ? engine_ranks_open_part(f->options->model, f->ranks, false, NULL, NULL, err) : NULL;
    if (f->model && follower_backend(f, err) == 0 && ranks_note_crashes(f->ranks, err) == 0 &&
        ranks_begin(f->ranks, err) == 0) {
        crash_thread();
        log_info("engine", "rank %d of %d is ready", place->rank, place->world);
        /* Whoever stops all ranks at once means rank 0's drain first; its end is this one's. */
        signal(SIGTERM, SIG_IGN);
        signal(SIGINT, SIG_IGN);
        if (f->ops->settle)
            f->ops->settle(f->backend);
        rc = follow_orders(f, err);
        crash_thread_end();
    }
    if (rc)
        ranks_give_up(f->ranks, err->msg);
    return rc;
}

int engine_follow(const struct config *c, const struct rank_place *place, struct err *err)
{
    struct engine_options o = {0};
    struct follower f = {.options = &o};
    signal(SIGHUP,
           SIG_IGN); /* rank 0's word to read its keys again, sent to a group of processes */
    engine_take_options(&o, c);
    numa_open(o.numa);
    int rc = follow(&f, place, err);
    loader_close(f.loader);
    if (f.backend)
        f.ops->close(f.backend);
    if (f.dispatch)
        dispatch_close(f.dispatch);
    ranks_close(f.ranks);
    model_close(f.model);
    engine_free_options(&o);
    return rc;
}
