/* SPDX-License-Identifier: Apache-2.0 */
/* bricks_x.cuh - the activations of a product with bricks (lib/bricks.cuh) as operand B, and sums
 * as such products leave them. gemv.cuh has the rest of what a matrix-vector template shares.
 *
 * A column of B is one token, or with TERMS=2 half of one: tokens are columns 2 t and 2 t + 1 then,
 * whose sum is the activation to 2^-17, and a lane that has the product with the one has that with
 * the other. Up to four tokens cost what one does, so nothing is rounded to bf16 alone there.
 *
 * A column lies in shared memory in the order of lanes: of 32 neighbouring activations, those of
 * lane q (of four) are 8 q .. 8 q + 7, first its four of the first product (columns 4 q + j), then
 * those of the second (16 + 4 q + j).
 */
#ifndef WHET_KERNELS_CUDA_LIB_BRICKS_X_CUH
#define WHET_KERNELS_CUDA_LIB_BRICKS_X_CUH

#include "cuda/lib/bricks.cuh"
#include "cuda/lib/gemv.cuh"
#include "cuda/lib/mma.cuh"

struct input {
    const uint4 *lane; /* this lane's first 16 bytes of column g of operand B */
    int g;
};

/* Gains are a layer's own: asked for before the weights, they are in L2 when x is there. */
__device__ __forceinline__ void ask_gains(const struct region_args &a, float *)
{
#if HAS_NORM
    if (threadIdx.x == 0)
        prefetch_l2(a.norm, K * 4);
#endif
}

__device__ __forceinline__ void load_gain(const struct region_args &, float4 (*)[2],
                                          const struct place &)
{
}

/* Activations i .. i + 3 of token t, where they belong. */
__device__ __forceinline__ void put_x(bf16 *x, int t, int i, float4 v)
{
    int at = (i & ~31) + (i & 15) * 2 + (i >> 4 & 1) * 4;
    uint2 high = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
    *(uint2 *)(x + t * TERMS * LD + at) = high;
    if (TERMS == 2)
        *(uint2 *)(x + (2 * t + 1) * LD + at) =
            make_uint2(pack_bf16(v.x - low_bf16(high.x), v.y - high_bf16(high.x)),
                       pack_bf16(v.z - low_bf16(high.y), v.w - high_bf16(high.y)));
}

/* Row t of the input. (An array of rows, indexed, would be local memory.) */
__device__ __forceinline__ const float *row_of(const struct region_args &a, int t)
{
#if AT_HEAD
    struct chosen one = {{M == 1 || t < a.counts->rows ? a.row[t] : 0}};
    return input_row(a, one, 0);
#else
    return input_row(a, {}, t);
#endif
}

/* x times gain into shared memory, each warp's part of its sums of squares as well. Ends with a
 * barrier. */
__device__ __forceinline__ void take(const struct region_args &a, const struct chosen &,
                                     struct input *in, float *shared, const float4 (*)[2],
                                     const struct place &at, float (*squares)[M])
{
    constexpr int LOADS = (K + THREADS * 4 - 1) / (THREADS * 4), BATCH = LOADS < 8 ? LOADS : 8;
    bf16 *x = (bf16 *)shared;
    in->g = at.lane / 4;
    in->lane = (const uint4 *)(x + in->g * LD) + at.lane % 4;
#pragma unroll 1
    for (int t = 0; t < M; t++) {
        const float *from = row_of(a, t);
        float sum = 0;
#pragma unroll 1
        for (int first = 0; first < LOADS; first += BATCH) {
            float4 v[BATCH];
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                int i = ((first + b) * THREADS + threadIdx.x) * 4;
                v[b] = i < K ? load_x4(from + i) : make_float4(0, 0, 0, 0);
            }
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                int i = ((first + b) * THREADS + threadIdx.x) * 4;
                if (i >= K)
                    continue;
#if HAS_NORM
                float4 g = *(const float4 *)(a.norm + i);
                sum += v[b].x * v[b].x + v[b].y * v[b].y + v[b].z * v[b].z + v[b].w * v[b].w;
                v[b] = make_float4(v[b].x * g.x, v[b].y * g.y, v[b].z * g.z, v[b].w * g.w);
#endif
                put_x(x, t, i, v[b]);
            }
        }
        if (HAS_NORM)
            sum = warp_sum(sum);
        if (HAS_NORM && at.lane == 0)
            squares[threadIdx.x / 32][t] = sum;
    }
    __syncthreads();
}

/* ---- a product ------------------------------------------------------------------------------ */

/* Operand B of both products with the columns of `strip` (of the whole row), tokens of tile n. */
__device__ __forceinline__ uint4 operand_x(const struct input &in, int strip, int n)
{
    if (n * 8 + 8 > COLUMNS && n * 8 + in.g >= COLUMNS)
        return make_uint4(0, 0, 0, 0);
    return in.lane[(n * 8 * LD + strip * 32) / 8];
}

/* Sums of x over the columns that have a scale in common: a product with ones. */
template <int T> __device__ __forceinline__ void sum_x(const uint4 &x, float (*all)[4])
{
    const unsigned one = 0x3f803f80u;
    const uint4 ones = make_uint4(one, one, one, one);
#pragma unroll
    for (int i = 0; i < brick_shape<T>::HALVES * 4; i++)
        all[i / 4][i % 4] = 0;
    mma_bf16(all[0], ones, x.x, x.y);
    mma_bf16(all[brick_shape<T>::HALVES - 1], ones, x.z, x.w);
}

/* sum += w x over a strip of 16 rows */
template <int T>
__device__ __forceinline__ void multiply_strip(const uint4 &w0, const uint4 &w1,
                                               const struct brick_scale<T> &s, const uint4 &x,
                                               const float (*all)[4], float *sum)
{
    typedef brick_shape<T> shape;
    float part[shape::HALVES][4] = {};
    mma_bf16(part[0], w0, x.x, x.y);
    mma_bf16(part[shape::HALVES - 1], w1, x.z, x.w);
#pragma unroll
    for (int p = 0; p < shape::HALVES; p++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (shape::OFFSET)
                sum[i] = fmaf(-s.offset[p][i / 2], all[p][i], sum[i]);
            sum[i] = fmaf(s.scale[p][i / 2], part[p][i], sum[i]);
        }
}

/* ---- meeting -------------------------------------------------------------------------------- */

/* This thread's sum over the KW warps of a row, and over the terms of its token. */
__device__ __forceinline__ float join(const float *sum, float (*part)[TILE * M],
                                      const struct place &at, const struct finisher &f)
{
    int g = at.lane / 4, q = at.lane % 4;
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
        int column = i / 4 % NT * 8 + 2 * q + i % 2, t = column / TERMS;
        int row = at.rw * ROWS + i / (4 * NT) * 16 + g + i / 2 % 2 * 8;
        if ((TERMS == 2 && i % 2) || column >= COLUMNS)
            continue;
        part[at.kw][t * TILE + row] = TERMS == 2 ? sum[i] + sum[i + 1] : sum[i];
    }
    __syncthreads();
    float v = 0;
    if (f.mine)
#pragma unroll
        for (int p = 0; p < KW; p++)
            v += part[p][f.index];
    return v;
}

#endif
