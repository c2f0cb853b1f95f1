/* SPDX-License-Identifier: Apache-2.0 */
/* gguf.c - a cursor over the mapping that cannot leave it.
 *
 *   header    "GGUF", u32 version, u64 tensors, u64 values
 *   values    string key, u32 type, value      (string: u64 length, bytes; array: u32 item type,
 *                                               u64 count, items)
 *   tensors   string name, u32 dims, u64 dim[dims] innermost first, u32 type, u64 offset
 *   padding   to general.alignment (32 if not given)
 *   data      each tensor at its offset, a multiple of the alignment
 *
 * Every read goes through take(), which compares with the bytes left and so needs no trust in any
 * count: a count is believed only as far as the file has bytes for that many of the smallest
 * possible items. Arrays are walked once here, nested ones too, so later reads of an array need no
 * checks. What is not understood is refused by name, never skipped.
 */
#include "engine/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NESTING = 4, KEY_MAX = 65535, NAME_MAX_BYTES = 1024, ALIGNMENT_MAX = 1 << 16 };
/* Far above any model; they bound what is allocated for a file before its entries are read. */
enum { VALUES_MAX = 1 << 16, TENSORS_MAX = 1 << 16 };
/* What gguf_open() reads at first and at most. Vocabularies of today make 16 MB. */
enum { HEAD_FIRST = 4 << 20, HEAD_MAX = 128 << 20 };

struct cursor {
    const uint8_t *at, *end;
    const char *file;
    struct err *err;
    bool ran_out; /* something was asked for beyond `end` */
};

/* ggml's tensor types by number: what whet reads, and the names of what it refuses. */
static const struct {
    const char *name;
    int dtype; /* enum dtype + 1; 0: not supported */
} tensor_types[] = {
    [0] = {"F32", DTYPE_F32 + 1},
    [1] = {"F16", DTYPE_F16 + 1},
    [2] = {"Q4_0", DTYPE_Q4_0 + 1},
    [3] = {"Q4_1", DTYPE_Q4_1 + 1},
    [6] = {"Q5_0", DTYPE_Q5_0 + 1},
    [7] = {"Q5_1", DTYPE_Q5_1 + 1},
    [8] = {"Q8_0", DTYPE_Q8_0 + 1},
    [9] = {"Q8_1", 0},
    [10] = {"Q2_K", DTYPE_Q2_K + 1},
    [11] = {"Q3_K", DTYPE_Q3_K + 1},
    [12] = {"Q4_K", DTYPE_Q4_K + 1},
    [13] = {"Q5_K", DTYPE_Q5_K + 1},
    [14] = {"Q6_K", DTYPE_Q6_K + 1},
    [15] = {"Q8_K", 0},
    [16] = {"IQ2_XXS", 0},
    [17] = {"IQ2_XS", 0},
    [18] = {"IQ3_XXS", 0},
    [19] = {"IQ1_S", 0},
    [20] = {"IQ4_NL", DTYPE_IQ4_NL + 1},
    [21] = {"IQ3_S", 0},
    [22] = {"IQ2_S", 0},
    [23] = {"IQ4_XS", DTYPE_IQ4_XS + 1},
    [24] = {"I8", 0},
    [25] = {"I16", 0},
    [26] = {"I32", 0},
    [27] = {"I64", 0},
    [28] = {"F64", 0},
    [29] = {"IQ1_M", 0},
    [30] = {"BF16", DTYPE_BF16 + 1},
    [34] = {"TQ1_0", 0},
    [35] = {"TQ2_0", 0},
    [39] = {"MXFP4", DTYPE_MXFP4 + 1},
};
_Static_assert(DTYPE_COUNT == 17,
               "a weight format is new: give it its ggml number here, if it has one");

/* ---- the cursor ---------------------------------------------------------------------------- */

static const uint8_t *take(struct cursor *c, uint64_t n, const char *what)
{
    const uint8_t *p = c->at;

    if (n > (uint64_t)(c->end - c->at)) {
        c->ran_out = true;
        err_set(c->err, "%s: the file ends inside %s", c->file, what);
        return NULL;
    }
    c->at += n;
    return p;
}

