/* mma.cu - projections of 2 to 32 tokens on tensor cores, weights as operand A, tokens as columns.
 *
 * The regions and their maths are gemv.cu's. Weights are kept in the order in which lanes need them
 * (lib/mma.cuh): they go from memory to registers in 16-byte loads and never touch shared memory,
 * and the first ones are in flight before the wait. Activations are rounded to bf16 (relative error
 * 2^-9 each) and lie in shared memory as plain rows; with TERMS=2 each is the sum of two (2^-17),
 * and every weight is multiplied twice: where one channel is a thousand times the others, its
 * rounding is the error of the whole row. Bytes moved: the weights once, x once a block.
 *
 * x is what a block has to wait for, M K floats, and it would be read by every block: so SPLIT
 * blocks of a cluster share K, and each reads its part only. Their partial sums meet in shared
 * memory: token t belongs to block t % SPLIT, which the others store theirs to; one cluster barrier
 * at the end, after all of a block's tiles. For q/k norm a cluster owns a head.
 *
 * Norm: x * gain is multiplied; 1/rms(x) is applied to the finished sum. Residual: it is where the
 * sum starts.
 *
 * Invariant: as in gemv.cu. Tokens at or beyond counts->m are computed from whatever is there and
 * reach no page; the last group repeats the last tile.
 */
#include "lib/mma.cuh"
#include "lib/shape.cuh"
#include "lib/stream.cuh"

/* ---- knobs -------------------------------------------------------------------------------- */

#ifndef TILES
#define TILES 1
#endif
#ifndef UNROLL
#define UNROLL 4
#endif
#ifndef WARPS
#define WARPS 8
#endif
#ifndef SPLIT
#define SPLIT 2
#endif
#ifndef PERSIST
#define PERSIST 1
#endif
#ifndef TRIGGER
#define TRIGGER 1
#endif
#ifndef TERMS
#define TERMS 1
#endif
#ifndef STAGE
#define STAGE 0
#endif
#ifndef PREFETCH
#define PREFETCH 0
#endif
#ifndef LOAD
#define LOAD 0
#endif

/* ---- legality ----------------------------------------------------------------------------- */

#define LEGAL(expression, why) static_assert(expression, why);
#include "mma.def"

/* ---- code --------------------------------------------------------------------------------- */

#define QK (AT_ATTN_IN && HAS_QK_NORM)
#define KEPT (SPLIT > 1 || QK) /* sums meet in shared memory before they are finished */

enum {
    M = M_MAX,
    NT = (M + 7) / 8,
    THREADS = WARPS * 32,
    KS = K / SPLIT, /* columns of a block */
    STEPS = KS / 32,
    GROUP = WARPS * TILES, /* row tiles of a block at a time */
    ROW_TILES = ROWS_ALL / 16,
    GROUPS = (ROW_TILES + GROUP - 1) / GROUP,
    CLUSTERS = PERSIST && PERSIST * SMS / SPLIT < GROUPS ? PERSIST * SMS / SPLIT : GROUPS,
    PASSES = (GROUPS + CLUSTERS - 1) / CLUSTERS,
    LD = KS + 32, /* a row of x in shared memory: conflict-free in 16-byte reads */
    SLOTS = (M + SPLIT - 1) / SPLIT,
    KEPT_ROWS = PASSES * GROUP * 16,
    SMEM_X = TERMS * NT * 8 * LD * 2,
    SMEM_PART = KEPT ? SPLIT * SLOTS * KEPT_ROWS * 4 : 0,
    SMEM_STAGE = THREADS * TILES * UNROLL * STAGE * 32,
    TURNS = STEPS / UNROLL /* of the main loop in a pass */
};

struct where {
    int warp, lane, g, q, rank, cluster;
};

/* First row tile of this warp in pass p. */
__device__ __forceinline__ int first_tile(const struct where &at, int p)
{
    int tile = (at.cluster + p * CLUSTERS) * GROUP + at.warp * TILES;
    return min(tile, ROW_TILES - TILES);
}

