/* SPDX-License-Identifier: Apache-2.0 */
/* gguf.h - reads a GGUF file: metadata and tensor directory.
 *
 * GGUF 2 and 3 as the ggml project documents them, little-endian. Strings and arrays point into the
 * metadata, tensors into the mapping. Immutable once opened; any thread may read.
 */
#ifndef WHET_ENGINE_GGUF_H
#define WHET_ENGINE_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/err.h"
#include "engine/filemap.h"
#include "engine/weights.h"

/* Value types, numbered as in the file. */
enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPES
};

/* "u32", ..., and bytes of one value: 0 for strings and arrays, which vary. */
const char *gguf_type_name(enum gguf_type t);
int gguf_type_bytes(enum gguf_type t);

struct gguf_string {
    const char *s; /* not NUL-terminated */
    size_t n;
};

struct gguf_value {
    char *key; /* owned */
    enum gguf_type type;
    enum gguf_type item; /* of an array: type of its items; otherwise = type */
    uint64_t count;      /* items of an array; otherwise 1 */
    const uint8_t *data; /* first item */
    const uint8_t *end;  /* behind the last */
};

struct gguf {
    char *file; /* what messages call it */
    uint32_t version;
    int64_t values;
    struct gguf_value *value; /* sorted by key */
    struct weights weights;
    char *head; /* gguf_open()'s copy of the metadata, or NULL */
};

/* Reads `size` bytes at `data` (8-byte aligned, kept by the caller as long as the result lives).
 * NULL with a message naming `file` and the field at fault. */
struct gguf *gguf_parse(const uint8_t *data, size_t size, const char *file, struct err *err);
/* The same for a mapped file, whose metadata is read and not looked at in the mapping: nobody can
 * cut it off meanwhile. At most 128 MB of it. */
struct gguf *gguf_open(const struct filemap *map, struct err *err);
void gguf_free(struct gguf *g);

/* NULL if the file has no such key. */
const struct gguf_value *gguf_find(const struct gguf *g, const char *key);

/* The value of a key as the wanted type. 1 found; 0 no such key and *out untouched; -1 it has
 * another type or does not fit, with a message. Any integer type reads as an integer, any number as
 * a float. */
int gguf_int(const struct gguf *g, const char *key, int64_t *out, struct err *err);
int gguf_float(const struct gguf *g, const char *key, double *out, struct err *err);
int gguf_bool(const struct gguf *g, const char *key, bool *out, struct err *err);
int gguf_string(const struct gguf *g, const char *key, struct gguf_string *out, struct err *err);

/* An array of strings, integers or 32-bit floats, as malloc'ed arrays of *n entries. Results as
 * above. */
int gguf_strings(const struct gguf *g, const char *key, struct gguf_string **out, int64_t *n,
                 struct err *err);
int gguf_ints(const struct gguf *g, const char *key, int32_t **out, int64_t *n, struct err *err);
int gguf_floats(const struct gguf *g, const char *key, float **out, int64_t *n, struct err *err);

/* A string of the file for a message: its beginning, printable ASCII only. */
struct gguf_shown {
    char text[64];
};
struct gguf_shown gguf_show(struct gguf_string s);
bool gguf_equals(struct gguf_string s, const char *text);

#endif
