/* SPDX-License-Identifier: Apache-2.0 */
/* promotion.c - the best of a batch through live steps: shadow, canary, published.
 *
 * A promoted candidate may have to wait for traffic; it then keeps its slot out of the search while
 * others go on. What live steps cannot decide is tried again a few times, and then set aside.
 *
 * Those of several slots that wait at the same time share a canary: a shadow each, because outputs
 * are compared slot by slot, then whole steps with all of them or with none. What passes together
 * is published together, each in its own slot, from which it can be rolled back alone. A set that
 * does not pass is halved until it passes or is one candidate, whose verdict is its own: one bad
 * kernel in a set of n costs about log2(n) canaries more and takes no other with it.
 */
#include <math.h>

#include "config/clock.h"
#include "config/log.h"
#include "specializer/fleet_set.h"
#include "specializer/pipeline/canary.h"
#include "specializer/pipeline/stages.h"
#include "specializer/retrial.h"
#include "specializer/specializer_private.h"
#include "specializer/store/life_move.h"
#include "specializer/swap.h"
#include "specializer/watch.h"
#include "specializer/why.h"

/* How long a candidate rests that live steps could not decide, and how often they may try it. */
#define RETRY_AFTER_S 20.0
enum { RETRIES_MOST = 3 };
/* A gain of whole steps that some thirty steps show. */
#define CLEAR_STEP_GAIN 0.04
/* One that hundreds show, if any. */
#define FAINT_STEP_GAIN 0.01

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

