/* SPDX-License-Identifier: Apache-2.0 */
/* lanes.h - the canonical order of arithmetic on the CPU.
 *
 * Floating-point sums depend on their order. whet fixes one order for narrow steps, so that a
 * kernel built for another instruction set, with another unroll or thread split, can still give
 * the same bits as the eager kernel - and a token the same text whoever shares its step:
 *
 *   dot      16 lanes; acc[l] = fma(w[16 i + l], x[16 i + l], acc[l]) for i = 0, 1, ...;
 *            a tail shorter than 16 fills lanes 0.. ; then lanes are folded 8, 4, 2, 1:
 *            acc[l] += acc[l + 8] for l < 8, and so on. w is the stored weight converted to
 *            float exactly as dequant_row() does (d q, d q + m: one rounding each).
 *   rmsnorm  square-sum as dot(x, x); r = 1 / sqrtf(sum / n + eps); n[i] = (x[i] * r) * gain[i]
 *   softmax  scores = dot * scale; m = max; e = lane_exp(s - m); sum over positions in 16 lanes
 *            (position j into lane j % 16) folded as above; a = sum_j e_j v_j by fma in rising j,
 *            then a * (1 / sum)
 *   silu     g / (1 + lane_exp(-g)), times up
 *   rope     (a c - b s, b c + a s) as fma(a, c, -(b * s)) and fma(b, c, a * s)
 *
 * Everything here is plain C that a compiler vectorizes 4, 8 or 16 wide with the same result, given
 * -ffp-contract=off and no -ffast-math.
 */
#ifndef WHET_KERNELS_CPU_LIB_LANES_H
#define WHET_KERNELS_CPU_LIB_LANES_H

#include <stdint.h>

enum { LANES = 16 };

/* Without the instruction, a fused multiply-add is a call of 20 times the time. Where LANES_APART
 * is defined it rounds twice instead, as the eager kernels of such a processor do: the canonical
 * order with other bits. */
static inline float lane_fma(float a, float b, float c)
{
#if defined(LANES_APART) && defined(__x86_64__) && !defined(__FMA__)
    return a * b + c;
#else
    return __builtin_fmaf(a, b, c);
#endif
}

/* Folds 16 lanes into one float: 8, 4, 2, 1. */
static inline float lane_fold(const float acc[LANES])
{
    float a[8];
    for (int l = 0; l < 8; l++)
        a[l] = acc[l] + acc[l + 8];
    for (int l = 0; l < 4; l++)
        a[l] += a[l + 4];
    a[0] += a[2];
    a[1] += a[3];
    return a[0] + a[1];
}

/* acc[l] += w . x over n floats (n any). */
static inline void lane_dot_add(float acc[restrict LANES], const float *restrict w,
                                const float *restrict x, int n)
{
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            acc[l] = lane_fma(w[i + l], x[i + l], acc[l]);
    for (int l = 0; l < LANES && i < n; i++, l++)
        acc[l] = lane_fma(w[i], x[i], acc[l]);
}

static inline float lane_dot(const float *restrict w, const float *restrict x, int n)
{
    float acc[LANES] = {0};
    lane_dot_add(acc, w, x, n);
    return lane_fold(acc);
}

/* out = rmsnorm(x) * gain, n floats. */
static inline void lane_rmsnorm(float *restrict out, const float *restrict x,
                                const float *restrict gain, int n, float eps)
{
    float acc[LANES] = {0};
    lane_dot_add(acc, x, x, n);
    float r = 1.0f / __builtin_sqrtf(lane_fold(acc) / (float)n + eps);
    for (int i = 0; i < n; i++)
        out[i] = (x[i] * r) * gain[i];
}

/* e^x for any float, about 1 ulp: 2^k times a degree-6 polynomial on [-ln2/2, ln2/2] (coefficients
 * of the Taylor series; Cody-Waite reduction). Underflows to 0 below -87.3, saturates above 88.7.
 */
static inline float lane_exp(float x)
{
    float c = x > -87.3f ? (x < 88.7f ? x : 88.7f) : -87.3f;  /* NaN: -87.3 */
    float t = lane_fma(c, 1.44269504088896341f, 12582912.0f); /* 1.5 * 2^23: rounds to integer */
    float k = t - 12582912.0f;
    float r = lane_fma(k, -0.693359375f, c);
    r = lane_fma(k, 2.12194440e-4f, r);
    float p = 1.0f / 720.0f;
    p = lane_fma(p, r, 1.0f / 120.0f);
    p = lane_fma(p, r, 1.0f / 24.0f);
    p = lane_fma(p, r, 1.0f / 6.0f);
    p = lane_fma(p, r, 0.5f);
    p = lane_fma(p, r, 1.0f);
    p = lane_fma(p, r, 1.0f);
    union {
        int32_t i;
        float f;
    } half, rest; /* 2^k in two factors, so that k = 128 does not overflow on the way */
    int32_t n = (int32_t)k, h = n >> 1;
    half.i = (h + 127) << 23;
    rest.i = (n - h + 127) << 23;
    float e = p * half.f * rest.f;
    return x < -87.3f ? 0.0f : (x == x ? e : x);
}

static inline float lane_silu_mul(float g, float u)
{
    return g / (1.0f + lane_exp(-g)) * u;
}

#endif
