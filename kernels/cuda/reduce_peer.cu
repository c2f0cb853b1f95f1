/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_peer.cu - reduce between GPUs that write each other's memory: out = sum over ranks of x
 * + residual.
 *
 * x, residual and out [M, HIDDEN] are one long array here, cut into items of 16 bytes of a slot of
 * the ranks' memory (peer.h): 2 numbers with the call's number beside each (WAY=0), lines of 30
 * numbers in 128 bytes (WAY=1: an item is 4 numbers, the last of eight 2 and the call's number),
 * 4 plain numbers, for which a block's flag stands (WAY=2), or 4 words, each of which says itself
 * that it is there (WAY=3, lib/words.cuh). Per number they take 8, 4.27, 4 and 4 bytes of the link;
 * all but the flags need no fence and no second way over it. WAY=3 is what the end of a projection
 * can do as well: where it can, this kernel is not launched.
 *
 *   SHOTS=1  x to all other ranks; then theirs are added: (world - 1) n items out and in, one way
 *   SHOTS=2  the items of each rank's share to that rank, which adds them and the residual, and
 *            sends the sums to all: 2 (world - 1) / world n items out and in, two ways one after
 *            the other. For two ranks that is as much as one shot, and half of the additions
 *
 * Warps take 32 items each, one after the other from block to block, and UNROLL of them together:
 * few numbers are spread over all blocks, too. The same items are a block's on all ranks, so a
 * block waits for blocks of its own number alone.
 *
 * Invariant: that of peer.h. Additions are in the order of ranks, the residual last, whatever the
 * knobs. Before a thread waits in a shot it has sent all that others wait for in that shot. Warps
 * go through loops together, since eight threads make a line.
 */

/* ---- knobs -------------------------------------------------------------------------------- */

/* cuda/reduce_peer.def has them; whoever compiles this gives each a value. */
#include "cuda/lib/device.cuh"
#include "cuda/lib/shape.cuh"
#include "cuda/lib/words.cuh"

/* ---- legality ----------------------------------------------------------------------------- */

#define KNOB(name, role, value, values, help) static_assert((name) == (name), "has a value");
#define LEGAL(expression, why) static_assert(expression, why);
#include "cuda/reduce_peer.def"
static_assert(BLOCKS <= REDUCE_COUNTS, "a count and a flag for each block");

/* ---- code --------------------------------------------------------------------------------- */

enum { THREADS = 32 * WARPS, STRIDE = BLOCKS * THREADS, LOOKS = 1024 };
static_assert(REDUCE_LL == 0 && REDUCE_LL128 == 1 && REDUCE_PLAIN == 2 && REDUCE_WORDS == 3,
              "as WAY says");

struct call {
    const struct peer_reduce_args &a;
    unsigned number;
    int numbers, items; /* of all rows */
    int first;          /* of this thread's items */
};

/* Items [from, to). */
struct range {
    int from, to;
};

/* Numbers [n, n + 2) and, where an item has four, [n + 2, n + 4). */
struct numbers {
    float2 low, high;
};

__device__ __forceinline__ int first_number(int item)
{
    return WAY == REDUCE_LL128 ? item / 8 * REDUCE_LINE + item % 8 * 4
                               : item * (WAY == REDUCE_LL ? 2 : 4);
}

__device__ __forceinline__ bool has_high(int item)
{
    return WAY == REDUCE_LL128 ? item % 8 != 7 : WAY != REDUCE_LL;
}

__device__ __forceinline__ struct numbers load(const struct call &c, const float *from, int item)
{
    int n = first_number(item);
    struct numbers v = {make_float2(0, 0), make_float2(0, 0)};
    if (WAY == REDUCE_PLAIN) {
        float4 all = *(const float4 *)(from + n);
        return {make_float2(all.x, all.y), make_float2(all.z, all.w)};
    }
    if (n < c.numbers)
        v.low = *(const float2 *)(from + n);
    if (has_high(item) && n + 2 < c.numbers)
        v.high = *(const float2 *)(from + n + 2);
    return v;
}

__device__ __forceinline__ void store(const struct call &c, int item, const struct numbers &v)
{
    int n = first_number(item);
    if (WAY == REDUCE_PLAIN) {
        *(float4 *)(c.a.out + n) = make_float4(v.low.x, v.low.y, v.high.x, v.high.y);
        return;
    }
    if (n < c.numbers)
        *(float2 *)(c.a.out + n) = v.low;
    if (has_high(item) && n + 2 < c.numbers)
        *(float2 *)(c.a.out + n + 2) = v.high;
}

__device__ __forceinline__ struct numbers add(const struct numbers &a, const struct numbers &b)
{
    return {make_float2(a.low.x + b.low.x, a.low.y + b.low.y),
            make_float2(a.high.x + b.high.x, a.high.y + b.high.y)};
}

/* ---- the ranks' memory ---------------------------------------------------------------------- */

/* A slot of this call on rank `on`: what rank `of` sends, or sums (world). */
__device__ __forceinline__ uint4 *slot(const struct call &c, int on, int of)
{
    const struct peer_area &p = c.a.area;
    return (uint4 *)p.memory[on] + REDUCE_SLOT(WAY, p.world, p.numbers, c.number & 1, of);
}

__device__ __forceinline__ void send(const struct call &c, uint4 *to, int item,
                                     const struct numbers &v)
{
    uint4 w = {__float_as_uint(v.low.x), __float_as_uint(v.low.y), __float_as_uint(v.high.x),
               __float_as_uint(v.high.y)};
    if (WAY == REDUCE_LL)
        w = make_uint4(w.x, c.number, w.y, c.number);
    else if (!has_high(item))
        w.z = w.w = c.number;
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to + item), "r"(w.x),
                 "r"(w.y), "r"(w.z), "r"(w.w)
                 : "memory");
}

