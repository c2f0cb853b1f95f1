/* SPDX-License-Identifier: Apache-2.0 */
/* wide_gated.cuh - the end of a tile of mlp_in (wide_end.cuh): h = silu(g) u, in bf16.
 *
 * STORE 0: of two lanes with neighbouring elements each writes both for one token. A warp's store
 * is eight pieces of 16 bytes then, one for each of eight tokens: eight lines for 128 bytes, and
 * halves of L2's sectors.
 *
 * STORE 1, of bricks: a warpgroup brings what it has of 32 tokens into an order of its own in
 * shared memory (stmatrix turns tokens into rows), meets, and writes 16 bytes a thread: 64 bytes of
 * each token.
 */
#ifndef WHET_KERNELS_CUDA_LIB_WIDE_GATED_CUH
#define WHET_KERNELS_CUDA_LIB_WIDE_GATED_CUH

#include "cuda/lib/stream.cuh"

/* silu() of device.cuh within a few ulp, by instructions alone. */
__device__ __forceinline__ float silu_fast(float v)
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + exp2_fast(v * -1.44269504f)));
    return v * r;
}

#if STORE
/* A piece: four of a thread's groups of eight tokens. They lie in two places by turns. */
enum { OF_PIECE = 4, PIECES = OWN / OF_PIECE };

/* Where the 16 bytes are that warp `warp` of a warpgroup has of token `token` of a piece. Stores of
 * eight tokens and loads of two of them touch all banks. */
__device__ __forceinline__ int staged_at(int token, int warp)
{
    return token * 4 + (warp ^ (token / 2 % 4));
}

/* h[i]: an element of tokens 2 q and 2 q + 1 of group i. */
__device__ __forceinline__ void stage_piece(uint4 *piece, const unsigned (&h)[OF_PIECE])
{
    uint4 *to = piece + staged_at(threadIdx.x % 32, threadIdx.x / 32 % 4);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     shared_at(to)),
                 "r"(h[0]), "r"(h[1]), "r"(h[2]), "r"(h[3])
                 : "memory");
}

/* A thread's 16 bytes of a piece: eight elements of a token, in their order. Lanes 0, 2, 4, 6, 1,
 * 3, 5, 7 had them (pair_rows()). */
__device__ __forceinline__ uint4 take_piece(const uint4 *piece)
{
    uint4 v = load_staged(piece + staged_at(threadIdx.x % 128 / 4, threadIdx.x % 4));
    return make_uint4(__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.z, v.w, 0x5410),
                      __byte_perm(v.x, v.y, 0x7632), __byte_perm(v.z, v.w, 0x7632));
}

/* 16 bytes, without a branch, which nothing would be moved across. */
__device__ __forceinline__ void store_if(void *to, uint4 v, bool wanted)
{
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %5, 0;\n"
                 " @p st.global.v4.u32 [%0], {%1, %2, %3, %4};\n}" ::"l"(to),
                 "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"((int)wanted)
                 : "memory");
}

/* Element `column` and on of piece `n` of 64 rows. */
__device__ __forceinline__ void store_piece(const struct region_args &a, const struct place &at,
                                            int column, int n, int m, uint4 v)
{
    int token = threadIdx.x % 128 / 4, t = at.token + (n * OF_PIECE + token / 8) * 8 + token % 8;
    bf16 *h = (bf16 *)a.wide.out16 + (size_t)t * FFN + column + threadIdx.x % 4 * 8;
    store_if(h, v, t < m);
}

/* Sums of a piece to its place. */
__device__ __forceinline__ void gate_piece(uint4 *piece, const float *sums)
{
    unsigned h[OF_PIECE];
#pragma unroll
    for (int i = 0; i < OF_PIECE; i++) {
        const float *c = sums + i * 4;
        h[i] = pack_bf16(silu_fast(c[0]) * c[2], silu_fast(c[1]) * c[3]);
    }
    stage_piece(piece, h);
}

/* While a piece is read, the next one is written; then its readers and writers meet. `parity`
 * alternates from tile to tile: where pieces are odd in number, so does the place of the first. */
__device__ __forceinline__ void finish_gated(const struct region_args &a, struct memory &s,
                                             const struct place &at, int group, int m, int parity,
                                             const own_sums &c)
{
    int first = PIECES % 2 ? parity : 0, column = (at.tile * FEATURES + group * 64) / 2;
    gate_piece(s.staged[group][first], c[0]);
    named_sync(2 + group, 128);
#pragma unroll
    for (int n = 0; n < PIECES; n++) {
        int next = n + 1;
        if (next < PIECES)
            gate_piece(s.staged[group][(first + next) % 2], &c[0][next * OF_PIECE * 4]);
        uint4 v = take_piece(s.staged[group][(first + n) % 2]);
        if (next < PIECES)
            named_sync(2 + group, 128);
        store_piece(a, at, column, n, m, v);
    }
}
#else
/* Four sums of a thread, of tokens t and t + 1: an element of h for each. Of two lanes with
 * neighbouring elements one takes the first token, the other the second. */
__device__ __forceinline__ void finish_four(const struct region_args &a, int row, int t, int m,
                                            const float *c)
{
    int odd = threadIdx.x >> (BRICKS ? 3 : 2) & 1; /* the lane that is 8 or 4 away has the other */
    float first = silu_fast(c[0]) * c[2], second = silu_fast(c[1]) * c[3];
    float other = __shfl_xor_sync(WARP_ALL, odd ? first : second, BRICKS ? 8 : 4);
    unsigned pair = odd ? pack_bf16(other, second) : pack_bf16(first, other);
    size_t i = (size_t)(t + odd) * FFN + (row + own_row()) / 2 - odd;
    if (t + odd < m)
        *(unsigned *)((bf16 *)a.wide.out16 + i) = pair;
}

__device__ __forceinline__ void finish_rows(const struct region_args &a, const struct place &at,
                                            int row, int m, const float *c)
{
#pragma unroll
    for (int i = 0; i < OWN; i++)
        if (EIGHTS % SPLIT == 0 || local_token(at, i) < TOKENS)
            finish_four(a, row, at.token + local_token(at, i), m, c + i * 4);
}
#endif

#endif
