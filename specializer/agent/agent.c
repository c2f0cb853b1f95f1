/* SPDX-License-Identifier: Apache-2.0 */
/* agent.c - see agent.h: trees, trials, budgets. Questions and replies are in agent_ask.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "config/log.h"
#include "config/metrics.h"
#include "specializer/agent/agent_private.h"
#include "specializer/agent/agent_source.h"
#include "specializer/agent/agent_store.h"
#include "specializer/candidate/hash.h"
#include "specializer/store/store.h"

#define AGAIN_AFTER_NS INT64_C(20000000000)

/* ---- opening ------------------------------------------------------------------------------- */

/* What was spent before: "tokens_in tokens_out cost". */
static void read_spent(struct agent *a)
{
    char text[96];
    long long in = 0, out = 0;
    double cost = 0;
    if (store_value(a->store, "agentic_spent", text, sizeof text) &&
        sscanf(text, "%lld %lld %lf", &in, &out, &cost) == 3 && in >= 0 && out >= 0 && cost >= 0 &&
        isfinite(cost)) {
        a->tokens_in = in;
        a->tokens_out = out;
        a->cost = cost;
    }
    atomic_store(&a->count.tokens_in, a->tokens_in);
    atomic_store(&a->count.tokens_out, a->tokens_out);
    atomic_store(&a->count.micro_cost, llround(a->cost * 1e6));
}

struct agent *agent_open(const struct config *c, struct store *store, struct llm *llm,
                         const char *env, enum machine_kind machine)
{
    if (strcmp(c->specializer_agentic, "on") != 0)
        return NULL;
    if (!llm)
        log_warn("agentic", "specializer.agentic is on, but adviser.url names no language model: "
                            "texts that are imported are tried, and no others");
    if (target_of(machine)->texts_beside_requests)
        log_warn("agentic", "kernels that a language model wrote will run in the GPU context that "
                            "holds the weights and the keys and values of all requests; on a GPU "
                            "no process of their own keeps them apart (docs/agentic.md)");
    struct agent *a = xcalloc(1, sizeof *a);
    a->config = c;
    a->store = store;
    a->llm = llm;
    a->machine = machine;
    snprintf(a->env, sizeof a->env, "%s", env);
    const char *model = c->agentic_model[0] ? c->agentic_model : c->adviser_model;
    snprintf(a->model, sizeof a->model, "%s", model[0] ? model : "llm");
    prompts_hash(a->prompts);
    read_spent(a);
    if (llm)
        log_info("agentic", "%s may write kernels; prompts %s; %lld tokens used so far", a->model,
                 a->prompts, (long long)(a->tokens_in + a->tokens_out));
    return a;
}

/* ---- trees --------------------------------------------------------------------------------- */

void agent_set(char **to, char *text)
{
    free(*to);
    *to = text;
}

/* Writes what the store does not have yet, in the order of the ids: behind a gap a restart finds
 * nothing. False: some is left. */
static bool settle(struct agent *a, struct slot_tree *t)
{
    struct err err;
    bool all = true;
    for (int i = 0; i < t->tree.nodes && all; i++) {
        struct agent_node *n = &t->tree.node[i];
        if (!n->unstored)
            continue;
        all = agent_store_put(a->store, a->env, t->slot, n, &err) == 0;
        n->unstored = !all;
        if (all)
            atomic_store(&a->unstored, 0);
        else if (log_due(&a->unstored))
            log_error("agentic", "%s: attempt %d not stored: %s (%llu times)", t->slot, i, err.msg,
                      (unsigned long long)atomic_load(&a->unstored));
    }
    return all;
}

void agent_keep(struct agent *a, struct slot_tree *t, int32_t node)
{
    t->tree.node[node].unstored = true;
    settle(a, t);
}

/* The seed is the root, ready to be tried like any other text. */
static void plant(struct agent *a, struct slot_tree *t, enum region region)
{
    int32_t id = tree_add(&t->tree, -1);
    struct agent_node *root = &t->tree.node[id];
    root->text = xstrdup(agent_seed(a->machine, region));
    root->label = xstrdup("the seed");
    root->state = AGENT_READY;
    snprintf(root->prompts, sizeof root->prompts, "%s", a->prompts);
    agent_body_hash(root->text, root->source);
    agent_keep(a, t, 0);
}

