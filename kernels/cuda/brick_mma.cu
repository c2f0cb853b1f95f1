/* SPDX-License-Identifier: Apache-2.0 */
/* brick_mma.cu - projections of 2 to 64 tokens whose weights are kept in their own format
 * (kernels/bricks.h), on tensor cores in bf16.
 *
 * All but the stream of weights is mma.cu's: how rows and K are dealt, x in shared memory as bf16
 * rows that are rounded where eager rounds them, sums that meet in a cluster. A lane's part of a
 * brick goes from memory to registers in 16-byte loads, UNROLL bricks for each tile in flight, the
 * first ones before the wait. Codes become bf16 by a shift and a logic operation for two: whole
 * numbers, a constant too large, which bf16 holds exactly. So no weight is rounded. 32 columns (16
 * of Q6_K) are one or two products from zero; the block's scale comes after them in float, and what
 * the constant and the block's minimum make too much is taken off by the sum of these activations,
 * which is made once, where they are rounded (lib/mma_x.cuh).
 *
 * What a strip of 16 rows and 32 columns costs a warp: some 16 operations for its codes and 20 for
 * its scales, whatever the tokens, then for each eight tokens two products, eight multiply-adds and
 * 640 bytes from shared memory, five of its clocks. So that binds, and not the weights: at 64
 * tokens 40 clocks, where four bits of a strip take 16 to come at 4.3 TB/s. TILES strips share
 * these reads. brick.cu, in whole numbers of int8, costs less for one token or two, and from four
 * on more.
 *
 * Invariant: as in mma.cu.
 */
#include "cuda/lib/shape.cuh"

/* ---- knobs -------------------------------------------------------------------------------- */

/* cuda/brick_mma.def has them; whoever compiles this gives each a value. */
#define TERMS 1 /* eager, which this is compared with, has one, too */
#define STAGE 0
#define MEET 0

/* ---- legality ----------------------------------------------------------------------------- */

#define KNOB(name, role, value, values, help) static_assert((name) == (name), "has a value");
#define LEGAL(expression, why) static_assert(expression, why);
#include "cuda/brick_mma.def"

/* ---- the stream ---------------------------------------------------------------------------- */

#include "cuda/lib/mma_end.cuh"

#define PACKED_BYTES 0
#define PACKED_LAYOUT ""
enum { SMEM_STAGE = 0, BYTES = brick_bytes(WTYPE), ACROSS = K / CHUNK };

typedef struct brick<WTYPE> fragments[UNROLL][TILES]; /* what a lane has in flight */

struct load_once {
    __device__ __forceinline__ uint4 operator()(const uint4 *p) const
    {
        return load_weight<LOAD>(p);
    }
};

/* Brick k of the row of bricks of each tile from w on. */
__device__ __forceinline__ void load_bricks(struct brick<WTYPE> *b, weights w, int k,
                                            const struct where &at)
{
#pragma unroll
    for (int r = 0; r < TILES; r++)
        load_brick<WTYPE>(b + r, w + (size_t)(r * ACROSS + k) * BYTES, at.lane, load_once());
}

__device__ __forceinline__ void load_first(fragments &buffer, weights w, const struct where &at)
{
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        if (!PARTIAL || u < steps_of(at))
            load_bricks(buffer[u], w, u, at);
}

/* What is not in flight yet of the first passes, into L2. */
__device__ __forceinline__ void prefetch_passes(const struct region_args &a, const struct where &at)
{
    int passes = min(passes_of(at), PREFETCH), steps = steps_of(at);
    if (at.lane >= TILES)
        return;
    for (int p = 0; p < passes; p++) {
        int skip = p == 0 ? UNROLL : 0;
        if (skip < steps)
            prefetch_l2(tile_weights(a, at, first_tile(at, p) + at.lane) + skip * BYTES,
                        (steps - skip) * BYTES);
    }
}

/* c += w x over strip t of a brick of each tile. x and sums: this lane's first activations of the
 * strip, and what they add up to. */
__device__ __forceinline__ void multiply_strip(const struct brick<WTYPE> *b, int t, const bf16 *x,
                                               const float *sums, float (*c)[NT][4])
{
    typedef brick_shape<WTYPE> shape;
    struct brick_scale<WTYPE> s[TILES];
    uint4 w[TILES][2];
#pragma unroll
    for (int r = 0; r < TILES; r++) {
        s[r] = brick_scales_of<WTYPE>(b[r], t);
        w[r][0] = brick_operand<WTYPE>(b[r], t, 0), w[r][1] = brick_operand<WTYPE>(b[r], t, 1);
    }
#pragma unroll
    for (int n = 0; n < NT; n++) {
        uint4 part = *(const uint4 *)(x + n * 8 * LD);
        float2 all[shape::HALVES] = {};
#pragma unroll
        for (int p = 0; SUMMED && p < shape::HALVES; p++)
            all[p] = *(const float2 *)(sums + (p * NT + n) * 8);
#pragma unroll
        for (int r = 0; r < TILES; r++) {
            float d[shape::HALVES][4] = {};
            mma_bf16(d[0], w[r][0], part.x, part.y);
            mma_bf16(d[shape::HALVES - 1], w[r][1], part.z, part.w);
#pragma unroll
            for (int i = 0; i < shape::HALVES * 4; i++) {
                int p = i / 4, h = i % 4 / 2;
                float *to = &c[r][n][i % 4];
                *to = fmaf(s[r].scale[p][h], d[p][i % 4], *to);
                if (SUMMED)
                    *to = fmaf(-s[r].offset[p][h], i % 2 ? all[p].y : all[p].x, *to);
            }
        }
    }
}

