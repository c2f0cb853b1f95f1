/* SPDX-License-Identifier: Apache-2.0 */
/* hearing.h - what lost whole steps is heard again in other company. Specializer thread. */
#ifndef WHET_SPECIALIZER_HEARING_H
#define WHET_SPECIALIZER_HEARING_H

#include "specializer/candidate/candidate.h"

struct specializer;
struct place;

/* Hash of the kernels that serve around the slot in a step. */
uint64_t hearing_company(const struct specializer *s, const struct place *p);
/* Never adjourned, or not too often and not in the company there is now. */
bool hearing_allowed(const struct specializer *s, const struct place *p, const struct heard *h);
/* Live steps spoke against c, or could not decide: notes the company. True: it may be heard again,
 * and is to be adjourned; false: it is not one for this, or has been heard often enough. */
bool hearing_adjourn(struct specializer *s, struct place *p, struct candidate *c);
/* Somebody there is to be heard now. */
bool hearing_due(struct specializer *s, struct place *p);
/* The slot whose hearing is worth most, and at least `than`; NULL: none. */
struct place *hearing_choose(struct specializer *s, double than);
/* Begins the round of the one who is due; the place is open and has inputs. False: it cannot. */
bool hearing_start(struct specializer *s, struct place *p);
/* After a start: which slots have somebody who waits. */
void hearings_recall(struct specializer *s);

#endif
