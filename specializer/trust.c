/* trust.c - see trust.h.
 *
 * The rate of hits is the mean of a Beta(1, 1) prior and what came of the picks so far; its square
 * is the share of the batch. Two misses and nothing else leave none.
 */
#include "specializer/trust.h"

#include <math.h>

#define HIT 0.97        /* of the fastest speed known */
enum { ASK_AGAIN = 8 }; /* batches after which one without credit gets a pick */

int trust_earned(struct trust *t, const struct search *s, int want)
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
    int earned = (int)lround(want * rate * rate);
    return t->batches++ % ASK_AGAIN == 0 && earned == 0 ? 1 : earned;
}

void trust_took(struct trust *t, int32_t id)
{
    if (t->n < TRUST_MOST)
        t->told[t->n++] = id;
}
