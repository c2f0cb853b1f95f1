/* SPDX-License-Identifier: Apache-2.0 */
/* opening.h - the first candidates of many slots at once. Specializer thread. */
#ifndef WHET_SPECIALIZER_OPENING_H
#define WHET_SPECIALIZER_OPENING_H

#include <stdbool.h>

struct specializer;

/* Begins a batch of one candidate each for slots that nobody has looked at yet and for which a good
 * point is known. False: there are no such slots, and nothing was begun. */
bool opening_start(struct specializer *s);
/* True for a moment after the first steps, where openings are made: any other batch would keep the
 * slots waiting that an opening begins with. */
bool opening_waits(struct specializer *s);

#endif
