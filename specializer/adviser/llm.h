/* SPDX-License-Identifier: Apache-2.0 */
/* llm.h - the lines to a language model, one of the adviser and one of the agent.
 *
 * On each a thread carries one question at a time to the endpoint (or to a recording) and waits
 * there; whoever asked goes on meanwhile and looks for the reply now and then. A kernel takes a
 * model minutes to write, so with one line for both advice would come too late or not at all.
 * Budgets an hour and the circuit breaker are of both lines together; a question under way has its
 * call and its tokens reserved. Every exchange is stored with what came of it. All functions on
 * the specializer thread only, unless they say otherwise.
 */
#ifndef WHET_SPECIALIZER_ADVISER_LLM_H
#define WHET_SPECIALIZER_ADVISER_LLM_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdio.h>

#include "specializer/adviser/adviser_http.h"
#include "specializer/adviser/adviser_limits.h"

struct store;
struct llm;

/* Whose line it is: a reply is given only to them. */
enum llm_user { LLM_ADVISER, LLM_AGENT, LLM_USERS };

/* What a question is for: constant, name in metrics. */
#define LLM_TASK_LIST(T) \
    T(ADVICE, "advice")  \
    T(MOVES, "moves")    \
    T(PLAN, "plan")      \
    T(CODE, "code")      \
    T(DEBUG, "debug")
enum llm_task {
#define T(id, name) LLM_TASK_##id,
    LLM_TASK_LIST(T)
#undef T
        LLM_TASKS
};

/* A question. The strings are malloc'ed and belong to the line once it is put. */
struct llm_question {
    enum llm_user user;
    enum llm_task purpose;
    char *task, *document; /* system and user message */
    char *schema;          /* of the reply, or NULL */
    const char *name;      /* of the schema; static */
    char *record;          /* what is stored in the document's place; NULL: the document */
    struct call_style style;
};

/* What one exchange cost: as the endpoint counted, but no more than can be in what was asked and
 * said; if it did not count, estimated. */
struct llm_cost {
    int64_t tokens_in, tokens_out;
    double seconds;
};

/* NULL when there is no adviser.url (err->msg is empty) or it cannot be used (a message). Warns of
 * a key file that others may read. The agent's line is there if specializer.agentic is on. */
struct llm *llm_open(const struct config *c, struct store *store, struct err *err);
/* Breaks off calls that are under way, and stores exchanges that nobody took. */
void llm_close(struct llm *l);

/* Why a question of about `tokens` would not be put now; HOLD_NOT: it would be. */
enum hold llm_hold(struct llm *l, enum llm_user user, int64_t tokens);
/* Puts it; takes its strings over in any case. */
enum hold llm_ask(struct llm *l, struct llm_question *q);
/* The question of this user that is over, with its answer; NULL: none is. Valid until settled. */
const struct llm_question *llm_over(struct llm *l, enum llm_user user,
                                    const struct answer **answer);
/* Ends the exchange: stored with the verdict, counted, and good or bad for the breaker. */
void llm_settle(struct llm *l, enum llm_user user, bool good, const char *verdict,
                struct llm_cost *cost);
/* Waits until no call is under way on any line. False: after `seconds` one still was. */
bool llm_wait(struct llm *l, double seconds);
/* Any thread. */
enum breaker llm_breaker(struct llm *l);
/* Prometheus text of questions, tokens and money by task; `l` may be NULL: zeros. And the same for
 * the dashboard, of the tasks that occurred, caller deletes. Any thread. */
void llm_metrics(struct llm *l, FILE *out);
cJSON *llm_json(struct llm *l);

#endif
