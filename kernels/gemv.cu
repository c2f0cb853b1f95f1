/* gemv.cu - projections of one to four tokens: every weight is read once, in 16-byte loads.
 *
 *   attn_in   q, k, v = rope(qnorm(n Wqkv^T)), k and v into pages    W [(H + 2 KVH) HD, HIDDEN]
 *   attn_out  y = a Wo^T + x                                              W [HIDDEN, H HD]
 *   mlp_in    h = silu(g) u; g, u = rows 2i, 2i+1 of n Wgu^T              W [2 FFN, HIDDEN]
 *   mlp_out   y = h Wdown^T + x                                           W [HIDDEN, FFN]
 *   head      logits = n W^T and the best of each row                     W [VOCAB, HIDDEN]
 *
 * n = rmsnorm(x) * gain is folded in: x * gain is multiplied, the sum's factor 1/rms(x) comes last.
 * Bytes moved: W (2 N K), and x once a block.
 *
 * At one token the stream of weights is easy; what costs is every boundary between kernels, when
 * the previous kernel's last block, its write-back, the load of x and the reduction follow one
 * another. So the first ROWS x UNROLL loads of a lane, and L2 prefetches of what comes after, are
 * issued before the wait; and K can be split over KW warps, whose part of x then fits registers:
 * no staging, one barrier. A block owns tiles of RW * ROWS rows; with PERSIST it walks over several
 * and its loads never pause between them.
 *
 * Gains are a layer's own and come from memory, behind all the weights that are on their way if
 * they are asked for late: so they are asked for first, and wait where the normed x will be.
 * Nothing that is loaded before the wait is used before it, or the wait begins with another one.
 *
 * q/k norm needs the sum of squares of a head: CLUSTER blocks own one head, keep their outputs in
 * shared memory and exchange their sums through it (one cluster barrier).
 *
 * Invariant: nothing is written, and x is not read, before after_previous(); a page is only written
 * for tokens below counts->m. The last tile is moved back to end at the last row: its first rows
 * may then be computed twice, with the same bits.
 */
#include "lib/shape.cuh"
#include "lib/stream.cuh"

/* ---- knobs -------------------------------------------------------------------------------- */

#ifndef ROWS
#define ROWS 2
#endif
#ifndef UNROLL
#define UNROLL 4
#endif
#ifndef KW
#define KW 1
#endif
#ifndef RW
#define RW 8
#endif
#ifndef X
#define X 0
#endif
#ifndef STAGE
#define STAGE 0
#endif
#ifndef PERSIST
#define PERSIST 0
#endif
#ifndef BLOCKS
#define BLOCKS 0
#endif
#ifndef TRIGGER
#define TRIGGER 1
#endif
#ifndef PREFETCH
#define PREFETCH 0
#endif
#ifndef LOAD
#define LOAD 0
#endif
#ifndef NEXT
#define NEXT 0
#endif
#ifndef CLUSTER
#define CLUSTER 4
#endif

/* ---- legality ----------------------------------------------------------------------------- */

#define LEGAL(expression, why) static_assert(expression, why);
#include "gemv.def"

/* ---- code --------------------------------------------------------------------------------- */

#define QK (REGION == REGION_ATTN_IN && HAS_QK_NORM)

enum {
    M = M_MAX,
    THREADS = KW * RW * 32,
    TILE = RW * ROWS,
    TILES = (ROWS_ALL + TILE - 1) / TILE,
    BLOCK_ROWS = QK ? HEAD_DIM / CLUSTER : TILE, /* neighbouring rows of a block */
    GRID = QK                                 ? ROWS_ALL / BLOCK_ROWS
           : PERSIST && PERSIST * SMS < TILES ? PERSIST * SMS
                                              : TILES,
    CHUNKS = K / 256, /* a chunk: 16 bytes for each lane of a warp */
    C = (CHUNKS + KW * UNROLL - 1) / (KW * UNROLL) * UNROLL, /* of a warp: KW * c + its part */
    RAGGED = C * KW != CHUNKS,                               /* some are beyond the row's end */
    STEPS = C / UNROLL,
    P = power_of_two(ROWS * M),
    SPAN = 32 / P,                         /* lanes that end up with the same sum */
    AT_ONCE = X || STEPS <= 4 ? STEPS : 1, /* unrolled */
    SMEM_X = X ? 0 : K * M * 4,
    SMEM_STAGE = THREADS * ROWS * UNROLL * STAGE * 16
};
static_assert(ROWS_ALL >= TILE, "there is a whole tile");