/* It is disabled, maybe while live steps ran it. */
static bool is_disabled(struct specializer *s, const struct candidate *c)
{
    pthread_mutex_lock(&s->lock);
    bool so = is_disabled_locked(s, c->key, c->template->id);
    pthread_mutex_unlock(&s->lock);
    return so;
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

/* ---- the rules of a promotion --------------------------------------------------------------- */

/* Hash of the kernels of the other slots when the canary began. */
struct promotion {
    struct specializer *s;
    uint64_t coresident;
};

static enum stage_result enter(struct pipeline *pipeline, struct trial *t)
{
    struct promotion *o = pipeline->ctx;
    struct slot_search *p = t->slot_search;
    if (t->at == STAGE_CANARY)
        o->coresident = retrial_coresident(o->s, p);
    pthread_mutex_lock(&o->s->lock);
    p->judged_at = p->locked.swaps;
    pthread_mutex_unlock(&o->s->lock);
    return STAGE_RUNNING;
}

/* Whether the slot has had another kernel since live steps began to judge the candidate. */
static bool exchanged(struct specializer *s, const struct slot_search *p)
{
    pthread_mutex_lock(&s->lock);
    bool so = p->locked.swaps != p->judged_at;
    pthread_mutex_unlock(&s->lock);
    return so;
}

/* A verdict is valid against the kernel that the slot had, and one on time beside the kernels that
 * served during the canary. If an operator changed one of them meanwhile, live steps have reached
 * no verdict. An audit compares with eager, so a candidate that it found wrong stays refused. */
static enum stage_result beside(const struct promotion *o, struct trial *t, enum stage_result r)
{
    struct candidate *c = t->c;
    const bool timed = t->at == STAGE_CANARY && c->steps != STEPS_UNSEEN;
    const bool against = t->at == STAGE_SHADOW || timed || r == STAGE_PASS;
    const char *what = NULL;
    if ((r == STAGE_PASS || r == STAGE_REFUSE) && against && exchanged(o->s, t->slot_search))
        what = "the slot's kernel was exchanged";
    else if (timed && retrial_coresident(o->s, t->slot_search) != o->coresident)
        what = "other kernels of the step were exchanged";
    if (!what)
        return r;
    c->steps = STEPS_UNSEEN;
    candidate_explain(c, t->at, CAUSE_OTHER, 0, "%s", what);
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
    opening_measured(&s->batch.expects, p->index, 1);
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
    if (t->at == STAGE_CANARY && is_disabled(s, c))
        dispatch_distrust(s->env.dispatch);
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

/* ---- a try ---------------------------------------------------------------------------------- */

/* Whether another server found the candidate wrong after it was begun here. What was proved of it
 * before is in doubt, and nothing more: it may be proposed again and pass every check anew. */
static bool in_doubt(struct specializer *s, const struct slot_search *p)
{
    const struct trial *t = &p->promoted;
    if (!fleet_retracted(s->fleet, t->c->key, t->since_ns))
        return false;
    store_trace(s->store, p->slot->name, t->c->key, "doubted", NULL,
                "another server found it wrong meanwhile: it is to begin again");
    if (t->at >= STAGE_CANARY) /* live steps may have run it */
        dispatch_distrust(s->env.dispatch);
    return true;
}

/* Swaps the candidate in, unless the slot's kernel was exchanged since its canary began; pins and
 * disables are seen to by swap_in_locked(). One lock over both: an operator's word comes before the
 * swap or takes its kernel out again. */
static int put_into_service(struct specializer *s, struct slot_search *p, const char *why)
{
    pthread_mutex_lock(&s->lock);
    int r = p->locked.swaps == p->judged_at ? swap_in_locked(s, p, p->promoted.c, why, NULL) : -1;
    pthread_mutex_unlock(&s->lock);
    return r;
}

/* The candidate has passed every stage. If an operator wants another kernel in the slot since, it
 * may be proposed again. */
static void publish(struct specializer *s, struct slot_search *p)
{
    const struct candidate *c = p->promoted.c;
    char why[180], together[32] = "";
    const bool known = c->known != NULL;
    if (c->evidence.together)
        snprintf(together, sizeof together, " of %d together", c->evidence.together);
    snprintf(why, sizeof why, "%sbench %+.1f %% [%+.1f, %+.1f], step %+.1f %% [%+.1f, %+.1f]%s",
             known ? "known, " : "", c->evidence.bench.mean * 100, c->evidence.bench.low * 100,
             c->evidence.bench.high * 100, c->evidence.canary.mean * 100,
             c->evidence.canary.low * 100, c->evidence.canary.high * 100, together);
    if (in_doubt(s, p) || put_into_service(s, p, why) != 0) {
        promotion_forget(s, p);
        return;
    }
    take(p);
    atomic_fetch_add(&s->counts.published, 1);
    if (known)
        atomic_fetch_add(&s->counts.known[KNOWN_PUBLISHED], 1);
    p->dry = 0;
    pthread_mutex_lock(&s->lock);
    p->locked.wins++;
    pthread_mutex_unlock(&s->lock);
}

/* False: an operator wants none of it, or another server found it wrong, and it is forgotten. */
static bool wanted(struct specializer *s, struct slot_search *p)
{
    const struct candidate *c = p->promoted.c;
    pthread_mutex_lock(&s->lock);
    bool unwanted = is_disabled_locked(s, c->key, c->template->id) || p->locked.pinned[0];
    pthread_mutex_unlock(&s->lock);
    unwanted = unwanted || in_doubt(s, p);
    if (unwanted)
        promotion_forget(s, p);
    return !unwanted;
}

/* Through the stages up to `last`, if it is wanted. */
static void run(struct specializer *s, struct slot_search *p, enum stage last)
{
    struct promotion o = {.s = s};
    struct pipeline pipeline = {.rules = &rules, .ctx = &o, .env = &s->env, .last = last};
    if (!wanted(s, p))
        return;
    watch_stop(s);
    pipeline_block(&pipeline, &p->promoted);
}

void promotion_try(struct specializer *s, struct slot_search *p)
{
    run(s, p, STAGE_CANARY);
    if (p->promoted.c && p->promoted.at > STAGE_CANARY)
        publish(s, p);
}

/* ---- a set ---------------------------------------------------------------------------------- */

static void judge(struct specializer *s, struct slot_search *const *p, int n);

/* Whole steps with all of them, or with none: r[n] as canary_run_set() has it. */
static void judge_steps(struct specializer *s, struct slot_search *const *p, int n,
                        struct promotion *o, enum stage_result *r)
{
    struct pipeline pipeline = {.rules = &rules, .env = &s->env, .last = STAGE_CANARY};
    struct candidate *c[OVERRIDES_MOST];
    for (int i = 0; i < n; i++) {
        o[i] = (struct promotion){.s = s};
        c[i] = p[i]->promoted.c;
        pipeline.ctx = &o[i];
        enter(&pipeline, &p[i]->promoted);
    }
    watch_stop(s);
    canary_run_set(&s->env, c, n, CANARY_TIMEOUT_S, r);
}

/* Those of one group that did not pass, in halves. Who is left alone has a canary of its own. */
static void judge_halves(struct specializer *s, struct slot_search *const *p, int n)
{
    if (n > 1)
        store_trace(s->store, NULL, NULL, "halved", NULL,
                    "%d kernels did not pass together: whole steps %+.1f %% [%+.1f, %+.1f]", n,
                    p[0]->promoted.c->evidence.canary.mean * 100,
                    p[0]->promoted.c->evidence.canary.low * 100,
                    p[0]->promoted.c->evidence.canary.high * 100);
    judge(s, p, n / 2);
    judge(s, p + n / 2, n - n / 2);
}

/* Takes the first of p[n] and all of its M bucket to the front; returns how many they are. */
static int group_first(struct slot_search **p, int n)
{
    int k = 1;
    for (int i = 1; i < n; i++)
        if (p[i]->slot->m_index == p[0]->slot->m_index) {
            struct slot_search *other = p[k];
            p[k++] = p[i];
            p[i] = other;
        }
    return k;
}

static int group_size(struct slot_search *const *p, int n, const struct slot_search *of)
{
    int k = 0;
    for (int i = 0; i < n; i++)
        k += p[i]->slot->m_index == of->slot->m_index;
    return k;
}

static void judge_set(struct specializer *s, struct slot_search *const *p, int n)
{
    struct slot_search *left[OVERRIDES_MOST], *passed[OVERRIDES_MOST];
    struct promotion o[OVERRIDES_MOST];
    enum stage_result r[OVERRIDES_MOST];
    int lefts = 0, passes = 0;
    judge_steps(s, p, n, o, r);
    for (int i = 0; i < n; i++) {
        struct pipeline pipeline = {.rules = &rules, .ctx = &o[i], .env = &s->env};
        if (r[i] == STAGE_RUNNING)
            left[lefts++] = p[i];
        else if (came(&pipeline, &p[i]->promoted, r[i]))
            passed[passes++] = p[i];
    }
    for (int i = 0; i < passes; i++) /* when all are judged: a swap changes what they ran beside */
        publish(s, passed[i]);
    for (int i = 0, k; i < lefts; i += k) {
        k = group_first(left + i, lefts - i);
        if (k < group_size(p, n, left[i])) /* who was at fault is out of it */
            judge(s, left + i, k);
        else
            judge_halves(s, left + i, k);
    }
}

static void judge(struct specializer *s, struct slot_search *const *p, int n)
{
    struct slot_search *still[OVERRIDES_MOST];
    int k = 0;
    for (int i = 0; i < n; i++)
        if (p[i]->promoted.c && wanted(s, p[i]))
            still[k++] = p[i];
    if (k == 1)
        promotion_try(s, still[0]);
    else if (k > 1)
        judge_set(s, still, k);
}

/* ---- who waits ------------------------------------------------------------------------------ */

/* Live steps are waited for while nothing else is benched, so for slots that have some. */
static bool waits(const struct slot_search *p)
{
    return p->promoted.c && clock_ns() >= p->not_before_ns && slot_search_runs(p);
}

/* What the benches of those p[n] promise for a whole step. */
static double promised(struct specializer *s, struct slot_search *const *p, int n)
{
    double sum = 0;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n; i++) {
        double gain = p[i]->promoted.c->evidence.bench.mean;
        sum += p[i]->locked.share * gain / (1 + fmax(gain, 0));
    }
    pthread_mutex_unlock(&s->lock);
    return sum;
}

/* Those that may be tried now, and together; how many. */
static int waiting_together(struct specializer *s, struct slot_search *p[OVERRIDES_MOST])
{
    struct candidate *c[OVERRIDES_MOST];
    int n = 0;
    for (int i = 0; i < s->slot_searches; i++) {
        struct slot_search *q = &s->slot_search[i];
        if (n == OVERRIDES_MOST || !waits(q) || (n > 0 && !canary_may_join(c, n, q->promoted.c)))
            continue;
        c[n] = q->promoted.c;
        p[n++] = q;
    }
    return n;
}

/* The one that promises most of those that may be tried now: 1, or 0 if there is none. */
static int waiting_alone(struct specializer *s, struct slot_search **best)
{
    double most = -INFINITY;
    *best = NULL;
    for (int i = 0; i < s->slot_searches; i++) {
        struct slot_search *q = &s->slot_search[i];
        double gain = waits(q) ? promised(s, &q, 1) : -INFINITY;
        if (gain > most) {
            *best = q;
            most = gain;
        }
    }
    return *best != NULL;
}

static int waiting(struct specializer *s, struct slot_search *p[OVERRIDES_MOST])
{
    bool several = target_of(s->env.machine->kind)->opens_together && engine_ranks(s->engine) == 1;
    return several ? waiting_together(s, p) : waiting_alone(s, p);
}

/* A small gain takes hundreds of steps to show, in which the next candidates of an opening would
 * stand still as soon as they are built and probed. Together with theirs it shows at once. So it
 * waits for one that is ready for its bench, and a faint one, which would take the whole of the
 * canary's time, for those that are still being built or probed, too. Where slots take turns it
 * lets those pass that still have theirs. */
static bool waits_for_company(struct specializer *s, struct slot_search *const *p, int n)
{
    if (n == 0 || n == OVERRIDES_MOST)
        return false;
    double gain = promised(s, p, n);
    if (!s->batch.opening || search_batch_over(s))
        return gain < FAINT_STEP_GAIN && turns_left(s);
    return gain < FAINT_STEP_GAIN || (gain < CLEAR_STEP_GAIN && search_batch_has_ready(s));
}

bool promotions_try(struct specializer *s)
{
    struct slot_search *p[OVERRIDES_MOST] = {NULL};
    if (fleet_set_gathers(s))
        return false;
    int n = waiting(s, p);
    if (waits_for_company(s, p, n))
        return false;
    if (n == 1)
        promotion_try(s, p[0]);
    for (int i = 0; n > 1 && i < n; i++)
        run(s, p[i], STAGE_SHADOW);
    int k = 0;
    for (int i = 0; n > 1 && i < n; i++)
        if (p[i]->promoted.c && p[i]->promoted.at == STAGE_CANARY && waits(p[i]))
            p[k++] = p[i];
    judge(s, p, k);
    return n > 0;
}
