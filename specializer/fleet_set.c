/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_set.c - see fleet_set.h.
 *
 * A server that joins a fleet is offered a kernel for every slot, and one that is there for long
 * hears of a better one every few seconds. Live steps are what a proof spends most time on, and
 * they prove several slots as well as one (promotion.c). So winners are gathered: when waiting has
 * cost enough (fleet_offers_due()), those that save most are built, probed and benched as one
 * batch, and who passes goes to live steps with the rest of it.
 *
 * On a CPU. On a GPU winners come one by one, because a step needs a graph of its own for every
 * combination of kernels; nobody has run it.
 */
#include "specializer/fleet_set.h"

#include "config/clock.h"
#include "specializer/fleet/fleet_offer.h"
#include "specializer/specializer_private.h"

#define ASK_AGAIN_NS INT64_C(20000000000)
#define HELD_MOST_S 60.0 /* a search that stands still must hold nobody */
enum { OFFERS_MOST = 64 };

static bool gathers_here(const struct specializer *s)
{
    return s->fleet && s->env.machine && target_of(s->env.machine->kind)->opens_together;
}

bool fleet_set_waits(const struct specializer *s, const struct slot_search *p)
{
    return p->fleet.adopt && gathers_here(s);
}

/* The slots with a winner of others, those first where most is gained; how many. */
static int offers(struct specializer *s, struct slot_search *p[OFFERS_MOST])
{
    int n = 0;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->slot_searches && n < OFFERS_MOST; i++) {
        struct slot_search *q = &s->slot_search[i];
        if (!q->fleet.adopt || !slot_choosable_locked(s, q))
            continue;
        int at = n++;
        for (; at > 0 && p[at - 1]->fleet.gain < q->fleet.gain; at--)
            p[at] = p[at - 1];
        p[at] = q;
    }
    pthread_mutex_unlock(&s->lock);
    return n;
}

static double seconds_since(int64_t ns)
{
    return (double)(clock_ns() - ns) * 1e-9;
}

bool fleet_set_gathers(struct specializer *s)
{
    struct slot_search *p[OFFERS_MOST];
    bool soon = (s->batch.together && !search_batch_over(s)) ||
                (gathers_here(s) && strategy_proposes(s->strategy) && offers(s, p) > 0);
    if (!soon)
        s->fleet_loop.held_ns = 0;
    else if (s->fleet_loop.held_ns == 0)
        s->fleet_loop.held_ns = clock_ns();
    return soon && seconds_since(s->fleet_loop.held_ns) < HELD_MOST_S;
}

/* Own candidates that wait for live steps count as well as what others found. */
static bool due(const struct specializer *s, struct slot_search *const *p, int n)
{
    double gain[2 * OFFERS_MOST], wait_s[2 * OFFERS_MOST];
    for (int i = 0; i < n; i++) {
        gain[i] = p[i]->fleet.gain;
        wait_s[i] = seconds_since(p[i]->fleet.since_ns);
    }
    for (int i = 0; i < s->slot_searches && n < 2 * OFFERS_MOST; i++) {
        const struct slot_search *q = &s->slot_search[i];
        if (!q->promoted.c)
            continue;
        gain[n] = 1 + q->promoted.c->evidence.bench.mean;
        wait_s[n++] = seconds_since(q->promoted_ns);
    }
    return fleet_offers_due(gain, wait_s, n);
}

/* True if it can be measured on inputs of live steps: then it is first in the slot's queue. */
static bool prepare(struct specializer *s, struct slot_search *p)
{
    if (!slot_search_open(s, p) || !slot_search_inputs(s, p)) {
        p->not_before_ns = clock_ns() + ASK_AGAIN_NS;
        return false;
    }
    slot_search_firsts(s, p);
    return true;
}

bool fleet_set_start(struct specializer *s, bool idle)
{
    struct slot_search *p[OFFERS_MOST], *ready[BATCH];
    int n = gathers_here(s) ? offers(s, p) : 0, k = 0;
    if (n == 0 || (!idle && !due(s, p, n)))
        return false;
    for (int i = 0; i < n && k < BATCH; i++)
        if (prepare(s, p[i]))
            ready[k++] = p[i];
    if (k == 0 || points_open(s, ready, k) == 0)
        return false;
    s->batch.together = true;
    store_trace(s->store, NULL, NULL, "fleet_set", NULL,
                "%d kernels that others found are proved together", s->batch.n);
    return true;
}
