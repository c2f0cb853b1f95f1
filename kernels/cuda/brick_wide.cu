/* SPDX-License-Identifier: Apache-2.0 */
/* brick_wide.cu - projections of more than 64 tokens whose weights are kept in their own format
 * (kernels/bricks.h), on Hopper's tensor cores.
 *
 * All but the stream of weights is wide.cu's: the norm as a launch of its own, units of rows and
 * tokens, activations by tensor map, what becomes of sums. Weights are operand A out of registers:
 * bricks come into shared memory as they are, one bulk copy each, and the warp whose 16 rows they
 * are makes bf16 of them, rounded once, as eager's expansion does. The operands of a step of 64
 * columns are made while the step before is multiplied.
 *
 * A brick's lane (g, q) has columns 4 q .. 4 q + 3 of 16, and an operand's has 2 q, 2 q + 1, 2 q +
 * 8 and 2 q + 9, in the order in which the activations lie. So a thread reads the words of two of
 * the brick's lanes, q / 2 and q / 2 + 2, and of each the half of them that is its own.
 *
 * What 64 columns of 64 rows cost a warpgroup: TOKENS * 2 clocks of the tensor cores, and 130 (Q8_0
 * with PAIRED) to 220 instructions a warp whatever the tokens, of which half are shifts, logic and
 * conversions at half rate. So wider tiles of tokens are better as long as there are blocks enough,
 * and up to 128 tokens making operands is what binds.
 *
 * With E4M3 nothing is made of the codes of F8, which are what an operand of e4m3 holds, in its
 * order but for the two middle columns of each four: so activations, which become e4m3 with a scale
 * for 128 columns of a token, or for the token, in the launch before, lie in that order. A step is
 * 128 columns, and products have twice the rate. Their sums keep fewer bits than a float and lack
 * all scales, so after each step they are added to the real ones (1, 2), or before the next they
 * become multiples of its scales (3).
 *
 * Invariant: that of mma.cu. Nothing is written for tokens at or beyond counts->m.
 */
#include "cuda/lib/shape.cuh"

/* ---- knobs -------------------------------------------------------------------------------- */

/* cuda/brick_wide.def has them; whoever compiles this gives each a value. */
#define TILES 1
#define FIT 1
#define POLICY_FP8 1 /* policy is the host's decision */

/* ---- legality ----------------------------------------------------------------------------- */

#define KNOB(name, role, value, values, help) static_assert((name) == (name), "has a value");
#define LEGAL(expression, why) static_assert(expression, why);
#include "cuda/brick_wide.def"

/* ---- code --------------------------------------------------------------------------------- */

#include "cuda/lib/wide_parts.cuh"

#define PACKED_BYTES 0
#define PACKED_LAYOUT ""

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

enum {
    BYTES = brick_bytes(WTYPE),
    ACROSS = K / BRICK_COLS,
    /* Bricks of a row under way beside the one whose activations are asked for. Those of the STAGES
     * steps before may all be in use still. */
    LEAD = RING - 1 - (STAGES + BRICK_STEPS - 1) / BRICK_STEPS
};

/* ---- producer ------------------------------------------------------------------------------ */

/* The next bricks to be asked for: of which unit, and where in its rows. */
struct asked {
    int unit, brick;
    struct pipe_state ring;
};

__device__ __forceinline__ void ask_bricks(const struct region_args &a, struct memory &s,
                                           const struct units &u, int rank, struct asked &n)
{
    if (n.unit >= u.all)
        return;
    struct place at = place_of(u, n.unit, rank);
    const char *w =
        (const char *)a.w + ((size_t)at.tile * (FEATURES / BRICK_ROWS) * ACROSS + n.brick) * BYTES;
    barrier_wait(&s.taken[n.ring.stage], n.ring.parity ^ 1);
    barrier_expect(&s.here[n.ring.stage], FEATURES / BRICK_ROWS * BYTES);
#pragma unroll
    for (int i = 0; i < FEATURES / BRICK_ROWS; i++)
        copy_bulk<LOAD == 2>(s.bricks[n.ring.stage] + i * BYTES, w + (size_t)i * ACROSS * BYTES,
                             BYTES, &s.here[n.ring.stage]);
    advance<RING>(n.ring);
    if (++n.brick == first_step(at.part + 1) / BRICK_STEPS) {
        n.unit += u.step;
        n.brick = first_step(at.part) / BRICK_STEPS;
    }
}

