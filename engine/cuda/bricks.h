/* SPDX-License-Identifier: Apache-2.0 */
/* bricks.h - rows of a file's blocks into the order of kernels/bricks.h, on the host.
 *
 * Pure; any thread. Nothing is rounded: every bit of a block is moved.
 */
#ifndef WHET_ENGINE_CUDA_BRICKS_H
#define WHET_ENGINE_CUDA_BRICKS_H

#include <stdint.h>

#include "engine/quant.h"

/* Bytes of a matrix in bricks; 0: a format that is not kept. */
int64_t bricks_bytes(enum dtype t, int64_t rows, int64_t cols);

/* Puts a row of `cols` values (a multiple of dtype_block(t)) at row `r` (0 .. BRICK_ROWS - 1) of a
 * row of bricks. `to` was zero before its first row. */
void bricks_put_row(enum dtype t, const void *row, int32_t cols, int32_t r, void *to);

#endif