struct place {
    int kw, rw, lane;
};

/* Where a tile's first row is. Tile i of a block: neighbours when a head is shared, else dealt. */
__device__ __forceinline__ int tile_row(int i)
{
    int row = QK ? blockIdx.x * BLOCK_ROWS + i * TILE : (blockIdx.x + i * GRID) * TILE;
    return min(row, ROWS_ALL - TILE);
}

__device__ __forceinline__ int tiles_of_block()
{
    return QK ? BLOCK_ROWS / TILE : (TILES - (int)blockIdx.x + GRID - 1) / GRID;
}

/* This lane's first 16 bytes of its warp's first row in tile i. */
__device__ __forceinline__ const uint4 *tile_weights(const struct region_args &a, int i,
                                                     const struct place &at)
{
    size_t row = tile_row(i) + at.rw * ROWS;
    return (const uint4 *)((const bf16 *)a.w + row * K) + at.kw * 32 + at.lane;
}

/* Chunk c of row r; a part of K that has fewer chunks than others reads nothing. */
__device__ __forceinline__ uint4 load_chunk(const uint4 *w, int r, int c, const struct place &at)
{
    if (RAGGED && c * KW + at.kw >= CHUNKS)
        return make_uint4(0, 0, 0, 0);
    return load_weight<LOAD>(w + (size_t)r * (K / 8) + c * (KW * 32));
}

/* Where step t > 0 of the first STAGE after the first waits in shared memory, this lane's part. */
__device__ __forceinline__ uint4 *staged(float *shared, int t, int u, int r)
{
    return (uint4 *)(shared + SMEM_X / 4) + (((t - 1) * UNROLL + u) * ROWS + r) * THREADS +
           threadIdx.x;
}

/* Copies the steps that follow the first, of this tile and the next ones. */
__device__ __forceinline__ void stage(const struct region_args &a, float *shared,
                                      const struct place &at)
{
    int tiles = tiles_of_block();
#pragma unroll
    for (int t = 1; t <= STAGE; t++) {
        int i = t / STEPS, c = t % STEPS * UNROLL;
        if (i >= tiles)
            return;
        const uint4 *w = tile_weights(a, i, at);
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                if (!RAGGED || (c + u) * KW + at.kw < CHUNKS)
                    copy_weight(staged(shared, t, u, r),
                                w + (size_t)r * (K / 8) + (c + u) * (KW * 32));
    }
}

__device__ __forceinline__ void prefetch_tiles(const struct region_args &a)
{
    int tiles = min(tiles_of_block(), PREFETCH);
    for (int i = 0; i < tiles; i++) {
        int skip = i == 0 ? UNROLL * (STAGE + 1) * KW * 512 : 0; /* already in flight */
        for (int r = threadIdx.x; r < TILE && skip < 2 * K; r += THREADS)
            prefetch_l2((const char *)a.w + (size_t)(tile_row(i) + r) * K * 2 + skip, 2 * K - skip);
    }
}

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

/* Where element e of x lies in shared memory: a lane's eight as two conflict-free fours. */
__device__ __forceinline__ int shuffled(int e)
{
    return (e & ~255) + ((e >> 2) & 1) * 128 + ((e & 255) >> 3) * 4 + (e & 3);
}

struct input {
    float x[X ? C * M : 1][8]; /* this lane's part, times gain */
    const float *shared;       /* or [M][K], shuffled */
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
        const float *x = input_row(a, from, t) + at.kw * 256 + at.lane * 8;
#pragma unroll
        for (int c = 0; c < C; c++) {
            bool mine = !RAGGED || c * KW + at.kw < CHUNKS;
            v[t][c][0] = mine ? load_x4(x + c * KW * 256) : make_float4(0, 0, 0, 0);
            v[t][c][1] = mine ? load_x4(x + c * KW * 256 + 4) : make_float4(0, 0, 0, 0);
        }
    }
