/* SPDX-License-Identifier: Apache-2.0 */
/* panel_pack.h - weights repacked in panels of 16 rows: their layout, and who makes it.
 *
 * Packed form of a matrix [N, K], panel after panel of 16 rows (zero rows fill the last one). A
 * panel is
 *
 *   quants [K/32][PANEL_QUANTS]   one 64-byte vector holds, for each of the 16 rows, the 4 bytes
 *                                 that are dword j of the row's block: 8 of Q8_0; of others 4 of
 *                                 nibbles, low ones first, or 2 of pairs of bits (Q2_K, Q3_K),
 *                                 code k of each half in bits k % 16 / 4 * 2. Then what codes have
 *                                 above those: a vector of single bits (Q5_0, Q5_1, Q5_K, Q3_K),
 *                                 code k in bit k / 4; 2 of pairs (Q6_K), as before
 *   scales [K/32][16] f16 d, and for Q4_1 and Q5_1 [16] f16 m after each d; [16] bytes of MXFP4; of
 *          super-blocks [K/256] { [16] f16 d, and but for Q6_K [16] f16 dmin; [8][2][16] bytes }: a
 * block's scales and minima, or those of its halves
 *
 * The bytes are those of the model's own format, but for six-bit scales, which have eight.
 */
#ifndef WHET_KERNELS_CPU_LIB_PANEL_PACK_H
#define WHET_KERNELS_CPU_LIB_PANEL_PACK_H

#include "cpu/lib/shape.h"
#include "cpu/lib/super.h"

enum { PANEL = 16 };

/* Bytes of a block of 16 rows: its quants, its scales (of a super-block's eight the mean). */
#define PANEL_QUANTS(t) (64 * (LOW_BITS(t) + HIGH_BITS(t)))
#define PANEL_HEAD(t) (PANEL * (HAS_MINIMUM(t) ? 2 : 1) * PANEL_NUMBER(t))
/* Bytes of one number there. */
#define PANEL_NUMBER(t) ((t) == DTYPE_MXFP4 ? 1 : 2)
#define PANEL_SCALES(t) \
    (SUPER_TYPE(t) ? PANEL_HEAD(t) / 8 + PANEL * SUPER_FACTORS(t) : PANEL_HEAD(t))
#define PANEL_LAYOUT "panel16"

INLINE int64_t panel_bytes(int type, int k)
{
    return ((int64_t)(k / BLOCK) * (PANEL_QUANTS(type) + PANEL_SCALES(type)) + 63) & ~(int64_t)63;
}

static inline int64_t panel_packed_bytes(const struct weight *w)
{
    return (w->rows + PANEL - 1) / PANEL * panel_bytes(w->type, w->cols);
}

/* The numbers of block b of a panel, d and what is after it, for all 16 rows. */
INLINE const uint8_t *panel_head(const int type, const uint8_t *panel, int blocks, int b)
{
    const int together = BLOCKS_TOGETHER(type);
    return panel + (int64_t)blocks * PANEL_QUANTS(type) +
           b / together * together * PANEL_SCALES(type);
}

/* The bytes of block b of a super-block type: 16 scales, or those of each half, then minima. */
INLINE const uint8_t *panel_factors(const int type, const uint8_t *panel, int blocks, int b)
{
    return panel_head(type, panel, blocks, b) + PANEL_HEAD(type) +
           b % 8 * PANEL * SUPER_FACTORS(type);
}

/* The codes of block j of the super-block at p, as a lane of the quants at q. */
INLINE void panel_pack_codes(const int type, const uint8_t *p, int j, uint8_t *q)
{
    uint32_t word[6] = {0};
    for (int i = 0; i < 8; i++) {
        const uint32_t quad = super_quad(type, p, j, i), low = quad & SUPER_MASK(LOW_BITS(type));
        const uint32_t high = quad >> LOW_BITS(type) & SUPER_MASK(HIGH_BITS(type));
        if (LOW_BITS(type) == 2)
            word[i / 4] |= low << i % 4 * 2;
        else
            word[i % 4] |= low << i / 4 * 4;
        if (HIGH_BITS(type) == 2)
            word[LOW_BITS(type) + i / 4] |= high << i % 4 * 2;
        else
            word[LOW_BITS(type)] |= high << i;
    }
    for (int i = 0; i < PANEL_QUANTS(type) / 64; i++)
        __builtin_memcpy(q + 64 * i, word + i, 4);
}

