/* SPDX-License-Identifier: Apache-2.0 */
/* adviser.h - who says where to look first (search/advice.h): a language model, or the heuristic.
 *
 * Nothing here waits for a language model. A question is handed to a thread that does nothing but
 * wait for the reply; until it is there the heuristic answers, and the next batch of that slot
 * gets what was said. One question of the adviser is under way at a time. Specializer thread only.
 */
#ifndef WHET_SPECIALIZER_ADVISER_ADVISER_H
#define WHET_SPECIALIZER_ADVISER_ADVISER_H

#include <cjson/cJSON.h>
#include <stdio.h>

#include "config/config.h"
#include "specializer/search/advice.h"

struct store;

struct adviser;
struct llm;
/* Never NULL: with a URL that cannot be used it says so in the log and the heuristic answers. */
struct adviser *adviser_open(const struct config *c, struct store *store);
/* Breaks off a call that is under way. */
void adviser_close(struct adviser *a);
/* Fills `out` for one slot; never fails and never waits. */
void adviser_ask(struct adviser *a, const struct advice_request *r, struct advice *out);
/* For a slot that will probably be searched next: asks about it now, so that the reply is there
 * when its batch begins, if it has no advice yet and nobody else waits for the line. */
void adviser_prepare(struct adviser *a, const struct advice_request *r);
/* Whether a question is being answered. Takes the answer of one that was. */
bool adviser_is_busy(struct adviser *a);
/* What was proposed for `node` of the slot's tree: 1, or 0 if nothing was. Each only once. */
int adviser_moves(struct adviser *a, const struct advice_request *r, int32_t node,
                  struct moves *out);
/* Nodes that will probably be expanded next. True: the question was put. False: something keeps it
 * back; if another question does, moves have the next turn once the line is free. */
bool adviser_want_moves(struct adviser *a, const struct advice_request *r, const struct lineage *l,
                        int n);
/* Takes in a reply that has come; the functions above do so too. */
void adviser_poll(struct adviser *a);
/* For tools without live work to go on with: waits until no call is under way. False: after
 * `seconds` one still was. */
bool adviser_wait(struct adviser *a, double seconds);
/* There is a language model to be told things. */
bool adviser_is_remote(const struct adviser *a);
/* The lines to it (llm.h), of which the agent has one; NULL: there are none. */
struct llm *adviser_llm(struct adviser *a);

/* Prometheus text of what came of all questions. Any thread. */
void adviser_metrics(struct adviser *a, FILE *out);
/* The same for the dashboard; caller deletes. Any thread. */
cJSON *adviser_json(struct adviser *a);

#endif
