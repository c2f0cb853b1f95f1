/* SPDX-License-Identifier: Apache-2.0 */
/* attn_decode.cu - attention of single tokens over paged keys and values: split-KV in one kernel.
 *
 *   a[t, h, :] = sum_p softmax_p(scale q[t, h, :] . k[p, h / G, :]) v[p, h / G, :]
 *
 * over p = 0 .. position[t].
 *
 * q, a: [M, HEADS, HEAD_DIM] float; pages: bf16 [page][KV_HEADS][KV_PAGE][HEAD_DIM]; G = HEADS /
 * KV_HEADS query heads share what is read. Bytes moved: 4 HEAD_DIM for each position and kv head.
 *
 * At short contexts this is latency, not bytes: a chain of wait, q, scores, softmax, sums, merge.
 * So each of SPLITS * WARPS units takes every so-many-th piece of a page (whatever the context is,
 * they are even), keeps its first pieces in registers from before the wait (only q and the newest
 * position depend on the previous kernel; the piece that has it is read again), takes one maximum
 * a piece and not one a position, and blocks of a sequence and head meet in a cluster:
 * each posts the others their slice of its partial sums, and finishes its own when it is all here.
 * With MERGE=0 the last block by a counter merges, for more splits than a cluster has blocks.
 * PARTS blocks can share the query heads of a kv head: they read the same keys, once from memory,
 * and multiply on more multiprocessors.
 *
 * A piece gives G * STEPS scores, each a sum over the LP lanes of a position. Lanes exchange halves
 * of what they have until each has its share (warp_sums in stream.cuh is the same idea), take its
 * exponentials once and not LP times, and pass the weights on: half the shuffles of a sum for each
 * score, and a fraction of the exponentials.
 *
 * Pages are read early only when every token of the step is its sequence's only one: otherwise
 * older positions may belong to this step as well.
 *
 * Invariant: positions beyond the token's own count as zero keys with weight zero, whatever is in
 * memory; a block of a token at or beyond counts->m leaves without touching anything.
 */
#ifndef REGION
#define REGION 2 /* REGION_ATTN */
#endif
#include "cuda/lib/shape.cuh"
#include "cuda/lib/stream.cuh"

/* ---- knobs -------------------------------------------------------------------------------- */

/* cuda/attn_decode.def has them; whoever compiles this gives each a value. */

/* ---- legality ----------------------------------------------------------------------------- */

#define KNOB(name, role, value, values, help) static_assert((name) == (name), "has a value");
#define LEGAL(expression, why) static_assert(expression, why);
#include "cuda/attn_decode.def"

/* ---- code --------------------------------------------------------------------------------- */

enum {
    HD = HEAD_DIM,
    G = HEADS / KV_HEADS / PARTS,     /* query heads of a block */
    GROUPS = KV_HEADS * PARTS,        /* of heads: blockIdx.y */
    LP = HD / 8,                      /* lanes of a position, 8 elements each */
    PP = 32 / LP,                     /* positions a warp looks at together */
    STEPS = PIECE / PP,               /* of those, in a piece */
    SCORES = power_of_two(G) * STEPS, /* of a lane before they are summed; score h * STEPS + i */
    SHARED_BY = LP > SCORES ? LP / SCORES : 1, /* lanes that end up with the same sum */
    OWN = SCORES > LP ? SCORES / LP : 1,       /* scores that a lane ends up with */
    OWN_HEADS = OWN > STEPS ? OWN / STEPS : 1, /* of which heads */
    UNITS = SPLITS * WARPS,
    THREADS = WARPS * 32
};

#include "cuda/lib/attn_merge.cuh"

/* A piece of a page: its part for this lane. */
struct piece {
    uint4 k[STEPS], v[STEPS];
};

/* Sums of a unit: top is uniform over the warp; own_top are those of the heads that the lane owns
 * scores of. */
struct running {
    float top[G], sum[G], o[G][8], own_top[OWN_HEADS];
};

/* First position of piece n of this unit: every UNITS-th is its own. */
__device__ __forceinline__ int piece_at(int unit, int n)
{
    return (unit + n * UNITS) * PIECE;
}

__device__ __forceinline__ void load_piece(const struct cuda_attn_args &a, int pages_at, int first,
                                           int kvh, int context, struct piece *g)
{
    int lane = threadIdx.x % 32;
    size_t page = a.page_table[pages_at + first / KV_PAGE];
    size_t at = (page * KV_HEADS + kvh) * KV_PAGE * HD + first % KV_PAGE * HD + lane * 8;
    const bf16 *k = (const bf16 *)a.k_pages + at, *v = (const bf16 *)a.v_pages + at;
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        bool valid = first + i * PP + lane / LP < context;
        g->k[i] = valid ? __ldcg((const uint4 *)(k + i * PP * HD)) : make_uint4(0, 0, 0, 0);
        g->v[i] = valid ? __ldcg((const uint4 *)(v + i * PP * HD)) : make_uint4(0, 0, 0, 0);
    }
}

