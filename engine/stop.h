/* SPDX-License-Identifier: Apache-2.0 */
/* stop.h - finds stop strings in generated text as it comes.
 *
 * Text that could still be the beginning of a stop string is held back until it is decided, so
 * what was handed out never has to be taken back. Engine thread only.
 */
#ifndef WHET_ENGINE_STOP_H
#define WHET_ENGINE_STOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct stop;

/* `count` non-empty strings, copied. With `include` a match stays part of the text. */
struct stop *stop_open(const char *const *strings, int32_t count, bool include);
void stop_close(struct stop *s);

/* Appends n bytes. *out, *out_n: the text that became certain, valid until the next call. Returns
 * the number of the string that matched (the one to end first; of several that end together, the
 * longest), or -1. After a match what follows it is dropped and nothing more may be pushed. */
int32_t stop_push(struct stop *s, const char *text, size_t n, const char **out, size_t *out_n);
/* The text held back now: a suffix of everything pushed. */
const char *stop_held(const struct stop *s, size_t *n);
/* The i-th string. */
const char *stop_string(const struct stop *s, int32_t i);

#endif
