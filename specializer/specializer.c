/* SPDX-License-Identifier: Apache-2.0 */
/* specializer.c - the loop: watch, propose, build, prove, measure, swap, roll back.
 *
 * One thread. Read specializer_thread() and take_turn() first; every line is a page of the story:
 *
 *   begin    the store's winners are validated again and published (beginning.c)
 *   upkeep   counters are read, what nobody runs any more is unloaded, pins are followed (upkeep.c)
 *   watch    active kernels are audited against eager and held to their promise
 *   promote  the best of a batch goes through shadow and canary, and is published
 *   batch    a batch is built, probed and benched, children working while we measure
 *   agent    a text that a language model wrote makes a batch of its own, if that is allowed
 *   choose   the slot where most time can still be saved: new candidates, or a retrial of one that
 *            lost whole steps among other kernels (retrial.c); none: sleep
 *
 * Safety does not depend on this thread being alive: a slot always holds a kernel that was proven,
 * and the engine never waits for it.
 */
#include "specializer/specializer.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "config/clock.h"
#include "engine/crash.h"
#include "specializer/agent_loop.h"
#include "specializer/consult.h"
#include "specializer/fleet_set.h"
#include "specializer/opening.h"
#include "specializer/retrial.h"
#include "specializer/setup.h"
#include "specializer/specializer_private.h"
#include "specializer/swap.h"
#include "specializer/watch.h"

enum { INPUTLESS_MOST = 5 };

/* On a busy machine compilers and probes, which run at idle priority, would never get a turn. */
static bool children_starve(const struct specializer *s)
{
    if (!s->env.machine || !target_of(s->env.machine->kind)->shares_cores)
        return false; /* not set up; or the engine leaves the cores to them */
    if (atomic_load(&s->mode) != SPECIALIZER_RUN)
        return false;
    for (int i = 0; i < s->batch.n; i++)
        if (s->batch.trial[i].child)
            return true;
    return s->header != NULL;
}

/* The share of time that they get on cores which steps want. */
static double windows_for(const struct specializer *s)
{
    const struct config *c = s->env.config;
    if (!children_starve(s) || c->specializer_idle_only || c->specializer_share <= 0)
        return 0;
    double least = c->specializer_share / 2, most = c->specializer_opening_share;
    return s->batch.opening ? opening_share(&s->batch.expects, least, most) : least;
}

static void look_after_children(struct specializer *s)
{
    specializer_observe(s);
    search_batch_children(s);
    engine_yield_windows(s->engine, windows_for(s));
    engine_opening(s->engine, s->batch.opening || s->batch.first);
}

void specializer_wait(struct specializer *s, double seconds)
{
    look_after_children(s);
    if (s->batch.slot_search && seconds > 0.02)
        seconds = 0.02;
    if (s->env.prober && seconds > 0.003) /* it waits for turns */
        for (int i = 0; i < s->batch.n && s->batch.slot_search; i++)
            if (s->batch.trial[i].child && s->batch.trial[i].at == STAGE_PROBE)
                seconds = 0.003;
    struct timespec until = clock_in(seconds);
    pthread_mutex_lock(&s->lock);
    if (!atomic_load(&s->stop))
        pthread_cond_timedwait(&s->wake, &s->lock, &until);
    pthread_mutex_unlock(&s->lock);
}

/* Waits a moment for child processes. */
static void wait_for_children(struct specializer *s)
{
    specializer_wait(s, engine_load(s->engine) > 0 ? 0.005 : 0.001);
}

static void tick(void *ctx)
{
    look_after_children(ctx);
}

/* ---- choosing ------------------------------------------------------------------------------ */

/* Whether there may be a search now, or why not. */
static enum doing permitted(const struct specializer *s)
{
    int mode = atomic_load(&s->mode);
    if (mode != SPECIALIZER_RUN)
        return mode == SPECIALIZER_FREEZE ? DOING_FROZEN : DOING_PAUSED;
    if (!s->has_compiler)
        return DOING_HELPLESS;
    bool yield = s->config->specializer_idle_only && engine_load(s->engine) > 0;
    return yield ? DOING_YIELD : DOING_SEARCH;
}

