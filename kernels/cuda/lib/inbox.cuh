/* SPDX-License-Identifier: Apache-2.0 */
/* inbox.cuh - a few words that the blocks of a cluster post into each other's shared memory.
 *
 * A block has an inbox: a barrier that is told how many bytes will be posted to its block, and that
 * ends its phase when they are here. So nobody waits for a block it gets nothing from, and there is
 * no fence: cluster_arrive() behind plain stores is a fence of the whole device. But each lane's
 * post is counted by itself: where many words are exchanged (mma.cu), stores and a barrier of the
 * whole cluster are faster.
 *
 * The order: inbox_open(), later cluster_wait(), and then posts; inbox_wait() before what was
 * posted is read. A block that expects bytes must stay until they are here. Compute capability 9.0
 * and newer; empty on others.
 */
#ifndef WHET_KERNELS_CUDA_LIB_INBOX_CUH
#define WHET_KERNELS_CUDA_LIB_INBOX_CUH

#include "cuda/lib/barrier.cuh"
#include "cuda/lib/stream.cuh"

typedef unsigned long long inbox;

/* cluster_come(), and `bytes` will be posted to this block. */
__device__ __forceinline__ void inbox_open(inbox *in, int bytes)
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

/* Stores v where *own is in the shared memory of block `rank`, counted by the inbox there. */
__device__ __forceinline__ void post(float *own, inbox *in, int rank, float v)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
                     peer_of(own, rank)),
                 "f"(v), "r"(peer_of(in, rank))
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
