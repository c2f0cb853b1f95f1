/* SPDX-License-Identifier: Apache-2.0 */
/* bricks_x.cuh - the activations of a product with bricks (lib/bricks.cuh) as operand B, and sums
 * as such products leave them. gemv.cuh has the rest of what a matrix-vector template shares.
 *
 * A column of B is one token, or with TERMS=2 half of one: tokens are columns 2 t and 2 t + 1 then,
 * whose sum is the activation to 2^-17, and a lane that has the product with the one has that with
 * the other. A single token needs one column of eight: then each is another strip of a brick
 * (multiply_diagonal()), so that scales are not multiplied eight times in vain.
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
    const uint4 *lane;    /* this lane's first 16 bytes of column g of operand B, or of strip g */
    const float4 *strips; /* sums of x over halves of strips, of this lane's first two */
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
    if (DIAGONAL) { /* four threads have half a strip */
        float sum = (low_bf16(high.x) + high_bf16(high.x)) + (low_bf16(high.y) + high_bf16(high.y));
        sum += __shfl_xor_sync(WARP_ALL, sum, 1);
        sum += __shfl_xor_sync(WARP_ALL, sum, 2);
        if (threadIdx.x % 4 == 0)
            ((float *)(x + LD))[i / 16] = sum;
    }
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

enum {
    X_LOADS = (K + THREADS * 4 - 1) / (THREADS * 4), /* of a thread and token */
    X_BATCH = X_LOADS < 8 ? X_LOADS : 8
};

__device__ __forceinline__ void load_x(const float *from, int first, float4 *v)
{
#pragma unroll
    for (int b = 0; b < X_BATCH; b++) {
        int i = ((first + b) * THREADS + threadIdx.x) * 4;
        v[b] = i < K ? load_x4(from + i) : make_float4(0, 0, 0, 0);
    }
}

__device__ __forceinline__ float squares_of(const float4 *v)
{
    float sum = 0;
#pragma unroll
    for (int b = 0; b < X_BATCH; b++)
        sum += v[b].x * v[b].x + v[b].y * v[b].y + v[b].z * v[b].z + v[b].w * v[b].w;
    return sum;
}

/* Times r and gain, in eager's order, to where they belong. Whole warps come here together: K is a
 * multiple of what a warp has. */
__device__ __forceinline__ void store_x(const struct region_args &a, bf16 *x, int t, int first,
                                        const float4 *v, float r)
{
#pragma unroll
    for (int b = 0; b < X_BATCH; b++) {
        int i = ((first + b) * THREADS + threadIdx.x) * 4;
        float4 p = v[b];
        if (i >= K)
            continue;
#if HAS_NORM
        float4 g = *(const float4 *)(a.norm + i);
        p = make_float4(p.x * r * g.x, p.y * r * g.y, p.z * r * g.z, p.w * r * g.w);
#endif
        put_x(x, t, i, p);
    }
}

/* 1/rms of token t, when the warps' parts of the sum are in `squares`. */
__device__ __forceinline__ float norm_of(const struct region_args &a, const float (*squares)[M],
                                         int t)
{
#if HAS_NORM
    float total = 0;
#pragma unroll
    for (int w = 0; w < KW * RW; w++)
        total += squares[w][t];
    return rsqrtf(total / K + a.eps);
#else
    return 1.0f;
#endif
}

/* x into shared memory, and each warp's part of its sums of squares. With one term x is rounded
 * behind its norm, as eager does: its sum of squares must be known first, and what does not wait in
 * registers is read again. Ends with a barrier. */
