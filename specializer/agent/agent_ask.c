/* SPDX-License-Identifier: Apache-2.0 */
/* agent_ask.c - the agent's questions, and what becomes of the replies.
 *
 * plan   temperature 0.8; JSON: an idea and the lines it needs. Accepted: a new child, PLANNED.
 * code   temperature 0.1; the parent's text with those lines rewritten
 * debug  temperature 0.1; the same text again, with what it was refused for
 *
 * A text is accepted when nothing outside its spans changed, it breaks no rule (agent_text.h) and
 * nobody in the tree has it already; then it is READY for its trial. Everything else is a refusal
 * with a reason, which the next repair is told. A reply that came in no usable form counts against
 * the line's circuit breaker; one that only broke a rule does not: the model can learn from that.
 */
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "config/table.h"
#include "specializer/agent/agent_private.h"
#include "specializer/agent/agent_reply.h"
#include "specializer/agent/agent_source.h"
#include "specializer/agent/agent_text.h"
#include "specializer/store/store.h"

enum { RECORD_VERSION = 1 }; /* of what the store keeps of a question */
#define PLAN_TEMPERATURE 0.8
#define CODE_TEMPERATURE 0.1

const char *const agent_task_names[] = {"plan", "code", "debug"};
EVERY_ROW(agent_task_names, TASKS);

/* ---- questions ----------------------------------------------------------------------------- */

/* What the store keeps of a question, and a replay finds it by. */
static char *record_text(const struct agent *a, enum agent_task task, const char *document)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "version", RECORD_VERSION);
    cJSON_AddStringToObject(o, "kind", agent_task_names[task]);
    cJSON_AddStringToObject(o, "region", a->at->slot);
    cJSON_AddStringToObject(o, "prompts", a->prompts);
    cJSON_AddStringToObject(o, "text", document);
    char *text = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    return text;
}

/* A plan, told what became of the texts of other slots. */
static char *plan_text(const struct agent *a, const struct agent_view *v, int32_t node,
                       struct err *err)
{
    struct agent_kin *kin = xcalloc((size_t)a->slots, sizeof *kin);
    struct agent_view with = *v;
    with.kin = kin;
    for (int i = 0; i < a->slots; i++)
        if (a->slot[i] != a->at && a->slot[i]->tree.nodes > 0)
            kin[with.kins++] =
                (struct agent_kin){a->slot[i]->slot, &a->slot[i]->tree, a->slot[i]->format};
    char *text = agent_prompt_plan(&with, &a->at->tree, node, err);
    free(kin);
    return text;
}

static char *document_text(const struct agent *a, const struct agent_view *v, enum agent_task task,
                           int32_t node, struct err *err)
{
    const struct agent_tree *t = &a->at->tree;
    return task == TASK_PLAN   ? plan_text(a, v, node, err)
           : task == TASK_CODE ? agent_prompt_code(t, node, err)
                               : agent_prompt_debug(t, node, err);
}

void agent_ask(struct agent *a, const struct agent_view *v, enum agent_task task, int32_t node)
{
    const struct config *c = a->config;
    struct err err = {""};
    if (llm_hold(a->llm, LLM_AGENT, c->agentic_max_tokens) != HOLD_NOT)
        return;
    char *system = agent_prompt_system(v, &err);
    char *document = system ? document_text(a, v, task, node, &err) : NULL;
    if (!document) {
        log_error("agentic", "%s", err.msg);
        free(system);
        return;
    }
    struct llm_question q = {
        .user = LLM_AGENT,
        .purpose = task == TASK_PLAN   ? LLM_TASK_PLAN
                   : task == TASK_CODE ? LLM_TASK_CODE
                                       : LLM_TASK_DEBUG,
        .task = system,
        .document = document,
        .schema = task == TASK_PLAN ? xstrdup(agent_plan_schema) : NULL,
        .name = "kernel_plan",
        .record = record_text(a, task, document),
        .style = {.model = c->agentic_model[0] ? c->agentic_model : NULL,
                  .max_tokens = (int32_t)c->agentic_max_tokens,
                  .timeout = c->agentic_timeout,
                  .temperature = task == TASK_PLAN ? PLAN_TEMPERATURE : CODE_TEMPERATURE}};
    if (llm_ask(a->llm, &q) != HOLD_NOT)
        return;
    a->asked = true;
    a->task = task;
    a->node = node;
}

/* ---- replies ------------------------------------------------------------------------------- */

