/* say.h - what `whet tune` tells whoever waits for it. To stdout; the specializer's thread. */
#ifndef WHET_TUNE_SAY_H
#define WHET_TUNE_SAY_H

#include "specializer/specializer_private.h"

/* What a slot has after a round that ended `seconds` after the start: the kernel and its gain, or
 * eager and why. `again`: the round was a hearing. */
void say_round(struct specializer *s, const struct place *p, double seconds, int candidates,
               bool again);
/* The table at the end, a line a slot. */
void say_summary(struct specializer *s, struct place *const *place, int n, double seconds);

#endif