__device__ __forceinline__ int passes_of(const struct where &at)
{
    return (GROUPS - at.cluster + CLUSTERS - 1) / CLUSTERS;
}

/* This lane's first 16 bytes of a tile's part of K; a tile row is K / 32 * 64 of them. */
__device__ __forceinline__ const uint4 *tile_weights(const struct region_args &a,
                                                     const struct where &at, int tile)
{
    return (const uint4 *)a.packed + ((size_t)tile * (K / 32) + at.rank * STEPS) * 64 + at.lane;
}

/* Where turn t > 0 of the first STAGE after the first waits in shared memory, this lane's part. */
__device__ __forceinline__ uint4 *staged(char *shared, int t, int u, int r, int s)
{
    return (uint4 *)(shared + SMEM_X + SMEM_PART) +
           ((((t - 1) * UNROLL + u) * TILES + r) * 2 + s) * THREADS + threadIdx.x;
}

/* Copies the turns that follow the first, of this pass and the next ones. */
__device__ __forceinline__ void stage(const struct region_args &a, char *shared,
                                      const struct where &at)
{
    int passes = passes_of(at);
#pragma unroll
    for (int t = 1; t <= STAGE; t++) {
        if (t / TURNS >= passes)
            return;
        const uint4 *w = tile_weights(a, at, first_tile(at, t / TURNS)) + t % TURNS * UNROLL * 64;
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
#pragma unroll
            for (int r = 0; r < TILES; r++)
#pragma unroll
                for (int s = 0; s < 2; s++)
                    copy_weight<0>(staged(shared, t, u, r, s),
                                w + (size_t)r * (K * 2) + (u * 2 + s) * 32);
    }
}

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

/* ---- finishing a sum ----------------------------------------------------------------------- */

#if AT_ATTN_IN
/* An element of q, k or v, normed if it is to be, whose pair's other element is `other`. */
__device__ __forceinline__ void put_qkv(const struct region_args &a, const struct extra *e, int row,
                                        int t, float v, float other)
{
    int head = row / HEAD_DIM, d = row % HEAD_DIM;
    if (head < HEADS + KV_HEADS) {
        float c = e->turn[t][d / 2][0], s = e->turn[t][d / 2][1];
        v = d & 1 ? v * c + other * s : v * c - other * s;
    }
    if (head < HEADS) {
        a.q[(size_t)t * (HEADS * HEAD_DIM) + row] = v;
    } else if (e->kv_at[t] >= 0) {
        bf16 *pages = (bf16 *)(head < HEADS + KV_HEADS ? a.k_pages : a.v_pages);
        int kvh = (head - HEADS) % KV_HEADS, at = e->kv_at[t];
        size_t slot = ((size_t)(at / KV_PAGE) * KV_HEADS + kvh) * KV_PAGE + at % KV_PAGE;
        pages[slot * HEAD_DIM + d] = to_bf16(v);
    }
}
#endif

/* Writes the sum of (row, t); `other` is that of row ^ 1. */
__device__ __forceinline__ void finish(const struct region_args &a, const struct extra *e, int row,
                                       int t, float v, float other, unsigned long long *best)
{
    if (t >= M)
        return;
#if AT_ATTN_IN
#if HAS_BIAS
    v += a.bias[row];
    other += a.bias[row ^ 1];
#endif
    put_qkv(a, e, row, t, v, other);
#elif AT_MLP_IN
    if (row % 2 == 0)
        a.h[(size_t)t * FFN + row / 2] = silu(v) * other;
#elif AT_HEAD
    if (t < a.counts->rows) {
        unsigned long long rank = rank_of(v, row);
        a.logits[(size_t)t * VOCAB + row] = v;
        *best = rank > *best ? rank : *best;
    }
#else
    a.y[(size_t)t * ROWS_ALL + row] = v;
#endif
}

