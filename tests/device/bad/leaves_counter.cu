/* SPDX-License-Identifier: Apache-2.0 */
/* Two blocks share a sum; the last one adds up, and forgets to set the counter back. */
#include "plain.cuh"

OUT_INFO_((HIDDEN + 7) / 8 * M_MAX, 0)

KERNEL whet_kernel(const __grid_constant__ struct cuda_out_args a)
{
    struct out_place p = out_place(a);
    after_previous();
    if (p.live)
        out_store(a, p, out_sum(a, p));
    __syncthreads();
    if (threadIdx.x == 0)
        atomicAdd(a.work.counter + blockIdx.y * gridDim.x + blockIdx.x, 1u);
}
