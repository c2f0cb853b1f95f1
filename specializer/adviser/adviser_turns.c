/* SPDX-License-Identifier: Apache-2.0 */
/* adviser_turns.c - see adviser_turns.h. */
#include "specializer/adviser/adviser_turns.h"

#include <math.h>

#include "specializer/search/strategy.h"

/* Points that change an expert's mind whatever they were; points of a batch, at least; and what
 * counts as a gain: less would not replace a kernel. */
enum { NEWS = 12, BATCH_LEAST = 4 };
#define GAIN 1.02

struct standing standing_of(const struct advice_request *r)
{
    struct standing s = {0};
    for (int32_t i = 0; r->trial && i < space_size(r->space); i++) {
        s.decided += r->trial[i] == TRIAL_MEASURED || r->trial[i] == TRIAL_REFUSED;
        if (r->trial[i] == TRIAL_MEASURED)
            s.best = fmax(s.best, (double)r->speed[i]);
    }
    return s;
}

bool is_worth_asking(const struct advice_request *r, const struct standing *now)
{
    return now->decided > 0 || r->lessons > 0;
}

bool is_worth_asking_moves(const struct standing *now)
{
    return now->decided > 0;
}

bool is_worth_asking_again(const struct standing *then, const struct standing *now)
{
    int news = now->decided - then->decided;
    return news >= NEWS || (news >= BATCH_LEAST && now->best < GAIN * then->best);
}

bool turn_of_advice(struct turns *t, int decided)
{
    bool yield = t->moves_wait && decided > 0;
    if (yield)
        t->moves_wait = false; /* once: the tree may have nothing left to ask about */
    return !yield;
}

void turn_of_moves(struct turns *t, bool taken)
{
    t->moves_wait = taken;
}
