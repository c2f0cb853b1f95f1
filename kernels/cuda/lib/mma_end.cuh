/* SPDX-License-Identifier: Apache-2.0 */
/* mma_end.cuh - what becomes of mma.cu's sums: met over the blocks of a cluster where K is shared,
 * then 1/rms of the input, bias, q/k norm, RoPE and KV pages, SiLU, or logits and the best of them.
 * The residual is where a sum starts.
 */
#ifndef WHET_KERNELS_CUDA_LIB_MMA_END_CUH
#define WHET_KERNELS_CUDA_LIB_MMA_END_CUH

#include "cuda/lib/mma_x.cuh"
#include "cuda/lib/words.cuh"

#if AT_ATTN_IN
/* An element of q, k or v, normed if it is to be, whose pair's other element is `other`. */
__device__ __forceinline__ void put_qkv(const struct region_args &a, const struct extra *e, int row,
                                        int t, float v, float other)
{
    int head = row / HEAD_DIM, d = row % HEAD_DIM;
    if (head < HEADS + KV_HEADS) {
        float c = e->rotation[t / SPLIT][d / 2][0], s = e->rotation[t / SPLIT][d / 2][1];
        v = d & 1 ? v * c + other * s : v * c - other * s;
    }
    if (head < HEADS) {
        a.q[(size_t)t * (HEADS * HEAD_DIM) + row] = v;
    } else if (e->kv_at[t / SPLIT] >= 0) {
        bf16 *pages = (bf16 *)(head < HEADS + KV_HEADS ? a.k_pages : a.v_pages);
        int kvh = (head - HEADS) % KV_HEADS, at = e->kv_at[t / SPLIT];
        size_t slot = ((size_t)(at / KV_PAGE) * KV_HEADS + kvh) * KV_PAGE + at % KV_PAGE;
        pages[slot * HEAD_DIM + d] = to_bf16(v);
    }
}
#endif

/* Writes the sum of (row, t); `other` is that of row ^ 1. */
__device__ __forceinline__ void finish(const struct region_args &a, const struct extra *e, int row,
                                       int t, float v, float other, unsigned long long *best)
{
    if (t >= M)
        return;
#if AT_ATTN_IN
#if HAS_BIAS
    v += a.bias[row];
    other += a.bias[row ^ 1];
#endif
    put_qkv(a, e, row, t, v, other);
#elif AT_MLP_IN
    if (row % 2 == 0)
        a.h[(size_t)t * FFN + row / 2] = silu(v) * other;
#elif AT_HEAD
    if (t < a.counts->rows) {
        unsigned long long rank = rank_of(v, row);
        a.logits[(size_t)t * VOCAB + row] = v;
        *best = rank > *best ? rank : *best;
    }
#else
    a.y[(size_t)t * ROWS_ALL + row] = v;
#endif
}

/* Where sums start: with the residual, in the first block of a cluster; of several ranks', that
 * comes last (put_sums, add_ranks). */
__device__ __forceinline__ void begin_sums(const struct region_args &a, const struct where &at,
                                           int tile, all_sums &c)
{
#pragma unroll
    for (int i = 0; i < CHAINS * TILES * NT * 4; i++)
        c[i / (TILES * NT * 4)][i / (NT * 4) % TILES][i / 4 % NT][i % 4] = 0;
#if AT_OUT
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int row = (tile + r) * 16 + at.g + j / 2 * 8, t = n * 8 + 2 * at.q + j % 2;
                if (t < M && (SPLIT == 1 || at.rank == 0) && !(ADDS_RANKS && a.sum.area.world))
                    c[0][r][n][j] = __ldcg(a.x + (size_t)t * ROWS_ALL + row);
            }
#endif
}

__device__ __forceinline__ void add_chains(all_sums &c)
{
#pragma unroll
    for (int i = TILES * NT * 4; i < CHAINS * TILES * NT * 4; i++)
        c[0][i / (NT * 4) % TILES][i / 4 % NT][i % 4] +=
            c[i / (TILES * NT * 4)][i / (NT * 4) % TILES][i / 4 % NT][i % 4];
}

