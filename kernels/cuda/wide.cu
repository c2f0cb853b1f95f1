/* SPDX-License-Identifier: Apache-2.0 */
/* wide.cu - projections of more than 64 tokens on Hopper's tensor cores.
 *
 * The regions and their maths are gemv.cu's, activations between them are bf16 (struct cuda_wide).
 * A norm is a launch of its own, which leaves bf16 rows in working memory; the second launch is the
 * product with all that the region does to its sums. Weights are operand A, their rows the 64 rows
 * of an instruction, and tokens its columns: so 64 tokens waste as little as 256.
 *
 * A block is one producer warp and GROUPS consumer warpgroups. The producer fills a ring of STAGES
 * steps of 64 columns: weights come as one piece of memory each 64 rows, because they are kept in
 * the order in which wgmma reads shared memory, swizzle and all; activations by tensor map. The
 * first steps' weights are asked for before the wait. A tile is FEATURES rows times TOKENS tokens,
 * in the registers of the consumers; blocks take tiles in turn, tokens first, so that blocks at
 * work at the same time share weights through L2.
 *
 * CLUSTER blocks with the same tokens and other rows get each step's activations together: each
 * asks for a part and has it sent to all. SPLIT blocks share K: each ends up with the sums of every
 * SPLIT-th group of eight tokens, to which the others send theirs through shared memory, and they
 * are added in a fixed order.
 *
 * In the packed order rows 2 i and 2 i + 1 of a matrix are i and i + 8 of their 16, so a thread has
 * both rows of a RoPE pair, or gate and up.
 *
 * Bytes moved: the weights once from memory and once for every tile of tokens from L2, activations
 * once for every CLUSTER tiles of rows from L2. Per step of 64 columns a block with 128 rows and
 * 256 tokens multiplies for 1024 clocks and reads 48 KB, of which CLUSTER=2 saves a third.
 *
 * Invariant: that of mma.cu. Nothing is written for tokens at or beyond counts->m.
 */
#include "cuda/lib/shape.cuh"

/* ---- knobs -------------------------------------------------------------------------------- */

/* cuda/wide.def has them; whoever compiles this gives each a value. */

/* ---- legality ----------------------------------------------------------------------------- */

#define KNOB(name, role, value, values, help) static_assert((name) == (name), "has a value");
#define LEGAL(expression, why) static_assert(expression, why);
#include "cuda/wide.def"

/* ---- code --------------------------------------------------------------------------------- */

#include "cuda/lib/stream.cuh"
#include "cuda/lib/wide_end.cuh"

/* ---- the norm ------------------------------------------------------------------------------ */

#if HAS_NORM
/* A row of x, normed as eager does it, into working memory. */
__device__ __forceinline__ void norm_row(const struct region_args &a, int t)
{
    enum { EACH = (K / 4 + NORM_THREADS - 1) / NORM_THREADS };
    __shared__ float shared[33];
    const float *x = a.x + (size_t)t * K;
    float4 v[EACH];
    float sum = 0;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int i = threadIdx.x + k * NORM_THREADS;
        v[k] = i < K / 4 ? load_x4(x + i * 4) : make_float4(0, 0, 0, 0);
        sum += v[k].x * v[k].x + v[k].y * v[k].y + v[k].z * v[k].z + v[k].w * v[k].w;
    }
    float r = rsqrtf(block_sum(sum, shared) / K + a.eps);
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int i = threadIdx.x + k * NORM_THREADS;
        if (i >= K / 4)
            continue;
        float4 g = ((const float4 *)a.norm)[i], n = v[k];
        ((uint2 *)a.work.work)[(size_t)t * (K / 4) + i] = make_uint2(
            pack_bf16(n.x * r * g.x, n.y * r * g.y), pack_bf16(n.z * r * g.z, n.w * r * g.w));
    }
}

