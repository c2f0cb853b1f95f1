/* SPDX-License-Identifier: Apache-2.0 */
/* eager_decode.cu - attention of single tokens over paged keys and values.
 *
 *   a[t, h] = softmax(scale q[t, h] K^T) V
 *
 * q, a: [M, heads, HD]; pages: [page][kv_head][KV_PAGE][HD].
 *
 * A block takes G query heads that share a kv head, so their keys and values are read once, and a
 * part of the context in whole pages; its four warps take the pages in turn. HD / 8 lanes hold a
 * position, 16 bytes each; a warp has all of a page's keys and values on their way before it
 * computes with the first. The softmax is running (FlashAttention, Dao 2022), in base 2.
 *
 * States (largest score, sum, weighted values) merge three times: over the lane groups of a warp by
 * shuffles, over the warps through shared memory, and over the blocks of a token through memory,
 * by the block that a counter says is the last. Parts merge in the order of the context, whichever
 * block does it: the result does not depend on who was last.
 *
 * Invariant: just the blocks that have a part of the context count, and the last of them leaves
 * the counter at 0; a token at or beyond the step's count is not looked at.
 */
#include "cuda/lib/device.cuh"
#include "eager.h"

/* Running softmax over the positions that one group of LP lanes has seen, for G query heads. */
template <int G> struct running {
    float top[G], sum[G], o[G][8];
};

template <int G> __device__ __forceinline__ void merge_lanes(struct running<G> &r, int distance)
{
#pragma unroll
    for (int h = 0; h < G; h++) {
        float other = __shfl_xor_sync(WARP_ALL, r.top[h], distance);
        float top = fmaxf(r.top[h], other);
        float mine = top == -INFINITY ? 0 : exp2f(r.top[h] - top);
        float theirs = top == -INFINITY ? 0 : exp2f(other - top);
        r.sum[h] = r.sum[h] * mine + __shfl_xor_sync(WARP_ALL, r.sum[h], distance) * theirs;
#pragma unroll
        for (int j = 0; j < 8; j++)
            r.o[h][j] = r.o[h][j] * mine + __shfl_xor_sync(WARP_ALL, r.o[h][j], distance) * theirs;
        r.top[h] = top;
    }
}

/* One position (per lane group): scores by a reduction over the LP lanes that share a key. */
template <int HD, int G>
__device__ __forceinline__ void attend(struct running<G> &r, const float (*q)[8], uint4 key,
                                       uint4 value, bool valid)
{
    float k[8], v[8];
    expand8(key, k);
    expand8(value, v);
#pragma unroll
    for (int h = 0; h < G; h++) {
        float s = 0;
#pragma unroll
        for (int j = 0; j < 8; j++)
            s += q[h][j] * k[j];
#pragma unroll
        for (int o = HD / 16; o > 0; o >>= 1)
            s += __shfl_xor_sync(WARP_ALL, s, o);
        if (!valid)
            continue;
        float top = fmaxf(r.top[h], s), keep = exp2f(r.top[h] - top), p = exp2f(s - top);
        r.top[h] = top;
        r.sum[h] = r.sum[h] * keep + p;
#pragma unroll
        for (int j = 0; j < 8; j++)
            r.o[h][j] = r.o[h][j] * keep + p * v[j];
    }
}

/* Element `at` of the output, in the forms that are wanted. */
__device__ __forceinline__ void put_a(const struct eager_decode_args &a, size_t at, float v)
{
    if (a.a)
        a.a[at] = v;
    if (a.a16)
        ((bf16 *)a.a16)[at] = to_bf16(v);
}

enum { DECODE_WARPS = 4 };

/* The four warps' partial sums (in shared memory) to the output, or to `part` for the last block
 * of this token and kv head, which merges all of them. */
