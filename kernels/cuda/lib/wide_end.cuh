/* SPDX-License-Identifier: Apache-2.0 */
/* wide_end.cuh - what becomes of the sums of wide.cu and brick_wide.cu: met over the blocks that
 * share K, then bias, q/k norm, RoPE and KV pages, SiLU, or the residual. The includer has the
 * knobs. BRICKS: weights are in their own format.
 *
 * A thread's sums of eight tokens and 16 rows are four: of two rows for tokens 2 q and 2 q + 1
 * (q = lane % 4). The rows are 2 g and 2 g + 1 of the matrix (g = lane / 4) where wide.cu has
 * packed them so, g and g + 8 of bricks; there lanes exchange one of them (pair_rows()), so that
 * each has two neighbours here, too. They are finished where they are: eight lanes write 32 or 64
 * bytes in a row, or 16 of h (or all of it through shared memory: wide_gated.cuh).
 */
#ifndef WHET_KERNELS_CUDA_LIB_WIDE_END_CUH
#define WHET_KERNELS_CUDA_LIB_WIDE_END_CUH

#include "cuda/lib/wgmma.cuh"

#define BRICKS (WTYPE != 2) /* not DTYPE_BF16 */
#if BRICKS
#include "cuda/lib/bricks.cuh"
#endif

#define QK (AT_ATTN_IN && HAS_QK_NORM)
#define PREPARES (HAS_NORM || E4M3) /* a launch makes the rows that the product reads */
/* Activations in e4m3 have a scale for each 128 columns of a token, or one for a token; the tokens
 * of a tile are multiplied together, or in halves by turns. */
#define BY_COLUMNS (E4M3 == 1)
#define BY_TOKEN (E4M3 > 1)
#define IN_HALVES (E4M3 > 2)
#if PREPARES
#define PRODUCT_ENTRY whet_kernel_1
#else
#define PRODUCT_ENTRY whet_kernel
#endif

enum {
    NORM_THREADS = 256,
    PIECE = 64 * 64 * 2,                      /* bytes of 64 rows of weights in a step */
    FEATURES = 64 * TILES * GROUPS,           /* rows of a tile */
    COLUMNS = E4M3 ? 128 : 64,                /* of a step: 128 bytes of a token */
    STEPS = K / COLUMNS,                      /* of a whole row */
    BRICK_STEPS = BRICKS ? 256 / COLUMNS : 1, /* that the weights of a row come together for */
    BLOCKS = CLUSTER * SPLIT,                 /* of a cluster */
    BOX = TOKENS / CLUSTER,                   /* tokens that a block asks for */
    THREADS = (1 + GROUPS) * 128,
    /* E4M3: bytes of the codes that the launch before leaves, and how many tokens there are scales
     * of behind them: SCALED times, for each 128 columns or for all. */
    CODES = M_MAX * K,
    SCALES = (M_MAX + TOKENS - 1) / TOKENS * TOKENS,
    SCALED = BY_TOKEN ? 1 : K / 128,
    EIGHTS = TOKENS / 8, /* groups of tokens, dealt to the blocks that share K */
    OWN = (EIGHTS + SPLIT - 1) / SPLIT,
    UNITS = ROWS_ALL / FEATURES / CLUSTER * ((M_MAX + TOKENS - 1) / TOKENS),
    ROOM = (SMS - SPARE) * FIT / BLOCKS,
    CLUSTERS = UNITS < ROOM ? UNITS : ROOM,
    HEADS_HERE = QK ? (FEATURES + HEAD_DIM - 1) / HEAD_DIM : 1
};

