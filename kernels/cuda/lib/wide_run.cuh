/* SPDX-License-Identifier: Apache-2.0 */
/* wide_run.cuh - the kernel of a template for more than 64 tokens (wide.cu, brick_wide.cu). The
 * template brings its stream of weights:
 *
 *   struct asked                         what the producer has asked for so far; all zero at first
 *   ask_first(a, s, u, rank, asked)      the first weights, before the wait. One thread
 *   produce(a, s, u, rank, asked)        all others, and all activations. One thread
 *   multiply(a, s, at, group, place, c)  the sums of a unit: a warpgroup's. `place`: struct reading
 *
 * and says with PACKED_BYTES and PACKED_LAYOUT what it wants repacked.
 */
#ifndef WHET_KERNELS_CUDA_LIB_WIDE_RUN_CUH
#define WHET_KERNELS_CUDA_LIB_WIDE_RUN_CUH

#include "cuda/lib/wide_parts.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ __forceinline__ void consume(const struct region_args &a, struct memory &s,
                                        const struct units &u, int rank, int group)
{
    struct reading t = {};
    int m = a.counts->m, parity = 0;
    for (int unit = u.first; unit < u.all; unit += u.step, parity ^= 1) {
        struct place at = place_of(u, unit, rank);
        sums c;
        struct taken taken = take_tokens(a, at, m);
        multiply(a, s, at, group, t, c);
#if BY_TOKEN
        scale_tokens(s, parity, c);
#endif
        if (TRIGGER == 1 && unit + u.step >= u.all)
            release_next();
#if SPLIT > 1
        own_sums own;
        meet(s, at, rank, parity, unit != u.first, unit + u.step < u.all, c, own);
        finish_tile(a, s, at, group, m, parity, taken, own);
#else
        finish_tile(a, s, at, group, m, parity, taken, c);
#endif
    }
}

/* ---- entry --------------------------------------------------------------------------------- */

__device__ __forceinline__ void open_barriers(struct memory &s)
{
    for (int i = 0; i < STAGES; i++) {
        barrier_init(&s.full[i], 1);
        barrier_init(&s.empty[i], GROUPS * 4 * CLUSTER);
    }
#if BRICKS
    for (int i = 0; i < RING; i++) {
        barrier_init(&s.here[i], 1);
        barrier_init(&s.taken[i], GROUPS * 4);
    }
#endif
    barrier_init(&s.sums_here, SPLIT > 1 ? (SPLIT - 1) * GROUPS * 4 : 1);
    barrier_init(&s.sums_read, SPLIT > 1 ? SPLIT - 1 : 1);
    barriers_ready();
}

KERNEL __launch_bounds__(THREADS, FIT) PRODUCT_ENTRY(const __grid_constant__ struct region_args a)
{
    extern __shared__ __align__(1024) char shared[];
    struct memory &s = *(struct memory *)shared;
    struct units u = my_units(a.counts->m);
    int part = threadIdx.x / 128, rank = blockIdx.x % BLOCKS;
    struct asked asked = {};
    if (TRIGGER == 0)
        release_next();
    if (threadIdx.x == 0)
        open_barriers(s);
    __syncthreads();
    if (BLOCKS > 1)
        cluster_come();
    if (threadIdx.x == 0 && u.first < u.all)
        ask_first(a, s, u, rank, asked);
    __syncwarp();
    if (BLOCKS > 1)
        cluster_wait();
    after_previous();
    if (part == 0) {
        if (GROUPS == 2 || FIT == 2)
            registers_give<(GROUPS == 2 ? 56 : 40)>();
        if (threadIdx.x == 0)
            produce(a, s, u, rank, asked);
        __syncwarp();
    } else {
        if (GROUPS == 2 || FIT == 2)
            registers_take<(GROUPS == 2 ? 224 : 208)>();
        consume(a, s, u, rank, part - 1);
    }
    if (BLOCKS > 1) { /* nobody leaves while others may still send to it */
        cluster_come();
        cluster_wait();
    }
}

#endif

extern "C" __device__ const struct cuda_kernel_info whet_info = {
    WHET_CUDA_ABI,
    REGION,
    M_MAX,
    0,
    1 + PREPARES,
    0,
    E4M3       ? (int64_t)CODES + SCALES *(SCALED * 4)
    : HAS_NORM ? (int64_t)M_MAX *K * 2
               : 0,
    PACKED_BYTES,
    PACKED_LAYOUT,
#if PREPARES
    {{{M_MAX, 1, 1}, NORM_THREADS, 0, 1, 0, 0},
     {{CLUSTERS * BLOCKS, 1, 1}, THREADS, (int)sizeof(struct memory), 1, BLOCKS, 0}},
#else
    {{{CLUSTERS * BLOCKS, 1, 1}, THREADS, (int)sizeof(struct memory), 1, BLOCKS, 0}},
#endif
    BOX,
    E4M3 ? K / 2 : 0};

#endif
