/* SPDX-License-Identifier: Apache-2.0 */
/* loaded.h - kernels that were compiled while the server runs: loaded, with repacked weights.
 *
 * The specializer thread loads and unloads; the engine thread frees what no graph refers to any
 * more. `load_lock` of the backend guards what both touch: packs_list and retired.
 */
#ifndef WHET_ENGINE_CUDA_LOADED_H
#define WHET_ENGINE_CUDA_LOADED_H

#include <cuda_runtime_api.h>

#include "engine/backend.h"
#include "kernels/cuda.h"

struct lt;   /* products.h */
struct walk; /* walk.h */

/* kernel.backend of a loaded kernel. */
struct loaded {
    struct loaded *next_retired;
    struct kernel *kernel;
    uint64_t number;      /* in the order in which kernels were loaded, from 1 */
    _Atomic bool retired; /* it will be in no slot again; specializer thread */
    cudaLibrary_t library;
    cudaKernel_t entry[CUDA_LAUNCHES];
    struct cuda_kernel_info info; /* launches 0: no cubin but a library's algorithm */
    struct pack *pack;
    struct lt *lt;
};

/* Repacked weights of one region in all layers of a format class, shared by the kernels of a
 * layout. */
struct pack {
    struct pack *next;
    char layout[64];
    enum region region;
    int32_t layer, layers; /* the first of them, and how many */
    int32_t *index;        /* [all layers] a layer's place among them; NULL: it is all layers */
    int32_t users;
    int64_t each, at, bytes; /* bytes a layer; place in the arena */
};

/* cuda_load(); without `packs` its repacked weights are the caller's business. */
struct kernel *loaded_open(struct backend *b, const struct kernel_object *o, bool packs,
                           struct err *e);
int loaded_region(struct walk *w, const struct kernel *k, enum region r, int32_t layer,
                  struct err *e);
/* Engine thread: frees what no graph refers to any more. `all`: at close. */
void loaded_reap(struct backend *b, bool all);

/* Whether kernel k can run its region in a wide step, or in one that is not. */
bool loaded_takes(const struct kernel *k, bool wide);

struct matrix {
    const void *data; /* [rows, cols]: bf16, or in bricks of `type` */
    int32_t rows, cols;
    enum dtype type;
    int64_t bytes;
    const void *copy; /* of bricks: the same rows as bf16 where they are there too, or NULL */
};
/* The matrix that region r reads in a layer, in steps of so many tokens (the head: rows of logits);
 * nothing for embed and attn. Any thread. */
struct matrix matrix_of(const struct backend *b, enum region r, int32_t layer, int32_t tokens);

/* pack.c. Under load_lock. Sets l->pack: the copy of its layout for the layers of `formats` (NULL:
 * for all), made if it is not there. */
int pack_open(struct backend *b, struct loaded *l, enum region r,
              const struct format_class *formats, struct err *e);
/* Under load_lock; the last user frees the copy. */
void pack_drop(struct backend *b, struct pack *p);

#endif
