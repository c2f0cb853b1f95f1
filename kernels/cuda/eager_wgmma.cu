/* SPDX-License-Identifier: Apache-2.0 */
/* eager_wgmma.cu - the attention of eager_prefill.cu on Hopper's own tensor-core instructions.
 *
 * A piece of work is a tile of 128 consecutive query rows of one head. There are as many blocks as
 * multiprocessors, and each works on one piece after the other: one warp brings queries, keys and
 * values by tensor map, already those of the next piece while two consumer warpgroups, 64 rows
 * each, finish this one. Positions come in tiles of 128 (eight pages), STAGES of them in shared
 * memory, each announced and given back through a barrier.
 *
 * All heads of a kv head read the same keys and values. With BLOCKS 2 a cluster of two blocks works
 * on two heads: each block asks for every other page, and it comes to both. Loads are what limits
 * heads of 128, so that is worth 5 % at long contexts (docs/gpu-results.md, "Attention of
 * prompts").
 *
 * A consumer keeps its sums O and scores S in registers. While tensor cores do O += P V of one
 * tile, its threads turn the scores of the next one into probabilities (FlashAttention 3, Shah
 * 2024); with PINGPONG the two consumers also take turns at issuing, so that one's products run
 * during the other's exponentials, which take as long as the products when heads are 64 wide.
 *
 *   q16 [M, heads, HD], pages [page][kv_head][KV_PAGE][HD], a16 [M, heads, HD]
 *
 * Grid: up to one block a multiprocessor, a multiple of BLOCKS, which is also the cluster; 384
 * threads. Positions at or beyond the tile's last token are masked, and their values are zeros, so
 * what a page holds there does not matter.
 */
#include "cuda/lib/stream.cuh"
#include "cuda/lib/wgmma.cuh"
#include "eager.h"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

#ifndef PINGPONG
#define PINGPONG 1
#endif

enum {
    CONSUMERS = 2,
    GROUP_THREADS = 128,
    ROWS = EAGER_WGMMA_TILE / CONSUMERS,
    POSITIONS = EAGER_WGMMA_POSITIONS,
    STAGES = EAGER_WGMMA_STAGES,
    PAGES = POSITIONS / KV_PAGE,
    /* Of 64512 in all. With fewer the producer spills; consumers need no more. */
    PRODUCER_REGISTERS = 56,
    CONSUMER_REGISTERS = 224
};

/* Shared memory; every matrix is HD / 64 blocks of rows of 128 bytes. */
template <int HD> struct memory {
    char q[CONSUMERS][ROWS * HD * 2];
    char k[STAGES][POSITIONS * HD * 2], v[STAGES][POSITIONS * HD * 2];
    barrier q_full, q_empty;
    barrier k_full[STAGES], v_full[STAGES], k_empty[STAGES], v_empty[STAGES];
};
static_assert(sizeof(memory<64>) <= EAGER_WGMMA_SMEM(64) &&
                  sizeof(memory<128>) <= EAGER_WGMMA_SMEM(128),
              "what the host gives");

/* The stage that a tile waits in, and the parity of the phase of its barriers. */
struct pipe_state {
    int stage, parity;
};

__device__ __forceinline__ struct pipe_state after(struct pipe_state p)
{
    if (p.stage == STAGES - 1)
        return {0, p.parity ^ 1};
    return {p.stage + 1, p.parity};
}

/* ---- work ---------------------------------------------------------------------------------- */

struct piece {
    struct eager_tile tile;
    int head, kvh;
    int end, tiles; /* positions that some row sees, in so many tiles */
};

/* The n-th piece of this block; false: there is none. Pieces are dealt out to and fro, those with
 * most positions first, so that blocks end together. */
