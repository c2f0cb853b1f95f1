/* SPDX-License-Identifier: Apache-2.0 */
/* mma_take.cuh - how a block of mma_block.cu brings all of x, M rows of K floats, into shared
 * memory as bf16 rows, each number rounded once and where eager rounds it.
 *
 * It stands between the wait and the first product, so as many loads as registers hold are under
 * way at once, of all warps. Without a norm threads take 16 bytes by turns, whatever the row. With
 * one a turn is GROUPS times TOKENS rows: a warp has PIECES neighbouring pieces of such TOKENS
 * rows, which are of two rows at most, and keeps them in registers until the other warps' sums of
 * squares are there, a barrier later.
 */
#ifndef WHET_KERNELS_CUDA_LIB_MMA_TAKE_CUH
#define WHET_KERNELS_CUDA_LIB_MMA_TAKE_CUH

#include "cuda/lib/mma_x.cuh"

enum {
    ROOM = 65536 / (BLOCKS * THREADS) < 255 ? 65536 / (BLOCKS * THREADS) / 8 * 8 : 248,
    /* registers that are neither weights nor loads of x; by trial */
    OTHERS = 42 + 20 * HAS_NORM + 4 * AT_ATTN_IN + 2 * NT,
    LEFT = (ROOM - OTHERS - TILES * UNROLL * 8) / 4,
    AT_LEAST = LEFT > 6 ? LEFT : 6,
    HELD = AT_LEAST < 32 ? AT_LEAST : 32, /* 16-byte loads of a lane under way */
    /* without a norm: loads of a thread, in rounds of as many at once */
    ITEMS = M * K / 4,
    EACH = (ITEMS + THREADS - 1) / THREADS,
    ROUNDS = (EACH + HELD - 1) / HELD,
    ROUND = (EACH + ROUNDS - 1) / ROUNDS,
    /* with one */
    ACROSS = K / WIDTH, /* pieces of a row: a load of each lane */
    FEW = HELD * WARPS / ACROSS < 1 ? 1 : HELD * WARPS / ACROSS,
    FEWER = M < WARPS ? M : WARPS,
    TOKENS = FEW < FEWER ? FEW : FEWER,
    PIECES = (TOKENS * ACROSS + WARPS - 1) / WARPS,
    ALL_GROUPS = (M + TOKENS - 1) / TOKENS,
    AS_MANY = HELD / PIECES < 1 ? 1 : HELD / PIECES,
    GROUPS = AS_MANY < ALL_GROUPS ? AS_MANY : ALL_GROUPS,
    SMEM_GAINS = HAS_NORM ? K * 4 : 0
};
static_assert(K % WIDTH == 0 && PIECES <= ACROSS, "whole pieces, of two rows at most");
static_assert(GROUPS <= 16, "mma_block.def reckons with 256 bytes of squares a warp");

/* Before the wait: gains into shared memory. Sent by themselves, in front of weights; a barrier
 * makes them everybody's (mma_block.cu). */
__device__ __forceinline__ void ask_all_gains(const struct region_args &a, float *gain)
{
#if HAS_NORM
    for (int i = threadIdx.x * 4; i < K; i += THREADS * 4)
        copy_shared(gain + i, a.norm + i);
    copies_sent();
#endif
}

__device__ __forceinline__ void put_rounded(bf16 *to, float4 v)
{
    *(uint2 *)to = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
}

#if HAS_NORM
typedef float parts_of_squares[WARPS][2]; /* of the two rows that a warp has pieces of */

/* 1/rms of row q of TOKENS, whose parts are summed in the order of columns. */
__device__ __forceinline__ float scale_at(const struct region_args &a, const parts_of_squares &part,
                                          int q)
{
    float sum = 0;
    for (int w = q * ACROSS / PIECES; w <= (q * ACROSS + ACROSS - 1) / PIECES; w++)
        sum += part[w][q - w * PIECES / ACROSS];
    return rsqrtf(sum / K + a.eps);
}

