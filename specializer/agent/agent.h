/* SPDX-License-Identifier: Apache-2.0 */
/* agent.h - the agentic strategy: a language model writes kernels, one text at a time.
 *
 * For each slot a tree (agent_tree.h) of texts. A move is a plan (which lines of a text to change,
 * and how), a text written to a plan, a repair of a text that was refused, or the trial of a text
 * that obeys the rules. Questions go over the adviser's line (llm.h) and nothing waits for them;
 * trials go through every stage that any candidate goes through (agent_loop.c). Every node is in
 * the store before anything is done with it, so a restart goes on where it was.
 *
 * Budgets: attempts in a slot, tokens and money in all (over restarts), and the lines' own an hour.
 * Specializer thread only, but for the metrics.
 */
#ifndef WHET_SPECIALIZER_AGENT_AGENT_H
#define WHET_SPECIALIZER_AGENT_AGENT_H

#include <cjson/cJSON.h>
#include <stdio.h>

#include "config/config.h"
#include "specializer/agent/agent_prompt.h"

struct agent;
struct llm;
struct store;

/* NULL unless specializer.agentic is on. Without a line to a model (said in the log) texts of other
 * servers are tried, whenever they come. `env`: of the keys (candidate.h); `machine`: what texts
 * are written for. */
struct agent *agent_open(const struct config *c, struct store *store, struct llm *llm,
                         const char *env, enum machine_kind machine);
void agent_close(struct agent *a);

/* Takes the texts that were imported for slots into their trees, where they wait for their trials.
 */
void agent_adopt(struct agent *a);

/* Neither a question nor a trial is under way, and no text waits for its trial. */
bool agent_idle(const struct agent *a);
/* The slot's tree lives and the budgets are not used up; with its results so far. */
bool agent_may(struct agent *a, const char *slot, int *measured, int *dry);
/* The next move in the slot's tree: puts a question, or makes a text ready. Call when idle. */
void agent_move(struct agent *a, const struct agent_view *v);
/* Reads a reply that has come. */
void agent_poll(struct agent *a);

/* A text that waits for its trial: 1 with its slot, node and body (valid until agent_learn() or
 * agent_forget()); or 0. */
int agent_ready(const struct agent *a, const char **slot, int32_t *node,
                const struct agent_node **out);
/* What came of a trial: the speed relative to eager if it was right (> 0), with what was measured
 * besides as `reason` ("": nothing); else the reason of the refusal. `log` may be NULL. */
void agent_learn(struct agent *a, int32_t node, double speed, const char *reason, const char *log);
/* Nothing was learnt: tried again, not before some time has passed. */
void agent_forget(struct agent *a, int32_t node);
/* A text was admitted for its speed but refused later, or published: its row says so. */
void agent_revise(struct agent *a, const char *slot, int32_t node, double speed,
                  const char *reason);

/* Prometheus text; any thread. `a` may be NULL: the same names with zeros. */
void agent_metrics(struct agent *a, FILE *out);
/* Trials for the dashboard, caller deletes; any thread. */
cJSON *agent_json(const struct agent *a);

#endif