__device__ __forceinline__ void ask_first(const struct region_args &a, struct memory &s,
                                          const struct units &u, int rank, struct asked &n)
{
    n.unit = u.first;
    n.brick = first_step(place_of(u, u.first, rank).part) / BRICK_STEPS;
    for (int i = 0; i <= LEAD; i++)
        ask_bricks(a, s, u, rank, n);
}

__device__ __forceinline__ void produce(const struct region_args &a, struct memory &s,
                                        const struct units &u, int rank, struct asked &n)
{
    struct pipe_state t = {0, 0};
    bool first = true;
    int parity = 0;
    for (int unit = u.first; unit < u.all; unit += u.step, parity ^= 1) {
        struct place at = place_of(u, unit, rank);
        for (int k = first_step(at.part); k < first_step(at.part + 1); k++) {
            bool scales = BY_TOKEN && k == first_step(at.part);
            if (k % BRICK_STEPS == 0 && !first)
                ask_bricks(a, s, u, rank, n);
            first = false;
            barrier_wait(&s.empty[t.stage], t.parity ^ 1);
            barrier_expect(&s.full[t.stage], TOKENS_BYTES + (scales ? TOKENS * 4 : 0));
#if BY_TOKEN
            if (scales)
                ask_scales(a, s, at, parity, t.stage);
#endif
            ask_tokens(a, s, at, rank, t.stage, k);
            advance(t);
        }
    }
}

typedef unsigned operands[4][4]; /* of the four products of a step */

/* Keeps the registers of operands where they are: products that run read them. */
__device__ __forceinline__ void hold(operands &w)
{
#pragma unroll
    for (int i = 0; i < 16; i++)
        asm volatile("" : "+r"(w[i / 4][i % 4])::"memory");
}

/* Where a warpgroup is in the rings. */
struct reading {
    struct pipe_state tokens, bricks;
};

/* ---- operands ------------------------------------------------------------------------------ */

#if !E4M3
__device__ __forceinline__ uint4 shifted(const uint4 *from, int bits)
{
    uint4 v = *from;
    return make_uint4(v.x >> bits, v.y >> bits, v.z >> bits, v.w >> bits);
}

/* The codes of columns 64 `step` and on of a brick, as its lane `lane` has them. */
__device__ __forceinline__ void take_codes(const char *data, int step, int lane, int bits,
                                           struct brick<WTYPE> *b)
{
    enum { EACH = brick_eight_bits(WTYPE) ? 2 : 1 };
    const uint4 *low = (const uint4 *)data + lane;
    const uint4 *high = (const uint4 *)(data + brick_low(WTYPE)) + lane;
#pragma unroll
    for (int i = step * EACH; i < (step + 1) * EACH; i++)
        b->low[i] = shifted(low + i * 32, bits);
    if (WTYPE == DTYPE_Q6_K && step % 2 == 0)
        b->high[step / 2 % (brick_shape<WTYPE>::HIGHS + !brick_shape<WTYPE>::HIGHS)] =
            shifted(high + step / 2 * 32, bits);
    else if (WTYPE != DTYPE_Q6_K && brick_high(WTYPE) && step == 0)
        b->high[0] = shifted(high, bits);
}

/* What scales and offsets of rows g and g + 8 are made of. */
__device__ __forceinline__ void take_scales(const char *data, struct brick<WTYPE> *b)
{
    const char *scales = data + brick_low(WTYPE) + brick_high(WTYPE);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = threadIdx.x % 32 / 4 + 8 * h;
#pragma unroll
        for (int i = 0; i < brick_shape<WTYPE>::OWN; i++)
            b->own[h][i] = ((const uint4 *)(scales + 256 * i))[row];
        if (WTYPE == DTYPE_Q6_K)
            b->d[h].x = ((const unsigned short *)(scales + 256))[row];
        if (WTYPE == DTYPE_F8)
            b->d[h] = ((const uint2 *)scales)[row];
    }
}

/* The scales of a strip in pairs of equal bf16, each the sum of two. */
struct paired {
    unsigned scale[brick_shape<WTYPE>::HALVES][2], rest[brick_shape<WTYPE>::HALVES][2];
};

__device__ __forceinline__ struct paired paired_scales(const struct brick_scale<WTYPE> &by)
{
    struct paired to;
#pragma unroll
    for (int i = 0; i < 2 * brick_shape<WTYPE>::HALVES; i++) {
        float scale = by.scale[i / 2][i % 2];
        unsigned sum = pack_bf16(scale, scale);
        float rest = scale - high_bf16(sum);
        to.scale[i / 2][i % 2] = sum;
        to.rest[i / 2][i % 2] = pack_bf16(rest, rest);
    }
    return to;
}

