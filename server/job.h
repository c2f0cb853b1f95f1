/* SPDX-License-Identifier: Apache-2.0 */
/* job.h - an answer that is worked out off the loop, in one of the lanes.
 *
 * For what may take milliseconds or wait for a lock: long texts, the specializer's store, the
 * metrics page. The worker sees only the job; the loop answers when it is done. When the client
 * leaves first, a job that has not begun never runs, and the result of one that has is dropped.
 */
#ifndef WHET_SERVER_JOB_H
#define WHET_SERVER_JOB_H

#include "server/exchange.h"
#include "server/lanes.h"

struct job {
    struct work work; /* first: a job is found by its work */
    struct server *srv;
    struct exchange *x; /* NULL once the client left; loop only */
    uint64_t held;      /* of the body, in server.held_bytes */
    void (*run)(struct job *j);
    /* In: what the worker may read. */
    struct buf body;
    char *rest;   /* what the route's `*` matched */
    char *arg[2]; /* further arguments, owned */
    int number;
    char who[REQUEST_ID_MAX + 1];
    /* Out. */
    struct api_error error; /* status != 0: answered instead */
    int status;
    const char *type; /* default application/json */
    struct buf out;
};

/* Moves the request's body and path argument into a job. Set further arguments, then start it. */
struct job *job_new(struct exchange *x, void (*run)(struct job *j));
void job_start(struct job *j, enum lane lane);
/* For clients' bodies: the lane is that of the size, and 429 is answered if too many wait. */
void job_start_body(struct job *j);
/* The client left: what takes long should stop. Any thread. */
static inline bool job_cancelled(const struct job *j)
{
    return atomic_load_explicit(&j->work.cancelled, memory_order_relaxed);
}

#endif
