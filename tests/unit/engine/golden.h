/* SPDX-License-Identifier: Apache-2.0 */
/* golden.h - reading the checked-in reference data of tests/golden in unit tests. */
#ifndef WHET_TESTS_UNIT_ENGINE_GOLDEN_H
#define WHET_TESTS_UNIT_ENGINE_GOLDEN_H

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"

/* Path of a file of tests/golden; the caller frees it. */
static inline char *golden_path(const char *name)
{
    const char *root = getenv("WHET_SOURCE_ROOT");
    return xasprintf("%s/tests/golden/%s", root ? root : ".", name);
}

/* The whole file, 64-byte aligned, NUL behind it; aborts the test if it cannot be read. */
static inline uint8_t *golden_bytes(const char *name, size_t *n)
{
    char *path = golden_path(name);
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("cannot read %s", path);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    uint8_t *data = xaligned(*n + 1);
    assert_int_equal(fread(data, 1, *n, f), *n);
    fclose(f);
    free(path);
    return data;
}

static inline cJSON *golden_json(const char *name)
{
    size_t n;
    uint8_t *text = golden_bytes(name, &n);
    cJSON *json = cJSON_ParseWithLength((const char *)text, n);
    free(text);
    if (!json)
        fail_msg("%s is not JSON", name);
    return json;
}

static inline const char *golden_string(const cJSON *object, const char *key)
{
    const char *s = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    if (!s)
        fail_msg("golden has no '%s'", key);
    return s;
}

/* Bytes of a hex string field, malloc'ed. */
static inline uint8_t *golden_hex(const cJSON *object, const char *key, size_t *n)
{
    const char *hex = golden_string(object, key);
    *n = strlen(hex) / 2;
    uint8_t *data = xaligned(*n + 1);
    for (size_t i = 0; i < *n; i++) {
        unsigned byte;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
        data[i] = (uint8_t)byte;
    }
    return data;
}

#endif
