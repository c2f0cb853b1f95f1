/* SPDX-License-Identifier: Apache-2.0 */
/* tuning.c - the specializer's side of the engine: slices of time, canaries, questions.
 *
 * A slice runs on the engine thread between two steps, so a kernel is timed where it would serve
 * and nothing else runs beside it. Under load the meter allows `share` of the wall time: credit
 * grows with the clock up to one slice, a slice may run once there is credit for a whole one, and
 * what it really took is charged. A slice that overran leaves a debt that the clock pays, so the
 * share holds over any long stretch, and credit always comes back, so work in slices progresses
 * under any load. What hurts is the number of steps that are late: a slice is one pair of runs at
 * least, which may be half of a step of one token, and on a GPU costs 0.3 ms to go to another
 * context and back. So slices are as far apart as the 99th percentile wants it, and each is as long
 * as what was saved meanwhile allows. On a CPU one that is small against the step before it, as
 * beside long prompts, makes nothing late and need not wait. Without load slices run back to back,
 * with a look at the inbox after each: a request waits for one slice at most.
 *
 * Compilers and probes, which run at idle priority, would never get a turn beside a busy CPU. So
 * while the specializer says that they starve, some time is spent asleep (yield windows): half of
 * the share, and in an opening that has much to win, more. Every step is late by that share of
 * itself: longer windows before some steps would be what the 99th percentile sees.
 * The engine does so by itself: were every yield window asked for, most of the share would be lost
 * while the thread that asks waits for a core of its own.
 *
 * With steps started ahead (engine_step.c) a slice waits until none is under way, so what it times
 * has the device to itself. A step that counts for a canary is landed before the canary changes.
 *
 * A canary's step runs the candidate only where the backend can do so at once (a GPU needs a graph
 * of the step with it); until then such steps are no samples. Nor is a step that had to do without
 * its graph, whichever side it is of. The coin is Philox of (seed, step number): as random as
 * needed and the same in a test.
 */
#include "engine/tuning.h"

#include <math.h>
#include <time.h>

#include "config/clock.h"
#include "engine/engine_private.h"

enum {
    /* In an opening slices are so much closer (on a CPU) and have so many times the share. It
     * benches one candidate a slot, which takes a few slices in all: how many steps they make late
     * does not depend on what lies between them, and all kernels behind them wait. The head's
     * twelve, 64 steps apart, were 8 s of the first half minute (Xeon, two cores); with 32 clients
     * of a 4B on an H200 each slot's first kernel took 16 s of slices 256 steps apart, and nothing
     * else. */
    OPENING_CLOSER = 16,
    OPENING_MORE = 3,
    /* A window: every step late by a little, none by much. After a step so long that this is less
     * than the share of it, children get less. */
    WINDOW_MOST_NS = 3000000,
    WINDOW_LEAST_NS = 200000
};

/* ---- slices -------------------------------------------------------------------------------- */

/* An opening in which many steps may be late: on a GPU, whose steps a slice makes several times as
 * long, where tokens are still as close to each other as the operator wants them. */
static bool opens(const struct engine *e)
{
    return atomic_load(&e->opening) && (!e->ops->short_steps || slice_gaps_room(&e->gaps) > 0);
}

/* What the meter goes by until the next step. Where slices only have to keep to the target between
 * tokens, because there are few or because nobody sees them, one comes when a whole one is saved:
 * whatever its length, going to another context and back costs a step the same. */
static void set_meter(struct engine *e)
{
    const struct engine_options *o = &e->options;
    struct slice_meter *m = &e->meter;
    uint64_t apart = (uint64_t)(e->ops->short_steps ? o->gpu_slice_steps : o->cpu_slice_steps);
    int64_t longest = e->gaps.longest_ns;
    m->share = fmin(o->share * (opens(e) ? OPENING_MORE : 1), 1);
    if (e->ops->short_steps && (opens(e) || slice_gaps_hide(&e->gaps))) {
        longest = slice_gaps_room(&e->gaps);
        apart = slice_meter_saves(m->share, longest, e->usual_step_ns, apart);
    } else if (opens(e)) {
        apart = (apart + OPENING_CLOSER - 1) / OPENING_CLOSER;
    }
    slice_meter_spread(m, apart, longest);
}

