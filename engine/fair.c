/* SPDX-License-Identifier: Apache-2.0 */
/* fair.c - fair queueing between clients by virtual time.
 *
 * The clock `now` is the virtual time at which a flow that comes back begins: who was away has no
 * claim to what others got meanwhile (the server is work conserving, so alone a client gets all of
 * it), and no debt either. It never goes back, and moves for two reasons:
 *   - with the work done, by its share for each client that has a request: that is how fast all
 *     would move if all got the same. Since it moves however many newcomers there are, a flow that
 *     is ahead is passed by in the end: nobody starves, not even under a stream of new addresses.
 *   - to the flow that is admitted: it has the least of all that wait, so nobody is passed over.
 * No flow is ever more than FAIR_LEAD tokens ahead of the clock. That bounds how long a client can
 * be made to pay for an hour in which it had more than others who did not want it.
 *
 * A flow that no sequence belongs to is remembered while it is ahead of the clock, so that nobody
 * gets rid of what it was served by ending all its requests for a moment; once the clock has passed
 * it, forgetting it changes nothing. There are at most FAIR_IDLE of those, the oldest go first.
 */
#include "engine/fair.h"

#include <stdlib.h>

#include "config/err.h"

struct fair {
    struct ranking flows;
    uint64_t now;
    uint64_t most; /* highest virtual time that any flow ever had */
    int32_t active;
    struct flow *idle, **idle_last; /* oldest first */
    int32_t idles;
};

/* Least served first; then who runs least, which settles ties as slots would; then by age. */
static bool before(const struct ranked *x, const struct ranked *y)
{
    const struct flow *a = (const struct flow *)x, *b = (const struct flow *)y;
    if (a->served != b->served)
        return a->served < b->served;
    if (a->running != b->running)
        return a->running < b->running;
    return a->oldest->id < b->oldest->id;
}

struct fair *fair_open(void)
{
    struct fair *f = xcalloc(1, sizeof *f);
    ranking_init(&f->flows, before);
    f->idle_last = &f->idle;
    return f;
}

/* ---- flows without a sequence -------------------------------------------------------------- */

static void idle_remove(struct fair *f, struct flow *flow)
{
    *flow->idle_link = flow->idle_next;
    *(flow->idle_next ? &flow->idle_next->idle_link : &f->idle_last) = flow->idle_link;
    flow->idle_link = NULL;
    f->idles--;
}

static void idle_add(struct fair *f, struct flow *flow)
{
    flow->idle_next = NULL;
    flow->idle_link = f->idle_last;
    *f->idle_last = flow;
    f->idle_last = &flow->idle_next;
    f->idles++;
}

static void forget(struct fair *f, int32_t most)
{
    while (f->idle && (f->idles > most || f->idle->served <= f->now)) {
        struct flow *flow = f->idle;
        idle_remove(f, flow);
        ranking_remove(&f->flows, &flow->ranked);
        free(flow);
    }
}

void fair_close(struct fair *f)
{
    if (!f)
        return;
    forget(f, 0);
    ranking_free(&f->flows);
    free(f);
}

/* ---- sequences ----------------------------------------------------------------------------- */

static bool may_run(const struct flow *flow)
{
    return flow->waiting > 0 && (flow->max_running == 0 || flow->running < flow->max_running);
}

/* Something changed that its rank depends on. */
static void rank(struct fair *f, struct flow *flow)
{
    if (!may_run(flow)) {
        ranking_unrank(&f->flows, &flow->ranked);
        return;
    }
    if (flow->ranked.at == 0 && flow->served < f->now)
        flow->served = f->now;
    ranking_rank(&f->flows, &flow->ranked);
}

/* Keeps the order of arrival. The search is short: a newcomer is the newest, and a preempted
 * sequence among the oldest. */
static void list_insert(struct flow *flow, struct sequence *seq)
{
    struct sequence *after = flow->oldest;
    if (flow->newest && flow->newest->id < seq->id)
        after = NULL;
    while (after && after->id < seq->id)
        after = after->flow_newer;
    seq->flow_newer = after;
    seq->flow_older = after ? after->flow_older : flow->newest;
    *(after ? &after->flow_older : &flow->newest) = seq;
    *(seq->flow_older ? &seq->flow_older->flow_newer : &flow->oldest) = seq;
    flow->waiting++;
}

static void list_remove(struct flow *flow, struct sequence *seq)
{
    *(seq->flow_older ? &seq->flow_older->flow_newer : &flow->oldest) = seq->flow_newer;
    *(seq->flow_newer ? &seq->flow_newer->flow_older : &flow->newest) = seq->flow_older;
    seq->flow_older = seq->flow_newer = NULL;
    flow->waiting--;
}

void fair_enter(struct fair *f, struct sequence *seq)
{
    struct flow *flow = fair_flow(f, seq->client);
    if (!flow) {
        flow = xcalloc(1, sizeof *flow);
        flow->ranked.id = seq->client;
        ranking_add(&f->flows, &flow->ranked);
    } else if (flow->idle_link) {
        idle_remove(f, flow);
    }
    f->active += flow->waiting + flow->running == 0;
    flow->max_running = seq->max_running;
    seq->flow = flow;
    list_insert(flow, seq);
    rank(f, flow);
}

static void take_out(struct sequence *seq)
{
    if (seq->place == PLACE_WAITING)
        list_remove(seq->flow, seq);
    else
        seq->flow->running--;
}

void fair_leave(struct fair *f, struct sequence *seq)
{
    struct flow *flow = seq->flow;
    take_out(seq);
    seq->flow = NULL;
    rank(f, flow);
    if (flow->waiting + flow->running > 0)
        return;
    idle_add(f, flow);
    if (--f->active == 0)
        fair_settle(f);
    forget(f, FAIR_IDLE);
}

void fair_wait(struct fair *f, struct sequence *seq)
{
    take_out(seq);
    list_insert(seq->flow, seq);
    rank(f, seq->flow);
}

void fair_run(struct fair *f, struct sequence *seq)
{
    struct flow *flow = seq->flow;
    if (f->now < flow->served && flow == fair_next(f))
        f->now = flow->served;
    take_out(seq);
    flow->running++;
    rank(f, flow);
}

/* ---- work ---------------------------------------------------------------------------------- */

struct flow *fair_next(const struct fair *f)
{
    return (struct flow *)ranking_first(&f->flows);
}

struct flow *fair_flow(const struct fair *f, uint64_t client)
{
    return (struct flow *)ranking_find(&f->flows, client);
}

void fair_charge(struct fair *f, struct flow *flow, int32_t tokens)
{
    uint64_t work = (uint64_t)tokens * FAIR_TOKEN;
    f->now += work / (uint64_t)(f->active > 0 ? f->active : 1);
    flow->served += work;
    if (flow->served > f->now + FAIR_LEAD * FAIR_TOKEN)
        flow->served = f->now + FAIR_LEAD * FAIR_TOKEN;
    if (flow->served > f->most)
        f->most = flow->served;
    rank(f, flow);
}

void fair_settle(struct fair *f)
{
    if (f->most > f->now)
        f->now = f->most;
}

int32_t fair_active(const struct fair *f)
{
    return f->active;
}

int32_t fair_remembered(const struct fair *f)
{
    return f->flows.items;
}
