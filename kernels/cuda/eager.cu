/* SPDX-License-Identifier: Apache-2.0 */
/* eager.cu - the primitive kernels of the eager CUDA path: everything but matrix products,
 * attention (eager_decode.cu, eager_prefill.cu, eager_wgmma.cu), sampling (eager_sample.cu) and
 * what no step needs (eager_tools.cu).
 *
 * Shape-generic and plain. Each is bound by the few kilobytes it moves and by its own launch, so
 * what matters is that they are few, that they overlap (programmatic edges), and that they are
 * obviously right: they are what every specialized kernel is compared with and falls back to.
 *
 *   embed   x = table[token]               norm    bf16(rmsnorm(x) * gain)
 *   rope    bias, q/k norm, RoPE, append   silu    silu(g) * u
 *   round   float to bf16                  best    the first largest logit
 *   copy, open, close                      a step's small transfers
 *
 * Invariant: a row at or beyond the step's count is never written, and no KV page is touched for
 * it.
 */
#include "cuda/lib/device.cuh"
#include "cuda/lib/embed.cuh"
#include "eager.h"

/* ---- rows --------------------------------------------------------------------------------- */

KERNEL eager_embed(const __grid_constant__ struct cuda_embed_args a)
{
    int t = blockIdx.x, token = embed_token(a, t);
    if (token < 0)
        return;
    const uint2 *row = (const uint2 *)((const bf16 *)a.table + (size_t)token * a.hidden);
    float4 *x = (float4 *)(a.x + (size_t)t * a.hidden);
    for (int i = threadIdx.x; i < a.hidden / 4; i += blockDim.x) {
        uint2 v = row[i];
        x[i] = make_float4(low_bf16(v.x), high_bf16(v.x), low_bf16(v.y), high_bf16(v.y));
    }
}

/* Not moved by the compiler, not taken from a cache of an earlier kernel. */
__device__ __forceinline__ uint4 load_now(const uint4 *p)
{
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

/* Small transfers of a step. A copy engine would have to be waited for, and to wait, each time. */
KERNEL eager_copy(const __grid_constant__ struct eager_copy_args a)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    bool mine = i < a.n16;
    uint4 v = make_uint4(0, 0, 0, 0);
    release_next();
    if (mine && a.early)
        v = load_now((const uint4 *)a.from + i);
    after_previous();
    if (mine && !a.early)
        v = load_now((const uint4 *)a.from + i);
    if (mine)
        ((uint4 *)a.to)[i] = v;
}

KERNEL eager_open(const __grid_constant__ struct eager_open_args a)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    release_next();
    if (i >= a.n16)
        return;
    int parity = *(const volatile int32_t *)a.parity;
    uint4 v = load_now((const uint4 *)a.from[a.both ? 0 : parity] + i);
    if (a.both) {
        uint4 other = load_now((const uint4 *)a.from[1] + i);
        v = parity ? other : v;
    }
    ((uint4 *)a.to)[i] = v;
}

KERNEL eager_close(const __grid_constant__ struct eager_close_args a)
{
    after_previous();
    int parity = *(volatile int32_t *)a.parity;
    for (int i = threadIdx.x; i < a.counts->rows; i += blockDim.x)
        a.to[parity][i] = a.best[i];
    __syncthreads();
    if (threadIdx.x == 0)
        *a.parity = !parity;
}

__device__ __forceinline__ float squares(float4 v)
{
    return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
}

__device__ __forceinline__ uint2 scaled(float4 v, float4 g, float r)
{
    return make_uint2(pack_bf16(v.x * r * g.x, v.y * r * g.y),
                      pack_bf16(v.z * r * g.z, v.w * r * g.w));
}

KERNEL eager_norm(const __grid_constant__ struct eager_norm_args a)
{
    __shared__ float shared[33];
    int t = blockIdx.x;
    release_next();
    after_previous();
    if (t >= *a.count)
        return;
    enum { KEPT = 4 }; /* of the row, in registers: up to 4096 columns are read once */
    const float4 *x = (const float4 *)(a.x + (size_t)(a.row ? a.row[t] : t) * a.n);
    const float4 *gain = (const float4 *)a.gain;
    uint2 *y = (uint2 *)((bf16 *)a.y16 + (size_t)t * a.n);
    float4 kept[KEPT];
    float sum = 0;
#pragma unroll
    for (int k = 0; k < KEPT; k++) {
        int i = threadIdx.x + k * blockDim.x;
        kept[k] = i < a.n / 4 ? x[i] : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int k = 0; k < KEPT; k++)
        sum += squares(kept[k]);
    for (int i = threadIdx.x + KEPT * blockDim.x; i < a.n / 4; i += blockDim.x)
        sum += squares(x[i]);
    float r = rsqrtf(block_sum(sum, shared) / a.n + a.eps);
#pragma unroll
    for (int k = 0; k < KEPT; k++) {
        int i = threadIdx.x + k * blockDim.x;
        if (i < a.n / 4)
            y[i] = scaled(kept[k], gain[i], r);
    }
    for (int i = threadIdx.x + KEPT * blockDim.x; i < a.n / 4; i += blockDim.x)
        y[i] = scaled(x[i], gain[i], r);
}

