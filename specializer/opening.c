/* SPDX-License-Identifier: Apache-2.0 */
/* opening.c - see opening.h.
 *
 * A server with an empty store has its whole gain before it, in a handful of slots, and for most of
 * them a point is known that wins nearly all of it: one of a machine like this (search/known.h), an
 * import, or a START row of a knob table. A search of one slot after the other leaves the compiler
 * and the probe idle while a candidate is compared on live steps, and reaches the last slot after
 * minutes. So the first batch takes one point of every slot, those first where most can be saved
 * for what they cost: while one is benched or compared on live steps, the next ones are built and
 * probed.
 *
 * On a CPU. On a GPU slots take turns by their first candidates: what they all wait for there is
 * time on the device between steps, of which the first has its kernel sooner alone, and one process
 * probes (prober.h).
 */
#include "specializer/opening.h"

#include "config/clock.h"
#include "specializer/specializer_private.h"

/* Nobody waits longer for steps to be seen: on an idle server they may never come. */
#define SEEN_MOST_NS (INT64_C(2) * 1000000000)

/* What a candidate costs: processor seconds of its compiler, and of what its probe does but for
 * running the region, and how often the region runs in probe and bench (SmolLM2-135M on a core of a
 * Zen 4, 2026-11-26: 0.6 s; 1.3 s for the head, of which a run takes 3 ms, and twenty of them, in
 * slices that are far from each other, as much time again). */
#define COST_S 0.6
#define COST_RUNS 600

/* What is saved for a second of that. */
static double yield_of(const struct slot_search *p)
{
    return p->locked.worth / (COST_S + COST_RUNS * p->locked.run_s);
}

/* Of the slots without any candidate, the one where most time can be saved soon, or NULL. */
static struct slot_search *next_of_locked(struct specializer *s)
{
    struct slot_search *best = NULL;
    for (int i = 0; i < s->slot_searches; i++) {
        struct slot_search *p = &s->slot_search[i];
        if (!p->offered && p->locked.candidates == 0 && !p->locked.active &&
            p->locked.share >= OPENING_SHARE && p->locked.worth >= OBSERVE_LEAST &&
            slot_search_runs(p) && (!p->fleet.elsewhere || p->fleet.adopt) &&
            (!best || yield_of(p) > yield_of(best)) && slot_choosable_locked(s, p))
            best = p;
    }
    return best;
}

/* True if a good point of the slot is known, and inputs of live steps to bench it on were captured.
 */
static bool prepare(struct specializer *s, struct slot_search *p)
{
    if (!slot_search_open(s, p) || p->search.tried > 0)
        return false;
    slot_search_firsts(s, p);
    return p->search.firsts > 0 && slot_search_inputs(s, p);
}

static struct slot_search *take_next(struct specializer *s)
{
    pthread_mutex_lock(&s->lock);
    struct slot_search *p = next_of_locked(s);
    pthread_mutex_unlock(&s->lock);
    if (p)
        p->offered = true;
    return p;
}

bool opening_waits(struct specializer *s)
{
    double busy_s = s->observe.busy_s;
    if (busy_s <= 0 || busy_s >= target_of(s->env.machine->kind)->seen_s)
        return false;
    if (s->seen_ns == 0)
        s->seen_ns = clock_ns();
    return clock_ns() - s->seen_ns < SEEN_MOST_NS;
}

bool opening_start(struct specializer *s)
{
    struct slot_search *p, *slot_search[BATCH];
    int n = 0;
    const struct target *target = target_of(s->env.machine->kind);
    if (!target->opens_together || s->observe.busy_s < target->seen_s)
        return false;
    while (n < BATCH && (p = take_next(s)) != NULL)
        if (prepare(s, p))
            slot_search[n++] = p;
    if (n == 0 || points_open(s, slot_search, n) == 0)
        return false;
    store_trace(s->store, NULL, NULL, "opening", NULL,
                "a known point each for %d slots; steps may be %.1f %% faster", s->batch.n,
                opening_gain(&s->batch.expects) * 100);
    return true;
}
