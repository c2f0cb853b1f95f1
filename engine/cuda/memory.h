/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h - device memory: the plan of it, arenas, and the block that carries a step's data.
 *
 * Everything is allocated when the backend opens, as one piece for each purpose that is dealt out
 * from the front, and lives until it closes. Pointers are of the device unless a name ends in
 * `host`. What a step reads lies at fixed addresses, because graphs refer to it.
 */
#ifndef WHET_ENGINE_CUDA_MEMORY_H
#define WHET_ENGINE_CUDA_MEMORY_H

#include <cuda_runtime_api.h>

#include "engine/backend.h"

/* Steps up to this many tokens run as graphs, with float activations between the regions. */
enum { NARROW = 64 };
/* Steps in which every sequence has one token have a choice of kernels for attention up to this
 * many of them: their queries, and what attention makes of them, are there as floats. */
enum { DECODE_MOST = 512 };
/* Rows of a step of which a region's inputs are captured, drawn and judged: of wider ones the
 * others are like these (hook.h, probe_private.h). Sequences have no two alike. */
static inline int32_t rows_seen(enum region r)
{
    return r == REGION_ATTN ? DECODE_MOST : NARROW;
}
/* Partial results of an argmax over a row of logits; most pieces that eager attention cuts a
 * context into. */
enum { BEST_PARTS = 32, MAX_SPLITS = 32 };

/* One allocation, handed out from the front. */
struct arena {
    char *base;
    int64_t bytes, used;
};

/* The dynamic data of a step: one block at a fixed address on the device, its mirror in pinned
 * memory, copied in one piece up to the end of what is used. Pointers are of the device;
 * block_mirror() gives the host's. */
struct step_block {
    char *host, *device;
    int32_t tokens, rows, spans; /* capacities */
    int64_t pages, bytes;
    struct cuda_counts *counts;
    struct cuda_counts *lead; /* of the decodes that a step with prompts begins with (step.c) */
    int32_t *token, *position, *kv_at, *pages_at, *row, *single;
    struct span *span;
    struct eager_tile *tile;
    int32_t *page_table; /* last */
};

int memory_open(struct backend *b, struct err *e);
void memory_close(struct backend *b);
/* Pages of a layer's keys (and values) that there is spare room for. */
int32_t memory_spare_pages(const struct model_shape *s);
/* Bytes of a layer's repacked weights that a kernel may ask for. */
int64_t memory_packed_most(const struct model_shape *s);
/* Device memory that a process probing kernels of this model allocates. */
int64_t memory_probe_arena(const struct model_shape *s);
/* Host memory that the device can read; from b->lent_pinned if there is one. */
int memory_pinned(struct backend *b, void **p, int64_t bytes, struct err *e);
/* backend_ops.kv_room */
int64_t memory_kv_room(const struct model *m, const struct backend_options *o, int64_t *page_bytes);
/* backend_ops.fixed_bytes */
int64_t memory_fixed(const struct model *m, const struct backend_options *o);
void *arena_take(struct arena *a, int64_t bytes);
/* The host mirror of a device pointer of `s` in pinned host memory. */
void *block_mirror(const struct step_block *s, const void *device);
void *kv_pages(const struct backend *b, int32_t layer, int v);

#endif
