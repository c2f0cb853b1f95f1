/* SPDX-License-Identifier: Apache-2.0 */
/* agent.cu - the frame of a CUDA kernel whose body a language model wrote: what kernels/cpu/agent.c
 * is on the CPU.
 *
 * The body (-DAGENT_BODY) includes nothing and is device code alone: it defines
 *
 *   THREADS, GRID                         macros: threads of a block, blocks
 *   SMEM, CLUSTER, WORK_BYTES, COUNTERS   macros, where it needs them
 *   __device__ __forceinline__ void kernel(const struct region_args &a)
 *
 * and finds its SMEM bytes of shared memory in dynamic_shared[].
 *
 * The launched function, its bounds and what the cubin says of itself are here, so a body can
 * neither launch anything nor describe itself as something that it is not; one that redefines the
 * frame's own words is found out when the cubin is read (agent_cubin.c). One launch; weights in the
 * model's own layout.
 */
#include "cuda/lib/mma.cuh"
#include "cuda/lib/shape.cuh"
#include "cuda/lib/stream.cuh"

#define KNOB(name, role, value, values, help) static_assert((name) == (name), "has a value");
#define LEGAL(expression, why) static_assert(expression, why);
#include "cuda/agent.def"

/* SMEM bytes; a body may not say `extern`. */
extern __shared__ __align__(128) unsigned char dynamic_shared[];

#include AGENT_BODY

#ifndef SMEM
#define SMEM 0
#endif
#ifndef CLUSTER
#define CLUSTER 1
#endif
#ifndef WORK_BYTES
#define WORK_BYTES 0
#endif
#ifndef COUNTERS
#define COUNTERS 0
#endif

static_assert(THREADS >= 32 && THREADS <= 1024 && THREADS % 32 == 0, "whole warps, at most 32");
static_assert(GRID >= 1 && GRID <= 1 << 20, "blocks");
static_assert(SMEM >= 0 && SMEM <= 227 * 1024, "shared memory of a block");
static_assert(CLUSTER >= 1 && CLUSTER <= 8 && GRID % CLUSTER == 0, "whole clusters of at most 8");
static_assert(COUNTERS >= 0 && COUNTERS <= CUDA_COUNTERS, "counters");

KERNEL __launch_bounds__(THREADS) whet_kernel(const __grid_constant__ struct region_args a)
{
    kernel(a);
}

extern "C" __device__ const struct cuda_kernel_info whet_info = {
    WHET_CUDA_ABI, REGION,     M_MAX, 0,  1,
    COUNTERS,      WORK_BYTES, 0,     "", {{{GRID, 1, 1}, THREADS, SMEM, PDL, CLUSTER, 0}},
};