#pragma unroll
    for (int t = 0; t < M; t++) {
        float sum = 0;
#pragma unroll
        for (int c = 0; c < C; c++) {
            if (HAS_NORM)
                sum += square(v[t][c][0]) + square(v[t][c][1]);
            float *x = in->x[X ? t * C + c : 0];
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

/* x into shared memory, each warp's part of its sums of squares as well. Ends with a barrier. */
__device__ __forceinline__ void take_shared(const struct region_args &a, const struct chosen &from,
                                            float *shared, float (*squares)[M])
{
    constexpr int LOADS = (K + THREADS * 4 - 1) / (THREADS * 4), BATCH = LOADS < 8 ? LOADS : 8;
#pragma unroll
    for (int t = 0; t < M; t++) {
        const float *x = input_row(a, from, t);
        float sum = 0;
#pragma unroll 1
        for (int at = 0; at < LOADS; at += BATCH) {
            float4 v[BATCH];
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                int i = ((at + b) * THREADS + threadIdx.x) * 4;
                if (i < K)
                    v[b] = load_x4(x + i);
            }
            if (HAS_NORM && t == 0 && at == 0)
                await_sent(); /* the gains, but not what is staged */
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                int i = ((at + b) * THREADS + threadIdx.x) * 4;
                if (i >= K)
                    continue;
                const float4 *gain = (const float4 *)(shared + (M - 1) * K + shuffled(i));
                if (HAS_NORM)
                    sum += square(v[b]);
                *(float4 *)(shared + t * K + shuffled(i)) = HAS_NORM ? times(v[b], *gain) : v[b];
            }
        }
        if (HAS_NORM) {
            sum = warp_sum(sum);
            if (threadIdx.x % 32 == 0)
                squares[threadIdx.x / 32][t] = sum;
        }
    }
    __syncthreads();
}

/* sum[t * ROWS + r] += W x over one chunk of this warp's rows */
__device__ __forceinline__ void multiply(const struct input &in, int c, int r, uint4 w,
                                         const struct place &at, float *sum)
{
    float f[8];
    if (RAGGED && c * KW + at.kw >= CHUNKS)
        return;
    expand8(w, f);
#pragma unroll
    for (int t = 0; t < M; t++) {
        float4 p, q;
        if (X) {
            p = *(const float4 *)in.x[X ? t * C + c : 0];
            q = *(const float4 *)(in.x[X ? t * C + c : 0] + 4);
        } else {
            const float *x = in.shared + t * K + (c * KW + at.kw) * 256 + at.lane * 4;
            p = *(const float4 *)x;
            q = *(const float4 *)(x + 128);
        }
        sum[t * ROWS + r] += (f[0] * p.x + f[1] * p.y) + (f[2] * p.z + f[3] * p.w) +
                             ((f[4] * q.x + f[5] * q.y) + (f[6] * q.z + f[7] * q.w));
    }
}

/* ---- finishing a sum ----------------------------------------------------------------------- */

/* What the thread that finishes the sums of token t needs to know about it. */
struct token {
    int t, live, position, kv_at;
};

__device__ __forceinline__ struct token token_of(const struct region_args &a, int t)
{
    struct token k = {t, 1, 0, 0};
#if AT_ATTN_IN
    int position = a.position[t], kv_at = a.kv_at[t]; /* all at once */
    k.live = M == 1 || t < a.counts->m;
    k.position = k.live ? position : 0;
    k.kv_at = kv_at;
#elif AT_HEAD
    k.live = M == 1 || t < a.counts->rows;
#endif
    return k;
}

/* Loaded while the tile's weights are: the residual, or cosine and sine. */
__device__ __forceinline__ float2 companion(const struct region_args &a, int row,
                                            const struct token &k)
{
#if AT_OUT
    return make_float2(__ldcg(a.x + (size_t)k.t * ROWS_ALL + row), 0);
#elif AT_ATTN_IN
    size_t at = (size_t)k.position * (HEAD_DIM / 2) + row % HEAD_DIM / 2;
    return make_float2(a.rope_cos[at], a.rope_sin[at]);
#else
    return make_float2(0, 0);
#endif
}

#if AT_ATTN_IN
/* One element of q, k or v, whose pair's other element is `other`. */
__device__ __forceinline__ void put_qkv(const struct region_args &a, int row, const struct token &k,
                                        float v, float other, float2 turn)
{
    int head = row / HEAD_DIM, d = row % HEAD_DIM;
    if (head < HEADS + KV_HEADS)
        v = row & 1 ? v * turn.x + other * turn.y : v * turn.x - other * turn.y;
    if (head < HEADS) {
        a.q[(size_t)k.t * (HEADS * HEAD_DIM) + row] = v;
        return;
    }
    int kvh = (head - HEADS) % KV_HEADS;
    bf16 *pages = (bf16 *)(head < HEADS + KV_HEADS ? a.k_pages : a.v_pages);
    size_t slot = ((size_t)(k.kv_at / KV_PAGE) * KV_HEADS + kvh) * KV_PAGE + k.kv_at % KV_PAGE;
    if (k.live)
        pages[slot * HEAD_DIM + d] = to_bf16(v);
}
#endif