/* Imported texts that the tree has not seen become children of its seed. */
static void adopt(struct agent *a, struct slot_tree *t)
{
    struct agent_tree in = {0};
    struct err err;
    if (agent_store_tree(a->store, imported_texts(a->machine), t->slot, &in, &err) != 0)
        log_error("agentic", "%s: %s", t->slot, err.msg);
    t->waiting = t->tree.nodes == 0 && in.nodes > 0;
    for (int i = 0; i < in.nodes && !t->waiting; i++) {
        struct agent_node *from = &in.node[i];
        if (tree_same(&t->tree, from->source, -1) >= 0 || tree_closed(&t->tree, 0))
            continue;
        int32_t id = tree_add(&t->tree, 0);
        struct agent_node *n = &t->tree.node[id];
        n->state = AGENT_READY;
        n->text = xstrdup(from->text);
        n->plan = xstrdup(from->plan ? from->plan : "");
        n->label = xasprintf("imported: %s", from->label ? from->label : "");
        memcpy(n->source, from->source, sizeof n->source);
        memcpy(n->prompts, from->prompts, sizeof n->prompts);
        agent_keep(a, t, id);
    }
    tree_free(&in);
}

void agent_adopt(struct agent *a)
{
    for (int i = 0; i < a->slots; i++)
        adopt(a, a->slot[i]);
}

void agent_close(struct agent *a)
{
    if (!a)
        return;
    for (int i = 0; i < a->slots; i++) {
        settle(a, a->slot[i]);
        tree_free(&a->slot[i]->tree);
        free(a->slot[i]);
    }
    free(a->slot);
    free(a);
}

/* NULL: the store cannot be read now. A tree that is begun anew would be written over the one that
 * is there. */
static struct slot_tree *tree_of(struct agent *a, const char *slot)
{
    struct err err;
    for (int i = 0; i < a->slots; i++)
        if (strcmp(a->slot[i]->slot, slot) == 0)
            return a->slot[i];
    struct slot_tree *t = xcalloc(1, sizeof *t);
    t->format = -1;
    snprintf(t->slot, sizeof t->slot, "%s", slot);
    t->tree.random = hash_text((uint64_t)a->config->specializer_seed, slot);
    if (agent_store_tree(a->store, a->env, slot, &t->tree, &err) != 0) {
        if (log_due(&a->unread))
            log_error("agentic", "%s: its texts cannot be read: %s (%llu times)", slot, err.msg,
                      (unsigned long long)atomic_load(&a->unread));
        tree_free(&t->tree);
        free(t);
        return NULL;
    }
    atomic_store(&a->unread, 0);
    a->slot = xrealloc(a->slot, (size_t)(a->slots + 1) * sizeof(struct slot_tree *));
    a->slot[a->slots++] = t;
    adopt(a, t);
    return t;
}

/* ---- budgets ------------------------------------------------------------------------------- */

/* Tokens and money are left. */
static bool can_pay(const struct agent *a)
{
    const struct config *c = a->config;
    return a->llm && a->tokens_in + a->tokens_out + c->agentic_max_tokens <= c->agentic_tokens &&
           (c->agentic_cost <= 0 || a->cost < c->agentic_cost);
}

void agent_pay(struct agent *a, const struct llm_cost *cost)
{
    char text[96];
    a->tokens_in += cost->tokens_in;
    a->tokens_out += cost->tokens_out;
    a->cost += ((double)cost->tokens_in * a->config->agentic_price_in +
                (double)cost->tokens_out * a->config->agentic_price_out) *
               1e-6;
    snprintf(text, sizeof text, "%lld %lld %.9g", (long long)a->tokens_in, (long long)a->tokens_out,
             a->cost);
    store_set(a->store, "agentic_spent", text, NULL);
    atomic_store(&a->count.tokens_in, a->tokens_in);
    atomic_store(&a->count.tokens_out, a->tokens_out);
    atomic_store(&a->count.micro_cost, llround(a->cost * 1e6));
}

