/* SPDX-License-Identifier: Apache-2.0 */
/* isa.h - instruction sets as numbers, and a vector of 16 floats on each of them.
 *
 * A template is compiled for exactly one ISA value (knob ISA, flags in kernels/templates.def), so
 * the choice is made here by the preprocessor and kernels read the same on all of them. vf holds
 * the 16 lanes of the canonical order (lanes.h): one register on AVX-512, two on AVX2, four on NEON
 * (neon.h), an array otherwise. Every operation rounds as the scalar code of lanes.h does, so the
 * bits agree; only vf_mla() may round once or twice, whichever is fast, for code that promises no
 * bits.
 */
#ifndef WHET_KERNELS_CPU_LIB_ISA_H
#define WHET_KERNELS_CPU_LIB_ISA_H

#include <stddef.h>
#include <stdint.h>

#include "cpu/lib/lanes.h"

#define ISA_PORTABLE 0
#define ISA_AVX2 1   /* AVX2, FMA, F16C */
#define ISA_AVX512 2 /* AVX-512 F, BW, DQ, VL */
#define ISA_VNNI 3   /* and VNNI */
#define ISA_AMX 4    /* and AMX tiles of int8 and bf16 */
/* 64-bit ARM. An #if that asks for at least some level of x86 comes after one that asks for NEON.
 */
#define ISA_NEON 5    /* what every such processor has */
#define ISA_DOTPROD 6 /* and products of four int8 (ARMv8.2 DotProd) */
#define ISA_I8MM 7    /* and of 2x8 matrices of int8 (ARMv8.6 I8MM) */

#ifndef ISA
#define ISA ISA_PORTABLE
#endif
#if ISA >= ISA_NEON
#include <arm_neon.h>
#elif ISA >= ISA_AVX2
#include <immintrin.h>
#endif

/* Every helper of a kernel is INLINE. Constants then reach it, and no compiler judges it by itself:
 * gcc 12 takes a function for one without side effects when ivopts has rewritten the address that
 * its only stores go through, and drops the calls. */
#define INLINE static inline __attribute__((always_inline))

/* UNROLLED before a loop with constant bounds: arrays indexed by it then live in registers. The
 * portable vf is an array in memory anyway, and unrolling it only costs the compiler seconds. */
#if ISA == ISA_PORTABLE
#define UNROLLED
#elif defined(__clang__)
#define UNROLLED _Pragma("unroll")
#else
#define UNROLLED _Pragma("GCC unroll 64")
#endif

/* Into which cache __builtin_prefetch() brings pages of keys and values: 3 is the first level, 2
 * the second. A line on its way to the first holds one of its few buffers until it is there, and
 * that bounds a core that waits for memory. ARM was not measured
 * (docs/lab/2026-11-30-cpu-eager-memory.md). */
#if ISA >= ISA_AVX2 && ISA < ISA_NEON
#define PAGES_INTO 2
#else
#define PAGES_INTO 3
#endif

/* Loads stay behind this. gcc would otherwise bring those of all steps of an unrolled loop forward,
 * or keep what one step loaded for the next, and spill what it has no registers for. */
#define NO_SOONER() __asm__ volatile("" ::: "memory")

#if ISA >= ISA_NEON

#include "cpu/lib/neon.h"

#elif ISA >= ISA_AVX512

typedef __m512 vf;

INLINE vf vf_zero(void)
{
    return _mm512_setzero_ps();
}
INLINE vf vf_set(float f)
{
    return _mm512_set1_ps(f);
}
INLINE vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
INLINE void vf_store(float *p, vf v)
{
    _mm512_storeu_ps(p, v);
}
INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
INLINE vf vf_mla(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
INLINE vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
INLINE vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
INLINE vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
INLINE float vf_fold(vf v)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* Lane i of the result is vf_fold(v[i]); the 16 folds share their shuffles. */
INLINE vf vf_fold16(const vf v[16])
{
    vf a[8], b[4], c[2];
    UNROLLED
    for (int i = 0; i < 8; i++) /* 8 lanes of v[i], 8 lanes of v[i + 8] */
        a[i] = vf_add(_mm512_shuffle_f32x4(v[i], v[i + 8], 0x44),
                      _mm512_shuffle_f32x4(v[i], v[i + 8], 0xee));
    UNROLLED
    for (int i = 0; i < 4; i++) /* 4 lanes each of v[i], v[i + 8], v[i + 4], v[i + 12] */
        b[i] = vf_add(_mm512_shuffle_f32x4(a[i], a[i + 4], 0x88),
                      _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd));
    UNROLLED
    for (int i = 0; i < 2; i++)
        c[i] = vf_add(_mm512_shuffle_ps(b[i], b[i + 2], 0x44),
                      _mm512_shuffle_ps(b[i], b[i + 2], 0xee));
    vf d = vf_add(_mm512_shuffle_ps(c[0], c[1], 0x88), _mm512_shuffle_ps(c[0], c[1], 0xdd));
    const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
    return _mm512_permutexvar_ps(order, d);
}
INLINE vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
INLINE float vf_largest(vf v)
{
    return _mm512_reduce_max_ps(v);
}

#elif ISA == ISA_AVX2

typedef struct {
    __m256 a, b;
} vf;

