/* SPDX-License-Identifier: Apache-2.0 */
/* opening_share.c - see opening_share.h. */
#include "specializer/opening_share.h"

#include <math.h>

/* Where arithmetic is the limit, points come to half of what they saved elsewhere, or more. Where
 * reading is, as with one token, eager reads ahead too, and what they saved was mostly against an
 * eager that did not. */
#define KNOWN_COMPUTES 0.5
#define KNOWN_READS 0.125
/* What START rows save of a slot's time, to begin with. */
#define START_COMPUTES 0.2
#define START_READS 0.03
/* Part of the time of steps: a promise of so much counts as kept before anything is measured, so
 * that one small slot does not decide about all others. */
#define BELIEF 0.05
/* What steps lose beside a compiler or probe that is given no time at all: it runs where a compute
 * thread waits for the others (2 cores of a Zen 3, one client, 2026-11-29: 4 %). */
#define LOST_BESIDE 0.04
/* No slot is expected to save more, whatever the benches of the others said. */
#define SAVES_MOST 0.5

double opening_promise(double speed, bool reads)
{
    if (speed > 1)
        return (1 - 1 / speed) * (reads ? KNOWN_READS : KNOWN_COMPUTES);
    return reads ? START_READS : START_COMPUTES;
}

void opening_promised(struct opening_slots *o, int slot, double share, double promise)
{
    if (o->n < OPENING_SLOTS)
        o->of[o->n++] = (struct opening_slot){
            .slot = slot, .share = share, .saves = promise, .promise = promise};
}

void opening_measured(struct opening_slots *o, int slot, double speed)
{
    for (int i = 0; i < o->n; i++)
        if (o->of[i].slot == slot) {
            o->of[i].saves = speed > 1 ? 1 - 1 / speed : 0;
            o->of[i].measured = true;
        }
}

/* How much of what was promised is kept, as far as it was measured. */
static double kept(const struct opening_slots *o)
{
    double promised = BELIEF, saved = BELIEF;
    for (int i = 0; i < o->n; i++)
        if (o->of[i].measured) {
            promised += o->of[i].share * o->of[i].promise;
            saved += o->of[i].share * o->of[i].saves;
        }
    return saved / promised;
}

double opening_gain(const struct opening_slots *o)
{
    double saved = 0, factor = kept(o);
    for (int i = 0; i < o->n; i++) {
        const struct opening_slot *p = &o->of[i];
        saved += p->share * (p->measured ? p->saves : fmin(p->promise * factor, SAVES_MOST));
    }
    return saved < 1 ? saved / (1 - saved) : HUGE_VAL;
}

double opening_share(const struct opening_slots *o, double least, double most)
{
    return fmin(fmax(opening_gain(o) - LOST_BESIDE, least), most);
}
