/* trust.h - how far a search follows what a language model names.
 *
 * Whoever is right is believed more, whoever is wrong soon not at all: a model may fill a quarter
 * of a batch at first, more once its picks were among the fastest, none when they were not, but for
 * a new chance now and then. So good advice is used up quickly, and bad advice costs a few samples.
 */
#ifndef WHET_SPECIALIZER_TRUST_H
#define WHET_SPECIALIZER_TRUST_H

#include "specializer/search/strategy.h"

enum { TRUST_MOST = 4096 };

struct trust {
    int batches;
    int told[TRUST_MOST]; /* ids that were taken because a language model named them */
    int n;
};

/* How many of a batch of `want` it may fill. Call once a batch. */
int trust_earned(struct trust *t, const struct search *s, int want);
void trust_took(struct trust *t, int32_t id);

#endif