/* Whether there is anything to try, now or later. */
static bool has_candidates_locked(struct specializer *s, const struct slot_search *p)
{
    if (p->left_out || p->exhausted || p->locked.pinned[0])
        return false;
    for (int t = 0; t < template_count(); t++)
        if (template_fits(template_at(t), s->env.machine->kind, p->slot->region, p->slot->m) &&
            !is_disabled_locked(s, "", template_at(t)->id))
            return true;
    return false;
}

/* What a fused kernel must beat is the best that there is without it: a fused region waits for a
 * part whose search is still to begin. */
static bool waits_for_parts_locked(struct specializer *s, const struct slot_search *fused)
{
    const struct region_info *info = region_info(fused->slot->region);
    for (int i = 0; i < s->slot_searches && info->parts > 0; i++) {
        const struct slot_search *p = &s->slot_search[i];
        bool part = p->slot->m_index == fused->slot->m_index &&
                    (p->slot->region == info->part[0] || p->slot->region == info->part[1]);
        if (part && !p->locked.active && p->locked.worth >= OBSERVE_LEAST &&
            has_candidates_locked(s, p))
            return true;
    }
    return false;
}

bool slot_choosable_locked(struct specializer *s, const struct slot_search *p)
{
    return !p->promoted.c && clock_ns() >= p->not_before_ns && !waits_for_parts_locked(s, p) &&
           has_candidates_locked(s, p);
}

/* Whether steps were seen, and no slot waits: for live steps, for its next turn, for a server of
 * the fleet that searches it, or for a text that a language model writes. */
static bool has_converged(struct specializer *s)
{
    const bool proposes = strategy_proposes(s->strategy);
    bool waits = s->observe.busy_s <= 1 || (s->agent && !agent_idle(s->agent));
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->slot_searches && !waits; i++) {
        const struct slot_search *p = &s->slot_search[i];
        waits = p->promoted.c ||
                (proposes && p->locked.worth >= OBSERVE_LEAST && has_candidates_locked(s, p));
    }
    pthread_mutex_unlock(&s->lock);
    return !waits;
}

/* On a GPU a slot's first batch is what is known to be good (points.c): every slot that matters
 * gets that before any is searched. */
static bool is_fresh_locked(const struct specializer *s, const struct slot_search *p)
{
    return !target_of(s->env.machine->kind)->opens_together && p->locked.candidates == 0 &&
           !p->unknown && !p->locked.active && p->locked.share >= OPENING_SHARE &&
           slot_search_runs(p);
}

bool turns_left(struct specializer *s)
{
    bool some = false;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->slot_searches && !some; i++) {
        struct slot_search *p = &s->slot_search[i];
        some = is_fresh_locked(s, p) && p->locked.worth >= OBSERVE_LEAST &&
               slot_choosable_locked(s, p);
    }
    pthread_mutex_unlock(&s->lock);
    return some;
}

static bool better_locked(const struct specializer *s, const struct slot_search *p,
                          const struct slot_search *than)
{
    if (p->fleet.adopt != than->fleet.adopt)
        return p->fleet.adopt; /* one candidate, of which another server says what it is worth */
    bool first = is_fresh_locked(s, p), than_first = is_fresh_locked(s, than);
    return first != than_first ? first : p->locked.worth > than->locked.worth;
}

/* The slot most worth looking at, other than `but`, or NULL when none is worth it. */
static struct slot_search *choose_but(struct specializer *s, const struct slot_search *but)
{
    struct slot_search *best = NULL;
    if (!strategy_proposes(s->strategy))
        return NULL; /* the agent's turns are all there is */
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->slot_searches; i++) {
        struct slot_search *p = &s->slot_search[i];
        if (p != but && p->locked.worth >= OBSERVE_LEAST && !fleet_set_waits(s, p) &&
            (!p->fleet.elsewhere || p->fleet.adopt) && (!best || better_locked(s, p, best)) &&
            slot_choosable_locked(s, p))
            best = p;
    }
    pthread_mutex_unlock(&s->lock);
    return best;
}

