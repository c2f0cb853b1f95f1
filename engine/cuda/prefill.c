/* SPDX-License-Identifier: Apache-2.0 */
/* prefill.c - see prefill.h. */
#include "engine/cuda/prefill.h"

#include <stdlib.h>

#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/tensor_map.h"

bool prefill_hopper(const struct backend *b)
{
    return b->primitive[PRIM_WGMMA_64] && b->tensor_map;
}

int32_t prefill_rows(const struct backend *b)
{
    return prefill_hopper(b) ? EAGER_WGMMA_TILE : EAGER_TILE;
}

int prefill_launch_plain(struct walk *w, const struct prefill *p, struct err *e)
{
    dim3 grid = {(unsigned)p->tiles, (unsigned)p->a.heads, 1};
    return launch(w, p->head_dim == 64 ? PRIM_PREFILL_64 : PRIM_PREFILL_128, grid, 128,
                  4 * 64 * (p->head_dim + 8) * 2, &p->a, e);
}

/* The choice goes by the model's shape alone: graphs of steps that differ in their tiles only are
 * made from each other (graph.c). */
enum primitive prefill_variant(const struct backend *b, const struct prefill *p)
{
    if (p->head_dim == 64)
        return PRIM_WGMMA_64;
    bool even = p->a.heads / p->a.kv_heads % 2 == 0;
    return even && b->prefill_clusters > 0 ? PRIM_WGMMA_128_2 : PRIM_WGMMA_128;
}

int prefill_launch(struct walk *w, const struct prefill *p, struct err *e)
{
    const struct backend *b = w->b;
    if (!prefill_hopper(b))
        return prefill_launch_plain(w, p, e);
    enum primitive variant = prefill_variant(b, p);
    int32_t cluster = variant == PRIM_WGMMA_128_2 ? 2 : 1, head_dim = p->head_dim;
    int32_t fit = cluster > 1 ? b->prefill_clusters : b->device.multiProcessorCount;
    int32_t pieces = p->a.heads / cluster * p->tiles;
    struct eager_wgmma_args a = {.prompt = p->a, .tiles = p->tiles};
    /* Page tables name no page that is not there, so the rows of the pages need no end. */
    if (tensor_map(b->tensor_map, (void *)p->a.q16, p->tokens, p->a.heads * head_dim,
                   EAGER_WGMMA_TILE / 2, a.q.word, e) ||
        tensor_map(b->tensor_map, (void *)p->a.k_pages, INT32_MAX, head_dim, KV_PAGE, a.k.word,
                   e) ||
        tensor_map(b->tensor_map, (void *)p->a.v_pages, INT32_MAX, head_dim, KV_PAGE, a.v.word, e))
        return -1;
    dim3 grid = {(unsigned)((pieces < fit ? pieces : fit) * cluster), 1, 1};
    return launch_clusters(w, variant, grid, (unsigned)cluster, EAGER_WGMMA_THREADS,
                           EAGER_WGMMA_SMEM(head_dim), &a, e);
}

int32_t prefill_tiles(struct eager_tile *tile, int32_t rows, int32_t first, int32_t count,
                      int32_t context, int32_t pages_at)
{
    int32_t n = 0;
    for (int32_t at = (count - 1) / rows * rows; at >= 0; at -= rows) {
        int32_t has = count - at < rows ? count - at : rows;
        tile[n++] = (struct eager_tile){first + at, has, context - count + at, pages_at};
    }
    return n;
}

static int longer_first(const void *a, const void *b)
{
    const struct eager_tile *x = a, *y = b;
    int32_t x_end = x->position + x->rows, y_end = y->position + y->rows;
    return x_end != y_end ? (x_end < y_end) - (x_end > y_end)
                          : (x->first > y->first) - (x->first < y->first);
}

void prefill_order(struct eager_tile *tile, int32_t n)
{
    qsort(tile, (size_t)n, sizeof *tile, longer_first);
}