/* A plan becomes a child: PLANNED, or FAILED if it is none. */
static enum agent_outcome take_plan(struct agent *a, const char *reply, struct err *err)
{
    struct agent_tree *t = &a->at->tree;
    struct agent_plan *plan = xcalloc(1, sizeof *plan);
    char *body = span_strip(t->node[a->node].text), *marked = NULL;
    enum agent_outcome outcome = OUTCOME_ACCEPTED;
    if (agent_reply_plan(reply, plan, err) != 0)
        outcome = OUTCOME_FORM;
    else if (!(marked = span_mark(body, plan->span, plan->spans, err)))
        outcome = OUTCOME_SPANS;
    int32_t id = tree_add(t, a->node);
    struct agent_node *n = &t->node[id];
    n->attempts = 1;
    n->state = marked ? AGENT_PLANNED : AGENT_FAILED;
    n->text = marked ? marked : xstrdup("");
    n->label = plan->label[0] ? xstrdup(plan->label) : NULL;
    n->plan = xstrdup(plan->plan);
    n->reason = marked ? NULL : xasprintf("plan: %s", err->msg);
    snprintf(n->prompts, sizeof n->prompts, "%s", a->prompts);
    agent_keep(a, a->at, id);
    free(body);
    free(plan);
    return outcome;
}

/* The text's way from a reply to READY, as far as it gets. */
static enum agent_outcome read_text(struct agent *a, const char *reply, struct err *err)
{
    struct agent_tree *t = &a->at->tree;
    struct agent_node *n = &t->node[a->node];
    char source[17], *said = agent_reply_text(reply, err);
    if (!said)
        return OUTCOME_FORM;
    char *text = span_apply(n->text, said, err);
    free(said);
    if (!text)
        return OUTCOME_SPANS;
    /* From here on a repair is shown what was written, right or wrong. */
    agent_set(&n->text, text);
    char *body = span_strip(text);
    agent_body_hash(body, source);
    free(body);
    if (strcmp(n->source, source) != 0) /* a winner of another slot may be looked up by that one */
        n->source[0] = 0;
    if (agent_text_check(text, strlen(text), agent_language(a->machine), err) != 0) {
        n->source[0] = 0;
        return OUTCOME_RULES;
    }
    int32_t same = tree_same(t, source, -1);
    if (same >= 0) {
        err_set(err, "the text is that of attempt %d%s%s", same,
                t->node[same].state == AGENT_MEASURED ? ", measured: "
                : t->node[same].reason                ? ", refused: "
                                                      : "",
                t->node[same].reason ? t->node[same].reason : "");
        return OUTCOME_SAME;
    }
    memcpy(n->source, source, sizeof source);
    return OUTCOME_ACCEPTED;
}

static enum agent_outcome take_text(struct agent *a, const char *reply, struct err *err)
{
    enum agent_outcome outcome = read_text(a, reply, err);
    struct agent_node *n = &a->at->tree.node[a->node];
    n->attempts++;
    n->debugs += a->task == TASK_DEBUG;
    if (outcome == OUTCOME_ACCEPTED) {
        n->state = AGENT_READY;
    } else {
        static const char *const stage[AGENT_OUTCOMES] = {[OUTCOME_FORM] = "reply",
                                                          [OUTCOME_SPANS] = "spans",
                                                          [OUTCOME_RULES] = "text",
                                                          [OUTCOME_SAME] = "text"};
        tree_refuse(&a->at->tree, a->node, true);
        agent_set(&n->reason, xasprintf("%s: %s", stage[outcome], err->msg));
        agent_set(&n->log, NULL);
    }
    snprintf(n->prompts, sizeof n->prompts, "%s", a->prompts);
    agent_keep(a, a->at, a->node);
    return outcome;
}

void agent_poll(struct agent *a)
{
    const struct answer *answer;
    struct err err = {""};
    char verdict[700] = "accepted";
    struct llm_cost cost;
    if (!a->asked || !llm_over(a->llm, LLM_AGENT, &answer))
        return;
    enum agent_outcome outcome = OUTCOME_FAILED;
    a->at->unanswered = answer->fault == CALL_NO_RECORD;
    if (answer->fault == CALL_OK)
        outcome = a->task == TASK_PLAN ? take_plan(a, answer->text, &err)
                                       : take_text(a, answer->text, &err);
    if (outcome == OUTCOME_FAILED)
        snprintf(verdict, sizeof verdict, "%s: %s", call_fault_name(answer->fault), answer->why);
    else if (outcome != OUTCOME_ACCEPTED)
        snprintf(verdict, sizeof verdict, "%s", err.msg);
    atomic_fetch_add(&a->count.question[a->task][outcome], 1);
    if (outcome != OUTCOME_ACCEPTED)
        log_warn("agentic", "%s: %s: %s", a->at->slot, agent_task_names[a->task], verdict);
    char event[24];
    snprintf(event, sizeof event, "agent_%s", agent_task_names[a->task]);
    store_trace(a->store, a->at->slot, NULL, event, a->model, "%.600s", verdict);
    llm_settle(a->llm, LLM_AGENT, outcome != OUTCOME_FAILED && outcome != OUTCOME_FORM, verdict,
               &cost);
    agent_pay(a, &cost);
    a->asked = false;
}
