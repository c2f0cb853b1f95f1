/* SPDX-License-Identifier: Apache-2.0 */
/* attn_even.cu - attention of single tokens over paged keys and values, for many sequences: all
 * pages of all of them are dealt evenly to the warps of a grid that fills the device once.
 *
 *   a[t, h, :] = sum_p softmax_p(scale q[t, h, :] . k[p, h / G, :]) v[p, h / G, :]
 *
 * over p = 0 .. position[t].
 *
 * q, a: [M, HEADS, HEAD_DIM] float; pages: bf16 [page][KV_HEADS][KV_PAGE][HEAD_DIM]; G = HEADS /
 * KV_HEADS query heads share what is read. Bytes moved: 4 HEAD_DIM for each position and kv head.
 *
 * attn_mma.cu has a block for each token, kv head and split: with hundreds of sequences that is
 * several waves, each of which fills its rings and drains them, and the longest context is worked
 * on when all others are done. Here the pages of token 0, then token 1, and so on are one list,
 * which is cut into equal parts, whatever the contexts are. A warp takes one part for one kv head,
 * and its ring of STAGES pages in shared memory, or the next page in its registers (STAGES=0), runs
 * on across the borders of tokens. Neighbouring warps have the same part of other kv heads, which
 * is the memory behind it.
 *
 * A token that lies within one part is done there. One that is cut is finished by the last of its
 * warps: each leaves its sums in memory and counts. A part has at most two cut ones, the first and
 * the last in it. Sums are added in their order, so the bits do not depend on who was last (they do
 * on where the cuts are, and so on the other contexts of the step).
 *
 * Where pages lie in shared memory is lib/attn_slot.cuh, how they are multiplied
 * lib/attn_products.cuh. Before the wait come the pages up to the first that has a newest position:
 * this step writes there.
 *
 * Invariant: positions beyond a token's own have keys and values of zero and weight zero; tokens at
 * or beyond counts->m have no pages in the list; counters are zero when all warps are done.
 */
#ifndef REGION
#define REGION 2 /* REGION_ATTN */
#endif
#ifndef M_MAX
#define M_MAX 128
#endif
#include "cuda/lib/shape.cuh"
#include "cuda/lib/stream.cuh"

/* ---- knobs -------------------------------------------------------------------------------- */

/* cuda/attn_even.def has them; whoever compiles this gives each a value. */

/* ---- legality ----------------------------------------------------------------------------- */

#define KNOB(name, role, value, values, help) static_assert((name) == (name), "has a value");
#define LEGAL(expression, why) static_assert(expression, why);
#include "cuda/attn_even.def"

/* ---- code --------------------------------------------------------------------------------- */

enum {
    HD = HEAD_DIM,
    G = HEADS / KV_HEADS,    /* query heads of a kv head */
    PIECES = HD / 8,         /* pieces of 16 bytes in the keys of a position */
    ROW = HD * 2,            /* bytes of the keys of a position */
    SIDE = KV_PAGE * ROW,    /* bytes of a page's keys (or values) for a kv head, contiguous */
    PASSES = G <= 4 ? 1 : 2, /* products for the three terms of all heads */
    CHUNKS = HD / 32,        /* chunks of 32 columns: two steps of 16 */
    THREADS = WARPS * 32,
    BLOCKS = PERSIST * SMS,
    PARTS = BLOCKS * WARPS / KV_HEADS, /* parts of the list of pages */
    SUMS = (G * (HD + 2) + 3) / 4 * 4  /* floats of a cut token's sums: o, tops, sums */
};

#include "cuda/lib/attn_share.cuh"

#include "cuda/lib/attn_products.cuh" /* multiplies what attn_share.cuh keeps */

/* ---- the end of a token's kv head ----------------------------------------------------------- */

/* A warp's sums, added up over its lanes and terms. */
__device__ __forceinline__ void settle(struct running *r)
{
#pragma unroll
    for (int o = 1; o < 4; o <<= 1)
        r->sum += __shfl_xor_sync(WARP_ALL, r->sum, o);
#pragma unroll
    for (int i = 0; i < HD / 8; i++)
#pragma unroll
        for (int j = 0; j < 2; j++)
            r->o[i][j] = of_head(r->o[i][j]);
}

/* Where a part leaves the sums of its first token, which began before it or with it, or its last.
 */
__device__ __forceinline__ float *sums_of(const struct cuda_attn_args &a, int part, int kvh,
                                          bool last)
{
    return (float *)a.work.work + (size_t)((part * KV_HEADS + kvh) * 2 + last) * SUMS;
}

/* Sums of parts first .. last of a token that begins within the first, or `with` it, to the output.
 */
