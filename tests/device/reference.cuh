/* SPDX-License-Identifier: Apache-2.0 */
// reference.cuh - the regions of a decode step as plainly as they can be written, one warp a sum,
// float32 throughout: what the templates are compared with.
#pragma once
#include "kernels/bricks.h"
#include "kernels/cuda.h"
#include "kernels/cuda/lib/bricks.cuh"
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace ref
{
typedef __nv_bfloat16 bf;

__device__ inline float warp_sum(float v)
{
    for (int o = 16; o; o >>= 1)
        v += __shfl_xor_sync(~0u, v, o);
    return v;
}

// y[t][n] = (norm ? rmsnorm(x[t]) * norm : x[t]) . w[n], one warp a (n, t)
__global__ void matvec(const void *w, int type, const float *x, const float *norm, float eps, int N,
                       int K, float *y)
{
    size_t n = (blockIdx.x * (size_t)blockDim.x + threadIdx.x) / 32;
    int lane = threadIdx.x % 32, t = blockIdx.y;
    if (n >= (size_t)N)
        return;
    x += (size_t)t * K;
    float sum = 0, square = 0;
    for (int i = lane; i < K; i += 32) {
        float v = type == DTYPE_BF16 ? __bfloat162float(((const bf *)w)[n * K + i])
                                     : brick_value(type, w, K, (int64_t)n, i);
        sum += v * x[i] * (norm ? norm[i] : 1);
        square += x[i] * x[i];
    }
    sum = warp_sum(sum);
    square = warp_sum(square);
    if (lane == 0)
        y[(size_t)t * N + n] = norm ? sum * rsqrtf(square / K + eps) : sum;
}

// q, k and v of raw [t][(heads + 2 kv_heads) hd]; a block a (head, t), hd threads
__global__ void rope(cuda_attn_in_args a, const float *raw)
{
    __shared__ float s[256];
    int head = blockIdx.x, t = blockIdx.y, d = threadIdx.x, hd = a.head_dim;
    float v = raw[((size_t)t * (a.heads + 2 * a.kv_heads) + head) * hd + d], square = 0;
    const float *gain = head < a.heads                ? a.q_norm
                        : head < a.heads + a.kv_heads ? a.k_norm
                                                      : nullptr;
    s[d] = v;
    __syncthreads();
    for (int i = 0; i < hd; i++)
        square += s[i] * s[i];
    __syncthreads();
    if (gain)
        s[d] = v * rsqrtf(square / hd + a.eps) * gain[d];
    __syncthreads();
    v = s[d];
    if (head < a.heads + a.kv_heads) {
        float c = a.rope_cos[(size_t)a.position[t] * (hd / 2) + d / 2];
        float z = a.rope_sin[(size_t)a.position[t] * (hd / 2) + d / 2];
        v = d % 2 ? s[d] * c + s[d - 1] * z : s[d] * c - s[d + 1] * z;
    }
    if (head < a.heads) {
        a.q[((size_t)t * a.heads + head) * hd + d] = v;
        return;
    }
    int kvh = (head - a.heads) % a.kv_heads, at = a.kv_at[t];
    bf *pages = (bf *)(head < a.heads + a.kv_heads ? a.k_pages : a.v_pages);
    pages[(((size_t)(at / KV_PAGE) * a.kv_heads + kvh) * KV_PAGE + at % KV_PAGE) * hd + d] =
        __float2bfloat16(v);
}

// a block a (query head, t), 32 threads
__global__ void attention(cuda_attn_args a)
{
    int h = blockIdx.x, t = blockIdx.y, lane = threadIdx.x, hd = a.head_dim,
        kvh = h / (a.heads / a.kv_heads);
    const float *q = a.q + ((size_t)t * a.heads + h) * hd;
    float top = -INFINITY, sum = 0, o[4] = {};
    for (int p = 0; p <= a.position[t]; p++) {
        size_t at =
            (((size_t)a.page_table[a.pages_at[t] + p / KV_PAGE] * a.kv_heads + kvh) * KV_PAGE +
             p % KV_PAGE) *
            hd;
        const bf *k = (const bf *)a.k_pages + at, *v = (const bf *)a.v_pages + at;
        float s = 0;
        for (int i = lane; i < hd; i += 32)
            s += q[i] * __bfloat162float(k[i]);
        s = warp_sum(s) * a.scale;
        float most = fmaxf(top, s), keep = expf(top - most), e = expf(s - most);
        top = most;
        sum = sum * keep + e;
        for (int i = lane, j = 0; i < hd; i += 32, j++)
            o[j] = o[j] * keep + e * __bfloat162float(v[i]);
    }
    for (int i = lane, j = 0; i < hd; i += 32, j++)
        a.a[((size_t)t * a.heads + h) * hd + i] = o[j] / sum;
}

__global__ void silu(const float *raw, float *h, int ffn)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, t = blockIdx.y;
    if (i < ffn) {
        float g = raw[((size_t)t * ffn + i) * 2], u = raw[((size_t)t * ffn + i) * 2 + 1];
        h[(size_t)t * ffn + i] = g / (1 + expf(-g)) * u;
    }
}

