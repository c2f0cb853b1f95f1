/* SPDX-License-Identifier: Apache-2.0 */
/* canary.h - the decision on whole steps, apart from the engine that takes them. */
#ifndef WHET_SPECIALIZER_PIPELINE_CANARY_H
#define WHET_SPECIALIZER_PIPELINE_CANARY_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/dispatch.h"
#include "engine/tuning.h"
#include "specializer/candidate/candidate.h"

/* Pairs steps with the one before that had the same m, or a wide one nearly that, and a similar
 * context, where the kinds differ. incumbent[i] and candidate[i] (room for n / 2 each) get their
 * times, of the earlier one as if it had had the other's m; returns the number of pairs. */
int canary_pairs(const struct canary_step *step, int32_t n, double *incumbent, double *candidate);

enum canary_verdict { CANARY_MORE, CANARY_PASS, CANARY_SLOWER };
/* What an interim analysis says. `expected` is the gain of a whole step that the bench promises:
 * its lower bound times the slot's share of a step. `wanted`, specializer.min_gain, counts below 0
 * only: so much slower is good enough then. */
enum canary_verdict canary_decide(const struct gain *g, double expected, double wanted, bool last);
/* Whether CANARY_SLOWER at the last analysis only says that nothing was found out: too few pairs,
 * or an interval that still holds a gain. */
bool canary_unresolved(const struct gain *g);

/* Whether c may be judged together with these: no fused region, no slot of theirs, and not too
 * many. */
bool canary_may_join(struct candidate *const *set, int n, const struct candidate *c);

#endif