__device__ __forceinline__ uint4 look(const uint4 *at)
{
    uint4 w;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
                 : "l"(at)
                 : "memory");
    return w;
}

__device__ __forceinline__ bool is_over(const struct call &c)
{
    return *(const volatile unsigned *)c.a.area.over != 0;
}

__device__ __forceinline__ bool arrived(const struct call &c, int item, const uint4 &w)
{
    if (WAY == REDUCE_LL)
        return w.y == c.number && w.w == c.number;
    return has_high(item) || (w.z == c.number && w.w == c.number);
}

/* Items item, item + STRIDE, ... below `to`, once they are there. False: the world is over. */
__device__ __forceinline__ bool await(const struct call &c, const uint4 *from, int item, int to,
                                      struct numbers *v)
{
    uint4 w[UNROLL];
    for (unsigned looks = 1;; looks++) {
        bool missing = false;
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (item + u * STRIDE < to) {
                w[u] = look(from + item + u * STRIDE);
                missing |= WAY != REDUCE_PLAIN && !arrived(c, item + u * STRIDE, w[u]);
            }
        if (WAY == REDUCE_LL128)
            missing = __any_sync(WARP_ALL, missing);
        if (!missing)
            break;
        bool over = looks % LOOKS == 0 && is_over(c);
        if (WAY == REDUCE_LL128)
            over = __any_sync(WARP_ALL, over);
        if (over)
            return false;
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        float f[4] = {__uint_as_float(w[u].x), __uint_as_float(w[u].y), __uint_as_float(w[u].z),
                      __uint_as_float(w[u].w)};
        v[u] = WAY == REDUCE_LL ? numbers{make_float2(f[0], f[2]), make_float2(0, 0)}
                                : numbers{make_float2(f[0], f[1]), make_float2(f[2], f[3])};
    }
    return true;
}

/* ---- meetings ------------------------------------------------------------------------------- */

__device__ __forceinline__ uint4 *flag(const struct call &c, int on, int of, int shot)
{
    return slot(c, on, of) + c.a.area.numbers / 4 + shot * REDUCE_COUNTS + blockIdx.x;
}

/* What this block sent in a shot is there before its flag; returns when that of all ranks is. */
__device__ __forceinline__ bool meet(const struct call &c, int shot)
{
    int rank = threadIdx.x, own = c.a.area.rank;
    bool met = true;
    if (WAY != REDUCE_PLAIN)
        return true;
    __syncthreads();
    if (rank < c.a.area.world && rank != own) {
        unsigned seen = 0;
        asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag(c, rank, own, shot)),
                     "r"(c.number)
                     : "memory");
        for (unsigned looks = 1; met; looks++) {
            asm volatile("ld.acquire.sys.global.u32 %0, [%1];"
                         : "=r"(seen)
                         : "l"(flag(c, own, rank, shot))
                         : "memory");
            if (seen == c.number)
                break;
            met = looks % LOOKS != 0 || !is_over(c);
        }
    }
    return __syncthreads_and(met);
}

