/* SPDX-License-Identifier: Apache-2.0 */
/* gguf_file.h - a GGUF file in memory with one of everything, and the place of every field.
 *
 * Written by the format's description and not by whet's reader; fields go by name, so a test says
 * what it damages and not where that lies.
 */
#ifndef WHET_TESTS_UNIT_ENGINE_GGUF_FILE_H
#define WHET_TESTS_UNIT_ENGINE_GGUF_FILE_H

#include <string.h>

#include "config/err.h"
#include "engine/gguf.h"
#include "tests/unit/unit.h"

enum { FIELDS = 64 };

struct file {
    uint8_t *data;
    size_t n;
    int fields;
    struct {
        const char *name;
        size_t at;
    } field[FIELDS];
};

static inline void put(struct file *f, const char *name, const void *p, size_t n)
{
    f->data = xrealloc(f->data, f->n + n);
    memcpy(f->data + f->n, p, n);
    if (name) {
        assert_true(f->fields < FIELDS);
        f->field[f->fields].name = name;
        f->field[f->fields++].at = f->n;
    }
    f->n += n;
}

static inline void put32(struct file *f, const char *name, uint32_t v)
{
    put(f, name, &v, sizeof v);
}

static inline void put64(struct file *f, const char *name, uint64_t v)
{
    put(f, name, &v, sizeof v);
}

static inline void put_string(struct file *f, const char *length_name, const char *name,
                              const char *s)
{
    put64(f, length_name, strlen(s));
    put(f, name, s, strlen(s));
}

static inline void put_values(struct file *f)
{
    put_string(f, "key length", "key", "a.string");
    put32(f, "type", GGUF_STRING);
    put_string(f, "string length", NULL, "some text");
    put_string(f, NULL, NULL, "b.array");
    put32(f, NULL, GGUF_ARRAY);
    put32(f, "item type", GGUF_STRING);
    put64(f, "item count", 2);
    put_string(f, NULL, NULL, "x");
    put_string(f, "item length", NULL, "yz");
    put_string(f, NULL, NULL, "c.nested");
    put32(f, NULL, GGUF_ARRAY);
    put32(f, NULL, GGUF_ARRAY);
    put64(f, "outer count", 1);
    put32(f, "inner type", GGUF_U64);
    put64(f, "inner count", 1);
    put64(f, NULL, 7);
    put_string(f, NULL, NULL, "general.alignment");
    put32(f, "alignment type", GGUF_U32);
    put32(f, "alignment", 32);
    put_string(f, NULL, NULL, "z.bool");
    put32(f, NULL, GGUF_BOOL);
    put(f, "bool", "\1", 1);
}

/* Header, five values, tensors "t.one" (Q8_0 [2, 64]) and "t.two" (F32 [8]). */
static inline struct file whole_file(void)
{
    static const uint8_t zeros[256];
    struct file f = {0};

    put(&f, "magic", "GGUF", 4);
    put32(&f, "version", 3);
    put64(&f, "tensor count", 2);
    put64(&f, "value count", 5);
    put_values(&f);
    put_string(&f, "name length", "name", "t.one");
    put32(&f, "dims", 2);
    put64(&f, "columns", 64);
    put64(&f, "rows", 2);
    put32(&f, "tensor type", 8);
    put64(&f, "offset", 0);
    put_string(&f, NULL, "second name", "t.two");
    put32(&f, NULL, 1);
    put64(&f, "second size", 8);
    put32(&f, "second type", 0);
    put64(&f, "second offset", 160);
    put(&f, NULL, zeros, (32 - f.n % 32) % 32);
    put(&f, "data", zeros, 160 + 32);
    return f;
}

static inline void patch(struct file *f, const char *name, size_t width, uint64_t value)
{
    for (int i = 0; i < f->fields; i++)
        if (!strcmp(f->field[i].name, name)) {
            memcpy(f->data + f->field[i].at, &value, width);
            return;
        }
    fail_msg("no field '%s'", name);
}

#endif
