/* SPDX-License-Identifier: Apache-2.0 */
/* gemv_end.cuh - what becomes of the sums of a matrix-vector template: met over lanes and warps,
 * times 1/rms of the input, then bias, q/k norm, RoPE and KV pages, SiLU, the residual, or logits
 * and the best of them. gemv.cuh says how rows are dealt.
 *
 * q/k norm needs the sum of squares of a head: CLUSTER blocks own one head, keep their outputs in
 * shared memory and exchange their sums through it (one cluster barrier).
 */
#ifndef WHET_KERNELS_CUDA_LIB_GEMV_END_CUH
#define WHET_KERNELS_CUDA_LIB_GEMV_END_CUH

#include "cuda/lib/gemv.cuh"
#include "cuda/lib/words.cuh"

/* ---- meeting ------------------------------------------------------------------------------- */

/* What the thread that finishes the sums of token t needs to know about it. */
struct token {
    int t, live, position, kv_at;
};

__device__ __forceinline__ struct token token_of(const struct region_args &a, int t)
{
    struct token k = {t, 1, 0, 0};
#if AT_ATTN_IN
    int position = a.position[t], kv_at = a.kv_at[t]; /* all at once */
    k.live = M == 1 || t < a.counts->m;
    k.position = k.live ? position : 0;
    k.kv_at = kv_at;
#elif AT_HEAD
    k.live = M == 1 || t < a.counts->rows;
#endif
    return k;
}

/* What a thread finishes: BY_THREAD thread i sum i of the tile, else the lanes of the warp. */
struct finisher {
    int index, local; /* number of the sum; of its row in the tile */
    bool mine;        /* this thread has a sum to finish */
    struct token k;
};

__device__ __forceinline__ struct finisher finisher_of(const struct region_args &a,
                                                       const struct place &at)
{
    struct finisher f;
    f.index = BY_THREAD ? (int)threadIdx.x : at.lane / SPAN;
    f.local = BY_THREAD ? f.index % TILE : at.rw * ROWS + f.index % ROWS;
    f.mine = BY_THREAD ? f.index < TILE * M : f.index < ROWS * M && at.lane % SPAN == 0;
    f.k = token_of(a, f.mine ? f.index / (BY_THREAD ? TILE : ROWS) : 0);
    return f;
}

#if !FRAGMENTS
/* This thread's sum, over the lanes of its warp and then the KW warps of a row. */
__device__ __forceinline__ float join(const float *sum, float (*part)[TILE * M],
                                      const struct place &at, const struct finisher &f)
{
    float v = warp_sums<ROWS * M>(sum);
    if (KW == 1)
        return v;
    /* sum number t * ROWS + r of the warp is number t * TILE + rw * ROWS + r of the block */
    int s = at.lane / SPAN;
    if (at.lane % SPAN == 0 && s < ROWS * M)
        part[at.kw][s / ROWS * TILE + at.rw * ROWS + s % ROWS] = v;
    __syncthreads();
    v = 0;
    if (f.mine)
#pragma unroll
        for (int p = 0; p < KW; p++)
            v += part[p][f.index];
    return v;
}

#endif

/* 1/rms of the finisher's token; where KW warps have its parts, after a barrier. The sums are in
 * shared memory because the compiler would index an array of them, which is local memory. */
__device__ __forceinline__ float scale_of(const struct region_args &a, const float (*squares)[M],
                                          const struct place &at, const struct token &k)
{
#if HAS_NORM && FRAGMENTS /* take() has summed them */
    return squares[0][k.t];
#elif HAS_NORM
    constexpr int PARTS = XREGS ? KW : KW * RW;
    float total = 0;
#pragma unroll
    for (int p = 0; p < PARTS; p++)
        total += squares[XREGS && KW == 1 ? at.rw : p][k.t];
    return rsqrtf(total / K + a.eps);
#else
    return 1.0f;
#endif
}

#if AT_OUT
/* Writes element `at` of y: v and the residual x, or where there is a sum v alone, which
 * add_ranks() goes on from when the block has all of its tiles. `first`: no tile before has the
 * element; of those that do, this one adds the ranks. */
__device__ __forceinline__ void put_out(const struct region_args &a, size_t at, float v, float x,
                                        bool first)
{
    if (first || !a.sum.area.world)
        a.y[at] = a.sum.area.world ? v : v + x;
}

/* Turns what this thread has put into y, at place(i, &at) for the i below n for which that is true,
 * into the sums of all ranks and the residual; `last` is what it has put there last, i = n - 1. All
 * of it is on its way before the first wait. */
