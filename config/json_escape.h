/* SPDX-License-Identifier: Apache-2.0 */
/* json_escape.h - whether the escapes in a JSON text are ones that JSON has (RFC 8259, section 7).
 *
 * cJSON takes \u with digits that are none for U+0000, and its strings end there: what stood behind
 * is lost without an error. So texts from outside are looked over before cJSON reads them.
 *
 * Pure functions: any thread.
 */
#ifndef WHET_CONFIG_JSON_ESCAPE_H
#define WHET_CONFIG_JSON_ESCAPE_H

#include <stddef.h>

/* The length of the escape that begins at s[0], a backslash, with `n` bytes to the end of the text:
 * 2, 6, or 12 for a pair of surrogates. 0 if it is none, as half a pair is. */
size_t json_escape_length(const char *s, size_t n);

/* The first place inside a string of the text with an escape that is none, or with U+0000, escaped
 * or not, which a C string cannot hold. NULL if all is good. Nothing else of the text is judged. */
const char *json_bad_escape(const char *text, size_t n);

#endif