/* ---- shots ---------------------------------------------------------------------------------- */

/* The items that rank r adds. Lines stay whole. */
__device__ __forceinline__ struct range share(const struct call &c, int r)
{
    int units = c.items / 8, world = c.a.area.world, end = r + 1 == world ? c.items : 0;
    struct range s = {units * r / world * 8, units * (r + 1) / world * 8};
    return SHOTS == 1 ? range{0, c.items} : range{s.from, end ? end : s.to};
}

/* Whose turn it is k ranks after this one. */
__device__ __forceinline__ int rank_after(const struct call &c, int k)
{
    int r = c.a.area.rank + k;
    return r < c.a.area.world ? r : r - c.a.area.world;
}

/* Own numbers to rank `to`, or to all others (-1). */
__device__ __forceinline__ void give(const struct call &c, struct range s, int to)
{
    for (int i = s.from + c.first; i - (int)threadIdx.x % 32 < s.to; i += UNROLL * STRIDE) {
        struct numbers v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u * STRIDE < s.to)
                v[u] = load(c, c.a.x, i + u * STRIDE);
        for (int k = 1; k < c.a.area.world; k++) {
            int on = to < 0 ? rank_after(c, k) : to;
            uint4 *at = slot(c, on, c.a.area.rank);
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                if (i + u * STRIDE < s.to)
                    send(c, at, i + u * STRIDE, v[u]);
            if (to >= 0)
                break;
        }
    }
}

/* sum[u] = the ranks' numbers in their order. */
__device__ __forceinline__ bool add_ranks(const struct call &c, int i, int to, struct numbers *sum)
{
    for (int r = 0; r < c.a.area.world; r++) {
        struct numbers v[UNROLL];
        if (r == c.a.area.rank) {
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                if (i + u * STRIDE < to)
                    v[u] = load(c, c.a.x, i + u * STRIDE);
        } else if (!await(c, slot(c, c.a.area.rank, r), i, to, v)) {
            return false;
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            sum[u] = r ? add(sum[u], v[u]) : v[u];
    }
    return true;
}

/* out = sums + residual of a share; with two shots to all others, too. */
__device__ __forceinline__ bool sum_up(const struct call &c, struct range s)
{
    for (int i = s.from + c.first; i - (int)threadIdx.x % 32 < s.to; i += UNROLL * STRIDE) {
        struct numbers sum[UNROLL], more[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u * STRIDE < s.to)
                more[u] = load(c, c.a.residual, i + u * STRIDE);
        if (!add_ranks(c, i, s.to, sum))
            return false;
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u * STRIDE < s.to) {
                sum[u] = add(sum[u], more[u]);
                store(c, i + u * STRIDE, sum[u]);
            }
        for (int k = 1; SHOTS == 2 && k < c.a.area.world; k++) {
            uint4 *at = slot(c, rank_after(c, k), c.a.area.world);
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                if (i + u * STRIDE < s.to)
                    send(c, at, i + u * STRIDE, sum[u]);
        }
    }
    return true;
}

/* The second shot: out = what another rank has added up. */
__device__ __forceinline__ bool take(const struct call &c, struct range s)
{
    const uint4 *from = slot(c, c.a.area.rank, c.a.area.world);
    for (int i = s.from + c.first; i - (int)threadIdx.x % 32 < s.to; i += UNROLL * STRIDE) {
        struct numbers v[UNROLL];
        if (!await(c, from, i, s.to, v))
            return false;
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u * STRIDE < s.to)
                store(c, i + u * STRIDE, v[u]);
    }
    return true;
}

__device__ __forceinline__ void one_shot(const struct call &c)
{
    struct range all = {0, c.items};
    give(c, all, -1);
    if (TRIGGER == 1)
        release_next();
    if (meet(c, 0))
        sum_up(c, all);
}

