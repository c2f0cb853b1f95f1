/* mma_x.cuh - how mma.cu deals rows and K to clusters, blocks and warps, and how a block's part of
 * x comes into shared memory as bf16 rows. The includer has the knobs.
 */
#ifndef WHET_KERNELS_LIB_MMA_X_CUH
#define WHET_KERNELS_LIB_MMA_X_CUH

#include "lib/mma.cuh"
#include "lib/shape.cuh"
#include "lib/stream.cuh"

/* ---- who has what -------------------------------------------------------------------------- */

#define QK (AT_ATTN_IN && HAS_QK_NORM)
#define KEPT (SPLIT > 1 || QK) /* sums meet in shared memory before they are finished */

enum {
    M = M_MAX,
    NT = (M + 7) / 8,
    THREADS = WARPS * 32,
    KS = K / SPLIT, /* columns of a block */
    STEPS = KS / 32,
    ROW_TILES = ROWS_ALL / 16,
    UNITS = (ROW_TILES + TILES - 1) / TILES, /* what a warp multiplies in a pass */
    ALL_BUSY = (UNITS + WARPS - 1) / WARPS,  /* clusters, each of one pass */
    AT_MOST = PERSIST ? PERSIST * ((SMS - SPARE) / SPLIT) : ALL_BUSY,
    CLUSTERS = AT_MOST < UNITS ? AT_MOST : UNITS,
    ALL_HAVE = UNITS / CLUSTERS >= WARPS, /* every warp has a unit */
    LD = KS + 32, /* a row of x in shared memory: conflict-free in 16-byte reads */
    SLOTS = (M + SPLIT - 1) / SPLIT,
    KEPT_ROWS = (UNITS + CLUSTERS - 1) / CLUSTERS * TILES * 16,
    SMEM_X = TERMS * NT * 8 * LD * 2,
    SMEM_PART = KEPT ? SPLIT * SLOTS * KEPT_ROWS * 4 : 0,
    SMEM_STAGE = THREADS * TILES * UNROLL * STAGE * 32,
    CHAINS = TILES * NT < 4 ? 4 / (TILES * NT) : 1, /* sums of a row and token side by side */
    TURNS = (STEPS + UNROLL - 1) / UNROLL,          /* of the main loop in a pass */
    RAGGED = STEPS % UNROLL != 0                    /* and the last of them has fewer steps */
};

/* A product waits for the one before it that adds to the same sums: a warp with few tiles and
 * tokens has several of each, which are added in the end. */
typedef float tile_sums[NT][4];
typedef tile_sums all_sums[CHAINS][TILES];

/* Units are dealt to clusters as evenly as can be: what counts is how much the busiest block reads.
 * A cluster's are neighbours, and its warps take them in turn; the last may have one less, or none.
 */
struct where {
    int warp, lane, g, q, rank;
    int first, units; /* of this cluster */
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
    return tile_of(at.first + p * WARPS + at.warp);
}

/* Of this warp. */
__device__ __forceinline__ int passes_of(const struct where &at)
{
    return (at.units - at.warp + WARPS - 1) / WARPS;
}

/* This lane's first 16 bytes of a tile's part of K; a tile row is K / 32 * 64 of them. */
__device__ __forceinline__ const uint4 *tile_weights(const struct region_args &a,
                                                     const struct where &at, int tile)
{
    return (const uint4 *)a.packed + ((size_t)tile * (K / 32) + at.rank * STEPS) * 64 + at.lane;
}

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

struct extra {
    float squares[SPLIT][NT * 8]; /* of a part of x, from each block of the cluster */
    float turn[AT_ATTN_IN ? M : 1][HEAD_DIM / 2][2]; /* cosine and sine of each token */
    __align__(16) float gain[2][QK ? HEAD_DIM : 4];  /* of q and k heads */
    int kv_at[M];                                    /* -1: no token there */
};

