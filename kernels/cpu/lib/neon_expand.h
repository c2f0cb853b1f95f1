/* SPDX-License-Identifier: Apache-2.0 */
/* neon_expand.h - panels of 16 rows as floats on NEON. Included by expand.h.
 *
 * Four rows are decoded side by side and transposed in registers, 4 x 4 numbers at a time.
 */
#ifndef WHET_KERNELS_CPU_LIB_NEON_EXPAND_H
#define WHET_KERNELS_CPU_LIB_NEON_EXPAND_H

/* to[k * PANEL + i] = row[i] lane k, for 4 rows of 4 numbers. */
INLINE void store_transposed(float *to, float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d)
{
    float64x2_t ab0 = vreinterpretq_f64_f32(vtrn1q_f32(a, b));
    float64x2_t ab1 = vreinterpretq_f64_f32(vtrn2q_f32(a, b));
    float64x2_t cd0 = vreinterpretq_f64_f32(vtrn1q_f32(c, d));
    float64x2_t cd1 = vreinterpretq_f64_f32(vtrn2q_f32(c, d));
    vst1q_f32(to, vreinterpretq_f32_f64(vtrn1q_f64(ab0, cd0)));
    vst1q_f32(to + PANEL, vreinterpretq_f32_f64(vtrn1q_f64(ab1, cd1)));
    vst1q_f32(to + 2 * PANEL, vreinterpretq_f32_f64(vtrn2q_f64(ab0, cd0)));
    vst1q_f32(to + 3 * PANEL, vreinterpretq_f32_f64(vtrn2q_f64(ab1, cd1)));
}

/* out[k][16] for the 32 columns of block b, from rows of the model: panels are for integers. */
INLINE void expand_floats(const int type, const int packed, const struct panel_source *s, int b,
                          float *out)
{
    (void)packed;
    for (int r = 0; r < PANEL; r += 4) {
        vf w[4][2];
        UNROLLED
        for (int i = 0; i < 4; i++) {
            int row = r + i < s->rows ? r + i : s->rows - 1;
            block_load(type, s->data + row * s->stride + (int64_t)b * BLOCK_BYTES(type), w[i]);
        }
        UNROLLED
        for (int k = 0; k < BLOCK / 4; k++)
            store_transposed(out + 4 * k * PANEL + r, w[0][k / 4].p[k % 4], w[1][k / 4].p[k % 4],
                             w[2][k / 4].p[k % 4], w[3][k / 4].p[k % 4]);
    }
}

#endif
