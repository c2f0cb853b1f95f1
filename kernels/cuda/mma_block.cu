/* SPDX-License-Identifier: Apache-2.0 */
/* mma_block.cu - projections of 2 to 32 tokens on tensor cores, each block on its own.
 *
 * The regions, their maths, the order of weights and who rounds what are mma.cu's with NORMED.
 * There a cluster shares K; here a block has a few tiles of 16 rows and all of their columns, which
 * its warps share: KW of them have a unit, TILES tiles, and each has a part of K. So no block waits
 * for another, and partial sums meet in shared memory behind one barrier, added up in a fixed
 * order. What that costs is x: every block reads all of it, and it must fit shared memory.
 *
 * What is to be read after the wait decides where a matrix is small. So all weights of a block, or
 * as many as there is room for, are asked for before it: an iteration of a warp, UNROLL steps, in
 * registers and STAGE further ones in shared memory, where a lane reads back what it copied itself,
 * without a barrier. Each place is filled again as soon as it is used. What neither holds may be
 * brought into L2 (PREFETCH). The next kernel may start when all is asked for (TRIGGER=1); if two
 * blocks fit a multiprocessor (BLOCKS), its weights are on their way while this one waits.
 *
 * Bytes moved: the weights once, x once a block.
 *
 * Invariant: as in mma.cu. Nothing is written, and x is not read, before after_previous().
 */
#include "cuda/lib/shape.cuh"

/* ---- knobs -------------------------------------------------------------------------------- */

/* cuda/mma_block.def has them; whoever compiles this gives each a value. What mma.cu has besides:
 */
#define SPLIT 1
#define SPARE 0
#define TERMS 1
#define REDUCE 0
#define MEET 0
#define NORMED (HAS_NORM ? 2 : 0)

/* ---- legality ----------------------------------------------------------------------------- */

#define KNOB(name, role, value, values, help) static_assert((name) == (name), "has a value");
#define LEGAL(expression, why) static_assert(expression, why);
#include "cuda/mma_block.def"

#include "cuda/lib/mma_step.cuh"
#include "cuda/lib/mma_take.cuh"

/* ---- the stream ---------------------------------------------------------------------------- */

enum {
    AHEAD = STAGE + 1,                                    /* iterations of a warp in flight */
    MOST = (KEPT_UNITS + LINES - 1) / LINES * ITERATIONS, /* that a warp has */
    REFILLED = MOST > AHEAD,
    SMEM_HELD = SMEM_X + SMEM_PART + SMEM_GAINS,
    SMEM_STAGE = THREADS * TILES * UNROLL * STAGE * 32
};

/* What a warp has of K in each pass, in steps, and its iterations in all passes. */
struct stream {
    int from, steps, all;
};

__device__ __forceinline__ struct stream stream_of(const struct where &at)
{
    int part = at.warp % KW, from = part * STEPS / KW;
    return {from, (part + 1) * STEPS / KW - from, passes_of(at) * ITERATIONS};
}

/* Whether iteration i has a step u: the last ones of a pass may not. */
__device__ __forceinline__ bool has_step(const struct stream &s, int i, int u)
{
    return !RAGGED || i % ITERATIONS * UNROLL + u < s.steps;
}

/* This lane's first weights of iteration i. */
__device__ __forceinline__ weights iteration_at(const struct region_args &a, const struct where &at,
                                                const struct stream &s, int i)
{
    return tile_weights(a, at, first_tile(at, i / ITERATIONS)) +
           (s.from + i % ITERATIONS * UNROLL) * 64;
}

/* Where this lane's part of an iteration waits in shared memory. */
__device__ __forceinline__ uint4 *staged(char *shared, int slot, int u, int r, int s)
{
    return (uint4 *)(shared + SMEM_HELD) + (((slot * UNROLL + u) * TILES + r) * 2 + s) * THREADS +
           threadIdx.x;
}

typedef uint4 fragments[UNROLL][TILES][2]; /* of an iteration: what a lane has in registers */

