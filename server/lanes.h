/* SPDX-License-Identifier: Apache-2.0 */
/* lanes.h - work off the loop, on threads that clients' work and operators' work do not share.
 *
 * A lane is a queue, first in first out, with threads of its own. Texts that clients send are
 * parsed and tokenized in two lanes, so that a short one never waits for a long one; what
 * operators ask for has lanes where no client's text ever is, so that /metrics and /admin answer
 * however much there is to tokenize, and one each, because an export of the store takes a while.
 *
 * A piece of work is embedded in what it works on. run() is called on a thread of the lane and
 * done() afterwards on the loop. Work that nobody waits for any more is cancelled: what has not
 * begun never runs, and what has sees `cancelled` and should come to an end. done() is called
 * once in every case, and never from within work_start() or work_cancel().
 *
 * The number in a lane is bounded by who starts work: a connection has one piece at a time, and
 * clients' work is refused above WORKS_MAX (429). Loop thread, except run().
 */
#ifndef WHET_SERVER_LANES_H
#define WHET_SERVER_LANES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

#include "config/err.h"

enum lane {
    LANE_SHORT, /* clients' bodies up to SHORT_BODY_MAX */
    LANE_LONG,  /* longer ones */
    LANE_METRICS,
    LANE_BOARD, /* /specializer, which the dashboard polls */
    LANE_ADMIN,
    LANES,
};

struct work {
    void (*run)(struct work *w);
    /* `ran` is false if it was cancelled before it began. The work may be freed in here. */
    void (*done)(struct work *w, bool ran);
    _Atomic bool cancelled; /* set by the loop, read by run() */
    /* The lane's: */
    struct lanes *lanes;
    enum lane lane;
    enum { WORK_QUEUED, WORK_RUNNING, WORK_FINISHED } state; /* under the lock */
    bool ran;
    struct work *next, **link; /* in the queue it waits in, or among the finished */
};

struct lane_queue {
    uv_cond_t wake;
    struct work *first, **last; /* that nobody has begun with */
};

struct lanes {
    uv_mutex_t lock;
    struct lane_queue lane[LANES];
    struct work *finished, **last_finished;
    bool stop;
    uv_async_t *wake; /* sent when something has finished: call lanes_deliver */
    struct lane_thread {
        uv_thread_t id;
        struct lanes *lanes;
        enum lane lane;
    } * thread;
    int threads;
    int works[LANES]; /* queued, running or waiting for done(); loop thread */
};

/* Starts the threads; `wake` must have been initialized and outlive them. -1 with the reason where
 * the system has no thread; then, too, lanes_close() is next. */
int lanes_open(struct lanes *l, uv_async_t *wake, struct err *err);
/* Ends the threads. No work may be left (lanes_works is 0). */
void lanes_close(struct lanes *l);

void work_start(struct lanes *l, struct work *w, enum lane lane);
void work_cancel(struct work *w);
/* Calls done() for what has finished. */
void lanes_deliver(struct lanes *l);

/* Pieces of work there are: clients' (LANE_SHORT, LANE_LONG), and all. */
int lanes_client_works(const struct lanes *l);
int lanes_works(const struct lanes *l);
/* The error of what comes above WORKS_MAX. */
#define WORKS_MESSAGE "%d requests wait to be read; try again later"
/* The lane for a client's body of `bytes`. */
enum lane lane_of_body(size_t bytes);

#endif
