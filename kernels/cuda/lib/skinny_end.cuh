/* SPDX-License-Identifier: Apache-2.0 */
/* skinny_end.cuh - what becomes of skinny.cu's sums: bias, q/k norm, RoPE and KV pages, SiLU, or
 * sums over the blocks that share K and the residual. The includer has the knobs.
 *
 * Of tokens g and g + 8 of its warp's 16 (g = lane / 4) a thread has rows 8 i + 2 q and the next
 * (q = lane % 4), which are a pair that RoPE turns, or gate and up: c[4 i + 2 s + (0, 1)], s = 1
 * being the second token.
 */
#ifndef WHET_KERNELS_CUDA_LIB_SKINNY_END_CUH
#define WHET_KERNELS_CUDA_LIB_SKINNY_END_CUH

#include "cuda/lib/skinny_wgmma.cuh"
#include "cuda/lib/stream.cuh"

#define QK (AT_ATTN_IN && HAS_QK_NORM)
#define WIDE_STEP (M_MAX > 64) /* struct cuda_wide: activations are bf16 */
#if PREP
#define PRODUCT_ENTRY whet_kernel_1
#else
#define PRODUCT_ENTRY whet_kernel
#endif

enum {
    ROW_THREADS = 256,
    GROUPS = (M_MAX + 63) / 64, /* warpgroups, of 64 tokens each */
    THREADS = GROUPS * 128 + 32,
    X_BYTES = PREP ? (M_MAX + 7) / 8 * 1024 : GROUPS * 8192, /* of a step: groups of 8 tokens */
    ROW_PARTS = HAS_NORM ? 1 : (K / 4 + 3 * ROW_THREADS - 1) / (3 * ROW_THREADS), /* blocks a row */
    STEPS = K / 64,
    EIGHTS = ROWS / 8,
    TILES = (ROWS_ALL + ROWS - 1) / ROWS,
    HEAD_BLOCKS = QK && ROWS < HEAD_DIM ? HEAD_DIM / ROWS : 1, /* that have parts of a head */
    BLOCKS = AT_OUT ? SPLIT : HEAD_BLOCKS                      /* of a cluster */
};

/* A block's: its number in the cluster, first row, and steps of K. */
struct place {
    int rank, row, step, steps;
};

__device__ __forceinline__ struct place my_place()
{
    int rank = blockIdx.x % BLOCKS, part = AT_OUT ? rank : 0;
    int first = part * STEPS / SPLIT, last = (part + 1) * STEPS / SPLIT;
    return {rank, (int)blockIdx.x / SPLIT * ROWS, first, last - first};
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

typedef float sums[ROWS / 2];

/* Pieces of four sums of a token: of rows 16 i + 2 q, the next, and those eight further. */
enum {
    PIECES = (EIGHTS + 1) / 2 * 4,
    OWN = AT_OUT ? 64 / SPLIT * GROUPS : 0 /* tokens that a block finishes */
};

struct memory {
    char stage[STAGES][ROWS * 128 + X_BYTES];
    char beyond[GROUPS * 8192 - X_BYTES + 1024]; /* read by instructions, as tokens that are none */
    float4 sent[AT_OUT ? SPLIT : 1][AT_OUT ? OWN : 1][AT_OUT ? PIECES : 1]; /* by part and token */
    float squares[HEAD_BLOCKS][QK ? GROUPS * 64 : 1];
    barrier full[STAGES], empty[STAGES];
};

/* The first of a thread's two tokens; the other is eight further. */
__device__ __forceinline__ int own_token()
{
    return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
}

__device__ __forceinline__ int own_row(const struct place &at, int eight)
{
    return at.row + eight * 8 + threadIdx.x % 4 * 2;
}

#if AT_ATTN_IN

enum { Q_ROWS = HEADS * HEAD_DIM, TURNED_ROWS = Q_ROWS + KV_HEADS * HEAD_DIM };

/* Where a thread's tokens are, and cosine and sine of its pairs of rows: what no earlier kernel
 * writes, loaded before the products. */
struct taken {
    int kv_row[2];
    float2 turn[2][EIGHTS];
};

__device__ __forceinline__ struct taken take_tokens(const struct region_args &a,
                                                    const struct place &at)
{
    struct taken n;
    int m = a.counts->m;
#pragma unroll
    for (int s = 0; s < 2; s++) {
        int t = min(own_token() + s * 8, m - 1), kv_at = a.kv_at[t];
        size_t from = (size_t)a.position[t] * (HEAD_DIM / 2);
        n.kv_row[s] = kv_at / KV_PAGE * (KV_HEADS * KV_PAGE) + kv_at % KV_PAGE;
#pragma unroll
        for (int i = 0; i < EIGHTS; i++) {
            int d = own_row(at, i) % HEAD_DIM / 2;
            bool turned = own_row(at, i) < TURNED_ROWS;
            n.turn[s][i] = turned ? make_float2(a.rope_cos[from + d], a.rope_sin[from + d])
                                  : make_float2(1, 0);
        }
    }
    return n;
}

#if QK
enum {
    OF_HEAD = ROWS < HEAD_DIM ? EIGHTS : HEAD_DIM / 8
}; /* groups of eight rows, of this block */

/* Sums of squares of a thread's two tokens over rows of a head that this block has, in all four
 * lanes of a token. `first`: of those rows, as groups of eight. */
__device__ __forceinline__ void squares_of(const sums &c, int first, float (&square)[2])
{
#pragma unroll
    for (int s = 0; s < 2; s++) {
        square[s] = 0;
#pragma unroll
        for (int i = 0; i < OF_HEAD; i++) {
            const float *v = &c[(first + i) * 4 + s * 2];
            square[s] += v[0] * v[0] + v[1] * v[1];
        }
        square[s] += __shfl_xor_sync(WARP_ALL, square[s], 1);
        square[s] += __shfl_xor_sync(WARP_ALL, square[s], 2);
    }
}

/* To every block of the cluster, and this one. */
__device__ __forceinline__ void tell_squares(struct memory &s, const struct place &at,
                                             const sums &c)
{
    float square[2];
    squares_of(c, 0, square);
    int to = threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < 2; k++)
        for (int b = to; b < HEAD_BLOCKS; b += 4)
            store_at(peer_of(&s.squares[at.rank][own_token() + k * 8], b), square[k]);
}

