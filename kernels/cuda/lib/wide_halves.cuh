/* SPDX-License-Identifier: Apache-2.0 */
/* wide_halves.cuh - wide_e4m3.cuh's products with the tokens of a tile in two halves, and sums that
 * stay in tensor cores.
 *
 * A half's sums are in units of the weights' scales of the step at hand: before each step they are
 * multiplied by the last scale over the next one, while the other half is multiplied. So tensor
 * cores have work whatever the other warpgroup does at the time; with all tokens at once both may
 * add at the same time. A warp issues some 180 instructions a step of 160 tokens, 80 of them for
 * scales, and 230 one of 256; its products take 320 and 512 clocks.
 *
 * What tensor cores keep of a sum, some 14 bits, is all there is of it. In a row of 9728 columns,
 * which is 304 additions, that makes sums 0.3 % wrong, where activations in e4m3 alone make them
 * 2.7 % wrong (normal numbers, and an addition that cuts off what is below 2^-13 of its largest
 * term).
 */
#ifndef WHET_KERNELS_CUDA_LIB_WIDE_HALVES_CUH
#define WHET_KERNELS_CUDA_LIB_WIDE_HALVES_CUH

/* Groups of eight tokens in a half; their bytes of a stage as descriptors count them. */
enum { HALF = EIGHTS / 2, HALF_APART = HALF * 8 * 128 / 16, BRICKS_AT_ONCE = 2 };

/* Sums half by half, in units of the scales `by` of rows g and g + 8. */
struct scaled {
    float c[2][HALF * 4];
    float by[2];
};

/* The operand of strip `strip` of a brick. The words of a lane are (row g, columns 0 to 15), (g, 16
 * to 31), (g + 8, 0 to 15), (g + 8, 16 to 31), and an operand has the two in the middle the other
 * way round. */
__device__ __forceinline__ void take_operand(const char *data, int strip, unsigned (&w)[4])
{
    uint4 v = load_staged((const uint4 *)data + strip * 32 + threadIdx.x % 32);
    w[0] = v.x, w[1] = v.z, w[2] = v.y, w[3] = v.w;
}

/* What sums are to be multiplied by to be in units of `by`. They stay as they are where that is
 * nothing; codes are zero there. */
__device__ __forceinline__ void turn_to(const float (&by)[2], struct scaled &c, float (&times)[2])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        times[h] = is_nothing(by[h]) ? 1 : __fdividef(c.by[h], by[h]);
        c.by[h] = is_nothing(by[h]) ? c.by[h] : by[h];
    }
}

__device__ __forceinline__ void multiply_sums(float (&c)[HALF * 4], const float (&times)[2])
{
#pragma unroll
    for (int i = 0; i < HALF * 4; i++)
        c[i] *= times[i % 4 / 2];
}

/* Starts the products of a half. */
__device__ __forceinline__ void start(float (&c)[HALF * 4], const operands &w, unsigned long long x)
{
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma_e4m3(c, w[i], x + i * 2, true);
    wgmma_commit();
}

/* A warp's codes and scales of the next brick. */
__device__ __forceinline__ const char *await_brick(struct memory &s, int group,
                                                   const struct reading &t)
{
    barrier_wait(&s.here[t.bricks.stage], t.bricks.parity);
    return s.bricks[t.bricks.stage] + (group * 4 + threadIdx.x / 32 % 4) * BYTES;
}

/* They are in registers. */
__device__ __forceinline__ void end_brick(struct memory &s, struct reading &t)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        barrier_arrive(&s.taken[t.bricks.stage]);
    advance<RING>(t.bricks);
}

/* Step `k` of some bricks; codes and scales of its own brick are at `data`. When it begins, both
 * halves of the step before, whose activations are in stage `before`, may be under way; when it
 * returns, both of this one. */
__device__ __forceinline__ void multiply_step(struct memory &s, const struct place &at,
                                              const char *data, int k, int &before,
                                              struct reading &t, operands (&w)[2], struct scaled &c)
{
    float by[2], times[2];
#pragma unroll
    for (int i = 0; i < 4; i++)
        take_operand(data, k % 2 * 4 + i, w[k % 2][i]);
    take_scale(data, k % 2, by);
    turn_to(by, c, times);
    barrier_wait(&s.full[t.tokens.stage], t.tokens.parity);
    unsigned long long x = by_row(shared_at(tokens_at(s, t.tokens.stage)));
    if (k == 0) { /* ptxas would wait for the first half's products before it touches the second */
        settle(c.c[0]);
        settle(c.c[1]);
        multiply_sums(c.c[0], times);
        multiply_sums(c.c[1], times);
        start(c.c[0], w[0], x);
        start(c.c[1], w[0], x + HALF_APART);
    }
#pragma unroll
    for (int half = 0; k > 0 && half < 2; half++) {
        wgmma_wait<1>();
        settle(c.c[half]);
        multiply_sums(c.c[half], times);
        if (half == 1) {
            hold(w[1 - k % 2]);
            give_back(s, before, at.part);
        }
        start(c.c[half], w[k % 2], x + half * HALF_APART);
    }
    before = t.tokens.stage;
    advance(t.tokens);
}

/* c += W x over N bricks. No products are left under way: ptxas would wait for them at every turn
 * of a loop. */
template <int N>
__device__ __forceinline__ void multiply_bricks(struct memory &s, const struct place &at, int group,
                                                struct reading &t, struct scaled &c)
{
    operands w[2];
    const char *data;
    int before = 0;
#pragma unroll
    for (int k = 0; k < N * 2; k++) {
        if (k % 2 == 0)
            data = await_brick(s, group, t);
        multiply_step(s, at, data, k, before, t, w, c);
        if (k % 2 == 1)
            end_brick(s, t);
    }
    wgmma_wait<0>();
    hold(w[1]);
    settle(c.c[0]);
    settle(c.c[1]);
    give_back(s, before, at.part);
}

/* This warpgroup's sums of a unit. */
__device__ __forceinline__ void multiply(const struct region_args &, struct memory &s,
                                         const struct place &at, int group, struct reading &t,
                                         sums &c)
{
    int bricks = (first_step(at.part + 1) - first_step(at.part)) / BRICK_STEPS;
    struct scaled own = {{}, {1, 1}};
#pragma unroll 1
    for (int i = BRICKS_AT_ONCE; i <= bricks; i += BRICKS_AT_ONCE)
        multiply_bricks<BRICKS_AT_ONCE>(s, at, group, t, own);
    if (bricks % 2)
        multiply_bricks<1>(s, at, group, t, own);
#pragma unroll
    for (int i = 0; i < EIGHTS * 4; i++)
        c[0][i] = own.c[i / (HALF * 4)][i % (HALF * 4)] * own.by[i % 4 / 2];
}

#endif
