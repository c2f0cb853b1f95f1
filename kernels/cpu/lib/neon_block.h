/* SPDX-License-Identifier: Apache-2.0 */
/* neon_block.h - 16 stored weights as floats on NEON. Included by block.h, which says what the
 * functions do.
 *
 * Small integers become floats by two widenings and a conversion, four at a time.
 */
#ifndef WHET_KERNELS_CPU_LIB_NEON_BLOCK_H
#define WHET_KERNELS_CPU_LIB_NEON_BLOCK_H

typedef int8x16_t bytes16;

INLINE bytes16 block_bytes(const uint8_t *p)
{
    return vreinterpretq_s8_u8(vld1q_u8(p));
}

INLINE bytes16 block_low(bytes16 b)
{
    return vandq_s8(b, vdupq_n_s8(15));
}

INLINE bytes16 block_high(bytes16 b)
{
    return vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(b), 4));
}

INLINE bytes16 block_less8(bytes16 b)
{
    return vsubq_s8(b, vdupq_n_s8(8));
}

INLINE vf block_ints(bytes16 b)
{
    int16x8_t low = vmovl_s8(vget_low_s8(b)), high = vmovl_high_s8(b);
    return (vf){{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
                 vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                 vcvtq_f32_s32(vmovl_high_s16(high))}};
}

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

#endif
