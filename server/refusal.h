/* SPDX-License-Identifier: Apache-2.0 */
/* refusal.h - generations that find no room: the queue is full, or their client is at its limits.
 *
 * Each of these answers the request, and counts the refusal for its client. Loop thread.
 */
#ifndef WHET_SERVER_REFUSAL_H
#define WHET_SERVER_REFUSAL_H

#include "server/generation.h"

/* Before any work, even parsing: true if it was refused. */
bool refusal_early(struct generation *g);
/* True if it has more choices than its client may ever have at once. */
bool refusal_choices(struct generation *g);
/* True if `tokens` more are too many for the client's minute. */
bool refusal_tokens(struct generation *g, int64_t tokens);
/* The engine said SUBMIT_FULL (everybody's queue) or SUBMIT_LIMITED (the client's own limits). */
void refusal_room(struct generation *g, enum submit_result result, const struct err *err);
/* It waited, and another client's request took its place. */
void refusal_displaced(struct generation *g);

#endif
