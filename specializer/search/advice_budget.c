/* SPDX-License-Identifier: Apache-2.0 */
/* advice_budget.c - see advice_budget.h.
 *
 * The rate of hits is the mean of a Beta(1, 1) prior and what came of the picks so far; its square
 * is the share of the batch, rounded down: one pick of six at first, none after a miss, two after a
 * hit. A hit is within HIT of the fastest speed known.
 *
 * FAR was read off the measured tables of docs/ablation.md: after a first batch nine tenths of the
 * points that a good adviser names are predicted at less than 2.3 times the time of the fastest
 * known, nine tenths of those that a bad one names at more than 5 times.
 */
#include "specializer/search/advice_budget.h"

#include <math.h>

#define HIT 0.97
#define FAR 3.0
enum { ASK_AGAIN = 8, FAR_ONE_IN = 20 }; /* batches after which one without credit gets a pick */

/* The fastest known by measurement, or else by prediction. */
static double fastest_predicted(const struct search *s)
{
    int32_t best;
    if (search_best(s, &best, 1) > 0)
        return space_predicted(s->space, best);
    double shortest = INFINITY;
    for (int32_t i = 0; i < space_size(s->space); i++)
        shortest = fmin(shortest, space_predicted(s->space, i));
    return shortest;
}

static bool is_far(const struct advice_budget *t, const struct search *s, int32_t id)
{
    return !t->believed && space_predicted(s->space, id) > t->far_s;
}

void advice_budget_batch(struct advice_budget *t, const struct search *s, int want)
{
    int32_t best;
    int hits = 0, tried = 0;
    double fastest = search_best(s, &best, 1) ? (double)s->speed[best] : 0;
    for (int i = 0; i < t->n; i++) {
        int32_t id = t->told[i];
        tried += s->trial[id] >= TRIAL_MEASURED;
        hits += s->trial[id] == TRIAL_MEASURED && (double)s->speed[id] >= HIT * fastest;
    }
    double rate = (hits + 1.0) / (tried + 2.0);
    t->believed = 2 * hits > tried;
    t->far_s = FAR * fastest_predicted(s);
    t->near_left = (int)(want * rate * rate);
    if (t->batches++ % ASK_AGAIN == 0 && t->near_left == 0)
        t->near_left = 1;
    t->far_left = (s->tried + want) / FAR_ONE_IN - t->far;
}

bool advice_budget_near(const struct advice_budget *t, const struct search *s, int32_t id)
{
    return t->near_left > 0 && !is_far(t, s, id);
}

bool advice_budget_far(const struct advice_budget *t, const struct search *s, int32_t id)
{
    return t->far_left > 0 && is_far(t, s, id);
}

void advice_budget_took(struct advice_budget *t, const struct search *s, int32_t id)
{
    bool far = is_far(t, s, id);
    *(far ? &t->far_left : &t->near_left) -= 1;
    t->far += far;
    if (t->n < ADVICE_MOST)
        t->told[t->n++] = id;
}
