/* SPDX-License-Identifier: Apache-2.0 */
/* prefill.h - attention of runs of tokens (prompts): which of its two kernels, and its launch. Only
 * puts work on the walk's stream.
 */
#ifndef WHET_ENGINE_CUDA_PREFILL_H
#define WHET_ENGINE_CUDA_PREFILL_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/cuda/walk.h"

/* What is launched: a's tiles, those with most positions first, of a step of so many rows of q16.
 */
struct prefill {
    struct eager_prefill_args a;
    int32_t head_dim, tiles, tokens;
};

/* Whether this device has the kernel of compute capability 9.0 (kernels/cuda/eager_wgmma.cu). */
bool prefill_hopper(const struct backend *b);
/* Rows of a tile of the kernel that it has. */
int32_t prefill_rows(const struct backend *b);
/* By that kernel, -1 with a message; and by the other, which all devices have (eager_prefill.cu).
 */
int prefill_launch(struct walk *w, const struct prefill *p, struct err *e);
int prefill_launch_plain(struct walk *w, const struct prefill *p, struct err *e);
/* Which one of Hopper's kernels suits heads like these. */
enum primitive prefill_variant(const struct backend *b, const struct prefill *p);

/* Tiles of rows [first, first + count) of a step, the last of a sequence of `context` positions
 * whose pages begin at pages_at; returns how many. */
int32_t prefill_tiles(struct eager_tile *tile, int32_t rows, int32_t first, int32_t count,
                      int32_t context, int32_t pages_at);
/* Puts n tiles of several runs in their order. */
void prefill_order(struct eager_tile *tile, int32_t n);

#endif
