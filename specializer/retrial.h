/* SPDX-License-Identifier: Apache-2.0 */
/* retrial.h - a kernel that made whole steps slower is tried again beside other kernels: those of
 * other regions in the same steps, its co-resident kernels. Specializer thread. */
#ifndef WHET_SPECIALIZER_RETRIAL_H
#define WHET_SPECIALIZER_RETRIAL_H

#include "specializer/candidate/candidate.h"

struct specializer;
struct slot_search;

/* Hash of the kernels that serve around the slot in a step. */
uint64_t retrial_coresident(const struct specializer *s, const struct slot_search *p);
/* Never deferred, or not too often and not beside the kernels that there are now. */
bool retrial_allowed(const struct specializer *s, const struct slot_search *p,
                     const struct losses *h);
/* Whole steps were slower with c, or could not decide: notes its co-resident kernels. True: it is
 * to be deferred, and may be tried again; false: it is not one for this, or was tried often enough.
 */
bool retrial_defer(struct specializer *s, struct slot_search *p, struct candidate *c);
/* A candidate of the slot is to be tried again now. */
bool retrial_due(struct specializer *s, struct slot_search *p);
/* The slot whose retrial is worth most, and at least `than`; NULL: none. */
struct slot_search *retrial_choose(struct specializer *s, double than);
/* After a start: which slots have deferred candidates. */
void retrials_recall(struct specializer *s);

#endif