#if ADDS_RANKS
/* A pass's sums with those of the other ranks, and the residual. Rows before `first_row` are
 * another tile's, too, and that sends and takes them. All that a thread has is on its way before it
 * waits.
 */
__device__ __forceinline__ void put_sums(const struct region_args &a, const struct where &at,
                                         int tile, int first_row, const float (*c)[NT][4])
{
#pragma unroll
    for (int i = 0; i < 2 * TILES * NT * 4; i++) {
        int r = i / (NT * 4) % TILES, n = i / 4 % NT, j = i % 4;
        int row = (tile + r) * 16 + at.g + j / 2 * 8, t = n * 8 + 2 * at.q + j % 2;
        size_t to = (size_t)t * ROWS_ALL + row;
        float v[1] = {c[r][n][j]};
        if (t >= M || row < first_row)
            continue;
        if (i < TILES * NT * 4)
            send_words(a.sum.area, a.sum.turn, to, v);
        else if (add_words(a.sum.area, a.sum.turn, to, v))
            a.y[to] = v[0] + __ldcg(a.x + to);
    }
}
#endif

/* A pass's sums, finished. */
__device__ __forceinline__ void finish_sums(const struct region_args &a, const struct where &at,
                                            const struct extra *e, int tile,
                                            const float (*c)[NT][4], const float (*scale)[2],
                                            unsigned long long *best)
{
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int t = n * 8 + 2 * at.q + j % 2, local = at.g + j / 2 * 8;
                float v = c[r][n][j] * (SCALED ? scale[n][j % 2] : 1.0f);
                float other = AT_OUT || AT_HEAD ? 0 : __shfl_xor_sync(WARP_ALL, v, 4);
                finish(a, e, (tile + r) * 16 + local, t, v, other, best + n * 2 + j % 2);
            }
}

/* MEET: at a kernel's start, the places of what this block will get. */
__device__ __forceinline__ void empty_places(float *part, struct extra *e)
{
    empty<SMEM_PART, THREADS>(part);
    if (HAS_NORM)
        empty<sizeof e->squares, THREADS>(e->squares);
    come_emptied();
}

/* A pass's sums, kept in the shared memory of the token's block. 8 is a multiple of SPLIT, so both
 * tokens of a lane have the same two owners in every tile of 8. */
__device__ __forceinline__ void keep_sums(const struct where &at, float *part, int p,
                                          const float (*c)[NT][4])
{
    int row = (p * WARPS + at.warp) * TILES * 16 + at.g;
    float *own[2];
    unsigned peer[2];
#pragma unroll
    for (int s = 0; s < 2; s++) {
        int token = 2 * at.q + s;
        own[s] = part + ((size_t)at.rank * SLOTS + token / SPLIT) * KEPT_LD + row;
        peer[s] = SPLIT > 1 ? peer_of(own[s], token % SPLIT) : 0;
    }
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int further = n * (8 / SPLIT) * KEPT_LD + r * 16 + j / 2 * 8;
                if (n * 8 + 2 * at.q + j % 2 >= M)
                    continue;
                if (MEET)
                    send(peer[j % 2] + further * 4, c[r][n][j]);
                else if (SPLIT > 1)
                    store_at(peer[j % 2] + further * 4, c[r][n][j]);
                else
                    own[j % 2][further] = c[r][n][j];
            }
}

/* The sum of four neighbouring kept rows over the cluster's blocks, or a unit's warps. MEET: once
 * all are here. */
__device__ __forceinline__ float4 kept_sum(const float *part, int slot, int row)
{
    float4 v = make_float4(0, 0, 0, 0), came[SPLIT * KW];
    if (MEET)
        await_all(came, part + slot * KEPT_LD + row, SLOTS * KEPT_LD);
#pragma unroll
    for (int p = 0; p < SPLIT * KW; p++) {
        float4 b =
            MEET ? came[p] : *(const float4 *)(part + ((size_t)p * SLOTS + slot) * KEPT_LD + row);
        v.x += b.x, v.y += b.y, v.z += b.z, v.w += b.w;
    }
    return v;
}

