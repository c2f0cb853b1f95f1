/* SPDX-License-Identifier: Apache-2.0 */
/* wide_parts.cuh - what a template for more than 64 tokens (wide.cu, brick_wide.cu) begins with:
 * the norm, which is a launch of its own; who multiplies what; the activations' way into shared
 * memory. The includer has the knobs.
 */
#ifndef WHET_KERNELS_CUDA_LIB_WIDE_PARTS_CUH
#define WHET_KERNELS_CUDA_LIB_WIDE_PARTS_CUH

#include "cuda/lib/stream.cuh"
#include "cuda/lib/wide_end.cuh"

/* ---- the norm ------------------------------------------------------------------------------ */

#if HAS_NORM
/* A row of x, normed as eager does it, into working memory. */
__device__ __forceinline__ void norm_row(const struct region_args &a, int t)
{
    enum { EACH = (K / 4 + NORM_THREADS - 1) / NORM_THREADS };
    __shared__ float shared[33];
    const float *x = a.x + (size_t)t * K;
    float4 v[EACH];
    float sum = 0;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int i = threadIdx.x + k * NORM_THREADS;
        v[k] = i < K / 4 ? load_x4(x + i * 4) : make_float4(0, 0, 0, 0);
        sum += v[k].x * v[k].x + v[k].y * v[k].y + v[k].z * v[k].z + v[k].w * v[k].w;
    }
    float r = rsqrtf(block_sum(sum, shared) / K + a.eps);
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int i = threadIdx.x + k * NORM_THREADS;
        if (i >= K / 4)
            continue;
        float4 g = ((const float4 *)a.norm)[i], n = v[k];
        ((uint2 *)a.work.work)[(size_t)t * (K / 4) + i] = make_uint2(
            pack_bf16(n.x * r * g.x, n.y * r * g.y), pack_bf16(n.z * r * g.z, n.w * r * g.w));
    }
}

KERNEL __launch_bounds__(NORM_THREADS) whet_kernel(const __grid_constant__ struct region_args a)
{
    release_next();
    after_previous();
    if ((int)blockIdx.x < a.counts->m)
        norm_row(a, blockIdx.x);
}
#endif

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---- who has what -------------------------------------------------------------------------- */

/* A unit of work: CLUSTER tiles of rows times a tile of tokens, which a cluster multiplies. */
struct units {
    int first, step, all, token_tiles;
};

__device__ __forceinline__ struct units my_units(int m)
{
    int token_tiles = (m + TOKENS - 1) / TOKENS;
    return {(int)blockIdx.x / BLOCKS, (int)gridDim.x / BLOCKS,
            ROWS_ALL / FEATURES / CLUSTER * token_tiles, token_tiles};
}

__device__ __forceinline__ struct place place_of(const struct units &u, int unit, int rank)
{
    return {unit / u.token_tiles * CLUSTER + rank % CLUSTER, unit % u.token_tiles * TOKENS,
            rank / CLUSTER};
}

__device__ __forceinline__ int first_step(int part)
{
    return part * (STEPS / BRICK_STEPS) / SPLIT * BRICK_STEPS;
}

/* A place in a ring of N, and the parity of the phase of its barriers. */
struct pipe_state {
    int stage, parity;
};

template <int N = STAGES> __device__ __forceinline__ void advance(struct pipe_state &t)
{
    if (++t.stage == N)
        t = {0, t.parity ^ 1};
}

/* ---- activations ---------------------------------------------------------------------------- */

/* This block's part of the activations, to all blocks that multiply them. */
__device__ __forceinline__ void ask_tokens(const struct region_args &a, struct memory &s,
                                           const struct place &at, int rank, int stage, int step)
{
    int part = rank % CLUSTER * BOX;
    copy_box<(CLUSTER > 1)>(tokens_at(s, stage) + part * 128, a.wide.map, step * 64,
                            at.token + part, &s.full[stage],
                            (unsigned short)(((1 << CLUSTER) - 1) << at.part * CLUSTER));
}

__device__ __forceinline__ void give_back(struct memory &s, int stage, int part)
{
    int lane = threadIdx.x % 32;
    if (CLUSTER == 1 && lane == 0)
        barrier_arrive(&s.empty[stage]);
    else if (CLUSTER > 1 && lane < CLUSTER)
        barrier_arrive_at<false>(&s.empty[stage], part * CLUSTER + lane);
}

#endif
#endif
