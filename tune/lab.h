/* SPDX-License-Identifier: Apache-2.0 */
/* lab.h - an engine and a specializer without its thread: what the tools work with.
 *
 * The caller's thread is the specializer thread. No server, no port; the engine's thread runs, so
 * slices, taps and canaries work as they do while serving.
 */
#ifndef WHET_TUNE_LAB_H
#define WHET_TUNE_LAB_H

#include "specializer/specializer_private.h"

struct lab {
    struct engine *engine;
    struct specializer *s;
};

/* Loads the model of `c` (borrowed), opens its store. -1 with a message. */
int lab_open(struct lab *l, const struct config *c, struct err *err);
void lab_close(struct lab *l);

/* Ctrl-C and SIGTERM: what is under way is finished, what was found is kept. */
void lab_stop_on_signals(struct lab *l);
bool lab_stopped(const struct lab *l);

#endif
