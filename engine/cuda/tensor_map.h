/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_map.h - descriptions of bf16 rows in memory, by which kernels copy boxes of them into
 * shared memory (struct cuda_wide of kernels/cuda.h). Any thread; nothing is asked of the device.
 */
#ifndef WHET_ENGINE_CUDA_TENSOR_MAP_H
#define WHET_ENGINE_CUDA_TENSOR_MAP_H

#include <stdint.h>

struct err;

/* The driver's encoder; NULL: it has none. */
void *tensor_map_encoder(void);
/* Rows [rows, cols] at `data` (16-byte aligned), read in boxes of 64 columns and `box` rows with a
 * swizzle of 128 bytes. Rows beyond the last one are read as zeros. -1 with a message. */
int tensor_map(void *encoder, void *data, int32_t rows, int32_t cols, int32_t box, uint64_t map[16],
               struct err *e);

#endif
