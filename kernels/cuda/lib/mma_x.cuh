/* SPDX-License-Identifier: Apache-2.0 */
/* mma_x.cuh - how mma.cu, brick_mma.cu and mma_block.cu deal rows and K to clusters, blocks and
 * warps, and how a block's part of x comes into shared memory as bf16 rows (of mma_block.cu:
 * mma_take.cuh). The includer has the knobs; with KW so many warps of a block share K.
 *
 * A step of a pass is as many columns as weights have together: 32 of bf16, 256 of a brick
 * (kernels/bricks.h). Blocks that share K have whole steps; of bricks the last may have fewer.
 */
#ifndef WHET_KERNELS_CUDA_LIB_MMA_X_CUH
#define WHET_KERNELS_CUDA_LIB_MMA_X_CUH

#include "cuda/lib/await.cuh"
#include "cuda/lib/inbox.cuh"
#include "cuda/lib/mma.cuh"
#include "cuda/lib/shape.cuh"
#define BRICKS (WTYPE != 2) /* not DTYPE_BF16 */
#if BRICKS
#include "cuda/lib/bricks.cuh"
#endif
#include "cuda/lib/stream.cuh"

/* ---- who has what -------------------------------------------------------------------------- */

#define QK (AT_ATTN_IN && HAS_QK_NORM)
#ifdef KW
#define KEPT 1 /* sums meet in shared memory before they are finished */
#else
#define KW 1
#define KEPT (SPLIT > 1 || QK)
#endif
#define SCALED (HAS_NORM && !NORMED) /* 1/rms of the input is applied to the finished sum */
/* What is rounded before its norm is lifted first, and 1/rms gives it back: of a number near the
 * smallest ones bf16 keeps fewer bits, and the second of its TERMS would have none. */
#define LIFT (SCALED ? 0x1p24f : 1.0f)

/* Columns whose activations are added up beside the products, because codes of weights are relative
 * to something (brick_scale.offset): those that have one scale. */
#if BRICKS
enum { SUMMED = brick_shape<WTYPE>::OFFSET, SUM_COLUMNS = 32 / brick_shape<WTYPE>::HALVES };
#else
enum { SUMMED = 0, SUM_COLUMNS = 32 };
#endif

/* How x comes in: a warp has every WARPS-th token. It takes AT_ONCE of them in a turn, GROUP side
 * by side, of each BATCH loads that are under way together. With NORMED a turn ends with a wait for
 * the sums of squares of the cluster's other blocks: where there are some, all tokens of the warp
 * are one turn (TOGETHER); what is not kept in registers until then (NORMED=1) is read again. */
