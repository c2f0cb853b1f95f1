/* SPDX-License-Identifier: Apache-2.0 */
/* attn_merge.cuh - partial sums of an attention over parts of the context, put together.
 *
 * A part is (top, sum, o[HD]) of a head: its largest score, the sum of 2^(score - top), and the
 * values weighted by that. Parts of the block's warps meet in shared memory; those of the blocks of
 * a token and kv head in one of two ways:
 *
 *   merge_cluster   the blocks are a cluster: each posts the others their slice of its sums, and
 *                   finishes its own when all of it is here
 *
 *   merge_last      the last block by a counter in memory: for more parts than a cluster has blocks
 *
 * A part without a position has top minus infinity and weighs nothing. Parts are added in the order
 * of the blocks, so the bits do not depend on who comes last.
 *
 * attn_decode.cu and attn_mma.cu include this behind their constants (G, HD, WARPS, SPLITS, GROUPS,
 * THREADS).
 */
#ifndef WHET_KERNELS_CUDA_LIB_ATTN_MERGE_CUH
#define WHET_KERNELS_CUDA_LIB_ATTN_MERGE_CUH

#include "cuda/lib/attn_put.cuh"
#include "cuda/lib/inbox.cuh"

enum {
    SLICE = (G * HD + SPLITS - 1) / SPLITS, /* elements of a block in a cluster */
    BY_COUNTER = !MERGE && SPLITS > 1,
    /* What merge_last() wants of cuda_work: a counter and all parts of each token and group. */
    MERGE_COUNTERS = BY_COUNTER ? GROUPS * M_MAX : 0,
    MERGE_BYTES = BY_COUNTER ? M_MAX * GROUPS * SPLITS * (G * HD + 2 * G) * 4 : 0
};

/* Shared memory: the partial sums of the block's warps, and what a cluster's blocks post: without
 * one a single row, which merge_cluster() is compiled with and never run. */
struct sums {
    float o[WARPS][G][HD], top[WARPS][G], sum[WARPS][G];
    float peer_o[MERGE ? SPLITS : 1][SLICE], peer_top[MERGE ? SPLITS : 1][G],
        peer_sum[MERGE ? SPLITS : 1][G];
    inbox in;
};

/* The block's sums of element (h, d) relative to its own maximum. */
__device__ __forceinline__ float block_part(const struct sums *s, int h, int d, float *top,
                                            float *sum)
{
    float v = 0, most = -INFINITY, all = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        most = fmaxf(most, s->top[w][h]);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        float e = s->top[w][h] == -INFINITY ? 0 : exp2f(s->top[w][h] - most);
        all += s->sum[w][h] * e;
        v += s->o[w][h][d] * e;
    }
    *top = most;
    *sum = all;
    return v;
}

/* Merges n partial sums of one element; top, sum and o are `stride`, `stride`, `o_stride` apart. */
template <int N>
__device__ __forceinline__ float merged(const float *top, const float *sum, int stride,
                                        const float *o, int o_stride)
{
    float t[N], most = -INFINITY, all = 0, v = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        t[i] = __ldcg(top + i * stride);
        most = fmaxf(most, t[i]);
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        float e = t[i] == -INFINITY ? 0 : exp2f(t[i] - most);
        all += __ldcg(sum + i * stride) * e;
        v += __ldcg(o + i * o_stride) * e;
    }
    return v / all;
}

/* What merge_cluster() of all blocks posts to this one. */
__device__ __forceinline__ int posted_bytes()
{
    int left = G * HD - (int)blockIdx.x * SLICE;
    return SPLITS * 4 * (max(min(left, (int)SLICE), 0) + 2 * G);
}

__device__ __forceinline__ void merge_cluster(const struct cuda_attn_args &a, struct sums *s, int t,
                                              int head)
{
    int rank = blockIdx.x;
    for (int i = threadIdx.x; i < G * HD; i += THREADS) {
        float top, sum, v = block_part(s, i / HD, i % HD, &top, &sum);
        post(&s->peer_o[rank][i % SLICE], &s->in, i / SLICE, v);
        if (i % HD < SPLITS) {
            post(&s->peer_top[rank][i / HD], &s->in, i % HD, top);
            post(&s->peer_sum[rank][i / HD], &s->in, i % HD, sum);
        }
    }
    inbox_wait(&s->in);
    for (int i = threadIdx.x; i < SLICE && rank * SLICE + i < G * HD; i += THREADS) {
        int e = rank * SLICE + i, h = e / HD;
        float most = -INFINITY, all = 0, v = 0;
#pragma unroll
        for (int p = 0; p < SPLITS; p++)
            most = fmaxf(most, s->peer_top[MERGE ? p : 0][h]);
#pragma unroll
        for (int p = 0; p < SPLITS; p++) {
            float top = s->peer_top[MERGE ? p : 0][h];
            float f = top == -INFINITY ? 0 : exp2f(top - most);
            all += s->peer_sum[MERGE ? p : 0][h] * f;
            v += s->peer_o[MERGE ? p : 0][i] * f;
        }
        target_of(a, t, head).put(e, v / all);
    }
}

__device__ __forceinline__ void merge_last(const struct cuda_attn_args &a, const struct sums *s,
                                           int t, int head)
{
    __shared__ bool last;
    enum { O = 0, TOP = G * HD, SUM = TOP + G, PART = SUM + G };
    int group = t * GROUPS + head / G;
    float *all = (float *)a.work.work + (size_t)group * SPLITS * PART;
    float *mine = all + (size_t)blockIdx.x * PART;
    for (int i = threadIdx.x; i < G * HD; i += THREADS) {
        float top, sum, v = block_part(s, i / HD, i % HD, &top, &sum);
        if (SPLITS == 1) {
            target_of(a, t, head).put(i, v / sum);
            continue;
        }
        __stcg(mine + i, v);
        if (i % HD == 0) {
            __stcg(mine + TOP + i / HD, top);
            __stcg(mine + SUM + i / HD, sum);
        }
    }
    if (SPLITS == 1)
        return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(&a.work.counter[group], 1u) == SPLITS - 1;
        if (last)
            a.work.counter[group] = 0;
    }
    __syncthreads();
    if (!last)
        return;
    __threadfence();
    for (int i = threadIdx.x; i < G * HD; i += THREADS) {
        int h = i / HD;
        target_of(a, t, head)
            .put(i, merged<SPLITS>(all + TOP + h, all + SUM + h, PART, all + i, PART));
    }
}

#endif
