/* SPDX-License-Identifier: Apache-2.0 */
/* lanes.c - queues with threads of their own.
 *
 * Not libuv's thread pool: that has one queue for everybody, and four clients who left their long
 * texts behind were enough to keep /metrics from ever answering.
 *
 * Invariant: w->state and the lists change under the lock; a cancelled piece of work goes from its
 * queue straight to the finished ones, so its memory is back after one turn of the loop.
 */
#include "server/lanes.h"

#include <stdlib.h>

#include "config/err.h"
#include "server/limits.h"

/* Two threads where many clients' work comes together: one long text delays no other at once. */
static const int threads_of[LANES] = {
    [LANE_SHORT] = 2, [LANE_LONG] = 2, [LANE_METRICS] = 1, [LANE_BOARD] = 1, [LANE_ADMIN] = 1};

static void append(struct work ***last, struct work *w)
{
    w->next = NULL;
    w->link = *last;
    **last = w;
    *last = &w->next;
}

static void take_out(struct work ***last, struct work *w)
{
    *w->link = w->next;
    if (w->next)
        w->next->link = w->link;
    else
        *last = w->link;
}

/* ---- the threads --------------------------------------------------------------------------- */

static void finish(struct lanes *l, struct work *w, bool ran)
{
    w->ran = ran;
    w->state = WORK_FINISHED;
    append(&l->last_finished, w);
    uv_async_send(l->wake);
}

static void serve_lane(void *arg)
{
    struct lane_thread *t = arg;
    struct lanes *l = t->lanes;
    struct lane_queue *q = &l->lane[t->lane];
    uv_mutex_lock(&l->lock);
    for (;;) {
        while (!q->first && !l->stop)
            uv_cond_wait(&q->wake, &l->lock);
        if (!q->first)
            break;
        struct work *w = q->first;
        take_out(&q->last, w);
        w->state = WORK_RUNNING;
        uv_mutex_unlock(&l->lock);
        w->run(w);
        uv_mutex_lock(&l->lock);
        finish(l, w, true);
    }
    uv_mutex_unlock(&l->lock);
}

int lanes_open(struct lanes *l, uv_async_t *wake, struct err *err)
{
    int all = 0;
    *l = (struct lanes){.wake = wake};
    uv_mutex_init(&l->lock);
    l->last_finished = &l->finished;
    for (int i = 0; i < LANES; i++) {
        uv_cond_init(&l->lane[i].wake);
        l->lane[i].last = &l->lane[i].first;
        all += threads_of[i];
    }
    l->thread = xcalloc((size_t)all, sizeof(*l->thread));
    for (int i = 0; i < LANES; i++)
        for (int k = 0; k < threads_of[i]; k++) {
            struct lane_thread *t = &l->thread[l->threads];
            t->lanes = l;
            t->lane = (enum lane)i;
            int rc = uv_thread_create(&t->id, serve_lane, t);
            if (rc)
                return err_set(err,
                               "no thread for requests (%s): is the limit of processes and "
                               "threads (pids.max, TasksMax=, ulimit -u) high enough?",
                               uv_strerror(rc));
            l->threads++;
        }
    return 0;
}

void lanes_close(struct lanes *l)
{
    if (!l->thread)
        return;
    uv_mutex_lock(&l->lock);
    l->stop = true;
    for (int i = 0; i < LANES; i++)
        uv_cond_broadcast(&l->lane[i].wake);
    uv_mutex_unlock(&l->lock);
    for (int i = 0; i < l->threads; i++)
        uv_thread_join(&l->thread[i].id);
    for (int i = 0; i < LANES; i++)
        uv_cond_destroy(&l->lane[i].wake);
    uv_mutex_destroy(&l->lock);
    free(l->thread);
    l->thread = NULL;
}

/* ---- the loop ------------------------------------------------------------------------------ */

void work_start(struct lanes *l, struct work *w, enum lane lane)
{
    struct lane_queue *q = &l->lane[lane];
    w->lanes = l;
    w->lane = lane;
    w->state = WORK_QUEUED;
    l->works[lane]++;
    uv_mutex_lock(&l->lock);
    append(&q->last, w);
    uv_cond_signal(&q->wake);
    uv_mutex_unlock(&l->lock);
}

void work_cancel(struct work *w)
{
    struct lanes *l = w->lanes;
    atomic_store(&w->cancelled, true);
    uv_mutex_lock(&l->lock);
    if (w->state == WORK_QUEUED) {
        take_out(&l->lane[w->lane].last, w);
        finish(l, w, false);
    }
    uv_mutex_unlock(&l->lock);
}

void lanes_deliver(struct lanes *l)
{
    for (;;) {
        uv_mutex_lock(&l->lock);
        struct work *w = l->finished;
        if (w)
            take_out(&l->last_finished, w);
        uv_mutex_unlock(&l->lock);
        if (!w)
            return;
        l->works[w->lane]--;
        w->done(w, w->ran);
    }
}

int lanes_client_works(const struct lanes *l)
{
    return l->works[LANE_SHORT] + l->works[LANE_LONG];
}

int lanes_works(const struct lanes *l)
{
    int n = 0;
    for (int i = 0; i < LANES; i++)
        n += l->works[i];
    return n;
}

enum lane lane_of_body(size_t bytes)
{
    return bytes <= SHORT_BODY_MAX ? LANE_SHORT : LANE_LONG;
}
