/* SPDX-License-Identifier: Apache-2.0 */
/* opening.h - the first candidates of many slots at once. Specializer thread. */
#ifndef WHET_SPECIALIZER_OPENING_H
#define WHET_SPECIALIZER_OPENING_H

#include <stdbool.h>

struct specializer;

/* Of the time of steps: a slot with less has no first kernel before the others, since it would wait
 * for live steps most of the time. */
#define OPENING_SHARE 0.02

/* Begins a batch of one candidate each for slots that nobody has looked at yet and for which a good
 * point is known. False: there are no such slots, and nothing was begun. */
bool opening_start(struct specializer *s);
/* True for a moment after the first steps, until it is known what they consist of: any batch would
 * keep those slots waiting that matter most. */
bool opening_waits(struct specializer *s);

#endif