template <int BLOCKS>
__device__ __forceinline__ bool take(struct piece *p, const struct eager_wgmma_args &a, int n)
{
    int across = a.prompt.heads / BLOCKS; /* pieces of a tile, for a cluster */
    int clusters = gridDim.x / BLOCKS, cluster = blockIdx.x / BLOCKS;
    int at = n * clusters + (n % 2 ? clusters - 1 - cluster : cluster);
    if (at >= across * a.tiles)
        return false;
    p->tile = a.prompt.tile[at / across];
    p->head = at % across * BLOCKS + blockIdx.x % BLOCKS;
    p->kvh = p->head / (a.prompt.heads / a.prompt.kv_heads);
    p->end = p->tile.position + p->tile.rows;
    p->tiles = (p->end + POSITIONS - 1) / POSITIONS;
    return true;
}

/* ---- producer ------------------------------------------------------------------------------ */

/* Announces `bytes`, before any lane of this warp asks for them. */
__device__ __forceinline__ void announce(barrier *full, int bytes)
{
    if (threadIdx.x == 0)
        barrier_expect(full, bytes);
    __syncwarp();
}

/* The row of this lane's page of tile t: of keys and values alike, and below zero where there is no
 * such page, which is read as zeros. */
__device__ __forceinline__ int row_of(const struct eager_wgmma_args &a, const struct piece &p,
                                      int t)
{
    int page = t * PAGES + threadIdx.x % PAGES;
    if (page * KV_PAGE >= p.end)
        return -KV_PAGE;
    return (a.prompt.page_table[p.tile.pages_at + page] * a.prompt.kv_heads + p.kvh) * KV_PAGE;
}

/* A tile of keys or values into a stage: a lane has the box of one page and 64 columns. */
template <int HD, int BLOCKS>
__device__ __forceinline__ void bring(char *stage, const void *map, int row, barrier *full)
{
    int lane = threadIdx.x, page = lane % PAGES, part = lane / PAGES;
    static_assert(PAGES * (HD / 64) <= 32, "a lane a box");
    announce(full, POSITIONS * HD * 2);
    if (lane < PAGES * (HD / 64) && page % BLOCKS == blockIdx.x % BLOCKS)
        copy_box<(BLOCKS > 1)>(stage + part * (POSITIONS * 128) + page * (KV_PAGE * 128), map,
                               part * 64, row, full, (1 << BLOCKS) - 1);
}

/* Beyond the tile's last row these are other rows of the step, or zeros. */
template <int HD>
__device__ __forceinline__ void
bring_queries(struct memory<HD> &m, const struct eager_wgmma_args &a, const struct piece &p)
{
    int consumer = threadIdx.x % CONSUMERS, part = threadIdx.x / CONSUMERS;
    announce(&m.q_full, sizeof m.q);
    if (part < HD / 64)
        copy_box<false>(m.q[consumer] + part * (ROWS * 128), &a.q, p.head * HD + part * 64,
                        p.tile.first + consumer * ROWS, &m.q_full, 0);
}

/* One warp. Queries come behind the first keys, which may be there before the last piece is over.
 */
template <int HD, int BLOCKS>
__device__ __forceinline__ void produce(struct memory<HD> &m, const struct eager_wgmma_args &a)
{
    struct pipe_state s = {0, 0};
    struct piece p;
    for (int n = 0; take<BLOCKS>(&p, a, n); n++) {
        int next = row_of(a, p, 0);
        for (int t = 0; t < p.tiles; t++, s = after(s)) {
            int row = next;
            next = row_of(a, p, t + 1); /* on its way while this waits */
            barrier_wait(&m.k_empty[s.stage], s.parity ^ 1);
            bring<HD, BLOCKS>(m.k[s.stage], &a.k, row, &m.k_full[s.stage]);
            if (t == 0) {
                barrier_wait(&m.q_empty, n % 2 ^ 1);
                bring_queries<HD>(m, a, p);
            }
            barrier_wait(&m.v_empty[s.stage], s.parity ^ 1);
            bring<HD, BLOCKS>(m.v[s.stage], &a.v, row, &m.v_full[s.stage]);
        }
    }
}

