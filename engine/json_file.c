/* SPDX-License-Identifier: Apache-2.0 */
/* json_file.c - see json_file.h. */
#include "engine/json_file.h"

#include <stdlib.h>
#include <string.h>

#include "config/json_strict.h"
#include "engine/filemap.h"

/* The largest vocabularies of today (Gemma, 262,000 tokens) have 35 MB and 1.9 million items; a
 * file at the limit takes half a gigabyte while it is read. */
const struct json_limits json_config = {1 << 20, 1 << 16}, json_added = {16 << 20, 1 << 20},
                         json_tensors = {32 << 20, 1 << 20}, json_vocabulary = {128 << 20, 4 << 20};

/* Bounds from above, without knowing whether the text is JSON: every item but the first stands
 * behind a comma or an opening bracket. */
static int check_size(const char *text, size_t n, int64_t most, const char *what, struct err *err)
{
    int64_t items = 1;
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (in_string) {
            i += c == '\\';
            in_string = c != '"';
            continue;
        }
        in_string = c == '"';
        items += c == ',' || c == '[' || c == '{';
        depth += (c == '[' || c == '{') - (c == ']' || c == '}');
        if (depth > JSON_FILE_DEPTH)
            return err_set(err, "%s: nested deeper than %d levels", what, JSON_FILE_DEPTH);
        if (items > most)
            return err_set(err, "%s: more than %lld items", what, (long long)most);
    }
    return 0;
}

/* `text` ends with a NUL behind its n bytes: some versions of cJSON look one byte too far. */
static cJSON *parse(const char *text, size_t n, int64_t items, const char *what, struct err *err)
{
    const char *end = NULL;
    if (check_size(text, n, items, what, err))
        return NULL;
    const char *bad = json_bad_place(text, n);
    if (bad) {
        err_set(err, "%s: not valid JSON: malformed escape or number, or U+0000, at byte %zu", what,
                (size_t)(bad - text));
        return NULL;
    }
    cJSON *json = cJSON_ParseWithLengthOpts(text, n, &end, 0);
    while (json && end < text + n && strchr(" \t\r\n", *end) && *end)
        end++;
    if (!json || end != text + n) {
        err_set(err, json ? "%s: not valid JSON: text behind the value" : "%s: not valid JSON",
                what);
        cJSON_Delete(json);
        return NULL;
    }
    return json;
}

cJSON *json_text_parse(const char *text, size_t n, int64_t items, const char *what, struct err *err)
{
    char *copy = xmalloc(n + 1);
    memcpy(copy, text, n);
    copy[n] = 0;
    cJSON *json = parse(copy, n, items, what, err);
    free(copy);
    return json;
}

cJSON *json_file_parse(const char *path, const struct json_limits *limits, struct err *err)
{
    size_t n;
    char *text = file_read(path, limits->bytes, &n, err);
    cJSON *json = text ? parse(text, n, limits->items, path, err) : NULL;
    free(text);
    return json;
}