static struct slot_search *choose(struct specializer *s)
{
    return choose_but(s, NULL);
}

/* True for a slot whose first turn it would be but of which no good point is known: its first batch
 * is a search, for which it waits as if it had had that turn. */
static bool gives_way(struct specializer *s, struct slot_search *p)
{
    pthread_mutex_lock(&s->lock);
    bool fresh = is_fresh_locked(s, p) && !p->fleet.adopt;
    pthread_mutex_unlock(&s->lock);
    if (!fresh)
        return false;
    slot_search_firsts(s, p);
    p->unknown = p->search.firsts == 0;
    return p->unknown;
}

/* Without inputs of live steps no batch begins, and a sleep goes on. The slot is asked again after
 * 2 s, or 20 s for a retrial, and then ever more seldom: its share may be one that the store has
 * from the last server, and while inputs are waited for nothing else is done. */
static void start_batch(struct specializer *s, struct slot_search *p, const struct proposer *by,
                        int64_t ask_again_s)
{
    bool opened = slot_search_open(s, p);
    if (opened && gives_way(s, p))
        return;
    if (opened && !slot_search_inputs(s, p)) {
        p->not_before_ns = clock_ns() + (INT64_C(1000000000) * ask_again_s << p->inputless);
        p->inputless += p->inputless < INPUTLESS_MOST;
        return;
    }
    p->inputless = 0;
    s->asleep = false;
    if (!opened) {
        p->exhausted = true;
        store_trace(s->store, p->slot->name, NULL, "no_space", NULL, "no legal point here");
    } else if (by->next(s, p) == NEXT_NEVER) {
        p->exhausted = true;
        store_trace(s->store, p->slot->name, NULL, "exhausted", NULL, "all %d points were tried",
                    space_size(p->space));
    }
}

/* A batch where most can be gained: with new candidates, or for one that is to be tried again. */
static bool search_advance(struct specializer *s)
{
    if (strategy_proposes(s->strategy) && opening_waits(s))
        return false;
    if (strategy_proposes(s->strategy) && (opening_start(s) || fleet_set_start(s, false))) {
        s->asleep = false;
        return true;
    }
    struct slot_search *p = choose(s);
    if (!p && strategy_proposes(s->strategy) && fleet_set_start(s, true)) {
        s->asleep = false;
        return true;
    }
    pthread_mutex_lock(&s->lock);
    double worth = !p ? 0 : is_fresh_locked(s, p) ? HUGE_VAL : p->locked.worth;
    pthread_mutex_unlock(&s->lock);
    struct slot_search *again = retrial_choose(s, worth);
    if (again)
        start_batch(s, again, &proposer_retrials, 20);
    else if (p)
        start_batch(s, p, &proposer_points, 2);
    struct slot_search *next = s->batch.slot_search ? choose_but(s, s->batch.slot_search) : NULL;
    if (next)
        consult_ahead(s, next);
    return p || again;
}

static void nap(struct specializer *s, enum doing doing)
{
    atomic_store(&s->doing, doing);
    specializer_wait(s, NAP_S);
}

/* `doing` says why: DOING_SLEEP or DOING_CAPPED. */
static void fall_asleep(struct specializer *s, enum doing doing, const char *why)
{
    atomic_store(&s->converged, doing == DOING_SLEEP && has_converged(s));
    if (!s->asleep && s->observe.busy_s > 1)
        store_trace(s->store, NULL, NULL, "asleep", NULL, "%s", why);
    s->asleep = s->observe.busy_s > 1;
    nap(s, doing);
}

/* True if there was one to try. It lends no engine time, so it needs no idle engine: on the
 * contrary, only live steps can judge. */
static bool promotion_advance(struct specializer *s)
{
    bool tried = engine_load(s->engine) > 0 && promotions_try(s);
    s->asleep &= !tried;
    return tried;
}

