/* SPDX-License-Identifier: Apache-2.0 */
/* bricks_digits.cuh - the activations of a product with bricks of whole numbers
 * (lib/bricks_int.cuh) as whole numbers, and sums as such products leave them.
 *
 * 32 neighbouring activations ("strip") of a token are unit * X, X whole numbers of about 15 bits
 * and unit a power of two, chosen so that the largest of them just fits: an error of at most 2^-15
 * of that largest, where bf16 has up to 2^-9 of each. X is two signed digits, 256 X1 + X0, each an
 * int8 operand. All scales of x are powers of two, so whole numbers give exact sums.
 *
 * The eight columns of operand B are the digits of PER_TILE tokens, as many as there are up to
 * four. Where that leaves columns over, they are the next strips' (ABREAST of them), so that no
 * scale is multiplied in vain: in strip k, B is zero but in its own columns. A format with two
 * scales in a strip (HALVES) has columns for either half. Lane (g, q) has digits 0 and 1 of one
 * token's sum next to one another: its token is q % PER_TILE, its half q / PER_TILE % HALVES, its
 * strip of those abreast what is left.
 *
 * Digits lie in shared memory as a lane's operand: [strip][token][digit][q] of 8 bytes, in the
 * order of the codes (lib/bricks_int.cuh), so what a warp reads is one piece.
 */
#ifndef WHET_KERNELS_CUDA_LIB_BRICKS_DIGITS_CUH
#define WHET_KERNELS_CUDA_LIB_BRICKS_DIGITS_CUH

#include "cuda/lib/bricks_int.cuh"
#include "cuda/lib/gemv.cuh"

struct input {
    const uint2 *lane; /* this lane's operand B of the first strips, first tokens */
    const float *says; /* [KX / 32][M][SAYS] what is to be known of the strips besides */
    int g, q;
};

__device__ __forceinline__ struct input input_of(const char *x, const float *says, int lane)
{
    int g = lane / 4, q = lane % 4;
    const uint2 *own =
        (const uint2 *)x + (g / (2 * PER_TILE * HALVES) * M + g / 2 % PER_TILE) * 8 + g % 2 * 4 + q;
    return {own, says, g, q};
}

/* ---- digits --------------------------------------------------------------------------------- */

/* What activations are multiplied by before a norm divides it away again. Of a token near 2^-130
 * units would lie below float's smallest number; the squares of one near 2^64 are infinite anyway.
 */
#define X_UP 0x1p40f

/* A byte of each of four words, in the order in which codes lie. */
__device__ __forceinline__ unsigned bytes_of(const unsigned *v, unsigned which)
{
    return __byte_perm(__byte_perm(v[0], v[2], which), __byte_perm(v[1], v[3], which), 0x5410);
}

/* Eight activations i .. i + 7 of token t to where they belong, times their gains if there are any;
 * four neighbouring threads have a strip. `squares`: of the eight, before the gains. */
__device__ __forceinline__ void put_x(char *x, float *says, int t, int i, const float (&f)[8],
                                      float squares)
{
    const unsigned magic = 0x4b400000u; /* 1.5 x 2^23: a float's last place is then 1 */
    int strip = i / 32, s = i / 16 % 2, q = i / 4 % 4;
    unsigned bits[8], most = 0;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 8; j++)
        most = max(most, __float_as_uint(f[j]) & 0x7fffffffu);
    most = max(most, __shfl_xor_sync(WARP_ALL, most, 1));
    most = max(most, __shfl_xor_sync(WARP_ALL, most, 2));
    /* Its exponent, of values that would round past what two digits hold the next. */
    unsigned e = max(most + 0x20000u >> 23, 15u);
    float up = __uint_as_float(268 - e << 23);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float r = fmaf(f[j], up, __uint_as_float(magic));
        bits[j] = __float_as_uint(r);
        if (int_shape<WTYPE>::OFFSET)
            sum += r - __uint_as_float(magic);
    }
    unsigned *to = (unsigned *)(x + (strip * M + t) * 64 + q * 8 + s * 4);
    to[0] = bytes_of(bits, 0x0040);
    to[2] = bytes_of(bits + 4, 0x0040);
#pragma unroll
    for (int j = 0; j < 8; j++)
        bits[j] += 128; /* the lower digit has a sign */
    to[8] = bytes_of(bits, 0x0051);
    to[10] = bytes_of(bits + 4, 0x0051);
    float rest = 0;
    if (int_shape<WTYPE>::OFFSET) {
        sum += __shfl_xor_sync(WARP_ALL, sum, 1);
        rest = __shfl_xor_sync(WARP_ALL, sum, 2);
    }
    if (HAS_NORM) {
        squares += __shfl_xor_sync(WARP_ALL, squares, 1);
        squares += __shfl_xor_sync(WARP_ALL, squares, 2);
    }
    if (threadIdx.x % 4 != 0)
        return;
    /* What is not finite stays so. */
    float unit = __uint_as_float(most >= 0x7f800000u ? 0x7fffffffu : e - 14 << 23);
    float *say = says + (strip * M + t) * SAYS;
    say[0] = unit;
    if (HALVES == 2)
        say[1] = unit * sum, say[2] = unit * rest;
    else if (SAYS > 1)
        say[1] = unit * (sum + rest);
    if (HAS_NORM)
        says[UNITS * M * SAYS + t * UNITS + strip] = squares;
}