static int take_u32(struct cursor *c, uint32_t *v, const char *what)
{
    const uint8_t *p = take(c, sizeof *v, what);
    if (!p)
        return -1;
    memcpy(v, p, sizeof *v);
    return 0;
}

static int take_u64(struct cursor *c, uint64_t *v, const char *what)
{
    const uint8_t *p = take(c, sizeof *v, what);
    if (!p)
        return -1;
    memcpy(v, p, sizeof *v);
    return 0;
}

static int take_string(struct cursor *c, struct gguf_string *s, const char *what)
{
    uint64_t n;
    if (take_u64(c, &n, what) < 0)
        return -1;
    s->s = (const char *)take(c, n, what);
    s->n = (size_t)n;
    return s->s ? 0 : -1;
}

/* A key or tensor name as an owned C string: bounded, not empty, printable ASCII, so that messages
 * can carry it as it is. */
static char *take_name(struct cursor *c, size_t longest, const char *what)
{
    struct gguf_string s;
    bool plain = true;
    if (take_string(c, &s, what) < 0)
        return NULL;
    for (size_t i = 0; i < s.n && i < longest; i++)
        plain = plain && s.s[i] > ' ' && s.s[i] < 127;
    if (s.n == 0 || s.n > longest || !plain) {
        err_set(c->err, "%s: %s is empty, not printable ASCII or longer than %zu bytes", c->file,
                what, longest);
        return NULL;
    }
    char *copy = xmalloc(s.n + 1);
    memcpy(copy, s.s, s.n);
    copy[s.n] = 0;
    return copy;
}

/* Steps over `count` items of a type, checking every length on the way. */
static int skip_items(struct cursor *c, enum gguf_type type, uint64_t count, int depth,
                      const char *what)
{
    if (gguf_type_bytes(type)) {
        if (count > (uint64_t)(c->end - c->at) / (uint64_t)gguf_type_bytes(type)) {
            c->ran_out = true;
            return err_set(c->err, "%s: the file ends inside %s (%llu items of %s)", c->file, what,
                           (unsigned long long)count, gguf_type_name(type));
        }
        c->at += count * (uint64_t)gguf_type_bytes(type);
        return 0;
    }
    for (uint64_t i = 0; i < count; i++) { /* each takes 8 bytes or fails: bounded by the file */
        struct gguf_string s;
        uint32_t item;
        uint64_t n;
        if (type == GGUF_STRING) {
            if (take_string(c, &s, what) < 0)
                return -1;
            continue;
        }
        if (depth == 0)
            return err_set(c->err, "%s: %s: arrays nested deeper than %d", c->file, what, NESTING);
        if (take_u32(c, &item, what) < 0 || take_u64(c, &n, what) < 0)
            return -1;
        if (item >= GGUF_TYPES)
            return err_set(c->err, "%s: %s: unknown item type %u", c->file, what, item);
        if (skip_items(c, (enum gguf_type)item, n, depth - 1, what) < 0)
            return -1;
    }
    return 0;
}

/* ---- the file, front to back --------------------------------------------------------------- */

static int read_value(struct cursor *c, struct gguf_value *v)
{
    char what[160];
    uint32_t type;

    if (!(v->key = take_name(c, KEY_MAX, "a metadata key")))
        return -1;
    snprintf(what, sizeof what, "metadata '%.120s'", v->key);
    if (take_u32(c, &type, what) < 0)
        return -1;
    v->count = 1;
    if (type == GGUF_ARRAY) {
        uint32_t item;
        if (take_u32(c, &item, what) < 0 || take_u64(c, &v->count, what) < 0)
            return -1;
        if (item >= GGUF_TYPES)
            return err_set(c->err, "%s: %s: unknown item type %u", c->file, what, item);
        v->item = (enum gguf_type)item;
    } else {
        if (type >= GGUF_TYPES)
            return err_set(c->err, "%s: %s: unknown type %u", c->file, what, type);
        v->item = (enum gguf_type)type;
    }
    v->type = (enum gguf_type)type;
    v->data = c->at;
    if (skip_items(c, v->item, v->count, NESTING, what) < 0)
        return -1;
    v->end = c->at;
    if (v->item == GGUF_BOOL)
        for (uint64_t i = 0; i < v->count; i++)
            if (v->data[i] > 1)
                return err_set(c->err, "%s: %s: %u is no bool", c->file, what, v->data[i]);
    return 0;
}

