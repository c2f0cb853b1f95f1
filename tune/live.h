/* SPDX-License-Identifier: Apache-2.0 */
/* live.h - a language model that an ablation consults while it runs, in closed loop.
 *
 * Its replies decide what is measured next, which is what a recording cannot show. The search's
 * clock stops while the model thinks, and then goes on by the seconds that it took. What was asked
 * in the same words before is not asked again: the first question of a slot is the same for all
 * seeds, and a run that is repeated, or was broken off, costs only what is new (`record`). Budgets
 * an hour and the circuit breaker are adviser.*, as in a server. One thread.
 */
#ifndef WHET_TUNE_LIVE_H
#define WHET_TUNE_LIVE_H

#include "config/config.h"
#include "specializer/adviser/adviser_http.h"

struct live;
/* The endpoint of adviser.url; `c` is borrowed. `record`: a file of JSON lines (adviser_replay.h)
 * whose replies are used and to which new ones are added, or NULL. NULL with a message. */
struct live *live_open(const struct config *c, const char *record, struct err *err);
void live_close(struct live *l);

/* The reply to a question; waits for it. `schema` is its JSON schema. The caller frees out->text.
 */
void live_ask(struct live *l, const char *task, const char *document, const char *schema,
              const char *name, struct answer *out);

#endif
