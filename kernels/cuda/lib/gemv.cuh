/* SPDX-License-Identifier: Apache-2.0 */
/* gemv.cuh - what the matrix-vector templates share: how rows and K are dealt to warps, how x comes
 * in, and one product. What becomes of a sum is in gemv_end.cuh, the kernel around it all in
 * gemv_run.cuh; where weights come from is the template's own (gemv.cu, ring.cu).
 *
 * The includer says with FRAGMENTS that weights are operands of tensor cores: then it has its own
 * x and products (bricks_x.cuh), and sums that lie in lanes as such products leave them.
 *
 * The includer has the knobs ROWS, UNROLL, KW, RW, XREGS, PERSIST, CLUSTER, TRIGGER, NEXT and
 * BLOCKS, with FRAGMENTS also SPLIT: blocks of a cluster that have the same rows and share K. It
 * says with NEIGHBOURS how a row is shared by KW warps: 0, chunk by chunk in turn; 1, each has
 * neighbouring chunks, which one copy can bring.
 *
 * Gains are a layer's own and come from memory, behind all the weights that are on their way if
 * they are asked for late: so they are asked for first, and wait where the normed x will be.
 */
#ifndef WHET_KERNELS_CUDA_LIB_GEMV_CUH
#define WHET_KERNELS_CUDA_LIB_GEMV_CUH

#ifndef FRAGMENTS
#define FRAGMENTS 0
#endif
#if FRAGMENTS
#include "cuda/lib/bricks_int.cuh"
#else
#define SPLIT 1 /* blocks that share K */
#endif
#include "cuda/lib/shape.cuh"
#include "cuda/lib/stream.cuh"

/* ---- who has what -------------------------------------------------------------------------- */

#define QK (REGION == REGION_ATTN_IN && HAS_QK_NORM)

enum {
    M = M_MAX,
    THREADS = KW * RW * 32,
    TILE = RW * ROWS,
    TILES = (ROWS_ALL + TILE - 1) / TILE,
    BLOCK_ROWS = QK ? HEAD_DIM / CLUSTER : TILE, /* neighbouring rows of a block */
    MOST = PERSIST ? PERSIST * SMS / SPLIT : TILES,
    WALKERS = MOST < TILES ? MOST : TILES, /* clusters that share K, or blocks, and tiles of one */
    WALK = (TILES + WALKERS - 1) / WALKERS,
    GRID = QK ? ROWS_ALL / BLOCK_ROWS : WALKERS * SPLIT,
    ACROSS = K / 256,                      /* a chunk: 16 bytes for each lane of a warp */
    CHUNKS = (ACROSS + SPLIT - 1) / SPLIT, /* of a block */
    KX = CHUNKS * 256,                     /* columns that it multiplies */
    C = (CHUNKS + KW * UNROLL - 1) / (KW * UNROLL) * UNROLL, /* of a warp */
    RAGGED = C * KW != CHUNKS || CHUNKS * SPLIT != ACROSS,   /* some are beyond the row's end */
    CHUNK_STEP = (NEIGHBOURS ? 1 : KW) * 256, /* elements from a warp's chunk to its next */
    STEPS = C / UNROLL,
    P = FRAGMENTS ? 32 : power_of_two(ROWS * M),
    SPAN = 32 / P,                             /* lanes that end up with the same sum */
    AT_ONCE = XREGS || STEPS <= 4 ? STEPS : 1, /* unrolled */
#if FRAGMENTS
    HALVES = int_shape<WTYPE>::HALVES,
    FLOATS = WTYPE == DTYPE_F8,            /* bricks_half.cuh, not bricks_digits.cuh */
    MOST_TOKENS = FLOATS ? 8 : 4 / HALVES, /* of a product */
    PER_TILE = M < MOST_TOKENS ? power_of_two(M) : MOST_TOKENS,
    ABREAST = FLOATS ? 1 : 4 / (PER_TILE * HALVES), /* strips of it */
    NT = (M + PER_TILE - 1) / PER_TILE,
    COLUMNS = FLOATS && M > 1 ? 2 : 1, /* tokens of a lane in a product */
    BAND_SUMS = NT * 2 * COLUMNS,      /* sums of a lane for 16 rows */
    SUMS = ROWS / 16 * BAND_SUMS,
    UNITS = KX / (FLOATS ? 256 : 32), /* parts of a token that have a unit each */
    SAYS = HALVES == 2                ? 4
           : int_shape<WTYPE>::OFFSET ? 2
                                      : 1, /* floats of a unit and token */
    SMEM_X = (M * KX * 2 + 256 + UNITS * M * (SAYS + HAS_NORM) * 4 + 15) / 16 * 16 +
             (HAS_NORM ? K * 4 : 0)
#else
    SUMS = ROWS * M,
    SMEM_X = XREGS ? 0 : K * M * 4
#endif
};
/* Sums of a tile go to threads in the order of rows, and not to where their last lanes are. */
#define BY_THREAD (KW > 1 || FRAGMENTS)
static_assert(ROWS_ALL >= TILE, "there is a whole tile");

