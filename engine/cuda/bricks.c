/* SPDX-License-Identifier: Apache-2.0 */
/* bricks.c - see bricks.h. A row is taken apart into codes, one byte each, and what the file says
 * of blocks besides; both are then put where kernels/bricks.h says. */
#include "engine/cuda/bricks.h"

#include <math.h>
#include <string.h>

#include "kernels/bricks.h"

enum { QK = 32, BLOCKS = BRICK_COLS / QK };

int64_t bricks_bytes(enum dtype t, int64_t rows, int64_t cols)
{
    return (rows + BRICK_ROWS - 1) / BRICK_ROWS * bricks_across((int)cols) * brick_bytes((int)t);
}

/* ---- codes ---------------------------------------------------------------------------------- */

static void nibbles(const uint8_t *q, uint8_t code[QK])
{
    for (int i = 0; i < QK / 2; i++) {
        code[i] = q[i] & 15;
        code[i + QK / 2] = q[i] >> 4;
    }
}

static void fifth_bits(const uint8_t *high, uint8_t code[QK])
{
    for (int i = 0; i < QK; i++)
        code[i] |= (uint8_t)((high[i / 8] >> i % 8 & 1) << 4);
}

/* One block of 32 values: its codes, and its scales: one or two halves, or a float. */
static void take_block(enum dtype t, const uint8_t *b, uint8_t code[QK], uint8_t scale[4])
{
    memcpy(scale, b, t == DTYPE_Q4_1 || t == DTYPE_Q5_1 || t == DTYPE_F8 ? 4 : 2);
    switch (t) {
    case DTYPE_F8:
        memcpy(code, b + 4, QK);
        break;
    case DTYPE_Q8_0:
        memcpy(code, b + 2, QK);
        break;
    case DTYPE_Q4_0:
        nibbles(b + 2, code);
        break;
    case DTYPE_Q4_1:
        nibbles(b + 4, code);
        break;
    case DTYPE_Q5_0:
        nibbles(b + 6, code);
        fifth_bits(b + 2, code);
        break;
    default:
        nibbles(b + 8, code);
        fifth_bits(b + 4, code);
        break;
    }
}

static void codes_six_bits(enum dtype t, const uint8_t *b, uint8_t code[BRICK_COLS])
{
    const uint8_t *high = b + 16, *q = t == DTYPE_Q5_K ? b + 48 : b + 16;
    for (int i = 0; i < BRICK_COLS; i++) {
        code[i] = q[i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 15;
        if (t == DTYPE_Q5_K)
            code[i] |= (uint8_t)((high[i % 32] >> i / 32 & 1) << 4);
    }
}

static void codes_q6_k(const uint8_t *b, uint8_t code[BRICK_COLS])
{
    const uint8_t *low = b, *high = b + 128;
    for (int i = 0; i < BRICK_COLS; i++) {
        int half = i / 128, r = i % 128;
        int q = low[half * 64 + r % 64] >> r / 64 * 4 & 15;
        code[i] = (uint8_t)(q | (high[half * 32 + r % 32] >> r / 32 * 2 & 3) << 4);
    }
}

/* ---- places --------------------------------------------------------------------------------- */

/* Codes of strip `t` of row r. Bits are or'ed into words that were zero. */
static void put_strip(enum dtype type, const uint8_t code[QK], int r, int t, uint32_t *low,
                      uint32_t *high)
{
    int h = r / 8;
    for (int c = 0; c < QK; c++) {
        int s = c / 16, q = c % 16 / 4, j = c % 4, lane = r % 8 * 4 + q;
        int at = 8 * (j / 2) + 16 * (j % 2); /* of the byte */
        uint32_t v = code[c];
        if (brick_eight_bits(type)) {
            low[(t * 32 + lane) * 4 + 2 * h + s] |= v << at;
            continue;
        }
        low[(t / 2 * 32 + lane) * 4 + 2 * (t % 2) + h] |= (v & 15) << (at + 4 * s);
        if (type == DTYPE_Q6_K)
            high[(t / 4 * 32 + lane) * 4 + t % 4] |= v >> 4 << (at + 2 * (2 * h + s));
        else if (high)
            high[lane * 4 + t / 2] |= v >> 4 << (at + 4 * (t % 2) + 2 * h + s);
    }
}

/* The scale of block `i` of a row and the blocks that share it. What is too small to divide by is
 * nothing, its codes included. */
static void put_f8_scale(const uint8_t from[4], int i, uint8_t code[QK], char *to)
{
    float scale;
    memcpy(&scale, from, sizeof scale);
    if (fabsf(scale) < 1e-30f) {
        scale = 0;
        memset(code, 0, QK);
    }
    if (i % (BRICK_SCALED / QK) == 0)
        memcpy(to + i * QK / BRICK_SCALED * 4, &scale, sizeof scale);
}

/* A row of one brick: up to eight blocks of 32, or one of 256. */
static void put_brick(enum dtype type, const uint8_t *from, int blocks, int r, char *brick)
{
    uint32_t *low = (uint32_t *)(void *)brick, *high = NULL;
    char *scales = brick + brick_low((int)type) + brick_high((int)type);
    uint8_t code[BRICK_COLS];
    if (brick_high((int)type))
        high = (uint32_t *)(void *)(brick + brick_low((int)type));
    if (brick_six_bits(type)) {
        codes_six_bits(type, from, code);
        memcpy(scales + 16 * r, from, 16);
    } else if (type == DTYPE_Q6_K) {
        codes_q6_k(from, code);
        memcpy(scales + 16 * r, from + 192, 16);
        memcpy(scales + 256 + 2 * r, from + 208, 2);
    } else {
        for (int i = 0; i < blocks; i++) {
            uint8_t scale[4];
            take_block(type, from + i * dtype_block_bytes(type), code + i * QK, scale);
            if (type == DTYPE_F8) {
                put_f8_scale(scale, i, code + i * QK, scales + 8 * r);
                continue;
            }
            memcpy(scales + 16 * r + 2 * i, scale, 2);
            if (type == DTYPE_Q4_1 || type == DTYPE_Q5_1)
                memcpy(scales + 256 + 16 * r + 2 * i, scale + 2, 2);
        }
    }
    for (int t = 0; t < blocks; t++)
        put_strip(type, code + t * QK, r, t, low, high);
}

void bricks_put_row(enum dtype t, const void *row, int32_t cols, int32_t r, void *to)
{
    int each = BRICK_COLS / dtype_block(t) * dtype_block_bytes(t);
    for (int b = 0; b < bricks_across(cols); b++) {
        int left = (cols - b * BRICK_COLS) / QK;
        put_brick(t, (const uint8_t *)row + (int64_t)b * each, left < BLOCKS ? left : BLOCKS, r,
                  (char *)to + (int64_t)b * brick_bytes((int)t));
    }
}
