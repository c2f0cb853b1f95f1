/* SPDX-License-Identifier: Apache-2.0 */
/* oracle.cu - every region once more, in double, on the device.
 *
 * engine/cpu/oracle.c defines what is right, at a nanosecond a multiply-add: a second for one token
 * of a large head. These kernels compute the same from what the device holds, so a probe can know
 * the truth of every element. They are as plain: a sum is a loop in double, no tricks but the lanes
 * of a warp, and the device suite holds them to the CPU's oracle (tests/device/test_probe.c).
 */
#include "cuda/lib/bricks.cuh"
#include "cuda/lib/device.cuh"
#include "probe_args.h"

__device__ __forceinline__ double warp_add(double v)
{
    for (int o = 16; o > 0; o >>= 1)
        v += __shfl_xor_sync(WARP_ALL, v, o);
    return v;
}

/* In every thread of a block of 256. `shared`: 8 doubles. */
__device__ double block_add(double v, double *shared)
{
    v = warp_add(v);
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (int i = 0; i < 8; i++)
        v += shared[i];
    __syncthreads();
    return v;
}

KERNEL oracle_rows(const __grid_constant__ struct oracle_rows_args a)
{
    __shared__ double shared[8];
    const float *x = a.x + (size_t)(a.row ? a.row[blockIdx.x] : (int)blockIdx.x) * a.n;
    double *y = a.y + (size_t)blockIdx.x * a.n, sum = 0, r = 1;
    for (int i = threadIdx.x; a.gain && i < a.n; i += blockDim.x)
        sum += (double)x[i] * (double)x[i];
    if (a.gain)
        r = 1 / sqrt(block_add(sum, shared) / a.n + (double)a.eps);
    for (int i = threadIdx.x; i < a.n; i += blockDim.x)
        y[i] = (double)x[i] * r * (a.gain ? (double)a.gain[i] : 1);
}

KERNEL oracle_product(const __grid_constant__ struct oracle_product_args a)
{
    enum { TOKENS = 8 };
    int n = blockIdx.x * 8 + threadIdx.x / 32, first = blockIdx.y * TOKENS, lane = threadIdx.x % 32;
    if (n >= a.n)
        return;
    const bf16 *w = (const bf16 *)a.w + (size_t)n * a.k;
    bool plain = a.type == DTYPE_BF16;
    double sum[TOKENS] = {0};
    for (int i = lane; i < a.k; i += 32) {
        double v = (double)(plain ? from_bf16(w[i]) : brick_value(a.type, a.w, a.k, n, i));
#pragma unroll
        for (int t = 0; t < TOKENS; t++)
            if (first + t < a.m)
                sum[t] += a.x[(size_t)(first + t) * a.k + i] * v;
    }
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
        sum[t] = warp_add(sum[t]);
        if (lane == 0 && first + t < a.m)
            a.y[(size_t)(first + t) * a.n + n] = sum[t];
    }
}

KERNEL oracle_heads(const __grid_constant__ struct oracle_heads_args a)
{
    int head = blockIdx.x, t = blockIdx.y, all = a.heads + 2 * a.kv_heads;
    bool is_q = head < a.heads, is_v = head >= a.heads + a.kv_heads;
    double *v = a.raw + ((size_t)t * all + head) * a.head_dim;
    const float *gain = is_v ? nullptr : is_q ? a.q_norm : a.k_norm;
    double sum = 0;
    for (int i = threadIdx.x; i < a.head_dim; i += 32) {
        if (a.bias)
            v[i] += (double)a.bias[head * a.head_dim + i];
        sum += v[i] * v[i];
    }
    double r = gain ? 1 / sqrt(warp_add(sum) / a.head_dim + (double)a.eps) : 1;
    __syncwarp();
    if (is_v)
        return;
    const float *cs = a.rope_cos + (size_t)a.position[t] * (a.head_dim / 2);
    const float *sn = a.rope_sin + (size_t)a.position[t] * (a.head_dim / 2);
    for (int i = threadIdx.x; i < a.head_dim / 2; i += 32) {
        double x = v[2 * i] * r * (gain ? (double)gain[2 * i] : 1);
        double y = v[2 * i + 1] * r * (gain ? (double)gain[2 * i + 1] : 1);
        v[2 * i] = x * (double)cs[i] - y * (double)sn[i];
        v[2 * i + 1] = y * (double)cs[i] + x * (double)sn[i];
    }
}

KERNEL oracle_finish(const __grid_constant__ struct oracle_finish_args a)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += step) {
        double g = a.x ? 0 : a.raw[2 * i];
        a.h[i] = a.x ? a.raw[i] + (double)a.x[i] : g / (1 + exp(-g)) * a.raw[2 * i + 1];
    }
}

/* A warp takes every eighth position; each lane has HD / 32 elements of q, key and value. */
KERNEL oracle_attn(const __grid_constant__ struct oracle_attn_args a)
{
    enum { EACH = 4 }; /* heads up to 128 */
    __shared__ double tops[8], sums[8], sizes[8], part[8][128];
    int head = blockIdx.x, t = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int each = a.head_dim / 32, kvh = head / (a.heads / a.kv_heads);
    const float *q = a.q + ((size_t)t * a.heads + head) * a.head_dim;
    double top = -1e300, sum = 0, sized = 0, o[EACH] = {0};
    for (int p = warp; p <= a.position[t]; p += 8) {
        size_t page = a.page_table[a.pages_at[t] + p / KV_PAGE];
        size_t at = ((page * a.kv_heads + kvh) * KV_PAGE + p % KV_PAGE) * a.head_dim;
        double dot = 0, size = 0;
        for (int i = 0; i < each; i++) {
            double one = (double)q[lane * each + i] *
                         (double)from_bf16(((const bf16 *)a.k_pages)[at + lane * each + i]);
            dot += one;
            size += fabs(one);
        }
        dot = warp_add(dot) * (double)a.scale;
        size = warp_add(size) * (double)a.scale;
        double higher = dot > top ? dot : top, keep = exp(top - higher), add = exp(dot - higher);
        sum = sum * keep + add;
        sized = sized * keep + add * size;
        for (int i = 0; i < each; i++)
            o[i] = o[i] * keep +
                   add * (double)from_bf16(((const bf16 *)a.v_pages)[at + lane * each + i]);
        top = higher;
    }
    if (lane == 0) {
        tops[warp] = top;
        sums[warp] = sum;
        sizes[warp] = sized;
    }
    for (int i = 0; i < each; i++)
        part[warp][lane * each + i] = o[i];
    __syncthreads();
    double highest = tops[0], total = 0, all = 0;
    for (int w = 1; w < 8; w++)
        highest = tops[w] > highest ? tops[w] : highest;
    for (int w = 0; w < 8; w++) {
        total += sums[w] * exp(tops[w] - highest);
        all += sizes[w] * exp(tops[w] - highest);
    }
    if (threadIdx.x == 0)
        a.scores[(size_t)t * a.heads + head] = all / total;
    for (int i = threadIdx.x; i < a.head_dim; i += 256) {
        double v = 0;
        for (int w = 0; w < 8; w++)
            v += part[w][i] * exp(tops[w] - highest);
        a.a[((size_t)t * a.heads + head) * a.head_dim + i] = v / total;
    }
}