__device__ __forceinline__ void two_shots(const struct call &c)
{
    for (int k = 1; k < c.a.area.world; k++)
        give(c, share(c, rank_after(c, k)), rank_after(c, k));
    bool there = meet(c, 0) && sum_up(c, share(c, c.a.area.rank));
    if (TRIGGER == 1)
        release_next();
    if (WAY == REDUCE_PLAIN ? !meet(c, 1) || !there : !there)
        return;
    for (int k = 1; k < c.a.area.world; k++)
        if (!take(c, share(c, rank_after(c, k))))
            return;
}

__device__ __forceinline__ void words(const struct call &c)
{
    for (int i = c.first; i < c.items; i += STRIDE) {
        float4 x = __ldcg((const float4 *)c.a.x + i);
        float v[4] = {x.x, x.y, x.z, x.w};
        send_words(c.a.area, c.a.turn, (size_t)i * 4, v);
    }
    if (TRIGGER == 1)
        release_next();
    for (int i = c.first; i < c.items; i += STRIDE) {
        float4 x = __ldcg((const float4 *)c.a.x + i),
               more = __ldcg((const float4 *)c.a.residual + i);
        float v[4] = {x.x, x.y, x.z, x.w};
        if (!add_words(c.a.area, c.a.turn, (size_t)i * 4, v))
            return;
        *((float4 *)c.a.out + i) =
            make_float4(v[0] + more.x, v[1] + more.y, v[2] + more.z, v[3] + more.w);
    }
}

/* ---- cleaning ------------------------------------------------------------------------------- */

/* Whether some rank writes the item of a slot of this rank's memory in this call. */
__device__ __forceinline__ bool written(const struct call &c, int of, int item)
{
    struct range own = share(c, c.a.area.rank);
    bool sums = of == c.a.area.world, in_own = item >= own.from && item < own.to;
    int flag = item - c.a.area.numbers / 4;
    if (of == c.a.area.rank)
        return false;
    if (WAY == REDUCE_PLAIN && flag >= 0)
        return !sums && flag % REDUCE_COUNTS < BLOCKS && flag / REDUCE_COUNTS < SHOTS;
    return sums ? SHOTS == 2 && item < c.items && !in_own : in_own;
}

__device__ __forceinline__ void clean(const struct call &c)
{
    int each = REDUCE_ITEMS(WAY, c.a.area.numbers);
    for (int of = 0; of <= c.a.area.world; of++)
        for (int i = c.first; i < each; i += STRIDE) {
            uint4 *at = slot(c, c.a.area.rank, of) + i;
            if (!written(c, of, i))
                *at = make_uint4(0, 0, 0, 0);
            else if (WAY == REDUCE_PLAIN && i >= c.a.area.numbers / 4)
                at->y = at->z = at->w = 0; /* a flag is the first word */
        }
}

/* ---- entry -------------------------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(THREADS)
    whet_kernel(const __grid_constant__ struct peer_reduce_args a)
{
    uint32_t *calls = a.area.calls + WAY * REDUCE_COUNTS;
    int warp = threadIdx.x / 32 * BLOCKS + blockIdx.x;
    if (TRIGGER == 0)
        release_next();
    after_previous();
    unsigned number = calls[blockIdx.x] + 1;
    struct call c = {a, number ? number : 2, a.m * HIDDEN, 0, warp * 32 + (int)threadIdx.x % 32};
    c.items = WAY == REDUCE_LL      ? c.numbers / 2
              : WAY == REDUCE_LL128 ? (c.numbers + REDUCE_LINE - 1) / REDUCE_LINE * 8
                                    : c.numbers / 4;
    if (WAY == REDUCE_WORDS)
        return words(c);
    if (SHOTS == 1)
        one_shot(c);
    else
        two_shots(c);
    if (c.number % REDUCE_CLEAN < 2)
        clean(c);
    __syncthreads(); /* everybody has read the count */
    for (int i = blockIdx.x + threadIdx.x * BLOCKS; i < REDUCE_COUNTS; i += STRIDE)
        calls[i] = c.number;
}

extern "C" __device__ const struct cuda_kernel_info whet_info = {
    WHET_CUDA_ABI,
    REGION_REDUCE,
    M_MAX,
    0,
    1,
    0,
    0,
    0,
    "",
    {{{BLOCKS, 1, 1}, THREADS, 0, 1, 0, 0}},
    0,
    0,
    WAY == REDUCE_WORDS,
};
