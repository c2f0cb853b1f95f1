/* SPDX-License-Identifier: Apache-2.0 */
/* vexp.h - lane_exp() and SiLU of lanes.h, 16 lanes at a time, bit for bit the same.
 *
 * Written out because compilers leave lane_exp() in a loop scalar: its selects guard a conversion
 * that could trap. Here both sides are computed and blended.
 */
#ifndef WHET_KERNELS_CPU_LIB_VEXP_H
#define WHET_KERNELS_CPU_LIB_VEXP_H

#include "cpu/lib/isa.h"

#if ISA >= ISA_NEON

#include "cpu/lib/neon_exp.h"

#elif ISA >= ISA_AVX512

INLINE vf vf_exp(vf x)
{
    const __m512 low = _mm512_set1_ps(-87.3f), high = _mm512_set1_ps(88.7f);
    const __m512 round = _mm512_set1_ps(12582912.0f), one = _mm512_set1_ps(1.0f);
    /* min and max return their second operand for NaN, so NaN is clamped like lane_exp() does */
    __m512 c = _mm512_max_ps(_mm512_min_ps(x, high), low);
    c = _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), c, low);
    __m512 k =
        _mm512_sub_ps(_mm512_fmadd_ps(c, _mm512_set1_ps(1.44269504088896341f), round), round);
    __m512 r = _mm512_fmadd_ps(k, _mm512_set1_ps(-0.693359375f), c);
    r = _mm512_fmadd_ps(k, _mm512_set1_ps(2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.0f / 720.0f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(_mm512_fmadd_ps(p, r, one), r, one);
    /* p is in [0.7, 1.42], so p 2^k rounds as the two factors of lane_exp() do: not at all, or
     * once where the result is subnormal, which the lower clamp excludes */
    __m512 e = _mm512_scalef_ps(p, k);
    e = _mm512_mask_mov_ps(e, _mm512_cmp_ps_mask(x, low, _CMP_LT_OQ), _mm512_setzero_ps());
    return _mm512_mask_mov_ps(e, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}

INLINE vf vf_silu_mul(vf g, vf u)
{
    __m512 e = vf_exp(_mm512_sub_ps(_mm512_setzero_ps(), g));
    return _mm512_mul_ps(_mm512_div_ps(g, _mm512_add_ps(_mm512_set1_ps(1.0f), e)), u);
}

#elif ISA == ISA_AVX2

INLINE __m256 exp8(__m256 x)
{
    const __m256 low = _mm256_set1_ps(-87.3f), high = _mm256_set1_ps(88.7f);
    const __m256 round = _mm256_set1_ps(12582912.0f), one = _mm256_set1_ps(1.0f);
    const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    __m256 c = _mm256_max_ps(_mm256_min_ps(x, high), low);
    c = _mm256_blendv_ps(c, low, nan);
    __m256 k =
        _mm256_sub_ps(_mm256_fmadd_ps(c, _mm256_set1_ps(1.44269504088896341f), round), round);
    __m256 r = _mm256_fmadd_ps(k, _mm256_set1_ps(-0.693359375f), c);
    r = _mm256_fmadd_ps(k, _mm256_set1_ps(2.12194440e-4f), r);
    __m256 p = _mm256_set1_ps(1.0f / 720.0f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(_mm256_fmadd_ps(p, r, one), r, one);
    const __m256i bias = _mm256_set1_epi32(127);
    __m256i n = _mm256_cvttps_epi32(k), h = _mm256_srai_epi32(n, 1);
    __m256i half = _mm256_slli_epi32(_mm256_add_epi32(h, bias), 23);
    __m256i rest = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(n, h), bias), 23);
    __m256 e =
        _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(half)), _mm256_castsi256_ps(rest));
    e = _mm256_andnot_ps(_mm256_cmp_ps(x, low, _CMP_LT_OQ), e);
    return _mm256_blendv_ps(e, x, nan);
}

INLINE vf vf_exp(vf x)
{
    return (vf){exp8(x.a), exp8(x.b)};
}

INLINE __m256 silu8(__m256 g, __m256 u)
{
    __m256 e = exp8(_mm256_sub_ps(_mm256_setzero_ps(), g));
    return _mm256_mul_ps(_mm256_div_ps(g, _mm256_add_ps(_mm256_set1_ps(1.0f), e)), u);
}

INLINE vf vf_silu_mul(vf g, vf u)
{
    return (vf){silu8(g.a, u.a), silu8(g.b, u.b)};
}

#else

INLINE vf vf_exp(vf x)
{
    for (int l = 0; l < LANES; l++)
        x.l[l] = lane_exp(x.l[l]);
    return x;
}

INLINE vf vf_silu_mul(vf g, vf u)
{
    for (int l = 0; l < LANES; l++)
        g.l[l] = lane_silu_mul(g.l[l], u.l[l]);
    return g;
}

#endif

#endif
