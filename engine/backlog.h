/* SPDX-License-Identifier: Apache-2.0 */
/* backlog.h - how many requests each client has in the engine, and who has the most waiting.
 *
 * Decides what happens at a full queue: not whoever comes last is refused but whoever has most
 * waiting. A request is counted from its submission to its end; it waits until it first runs.
 * Requests that belong to one answer are a group, and each is in one, if only by itself. Groups
 * come and are displaced as a whole, one for one; none is once one of its requests has run.
 * Constant or logarithmic in the number of clients that have requests. The caller locks.
 */
#ifndef WHET_ENGINE_BACKLOG_H
#define WHET_ENGINE_BACKLOG_H

#include "engine/engine.h"
#include "engine/ranking.h"

struct backlog {
    struct ranking clients; /* with a request; those that have some waiting are ranked by it */
    int32_t active, waiting;
    int32_t displacing;           /* of `waiting`: their end is decided */
    int32_t max_batch, max_queue; /* that run, and that wait beside them */
};

/* An answer: of its requests those that are in the backlog. The caller's memory; all-zero before
 * the first one enters. */
struct backlog_group {
    uint64_t client;
    int32_t active, waiting;
    bool begun;     /* one has run */
    bool displaced; /* another answer has its place in the queue: its requests are to be ended */
    bool listed;    /* the caller's: it will look at `displaced`, and the memory has to stay */
    struct backlog_group *older, *newer; /* of its client's that can be displaced */
};

void backlog_init(struct backlog *b, int32_t max_batch, int32_t max_queue);
void backlog_free(struct backlog *b);
/* Once it is known how many run together; nothing is accepted before. */
void backlog_batch(struct backlog *b, int32_t max_batch);

/* What would become of an answer of one request that this client submits now: SUBMIT_OK,
 * SUBMIT_FULL, or SUBMIT_LIMITED with the reason in `err`. `limits` may be NULL. */
enum submit_result backlog_admit(const struct backlog *b, uint64_t client,
                                 const struct request_limits *limits, struct err *err);

/* The same for an answer of `n` requests. SUBMIT_OK: all have entered, and unless *displaced is
 * NULL, the requests of that answer, which all wait, are to be ended; they count no more. Should
 * one of them run before that, its answer is `displaced` no more, and is kept. Else nothing has
 * changed.
 */
enum submit_result backlog_enter(struct backlog *b, uint64_t client,
                                 const struct request_limits *limits, struct backlog_group *group,
                                 int32_t n, struct backlog_group **displaced, struct err *err);

/* One of its waiting ones runs. */
void backlog_started(struct backlog *b, struct backlog_group *group);
/* One has ended; `waited`: it never ran. */
void backlog_leave(struct backlog *b, struct backlog_group *group, bool waited);

#endif
