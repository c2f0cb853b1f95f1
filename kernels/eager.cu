/* eager.cu - the primitive kernels of the eager CUDA path: everything but matrix products.
 *
 * Shape-generic and plain. Each is bound by the few kilobytes it moves and by its own launch, so
 * what matters is that they are few, that they overlap (programmatic edges), and that they are
 * obviously right: they are what every specialized kernel is compared with and falls back to.
 *
 *   embed   x = table[token]               norm    bf16(rmsnorm(x) * gain)
 *   rope    bias, q/k norm, RoPE, append   silu    silu(g) * u
 *   round   float to bf16                  decode  attention of single tokens, KV split over blocks
 *   best    the first largest logit
 *
 * Invariant: a row at or beyond the step's count is never written, and no KV page is touched for
 * it.
 */
#include "eager.h"
#include "lib/device.cuh"

/* ---- rows --------------------------------------------------------------------------------- */

KERNEL eager_embed(const __grid_constant__ struct cuda_embed_args a)
{
    int t = blockIdx.x;
    after_previous();
    release_next(); /* what comes next may read the step's block before it waits */
    if (t >= a.counts->m)
        return;
    int token = a.tokens[t];
    if (token < 0)
        token = max(a.drawn[-1 - token], 0); /* a row without a token: of no use to anybody */
    if (threadIdx.x == 0)
        a.seen[t] = token;
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
    int turn = *(const volatile int32_t *)a.turn;
    uint4 v = load_now((const uint4 *)a.from[a.both ? 0 : turn] + i);
    if (a.both) {
        uint4 other = load_now((const uint4 *)a.from[1] + i);
        v = turn ? other : v;
    }
    ((uint4 *)a.to)[i] = v;
}

