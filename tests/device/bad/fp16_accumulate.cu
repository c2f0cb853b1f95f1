/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps its sums in half precision: fine until a channel is large. */
#include "plain.cuh"

__device__ __forceinline__ float to_half_and_back(float v)
{
    unsigned short h;
    float r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(h));
    return r;
}

OUT_KERNEL
{
    struct out_place p = out_place(a);
    after_previous();
    if (!p.live)
        return;
    float sum = 0;
    for (int i = p.lane; i < a.k; i += 32)
        sum = to_half_and_back(sum + a.in[(size_t)p.t * a.k + i] * weight_at(a, p.n, i));
    out_store(a, p, warp_sum(sum));
}
