/* SPDX-License-Identifier: Apache-2.0 */
/* await.cuh - words that the blocks of a cluster send into each other's shared memory, each of
 * which says by itself that it is here.
 *
 * A place for a word is EMPTY, a NaN that no word sent is; who wants it looks until it is not. So
 * nobody waits for a block it gets nothing from, and behind the wait there is neither a barrier nor
 * a fence.
 *
 * The order: empty() of all places, come_emptied(), later cluster_wait(), and then send(). A place
 * gets one word. A block must stay until all words that are sent to it are here: so each is awaited
 * by somebody, or not sent. Nobody waits in a circle where who awaits has sent before. Compute
 * capability 9.0 and newer; on others nothing ever comes.
 */
#ifndef WHET_KERNELS_CUDA_LIB_AWAIT_CUH
#define WHET_KERNELS_CUDA_LIB_AWAIT_CUH

#include "cuda/lib/stream.cuh"

#define EMPTY 0xffffffffu

/* BYTES of places from `first` on, both multiples of 16: the work of a block of so many threads. */
template <int BYTES, int BLOCK> __device__ __forceinline__ void empty(void *first)
{
    for (int i = threadIdx.x; i < BYTES / 16; i += BLOCK)
        ((uint4 *)first)[i] = make_uint4(EMPTY, EMPTY, EMPTY, EMPTY);
}

/* cluster_come(), and whoever passes cluster_wait() finds this thread's places empty. A fence that
 * is about shared memory alone (PTX 8.6) is one of the block; any other is one of the whole device.
 */
__device__ __forceinline__ void come_emptied()
{
#if __CUDA_ARCH__ >= 900 && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1208
    asm volatile("fence.release.sync_restrict::shared::cta.cluster;" ::: "memory");
    cluster_come();
#else
    cluster_arrive();
#endif
}

/* Stores v at `peer` (peer_of()), or another NaN where it is that one. */
__device__ __forceinline__ void send(unsigned peer, float v)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("st.relaxed.cluster.shared::cluster.u32 [%0], %1;" ::"r"(peer),
                 "r"(min(__float_as_uint(v), EMPTY - 1))
                 : "memory");
#endif
}

/* What is there now, one word or four. */
__device__ __forceinline__ void look(const float *at, float &v)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("ld.relaxed.cluster.shared::cta.f32 %0, [%1];"
                 : "=f"(v)
                 : "r"((unsigned)__cvta_generic_to_shared(at))
                 : "memory");
#endif
}

__device__ __forceinline__ void look(const float *at, float4 &v)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("ld.relaxed.cluster.shared::cta.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"((unsigned)__cvta_generic_to_shared(at))
                 : "memory");
#endif
}

/* A word, or one of four, is not here yet. */
__device__ __forceinline__ bool lacks(float v)
{
    return __float_as_uint(v) == EMPTY;
}

__device__ __forceinline__ bool lacks(float4 v)
{
    return max(max(__float_as_uint(v.x), __float_as_uint(v.y)),
               max(__float_as_uint(v.z), __float_as_uint(v.w))) == EMPTY;
}

/* What comes to N places, `apart` floats from each other, each of one word or four. While some are
 * not here it looks at one of these only: shared memory is others', too. */
template <int N, class T>
__device__ __forceinline__ void await_all(T (&v)[N], const float *first, int apart)
{
    for (;;) {
        int missing = -1;
#pragma unroll
        for (int i = 0; i < N; i++)
            look(first + i * apart, v[i]);
#pragma unroll
        for (int i = 0; i < N; i++)
            missing = lacks(v[i]) ? i : missing;
        if (missing < 0)
            return;
        T one;
        do
            look(first + missing * apart, one);
        while (lacks(one));
    }
}

#endif
