/* SPDX-License-Identifier: Apache-2.0 */
/* bricks.cuh - weights in bricks (kernels/bricks.h): one at a time, and as bf16 operands of
 * mma.sync. (bricks_int.cuh has them as int8 operands.)
 *
 * One at a time they are what dequant_row() of engine/quant.c makes of the file, bit for bit. As
 * operands they are whole numbers that bf16 holds exactly: 128 + code by one shift and one
 * logic operation for two (0x4300 is 128 in bf16, whose last place is then 1), or the code itself
 * for eight bits (a float of eight bits with the exponent that it has in bf16). A product over the
 * columns that have a scale in common is then
 *
 *   sum of w x = scale * (sum of number * x) - offset * (sum of x)
 *
 * with scale and offset in float: no weight is rounded. Where both signs are stored, offset is
 * scale times what the number is too much, and where a minimum is, that besides.
 */
#ifndef WHET_KERNELS_CUDA_LIB_BRICKS_CUH
#define WHET_KERNELS_CUDA_LIB_BRICKS_CUH

#include "bricks.h"
#include "cuda/lib/device.cuh"

__device__ __forceinline__ float half_float(unsigned h)
{
    float f;
    asm("{\n .reg .b16 h;\n cvt.u16.u32 h, %1;\n cvt.f32.f16 %0, h;\n}" : "=f"(f) : "r"(h));
    return f;
}

/* e4m3 as a float; 0x7f, which is no number there, is 480, as it is for the file's reader. */
__device__ __forceinline__ float e4m3_float(unsigned code)
{
    return __uint_as_float((code & 0x80) << 24 | (code & 0x7f) << 20) * 0x1p120f;
}

/* ---- one at a time -------------------------------------------------------------------------- */

/* The code of element (row, column) of a brick. */
__device__ __forceinline__ int brick_code(int type, const unsigned char *brick, int row, int col)
{
    int h = row / 8, t = col / 32, s = col % 32 / 16, q = col % 16 / 4, j = col % 4;
    int lane = row % 8 * 4 + q, byte = j / 2 + 2 * (j % 2);
    const unsigned *low = (const unsigned *)brick;
    const unsigned *high = (const unsigned *)(brick + brick_low(type));
    if (brick_eight_bits(type))
        return (signed char)(low[(t * 32 + lane) * 4 + 2 * h + s] >> 8 * byte);
    int v = low[(t / 2 * 32 + lane) * 4 + 2 * (t % 2) + h] >> (8 * byte + 4 * s) & 15;
    if (type == DTYPE_Q6_K)
        v |= (high[(t / 4 * 32 + lane) * 4 + t % 4] >> (8 * byte + 2 * (2 * h + s)) & 3) << 4;
    else if (brick_high(type))
        v |= (high[lane * 4 + t / 2] >> (8 * byte + 4 * (t % 2) + 2 * h + s) & 1) << 4;
    return v;
}

/* Its value, rounded where dequant_row() rounds. */
__device__ __forceinline__ float brick_value(int type, const void *w, int cols, int64_t row,
                                             int col)
{
    const unsigned char *brick =
        (const unsigned char *)w +
        (row / BRICK_ROWS * bricks_across(cols) + col / BRICK_COLS) * brick_bytes(type);
    int r = (int)(row % BRICK_ROWS), c = col % BRICK_COLS, t = c / 32;
    const unsigned char *scales = brick + brick_low(type) + brick_high(type),
                        *own = scales + 16 * r;
    int bits = brick_code(type, brick, r, c);
    float code = (float)bits;
    if (type == DTYPE_F8)
        return __fmul_rn(((const float *)scales)[r * 2 + t / 4], e4m3_float(bits));
    if (type == DTYPE_Q6_K) {
        float d = half_float(((const unsigned short *)(scales + 256))[r]);
        return __fmul_rn(__fmul_rn(d, (float)(signed char)own[c / 16]), code - 32);
    }
    float d = half_float(((const unsigned short *)own)[brick_six_bits(type) ? 0 : t]);
    if (brick_six_bits(type)) {
        const unsigned char *s = own + 4;
        float dmin = half_float(((const unsigned short *)own)[1]);
        int scale = t < 4 ? s[t] & 63 : (s[t + 4] & 15) | s[t - 4] >> 6 << 4;
        int least = t < 4 ? s[t + 4] & 63 : s[t + 4] >> 4 | s[t] >> 6 << 4;
        return __fsub_rn(__fmul_rn(__fmul_rn(d, (float)scale), code),
                         __fmul_rn(dmin, (float)least));
    }
    if (type == DTYPE_Q4_1 || type == DTYPE_Q5_1)
        return __fadd_rn(__fmul_rn(d, code), half_float(((const unsigned short *)(own + 256))[t]));
    return __fmul_rn(d, type == DTYPE_Q4_0 ? code - 8 : type == DTYPE_Q5_0 ? code - 16 : code);
}

