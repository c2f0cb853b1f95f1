/* SPDX-License-Identifier: Apache-2.0 */
/* json_file.h - the JSON files of a model, read with bounds on what that may cost.
 *
 * A model is a download, and cJSON makes an item of about a hundred bytes out of two bytes of text
 * and calls itself for every level of nesting. So the text is looked over first.
 */
#ifndef WHET_ENGINE_JSON_FILE_H
#define WHET_ENGINE_JSON_FILE_H

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>

#include "config/err.h"

enum { JSON_FILE_DEPTH = 32 };

/* What one kind of file may hold. */
struct json_limits {
    size_t bytes;
    int64_t items; /* values and members, of all levels together */
};

/* A configuration; one with a vocabulary's special tokens; a list of tensors; a vocabulary. */
extern const struct json_limits json_config, json_added, json_tensors, json_vocabulary;

/* Parses one JSON value and nothing behind it; no string may contain U+0000. NULL with a message
 * that names `what`. The text need not end with a NUL. cJSON_Delete() the result. */
cJSON *json_text_parse(const char *text, size_t n, int64_t items, const char *what,
                       struct err *err);
/* The same for a file, read and not mapped. */
cJSON *json_file_parse(const char *path, const struct json_limits *limits, struct err *err);

#endif
