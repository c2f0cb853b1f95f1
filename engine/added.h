/* SPDX-License-Identifier: Apache-2.0 */
/* added.h - added tokens (control and user-defined) are found in the text before anything else. */
#ifndef WHET_ENGINE_ADDED_H
#define WHET_ENGINE_ADDED_H

#include <stddef.h>
#include <stdint.h>

#include "config/err.h"
#include "engine/tokenizer.h"

struct added;

struct added *added_open(void);
void added_close(struct added *a);
/* The longest text of a token, in bytes: as far as is read ahead at every place of a text. */
enum { ADDED_TEXT_MAX = 512 };

/* Adds a token; the first of two with the same text stays. `flags`: enum added_flag. */
void added_put(struct added *a, const char *text, size_t n, int32_t id, uint8_t flags);

/* The id of the token with exactly this text; -1 if there is none. */
int32_t added_find(const struct added *a, const char *text, size_t n);

/* Receives the pieces of a text in order: a token (its id), or text between tokens (id -1, never
 * empty). -1 with the message set ends the walk. */
typedef int added_piece_fn(void *ctx, const char *piece, size_t n, int32_t id, struct err *err);

/* Cuts well-formed UTF-8 at the tokens, leftmost first and the longest of those. -1 if `piece`
 * failed or `control` says to end. */
int added_cut(const struct added *a, const char *text, size_t n, added_piece_fn *piece, void *ctx,
              struct encode_control *control, struct err *err);

#endif