/* Where sums start: with the residual, in the first block of a cluster. */
__device__ __forceinline__ void begin_sums(const struct region_args &a, const struct where &at,
                                           int tile, float (*c)[NT][4])
{
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                c[r][n][j] = 0;
#if AT_OUT
                int row = (tile + r) * 16 + at.g + j / 2 * 8, t = n * 8 + 2 * at.q + j % 2;
                if (t < M && (SPLIT == 1 || at.rank == 0))
                    c[r][n][j] = __ldcg(a.x + (size_t)t * ROWS_ALL + row);
#endif
            }
}

/* A pass's sums: finished here, or kept in the shared memory of the token's block. */
__device__ __forceinline__ void end_sums(const struct region_args &a, const struct where &at,
                                         const struct extra *e, float *part, int p, int tile,
                                         const float (*c)[NT][4], const float (*scale)[2],
                                         unsigned long long (*best)[2])
{
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int t = n * 8 + 2 * at.q + j % 2, local = at.g + j / 2 * 8;
                if (KEPT) {
                    int kept = (p * GROUP + at.warp * TILES + r) * 16 + local;
                    float *to = part + ((size_t)at.rank * SLOTS + t / SPLIT) * KEPT_ROWS + kept;
                    if (t < M && SPLIT > 1)
                        store_peer(to, t % SPLIT, c[r][n][j]);
                    else if (t < M)
                        *to = c[r][n][j];
                } else {
                    float v = c[r][n][j] * (HAS_NORM ? scale[n][j % 2] : 1.0f);
                    float other = AT_OUT || AT_HEAD ? 0 : __shfl_xor_sync(WARP_ALL, v, 4);
                    finish(a, e, (tile + r) * 16 + local, t, v, other, &best[n][j % 2]);
                }
            }
}

/* The sum of four neighbouring kept rows over the cluster's blocks. */
__device__ __forceinline__ float4 kept_sum(const float *part, int slot, int row)
{
    float4 v = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int p = 0; p < SPLIT; p++) {
        float4 b = *(const float4 *)(part + ((size_t)p * SLOTS + slot) * KEPT_ROWS + row);
        v.x += b.x, v.y += b.y, v.z += b.z, v.w += b.w;
    }
    return v;
}

/* All sums of the tokens that belong to this block. A thread takes four rows of a token; with q/k
 * norm a warp takes a head. */
__device__ __forceinline__ void finish_kept(const struct region_args &a, const struct where &at,
                                            const struct extra *e, const float *part)
{
    int rows = passes_of(at) * GROUP * 16;
    for (int i = threadIdx.x; i < SLOTS * (rows / 4); i += THREADS) {
        int slot = i / (rows / 4), kept = i % (rows / 4) * 4, t = slot * SPLIT + at.rank;
        int group = kept / (GROUP * 16), tile = (at.cluster + group * CLUSTERS) * GROUP;
        int local = kept % (GROUP * 16), warp_tile = tile + local / (TILES * 16) * TILES;
        int row = min(warp_tile, ROW_TILES - TILES) * 16 + local % (TILES * 16);
        float4 s = kept_sum(part, slot, kept);
        float f = t < M ? scale_of(a, e, t) : 0, v[4] = {s.x * f, s.y * f, s.z * f, s.w * f};
#if AT_ATTN_IN && HAS_QK_NORM
        int head = row / HEAD_DIM;
        if (head < HEADS + KV_HEADS) {
            float sum = v[0] * v[0] + v[1] * v[1] + v[2] * v[2] + v[3] * v[3];
#pragma unroll
            for (int o = HEAD_DIM / 8; o > 0; o >>= 1)
                sum += __shfl_xor_sync(WARP_ALL, sum, o);
            const float *gain = e->gain[head >= HEADS] + row % HEAD_DIM;
            float norm = rsqrtf(sum / HEAD_DIM + a.eps);
            for (int j = 0; j < 4; j++)
                v[j] *= norm * gain[j];
        }
#endif
        for (int j = 0; j < 4; j++)
            finish(a, e, row + j, t, v[j], v[j ^ 1], 0);
    }
}

