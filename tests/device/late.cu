/* SPDX-License-Identifier: Apache-2.0 */
/* late.cu - a previous kernel that is slow: it lets its successor start, waits, and only then
 * brings what the successor should read. Whoever does not wait for it reads what was there before.
 */
#include "cuda/lib/device.cuh"

struct late_args {
    void *to[4];
    const void *from[4];
    long long words[4]; /* of 4 bytes */
    long long ns;
};

__device__ __forceinline__ long long now_ns()
{
    long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

KERNEL late(const __grid_constant__ struct late_args a)
{
    release_next();
    long long end = now_ns() + a.ns;
    while (now_ns() < end)
        ;
    for (int i = 0; i < 4; i++)
        for (long long j = blockIdx.x * blockDim.x + threadIdx.x; j < a.words[i];
             j += (long long)gridDim.x * blockDim.x)
            ((unsigned *)a.to[i])[j] = ((const unsigned *)a.from[i])[j];
}
