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
#include "specializer/stages.h"
#include "specializer/store/life_move.h"
#include "specializer/swap.h"
#include "specializer/why.h"

/* How long a stage waits at least for live steps before it leaves the promoted candidate for later,
 * and for how long. */
#define SHADOW_TIMEOUT_S 30.0
#define CANARY_TIMEOUT_S 60.0
#define RETRY_AFTER_S 20.0
enum { RETRIES_MOST = 3 };

static int64_t after(double seconds)
{
    return clock_ns() + (int64_t)(seconds * 1e9);
}

void promotion_forget(struct specializer *s, struct place *p)
{
    struct candidate *c = p->promoted;
    p->promoted = NULL;
    if (p->promoted_id >= 0) /* a text's speed is known already */
        search_forget(&p->search, p->promoted_id);
    candidate_drop(s, c);
}

/* Shadow or canary came to a result; true: go on. */
static bool promotion_passed(struct specializer *s, struct place *p, enum stage stage,
                             enum stage_result r)
{
    static const enum life reached[STAGES] = {
        [STAGE_SHADOW] = LIFE_SHADOWED, [STAGE_CANARY] = LIFE_CANARY};
    struct candidate *c = p->promoted;
    struct err err;
    if (r == STAGE_RETRY && stage == STAGE_CANARY)
        store_trace(s->store, p->slot->name, c->key, "unresolved", NULL, "%s", c->reason);
    if (r == STAGE_RETRY && ++c->retries >= RETRIES_MOST) {
        store_trace(s->store, p->slot->name, c->key, "set_aside", NULL,
                    "live steps could not decide it");
        round_learn(s, p, p->promoted_id, c, c->evidence.speed);
        p->promoted = NULL;
        if (retrial_defer(s, p, c) &&
            life_move(s->store, c, LIFE_DEFERRED, c->reason, NULL, &err) != 0)
            log_error("specializer", "%s", err.msg);
        pthread_mutex_lock(&s->lock);
        why_note(p, c->state, c);
        pthread_mutex_unlock(&s->lock);
        candidate_drop(s, c);
        return false;
    }
    if (r == STAGE_REFUSE) {
        /* A text that is right but no gain in whole steps has nothing to repair. */
        bool right = p->promoted_id < 0 && stage == STAGE_CANARY;
        round_learn(s, p, p->promoted_id, c, right ? c->evidence.speed : 0);
        p->promoted = NULL;
        bool again = stage == STAGE_CANARY && retrial_defer(s, p, c);
        candidate_refuse(s, c, stage, again ? LIFE_DEFERRED : LIFE_REFUSED);
        return false;
    }
    count_stage(s, stage, r);
    if (r != STAGE_PASS) {
        pthread_mutex_lock(&s->lock);
        why_undecided(p, c);
        pthread_mutex_unlock(&s->lock);
        p->not_before_ns = after(r == STAGE_RETRY ? RETRY_AFTER_S : 1);
        return false;
    }
    if (life_move(s->store, c, reached[stage], NULL, NULL, &err) == 0)
        return true;
    log_error("specializer", "%s", err.msg);
    p->not_before_ns = after(RETRY_AFTER_S);
    return false;
}

/* A verdict on time is one about the kernels beside it: where an operator changed these meanwhile,
 * none was reached. */
static enum stage_result canary_beside(struct specializer *s, struct place *p)
{
    struct candidate *c = p->promoted;
    uint64_t set = retrial_coresident(s, p);
    enum stage_result r = canary_run(&s->env, c, CANARY_TIMEOUT_S);
    if (c->steps == STEPS_UNSEEN || retrial_coresident(s, p) == set)
        return r;
    c->steps = STEPS_UNSEEN;
    snprintf(c->reason, sizeof c->reason, "canary: other kernels of the step were exchanged");
    return STAGE_RETRY;
}

void promotion_try(struct specializer *s, struct place *p)
{
    struct candidate *c = p->promoted;
    pthread_mutex_lock(&s->lock);
    bool unwanted = is_disabled(s, c->key, c->template->id) || p->pinned[0];
    pthread_mutex_unlock(&s->lock);
    if (unwanted) {
        promotion_forget(s, p);
        return;
    }
    watch_stop(s);
    if (c->state == LIFE_BENCHED &&
        !promotion_passed(s, p, STAGE_SHADOW, shadow_run(&s->env, c, SHADOW_TIMEOUT_S)))
        return;
    if (c->state == LIFE_SHADOWED && !promotion_passed(s, p, STAGE_CANARY, canary_beside(s, p)))
        return;
    char why[120];
    snprintf(why, sizeof why, "bench %+.1f %% [%+.1f, %+.1f], step %+.1f %% [%+.1f, %+.1f]",
             c->evidence.bench.mean * 100, c->evidence.bench.low * 100,
             c->evidence.bench.high * 100, c->evidence.canary.mean * 100,
             c->evidence.canary.low * 100, c->evidence.canary.high * 100);
    p->promoted = NULL;
    if (swap_in(s, p, c, why, NULL) != 0) {
        candidate_drop(s, c);
        return;
    }
    atomic_fetch_add(&s->counts.published, 1);
    p->dry = 0;
    pthread_mutex_lock(&s->lock);
    p->wins++;
    pthread_mutex_unlock(&s->lock);
}
