/* SPDX-License-Identifier: Apache-2.0 */
/* skinny.cu - projections of 17 to 256 tokens on Hopper's tensor cores, where the stream of weights
 * is what takes time.
 *
 * The regions and their maths are gemv.cu's. In wide.cu rows of weights are the 64 rows of an
 * instruction, so that a matrix is cut in steps of 64 and some multiprocessors have one more than
 * others. Here tokens are those rows, 64 for each warpgroup, and weights the instruction's columns,
 * of which there may be any multiple of eight: ROWS is what deals the matrix out evenly, one tile a
 * block, all of them at once. Rows beyond the tokens cost nothing that a stream of weights would
 * wait for.
 *
 * A launch of its own leaves the activations as bf16 in working memory, normed if they are to be,
 * in the order in which wgmma reads shared memory; or where PREP is 0, attn_out and mlp_out read
 * those that the region before left in bf16, by tensor map. Then a block is one warpgroup for 64
 * tokens and a producer warp, which fills a ring of STAGES steps of 64 columns by bulk copies:
 * weights are kept step by step, so that those of a tile are one piece of memory in each. The first
 * steps' are asked for before the wait.
 *
 * SPLIT blocks of a cluster share K of attn_out and mlp_out. Token t is block t % SPLIT's: the
 * others store their sums of it in that one's shared memory, meet once, and it adds them up by
 * parts in order, then the residual. A head that is wider than a tile is normed by a cluster of
 * blocks, which tell each other their sums of squares.
 *
 * Bytes moved: the weights once, x once a block, from L2. One H200, Qwen3-4B, 64 tokens, kernels
 * alone: mlp_in (128 blocks of 152 rows) gets 3.8 of 4.5 TB/s
 * (docs/lab/2026-12-01-gpu-weights-as-columns.md).
 *
 * Invariant: that of mma.cu. Nothing is written for tokens at or beyond counts->m.
 */
#include "cuda/lib/shape.cuh"

/* ---- knobs -------------------------------------------------------------------------------- */

/* cuda/skinny.def has them; whoever compiles this gives each a value. */

/* ---- legality ----------------------------------------------------------------------------- */

#define KNOB(name, role, value, values, help) static_assert((name) == (name), "has a value");
#define LEGAL(expression, why) static_assert(expression, why);
#include "cuda/skinny.def"

/* ---- code --------------------------------------------------------------------------------- */

#include "cuda/lib/normed_row.cuh"
#include "cuda/lib/skinny_end.cuh"

/* ---- activations --------------------------------------------------------------------------- */

#if PREP
/* A token's row: eight columns are 16 bytes of the 128 that a token has of a step, whose place
 * among them is swizzled; eight tokens are 1 KB. */
__device__ __forceinline__ void put_four(const struct region_args &a, int t, int column, float4 v)
{
    char *to = (char *)a.work.work + (size_t)(column / 64) * X_BYTES + t / 8 * 1024;
    int piece = column % 64 / 8 ^ t % 8;
    *(uint2 *)(to + t % 8 * 128 + piece * 16 + column % 8 * 2) =
        make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
}

/* Number k of the fours of a row that a thread has. */
__device__ __forceinline__ int part_of_row(int k)
{
    return (k * ROW_PARTS + (int)blockIdx.y) * ROW_THREADS + (int)threadIdx.x;
}

enum { EACH = (K / 4 + ROW_PARTS * ROW_THREADS - 1) / (ROW_PARTS * ROW_THREADS) };
typedef float4 row_part[EACH];

__device__ __forceinline__ void take_row(const struct region_args &a, int t, row_part &v)
{
#if HAS_NORM
    take_normed<K, ROW_THREADS>(a.x + (size_t)t * K, a.norm, a.eps, v);
#else
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        size_t i = (size_t)t * (K / 4) + min(part_of_row(k), K / 4 - 1);
#if WIDE_STEP
        uint2 two = __ldcg((const uint2 *)a.wide.in16 + i);
        v[k] = make_float4(low_bf16(two.x), high_bf16(two.x), low_bf16(two.y), high_bf16(two.y));
#else
        v[k] = load_x4(a.in + i * 4);
#endif
    }
#endif
}

KERNEL __launch_bounds__(ROW_THREADS) whet_kernel(const __grid_constant__ struct region_args a)
{
    row_part v;
    int t = blockIdx.x;
    release_next();
    after_previous();
    if (t >= a.counts->m)
        return;
    take_row(a, t, v);
#pragma unroll
    for (int k = 0; k < EACH; k++)
        if (part_of_row(k) < K / 4)
            put_four(a, t, part_of_row(k) * 4, v[k]);
}
#endif

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---- producer ------------------------------------------------------------------------------ */

__device__ __forceinline__ void ask_weights(const struct region_args &a, struct memory &s,
                                            const struct place &at, int stage, int step)
{
    int rows = min((int)ROWS, ROWS_ALL - at.row);
    const char *w = (const char *)a.packed + ((size_t)step * ROWS_ALL + at.row) * 128;
    barrier_expect(&s.full[stage], rows * 128 + X_BYTES);
    copy_bulk<LOAD == 2>(s.stage[stage], w, rows * 128, &s.full[stage]);
}

