/* SPDX-License-Identifier: Apache-2.0 */
/* bricks_half.cuh - a product with bricks of F8: codes and activations as half floats (f16), and
 * sums as such products leave them.
 *
 * One instruction makes two codes of e4m3 two halves, which hold them exactly; no reader lets a
 * code through that is no number. (compute capability 9.0 has no product of them: its mma.sync of
 * e4m3 is these conversions and two products of halves.) 256 neighbouring activations of a token
 * are unit * X, X halves of which the largest is in [2^14, 2^15] and unit a power of two: an error
 * of at most 2^-12 of each, or 2^-40 of the largest, where bf16 has 2^-9 of each. 128 products of
 * these, which share a scale, stay below 2^31, and sums are float.
 *
 * The eight columns of operand B are tokens; where there are fewer they come again, and those sums
 * are the same. Lane (g, q) has columns 2 q and 2 q + 1 of a sum, of one token only the first.
 *
 * Halves lie in shared memory as a lane's operands of both products of a strip: [strip][token][q]
 * of 16 bytes, in the order in which a word of codes has its columns (kernels/bricks.h).
 */
#ifndef WHET_KERNELS_CUDA_LIB_BRICKS_HALF_CUH
#define WHET_KERNELS_CUDA_LIB_BRICKS_HALF_CUH

#include "cuda/lib/bricks.cuh"
#include "cuda/lib/gemv.cuh"

struct input {
    const uint4 *lane; /* this lane's operand B of the first strip */
    const float *says; /* [UNITS][M] units */
    int g, q;
};

__device__ __forceinline__ struct input input_of(const char *x, const float *says, int lane)
{
    int g = lane / 4, q = lane % 4;
    return {(const uint4 *)x + min(g % PER_TILE, M - 1) * 4 + q, says, g, q};
}

/* ---- halves --------------------------------------------------------------------------------- */

#define X_UP 1.0f /* halves of tiny numbers are tiny halves */

__device__ __forceinline__ unsigned pack_half(float low, float high)
{
    unsigned r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

/* Eight activations i .. i + 7 of token t to where they belong, times their gains if there are any;
 * a warp has a unit's. `squares`: of the eight, before the gains. */
__device__ __forceinline__ void put_x(char *x, float *says, int t, int i, const float (&f)[8],
                                      float squares)
{
    unsigned most = 0;
#pragma unroll
    for (int j = 0; j < 8; j++)
        most = max(most, __float_as_uint(f[j]) & 0x7fffffffu);
    most = __reduce_max_sync(WARP_ALL, most);
    unsigned e = max(most >> 23, 15u); /* its exponent */
    float up = __uint_as_float(268 - e << 23);
    uint2 *to = (uint2 *)(x + (i / 32 * M + t) * 64 + i / 4 % 4 * 16 + i / 16 % 2 * 8);
    to[0] = make_uint2(pack_half(f[0] * up, f[2] * up), pack_half(f[1] * up, f[3] * up));
    to[2] = make_uint2(pack_half(f[4] * up, f[6] * up), pack_half(f[5] * up, f[7] * up));
    if (HAS_NORM)
        squares = warp_sum(squares);
    if (threadIdx.x % 32 != 0)
        return;
    /* What is not finite stays so. */
    says[i / 256 * M + t] = __uint_as_float(most >= 0x7f800000u ? 0x7fffffffu : e - 14 << 23);
    if (HAS_NORM)
        says[UNITS * M + t * UNITS + i / 256] = squares;
}

/* ---- a product ------------------------------------------------------------------------------ */

/* c[16 rows x 8 columns] += a b: lane (g, q) has c of rows g (0, 1), g + 8 (2, 3), columns 2q, 2q+1
 */
__device__ __forceinline__ void mma_half(float *c, uint4 a, unsigned b0, unsigned b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

/* Four codes, two by two. */
__device__ __forceinline__ uint2 halves_of(unsigned codes)
{
    uint2 r;
    asm("{\n .reg .b16 low, high;\n mov.b32 {low, high}, %2;\n cvt.rn.f16x2.e4m3x2 %0, low;\n"
        " cvt.rn.f16x2.e4m3x2 %1, high;\n}"
        : "=r"(r.x), "=r"(r.y)
        : "r"(codes));
    return r;
}

/* Operand A of columns 16 s and on of a strip. */
__device__ __forceinline__ uint4 half_operand(const uint4 &codes, int s)
{
    uint2 g = halves_of(word_of(codes, s)), g8 = halves_of(word_of(codes, 2 + s));
    return make_uint4(g.x, g8.x, g.y, g8.y);
}

/* sum += w x over a brick in shared memory, `strip` the first of its strips in the row. */
template <int T>
__device__ __forceinline__ void multiply_brick(const char *brick, const struct input &in, int strip,
                                               const struct place &at, float *sum)
{
    const uint4 *own = (const uint4 *)brick + at.lane, *x = in.lane + strip * M * 4;
    const float *scales = (const float *)(brick + brick_low(T)) + in.g * 2;
    float all[BAND_SUMS] = {};
    /* Four strips, which have a scale in common, at a time: with eight, what is loaded early takes
     * the registers of another block. */
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        float d[2] = {scales[half], scales[half + 16]}, c[2][4] = {};
#pragma unroll
        for (int t = 0; t < 4; t++) {
            uint4 codes = own[(half * 4 + t) * 32], v = x[(half * 4 + t) * M * 4];
            mma_half(c[0], half_operand(codes, 0), v.x, v.y);
            mma_half(c[1], half_operand(codes, 1), v.z, v.w);
        }
#pragma unroll
        for (int i = 0; i < BAND_SUMS; i++) { /* row half, column */
            int at = i / COLUMNS * 2 + i % COLUMNS;
            all[i] = fmaf(d[i / COLUMNS], c[0][at] + c[1][at], all[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < BAND_SUMS; i++) {
        int t = min((2 * in.q + i % COLUMNS) % PER_TILE, M - 1);
        sum[i] = fmaf(in.says[strip / BRICK_STRIPS * M + t], all[i], sum[i]);
    }
}

/* A warp's sums, of the tile's tokens and rows, where the block's others can read them. */
__device__ __forceinline__ void put_sums(const float *sum, float *part, const struct place &at)
{
    int g = at.lane / 4, q = at.lane % 4;
#pragma unroll
    for (int i = 0; i < SUMS; i++) { /* band, row half, column */
        int t = 2 * q + i % COLUMNS;
        int row = at.rw * ROWS + i / BAND_SUMS * 16 + g + i / COLUMNS % 2 * 8;
        if (t < M)
            part[t * TILE + row] = sum[i];
    }
}

#endif
