/* SPDX-License-Identifier: Apache-2.0 */
/* agent_private.h - the inside of struct agent, for agent.c and agent_ask.c. */
#ifndef WHET_SPECIALIZER_AGENT_AGENT_PRIVATE_H
#define WHET_SPECIALIZER_AGENT_AGENT_PRIVATE_H

#include <stdatomic.h>

#include "specializer/adviser/llm.h"
#include "specializer/agent/agent.h"

/* What a question was for. */
enum agent_task { TASK_PLAN, TASK_CODE, TASK_DEBUG, TASKS };
extern const char *const agent_task_names[]; /* agent_ask.c */

/* How a question, or a text, ended: for the metrics. */
#define AGENT_OUTCOME_LIST(O) \
    O(ACCEPTED, "accepted")   \
    O(FORM, "form")           \
    O(SPANS, "spans")         \
    O(RULES, "rules")         \
    O(SAME, "same_text")      \
    O(FAILED, "failed")
enum agent_outcome {
#define O(id, name) OUTCOME_##id,
    AGENT_OUTCOME_LIST(O)
#undef O
        AGENT_OUTCOMES
};

struct slot_tree {
    char slot[40];
    struct agent_tree tree;
    int32_t format;  /* of its weights, once it was under work: agent_kin */
    bool waiting;    /* imported texts are there, and no seed yet to hang them on */
    bool unanswered; /* by a recording that has nothing more to say of the slot */
};

struct agent {
    const struct config *config;
    struct store *store;
    struct llm *llm; /* NULL: nobody is asked, imported texts are tried */
    enum machine_kind machine;
    char env[17], prompts[17], model[64];
    struct slot_tree **slot; /* one a slot that was ever looked at */
    int slots;

    struct slot_tree *at; /* the tree under work; NULL: none */
    enum agent_task task;
    _Atomic uint64_t unread, unstored; /* trees and nodes that the store did not give or take; in a
                                          row */
    bool asked, ready;
    int32_t node;       /* of the question (PLAN: the parent) or the trial */
    int64_t not_before; /* clock_ns(): after something that was nobody's fault */

    int64_t tokens_in, tokens_out; /* over restarts */
    double cost;
    struct {
        _Atomic uint64_t question[TASKS][AGENT_OUTCOMES], measured, refused;
        _Atomic uint64_t repaired, not_repaired; /* trials of texts that had been refused before */
        _Atomic int64_t tokens_in, tokens_out, micro_cost;
    } count;
};

/* Writes the node. One that the store does not take is written before the next move in its tree. */
void agent_keep(struct agent *a, struct slot_tree *t, int32_t node);
void agent_pay(struct agent *a, const struct llm_cost *cost);
/* Takes `text` (malloc'ed or NULL) into *to. */
void agent_set(char **to, char *text);

/* agent_ask.c: puts the question for a task on `node` of a->at. */
void agent_ask(struct agent *a, const struct agent_view *v, enum agent_task task, int32_t node);

#endif