__device__ __forceinline__ void merge(const struct cuda_attn_args &a, int kvh, int first, int last,
                                      bool with, const struct target &out)
{
    int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int e = lane * 4; e < G * HD; e += 128) {
        float top = -INFINITY, sum = 0, v[4] = {0, 0, 0, 0};
        for (int p = first; p <= last; p++) {
            const float *s = sums_of(a, p, kvh, p == first && !with);
            float t = __ldcg(s + G * HD + e / HD), one = __ldcg(s + G * HD + G + e / HD);
            float4 o = load_x4(s + e);
            float most = fmaxf(top, t), keep = exp2f(top - most), more = exp2f(t - most);
            top = most, sum = sum * keep + one * more;
            v[0] = v[0] * keep + o.x * more, v[1] = v[1] * keep + o.y * more;
            v[2] = v[2] * keep + o.z * more, v[3] = v[3] * keep + o.w * more;
        }
        out.put(e, make_float4(v[0] / sum, v[1] / sum, v[2] / sum, v[3] / sum));
    }
}

/* What the warp has of token t, whose pages are entries begin .. end - 1, has been added up. */
__device__ __forceinline__ void finish(const struct cuda_attn_args &a, const struct list &l,
                                       const struct pages &p, int t, struct running *r)
{
    int lane = threadIdx.x % 32, h = lane / 4, begin = l.first[t], end = l.first[t + 1];
    struct target out = target_of(a, t, p.w.kvh * G);
    settle(r);
    if (begin >= p.w.from && end <= p.w.to) { /* all of it */
        if (h < G)
            p.leave(r->o, 1 / r->sum, out, h * HD);
        return;
    }
    struct parts parts(l);
    float *mine = sums_of(a, parts.part_of(p.w.from), p.w.kvh, begin > p.w.from);
    if (h < G) {
        p.leave(r->o, 1, {mine, nullptr}, h * HD);
        if (lane % 4 == 0) {
            __stcg(mine + G * HD + h, r->top);
            __stcg(mine + G * HD + G + h, r->sum);
        }
    }
    int first = parts.part_of(begin), last = parts.part_of(end - 1), done = 0;
    unsigned *counter = &a.work.counter[t * KV_HEADS + p.w.kvh];
    __threadfence();
    __syncwarp();
    if (lane == 0) {
        done = atomicAdd(counter, 1u) == last - first;
        if (done)
            *counter = 0;
    }
    if (!__shfl_sync(WARP_ALL, done, 0))
        return;
    __threadfence();
    merge(a, p.w.kvh, first, last, parts.begin_of(first) == begin, out);
}

/* ---- entry -------------------------------------------------------------------------------- */

KERNEL __launch_bounds__(THREADS, PERSIST)
    whet_kernel(const __grid_constant__ struct cuda_attn_args a)
{
    extern __shared__ uint4 rings[];
    __shared__ struct list list;
    if (TRIGGER == 0)
        release_next();
    int live = a.counts->m;
    /* Each sequence has one token: all positions but the newest are of earlier steps. */
    bool early = EARLY && a.counts->spans == live;
    list_open(&list, a.position, live);
    __syncthreads();
    struct parts parts(list);
    int unit = blockIdx.x * WARPS + threadIdx.x / 32, part = unit / KV_HEADS, kvh = unit % KV_HEADS;
    if (part >= PARTS)
        return;
    struct pages p(queue(a, list, kvh, parts.begin_of(part), parts.begin_of(part + 1)),
                   (char *)rings);
    if (early)
        p.fill(false);
    if (TRIGGER == 1)
        release_next();

    after_previous();
    p.fill(true);
    struct queries_aside q((char *)rings + WARPS * STAGES * SLOT);
    struct running r;
    int t = -1, left = 0, end = p.w.from;
    for (int n = p.w.from; n < p.w.to; n++, left -= KV_PAGE) {
        float w[4];
        p.open();
        if (n == end || t < 0) {
            t = token_of(list, n);
            end = list.first[t + 1];
            left = a.position[t] + 1 - (n - list.first[t]) * KV_PAGE;
            begin(&r);
            q.load(a, t, kvh);
        }
        score(q, p, left, w);
        p.keys_read();
        float keep = weigh(&r, w);
        add(&r, w, keep, p);
        p.close();
        if (n + 1 == end || n + 1 == p.w.to)
            finish(a, list, p, t, &r);
    }
    if (TRIGGER == 2)
        release_next();
}

extern "C" __device__ const struct cuda_kernel_info whet_info = {
    WHET_CUDA_ABI,
    REGION_ATTN,
    M_MAX,
    0,
    1,
    M_MAX *KV_HEADS,
    (int64_t)PARTS *KV_HEADS * 2 * SUMS * 4,
    0,
    "",
    {{{BLOCKS, 1, 1}, THREADS, WARPS *(STAGES *SLOT + queries_aside::BYTES), 1, 0, 0}},
    0,
    0,
    0,
    1,
};
