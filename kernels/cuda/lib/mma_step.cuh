/* SPDX-License-Identifier: Apache-2.0 */
/* mma_step.cuh - weights in bf16 (mma.cu, mma_block.cu): how they are repacked, and the products of
 * one step of a tile. */
#ifndef WHET_KERNELS_CUDA_LIB_MMA_STEP_CUH
#define WHET_KERNELS_CUDA_LIB_MMA_STEP_CUH

#include "cuda/lib/mma_end.cuh"

#define PACKED_BYTES ((int64_t)ROWS_ALL * K * 2)
#define PACKED_LAYOUT TILE_LAYOUT

extern "C" __global__ void whet_pack(struct cuda_pack_args a)
{
    pack_tiles((const bf16 *)a.src, (uint4 *)a.dst, a.rows, a.cols,
               blockIdx.x * (long long)blockDim.x + threadIdx.x, (long long)gridDim.x * blockDim.x);
}

/* c += w b for tile r of step u of an iteration; w0 and w1 are the halves of the step's columns. */
__device__ __forceinline__ void multiply_step(int r, int u, uint4 w0, uint4 w1, const uint4 *b,
                                              all_sums &c)
{
#pragma unroll
    for (int n = 0; n < TERMS * NT; n++) {
        int i = (u * TERMS + n / NT) * 2; /* of the products for these rows and tokens */
        mma_bf16(c[i % CHAINS][r][n % NT], w0, b[n].x, b[n].y);
        mma_bf16(c[(i + 1) % CHAINS][r][n % NT], w1, b[n].z, b[n].w);
    }
}

#endif
