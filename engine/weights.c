/* SPDX-License-Identifier: Apache-2.0 */
/* weights.c - the tensor directory and the checks that both file formats share.
 *
 * The numbers in a tensor's entry come from a file that may be damaged or hostile. Every product
 * is formed with an overflow check and compared with what the mapping really holds before a
 * pointer is made, so that a struct tensor in a sealed directory can be read without further care.
 */
#include "engine/weights.h"

#include <stdlib.h>
#include <string.h>

#include "config/table.h"
#include "engine/quant.h"

static const struct {
    const char *name;
    int bytes;
} elements[] = {
    [ELEMENT_WEIGHT] = {"a plain weight format", 0},
    [ELEMENT_F8_E4M3] = {"F8_E4M3", 1},
    [ELEMENT_I32] = {"I32", 4},
    [ELEMENT_I64] = {"I64", 8},
    [ELEMENT_F64] = {"F64", 8},
    [ELEMENT_F8_E5M2] = {"F8_E5M2", 1},
    [ELEMENT_BOOL] = {"BOOL", 1},
    [ELEMENT_I8] = {"I8", 1},
    [ELEMENT_U8] = {"U8", 1},
    [ELEMENT_I16] = {"I16", 2},
    [ELEMENT_U16] = {"U16", 2},
    [ELEMENT_U32] = {"U32", 4},
    [ELEMENT_U64] = {"U64", 8},
};
EVERY_ROW(elements, ELEMENTS);

const char *element_name(enum element e)
{
    return elements[e].name;
}

const char *tensor_element_name(const struct tensor *t)
{
    return t->element == ELEMENT_WEIGHT ? dtype_name(t->type) : elements[t->element].name;
}

enum element element_of(const char *name)
{
    for (int e = ELEMENT_WEIGHT + 1; e < ELEMENTS; e++)
        if (strcmp(elements[e].name, name) == 0)
            return (enum element)e;
    return ELEMENT_WEIGHT;
}

bool tensor_is_zero_bias(const struct tensor *t)
{
    const char *end = strrchr(t->name, '.');
    const uint8_t *byte = t->data;

    if (!end || strcmp(end, ".bias") != 0 || t->element != ELEMENT_WEIGHT)
        return false;
    for (int64_t i = 0; i < t->bytes; i++)
        if (byte[i])
            return false;
    return true;
}

/* Bytes that the dimensions ask for; -1 with a message if that is no number of whole blocks. */
static int64_t tensor_bytes(const struct tensor *t, const char *file, struct err *err)
{
    int64_t count = 1, bytes;
    bool weight = t->element == ELEMENT_WEIGHT;
    int block = weight ? dtype_block(t->type) : 1;
    int64_t each = weight ? dtype_block_bytes(t->type) : elements[t->element].bytes;

    for (int i = 0; i < t->dims; i++) {
        if (t->dim[i] < 0)
            return err_set(err, "%s: tensor '%s': dimension %d is %lld", file, t->name, i,
                           (long long)t->dim[i]);
        if (__builtin_mul_overflow(count, t->dim[i], &count))
            return err_set(err, "%s: tensor '%s': the dimensions multiply to more than 2^63", file,
                           t->name);
    }
    if (t->dim[t->dims - 1] % block)
        return err_set(err, "%s: tensor '%s': rows of %lld values are no whole %s blocks of %d",
                       file, t->name, (long long)t->dim[t->dims - 1], dtype_name(t->type), block);
    if (__builtin_mul_overflow(count / block, each, &bytes))
        return err_set(err, "%s: tensor '%s': more than 2^63 bytes", file, t->name);
    return bytes;
}

int weights_add(struct weights *w, const struct tensor *t, const uint8_t *base, uint64_t size,
                uint64_t offset, const char *file, struct err *err)
{
    int64_t bytes = tensor_bytes(t, file, err);
    uintptr_t align = t->type == DTYPE_F32 ? 4 : 2; /* blocks begin with a half */

    if (t->element != ELEMENT_WEIGHT)
        align = (uintptr_t)elements[t->element].bytes;
    if (bytes < 0)
        return -1;
    if (offset > size || (uint64_t)bytes > size - offset)
        return err_set(err, "%s: tensor '%s': bytes %llu + %lld, but its data area has %llu", file,
                       t->name, (unsigned long long)offset, (long long)bytes,
                       (unsigned long long)size);
    if ((uintptr_t)(base + offset) % align)
        return err_set(err, "%s: tensor '%s': misaligned for %s (offset %llu)", file, t->name,
                       tensor_element_name(t), (unsigned long long)offset);
    if (w->tensors == w->room) {
        w->room = w->room ? 2 * w->room : 256;
        w->tensor = xrealloc(w->tensor, (size_t)w->room * sizeof *w->tensor);
    }
    struct tensor *copy = &w->tensor[w->tensors++];
    *copy = *t;
    copy->name = xstrdup(t->name);
    copy->data = base + offset;
    copy->bytes = bytes;
    copy->used = false;
    return 0;
}

/* One that holds nothing comes before the one that begins where it lies. */
static int by_place(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;
    int place = (x->data > y->data) - (x->data < y->data);
    return place ? place : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int by_name(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

int weights_seal(struct weights *w, const char *file, struct err *err)
{
    struct tensor *t = w->tensor;

    if (w->tensors == 0)
        return err_set(err, "%s: the file has no tensors", file);
    qsort(t, (size_t)w->tensors, sizeof *t, by_place);
    for (int64_t i = 1; i < w->tensors; i++)
        if ((const uint8_t *)t[i - 1].data + t[i - 1].bytes > (const uint8_t *)t[i].data)
            return err_set(err, "%s: tensors '%s' and '%s' overlap", file, t[i - 1].name,
                           t[i].name);
    qsort(t, (size_t)w->tensors, sizeof *t, by_name);
    for (int64_t i = 1; i < w->tensors; i++)
        if (!strcmp(t[i - 1].name, t[i].name))
            return err_set(err, "%s: two tensors are named '%s'", file, t[i].name);
    return 0;
}

struct tensor *weights_find(const struct weights *w, const char *name)
{
    struct tensor key = {.name = (char *)name};

    if (w->tensors == 0)
        return NULL;
    return bsearch(&key, w->tensor, (size_t)w->tensors, sizeof key, by_name);
}

void weights_free(struct weights *w)
{
    for (int64_t i = 0; i < w->tensors; i++)
        free(w->tensor[i].name);
    free(w->tensor);
    *w = (struct weights){0};
}