enum {
    M = M_MAX,
    NT = (M + 7) / 8,
    THREADS = WARPS * 32,
    CHUNK = BRICKS ? 256 : 32, /* columns of a step */
    STEPS = (K / CHUNK + SPLIT - 1) / SPLIT,
    KS = STEPS * CHUNK,        /* columns of a block */
    PARTIAL = KS * SPLIT != K, /* and the last has fewer */
    ROW_TILES = ROWS_ALL / 16,
    UNITS = (ROW_TILES + TILES - 1) / TILES, /* what a warp multiplies in a pass */
    LINES = WARPS / KW,                      /* units of a block in a pass */
    ALL_BUSY = (UNITS + LINES - 1) / LINES,  /* clusters, each of one pass */
    AT_MOST = PERSIST ? PERSIST * ((SMS - SPARE) / SPLIT) : ALL_BUSY,
    CLUSTERS = AT_MOST < UNITS ? AT_MOST : UNITS,
    ALL_HAVE = UNITS / CLUSTERS >= LINES, /* every warp has a unit */
    LD = KS + 32, /* a row of x in shared memory: conflict-free in 16-byte reads */
    WIDTH = 128,  /* columns of x that a warp loads at once */
    LOADS = (KS + WIDTH - 1) / WIDTH,                            /* for a token's part */
    TOGETHER = SPLIT > 1 ? (NT * 8 + WARPS - 1) / WARPS : 1,     /* a turn's tokens with NORMED */
    FLIGHT = 8,                                                  /* loads of a lane under way */
    BATCH = NORMED == 2 || LOADS < FLIGHT ? LOADS : FLIGHT,      /* of a token */
    ALIKE = NT > 4 || NORMED ? (FLIGHT + BATCH - 1) / BATCH : 1, /* tokens, if there are as many */
    GROUP = NORMED == 2 || (NORMED && TOGETHER < ALIKE) ? TOGETHER : ALIKE,
    AT_ONCE = NORMED ? TOGETHER : GROUP,      /* tokens of a warp's turn; the last may be none */
    SLOTS = (M + SPLIT - 1) / SPLIT,          /* tokens that a block finishes */
    WARP_SLOTS = (SLOTS + WARPS - 1) / WARPS, /* and a warp, of kept logits */
    PER_REDUCE = REDUCE ? REDUCE : 1,         /* passes */
    KEPT_UNITS = REDUCE ? REDUCE * WARPS : (UNITS + CLUSTERS - 1) / CLUSTERS,
    KEPT_ROWS = KEPT_UNITS * TILES * 16,
    KEPT_LD = KEPT_ROWS + (KW > 1 ? 4 : 0), /* from one token to the next */
    SMEM_ROWS = TERMS * NT * 8 * LD * 2,
    SMEM_X = SMEM_ROWS + SUMMED * (KS / SUM_COLUMNS) * NT * 8 * 4,
    SMEM_PART = KEPT ? SPLIT * KW * SLOTS * KEPT_LD * 4 : 0,
    CHAINS =
        !BRICKS && TILES * NT < 4 ? 4 / (TILES * NT) : 1, /* sums of a row and token side by side */
    ITERATIONS = ((STEPS + KW - 1) / KW + UNROLL - 1) / UNROLL, /* of the main loop in a pass */
    RAGGED = STEPS % (KW * UNROLL) != 0 /* and the last of them has fewer steps */
};

/* A product waits for the one before it that adds to the same sums: a warp with few tiles and
 * tokens has several of each, which are added in the end. */
typedef float tile_sums[NT][4];
typedef tile_sums all_sums[CHAINS][TILES];

/* Units are dealt to clusters as evenly as can be: what counts is how much the busiest block reads.
 * A cluster's are neighbours, and its warps take them in turn; the last may have one less, or none.
 */
struct where {
    int warp, lane, g, q; /* g, q: lib/mma.cuh */
    int rank;             /* of the block in its cluster: which part of K it has */
    int first, units;     /* of this cluster */
};

__device__ __forceinline__ struct where place(void)
{
    struct where at = {(int)threadIdx.x / 32, (int)threadIdx.x % 32, (int)threadIdx.x % 32 / 4,
                       (int)threadIdx.x % 4, (int)blockIdx.x % SPLIT};
    int cluster = blockIdx.x / SPLIT;
    at.first = cluster * UNITS / CLUSTERS;
    at.units = (cluster + 1) * UNITS / CLUSTERS - at.first;
    return at;
}

/* The first row tile of a unit; the last unit is moved back to end at the last row. */
__device__ __forceinline__ int tile_of(int unit)
{
    return min(unit * TILES, ROW_TILES - TILES);
}

/* First row tile of this warp in pass p. */
__device__ __forceinline__ int first_tile(const struct where &at, int p)
{
    return tile_of(at.first + p * LINES + at.warp / KW);
}

/* Of this warp. */
__device__ __forceinline__ int passes_of(const struct where &at)
{
    return (at.units - at.warp / KW + LINES - 1) / LINES;
}

/* Steps that this block has of a row. */
__device__ __forceinline__ int steps_of(const struct where &at)
{
    return PARTIAL ? min((int)STEPS, K / CHUNK - at.rank * STEPS) : STEPS;
}

