/* SPDX-License-Identifier: Apache-2.0 */
/* images.h - the eager CUDA kernels as they lie in the module: one image a source file and
 * architecture, made at build time by build_images.c. Static storage. */
#ifndef WHET_KERNELS_IMAGES_H
#define WHET_KERNELS_IMAGES_H

#include <stddef.h>

struct cuda_image {
    const char *file; /* "eager.cu" */
    int arch;         /* 90: compute capability 9.0 */
    int exact;        /* 1: only that one (sm_90a); 0: later minor versions as well */
    int ptx;          /* 1: text for the driver to compile, any newer architecture */
    size_t at, size;  /* in cuda_image_data */
};

extern const struct cuda_image cuda_images[];
extern const int cuda_image_count;
extern const unsigned char cuda_image_data[];

#endif