template <class Place>
__device__ __forceinline__ void add_ranks(const struct region_args &a, int n, float last,
                                          Place place)
{
    size_t at;
#pragma unroll 1
    for (int i = 0; i < 2 * n; i++) {
        int which = i < n ? i : i - n;
        if (!place(which, &at))
            continue;
        float v[1] = {which + 1 == n ? last : a.y[at]};
        if (i < n)
            send_words(a.sum.area, a.sum.turn, at, v);
        else if (add_words(a.sum.area, a.sum.turn, at, v))
            a.y[at] = v[0] + __ldcg(a.x + at);
    }
}
#endif

/* ---- finishing ----------------------------------------------------------------------------- */

/* Loaded while the tile's weights are: the residual, or cosine and sine. */
__device__ __forceinline__ float2 companion(const struct region_args &a, int row,
                                            const struct token &k)
{
#if AT_OUT
    return make_float2(__ldcg(a.x + (size_t)k.t * ROWS_ALL + row), 0);
#elif AT_ATTN_IN
    size_t at = (size_t)k.position * (HEAD_DIM / 2) + row % HEAD_DIM / 2;
    return make_float2(a.rope_cos[at], a.rope_sin[at]);
#else
    return make_float2(0, 0);
#endif
}

#if AT_ATTN_IN
/* One element of q, k or v, whose pair's other element is `other`. */
__device__ __forceinline__ void put_qkv(const struct region_args &a, int row, const struct token &k,
                                        float v, float other, float2 rotation)
{
    int head = row / HEAD_DIM, d = row % HEAD_DIM;
    if (head < HEADS + KV_HEADS)
        v = row & 1 ? v * rotation.x + other * rotation.y : v * rotation.x - other * rotation.y;
    if (head < HEADS) {
        a.q[(size_t)k.t * (HEADS * HEAD_DIM) + row] = v;
        return;
    }
    int kvh = (head - HEADS) % KV_HEADS;
    bf16 *pages = (bf16 *)(head < HEADS + KV_HEADS ? a.k_pages : a.v_pages);
    size_t slot = ((size_t)(k.kv_at / KV_PAGE) * KV_HEADS + kvh) * KV_PAGE + k.kv_at % KV_PAGE;
    if (k.live)
        pages[slot * HEAD_DIM + d] = to_bf16(v);
}
#endif

/* Writes the sum of (row, token) given that of the other row of its pair. All lanes of a warp come
 * here together; `mine` says who has something to write, `first` that no tile before has it. */
__device__ __forceinline__ void finish(const struct region_args &a, int row, const struct token &k,
                                       float v, float other, float2 with, bool mine, bool first,
                                       unsigned long long *best)
{
    if (!mine)
        return;
#if AT_ATTN_IN
    put_qkv(a, row, k, v, other, with);
#elif AT_MLP_IN
    if (row % 2 == 0)
        a.h[(size_t)k.t * FFN + row / 2] = silu(v) * other;
#elif AT_HEAD
    if (k.live) {
        a.logits[(size_t)k.t * VOCAB + row] = v;
        unsigned long long rank = rank_of(v, row);
        *best = rank > *best ? rank : *best;
    }
#else
    put_out(a, (size_t)k.t * ROWS_ALL + row, v, with.x, first);
#endif
}

#if AT_OUT
/* The sums of all ranks of what a block has finished; `last`: this thread's of its last tile. */
__device__ __forceinline__ void finish_ranks(const struct region_args &a, const struct finisher &f,
                                             int tiles, float last)
{
    add_ranks(a, tiles, last, [&](int i, size_t *at) {
        int row = tile_row(i) + f.local;
        *at = (size_t)f.k.t * ROWS_ALL + row;
        return f.mine && is_first(i, row);
    });
}
#endif

#if AT_ATTN_IN
/* What a thread needs to finish one element of the block's head. */
struct head_end {
    struct token k;
    float2 rotation;
    float gain, other_gain;
};

__device__ __forceinline__ struct head_end head_end_of(const struct region_args &a)
{
    int i = threadIdx.x, row = blockIdx.x * BLOCK_ROWS + i % BLOCK_ROWS, d = row % HEAD_DIM;
    const float *gain = row / HEAD_DIM < HEADS ? a.q_norm : a.k_norm;
    struct head_end h = {token_of(a, i < BLOCK_ROWS * M ? i / BLOCK_ROWS : 0), {1, 0}, 1, 1};
    if (row / HEAD_DIM < HEADS + KV_HEADS)
        h.gain = gain[d], h.other_gain = gain[d ^ 1];
    return h;
}

