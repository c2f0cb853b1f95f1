/* SPDX-License-Identifier: Apache-2.0 */
/* adviser_replay.h - recorded exchanges in the place of an endpoint: adviser.url = replay:<file>.
 *
 * The file is a specializer's store, or JSON lines of one exchange each:
 *   {"region":"mlp_out/m1","kind":"advice","reply":"{...}","seconds":1.5,"tokens_in":9,"tokens_out":7}
 * with kind "advice" (the default), "moves", or an agent's "plan", "code", "debug". A line may have
 * "state", or the question itself as "request", which tells region, kind and state. The state of an
 * adviser's question is a hash of how far the search was (slot, results, lessons, nodes), so that a
 * recording outlives words, machines and predictions; that of an agent's, of its text. A question
 * in a state that was recorded gets what was said then; another one the first reply of its region
 * and kind that was not given yet, and after the last one nothing was recorded. Replies come as
 * late as they came then.
 */
#ifndef WHET_SPECIALIZER_ADVISER_ADVISER_REPLAY_H
#define WHET_SPECIALIZER_ADVISER_ADVISER_REPLAY_H

#include <stdbool.h>

#include "specializer/adviser/adviser_http.h"

struct adviser_replay;
/* NULL with a message. */
struct adviser_replay *adviser_replay_open(const char *path, struct err *err);
void adviser_replay_close(struct adviser_replay *r);
/* The reply to a document; out->seconds says how long it took, no time passes here. */
void adviser_replay_next(struct adviser_replay *r, const char *document, struct answer *out);

/* For recording: an empty one; the reply in this state, or false; and another exchange with
 * `model`, whose line for a file the caller frees. Whoever reads the line takes the model's name
 * for a remark. */
struct adviser_replay *adviser_replay_new(void);
bool adviser_replay_find(struct adviser_replay *r, const char *document, struct answer *out);
char *adviser_replay_keep(struct adviser_replay *r, const char *document, const struct answer *a,
                          const char *model);

#endif
