/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_build.h - a CUDA source to a cubin through NVRTC, with the options that candidates get. */
#ifndef WHET_TESTS_KERNELS_CUDA_BUILD_H
#define WHET_TESTS_KERNELS_CUDA_BUILD_H

#include <stddef.h>

enum { WHY_SIZE = 1024 };

/* The cubin of `path`, malloc'ed, or NULL with the first lines of the log in why[WHY_SIZE]. `root`
 * is where kernels/ is, `arch` "sm_90a"; option[0..n) is passed on. Any thread. */
char *cuda_build(const char *root, const char *path, const char *arch, const char *const *option,
                 int n, size_t *size, char *why);

#endif
