/* SPDX-License-Identifier: Apache-2.0 */
/* prober.h - one process that probes kernels on a device, one after the other.
 *
 * For backends whose probe needs a context of its own: making one takes a quarter of a second and
 * is felt by the server's steps, and so is every piece of work that the process puts between them.
 * So there is one process as long as the server lives, and it works in slices that the engine lends
 * (engine/tuning.h), while no step is under way.
 *
 * Messages on a socket that keeps their borders, so each comes whole or not at all:
 *
 *   to the process      examine PATH     of a request (probe_request.h)
 *                       slice T          the device is yours until T (ns, CLOCK_MONOTONIC)
 *   from the process    want             a slice, please
 *                       rest             nothing of mine is on the device any more
 *                       answer JSON
 *                       last JSON        an answer, after which it ends
 *
 * One thread: the specializer's, and the engine's while that one waits in engine_slices().
 */
#ifndef WHET_SPECIALIZER_ADMISSION_PROBER_H
#define WHET_SPECIALIZER_ADMISSION_PROBER_H

#include "config/process.h"
#include "specializer/candidate/stage.h"

enum { PROBER_MESSAGE_MAX = 32 * 1024 };

/* A request on its way; owned by the caller, at the same place until it is removed. */
struct errand {
    const char *path;
    enum { ERRAND_WAITS, ERRAND_ASKED, ERRAND_ANSWERED, ERRAND_FAILED } state;
    char *answer;     /* ANSWERED: JSON; malloc'ed */
    bool fault;       /* FAILED: by what the kernel did, as far as anyone can tell */
    bool died;        /* FAILED, not by that: the process was killed, or ended without an answer */
    char reason[200]; /* FAILED */
    double seconds;   /* since it was asked */
    struct errand *next;
};

struct prober;
/* Starts the process; -1 is logged and tried again when there is a request. */
struct prober *prober_open(const struct stage_env *env);
void prober_close(struct prober *p); /* ends the process; no errand is left; NULL is fine */
void prober_add(struct prober *p, struct errand *e);
/* An errand under way ends with its process. */
void prober_remove(struct prober *p, struct errand *e);
/* Asks, listens, gives a slice if one is wanted, which may wait for the engine. */
void prober_poll(struct prober *p);
/* Held: no slices are given, and no time passes for what is under way. */
void prober_hold(struct prober *p, bool hold);

/* Seconds from a start to the next one, when the last `failures` processes answered nothing. */
double prober_patience_s(int failures, bool busy);

/* Since the prober was opened; any thread. */
struct prober_counts {
    uint64_t starts, slices, late; /* late: slices that were not given back in time */
};
struct prober_counts prober_counts(const struct prober *p);

#endif