KERNEL __launch_bounds__(NORM_THREADS) whet_kernel(const __grid_constant__ struct region_args a)
{
    release_next();
    after_previous();
    if ((int)blockIdx.x < a.counts->m)
        norm_row(a, blockIdx.x);
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
    return part * STEPS / SPLIT;
}

/* A stage, and the parity of the phase of its barriers. */
struct pipe_state {
    int stage, parity;
};

__device__ __forceinline__ void advance(struct pipe_state &t)
{
    if (++t.stage == STAGES)
        t = {0, t.parity ^ 1};
}

/* ---- producer ------------------------------------------------------------------------------ */

__device__ __forceinline__ void ask_weights(const struct region_args &a, struct memory &s,
                                            const struct place &at, int stage, int step)
{
    const char *w = (const char *)a.packed;
    barrier_expect(&s.full[stage], FEATURES * 128 + TOKENS * 128);
#pragma unroll
    for (int i = 0; i < FEATURES / 64; i++)
        copy_bulk<LOAD == 2>(s.stage[stage] + i * PIECE,
                             w + ((size_t)(at.tile * (FEATURES / 64) + i) * STEPS + step) * PIECE,
                             PIECE, &s.full[stage]);
}

/* This block's part of the activations, to all blocks that multiply them. */
__device__ __forceinline__ void ask_tokens(const struct region_args &a, struct memory &s,
                                           const struct place &at, int rank, int stage, int step)
{
    int part = rank % CLUSTER * BOX;
    copy_box<(CLUSTER > 1)>(s.stage[stage] + FEATURES * 128 + part * 128, a.wide.map, step * 64,
                            at.token + part, &s.full[stage],
                            (unsigned short)(((1 << CLUSTER) - 1) << at.part * CLUSTER));
}

/* One thread. `early` steps of the first unit have their weights under way already. */
__device__ __forceinline__ void produce(const struct region_args &a, struct memory &s,
                                        const struct units &u, int rank, int early)
{
    struct pipe_state t = {0, 0};
    for (int unit = u.first; unit < u.all; unit += u.step) {
        struct place at = place_of(u, unit, rank);
        for (int k = first_step(at.part); k < first_step(at.part + 1); k++) {
            if (early <= 0) {
                barrier_wait(&s.empty[t.stage], t.parity ^ 1);
                ask_weights(a, s, at, t.stage, k);
            }
            ask_tokens(a, s, at, rank, t.stage, k);
            advance(t);
            early--;
        }
    }
}

/* ---- consumers ----------------------------------------------------------------------------- */

__device__ __forceinline__ void give_back(struct memory &s, int stage, int part)
{
    int lane = threadIdx.x % 32;
    if (CLUSTER == 1 && lane == 0)
        barrier_arrive(&s.empty[stage]);
    else if (CLUSTER > 1 && lane < CLUSTER)
        barrier_arrive_at<false>(&s.empty[stage], part * CLUSTER + lane);
}

/* This warpgroup's sums of a unit. */
__device__ __forceinline__ void multiply(struct memory &s, const struct place &at, int group,
                                         struct pipe_state &t, sums &c)
{
    int steps = first_step(at.part + 1) - first_step(at.part), before = 0;
#pragma unroll 1
    for (int k = 0; k < steps; k++) {
        barrier_wait(&s.full[t.stage], t.parity);
        unsigned w = shared_at(s.stage[t.stage]) + group * (TILES * PIECE);
        unsigned x = shared_at(s.stage[t.stage]) + FEATURES * 128;
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int r = 0; r < TILES; r++)
                wgmma_rows(c[r], by_row(w + r * PIECE + i * 32), by_row(x + i * 32), k + i > 0);
        wgmma_commit();
        wgmma_wait<1>();
        if (k > 0)
            give_back(s, before, at.part);
        before = t.stage;
        advance(t);
    }
    wgmma_wait<0>();
#pragma unroll
    for (int r = 0; r < TILES; r++)
        settle(c[r]);
    give_back(s, before, at.part);
}