/* Codes of eight bits for many tokens: unrolled, the compiler makes operands of all strips at once
 * and has no registers left. So two strips at a time, and the others move up. */
#define BY_TWO ((WTYPE == 3 || WTYPE == 16) && M_MAX > 32)
#define BY_SCALE (WTYPE == 16 && !BY_TWO)
static_assert(DTYPE_Q8_0 == 3 && DTYPE_F8 == 16, "numbers in a condition of the preprocessor");

/* c += w x over the strips of a brick of each tile that have their scale in common, which are four
 * of F8: they add up before it. x: this lane's first activations of the first of them. */
__device__ __forceinline__ void multiply_scaled(const struct brick<WTYPE> *b, int first,
                                                const bf16 *x, float (*c)[NT][4])
{
    float d[TILES][NT][4] = {};
#pragma unroll
    for (int t = first; t < first + BRICK_SCALED / 32; t++, x += 32)
#pragma unroll
        for (int r = 0; r < TILES; r++) {
            uint4 w0 = brick_operand<WTYPE>(b[r], t, 0), w1 = brick_operand<WTYPE>(b[r], t, 1);
#pragma unroll
            for (int n = 0; n < NT; n++) {
                uint4 part = *(const uint4 *)(x + n * 8 * LD);
                mma_bf16(d[r][n], w0, part.x, part.y);
                mma_bf16(d[r][n], w1, part.z, part.w);
            }
        }
#pragma unroll
    for (int r = 0; r < TILES; r++) {
        struct brick_scale<WTYPE> s = brick_scales_of<WTYPE>(b[r], first);
#pragma unroll
        for (int i = 0; i < NT * 4; i++)
            c[r][i / 4][i % 4] =
                fmaf(s.scale[0][i % 4 / 2], d[r][i / 4][i % 4], c[r][i / 4][i % 4]);
    }
}

/* c += w x over a brick of each tile, which is used up. */
__device__ __forceinline__ void multiply_bricks(struct brick<WTYPE> *b, const bf16 *x,
                                                const float *sums, float (*c)[NT][4])
{
    enum { SUMS = NT * 8 * brick_shape<WTYPE>::HALVES };
#if BY_TWO
#pragma unroll 1
    for (int t = 0; t < BRICK_STRIPS; t += 2) {
        multiply_strip(b, 0, x + t * 32, sums, c);
        multiply_strip(b, 1, x + t * 32 + 32, sums, c);
#pragma unroll
        for (int r = 0; r < TILES; r++)
            skip_two_strips<WTYPE>(b + r, t);
    }
#elif BY_SCALE
#pragma unroll
    for (int t = 0; t < BRICK_STRIPS; t += BRICK_SCALED / 32)
        multiply_scaled(b, t, x + t * 32, c);
#else
#pragma unroll
    for (int t = 0; t < BRICK_STRIPS; t++)
        multiply_strip(b, t, x + t * 32, sums + t * SUMS, c);
#endif
}

/* c += W x over one pass. A place that becomes free gets the brick that is UNROLL further on in the
 * row, or its own of the next pass. */
__device__ __forceinline__ void multiply_pass(const struct region_args &, const struct where &at,
                                              char *shared, const bf16 *x, fragments &buffer, int p,
                                              int passes, weights w, weights next, all_sums &c)
{
    const float *sums = (const float *)(shared + SMEM_ROWS) + 2 * at.q;
    int steps = steps_of(at);
#pragma unroll 1
    for (int first = 0; first < steps; first += UNROLL)
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int k = first + u, after = k + UNROLL;
            if ((PARTIAL || RAGGED) && k >= steps) /* the next pass's already */
                continue;
            multiply_bricks(buffer[u], x + k * CHUNK, sums + k * (CHUNK / SUM_COLUMNS) * NT * 8,
                            c[0]);
            if (after < steps)
                load_bricks(buffer[u], w, after, at);
            else if (p + 1 < passes)
                load_bricks(buffer[u], next, u, at);
        }
}

#include "cuda/lib/mma_run.cuh"
