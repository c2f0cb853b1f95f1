/* SPDX-License-Identifier: Apache-2.0 */
/* logprobs.h - log-probabilities of a choice in the two shapes that clients read. Loop thread. */
#ifndef WHET_SERVER_LOGPROBS_H
#define WHET_SERVER_LOGPROBS_H

#include "server/generation.h"

/* A scored token of the prompt (echo), and a generated one. */
void logprobs_prompt(struct choice *c, const struct sampled *s);
void logprobs_token(struct choice *c, const struct sampled *s);
bool logprobs_pending(const struct choice *c);
/* The JSON value: null, the legacy object, or {"content":[...]}. */
void logprobs_put(const struct choice *c, struct buf *out);
/* Forgets what was written; offsets go on. */
void logprobs_clear(struct choice *c);

#endif