struct place {
    int kw, rw, lane;
};

/* The first row of a tile that no tile before it has. Tile i of a block: neighbours when a head is
 * shared, else dealt. */
__device__ __forceinline__ int tile_begin(int i)
{
    return QK ? blockIdx.x * BLOCK_ROWS + i * TILE : (blockIdx.x / SPLIT + i * WALKERS) * TILE;
}

/* Where a tile's first row is: the last one's is moved back, so that it is whole. */
__device__ __forceinline__ int tile_row(int i)
{
    return min(tile_begin(i), ROWS_ALL - TILE);
}

/* Whether a row of tile i is no other tile's. */
__device__ __forceinline__ bool is_first(int i, int row)
{
    return ROWS_ALL % TILE == 0 || row >= tile_begin(i);
}

__device__ __forceinline__ int tiles_of_block()
{
    return QK ? BLOCK_ROWS / TILE : (TILES - (int)blockIdx.x / SPLIT + WALKERS - 1) / WALKERS;
}

/* Chunk c of this warp, counted from the block's first. */
__device__ __forceinline__ int chunk_at(int c, const struct place &at)
{
    return NEIGHBOURS ? at.kw * C + c : c * KW + at.kw;
}

/* The first chunk of this block. */
__device__ __forceinline__ int chunks_before()
{
    return SPLIT > 1 ? (int)blockIdx.x % SPLIT * CHUNKS : 0;
}

/* A part of K that has fewer chunks than others has none there. */
__device__ __forceinline__ bool beyond(int c, const struct place &at)
{
    return RAGGED && (chunk_at(c, at) >= CHUNKS || chunks_before() + chunk_at(c, at) >= ACROSS);
}

/* This lane's first 16 bytes of its warp's first row in tile i. */
__device__ __forceinline__ const uint4 *tile_weights(const struct region_args &a, int i,
                                                     const struct place &at)
{
    size_t row = tile_row(i) + at.rw * ROWS;
    return (const uint4 *)((const bf16 *)a.w + row * K) + chunk_at(0, at) * 32 + at.lane;
}

/* ---- x ------------------------------------------------------------------------------------- */

/* Which rows of x the head reads. */
struct chosen {
    int row[AT_HEAD ? M : 1];
};

__device__ __forceinline__ struct chosen chosen_of(const struct region_args &a)
{
    struct chosen c = {};
#if AT_HEAD
    for (int t = 0; t < M; t++)
        c.row[t] = M == 1 || t < a.counts->rows ? a.row[t] : 0;
#endif
    return c;
}

/* Row t of the input; rows that a step does not use may be read, but must exist. */
__device__ __forceinline__ const float *input_row(const struct region_args &a,
                                                  const struct chosen &c, int t)
{
#if AT_OUT
    return a.in + (size_t)t * K;
#else
    return a.x + (size_t)(AT_HEAD ? c.row[AT_HEAD ? t : 0] : t) * K;
#endif
}

#if !FRAGMENTS
/* Where element e of x lies in shared memory: a lane's eight as two conflict-free fours. */
__device__ __forceinline__ int shuffled(int e)
{
    return (e & ~255) + ((e >> 2) & 1) * 128 + ((e & 255) >> 3) * 4 + (e & 3);
}

struct input {
    float x[XREGS ? C * M : 1][8]; /* this lane's part, times gain */
    const float *shared;           /* or [M][K], shuffled */
};

__device__ __forceinline__ float4 times(float4 v, float4 g)
{
    return make_float4(v.x * g.x, v.y * g.y, v.z * g.z, v.w * g.w);
}

__device__ __forceinline__ float square(float4 v)
{
    return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
}

/* x into registers; this warp's part of its sums of squares into its row of `squares`. */
__device__ __forceinline__ void take_registers(const struct region_args &a,
                                               const struct chosen &from, struct input *in,
                                               const float4 (*gain)[2], const struct place &at,
                                               float (*squares)[M])
{
    float4 v[M][C][2];
#pragma unroll
    for (int t = 0; t < M; t++) {
        const float *x = input_row(a, from, t) + chunk_at(0, at) * 256 + at.lane * 8;
#pragma unroll
        for (int c = 0; c < C; c++) {
            bool mine = !beyond(c, at);
            v[t][c][0] = mine ? load_x4(x + c * CHUNK_STEP) : make_float4(0, 0, 0, 0);
            v[t][c][1] = mine ? load_x4(x + c * CHUNK_STEP + 4) : make_float4(0, 0, 0, 0);
        }
    }
#pragma unroll
    for (int t = 0; t < M; t++) {
        float sum = 0;
#pragma unroll
        for (int c = 0; c < C; c++) {
            if (HAS_NORM)
                sum += square(v[t][c][0]) + square(v[t][c][1]);
            float *x = in->x[XREGS ? t * C + c : 0];
            *(float4 *)x = HAS_NORM ? times(v[t][c][0], gain[c][0]) : v[t][c][0];
            *(float4 *)(x + 4) = HAS_NORM ? times(v[t][c][1], gain[c][1]) : v[t][c][1];
        }
        if (HAS_NORM)
            sum = warp_sum(sum);
        if (HAS_NORM && at.lane == 0 && (KW == 1 || at.rw == 0))
            squares[KW > 1 ? at.kw : at.rw][t] = sum;
    }
    __syncwarp();
}

