/* SPDX-License-Identifier: Apache-2.0 */
/* wide_parts.cuh - what a template for more than 64 tokens (wide.cu, brick_wide.cu) begins with:
 * the norm, which is a launch of its own; who multiplies what; the activations' way into shared
 * memory. The includer has the knobs.
 */
#ifndef WHET_KERNELS_CUDA_LIB_WIDE_PARTS_CUH
#define WHET_KERNELS_CUDA_LIB_WIDE_PARTS_CUH

#include "cuda/lib/normed_row.cuh"
#include "cuda/lib/stream.cuh"
#include "cuda/lib/wide_end.cuh"

/* ---- rows that the product reads ----------------------------------------------------------- */

#if PREPARES
enum { EACH = (K / 4 + NORM_THREADS - 1) / NORM_THREADS };

/* This thread's fours of columns of row t: four times NORM_THREADS columns lie between them. */
typedef float4 row_part[EACH];

#if HAS_NORM
/* Of x, normed as eager does it. */
__device__ __forceinline__ void take_row(const struct region_args &a, int t, row_part &v)
{
    take_normed<K, NORM_THREADS>(a.x + (size_t)t * K, a.norm, a.eps, v);
}
#else
/* Of what the region before left. */
__device__ __forceinline__ void take_row(const struct region_args &a, int t, row_part &v)
{
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int i = threadIdx.x + k * NORM_THREADS;
        uint2 two = make_uint2(0, 0);
        if (i < K / 4)
            two = __ldcg((const uint2 *)a.wide.in16 + (size_t)t * (K / 4) + i);
        v[k] = make_float4(low_bf16(two.x), high_bf16(two.x), low_bf16(two.y), high_bf16(two.y));
    }
}
#endif

#if E4M3
/* Whether weights with this scale count as zero. */
__device__ __forceinline__ bool is_nothing(float scale)
{
    return fabsf(scale) < 1e-30f;
}

/* Two floats to a pair of e4m3, `low` in the lower byte; to nearest even, at most 448. */
__device__ __forceinline__ unsigned pack_e4m3(float low, float high)
{
    unsigned r;
    asm("{\n .reg .b16 p;\n cvt.rn.satfinite.e4m3x2.f32 p, %1, %2;\n cvt.u32.u16 %0, p;\n}"
        : "=r"(r)
        : "f"(high), "f"(low));
    return r;
}

__device__ __forceinline__ float most_of_four(float4 v)
{
    return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}

/* Of all lanes of a warp. */
__device__ __forceinline__ float most_of_warp(float most)
{
    for (int o = 16; o > 0; o >>= 1)
        most = fmaxf(most, __shfl_xor_sync(WARP_ALL, most, o));
    return most;
}

/* The largest of a whole row. */
__device__ __forceinline__ float most_of_row(const row_part &v)
{
    __shared__ float warps[NORM_THREADS / 32];
    float most = 0;
#pragma unroll
    for (int k = 0; k < EACH; k++)
        most = fmaxf(most, most_of_four(v[k]));
    most = most_of_warp(most);
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = most;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < NORM_THREADS / 32; i++)
        most = fmaxf(most, warps[i]);
    return most;
}

/* As e4m3, of each 128 columns, which are a warp's, or of all the largest becoming 448; columns of
 * four in the order in which a brick has them: 0, 2, 1, 3. */
__device__ __forceinline__ void put_row(const struct region_args &a, int t, const row_part &v)
{
    char *codes = (char *)a.work.work;
    float *scales = (float *)(codes + CODES), most = BY_TOKEN ? most_of_row(v) : 0;
    float by = most > 1e-30f ? 448 / most : 0;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int i = threadIdx.x + k * NORM_THREADS;
        if (!BY_TOKEN) {
            most = most_of_warp(most_of_four(v[k]));
            by = most > 1e-30f ? 448 / most : 0;
        }
        if (i < K / 4)
            ((unsigned *)codes)[(size_t)t * (K / 4) + i] =
                pack_e4m3(v[k].x * by, v[k].z * by) | pack_e4m3(v[k].y * by, v[k].w * by) << 16;
        if (i < K / 4 && i % 32 == 0 && i / 32 < SCALED)
            scales[(size_t)(i / 32) * SCALES + t] = most / 448;
    }
}
#else
__device__ __forceinline__ void put_row(const struct region_args &a, int t, const row_part &v)
{
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int i = threadIdx.x + k * NORM_THREADS;
        if (i < K / 4)
            ((uint2 *)a.work.work)[(size_t)t * (K / 4) + i] =
                make_uint2(pack_bf16(v[k].x, v[k].y), pack_bf16(v[k].z, v[k].w));
    }
}
#endif

KERNEL __launch_bounds__(NORM_THREADS) whet_kernel(const __grid_constant__ struct region_args a)
{
    row_part v;
    release_next();
    after_previous();
    if ((int)blockIdx.x < a.counts->m) {
        take_row(a, blockIdx.x, v);
        put_row(a, blockIdx.x, v);
    }
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

/* Bytes that come into a stage for its activations. */
enum { TOKENS_BYTES = TOKENS * (128 + 4 * BY_COLUMNS) };

/* This block's part of the activations, to all blocks that multiply them; scales to itself. */
__device__ __forceinline__ void ask_tokens(const struct region_args &a, struct memory &s,
                                           const struct place &at, int rank, int stage, int step)
{
    int part = rank % CLUSTER * BOX;
#if BY_COLUMNS
    copy_bulk<false>(s.token_scale[stage],
                     (const float *)((const char *)a.work.work + CODES) + step * SCALES + at.token,
                     TOKENS * 4, &s.full[stage]);
#endif
    copy_box<(CLUSTER > 1)>(tokens_at(s, stage) + part * 128, a.wide.map, step * 64,
                            at.token + part, &s.full[stage],
                            (unsigned short)(((1 << CLUSTER) - 1) << at.part * CLUSTER));
}

#if BY_TOKEN
/* The scales of a tile's tokens, which come with its first step. There are two places for them: the
 * producer is not two tiles ahead, since a tile has at least as many steps as there are stages. */
__device__ __forceinline__ void ask_scales(const struct region_args &a, struct memory &s,
                                           const struct place &at, int parity, int stage)
{
    copy_bulk<false>(s.token_scale[parity],
                     (const float *)((const char *)a.work.work + CODES) + at.token, TOKENS * 4,
                     &s.full[stage]);
}
#endif

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