/* The row of the matrix that a kept row is; `first`: of the cluster's units, the first one kept. */
__device__ __forceinline__ int row_of(const struct where &at, int first, int kept)
{
    return tile_of(at.first + first + kept / (TILES * 16)) * 16 + kept % (TILES * 16);
}

/* Whether a kept row is no unit's before its own: the last unit repeats some. */
__device__ __forceinline__ bool is_first(const struct where &at, int first, int kept)
{
    int unit = at.first + first + kept / (TILES * 16);
    return ROW_TILES % TILES == 0 || row_of(at, first, kept) >= unit * TILES * 16;
}

#if AT_HEAD
/* Kept logits of the tokens that belong to this block. A warp has its tokens, and their best. */
__device__ __forceinline__ void finish_kept(const struct region_args &a, const struct where &at,
                                            const struct extra *e, const float *part, int first,
                                            int units, unsigned long long *best)
{
#pragma unroll
    for (int s = 0; s < WARP_SLOTS; s++) {
        int slot = at.warp + s * WARPS, t = slot * SPLIT + at.rank;
        if (slot >= SLOTS || t >= min(a.counts->rows, (int)M))
            continue;
        float f = SCALED ? scale_of(a, e, t) : 1;
        for (int kept = at.lane * 4; kept < units * TILES * 16; kept += 128) {
            int row = row_of(at, first, kept);
            float4 v = kept_sum(part, slot, kept);
            v = make_float4(v.x * f, v.y * f, v.z * f, v.w * f);
            *(float4 *)(a.logits + (size_t)t * VOCAB + row) = v;
            best[s] = max(max(best[s], max(rank_of(v.x, row), rank_of(v.y, row + 1))),
                          max(rank_of(v.z, row + 2), rank_of(v.w, row + 3)));
        }
    }
}
#else
/* Writes the sums of four neighbouring rows of token t, and where other ranks add to them sends
 * them those. `first`: no other thread has them; of attn_out and mlp_out one of them is enough.
 * With q/k norm the HEAD_DIM / 4 threads of a head come here together and are neighbours in one
 * warp. */
__device__ __forceinline__ void finish_four(const struct region_args &a, const struct extra *e,
                                            int row, int t, bool first, float (&v)[4])
{
#if AT_ATTN_IN && HAS_QK_NORM
    int head = row / HEAD_DIM;
    if (head < HEADS + KV_HEADS) {
        float sum = v[0] * v[0] + v[1] * v[1] + v[2] * v[2] + v[3] * v[3];
#pragma unroll
        for (int o = HEAD_DIM / 8; o > 0; o >>= 1)
            sum += __shfl_xor_sync(WARP_ALL, sum, o);
        const float *gain = e->gain[head >= HEADS] + row % HEAD_DIM;
        float norm = rsqrtf(sum / HEAD_DIM + a.eps);
        for (int j = 0; j < 4; j++)
            v[j] *= norm * gain[j];
    }
#endif
#if AT_OUT
    size_t to = (size_t)t * ROWS_ALL + row;
    if (t >= M || !first)
        return;
    *(float4 *)(a.y + to) = make_float4(v[0], v[1], v[2], v[3]);
    if (ADDS_RANKS && a.sum.area.world)
        send_words(a.sum.area, a.sum.turn, to, v);
#elif AT_MLP_IN
    if (t < M)
        *(float2 *)(a.h + (size_t)t * FFN + row / 2) =
            make_float2(silu(v[0]) * v[1], silu(v[2]) * v[3]);
#else
    for (int j = 0; j < 4; j++)
        finish(a, e, row + j, t, v[j], v[j ^ 1], 0);
#endif
}

