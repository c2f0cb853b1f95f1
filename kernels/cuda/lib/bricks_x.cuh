/* SPDX-License-Identifier: Apache-2.0 */
/* bricks_x.cuh - how activations of a product with bricks come into shared memory, and how sums of
 * a row meet. What they become there, and the product, is a matter of the codes: whole numbers
 * (bricks_digits.cuh) or floats of eight bits (bricks_half.cuh). gemv.cuh has the rest of what a
 * matrix-vector template shares.
 */
#ifndef WHET_KERNELS_CUDA_LIB_BRICKS_X_CUH
#define WHET_KERNELS_CUDA_LIB_BRICKS_X_CUH

#include "cuda/lib/gemv.cuh"
#if WTYPE == 16 /* F8 */
#include "cuda/lib/bricks_half.cuh"
#else
#include "cuda/lib/bricks_digits.cuh"
#endif
static_assert(DTYPE_F8 == 16, "a number in a condition of the preprocessor");

/* Gains into shared memory, behind all else that is there of x. */
__device__ __forceinline__ void ask_gains(const struct region_args &a, float *shared)
{
#if HAS_NORM
    for (int i = threadIdx.x * 4; i < K; i += THREADS * 4)
        copy_shared(shared + SMEM_X / 4 - K + i, a.norm + i);
    copies_sent();
#endif
}

__device__ __forceinline__ void load_gain(const struct region_args &, float4 (*)[2],
                                          const struct place &)
{
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
    X_EIGHTS = M * KX / 8, /* of all tokens, eight activations each */
    X_LOADS = (X_EIGHTS + THREADS - 1) / THREADS,
    X_BATCH = X_LOADS < 4 ? X_LOADS : 4
};

/* x into shared memory, and 1/rms of each token into squares[0], with a norm X_UP times and by
 * X_UP; for whoever comes behind another barrier. Ends with a barrier. */
__device__ __forceinline__ void take(const struct region_args &a, const struct chosen &,
                                     struct input *in, float *shared, const float4 (*)[2],
                                     const struct place &at, float (*squares)[M])
{
    char *x = (char *)shared;
    int first_x = chunks_before() * 256;
    float *says = (float *)(x + M * KX * 2 + 256);
    *in = input_of(x, says, at.lane);
#if HAS_NORM
    await_copies(); /* the gains: what each thread asked for, then everybody */
    __syncthreads();
#endif
#pragma unroll 1
    for (int first = 0; first < X_LOADS; first += X_BATCH) {
        float4 v[X_BATCH][2];
#pragma unroll
        for (int b = 0; b < X_BATCH; b++) {
            int i = (first + b) * THREADS + threadIdx.x, t = i / (KX / 8), at_x = i % (KX / 8) * 8;
            bool some = CHUNKS * SPLIT == ACROSS || first_x + at_x < K;
            if (i >= X_EIGHTS)
                continue;
            const float *from = row_of(a, t) + first_x + at_x;
            v[b][0] = some ? load_x4(from) : make_float4(0, 0, 0, 0);
            v[b][1] = some ? load_x4(from + 4) : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int b = 0; b < X_BATCH; b++) {
            int i = (first + b) * THREADS + threadIdx.x, t = i / (KX / 8), at_x = i % (KX / 8) * 8;
            if (i >= X_EIGHTS)
                continue; /* whole warps together: K is a multiple of what one has */
            float f[8] = {v[b][0].x, v[b][0].y, v[b][0].z, v[b][0].w,
                          v[b][1].x, v[b][1].y, v[b][1].z, v[b][1].w};
            float sum = 0;
#if HAS_NORM
            const float4 *gain = (const float4 *)(shared + SMEM_X / 4 - K + at_x);
            float4 g0 = gain[0], g1 = gain[1];
            float by[8] = {g0.x, g0.y, g0.z, g0.w, g1.x, g1.y, g1.z, g1.w};
#pragma unroll
            for (int j = 0; j < 8; j++) {
                sum += f[j] * f[j];
                f[j] *= by[j] * X_UP;
            }
#endif
            put_x(x, says, t, at_x, f, sum);
        }
    }
    __syncthreads();
#if HAS_NORM
    for (int t = threadIdx.x / 32; t < M; t += KW * RW) {
        const float *from = says + UNITS * M * SAYS + t * UNITS;
        float sum = 0;
        for (int i = at.lane; i < UNITS; i += 32)
            sum += from[i];
        sum = warp_sum(sum);
        if (at.lane == 0)
            squares[0][t] = rsqrtf(sum / K + a.eps) * (1 / X_UP);
    }
#endif
}

/* ---- meeting -------------------------------------------------------------------------------- */

/* This thread's sum over the lanes and the KW warps of a row. */
__device__ __forceinline__ float join(const float *sum, float (*part)[TILE * M],
                                      const struct place &at, const struct finisher &f)
{
    put_sums(sum, part[at.kw], at);
    __syncthreads();
    float v = 0;
    if (f.mine)
#pragma unroll
        for (int p = 0; p < KW; p++)
            v += part[p][f.index];
    return v;
}

#endif