/* Block b of a row in super-blocks, of which p is its own, as lane `lane` of the panel. */
INLINE void panel_pack_super(const int type, const uint8_t *p, int blocks, int b, uint8_t *panel,
                             int lane)
{
    const int j = b % BLOCKS_TOGETHER(type), halves = HALVES(type);
    uint8_t *factor = (uint8_t *)panel_factors(type, panel, blocks, b) + lane, of[SUPER_NUMBERS];
    uint8_t *head = (uint8_t *)panel_head(type, panel, blocks, b) + 2 * lane;
    super_factors(type, p, of);
    for (int h = 0; h < halves; h++) {
        factor[h * PANEL] = of[SUPER_SCALE(type, j, h)];
        if (HAS_MINIMUM(type))
            factor[(halves + h) * PANEL] = of[SUPER_MINIMUM(type, j, h)];
    }
    __builtin_memcpy(head, p + SUPER_D(type), 2);
    if (HAS_MINIMUM(type))
        __builtin_memcpy(head + 2 * PANEL, p + SUPER_D(type) + 2, 2);
    panel_pack_codes(type, p, j, panel + (int64_t)b * PANEL_QUANTS(type) + 4 * lane);
}

/* The same of a block at p of the formats that are stored in such. */
INLINE void panel_pack_block(const int type, const uint8_t *p, int blocks, int b, uint8_t *panel,
                             int lane)
{
    const int number = PANEL_NUMBER(type), words = LOW_BITS(type);
    uint8_t *q = panel + (int64_t)b * PANEL_QUANTS(type) + 4 * lane;
    uint8_t *head = (uint8_t *)panel_head(type, panel, blocks, b) + number * lane;
    for (int j = 0; j < words; j++)
        __builtin_memcpy(q + 64 * j, p + BLOCK_CODES(type) + 4 * j, 4);
    __builtin_memcpy(head, p, (size_t)number);
    if (HAS_MINIMUM(type))
        __builtin_memcpy(head + 2 * PANEL, p + 2, 2);
    if (HIGH_BITS(type)) {
        const uint32_t fifth = load_u32(p + BLOCK_HEAD(type));
        uint32_t word = 0;
        for (int i = 0; i < 8; i++) /* four bits become the lowest ones of four bytes */
            word |= ((fifth >> 4 * i & 15) * 0x00204081u & 0x01010101u) << i;
        __builtin_memcpy(q + 64 * words, &word, 4);
    }
}

/* Copies row `row` of w into its lane, or clears lane `row` if the matrix ends before it. */
INLINE void panel_pack_row(const int type, const struct weight *w, uint8_t *packed, int row)
{
    static const uint8_t zero[DTYPE_BYTES(DTYPE_Q6_K)];
    const int blocks = w->cols / BLOCK;
    uint8_t *panel = packed + row / PANEL * panel_bytes(type, w->cols);
    const uint8_t *from = (const uint8_t *)w->data + row * ROW_BYTES(type, w->cols);
    for (int b = 0; b < blocks; b++) {
        const uint8_t *p = row < w->rows ? row_at(type, from, b) : zero;
        if (SUPER_TYPE(type))
            panel_pack_super(type, p, blocks, b, panel, row % PANEL);
        else
            panel_pack_block(type, p, blocks, b, panel, row % PANEL);
    }
}

static inline void panel_pack(const struct weight *w, void *packed, int32_t row0, int32_t row1)
{
    int end = row1 == w->rows ? (row1 + PANEL - 1) / PANEL * PANEL : row1;
    for (int row = row0; row < end; row++) {
        if (w->type == WTYPE)
            panel_pack_row(WTYPE, w, packed, row);
        else if (w->type == WTYPE_2)
            panel_pack_row(WTYPE_2, w, packed, row);
        else
            panel_pack_row(WTYPE_3, w, packed, row);
    }
}

#endif
