/* SPDX-License-Identifier: Apache-2.0 */
/* neon_block.h - stored weights as floats on NEON. Included by block.h, which says what they mean.
 *
 * Small integers become floats by two widenings and a conversion, four at a time.
 */
#ifndef WHET_KERNELS_CPU_LIB_NEON_BLOCK_H
#define WHET_KERNELS_CPU_LIB_NEON_BLOCK_H

/* 16 signed bytes as floats. */
INLINE vf block_ints(int8x16_t b)
{
    int16x8_t low = vmovl_s8(vget_low_s8(b)), high = vmovl_high_s8(b);
    return (vf){{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
                 vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                 vcvtq_f32_s32(vmovl_high_s16(high))}};
}

/* 16 numbers of 16 bits from p on, which has no alignment. */
INLINE vf block_half16(const uint8_t *p)
{
    vf v;
    UNROLLED
    for (int i = 0; i < 4; i++)
        v.p[i] = vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p + 8 * i)));
    return v;
}

INLINE vf block_brain16(const uint8_t *p)
{
    vf v;
    UNROLLED
    for (int i = 0; i < 4; i++)
        v.p[i] = vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p + 8 * i)), 16));
    return v;
}

INLINE vf block_float16(const uint8_t *p)
{
    vf v;
    UNROLLED
    for (int i = 0; i < 4; i++)
        v.p[i] = vreinterpretq_f32_u8(vld1q_u8(p + 16 * i));
    return v;
}

INLINE void block_load_scaled(const int type, const uint8_t *p, const float *scale, vf w[2])
{
    if (type == DTYPE_F32) {
        w[0] = block_float16(p);
        w[1] = block_float16(p + 64);
    } else if (type == DTYPE_F16) {
        w[0] = block_half16(p);
        w[1] = block_half16(p + 32);
    } else if (type == DTYPE_BF16) {
        w[0] = block_brain16(p);
        w[1] = block_brain16(p + 32);
    } else if (type == DTYPE_Q8_0) {
        vf d = vf_set(scale[0]);
        w[0] = vf_mul(d, block_ints(vreinterpretq_s8_u8(vld1q_u8(p + 2))));
        w[1] = vf_mul(d, block_ints(vreinterpretq_s8_u8(vld1q_u8(p + 18))));
    } else {
        uint8x16_t q = vld1q_u8(p + (type == DTYPE_Q4_1 ? 4 : 2));
        int8x16_t a = vreinterpretq_s8_u8(vandq_u8(q, vdupq_n_u8(15)));
        int8x16_t b = vreinterpretq_s8_u8(vshrq_n_u8(q, 4));
        vf d = vf_set(scale[0]);
        if (type == DTYPE_Q4_1) {
            vf m = vf_set(scale[1]);
            w[0] = vf_fma(d, block_ints(a), m);
            w[1] = vf_fma(d, block_ints(b), m);
        } else {
            const int8x16_t eight = vdupq_n_s8(8);
            w[0] = vf_mul(d, block_ints(vsubq_s8(a, eight)));
            w[1] = vf_mul(d, block_ints(vsubq_s8(b, eight)));
        }
    }
}

#endif