/* An activation of token t in its TERMS rows. */
__device__ __forceinline__ void put_x(bf16 *x, int t, int i, float4 v)
{
    uint2 high = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
    *(uint2 *)(x + t * LD + i) = high;
    if (TERMS == 2)
        *(uint2 *)(x + (NT * 8 + t) * LD + i) =
            make_uint2(pack_bf16(v.x - low_bf16(high.x), v.y - high_bf16(high.x)),
                       pack_bf16(v.z - low_bf16(high.y), v.w - high_bf16(high.y)));
}

/* The block's part of x, times gain, as bf16 rows; a warp takes a token at a time. */
__device__ __forceinline__ void take(const struct region_args &a, const struct where &at, bf16 *x,
                                     struct extra *e)
{
    enum { WIDTH = 128, LOADS = (KS + WIDTH - 1) / WIDTH, BATCH = LOADS < 8 ? LOADS : 8 };
    for (int t = at.warp; t < NT * 8; t += WARPS) {
        const float *from = t < M ? input_row(a, t) + at.rank * KS : 0;
        float sum = 0;
#pragma unroll 1
        for (int s = 0; s < LOADS; s += BATCH) {
            float4 v[BATCH];
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                int i = (s + b) * WIDTH + at.lane * 4;
                v[b] = t < M && i < KS ? load_x4(from + i) : make_float4(0, 0, 0, 0);
            }
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                int i = (s + b) * WIDTH + at.lane * 4;
                if (i >= KS)
                    continue;
#if HAS_NORM
                float4 n = *(const float4 *)(a.norm + at.rank * KS + i);
                sum += v[b].x * v[b].x + v[b].y * v[b].y + v[b].z * v[b].z + v[b].w * v[b].w;
                v[b] = make_float4(v[b].x * n.x, v[b].y * n.y, v[b].z * n.z, v[b].w * n.w);
#endif
                put_x(x, t, i, v[b]);
            }
        }
        if (HAS_NORM) {
            sum = warp_sum(sum);
            if (SPLIT > 1 && at.lane < SPLIT)
                store_peer(&e->squares[at.rank][t], at.lane, sum);
            else if (SPLIT == 1 && at.lane == 0)
                e->squares[0][t] = sum;
        }
    }
}

/* 1/rms of token t's input, once every block's part of the sum of squares is here */
__device__ __forceinline__ float scale_of(const struct region_args &a, const struct extra *e, int t)
{
#if HAS_NORM
    float sum = 0;
    for (int p = 0; p < SPLIT; p++)
        sum += e->squares[p][t];
    return rsqrtf(sum / K + a.eps);
#else
    return 1.0f;
#endif
}

/* What sums of q, k and v are finished with; the previous kernel does not change it. Only positions
 * are waited for: the rest is copied meanwhile, until await_copies(). */
__device__ __forceinline__ void take_turns(const struct region_args &a, struct extra *e)
{
#if AT_ATTN_IN
    int live = a.counts->m;
    for (int i = threadIdx.x * 4; QK && i < 2 * HEAD_DIM; i += THREADS * 4)
        copy_shared(&e->gain[i / HEAD_DIM][i % HEAD_DIM],
                    (i < HEAD_DIM ? a.q_norm : a.k_norm) + i % HEAD_DIM);
    for (int i = threadIdx.x; i < M * HEAD_DIM / 2; i += THREADS) {
        int t = i / (HEAD_DIM / 2), d = i % (HEAD_DIM / 2), position = a.position[t];
        size_t from = (size_t)(t < live ? position : 0) * (HEAD_DIM / 2) + d;
        copy_word(&e->turn[t][d][0], a.rope_cos + from);
        copy_word(&e->turn[t][d][1], a.rope_sin + from);
        if (d == 0)
            e->kv_at[t] = t < live ? a.kv_at[t] : -1;
    }
#endif
}

/* Gains are a layer's own and come from memory: asked for before the weights, they are in L2 when x
 * is there. */
__device__ __forceinline__ void ask_gains(const struct region_args &a, const struct where &at)
{
#if HAS_NORM
    if (threadIdx.x == 0)
        prefetch_l2(a.norm + at.rank * KS, KS * 4);
#endif
}

#endif