/* Whether column c of this block's part is in the row. */
__device__ __forceinline__ bool inside(const struct where &at, int c)
{
    return c < (PARTIAL ? steps_of(at) * CHUNK : KS);
}

#if BRICKS
typedef const char *weights;

/* The first brick of a tile's part of K. */
__device__ __forceinline__ weights tile_weights(const struct region_args &a, const struct where &at,
                                                int tile)
{
    return (const char *)a.w + ((size_t)tile * (K / CHUNK) + at.rank * STEPS) * brick_bytes(WTYPE);
}
#else
typedef const uint4 *weights;

/* This lane's first 16 bytes of a tile's part of K; a tile row is K / 32 * 64 of them. */
__device__ __forceinline__ weights tile_weights(const struct region_args &a, const struct where &at,
                                                int tile)
{
    return (const uint4 *)a.packed + ((size_t)tile * (K / 32) + at.rank * STEPS) * 64 + at.lane;
}
#endif

/* ---- x ------------------------------------------------------------------------------------- */

__device__ __forceinline__ const float *input_row(const struct region_args &a, int t)
{
#if AT_OUT
    return a.in + (size_t)t * K;
#elif AT_HEAD
    return a.x + (size_t)a.row[min(t, a.counts->rows - 1)] * K;
#else
    return a.x + (size_t)t * K;
#endif
}

/* rotation and kv_at are of the tokens that this block finishes, t % SPLIT of its rank, at t /
 * SPLIT.
 */
struct extra {
    float squares[SPLIT][NT * 8]; /* of a part of x, from each block of the cluster */
    float rotation[AT_ATTN_IN ? SLOTS : 1][HEAD_DIM / 2][2]; /* cosine and sine of a token */
    __align__(16) float gain[2][QK ? HEAD_DIM : 4];          /* of q and k heads */
    int kv_at[SLOTS];                                        /* -1: no token there */
    inbox in;                                                /* NORMED without MEET: for squares */
};

/* Where column i, a multiple of four, lies in its row: a lane's eight of 32 columns are neighbours,
 * and of bricks those are two fours, 16 columns apart. */
__device__ __forceinline__ int row_place(int i)
{
    return BRICKS ? i / 32 * 32 + i / 4 % 4 * 8 + i / 16 % 2 * 4 : i;
}

/* Sums of token t over SUM_COLUMNS, rounded as they are multiplied: behind the rows. `v` are the
 * four from column i on; the lanes of a warp have neighbouring fours. */
__device__ __forceinline__ void put_sum(bf16 *x, int t, int i, uint2 v)
{
    float sum = (low_bf16(v.x) + high_bf16(v.x)) + (low_bf16(v.y) + high_bf16(v.y));
#pragma unroll
    for (int o = 1; o < SUM_COLUMNS / 4; o *= 2)
        sum += __shfl_xor_sync(WARP_ALL, sum, o);
    if (i % SUM_COLUMNS == 0)
        ((float *)((char *)x + SMEM_ROWS))[i / SUM_COLUMNS * (NT * 8) + t] = sum;
}

/* An activation of token t in its TERMS rows. */
__device__ __forceinline__ void put_x(bf16 *x, int t, int c, float4 v)
{
    uint2 high = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
    int i = row_place(c);
    *(uint2 *)(x + t * LD + i) = high;
    if (SUMMED)
        put_sum(x, t, c, high);
    if (TERMS == 2)
        *(uint2 *)(x + (NT * 8 + t) * LD + i) =
            make_uint2(pack_bf16(v.x - low_bf16(high.x), v.y - high_bf16(high.x)),
                       pack_bf16(v.z - low_bf16(high.y), v.w - high_bf16(high.y)));
}

/* 1/rms of token t's input over LIFT, once every block's part of the sum of squares is here, which
 * is awaited with MEET: by who got them (give_squares()). */
