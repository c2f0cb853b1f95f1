/* SPDX-License-Identifier: Apache-2.0 */
/* promotion.c - the best of a batch through live steps: shadow, canary, published.
 *
 * A promoted candidate may have to wait for traffic; it then keeps its slot out of the search while
 * others go on. What live steps cannot decide is tried again a few times, and then set aside.
 */
#include "config/clock.h"
#include "config/log.h"
#include "specializer/retrial.h"
#include "specializer/specializer_private.h"
#include "specializer/store/life_move.h"
#include "specializer/swap.h"
#include "specializer/watch.h"
#include "specializer/why.h"

/* How long a candidate rests that live steps could not decide, and how often they may try it. */
#define RETRY_AFTER_S 20.0
enum { RETRIES_MOST = 3 };

static int64_t after(double seconds)
{
    return clock_ns() + (int64_t)(seconds * 1e9);
}

/* Takes the promoted candidate out of the slot's search; the caller owns it. */
static struct candidate *take(struct slot_search *p)
{
    struct candidate *c = p->promoted.c;
    p->promoted.c = NULL;
    return c;
}

void promotion_forget(struct specializer *s, struct slot_search *p)
{
    struct candidate *c = take(p);
    p->promoted.from.by->forget(s, p, p->promoted.from.id);
    candidate_drop(s, c);
}

static void learn(struct specializer *s, struct slot_search *p, double speed)
{
    const struct trial *t = &p->promoted;
    t->from.by->learn(s, p, t->from.id, t->c, speed);
}

/* ---- the rules of a promotion -----------------------------------------------------------------
 */

/* Hash of the kernels of the other slots when the canary began. */
struct promotion {
    struct specializer *s;
    uint64_t coresident;
};

static enum stage_result enter(struct pipeline *pipeline, struct trial *t)
{
    struct promotion *o = pipeline->ctx;
    if (t->at == STAGE_CANARY)
        o->coresident = retrial_coresident(o->s, t->slot_search);
    return STAGE_RUNNING;
}

/* A verdict on time is valid beside the kernels that served during the canary. If an operator
 * changed one of them meanwhile, the canary has reached no verdict. */
static enum stage_result beside(const struct promotion *o, struct trial *t, enum stage_result r)
{
    struct candidate *c = t->c;
    if (c->steps == STEPS_UNSEEN || retrial_coresident(o->s, t->slot_search) == o->coresident)
        return r;
    c->steps = STEPS_UNSEEN;
    candidate_explain(c, STAGE_CANARY, CAUSE_OTHER, 0, "other kernels of the step were exchanged");
    return STAGE_RETRY;
}

/* Gives the candidate up for now: live steps had RETRIES_MOST tries and decided nothing. */
static void set_aside(struct specializer *s, struct slot_search *p)
{
    struct err err;
    store_trace(s->store, p->slot->name, p->promoted.c->key, "set_aside", NULL,
                "live steps could not decide it");
    learn(s, p, p->promoted.c->evidence.speed);
    struct candidate *c = take(p);
    if (retrial_defer(s, p, c) && life_move(s->store, c, LIFE_DEFERRED, c->reason, NULL, &err) != 0)
        log_error("specializer", "%s", err.msg);
    pthread_mutex_lock(&s->lock);
    why_note_locked(p, c->state, c);
    pthread_mutex_unlock(&s->lock);
    candidate_drop(s, c);
}

static void refuse(struct specializer *s, struct slot_search *p)
{
    enum stage stage = p->promoted.at;
    learn(s, p, 0);
    struct candidate *c = take(p);
    bool again = stage == STAGE_CANARY && retrial_defer(s, p, c);
    candidate_refuse(s, c, stage, again ? LIFE_DEFERRED : LIFE_REFUSED);
}

/* Leaves the candidate promoted, for another try after a while. */
static void undecided(struct specializer *s, struct slot_search *p, enum stage_result r)
{
    pthread_mutex_lock(&s->lock);
    why_undecided_locked(p, p->promoted.c);
    pthread_mutex_unlock(&s->lock);
    p->not_before_ns = after(r == STAGE_RETRY ? RETRY_AFTER_S : 1);
}

static bool came(struct pipeline *pipeline, struct trial *t, enum stage_result r)
{
    struct promotion *o = pipeline->ctx;
    struct specializer *s = o->s;
    struct slot_search *p = t->slot_search;
    struct candidate *c = t->c;
    struct err err;
    if (t->at == STAGE_CANARY)
        r = beside(o, t, r);
    if (r == STAGE_RETRY && t->at == STAGE_CANARY)
        store_trace(s->store, p->slot->name, c->key, "unresolved", NULL, "%s", c->reason);
    if (r == STAGE_RETRY && ++c->retries >= RETRIES_MOST) {
        set_aside(s, p);
        return false;
    }
    if (r == STAGE_REFUSE) {
        refuse(s, p);
        return false;
    }
    count_stage(s, t->at, r);
    if (r != STAGE_PASS) {
        undecided(s, p, r);
        return false;
    }
    if (life_move(s->store, c, pipeline_reached(t->at), NULL, NULL, &err) == 0)
        return true;
    log_error("specializer", "%s", err.msg);
    p->not_before_ns = after(RETRY_AFTER_S);
    return false;
}

static const struct pipeline_rules rules = {.enter = enter, .came = came};

/* ---- a try ------------------------------------------------------------------------------------
 */

/* Puts the candidate into service: it has passed every stage. */
static void publish(struct specializer *s, struct slot_search *p)
{
    struct candidate *c = take(p);
    char why[140];
    const bool known = c->known != NULL;
    snprintf(why, sizeof why, "%sbench %+.1f %% [%+.1f, %+.1f], step %+.1f %% [%+.1f, %+.1f]",
             known ? "known, " : "", c->evidence.bench.mean * 100, c->evidence.bench.low * 100,
             c->evidence.bench.high * 100, c->evidence.canary.mean * 100,
             c->evidence.canary.low * 100, c->evidence.canary.high * 100);
    if (swap_in(s, p, c, why, NULL) != 0) {
        candidate_drop(s, c);
        return;
    }
    atomic_fetch_add(&s->counts.published, 1);
    if (known)
        atomic_fetch_add(&s->counts.known[KNOWN_PUBLISHED], 1);
    p->dry = 0;
    pthread_mutex_lock(&s->lock);
    p->locked.wins++;
    pthread_mutex_unlock(&s->lock);
}

void promotion_try(struct specializer *s, struct slot_search *p)
{
    struct promotion o = {.s = s};
    struct pipeline pipeline = {.rules = &rules, .ctx = &o, .env = &s->env, .last = STAGE_CANARY};
    const struct candidate *c = p->promoted.c;
    pthread_mutex_lock(&s->lock);
    bool unwanted = is_disabled_locked(s, c->key, c->template->id) || p->locked.pinned[0];
    pthread_mutex_unlock(&s->lock);
    if (unwanted) {
        promotion_forget(s, p);
        return;
    }
    watch_stop(s);
    pipeline_block(&pipeline, &p->promoted);
    if (p->promoted.c && pipeline_over(&pipeline, &p->promoted))
        publish(s, p);
}