template <int HD, int G>
__device__ void decode_finish(const struct eager_decode_args &a, int t, int first_head, int heads,
                              int splits, const float (*o)[G][HD], const float (*top)[G],
                              const float (*sum)[G])
{
    __shared__ bool last;
    int group = blockIdx.z * gridDim.y + blockIdx.y;
    float *part = a.part + ((size_t)group * gridDim.x + blockIdx.x) * G * (HD + 2);
    for (int i = threadIdx.x; i < G * HD; i += blockDim.x) {
        int h = i / HD, d = i % HD;
        float most = -INFINITY, s = 0, v = 0;
        for (int w = 0; w < DECODE_WARPS; w++)
            most = fmaxf(most, top[w][h]);
        for (int w = 0; w < DECODE_WARPS; w++) {
            float e = top[w][h] == -INFINITY ? 0 : exp2f(top[w][h] - most);
            s += sum[w][h] * e;
            v += o[w][h][d] * e;
        }
        if (splits == 1 && h < heads)
            put_a(a, ((size_t)t * a.heads + first_head + h) * HD + d, v / s);
        if (splits > 1) {
            part[h * (HD + 2) + d] = v;
            if (d == 0) {
                part[h * (HD + 2) + HD] = most;
                part[h * (HD + 2) + HD + 1] = s;
            }
        }
    }
    if (splits == 1)
        return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(&a.counter[group], 1u) == (unsigned)splits - 1;
        if (last)
            a.counter[group] = 0;
    }
    __syncthreads();
    if (!last)
        return;
    __threadfence();
    const float *all = a.part + (size_t)group * gridDim.x * G * (HD + 2);
    for (int i = threadIdx.x; i < heads * HD; i += blockDim.x) {
        int h = i / HD, d = i % HD;
        float most = -INFINITY, s = 0, v = 0;
        for (int p = 0; p < splits; p++)
            most = fmaxf(most, __ldcg(all + (size_t)p * G * (HD + 2) + h * (HD + 2) + HD));
        for (int p = 0; p < splits; p++) {
            const float *from = all + (size_t)p * G * (HD + 2) + h * (HD + 2);
            float e = exp2f(__ldcg(from + HD) - most);
            s += __ldcg(from + HD + 1) * e;
            v += __ldcg(from + d) * e;
        }
        put_a(a, ((size_t)t * a.heads + first_head + h) * HD + d, v / s);
    }
}

template <int HD, int G> __device__ void decode(const struct eager_decode_args &a)
{
    constexpr int LP = HD / 8, PP = 32 / LP, PASSES = KV_PAGE / PP;
    __shared__ float so[DECODE_WARPS][G][HD], stop[DECODE_WARPS][G], ssum[DECODE_WARPS][G];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = lane % LP * 8;
    int kvh = blockIdx.y / a.chunks, group = a.heads / a.kv_heads;
    int first = blockIdx.y % a.chunks * G, first_head = kvh * group + first;
    int heads = min(G, group - first);
    release_next();
    after_previous();
    if ((int)blockIdx.z >= *a.count)
        return;
    int t = a.token ? a.token[blockIdx.z] : blockIdx.z, context = a.position[t] + 1;
    int chunk = max((context + (int)gridDim.x - 1) / (int)gridDim.x, a.least);
    chunk = (chunk + KV_PAGE - 1) / KV_PAGE * KV_PAGE;
    int splits = (context + chunk - 1) / chunk, begin = blockIdx.x * chunk;
    if (begin >= context)
        return;
    int end = min(context, begin + chunk);
    float q[G][8];
    struct running<G> r;
#pragma unroll
    for (int h = 0; h < G; h++) {
        size_t from = ((size_t)t * a.heads + first_head + min(h, heads - 1)) * HD + d;
        r.top[h] = -INFINITY;
        r.sum[h] = 0;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            q[h][j] = (a.q ? a.q[from + j] : from_bf16(((const bf16 *)a.q16)[from + j])) *
                      (a.scale * 1.44269504f);
            r.o[h][j] = 0;
        }
    }
    const bf16 *ks = (const bf16 *)a.k_pages, *vs = (const bf16 *)a.v_pages;
    for (int p = begin / KV_PAGE + warp; p * KV_PAGE < end; p += DECODE_WARPS) {
        size_t page = a.page_table[a.pages_at[t] + p];
        size_t base = (page * a.kv_heads + kvh) * KV_PAGE * HD + lane / LP * HD + d;
        uint4 key[PASSES], value[PASSES];
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            key[i] = *(const uint4 *)(ks + base + i * PP * HD);
            value[i] = *(const uint4 *)(vs + base + i * PP * HD);
        }
#pragma unroll
        for (int i = 0; i < PASSES; i++)
            attend<HD, G>(r, q, key[i], value[i], p * KV_PAGE + i * PP + lane / LP < end);
    }
#pragma unroll
    for (int o = LP; o < 32; o <<= 1)
        merge_lanes<G>(r, o);
    if (lane < LP)
        for (int h = 0; h < G; h++)
            for (int j = 0; j < 8; j++)
                so[warp][h][d + j] = r.o[h][j];
    if (lane == 0)
        for (int h = 0; h < G; h++) {
            stop[warp][h] = r.top[h];
            ssum[warp][h] = r.sum[h];
        }
    __syncthreads();
    decode_finish<HD, G>(a, t, first_head, heads, splits, so, stop, ssum);
}

#define DECODE(HD, G)                                                               \
    KERNEL __launch_bounds__(128)                                                   \
        eager_decode_##HD##_##G(const __grid_constant__ struct eager_decode_args a) \
    {                                                                               \
        decode<HD, G>(a);                                                           \
    }
DECODE(64, 1)
DECODE(64, 2)
DECODE(64, 4)
DECODE(64, 8)
DECODE(128, 1)
DECODE(128, 2)
DECODE(128, 4)
DECODE(128, 8)
