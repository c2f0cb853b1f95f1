/* SPDX-License-Identifier: Apache-2.0 */
/* wide_heads.cuh - the end of a tile of attn_in (wide_end.cuh): bias, q/k norm, RoPE; q as bf16, k
 * and v into their pages.
 *
 * A thread's two rows are a pair that RoPE turns: of one head, by one frequency, for all its
 * tokens. Tokens of a prompt follow each other, so that from one of a thread's groups of eight
 * tokens to the next all angles grow by the same, and cosine and sine are turned on instead of
 * looked up: lookups are 128 loads a thread, of 128 KB a tile of 256 tokens, and took a quarter of
 * the end. Each turn is wrong by some 1e-7, up to 31 of them together by a thousandth of what
 * rounding to bf16 is wrong by. Where tokens do not follow each other, as decodes do not, they are
 * looked up.
 */
#ifndef WHET_KERNELS_CUDA_LIB_WIDE_HEADS_CUH
#define WHET_KERNELS_CUDA_LIB_WIDE_HEADS_CUH

enum {
    Q_ROWS = HEADS * HEAD_DIM,
    TURNED_ROWS = Q_ROWS + KV_HEADS * HEAD_DIM, /* of q and k; v's follow */
    TOGETHER = 4,                               /* groups of eight tokens looked up at once */
    BATCHES = (OWN + TOGETHER - 1) / TOGETHER
};

/* ---- tokens ---------------------------------------------------------------------------------- */

enum { TAKES = (TOKENS + GROUPS * 128 - 1) / (GROUPS * 128) };

/* Where tokens of a tile are: those that this thread puts into shared memory; the first two of its
 * own; the last live one. Loaded before the products, so that nothing waits for it. */
struct taken {
    int position[TAKES], kv_at[TAKES], own[2], last;
};

__device__ __forceinline__ struct taken take_tokens(const struct region_args &a,
                                                    const struct place &at, int m)
{
    struct taken n;
#pragma unroll
    for (int i = 0; i < TAKES; i++) {
        int t = min(at.token + (int)threadIdx.x - 128 + i * GROUPS * 128, m - 1);
        n.position[i] = a.position[t];
        n.kv_at[i] = a.kv_at[t];
    }
#pragma unroll
    for (int j = 0; j < 2; j++)
        n.own[j] = a.position[min(at.token + local_token(at, 0) + j, m - 1)];
    n.last = a.position[min(at.token + TOKENS, m) - 1];
    return n;
}

/* `parity` alternates from tile to tile. The row of a token in k_pages and v_pages is that of the
 * first head; each other's is KV_PAGE on. */
__device__ __forceinline__ void put_tokens(struct memory &s, const struct taken &n, int parity)
{
#pragma unroll
    for (int k = 0; k < TAKES; k++) {
        int i = threadIdx.x - 128 + k * GROUPS * 128;
        if (TOKENS % (GROUPS * 128) && i >= TOKENS)
            break;
        s.position[parity][i] = n.position[k];
        s.kv_row[parity][i] = n.kv_at[k] / KV_PAGE * (KV_HEADS * KV_PAGE) + n.kv_at[k] % KV_PAGE;
    }
}

#if QK
/* Sums of v[0..8) over the eight lanes of a token (lib/stream.cuh, warp_sums()): lane g gets number
 * `which`. */
__device__ __forceinline__ float token_sums(float (&v)[8], int &which)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int o = 4, n = 4; n > 0; o *= 2, n /= 2)
#pragma unroll
        for (int i = 0; i < n; i++) {
            float give = lane & o ? v[i] : v[i + n], keep = lane & o ? v[i + n] : v[i];
            v[i] = keep + __shfl_xor_sync(WARP_ALL, give, o);
        }
    which = (lane & 4) | (lane >> 2 & 2) | lane >> 4;
    return v[0];
}

/* Sums of squares of every head and token of the tile, over its rows' warps, to 1/rms. Of tokens
 * that are other blocks' they are nonsense that nobody looks at. */
