/* SPDX-License-Identifier: Apache-2.0 */
/* tile.h - a register tile of a float matrix product: the inner loop of wide kernels without AMX.
 */
#ifndef WHET_KERNELS_CPU_LIB_TILE_H
#define WHET_KERNELS_CPU_LIB_TILE_H

#include "cpu/lib/isa.h"

/* c[r * ldc + 16 col + lane] (+)= sum_k a[r * lda + k] * b[col * col_step + k * k_step + lane] for
 * `rows` rows, `cols` vectors of 16 columns and k < n. `add`: c holds a sum already. rows, cols
 * and steps are constants where this is called; rows * cols + cols + 1 registers are in use. */
INLINE void tile_floats(const int rows, const int cols, int n, const float *a, const int64_t lda,
                        const float *b, const int64_t col_step, const int64_t k_step, float *c,
                        int64_t ldc, int add)
{
    vf acc[16][4];
    UNROLLED
    for (int r = 0; r < rows; r++) {
        UNROLLED
        for (int col = 0; col < cols; col++)
            acc[r][col] = vf_zero();
    }
    for (int k = 0; k < n; k++) {
        vf w[4];
        UNROLLED
        for (int col = 0; col < cols; col++)
            w[col] = vf_load(b + col * col_step + k * k_step);
        UNROLLED
        for (int r = 0; r < rows; r++) {
            vf one = vf_set(a[r * lda + k]);
            UNROLLED
            for (int col = 0; col < cols; col++)
                acc[r][col] = vf_mla(one, w[col], acc[r][col]);
        }
    }
    UNROLLED
    for (int r = 0; r < rows; r++) {
        UNROLLED
        for (int col = 0; col < cols; col++) {
            float *to = c + r * ldc + 16 * col;
            vf_store(to, add ? vf_add(vf_load(to), acc[r][col]) : acc[r][col]);
        }
    }
}

#endif
