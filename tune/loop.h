/* SPDX-License-Identifier: Apache-2.0 */
/* loop.h - the specializer's loop without a server. */
#ifndef WHET_TUNE_LOOP_H
#define WHET_TUNE_LOOP_H

#include "tune/options.h"

/* Searches the slots of `o` until its seconds are over, nothing is left, or it is told to stop.
 * Winners are in the store, as if a server had found them. -1 with a message. */
int tune_loop(struct tune_options *o, struct err *err);

#endif
