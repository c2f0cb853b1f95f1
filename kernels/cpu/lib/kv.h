/* SPDX-License-Identifier: Apache-2.0 */
/* kv.h - an element of keys and values: a float, or with KV_BF16 the upper half of one.
 *
 * The host passes -DKV_BF16=1 where it keeps them so (engine.kv_dtype); without it they are floats.
 * Who writes rounds to nearest even, as engine/quant.c does; who reads widens, which is exact, so
 * sums over elements are those over floats that happen to end in 16 zeros.
 */
#ifndef WHET_KERNELS_CPU_LIB_KV_H
#define WHET_KERNELS_CPU_LIB_KV_H

#include "cpu/lib/isa.h"

#ifndef KV_BF16
#define KV_BF16 0
#endif

#if KV_BF16
typedef uint16_t kv_element;
#else
typedef float kv_element;
#endif

enum { KV_LINE = 64 / (int)sizeof(kv_element) }; /* elements of a cache line */

INLINE kv_element kv_round(float f)
{
#if KV_BF16
    const union {
        float f;
        uint32_t bits;
    } u = {.f = f};
    if ((u.bits & 0x7fffffff) > 0x7f800000) /* not a number, and it stays none */
        return (kv_element)(u.bits >> 16 | 64);
    return (kv_element)((u.bits + 0x7fff + (u.bits >> 16 & 1)) >> 16);
#else
    return f;
#endif
}

/* 16 elements. */
INLINE vf kv_load(const kv_element *p)
{
#if !KV_BF16
    return vf_load(p);
#elif ISA >= ISA_NEON
    vf v;
    UNROLLED
    for (int i = 0; i < 4; i++)
        v.p[i] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16));
    return v;
#elif ISA >= ISA_AVX512
    const __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
#elif ISA == ISA_AVX2
    const __m128i a = _mm_loadu_si128((const __m128i *)(const void *)p);
    const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(p + 8));
    return (vf){_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(a), 16)),
                _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(b), 16))};
#else
    vf v;
    for (int l = 0; l < LANES; l++) {
        const union {
            uint32_t bits;
            float f;
        } u = {.bits = (uint32_t)p[l] << 16};
        v.l[l] = u.f;
    }
    return v;
#endif
}

#endif