KERNEL eager_round(const __grid_constant__ struct eager_round_args a)
{
    int t = blockIdx.y, i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    release_next();
    after_previous();
    if (t >= *a.count || i >= a.n)
        return;
    float4 v = *(const float4 *)(a.x + (size_t)t * a.n + i);
    *(uint2 *)((bf16 *)a.y16 + (size_t)t * a.n + i) =
        make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
}

KERNEL eager_add(const __grid_constant__ struct eager_add_args a)
{
    int t = blockIdx.y, i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    release_next();
    after_previous();
    if (t >= *a.count || i >= a.n)
        return;
    float4 x = *(const float4 *)(a.x + (size_t)t * a.n + i);
    float4 *y = (float4 *)(a.y + (size_t)t * a.n + i), sum = *y;
    *y = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
}

/* 8 numbers g, u, g, u, ... of row t from column `in` on. */
__device__ __forceinline__ void gate_up(const struct eager_silu_args &a, size_t in, float (&v)[8])
{
    if (a.raw16) {
        expand8(*(const uint4 *)((const bf16 *)a.raw16 + in), v);
        return;
    }
    float4 p = *(const float4 *)(a.raw + in), q = *(const float4 *)(a.raw + in + 4);
    v[0] = p.x, v[1] = p.y, v[2] = p.z, v[3] = p.w;
    v[4] = q.x, v[5] = q.y, v[6] = q.z, v[7] = q.w;
}

/* A thread makes EAGER_SILU / 256 pieces of 4; all it needs is on its way before it computes. */
KERNEL eager_silu(const __grid_constant__ struct eager_silu_args a)
{
    enum { PIECES = EAGER_SILU / 1024 };
    int t = blockIdx.y, first = blockIdx.x * EAGER_SILU + threadIdx.x * 4;
    release_next();
    after_previous();
    if (t >= *a.count)
        return;
    float v[PIECES][8];
#pragma unroll
    for (int k = 0; k < PIECES; k++)
        if (first + k * 1024 < a.ffn)
            gate_up(a, (size_t)t * 2 * a.ffn + 2 * (first + k * 1024), v[k]);
#pragma unroll
    for (int k = 0; k < PIECES; k++) {
        size_t out = (size_t)t * a.ffn + first + k * 1024;
        float h[4];
        if (first + k * 1024 >= a.ffn)
            return;
        for (int j = 0; j < 4; j++)
            h[j] = silu(v[k][2 * j]) * v[k][2 * j + 1];
        if (a.h)
            *(float4 *)(a.h + out) = make_float4(h[0], h[1], h[2], h[3]);
        if (a.h16)
            *(uint2 *)((bf16 *)a.h16 + out) =
                make_uint2(pack_bf16(h[0], h[1]), pack_bf16(h[2], h[3]));
    }
}

/* ---- q, k and v --------------------------------------------------------------------------- */

enum { ROPE_EACH = 8 }; /* neighbouring elements of a lane: 16 bytes of bf16 */

/* Sum over the LANES lanes that share a head. */
template <int LANES> __device__ __forceinline__ float head_sum(float v)
{
#pragma unroll
    for (int o = LANES / 2; o > 0; o >>= 1)
        v += __shfl_xor_sync(WARP_ALL, v, o);
    return v;
}

__device__ __forceinline__ void load8(const float *p, float (&v)[ROPE_EACH])
{
    float4 x = *(const float4 *)p, y = *(const float4 *)(p + 4);
    v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
    v[4] = y.x, v[5] = y.y, v[6] = y.z, v[7] = y.w;
}

__device__ __forceinline__ uint4 pack8(const float (&v)[ROPE_EACH])
{
    return make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]),
                      pack_bf16(v[6], v[7]));
}

/* What turns with a lane's pairs: head norm, then RoPE at the token's position. */
template <int HD>
__device__ __forceinline__ void rope(const struct eager_rope_args &a, int t, int d,
                                     const float *gain, float (&v)[ROPE_EACH])
{
    if (gain) { /* the same for all lanes of a head; other heads of the warp may have none */
        float g[ROPE_EACH];
        load8(gain + d, g);
        for (int j = 0; j < ROPE_EACH; j++)
            v[j] *= g[j];
    }
    size_t pair = (size_t)a.position[t] * (HD / 2) + d / 2;
    float4 c = *(const float4 *)(a.rope_cos + pair), s = *(const float4 *)(a.rope_sin + pair);
    const float cs[] = {c.x, c.y, c.z, c.w}, sn[] = {s.x, s.y, s.z, s.w};
#pragma unroll
    for (int j = 0; j < ROPE_EACH; j += 2) {
        float x = v[j], y = v[j + 1];
        v[j] = x * cs[j / 2] - y * sn[j / 2];
        v[j + 1] = y * cs[j / 2] + x * sn[j / 2];
    }
}

