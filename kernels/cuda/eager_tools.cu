/* SPDX-License-Identifier: Apache-2.0 */
/* eager_tools.cu - kernels that measure and compare for the backend; no token depends on them.
 *
 *   read     reads memory: the bandwidth and the launch that rooflines are drawn at (device.c)
 *   compare  rows of a candidate with eager's: how many differ and how far (hook.c, probe_case.c)
 *   gather   KV pages of a live step, one behind the other, for a capture (hook.c)
 *   widen    bf16 rows as float, for a probe, which looks at floats (wide.c)
 *
 * Invariant: compare's worst errors are those of all rows without one that is not finite, in any
 * order of the rows: maxima of non-negative floats, taken as integers.
 */
#include "cuda/lib/device.cuh"
#include "eager.h"

KERNEL eager_read(const __grid_constant__ struct eager_read_args a)
{
    const uint4 *p = (const uint4 *)a.data;
    unsigned seen = 0;
    long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < a.n16;
         i += 4 * stride) {
        uint4 v[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            v[j] = i + j * stride < a.n16 ? __ldcs(p + i + j * stride) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int j = 0; j < 4; j++)
            seen ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    if (seen == 0x9e3779b9u)
        *a.out = seen;
}

/* Element i of row t of one side. */
__device__ __forceinline__ float side(const float *rows, const void *pages, const int32_t *at,
                                      const struct eager_compare_args &a, int t, int i)
{
    if (!pages)
        return rows[(size_t)t * a.cols + i];
    int where = at ? at[t] : t, h = i / a.head_dim;
    size_t slot = ((size_t)(where / KV_PAGE) * a.kv_heads + h) * KV_PAGE + where % KV_PAGE;
    return from_bf16(((const bf16 *)pages)[slot * a.head_dim + i % a.head_dim]);
}

/* The same of b, turned to where a's row is. Row 0 of the tables has a sine of 0, so its cosine is
 * how long all rows are: a's and b's rows are both of that length already. */
__device__ __forceinline__ float turned(const struct eager_compare_args &a, int t, int i)
{
    float v = side(a.b, a.b_pages, a.b_at, a, t, i);
    if (!a.rope_cos)
        return v;
    float other = side(a.b, a.b_pages, a.b_at, a, t, i ^ 1);
    int pair = i % a.head_dim / 2;
    size_t by = (size_t)(a.a_position[t] - a.b_position[t]) * (a.head_dim / 2) + pair;
    float on = v * a.rope_cos[by] + (i % 2 ? other : -other) * a.rope_sin[by];
    return on / a.rope_cos[pair];
}

KERNEL eager_compare(const __grid_constant__ struct eager_compare_args a)
{
    __shared__ float shared[33];
    int t = blockIdx.x;
    after_previous();
    if (t >= *a.count)
        return;
    float square = 0, error = 0, top = 0, worst = 0;
    bool bad_a = false, bad_b = false, different = false;
    for (int i = threadIdx.x; i < a.cols; i += blockDim.x) {
        float x = side(a.a, a.a_pages, a.a_at, a, t, i), y = turned(a, t, i);
        bad_a |= !isfinite(x);
        bad_b |= !isfinite(y);
        different |= __float_as_uint(x) != __float_as_uint(y);
        square += y * y;
        error += (x - y) * (x - y);
        top = fmaxf(top, fabsf(y));
        worst = fmaxf(worst, fabsf(x - y));
    }
    square = block_sum(square, shared);
    error = block_sum(error, shared);
    for (int o = 16; o > 0; o >>= 1) {
        top = fmaxf(top, __shfl_xor_sync(WARP_ALL, top, o));
        worst = fmaxf(worst, __shfl_xor_sync(WARP_ALL, worst, o));
    }
    __shared__ float tops[32], worsts[32];
    if (threadIdx.x % 32 == 0) {
        tops[threadIdx.x / 32] = top;
        worsts[threadIdx.x / 32] = worst;
    }
    bad_a = __syncthreads_or(bad_a);
    bad_b = __syncthreads_or(bad_b);
    different = __syncthreads_or(different);
    if (threadIdx.x > 0)
        return;
    for (int i = 0; i < (int)blockDim.x / 32; i++) {
        top = fmaxf(top, tops[i]);
        worst = fmaxf(worst, worsts[i]);
    }
    if (bad_a != bad_b)
        atomicAdd(&a.out[0], bad_a ? 1u : 0x10000u);
    if (different)
        atomicAdd(&a.out[1], 1u);
    float max_error = top > 0 ? worst / top : worst > 0 ? INFINITY : 0;
    float rms_error = square > 0 ? sqrtf(error / square) : error > 0 ? INFINITY : 0;
    if (!bad_a && !bad_b) { /* non-negative floats are in the order of their bits */
        atomicMax(&a.out[2], __float_as_uint(max_error));
        atomicMax(&a.out[3], __float_as_uint(rms_error));
    }
}

KERNEL eager_gather(const __grid_constant__ struct eager_gather_args a)
{
    const uint4 *from = (const uint4 *)(blockIdx.y ? a.v : a.k);
    uint4 *to = (uint4 *)(blockIdx.y ? a.to_v : a.to_k);
    after_previous();
    from += (size_t)a.number[blockIdx.x] * a.page16;
    to += (size_t)blockIdx.x * a.page16;
    for (int i = threadIdx.x; i < a.page16; i += blockDim.x)
        to[i] = from[i];
}

KERNEL eager_widen(const __grid_constant__ struct eager_widen_args a)
{
    int t = blockIdx.y, i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    release_next();
    after_previous();
    if (t >= *a.count || i >= a.n)
        return;
    uint2 v = *(const uint2 *)((const bf16 *)a.x16 + (size_t)t * a.n + i);
    *(float4 *)(a.y + (size_t)t * a.n + i) =
        make_float4(low_bf16(v.x), high_bf16(v.x), low_bf16(v.y), high_bf16(v.y));
}
