/* SPDX-License-Identifier: Apache-2.0 */
/* job.c - an answer that is worked out off the loop. */
#include "server/job.h"

#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "server/server.h"

static void on_gone(struct exchange *x)
{
    struct job *j = x->user;
    j->x = NULL;
    work_cancel(&j->work);
}

static void run(struct work *w)
{
    struct job *j = (struct job *)w;
    j->run(j);
}

static void job_free(struct job *j)
{
    server_release(j->srv, j->held);
    buf_free(&j->body);
    buf_free(&j->out);
    free(j->rest);
    free(j->arg[0]);
    free(j->arg[1]);
    free(j);
}

static void done(struct work *w, bool ran)
{
    struct job *j = (struct job *)w;
    struct server *srv = j->srv;
    struct exchange *x = j->x;
    (void)ran; /* only what nobody waits for is cancelled */
    if (x) {
        x->on_gone = NULL;
        if (j->error.status)
            respond_error(x, &j->error);
        else
            respond(x, j->status, j->type, j->out.p, j->out.n);
    }
    job_free(j);
    server_check_drained(srv);
}

struct job *job_new(struct exchange *x, void (*run_job)(struct job *j))
{
    struct job *j = xcalloc(1, sizeof(*j));
    j->srv = x->srv;
    j->x = x;
    j->run = run_job;
    j->status = 200;
    j->type = "application/json";
    j->work.run = run;
    j->work.done = done;
    j->held = exchange_take_body(x, &j->body);
    j->rest = x->rest;
    x->rest = NULL;
    memcpy(j->who, x->id, sizeof(j->who));
    x->user = j;
    x->on_gone = on_gone;
    return j;
}

void job_start(struct job *j, enum lane lane)
{
    work_start(&j->srv->lanes, &j->work, lane);
}

void job_start_body(struct job *j)
{
    struct exchange *x = j->x;
    if (lanes_client_works(&j->srv->lanes) < WORKS_MAX) {
        job_start(j, lane_of_body(j->body.n));
        return;
    }
    x->on_gone = NULL;
    job_free(j);
    respond_fail(x, 429, NULL, WORKS_MESSAGE, WORKS_MAX);
}