static int by_key(const void *a, const void *b)
{
    const struct gguf_value *x = a, *y = b;
    return strcmp(x->key, y->key);
}

static int read_values(struct cursor *c, struct gguf *g, uint64_t count)
{
    enum { SMALLEST = 8 + 1 + 4 + 1 };

    c->ran_out = count > (uint64_t)(c->end - c->at) / SMALLEST;
    if (count > VALUES_MAX || c->ran_out)
        return err_set(c->err,
                       "%s: header: %llu metadata values: too many, or more than fit the file",
                       c->file, (unsigned long long)count);
    g->value = xcalloc((size_t)count + 1, sizeof *g->value);
    for (uint64_t i = 0; i < count; i++) {
        g->values++;
        if (read_value(c, &g->value[i]) < 0)
            return -1;
    }
    qsort(g->value, (size_t)count, sizeof *g->value, by_key);
    for (uint64_t i = 1; i < count; i++)
        if (!strcmp(g->value[i - 1].key, g->value[i].key))
            return err_set(c->err, "%s: metadata '%s' is given twice", c->file, g->value[i].key);
    return 0;
}

/* Directory entry of one tensor; its place is checked once the start of the data is known. */
static int read_tensor(struct cursor *c, struct tensor *t, uint64_t *offset)
{
    char what[160];
    uint32_t dims, type;

    *t = (struct tensor){0};
    if (!(t->name = take_name(c, NAME_MAX_BYTES, "a tensor name")))
        return -1;
    snprintf(what, sizeof what, "tensor '%.120s'", t->name);
    if (take_u32(c, &dims, what) < 0)
        return -1;
    if (dims < 1 || dims > TENSOR_DIMS)
        return err_set(c->err, "%s: %s: %u dimensions", c->file, what, dims);
    t->dims = (int)dims;
    for (uint32_t i = 0; i < dims; i++) {
        uint64_t n;
        if (take_u64(c, &n, what) < 0)
            return -1;
        if (n == 0 || n > INT64_MAX)
            return err_set(c->err, "%s: %s: dimension %u is %llu", c->file, what, i,
                           (unsigned long long)n);
        t->dim[dims - 1 - i] = (int64_t)n;
    }
    if (take_u32(c, &type, what) < 0 || take_u64(c, offset, what) < 0)
        return -1;
    if (type >= sizeof tensor_types / sizeof *tensor_types || !tensor_types[type].name)
        return err_set(c->err, "%s: %s: unknown type %u", c->file, what, type);
    if (!tensor_types[type].dtype)
        return err_set(c->err, "%s: %s: type %s is not supported", c->file, what,
                       tensor_types[type].name);
    t->type = (enum dtype)(tensor_types[type].dtype - 1);
    return 0;
}

static int read_alignment(const struct gguf *g, uint64_t *alignment, struct err *err)
{
    int64_t a = 32;

    if (gguf_int(g, "general.alignment", &a, err) < 0)
        return -1;
    if (a < 8 || a > ALIGNMENT_MAX || (a & (a - 1)))
        return err_set(err, "%s: metadata 'general.alignment': %lld is no power of two in 8..%d",
                       g->file, (long long)a, ALIGNMENT_MAX);
    *alignment = (uint64_t)a;
    return 0;
}

