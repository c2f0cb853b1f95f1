/* SPDX-License-Identifier: Apache-2.0 */
/* lookup.h - where a sequence's last tokens stood before, and what followed there.
 *
 * Prompt lookup (Saxena 2023, "Prompt lookup decoding"): text that is summarized, edited or quoted
 * comes again, so what followed the last tokens' longest earlier occurrence is a guess for what
 * comes next, and costs no model. Occurrences are found as compressors find them, by hash chains
 * over pairs of tokens: linear memory, constant time a token, and a search that looks at a bounded
 * number of places.
 *
 * A second text can be searched besides: what a client predicts that the answer will be. Engine
 * thread only.
 */
#ifndef WHET_ENGINE_LOOKUP_H
#define WHET_ENGINE_LOOKUP_H

#include <stdint.h>

struct lookup;

/* `predicted` [predicted_n] is copied; NULL for none. */
struct lookup *lookup_open(const int32_t *predicted, int32_t predicted_n);
void lookup_close(struct lookup *l);

/* Bytes of it. */
int64_t lookup_bytes(const struct lookup *l);

/* A guess at what follows `tokens` [n], of at most `most` tokens, into tokens[n...]: the caller has
 * room there. Between two calls `tokens` only grows; tokens before `prompt_n` were given, not
 * generated. Returns how many tokens were guessed; *match is how many tokens, up to LOOKUP_MATCH,
 * stood before the guess as they stand at the end of `tokens`. */
enum { LOOKUP_LEAST = 2, LOOKUP_MATCH = 32 };
int32_t lookup_guess(struct lookup *l, int32_t *tokens, int32_t n, int32_t prompt_n, int32_t most,
                     int32_t *match);

#endif
