/* SPDX-License-Identifier: Apache-2.0 */
/* compile_pool.h - points of templates that are compiled by all cores, in the order in which they
 * are wanted, while the device works on those before them. NVRTC takes a second or so for each, and
 * a machine with a GPU has many cores.
 */
#ifndef WHET_TESTS_DEVICE_COMPILE_POOL_H
#define WHET_TESTS_DEVICE_COMPILE_POOL_H

#include <stdbool.h>
#include <stddef.h>

#include "tests/kernels/cuda_points.h"

struct compile_job {
    const struct template *t;
    struct facts f;
    struct point p;
    char knobs[512]; /* the point's text, for messages */
    /* Once awaited: */
    char *cubin; /* the caller's; NULL: why */
    size_t size;
    char why[WHY_SIZE];
    bool done;
};

/* Threads compile job[0], job[1], ... from the sources below `root`, and fill in `knobs` before
 * this returns. `threads` 0: as many as there are cores. The jobs stay where they are until
 * compile_pool_end(). */
struct compile_pool *compile_pool_start(struct compile_job *const *job, int jobs, int threads,
                                        const char *root, const char *arch);
/* Waits for one of the pool's jobs. */
void compile_pool_await(struct compile_pool *pool, const struct compile_job *j);
/* Waits for compilers that are at work; what was not begun is left. Frees cubins not taken. */
void compile_pool_end(struct compile_pool *pool);

#endif
