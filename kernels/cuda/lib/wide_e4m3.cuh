/* SPDX-License-Identifier: Apache-2.0 */
/* wide_e4m3.cuh - brick_wide.cu's sums where both operands are e4m3 as they are.
 *
 * A warpgroup's products of a step of 128 columns are under way while it loads the codes of the
 * next one; then it waits for them and adds them to its sums, scaled, which is when the other
 * warpgroup has the tensor cores to itself. For 128 tokens a warp issues some 260 instructions a
 * step, 128 of them for scales; its products take 256 clocks.
 *
 * Tensor cores keep some 14 bits of the sums of products of e4m3 (DeepSeek-V3, section 3.3.2,
 * https://arxiv.org/abs/2412.19437, who add them to floats every 128 columns as well).
 */
#ifndef WHET_KERNELS_CUDA_LIB_WIDE_E4M3_CUH
#define WHET_KERNELS_CUDA_LIB_WIDE_E4M3_CUH

/* The scales of columns 128 `step` and on for rows g and g + 8 of a warp's brick. */
__device__ __forceinline__ void take_scale(const char *data, int step, float (&by)[2])
{
    const float *scales = (const float *)(data + brick_low(WTYPE)) + step;
#pragma unroll
    for (int h = 0; h < 2; h++)
        by[h] = scales[(threadIdx.x % 32 / 4 + 8 * h) * 2];
}

/* Adds products of the activations of stage `stage`; `by`: the weights' scales for rows g and
 * g + 8. */
__device__ __forceinline__ void add_scaled(const struct memory &s, int stage,
                                           const float (&p)[EIGHTS * 4], const float (&by)[2],
                                           sums &c)
{
#pragma unroll
    for (int i = 0; i < EIGHTS; i++) {
        float *sum = &c[0][i * 4];
#if BY_COLUMNS
        float2 two = ((const float2 *)s.token_scale[stage])[i * 4 + threadIdx.x % 4];
#else
        float2 two = make_float2(1, 1);
#endif
#pragma unroll
        for (int j = 0; j < 4; j++)
            sum[j] = fmaf(p[i * 4 + j] * (j % 2 ? two.y : two.x), by[j / 2], sum[j]);
    }
}

#if BY_TOKEN
/* The sums of a tile, times its tokens' scales. */
__device__ __forceinline__ void scale_tokens(const struct memory &s, int parity, sums &c)
{
    const float2 *token = (const float2 *)s.token_scale[parity] + threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < EIGHTS; i++) {
        float2 two = token[i * 4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            c[0][i * 4 + j] *= j % 2 ? two.y : two.x;
    }
}
#endif

#if IN_HALVES
#include "cuda/lib/wide_halves.cuh"
#else

/* Codes are loaded while products are under way where there are registers left to hold them. */
enum { AHEAD = TOKENS <= 128 };

/* Products of a step: like sums. */
typedef float products[EIGHTS * 4];

/* The products under way, of the activations of stage `stage` (-1: there are none), to be scaled by
 * `by` for rows g and g + 8. */
struct pending {
    int stage;
    float by[2];
};

/* A lane's codes of columns 128 `step` and on. */
__device__ __forceinline__ void take_codes(const char *data, int step, uint4 (&v)[4])
{
    const uint4 *from = (const uint4 *)data + step * 128 + threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = load_staged(from + i * 32);
}

/* As operands, once no products are under way: what was loaded meanwhile must not lie in registers
 * of theirs. The words of a lane are (row g, columns 0 to 15), (g, 16 to 31), (g + 8, 0 to 15),
 * (g + 8, 16 to 31), and an operand has the two in the middle the other way round. */
__device__ __forceinline__ void put_operands(const uint4 (&v)[4], operands &w)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        w[i][0] = v[i].x, w[i][1] = v[i].z, w[i][2] = v[i].y, w[i][3] = v[i].w;
}

/* Ends the products under way and adds them. */
__device__ __forceinline__ void add_pending(struct memory &s, int part, const struct pending &u,
                                            products &p, sums &c)
{
    wgmma_wait<0>();
    settle(p);
    if (u.stage < 0)
        return;
    add_scaled(s, u.stage, p, u.by, c);
    __syncwarp(); /* all lanes have their scales */
    give_back(s, u.stage, part);
}

/* Starts the products of step `k` of a brick, when those under way have been added. */
__device__ __forceinline__ void multiply_step(struct memory &s, const struct place &at,
                                              const char *data, int k, struct reading &t,
                                              struct pending &u, operands &w, products &p, sums &c)
{
    float by[2];
    uint4 v[4];
    if (AHEAD)
        take_codes(data, k, v);
    take_scale(data, k, by);
    barrier_wait(&s.full[t.tokens.stage], t.tokens.parity);
    add_pending(s, at.part, u, p, c);
    if (!AHEAD)
        take_codes(data, k, v);
    hold(w);
    put_operands(v, w);
    unsigned long long x = by_row(shared_at(tokens_at(s, t.tokens.stage)));
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma_e4m3(p, w[i], x + i * 2, i > 0);
    wgmma_commit();
    u = {t.tokens.stage, {by[0], by[1]}};
}

/* c += W x over a brick of each warp; the last products are left under way. */
__device__ __forceinline__ void multiply_brick(struct memory &s, const struct place &at, int group,
                                               struct reading &t, struct pending &u, operands &w,
                                               products &p, sums &c)
{
    const char *data = s.bricks[t.bricks.stage] + (group * 4 + threadIdx.x / 32 % 4) * BYTES;
    barrier_wait(&s.here[t.bricks.stage], t.bricks.parity);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        multiply_step(s, at, data, k, t, u, w, p, c);
        advance(t.tokens);
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        barrier_arrive(&s.taken[t.bricks.stage]);
    advance<RING>(t.bricks);
}

/* This warpgroup's sums of a unit. */
__device__ __forceinline__ void multiply(const struct region_args &, struct memory &s,
                                         const struct place &at, int group, struct reading &t,
                                         sums &c)
{
    int bricks = (first_step(at.part + 1) - first_step(at.part)) / BRICK_STEPS;
    struct pending u = {-1, {0, 0}};
    operands w = {};
    products p;
#pragma unroll
    for (int i = 0; i < EIGHTS * 4; i++)
        p[i] = c[0][i] = 0;
#pragma unroll 1
    for (int k = 0; k < bricks; k++)
        multiply_brick(s, at, group, t, u, w, p, c);
    add_pending(s, at.part, u, p, c);
    hold(w);
}

#endif

#endif