/* The rest of it, whose place depends on the position. */
__device__ __forceinline__ void head_end_turn(const struct region_args &a, struct head_end *h)
{
    h->rotation = companion(a, blockIdx.x * BLOCK_ROWS + threadIdx.x % BLOCK_ROWS, h->k);
}

/* q/k norm and RoPE of the block's rows of one head, raw[t][BLOCK_ROWS] in shared memory. */
__device__ __forceinline__ void
finish_head(const struct region_args &a, const float (*raw)[BLOCK_ROWS], const struct head_end &h)
{
    __shared__ float squares[CLUSTER][M];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = blockIdx.x % CLUSTER;
    int first = blockIdx.x * BLOCK_ROWS;
    bool normed = first / HEAD_DIM < HEADS + KV_HEADS;
    __syncthreads();
    for (int t = warp; normed && t < M; t += KW * RW) {
        float sum = 0;
        for (int i = lane; i < BLOCK_ROWS; i += 32)
            sum += raw[t][i] * raw[t][i];
        sum = warp_sum(sum);
        if (lane < CLUSTER) {
            if (CLUSTER > 1)
                store_peer(&squares[rank][t], lane, sum);
            else
                squares[rank][t] = sum;
        }
    }
    if (CLUSTER > 1 && normed) { /* the blocks of a cluster have the same head */
        __syncwarp();
        cluster_arrive();
        cluster_wait();
    } else {
        __syncthreads();
    }
    if (threadIdx.x >= BLOCK_ROWS * M)
        return;
    int t = threadIdx.x / BLOCK_ROWS, r = threadIdx.x % BLOCK_ROWS;
    float v = raw[t][r], other = raw[t][r ^ 1];
    if (normed) {
        float sum = 0;
        for (int p = 0; p < CLUSTER; p++)
            sum += squares[p][t];
        float scale = rsqrtf(sum / HEAD_DIM + a.eps);
        v *= scale * h.gain;
        other *= scale * h.other_gain;
    }
    put_qkv(a, first + r, h.k, v, other, h.rotation);
}
#endif

#if SPLIT > 1
/* Sums that a block has of its part of K, of all tiles that its cluster walks over. Its blocks meet
 * once: each reads what the others have of its share, and none ends before that. */
__device__ __forceinline__ void finish_split(const struct region_args &a,
                                             const float (*kept)[TILE * M], int tiles)
{
    int rank = blockIdx.x % SPLIT, n = 0;
    float last = 0;
    cluster_arrive();
    cluster_wait();
    for (int at = threadIdx.x * SPLIT + rank; at < tiles * TILE * M; at += THREADS * SPLIT) {
        int i = at / (TILE * M), index = at % (TILE * M), t = index / TILE;
        int row = tile_row(i) + index % TILE;
        size_t to = (size_t)t * ROWS_ALL + row;
        float v = a.sum.area.world ? 0 : __ldcg(a.x + to), sum[SPLIT];
#pragma unroll
        for (int p = 0; p < SPLIT; p++)
            sum[p] = load_peer(&kept[0][0] + at, p);
#pragma unroll
        for (int p = 0; p < SPLIT; p++)
            v += sum[p];
        put_out(a, to, v, -0.0f, is_first(i, row)); /* x is in v already */
        last = v;
        n++;
    }
    if (a.sum.area.world)
        add_ranks(a, n, last, [&](int n, size_t *to) {
            int at = (n * THREADS + (int)threadIdx.x) * SPLIT + rank, i = at / (TILE * M);
            int index = at % (TILE * M), row = tile_row(i) + index % TILE;
            *to = (size_t)(index / TILE) * ROWS_ALL + row;
            return is_first(i, row);
        });
    cluster_arrive();
    cluster_wait();
}
#endif

#if AT_HEAD
__device__ __forceinline__ void finish_best(const struct region_args &a, unsigned long long best,
                                            const struct finisher &f, const struct place &at)
{
    __shared__ unsigned long long bests[KW * RW][M];
    for (int t = 0; t < M; t++) {
        unsigned long long v = warp_best(f.mine && f.k.t == t ? best : 0);
        if (at.lane == 0)
            bests[threadIdx.x / 32][t] = v;
    }
    best_of_all<KW * RW, M, M>(bests, min(a.counts->rows, (int)M),
                               (unsigned long long *)a.work.work, a.work.counter, a.best);
}
#endif

#endif
