/* SPDX-License-Identifier: Apache-2.0 */
/* json.h - JSON in and out: checked reading on top of cJSON, and writing straight into a buffer.
 *
 * Reading: json_parse() refuses what cJSON would take or stumble over (invalid UTF-8, raw control
 * characters, malformed escapes and numbers, trailing text, depth and element counts above the
 * caps). Getters find a member, treat null as absent, check type and range, and name the member in
 * the error.
 *
 * cJSON's strings end at NUL. So that an escaped \u0000 is not a silent cut, json_parse turns it
 * into the two bytes C0 80, which valid UTF-8 never contains; json_bytes() turns them back.
 *
 * cJSON's numbers are doubles. An integer that has too many digits for one keeps its digits as
 * well, in `valuestring`, and json_whole() and json_int() read it exactly.
 */
#ifndef WHET_SERVER_JSON_H
#define WHET_SERVER_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/buf.h"
#include "server/error.h"

/* The body as an object; NULL with a 400 in `e`. Free with cJSON_Delete. */
cJSON *json_parse(const char *text, size_t n, struct api_error *e);

/* Member `name` unless it is absent or null. Of several members of that name the last one counts,
 * as in Python, JavaScript and Go: who looked at the body before us has seen that one. */
const cJSON *json_get(const cJSON *object, const char *name);

/* True if the member is there and says something: is not null, false, "", [] or {}. */
bool json_says_something(const cJSON *object, const char *name);

/* 1 found, 0 absent (*out untouched), -1 a 400 in `e`. Bounds are inclusive. */
int json_number(const cJSON *object, const char *name, double lo, double hi, double *out,
                struct api_error *e);
int json_int(const cJSON *object, const char *name, int64_t lo, int64_t hi, int64_t *out,
             struct api_error *e);
int json_bool(const cJSON *object, const char *name, bool *out, struct api_error *e);
/* *out points into the tree. A string with a NUL character is refused here. */
int json_string(const cJSON *object, const char *name, const char **out, struct api_error *e);

/* Whether a number is a whole one within lo..hi; its value in *out. */
bool json_whole(const cJSON *item, int64_t lo, int64_t hi, int64_t *out);
/* C0 80 back to NUL, in place; returns the new length. */
size_t json_restore_nul(char *text, size_t n);
/* A string item's bytes (NUL characters restored), malloc'ed. */
char *json_bytes(const cJSON *item, size_t *n);

/* Length of the valid UTF-8 sequence at s (1..4), or 0. */
int utf8_sequence(const char *s, size_t n);

/* Writing. `n` bytes as a string literal; what is not UTF-8 becomes U+FFFD. */
void json_put_string(struct buf *out, const char *s, size_t n);
void json_put_text(struct buf *out, const char *s);
/* JSON that somebody else has made, of texts that may have any bytes (a compiler's words, say):
 * what is not UTF-8 becomes U+FFFD. */
void json_put_made(struct buf *out, const char *json);
/* A number; what JSON has no word for (infinities, NaN) becomes `instead`. */
void json_put_number(struct buf *out, double v, const char *instead);

#endif