__device__ __forceinline__ void take(const struct region_args &a, const struct chosen &,
                                     struct input *in, float *shared, const float4 (*)[2],
                                     const struct place &at, float (*squares)[M])
{
    constexpr bool NORMED = HAS_NORM && TERMS == 1, HELD = M == 1 && X_LOADS == X_BATCH;
    bf16 *x = (bf16 *)shared;
    float4 v[X_BATCH];
    in->g = at.lane / 4;
    in->lane = (const uint4 *)(x + in->g * (DIAGONAL ? 32 : LD)) + at.lane % 4;
    in->strips = (const float4 *)(x + LD) + at.lane % 4;
#pragma unroll 1
    for (int t = 0; t < M; t++) {
        const float *from = row_of(a, t);
        float sum = 0;
#pragma unroll 1
        for (int first = 0; first < X_LOADS; first += X_BATCH) {
            load_x(from, first, v);
            if (HAS_NORM)
                sum += squares_of(v);
            if (!NORMED)
                store_x(a, x, t, first, v, 1.0f);
        }
        if (HAS_NORM)
            sum = warp_sum(sum);
        if (HAS_NORM && at.lane == 0)
            squares[threadIdx.x / 32][t] = sum;
    }
    __syncthreads();
    if (!NORMED)
        return;
#pragma unroll 1
    for (int t = 0; t < M; t++) {
        const float *from = row_of(a, t);
        float r = norm_of(a, squares, t);
#pragma unroll 1
        for (int first = 0; first < X_LOADS; first += X_BATCH) {
            if (!HELD)
                load_x(from, first, v);
            store_x(a, x, t, first, v, r);
        }
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

/* sum += w x over a strip of 16 rows; w0, w1: its operands A */
template <int T>
__device__ __forceinline__ void multiply_strip(const uint4 &w0, const uint4 &w1,
                                               const struct strip_scale<T> *s, const uint4 &x,
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
                sum[i] = fmaf(-s[i / 2].offset[p], all[p][i], sum[i]);
            sum[i] = fmaf(s[i / 2].scale[p], part[p][i], sum[i]);
        }
}

/* sum += w x over a brick in shared memory, `strip` the first of its strips in the row. */
template <int T>
__device__ __forceinline__ void multiply_brick(const char *brick, const struct input &in, int strip,
                                               const struct place &at, float *sum)
{
    typedef brick_shape<T> shape;
    const char *scales = brick + brick_low(T) + brick_high(T);
#pragma unroll 1
    for (int p = 0; p < BRICK_STRIPS / 2; p++) {
        struct strip_pair<T> w = load_pair<T>(brick, p, at.lane);
#pragma unroll
        for (int t = 0; t < 2; t++) {
            struct strip_scale<T> s[2] = {
                scale_of_strip<T>(scales, in.g, p, t), scale_of_strip<T>(scales, in.g + 8, p, t)
            };
            uint4 w0 = pair_operand<T>(w, t, 0), w1 = pair_operand<T>(w, t, 1);
#pragma unroll
            for (int n = 0; n < NT; n++) {
                uint4 x = operand_x(in, strip + 2 * p + t, n);
                float all[shape::HALVES][4];
                if (shape::OFFSET)
                    sum_x<T>(x, all);
                multiply_strip<T>(w0, w1, s, x, all, sum + n * 4);
            }
        }
    }
}

/* The same of one token: column n of B is strip n of the brick and nothing else, so after all
 * strips column n of the sums is what scale n is for. A strip's operand is the lane's x where the
 * lane is in the strip's column, and zero elsewhere; scales and offsets come once a brick, for the
 * two strips that a lane has. */
template <int T>
__device__ __forceinline__ void multiply_diagonal(const char *brick, const struct input &in,
                                                  int strip, const struct place &at, float *sum)
{
    typedef brick_shape<T> shape;
    const char *scales = brick + brick_low(T) + brick_high(T);
    float part[2][4] = {};
    uint4 x = in.lane[strip * 4];
#pragma unroll 2
    for (int p = 0; p < BRICK_STRIPS / 2; p++) {
        struct strip_pair<T> w = load_pair<T>(brick, p, at.lane);
#pragma unroll
        for (int t = 0; t < 2; t++) {
            bool mine = in.g == 2 * p + t;
            mma_bf16(part[0], pair_operand<T>(w, t, 0), mine ? x.x : 0, mine ? x.y : 0);
            mma_bf16(part[1], pair_operand<T>(w, t, 1), mine ? x.z : 0, mine ? x.w : 0);
        }
    }
    float4 strips = in.strips[strip / 2];
#pragma unroll
    for (int i = 0; i < 4; i++) { /* row half i / 2, strip 2 q + i % 2 */
        int k = i % 2;
        float x0 = k ? strips.z : strips.x, x1 = k ? strips.w : strips.y, *to = sum + i / 2;
        struct strip_scale<T> s = scale_of_strip<T>(scales, in.g + i / 2 * 8, at.lane % 4, k);
        if (shape::HALVES == 1) {
            *to = fmaf(s.scale[0], part[0][i] + part[1][i], *to);
            if (shape::OFFSET)
                *to = fmaf(-s.offset[0], x0 + x1, *to);
        } else {
            *to = fmaf(s.scale[0], part[0][i], fmaf(-s.offset[0], x0, *to));
            *to = fmaf(s.scale[shape::HALVES - 1], part[1][i],
                       fmaf(-s.offset[shape::HALVES - 1], x1, *to));
        }
    }
}

/* ---- meeting -------------------------------------------------------------------------------- */

/* This thread's sum over the KW warps of a row, and over the terms of its token. */
__device__ __forceinline__ float join(const float *sum, float (*part)[TILE * M],
                                      const struct place &at, const struct finisher &f)
{
    int g = at.lane / 4, q = at.lane % 4;
#pragma unroll
    for (int i = 0; DIAGONAL && i < SUMS; i++) { /* lanes of a row have its strips */
        float all = sum[i] + __shfl_xor_sync(WARP_ALL, sum[i], 1);
        all += __shfl_xor_sync(WARP_ALL, all, 2);
        if (q == 0)
            part[at.kw][at.rw * ROWS + i / 2 * 16 + g + i % 2 * 8] = all;
    }
#pragma unroll
    for (int i = 0; !DIAGONAL && i < SUMS; i++) {
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
