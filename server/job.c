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
}

struct job *job_new(struct exchange *x, void (*run)(struct job *j))
{
    struct job *j = xcalloc(1, sizeof(*j));
    j->srv = x->srv;
    j->x = x;
    j->run = run;
    j->status = 200;
    j->type = "application/json";
    j->work.data = j;
    buf_swap(&j->body, &x->req.body);
    j->rest = x->rest;
    x->rest = NULL;
    memcpy(j->who, x->id, sizeof(j->who));
    x->user = j;
    x->on_gone = on_gone;
    return j;
}

static void work(uv_work_t *w)
{
    struct job *j = w->data;
    j->run(j);
}

static void done(uv_work_t *w, int status)
{
    struct job *j = w->data;
    struct exchange *x = j->x;
    j->srv->works--;
    if (x) {
        x->on_gone = NULL;
        if (status || j->error.status)
            respond_error(x, &j->error);
        else
            respond(x, j->status, j->type, j->out.p, j->out.n);
    }
    buf_free(&j->body);
    buf_free(&j->out);
    free(j->rest);
    free(j->arg[0]);
    free(j->arg[1]);
    struct server *srv = j->srv;
    free(j);
    server_check_drained(srv);
}

void job_start(struct job *j)
{
    j->srv->works++;
    uv_queue_work(&j->srv->loop, &j->work, work, done);
}
