/* SPDX-License-Identifier: Apache-2.0 */
/* lead.c - an engine reduced to what ranks need of it: no thread, no scheduler, no requests.
 *
 * Steps are sent when they are started, so where the backend takes two at a time all ranks have the
 * next one while this one runs. That needs tokens that are known beforehand, which a bench's are.
 *
 * The others have one table, a bench has several: setting one copies its kernels into the table
 * that the steps are sent with.
 */
#include "engine/lead.h"

#include <stdlib.h>

#include "engine/engine_private.h"

struct lead {
    struct engine engine;
    struct backend_ops ops;
    int under_way;
};
static struct lead *the_lead;

/* ---- the backend's functions ----------------------------------------------------------------- */

static int lead_step(struct backend *b, const struct step *s, const struct overrides *o,
                     struct err *err)
{
    (void)b;
    return engine_ranks_step(&the_lead->engine, s, o, err);
}

static int lead_start(struct backend *b, const struct step *s, const struct overrides *o,
                      struct err *err)
{
    struct lead *l = the_lead;
    if (engine_ranks_send(&l->engine, s, o, err))
        return STEP_LOST;
    int rc = l->engine.one_ops->step_start(b, s, o, err);
    l->under_way += rc >= 0;
    return rc;
}

static int lead_wait(struct backend *b, const struct step *s, struct err *err)
{
    struct lead *l = the_lead;
    int rc = l->engine.one_ops->step_wait(b, s, err);
    if (--l->under_way == 0)
        ranks_step_ran(l->engine.ranks);
    return rc;
}

static void lead_set_dispatch(struct backend *b, struct dispatch *d)
{
    struct dispatch *own = the_lead->engine.dispatch;
    (void)b;
    for (int i = 0; i < dispatch_slots(own); i++) {
        struct slot *to = dispatch_slot_at(own, i);
        const struct kernel *k = atomic_load(&dispatch_slot_at(d, i)->kernel);
        if (atomic_load(&to->kernel) != k)
            dispatch_publish(own, to, k);
    }
}

/* ---- up and down ----------------------------------------------------------------------------- */

struct lead *lead_open(const struct config *c, const struct rank_place *place, struct err *err)
{
    struct lead *l = xcalloc(1, sizeof *l);
    struct engine *e = &l->engine;
    pthread_mutex_init(&e->lock, NULL);
    pthread_mutex_init(&e->state_lock, NULL);
    pthread_cond_init(&e->wake, NULL);
    engine_take_options(&e->options, c);
    e->ops = engine_choose_backend(e->options.backend, err);
    if (e->ops && engine_ranks_open(e, place, err) == 0) {
        the_lead = l;
        return l;
    }
    lead_close(l);
    return NULL;
}

const struct backend_ops *lead_ops(struct lead *l)
{
    return l->engine.own_ops.name ? &l->ops : l->engine.ops;
}

struct model *lead_model(struct lead *l, struct err *err)
{
    return l->engine.model = engine_ranks_model(&l->engine, NULL, err);
}

int lead_agree(struct lead *l, struct backend_options *o, struct err *err)
{
    struct engine *e = &l->engine;
    engine_ranks_ops(e, o);
    l->ops = e->own_ops;
    l->ops.step = lead_step;
    if (e->one_ops->step_start) {
        l->ops.step_start = lead_start;
        l->ops.step_wait = lead_wait;
    }
    l->ops.set_dispatch = lead_set_dispatch;
    return engine_ranks_agree(e, o, err);
}

int lead_begin(struct lead *l, struct backend *b, struct err *err)
{
    struct engine *e = &l->engine;
    e->backend = b;
    engine_ranks_drop(e->model, e->one_ops);
    e->dispatch = engine_ranks_table(e->one_ops, b, e->model);
    e->one_ops->set_dispatch(b, e->dispatch);
    return ranks_begin(e->ranks, err);
}

struct dispatch *lead_table(const struct lead *l)
{
    return engine_ranks_table(l->engine.one_ops, l->engine.backend, l->engine.model);
}

void lead_close(struct lead *l)
{
    if (!l)
        return;
    struct engine *e = &l->engine;
    ranks_close(e->ranks);
    free(e->changes);
    if (e->dispatch)
        dispatch_close(e->dispatch);
    engine_free_options(&e->options);
    pthread_cond_destroy(&e->wake);
    pthread_mutex_destroy(&e->state_lock);
    pthread_mutex_destroy(&e->lock);
    the_lead = NULL;
    free(l);
}
