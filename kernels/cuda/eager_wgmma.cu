/* SPDX-License-Identifier: Apache-2.0 */
/* eager_wgmma.cu - the attention of eager_prefill.cu on Hopper's own tensor-core instructions.
 *
 * A block owns a tile of 64 consecutive query rows and two query heads of one kv head: one producer
 * warpgroup brings keys and values, two consumer warpgroups, a head each, use the same ones.
 * Positions come in tiles of 128 (eight pages), STAGES of them in shared memory, each announced
 * and given back through a barrier.
 *
 * A consumer keeps its sums O and scores S in registers. While tensor cores do O += P V of one
 * tile, its threads turn the scores of the next one into probabilities (FlashAttention 3, Shah
 * 2024); with PINGPONG the two consumers also take turns at issuing, so that one's products run
 * during the other's exponentials, which take as long as the products when heads are 64 wide.
 *
 *   q16 [M, heads, HD], pages [page][kv_head][KV_PAGE][HD], a16 [M, heads, HD]
 *
 * Grid: (kv_heads * ceil(group / 2), tiles), 384 threads. An odd group's last block computes its
 * last head twice and stores it once. Positions at or beyond the tile's last token are zero in
 * shared memory and masked, so what a page holds there does not matter.
 */
#include "cuda/lib/wgmma.cuh"
#include "eager.h"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

#ifndef PINGPONG
#define PINGPONG 1
#endif

enum {
    CONSUMERS = 2,
    GROUP_THREADS = 128,
    ROWS = EAGER_TILE,
    POSITIONS = EAGER_WGMMA_POSITIONS,
    STAGES = EAGER_WGMMA_STAGES
};

/* Shared memory; every matrix is HD / 64 blocks of rows of 128 bytes. */
template <int HD> struct memory {
    char q[CONSUMERS][ROWS * HD * 2];
    char k[STAGES][POSITIONS * HD * 2], v[STAGES][POSITIONS * HD * 2];
    barrier k_full[STAGES], v_full[STAGES], k_empty[STAGES], v_empty[STAGES];
};
static_assert(sizeof(memory<64>) <= EAGER_WGMMA_SMEM(64) &&
                  sizeof(memory<128>) <= EAGER_WGMMA_SMEM(128),
              "what the host gives");

/* The stage that a tile waits in, and the parity of the phase of its barriers. */
struct pipe_state {
    int stage, parity;
};

__device__ __forceinline__ struct pipe_state pipe_at(int tile)
{
    return {tile % STAGES, tile / STAGES & 1};
}

/* ---- producer ------------------------------------------------------------------------------ */

/* Positions [from, from + POSITIONS) of one kv head into a stage. */
template <int HD>
__device__ __forceinline__ void fetch(char *stage, const void *pages,
                                      const struct eager_prefill_args &a,
                                      const struct eager_tile &tile, int kvh, int from, int end)
{
    enum { PIECES = HD / 8, PER_PAGE = KV_PAGE * PIECES / GROUP_THREADS };
    const int *table = a.page_table + tile.pages_at + from / KV_PAGE;
    int piece = threadIdx.x % PIECES, row = threadIdx.x / PIECES;
    unsigned to = shared_at(stage) + piece / 8 * (POSITIONS * 128);
    size_t page[POSITIONS / KV_PAGE];
#pragma unroll
    for (int i = 0; i < POSITIONS / KV_PAGE; i++)
        page[i] = from + i * KV_PAGE < end ? table[i] : 0;
#pragma unroll
    for (int i = 0; i < POSITIONS / KV_PAGE; i++) {
        const bf16 *at = (const bf16 *)pages + (page[i] * a.kv_heads + kvh) * (KV_PAGE * HD);
#pragma unroll
        for (int j = 0; j < PER_PAGE; j++) {
            int r = row + j * (GROUP_THREADS / PIECES), position = i * KV_PAGE + r;
            copy16(to + swizzled(position, piece % 8), at + r * HD + piece * 8,
                   from + position < end);
        }
    }
    copies_commit();
}

