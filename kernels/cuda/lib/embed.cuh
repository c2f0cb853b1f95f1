/* SPDX-License-Identifier: Apache-2.0 */
/* embed.cuh - which token a row of the residual stream begins with: what both embedding kernels do
 * before they read a row of their table. Eager only; no template includes it.
 */
#ifndef WHET_KERNELS_CUDA_LIB_EMBED_CUH
#define WHET_KERNELS_CUDA_LIB_EMBED_CUH

#include "cuda/lib/device.cuh"
#include "eager.h"

/* The token of row t, known once the step before has drawn it, and noted in a.seen; -1: the step
 * has no such row. All threads of the block that has the row. */
__device__ __forceinline__ int embed_token(const cuda_embed_args &a, int t)
{
    after_previous();
    release_next(); /* what comes next may read the step's block before it waits */
    if (t >= a.counts->m)
        return -1;
    int token = a.tokens[t];
    if (token < 0)
        token = max(a.drawn[-1 - token], 0); /* a row without a token: of no use to anybody */
    if (threadIdx.x == 0)
        a.seen[t] = token;
    return token;
}

#endif
