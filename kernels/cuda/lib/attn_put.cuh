/* SPDX-License-Identifier: Apache-2.0 */
/* attn_put.cuh - where an attention leaves what it has of a head: as float, as bf16, or as both,
 * by what the region after it reads (kernels/cuda.h).
 *
 * Included behind HD and HEADS.
 */
#ifndef WHET_KERNELS_CUDA_LIB_ATTN_PUT_CUH
#define WHET_KERNELS_CUDA_LIB_ATTN_PUT_CUH

#include "cuda/lib/stream.cuh"

struct target {
    float *whole; /* or null */
    bf16 *half;   /* or null */

    __device__ __forceinline__ void put(int i, float v) const
    {
        if (whole)
            whole[i] = v;
        if (half)
            half[i] = to_bf16(v);
    }

    __device__ __forceinline__ void put(int i, float2 v) const
    {
        if (whole)
            __stcg((float2 *)(whole + i), v);
        if (half)
            *(unsigned *)(half + i) = pack_bf16(v.x, v.y);
    }

    __device__ __forceinline__ void put(int i, float4 v) const
    {
        if (whole)
            __stcg((float4 *)(whole + i), v);
        if (half)
            *(uint2 *)(half + i) = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
    }
};

/* From the first column of head `head` of token t. */
__device__ __forceinline__ struct target target_of(const struct cuda_attn_args &a, int t, int head)
{
    size_t at = ((size_t)t * HEADS + head) * HD;
    return {a.a ? a.a + at : nullptr, a.a16 ? (bf16 *)a.a16 + at : nullptr};
}

#endif