/* ---- as operands ---------------------------------------------------------------------------- */

template <int T> struct brick_shape {
    enum {
        LOWS = brick_low(T) / 512, /* 16-byte loads of a lane */
        HIGHS = brick_high(T) / 512,
        OWN = brick_scales(T) / 256, /* 16-byte loads of a row's scales */
        OWNS = OWN ? OWN : 1,
        HALVES = T == DTYPE_Q6_K ? 2 : 1, /* scales of a strip: one for each product, or one */
        /* What a number is more than the code that has a sign, or than the code. */
        MORE = brick_eight_bits(T) ? 0
               : T == DTYPE_Q4_0   ? 136
               : T == DTYPE_Q5_0   ? 144
               : T == DTYPE_Q6_K   ? 160
                                   : 128,
        LEAST = T == DTYPE_Q4_1 || T == DTYPE_Q5_1 || brick_six_bits(T), /* there are minima */
        OFFSET = !brick_eight_bits(T)
    };
};

/* What a lane has of a brick. */
template <int T> struct brick {
    uint4 low[brick_shape<T>::LOWS], high[brick_shape<T>::HIGHS ? brick_shape<T>::HIGHS : 1];
    uint4 own[2][brick_shape<T>::OWNS]; /* scales of rows g and g + 8 */
    uint2 d[2];                         /* theirs too: the half of Q6_K, the two floats of F8 */
};

/* Scale and offset of a strip for rows g and g + 8, and the minimum that is in the offset. */
template <int T> struct brick_scale {
    float scale[brick_shape<T>::HALVES][2], offset[brick_shape<T>::HALVES][2], least[2];
};

/* 16-byte load i of a brick's low part, then of its high one; scales. `load` is how: a function of
 * an address. */
template <int T, typename HOW>
__device__ __forceinline__ void load_brick(struct brick<T> *b, const char *from, int lane,
                                           const HOW &load)
{
    typedef brick_shape<T> shape;
    const char *scales = from + brick_low(T) + brick_high(T);
#pragma unroll
    for (int i = 0; i < shape::LOWS; i++)
        b->low[i] = load((const uint4 *)from + i * 32 + lane);
#pragma unroll
    for (int i = 0; i < shape::HIGHS; i++)
        b->high[i] = load((const uint4 *)(from + brick_low(T)) + i * 32 + lane);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = lane / 4 + 8 * h;
#pragma unroll
        for (int i = 0; i < shape::OWN; i++)
            b->own[h][i] = load((const uint4 *)(scales + 256 * i) + row);
        if (T == DTYPE_Q6_K)
            b->d[h].x = __ldg((const unsigned short *)(scales + 256) + row);
        if (T == DTYPE_F8)
            b->d[h] = __ldg((const uint2 *)scales + row);
    }
}

__device__ __forceinline__ unsigned word_of(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* Half `i` of eight. */
__device__ __forceinline__ unsigned half_of(const uint4 &v, int i)
{
    unsigned w = word_of(v, i / 2);
    return i % 2 ? w >> 16 : w & 0xffff;
}

/* low & mask | bits: one instruction. */
__device__ __forceinline__ unsigned masked(unsigned v, unsigned mask, unsigned bits)
{
    unsigned r;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(v), "r"(mask), "r"(bits));
    return r;
}

