/* cluster.cuh - what the blocks of a cluster store into each other's shared memory.
 *
 * Nobody may write before cluster_entered(), by which every block has started; the arrival,
 * cluster_come(), stands in front of the first loads and so has no release: that would be a fence
 * of the whole device. Then there are two ways:
 *
 *   put() and cluster_meet()    for much: plain stores, a fence, a barrier of the whole cluster
 *   post() and inbox_wait()     for little: stores that the inbox of their block counts, a barrier
 *                               which is told with cluster_enter() how many bytes will come. No
 *                               fence, and nobody waits for a block it gets nothing from; but every
 *                               lane's store is counted by itself.
 *
 * A block that expects bytes must stay until they are here. Compute capability 9.0 and newer; empty
 * on others. Relaxed arrivals and posts took a step of Qwen3-1.7B at batch 1 from 978 to 964 us
 * (one H200, 2026-11-21).
 */
#ifndef WHET_KERNELS_LIB_CLUSTER_CUH
#define WHET_KERNELS_LIB_CLUSTER_CUH

#include "lib/barrier.cuh"

typedef unsigned long long inbox;

/* Says that this block is here. By all threads. */
__device__ __forceinline__ void cluster_come()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

/* The same, and that `bytes` will be posted to it. */
__device__ __forceinline__ void cluster_enter(inbox *in, int bytes)
{
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
        barrier_init(in, 1);
        barriers_ready();
        barrier_expect(in, bytes);
    }
    __syncwarp();
#endif
    cluster_come();
}

/* Every block of the cluster has entered: its memory can be written. By all threads. */
__device__ __forceinline__ void cluster_entered()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/* Where *own is in the shared memory of block `rank` of the cluster. */
__device__ __forceinline__ unsigned peer_of(const void *own, int rank)
{
    unsigned at = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(at)
                 : "r"(shared_at(own)), "r"(rank));
#endif
    return at;
}

/* Stores v at `to`, counted by the inbox `in` of the same block; both from peer_of(). */
__device__ __forceinline__ void post(unsigned to, float v, unsigned in)
{
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to),
        "f"(v), "r"(in)
        : "memory");
#endif
}

/* Stores v at `to`, from peer_of(); for those who read it after cluster_meet(). */
__device__ __forceinline__ void put(unsigned to, float v)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory");
#endif
}

/* All threads of the cluster have come here, and all that they put is where it belongs. */
__device__ __forceinline__ void cluster_meet()
{
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::
            : "memory");
#endif
}

/* All that this block expects is here. */
__device__ __forceinline__ void inbox_wait(inbox *in)
{
#if __CUDA_ARCH__ >= 900
    barrier_wait(in, 0);
#endif
}

#endif