__global__ void add(const float *x, const float *y, float *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = x[i] + y[i];
}

// acc[0] += (a-b)^2, acc[1] += b^2; a number that is not finite gives an infinite error
__global__ void difference(const float *a, const float *b, size_t n, double *acc)
{
    double e = 0, s = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        double d = (double)a[i] - b[i];
        e += isfinite(a[i]) ? d * d : INFINITY;
        s += (double)b[i] * b[i];
    }
    atomicAdd(acc, e);
    atomicAdd(acc + 1, s);
}

__global__ void widen(const bf *a, float *b, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        b[i] = __bfloat162float(a[i]);
}

__device__ inline unsigned long long mix(size_t i, unsigned seed)
{
    unsigned long long z = (i + 1) * 0x9e3779b97f4a7c15ull + seed * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

__device__ inline float noise(size_t i, unsigned seed)
{
    return (float)((double)(mix(i, seed) >> 11) / 4503599627370496.0 - 1.0); // -1 .. 1
}
__global__ void random_bf(bf *p, size_t n, float scale, unsigned seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        p[i] = __float2bfloat16(noise(i, seed) * scale);
}
// Words of bricks: any codes, scales so that weights are within about `scale` of zero.
__global__ void random_bricks(unsigned *p, size_t words, int type, float scale, unsigned seed)
{
    size_t each = brick_bytes(type) / 4, codes = each - brick_scales(type) / 4;
    bool k = brick_six_bits(type), six = type == DTYPE_Q6_K;
    float most = type == DTYPE_Q8_0 ? 128
                 : six              ? 32 * 128
                 : k                ? (brick_high(type) ? 16 : 8) * 63
                 : brick_high(type) ? 16
                                    : 8,
          middle = (brick_high(type) ? 15.5f : 7.5f) * (k ? 1 : -1);
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words;
         i += (size_t)gridDim.x * blockDim.x) {
        size_t at = i % each;
        unsigned long long bits = mix(i, seed);
        float d = scale / most * (1.5f + noise(i, seed + 77));
        bool plain = at < codes || (k && (at - codes) % 4) || (six && at - codes < 64);
        bool least = !six && at - codes >= 64;
        if (type == DTYPE_F8) { // codes up to 1.875, or a scale
            p[i] = at < codes ? (unsigned)(bits >> 24) & 0xbfbfbfbfu
                              : __float_as_uint(scale / 1.9f * (1 + noise(i, seed + 77) / 2));
            continue;
        }
        unsigned low = __half_as_ushort(__float2half(least ? middle * d : d)),
                 high = __half_as_ushort(__float2half(k || least ? middle * d : d));
        p[i] = plain ? (unsigned)(bits >> 24) : low | high << 16;
    }
}
__global__ void random_float(float *p, size_t n, float mean, float scale, unsigned seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        p[i] = mean + noise(i, seed) * scale;
}
} // namespace ref