/* ---- the stream ---------------------------------------------------------------------------- */

typedef uint4 fragments[TILES][UNROLL][2]; /* of a turn: what a lane has in flight */

__device__ __forceinline__ void load_first(fragments &buffer, const uint4 *w)
{
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
#pragma unroll
        for (int r = 0; r < TILES; r++)
#pragma unroll
            for (int s = 0; s < 2; s++)
                buffer[r][u][s] = load_weight<LOAD>(w + (size_t)r * (K * 2) + (u * 2 + s) * 32);
}

/* What is not in flight yet of the first passes, into L2. */
__device__ __forceinline__ void prefetch_passes(const struct region_args &a, const struct where &at)
{
    int passes = min(passes_of(at), PREFETCH);
    if (at.lane >= TILES)
        return;
    for (int p = 0; p < passes; p++) {
        int skip = p == 0 ? min(UNROLL * (STAGE + 1), (int)STEPS) * 1024 : 0;
        const char *from =
            (const char *)(tile_weights(a, at, first_tile(at, p) + at.lane) - at.lane);
        if (skip < STEPS * 1024)
            prefetch_l2(from + skip, STEPS * 1024 - skip);
    }
}

/* c += W x over one pass. Registers that become free are loaded with the next turn that is not
 * staged. xp: this lane's first activations; w and next: this and the next pass's weights. */
__device__ __forceinline__ void multiply_pass(const struct region_args &a, const struct where &at,
                                              char *shared, const bf16 *xp, fragments &buffer,
                                              int p, int passes, const uint4 *w, const uint4 *next,
                                              float (*c)[NT][4])
{
#pragma unroll 1
    for (int k = 0; k < STEPS; k += UNROLL) {
        int t = p * TURNS + k / UNROLL; /* of the block's turns */
        bool more = p + 1 < passes, waits = STAGE && t > 0 && t <= STAGE;
        int kn = k + (STAGE && t == 0 ? STAGE + 1 : 1) * UNROLL, later = STAGE ? kn / STEPS : 0;
        const uint4 *from = kn < STEPS ? w + kn * 64 : next;
        bool refill = kn < STEPS || more;
        if (STAGE) {
            refill = !waits && p + later < passes;
            if (later > 1 && refill)
                from = tile_weights(a, at, first_tile(at, p + later));
            if (later > 0)
                from += kn % STEPS * 64;
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            uint4 b[TERMS * NT];
#pragma unroll
            for (int n = 0; n < TERMS * NT; n++)
                b[n] = *(const uint4 *)(xp + n * 8 * LD + (k + u) * 32);
#pragma unroll
            for (int r = 0; r < TILES; r++) {
                uint4 w0 = buffer[r][u][0], w1 = buffer[r][u][1];
                if (waits) {
                    w0 = load_staged(staged(shared, t, u, r, 0));
                    w1 = load_staged(staged(shared, t, u, r, 1));
                }
#pragma unroll
                for (int n = 0; n < TERMS * NT; n++) {
                    mma_bf16(c[r][n % NT], w0, b[n].x, b[n].y);
                    mma_bf16(c[r][n % NT], w1, b[n].z, b[n].w);
                }
                if (refill)
#pragma unroll
                    for (int s = 0; s < 2; s++)
                        buffer[r][u][s] =
                            load_weight<LOAD>(from + (size_t)r * (K * 2) + (u * 2 + s) * 32);
            }
        }
    }
}

#if AT_HEAD
__device__ __forceinline__ void finish_best(const struct region_args &a, const struct where &at,
                                            const unsigned long long (*best)[2])
{
    __shared__ unsigned long long bests[WARPS][NT * 8];
#pragma unroll
    for (int i = 0; i < NT * 2; i++) {
        unsigned long long v = best[i / 2][i % 2];
        for (int o = 4; o < 32; o <<= 1) {
            unsigned long long other = __shfl_xor_sync(WARP_ALL, v, o);
            v = other > v ? other : v;
        }
        if (at.g == 0)
            bests[at.warp][i / 2 * 8 + 2 * at.q + i % 2] = v;
    }
    best_of_all<WARPS, NT * 8, M>(bests, min(a.counts->rows, (int)M),
                                  (unsigned long long *)a.work.work, a.work.counter, a.best);
}
#endif