/* Writes the sum of (row, token) given that of the other row of its pair. All lanes of a warp come
 * here together; `mine` says who has something to write. */
__device__ __forceinline__ void finish(const struct region_args &a, int row, const struct token &k,
                                       float v, float other, float2 with, bool mine,
                                       unsigned long long *best)
{
    if (!mine)
        return;
#if AT_ATTN_IN
    put_qkv(a, row, k, v, other, with);
#elif AT_MLP_IN
    if (row % 2 == 0)
        a.h[(size_t)k.t * FFN + row / 2] = silu(v) * other;
#elif AT_HEAD
    if (k.live) {
        a.logits[(size_t)k.t * VOCAB + row] = v;
        unsigned long long rank = rank_of(v, row);
        *best = rank > *best ? rank : *best;
    }
#else
    a.y[(size_t)k.t * ROWS_ALL + row] = v + with.x;
#endif
}

#if AT_ATTN_IN
/* What a thread needs to finish one element of the block's head. */
struct head_end {
    struct token k;
    float2 turn;
    float gain, other_gain;
};

__device__ __forceinline__ struct head_end head_end_of(const struct region_args &a)
{
    int i = threadIdx.x, row = blockIdx.x * BLOCK_ROWS + i % BLOCK_ROWS, d = row % HEAD_DIM;
    const float *gain = row / HEAD_DIM < HEADS ? a.q_norm : a.k_norm;
    struct head_end h = {token_of(a, i < BLOCK_ROWS * M ? i / BLOCK_ROWS : 0), {1, 0}, 1, 1};
    if (row / HEAD_DIM < HEADS + KV_HEADS)
        h.gain = gain[d], h.other_gain = gain[d ^ 1];
    return h;
}

/* The rest of it, whose place depends on the position. */
__device__ __forceinline__ void head_end_turn(const struct region_args &a, struct head_end *h)
{
    h->turn = companion(a, blockIdx.x * BLOCK_ROWS + threadIdx.x % BLOCK_ROWS, h->k);
}

/* q/k norm and RoPE of the block's rows of one head, raw[t][BLOCK_ROWS] in shared memory. */
__device__ __forceinline__ void
finish_head(const struct region_args &a, const float (*raw)[BLOCK_ROWS], const struct head_end &h)
{
    __shared__ float squares[CLUSTER][M];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = blockIdx.x % CLUSTER;
    int first = blockIdx.x * BLOCK_ROWS;
    bool normed = first / HEAD_DIM < HEADS + KV_HEADS;
    __syncthreads();
    for (int t = warp; normed && t < M; t += KW * RW) {
        float sum = 0;
        for (int i = lane; i < BLOCK_ROWS; i += 32)
            sum += raw[t][i] * raw[t][i];
        sum = warp_sum(sum);
        if (lane < CLUSTER) {
            if (CLUSTER > 1)
                store_peer(&squares[rank][t], lane, sum);
            else
                squares[rank][t] = sum;
        }
    }
    if (CLUSTER > 1 && normed) { /* the blocks of a cluster have the same head */
        __syncwarp();
        cluster_arrive();
        cluster_wait();
    } else {
        __syncthreads();
    }
    if (threadIdx.x >= BLOCK_ROWS * M)
        return;
    int t = threadIdx.x / BLOCK_ROWS, r = threadIdx.x % BLOCK_ROWS;
    float v = raw[t][r], other = raw[t][r ^ 1];
    if (normed) {
        float sum = 0;
        for (int p = 0; p < CLUSTER; p++)
            sum += squares[p][t];
        float scale = rsqrtf(sum / HEAD_DIM + a.eps);
        v *= scale * h.gain;
        other *= scale * h.other_gain;
    }
    put_qkv(a, first + r, h.k, v, other, h.turn);
}
#endif

/* ---- the stream ---------------------------------------------------------------------------- */

typedef uint4 chunks[ROWS][UNROLL]; /* of a step: what a lane has in flight */

__device__ __forceinline__ void load_first(chunks &buffer, const uint4 *w, const struct place &at)
{
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            buffer[r][u] = load_chunk(w, r, u, at);
}

