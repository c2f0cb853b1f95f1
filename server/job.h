/* job.h - an answer that is worked out off the loop, on libuv's thread pool.
 *
 * For what may take milliseconds or wait for a lock: long texts, the specializer's store, the
 * metrics page. The worker sees only the job; the loop answers when it is done, or drops the
 * result if the client left meanwhile.
 */
#ifndef WHET_SERVER_JOB_H
#define WHET_SERVER_JOB_H

#include <uv.h>

#include "server/exchange.h"

struct job {
    uv_work_t work;
    struct server *srv;
    struct exchange *x; /* NULL once the client left; loop only */
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
void job_start(struct job *j);

#endif