__device__ __forceinline__ void norm_heads(const struct region_args &a, struct memory &s,
                                           const struct place &at, int group, const own_sums &c)
{
    enum { WARPS_OF = HEAD_DIM / 16 };
    int thread = threadIdx.x - 128, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
        for (int first = 0; first < OWN; first += 4) {
            float square[8];
            int which;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                int at4 = (first + i / 2) * 4 + i % 2;
                square[i] =
                    first + i / 2 < OWN ? c[r][at4] * c[r][at4] + c[r][at4 + 2] * c[r][at4 + 2] : 0;
            }
            float sum = token_sums(square, which);
            int local = local_token(at, first + which / 2) + which % 2;
            if (first + which / 2 < OWN && local < TOKENS)
                s.squares[(group * TILES + r) * 4 + warp][local] = sum;
        }
    named_sync(1, GROUPS * 128);
    for (int i = thread; i < HEADS_HERE * TOKENS; i += GROUPS * 128) {
        float sum = 0;
#pragma unroll
        for (int k = 0; k < WARPS_OF; k++)
            sum += s.squares[i / TOKENS * WARPS_OF + k][i % TOKENS];
        s.scale[i / TOKENS][i % TOKENS] = rsqrtf(sum / HEAD_DIM + a.eps);
    }
    named_sync(1, GROUPS * 128);
}
#endif

/* ---- angles ---------------------------------------------------------------------------------- */

/* Cosine and sine of a pair of rows, for tokens 2 q and 2 q + 1 of a group. */
struct turns {
    float2 by[2];
};
typedef struct turns batch_turns[TOGETHER];

__device__ __forceinline__ float2 turn_at(const struct region_args &a, int row, int position)
{
    size_t i = (size_t)position * (HEAD_DIM / 2) + row % HEAD_DIM / 2;
    return make_float2(a.rope_cos[i], a.rope_sin[i]);
}

__device__ __forceinline__ struct turns look_up(const struct region_args &a, const struct memory &s,
                                                const struct place &at, int row, int parity,
                                                int eight)
{
    const int *position = s.position[parity] + min(local_token(at, eight), TOKENS - 2);
    return {{turn_at(a, row, position[0]), turn_at(a, row, position[1])}};
}

__device__ __forceinline__ void turn_on(struct turns &t, float2 step)
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        float2 v = t.by[j];
        t.by[j] = make_float2(v.x * step.x - v.y * step.y, v.y * step.x + v.x * step.y);
    }
}

/* Where a thread's angles begin, and what they grow by from one group to the next where tokens
 * follow each other. v's rows are turned by none. */
struct course {
    struct turns from;
    float2 step;
};

/* The table has the step's row if any token of a next group is live; its entries may be longer than
 * 1, all alike. */
__device__ __forceinline__ struct course course_of(const struct region_args &a,
                                                   const struct taken &taken, int row)
{
    if (row >= TURNED_ROWS)
        return {{{{1, 0}, {1, 0}}}, {1, 0}};
    return {{{turn_at(a, row, taken.own[0]), turn_at(a, row, taken.own[1])}},
            turn_at(a, row, min(8 * SPLIT, taken.last))};
}