KERNEL eager_close(const __grid_constant__ struct eager_close_args a)
{
    after_previous();
    int turn = *(volatile int32_t *)a.turn;
    for (int i = threadIdx.x; i < a.counts->rows; i += blockDim.x)
        a.to[turn][i] = a.best[i];
    __syncthreads();
    if (threadIdx.x == 0)
        *a.turn = !turn;
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
__device__ __forceinline__ void turn(const struct eager_rope_args &a, int t, int d,
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
        turn<HD>(a, t, d, gain, v);
    if (kind == 0) {
        size_t q = ((size_t)t * a.heads + head) * HD + d;
        if (a.q) {
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

/* ---- attention of single tokens ----------------------------------------------------------- */

/* Running softmax over the positions that one group of LP lanes has seen, for G query heads. */
template <int G> struct running {
    float top[G], sum[G], o[G][8];
};

template <int G> __device__ __forceinline__ void merge_lanes(struct running<G> &r, int distance)
{
#pragma unroll
    for (int h = 0; h < G; h++) {
        float other = __shfl_xor_sync(WARP_ALL, r.top[h], distance);
        float top = fmaxf(r.top[h], other);
        float mine = top == -INFINITY ? 0 : exp2f(r.top[h] - top);
        float theirs = top == -INFINITY ? 0 : exp2f(other - top);
        r.sum[h] = r.sum[h] * mine + __shfl_xor_sync(WARP_ALL, r.sum[h], distance) * theirs;
#pragma unroll
        for (int j = 0; j < 8; j++)
            r.o[h][j] = r.o[h][j] * mine + __shfl_xor_sync(WARP_ALL, r.o[h][j], distance) * theirs;
        r.top[h] = top;
    }
}

/* One position (per lane group): scores by a reduction over the LP lanes that share a key. */
template <int HD, int G>
__device__ __forceinline__ void attend(struct running<G> &r, const float (*q)[8], uint4 key,
                                       uint4 value, bool valid)
{
    float k[8], v[8];
    expand8(key, k);
    expand8(value, v);
#pragma unroll
    for (int h = 0; h < G; h++) {
        float s = 0;
#pragma unroll
        for (int j = 0; j < 8; j++)
            s += q[h][j] * k[j];
#pragma unroll
        for (int o = HD / 16; o > 0; o >>= 1)
            s += __shfl_xor_sync(WARP_ALL, s, o);
        if (!valid)
            continue;
        float top = fmaxf(r.top[h], s), keep = exp2f(r.top[h] - top), p = exp2f(s - top);
        r.top[h] = top;
        r.sum[h] = r.sum[h] * keep + p;
#pragma unroll
        for (int j = 0; j < 8; j++)
            r.o[h][j] = r.o[h][j] * keep + p * v[j];
    }
}

/* Writes head `h` of the group from sums over everything. */
__device__ __forceinline__ void put_a(const struct eager_decode_args &a, size_t at, float v)
{
    if (a.a)
        a.a[at] = v;
    if (a.a16)
        ((bf16 *)a.a16)[at] = to_bf16(v);
}

enum { DECODE_WARPS = 4 };

/* The four warps' partial sums (in shared memory) to the output, or to `part` for the last block
 * of this token and kv head, which merges all of them. */
template <int HD, int G>
__device__ void decode_finish(const struct eager_decode_args &a, int t, int first_head, int heads,
                              int splits, const float (*o)[G][HD], const float (*top)[G],
                              const float (*sum)[G])
{
    __shared__ bool last;
    int group = blockIdx.z * gridDim.y + blockIdx.y;
    float *part = a.part + ((size_t)group * gridDim.x + blockIdx.x) * G * (HD + 2);
    for (int i = threadIdx.x; i < G * HD; i += blockDim.x) {
        int h = i / HD, d = i % HD;
        float most = -INFINITY, s = 0, v = 0;
        for (int w = 0; w < DECODE_WARPS; w++)
            most = fmaxf(most, top[w][h]);
        for (int w = 0; w < DECODE_WARPS; w++) {
            float e = top[w][h] == -INFINITY ? 0 : exp2f(top[w][h] - most);
            s += sum[w][h] * e;
            v += o[w][h][d] * e;
        }
        if (splits == 1 && h < heads)
            put_a(a, ((size_t)t * a.heads + first_head + h) * HD + d, v / s);
        if (splits > 1) {
            part[h * (HD + 2) + d] = v;
            if (d == 0) {
                part[h * (HD + 2) + HD] = most;
                part[h * (HD + 2) + HD + 1] = s;
            }
        }
    }
    if (splits == 1)
        return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(&a.counter[group], 1u) == (unsigned)splits - 1;
        if (last)
            a.counter[group] = 0;
    }
    __syncthreads();
    if (!last)
        return;
    __threadfence();
    const float *all = a.part + (size_t)group * gridDim.x * G * (HD + 2);
    for (int i = threadIdx.x; i < heads * HD; i += blockDim.x) {
        int h = i / HD, d = i % HD;
        float most = -INFINITY, s = 0, v = 0;
        for (int p = 0; p < splits; p++)
            most = fmaxf(most, __ldcg(all + (size_t)p * G * (HD + 2) + h * (HD + 2) + HD));
        for (int p = 0; p < splits; p++) {
            const float *from = all + (size_t)p * G * (HD + 2) + h * (HD + 2);
            float e = exp2f(__ldcg(from + HD) - most);
            s += __ldcg(from + HD + 1) * e;
            v += __ldcg(from + d) * e;
        }
        put_a(a, ((size_t)t * a.heads + first_head + h) * HD + d, v / s);
    }
}

template <int HD, int G> __device__ void decode(const struct eager_decode_args &a)
{
    constexpr int LP = HD / 8, PP = 32 / LP, PASSES = KV_PAGE / PP;
    __shared__ float so[DECODE_WARPS][G][HD], stop[DECODE_WARPS][G], ssum[DECODE_WARPS][G];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = lane % LP * 8;
    int kvh = blockIdx.y / a.chunks, group = a.heads / a.kv_heads;
    int first = blockIdx.y % a.chunks * G, first_head = kvh * group + first;
    int heads = min(G, group - first);
    release_next();
    after_previous();
    if ((int)blockIdx.z >= *a.count)
        return;
    int t = a.token ? a.token[blockIdx.z] : blockIdx.z, context = a.position[t] + 1;
    int chunk = (context + gridDim.x - 1) / gridDim.x;
    chunk = (chunk + KV_PAGE - 1) / KV_PAGE * KV_PAGE;
    int splits = (context + chunk - 1) / chunk, begin = blockIdx.x * chunk;
    if (begin >= context)
        return;
    int end = min(context, begin + chunk);
    float q[G][8];
    struct running<G> r;
#pragma unroll
    for (int h = 0; h < G; h++) {
        size_t from = ((size_t)t * a.heads + first_head + min(h, heads - 1)) * HD + d;
        r.top[h] = -INFINITY;
        r.sum[h] = 0;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            q[h][j] = (a.q ? a.q[from + j] : from_bf16(((const bf16 *)a.q16)[from + j])) *
                      (a.scale * 1.44269504f);
            r.o[h][j] = 0;
        }
    }
    const bf16 *ks = (const bf16 *)a.k_pages, *vs = (const bf16 *)a.v_pages;
    for (int p = begin / KV_PAGE + warp; p * KV_PAGE < end; p += DECODE_WARPS) {
        size_t page = a.page_table[a.pages_at[t] + p];
        size_t base = (page * a.kv_heads + kvh) * KV_PAGE * HD + lane / LP * HD + d;
        uint4 key[PASSES], value[PASSES];
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            key[i] = *(const uint4 *)(ks + base + i * PP * HD);
            value[i] = *(const uint4 *)(vs + base + i * PP * HD);
        }
#pragma unroll
        for (int i = 0; i < PASSES; i++)
            attend<HD, G>(r, q, key[i], value[i], p * KV_PAGE + i * PP + lane / LP < end);
    }
#pragma unroll
    for (int o = LP; o < 32; o <<= 1)
        merge_lanes<G>(r, o);
    if (lane < LP)
        for (int h = 0; h < G; h++)
            for (int j = 0; j < 8; j++)
                so[warp][h][d + j] = r.o[h][j];
    if (lane == 0)
        for (int h = 0; h < G; h++) {
            stop[warp][h] = r.top[h];
            ssum[warp][h] = r.sum[h];
        }
    __syncthreads();
    decode_finish<HD, G>(a, t, first_head, heads, splits, so, stop, ssum);
}

#define DECODE(HD, G)                                                               \
    KERNEL __launch_bounds__(128)                                                   \
        eager_decode_##HD##_##G(const __grid_constant__ struct eager_decode_args a) \
    {                                                                               \
        decode<HD, G>(a);                                                           \
    }
DECODE(64, 1)
DECODE(64, 2)
DECODE(64, 4)
DECODE(64, 8)
DECODE(128, 1)
DECODE(128, 2)
DECODE(128, 4)
DECODE(128, 8)

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

/* ---- tools -------------------------------------------------------------------------------- */

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

KERNEL eager_compare(const __grid_constant__ struct eager_compare_args a)
{
    __shared__ float shared[33];
    int t = blockIdx.x;
    after_previous();
    if (t >= *a.count)
        return;
    float square = 0, error = 0, top = 0, worst = 0;
    bool bad = false, different = false;
    for (int i = threadIdx.x; i < a.cols; i += blockDim.x) {
        float x = side(a.a, a.a_pages, a.a_at, a, t, i), y = side(a.b, a.b_pages, a.b_at, a, t, i);
        bad |= !isfinite(x);
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
    bad = __syncthreads_or(bad);
    different = __syncthreads_or(different);
    if (threadIdx.x > 0)
        return;
    for (int i = 0; i < (int)blockDim.x / 32; i++) {
        top = fmaxf(top, tops[i]);
        worst = fmaxf(worst, worsts[i]);
    }
    if (bad)
        atomicAdd(&a.out[0], 1u);
    if (different)
        atomicAdd(&a.out[1], 1u);
    float max_error = top > 0 ? worst / top : worst > 0 ? INFINITY : 0;
    float rms_error = square > 0 ? sqrtf(error / square) : error > 0 ? INFINITY : 0;
    if (!bad) { /* non-negative floats are in the order of their bits */
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
