/* SPDX-License-Identifier: Apache-2.0 */
/* scheduler_private.h - the inside of struct scheduler, for scheduler.c (who is where, pages,
 * admission) and scheduler_plan.c (what runs in the next step). */
#ifndef WHET_ENGINE_SCHEDULER_PRIVATE_H
#define WHET_ENGINE_SCHEDULER_PRIVATE_H

#include "engine/fair.h"
#include "engine/scheduler.h"

struct list {
    struct sequence *oldest, *newest;
    int32_t n;
};

/* A prompt that wants a piece of this step. */
struct chunk {
    struct sequence *seq;
    int32_t want, get;
    int32_t next; /* of the same flow, or -1 */
};

struct scheduler {
    struct kvcache *kv;
    struct fair *fair;
    struct scheduler_limits limits;
    struct list running, waiting;
    int32_t pace; /* prompt tokens beside decodes */
    int32_t suspects;
    uint64_t preemptions, yields, work, forgotten;
    uint64_t cached;     /* prompt tokens that did not have to be computed */
    struct chunk *chunk; /* [max_batch] within a plan */
    struct flow **flow;  /* [max_batch] likewise: those with chunks */
};

enum {
    PREFILL_LEAST = 16, /* prefill tokens of a step even if decodes alone use up the budget */
    PIECE = 64,         /* of a step's budget, where several clients' prompts share it */
    AGEING = 8          /* computed tokens of anybody that count as one token less to wait for */
};

/* The owner whose pages a sequence may share (kvcache.h). */
uint64_t scheduler_owner(const struct scheduler *s, const struct sequence *seq);
/* Gives a running sequence the pages that it is about to compute and that are in the prefix cache
 * by now. */
void scheduler_catch_up(struct scheduler *s, struct sequence *seq);
/* Counts what it has of its prompt and neither computed itself nor found before: a sequence that
 * lost its pages finds the same again. */
void scheduler_count_cached(struct scheduler *s, struct sequence *seq);
/* Whether it should leave a step out, because another sequence computes enough of what it would. */
bool scheduler_follows(const struct scheduler *s, const struct sequence *seq);
/* Pages for all tokens of a running sequence, others' if need be; false if it had to give up its
 * own. */
bool scheduler_grow(struct scheduler *s, struct sequence *seq);
/* Lets those run whose turn it is, one by one; the first for whom there is no room ends it.
 * `admitted` gets those that had not run before (room for max_batch); returns their number. */
int32_t scheduler_admit(struct scheduler *s, struct sequence **admitted);

#endif