__device__ __forceinline__ float scale_of(const struct region_args &a, const struct extra *e, int t)
{
#if HAS_NORM
    float sum = 0, part[SPLIT];
    if (MEET)
        await_all(part, &e->squares[0][t], NT * 8);
    for (int p = 0; p < SPLIT; p++)
        sum += MEET ? part[p] : e->squares[p][t];
    return rsqrtf(sum / K + a.eps) * (1 / LIFT);
#else
    return 1.0f;
#endif
}

/* Of GROUP tokens, WARPS apart, the part of x that BATCH loads bring to this lane. */
typedef float4 group[GROUP][BATCH];

/* This lane's columns of load i of a token's part: four from here on, none at or beyond KS. */
__device__ __forceinline__ int column(const struct where &at, int i)
{
    return i * WIDTH + at.lane * 4;
}

/* Where the parts of a group's tokens begin; null beyond the last token. */
__device__ __forceinline__ void find_group(const struct region_args &a, const struct where &at,
                                           int first, const float **from)
{
#pragma unroll
    for (int s = 0; s < GROUP; s++) {
        int t = first + s * WARPS;
        from[s] = t < M ? input_row(a, t) + at.rank * KS : 0;
    }
}

__device__ __forceinline__ void load_group(const struct where &at, const float *const *from, int i,
                                           group &v)
{
#pragma unroll
    for (int b = 0; b < GROUP * BATCH; b++) {
        const float *p = from[b / BATCH];
        int c = column(at, i + b % BATCH);
        v[b / BATCH][b % BATCH] = p && inside(at, c) ? load_x4(p + c) : make_float4(0, 0, 0, 0);
    }
}

/* Puts load b, which is the row's load i, times r and gain where it belongs; in eager's order. */
__device__ __forceinline__ void put_load(const struct region_args &a, const struct where &at,
                                         bf16 *x, int first, int i, const group &v, int b,
                                         const float *r)
{
    int to = column(at, i);
    if (!inside(at, to)) /* of bricks: a whole warp */
        return;
    float4 g = make_float4(1, 1, 1, 1);
#if HAS_NORM
    g = *(const float4 *)(a.norm + at.rank * KS + to);
#endif
#pragma unroll
    for (int s = 0; s < GROUP; s++) {
        float f = NORMED ? r[s] : LIFT;
        float4 p = v[s][b];
        p = make_float4(p.x * f * g.x, p.y * f * g.y, p.z * f * g.z, p.w * f * g.w);
        if (AT_ONCE == 1 || first + s * WARPS < NT * 8)
            put_x(x, first + s * WARPS, to, p);
    }
}

__device__ __forceinline__ void add_squares(const group &v, int b, float *sum)
{
#pragma unroll
    for (int s = 0; s < GROUP; s++) {
        float4 p = v[s][b];
        sum[s] += p.x * p.x + p.y * p.y + p.z * p.z + p.w * p.w;
    }
}

/* The tokens' sums of squares, of which this lane has sum[], to all blocks of the cluster; with
 * MEET to those that await them. */
__device__ __forceinline__ void give_squares(const struct where &at, struct extra *e, int first,
                                             const float *sum)
{
#pragma unroll
    for (int s = 0; s < GROUP; s++) {
        int t = first + s * WARPS;
        if (AT_ONCE > 1 && t >= NT * 8)
            continue;
        float all = warp_sum(sum[s]), *to = &e->squares[at.rank][t];
        if (SPLIT == 1 && at.lane == 0)
            *to = all;
        else if (MEET && at.lane < SPLIT) {
            if (NORMED || (at.lane == t % SPLIT && t < M))
                send(peer_of(to, at.lane), all);
        } else if (SPLIT > 1 && at.lane < SPLIT && NORMED)
            post(to, &e->in, at.lane, all);
        else if (SPLIT > 1 && at.lane < SPLIT)
            store_peer(to, at.lane, all);
    }
}