/* One tile's sums of this warp, sum[t * ROWS + r]. Every register that becomes free is loaded again
 * at once: with the next step of this tile, or of a later one. w and next: this and the next tile's
 * weights. */
__device__ __forceinline__ void multiply_tile(const struct region_args &a, const struct input &in,
                                              chunks &buffer, float *shared, int i, int tiles,
                                              const uint4 *w, const uint4 *next,
                                              const struct place &at, float *sum)
{
#pragma unroll
    for (int j = 0; j < ROWS * M; j++)
        sum[j] = 0;
#pragma unroll(AT_ONCE)
    for (int c = 0; c < C; c += UNROLL) {
        int t = i * STEPS + c / UNROLL; /* of the block's steps */
        bool waits = STAGE && t > 0 && t <= STAGE;
        /* what a register that becomes free is loaded with: the next step that is not staged */
        int ahead = STAGE && t == 0 ? STAGE + 1 : 1, cn = c + ahead * UNROLL, in_tile = cn / C;
        const uint4 *from = in_tile == 0 ? w : in_tile == 1 ? next : 0;
        if (STAGE && in_tile > 1 && i + in_tile < tiles)
            from = tile_weights(a, i + in_tile, at);
        bool refill = !waits && i + in_tile < tiles;
        cn %= C;
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                uint4 now = buffer[r][u];
                if (waits)
                    now = load_staged(staged(shared, t, u, r));
                else if (refill)
                    buffer[r][u] = load_chunk(from, r, cn + u, at);
                multiply(in, c + u, r, now, at, sum);
            }
    }
}

/* Who finishes what: with KW > 1 thread i sum i of the tile, else the lanes of the warp. */
struct finisher {
    int index, local; /* of the sum; of its row in the tile */
    bool mine;        /* whether there is one for this thread */
    struct token k;
};

__device__ __forceinline__ struct finisher finisher_of(const struct region_args &a,
                                                       const struct place &at)
{
    struct finisher f;
    f.index = KW > 1 ? (int)threadIdx.x : at.lane / SPAN;
    f.local = KW > 1 ? f.index % TILE : at.rw * ROWS + f.index % ROWS;
    f.mine = KW > 1 ? f.index < TILE * M : f.index < ROWS * M && at.lane % SPAN == 0;
    f.k = token_of(a, f.mine ? f.index / (KW > 1 ? TILE : ROWS) : 0);
    return f;
}

/* This thread's sum, over the lanes of its warp and then the KW warps of a row. */
__device__ __forceinline__ float join(const float *sum, float (*part)[TILE * M],
                                      const struct place &at, const struct finisher &f)
{
    float v = warp_sums<ROWS * M>(sum);
    if (KW == 1)
        return v;
    /* sum number t * ROWS + r of the warp is number t * TILE + rw * ROWS + r of the block */
    int s = at.lane / SPAN;
    if (at.lane % SPAN == 0 && s < ROWS * M)
        part[at.kw][s / ROWS * TILE + at.rw * ROWS + s % ROWS] = v;
    __syncthreads();
    v = 0;
    if (f.mine)
#pragma unroll
        for (int p = 0; p < KW; p++)
            v += part[p][f.index];
    return v;
}

/* ---- input --------------------------------------------------------------------------------- */

