/* SPDX-License-Identifier: Apache-2.0 */
/* mma_run.cuh - the kernel of a template on tensor cores (mma.cu, brick_mma.cu), from its first
 * loads to its last store. The template brings its stream of weights:
 *
 *   fragments                      what a lane has in flight
 *   load_first(buffer, w, at)      asks for as much of the first pass. Before the wait
 *   stage(a, shared, at)           where STAGE: copies what follows into shared memory
 *   prefetch_passes(a, at)         where PREFETCH: what is not in flight yet, into L2
 *   multiply_pass(...)             c += W x over a pass, and asks for what comes next
 *
 * and says with PACKED_BYTES and PACKED_LAYOUT what it wants repacked, with SMEM_STAGE what shared
 * memory it needs besides.
 */
#ifndef WHET_KERNELS_CUDA_LIB_MMA_RUN_CUH
#define WHET_KERNELS_CUDA_LIB_MMA_RUN_CUH

#include "cuda/lib/mma_end.cuh"

/* All passes of this warp, whose sums begin in c and whose first weights are in flight, and what
 * becomes of them. With REDUCE every warp takes part, also one without a unit. */
__device__ __forceinline__ void multiply_all(const struct region_args &a, const struct where &at,
                                             char *shared, const struct extra *e, int passes,
                                             fragments &buffer, weights w, all_sums &c,
                                             unsigned long long *best)
{
    const bf16 *x = (const bf16 *)shared + at.g * LD + at.q * 8;
    float *part = (float *)(shared + SMEM_X), scale[NT][2];
    if (!KEPT && SCALED)
#pragma unroll
        for (int i = 0; i < NT * 2; i++)
            scale[i / 2][i % 2] = scale_of(a, e, i / 2 * 8 + 2 * at.q + i % 2);
    int tile = first_tile(at, 0), all = REDUCE ? (at.units + WARPS - 1) / WARPS : passes;
    for (int p = 0; p < all; p++) {
        bool mine = !REDUCE || p < passes, more = p + 1 < passes;
        int after = more ? first_tile(at, p + 1) : tile;
        weights next = tile_weights(a, at, after);
        if (mine) {
            multiply_pass(a, at, shared, x, buffer, p, passes, w, next, c);
            if (TRIGGER == 3 && !more)
                release_next();
            add_chains(c);
        }
        if (REDUCE && p > 0 && p % PER_REDUCE == 0)
            cluster_wait();
        if (mine && KEPT)
            keep_sums(at, part, REDUCE ? p % PER_REDUCE : p, c[0]);
#if ADDS_RANKS
        else if (mine && a.sum.area.world)
            put_sums(a, at, tile, (at.first + p * LINES + at.warp / KW) * TILES * 16, c[0]);
#endif
        else if (mine)
            finish_sums(a, at, e, tile, c[0], scale, best);
        if (REDUCE && (p + 1 == all || (p + 1) % PER_REDUCE == 0))
            finish_reduced(a, at, e, part, p, all, best);
        w = next;
        tile = after;
        if (more)
            begin_sums(a, at, tile, c);
    }
    if (KEPT && !REDUCE) {
        if (SPLIT > 1 && !MEET) {
            cluster_arrive();
            cluster_wait();
        } else if (!MEET) {
            __syncthreads();
        }
        finish_kept(a, at, e, part, 0, at.units, best);
    }
}

/* ---- entry -------------------------------------------------------------------------------- */

#if BRICKS /* says that one block may have all registers, which saves it some local memory */
#define BOUNDS __launch_bounds__(THREADS, 1)
#else
#define BOUNDS __launch_bounds__(THREADS)
#endif

KERNEL BOUNDS whet_kernel(const __grid_constant__ struct region_args a)
{
    extern __shared__ __align__(16) char shared[];
    __shared__ struct extra e;
    bf16 *x = (bf16 *)shared;
    struct where at = place();
    int passes = passes_of(at), tile = first_tile(at, 0);
    weights w = tile_weights(a, at, tile);
    fragments buffer;
    if (TRIGGER == 0)
        release_next();
    if (MEET)
        empty_places((float *)(shared + SMEM_X), &e);
    else if (SPLIT > 1 && NORMED)
        inbox_open(&e.in, SPLIT * NT * 8 * 4);
    else if (SPLIT > 1)
        cluster_come();
    ask_gains(a, at);
    if (ALL_HAVE || passes > 0)
        load_first(buffer, w, at);
#if STAGE
    stage(a, shared, at);
#endif
    if (PREFETCH)
        prefetch_passes(a, at);
    if (TRIGGER == 1)
        release_next();
    take_turns(a, at, &e);
    if (SPLIT > 1)
        cluster_wait(); /* every block of the cluster has started: its memory can be written */

    after_previous();
    all_sums c;
    unsigned long long best[KEPT ? WARP_SLOTS : NT * 2] = {};
    if (passes > 0)
        begin_sums(a, at, tile, c);
    take(a, at, x, &e);
    if (STAGE || AT_ATTN_IN)
        await_copies();
    __syncthreads();
    if (TRIGGER == 2)
        release_next();
    multiply_all(a, at, shared, &e, passes, buffer, w, c, best);
#if AT_HEAD
    finish_best(a, at, best);
#endif
}

extern "C" __device__ const struct cuda_kernel_info whet_info = {
    WHET_CUDA_ABI,
    REGION,
    M_MAX,
    0,
    1,
    REGION == REGION_HEAD ? 1 : 0,
    REGION == REGION_HEAD ? (int64_t)CLUSTERS *SPLIT *M * 8 : 0,
    PACKED_BYTES,
    PACKED_LAYOUT,
    {{{CLUSTERS * SPLIT, 1, 1}, THREADS, SMEM_X + SMEM_PART + SMEM_STAGE, 1, SPLIT, 0}},
    0,
    0,
    ADDS_RANKS,
};

#endif
