/* SPDX-License-Identifier: Apache-2.0 */
/* tokens.h - reads the files of tests/golden/tokenizer for the tests of the tokenizer. */
#ifndef WHET_TESTS_UNIT_ENGINE_TOKENS_H
#define WHET_TESTS_UNIT_ENGINE_TOKENS_H

#include "tests/unit/unit.h"

#include "engine/tokenizer.h"
#include "tests/unit/engine/golden.h"

struct lines {
    char *data;
    char **line; /* [n] NUL-terminated; lines have no NUL of their own */
    size_t n;
};

static inline struct lines lines_read(const char *name)
{
    struct lines l = {0};
    size_t size;
    char *path = xasprintf("tokenizer/%s", name);
    l.data = (char *)golden_bytes(path, &size);
    free(path);
    for (size_t i = 0; i < size; i++)
        l.n += l.data[i] == '\n';
    l.line = xcalloc(l.n, sizeof *l.line);
    char *at = l.data;
    for (size_t i = 0; i < l.n; i++) {
        l.line[i] = at;
        at = strchr(at, '\n');
        *at++ = 0;
    }
    return l;
}

static inline void lines_free(struct lines *l)
{
    free(l->line);
    free(l->data);
}

/* Turns every \xHH of a line into its byte, in place; returns the length. */
static inline size_t unescape(char *s)
{
    char *to = s;
    for (char *from = s; *from;) {
        if (*from == '\\') {
            char hex[3] = {from[2], from[3], 0};
            *to++ = (char)strtol(hex, NULL, 16);
            from += 4;
        } else {
            *to++ = *from++;
        }
    }
    return (size_t)(to - s);
}

/* The tokenizer of that name among those files. */
static inline struct tokenizer *open_json(const char *name)
{
    struct err err = {""};
    char *file = xasprintf("tokenizer/%s.json", name), *path = golden_path(file);
    struct tokenizer *t = tokenizer_from_json(path, TOKENS_MAX, &err);
    if (!t)
        fail_msg("%s", err.msg);
    free(path);
    free(file);
    return t;
}

#endif