/* ---- consumers ----------------------------------------------------------------------------- */

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
__device__ __forceinline__ void store(const struct eager_prefill_args &a, const struct piece &p,
                                      struct rows<HD> &r, int row)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = r.sum[half];
        sum += __shfl_xor_sync(WARP_ALL, sum, 1);
        sum += __shfl_xor_sync(WARP_ALL, sum, 2);
        if (row + half * 8 >= p.tile.rows)
            continue;
        size_t at =
            ((size_t)(p.tile.first + row + half * 8) * a.heads + p.head) * HD + threadIdx.x % 4 * 2;
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

/* Named barriers: one for both consumers, one a consumer for its turn. */
enum { TOGETHER = 1, TURN = 2 };

__device__ __forceinline__ void await_turn(int consumer)
{
    if (PINGPONG)
        named_sync(TURN + consumer, CONSUMERS * GROUP_THREADS);
}

__device__ __forceinline__ void pass_on(int consumer)
{
    if (PINGPONG)
        named_arrive(TURN + (consumer ^ 1), CONSUMERS * GROUP_THREADS);
}

/* To all who write there. */
template <int BLOCKS> __device__ __forceinline__ void give_back(barrier *empty)
{
    int lane = threadIdx.x % 32;
    if (BLOCKS == 1 && lane == 0)
        barrier_arrive(empty);
    if (BLOCKS > 1 && lane < BLOCKS)
        barrier_arrive_at<false>(empty, lane);
}

/* Values from position `from` of a tile to the end of its page become nothing: what lay there may
 * not be a number, and 0 times that is none either. */
template <int HD> __device__ __forceinline__ void clear(char *v, int from)
{
    int count = (KV_PAGE - from % KV_PAGE) * (HD / 8);
    for (int i = threadIdx.x - GROUP_THREADS; i < count; i += CONSUMERS * GROUP_THREADS) {
        int row = from + i / (HD / 8), piece = i % (HD / 8);
        *(uint4 *)(v + piece / 8 * (POSITIONS * 128) + swizzled(row, piece % 8)) =
            make_uint4(0, 0, 0, 0);
    }
    written_for_async();
    named_sync(TOGETHER, CONSUMERS * GROUP_THREADS);
}

/* What a consumer keeps from piece to piece. */
struct consumer {
    int number, row; /* row: of the tile, the first of this thread's two */
    float scale;
    struct pipe_state now; /* of the tile whose scores it has or wants next */
};

/* All tiles of a piece; r: the sums. */
template <int HD, int BLOCKS>
__device__ __forceinline__ void attend(struct memory<HD> &m, struct consumer &c,
                                       const struct piece &work, struct rows<HD> &r)
{
    int first_row = work.tile.position + c.row / 16 * 16;        /* of this warp */
    int last = work.tile.position + c.row - threadIdx.x % 4 * 2; /* so that columns count from 0 */
    float s[POSITIONS / 2];
    unsigned p[POSITIONS / 16][4], q = shared_at(m.q[c.number]);
    struct pipe_state next = after(c.now);
    barrier_wait(&m.k_full[c.now.stage], c.now.parity);
    wgmma_begin();
    score<HD>(s, q, shared_at(m.k[c.now.stage]));
    wgmma_wait<0>();
    settle(s);
    give_back<BLOCKS>(&m.k_empty[c.now.stage]);
    if (work.tiles == 1)
        give_back<1>(&m.q_empty);
    if (POSITIONS - 1 > first_row)
        mask(s, 0, last);
    soften<HD>(s, r, c.scale);
    pack(p, s);
    if (work.tiles > 1)
        barrier_wait(&m.k_full[next.stage], next.parity);
    for (int i = 1; i < work.tiles; i++) {
        struct pipe_state before = c.now;
        c.now = next;
        next = after(next);
        await_turn(c.number);
        barrier_wait(&m.v_full[before.stage], before.parity);
        wgmma_begin();
        score<HD>(s, q, shared_at(m.k[c.now.stage]));
        add<HD>(r, p, shared_at(m.v[before.stage]));
        pass_on(c.number);
        wgmma_wait<1>();
        settle(s);
        give_back<BLOCKS>(&m.k_empty[c.now.stage]);
        if (i + 1 == work.tiles)
            give_back<1>(&m.q_empty);
        if ((i + 1) * POSITIONS - 1 > first_row)
            mask(s, i * POSITIONS, last);
        soften<HD>(s, r, c.scale);
        settle(s);
        /* With nothing that loops between the two, ptxas waits for O before the exponentials. */
        if (i + 1 < work.tiles)
            barrier_wait(&m.k_full[next.stage], next.parity);
        wgmma_wait<0>();
        settle(r.o);
        give_back<BLOCKS>(&m.v_empty[before.stage]);
        rescale<HD>(r);
        pack(p, s);
    }
    barrier_wait(&m.v_full[c.now.stage], c.now.parity);
    if (work.end % KV_PAGE)
        clear<HD>(m.v[c.now.stage], work.end - (work.tiles - 1) * POSITIONS);
    wgmma_begin();
    add<HD>(r, p, shared_at(m.v[c.now.stage]));
    wgmma_wait<0>();
    settle(r.o);
    give_back<BLOCKS>(&m.v_empty[c.now.stage]);
    c.now = next;
}

