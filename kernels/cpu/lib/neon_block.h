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

INLINE bytes16 block_less(bytes16 b, int n)
{
    return vsubq_s8(b, vdupq_n_s8((int8_t)n));
}

INLINE bytes16 block_fifth(bytes16 b, uint32_t bits)
{
    const uint8x16_t one = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u));
    uint8x16_t spread = vcombine_u8(vdup_n_u8((uint8_t)bits), vdup_n_u8((uint8_t)(bits >> 8)));
    return vorrq_s8(b, vreinterpretq_s8_u8(vandq_u8(vtstq_u8(spread, one), vdupq_n_u8(16))));
}

INLINE bytes16 block_look_up(bytes16 b, const int8_t *table)
{
    return vqtbl1q_s8(vld1q_s8(table), vreinterpretq_u8_s8(b));
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
