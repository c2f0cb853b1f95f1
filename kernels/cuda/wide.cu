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
#define E4M3 0
#define STORE 0 /* its tiles leave no shared memory for the other way */

/* ---- legality ----------------------------------------------------------------------------- */

#define KNOB(name, role, value, values, help) static_assert((name) == (name), "has a value");
#define LEGAL(expression, why) static_assert(expression, why);
#include "cuda/wide.def"

/* ---- code --------------------------------------------------------------------------------- */

#include "cuda/lib/wide_parts.cuh"

#define PACKED_BYTES ((int64_t)ROWS_ALL * K * 2)
#define PACKED_LAYOUT "wgmma64x64"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---- producer ------------------------------------------------------------------------------ */

/* How many steps of the first unit have their weights under way already. */
struct asked {
    int early;
};

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

__device__ __forceinline__ void ask_first(const struct region_args &a, struct memory &s,
                                          const struct units &u, int rank, struct asked &asked)
{
    struct place at = place_of(u, u.first, rank);
    asked.early = min((int)STAGES, first_step(at.part + 1) - first_step(at.part));
    for (int i = 0; i < asked.early; i++)
        ask_weights(a, s, at, i, first_step(at.part) + i);
}

__device__ __forceinline__ void produce(const struct region_args &a, struct memory &s,
                                        const struct units &u, int rank, struct asked &asked)
{
    struct pipe_state t = {0, 0};
    for (int unit = u.first; unit < u.all; unit += u.step) {
        struct place at = place_of(u, unit, rank);
        for (int k = first_step(at.part); k < first_step(at.part + 1); k++) {
            if (asked.early <= 0) {
                barrier_wait(&s.empty[t.stage], t.parity ^ 1);
                ask_weights(a, s, at, t.stage, k);
            }
            ask_tokens(a, s, at, rank, t.stage, k);
            advance(t);
            asked.early--;
        }
    }
}

/* ---- consumers ----------------------------------------------------------------------------- */

/* Where a warpgroup is in the ring. */
struct reading {
    struct pipe_state ring;
};

/* This warpgroup's sums of a unit. */
__device__ __forceinline__ void multiply(const struct region_args &, struct memory &s,
                                         const struct place &at, int group, struct reading &at_ring,
                                         sums &c)
{
    struct pipe_state &t = at_ring.ring;
    int steps = first_step(at.part + 1) - first_step(at.part), before = 0;
#pragma unroll 1
    for (int k = 0; k < steps; k++) {
        barrier_wait(&s.full[t.stage], t.parity);
        unsigned w = shared_at(s.stage[t.stage]) + group * (TILES * PIECE);
        unsigned x = shared_at(tokens_at(s, t.stage));
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

#endif

#include "cuda/lib/wide_run.cuh"

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