/* Each thread's part of the gains, to where it will put the last token's x. */
__device__ __forceinline__ void ask_gains(const struct region_args &a, float *shared)
{
#if HAS_NORM
    for (int i = threadIdx.x * 4; i < K; i += THREADS * 4)
        copy_shared(shared + (M - 1) * K + shuffled(i), a.norm + i);
    copies_sent();
#endif
}

/* x into shared memory, each warp's part of its sums of squares as well. Loads of several tokens
 * are under way together. Ends with a barrier. */
__device__ __forceinline__ void take_shared(const struct region_args &a, const struct chosen &from,
                                            float *shared, float (*squares)[M])
{
    constexpr int LOADS = (K + THREADS * 4 - 1) / (THREADS * 4), BATCH = LOADS < 8 ? LOADS : 8;
    constexpr int HELD = 8 / BATCH, TOGETHER = HELD < M ? HELD : M;
#pragma unroll
    for (int first = 0; first < M; first += TOGETHER) {
        float sum[TOGETHER] = {};
#pragma unroll 1
        for (int at = 0; at < LOADS; at += BATCH) {
            float4 v[TOGETHER][BATCH];
#pragma unroll
            for (int t = first; t < first + TOGETHER && t < M; t++)
#pragma unroll
                for (int b = 0; b < BATCH; b++) {
                    int i = ((at + b) * THREADS + threadIdx.x) * 4;
                    if (i < K)
                        v[t - first][b] = load_x4(input_row(a, from, t) + i);
                }
            if (HAS_NORM && first == 0 && at == 0)
                await_sent<SENT_LATER>(); /* the gains, but not the weights */
#pragma unroll
            for (int t = first; t < first + TOGETHER && t < M; t++)
#pragma unroll
                for (int b = 0; b < BATCH; b++) {
                    int i = ((at + b) * THREADS + threadIdx.x) * 4;
                    float4 x = v[t - first][b];
                    if (i >= K)
                        continue;
                    const float4 *gain = (const float4 *)(shared + (M - 1) * K + shuffled(i));
                    if (HAS_NORM)
                        sum[t - first] += square(x);
                    *(float4 *)(shared + t * K + shuffled(i)) = HAS_NORM ? times(x, *gain) : x;
                }
        }
#pragma unroll
        for (int t = first; HAS_NORM && t < first + TOGETHER && t < M; t++) {
            float all = warp_sum(sum[t - first]);
            if (threadIdx.x % 32 == 0)
                squares[threadIdx.x / 32][t] = all;
        }
    }
    __syncthreads();
}

/* Before the wait: the gains that go with this lane's part of x. */
__device__ __forceinline__ void load_gain(const struct region_args &a, float4 (*gain)[2],
                                          const struct place &at)
{
#if HAS_NORM
#pragma unroll
    for (int c = 0; c < (XREGS ? C : 0); c++) {
        const float *g = a.norm + min(chunk_at(c, at), CHUNKS - 1) * 256 + at.lane * 8;
        gain[c][0] = *(const float4 *)g, gain[c][1] = *(const float4 *)(g + 4);
    }
#endif
}

/* After it: x, and its sums of squares in parts. */
__device__ __forceinline__ void take(const struct region_args &a, const struct chosen &from,
                                     struct input *in, float *shared, const float4 (*gain)[2],
                                     const struct place &at, float (*squares)[M])
{
    in->shared = shared;
    if (XREGS)
        take_registers(a, from, in, gain, at, squares);
    else
        take_shared(a, from, shared, squares);
}

/* ---- a product ----------------------------------------------------------------------------- */

/* sum[t * ROWS + r] += W x over one chunk of this warp's rows */
__device__ __forceinline__ void multiply(const struct input &in, int c, int r, uint4 w,
                                         const struct place &at, float *sum)
{
    float f[8];
    if (beyond(c, at))
        return;
    expand8(w, f);
#pragma unroll
    for (int t = 0; t < M; t++) {
        float4 p, q;
        if (XREGS) {
            p = *(const float4 *)in.x[XREGS ? t * C + c : 0];
            q = *(const float4 *)(in.x[XREGS ? t * C + c : 0] + 4);
        } else {
            const float *x = in.shared + t * K + chunk_at(c, at) * 256 + at.lane * 4;
            p = *(const float4 *)x;
            q = *(const float4 *)(x + 128);
        }
        sum[t * ROWS + r] += (f[0] * p.x + f[1] * p.y) + (f[2] * p.z + f[3] * p.w) +
                             ((f[4] * q.x + f[5] * q.y) + (f[6] * q.z + f[7] * q.w));
    }
}
#endif

#endif