/* Sums become normed; v's are let alone. */
__device__ __forceinline__ void norm_heads(const struct region_args &a, const struct memory &s,
                                           const struct place &at, sums &c)
{
#pragma unroll
    for (int first = 0; first < EIGHTS; first += OF_HEAD) {
        int row = at.row + first * 8;
        float square[2] = {0, 0};
        if (row >= TURNED_ROWS)
            return;
        if (HEAD_BLOCKS == 1)
            squares_of(c, first, square);
        else
#pragma unroll
            for (int b = 0; b < HEAD_BLOCKS; b++)
                square[0] += s.squares[b][own_token()], square[1] += s.squares[b][own_token() + 8];
        const float *gain = (row < Q_ROWS ? a.q_norm : a.k_norm);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float r = rsqrtf(square[k] / HEAD_DIM + a.eps);
#pragma unroll
            for (int i = 0; i < OF_HEAD; i++) {
                float2 g = *(const float2 *)(gain + own_row(at, first + i) % HEAD_DIM);
                c[(first + i) * 4 + k * 2] *= r * g.x, c[(first + i) * 4 + k * 2 + 1] *= r * g.y;
            }
        }
    }
}
#endif

/* A pair of rows of token t, turned, to where it is read. */
__device__ __forceinline__ void put_pair(const struct region_args &a, int row, int t, int kv_row,
                                         float2 v)
{
    int kv_head = (row / HEAD_DIM - HEADS) % KV_HEADS;
    if (row >= Q_ROWS) {
        bf16 *pages = (bf16 *)(row < TURNED_ROWS ? a.k_pages : a.v_pages);
        size_t at = ((size_t)kv_row + kv_head * KV_PAGE) * HEAD_DIM + row % HEAD_DIM;
        *(unsigned *)(pages + at) = pack_bf16(v.x, v.y);
        return;
    }
    size_t at = (size_t)t * Q_ROWS + row;
#if WIDE_STEP
    *(unsigned *)((bf16 *)a.wide.out16 + at) = pack_bf16(v.x, v.y);
    if (a.q && t < a.wide.float_rows)
#endif
        *(float2 *)(a.q + at) = v;
}

__device__ __forceinline__ void finish(const struct region_args &a, struct memory &s,
                                       const struct place &at, const struct taken &taken, sums &c)
{
    bool mine = threadIdx.x < GROUPS * 128;
#if QK
    if (HEAD_BLOCKS > 1) {
        if (mine)
            tell_squares(s, at, c);
        __syncwarp();
        cluster_arrive();
        cluster_wait();
    }
    if (mine)
        norm_heads(a, s, at, c);
#endif
    if (!mine)
        return;
    int m = a.counts->m;
#pragma unroll
    for (int i = 0; i < EIGHTS * 2; i++) {
        int row = own_row(at, i / 2), t = own_token() + i % 2 * 8;
        float v = c[i * 2], w = c[i * 2 + 1];
        float2 by = taken.turn[i % 2][i / 2];
        if (row >= ROWS_ALL || t >= m)
            continue;
#if HAS_BIAS
        float2 bias = *(const float2 *)(a.bias + row);
        v += bias.x, w += bias.y;
#endif
        put_pair(a, row, t, taken.kv_row[i % 2],
                 make_float2(v * by.x - w * by.y, w * by.x + v * by.y));
    }
}