/* ---- moves --------------------------------------------------------------------------------- */

bool agent_idle(const struct agent *a)
{
    return !a->asked && !a->ready && clock_ns() >= a->not_before;
}

/* Something was begun that costs no more questions to see through. */
static bool has_ready(const struct agent_tree *t)
{
    for (int i = 0; i < t->nodes; i++)
        if (t->node[i].state == AGENT_READY)
            return true;
    return false;
}

bool agent_may(struct agent *a, const char *slot, int *measured, int *dry)
{
    struct slot_tree *of = tree_of(a, slot);
    *measured = *dry = 0;
    if (!of)
        return false;
    struct agent_tree *t = &of->tree;
    uint64_t random = t->random; /* looking is not choosing */
    int32_t node;
    bool alive = t->nodes == 0 || tree_next(t, &node) != AGENT_NOTHING;
    t->random = random;
    tree_progress(t, measured, dry);
    if (has_ready(t) || (t->nodes == 0 && (a->llm || of->waiting)))
        return true;
    return alive && !of->unanswered && t->nodes > 0 &&
           tree_attempts(t) < a->config->agentic_attempts && can_pay(a);
}

void agent_move(struct agent *a, const struct agent_view *v)
{
    static const enum agent_task task[] = {
        [AGENT_PLAN] = TASK_PLAN, [AGENT_CODE] = TASK_CODE, [AGENT_DEBUG] = TASK_DEBUG};
    int32_t node;
    struct slot_tree *at = tree_of(a, v->slot);
    if (!at)
        return;
    a->at = at;
    a->at->format = v->facts->REGION == REGION_ATTN ? -1 : v->facts->WTYPE;
    if (a->at->tree.nodes == 0) {
        plant(a, a->at, (enum region)v->facts->REGION);
        adopt(a, a->at);
    }
    if (!settle(a, at)) /* the text of a kernel that is tried may be a winner's tomorrow */
        return;
    enum agent_move move = tree_next(&a->at->tree, &node);
    if (move == AGENT_TRY) {
        a->ready = true;
        a->node = node;
    } else if (move != AGENT_NOTHING) {
        agent_ask(a, v, task[move], node);
    }
}

/* Words of compilers and checkers go to the model, and how this machine's folders are called is
 * none of its business: of an absolute path only the last part stays. */
static char *without_paths(const char *text)
{
    char *out = xcalloc(strlen(text) + 1, 1), *to = out;
    for (const char *at = text; *at; at++) {
        bool begins = *at == '/' && (at == text || strchr(" \t\n\"'`(", at[-1]));
        if (begins && at[1] && !strchr(" /*=", at[1])) {
            size_t n = strcspn(at, " \t\n\"'`:,)");
            const char *last = at;
            for (size_t i = 0; i < n; i++)
                if (at[i] == '/')
                    last = at + i;
            at = last;
            continue;
        }
        *to++ = *at;
    }
    return out;
}

/* ---- trials -------------------------------------------------------------------------------- */

int agent_ready(const struct agent *a, const char **slot, int32_t *node,
                const struct agent_node **out)
{
    if (!a->ready || clock_ns() < a->not_before)
        return 0;
    *slot = a->at->slot;
    *node = a->node;
    *out = &a->at->tree.node[a->node];
    return 1;
}

void agent_learn(struct agent *a, int32_t node, double speed, const char *reason, const char *log)
{
    struct agent_node *n = &a->at->tree.node[node];
    const bool seed = node == 0;
    if (n->debugs > 0)
        atomic_fetch_add(speed > 0 ? &a->count.repaired : &a->count.not_repaired, 1);
    if (speed > 0) {
        n->state = AGENT_MEASURED;
        n->speed = speed;
        agent_set(&n->reason, reason && reason[0] ? xstrdup(reason) : NULL);
        atomic_fetch_add(&a->count.measured, 1);
    } else {
        tree_refuse(&a->at->tree, node, !seed);
        agent_set(&n->reason, without_paths(reason));
        atomic_fetch_add(&a->count.refused, 1);
    }
    agent_set(&n->log, log ? without_paths(log) : NULL);
    agent_keep(a, a->at, node);
    char what[80];
    snprintf(what, sizeof what, "%.3f times eager", speed);
    store_trace(a->store, a->at->slot, NULL, "agent_trial", a->model, "attempt %d (%s): %s", node,
                n->label ? n->label : "", speed > 0 ? what : reason);
    a->ready = false;
}