/* ---- entry -------------------------------------------------------------------------------- */

KERNEL __launch_bounds__(THREADS) whet_kernel(const __grid_constant__ struct region_args a)
{
    extern __shared__ __align__(16) char shared[];
    __shared__ struct extra e;
    bf16 *x = (bf16 *)shared;
    float *part = (float *)(shared + SMEM_X);
    struct where at = {(int)threadIdx.x / 32, (int)threadIdx.x % 32,   (int)threadIdx.x % 32 / 4,
                       (int)threadIdx.x % 4,  (int)blockIdx.x % SPLIT, (int)blockIdx.x / SPLIT};
    int passes = passes_of(at), tile = first_tile(at, 0);
    const uint4 *w = tile_weights(a, at, tile);
    fragments buffer;
    if (TRIGGER == 0)
        release_next();
    if (SPLIT > 1)
        cluster_arrive();
    ask_gains(a, at);
    load_first(buffer, w);
    if (STAGE)
        stage(a, shared, at);
    if (PREFETCH)
        prefetch_passes(a, at);
    if (TRIGGER == 1)
        release_next();
    take_turns(a, &e);
    if (SPLIT > 1)
        cluster_wait(); /* every block of the cluster has started: its memory can be written */

    after_previous();
    float c[TILES][NT][4], scale[NT][2];
    unsigned long long best[NT][2] = {};
    begin_sums(a, at, tile, c);
    take(a, at, x, &e);
    if (STAGE || AT_ATTN_IN)
        await_copies();
    __syncthreads();
    if (TRIGGER == 2)
        release_next();
    if (!KEPT && HAS_NORM)
#pragma unroll
        for (int i = 0; i < NT * 2; i++)
            scale[i / 2][i % 2] = scale_of(a, &e, i / 2 * 8 + 2 * at.q + i % 2);
    for (int p = 0; p < passes; p++) {
        bool more = p + 1 < passes;
        int after = more ? first_tile(at, p + 1) : tile;
        const uint4 *next = tile_weights(a, at, after);
        multiply_pass(a, at, shared, x + at.g * LD + at.q * 8, buffer, p, passes, w, next, c);
        if (TRIGGER == 3 && !more)
            release_next();
        end_sums(a, at, &e, part, p, tile, c, scale, best);
        w = next;
        tile = after;
        if (more)
            begin_sums(a, at, tile, c);
    }
    if (KEPT) {
        if (SPLIT > 1) {
            cluster_arrive();
            cluster_wait();
        } else {
            __syncthreads();
        }
        finish_kept(a, at, &e, part);
    }
#if AT_HEAD
    finish_best(a, at, best);
#endif
}

extern "C" __global__ void whet_pack(struct cuda_pack_args a)
{
    pack_tiles((const bf16 *)a.src, (uint4 *)a.dst, a.rows, a.cols,
               blockIdx.x * (long long)blockDim.x + threadIdx.x, (long long)gridDim.x * blockDim.x);
}

extern "C" __device__ const struct cuda_kernel_info whet_info = {
    WHET_CUDA_ABI,
    REGION,
    M_MAX,
    0,
    1,
    REGION == REGION_HEAD ? 1 : 0,
    REGION == REGION_HEAD ? (int64_t)CLUSTERS *SPLIT *M * 8 : 0,
    (int64_t)ROWS_ALL *K * 2,
    TILE_LAYOUT,
    {{{CLUSTERS * SPLIT, 1, 1}, THREADS, SMEM_X + SMEM_PART + SMEM_STAGE, 1, SPLIT, 0}},
};
