/* SPDX-License-Identifier: Apache-2.0 */
/* blas.h - OpenBLAS, loaded with the kernels that fit this processor (blas_core.h). */
#ifndef WHET_ENGINE_CPU_BLAS_H
#define WHET_ENGINE_CPU_BLAS_H

#include <cblas.h>

struct blas {
    __typeof__(cblas_sgemm) *sgemm; /* one thread's work: ranks are the threads */
    const char *core;               /* the core in use, "SkylakeX"; "none" without OpenBLAS */
    const char *asked;              /* the core that the user asked for; NULL: none */
    const char *config;             /* version and build options */
    const char *missing;            /* why OpenBLAS is not in use; NULL: it is */
};

/* Puts our choice of a core into the environment, unless the user's is there, and that one thread
 * is wanted: OpenBLAS reads both as it is loaded. To be called before a program has threads, which
 * might read the environment. */
void blas_prepare(void);

/* Loads the library at the first call. Never fails: without a library products are computed by a
 * plain loop. Any thread; not in a sealed process, unless it was called there before. */
const struct blas *openblas_open(void);

#endif