void engine_open_meters(struct engine *e)
{
    const struct engine_options *o = &e->options;
    int64_t least = (int64_t)(o->slice_ms * 1e6), now = clock_ns();
    slice_meter_init(&e->meter, o->share, least, now);
    double longest_ms = e->ops->short_steps ? o->gpu_slice_ms : o->cpu_slice_ms;
    slice_gaps_init(&e->gaps, (int64_t)e->pace.itl_ns, (int64_t)(longest_ms * 1e6));
    set_meter(e);
    slice_meter_init(&e->windows, 0, WINDOW_MOST_NS, now);
}

void engine_meter_step(struct engine *e, int64_t ns, bool decodes)
{
    int64_t window = (int64_t)(atomic_load(&e->yield_windows) * (double)ns);
    e->meter.step_ns = e->ops->short_steps ? 0 : ns;
    e->usual_step_ns += e->usual_step_ns > 0 ? (ns - e->usual_step_ns) / 16 : ns;
    if (decodes)
        slice_gaps_step(&e->gaps, ns);
    window = window < WINDOW_MOST_NS ? window : WINDOW_MOST_NS;
    e->windows.most_ns = window > WINDOW_LEAST_NS ? window : WINDOW_LEAST_NS;
    e->windows.slice_ns = e->windows.most_ns / 2; /* the step may have been shorter than the last */
}

/* What may be lent between two steps: LEND_SLICE if one waits and may run, else a window if
 * children starve. */
enum lending { LEND_NOTHING, LEND_SLICE, LEND_WINDOW };

static enum lending lending(struct engine *e)
{
    int64_t now = clock_ns();
    set_meter(e);
    if (atomic_load(&e->slice_here) && slice_meter_due(&e->meter, now, e->starts))
        return LEND_SLICE;
    e->windows.share = atomic_load(&e->yield_windows);
    if (e->windows.share > 0 && slice_meter_due(&e->windows, now, e->starts))
        return LEND_WINDOW;
    return LEND_NOTHING;
}

bool engine_slice_due(struct engine *e)
{
    return lending(e) != LEND_NOTHING;
}

static int64_t charge(struct engine *e, struct slice_meter *m, int64_t start)
{
    int64_t ns = clock_ns() - start;
    if (m) {
        slice_meter_spend(m, ns, e->starts);
        e->lent_ns += ns;
    }
    e->lent = true;
    atomic_fetch_add(&e->stats.slices, 1);
    atomic_fetch_add(&e->stats.slice_ns, (uint64_t)ns);
    return ns;
}

/* A slice in which nothing runs: the cores are free for other processes. */
static void yield_window(struct engine *e)
{
    int64_t start = clock_ns();
    struct timespec pause = {0, slice_meter_budget(&e->windows)};
    nanosleep(&pause, NULL);
    int64_t ns = charge(e, &e->windows, start);
    double half = e->meter.share / 2, share = e->windows.share; /* slices keep half of theirs */
    e->meter.credit_ns -= (double)ns * (share > half ? half / share : 1);
}

bool engine_lend(struct engine *e, bool idle)
{
    enum lending lend = idle ? (enum lending)atomic_load(&e->slice_here) : lending(e);
    if (lend == LEND_NOTHING)
        return false;
    if (lend == LEND_WINDOW) {
        yield_window(e);
        return true;
    }
    pthread_mutex_lock(&e->lock);
    slice_fn *run = e->slice;
    void *ctx = e->slice_ctx;
    pthread_mutex_unlock(&e->lock);
    int64_t start = clock_ns();
    int64_t budget = e->meter.slice_ns;
    if (!idle)
        budget = slice_meter_budget(&e->meter);
    else if (e->ops->short_steps && e->meter.apart > 0)
        budget = e->meter.most_ns / 2; /* a request that comes waits for half of a slice */
    int result = run(ctx, budget);
    charge(e, idle ? NULL : &e->meter, start);
    if (result == 0)
        return true;
    pthread_mutex_lock(&e->lock);
    e->slice = NULL;
    e->slice_result = result;
    atomic_store(&e->slice_here, false);
    pthread_cond_broadcast(&e->reply);
    pthread_mutex_unlock(&e->lock);
    return true;
}

int engine_slices(struct engine *e, slice_fn *run, void *ctx)
{
    pthread_mutex_lock(&e->lock);
    e->tuning_callers++;
    int result = -1;
    if (!e->gone && !e->stopping) {
        e->slice = run;
        e->slice_ctx = ctx;
        atomic_store(&e->slice_here, true);
        pthread_cond_signal(&e->wake);
        while (e->slice && !e->gone)
            pthread_cond_wait(&e->reply, &e->lock);
        if (!e->slice)
            result = e->slice_result;
        e->slice = NULL;
        atomic_store(&e->slice_here, false);
    }
    e->tuning_callers--;
    pthread_cond_broadcast(&e->reply);
    pthread_mutex_unlock(&e->lock);
    return result;
}