__device__ __forceinline__ void ask_tokens(const struct region_args &a, struct memory &s, int stage,
                                           int step)
{
    char *to = s.stage[stage] + ROWS * 128;
#if PREP
    copy_bulk<false>(to, (const char *)a.work.work + (size_t)step * X_BYTES, X_BYTES,
                     &s.full[stage]);
#else
#pragma unroll
    for (int i = 0; i < GROUPS; i++)
        copy_box<false>(to + i * 8192, a.wide.map, step * 64, i * 64, &s.full[stage], 1);
#endif
}

/* One thread. `early`: so many steps have their weights under way already. */
__device__ __forceinline__ void produce(const struct region_args &a, struct memory &s,
                                        const struct place &at, int early)
{
    int stage = 0, parity = 0;
    for (int i = 0; i < at.steps; i++) {
        if (i >= early) {
            barrier_wait(&s.empty[stage], parity ^ 1);
            ask_weights(a, s, at, stage, at.step + i);
        }
        ask_tokens(a, s, stage, at.step + i);
        if (++stage == STAGES)
            stage = 0, parity ^= 1;
    }
}

/* ---- consumers ----------------------------------------------------------------------------- */

__device__ __forceinline__ void give_back(struct memory &s, int stage)
{
    if (threadIdx.x % 32 == 0)
        barrier_arrive(&s.empty[stage]);
}

__device__ __forceinline__ void multiply(struct memory &s, const struct place &at, sums &c)
{
    int stage = 0, parity = 0, before = 0;
#pragma unroll 1
    for (int i = 0; i < at.steps; i++) {
        barrier_wait(&s.full[stage], parity);
        unsigned w = shared_at(s.stage[stage]), x = w + ROWS * 128 + threadIdx.x / 128 * 8192;
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < 4; k++)
            wgmma_rows(c, by_row(x + k * 32), by_row(w + k * 32), i + k > 0);
        wgmma_commit();
        wgmma_wait<1>();
        if (i > 0)
            give_back(s, before);
        before = stage;
        if (++stage == STAGES)
            stage = 0, parity ^= 1;
    }
    wgmma_wait<0>();
    settle(c);
}

/* ---- entry --------------------------------------------------------------------------------- */

__device__ __forceinline__ void open_barriers(struct memory &s)
{
    for (int i = 0; i < STAGES; i++) {
        barrier_init(&s.full[i], 1);
        barrier_init(&s.empty[i], GROUPS * 4);
    }
    barriers_ready();
}

KERNEL __launch_bounds__(THREADS, 1) PRODUCT_ENTRY(const __grid_constant__ struct region_args a)
{
    extern __shared__ __align__(1024) char shared[];
    struct memory &s = *(struct memory *)shared;
    struct place at = my_place();
    bool produces = threadIdx.x == GROUPS * 128;
    int early = min((int)STAGES, at.steps);
    if (TRIGGER == 0)
        release_next();
    if (produces)
        open_barriers(s);
    __syncthreads();
    if (BLOCKS > 1)
        cluster_come();
    for (int i = 0; produces && i < early; i++)
        ask_weights(a, s, at, i, at.step + i);
    __syncwarp();
    if (BLOCKS > 1)
        cluster_wait();
    sums c;
    struct taken taken;
    if (threadIdx.x < GROUPS * 128)
        taken = take_tokens(a, at);
    after_previous();
    if (produces)
        produce(a, s, at, early);
    __syncwarp();
    if (threadIdx.x < GROUPS * 128) {
        multiply(s, at, c);
        if (TRIGGER == 1)
            release_next();
    }
    finish(a, s, at, taken, c);
}

#endif

extern "C" __device__ const struct cuda_kernel_info whet_info = {
    WHET_CUDA_ABI,
    REGION,
    M_MAX,
    0,
    1 + PREP,
    0,
    PREP ? (int64_t)X_BYTES *(K / 64) : 0,
    (int64_t)ROWS_ALL *K * 2,
    "wgmma8",
#if PREP
    {{{M_MAX, ROW_PARTS, 1}, ROW_THREADS, 0, 1, 0, 0},
     {{TILES * SPLIT, 1, 1}, THREADS, (int)sizeof(struct memory), 1, BLOCKS, 0}},
#else
    {{{TILES * SPLIT, 1, 1}, THREADS, (int)sizeof(struct memory), 1, BLOCKS, 0}},
#endif
    M_MAX > 64 || !PREP ? 64 : 0,
    0,
    0,
    REGION == REGION_MLP_IN &&M_MAX <= 64};

/* ---- packing ------------------------------------------------------------------------------- */

/* Steps of 64 columns, of all rows: 128 bytes of a row, 16-byte pieces swizzled by its number. */
extern "C" __global__ void whet_pack(struct cuda_pack_args a)
{
    long long n = (long long)a.rows * a.cols / 8, step = (long long)gridDim.x * blockDim.x;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += step) {
        long long row = i / 8 % a.rows, column = i / 8 / a.rows * 64 + ((i ^ row) & 7) * 8;
        ((uint4 *)a.dst)[i] = *(const uint4 *)((const bf16 *)a.src + row * a.cols + column);
    }
}