/* What a tile of a block is: its place among the rows' tiles, its first token, its part of K. */
struct place {
    int tile, token, part;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* A thread's: of all tokens of a tile, and of those that its block finishes. */
typedef float sums[TILES][EIGHTS * 4];
typedef float own_sums[TILES][OWN * 4];

struct memory {
#if BRICKS
    char stage[STAGES][TOKENS * 128];
    char bricks[RING][FEATURES / BRICK_ROWS * brick_bytes(WTYPE)];
#if E4M3
    float token_scale[BY_TOKEN ? 2 : STAGES][TOKENS]; /* of a tile and the next, or of steps */
#endif
    barrier here[RING], taken[RING]; /* of bricks; full and empty are of stages */
#else
    char stage[STAGES][(FEATURES + TOKENS) * 128];
#endif
#if AT_MLP_IN && STORE
    uint4 staged[GROUPS][2][128]; /* h of 32 tokens, by turns */
#endif
    float4 sent[SPLIT > 1 ? (SPLIT - 1) * OWN *TILES *GROUPS * 128 : 1];
    int position[2][AT_ATTN_IN ? TOKENS : 1], kv_row[2][AT_ATTN_IN ? TOKENS : 1];
    float squares[QK ? FEATURES / 16 : 1][QK ? TOKENS : 1];
    float scale[HEADS_HERE][QK ? TOKENS : 1];
    barrier full[STAGES], empty[STAGES], sums_here, sums_read;
};

/* The activations of a stage. */
__device__ __forceinline__ char *tokens_at(struct memory &s, int stage)
{
    return s.stage[stage] + (BRICKS ? 0 : FEATURES * 128);
}

/* ---- the same rows and tokens of other parts of K -------------------------------------------- */

/* 16 bytes to where *own is in block `rank`. */
__device__ __forceinline__ void send(const float4 *own, int rank, const float *c)
{
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(peer_of(own, rank)),
                 "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3])
                 : "memory");
}

/* Place of a thread's four sums, from part `from` for part `to`. */
__device__ __forceinline__ float4 *sent_at(struct memory &s, int from, int to, int own, int r,
                                           int thread)
{
    int slot = from - (from > to);
    return &s.sent[((slot * OWN + own) * TILES + r) * (GROUPS * 128) + thread];
}

/* Sends the sums of tokens that are other blocks', adds what they sent of this block's: first its
 * own, then by parts in order. `again`, `more`: there was a tile before, there is another one. */
__device__ __forceinline__ void meet(struct memory &s, const struct place &at, int rank, int parity,
                                     bool again, bool more, const sums &c, own_sums &own)
{
    int thread = threadIdx.x - 128, lane = threadIdx.x % 32;
    if (again) /* what was sent before has been read everywhere */
        barrier_wait_cluster(&s.sums_read, parity ^ 1);
#pragma unroll
    for (int i = 0; i < EIGHTS * TILES; i++) {
        int eight = i / TILES, r = i % TILES, to = eight % SPLIT;
        if (to != at.part)
            send(sent_at(s, at.part, to, eight / SPLIT, r, thread), rank % CLUSTER + to * CLUSTER,
                 &c[r][eight * 4]);
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (to == at.part)
                own[r][eight / SPLIT * 4 + j] = c[r][eight * 4 + j];
    }
    __syncwarp();
    if (lane < SPLIT && lane != at.part)
        barrier_arrive_at<true>(&s.sums_here, rank % CLUSTER + lane * CLUSTER);
    barrier_wait_cluster(&s.sums_here, parity);
#pragma unroll
    for (int i = 0; i < OWN * TILES * SPLIT; i++) {
        int p = i % SPLIT, r = i / SPLIT % TILES, eight = i / SPLIT / TILES;
        if (p == at.part)
            continue;
        float4 v = *sent_at(s, p, at.part, eight, r, thread);
        own[r][eight * 4] += v.x, own[r][eight * 4 + 1] += v.y;
        own[r][eight * 4 + 2] += v.z, own[r][eight * 4 + 3] += v.w;
    }
    if (!more)
        return;
    named_sync(1, GROUPS * 128); /* all have read */
    if (thread < SPLIT && thread != at.part)
        barrier_arrive_at<true>(&s.sums_read, rank % CLUSTER + thread * CLUSTER);
}

/* ---- a tile's end ---------------------------------------------------------------------------- */

/* First of the 16 rows of this warp's tile r. */
__device__ __forceinline__ int first_row(const struct place &at, int group, int r)
{
    return at.tile * FEATURES + (group * TILES + r) * 64 + threadIdx.x / 32 % 4 * 16;
}

/* And the first of the two that a thread has. */
__device__ __forceinline__ int own_row()
{
    int g = threadIdx.x % 32 / 4;
    return BRICKS ? g % 2 ? g + 7 : g : g * 2;
}

#if BRICKS
/* A lane with rows g and g + 8 has, g being even, g and g + 1 from now on, and its neighbour, which
 * had g + 1 and g + 9, has g + 8 and g + 9. */