#if ADDS_RANKS
/* The sums of all ranks, and the residual, over what this thread has put into y. */
__device__ __forceinline__ void add_ranks(const struct region_args &a, const struct where &at,
                                          int first, int units)
{
    int rows = units * TILES * 16;
    for (int i = threadIdx.x; i < SLOTS * (rows / 4); i += THREADS) {
        int kept = i % (rows / 4) * 4, t = i / (rows / 4) * SPLIT + at.rank;
        size_t to = (size_t)t * ROWS_ALL + row_of(at, first, kept);
        if (t >= M || !is_first(at, first, kept))
            continue;
        float4 own = *(const float4 *)(a.y + to), x = __ldcg((const float4 *)(a.x + to));
        float v[4] = {own.x, own.y, own.z, own.w};
        if (add_words(a.sum.area, a.sum.turn, to, v))
            *(float4 *)(a.y + to) = make_float4(v[0] + x.x, v[1] + x.y, v[2] + x.z, v[3] + x.w);
    }
}
#endif

/* Kept sums of the tokens that belong to this block. A thread takes four rows of a token. */
__device__ __forceinline__ void finish_kept(const struct region_args &a, const struct where &at,
                                            const struct extra *e, const float *part, int first,
                                            int units, unsigned long long *)
{
    int rows = units * TILES * 16;
    for (int i = threadIdx.x; i < SLOTS * (rows / 4); i += THREADS) {
        int slot = i / (rows / 4), kept = i % (rows / 4) * 4, t = slot * SPLIT + at.rank;
        int row = row_of(at, first, kept);
        float4 s = MEET && t >= M ? make_float4(0, 0, 0, 0) : kept_sum(part, slot, kept);
        float f = SCALED && t < M ? scale_of(a, e, t) : 1;
        float v[4] = {s.x * f, s.y * f, s.z * f, s.w * f};
        finish_four(a, e, row, t, is_first(at, first, kept), v);
    }
#if ADDS_RANKS
    if (a.sum.area.world)
        add_ranks(a, at, first, units);
#endif
}
#endif

/* Pass p is the last of REDUCE passes: the cluster's blocks exchange and finish what they have.
 * The next ones may overwrite it when all have come to the wait behind its first pass. */
__device__ __forceinline__ void finish_reduced(const struct region_args &a, const struct where &at,
                                               const struct extra *e, const float *part, int p,
                                               int passes, unsigned long long *best)
{
    int first = p / PER_REDUCE * PER_REDUCE * WARPS;
    cluster_arrive();
    cluster_wait();
    finish_kept(a, at, e, part, first, min(at.units - first, (int)KEPT_UNITS), best);
    __syncwarp();
    if (p + 1 < passes)
        cluster_arrive();
}

#if AT_HEAD
__device__ __forceinline__ void finish_best(const struct region_args &a, const struct where &at,
                                            const unsigned long long *best)
{
    __shared__ unsigned long long bests[WARPS][NT * 8];
#if KEPT
    for (int t = at.lane; t < NT * 8; t += 32)
        bests[at.warp][t] = 0;
    __syncwarp();
#pragma unroll
    for (int s = 0; s < WARP_SLOTS; s++) {
        int slot = at.warp + s * WARPS;
        unsigned long long v = warp_best(best[s]);
        if (at.lane == 0 && slot < SLOTS)
            bests[at.warp][slot * SPLIT + at.rank] = v;
    }
#else
#pragma unroll
    for (int i = 0; i < NT * 2; i++) {
        unsigned long long v = best[i];
        for (int o = 4; o < 32; o <<= 1) {
            unsigned long long other = __shfl_xor_sync(WARP_ALL, v, o);
            v = other > v ? other : v;
        }
        if (at.g == 0)
            bests[at.warp][i / 2 * 8 + 2 * at.q + i % 2] = v;
    }
#endif
    best_of_all<WARPS, NT * 8, M>(bests, min(a.counts->rows, (int)M),
                                  (unsigned long long *)a.work.work, a.work.counter, a.best);
}
#endif

#endif
