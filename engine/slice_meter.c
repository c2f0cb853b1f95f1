/* SPDX-License-Identifier: Apache-2.0 */
/* slice_meter.c - see slice_meter.h. */
#include "engine/slice_meter.h"

#include <math.h>

enum {
    SAVED = 40, /* longest slices that a spread meter saves up for */
    /* A slice of less than this part of the longest is not worth its 0.3 ms of other contexts. */
    WORTH = 4,
    RECENT = 512 /* steps that slice_gaps.waits looks back, about */
};
/* Of the steps with decodes: twice what a 99th percentile leaves out. */
#define OFTEN 0.02

void slice_meter_init(struct slice_meter *m, double share, int64_t slice_ns, int64_t now)
{
    *m = (struct slice_meter){
        .share = share, .slice_ns = slice_ns, .most_ns = slice_ns, .at_ns = now};
}

void slice_meter_spread(struct slice_meter *m, uint64_t apart, int64_t most_ns)
{
    m->apart = apart;
    m->most_ns = most_ns > m->slice_ns ? most_ns : m->slice_ns;
}

bool slice_meter_due(struct slice_meter *m, int64_t now, uint64_t step)
{
    double room = (m->apart > 0 ? SAVED : 1) * (double)m->most_ns;
    m->credit_ns += m->share * (double)(now - m->at_ns);
    m->at_ns = now;
    if (m->credit_ns > room)
        m->credit_ns = room;
    bool far = step - m->at_step >= m->apart;
    m->small = !far && !m->overran && m->share * (double)m->step_ns >= (double)m->slice_ns;
    return m->share > 0 && m->credit_ns >= (double)m->slice_ns && (far || m->small);
}

uint64_t slice_meter_saves(double share, int64_t slice_ns, int64_t step_ns, uint64_t most)
{
    double steps =
        share > 0 && step_ns > 0 ? (double)slice_ns / (share * (double)step_ns) : HUGE_VAL;
    return steps >= (double)most ? most : steps > 1 ? (uint64_t)steps : 1;
}

int64_t slice_meter_budget(const struct slice_meter *m)
{
    double budget = m->credit_ns < (double)m->most_ns ? m->credit_ns : (double)m->most_ns;
    if (m->small && budget > m->share * (double)m->step_ns)
        budget = m->share * (double)m->step_ns;
    return (int64_t)budget;
}

void slice_meter_spend(struct slice_meter *m, int64_t ns, uint64_t step)
{
    m->overran = m->small && (double)ns > 2 * m->share * (double)m->step_ns;
    m->credit_ns -= (double)ns;
    m->at_step = step;
}

/* ---- gaps between tokens ------------------------------------------------------------------- */

void slice_gaps_init(struct slice_gaps *g, int64_t target_ns, int64_t longest_ns)
{
    *g = (struct slice_gaps){.target_ns = target_ns, .longest_ns = longest_ns};
}

int64_t slice_gaps_room(const struct slice_gaps *g)
{
    int64_t room = g->target_ns > 0 ? g->target_ns - g->decodes_ns : g->longest_ns;
    if (room > g->longest_ns)
        room = g->longest_ns;
    return room >= g->longest_ns / WORTH ? room : 0;
}

void slice_gaps_step(struct slice_gaps *g, int64_t ns)
{
    bool waits = g->decodes_ns > 0 && ns >= g->decodes_ns + slice_gaps_room(g);
    g->waits += (waits - g->waits) / RECENT;
}

bool slice_gaps_hide(const struct slice_gaps *g)
{
    return slice_gaps_room(g) > 0 && g->waits > OFTEN;
}