/* `head` is where the cursor began, `file` where the tensors' data lies. */
static int read_tensors(struct cursor *c, struct gguf *g, uint64_t count, const uint8_t *head,
                        const uint8_t *file, size_t size)
{
    enum { SMALLEST = 8 + 1 + 4 + 8 + 4 + 8 };
    struct tensor *t = NULL;
    uint64_t *offset = NULL, alignment = 32, read = 0;
    int rc = -1;

    if (read_alignment(g, &alignment, c->err) < 0)
        return -1;
    c->ran_out = count > (uint64_t)(c->end - c->at) / SMALLEST;
    if (count > TENSORS_MAX || c->ran_out)
        return err_set(c->err, "%s: header: %llu tensors: too many, or more than fit the file",
                       c->file, (unsigned long long)count);
    t = xcalloc((size_t)count + 1, sizeof *t);
    offset = xcalloc((size_t)count + 1, sizeof *offset);
    while (read < count)
        if (read_tensor(c, &t[read], &offset[read]) < 0)
            goto done;
        else
            read++;

    uint64_t start = ((uint64_t)(c->at - head) + alignment - 1) & ~(alignment - 1);
    uint64_t room = start < size ? size - start : 0;
    for (uint64_t i = 0; i < count; i++) {
        if (offset[i] % alignment) {
            err_set(c->err, "%s: tensor '%s': offset %llu is no multiple of the alignment %llu",
                    c->file, t[i].name, (unsigned long long)offset[i],
                    (unsigned long long)alignment);
            goto done;
        }
        if (weights_add(&g->weights, &t[i], file + (room ? start : 0), room, offset[i], c->file,
                        c->err) < 0)
            goto done;
    }
    rc = weights_seal(&g->weights, c->file, c->err);
done:
    for (uint64_t i = 0; t && i <= read && i < count; i++)
        free(t[i].name);
    free(t);
    free(offset);
    return rc;
}

static int read_header(struct cursor *c, uint32_t *version, uint64_t *tensors, uint64_t *values)
{
    const uint8_t *magic = take(c, 4, "the header");

    if (!magic)
        return -1;
    if (memcmp(magic, "GGUF", 4))
        return err_set(c->err, "%s: not a GGUF file (it does not begin with \"GGUF\")", c->file);
    if (take_u32(c, version, "the header: version") < 0)
        return -1;
    if (*version >= 1 << 24 && *version << 8 == 0)
        return err_set(c->err, "%s: header: a big-endian GGUF file is not supported", c->file);
    if (*version < 2 || *version > 3)
        return err_set(c->err, "%s: header: GGUF version %u is not supported (2 and 3 are)",
                       c->file, *version);
    if (take_u64(c, tensors, "the header: tensor count") < 0)
        return -1;
    return take_u64(c, values, "the header: metadata count");
}

/* Parses what the cursor is at the beginning of. */
static struct gguf *parse(struct cursor *c, const uint8_t *data, size_t size)
{
    struct gguf *g = xcalloc(1, sizeof *g);
    const uint8_t *head = c->at;
    uint64_t tensors = 0, values = 0;

    g->file = xstrdup(c->file);
    if (read_header(c, &g->version, &tensors, &values) < 0 || read_values(c, g, values) < 0 ||
        read_tensors(c, g, tensors, head, data, size) < 0) {
        gguf_free(g);
        return NULL;
    }
    return g;
}

struct gguf *gguf_parse(const uint8_t *data, size_t size, const char *file, struct err *err)
{
    struct cursor c = {data, data + size, file, err, false};
    return parse(&c, data, size);
}

/* How long the metadata is only reading it tells: a piece that proves too short is read again, four
 * times as long. */
struct gguf *gguf_open(const struct filemap *map, struct err *err)
{
    for (size_t n = HEAD_FIRST;; n *= 4) {
        size_t most = map->size < HEAD_MAX ? map->size : HEAD_MAX;
        n = n < most ? n : most;
        char *head = filemap_head(map, n, err);
        if (!head)
            return NULL;
        struct cursor c = {(uint8_t *)head, (uint8_t *)head + n, map->path, err, false};
        struct gguf *g = parse(&c, map->data, map->size);
        if (g) {
            g->head = head;
            return g;
        }
        free(head);
        if (c.ran_out && n == HEAD_MAX && n < map->size)
            err_set(err, "%s: the metadata has more than %d bytes", map->path, HEAD_MAX);
        if (!c.ran_out || n == most)
            return NULL;
    }
}

void gguf_free(struct gguf *g)
{
    if (!g)
        return;
    for (int64_t i = 0; i < g->values; i++)
        free(g->value[i].key);
    free(g->value);
    weights_free(&g->weights);
    free(g->head);
    free(g->file);
    free(g);
}