#else

/* Nothing depends on where tokens are. */
struct taken {
};

__device__ __forceinline__ struct taken take_tokens(const struct region_args &,
                                                    const struct place &)
{
    return {};
}

#if AT_MLP_IN

/* Of two lanes with neighbouring elements of h each writes both, of one of the two tokens. */
__device__ __forceinline__ void finish(const struct region_args &a, struct memory &,
                                       const struct place &at, const struct taken &, sums &c)
{
    int m = a.counts->m, odd = threadIdx.x % 2;
    if (threadIdx.x >= GROUPS * 128)
        return;
#pragma unroll
    for (int i = 0; i < EIGHTS; i++) {
        float h[2] = {silu(c[i * 4]) * c[i * 4 + 1], silu(c[i * 4 + 2]) * c[i * 4 + 3]};
        float other = __shfl_xor_sync(WARP_ALL, odd ? h[0] : h[1], 1);
        int t = own_token() + odd * 8, row = own_row(at, i);
        size_t to = (size_t)t * FFN + row / 2 - odd;
        float2 two = odd ? make_float2(other, h[1]) : make_float2(h[0], other);
        if (t >= m || row >= ROWS_ALL)
            continue;
        if (WIDE_STEP || a.wide.out16)
            *(unsigned *)((bf16 *)a.wide.out16 + to) = pack_bf16(two.x, two.y);
        if (!WIDE_STEP && a.h)
            *(float2 *)(a.h + to) = two;
    }
}

#else

/* A piece of a token that this block finishes: which thread has it in turn `i`. */
struct piece {
    int own, number, token, row;
};

__device__ __forceinline__ struct piece piece_of(const struct place &at, int i)
{
    int n = min((int)threadIdx.x + i * THREADS, OWN * PIECES - 1), own = n / PIECES, p = n % PIECES;
    return {own, p, own * SPLIT + at.rank, at.row + p / 4 * 16 + p % 4 * 2};
}

/* To where they are added up. Of a warp's 16 tokens those that are a block's have numbers that are
 * its own modulo SPLIT. */
__device__ __forceinline__ void send_sums(struct memory &s, const struct place &at, const sums &c)
{
    int t = own_token(), q = threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const float4 *own = &s.sent[at.rank][(t + k * 8) / SPLIT][q];
        unsigned to = peer_of((const float *)own, t % SPLIT);
#pragma unroll
        for (int i = 0; i < PIECES / 4; i++) {
            const float *v = &c[i * 8 + k * 2];
            bool both = 2 * i + 1 < EIGHTS;
            asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to + i * 64),
                         "f"(v[0]), "f"(v[1]), "f"(both ? v[both * 4] : 0),
                         "f"(both ? v[both * 4 + 1] : 0)
                         : "memory");
        }
    }
}

__device__ __forceinline__ float2 residual(const struct region_args &a, int t, int row, bool here)
{
    return here ? __ldcg((const float2 *)(a.x + (size_t)t * ROWS_ALL + row)) : make_float2(0, 0);
}

/* Whether the second half of a piece is of this tile and of the matrix. */
__device__ __forceinline__ bool has_second(const struct place &at, const struct piece &p)
{
    return p.row + 8 < min(at.row + (int)ROWS, (int)ROWS_ALL);
}

__device__ __forceinline__ void finish(const struct region_args &a, struct memory &s,
                                       const struct place &at, const struct taken &, const sums &c)
{
    enum { EACH = (OWN * PIECES + THREADS - 1) / THREADS };
    int m = a.counts->m;
    float2 x[EACH][2];
    if (threadIdx.x < GROUPS * 128)
        send_sums(s, at, c);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        struct piece p = piece_of(at, i);
        int t = min(p.token, m - 1);
        x[i][0] = residual(a, t, p.row, p.row < ROWS_ALL);
        x[i][1] = residual(a, t, p.row + 8, has_second(at, p));
    }
    __syncwarp();
    if (SPLIT > 1) {
        cluster_arrive();
        cluster_wait();
    } else {
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        struct piece p = piece_of(at, i);
        float4 v = s.sent[0][p.own][p.number];
#pragma unroll
        for (int part = 1; part < SPLIT; part++) {
            float4 more = s.sent[part][p.own][p.number];
            v.x += more.x, v.y += more.y, v.z += more.z, v.w += more.w;
        }
        float *y = a.y + (size_t)p.token * ROWS_ALL + p.row;
        if (p.token >= m || threadIdx.x + i * THREADS >= OWN * PIECES || p.row >= ROWS_ALL)
            continue;
        *(float2 *)y = make_float2(v.x + x[i][0].x, v.y + x[i][0].y);
        if (has_second(at, p))
            *(float2 *)(y + 8) = make_float2(v.z + x[i][1].x, v.w + x[i][1].y);
    }
}

#endif
#endif
#endif
#endif
