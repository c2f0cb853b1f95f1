/* SPDX-License-Identifier: Apache-2.0 */
/* gemv_run.cuh - the kernel of a matrix-vector template, from the first copy to the last store. Its
 * weights come from a Stream, which the template defines:
 *
 *   Stream(a, at, shared)   knows its place; `shared` is what SMEM_X leaves of shared memory
 *   fill()                  asks for as much as it can hold. Before the wait, by every thread
 *   look(i, tiles)          finds out where the tile after tile i is
 *   multiply(...)           the sums of tile i of the block's `tiles`, and asks for what comes next
 *
 * It also defines SMEM_STREAM, bytes of shared memory that the stream needs.
 *
 * Invariant: nothing is written, and x is not read, before after_previous(); a page is only written
 * for tokens below counts->m. Nothing that is loaded before the wait is used before it, or the wait
 * begins with another one. The last tile is moved back to end at the last row: its first rows may
 * then be computed twice, with the same bits.
 */
#ifndef WHET_KERNELS_CUDA_LIB_GEMV_RUN_CUH
#define WHET_KERNELS_CUDA_LIB_GEMV_RUN_CUH

#include "cuda/lib/gemv_end.cuh"

#if BLOCKS
#define BOUNDS __launch_bounds__(THREADS, BLOCKS)
#else
#define BOUNDS __launch_bounds__(THREADS)
#endif

/* This thread's sum in tile i, of `row`: finished, or kept until all of a normed head is there. */
__device__ __forceinline__ void end_tile(const struct region_args &a, const struct finisher &f,
                                         int i, int row, float v, float2 with,
                                         float (*raw)[BLOCK_ROWS], unsigned long long *best)
{
#if AT_ATTN_IN && HAS_BIAS
    if (f.mine)
        v += a.bias[row];
#endif
    if (QK) {
        if (f.mine)
            raw[QK ? f.k.t : 0][(i * TILE + f.local) % BLOCK_ROWS] = v;
    } else {
        float other = __shfl_xor_sync(WARP_ALL, v, BY_THREAD ? 1 : SPAN % 32);
        finish(a, row, f.k, v, other, with, f.mine, is_first(i, row), best);
    }
}

KERNEL BOUNDS whet_kernel(const __grid_constant__ struct region_args a)
{
    extern __shared__ __align__(16) float shared_x[];
    __shared__ float part[2][KW][TILE * M], squares[KW * RW][M];
#if SPLIT > 1
    __shared__ float kept[WALK][TILE * M];
#else
    __shared__ float raw[QK ? M : 1][BLOCK_ROWS];
#endif
    int warp = threadIdx.x / 32, tiles = tiles_of_block();
    struct place at = {warp % KW, warp / KW, (int)threadIdx.x % 32};
    Stream stream(a, at, shared_x + SMEM_X / 4);
    if (TRIGGER == 0)
        release_next();
    if ((QK && CLUSTER > 1) || SPLIT > 1)
        cluster_come();
    float4 gain[XREGS ? C : 1][2];
    load_gain(a, gain, at);
    if (!XREGS)
        ask_gains(a, shared_x);
    stream.fill();
    if (TRIGGER == 1)
        release_next();
    struct finisher f = finisher_of(a, at);
    struct chosen from = chosen_of(a);
#if AT_ATTN_IN && HAS_QK_NORM
    struct head_end end = head_end_of(a);
#endif
    if ((QK && CLUSTER > 1) || SPLIT > 1)
        cluster_wait(); /* every block of the cluster has started: its memory can be written */

    after_previous();
    struct input in;
    float scale = 1.0f;
#if AT_ATTN_IN && HAS_QK_NORM
    head_end_turn(a, &end);
#endif
    take(a, from, &in, shared_x, gain, at, squares);
    if (TRIGGER == 2)
        release_next();
#if !AT_HEAD
    if (NEXT)
        prefetch_share(a.next, a.next_bytes, (long long)NEXT << 20, blockIdx.x, GRID);
#endif
    unsigned long long best = 0;
    float last = 0;
    for (int i = 0; i < tiles; i++) {
        float sum[SUMS];
        int row = tile_row(i) + f.local;
        stream.look(i, tiles);
        float2 with = f.mine && !QK && SPLIT == 1 ? companion(a, row, f.k) : make_float2(0, 0);
        stream.multiply(in, i, tiles, sum);
        if (TRIGGER == 3 && i + 1 == tiles)
            release_next();
        float v = join(sum, part[i & 1], at, f);
        if (i == 0)
            scale = scale_of(a, squares, at, f.k);
#if SPLIT > 1
        if (f.mine)
            kept[i][f.index] = v;
#else
        end_tile(a, f, i, row, v * scale, with, raw, &best);
        last = v * scale;
#endif
    }
#if SPLIT > 1
    finish_split(a, kept, tiles);
#elif AT_OUT
    if (a.sum.area.world)
        finish_ranks(a, f, tiles, last);
#elif AT_ATTN_IN && HAS_QK_NORM
    finish_head(a, raw, end);
#elif AT_HEAD
    finish_best(a, best, f, at);
#endif
}

extern "C" __device__ const struct cuda_kernel_info whet_info = {
    WHET_CUDA_ABI,
    REGION,
    M_MAX,
    0,
    1,
    REGION == REGION_HEAD ? 1 : 0,
    REGION == REGION_HEAD ? (int64_t)GRID *M * 8 : 0,
    0,
    "",
    {{{GRID, 1, 1}, THREADS, SMEM_X + SMEM_STREAM, 1, QK ? CLUSTER : SPLIT, 0}},
    0,
    0,
    ADDS_RANKS,
};

#endif
