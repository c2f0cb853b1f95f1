/* SPDX-License-Identifier: Apache-2.0 */
/* mma.cu - projections of 2 to 64 tokens on tensor cores, weights as operand A, tokens as columns.
 *
 * The regions and their maths are gemv.cu's. Weights are kept in the order in which lanes need them
 * (lib/mma.cuh): they go from memory to registers in 16-byte loads and never touch shared memory,
 * and the first ones are in flight before the wait. Activations are rounded to bf16 (relative error
 * 2^-9 each) and lie in shared memory as plain rows; with TERMS=2 each is the sum of two (2^-17),
 * and every weight is multiplied twice: where one channel is a thousand times the others, its
 * rounding is the error of the whole row. Bytes moved: the weights once, x once a block.
 *
 * x is what a block has to wait for, M K floats, and it would be read by every block: so SPLIT
 * blocks of a cluster share K, and each reads its part only. Their partial sums meet in shared
 * memory: token t belongs to block t % SPLIT, where the others store theirs tile by tile; one
 * cluster barrier at the end, or where they do not all fit one for each REDUCE of passes, while the
 * next weights are on their way. That barrier is a fence of the whole device; with MEET there is
 * none behind the wait, and who finishes a token awaits each of its sums (lib/await.cuh). For q/k
 * norm a cluster owns whole heads.
 *
 * Norm: x * gain is multiplied; 1/rms(x) is applied to the finished sum. One rounded number is then
 * as good as eager's only on average, and the error rule looks at the worst: so TERMS=2, or NORMED,
 * which multiplies by 1/rms(x) first and rounds what eager rounds. Blocks that share K post each
 * other their sums of squares for that (lib/inbox.cuh, or as sums with MEET). Residual: it is where
 * the sum starts.
 *
 * What binds at 64 tokens, by reckoning: at 4.3 TB/s a multiprocessor gets 18.5 bytes a clock, so a
 * tile of weights (16 rows, 32 columns, 1 KB) every 55. Its products take 25 clocks of tensor cores
 * (1300 multiply-adds a clock is what mma.sync reaches), its reads of x 32 clocks of shared memory
 * (4 KB at 128 bytes a clock), over TILES. TERMS=2 doubles both and leaves nothing of the 55: hence
 * NORMED. (ldmatrix would read as many bytes with as many instructions.) Beside the stream stand x,
 * M K / SPLIT floats a block from L2, and the exchange of M floats a row.
 *
 * Invariant: as in gemv.cu. Tokens at or beyond counts->m are computed from whatever is there and
 * reach no page; the last unit repeats a tile.
 */
#include "cuda/lib/shape.cuh"

/* ---- knobs -------------------------------------------------------------------------------- */

/* cuda/mma.def has them; whoever compiles this gives each a value. */

/* ---- legality ----------------------------------------------------------------------------- */

#define KNOB(name, role, value, values, help) static_assert((name) == (name), "has a value");
#define LEGAL(expression, why) static_assert(expression, why);
#include "cuda/mma.def"

/* ---- the stream ---------------------------------------------------------------------------- */

#include "cuda/lib/mma_step.cuh"

enum { SMEM_STAGE = THREADS * TILES * UNROLL * STAGE * 32 };

/* Where iteration t > 0 of the first STAGE after the first waits in shared memory, this lane's
 * part. */
__device__ __forceinline__ uint4 *staged(char *shared, int t, int u, int r, int s)
{
    return (uint4 *)(shared + SMEM_X + SMEM_PART) +
           ((((t - 1) * UNROLL + u) * TILES + r) * 2 + s) * THREADS + threadIdx.x;
}