/* Sums each of s[0..N) over the lanes whose numbers differ in the bits below 2 * OFFSET: a lane
 * gives one half away and keeps the other, and has s[0..OWN) in the end: from own_score(lane) on.
 */
template <int N, int OFFSET> __device__ __forceinline__ void spread(float *s)
{
    if constexpr (OFFSET > 0 && N > 1) {
        bool high = threadIdx.x & OFFSET;
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            float give = high ? s[i] : s[i + N / 2], keep = high ? s[i + N / 2] : s[i];
            s[i] = keep + __shfl_xor_sync(WARP_ALL, give, OFFSET);
        }
        spread<N / 2, OFFSET / 2>(s);
    } else if constexpr (OFFSET > 0) {
#pragma unroll
        for (int o = OFFSET; o > 0; o >>= 1)
            s[0] += __shfl_xor_sync(WARP_ALL, s[0], o);
    }
}

__device__ __forceinline__ int own_score(int lane)
{
    return lane % LP / SHARED_BY * OWN;
}

/* The lane that owns score n of this lane's position. */
__device__ __forceinline__ int owner(int lane, int n)
{
    return lane / LP * LP + n / OWN * SHARED_BY;
}

/* This lane's scores of a piece, in base 2; minus infinity beyond the context. */
__device__ __forceinline__ void score(const float (*q)[8], const struct piece *g, int first,
                                      int context, float *s)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        float k[8];
        expand8(g->k[i], k);
#pragma unroll
        for (int h = 0; h < SCORES / STEPS; h++) {
            float d = 0;
#pragma unroll
            for (int j = 0; j < 8 && h < G; j++)
                d += q[h < G ? h : 0][j] * k[j];
            s[h * STEPS + i] = d;
        }
    }
    spread<SCORES, LP / 2>(s);
#pragma unroll
    for (int n = 0; n < OWN; n++)
        if (first + (own_score(lane) + n) % STEPS * PP + lane / LP >= context)
            s[n] = -INFINITY;
}

/* Raises the largest score of each head, in the lanes that own some of it. */
__device__ __forceinline__ void raise(const float *s, float *own_top)
{
    constexpr int OF_HEAD = OWN < STEPS ? STEPS / OWN * SHARED_BY : 1; /* lanes */
#pragma unroll
    for (int h = 0; h < OWN_HEADS; h++) {
        float top = s[h * STEPS];
#pragma unroll
        for (int n = 1; n < OWN / OWN_HEADS; n++)
            top = fmaxf(top, s[h * STEPS + n]);
#pragma unroll
        for (int o = 1; o < 32; o <<= 1)
            if ((o >= SHARED_BY && o < OF_HEAD) || o >= LP)
                top = fmaxf(top, __shfl_xor_sync(WARP_ALL, top, o));
        own_top[h] = fmaxf(own_top[h], top); /* a piece has a position: a number */
    }
}

__device__ __forceinline__ void attend(struct running *r, const float (*q)[8],
                                       const struct piece *g, int first, int context)
{
    int lane = threadIdx.x % 32;
    float s[SCORES];
    score(q, g, first, context, s);
    raise(s, r->own_top);
#pragma unroll
    for (int n = 0; n < OWN; n++)
        s[n] = exp2f(s[n] - r->own_top[OWN > STEPS ? n / STEPS : 0]);
#pragma unroll
    for (int h = 0; h < G; h++) {
        float top = __shfl_sync(WARP_ALL, r->own_top[h % OWN_HEADS], owner(0, h * STEPS));
        float keep = exp2f(r->top[h] - top);
        r->top[h] = top;
        r->sum[h] *= keep;
#pragma unroll
        for (int j = 0; j < 8; j++)
            r->o[h][j] *= keep;
    }
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        float v[8];
        expand8(g->v[i], v);
#pragma unroll
        for (int h = 0; h < G; h++) {
            int n = h * STEPS + i;
            float p = __shfl_sync(WARP_ALL, s[n % OWN], owner(lane, n));
            r->sum[h] += p;
#pragma unroll
            for (int j = 0; j < 8; j++)
                r->o[h][j] += p * v[j];
        }
    }
}

__device__ __forceinline__ void prefetch_next(const struct cuda_attn_args &a)
{
    int block = (blockIdx.z * GROUPS + blockIdx.y) * SPLITS + blockIdx.x;
    prefetch_share(a.next, a.next_bytes, (long long)NEXT << 20, block, SPLITS * GROUPS * M_MAX);
}

/* ---- the loop ------------------------------------------------------------------------------ */

/* What a block is about: one token and G heads of a kv head; unit: which pieces are this warp's. */
struct job {
    int warp, lane, kvh, head, t, unit;
    int context, pages_at; /* 0: no such token */
};

typedef struct piece pieces[STAGES];

/* Before the wait: the pieces whose keys and values earlier steps have written, all of them if each
 * sequence has one token, and then but for the newest position, which load_late() brings. */
__device__ __forceinline__ void load_early(const struct cuda_attn_args &a, const struct job &j,
                                           pieces &g)
{
#pragma unroll
    for (int n = 0; n < STAGES; n++)
        if (piece_at(j.unit, n) < j.context)
            load_piece(a, j.pages_at, piece_at(j.unit, n), j.kvh, j.context, &g[n]);
}

