/* SPDX-License-Identifier: Apache-2.0 */
/* reply.h - what a completion looks like: JSON bodies, stream chunks, log-probabilities, usage.
 *
 * The same pieces serve both forms: events add text, log-probabilities and ids to their choice;
 * a plain answer writes them all at the end, a stream writes what is there and clears it. So the
 * concatenated stream is the plain answer by construction. Loop thread.
 */
#ifndef WHET_SERVER_REPLY_H
#define WHET_SERVER_REPLY_H

#include "server/generation.h"

/* Adds an event's text, log-probabilities and token ids to its choice. */
void reply_event(struct choice *c, const struct inbox_event *in);
/* The body of a plain answer. Every choice has ended. */
void reply_whole(const struct generation *g, struct buf *out);
/* The chunk(s) of what is new in `c`, as server-sent events; nothing if nothing is to be said. */
void reply_chunk(struct choice *c, struct buf *out);
/* The usage chunk, if asked for, and [DONE]. */
void reply_stream_end(const struct generation *g, struct buf *out);

#endif
