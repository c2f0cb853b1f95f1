/* SPDX-License-Identifier: Apache-2.0 */
/* swap.h - what fills a slot. Specializer thread; what is named _locked, an operator's too, with
 * the specializer's lock held by the caller. */
#ifndef WHET_SPECIALIZER_SWAP_H
#define WHET_SPECIALIZER_SWAP_H

#include "specializer/counts.h"

struct specializer;
struct slot_search;

/* A kernel out of service, to be unloaded once no step can use it, and after a grace for those who
 * look at a slot's kernel without being a step (fingerprints, dashboards). */
struct retired {
    struct kernel *kernel;
    int64_t epoch, since_ns;
};

bool is_disabled_locked(struct specializer *s, const char *key, const char *template_id);
/* c becomes the slot's kernel: first in the store, then in the table. Takes `c` over. */
int swap_in(struct specializer *s, struct slot_search *p, struct candidate *c, const char *why,
            const char *who);
int swap_in_locked(struct specializer *s, struct slot_search *p, struct candidate *c,
                   const char *why, const char *who);
/* The active kernel leaves (rolled_back or disabled); eager runs from the next step. Unless it is
 * only slow (ROLLBACK_DRIFT), what it has written is not believed (dispatch_distrust()). Rolled
 * back because it is wrong (ROLLBACK_AUDIT), or for the second time, it is refused as well. */
void swap_out_locked(struct specializer *s, struct slot_search *p, enum life to, enum rollback kind,
                     const char *why, const char *who);
/* The kernel before it comes back, or eager if there is none. 0, or -1: nothing to roll back. */
int swap_back_locked(struct specializer *s, struct slot_search *p, const char *who);
/* Eager serves while the active kernel stays loaded as the previous one (pin to eager). */
void swap_eager_locked(struct specializer *s, struct slot_search *p, const char *why,
                       const char *who);
/* Refused or deferred: stored, counted, unloaded, freed. */
void candidate_refuse(struct specializer *s, struct candidate *c, enum stage stage, enum life to);
/* Done with, whatever its state: unloads later, frees now. */
void candidate_drop(struct specializer *s, struct candidate *c);
void candidate_drop_locked(struct specializer *s, struct candidate *c);
void retire_poll(struct specializer *s, bool all);

#endif