/* Whether the `live` tokens of a tile follow each other. For whole warps. */
__device__ __forceinline__ bool in_a_row(const struct memory &s, int live, int parity)
{
    const int *position = s.position[parity];
    bool all = true;
#pragma unroll
    for (int i = threadIdx.x % 32; i < TOKENS; i += 32)
        all &= i >= live || position[i] == position[0] + i;
    return __all_sync(WARP_ALL, all);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Of a thread's two rows. What they are of, q, k or v, is the same for a warp. */
struct own_rows {
    int row, left; /* the first; how many tokens are live from this thread's first one on */
    bool floats;   /* of q: eager attention reads some of the tile's tokens as floats */
    bf16 *to;      /* q: of this thread's first token; k, v: of row 0 of pages */
    float2 bias, gain;
};

__device__ __forceinline__ struct own_rows rows_of(const struct region_args &a,
                                                   const struct place &at, int row, int live)
{
    int head = row / HEAD_DIM, kv_head = (head - HEADS) % KV_HEADS, first = local_token(at, 0);
    struct own_rows f = {row, live - first};
    f.floats = row < Q_ROWS && a.q && at.token < a.wide.float_rows;
    f.to = row < Q_ROWS ? (bf16 *)a.wide.out16 + (size_t)(at.token + first) * Q_ROWS + row
                        : (bf16 *)(row < TURNED_ROWS ? a.k_pages : a.v_pages) +
                              kv_head * KV_PAGE * HEAD_DIM + row % HEAD_DIM;
#if HAS_BIAS
    f.bias = *(const float2 *)(a.bias + row);
#endif
#if QK
    if (row < TURNED_ROWS)
        f.gain = *(const float2 *)((row < Q_ROWS ? a.q_norm : a.k_norm) + row % HEAD_DIM);
#endif
    return f;
}

/* A thread's sums of a group of eight tokens, number `eight` of its block's; QUERIES: they are of
 * q; FLOATS: which may be wanted as floats, too. */
template <bool QUERIES, bool FLOATS>
__device__ __forceinline__ void
finish_group(const struct region_args &a, const struct memory &s, const struct place &at,
             const struct own_rows &f, int parity, int eight, const struct turns &n, const float *c)
{
    int local = local_token(at, eight);
    if (EIGHTS % SPLIT && local >= TOKENS)
        return;
#if QK
    float2 two = *(const float2 *)&s.scale[f.row % FEATURES / HEAD_DIM][local];
#endif
    int2 kv = {0, 0};
    if (!QUERIES)
        kv = *(const int2 *)&s.kv_row[parity][local];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        float v = c[j], w = c[j + 2];
#if HAS_BIAS
        v += f.bias.x, w += f.bias.y;
#endif
#if QK
        if (QUERIES || f.row < TURNED_ROWS)
            v *= (j ? two.y : two.x) * f.gain.x, w *= (j ? two.y : two.x) * f.gain.y;
#endif
        float2 by = n.by[j], to = make_float2(v * by.x - w * by.y, w * by.x + v * by.y);
        int after = eight * SPLIT * 8 + j; /* the thread's first token */
        if (after >= f.left)
            continue;
        size_t row = QUERIES ? (size_t)after * Q_ROWS : (size_t)(j ? kv.y : kv.x) * HEAD_DIM;
        *(unsigned *)(f.to + row) = pack_bf16(to.x, to.y);
        if (FLOATS && f.floats && at.token + local + j < a.wide.float_rows)
            *(float2 *)(a.q + (size_t)(at.token + local + j) * Q_ROWS + f.row) = to;
    }
}

/* With angles turned on from group to group; v's rows are turned by none. */
template <bool QUERIES>
__device__ __forceinline__ void
finish_following(const struct region_args &a, const struct memory &s, const struct place &at,
                 const struct own_rows &f, int parity, struct course n, const float *c)
{
    float by = rsqrtf(n.step.x * n.step.x + n.step.y * n.step.y);
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        finish_group<QUERIES, false>(a, s, at, f, parity, i, n.from, c + i * 4);
        turn_on(n.from, make_float2(n.step.x * by, n.step.y * by));
    }
}

/* With angles looked up. Loads do not pass the stores before them: so those of the next groups are
 * under way while some are finished. */
template <bool QUERIES>
__device__ __forceinline__ void finish_apart(const struct region_args &a, const struct memory &s,
                                             const struct place &at, const struct own_rows &f,
                                             int parity, const float *c)
{
    batch_turns n[2];
#pragma unroll
    for (int b = -1; b < BATCHES; b++) {
#pragma unroll
        for (int i = 0; i < TOGETHER; i++)
            if ((b + 1) * TOGETHER + i < OWN)
                n[(b + 1) % 2][i] = look_up(a, s, at, f.row, parity, (b + 1) * TOGETHER + i);
#pragma unroll
        for (int i = 0; i < TOGETHER; i++)
            if (b >= 0 && b * TOGETHER + i < OWN)
                finish_group<QUERIES, QUERIES>(a, s, at, f, parity, b * TOGETHER + i,
                                               n[(b + 2) % 2][i], c + (b * TOGETHER + i) * 4);
    }
}

__device__ __forceinline__ void finish_rows(const struct region_args &a, const struct memory &s,
                                            const struct place &at, int row, int m, int parity,
                                            const struct course &n, const float *c)
{
    int live = min(TOKENS, m - at.token);
    struct own_rows f = rows_of(a, at, row, live);
    bool follow = f.row >= TURNED_ROWS || (!f.floats && in_a_row(s, live, parity));
    if (follow && f.row < Q_ROWS)
        finish_following<true>(a, s, at, f, parity, n, c);
    else if (follow)
        finish_following<false>(a, s, at, f, parity, n, c);
    else if (f.row < Q_ROWS)
        finish_apart<true>(a, s, at, f, parity, c);
    else
        finish_apart<false>(a, s, at, f, parity, c);
}

#endif
