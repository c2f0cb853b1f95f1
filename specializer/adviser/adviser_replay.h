/* adviser_replay.h - recorded exchanges in the place of an endpoint: adviser.url = replay:<file>.
 *
 * The file is a specializer's store, or JSON lines of one exchange each:
 *   {"region":"mlp_out/m1","kind":"advice","reply":"{...}","seconds":1.5,"tokens_in":9,"tokens_out":7}
 * with kind "advice" (the default), "moves", or an agent's "plan", "code", "debug". The k-th
 * question about a region gets the k-th recorded reply of its kind, as late as it came then; after
 * the last one nothing was recorded.
 */
#ifndef WHET_SPECIALIZER_ADVISER_ADVISER_REPLAY_H
#define WHET_SPECIALIZER_ADVISER_ADVISER_REPLAY_H

#include "specializer/adviser/adviser_http.h"

struct adviser_replay;
/* NULL with a message. */
struct adviser_replay *adviser_replay_open(const char *path, struct err *err);
void adviser_replay_close(struct adviser_replay *r);
/* The next reply to a document; out->seconds says how long it took, no time passes here. */
void adviser_replay_next(struct adviser_replay *r, const char *document, struct answer *out);

#endif
