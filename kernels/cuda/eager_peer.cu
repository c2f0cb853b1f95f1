/* SPDX-License-Identifier: Apache-2.0 */
/* eager_peer.cu - the sum of all ranks' numbers, between GPUs that can write each other's memory.
 *
 *   out[i] = in_0[i] + in_1[i] + ... (+ add[i]), i < n, in the order of ranks on every one of them
 *
 * One shot, pushed: each rank writes its numbers into a place that every other rank has for them
 * and waits until theirs are in its own. A number travels with the call's number beside it, as in
 * NCCL's LL protocol (8 bytes that are written as one arrive as one), so what is awaited is the
 * numbers themselves: no flag behind them, no fence, and one way over the link instead of the three
 * of "written? - read - here". It sends twice the bytes, so it is for few numbers.
 *
 * Areas: [2][world][most / 2] of 16 bytes (two numbers with theirs) on every rank; calls take the
 * two halves in turn. Invariant: a rank writes its part of call e only after it has seen
 * everybody's of call e - 1, so everybody has finished call e - 2, which read the same half. Calls
 * are counted on the device, once a block: every launch has the same grid, whatever its n, so that
 * all counters are equal, and a captured launch needs no argument that changes.
 *
 * A rank that never writes would be awaited for ever: the host's word `over` ends all waiting, with
 * any numbers, when the world is over (collective.h).
 */
#include "cuda/lib/device.cuh"
#include "eager.h"

enum { LOOKS = 1024, CLEAN_EVERY = 1 << 24 }; /* looks between two at the host's word */

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
 * this half that the call does not use is cleared. Nobody else writes there before the call after
 * the next. */
__device__ __forceinline__ void clean(const struct eager_peer_args &a, unsigned call, int first,
                                      int stride)
{
    for (int r = 0; r < a.world; r++)
        for (int i = a.n / 2 + first; i < a.most / 2; i += stride)
            *place(a, a.rank, r, call, i) = make_uint4(0, 0, 0, 0);
}

/* Warps take 32 places each, one after the other from block to block: few numbers are spread, too.
 */
KERNEL eager_peer(const __grid_constant__ struct eager_peer_args a)
{
    release_next();
    after_previous();
    unsigned call = a.calls[blockIdx.x] + 1;
    int warp = threadIdx.x / 32 * gridDim.x + blockIdx.x;
    int first = warp * 32 + threadIdx.x % 32, stride = gridDim.x * blockDim.x, places = a.n / 2;
    const float2 *in = (const float2 *)a.in, *add = (const float2 *)a.add;
    float2 *out = (float2 *)a.out;
    call = call ? call : 2; /* 0 is what memory begins with, and halves go on taking turns */
    for (int i = first; i < places; i += stride) {
        float2 own = in[i];
        for (int k = 1; k < a.world; k++) {
            int to = a.rank + k < a.world ? a.rank + k : a.rank + k - a.world;
            push(place(a, to, a.rank, call, i), own, call);
        }
    }
    bool on = true;
    for (int i = first; on && i < places; i += stride) {
        float2 sum = make_float2(0, 0);
        for (int r = 0; on && r < a.world; r++) {
            float2 v = in[i];
            if (r != a.rank)
                on = await(a, place(a, a.rank, r, call, i), call, &v);
            sum = r ? make_float2(sum.x + v.x, sum.y + v.y) : v;
        }
        if (on && add)
            sum = make_float2(sum.x + add[i].x, sum.y + add[i].y);
        if (on)
            out[i] = sum;
    }
    if (call % CLEAN_EVERY < 2)
        clean(a, call, first, stride);
    __syncthreads();
    if (threadIdx.x == 0)
        a.calls[blockIdx.x] = call;
}
