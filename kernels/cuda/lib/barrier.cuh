/* SPDX-License-Identifier: Apache-2.0 */
/* barrier.cuh - barriers in shared memory that count arrivals and bytes, and the copies whose bytes
 * they count: Hopper's mbarrier and cp.async.bulk. compute capability 9.0 and newer; empty on
 * others.
 *
 * A new barrier is in phase 0; a phase ends when all arrivals have come and as many bytes as were
 * announced, and then the next begins.
 */
#ifndef WHET_KERNELS_CUDA_LIB_BARRIER_CUH
#define WHET_KERNELS_CUDA_LIB_BARRIER_CUH

#include "cuda/lib/device.cuh"

#if __CUDA_ARCH__ >= 900

typedef unsigned long long barrier;

__device__ __forceinline__ unsigned shared_at(const void *p)
{
    return (unsigned)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void barrier_init(barrier *b, int arrivals)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_at(b)), "r"(arrivals)
                 : "memory");
}

/* Makes this thread's new barriers known to what copies. */
__device__ __forceinline__ void barriers_ready()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(barrier *b)
{
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_at(b)) : "memory");
}

/* Arrives, and announces that this phase also waits for `bytes`. */
__device__ __forceinline__ void barrier_expect(barrier *b, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_at(b)), "r"(bytes)
                 : "memory");
}

/* Whether the phase of this parity has ended. */
__device__ __forceinline__ bool barrier_done(barrier *b, int parity)
{
    int done;
    asm volatile("{\n .reg .pred done;\n mbarrier.test_wait.parity.shared.b64 done, [%1], %2;\n"
                 " selp.b32 %0, 1, 0, done;\n}"
                 : "=r"(done)
                 : "r"(shared_at(b)), "r"(parity)
                 : "memory");
    return done;
}

/* Waits for the end of the phase of this parity. */
__device__ __forceinline__ void barrier_wait(barrier *b, int parity)
{
    asm volatile("{\n .reg .pred done;\n"
                 "again:\n mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
                 " @!done bra again;\n}" ::"r"(shared_at(b)),
                 "r"(parity)
                 : "memory");
}

/* `bytes` (a multiple of 16, both addresses too) from global to shared memory, counted by b. FIRST:
 * they are the first to leave L2 again. */
template <bool FIRST>
__device__ __forceinline__ void copy_bulk(void *to, const void *from, int bytes, barrier *b)
{
#define WHET_BULK "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    if (FIRST)
        asm volatile("{\n .reg .b64 c;\n createpolicy.fractional.L2::evict_first.b64 c, 1.0;\n"
                     " " WHET_BULK
                     ".L2::cache_hint [%0], [%1], %2, [%3], c;\n}" ::"r"(shared_at(to)),
                     "l"(from), "r"(bytes), "r"(shared_at(b))
                     : "memory");
    else
        asm volatile(WHET_BULK " [%0], [%1], %2, [%3];" ::"r"(shared_at(to)), "l"(from), "r"(bytes),
                     "r"(shared_at(b))
                     : "memory");
#undef WHET_BULK
}

/* A box of the tensor that `map` (a CUtensorMap) describes, from element (x, y) on. `to` is a
 * multiple of the swizzle's 1 KB. MULTICAST: into the same place of every block of the cluster that
 * is in `blocks`, counted by each one's own barrier at b's place. */
template <bool MULTICAST>
__device__ __forceinline__ void copy_box(void *to, const void *map, int x, int y, barrier *b,
                                         unsigned short blocks)
{
#define WHET_BOX "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
    if (MULTICAST)
        asm volatile(WHET_BOX
                     ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_at(to)),
                     "l"(map), "r"(x), "r"(y), "r"(shared_at(b)), "h"(blocks)
                     : "memory");
    else
        asm volatile(WHET_BOX " [%0], [%1, {%2, %3}], [%4];" ::"r"(shared_at(to)), "l"(map), "r"(x),
                     "r"(y), "r"(shared_at(b))
                     : "memory");
#undef WHET_BOX
}

/* Arrives at block `rank`'s barrier that is where b is in this one. WRITES: what this warp stored
 * before is there for who waits with barrier_wait_cluster(); that is a fence of the whole device.
 */
template <bool WRITES> __device__ __forceinline__ void barrier_arrive_at(barrier *b, int rank)
{
#define WHET_ARRIVE(how)                                                                        \
    asm volatile("{\n .reg .b32 at;\n mapa.shared::cluster.u32 at, %0, %1;\n"                   \
                 " mbarrier.arrive" how ".shared::cluster.b64 _, [at];\n}" ::"r"(shared_at(b)), \
                 "r"(rank)                                                                      \
                 : "memory")
    if (WRITES)
        WHET_ARRIVE(".release.cluster");
    else
        WHET_ARRIVE("");
#undef WHET_ARRIVE
}

/* barrier_wait(), and what others in the cluster stored before they arrived can be read. */
__device__ __forceinline__ void barrier_wait_cluster(barrier *b, int parity)
{
    asm volatile("{\n .reg .pred done;\n"
                 "again:\n mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], "
                 "%1;\n @!done bra again;\n}" ::"r"(shared_at(b)),
                 "r"(parity)
                 : "memory");
}

#endif
#endif
