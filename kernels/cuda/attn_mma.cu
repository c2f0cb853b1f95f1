/* SPDX-License-Identifier: Apache-2.0 */
/* attn_mma.cu - attention of single tokens over paged keys and values on tensor cores: for many
 * sequences and long contexts.
 *
 *   a[t, h, :] = sum_p softmax_p(scale q[t, h, :] . k[p, h / G, :]) v[p, h / G, :]
 *
 * over p = 0 .. position[t].
 *
 * q, a: [M, HEADS, HEAD_DIM] float; pages: bf16 [page][KV_HEADS][KV_PAGE][HEAD_DIM]; G = HEADS /
 * KV_HEADS query heads share what is read. Bytes moved: 4 HEAD_DIM for each position and kv head.
 *
 * attn_decode.cu has ordinary units multiply what lies in registers: about 90 instructions a
 * position with four query heads and 128 columns, which with many sequences takes as long as the
 * bytes. Here the 16 positions of a page take about 390, with tensor cores. A block is a token, a
 * kv head and one of SPLITS; its warps take every so-many-th page, and nothing in the loop waits
 * for another warp. Where pages wait and how they are read is lib/attn_pages.cuh: each warp has a
 * ring of STAGES of them in shared memory, filled before the wait, or one in registers.
 *
 * Into the ring every 16 bytes are copied by themselves (cp.async) and not a page in bulk: then
 * their place can be chosen. Piece c of row r lies at c ^ swizzle(r), which makes both ways of
 * reading free of bank conflicts: 4 neighbouring pieces of rows 2i and 2i + 1 (keys), and one piece
 * of 8 rows (values). Rows beyond the newest position are filled with zeros, not with what is in
 * memory, which times a weight of zero might be NaN. Before the wait the page of that position is
 * left out: it is the only one that this step writes to, if each sequence has one token in it.
 *
 * How a page is multiplied: lib/attn_products.cuh.
 *
 * Invariant: positions beyond the token's own have keys and values of zero and weight zero; a slot
 * is copied into only when all lanes have read what was in it, and what is in it is read when every
 * lane's copies have come; no copy outlives its block. A block of a token at or beyond counts->m
 * leaves without touching anything.
 */
#ifndef REGION
#define REGION 2 /* REGION_ATTN */
#endif
#ifndef M_MAX
#define M_MAX 8
#endif
#include "cuda/lib/mma.cuh"
#include "cuda/lib/shape.cuh"
#include "cuda/lib/stream.cuh"

/* ---- knobs -------------------------------------------------------------------------------- */

/* cuda/attn_mma.def has them; whoever compiles this gives each a value. */

/* ---- legality ----------------------------------------------------------------------------- */

#define KNOB(name, role, value, values, help) static_assert((name) == (name), "has a value");
#define LEGAL(expression, why) static_assert(expression, why);
#include "cuda/attn_mma.def"

/* ---- code --------------------------------------------------------------------------------- */

enum {
    HD = HEAD_DIM,
    G = HEADS / KV_HEADS,    /* query heads of a block */
    GROUPS = KV_HEADS,       /* of heads: blockIdx.y */
    PIECES = HD / 8,         /* of 16 bytes: a position's keys */
    ROW = HD * 2,            /* bytes of that */
    SIDE = KV_PAGE * ROW,    /* of a page's keys for a kv head, or values: one piece of memory */
    PASSES = G <= 4 ? 1 : 2, /* products for the three terms of all heads */
    CHUNKS = HD / 32,        /* of columns: two steps of 16 */
    UNITS = SPLITS * WARPS,
    THREADS = WARPS * 32
};

#include "cuda/lib/attn_merge.cuh"
#include "cuda/lib/attn_pages.cuh"
#include "cuda/lib/attn_products.cuh"

/* ---- the loop ------------------------------------------------------------------------------ */

__device__ __forceinline__ void attend(struct pages &p, const struct queries &q, struct running *r)
{
    for (int n = 0; n < p.w.pages; n++) {
        float s[4];
        p.open(n);
        score(q, p, p.w.left_at(n), s);
        p.keys_read(n);
        float keep = weigh(r, s);
        add(r, s, keep, p);
        p.close(n);
    }
}

/* The warp's sums to where its block's meet. */
__device__ __forceinline__ void leave(struct running *r, const struct pages &p, struct sums *s)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, h = lane / 4;
#pragma unroll
    for (int o = 1; o < 4; o <<= 1)
        r->sum += __shfl_xor_sync(WARP_ALL, r->sum, o);
#pragma unroll
    for (int i = 0; i < HD / 8; i++)
#pragma unroll
        for (int j = 0; j < 2; j++)
            r->o[i][j] = of_head(r->o[i][j]);
    if (h >= G)
        return;
    p.leave(r->o, s->o[warp][h]);
    if (lane % 4 == 0)
        s->top[warp][h] = r->top, s->sum[warp][h] = r->sum;
}

/* ---- entry -------------------------------------------------------------------------------- */

KERNEL __launch_bounds__(THREADS) whet_kernel(const __grid_constant__ struct cuda_attn_args a)
{
    extern __shared__ uint4 rings[];
    __shared__ __align__(16) struct sums s;
    int warp = threadIdx.x / 32, kvh = blockIdx.y, t = blockIdx.z;
    if (TRIGGER == 0)
        release_next();
    if (MERGE)
        inbox_open(&s.in, posted_bytes());
    int live = M_MAX > 1 ? a.counts->m : 1;
    /* Each sequence has one token: all positions but the newest are of earlier steps. */
    bool early = EARLY && (M_MAX == 1 || a.counts->spans == live);
    int position = a.position[t], pages_at = a.pages_at[t]; /* anything beyond `live` */
    int context = t < live ? position + 1 : 0;
    struct pages p(walk(a, kvh, warp * SPLITS + blockIdx.x, context, pages_at), (char *)rings);
    if (early)
        p.fill(false);
    if (TRIGGER == 1)
        release_next();
    if (MERGE)
        cluster_wait();

    after_previous();
    if (t >= live)
        return;
    if (early)
        p.complete();
    else
        p.fill(true);
    struct queries q;
    struct running r;
    begin(&r);
    q.load(a, t, kvh);
    attend(p, q, &r);
    if (TRIGGER == 2)
        release_next();
    leave(&r, p, &s);
    __syncthreads();
    if (MERGE)
        merge_cluster(a, &s, t, kvh * G);
    else
        merge_last(a, &s, t, kvh * G);
}

extern "C" __device__ const struct cuda_kernel_info whet_info = {
    WHET_CUDA_ABI,
    REGION_ATTN,
    M_MAX,
    0,
    1,
    MERGE_COUNTERS,
    MERGE_BYTES,
    0,
    "",
    {{{SPLITS, GROUPS, M_MAX}, THREADS, WARPS *STAGES * 2 * SIDE, 1, MERGE ? SPLITS : 1, 0}},
    0,
    0,
    0,
    1,
};
