/* SPDX-License-Identifier: Apache-2.0 */
/* device.cuh - what all CUDA kernels share: bf16 by bits, reductions, dependency edges. No
 * header of the toolkit is needed, so NVRTC compiles these files without an include path to one. */
#ifndef WHET_KERNELS_CUDA_LIB_DEVICE_CUH
#define WHET_KERNELS_CUDA_LIB_DEVICE_CUH

typedef unsigned short bf16;

#define KERNEL extern "C" __global__ void
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#define WARP_ALL 0xffffffffu

/* Waits until everything launched before this kernel has ended and its writes are visible. */
__device__ __forceinline__ void after_previous()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Lets the next kernel's blocks start; they wait by themselves before they read. */
__device__ __forceinline__ void release_next()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ float from_bf16(bf16 v)
{
    return __uint_as_float((unsigned)v << 16);
}

/* Two floats to a pair of bf16, `low` in the lower half; round to nearest even. */
__device__ __forceinline__ unsigned pack_bf16(float low, float high)
{
    unsigned r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

__device__ __forceinline__ bf16 to_bf16(float v)
{
    return (bf16)pack_bf16(v, 0.0f);
}

__device__ __forceinline__ float low_bf16(unsigned pair)
{
    return __uint_as_float(pair << 16);
}

__device__ __forceinline__ float high_bf16(unsigned pair)
{
    return __uint_as_float(pair & 0xffff0000u);
}

/* Eight bf16 of 16 bytes. */
__device__ __forceinline__ void expand8(uint4 v, float *f)
{
    f[0] = low_bf16(v.x), f[1] = high_bf16(v.x), f[2] = low_bf16(v.y), f[3] = high_bf16(v.y);
    f[4] = low_bf16(v.z), f[5] = high_bf16(v.z), f[6] = low_bf16(v.w), f[7] = high_bf16(v.w);
}

/* 2^x within 2 ulp; what would be denormal is zero. exp2f() spends three more instructions on that.
 */
__device__ __forceinline__ float exp2_fast(float x)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

__device__ __forceinline__ float warp_sum(float v)
{
    for (int o = 16; o > 0; o >>= 1)
        v += __shfl_xor_sync(WARP_ALL, v, o);
    return v;
}

/* Sum over the block, in every thread. `shared`: 33 floats. */
__device__ __forceinline__ float block_sum(float v, float *shared)
{
    int warps = blockDim.x / 32;
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = v;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < warps; i++)
        sum += shared[i];
    __syncthreads();
    return sum;
}

__device__ __forceinline__ float silu(float v)
{
    return v / (1.0f + __expf(-v));
}

#endif