/* Asks for step u of an iteration whose weights begin at `from`: STAGED, for its slot. */
template <bool STAGED>
__device__ __forceinline__ void ask_step(weights from, int u, char *shared, int slot,
                                         fragments &buffer)
{
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
        for (int s = 0; s < 2; s++) {
            weights w = from + (size_t)r * (K * 2) + (u * 2 + s) * 32;
            if (STAGED)
                copy_weight<LOAD>(staged(shared, slot, u, r, s), w);
            else
                buffer[u][r][s] = load_weight<LOAD>(w);
        }
}

/* Before the wait: the first iterations. */
__device__ __forceinline__ void ask_first(const struct region_args &a, const struct where &at,
                                          const struct stream &s, char *shared, fragments &buffer)
{
    if (ALL_HAVE || s.all > 0) {
        weights from = iteration_at(a, at, s, 0);
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (has_step(s, 0, u))
                ask_step<false>(from, u, shared, 0, buffer);
    }
#pragma unroll
    for (int t = 1; t < AHEAD; t++) {
        if (t < s.all) {
            weights from = iteration_at(a, at, s, t);
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                if (has_step(s, t, u))
                    ask_step<true>(from, u, shared, t - 1, buffer);
        }
        copies_sent();
    }
}

/* Into L2: what comes behind those. */
__device__ __forceinline__ void prefetch_next(const struct region_args &a, const struct where &at,
                                              const struct stream &s)
{
    for (int i = at.lane; i < PREFETCH * TILES; i += 32) {
        int t = AHEAD + i / TILES;
        int steps = RAGGED ? min((int)UNROLL, s.steps - t % ITERATIONS * UNROLL) : UNROLL;
        if (t < s.all && steps > 0)
            prefetch_l2(iteration_at(a, at, s, t) - at.lane + (size_t)(i % TILES) * (K * 2),
                        steps * 1024);
    }
}

/* c += W x over iteration i, which waits in registers or in `slot`; that place gets the iteration
 * that is AHEAD. x: this lane's first activations of its warp's part. */
template <bool STAGED>
__device__ __forceinline__ void multiply(const struct region_args &a, const struct where &at,
                                         const struct stream &s, char *shared, const bf16 *x,
                                         int slot, int i, fragments &buffer, all_sums &c)
{
    int next = i + AHEAD, k = i % ITERATIONS * UNROLL;
    bool refill = REFILLED && next < s.all;
    weights from = refill ? iteration_at(a, at, s, next) : 0;
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        if (has_step(s, i, u)) {
            uint4 b[NT];
#pragma unroll
            for (int n = 0; n < NT; n++)
                b[n] = *(const uint4 *)(x + n * 8 * LD + (k + u) * 32);
#pragma unroll
            for (int r = 0; r < TILES; r++)
                if (STAGED)
                    multiply_step(r, u, load_staged(staged(shared, slot, u, r, 0)),
                                  load_staged(staged(shared, slot, u, r, 1)), b, c);
                else
                    multiply_step(r, u, buffer[u][r][0], buffer[u][r][1], b, c);
        }
        if (refill && has_step(s, next, u))
            ask_step<STAGED>(from, u, shared, slot, buffer);
    }
}

/* ---- sums ---------------------------------------------------------------------------------- */

__device__ __forceinline__ void clear_sums(all_sums &c)
{
#pragma unroll
    for (int i = 0; i < CHAINS * TILES * NT * 4; i++)
        c[i / (TILES * NT * 4)][i / (NT * 4) % TILES][i / 4 % NT][i % 4] = 0;
}

/* Iteration i is over: if it was the last of a pass its sums go where those of the unit meet. */
__device__ __forceinline__ void end_iteration(const struct where &at, const struct stream &s,
                                              float *part, int i, all_sums &c)
{
    if (TRIGGER == 3 && i + AHEAD + 1 == s.all)
        release_next();
    if ((i + 1) % ITERATIONS != 0)
        return;
    int row = (i / ITERATIONS * LINES + at.warp / KW) * (TILES * 16) + at.g;
    float *to = part + ((size_t)(at.warp % KW) * SLOTS + 2 * at.q) * KEPT_LD + row;
    add_chains(c);
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (n * 8 + 2 * at.q + j % 2 < M)
                    to[(n * 8 + j % 2) * KEPT_LD + r * 16 + j / 2 * 8] = c[0][r][n][j];
    clear_sums(c);
}

