/* SPDX-License-Identifier: Apache-2.0 */
/* adviser_request.h - what a language model is told: one JSON document a question.
 *
 * It says what an expert would ask for: the machine as measured, what the region computes on which
 * tensors, what it takes and could take at best, the live traffic, the space with its rules in
 * words, points with their predicted times, what was tried and what came of it. It says nothing
 * about users, prompts, weights, hosts or paths.
 *
 * Points are named "<template>:<values of its knobs, in order>", so that a name means the same in
 * every run and a recorded reply stays readable.
 */
#ifndef WHET_SPECIALIZER_ADVISER_ADVISER_REQUEST_H
#define WHET_SPECIALIZER_ADVISER_ADVISER_REQUEST_H

#include <cjson/cJSON.h>

#include "specializer/adviser/adviser.h"
#include "specializer/adviser/adviser_reply.h"

/* No document is as long as this. */
enum { REQUEST_VERSION = 4, REQUEST_BYTES = 16 * 1024, ID_TEXT = 160 };

/* The question for advice on r->slot. `ranking` is the heuristic's advice. NULL if the slot cannot
 * be described in REQUEST_BYTES. Caller frees. */
char *adviser_request_text(const struct advice_request *r, const struct advice *ranking);
/* The question for moves from up to MOVES_MOST nodes of a search tree. Caller frees. */
char *adviser_moves_text(const struct advice_request *r, const struct lineage *l, int n);

/* What the model is told about its task; the same for all slots. */
extern const char adviser_advice_task[], adviser_moves_task[];

/* JSON schemas of the two replies, with the knobs of this space. Caller deletes. */
cJSON *adviser_reply_schema(const struct advice_request *r);
cJSON *adviser_moves_schema(const struct advice_request *r);

/* The machine as the facts' templates see it; `threads` are a CPU's. */
void adviser_put_device(const struct machine *m, const struct facts *f, int threads, cJSON *doc);
/* The formula and the tensors of the facts' region. */
void adviser_put_operation(const struct facts *f, cJSON *region);

void adviser_id_text(const struct space *s, int32_t id, char out[ID_TEXT]);
/* -1: no such point. */
int32_t adviser_id_find(const struct space *s, const char *text);
/* What replies about the slot may speak of; borrows r's space and names. */
struct reply_terms adviser_terms(const struct advice_request *r);

#endif
