/* SPDX-License-Identifier: Apache-2.0 */
/* swap.c - what fills a slot, and what becomes of what filled it before.
 *
 * A publish is: transition in the store (the new kernel active, the old one retired, one
 * transaction), then one pointer swap. A kernel that leaves a slot stays loaded until the
 * dispatch table says that no step can use it. The one before the active kernel is kept loaded, so
 * an operator's rollback is a pointer swap too.
 *
 * Operators' threads call in here as well (rollback, disable, pin): every change of a slot is made
 * under s->lock, which makes "one writer at a time" of dispatch_publish's "one writer".
 */
#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "config/log.h"
#include "specializer/specializer_private.h"
#include "specializer/store/life_move.h"
#include "specializer/swap.h"
#include "specializer/why.h"

#define GRACE_NS INT64_C(1000000000)

bool is_disabled_locked(struct specializer *s, const char *key, const char *template_id)
{
    for (int i = 0; i < s->locked.disables; i++)
        if (strcmp(s->locked.disabled[i].what, key) == 0 ||
            strcmp(s->locked.disabled[i].what, template_id) == 0)
            return true;
    return false;
}

void count_stage(struct specializer *s, enum stage stage, enum stage_result r)
{
    if (r > STAGE_RUNNING && (int)r < OUTCOMES)
        atomic_fetch_add(&s->counts.stage[stage][r], 1);
}

/* ---- unloading ----------------------------------------------------------------------------- */

static void retire_later_locked(struct specializer *s, struct kernel *k, int64_t epoch)
{
    if (!k)
        return;
    s->locked.retired =
        xrealloc(s->locked.retired, (size_t)(s->locked.retires + 1) * sizeof *s->locked.retired);
    s->locked.retired[s->locked.retires++] = (struct retired){k, epoch, clock_ns()};
}

void retire_poll(struct specializer *s, bool all)
{
    pthread_mutex_lock(&s->lock);
    int kept = 0;
    for (int i = 0; i < s->locked.retires; i++)
        if (all || (clock_ns() - s->locked.retired[i].since_ns > GRACE_NS &&
                    dispatch_passed(s->env.dispatch, s->locked.retired[i].epoch)))
            s->env.ops->unload(s->env.backend, s->locked.retired[i].kernel);
        else
            s->locked.retired[kept++] = s->locked.retired[i];
    s->locked.retires = kept;
    pthread_mutex_unlock(&s->lock);
}

void candidate_drop_locked(struct specializer *s, struct candidate *c)
{
    if (!c)
        return;
    if (c->kernel) {
        /* Not in a slot any more, but a step may be under way with it: any later epoch is safe. An
         * operator who swaps the slot's kernel between the two halves would find it undone. */
        int64_t epoch = dispatch_publish(s->env.dispatch, c->slot, atomic_load(&c->slot->kernel));
        retire_later_locked(s, c->kernel, epoch);
        c->kernel = NULL;
        store_trial(s->store, c->key, false, NULL);
    }
    candidate_free(c);
}

void candidate_drop(struct specializer *s, struct candidate *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&s->lock);
    candidate_drop_locked(s, c);
    pthread_mutex_unlock(&s->lock);
}

void candidate_refuse(struct specializer *s, struct candidate *c, enum stage stage, enum life to)
{
    struct err err;
    if (c->evidence.impossible)
        atomic_fetch_add(&s->counts.impossible, 1);
    count_stage(s, stage, STAGE_REFUSE);
    if (life_move(s->store, c, to, c->reason, NULL, &err) != 0)
        log_warn("specializer", "%s", err.msg);
    pthread_mutex_lock(&s->lock);
    struct slot_search *p = slot_search_find(s, c->slot->name);
    if (p) {
        p->locked.refusals++;
        why_note_locked(p, to, c);
    }
    candidate_drop_locked(s, c);
    pthread_mutex_unlock(&s->lock);
}

/* ---- changing a slot ----------------------------------------------------------------------- */

/* Puts `next` (NULL: eager) into the table; what was active is the caller's to keep or drop. */
static struct candidate *fill_locked(struct specializer *s, struct slot_search *p,
                                     struct candidate *next)
{
    struct candidate *old = p->locked.active;
    /* `old` stays loaded; candidate_drop_locked() takes an epoch of its own. */
    dispatch_publish(s->env.dispatch, p->slot, next ? next->kernel : p->slot->eager);
    p->locked.active = next;
    p->locked.swaps++;
    p->locked.gain_eager = next && next->evidence.speed > 0 ? next->evidence.speed - 1 : 0;
    p->locked.audits = 0;
    p->promise_s = 0;
    p->window = (struct window){0};
    return old;
}

