/* SPDX-License-Identifier: Apache-2.0 */
/* bricks_run.c - eager products with weights that are kept in their own format.
 *
 * Up to EAGER_BRICKS_MOST tokens are multiplied by kernels of ours, which read each weight once, as
 * it is. More tokens are worth the library's kernels: the matrix, or a slab of its rows, is
 * expanded to bf16 first, into memory that all matrices share; a walk is one stream, so a slab is
 * multiplied before the next one takes its place. Where memory has room for all matrices as bf16
 * (engine/device_weights.h) they are expanded once, when the backend opens.
 */
#include "config/err.h"
#include "engine/cuda/bricks.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/device_model.h"
#include "engine/cuda/loaded.h"
#include "engine/cuda/products.h"
#include "engine/cuda/walk.h"
#include "kernels/bricks.h"

enum { SCRATCH_MOST = 256 << 20, EXPAND_BLOCKS = 8 /* of a multiprocessor */ };

int64_t bricks_scratch(const struct model *m)
{
    int64_t most = weights_expanded(m);
    return most < SCRATCH_MOST ? most : SCRATCH_MOST;
}

int32_t bricks_slab(const struct backend *b, int32_t rows, int32_t cols)
{
    int64_t fit = bricks_scratch(b->model) / (2LL * cols) / BRICK_ROWS * BRICK_ROWS;
    return fit < rows ? (int32_t)fit : rows;
}

/* The kernels of a format follow one another: 8 tokens, 16 tokens, to bf16. */
static enum primitive primitive_of(enum dtype t, int which)
{
    return (enum primitive)(PRIM_BRICKS + 3 * brick_kind((int)t) + which);
}

static int multiply(struct walk *w, const struct product *p, enum dtype t, struct err *e)
{
    struct eager_bricks_args a = {.w = p->w,
                                  .x16 = p->x16,
                                  .c = p->c,
                                  .d = p->d,
                                  .m = p->m,
                                  .n = p->n,
                                  .k = p->k,
                                  .ld = p->ld ? p->ld : p->n};
    dim3 grid = {(unsigned)(p->n + BRICK_ROWS - 1) / BRICK_ROWS, 1, 1};
    return launch(w, primitive_of(t, p->m > 8), grid, EAGER_BRICKS, 0, &a, e);
}

/* Rows of a matrix as bf16. */
static int expand(struct walk *w, enum dtype t, const void *bricks, void *to, int32_t rows,
                  int32_t cols, struct err *e)
{
    struct eager_expand_args a = {bricks, to, rows, cols};
    dim3 grid = {(unsigned)(w->b->device.multiProcessorCount * EXPAND_BLOCKS), 1, 1};
    return launch(w, primitive_of(t, 2), grid, 256, 0, &a, e);
}

int bricks_copies(struct backend *b, struct err *e)
{
    struct walk w = {.b = b, .stream = b->stream};
    for (int r = 0; r < REGION_COUNT; r++)
        for (int32_t l = 0; l < region_runs((enum region)r, b->model->shape.layers); l++) {
            struct matrix own = matrix_of(b, (enum region)r, l, 1);
            if (own.copy && expand(&w, own.type, own.data, (void *)own.copy, own.rows, own.cols, e))
                return -1;
        }
    CU(cudaStreamSynchronize(b->stream));
    return 0;
}

struct matrix bricks_eager(struct matrix m, int32_t tokens)
{
    if (!m.copy || tokens <= EAGER_BRICKS_MOST / 2)
        return m;
    return (struct matrix){m.copy, m.rows, m.cols, DTYPE_BF16, 2LL * m.rows * m.cols, NULL};
}

int bricks_run(struct walk *w, const struct product *p, enum dtype t, struct err *e)
{
    struct backend *b = w->b;
    int64_t row = bricks_bytes(t, BRICK_ROWS, p->k);
    int32_t slab = bricks_slab(b, p->n, p->k);
    if (p->m <= EAGER_BRICKS_MOST && !p->d16)
        return multiply(w, p, t, e);
    for (int32_t at = 0; at < p->n; at += slab) {
        struct product part = *p;
        part.n = p->n - at < slab ? p->n - at : slab;
        part.ld = p->ld ? p->ld : p->n;
        part.w = b->expanded;
        part.d = (char *)p->d + (int64_t)at * (p->d16 ? 2 : 4);
        part.c = p->c ? p->c + at : NULL;
        if (expand(w, t, (const char *)p->w + at / BRICK_ROWS * row, b->expanded, part.n, p->k, e))
            return -1;
        w->launches[w->place]++;
        if (blas_run(b, w->stream, &part, NULL, e))
            return -1;
    }
    return 0;
}