/* Load number `load`, of this thread, is there: 0 the first keys, 1 the first values, 2 keys ... */
template <int HD> __device__ __forceinline__ void announce(struct memory<HD> &m, int load)
{
    int stage = pipe_at(load / 2).stage;
    barrier_arrive(load % 2 ? &m.v_full[stage] : &m.k_full[stage]);
}

/* Keys and values of all tiles in turn. Two loads stay in flight, but nothing is kept back while
 * this thread waits for a stage: consumers may need it to give that stage back. */
template <int HD>
__device__ __forceinline__ void produce(struct memory<HD> &m, const struct eager_prefill_args &a,
                                        const struct eager_tile &tile, int kvh, int end, int tiles)
{
    int announced = 0;
    for (int load = 0; load < 2 * tiles; load++) {
        struct pipe_state t = pipe_at(load / 2);
        bool values = load % 2;
        barrier *empty = values ? &m.v_empty[t.stage] : &m.k_empty[t.stage];
        if (!barrier_done(empty, t.parity ^ 1)) {
            copies_wait<0>();
            while (announced < load)
                announce(m, announced++);
            barrier_wait(empty, t.parity ^ 1);
        }
        fetch<HD>(values ? m.v[t.stage] : m.k[t.stage], values ? a.v_pages : a.k_pages, a, tile,
                  kvh, load / 2 * POSITIONS, end);
        copies_wait<2>();
        while (announced < load - 1)
            announce(m, announced++);
    }
    copies_wait<0>();
    while (announced < 2 * tiles)
        announce(m, announced++);
}

/* ---- consumers ----------------------------------------------------------------------------- */

/* This consumer's 64 query rows; rows at or beyond the tile's are the last one again. */
template <int HD>
__device__ __forceinline__ void take_queries(char *to, const struct eager_prefill_args &a,
                                             const struct eager_tile &tile, int head, int consumer)
{
    enum { PIECES = HD / 8 };
    for (int i = threadIdx.x % GROUP_THREADS; i < ROWS * PIECES; i += GROUP_THREADS) {
        int row = i / PIECES, piece = i % PIECES, t = tile.first + min(row, tile.rows - 1);
        copy16(shared_at(to) + piece / 8 * (ROWS * 128) + swizzled(row, piece % 8),
               (const bf16 *)a.q16 + ((size_t)t * a.heads + head) * HD + piece * 8, true);
    }
    copies_commit();
    copies_wait<0>();
    named_sync(1 + consumer, GROUP_THREADS);
}

/* What a thread keeps of its two rows, row and row + 8: the running softmax. */
template <int HD> struct rows {
    float top[2], sum[2], keep[2];
    float o[HD / 2];
};

/* S = Q K^T, issued. */
template <int HD>
__device__ __forceinline__ void score(float (&s)[POSITIONS / 2], unsigned q, unsigned k)
{
#pragma unroll
    for (int c = 0; c < HD / 16; c++)
        wgmma_rows(s, by_row(q + c / 4 * (ROWS * 128) + c % 4 * 32),
                   by_row(k + c / 4 * (POSITIONS * 128) + c % 4 * 32), c > 0);
    wgmma_commit();
}

/* O += P V, issued. */
template <int HD>
__device__ __forceinline__ void add(struct rows<HD> &r, const unsigned (&p)[POSITIONS / 16][4],
                                    unsigned v)
{
#pragma unroll
    for (int c = 0; c < POSITIONS / 16; c++)
        wgmma_columns(r.o, p[c], by_column(v + c * (16 * 128), POSITIONS * 128));
    wgmma_commit();
}

/* Scores to probabilities, relative to the new maximum; keep: by what the old sums shrink. Scores
 * and maxima stay unscaled, so that scaling is part of the exponent's multiply-add. */