void engine_yield_windows(struct engine *e, double share)
{
    atomic_store(&e->yield_windows, share);
}

void engine_opening(struct engine *e, bool opening)
{
    atomic_store(&e->opening, opening);
}

void engine_release_callers(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    while (e->tuning_callers > 0)
        pthread_cond_wait(&e->reply, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

/* ---- canary -------------------------------------------------------------------------------- */

void engine_canary(struct engine *e, struct canary *c)
{
    pthread_mutex_lock(&e->lock);
    e->tuning_callers++;
    e->canary_wanted = c;
    e->canary_changed = true;
    atomic_store(&e->inbox, true);
    pthread_cond_signal(&e->wake);
    while (e->canary_changed && !e->gone)
        pthread_cond_wait(&e->reply, &e->lock);
    e->tuning_callers--;
    pthread_cond_broadcast(&e->reply);
    pthread_mutex_unlock(&e->lock);
}

/* Whether `s` reads the slot; the head runs on the rows that need logits only. */
static bool reads(const struct engine *e, const struct slot *slot, const struct step *s)
{
    int32_t m = region_m(slot->region, s->m, s->rows);
    return m > 0 &&
           dispatch_slot(e->dispatch, slot->region, slot_layer(slot), m, s->context) == slot;
}

/* The cell whose step this is, or -1. */
static int cell_of(const struct engine *e, const struct canary *c, const struct step *s)
{
    uint32_t used = 0, decided = atomic_load_explicit(&c->decided, memory_order_relaxed);
    for (int i = 0; i < c->candidates.n; i++) {
        if (reads(e, c->candidates.of[i].slot, s))
            used |= 1u << i;
    }
    for (int i = 0; i < c->cells; i++)
        if (c->cell[i] == used)
            return decided >> i & 1 ? -1 : i;
    return -1;
}

const struct overrides *engine_canary_toss(struct engine *e, const struct step *s, bool *live)
{
    struct canary *c = e->canary;
    *live = c && atomic_load_explicit(&c->have, memory_order_relaxed) < c->want &&
            cell_of(e, c, s) >= 0;
    if (!*live || atomic_load(&c->failed))
        return NULL;
    uint32_t coin[4];
    philox(c->seed, e->starts, 0, coin);
    if (!(coin[0] & 1))
        return NULL;
    if (!e->ops->ready || e->ops->ready(e->backend, s, &c->candidates))
        return &c->candidates;
    *live = false; /* the incumbents run, for want of the candidates: no fair sample */
    return NULL;
}

void engine_canary_record(struct engine *e, const struct step *s, bool candidate, int64_t ns)
{
    struct canary *c = e->canary;
    int32_t have = atomic_load_explicit(&c->have, memory_order_relaxed);
    if (have == c->want)
        return; /* started before the last one it wanted had landed */
    c->step[have] = (struct canary_step){ns, s->m, s->context, candidate, (int8_t)cell_of(e, c, s)};
    atomic_store_explicit(&c->have, have + 1, memory_order_release);
}

/* ---- questions ----------------------------------------------------------------------------- */

const struct model *engine_model(const struct engine *e)
{
    return e->model;
}

struct backend *engine_backend(const struct engine *e)
{
    return e->backend;
}

const struct backend_ops *engine_backend_ops(const struct engine *e)
{
    return e->ops;
}

struct dispatch *engine_dispatch(const struct engine *e)
{
    return e->dispatch;
}

int32_t engine_load(const struct engine *e)
{
    return atomic_load(&e->active);
}

uint64_t engine_steps(const struct engine *e)
{
    return atomic_load(&e->stats.steps);
}

/* ---- the promise that the request path never compiles -------------------------------------- */

static _Thread_local bool hot_path;
static _Atomic uint64_t hot_path_compiles;

void engine_mark_hot_path(void)
{
    hot_path = true;
}

void engine_note_compile(void)
{
    if (hot_path)
        atomic_fetch_add(&hot_path_compiles, 1);
}

uint64_t engine_hot_path_compiles(void)
{
    return atomic_load(&hot_path_compiles);
}

uint64_t engine_slice_ns(const struct engine *e)
{
    return atomic_load(&e->stats.slice_ns);
}
