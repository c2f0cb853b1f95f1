/* SPDX-License-Identifier: Apache-2.0 */
/* Eight warps share a sum through shared memory, and nobody waits for the others. */
#include "plain.cuh"

OUT_INFO
KERNEL whet_kernel(const __grid_constant__ struct cuda_out_args a)
{
    __shared__ float part[8];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = blockIdx.y;
    after_previous();
    for (int n = blockIdx.x * 8; t < a.counts->m && n < min((int)blockIdx.x * 8 + 8, a.n); n++) {
        float sum = 0;
        for (int i = threadIdx.x; i < a.k; i += 256)
            sum += a.in[(size_t)t * a.k + i] * weight_at(a, n, i);
        sum = warp_sum(sum);
        if (lane == 0)
            part[warp] = sum;
        if (threadIdx.x == 0) {
            sum = a.x[(size_t)t * a.n + n];
            for (int w = 0; w < 8; w++)
                sum += ((volatile float *)part)[w];
            a.y[(size_t)t * a.n + n] = sum;
        }
    }
}
