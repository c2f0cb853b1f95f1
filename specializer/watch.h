/* SPDX-License-Identifier: Apache-2.0 */
/* watch.h - active kernels against eager, and against their promise. Specializer thread. */
#ifndef WHET_SPECIALIZER_WATCH_H
#define WHET_SPECIALIZER_WATCH_H

struct specializer;

void watch_poll(struct specializer *s);
/* Removes the watch's hook, so that a stage may use one. */
void watch_stop(struct specializer *s);

#endif
