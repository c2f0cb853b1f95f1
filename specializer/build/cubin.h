/* SPDX-License-Identifier: Apache-2.0 */
/* cubin.h - what a freshly built cubin needs and says of itself, read before anything loads it.
 *
 * A cubin is an ELF file for the device: reading it needs neither driver nor GPU. Pure; any thread.
 */
#ifndef WHET_SPECIALIZER_BUILD_CUBIN_H
#define WHET_SPECIALIZER_BUILD_CUBIN_H

#include <stddef.h>

#include "config/err.h"
#include "kernels/cuda.h"

struct cubin_facts {
    int32_t registers; /* of a thread, the most of its functions */
    int32_t stack;     /* bytes of local memory: spills, or arrays that are indexed at run time */
    struct cuda_kernel_info info; /* its whet_info */
};

/* 0 if `path` is a cubin with whet_kernel and whet_info whose blocks have the registers they need
 * and which keeps nothing on the stack; -1 with what was found otherwise. */
int cubin_inspect(const char *path, struct cubin_facts *out, struct err *err);

/* The same of a file that is in memory, aligned to 8 bytes. */
int cubin_inspect_bytes(const void *data, size_t n, struct cubin_facts *out, struct err *err);

#endif
