/* SPDX-License-Identifier: Apache-2.0 */
/* why.h - why a slot is on eager. */
#ifndef WHET_SPECIALIZER_WHY_H
#define WHET_SPECIALIZER_WHY_H

#include "specializer/slot_search.h"

/* c left in that state, with its reason: it is remembered if nobody came farther. */
void why_note_locked(struct slot_search *p, enum life left, const struct candidate *c);
/* c was set aside without a verdict: its reason is told where nobody has come farther. */
void why_undecided_locked(struct slot_search *p, const struct candidate *c);
/* There is nothing to try there. */
void why_no_point_locked(struct slot_search *p);
/* After a start: what the store knows. */
void why_recall(struct specializer *s);
/* "canary: whole steps -0.6 % [-1.0, -0.3]", "not searched yet", ... */
void why_eager_locked(struct specializer *s, const struct slot_search *p, char out[WHY_TEXT]);

#endif
