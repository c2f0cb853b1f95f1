/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.cuh - the plainest sum of ranks with the call's number beside each number (kernels/peer.h,
 * REDUCE_LL), and one thing wrong with it: PLANTED says which (enum planted below, 0: none). */
#ifndef WHET_TESTS_DEVICE_BAD_REDUCE_CUH
#define WHET_TESTS_DEVICE_BAD_REDUCE_CUH

#include "cuda.h"
#include "cuda/lib/device.cuh"
#include "peer.h"

enum planted {
    NOTHING,
    NO_WAIT,        /* adds what lies in the places */
    ONE_TURN,       /* all calls in one turn */
    OWN_COUNT,      /* counts its calls by itself */
    NO_CLEAN,       /* old words stay for ever */
    RESIDUAL_FIRST, /* other bits */
    OWN_FIRST,      /* own number and residual, then the others': other bits on other ranks */
    SHORT,          /* leaves the last number out */
    PAST_END,
    SPINS,      /* waits on when the world is over */
    STRAYS,     /* into another way's memory */
    EARLY_READ, /* x is read before the kernel before has ended */
    EARLY_FLAG, /* plain numbers, whose flag says that they are there before they are */
    LAST_BLOCK, /* one block's count does not go on */
};

enum { BLOCKS = 8, THREADS = 128, STRIDE = BLOCKS * THREADS };
__device__ unsigned own_count;

__device__ uint4 *slot(const struct peer_reduce_args &a, int on, int of, unsigned call)
{
    const struct peer_area &p = a.area;
    int way = PLANTED == EARLY_FLAG ? REDUCE_PLAIN : REDUCE_LL;
    unsigned turn = PLANTED == ONE_TURN ? 0 : call & 1;
    return (uint4 *)p.memory[on] + REDUCE_SLOT(way, p.world, p.numbers, turn, of);
}

/* Numbers 2 i and 2 i + 1 of rank r. */
__device__ float2 await(const struct peer_reduce_args &a, int r, unsigned call, int i)
{
    volatile unsigned *at = (volatile unsigned *)(slot(a, a.area.rank, r, call) + i);
    if (PLANTED == EARLY_FLAG) {
        volatile float *number = (volatile float *)slot(a, a.area.rank, r, call) + 2 * i;
        volatile unsigned *flag =
            (volatile unsigned *)(slot(a, a.area.rank, r, call) + a.area.numbers / 4 + blockIdx.x);
        while (*flag != call && !*(volatile const unsigned *)a.area.over)
            ;
        return make_float2(number[0], number[1]);
    }
    while (PLANTED != NO_WAIT && (at[1] != call || at[3] != call))
        if (PLANTED != SPINS && *(volatile const unsigned *)a.area.over)
            break;
    return make_float2(__uint_as_float(at[0]), __uint_as_float(at[2]));
}

__device__ void give(const struct peer_reduce_args &a, unsigned call, int first, int pairs)
{
    for (int r = 0; r < a.area.world; r++) {
        uint4 *to = slot(a, r, a.area.rank, call);
        if (r == a.area.rank)
            continue;
        if (PLANTED == EARLY_FLAG) {
            if (threadIdx.x == 0)
                *(volatile unsigned *)(to + a.area.numbers / 4 + blockIdx.x) = call;
            for (int i = first; i < pairs; i += STRIDE) {
                ((volatile float *)to)[2 * i] = a.x[2 * i];
                ((volatile float *)to)[2 * i + 1] = a.x[2 * i + 1];
            }
            continue;
        }
        for (int i = first; i < pairs; i += STRIDE)
            asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(to + i),
                         "r"(__float_as_uint(a.x[2 * i])), "r"(call),
                         "r"(__float_as_uint(a.x[2 * i + 1]))
                         : "memory");
    }
}

__device__ void add(const struct peer_reduce_args &a, unsigned call, int first, int pairs)
{
    for (int i = first; i < pairs - (PLANTED == SHORT); i += STRIDE) {
        float2 rest = ((const float2 *)a.residual)[i], sum = make_float2(0, 0);
        bool begun = PLANTED == RESIDUAL_FIRST || PLANTED == OWN_FIRST;
        if (begun)
            sum = rest;
        for (int k = 0; k < a.area.world; k++) {
            int r = PLANTED == OWN_FIRST ? (a.area.rank + k) % a.area.world : k;
            float2 v = r == a.area.rank ? ((const float2 *)a.x)[i] : await(a, r, call, i);
            sum = begun ? make_float2(sum.x + v.x, sum.y + v.y) : v;
            begun = true;
        }
        if (PLANTED != RESIDUAL_FIRST && PLANTED != OWN_FIRST)
            sum = make_float2(sum.x + rest.x, sum.y + rest.y);
        ((float2 *)a.out)[i] = sum;
    }
}

__device__ void clean(const struct peer_reduce_args &a, unsigned call, int first, int pairs)
{
    for (int of = 0; of <= a.area.world; of++)
        for (int i = first; i < a.area.numbers / 2; i += STRIDE)
            if (of == a.area.rank || of == a.area.world || i >= pairs)
                slot(a, a.area.rank, of, call)[i] = make_uint4(0, 0, 0, 0);
}

KERNEL whet_kernel(const __grid_constant__ struct peer_reduce_args a)
{
    uint32_t *calls = a.area.calls + (PLANTED == EARLY_FLAG ? REDUCE_PLAIN * REDUCE_COUNTS : 0);
    int first = blockIdx.x * THREADS + threadIdx.x, pairs = a.m * HIDDEN / 2;
    release_next();
    if (PLANTED != EARLY_READ)
        after_previous();
    unsigned next = calls[blockIdx.x] + 1, call = next = next ? next : 2;
    if (PLANTED == OWN_COUNT)
        call = own_count + 1;
    give(a, call, first, pairs);
    after_previous();
    add(a, call, first, pairs);
    if (call % REDUCE_CLEAN < 2 && PLANTED != NO_CLEAN && PLANTED != EARLY_FLAG)
        clean(a, call, first, pairs);
    if (PLANTED == PAST_END && first == 0)
        a.out[a.m * HIDDEN] = 1;
    if (PLANTED == STRAYS && first == 0)
        *((unsigned *)a.area.memory[a.area.rank] +
          4 * REDUCE_AT(REDUCE_LL128, a.area.world, a.area.numbers)) = 1;
    __syncthreads();
    if (PLANTED == OWN_COUNT && first == 0)
        own_count = call; /* other blocks may have read it or not: so be it */
    if (PLANTED == LAST_BLOCK && blockIdx.x == BLOCKS - 1)
        return;
    for (int i = blockIdx.x + threadIdx.x * BLOCKS; i < REDUCE_COUNTS; i += STRIDE)
        calls[i] = next;
}

extern "C" __device__ const struct cuda_kernel_info whet_info = {
    WHET_CUDA_ABI, REGION_REDUCE, M_MAX, 0, 1, 0, 0, 0, "", {{{BLOCKS, 1, 1}, THREADS, 0, 1, 0, 0}},
};

#endif