/* Before the wait: the gains that go with this lane's part of x. */
__device__ __forceinline__ void load_gain(const struct region_args &a, float4 (*gain)[2],
                                          const struct place &at)
{
#if HAS_NORM
#pragma unroll
    for (int c = 0; c < (X ? C : 0); c++) {
        const float *g = a.norm + min(c * KW + at.kw, CHUNKS - 1) * 256 + at.lane * 8;
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
    if (X)
        take_registers(a, from, in, gain, at, squares);
    else
        take_shared(a, from, shared, squares);
}

/* 1/rms of the finisher's token; where KW warps have its parts, after a barrier. The sums are in
 * shared memory because the compiler would index an array of them, which is local memory. */
__device__ __forceinline__ float scale_of(const struct region_args &a, const float (*squares)[M],
                                          const struct place &at, const struct token &k)
{
#if HAS_NORM
    constexpr int PARTS = X ? KW : KW * RW;
    float total = 0;
#pragma unroll
    for (int p = 0; p < PARTS; p++)
        total += squares[X && KW == 1 ? at.rw : p][k.t];
    return rsqrtf(total / K + a.eps);
#else
    return 1.0f;
#endif
}

#if AT_HEAD
__device__ __forceinline__ void finish_best(const struct region_args &a, unsigned long long best,
                                            const struct finisher &f, const struct place &at)
{
    __shared__ unsigned long long bests[KW * RW][M];
    for (int t = 0; t < M; t++) {
        unsigned long long v = warp_best(f.mine && f.k.t == t ? best : 0);
        if (at.lane == 0)
            bests[threadIdx.x / 32][t] = v;
    }
    best_of_all<KW * RW, M, M>(bests, min(a.counts->rows, (int)M),
                               (unsigned long long *)a.work.work, a.work.counter, a.best);
}
#endif

/* ---- entry -------------------------------------------------------------------------------- */

#if BLOCKS
#define BOUNDS __launch_bounds__(THREADS, BLOCKS)
#else
#define BOUNDS __launch_bounds__(THREADS)
#endif

KERNEL BOUNDS whet_kernel(const __grid_constant__ struct region_args a)
{
    extern __shared__ __align__(16) float shared_x[];
    __shared__ float part[2][KW][TILE * M], squares[KW * RW][M];
    __shared__ float raw[QK ? M : 1][BLOCK_ROWS];
    int warp = threadIdx.x / 32, tiles = tiles_of_block();
    struct place at = {warp % KW, warp / KW, (int)threadIdx.x % 32};
    const uint4 *w = tile_weights(a, 0, at);
    chunks buffer;
    if (TRIGGER == 0)
        release_next();
    if (QK && CLUSTER > 1)
        cluster_arrive();
    float4 gain[X ? C : 1][2];
    load_gain(a, gain, at);
    if (!X)
        ask_gains(a, shared_x);
    load_first(buffer, w, at);
    if (STAGE)
        stage(a, shared_x, at);
    if (PREFETCH)
        prefetch_tiles(a);
    if (TRIGGER == 1)
        release_next();
    struct finisher f = finisher_of(a, at);
    struct chosen from = chosen_of(a);
#if AT_ATTN_IN && HAS_QK_NORM
    struct head_end end = head_end_of(a);
#endif
    if (QK && CLUSTER > 1)
        cluster_wait(); /* every block of the cluster has started: its memory can be written */

    after_previous();
    struct input in;
    float scale = 1.0f;
#if AT_ATTN_IN && HAS_QK_NORM
    head_end_turn(a, &end);
#endif
    take(a, from, &in, shared_x, gain, at, squares);
    if (TRIGGER == 2)
        release_next();
#if !AT_HEAD
    if (NEXT)
        prefetch_share(a.next, a.next_bytes, (long long)NEXT << 20, blockIdx.x, GRID);
#endif
    if (STAGE)
        await_copies();
    unsigned long long best = 0;
    for (int i = 0; i < tiles; i++) {
        float sum[ROWS * M];
        int row = tile_row(i) + f.local;
        bool more = i + 1 < tiles;
        const uint4 *next = more ? tile_weights(a, i + 1, at) : w;
        float2 with = f.mine && !QK ? companion(a, row, f.k) : make_float2(0, 0);
        multiply_tile(a, in, buffer, shared_x, i, tiles, w, next, at, sum);
        w = next;
        if (TRIGGER == 3 && !more)
            release_next();
        float v = join(sum, part[i & 1], at, f);
        if (i == 0)
            scale = scale_of(a, squares, at, f.k);
        v *= scale;
#if AT_ATTN_IN && HAS_BIAS
        if (f.mine)
            v += a.bias[row];
#endif
        if (QK) {
            if (f.mine)
                raw[QK ? f.k.t : 0][(i * TILE + f.local) % BLOCK_ROWS] = v;
        } else {
            float other = __shfl_xor_sync(WARP_ALL, v, KW > 1 ? 1 : SPAN % 32);
            finish(a, row, f.k, v, other, with, f.mine, &best);
        }
    }
#if AT_ATTN_IN && HAS_QK_NORM
    finish_head(a, raw, end);
#elif AT_HEAD
    finish_best(a, best, f, at);
#endif
}

extern "C" __device__ const struct cuda_kernel_info whet_info = {
    WHET_CUDA_ABI,
    REGION,
    M_MAX,
    0,
    1,
    REGION == REGION_HEAD ? 1 : 0,
    REGION == REGION_HEAD ? (int64_t)GRID *M * 8 : 0,
    0,
    "",
    {{{GRID, 1, 1}, THREADS, SMEM_X + SMEM_STAGE, 1, QK ? CLUSTER : 1, 0}},
};
