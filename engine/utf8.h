/* SPDX-License-Identifier: Apache-2.0 */
/* utf8.h - the few things whet needs to know about UTF-8.
 *
 * Ill-formed input is replaced the way the Unicode standard recommends and both Python's
 * errors='replace' and Rust's from_utf8_lossy do it: one U+FFFD for each maximal subpart
 * (Unicode 15, section 3.9, table 3-8). Also home of utf8_stream_push() of tokenizer.h.
 */
#ifndef WHET_ENGINE_UTF8_H
#define WHET_ENGINE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads one character of s[0..n), n >= 1. Returns its length 1..4 and sets *cp; or -k if the
 * first k bytes are a maximal ill-formed subpart; or 0 if all n bytes are the beginning of a
 * character that goes on. */
int utf8_decode(const char *s, size_t n, uint32_t *cp);

/* Writes cp (a scalar value) as 1..4 bytes and returns how many. */
int utf8_encode(uint32_t cp, char *out);

bool utf8_valid(const char *s, size_t n);

/* s with every ill-formed part replaced by U+FFFD; malloc'ed, NUL-terminated. */
char *utf8_lossy(const char *s, size_t n, size_t *length);

/* The property White_Space. */
bool utf8_is_space(uint32_t cp);

#endif
