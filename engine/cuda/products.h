/* SPDX-License-Identifier: Apache-2.0 */
/* products.h - matrix products of the library, and the algorithms that it has for them.
 *
 * Shared by those who run products (eager.c, hook.c, device.c) and those who choose among
 * algorithms (lt.c). Whatever asks the library may be called by any thread; running takes a stream
 * of the caller's.
 */
#ifndef WHET_ENGINE_CUDA_PRODUCTS_H
#define WHET_ENGINE_CUDA_PRODUCTS_H

#include <cublasLt.h>

#include "engine/cuda/graph.h"
#include "engine/cuda/loaded.h"
#include "engine/cuda/memory.h"

/* A library's algorithm for the product of a region. Immutable once open. */
enum { LT_WIDTHS = NARROW_BUCKETS + 2048 / NARROW + 1 };
struct lt {
    cublasLtMatmulAlgo_t algo;
    int32_t m;            /* largest number of tokens it was chosen for */
    bool runs[LT_WIDTHS]; /* possible at this width; eager's own is taken elsewhere */
};

/* blas.c: d[m, n] = x[m, k] w[n, k]^T (+ c); d is float, or bf16 if d16. */
struct product {
    const void *x16, *w;
    const float *c; /* or NULL */
    void *d;
    bool d16;
    int32_t m, n, k;
    int32_t ld; /* elements from a row of d (and c) to the next; 0: n */
};
int blas_create(struct backend *b, struct err *e);
/* blas_create(), and every product that a step can need once. */
int blas_open(struct backend *b, struct err *e);
void blas_close(struct backend *b);
/* `other`: its algorithm where it runs, or NULL. */
int blas_run(struct backend *b, cudaStream_t stream, const struct product *p,
             const struct lt *other, struct err *e);
/* The product of region r in steps of m tokens (padded), on layer 0 and the backend's buffers. */
struct product blas_product(const struct backend *b, enum region r, int32_t m);
/* The library's list for a product, its best guess first; how many, or -1. Any thread. `room`: the
 * algorithms may use our workspace. */
int blas_list(struct backend *b, const struct product *p, bool room, cublasLtMatmulAlgo_t *out,
              int most, struct err *e);
/* Whether an algorithm can do the product in our workspace; any thread. */
int blas_check(struct backend *b, const struct product *p, const cublasLtMatmulAlgo_t *a,
               size_t *workspace, struct err *e);

/* bricks_run.c: the same with w in bricks of a format, on the walk's stream. */
int bricks_run(struct walk *w, const struct product *p, enum dtype t, struct err *e);
/* What eager multiplies so many tokens by: from 9 on the matrix's copy in bf16, if it has one. The
 * library's kernels are faster than its own for bricks there (4.2 ms a step of 16 tokens of
 * Qwen3-4B on an H200 where those take 5.0). */
struct matrix bricks_eager(struct matrix m, int32_t tokens);
/* Rows that are expanded at a time: a product with more is made in as many parts. */
int32_t bricks_slab(const struct backend *b, int32_t rows, int32_t cols);
/* Bytes of the memory that matrices of this model are expanded in. */
int64_t bricks_scratch(const struct model *m);
/* Makes the bf16 beside all bricks that have some; ends when it is there. */
int bricks_copies(struct backend *b, struct err *e);

/* lt.c. Specializer thread, or a probe. */
int cuda_choose(struct backend *b, char *const *define, const char *path, char **log,
                struct err *e);
/* A record for another version of the library or another shape is refused, and so is what the
 * library does not know. */
int lt_open(struct backend *b, const char *path, enum region region, struct lt **out,
            struct err *e);
bool lt_runs(const struct lt *l, int32_t m); /* l may be NULL; m padded */

#endif