/* Copies the iterations that follow the first, of this pass and the next ones. */
__device__ __forceinline__ void stage(const struct region_args &a, char *shared,
                                      const struct where &at)
{
    int passes = passes_of(at);
#pragma unroll
    for (int t = 1; t <= STAGE; t++) {
        if (t / ITERATIONS >= passes)
            return;
        const uint4 *w =
            tile_weights(a, at, first_tile(at, t / ITERATIONS)) + t % ITERATIONS * UNROLL * 64;
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
#pragma unroll
            for (int r = 0; r < TILES; r++)
#pragma unroll
                for (int s = 0; s < 2; s++)
                    copy_weight(staged(shared, t, u, r, s),
                                w + (size_t)r * (K * 2) + (u * 2 + s) * 32);
    }
}

typedef uint4 fragments[TILES][UNROLL][2]; /* of an iteration: what a lane has in flight */

__device__ __forceinline__ void load_first(fragments &buffer, weights w, const struct where &)
{
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
#pragma unroll
        for (int r = 0; r < TILES; r++)
#pragma unroll
            for (int s = 0; s < 2; s++)
                buffer[r][u][s] = load_weight<LOAD>(w + (size_t)r * (K * 2) + (u * 2 + s) * 32);
}

/* What is not in flight yet of the first passes, into L2. */
__device__ __forceinline__ void prefetch_passes(const struct region_args &a, const struct where &at)
{
    int passes = min(passes_of(at), PREFETCH);
    if (at.lane >= TILES)
        return;
    for (int p = 0; p < passes; p++) {
        int skip = p == 0 ? min(UNROLL * (STAGE + 1), (int)STEPS) * 1024 : 0;
        const char *from =
            (const char *)(tile_weights(a, at, first_tile(at, p) + at.lane) - at.lane);
        if (skip < STEPS * 1024)
            prefetch_l2(from + skip, STEPS * 1024 - skip);
    }
}

/* c += W x over one pass. Registers that become free are loaded with the next iteration that is not
 * staged. xp: this lane's first activations; w and next: this and the next pass's weights. */
__device__ __forceinline__ void multiply_pass(const struct region_args &a, const struct where &at,
                                              char *shared, const bf16 *xp, fragments &buffer,
                                              int p, int passes, weights w, weights next,
                                              all_sums &c)
{
#pragma unroll 1
    for (int k = 0; k < STEPS; k += UNROLL) {
        int t = p * ITERATIONS + k / UNROLL; /* of those of the block */
        bool more = p + 1 < passes, waits = STAGE && t > 0 && t <= STAGE;
        int kn = k + (STAGE && t == 0 ? STAGE + 1 : 1) * UNROLL, later = STAGE ? kn / STEPS : 0;
        const uint4 *from = kn < STEPS ? w + kn * 64 : next;
        bool refill = kn < STEPS || more;
        if (STAGE) {
            refill = !waits && p + later < passes;
            if (later > 1 && refill)
                from = tile_weights(a, at, first_tile(at, p + later));
            if (later > 0)
                from += kn % STEPS * 64;
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            bool beyond = RAGGED && kn + u >= STEPS;
            weights source = beyond ? next : from;
            if (RAGGED && k + u >= STEPS) /* these hold the next pass's first steps already */
                continue;
            uint4 b[TERMS * NT];
#pragma unroll
            for (int n = 0; n < TERMS * NT; n++)
                b[n] = *(const uint4 *)(xp + n * 8 * LD + (k + u) * 32);
#pragma unroll
            for (int r = 0; r < TILES; r++) {
                uint4 w0 = buffer[r][u][0], w1 = buffer[r][u][1];
                if (waits) {
                    w0 = load_staged(staged(shared, t, u, r, 0));
                    w1 = load_staged(staged(shared, t, u, r, 1));
                }
                multiply_step(r, u, w0, w1, b, c);
                if (RAGGED ? !beyond || more : refill)
#pragma unroll
                    for (int s = 0; s < 2; s++)
                        buffer[r][u][s] =
                            load_weight<LOAD>(source + (size_t)r * (K * 2) + (u * 2 + s) * 32);
            }
        }
    }
}

#include "cuda/lib/mma_run.cuh"