/* Two weights of row half h, half s of strip t, from their numbers v. Either way they are rounded
 * once, as eager rounds them. A minimum would be one rounding more in bf16, or one for all weights
 * of a strip: the largest error of some rows was 2 to 3 times eager's then. */
__device__ __forceinline__ unsigned weights_of(unsigned v, const struct brick_scale<WTYPE> &by,
                                               const struct paired &pair, int h, int s)
{
    const unsigned one = 0x3f803f80u, zero = 0x80008000u, /* the zero that adds nothing */
        more = (0xc300u + brick_shape<WTYPE>::MORE - 128) * 0x10001u; /* 0x4300 is 128 */
    int p = s % brick_shape<WTYPE>::HALVES;
    if (!PAIRED)
        return pack_bf16(fmaf(by.scale[p][h], low_bf16(v), -by.offset[p][h]),
                         fmaf(by.scale[p][h], high_bf16(v), -by.offset[p][h]));
    if (brick_shape<WTYPE>::MORE)
        v = fma_bf16(v, one, more);
    return fma_bf16(v, pair.scale[p][h], fma_bf16(v, pair.rest[p][h], zero));
}

/* b[0] has the codes of the first eight of 16 columns and the scales, b[1] those of the others. */
__device__ __forceinline__ void make_operands(const struct brick<WTYPE> *b, int step, operands &w)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int t = step * 2 + i;
        struct brick_scale<WTYPE> by = brick_scales_of<WTYPE>(b[0], t);
        struct paired pair = paired_scales(by);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            unsigned v = brick_pair<WTYPE>(b[j % 4 / 2], t, j % 2, 2 * (j / 4));
            w[2 * i + j / 4][j % 4] = weights_of(v, by, pair, j % 2, j / 4);
        }
    }
}

/* ---- consumers ----------------------------------------------------------------------------- */

/* c += W x over a brick of each warp; its last step's products are left under way, with operands
 * w[1] and the activations of stage `before` (-1: the sums begin here). */
__device__ __forceinline__ void multiply_brick(struct memory &s, const struct place &at, int group,
                                               struct reading &t, int &before, operands (&w)[2],
                                               sums &c)
{
    int lane = threadIdx.x % 32, bits = lane % 2 * 8, from = lane / 4 * 4 + lane % 4 / 2;
    const char *data = s.bricks[t.bricks.stage] + (group * 4 + threadIdx.x / 32 % 4) * BYTES;
    struct brick<WTYPE> b[2];
    barrier_wait(&s.here[t.bricks.stage], t.bricks.parity);
    take_scales(data, b);
#pragma unroll
    for (int k = 0; k < BRICK_STEPS; k++) {
        take_codes(data, k, from, bits, b);
        take_codes(data, k, from + 2, bits, b + 1);
        make_operands(b, k, w[k % 2]);
        hold(w[k % 2]);
        if (k == BRICK_STEPS - 1) {
            __syncwarp();
            if (lane == 0)
                barrier_arrive(&s.taken[t.bricks.stage]);
        }
        barrier_wait(&s.full[t.tokens.stage], t.tokens.parity);
        unsigned long long x = by_row(shared_at(tokens_at(s, t.tokens.stage)));
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < 4; i++)
            wgmma_rows(c[0], w[k % 2][i], x + i * 2, before >= 0 || i > 0);
        wgmma_commit();
        wgmma_wait<1>();
        hold(w[(k + 1) % 2]);
        if (before >= 0)
            give_back(s, before, at.part);
        before = t.tokens.stage;
        advance(t.tokens);
    }
    advance<RING>(t.bricks);
}

/* This warpgroup's sums of a unit. */
__device__ __forceinline__ void multiply(const struct region_args &, struct memory &s,
                                         const struct place &at, int group, struct reading &t,
                                         sums &c)
{
    int bricks = (first_step(at.part + 1) - first_step(at.part)) / BRICK_STEPS, before = -1;
    operands w[2] = {};
#pragma unroll 1
    for (int k = 0; k < bricks; k++)
        multiply_brick(s, at, group, t, before, w, c);
    wgmma_wait<0>();
    hold(w[1]);
    settle(c[0]);
    give_back(s, before, at.part);
}
#else
#include "cuda/lib/wide_e4m3.cuh"
#endif

#endif

#include "cuda/lib/wide_run.cuh"