/* All of this warp's iterations. */
__device__ __forceinline__ void multiply_all(const struct region_args &a, const struct where &at,
                                             const struct stream &s, char *shared,
                                             fragments &buffer)
{
    const bf16 *x = (const bf16 *)shared + at.g * LD + at.q * 8 + s.from * 32;
    float *part = (float *)(shared + SMEM_X);
    all_sums c;
    clear_sums(c);
#pragma unroll 1
    for (int i = 0; i < s.all;) {
        multiply<false>(a, at, s, shared, x, 0, i, buffer, c);
        end_iteration(at, s, part, i, c);
        i++;
#pragma unroll 1
        for (int slot = 0; slot < STAGE && i < s.all; slot++, i++) {
            await_sent<(STAGE > 0 ? STAGE - 1 : 0)>(); /* the oldest; each turn sends one more */
            multiply<true>(a, at, s, shared, x, slot, i, buffer, c);
            copies_sent();
            end_iteration(at, s, part, i, c);
        }
    }
}

/* Which four rows of which token a thread finishes in its turn i, and what is added to them. */
struct four {
    int t, kept, row;
    float4 rest;
};

__device__ __forceinline__ struct four four_of(const struct region_args &a, const struct where &at,
                                               int i)
{
    int rows = at.units * TILES * 16;
    struct four f = {i / (rows / 4), i % (rows / 4) * 4, 0, {0, 0, 0, 0}};
    f.row = row_of(at, 0, f.kept);
#if AT_OUT
    if (f.t < M && !(ADDS_RANKS && a.sum.area.world))
        f.rest = load_x4(a.x + (size_t)f.t * ROWS_ALL + f.row);
#endif
    return f;
}

/* Everything the block has summed up; f: this thread's first four. */
__device__ __forceinline__ void finish_all(const struct region_args &a, const struct where &at,
                                           const struct extra *e, const float *part, struct four f)
{
    for (int i = threadIdx.x; i < M * (at.units * TILES * 4); i += THREADS) {
        if (!AT_OUT || i >= THREADS)
            f = four_of(a, at, i);
        float4 s = kept_sum(part, f.t, f.kept);
        float v[4] = {f.rest.x + s.x, f.rest.y + s.y, f.rest.z + s.z, f.rest.w + s.w};
        finish_four(a, e, f.row, f.t, is_first(at, 0, f.kept), v);
    }
#if ADDS_RANKS
    if (a.sum.area.world)
        add_ranks(a, at, 0, at.units);
#endif
}

/* ---- entry -------------------------------------------------------------------------------- */

KERNEL __launch_bounds__(THREADS, BLOCKS) whet_kernel(const __grid_constant__ struct region_args a)
{
    extern __shared__ __align__(16) char shared[];
    __shared__ struct extra e;
    float *gain = (float *)(shared + SMEM_X + SMEM_PART);
    struct where at = place();
    struct stream s = stream_of(at);
    fragments buffer;
    if (TRIGGER == 0)
        release_next();
    ask_all_gains(a, gain);
    ask_first(a, at, s, shared, buffer);
    if (PREFETCH)
        prefetch_next(a, at, s);
    if (TRIGGER == 1)
        release_next();
    int live = a.counts->m;
    take_turns(a, at, &e);
    if (HAS_NORM) { /* gains are everybody's */
        await_sent<STAGE>();
        __syncthreads();
    }

    after_previous();
    struct four first = {};
    if (AT_OUT)
        first = four_of(a, at, threadIdx.x);
    take_all(a, at, (bf16 *)shared, gain, live);
    __syncthreads();
    if (TRIGGER == 2 || (TRIGGER == 3 && s.all <= AHEAD))
        release_next();
    multiply_all(a, at, s, shared, buffer);
    await_copies(); /* cosines, sines and gains of heads */
    __syncthreads();
    finish_all(a, at, &e, (const float *)(shared + SMEM_X), first);
}

extern "C" __device__ const struct cuda_kernel_info whet_info = {
    WHET_CUDA_ABI,
    REGION,
    M_MAX,
    0,
    1,
    0,
    0,
    PACKED_BYTES,
    PACKED_LAYOUT,
    {{{CLUSTERS, 1, 1}, THREADS, SMEM_HELD + SMEM_STAGE, 1, 1, 0}},
    0,
    0,
    ADDS_RANKS,
};
