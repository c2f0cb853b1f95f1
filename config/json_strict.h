/* SPDX-License-Identifier: Apache-2.0 */
/* json_strict.h - whether the escapes and numbers in a JSON text are ones that JSON has (RFC 8259,
 * sections 6 and 7).
 *
 * cJSON takes \u with digits that are none for U+0000, and its strings end there: what stood behind
 * is lost without an error. It reads numbers with strtod(), so that 01, 1. and -.5 are some, which
 * who wrote them may have meant otherwise. So texts from outside are looked over before cJSON reads
 * them.
 *
 * Any thread.
 */
#ifndef WHET_CONFIG_JSON_STRICT_H
#define WHET_CONFIG_JSON_STRICT_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

/* For main(), before there are threads: cJSON aborts as x*() do (err.h) when host memory is gone.
 * Left to itself it leaves out of a text what there is no room for, and calls a right text wrong.
 */
void json_memory(void);

/* The length of the escape that begins at s[0], a backslash, with `n` bytes to the end of the text:
 * 2, 6, or 12 for a pair of surrogates. 0 if it is none, as half a pair is. */
size_t json_escape_length(const char *s, size_t n);

/* The length of what stands for a number at s[0], outside of strings; 0 if nothing does. */
size_t json_number_length(const char *s, size_t n);
/* Whether these bytes are a number of JSON. */
bool json_is_number(const char *s, size_t length);

/* The first place in the text with a number that is none, or inside a string an escape that is none
 * or U+0000, escaped or not, which a C string cannot hold. NULL if all is good. Nothing else of the
 * text is judged. */
const char *json_bad_place(const char *text, size_t n);

/* The text's tree, for cJSON_Delete(); NULL where it has a bad place or is no JSON. */
cJSON *json_strict_parse(const char *text);

#endif