/* True if a text's batch began. */
static bool text_advance(struct specializer *s)
{
    struct slot_search *p = agent_waiting(s);
    if (p && slot_search_inputs(s, p))
        return proposer_texts.next(s, p) == NEXT_BATCH;
    if (p)
        agent_postpone(s);
    return false;
}

static void search_step(struct specializer *s)
{
    if (promotion_advance(s))
        return;
    if (s->batch.slot_search) {
        search_batch_children(s);
        consult_meanwhile(s);
        if (search_batch_bench(s))
            return;
        if (search_batch_over(s))
            search_batch_close(s);
        else if (children_starve(s))
            wait_for_children(s);
        else
            specializer_wait(s, 0.02);
    } else if (!search_batch_may_build(s)) {
        fall_asleep(s, DOING_CAPPED, "the builds of this hour are used up");
    } else if (text_advance(s)) {
        s->asleep = false;
    } else if (!search_advance(s)) {
        fall_asleep(s, DOING_SLEEP, "nothing is worth looking at");
    }
}

/* ---- the thread ---------------------------------------------------------------------------- */

static bool wait_for_engine(struct specializer *s)
{
    while (!atomic_load(&s->stop)) {
        enum engine_state state = engine_state(s->engine, NULL, NULL, 0);
        if (state != ENGINE_LOADING)
            return state == ENGINE_READY;
        specializer_wait(s, 0.02);
    }
    return false;
}

bool specializer_restoring(const struct specializer *s)
{
    enum doing doing = atomic_load(&s->doing);
    return s->config->specializer_enabled && (doing == DOING_WAIT || doing == DOING_RESTORE);
}

/* Once through all that there is to do, or a nap. */
static void take_turn(struct specializer *s)
{
    specializer_upkeep(s);
    watch_poll(s);
    enum doing doing = permitted(s);
    if (doing == DOING_FROZEN)
        search_batch_forget(s);
    if (doing == DOING_SEARCH) {
        atomic_store(&s->doing, DOING_SEARCH);
        agent_advance(s, NULL, 0);
        search_step(s);
    } else if (doing != DOING_YIELD || !promotion_advance(s)) {
        nap(s, doing);
    }
}

/* All that the thread does, from the engine's first step to the end of its executors. */
static void thread_life(struct specializer *s)
{
    if (!wait_for_engine(s) || !specializer_begin(s))
        return;
    atomic_store(&s->doing, DOING_SLEEP); /* what it does next is decided below */
    s->since_ns = clock_ns();
    while (!atomic_load(&s->stop) && engine_state(s->engine, NULL, NULL, 0) != ENGINE_LOST)
        take_turn(s);
    engine_yield_windows(s->engine, 0);
    watch_stop(s);
    slots_empty(s); /* executors end with this thread */
}

static void *specializer_thread(void *ctx)
{
    struct specializer *s = ctx;
    pthread_setname_np(pthread_self(), "whet-specialize");
    crash_stack();
    thread_life(s);
    atomic_store(&s->doing, DOING_OFF);
    crash_stack_end();
    return NULL;
}

/* ---- start and stop ------------------------------------------------------------------------ */

struct slot_search *slot_search_find(struct specializer *s, const char *slot)
{
    for (int i = 0; i < s->slot_searches; i++)
        if (strcmp(s->slot_search[i].slot->name, slot) == 0)
            return &s->slot_search[i];
    return NULL;
}

struct specializer *specializer_start(const struct config *c, struct engine *e, struct err *err)
{
    struct specializer *s = specializer_new(c, e, true, err);
    if (!s)
        return NULL;
    s->env.tick = tick;
    s->env.tick_ctx = s;
    int rc = pthread_create(&s->thread, NULL, specializer_thread, s);
    if (rc != 0) {
        err_set(err, "the specializer's thread did not start: %s", strerror(rc));
        specializer_free(s);
        return NULL;
    }
    return s;
}

void specializer_stop(struct specializer *s)
{
    if (!s)
        return;
    atomic_store(&s->stop, true);
    atomic_store(&s->interrupt, true);
    pthread_mutex_lock(&s->lock);
    pthread_cond_broadcast(&s->wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    specializer_free(s);
}
