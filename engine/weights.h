/* SPDX-License-Identifier: Apache-2.0 */
/* weights.h - the tensors of a model's files, by name.
 *
 * Both readers (gguf, safetensors) fill a directory; model_load.c takes from it what the
 * architecture needs. Every tensor has been checked to lie inside its mapping, aligned for its
 * format, and apart from all others.
 */
#ifndef WHET_ENGINE_WEIGHTS_H
#define WHET_ENGINE_WEIGHTS_H

#include <stdbool.h>
#include <stdint.h>

#include "config/err.h"
#include "kernels/args.h"

enum { TENSOR_DIMS = 4 };

/* What a tensor is made of: a weight format; what only engine/hf_parts.c reads; what nobody reads
 * (from ELEMENT_F64 on), so that only a tensor that is not needed may have it. */
enum element {
    ELEMENT_WEIGHT,
    ELEMENT_F8_E4M3,
    ELEMENT_I32,
    ELEMENT_I64,
    ELEMENT_F64,
    ELEMENT_F8_E5M2,
    ELEMENT_BOOL,
    ELEMENT_I8,
    ELEMENT_U8,
    ELEMENT_I16,
    ELEMENT_U16,
    ELEMENT_U32,
    ELEMENT_U64,
    ELEMENTS
};

struct tensor {
    char *name;               /* owned */
    int dims;                 /* 1 .. TENSOR_DIMS */
    int64_t dim[TENSOR_DIMS]; /* outermost first: a matrix is [rows, cols]; 0: it holds nothing */
    enum dtype type;          /* of ELEMENT_WEIGHT */
    enum element element;
    const void *data;
    int64_t bytes;
    bool used; /* somebody took it */
};

struct weights {
    int64_t tensors, room;
    struct tensor *tensor; /* sorted by name once sealed */
};

/* "I32", or "a weight format"; of a tensor, its format's name. */
const char *element_name(enum element e);
const char *tensor_element_name(const struct tensor *t);
/* The element that is no weight format and has that name; ELEMENT_WEIGHT if there is none. */
enum element element_of(const char *name);

/* Whether its name ends in ".bias" and all of it is zero: computing without it is the same. */
bool tensor_is_zero_bias(const struct tensor *t);

/* Appends a tensor whose `dims`, `dim`, `type` and `element` are set: computes `bytes` from them
 * (whole blocks, no overflow), and places it `offset` bytes into `base`, of which `size` bytes
 * exist. `file` is named in messages. Copies the name. 0, or -1 with a message naming the tensor.
 */
int weights_add(struct weights *w, const struct tensor *t, const uint8_t *base, uint64_t size,
                uint64_t offset, const char *file, struct err *err);

/* Sorts by name; refuses two tensors of one name and tensors that overlap in memory. */
int weights_seal(struct weights *w, const char *file, struct err *err);

/* NULL if there is none of that name. */
struct tensor *weights_find(const struct weights *w, const char *name);
void weights_free(struct weights *w);

#endif