template <int HD>
__device__ __forceinline__ void soften(float (&s)[POSITIONS / 2], struct rows<HD> &r, float scale)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = r.top[half], sum = 0;
#pragma unroll
        for (int n = 0; n < POSITIONS / 8; n++)
            top = fmaxf(top, fmaxf(s[n * 4 + half * 2], s[n * 4 + half * 2 + 1]));
        top = fmaxf(top, __shfl_xor_sync(WARP_ALL, top, 1));
        top = fmaxf(top, __shfl_xor_sync(WARP_ALL, top, 2));
        float base = top * scale; /* a number: every row sees position 0, in the first tile */
        r.keep[half] = exp2_fast(r.top[half] * scale - base);
#pragma unroll
        for (int n = 0; n < POSITIONS / 8; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float &v = s[n * 4 + half * 2 + j];
                v = exp2_fast(v * scale - base);
                sum += v;
            }
        r.top[half] = top;
        r.sum[half] = r.sum[half] * r.keep[half] + sum;
    }
}

template <int HD> __device__ __forceinline__ void rescale(struct rows<HD> &r)
{
#pragma unroll
    for (int n = 0; n < HD / 2; n++)
        r.o[n] *= r.keep[n / 2 % 2];
}

/* Positions beyond `last` (of the first row) become nothing. */
__device__ __forceinline__ void mask(float (&s)[POSITIONS / 2], int from, int last)
{
#pragma unroll
    for (int i = 0; i < POSITIONS / 2; i++)
        if (from + i / 4 * 8 + i % 2 > last + i / 2 % 2 * 8)
            s[i] = -INFINITY;
}

__device__ __forceinline__ void pack(unsigned (&p)[POSITIONS / 16][4],
                                     const float (&s)[POSITIONS / 2])
{
#pragma unroll
    for (int c = 0; c < POSITIONS / 16; c++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            p[c][i] = pack_bf16(s[c * 8 + i * 2], s[c * 8 + i * 2 + 1]);
}

template <int HD>
__device__ __forceinline__ void store(const struct eager_prefill_args &a,
                                      const struct eager_tile &tile, struct rows<HD> &r, int head,
                                      int row)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = r.sum[half];
        sum += __shfl_xor_sync(WARP_ALL, sum, 1);
        sum += __shfl_xor_sync(WARP_ALL, sum, 2);
        if (row + half * 8 >= tile.rows)
            continue;
        size_t at =
            ((size_t)(tile.first + row + half * 8) * a.heads + head) * HD + threadIdx.x % 4 * 2;
        float inv = 1.0f / sum;
#pragma unroll
        for (int n = 0; n < HD / 8; n++) {
            float x = r.o[n * 4 + half * 2] * inv, y = r.o[n * 4 + half * 2 + 1] * inv;
            if (a.a16)
                *(unsigned *)((bf16 *)a.a16 + at + n * 8) = pack_bf16(x, y);
            if (a.a)
                *(float2 *)(a.a + at + n * 8) = make_float2(x, y);
        }
    }
}

/* Named barriers: one a consumer for its queries, one for its turn. */
enum { TURN = 1 + CONSUMERS };

__device__ __forceinline__ void await_turn(int consumer)
{
    if (PINGPONG)
        named_sync(TURN + consumer, 2 * GROUP_THREADS);
}

__device__ __forceinline__ void pass_on(int consumer)
{
    if (PINGPONG)
        named_arrive(TURN + (consumer ^ 1), 2 * GROUP_THREADS);
}

__device__ __forceinline__ void give_back(barrier *empty)
{
    if (threadIdx.x % 32 == 0)
        barrier_arrive(empty);
}

