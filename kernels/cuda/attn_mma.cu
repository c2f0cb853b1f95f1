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
 * Products are m16n8k16: for scores, query heads by 8 positions; for the output, the weights of
 * those heads by 8 columns of values. Scores leave the first as operand A of the second wants them.
 * As eager's, queries and weights are float, so each is three terms of bf16 (8 bits each). A head
 * needs three rows: for up to 4 heads they are rows g, g + 4 and g + 8 of one product, for up to 8
 * heads g and g + 8 of one, and g of another. Tensor cores cut sums off instead of rounding them,
 * so none stays in them for longer than 32 columns or a page: those are added up by ordinary units.
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

/* ---- products ------------------------------------------------------------------------------ */

/* Operand A of the three terms of a float: one product's, or two's. Lane (g, q) = (lane / 4, lane %
 * 4) gives two neighbours x and two y, 8 columns further, of its head: g, or g % 4. */
__device__ __forceinline__ void terms(float x0, float x1, float y0, float y1, uint4 *a)
{
    unsigned x[3], y[3];
#pragma unroll
    for (int i = 0; i < 3; i++) {
        x[i] = pack_bf16(x0, x1), y[i] = pack_bf16(y0, y1);
        x0 -= low_bf16(x[i]), x1 -= high_bf16(x[i]);
        y0 -= low_bf16(y[i]), y1 -= high_bf16(y[i]);
    }
    if (PASSES == 2) {
        a[0] = make_uint4(x[0], x[1], y[0], y[1]);
        a[PASSES - 1] = make_uint4(x[2], 0, y[2], 0);
    } else {
        bool second = threadIdx.x & 16; /* rows 4 to 7 */
        a[0] = second ? make_uint4(x[1], 0, y[1], 0) : make_uint4(x[0], x[2], y[0], y[2]);
    }
}

/* The same value of a head's other lanes: rows g and g + 4 share a head of up to 4. */
__device__ __forceinline__ float of_head(float v)
{
    return PASSES == 1 ? v + __shfl_xor_sync(WARP_ALL, v, 16) : v;
}

/* c += a b, for all terms. */
__device__ __forceinline__ void multiply(float *c, const uint4 *a, unsigned b0, unsigned b1)
{
#pragma unroll
    for (int i = 0; i < PASSES; i++)
        mma_bf16(c, a[i], b0, b1);
}

/* Sums of a warp for the lane's head: top is the same in all lanes of a head, sum is of the lane's
 * positions, o of the lane's terms. o[i]: columns 8 i + 2 q, + 1. */
struct running {
    float top, sum, o[HD / 8][2];
};

/* Queries as operand A, in base 2. Steps 2 c and 2 c + 1 are columns 32 c + 8 q .. + 7, half each,
 * so that a lane's part of the keys for both is 16 bytes. */
struct queries {
    uint4 a[HD / 16][PASSES];

    __device__ __forceinline__ void load(const struct cuda_attn_args &args, int t, int kvh)
    {
        int lane = threadIdx.x % 32, h = lane / 4 % (PASSES == 1 ? 4 : 8);
        float scale = args.scale * 1.44269504f;
        const float *from =
            args.q + ((size_t)t * HEADS + kvh * G + (h < G ? h : 0)) * HD + lane % 4 * 8;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float4 v = load_x4(from + c * 32 + i * 4);
                terms(v.x * scale, v.y * scale, v.z * scale, v.w * scale, a[2 * c + i]);
            }
    }
};

/* s: of positions 2 q, 2 q + 1, 2 q + 8, 2 q + 9 in a page; minus infinity from `left` on. */
__device__ __forceinline__ void score(const struct queries &q, const struct pages &p, int left,
                                      float *s)
{
    int first = threadIdx.x % 4 * 2;
    s[0] = s[1] = s[2] = s[3] = 0;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        uint4 k0 = p.key(c, 0), k1 = p.key(c, 1);
        float p0[4] = {0, 0, 0, 0}, p1[4] = {0, 0, 0, 0};
        multiply(p0, q.a[2 * c], k0.x, k0.y);
        multiply(p1, q.a[2 * c], k1.x, k1.y);
        multiply(p0, q.a[2 * c + 1], k0.z, k0.w);
        multiply(p1, q.a[2 * c + 1], k1.z, k1.w);
        s[0] += p0[0] + p0[2], s[1] += p0[1] + p0[3];
        s[2] += p1[0] + p1[2], s[3] += p1[1] + p1[3];
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float sum = of_head(s[i]);
        s[i] = first + i % 2 + i / 2 * 8 < left ? sum : -INFINITY;
    }
}

/* A page's scores become weights; what the sums so far still weigh. The page has a position: top is
 * a number. */
__device__ __forceinline__ float weigh(struct running *r, float *s)
{
    float top = fmaxf(fmaxf(s[0], s[1]), fmaxf(s[2], s[3]));
    top = fmaxf(top, __shfl_xor_sync(WARP_ALL, top, 1));
    top = fmaxf(r->top, fmaxf(top, __shfl_xor_sync(WARP_ALL, top, 2)));
    float keep = exp2_fast(r->top - top);
#pragma unroll
    for (int i = 0; i < 4; i++)
        s[i] = exp2_fast(s[i] - top);
    r->top = top;
    r->sum = r->sum * keep + ((s[0] + s[1]) + (s[2] + s[3]));
    return keep;
}

__device__ __forceinline__ void add(struct running *r, const float *s, float keep,
                                    const struct pages &p)
{
    uint4 a[PASSES];
    terms(s[0], s[1], s[2], s[3], a);
#pragma unroll
    for (int i = 0; i < HD / 16; i++) {
        uint4 b = p.values(i);
        float c[4] = {0, 0, 0, 0}, d[4] = {0, 0, 0, 0};
        multiply(c, a, b.x, b.y);
        multiply(d, a, b.z, b.w);
        r->o[2 * i][0] = r->o[2 * i][0] * keep + (c[0] + c[2]);
        r->o[2 * i][1] = r->o[2 * i][1] * keep + (c[1] + c[3]);
        r->o[2 * i + 1][0] = r->o[2 * i + 1][0] * keep + (d[0] + d[2]);
        r->o[2 * i + 1][1] = r->o[2 * i + 1][1] * keep + (d[1] + d[3]);
    }
}

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

__device__ __forceinline__ void begin(struct running *r)
{
    r->top = -INFINITY;
    r->sum = 0;
#pragma unroll
    for (int i = 0; i < HD / 8; i++)
        r->o[i][0] = r->o[i][1] = 0;
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
};
