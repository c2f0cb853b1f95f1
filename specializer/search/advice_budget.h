/* SPDX-License-Identifier: Apache-2.0 */
/* advice_budget.h - how far a search follows what a language model names.
 *
 * Whoever is right is believed more, whoever is wrong soon not at all. Two accounts bound what bad
 * advice can cost:
 *
 *   near   points that the cost model thinks possible. One in a batch at first, more once such
 *          picks were among the fastest, none when they were not, but for a new chance now and
 *          then.
 *   far    points that the cost model thinks several times slower than the fastest known. It may
 *          be wrong about them, but hardly about all at once: one in twenty samples of the search,
 *          last in its batch. Who has been right more often than wrong has no far points.
 *
 * So good advice is used up quickly, absurd advice costs at most 5 % of the samples, and plausible
 * bad advice a sample in the beginning and one in about fifty later.
 */
#ifndef WHET_SPECIALIZER_SEARCH_ADVICE_BUDGET_H
#define WHET_SPECIALIZER_SEARCH_ADVICE_BUDGET_H

#include "specializer/search/strategy.h"

enum { ADVICE_MOST = 4096, ADVICE_LOOKS = 8 };

struct advice_budget {
    int batches;
    int told[ADVICE_MOST];   /* ids that were taken because a language model named them */
    int n, far;              /* far: of them */
    int near_left, far_left; /* of this batch */
    bool believed;           /* right more often than wrong so far */
    double far_s;            /* predicted seconds from which a point is far */
};

/* Opens the accounts for a batch of `want`. Once a batch, before the other two. */
void advice_budget_batch(struct advice_budget *t, const struct search *s, int want);
/* Whether `id` may be taken now, on the near account (or, far, at the end of a batch, on the
 * other). The caller takes it and then says so. */
bool advice_budget_near(const struct advice_budget *t, const struct search *s, int32_t id);
bool advice_budget_far(const struct advice_budget *t, const struct search *s, int32_t id);
void advice_budget_took(struct advice_budget *t, const struct search *s, int32_t id);

#endif