/* a b + c of two bf16 each. */
__device__ __forceinline__ unsigned fma_bf16(unsigned a, unsigned b, unsigned c)
{
    unsigned r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

/* Pair p of row half h of strip t as two bf16. All but the brick are constants where it is used. */
template <int T>
__device__ __forceinline__ unsigned brick_pair(const struct brick<T> &b, int t, int h, int p)
{
    constexpr bool EIGHT = brick_eight_bits(T);
    if (EIGHT) {
        unsigned v = word_of(b.low[EIGHT ? t : 0], 2 * h + p / 2) >> 8 * (p % 2);
        if (T == DTYPE_F8) /* the same bits further up, times 2^120: exact, less than normal too */
            return fma_bf16(masked(v << 8, 0x80008000u, v << 4 & 0x07f007f0u), 0x7b807b80u,
                            0x80008000u);
        /* lower seven bits + 128, less 128 or 256 by the sign: exact */
        return fma_bf16(masked(v, 0x007f007fu, 0x43004300u), 0x3f803f80u,
                        masked(v, 0x00800080u, 0xc300c300u));
    }
    unsigned v =
        masked(word_of(b.low[EIGHT ? 0 : t / 2], 2 * (t % 2) + h) >> (8 * (p % 2) + 4 * (p / 2)),
               0x000f000fu, 0x43004300u);
    if (T == DTYPE_Q6_K) {
        unsigned w = word_of(b.high[T == DTYPE_Q6_K ? t / 4 : 0], t % 4);
        int at = p % 2 * 8 + 2 * (2 * h + p / 2);
        return masked(at <= 4 ? w << (4 - at) : w >> (at - 4), 0x00300030u, v);
    }
    if (brick_shape<T>::HIGHS) {
        unsigned w = word_of(b.high[0], t / 2);
        int at = p % 2 * 8 + 4 * (t % 2) + 2 * h + p / 2;
        return masked(at <= 4 ? w << (4 - at) : w >> (at - 4), 0x00100010u, v);
    }
    return v;
}

/* Operand A of product s of strip t. */
template <int T>
__device__ __forceinline__ uint4 brick_operand(const struct brick<T> &b, int t, int s)
{
    return make_uint4(brick_pair<T>(b, t, 0, 2 * s), brick_pair<T>(b, t, 1, 2 * s),
                      brick_pair<T>(b, t, 0, 2 * s + 1), brick_pair<T>(b, t, 1, 2 * s + 1));
}

/* Codes of eight bits: strips 2 to 7 are strips 0 to 5 from now on. `t` was the first of those
 * skipped. */
template <int T> __device__ __forceinline__ void skip_two_strips(struct brick<T> *b, int t)
{
    static_assert(brick_eight_bits(T), "a strip has a load of its own");
#pragma unroll
    for (int i = 0; i + 2 < BRICK_STRIPS; i++)
        b->low[i] = b->low[i + 2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint4 &own = b->own[h][0];
        if (T == DTYPE_Q8_0)
            own = make_uint4(own.y, own.z, own.w, 0);
        else if (t % 4 == 2)
            b->d[h].x = b->d[h].y;
    }
}

/* Byte `i` of `w`, as a float, times d: 2^23 + byte is a float by its bits, and what the 2^23 is
 * too much goes in the same rounding. */
__device__ __forceinline__ float byte_times(unsigned w, int i, float d)
{
    return fmaf(__uint_as_float(__byte_perm(w, 0x4b000000u, 0x7440 | i)), d, -8388608.0f * d);
}

/* The scales of a strip of one row. */
template <int T>
__device__ __forceinline__ void row_scale(const struct brick<T> &b, int t, int h,
                                          struct brick_scale<T> *to)
{
    typedef brick_shape<T> shape;
    const uint4 &own = b.own[h][0];
    float scale, least = 0;
    if (T == DTYPE_F8) {
        to->scale[0][h] = __uint_as_float(t < 4 ? b.d[h].x : b.d[h].y);
        to->offset[0][h] = 0;
        return;
    }
    if (T == DTYPE_Q6_K) {
        float d = half_float(b.d[h].x);
#pragma unroll
        for (int s = 0; s < 2; s++) { /* a signed byte is one without sign, less 128 */
            unsigned w = word_of(own, t / 2) ^ 0x80808080u;
            scale = byte_times(w, t % 2 * 2 + s, d) - 128.0f * d;
            to->scale[s % shape::HALVES][h] = scale;
            to->offset[s % shape::HALVES][h] = scale * shape::MORE;
        }
        return;
    }
    if (brick_six_bits(T)) {
        float d = half_float(own.x & 0xffff), dmin = half_float(own.x >> 16);
        unsigned sc =
            t < 4 ? own.y & 0x3f3f3f3fu : (own.w & 0x0f0f0f0fu) | (own.y >> 2 & 0x30303030u);
        unsigned mn =
            t < 4 ? own.z & 0x3f3f3f3fu : (own.w >> 4 & 0x0f0f0f0fu) | (own.z >> 2 & 0x30303030u);
        scale = byte_times(sc, t % 4, d);
        least = byte_times(mn, t % 4, dmin);
    } else {
        scale = half_float(half_of(own, t));
        if (shape::LEAST)
            least = -half_float(half_of(b.own[h][shape::OWNS - 1], t));
    }
    to->scale[0][h] = scale;
    to->least[h] = least;
    to->offset[0][h] = fmaf(scale, (float)shape::MORE, least);
}

template <int T>
__device__ __forceinline__ struct brick_scale<T> brick_scales_of(const struct brick<T> &b, int t) {
    struct brick_scale<T> s;
    row_scale<T>(b, t, 0, &s);
    row_scale<T>(b, t, 1, &s);
    return s;
}

#endif
