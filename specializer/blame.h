/* SPDX-License-Identifier: Apache-2.0 */
/* blame.h - which kernels the process before this one died of. Specializer thread, at its start,
 * before anything is restored.
 */
#ifndef WHET_SPECIALIZER_BLAME_H
#define WHET_SPECIALIZER_BLAME_H

#include "config/err.h"

struct specializer;

/* Counts that death against the kernels that were on trial, and against those that served when a
 * fault ended it; of these it refuses whichever is known, or too often suspected, to have been the
 * cause. From now on a fault of this process is noted for the next. -1 with the store's message if
 * something could not be written: nothing may be restored then, and it may be called again, which
 * goes on where it came to. */
int blame_deaths(struct specializer *s, struct err *err);
/* No longer: the specializer ends. */
void blame_end(struct specializer *s);

#endif