/* Brings a group's part of x: its squares are summed, and without NORMED that is all. */
__device__ __forceinline__ void take_group(const struct region_args &a, const struct where &at,
                                           bf16 *x, struct extra *e, int first, group &v)
{
    const float *from[GROUP];
    float sum[GROUP] = {};
    find_group(a, at, first, from);
#pragma unroll 1
    for (int i = 0; i < LOADS; i += BATCH) {
        load_group(at, from, i, v);
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            add_squares(v, b, sum);
            if (!NORMED)
                put_load(a, at, x, first, i + b, v, b, 0);
        }
    }
    if (HAS_NORM)
        give_squares(at, e, first, sum);
}

/* A group whose sums of squares are here: rounded behind its norm, as eager does. */
__device__ __forceinline__ void norm_group(const struct region_args &a, const struct where &at,
                                           bf16 *x, const struct extra *e, int first, group &v)
{
    const float *from[GROUP];
    float r[GROUP];
    find_group(a, at, first, from);
#pragma unroll
    for (int s = 0; s < GROUP; s++)
        r[s] = scale_of(a, e, min(first + s * WARPS, NT * 8 - 1));
#pragma unroll 1
    for (int i = 0; i < LOADS; i += BATCH) {
        if (NORMED == 1)
            load_group(at, from, i, v);
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            put_load(a, at, x, first, i + b, v, b, r);
    }
}

/* The block's part of x, times gain, as bf16 rows; a warp has the tokens that come every WARPS.
 * NORMED: what a row is divided by must be known before it is rounded. Where K is in parts, all
 * tokens of a warp wait for that at once. */
__device__ __forceinline__ void take(const struct region_args &a, const struct where &at, bf16 *x,
                                     struct extra *e)
{
    group v;
    for (int first = at.warp; first < NT * 8; first += AT_ONCE * WARPS) {
#pragma unroll 1
        for (int s = 0; s < AT_ONCE; s += GROUP)
            take_group(a, at, x, e, first + s * WARPS, v);
        if (!NORMED)
            continue;
        if (SPLIT > 1 && !MEET)
            inbox_wait(&e->in);
        __syncwarp();
#pragma unroll 1
        for (int s = 0; s < AT_ONCE; s += GROUP)
            norm_group(a, at, x, e, first + s * WARPS, v);
    }
}

/* What sums of q, k and v are finished with; the previous kernel does not change it. Only positions
 * are waited for: the rest is copied meanwhile, until await_copies(). */
__device__ __forceinline__ void take_turns(const struct region_args &a, const struct where &at,
                                           struct extra *e)
{
#if AT_ATTN_IN
    int live = a.counts->m;
    for (int i = threadIdx.x * 4; QK && i < 2 * HEAD_DIM; i += THREADS * 4)
        copy_shared(&e->gain[i / HEAD_DIM][i % HEAD_DIM],
                    (i < HEAD_DIM ? a.q_norm : a.k_norm) + i % HEAD_DIM);
    for (int i = threadIdx.x; i < SLOTS * HEAD_DIM / 2; i += THREADS) {
        int slot = i / (HEAD_DIM / 2), d = i % (HEAD_DIM / 2), t = slot * SPLIT + at.rank;
        int position = a.position[min(t, M - 1)];
        size_t from = (size_t)(t < live ? position : 0) * (HEAD_DIM / 2) + d;
        copy_word(&e->rotation[slot][d][0], a.rope_cos + from);
        copy_word(&e->rotation[slot][d][1], a.rope_sin + from);
        if (d == 0)
            e->kv_at[slot] = t < live ? a.kv_at[t] : -1;
    }
#endif
}

/* Gains are a layer's own and come from memory: asked for before the weights, they are in L2 when x
 * is there. */
__device__ __forceinline__ void ask_gains(const struct region_args &a, const struct where &at)
{
#if HAS_NORM
    if (threadIdx.x == 0)
        prefetch_l2(a.norm + at.rank * KS, (PARTIAL ? steps_of(at) * CHUNK : KS) * 4);
#endif
}

#endif