INLINE vf vf_zero(void)
{
    return (vf){_mm256_setzero_ps(), _mm256_setzero_ps()};
}
INLINE vf vf_set(float f)
{
    return (vf){_mm256_set1_ps(f), _mm256_set1_ps(f)};
}
INLINE vf vf_load(const float *p)
{
    return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
INLINE void vf_store(float *p, vf v)
{
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}
INLINE vf vf_fma(vf a, vf b, vf c)
{
    return (vf){_mm256_fmadd_ps(a.a, b.a, c.a), _mm256_fmadd_ps(a.b, b.b, c.b)};
}
INLINE vf vf_mla(vf a, vf b, vf c)
{
    return vf_fma(a, b, c);
}
INLINE vf vf_mul(vf a, vf b)
{
    return (vf){_mm256_mul_ps(a.a, b.a), _mm256_mul_ps(a.b, b.b)};
}
INLINE vf vf_add(vf a, vf b)
{
    return (vf){_mm256_add_ps(a.a, b.a), _mm256_add_ps(a.b, b.b)};
}
INLINE vf vf_sub(vf a, vf b)
{
    return (vf){_mm256_sub_ps(a.a, b.a), _mm256_sub_ps(a.b, b.b)};
}
INLINE float vf_fold(vf v)
{
    __m256 a = _mm256_add_ps(v.a, v.b);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* Four lanes of a vf. */
typedef __m128 vf4;

INLINE vf vf_join4(const vf4 q[4])
{
    return (vf){_mm256_set_m128(q[1], q[0]), _mm256_set_m128(q[3], q[2])};
}

/* Lane i of the result is vf_fold(v[i]). */
INLINE vf4 vf_fold4(const vf v[4])
{
    __m256 a[4], b[2];
    UNROLLED
    for (int i = 0; i < 4; i++)
        a[i] = _mm256_add_ps(v[i].a, v[i].b);
    UNROLLED
    for (int i = 0; i < 2; i++) /* 4 lanes each of v[i], v[i + 2] */
        b[i] = _mm256_add_ps(_mm256_permute2f128_ps(a[i], a[i + 2], 0x20),
                             _mm256_permute2f128_ps(a[i], a[i + 2], 0x31));
    __m256 c =
        _mm256_add_ps(_mm256_shuffle_ps(b[0], b[1], 0x44), _mm256_shuffle_ps(b[0], b[1], 0xee));
    c = _mm256_add_ps(c, _mm256_movehdup_ps(c)); /* lanes 0 and 2 of both halves */
    return _mm_shuffle_ps(_mm256_castps256_ps128(c), _mm256_extractf128_ps(c, 1), 0x88);
}

INLINE vf vf_fold16(const vf v[16])
{
    const vf4 q[4] = {vf_fold4(v), vf_fold4(v + 4), vf_fold4(v + 8), vf_fold4(v + 12)};
    return vf_join4(q);
}
INLINE vf vf_max(vf a, vf b)
{
    return (vf){_mm256_max_ps(a.a, b.a), _mm256_max_ps(a.b, b.b)};
}
INLINE float vf_largest(vf v)
{
    __m256 a = _mm256_max_ps(v.a, v.b);
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

#else

typedef struct {
    float l[LANES];
} vf;

INLINE vf vf_set(float f)
{
    vf v;
    for (int l = 0; l < LANES; l++)
        v.l[l] = f;
    return v;
}
INLINE vf vf_zero(void)
{
    return vf_set(0.0f);
}
INLINE vf vf_load(const float *p)
{
    vf v;
    for (int l = 0; l < LANES; l++)
        v.l[l] = p[l];
    return v;
}
INLINE void vf_store(float *p, vf v)
{
    for (int l = 0; l < LANES; l++)
        p[l] = v.l[l];
}
INLINE vf vf_fma(vf a, vf b, vf c)
{
    for (int l = 0; l < LANES; l++)
        c.l[l] = lane_fma(a.l[l], b.l[l], c.l[l]);
    return c;
}
INLINE vf vf_mla(vf a, vf b, vf c)
{
    for (int l = 0; l < LANES; l++)
        c.l[l] += a.l[l] * b.l[l];
    return c;
}
INLINE vf vf_mul(vf a, vf b)
{
    for (int l = 0; l < LANES; l++)
        a.l[l] *= b.l[l];
    return a;
}
INLINE vf vf_add(vf a, vf b)
{
    for (int l = 0; l < LANES; l++)
        a.l[l] += b.l[l];
    return a;
}
INLINE vf vf_sub(vf a, vf b)
{
    for (int l = 0; l < LANES; l++)
        a.l[l] -= b.l[l];
    return a;
}
INLINE float vf_fold(vf v)
{
    return lane_fold(v.l);
}
INLINE vf vf_fold16(const vf v[16])
{
    vf f;
    for (int i = 0; i < 16; i++)
        f.l[i] = vf_fold(v[i]);
    return f;
}
INLINE vf vf_max(vf a, vf b)
{
    for (int l = 0; l < LANES; l++)
        a.l[l] = a.l[l] > b.l[l] ? a.l[l] : b.l[l];
    return a;
}
INLINE float vf_largest(vf v)
{
    float m = v.l[0];
    for (int l = 1; l < LANES; l++)
        m = v.l[l] > m ? v.l[l] : m;
    return m;
}

#endif

#endif