/* The active kernel becomes the previous one; the previous one is dropped. */
static void keep_as_previous_locked(struct specializer *s, struct slot_search *p,
                                    struct candidate *old)
{
    if (!old || old == p->locked.previous)
        return;
    candidate_drop_locked(s, p->locked.previous);
    p->locked.previous = old;
}

int swap_in_locked(struct specializer *s, struct slot_search *p, struct candidate *c,
                   const char *why, const char *who)
{
    struct err err;
    const char *refusal = NULL;
    if (is_disabled_locked(s, c->key, c->template->id))
        refusal = "disabled";
    else if (p->locked.pinned[0] && strcmp(p->locked.pinned, c->key) != 0)
        refusal = "pinned to another kernel";
    /* A restored winner is active in the store already. */
    if (!refusal && c->state != LIFE_ACTIVE &&
        life_move(s->store, c, LIFE_ACTIVE, why, who, &err) != 0) {
        refusal = err.msg;
        log_error("specializer", "%s not published: %s", c->name, err.msg);
    }
    if (!refusal) {
        if (p->locked.previous == c)
            p->locked.previous = NULL;
        struct candidate *old = fill_locked(s, p, c);
        if (old && old->state == LIFE_ACTIVE)
            old->state = LIFE_RETIRED; /* the same transaction retired it in the store */
        keep_as_previous_locked(s, p, old);
        p->locked.pin_missing = false;
        store_trial(s->store, c->key, false, NULL);
        store_share(s->store, s->keys.env, p->slot->name, p->locked.share, p->locked.gain_eager,
                    NULL);
        log_info("specializer", "%s: %s%s%s", p->slot->name, c->name, why && *why ? ": " : "",
                 why ? why : "");
    }
    return refusal ? -1 : 0;
}

int swap_in(struct specializer *s, struct slot_search *p, struct candidate *c, const char *why,
            const char *who)
{
    pthread_mutex_lock(&s->lock);
    int r = swap_in_locked(s, p, c, why, who);
    pthread_mutex_unlock(&s->lock);
    return r;
}

/* What was slow, or broke, may have met a bad moment, and is looked at once more. What live steps
 * found wrong has passed every check and would pass them again: those cannot see what is wrong with
 * it, so it does not serve a second time. */
static void refuse_for_good(struct specializer *s, struct candidate *c, enum rollback kind)
{
    struct err err;
    const char *why = kind == ROLLBACK_AUDIT ? "found wrong while it served"
                      : c->rollbacks >= 2    ? "rolled back twice"
                                             : NULL;
    if (why && life_move(s->store, c, LIFE_REFUSED, why, NULL, &err) != 0)
        log_error("specializer", "%s", err.msg);
}

void swap_out_locked(struct specializer *s, struct slot_search *p, enum life to, enum rollback kind,
                     const char *why, const char *who)
{
    struct err err;
    struct candidate *old = p->locked.active ? fill_locked(s, p, NULL) : NULL;
    if (old) {
        if (kind != ROLLBACK_DRIFT)
            dispatch_distrust(s->env.dispatch);
        p->locked.stale = true; /* the search of the slot begins anew */
        if (kind == ROLLBACK_AUDIT)
            candidate_found_wrong(old, "%s", why);
        else
            candidate_withdrawn(old, "%s", why);
        if (life_move(s->store, old, to, why, who, &err) != 0)
            log_error("specializer", "%s", err.msg);
        if (to == LIFE_ROLLED_BACK)
            refuse_for_good(s, old, kind);
        atomic_fetch_add(&s->counts.rolled_back[kind], 1);
        log_warn("specializer", "%s: %s %s%s: %s; eager serves", p->slot->name, old->name,
                 life_name(to), old->state == LIFE_REFUSED ? " and refused" : "", why);
        why_note_locked(p, to, old);
        candidate_drop_locked(s, old);
    }
}

int swap_back_locked(struct specializer *s, struct slot_search *p, const char *who)
{
    struct candidate *previous = p->locked.previous;
    int r = p->locked.active || previous ? 0 : -1;
    if (p->locked.active) {
        p->locked.previous = NULL; /* swap_in_locked() puts it into the slot, or it is kept below */
        swap_out_locked(s, p, LIFE_ROLLED_BACK, ROLLBACK_OPERATOR, "an operator rolled it back",
                        who);
    }
    if (previous && swap_in_locked(s, p, previous, "an operator rolled back to it", who) != 0)
        p->locked.previous = previous;
    return r;
}

void swap_eager_locked(struct specializer *s, struct slot_search *p, const char *why,
                       const char *who)
{
    struct err err;
    struct candidate *old = p->locked.active ? fill_locked(s, p, NULL) : NULL;
    if (old) {
        if (life_move(s->store, old, LIFE_RETIRED, why, who, &err) != 0)
            log_error("specializer", "%s", err.msg);
        keep_as_previous_locked(s, p, old);
    }
}