/* Whether piece i of a warp is of the second of its rows, the first being `row` of TOKENS. */
__device__ __forceinline__ bool of_second(const struct where &at, int row, int i)
{
    return ACROSS % PIECES != 0 && at.warp * PIECES + i >= (row + 1) * ACROSS;
}

/* Tokens from `first` on. `squares` is another memory than in the turn before. */
__device__ __forceinline__ void take_turn(const struct region_args &a, const struct where &at,
                                          bf16 *x, const float *gain, parts_of_squares *squares,
                                          int first, int live)
{
    float4 v[GROUPS][PIECES];
    int piece = at.warp * PIECES, row = piece / ACROSS, column = piece * WIDTH + at.lane * 4;
#pragma unroll
    for (int s = 0; s < GROUPS; s++) {
        const float *from = a.x + (size_t)(first + s * TOKENS) * K + column;
        int rows = min((int)TOKENS, M - first - s * TOKENS);
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            v[s][i] =
                piece + i < rows * ACROSS ? load_x4(from + i * WIDTH) : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int s = 0; s < GROUPS; s++) {
        float sum[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            float4 p = v[s][i];
            float square = (p.x * p.x + p.y * p.y) + (p.z * p.z + p.w * p.w);
            sum[0] += of_second(at, row, i) ? 0 : square;
            sum[1] += of_second(at, row, i) ? square : 0;
        }
        sum[0] = warp_sum(sum[0]);
        if (ACROSS % PIECES != 0)
            sum[1] = warp_sum(sum[1]);
        if (at.lane == 0)
            squares[s][at.warp][0] = sum[0], squares[s][at.warp][1] = sum[1];
    }
    __syncthreads();
    if (live <= 0) /* never, but the compiler does not know, and moves no load behind a store */
        return;
#pragma unroll
    for (int s = 0; s < GROUPS; s++) {
        float f[2] = {scale_at(a, squares[s], min(row, TOKENS - 1)),
                      ACROSS % PIECES != 0 ? scale_at(a, squares[s], min(row + 1, TOKENS - 1)) : 0};
        int rows = min((int)TOKENS, M - first - s * TOKENS), c = column - row * K;
        bf16 *to = x + (first + s * TOKENS + row) * LD + c;
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            bool second = of_second(at, row, i);
            if (piece + i >= rows * ACROSS)
                continue;
            float4 p = v[s][i], g = *(const float4 *)(gain + c + i * WIDTH - (second ? K : 0));
            float r = second ? f[1] : f[0];
            put_rounded(to + i * WIDTH + (second ? LD - K : 0),
                        make_float4(p.x * r * g.x, p.y * r * g.y, p.z * r * g.z, p.w * r * g.w));
        }
    }
}
#endif

/* All of x. live: counts->m, which is above zero. Rows of shared memory from M on hold anything:
 * products of them reach no other token. */
__device__ __forceinline__ void take_all(const struct region_args &a, const struct where &at,
                                         bf16 *x, const float *gain, int live)
{
#if HAS_NORM
    __shared__ parts_of_squares squares[2][GROUPS];
#pragma unroll 1
    for (int turn = 0; turn * (GROUPS * TOKENS) < M; turn++)
        take_turn(a, at, x, gain, squares[turn % 2], turn * (GROUPS * TOKENS), live);
#else
#pragma unroll 1
    for (int k = 0; k < EACH; k += ROUND) {
        float4 v[ROUND];
#pragma unroll
        for (int i = 0; i < ROUND; i++) {
            int item = (k + i) * THREADS + threadIdx.x;
            if (ITEMS == ROUNDS * ROUND * THREADS || item < ITEMS)
                v[i] = load_x4(a.in + (size_t)item * 4);
        }
        if (live <= 0)
            return;
#pragma unroll
        for (int i = 0; i < ROUND; i++) {
            int item = (k + i) * THREADS + threadIdx.x;
            if (ITEMS == ROUNDS * ROUND * THREADS || item < ITEMS)
                put_rounded(x + item / (K / 4) * LD + item % (K / 4) * 4, v[i]);
        }
    }
#endif
}

#endif
