/* SPDX-License-Identifier: Apache-2.0 */
/* device.h - the device, its eager kernels, and how a failed call of the runtime is reported.
 *
 * Opened once by the thread that makes the backend; afterwards what is here is constant. The image
 * of a source file is one of those that kernels/build_images.c put into the program.
 */
#ifndef WHET_ENGINE_CUDA_DEVICE_H
#define WHET_ENGINE_CUDA_DEVICE_H

#include <cuda_runtime_api.h>

#include "engine/backend.h"
#include "kernels/bricks.h"

/* Records where a call of the runtime failed; -1. */
int cuda_failed(struct err *e, cudaError_t code, const char *what, const char *file, int line);
#define CU(call)                                                     \
    do {                                                             \
        cudaError_t code_ = (call);                                  \
        if (code_ != cudaSuccess)                                    \
            return cuda_failed(e, code_, #call, __FILE__, __LINE__); \
    } while (0)

enum { EAGER_FILES = 7 }; /* kernels/eager*.cu */

/* Every primitive of kernels/eager*.cu. */
enum primitive {
    PRIM_COPY,
    PRIM_OPEN,
    PRIM_CLOSE,
    PRIM_EMBED,
    PRIM_EMBED_BRICKS,
    PRIM_BRICKS, /* three a format, by brick_kind() (bricks_run.c) */
    PRIM_BRICKS_LAST = PRIM_BRICKS + 3 * BRICK_KINDS - 1,
    PRIM_NORM,
    PRIM_ROUND,
    PRIM_ADD,
    PRIM_SILU,
    PRIM_ROPE,
    PRIM_DECODE_64_1,
    PRIM_DECODE_64_2,
    PRIM_DECODE_64_4,
    PRIM_DECODE_64_8,
    PRIM_DECODE_128_1,
    PRIM_DECODE_128_2,
    PRIM_DECODE_128_4,
    PRIM_DECODE_128_8,
    PRIM_PREFILL_64,
    PRIM_PREFILL_128,
    PRIM_WGMMA_64, /* NULL where the device has no such instructions */
    PRIM_WGMMA_128,
    PRIM_WGMMA_128_2,
    PRIM_BEST,
    PRIM_SAMPLE,
    PRIM_READ,
    PRIM_COMPARE,
    PRIM_GATHER,
    PRIM_WIDEN,
    PRIM_COUNT
};

int device_open(struct backend *b, struct err *e);
int device_takes(const struct model_shape *s, struct err *e);
int device_kernels(struct backend *b, struct err *e);
/* The image of a source file that suits the device best. */
int device_image(const struct cudaDeviceProp *d, const char *file, cudaLibrary_t *library,
                 struct err *e);

#endif