/* Some lanes share a head; a warp has a few heads, whose kinds may differ. */
template <int HD> __device__ void rope_head(const struct eager_rope_args &a, int t, int head, int d)
{
    int total = a.heads + 2 * a.kv_heads;
    bool mine = head < total;
    int kind = head < a.heads ? 0 : head < a.heads + a.kv_heads ? 1 : 2; /* q, k, v */
    size_t at = ((size_t)t * total + (mine ? head : 0)) * HD + d;
    float v[ROPE_EACH];
    if (a.raw16)
        expand8(*(const uint4 *)((const bf16 *)a.raw16 + at), v);
    else
        load8(a.raw + at, v);
    if (a.bias && mine) {
        float b[ROPE_EACH];
        load8(a.bias + head * HD + d, b);
        for (int j = 0; j < ROPE_EACH; j++)
            v[j] += b[j];
    }
    float sum = 0;
    for (int j = 0; j < ROPE_EACH; j++)
        sum += v[j] * v[j];
    sum = head_sum<HD / ROPE_EACH>(sum); /* all lanes, whether their head is normed or not */
    const float *gain = kind == 0 ? a.q_norm : kind == 1 ? a.k_norm : 0;
    if (!mine)
        return;
    if (gain) {
        float r = rsqrtf(sum / HD + a.eps);
        for (int j = 0; j < ROPE_EACH; j++)
            v[j] *= r;
    }
    if (kind < 2)
        rope<HD>(a, t, d, gain, v);
    if (kind == 0) {
        size_t q = ((size_t)t * a.heads + head) * HD + d;
        if (a.q && t < a.q_rows) {
            *(float4 *)(a.q + q) = make_float4(v[0], v[1], v[2], v[3]);
            *(float4 *)(a.q + q + 4) = make_float4(v[4], v[5], v[6], v[7]);
        }
        if (a.q16)
            *(uint4 *)((bf16 *)a.q16 + q) = pack8(v);
        return;
    }
    int kvh = head - a.heads - (kind == 2 ? a.kv_heads : 0), where = a.kv_at[t];
    bf16 *pages = (bf16 *)(kind == 1 ? a.k_pages : a.v_pages);
    size_t slot = ((size_t)(where / KV_PAGE) * a.kv_heads + kvh) * KV_PAGE + where % KV_PAGE;
    *(uint4 *)(pages + slot * HD + d) = pack8(v);
}

KERNEL eager_rope(const __grid_constant__ struct eager_rope_args a)
{
    int t = blockIdx.y, lane = blockIdx.x * blockDim.x + threadIdx.x;
    release_next();
    after_previous();
    if (t >= *a.count)
        return;
    int lanes = a.head_dim / ROPE_EACH, d = lane % lanes * ROPE_EACH;
    if (a.head_dim == 64)
        rope_head<64>(a, t, lane / lanes, d);
    else
        rope_head<128>(a, t, lane / lanes, d);
}

/* ---- the best token ----------------------------------------------------------------------- */

/* Orders by logit, then by lower id; NaN and minus infinity become 0, which is no token. */
__device__ __forceinline__ uint64_t rank_of(float logit, int id)
{
    unsigned bits = __float_as_uint(logit);
    if (!(logit > -INFINITY))
        return 0;
    bits = bits == 0x80000000u ? 0 : bits; /* -0 equals 0 */
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (0xffffffffu - (unsigned)id);
}

__device__ __forceinline__ uint64_t block_best(uint64_t v)
{
    __shared__ uint64_t shared[32];
    for (int o = 16; o > 0; o >>= 1) {
        uint64_t other = __shfl_xor_sync(WARP_ALL, v, o);
        v = other > v ? other : v;
    }
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = v;
    __syncthreads();
    for (int i = 0; i < (int)blockDim.x / 32; i++)
        v = shared[i] > v ? shared[i] : v;
    __syncthreads();
    return v;
}

KERNEL eager_best(const __grid_constant__ struct eager_best_args a)
{
    __shared__ bool last;
    int row = blockIdx.y, parts = gridDim.x;
    release_next();
    after_previous();
    if (row >= *a.count)
        return;
    const float *logits = a.logits + (size_t)row * a.vocab;
    uint64_t best = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < a.vocab; i += parts * blockDim.x) {
        uint64_t v = rank_of(logits[i], i);
        best = v > best ? v : best;
    }
    best = block_best(best);
    if (threadIdx.x == 0) {
        a.part[row * parts + blockIdx.x] = best;
        __threadfence();
        last = atomicAdd(&a.counter[row], 1u) == (unsigned)parts - 1;
        if (last)
            a.counter[row] = 0;
    }
    __syncthreads();
    if (!last)
        return;
    __threadfence();
    best = 0;
    for (int i = threadIdx.x; i < parts; i += blockDim.x) {
        uint64_t v = __ldcg((const unsigned long long *)a.part + row * parts + i);
        best = v > best ? v : best;
    }
    best = block_best(best);
    if (threadIdx.x == 0)
        a.best[row] = best ? (int32_t)(0xffffffffu - (unsigned)best) : -1;
}