/* ---- a product ------------------------------------------------------------------------------ */

/* Operand B of strips `strip` and on that are abreast, tokens of tile n. Columns beyond the last
 * token read what lies behind it; their sums are not used. */
__device__ __forceinline__ uint2 operand_x(const struct input &in, int strip, int n)
{
    uint2 x = in.lane[strip * M * 8 + n * PER_TILE * 8];
    if (HALVES == 2) { /* the other half's columns are zero */
        bool second = in.g / (2 * PER_TILE) % 2;
        x.x = second ? 0 : x.x, x.y = second ? x.y : 0;
    }
    return x;
}

/* sum += scales times the sums over strips that are abreast: row halves h, tokens of tile n. */
template <int T>
__device__ __forceinline__ void add_strips(const struct input &in, int strip,
                                           const struct int_scale &s, int n, const int *c,
                                           float *sum)
{
    int mine = strip + in.q / (PER_TILE * HALVES), t = n * PER_TILE + in.q % PER_TILE;
    const float *say = in.says + (mine * M + min(t, M - 1)) * SAYS;
    float unit = say[0], all = 0;
    if (HALVES == 2)
        all = say[1 + in.q / PER_TILE % 2];
    else if (SAYS > 1)
        all = say[1];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[h] = fmaf(s.scale[h] * unit, (float)(c[2 * h] + 256 * c[2 * h + 1]), sum[h]);
        if (int_shape<T>::OFFSET)
            sum[h] = fmaf(-s.offset[h], all, sum[h]);
    }
}

/* The scales that a lane needs for the strips abreast from t on, of those of the brick. */
template <int T>
__device__ __forceinline__ struct int_scale
scales_of(const char *scales, const struct int_scale (&k)[2], const struct input &in, int t)
{
    if (!brick_six_bits(T))
        return scale_at<T>(scales, in.g, t + in.q / (PER_TILE * HALVES), in.q / PER_TILE % HALVES);
    if (ABREAST == 4)
        return k[t / 4];
    struct int_scale s;
    int from = in.g * 4 + (t + in.q / PER_TILE) % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        s.scale[h] = __shfl_sync(WARP_ALL, k[t / 4].scale[h], from);
        s.offset[h] = __shfl_sync(WARP_ALL, k[t / 4].offset[h], from);
    }
    return s;
}

/* sum += w x over a brick in shared memory, `strip` the first of its strips in the row. */
template <int T>
__device__ __forceinline__ void multiply_brick(const char *brick, const struct input &in, int strip,
                                               const struct place &at, float *sum)
{
    const char *scales = brick + brick_low(T) + brick_high(T);
    struct int_scale k[2];
    struct strip_pair<T> w;
    int c[NT][4];
    uint2 x[NT];
    if (brick_six_bits(T))
        k_scales(scales, in.g, in.q, k);
#pragma unroll
    for (int t = 0; t < BRICK_STRIPS; t++) {
        int first = t / ABREAST * ABREAST;
        bool mine = ABREAST == 1 || in.g / (2 * PER_TILE * HALVES) == t % ABREAST;
        if (t % 2 == 0)
            w = load_pair<T>(brick, t / 2, at.lane);
        uint4 codes = int_operand<T>(w, t % 2);
#pragma unroll
        for (int n = 0; n < NT; n++) {
            if (t == first) {
                x[n] = operand_x(in, strip + t, n);
                c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
            }
            mma_int8(c[n], codes, mine ? x[n].x : 0, mine ? x[n].y : 0);
        }
        if (t % ABREAST < ABREAST - 1)
            continue;
        struct int_scale s = scales_of<T>(scales, k, in, first);
#pragma unroll
        for (int n = 0; n < NT; n++)
            add_strips<T>(in, strip + first, s, n, c[n], sum + n * 2);
    }
}

/* A warp's sums over its lanes, of the tile's tokens and rows, where the block's others can read
 * them. */
__device__ __forceinline__ void put_sums(const float *sum, float *part, const struct place &at)
{
    int g = at.lane / 4, q = at.lane % 4;
#pragma unroll
    for (int i = 0; i < SUMS; i++) { /* band, tile of tokens, row half */
        int t = i / 2 % NT * PER_TILE + q % PER_TILE;
        int row = at.rw * ROWS + i / (2 * NT) * 16 + g + i % 2 * 8;
        float all = sum[i];
#pragma unroll
        for (int o = PER_TILE; o < 4; o *= 2) /* lanes of a token have its strips */
            all += __shfl_xor_sync(WARP_ALL, all, o);
        if (q < PER_TILE && t < M)
            part[t * TILE + row] = all;
    }
}

#endif
