/* SPDX-License-Identifier: Apache-2.0 */
/* fair.h - whose turn it is: fair queueing between clients, over work.
 *
 * Each client is a flow with a virtual time: the tokens that were computed for it. The flow with
 * the least virtual time among those that wait is next. Work is what steps compute for the first
 * time, prompt tokens and generated ones alike; what the prefix cache saves, or preemption makes
 * necessary again, is nobody's. Engine thread only.
 */
#ifndef WHET_ENGINE_FAIR_H
#define WHET_ENGINE_FAIR_H

#include "engine/ranking.h"
#include "engine/sequence.h"

/* Virtual time of one token: fine enough to share it between many. */
#define FAIR_TOKEN UINT64_C(4096)

enum {
    FAIR_LEAD = 8192, /* tokens: how much more than others a flow can be held to have had */
    FAIR_IDLE = 1024  /* flows without a sequence that are remembered */
};

struct flow {
    struct ranked ranked;             /* .id: the client; ranked while it waits and may run */
    uint64_t served;                  /* virtual time */
    struct sequence *oldest, *newest; /* waiting, in order of arrival */
    int32_t waiting, running;
    int32_t max_running;                 /* 0: any number */
    int32_t pages;                       /* held by its sequences; shared ones count for each */
    int32_t given;                       /* the scheduler's, within one plan: prompt tokens, */
    int32_t chunk;                       /* the first chunk of the flow's, */
    int32_t decodes;                     /* and tokens decoded */
    struct flow *idle_next, **idle_link; /* among the flows without a sequence */
};

struct fair;
struct fair *fair_open(void);
void fair_close(struct fair *f);

/* A sequence comes (its flow is found or made, seq->flow set) and goes, wherever it is. */
void fair_enter(struct fair *f, struct sequence *seq);
void fair_leave(struct fair *f, struct sequence *seq);
/* It waits, or runs. A sequence that has entered does one of both until it leaves. */
void fair_wait(struct fair *f, struct sequence *seq);
void fair_run(struct fair *f, struct sequence *seq);

/* The next flow to be served: the one whose oldest waiting sequence may run; NULL if no waiting
 * sequence may. */
struct flow *fair_next(const struct fair *f);
/* The client's flow, or NULL. */
struct flow *fair_flow(const struct fair *f, uint64_t client);
/* `tokens` were computed for it. */
void fair_charge(struct fair *f, struct flow *flow, int32_t tokens);
/* Nobody has to wait for anybody: what some had more than others was no one's loss. */
void fair_settle(struct fair *f);
/* Flows with a sequence. */
int32_t fair_active(const struct fair *f);
int32_t fair_remembered(const struct fair *f); /* flows in all */

#endif
