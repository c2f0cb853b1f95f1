/* SPDX-License-Identifier: Apache-2.0 */
/* amx.h - the tile unit: eight tiles of 16 rows x 64 bytes.
 *
 * A rank configures its tiles when it starts a run and releases them at the end, so that threads
 * between runs carry no tile state. Permission to use tiles is the host's to ask for
 * (kernels/isa.h).
 */
#ifndef WHET_KERNELS_CPU_LIB_AMX_H
#define WHET_KERNELS_CPU_LIB_AMX_H

#include "cpu/lib/isa.h"

/* All tiles full size: palette 1, 16 rows of 64 bytes. Static, because compilers pass only the
 * first bytes of a configuration to the instruction and may drop stores to the rest. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} amx_shape = {.palette = 1,
               .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
               .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

INLINE void amx_begin(void)
{
    _tile_loadconfig(&amx_shape);
}

INLINE void amx_end(void)
{
    _tile_release();
}

/* c[16][16] = x (16 tokens x 32 k, `xparts` bf16 tiles) times w (32 k x 16 rows, `wparts` tiles).
 * Small products first; parts whose product is below 2^-24 of the whole are left out. */
INLINE void amx_product(const int wparts, const int xparts, const uint8_t *w, const uint8_t *x,
                        float *c)
{
    _tile_zero(0);
    if (xparts > 2)
        _tile_loadd(3, x + 2048, 64);
    if (xparts > 1)
        _tile_loadd(2, x + 1024, 64);
    _tile_loadd(1, x, 64);
    if (wparts > 2) {
        _tile_loadd(6, w + 2048, 64);
        _tile_dpbf16ps(0, 1, 6);
    }
    if (wparts > 1) {
        _tile_loadd(5, w + 1024, 64);
        if (xparts > 1)
            _tile_dpbf16ps(0, 2, 5);
    }
    _tile_loadd(4, w, 64);
    if (xparts > 2)
        _tile_dpbf16ps(0, 3, 4);
    if (wparts > 1)
        _tile_dpbf16ps(0, 1, 5);
    if (xparts > 1)
        _tile_dpbf16ps(0, 2, 4);
    _tile_dpbf16ps(0, 1, 4);
    _tile_stored(0, c, 64);
}

/* The same for two panels of one-part weights: each part of x is loaded once for both, and two
 * chains of products hide each other's latency. */
INLINE void amx_product2(const int xparts, const uint8_t *w, const uint8_t *w2, const uint8_t *x,
                         float *c, float *c2)
{
    _tile_loadd(4, w, 64);
    _tile_loadd(5, w2, 64);
    _tile_zero(0);
    _tile_zero(7);
    if (xparts > 2) {
        _tile_loadd(3, x + 2048, 64);
        _tile_dpbf16ps(0, 3, 4);
        _tile_dpbf16ps(7, 3, 5);
    }
    if (xparts > 1) {
        _tile_loadd(2, x + 1024, 64);
        _tile_dpbf16ps(0, 2, 4);
        _tile_dpbf16ps(7, 2, 5);
    }
    _tile_loadd(1, x, 64);
    _tile_dpbf16ps(0, 1, 4);
    _tile_dpbf16ps(7, 1, 5);
    _tile_stored(0, c, 64);
    _tile_stored(7, c2, 64);
}

#endif