__device__ __forceinline__ void load_late(const struct cuda_attn_args &a, const struct job &j,
                                          bool early, pieces &g)
{
#pragma unroll
    for (int n = 0; n < STAGES; n++) {
        int first = piece_at(j.unit, n);
        if (first < j.context && (!early || first + PIECE >= j.context))
            load_piece(a, j.pages_at, first, j.kvh, j.context, &g[n]);
    }
}

__device__ __forceinline__ void begin(const struct cuda_attn_args &a, const struct job &j,
                                      float (*q)[8], struct running *r)
{
    const float *from = a.q + ((size_t)j.t * HEADS + j.head) * HD + j.lane % LP * 8;
#pragma unroll
    for (int h = 0; h < OWN_HEADS; h++)
        r->own_top[h] = -INFINITY;
#pragma unroll
    for (int h = 0; h < G; h++) {
        *(float4 *)q[h] = load_x4(from + h * HD);
        *(float4 *)(q[h] + 4) = load_x4(from + h * HD + 4);
        r->top[h] = -INFINITY;
        r->sum[h] = 0;
#pragma unroll
        for (int i = 0; i < 8; i++)
            r->o[h][i] = 0;
    }
}

__device__ __forceinline__ void attend_all(const struct cuda_attn_args &a, const struct job &j,
                                           float (*q)[8], pieces &g, struct running *r)
{
#pragma unroll
    for (int h = 0; h < G; h++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            q[h][i] *= a.scale * 1.44269504f;
    for (int n = 0; piece_at(j.unit, n) < j.context; n += STAGES) {
#pragma unroll
        for (int s = 0; s < STAGES; s++) {
            int first = piece_at(j.unit, n + s), later = piece_at(j.unit, n + s + STAGES);
            if (first < j.context)
                attend(r, q, &g[s], first, j.context);
            if (later < j.context)
                load_piece(a, j.pages_at, later, j.kvh, j.context, &g[s]);
        }
    }
}

/* The PP positions looked at together have the same maximum: their sums add up. */
__device__ __forceinline__ void leave(const struct job &j, struct running *r, struct sums *s)
{
#pragma unroll
    for (int o = LP; o < 32; o <<= 1)
#pragma unroll
        for (int h = 0; h < G; h++) {
            r->sum[h] += __shfl_xor_sync(WARP_ALL, r->sum[h], o);
#pragma unroll
            for (int i = 0; i < 8; i++)
                r->o[h][i] += __shfl_xor_sync(WARP_ALL, r->o[h][i], o);
        }
    if (j.lane < LP)
#pragma unroll
        for (int h = 0; h < G; h++) {
            *(float4 *)&s->o[j.warp][h][j.lane * 8] = *(float4 *)r->o[h];
            *(float4 *)&s->o[j.warp][h][j.lane * 8 + 4] = *(float4 *)(r->o[h] + 4);
        }
    if (j.lane == 0)
        for (int h = 0; h < G; h++)
            s->top[j.warp][h] = r->top[h], s->sum[j.warp][h] = r->sum[h];
}

/* ---- entry -------------------------------------------------------------------------------- */

KERNEL __launch_bounds__(THREADS) whet_kernel(const __grid_constant__ struct cuda_attn_args a)
{
    __shared__ struct sums s;
    struct job j = {(int)threadIdx.x / 32, (int)threadIdx.x % 32, (int)blockIdx.y / PARTS,
                    (int)blockIdx.y * (int)G, (int)blockIdx.z};
    j.unit = j.warp * SPLITS + blockIdx.x;
    if (TRIGGER == 0)
        release_next();
    if (MERGE)
        inbox_open(&s.in, posted_bytes());
    int live = M_MAX > 1 ? a.counts->m : 1;
    /* Each sequence has one token: all positions but the newest are of earlier steps. */
    bool early = EARLY && (M_MAX == 1 || a.counts->spans == live);
    int position = a.position[j.t], pages_at = a.pages_at[j.t];
    if (j.t < live)
        j.context = position + 1, j.pages_at = pages_at;
    pieces g;
    if (early)
        load_early(a, j, g);
    if (NEXT && !NEXT_LATE)
        prefetch_next(a);
    if (TRIGGER == 1)
        release_next();
    if (MERGE)
        cluster_wait();

    after_previous();
    if (j.t >= live)
        return;
    float q[G][8];
    struct running r;
    begin(a, j, q, &r);
    load_late(a, j, early, g);
    if (NEXT && NEXT_LATE)
        prefetch_next(a);
    attend_all(a, j, q, g, &r);
    if (TRIGGER == 2)
        release_next();
    leave(j, &r, &s);
    __syncthreads();
    if (MERGE)
        merge_cluster(a, &s, j.t, j.head);
    else
        merge_last(a, &s, j.t, j.head);
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
    {{{SPLITS, GROUPS, M_MAX}, THREADS, 0, 1, MERGE ? SPLITS : 1, 0}},
    0,
    0,
    0,
    1,
};