template <int HD>
__device__ __forceinline__ void consume(struct memory<HD> &m, const struct eager_prefill_args &a,
                                        const struct eager_tile &tile, int head, int consumer,
                                        bool stores, int tiles)
{
    int row = threadIdx.x % GROUP_THREADS / 32 * 16 + threadIdx.x % 32 / 4;
    int last = tile.position + row - threadIdx.x % 4 * 2; /* so that columns count from 0 */
    float scale = a.scale * 1.44269504f, s[POSITIONS / 2];
    unsigned p[POSITIONS / 16][4], q = shared_at(m.q[consumer]);
    rows<HD> r = {{-INFINITY, -INFINITY}}; /* and sums of 0 */
    take_queries<HD>(m.q[consumer], a, tile, head, consumer);
    if (consumer == 1)
        pass_on(consumer); /* the first turn is consumer 0's */
    barrier_wait(&m.k_full[0], 0);
    wgmma_begin();
    score<HD>(s, q, shared_at(m.k[0]));
    wgmma_wait<0>();
    settle(s);
    give_back(&m.k_empty[0]);
    mask(s, 0, last);
    soften<HD>(s, r, scale);
    pack(p, s);
    if (tiles > 1)
        barrier_wait(&m.k_full[1], 0);
    for (int i = 1; i < tiles; i++) {
        struct pipe_state now = pipe_at(i), before = pipe_at(i - 1), next = pipe_at(i + 1);
        await_turn(consumer);
        wgmma_begin();
        score<HD>(s, q, shared_at(m.k[now.stage]));
        barrier_wait(&m.v_full[before.stage], before.parity);
        add<HD>(r, p, shared_at(m.v[before.stage]));
        pass_on(consumer);
        wgmma_wait<1>();
        settle(s);
        give_back(&m.k_empty[now.stage]);
        if ((i + 1) * POSITIONS - 1 > tile.position + row / 16 * 16)
            mask(s, i * POSITIONS, last);
        soften<HD>(s, r, scale);
        settle(s);
        /* With nothing that loops between the two, ptxas waits for O before the exponentials. */
        if (i + 1 < tiles)
            barrier_wait(&m.k_full[next.stage], next.parity);
        wgmma_wait<0>();
        settle(r.o);
        give_back(&m.v_empty[before.stage]);
        rescale<HD>(r);
        pack(p, s);
    }
    struct pipe_state end = pipe_at(tiles - 1);
    barrier_wait(&m.v_full[end.stage], end.parity);
    wgmma_begin();
    add<HD>(r, p, shared_at(m.v[end.stage]));
    wgmma_wait<0>();
    settle(r.o);
    if (stores)
        store<HD>(a, tile, r, head, row);
}

/* ---- entry --------------------------------------------------------------------------------- */

template <int HD> __device__ __forceinline__ void prefill(const struct eager_prefill_args &a)
{
    extern __shared__ __align__(1024) char shared[];
    struct memory<HD> &m = *(struct memory<HD> *)shared;
    int part = threadIdx.x / GROUP_THREADS, group = a.heads / a.kv_heads;
    int pairs = (group + 1) / 2, kvh = blockIdx.x / pairs;
    if (threadIdx.x == 0)
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&m.k_full[i], GROUP_THREADS);
            barrier_init(&m.v_full[i], GROUP_THREADS);
            barrier_init(&m.k_empty[i], CONSUMERS * 4);
            barrier_init(&m.v_empty[i], CONSUMERS * 4);
        }
    __syncthreads();
    release_next();
    after_previous();
    struct eager_tile tile = a.tile[blockIdx.y];
    int end = tile.position + tile.rows, tiles = (end + POSITIONS - 1) / POSITIONS;
    if (part == 0) {
        registers_give<40>();
        produce<HD>(m, a, tile, kvh, end, tiles);
    } else {
        registers_take<232>();
        int member = blockIdx.x % pairs * 2 + part - 1;
        consume<HD>(m, a, tile, kvh * group + min(member, group - 1), part - 1, member < group,
                    tiles);
    }
}

KERNEL __launch_bounds__((1 + CONSUMERS) * GROUP_THREADS, 1)
    eager_wgmma_64(const __grid_constant__ struct eager_prefill_args a)
{
    prefill<64>(a);
}

KERNEL __launch_bounds__((1 + CONSUMERS) * GROUP_THREADS, 1)
    eager_wgmma_128(const __grid_constant__ struct eager_prefill_args a)
{
    prefill<128>(a);
}

#endif
