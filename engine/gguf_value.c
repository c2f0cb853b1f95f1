/* SPDX-License-Identifier: Apache-2.0 */
/* gguf_value.c - metadata of a parsed GGUF file, by key and as the type the caller wants.
 *
 * gguf_parse() has walked every value once and knows it lies inside the file, so nothing is checked
 * against the mapping here; what is checked is that a key holds the kind of value the caller can
 * use. Values have no alignment in the file and are assembled from their bytes.
 */
#include "engine/gguf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ITEMS_MAX = 1 << 22 }; /* of an array: far above any vocabulary */

static const struct {
    const char *name;
    int bytes; /* 0: variable */
} types[GGUF_TYPES] = {
    [GGUF_U8] = {"u8", 1},       [GGUF_I8] = {"i8", 1},     [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2},     [GGUF_U32] = {"u32", 4},   [GGUF_I32] = {"i32", 4},
    [GGUF_F32] = {"f32", 4},     [GGUF_BOOL] = {"bool", 1}, [GGUF_STRING] = {"string", 0},
    [GGUF_ARRAY] = {"array", 0}, [GGUF_U64] = {"u64", 8},   [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

const char *gguf_type_name(enum gguf_type t)
{
    return types[t].name;
}

int gguf_type_bytes(enum gguf_type t)
{
    return types[t].bytes;
}

static int by_key(const void *a, const void *b)
{
    const struct gguf_value *x = a, *y = b;
    return strcmp(x->key, y->key);
}

const struct gguf_value *gguf_find(const struct gguf *g, const char *key)
{
    struct gguf_value want = {.key = (char *)key};
    return g->values ? bsearch(&want, g->value, (size_t)g->values, sizeof want, by_key) : NULL;
}

static int mismatch(const struct gguf *g, const struct gguf_value *v, const char *wanted,
                    struct err *err)
{
    return err_set(err, "%s: metadata '%s': is %s%s, expected %s", g->file, v->key,
                   gguf_type_name(v->item), v->type == GGUF_ARRAY ? " array" : "", wanted);
}

static uint64_t load_le(const uint8_t *p, int bytes)
{
    uint64_t v = 0;
    for (int i = bytes - 1; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

/* One integer of type `t` at p; false if it is no integer type or exceeds an int64. */
static bool load_int(enum gguf_type t, const uint8_t *p, int64_t *out)
{
    uint64_t raw = load_le(p, gguf_type_bytes(t));

    switch (t) {
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32:
        *out = (int64_t)raw;
        return true;
    case GGUF_U64:
        *out = (int64_t)raw;
        return raw <= INT64_MAX;
    case GGUF_I8:
        *out = (int8_t)raw;
        return true;
    case GGUF_I16:
        *out = (int16_t)raw;
        return true;
    case GGUF_I32:
        *out = (int32_t)raw;
        return true;
    case GGUF_I64:
        *out = (int64_t)raw;
        return true;
    default:
        return false;
    }
}

int gguf_int(const struct gguf *g, const char *key, int64_t *out, struct err *err)
{
    const struct gguf_value *v = gguf_find(g, key);
    int64_t n;

    if (!v)
        return 0;
    if (v->type == GGUF_ARRAY || !load_int(v->type, v->data, &n))
        return mismatch(g, v, "an integer", err);
    *out = n;
    return 1;
}

int gguf_float(const struct gguf *g, const char *key, double *out, struct err *err)
{
    const struct gguf_value *v = gguf_find(g, key);
    double d;
    float f;
    int64_t n;

    if (!v)
        return 0;
    if (v->type == GGUF_F32) {
        memcpy(&f, v->data, sizeof f);
        d = f;
    } else if (v->type == GGUF_F64) {
        memcpy(&d, v->data, sizeof d);
    } else if (v->type != GGUF_ARRAY && load_int(v->type, v->data, &n)) {
        d = (double)n;
    } else {
        return mismatch(g, v, "a number", err);
    }
    if (!isfinite(d))
        return err_set(err, "%s: metadata '%s': not a finite number", g->file, key);
    *out = d;
    return 1;
}

int gguf_bool(const struct gguf *g, const char *key, bool *out, struct err *err)
{
    const struct gguf_value *v = gguf_find(g, key);

    if (!v)
        return 0;
    if (v->type != GGUF_BOOL)
        return mismatch(g, v, "a bool", err);
    *out = v->data[0];
    return 1;
}

static const uint8_t *load_string(const uint8_t *p, struct gguf_string *s)
{
    s->n = (size_t)load_le(p, 8);
    s->s = (const char *)p + 8;
    return p + 8 + s->n;
}

int gguf_string(const struct gguf *g, const char *key, struct gguf_string *out, struct err *err)
{
    const struct gguf_value *v = gguf_find(g, key);

    if (!v)
        return 0;
    if (v->type != GGUF_STRING)
        return mismatch(g, v, "a string", err);
    load_string(v->data, out);
    return 1;
}

int gguf_strings(const struct gguf *g, const char *key, struct gguf_string **out, int64_t *n,
                 struct err *err)
{
    const struct gguf_value *v = gguf_find(g, key);

    if (!v)
        return 0;
    if (v->type != GGUF_ARRAY || v->item != GGUF_STRING)
        return mismatch(g, v, "an array of strings", err);
    if (v->count > ITEMS_MAX)
        return mismatch(g, v, "fewer items", err);
    *n = (int64_t)v->count;
    *out = xcalloc((size_t)v->count + 1, sizeof **out);
    const uint8_t *p = v->data;
    for (int64_t i = 0; i < *n; i++)
        p = load_string(p, &(*out)[i]);
    return 1;
}

int gguf_ints(const struct gguf *g, const char *key, int32_t **out, int64_t *n, struct err *err)
{
    const struct gguf_value *v = gguf_find(g, key);
    int64_t item;

    if (!v)
        return 0;
    if (v->type != GGUF_ARRAY || !gguf_type_bytes(v->item))
        return mismatch(g, v, "an array of integers", err);
    if (v->count > ITEMS_MAX)
        return mismatch(g, v, "fewer items", err);
    int32_t *values = xcalloc((size_t)v->count + 1, sizeof *values);
    for (uint64_t i = 0; i < v->count; i++) {
        if (!load_int(v->item, v->data + i * (uint64_t)gguf_type_bytes(v->item), &item) ||
            item < INT32_MIN || item > INT32_MAX) {
            free(values);
            return mismatch(g, v, "an array of 32-bit integers", err);
        }
        values[i] = (int32_t)item;
    }
    *out = values;
    *n = (int64_t)v->count;
    return 1;
}

int gguf_floats(const struct gguf *g, const char *key, float **out, int64_t *n, struct err *err)
{
    const struct gguf_value *v = gguf_find(g, key);

    if (!v)
        return 0;
    if (v->type != GGUF_ARRAY || v->item != GGUF_F32)
        return mismatch(g, v, "an array of 32-bit floats", err);
    if (v->count > ITEMS_MAX)
        return mismatch(g, v, "fewer items", err);
    *n = (int64_t)v->count;
    *out = xcalloc((size_t)v->count + 1, sizeof **out);
    memcpy(*out, v->data, (size_t)v->count * sizeof **out);
    return 1;
}

struct gguf_shown gguf_show(struct gguf_string s)
{
    struct gguf_shown v = {{0}};
    for (size_t i = 0; i < s.n && i < sizeof v.text - 1; i++)
        v.text[i] = s.s[i] >= ' ' && s.s[i] < 127 ? s.s[i] : '?';
    return v;
}

bool gguf_equals(struct gguf_string s, const char *text)
{
    return s.n == strlen(text) && !memcmp(s.s, text, s.n);
}
