/* SPDX-License-Identifier: Apache-2.0 */
/* stream.cuh - moving weights: 16-byte loads that bypass the first-level cache, prefetch into the
 * second, sums over a warp, and words exchanged inside a cluster of blocks. */
#ifndef WHET_KERNELS_CUDA_LIB_STREAM_CUH
#define WHET_KERNELS_CUDA_LIB_STREAM_CUH

#include "cuda/lib/device.cuh"

/* ---- weights ------------------------------------------------------------------------------- */

/* 16 bytes of weights. POLICY 0: fetch 128 bytes into L2; 1: 256; 2: as 0, first to be evicted.
 * Volatile, so loads stay where they are written: before the wait for the previous kernel. */
template <int POLICY> __device__ __forceinline__ uint4 load_weight(const uint4 *p)
{
    uint4 v;
#define WHET_LOAD(how)                                              \
    asm volatile("ld.global.nc." how ".v4.u32 {%0,%1,%2,%3}, [%4];" \
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)       \
                 : "l"(p))
    if (POLICY == 1)
        WHET_LOAD("L1::no_allocate.L2::256B");
    else if (POLICY == 2)
        asm volatile(
            "{\n .reg .b64 c;\n createpolicy.fractional.L2::evict_first.b64 c, 1.0;\n"
            " ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], c;\n}"
            : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
            : "l"(p));
    else
        WHET_LOAD("L1::no_allocate.L2::128B");
#undef WHET_LOAD
    return v;
}

/* 16 bytes of weights into shared memory, without a register to wait in, by the same policies;
 * await_copies() is for the thread's own. */
template <int POLICY = 0> __device__ __forceinline__ void copy_weight(void *to, const void *p)
{
    unsigned at = (unsigned)__cvta_generic_to_shared(to);
#define WHET_COPY "cp.async.cg.shared.global"
    if (POLICY == 1)
        asm volatile(WHET_COPY ".L2::256B [%0], [%1], 16;" ::"r"(at), "l"(p) : "memory");
    else if (POLICY == 2)
        asm volatile("{\n .reg .b64 c;\n createpolicy.fractional.L2::evict_first.b64 c, 1.0;\n"
                     " " WHET_COPY ".L2::cache_hint [%0], [%1], 16, c;\n}" ::"r"(at),
                     "l"(p)
                     : "memory");
    else
        asm volatile(WHET_COPY ".L2::128B [%0], [%1], 16;" ::"r"(at), "l"(p) : "memory");
#undef WHET_COPY
}

/* 16 bytes that are read again soon, or zeros unless they are `here`. */
__device__ __forceinline__ void copy_or_zero(void *to, const void *from, bool here)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(
                     (unsigned)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(here ? 16 : 0)
                 : "memory");
}

/* 16 bytes of anything else. */
__device__ __forceinline__ void copy_shared(void *to, const void *from)
{
    asm volatile(
        "cp.async.ca.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to)),
        "l"(from)
        : "memory");
}

/* 4 bytes. */
__device__ __forceinline__ void copy_word(void *to, const void *from)
{
    asm volatile(
        "cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((unsigned)__cvta_generic_to_shared(to)),
        "l"(from)
        : "memory");
}

/* What was copied so far can be awaited by itself, whatever is copied after this. */
__device__ __forceinline__ void copies_sent()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* What was sent but for the last LATER times is here. */
template <int LATER> __device__ __forceinline__ void await_sent()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
}

__device__ __forceinline__ void await_copies()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* 16 bytes of shared memory. In asm, or the compiler may choose between this and a register by
 * address, and give the register one, in local memory. */
__device__ __forceinline__ uint4 load_staged(const void *p)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"((unsigned)__cvta_generic_to_shared(p)));
    return v;
}

/* Prefetches `bytes` (a multiple of 16) from p (16-byte aligned) into L2. */
__device__ __forceinline__ void prefetch_l2(const void *p, unsigned bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
#endif
}

/* This block's share of the first `limit` bytes of what the next region reads. */
__device__ __forceinline__ void prefetch_share(const void *next, long long bytes, long long limit,
                                               int block, int blocks)
{
    enum { BYTES = 4096 };
    long long n = (bytes < limit ? bytes : limit) / BYTES;
    if (!next)
        return;
    for (long long i = block + (long long)threadIdx.x * blocks; i < n;
         i += (long long)blocks * blockDim.x)
        prefetch_l2((const char *)next + i * BYTES, BYTES);
}

/* Activations: through L2, which is where the previous kernel left them. */
__device__ __forceinline__ float4 load_x4(const float *p)
{
    return __ldcg((const float4 *)p);
}

/* ---- sums over a warp ---------------------------------------------------------------------- */

__host__ __device__ constexpr int power_of_two(int n)
{
    int p = 1;
    while (p < n)
        p *= 2;
    return p;
}

/* One exchange of warp_sums: from N values a lane to one. (Recursion, and not a loop, keeps s in
 * registers.) */
