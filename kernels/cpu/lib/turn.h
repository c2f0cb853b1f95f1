/* SPDX-License-Identifier: Apache-2.0 */
/* turn.h - 16 rows of 16 floats turned around in registers: turn16(from, stride, to) does
 * to[16 i + lane] = from[lane * stride + i] for i, lane < 16.
 *
 * For whatever the compiler may use, in templates and in the engine; not where that is neither
 * AVX-512, AVX2 nor NEON. The includer has INLINE and UNROLLED, as isa.h does.
 */
#ifndef WHET_KERNELS_CPU_LIB_TURN_H
#define WHET_KERNELS_CPU_LIB_TURN_H

#include <stdint.h>

#if defined(__aarch64__)

#include <arm_neon.h>

/* to[16 i + lane] = lane i of row `lane`, for 4 rows of 4 numbers. */
INLINE void store_turned(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d, float *to)
{
    float64x2_t ab0 = vreinterpretq_f64_f32(vtrn1q_f32(a, b)); /* a0 b0 a2 b2 */
    float64x2_t ab1 = vreinterpretq_f64_f32(vtrn2q_f32(a, b)); /* a1 b1 a3 b3 */
    float64x2_t cd0 = vreinterpretq_f64_f32(vtrn1q_f32(c, d));
    float64x2_t cd1 = vreinterpretq_f64_f32(vtrn2q_f32(c, d));
    vst1q_f32(to, vreinterpretq_f32_f64(vtrn1q_f64(ab0, cd0)));
    vst1q_f32(to + 16, vreinterpretq_f32_f64(vtrn1q_f64(ab1, cd1)));
    vst1q_f32(to + 32, vreinterpretq_f32_f64(vtrn2q_f64(ab0, cd0)));
    vst1q_f32(to + 48, vreinterpretq_f32_f64(vtrn2q_f64(ab1, cd1)));
}

INLINE void turn16(const float *from, const int64_t stride, float *to)
{
    for (int i = 0; i < 16; i += 4)
        for (int lane = 0; lane < 16; lane += 4) {
            const float *row = from + lane * stride + i;
            store_turned(vld1q_f32(row), vld1q_f32(row + stride), vld1q_f32(row + 2 * stride),
                         vld1q_f32(row + 3 * stride), to + i * 16 + lane);
        }
}

#elif defined(__AVX512F__)

#include <immintrin.h>

INLINE void turn16(const float *from, const int64_t stride, float *to)
{
    __m512 a[16], b[16];
    UNROLLED
    for (int i = 0; i < 16; i++)
        a[i] = _mm512_loadu_ps(from + i * stride);
    UNROLLED
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    UNROLLED
    for (int i = 0; i < 16; i += 4) {
        UNROLLED
        for (int h = 0; h < 2; h++) {
            a[i + 2 * h] = _mm512_shuffle_ps(b[i + h], b[i + h + 2], 0x44);
            a[i + 2 * h + 1] = _mm512_shuffle_ps(b[i + h], b[i + h + 2], 0xee);
        }
    }
    UNROLLED
    for (int i = 0; i < 4; i++) { /* columns i, i + 4, i + 8, i + 12 of four rows each */
        __m512 c = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x88);
        __m512 d = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd);
        __m512 e = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0x88);
        __m512 f = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0xdd);
        _mm512_storeu_ps(to + i * 16, _mm512_shuffle_f32x4(c, e, 0x88));
        _mm512_storeu_ps(to + (i + 8) * 16, _mm512_shuffle_f32x4(c, e, 0xdd));
        _mm512_storeu_ps(to + (i + 4) * 16, _mm512_shuffle_f32x4(d, f, 0x88));
        _mm512_storeu_ps(to + (i + 12) * 16, _mm512_shuffle_f32x4(d, f, 0xdd));
    }
}

#elif defined(__AVX2__)

#include <immintrin.h>

/* The same, 8 by 8. */
INLINE void turn8(const float *from, const int64_t stride, float *to)
{
    __m256 a[8], b[8];
    UNROLLED
    for (int i = 0; i < 8; i++)
        a[i] = _mm256_loadu_ps(from + i * stride);
    UNROLLED
    for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
    UNROLLED
    for (int i = 0; i < 8; i += 4) {
        UNROLLED
        for (int h = 0; h < 2; h++) {
            a[i + 2 * h] = _mm256_shuffle_ps(b[i + h], b[i + h + 2], 0x44);
            a[i + 2 * h + 1] = _mm256_shuffle_ps(b[i + h], b[i + h + 2], 0xee);
        }
    }
    UNROLLED
    for (int i = 0; i < 4; i++) { /* columns i and i + 4 of four rows each */
        _mm256_storeu_ps(to + i * 16, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * 16, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    }
}

INLINE void turn16(const float *from, const int64_t stride, float *to)
{
    for (int i = 0; i < 16; i += 8)
        for (int lane = 0; lane < 16; lane += 8)
            turn8(from + lane * stride + i, stride, to + i * 16 + lane);
}

#endif

#endif
