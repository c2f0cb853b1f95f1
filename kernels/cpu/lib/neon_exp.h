/* SPDX-License-Identifier: Apache-2.0 */
/* neon_exp.h - lane_exp() and SiLU of lanes.h on NEON, bit for bit the same. Included by vexp.h. */
#ifndef WHET_KERNELS_CPU_LIB_NEON_EXP_H
#define WHET_KERNELS_CPU_LIB_NEON_EXP_H

/* One step of Horner's rule: p r + c. */
INLINE float32x4_t exp_step(float32x4_t p, float32x4_t r, float c)
{
    return vfmaq_f32(vdupq_n_f32(c), p, r);
}

INLINE float32x4_t exp4(float32x4_t x)
{
    const float32x4_t low = vdupq_n_f32(-87.3f), high = vdupq_n_f32(88.7f);
    const float32x4_t round = vdupq_n_f32(12582912.0f);
    /* comparisons with NaN are false, so it is clamped like lane_exp() does */
    float32x4_t c = vbslq_f32(vcltq_f32(x, high), x, high);
    c = vbslq_f32(vcgtq_f32(x, low), c, low);
    float32x4_t k = vsubq_f32(vfmaq_f32(round, c, vdupq_n_f32(1.44269504088896341f)), round);
    float32x4_t r = vfmaq_f32(c, k, vdupq_n_f32(-0.693359375f));
    r = vfmaq_f32(r, k, vdupq_n_f32(2.12194440e-4f));
    float32x4_t p = vdupq_n_f32(1.0f / 720.0f);
    p = exp_step(p, r, 1.0f / 120.0f);
    p = exp_step(p, r, 1.0f / 24.0f);
    p = exp_step(p, r, 1.0f / 6.0f);
    p = exp_step(p, r, 0.5f);
    p = exp_step(exp_step(p, r, 1.0f), r, 1.0f);
    const int32x4_t bias = vdupq_n_s32(127);
    int32x4_t n = vcvtq_s32_f32(k), h = vshrq_n_s32(n, 1);
    int32x4_t half = vshlq_n_s32(vaddq_s32(h, bias), 23);
    int32x4_t rest = vshlq_n_s32(vaddq_s32(vsubq_s32(n, h), bias), 23);
    float32x4_t e =
        vmulq_f32(vmulq_f32(p, vreinterpretq_f32_s32(half)), vreinterpretq_f32_s32(rest));
    e = vbslq_f32(vcltq_f32(x, low), vdupq_n_f32(0.0f), e);
    return vbslq_f32(vceqq_f32(x, x), e, x);
}

INLINE vf vf_exp(vf x)
{
    vf v;
    UNROLLED
    for (int i = 0; i < 4; i++)
        v.p[i] = exp4(x.p[i]);
    return v;
}

INLINE vf vf_silu_mul(vf g, vf u)
{
    const float32x4_t one = vdupq_n_f32(1.0f);
    vf v;
    UNROLLED
    for (int i = 0; i < 4; i++)
        v.p[i] = vmulq_f32(vdivq_f32(g.p[i], vaddq_f32(one, exp4(vnegq_f32(g.p[i])))), u.p[i]);
    return v;
}

#endif