template <int N, int OFFSET> __device__ __forceinline__ float fold(float *s)
{
    if constexpr (N == 1) {
#pragma unroll
        for (int o = OFFSET; o > 0; o >>= 1)
            s[0] += __shfl_xor_sync(WARP_ALL, s[0], o);
        return s[0];
    } else {
        bool high = threadIdx.x % 32 & OFFSET;
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            float give = high ? s[i] : s[i + N / 2], keep = high ? s[i + N / 2] : s[i];
            s[i] = keep + __shfl_xor_sync(WARP_ALL, give, OFFSET);
        }
        return fold<N / 2, OFFSET / 2>(s);
    }
}

/* Sums each of v[0..N) over the warp with about N + log(32/N) shuffles instead of 5 N: a lane gives
 * half of its values away and keeps the other half, until it has one. Lane l returns sum number
 * l / (32 / P), P = N rounded up to a power of two; N <= 32. */
template <int N> __device__ __forceinline__ float warp_sums(const float *v)
{
    constexpr int P = power_of_two(N);
    float s[P];
#pragma unroll
    for (int i = 0; i < P; i++)
        s[i] = i < N ? v[i] : 0.0f;
    return fold<P, 16>(s);
}

/* ---- the best logit ------------------------------------------------------------------------ */

/* Orders by logit, then by lower id; NaN and minus infinity become 0, which is no token. */
__device__ __forceinline__ unsigned long long rank_of(float logit, int id)
{
    unsigned bits = __float_as_uint(logit);
    if (!(logit > -INFINITY))
        return 0;
    bits = bits == 0x80000000u ? 0 : bits; /* -0 equals 0 */
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (unsigned long long)bits << 32 | (0xffffffffu - (unsigned)id);
}

__device__ __forceinline__ int id_of_rank(unsigned long long rank)
{
    return rank ? (int)(0xffffffffu - (unsigned)rank) : -1;
}

__device__ __forceinline__ unsigned long long warp_best(unsigned long long v)
{
    for (int o = 16; o > 0; o >>= 1) {
        unsigned long long other = __shfl_xor_sync(WARP_ALL, v, o);
        v = other > v ? other : v;
    }
    return v;
}

/* warp[w][t]: the best of row t that warp w of this block has seen, just stored. The block that
 * comes last leaves the best of all blocks in best[0..rows). work: M * blocks words. */
template <int WARPS_, int LD_, int M_>
__device__ __forceinline__ void best_of_all(const unsigned long long (*warp)[LD_], int rows,
                                            unsigned long long *work, unsigned *counter, int *best)
{
    __shared__ bool last;
    int lane = threadIdx.x % 32;
    __syncthreads();
    if (threadIdx.x < M_) {
        unsigned long long v = 0;
        for (int w = 0; w < WARPS_; w++)
            v = warp[w][threadIdx.x] > v ? warp[w][threadIdx.x] : v;
        __stcg(work + (size_t)threadIdx.x * gridDim.x + blockIdx.x, v);
        __threadfence();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(counter, 1u) == gridDim.x - 1;
        if (last)
            *counter = 0;
    }
    __syncthreads();
    if (!last)
        return;
    __threadfence();
    for (int t = threadIdx.x / 32; t < rows; t += WARPS_) {
        unsigned long long v = 0;
        for (int i = lane; i < (int)gridDim.x; i += 32) {
            unsigned long long other = __ldcg(work + (size_t)t * gridDim.x + i);
            v = other > v ? other : v;
        }
        v = warp_best(v);
        if (lane == 0)
            best[t] = id_of_rank(v);
    }
}

/* ---- clusters ------------------------------------------------------------------------------ */

/* Signals that this block has started; cluster_wait() waits until all have, and then
 * their memory can be written. Without the fence of cluster_arrive(): for a kernel's start, in
 * front of loads. */
__device__ __forceinline__ void cluster_come()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

/* What this thread has stored is where it belongs after the cluster_wait() of any other; a fence of
 * the whole device. */
__device__ __forceinline__ void cluster_arrive()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/* Where *own is in the shared memory of block `rank` of the cluster. */
__device__ __forceinline__ unsigned peer_of(const void *own, int rank)
{
    unsigned peer = 0;
#if __CUDA_ARCH__ >= 900
    unsigned at = (unsigned)__cvta_generic_to_shared(own);
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer) : "r"(at), "r"(rank));
#endif
    return peer;
}

/* Stores v there. */
__device__ __forceinline__ void store_at(unsigned peer, float v)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(peer), "f"(v) : "memory");
#endif
}

/* What block `rank` of the cluster has where this one has *own. */
__device__ __forceinline__ float load_peer(const float *own, int rank)
{
    float v = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(peer_of(own, rank)) : "memory");
#endif
    return v;
}

/* Stores v where *own is in the shared memory of block `rank` of the cluster. */
__device__ __forceinline__ void store_peer(float *own, int rank, float v)
{
    store_at(peer_of(own, rank), v);
}

#endif
