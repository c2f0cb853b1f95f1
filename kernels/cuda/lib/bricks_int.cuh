/* SPDX-License-Identifier: Apache-2.0 */
/* bricks_int.cuh - weights in bricks (kernels/bricks.h) as int8 operands, and their scales.
 *
 * A code is a whole number of at most eight bits, so a strip of 16 rows and 32 columns is operand A
 * of one mma.m16n8k32: four codes a word by at most one shift and one or two logic operations, and
 * of eight bits by none. Sums are exact; scales in float come after them:
 *
 *   sum of w x = scale * unit * (sum of code * X) - offset * (sum of x),   x = unit * X
 *
 * where X are whole numbers (bricks_digits.cuh) and offset is scale times the code that stands for
 * zero, or the block's minimum. A word's four codes are columns 4 q + 0, 2, 1, 3 of one half.
 */
#ifndef WHET_KERNELS_CUDA_LIB_BRICKS_INT_CUH
#define WHET_KERNELS_CUDA_LIB_BRICKS_INT_CUH

#include "cuda/lib/bricks.cuh"

template <int T> struct int_shape {
    enum {
        HALVES = brick_shape<T>::HALVES, /* scales of a strip */
        ZERO = T == DTYPE_Q4_0   ? 8     /* the code that stands for zero */
               : T == DTYPE_Q5_0 ? 16
               : T == DTYPE_Q6_K ? 32
                                 : 0,
        LEAST = brick_shape<T>::LEAST, /* there are minima */
        OFFSET = ZERO != 0 || LEAST
    };
};

/* c[16 rows x 8 columns] += a b: lane (g, q) has c of rows g (0, 1), g + 8 (2, 3), columns 2q, 2q+1
 */
__device__ __forceinline__ void mma_int8(int *c, uint4 a, unsigned b0, unsigned b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

/* ---- codes ---------------------------------------------------------------------------------- */

/* Codes of strips 2 p and 2 p + 1 that a lane has. */
template <int T> struct strip_pair {
    uint4 low[brick_low(T) / 2048];
    unsigned high[2];
};

template <int T>
__device__ __forceinline__ struct strip_pair<T> load_pair(const char *brick, int p, int lane) {
    const char *high = brick + brick_low(T);
    struct strip_pair<T> v;
#pragma unroll
    for (int i = 0; i < brick_low(T) / 2048; i++)
        v.low[i] = ((const uint4 *)brick)[(p * (brick_low(T) / 2048) + i) * 32 + lane];
    if (T == DTYPE_Q6_K) {
        uint2 w = *(const uint2 *)(high + (p / 2 * 32 + lane) * 16 + p % 2 * 8);
        v.high[0] = w.x, v.high[1] = w.y;
    } else if (brick_high(T)) {
        v.high[0] = *(const unsigned *)(high + lane * 16 + p * 4);
    }
    return v;
}

/* Word i of row half h of strip t (of the two). */
template <int T>
__device__ __forceinline__ unsigned codes_of(const struct strip_pair<T> &v, int t, int h, int i)
{
    if (T == DTYPE_Q8_0)
        return word_of(v.low[T == DTYPE_Q8_0 ? t : 0], 2 * h + i);
    unsigned w = masked(word_of(v.low[0], 2 * t + h) >> 4 * i, 0x0f0f0f0fu, 0);
    if (T == DTYPE_Q6_K) {
        int at = 2 * (2 * h + i);
        return masked(at <= 4 ? v.high[t] << (4 - at) : v.high[t] >> (at - 4), 0x30303030u, w);
    }
    if (brick_high(T)) {
        int at = 4 * t + 2 * h + i;
        return masked(at <= 4 ? v.high[0] << (4 - at) : v.high[0] >> (at - 4), 0x10101010u, w);
    }
    return w;
}

/* Operand A of strip t (of the two). */
template <int T> __device__ __forceinline__ uint4 int_operand(const struct strip_pair<T> &v, int t)
{
    return make_uint4(codes_of<T>(v, t, 0, 0), codes_of<T>(v, t, 1, 0), codes_of<T>(v, t, 0, 1),
                      codes_of<T>(v, t, 1, 1));
}

/* ---- scales --------------------------------------------------------------------------------- */

/* Of one strip, or half of one, for rows g and g + 8. */
struct int_scale {
    float scale[2], offset[2];
};

/* Six bits: what a row says of strips q and q + 4, which are this lane's to find out. */
__device__ __forceinline__ void k_scales(const char *scales, int g, int q,
                                         struct int_scale (&to)[2])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint4 v = ((const uint4 *)scales)[g + 8 * h];
        float d = half_float(v.x & 0xffff), dmin = half_float(v.x >> 16);
        unsigned a = v.y >> 8 * q, b = v.z >> 8 * q, c = v.w >> 8 * q;
        to[0].scale[h] = d * (float)(a & 63);
        to[0].offset[h] = dmin * (float)(b & 63);
        to[1].scale[h] = d * (float)((c & 15) | (a >> 2 & 48));
        to[1].offset[h] = dmin * (float)((c >> 4 & 15) | (b >> 2 & 48));
    }
}

/* Of strip `t` of the brick, half `half` of it where halves have their own. `t` and `half` may
 * differ from lane to lane; six bits go another way. */
template <int T>
__device__ __forceinline__ struct int_scale scale_at(const char *scales, int g, int t, int half)
{
    struct int_scale to;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const char *own = scales + 16 * (g + 8 * h);
        if (T == DTYPE_Q6_K) {
            float d = half_float(*(const unsigned short *)(scales + 256 + 2 * (g + 8 * h)));
            to.scale[h] = d * (float)((const signed char *)own)[2 * t + half];
        } else {
            to.scale[h] = half_float(((const unsigned short *)own)[t]);
        }
        to.offset[h] = int_shape<T>::LEAST ? -half_float(((const unsigned short *)(own + 256))[t])
                                           : to.scale[h] * int_shape<T>::ZERO;
    }
    return to;
}

#endif
