/* SPDX-License-Identifier: Apache-2.0 */
/* words.cuh - numbers that ranks write into each other's memory as words, each of which says by
 * itself that it is there (kernels/peer.h, REDUCE_WORDS).
 *
 * Whoever has its part of some numbers sends them to all other ranks and then adds theirs, in the
 * order of ranks; what it took is empty again. It may be a kernel of `reduce`, or a projection's
 * threads at its end, which saves a kernel between the projection and the next region: on either
 * rank, since both do the same to memory.
 *
 * Invariant: a thread sends what it has of a pass over its rows before it waits for any of that,
 * and each number is sent and taken once by each rank. Passes are the same on all ranks, whose
 * kernels are those of one table, or there is one pass: so nobody waits in a circle.
 */
#ifndef WHET_KERNELS_CUDA_LIB_WORDS_CUH
#define WHET_KERNELS_CUDA_LIB_WORDS_CUH

#include "peer.h"

enum { WORDS_LOOKS = 1024 };

/* Whether a projection can: of more tokens they have no registers left for it, and sums of that
 * size are better made by a kernel of their own. */
#define ADDS_RANKS (AT_OUT && M_MAX <= 32)

/* Number n of what rank `of` sends to rank `on`. */
__device__ __forceinline__ float *word_at(const struct peer_area &p, int turn, int on, int of,
                                          size_t n)
{
    size_t at = REDUCE_SLOT(REDUCE_WORDS, p.world, p.numbers, turn, of);
    return (float *)((uint4 *)p.memory[on] + at) + n;
}

/* A NaN that would look like an empty place becomes another one. */
__device__ __forceinline__ unsigned as_word(float v)
{
    return min(__float_as_uint(v), REDUCE_EMPTY - 1);
}

__device__ __forceinline__ void put_words(float *to, const float (&v)[4])
{
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(as_word(v[0])),
                 "r"(as_word(v[1])), "r"(as_word(v[2])), "r"(as_word(v[3]))
                 : "memory");
}

__device__ __forceinline__ void put_words(float *to, const float (&v)[1])
{
    asm volatile("st.volatile.global.u32 [%0], %1;" ::"l"(to), "r"(as_word(v[0])) : "memory");
}

/* What is there now; false: one of them is missing. */
__device__ __forceinline__ bool look_words(const float *at, float (&v)[4])
{
    unsigned w[4];
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "l"(at)
                 : "memory");
    for (int i = 0; i < 4; i++)
        v[i] = __uint_as_float(w[i]);
    return max(max(w[0], w[1]), max(w[2], w[3])) != REDUCE_EMPTY;
}

__device__ __forceinline__ bool look_words(const float *at, float (&v)[1])
{
    unsigned w;
    asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(w) : "l"(at) : "memory");
    v[0] = __uint_as_float(w);
    return w != REDUCE_EMPTY;
}

__device__ __forceinline__ void empty_words(float *at, const float (&)[4])
{
    *(uint4 *)at = make_uint4(REDUCE_EMPTY, REDUCE_EMPTY, REDUCE_EMPTY, REDUCE_EMPTY);
}

__device__ __forceinline__ void empty_words(float *at, const float (&)[1])
{
    *(unsigned *)at = REDUCE_EMPTY;
}

/* This rank's numbers [n, n + N) to all others. */
template <int N>
__device__ __forceinline__ void send_words(const struct peer_area &p, int turn, size_t n,
                                           const float (&v)[N])
{
#pragma unroll 1
    for (int k = 1; k < p.world; k++) {
        int on = p.rank + k < p.world ? p.rank + k : p.rank + k - p.world;
        put_words(word_at(p, turn, on, p.rank, n), v);
    }
}

/* v = the sum of all ranks' numbers [n, n + N), of which this rank's are in v. False, with v
 * spoilt: the world is over. */
template <int N>
__device__ __forceinline__ bool add_words(const struct peer_area &p, int turn, size_t n,
                                          float (&v)[N])
{
    float sum[N], came[N];
#pragma unroll 1
    for (int r = 0; r < p.world; r++) {
        float *at = word_at(p, turn, p.rank, r, n);
        for (unsigned looks = 1; r != p.rank && !look_words(at, came); looks++)
            if (looks % WORDS_LOOKS == 0 && *(const volatile unsigned *)p.over != 0)
                return false;
        if (r != p.rank)
            empty_words(at, came);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float next = r == p.rank ? v[i] : came[i];
            sum[i] = r ? sum[i] + next : next;
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] = sum[i];
    return true;
}

#endif
