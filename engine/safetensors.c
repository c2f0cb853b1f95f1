/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.c - u64 header length, a JSON header, then the data.
 *
 *   { "name": {"dtype": "BF16", "shape": [rows, cols], "data_offsets": [begin, end]}, ...,
 *     "__metadata__": {"key": "text"} }
 *
 * Offsets count from the end of the header. The format's own rules are enforced where a pointer or
 * a meaning depends on them: the header is an object within bounds, offsets are whole numbers in
 * range, a tensor's extent is exactly what its shape and dtype need, and (when the directory is
 * sealed) no two tensors share a name or a byte. cJSON keeps numbers as doubles, exact up to 2^53,
 * so anything above that is refused rather than rounded.
 */
#include "engine/safetensors.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/json_file.h"
#include "engine/quant.h"

enum { HEADER_MAX = 16 << 20, TENSORS_MAX = 1 << 16 };

/* A whole number 0 .. 2^53; -1 otherwise. */
static int64_t whole(const cJSON *n)
{
    if (!cJSON_IsNumber(n) || !(n->valuedouble >= 0 && n->valuedouble <= 0x1p53) ||
        n->valuedouble != floor(n->valuedouble))
        return -1;
    return (int64_t)n->valuedouble;
}

static int read_dtype(const cJSON *entry, struct tensor *t, const char *file, struct err *err)
{
    static const struct {
        const char *name;
        enum dtype type;
    } weights[] = {{"F32", DTYPE_F32}, {"F16", DTYPE_F16}, {"BF16", DTYPE_BF16}};
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "dtype"));

    if (!name)
        return err_set(err, "%s: tensor '%s': no dtype", file, t->name);
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        if (!strcmp(name, weights[i].name)) {
            t->type = weights[i].type;
            return 0;
        }
    t->element = element_of(name);
    return t->element != ELEMENT_WEIGHT
               ? 0
               : err_set(err, "%s: tensor '%s': dtype %.32s is not known", file, t->name, name);
}

static int read_shape(const cJSON *entry, struct tensor *t, const char *file, struct err *err)
{
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(entry, "shape"), *dim;

    if (!cJSON_IsArray(shape))
        return err_set(err, "%s: tensor '%s': no shape", file, t->name);
    cJSON_ArrayForEach(dim, shape)
    {
        if (t->dims == TENSOR_DIMS)
            return err_set(err, "%s: tensor '%s': shape: more than %d dimensions", file, t->name,
                           TENSOR_DIMS);
        if ((t->dim[t->dims++] = whole(dim)) < 0)
            return err_set(err, "%s: tensor '%s': shape: dimension %d is no whole number", file,
                           t->name, t->dims - 1);
    }
    if (t->dims == 0) /* one number: a scale */
        t->dim[t->dims++] = 1;
    return 0;
}

static int read_tensor(const cJSON *entry, const uint8_t *base, uint64_t room, const char *file,
                       struct weights *w, struct err *err)
{
    struct tensor t = {.name = entry->string};

    if (!cJSON_IsObject(entry))
        return err_set(err, "%s: tensor '%s': the entry is no object", file, t.name);
    if (read_dtype(entry, &t, file, err) < 0 || read_shape(entry, &t, file, err) < 0)
        return -1;
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    int64_t begin = whole(cJSON_GetArrayItem(offsets, 0));
    int64_t end = whole(cJSON_GetArrayItem(offsets, 1));
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 || begin < 0 || end < begin)
        return err_set(err, "%s: tensor '%s': data_offsets are no range", file, t.name);
    if (weights_add(w, &t, base, room, (uint64_t)begin, file, err) < 0)
        return -1;
    int64_t bytes = w->tensor[w->tensors - 1].bytes;
    if (end - begin != bytes)
        return err_set(err, "%s: tensor '%s': data_offsets span %lld bytes, the shape needs %lld",
                       file, t.name, (long long)(end - begin), (long long)bytes);
    return 0;
}

static int read_entries(const cJSON *header, const uint8_t *base, uint64_t room, const char *file,
                        struct weights *w, struct err *err)
{
    const cJSON *entry;
    int64_t count = 0;

    if (!cJSON_IsObject(header))
        return err_set(err, "%s: header: not a JSON object", file);
    cJSON_ArrayForEach(entry, header)
    {
        if (++count > TENSORS_MAX)
            return err_set(err, "%s: header: more than %d tensors", file, TENSORS_MAX);
        if (!strcmp(entry->string, "__metadata__"))
            continue;
        if (read_tensor(entry, base, room, file, w, err) < 0)
            return -1;
    }
    return 0;
}

/* The header's length, from the 8 bytes in front of it, in a file of `size` bytes; -1 with a
 * message. */
static int64_t header_length(const uint8_t *length, size_t size, const char *file, struct err *err)
{
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | length[i];
    if (n < 2 || n > HEADER_MAX)
        return err_set(err, "%s: header length %llu, expected 2 to %d", file, (unsigned long long)n,
                       HEADER_MAX);
    if (n > size - 8)
        return err_set(err, "%s: the file ends inside the header (%llu bytes)", file,
                       (unsigned long long)n);
    return (int64_t)n;
}

/* Reads the header's text; the data behind it is `room` bytes at `base`. */
static int read_header(const char *text, size_t n, const uint8_t *base, uint64_t room,
                       const char *file, struct weights *w, struct err *err)
{
    if (text[0] != '{')
        return err_set(err, "%s: header: does not begin with '{'", file);
    char *what = xasprintf("%s: header", file);
    cJSON *header = json_text_parse(text, n, json_tensors.items, what, err);
    int rc = header ? read_entries(header, base, room, file, w, err) : -1;
    cJSON_Delete(header);
    free(what);
    return rc;
}

int safetensors_read(const uint8_t *data, size_t size, const char *file, struct weights *w,
                     struct err *err)
{
    if (size < 8)
        return err_set(err, "%s: the file ends inside the header length", file);
    int64_t n = header_length(data, size, file, err);
    if (n < 0)
        return -1;
    return read_header((const char *)data + 8, (size_t)n, data + 8 + n, size - 8 - (size_t)n, file,
                       w, err);
}

int safetensors_open(const struct filemap *map, struct weights *w, struct err *err)
{
    if (map->size < 8)
        return err_set(err, "%s: the file ends inside the header length", map->path);
    char *head = filemap_head(map, 8, err);
    int64_t n = head ? header_length((const uint8_t *)head, map->size, map->path, err) : -1;
    free(head);
    head = n < 0 ? NULL : filemap_head(map, 8 + (size_t)n, err);
    if (!head)
        return -1;
    int rc = read_header(head + 8, (size_t)n, map->data + 8 + n, map->size - 8 - (size_t)n,
                         map->path, w, err);
    free(head);
    return rc;
}
