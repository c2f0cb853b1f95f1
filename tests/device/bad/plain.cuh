/* SPDX-License-Identifier: Apache-2.0 */
/* plain.cuh - the plainest mlp_out and decode attention, in pieces: each file beside this one puts
 * them together and gets one thing wrong (or none: good_*.cu).
 *
 * mlp_out: a warp an output, 8 outputs and one token a block. attn: a warp a query head and token.
 */
#ifndef WHET_TESTS_DEVICE_BAD_PLAIN_CUH
#define WHET_TESTS_DEVICE_BAD_PLAIN_CUH

#include "cuda.h"
#include "cuda/lib/device.cuh"

#ifndef M_MAX
#define M_MAX 8
#endif
#ifndef HIDDEN
#define HIDDEN 512
#endif
#ifndef HEADS
#define HEADS 8
#endif
#ifndef HEAD_DIM
#define HEAD_DIM 64
#endif

#ifndef LEAVES16
#define LEAVES16 0
#endif

#define OUT_INFO_(counters, work)                                   \
    extern "C" __device__ const struct cuda_kernel_info whet_info = \
        {                                                           \
            WHET_CUDA_ABI,                                          \
            REGION_MLP_OUT,                                         \
            M_MAX,                                                  \
            0,                                                      \
            1,                                                      \
            counters,                                               \
            work,                                                   \
            0,                                                      \
            "",                                                     \
            {{{(HIDDEN + 7) / 8, M_MAX, 1}, 256, 0, 1, 0, 0}},      \
    };
#define OUT_INFO OUT_INFO_(0, 0)
#define OUT_KERNEL \
    OUT_INFO       \
    KERNEL whet_kernel(const __grid_constant__ struct cuda_out_args a)

#define ATTN_KERNEL                                                   \
    extern "C" __device__ const struct cuda_kernel_info whet_info = { \
        WHET_CUDA_ABI,                                                \
        REGION_ATTN,                                                  \
        M_MAX,                                                        \
        0,                                                            \
        1,                                                            \
        0,                                                            \
        0,                                                            \
        0,                                                            \
        "",                                                           \
        {{{HEADS, M_MAX, 1}, 32, 0, 1, 0, 0}},                        \
        0,                                                            \
        0,                                                            \
        0,                                                            \
        LEAVES16,                                                     \
    };                                                                \
    KERNEL whet_kernel(const __grid_constant__ struct cuda_attn_args a)

/* ---- mlp_out ------------------------------------------------------------------------------- */

/* This warp's output n of token t; not live: nothing to compute. */
struct out_place {
    int n, t, lane;
    bool live;
};

__device__ __forceinline__ struct out_place out_place(const struct cuda_out_args &a)
{
    struct out_place p = {(int)(blockIdx.x * 8 + threadIdx.x / 32), (int)blockIdx.y,
                          (int)threadIdx.x % 32, false};
    p.live = p.n < a.n && p.t < a.counts->m;
    return p;
}

__device__ __forceinline__ float weight_at(const struct cuda_out_args &a, int n, int i)
{
    return from_bf16(((const bf16 *)a.w)[(size_t)n * a.k + i]);
}

__device__ __forceinline__ float out_sum(const struct cuda_out_args &a, const struct out_place &p)
{
    float sum = 0;
    for (int i = p.lane; i < a.k; i += 32)
        sum += a.in[(size_t)p.t * a.k + i] * weight_at(a, p.n, i);
    return warp_sum(sum);
}

__device__ __forceinline__ void out_store(const struct cuda_out_args &a, const struct out_place &p,
                                          float sum)
{
    size_t at = (size_t)p.t * a.n + p.n;
    if (p.lane == 0)
        a.y[at] = sum + a.x[at];
}

/* ---- attn ---------------------------------------------------------------------------------- */

enum { PART = HEAD_DIM / 32 }; /* elements of a head a lane has */

/* Element (position, this lane's part) of a kv head in `page`. */
__device__ __forceinline__ size_t kv_place(const struct cuda_attn_args &a, int page, int position,
                                           int kvh)
{
    return (((size_t)page * a.kv_heads + kvh) * KV_PAGE + position % KV_PAGE) * HEAD_DIM +
           threadIdx.x * PART;
}

/* A running softmax over positions, which are given one by one; in double, because one sum after
 * the other in float is farther from the truth than admission allows. */
struct attending {
    float q[PART];
    double top, o[PART], sum;
};

__device__ __forceinline__ void attend(const struct cuda_attn_args &a, struct attending &s,
                                       size_t at)
{
    double dot = 0;
    for (int i = 0; i < PART; i++)
        dot += (double)s.q[i] * from_bf16(((const bf16 *)a.k_pages)[at + i]);
    for (int o = 16; o > 0; o >>= 1)
        dot += __shfl_xor_sync(WARP_ALL, dot, o);
    dot *= a.scale;
    double top = fmax(s.top, dot), keep = exp(s.top - top), p = exp(dot - top);
    for (int i = 0; i < PART; i++)
        s.o[i] = s.o[i] * keep + p * from_bf16(((const bf16 *)a.v_pages)[at + i]);
    s.sum = s.sum * keep + p;
    s.top = top;
}

__device__ __forceinline__ struct attending attending_of(const struct cuda_attn_args &a, int head,
                                                         int t)
{
    struct attending s = {{}, -(double)INFINITY, {}, 0};
    for (int i = 0; i < PART; i++)
        s.q[i] = a.q[((size_t)t * a.heads + head) * HEAD_DIM + threadIdx.x * PART + i];
    return s;
}

/* All that token t looks at. */
__device__ __forceinline__ struct attending attended(const struct cuda_attn_args &a, int head,
                                                     int t)
{
    struct attending s = attending_of(a, head, t);
    int kvh = head / (a.heads / a.kv_heads);
    for (int p = 0; p <= a.position[t]; p++)
        attend(a, s, kv_place(a, a.page_table[a.pages_at[t] + p / KV_PAGE], p, kvh));
    return s;
}

__device__ __forceinline__ void attn_store(const struct cuda_attn_args &a,
                                           const struct attending &s, int head, int t)
{
    for (int i = 0; i < PART; i++)
        a.a[((size_t)t * a.heads + head) * HEAD_DIM + threadIdx.x * PART + i] =
            (float)(s.o[i] / s.sum);
}

#endif
