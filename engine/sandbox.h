/* SPDX-License-Identifier: Apache-2.0 */
/* sandbox.h - the system-call filter around code that nobody here wrote. */
#ifndef WHET_ENGINE_SANDBOX_H
#define WHET_ENGINE_SANDBOX_H

#include <stdbool.h>

#include "config/err.h"

/* What the sealed process may do besides computing, waiting on futexes, reading the clock and
 * ending: */
struct sandbox {
    int fd;     /* read and write this descriptor; -1: none */
    bool timer; /* set an interval timer */
};

/* Seals the calling process, all of its threads included: any other system call raises SIGSYS. For
 * good. False where the machine or the build (sanitizers) has no such filter. */
bool sandbox_enter(struct sandbox allowed);
/* Whether it works here: tried in a child of the calling process, for which it waits a second at
 * most where there is no process to be had. False with why: where that was so to the end, nothing
 * is known of the filter. Any thread. */
bool sandbox_works(struct err *why);
/* "openat" for what kernels try most, else "number 123"; in a static buffer per thread. */
const char *sandbox_call_name(int number);

#endif
