/* SPDX-License-Identifier: Apache-2.0 */
/* neon.h - a vector of 16 floats on 64-bit ARM: four registers. Included by isa.h.
 *
 * Every operation is the one of the portable code: NEON's multiply-add rounds once, as lane_fma()
 * does. Part p of a vf holds the lanes 4p .. 4p + 3, so the first two steps of the canonical fold
 * add whole registers.
 */
#ifndef WHET_KERNELS_CPU_LIB_NEON_H
#define WHET_KERNELS_CPU_LIB_NEON_H

typedef struct {
    float32x4_t p[4];
} vf;

INLINE vf vf_set(float f)
{
    vf v;
    UNROLLED
    for (int i = 0; i < 4; i++)
        v.p[i] = vdupq_n_f32(f);
    return v;
}
INLINE vf vf_zero(void)
{
    return vf_set(0.0f);
}
INLINE vf vf_load(const float *from)
{
    vf v;
    UNROLLED
    for (int i = 0; i < 4; i++)
        v.p[i] = vld1q_f32(from + 4 * i);
    return v;
}
INLINE void vf_store(float *to, vf v)
{
    vst1q_f32(to, v.p[0]);
    vst1q_f32(to + 4, v.p[1]);
    vst1q_f32(to + 8, v.p[2]);
    vst1q_f32(to + 12, v.p[3]);
}
INLINE vf vf_fma(vf a, vf b, vf c)
{
    vf v;
    UNROLLED
    for (int i = 0; i < 4; i++)
        v.p[i] = vfmaq_f32(c.p[i], a.p[i], b.p[i]);
    return v;
}
INLINE vf vf_mla(vf a, vf b, vf c)
{
    return vf_fma(a, b, c);
}
INLINE vf vf_mul(vf a, vf b)
{
    vf v;
    UNROLLED
    for (int i = 0; i < 4; i++)
        v.p[i] = vmulq_f32(a.p[i], b.p[i]);
    return v;
}
INLINE vf vf_add(vf a, vf b)
{
    vf v;
    UNROLLED
    for (int i = 0; i < 4; i++)
        v.p[i] = vaddq_f32(a.p[i], b.p[i]);
    return v;
}
INLINE vf vf_sub(vf a, vf b)
{
    vf v;
    UNROLLED
    for (int i = 0; i < 4; i++)
        v.p[i] = vsubq_f32(a.p[i], b.p[i]);
    return v;
}

/* Lanes 0..3 after the steps by 8 and by 4 of the canonical fold. */
INLINE float32x4_t vf_quarter(vf v)
{
    return vaddq_f32(vaddq_f32(v.p[0], v.p[2]), vaddq_f32(v.p[1], v.p[3]));
}
INLINE float vf_fold(vf v)
{
    float32x4_t a = vf_quarter(v);
    float32x2_t b = vadd_f32(vget_low_f32(a), vget_high_f32(a));
    return vget_lane_f32(b, 0) + vget_lane_f32(b, 1);
}

/* Four lanes of a vf. */
typedef float32x4_t vf4;

INLINE vf vf_join4(const vf4 q[4])
{
    return (vf){{q[0], q[1], q[2], q[3]}};
}

/* Lane i of the result is vf_fold(v[i]): quarters are transposed, and then added across. */
INLINE vf4 vf_fold4(const vf v[4])
{
    float32x4_t a = vf_quarter(v[0]), b = vf_quarter(v[1]);
    float32x4_t c = vf_quarter(v[2]), d = vf_quarter(v[3]);
    float64x2_t ab0 = vreinterpretq_f64_f32(vtrn1q_f32(a, b)); /* a0 b0 a2 b2 */
    float64x2_t ab1 = vreinterpretq_f64_f32(vtrn2q_f32(a, b)); /* a1 b1 a3 b3 */
    float64x2_t cd0 = vreinterpretq_f64_f32(vtrn1q_f32(c, d));
    float64x2_t cd1 = vreinterpretq_f64_f32(vtrn2q_f32(c, d));
    float32x4_t l0 = vreinterpretq_f32_f64(vtrn1q_f64(ab0, cd0));
    float32x4_t l2 = vreinterpretq_f32_f64(vtrn2q_f64(ab0, cd0));
    float32x4_t l1 = vreinterpretq_f32_f64(vtrn1q_f64(ab1, cd1));
    float32x4_t l3 = vreinterpretq_f32_f64(vtrn2q_f64(ab1, cd1));
    return vaddq_f32(vaddq_f32(l0, l2), vaddq_f32(l1, l3));
}

INLINE vf vf_fold16(const vf v[16])
{
    return (vf){{vf_fold4(v), vf_fold4(v + 4), vf_fold4(v + 8), vf_fold4(v + 12)}};
}

/* a where it is the larger, else b: what the portable code does with numbers that are none, too. */
INLINE vf vf_max(vf a, vf b)
{
    vf v;
    UNROLLED
    for (int i = 0; i < 4; i++)
        v.p[i] = vbslq_f32(vcgtq_f32(a.p[i], b.p[i]), a.p[i], b.p[i]);
    return v;
}
INLINE float vf_largest(vf v)
{
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(v.p[0], v.p[1]), vmaxq_f32(v.p[2], v.p[3])));
}

#endif
