/* SPDX-License-Identifier: Apache-2.0 */
/* watchdog.h - has a child stopped getting anywhere? Any thread, one at a time per struct. */
#ifndef WHET_CONFIG_WATCHDOG_H
#define WHET_CONFIG_WATCHDOG_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct watchdog {
    pid_t pid;
    double cpu_limit_s;   /* CPU time that it may use from now on */
    double sleep_limit_s; /* wall time for which all of its threads may sleep */
    double cpu_start_s;
    double asleep_s; /* seen so far, since it was last seen awake */
    int64_t start_ns, looked_ns, awake_ns;
    char why[80]; /* once it is over */
};

void watchdog_start(struct watchdog *w, pid_t pid, double cpu_limit_s, double sleep_limit_s);
/* True when a limit is passed; to be asked every few ten milliseconds. Whoever asks looks first
 * whether the work is done: between two looks that were far apart it may have been. */
bool watchdog_over(struct watchdog *w);

#endif
