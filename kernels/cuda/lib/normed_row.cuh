/* SPDX-License-Identifier: Apache-2.0 */
/* normed_row.cuh - a block's way to a normed row of x, for templates whose norm is a launch of its
 * own (wide.cu, brick_wide.cu, skinny.cu). */
#ifndef WHET_KERNELS_CUDA_LIB_NORMED_ROW_CUH
#define WHET_KERNELS_CUDA_LIB_NORMED_ROW_CUH

#include "cuda/lib/stream.cuh"

/* This thread's fours of COLUMNS_ columns of row `x`, normed as eager does it: four times BLOCK
 * columns lie between them. */
template <int COLUMNS_, int BLOCK, int N>
__device__ __forceinline__ void take_normed(const float *x, const float *gain, float eps,
                                            float4 (&v)[N])
{
    __shared__ float shared[33];
    float sum = 0;
#pragma unroll
    for (int k = 0; k < N; k++) {
        int i = threadIdx.x + k * BLOCK;
        v[k] = i < COLUMNS_ / 4 ? load_x4(x + i * 4) : make_float4(0, 0, 0, 0);
        sum += v[k].x * v[k].x + v[k].y * v[k].y + v[k].z * v[k].z + v[k].w * v[k].w;
    }
    float r = rsqrtf(block_sum(sum, shared) / COLUMNS_ + eps);
#pragma unroll
    for (int k = 0; k < N; k++) {
        int i = threadIdx.x + k * BLOCK;
        float4 g = ((const float4 *)gain)[min(i, COLUMNS_ / 4 - 1)], n = v[k];
        v[k] = make_float4(n.x * r * g.x, n.y * r * g.y, n.z * r * g.z, n.w * r * g.w);
    }
}

#endif