template <int HD, int BLOCKS>
__device__ __forceinline__ void consume(struct memory<HD> &m, const struct eager_wgmma_args &a,
                                        int number)
{
    int row = threadIdx.x % GROUP_THREADS / 32 * 16 + threadIdx.x % 32 / 4;
    struct consumer c = {number, number * ROWS + row, a.prompt.scale * 1.44269504f, {0, 0}};
    struct piece p;
    if (number == 1)
        pass_on(number); /* the first turn is consumer 0's */
    for (int n = 0; take<BLOCKS>(&p, a, n); n++) {
        rows<HD> r = {{-INFINITY, -INFINITY}}; /* and sums of 0 */
        barrier_wait(&m.q_full, n % 2);
        attend<HD, BLOCKS>(m, c, p, r);
        store<HD>(a.prompt, p, r, c.row);
    }
}

/* ---- entry --------------------------------------------------------------------------------- */

/* All blocks of the cluster are there. */
template <int BLOCKS> __device__ __forceinline__ void meet()
{
    __syncthreads();
    if (BLOCKS > 1) {
        cluster_come();
        cluster_wait();
    }
}

template <int HD, int BLOCKS>
__device__ __forceinline__ void prefill(const struct eager_wgmma_args &a)
{
    extern __shared__ __align__(1024) char shared[];
    struct memory<HD> &m = *(struct memory<HD> *)shared;
    enum { ALL = BLOCKS * CONSUMERS * (GROUP_THREADS / 32) }; /* warps that read a stage */
    if (threadIdx.x == 0) {
        barrier_init(&m.q_full, 1);
        barrier_init(&m.q_empty, ALL / BLOCKS);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&m.k_full[i], 1);
            barrier_init(&m.v_full[i], 1);
            barrier_init(&m.k_empty[i], ALL);
            barrier_init(&m.v_empty[i], ALL);
        }
        barriers_ready();
    }
    meet<BLOCKS>();
    release_next();
    after_previous();
    if (threadIdx.x < GROUP_THREADS) {
        registers_give<PRODUCER_REGISTERS>();
        if (threadIdx.x < 32)
            produce<HD, BLOCKS>(m, a);
    } else {
        registers_take<CONSUMER_REGISTERS>();
        consume<HD, BLOCKS>(m, a, threadIdx.x / GROUP_THREADS - 1);
    }
    if (BLOCKS > 1)
        meet<BLOCKS>(); /* its pages and arrivals come to the other block as well */
}

#define EAGER_WGMMA(name, head_dim, blocks)                      \
    KERNEL __launch_bounds__((1 + CONSUMERS) * GROUP_THREADS, 1) \
        name(const __grid_constant__ struct eager_wgmma_args a)  \
    {                                                            \
        prefill<head_dim, blocks>(a);                            \
    }
EAGER_WGMMA(eager_wgmma_64, 64, 1)
EAGER_WGMMA(eager_wgmma_128, 128, 1)
EAGER_WGMMA(eager_wgmma_128_2, 128, 2)

#endif