__device__ __forceinline__ void pair_rows(own_sums &c)
{
    bool odd = threadIdx.x & 4;
#pragma unroll
    for (int i = 0; i < TILES * OWN * 2; i++) {
        float *two = &c[i / (OWN * 2)][i % (OWN * 2) / 2 * 4 + i % 2];
        float other = __shfl_xor_sync(WARP_ALL, odd ? two[0] : two[2], 4);
        two[0] = odd ? other : two[0], two[2] = odd ? two[2] : other;
    }
}
#endif

/* First of the two tokens, within the tile, of this thread's group number i of its own. */
__device__ __forceinline__ int local_token(const struct place &at, int i)
{
    return (i * SPLIT + at.part) * 8 + threadIdx.x % 4 * 2;
}

#if AT_ATTN_IN
#include "cuda/lib/wide_heads.cuh"
#elif AT_MLP_IN
#include "cuda/lib/wide_gated.cuh"
#else
enum { TOGETHER = 4, BATCHES = (OWN + TOGETHER - 1) / TOGETHER }; /* groups of eight tokens */

/* The residual of a pair of rows, of a batch's tokens. Loads do not pass the stores before them: so
 * those of the next tokens are under way while some are finished. */
typedef float2 residuals[TOGETHER][2];

__device__ __forceinline__ void fetch_batch(const struct region_args &a, const struct place &at,
                                            int row, int m, int b, residuals &x)
{
#pragma unroll
    for (int i = 0; i < TOGETHER * 2; i++) {
        int local = min(local_token(at, b * TOGETHER + i / 2) + i % 2, TOKENS - 1);
        int t = min(at.token + local, m - 1);
        if (b * TOGETHER + i / 2 < OWN)
            x[i / 2][i % 2] = __ldcg((const float2 *)(a.x + (size_t)t * ROWS_ALL + row));
    }
}

__device__ __forceinline__ void finish_rows(const struct region_args &a, const struct place &at,
                                            int row, int m, const float *c)
{
    residuals x[2];
    row += own_row();
    fetch_batch(a, at, row, m, 0, x[0]);
#pragma unroll
    for (int b = 0; b < BATCHES; b++) {
        if (b + 1 < BATCHES)
            fetch_batch(a, at, row, m, b + 1, x[(b + 1) % 2]);
#pragma unroll
        for (int i = 0; i < TOGETHER * 2; i++) {
            int eight = b * TOGETHER + i / 2, local = local_token(at, eight) + i % 2;
            float2 v = x[b % 2][i / 2][i % 2];
            if (eight < OWN && local < TOKENS && at.token + local < m)
                *(float2 *)(a.y + (size_t)(at.token + local) * ROWS_ALL + row) =
                    make_float2(c[eight * 4 + i % 2] + v.x, c[eight * 4 + i % 2 + 2] + v.y);
        }
    }
}
#endif

#if AT_ATTN_IN
/* What is looked up comes while heads are normed. */
__device__ __forceinline__ void finish_tile(const struct region_args &a, struct memory &s,
                                            const struct place &at, int group, int m, int parity,
                                            const struct taken &taken, own_sums &c)
{
    struct course n[TILES];
    put_tokens(s, taken, parity);
#pragma unroll
    for (int r = 0; r < TILES; r++)
        n[r] = course_of(a, taken, first_row(at, group, r) + own_row());
#if BRICKS
    pair_rows(c);
#endif
#if QK
    norm_heads(a, s, at, group, c);
#else
    named_sync(1, GROUPS * 128); /* put_tokens() */
#endif
#pragma unroll
    for (int r = 0; r < TILES; r++)
        finish_rows(a, s, at, first_row(at, group, r) + own_row(), m, parity, n[r], c[r]);
}
#else
/* Nothing depends on where tokens are. */
struct taken {
};

__device__ __forceinline__ struct taken take_tokens(const struct region_args &,
                                                    const struct place &, int)
{
    return {};
}

__device__ __forceinline__ void finish_tile(const struct region_args &a, struct memory &s,
                                            const struct place &at, int group, int m, int parity,
                                            const struct taken &, own_sums &c)
{
#if BRICKS
    pair_rows(c);
#endif
#if AT_MLP_IN && STORE
    finish_gated(a, s, at, group, m, parity, c);
#else
#pragma unroll
    for (int r = 0; r < TILES; r++)
        finish_rows(a, at, first_row(at, group, r), m, c[r]);
#endif
}
#endif

#endif
#endif
