/* SPDX-License-Identifier: Apache-2.0 */
/* backlog.h - how many requests each client has in the engine, and who has the most waiting.
 *
 * Decides what happens at a full queue: not whoever comes last is refused but whoever has most
 * waiting. A request is counted from its submission to its end; it waits until it first runs.
 * Requests that belong to one answer are a group: none of them is displaced once one has run.
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

/* Of those that are in the backlog. The caller's memory; all-zero before the first one enters. */
struct backlog_group {
    int32_t active, waiting;
    bool begun; /* one has run */
};

void backlog_init(struct backlog *b, int32_t max_batch, int32_t max_queue);
void backlog_free(struct backlog *b);
/* Once it is known how many run together; nothing is accepted before. */
void backlog_batch(struct backlog *b, int32_t max_batch);

/* What becomes of a request that this client submits now: SUBMIT_OK, SUBMIT_FULL, or
 * SUBMIT_LIMITED with the reason in `err`. `limits` may be NULL. SUBMIT_OK with a client in
 * `*displaced`: provided that its newest waiting request, with the group that belongs to, ends
 * (else *displaced is 0). */
enum submit_result backlog_admit(const struct backlog *b, uint64_t client,
                                 const struct request_limits *limits, uint64_t *displaced,
                                 struct err *err);

/* The same for `n` requests at once. SUBMIT_OK: all have entered, and `displaced` [n] are to be
 * displaced, as below. Else nothing has changed. */
enum submit_result backlog_enter_all(struct backlog *b, uint64_t client,
                                     const struct request_limits *limits,
                                     struct backlog_group *group, int32_t n, uint64_t *displaced,
                                     struct err *err);

/* `group` is NULL for a request that is an answer by itself. */
void backlog_enter(struct backlog *b, uint64_t client, struct backlog_group *group);
/* One of its waiting ones runs. */
void backlog_started(struct backlog *b, uint64_t client, struct backlog_group *group);
/* One has ended; `waited`: it never ran. */
void backlog_leave(struct backlog *b, uint64_t client, struct backlog_group *group, bool waited);
/* A waiting request of `client` is to be ended; and it was, or there was none any more. */
void backlog_displace(struct backlog *b, uint64_t client);
void backlog_displaced(struct backlog *b, uint64_t client);

#endif
