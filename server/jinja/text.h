/* SPDX-License-Identifier: Apache-2.0 */
/* text.h - what Python knows of characters and strings, on UTF-8 (jinja.h).
 *
 * Positions and lengths that a template sees count characters; inside, everything is bytes. Pure.
 */
#ifndef WHET_SERVER_JINJA_TEXT_H
#define WHET_SERVER_JINJA_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct span {
    const char *p;
    size_t n;
};

/* The character at s[0..n), n > 0, and how many bytes it has. Total: what is not UTF-8 is a
 * character a byte. */
uint32_t text_char(const char *s, size_t n, size_t *length);
/* Bytes of the last character of s[0..n), n > 0. */
size_t text_last(const char *s, size_t n);
size_t text_chars(const char *s, size_t n);
/* Byte position of character k, at most n. */
size_t text_offset(const char *s, size_t n, size_t k);

bool text_space(uint32_t c); /* str.isspace */
bool text_printable(uint32_t c);
bool text_alphabetic(uint32_t c);
bool text_cased(uint32_t c); /* upper, lower or title case */
bool text_is_upper(uint32_t c);
bool text_is_lower(uint32_t c);
/* Other case of one character; false where that is more than one character or depends on its
 * neighbours. */
bool text_upper(uint32_t c, uint32_t *to);
bool text_lower(uint32_t c, uint32_t *to);

/* strip(): whitespace if `chars` is NULL, else any of its characters. */
struct span text_strip(struct span s, const struct span *chars, bool left, bool right);
/* First or last place of `part`, or NULL. */
const char *text_find(struct span s, struct span part);
const char *text_find_last(struct span s, struct span part);
bool text_starts(struct span s, struct span part);
bool text_ends(struct span s, struct span part);

#endif
