/* SPDX-License-Identifier: Apache-2.0 */
/* naive_out.cu - the plainest kernel that fills a slot: mlp_out, one warp an output, as an example
 * of the interface and as what the tests of loading, swapping, hooks and benches load. PLANTED
 * makes it wrong by a little (1), or makes no number (2). */
#include "cuda.h"

#ifndef M_MAX
#define M_MAX 8
#endif
#ifndef HIDDEN
#define HIDDEN 512
#endif
#ifndef PLANTED
#define PLANTED 0
#endif

extern "C" __device__ const struct cuda_kernel_info whet_info = {
    WHET_CUDA_ABI,
    REGION_MLP_OUT,
    M_MAX,
    0,
    1,
    0,
    0,
    0,
    "",
    {{{HIDDEN / 8, M_MAX, 1}, 256, 0, 1, 0, 0}},
};

extern "C" __global__ void whet_kernel(const __grid_constant__ struct cuda_out_args a)
{
    int n = blockIdx.x * 8 + threadIdx.x / 32, t = blockIdx.y, lane = threadIdx.x % 32;
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n griddepcontrol.wait;" ::: "memory");
#endif
    if (t >= a.counts->m || n >= a.n)
        return;
    const unsigned short *w = (const unsigned short *)a.w + (size_t)n * a.k;
    const float planted = PLANTED == 2 ? __uint_as_float(0x7fc00000u) : PLANTED ? 0.5f : 0;
    float sum = 0;
    for (int i = lane; i < a.k; i += 32)
        sum += a.in[(size_t)t * a.k + i] * __uint_as_float((unsigned)w[i] << 16);
    for (int o = 16; o > 0; o >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, o);
    if (lane == 0)
        a.y[(size_t)t * a.n + n] = sum + a.x[(size_t)t * a.n + n] + (n == 3 ? planted : 0);
}
