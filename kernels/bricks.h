/* SPDX-License-Identifier: Apache-2.0 */
/* bricks.h - how a GPU keeps weights that are stored in blocks: the same bits in another order.
 *
 * A matrix [rows, cols] is cut into bricks of BRICK_ROWS rows and BRICK_COLS columns, one row of
 * bricks after the other; what a brick has beyond the matrix is zero, scales included. A brick is
 * contiguous, its size a multiple of 16 bytes, and what a warp needs of it is 16 bytes a lane:
 *
 *   low     the lower four bits of the codes, or all eight of Q8_0 and F8: 4 or 8 x 32 lanes x 16
 *   high    the fifth bits, or the fifth and sixth: nothing, or 1 or 2 x 32 lanes x 16
 *   scales  the scales and offsets of the file's blocks, row by row (below)
 *
 * Lanes are those of an operand A of mma.m16n8k16 (bf16): lane (g, q) = (lane / 4, lane % 4) has of
 * rows g and g + 8 and of each 32 columns ("strip" t) the columns 16 s + 4 q + j, s 0..1, j 0..3.
 * Element (row half h, strip t, s, j) is code
 *
 *   four bits  16 bytes t / 2, word 2 (t % 2) + h, byte j / 2 + 2 (j % 2), bits 4 s and up
 *   eight      16 bytes t, word 2 h + s, byte j / 2 + 2 (j % 2), two's complement or e4m3
 *   high, one  word t / 2, byte j / 2 + 2 (j % 2), bit 4 (t % 2) + 2 h + s
 *   high, two  16 bytes t / 4, word t % 4, byte j / 2 + 2 (j % 2), bits 2 (2 h + s) and up
 *
 * so that one shift and one mask leave the four codes of a word of an int8 operand, or the two of a
 * pair of bf16 (lib/bricks.cuh).
 * Scales of row r, all little-endian as in the file:
 *
 *   Q8_0, Q4_0, Q5_0   f16 d[8] at 16 r
 *   Q4_1, Q5_1         f16 d[8] at 16 r, f16 m[8] at 256 + 16 r
 *   Q4_K, Q5_K         the block's first 16 bytes at 16 r: f16 d, dmin, u8 scales[12]
 *   Q6_K               i8 s[16] at 16 r, f16 d at 256 + 2 r
 *   F8                 f32 d[2] at 8 r, each of 128 columns; 0 where the file's is below 1e-30, and
 *                      the codes under it are 0 then
 *
 * A model with F8 in which fewer than BRICK_SCALED columns have a scale of their own is not kept so
 * (model.fine_scales): no checkpoint of today is one.
 */
#ifndef WHET_KERNELS_BRICKS_H
#define WHET_KERNELS_BRICKS_H

#include "args.h"

enum { BRICK_ROWS = 16, BRICK_COLS = 256, BRICK_STRIPS = BRICK_COLS / 32, BRICK_SCALED = 128 };
/* How many formats a GPU keeps; rows of all others become bf16. */
enum { BRICK_KINDS = DTYPE_Q5_K - DTYPE_Q8_0 + 2 };

#ifdef __CUDACC__
#define BRICK_FACT __host__ __device__ constexpr int
#else
#define BRICK_FACT static inline int
#endif

/* Which of them a format is, from 0; -1: none. And the other way round. */
BRICK_FACT brick_kind(int type)
{
    return type >= DTYPE_Q8_0 && type <= DTYPE_Q5_K ? type - DTYPE_Q8_0
           : type == DTYPE_F8                       ? BRICK_KINDS - 1
                                                    : -1;
}

BRICK_FACT brick_type(int kind)
{
    return kind == BRICK_KINDS - 1 ? DTYPE_F8 : DTYPE_Q8_0 + kind;
}

/* Codes of eight bits: integers, or floats. */
BRICK_FACT brick_eight_bits(int type)
{
    return type == DTYPE_Q8_0 || type == DTYPE_F8;
}

/* Bytes of a brick's parts; all 0 for a format that a GPU does not keep. */
BRICK_FACT brick_low(int type)
{
    return brick_eight_bits(type) ? 4096 : brick_kind(type) >= 0 ? 2048 : 0;
}

BRICK_FACT brick_high(int type)
{
    return type == DTYPE_Q6_K                                               ? 1024
           : type == DTYPE_Q5_0 || type == DTYPE_Q5_1 || type == DTYPE_Q5_K ? 512
                                                                            : 0;
}

BRICK_FACT brick_scales(int type)
{
    return type == DTYPE_F8                           ? 128
           : type == DTYPE_Q6_K                       ? 288
           : type == DTYPE_Q4_1 || type == DTYPE_Q5_1 ? 512
           : brick_low(type)                          ? 256
                                                      : 0;
}

BRICK_FACT brick_bytes(int type)
{
    return brick_low(type) + brick_high(type) + brick_scales(type);
}

/* Scales and minima are six bits times a half for 256 columns. */
BRICK_FACT brick_six_bits(int type)
{
    return type == DTYPE_Q4_K || type == DTYPE_Q5_K;
}

/* Bricks of a row of them. */
BRICK_FACT bricks_across(int cols)
{
    return (cols + BRICK_COLS - 1) / BRICK_COLS;
}

#endif
