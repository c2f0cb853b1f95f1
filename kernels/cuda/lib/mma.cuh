/* SPDX-License-Identifier: Apache-2.0 */
/* mma.cuh - the tensor-core product, and the order in which weights are kept for it.
 *
 * A tile is 16 rows x 32 columns, 1 KB: for each of two products (s) every lane's 16 bytes, which
 * are one operand A of m16n8k16. Lane (g, q) = (lane / 4, lane % 4) holds of rows g and g + 8 the
 * columns 8 q + 4 s .. + 3. A product's sum does not care which column is called which, as long as
 * both operands agree: so a lane's part of operand B, for both products, is 8 neighbouring
 * activations of one token, 16 bytes in plain row order. */
#ifndef WHET_KERNELS_CUDA_LIB_MMA_CUH
#define WHET_KERNELS_CUDA_LIB_MMA_CUH

#include "cuda/lib/device.cuh"

#define TILE_LAYOUT "mma16x32"

/* c[16 rows x 8 tokens] += a b: lane (g, q) has c of rows g (0, 1), g + 8 (2, 3), tokens 2q, 2q+1
 */
__device__ __forceinline__ void mma_bf16(float *c, uint4 a, unsigned b0, unsigned b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

/* Packs w [rows, cols], both multiples of the tile; thread i of n writes every n-th 16 bytes. */
__device__ __forceinline__ void pack_tiles(const bf16 *w, uint4 *packed, int rows, int cols,
                                           long long i, long long n)
{
    for (long long total = (long long)rows * cols / 8; i < total; i += n) {
        int lane = i % 32, s = i / 32 % 2, g = lane / 4, q = lane % 4;
        long long tile = i / 64, row = tile / (cols / 32) * 16 + g, col = tile % (cols / 32) * 32;
        const uint2 *top = (const uint2 *)(w + row * cols + col + 8 * q + 4 * s);
        const uint2 *low = (const uint2 *)(w + (row + 8) * cols + col + 8 * q + 4 * s);
        packed[i] = make_uint4(top->x, low->x, top->y, low->y);
    }
}

#endif