void agent_forget(struct agent *a, int32_t node)
{
    if (!a->ready || a->node != node)
        return;
    a->ready = false; /* the node stays ready in its tree */
    a->not_before = clock_ns() + AGAIN_AFTER_NS;
}

void agent_revise(struct agent *a, const char *slot, int32_t node, double speed, const char *reason)
{
    struct slot_tree *t = tree_of(a, slot);
    if (!t || node >= t->tree.nodes)
        return;
    struct agent_node *n = &t->tree.node[node];
    if (speed > 0) {
        n->state = AGENT_MEASURED;
        n->speed = speed;
    } else {
        tree_refuse(&t->tree, node, node > 0);
    }
    agent_set(&n->reason, reason && reason[0] ? without_paths(reason) : NULL);
    agent_keep(a, t, node);
}

/* ---- metrics ------------------------------------------------------------------------------- */

static void put_questions(const struct agent *a, FILE *out)
{
    static const char *const outcomes[AGENT_OUTCOMES] = {
#define O(id, name) name,
        AGENT_OUTCOME_LIST(O)
#undef O
    };
    char label[80];
    metric_head(out, "agentic_questions_total", "counter",
                "Questions to the model that writes kernels, by task and outcome");
    for (int t = 0; t < TASKS; t++)
        for (int o = 0; o < AGENT_OUTCOMES; o++) {
            snprintf(label, sizeof label, "task=\"%s\",outcome=\"%s\"", agent_task_names[t],
                     outcomes[o]);
            metric_value(out, "agentic_questions_total", label,
                         a ? (double)atomic_load(&a->count.question[t][o]) : 0);
        }
}

void agent_metrics(struct agent *a, FILE *out)
{
    put_questions(a, out);
    metric_head(out, "agentic_trials_total", "counter",
                "Texts of the model that were tried, by whether they were right and measured");
    metric_value(out, "agentic_trials_total", "result=\"measured\"",
                 a ? (double)atomic_load(&a->count.measured) : 0);
    metric_value(out, "agentic_trials_total", "result=\"refused\"",
                 a ? (double)atomic_load(&a->count.refused) : 0);
    metric_head(out, "agentic_repairs_total", "counter",
                "Trials of texts that had been refused before and were repaired");
    metric_value(out, "agentic_repairs_total", "result=\"measured\"",
                 a ? (double)atomic_load(&a->count.repaired) : 0);
    metric_value(out, "agentic_repairs_total", "result=\"refused\"",
                 a ? (double)atomic_load(&a->count.not_repaired) : 0);
    metric_head(out, "agentic_tokens_total", "counter",
                "Tokens of the model that writes kernels, over restarts");
    metric_value(out, "agentic_tokens_total", "direction=\"in\"",
                 a ? (double)atomic_load(&a->count.tokens_in) : 0);
    metric_value(out, "agentic_tokens_total", "direction=\"out\"",
                 a ? (double)atomic_load(&a->count.tokens_out) : 0);
    metric_head(out, "agentic_cost_total", "counter",
                "Money spent on it, by agentic.price_in and price_out, over restarts");
    metric_value(out, "agentic_cost_total", NULL,
                 a ? (double)atomic_load(&a->count.micro_cost) * 1e-6 : 0);
}

cJSON *agent_json(const struct agent *a)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "measured", (double)atomic_load(&a->count.measured));
    cJSON_AddNumberToObject(o, "refused", (double)atomic_load(&a->count.refused));
    cJSON_AddNumberToObject(o, "repaired", (double)atomic_load(&a->count.repaired));
    cJSON_AddNumberToObject(o, "not_repaired", (double)atomic_load(&a->count.not_repaired));
    return o;
}
