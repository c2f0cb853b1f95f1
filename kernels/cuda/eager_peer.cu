/* SPDX-License-Identifier: Apache-2.0 */
/* eager_peer.cu - what all ranks have, put together by GPUs that can write each other's memory.
 *
 *   sum     out[i] = in_0[i] + in_1[i] + ... (+ add[i]), in the order of ranks on all of them
 *   gather  out[r n + i] = in_r[i]
 *
 * One shot, pushed: each rank writes its numbers into a place that every other rank has for them
 * and waits until theirs are in its own. A number travels with the call's number beside it, as in
 * NCCL's LL protocol (8 bytes that are written as one arrive as one): what is awaited is the
 * numbers themselves, without a flag behind them or a fence, one way over the link. That sends
 * twice the bytes; plain numbers with a flag for each block were slower all the same, up to 160 Ki
 * of them (two H100, 2026-11-25: 82 Ki in 5.8 and 8.5 us, 256 Ki in 12.2 and 11.4).
 *
 * Places take turns, two of them. Invariant: a rank writes its part of call e only after it has
 * seen everybody's of call e - 1, so everybody has ended call e - 2, which read the same place.
 * Calls are counted on the device, once a block: every launch has the same grid, whatever its n, so
 * all counters are equal, and a captured launch has no argument that changes.
 *
 * A rank that never writes would be awaited for ever: the host's word `over` ends all waiting, with
 * any numbers, when the world is over (collective.h).
 */
#include "cuda/lib/device.cuh"
#include "eager.h"

enum { LOOKS = 1024, CLEAN_EVERY = 1 << 24 }; /* LOOKS: between two at the host's word */

/* The place of numbers 2 i and 2 i + 1 of rank `from`, on rank `on`. */
__device__ __forceinline__ uint4 *place(const struct eager_peer_args &a, int on, int from,
                                        unsigned call, int i)
{
    return (uint4 *)a.area[on] + ((size_t)(call & 1) * a.world + from) * (a.most / 2) + i;
}

__device__ __forceinline__ void push(uint4 *to, float2 v, unsigned call)
{
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(to),
                 "r"(__float_as_uint(v.x)), "r"(call), "r"(__float_as_uint(v.y))
                 : "memory");
}

/* False: the world is over. */
__device__ __forceinline__ bool await(const struct eager_peer_args &a, const uint4 *at,
                                      unsigned call, float2 *v)
{
    uint4 w;
    for (unsigned looks = 1;; looks++) {
        asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
                     : "l"(at)
                     : "memory");
        if (w.y == call && w.w == call)
            break;
        if (looks % LOOKS == 0 && *(const volatile unsigned *)a.over)
            return false;
    }
    *v = make_float2(__uint_as_float(w.x), __uint_as_float(w.z));
    return true;
}

/* Numbers of calls come round again, so no place may keep one so long: now and then the part of
 * this call's place that it does not use is cleared. Nobody else writes there before the call after
 * the next. */
__device__ __forceinline__ void clean(const struct eager_peer_args &a, unsigned call, int first,
                                      int stride)
{
    for (int r = 0; r < a.world; r++)
        for (int i = a.n / 2 + first; i < a.most / 2; i += stride)
            *place(a, a.rank, r, call, i) = make_uint4(0, 0, 0, 0);
}

/* What all ranks have at i, as a sum or one behind the other. */
template <bool GATHER>
__device__ __forceinline__ bool take(const struct eager_peer_args &a, unsigned call, int i)
{
    float2 sum = make_float2(0, 0);
    for (int r = 0; r < a.world; r++) {
        float2 v = ((const float2 *)a.in)[i];
        if (r != a.rank && !await(a, place(a, a.rank, r, call, i), call, &v))
            return false;
        if (GATHER)
            ((float2 *)a.out)[(size_t)r * (a.n / 2) + i] = v;
        sum = r ? make_float2(sum.x + v.x, sum.y + v.y) : v;
    }
    if (GATHER)
        return true;
    if (a.add) {
        float2 v = ((const float2 *)a.add)[i];
        sum = make_float2(sum.x + v.x, sum.y + v.y);
    }
    ((float2 *)a.out)[i] = sum;
    return true;
}

/* Warps take 32 places each, one after the other from block to block: few numbers are spread, too.
 */
template <bool GATHER> __device__ __forceinline__ void few(const struct eager_peer_args &a)
{
    unsigned call = a.calls[blockIdx.x] + 1;
    int first = (threadIdx.x / 32 * gridDim.x + blockIdx.x) * 32 + threadIdx.x % 32;
    int stride = gridDim.x * blockDim.x, places = a.n / 2;
    call = call ? call : 2; /* 0 is what memory begins with; places go on taking turns */
    for (int i = first; i < places; i += stride) {
        float2 own = ((const float2 *)a.in)[i];
        for (int k = 1; k < a.world; k++) {
            int to = a.rank + k < a.world ? a.rank + k : a.rank + k - a.world;
            push(place(a, to, a.rank, call, i), own, call);
        }
    }
    for (int i = first; i < places && take<GATHER>(a, call, i); i += stride)
        ;
    if (call % CLEAN_EVERY < 2)
        clean(a, call, first, stride);
    __syncthreads();
    if (threadIdx.x == 0)
        a.calls[blockIdx.x] = call;
}

KERNEL eager_peer_sum(const __grid_constant__ struct eager_peer_args a)
{
    release_next();
    after_previous();
    few<false>(a);
}

KERNEL eager_peer_gather(const __grid_constant__ struct eager_peer_args a)
{
    release_next();
    after_previous();
    few<true>(a);
}