__device__ __forceinline__ void consume(const struct region_args &a, struct memory &s,
                                        const struct units &u, int rank, int group)
{
    struct pipe_state t = {0, 0};
    int m = a.counts->m, parity = 0;
    for (int unit = u.first; unit < u.all; unit += u.step, parity ^= 1) {
        struct place at = place_of(u, unit, rank);
        sums c;
        take_tokens(a, s, at, m, parity);
        multiply(s, at, group, t, c);
        if (TRIGGER == 1 && unit + u.step >= u.all)
            release_next();
#if SPLIT > 1
        own_sums own;
        meet(s, at, rank, parity, unit != u.first, c, own);
        finish_tile(a, s, at, group, m, parity, own);
#else
        finish_tile(a, s, at, group, m, parity, c);
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
    barrier_init(&s.sums_here, SPLIT > 1 ? (SPLIT - 1) * GROUPS * 4 : 1);
    barrier_init(&s.sums_read, SPLIT > 1 ? SPLIT - 1 : 1);
    barriers_ready();
}

KERNEL __launch_bounds__(THREADS, FIT) PRODUCT_ENTRY(const __grid_constant__ struct region_args a)
{
    extern __shared__ __align__(1024) char shared[];
    struct memory &s = *(struct memory *)shared;
    struct units u = my_units(a.counts->m);
    int part = threadIdx.x / 128, rank = blockIdx.x % BLOCKS, early = 0;
    struct place at = place_of(u, u.first, rank);
    if (TRIGGER == 0)
        release_next();
    if (threadIdx.x == 0)
        open_barriers(s);
    __syncthreads();
    if (BLOCKS > 1)
        cluster_come();
    if (threadIdx.x == 0 && u.first < u.all) {
        early = min((int)STAGES, first_step(at.part + 1) - first_step(at.part));
        for (int i = 0; i < early; i++)
            ask_weights(a, s, at, i, first_step(at.part) + i);
    }
    __syncwarp();
    if (BLOCKS > 1)
        cluster_wait();
    after_previous();
    if (part == 0) {
        if (GROUPS == 2 || FIT == 2)
            registers_give<(GROUPS == 2 ? 56 : 40)>();
        if (threadIdx.x == 0)
            produce(a, s, u, rank, early);
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

/* ---- packing ------------------------------------------------------------------------------- */

/* Blocks of 64 rows x 64 columns, 8 KB, those of a row one after the other. */
extern "C" __global__ void whet_pack(struct cuda_pack_args a)
{
    long long n = (long long)a.rows * a.cols / 8, step = (long long)gridDim.x * blockDim.x;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += step) {
        long long block = i / 512;
        int row = i % 512 / 8, piece = (i % 8) ^ (row & 7), in16 = row % 16;
        long long from = block / (a.cols / 64) * 64 + row / 16 * 16 + in16 % 8 * 2 + in16 / 8;
        ((uint4 *)a.dst)[i] = *(const uint4 *)((const bf16 *)a.src + from * a.cols +
                                               block % (a.cols / 64) * 64 + piece * 8);
    }
}

extern "C" __device__ const struct cuda_kernel_info whet_info = {
    WHET_CUDA_ABI,
    REGION,
    M_MAX,
    0,
    1 + HAS_NORM,
    0,
    HAS_NORM ? (int64_t)M_MAX *K * 2 : 0,
    (int64_t)ROWS_ALL *K * 2,
    "wgmma64x64",
#if HAS_NORM
    {{{M_MAX, 1, 1}, NORM_THREADS, 0, 1, 0, 0},
     {{CLUSTERS * BLOCKS, 1, 1}, THREADS, (int)sizeof(struct memory), 1, BLOCKS, 0}},
#else
    {{{CLUSTERS * BLOCKS, 1, 1}, THREADS, (int)sizeof(struct memory), 1, BLOCKS, 0}},
#endif
    BOX,
    0};
