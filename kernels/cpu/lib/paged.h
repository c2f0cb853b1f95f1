/* SPDX-License-Identifier: Apache-2.0 */
/* paged.h - keys and values of a sequence, one page of 16 positions at a time. */
#ifndef WHET_KERNELS_CPU_LIB_PAGED_H
#define WHET_KERNELS_CPU_LIB_PAGED_H

#include "cpu/lib/isa.h"
#include "cpu/lib/kv.h"
#include "cpu/lib/shape.h"

enum { DIMS = HEAD_DIM / 16, GROUP = HEADS / KV_HEADS }; /* vectors of a head; heads of a kv head */

/* The [16, HEAD_DIM] rows of kv head `head` in page `page` of the sequence. */
INLINE const kv_element *page_rows(const struct attn_args *a, const void *pages,
                                   const struct span *s, int page, int head)
{
    int64_t number = a->page_table[s->pages_at + page];
    return (const kv_element *)pages + (number * KV_HEADS + head) * KV_PAGE * HEAD_DIM;
}

/* Those rows as floats: where they lie, or in `room` [16, HEAD_DIM], for who reads them more than
 * once. */
INLINE const float *page_floats(const kv_element *rows, float *room)
{
    if (!KV_BF16)
        return (const float *)(const void *)rows;
    for (int i = 0; i < KV_PAGE * HEAD_DIM; i += 16)
        vf_store(room + i, kv_load(rows + i));
    return room;
}

INLINE vf key_load(const void *k, int i, const int floats)
{
    return floats ? vf_load((const float *)k + i) : kv_load((const kv_element *)k + i);
}

/* Lane j: q . k_j for the 16 keys of a page, each in the canonical order; the keys are elements, or
 * `floats`. */
INLINE vf page_dots(const float *q, const void *k, const int floats)
{
#if ISA >= ISA_NEON || ISA == ISA_AVX2
    vf4 score[4]; /* four keys at a time: as many sums as there are registers for */
    UNROLLED
    for (int p = 0; p < 4; p++) {
        vf sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
        NO_SOONER();
        UNROLLED
        for (int d = 0; d < DIMS; d++) {
            vf part = vf_load(q + 16 * d);
            UNROLLED
            for (int j = 0; j < 4; j++)
                sum[j] = vf_fma(part, key_load(k, (4 * p + j) * HEAD_DIM + 16 * d, floats), sum[j]);
        }
        score[p] = vf_fold4(sum);
    }
    return vf_join4(score);
#else
    vf acc[16];
    UNROLLED
    for (int j = 0; j < 16; j++)
        acc[j] = vf_zero();
    UNROLLED
    for (int d = 0; d < DIMS; d++) {
        vf part = vf_load(q + 16 * d);
        UNROLLED
        for (int j = 0; j < 16; j++)
            acc[j] = vf_fma(part, key_load(k, j * HEAD_DIM + 16 * d, floats), acc[j]);
    }
    return vf_fold16(acc);
#endif
}

INLINE vf page_scores(const float *q, const kv_element *k)
{
    return page_dots(q, k, 0);
}

/* Lane j: x where j < n, else `other`; any n. */
INLINE vf keep_lanes(vf x, int n, float other)
{
#if ISA >= ISA_NEON
    for (int p = 0; p < 4; p++) {
        static const int32_t lane[4] = {0, 1, 2, 3};
        uint32x4_t keep = vcltq_s32(vld1q_s32(lane), vdupq_n_s32(n - 4 * p));
        x.p[p] = vbslq_f32(keep, x.p[p], vdupq_n_f32(other));
    }
    return x;
#elif ISA >= ISA_AVX512
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __mmask16 keep = _mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(n));
    return _mm512_mask_blend_ps(keep, _mm512_set1_ps(other), x);
#elif ISA == ISA_AVX2
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256 low = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane));
    __m256 high = _mm256_castsi256_ps(
        _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_add_epi32(lane, _mm256_set1_epi32(8))));
    return (vf){_mm256_blendv_ps(_mm256_set1_ps(other), x.a, low),
                _mm256_blendv_ps(_mm256_set1_ps(other), x.b, high)};
#else
    float f[16];
    vf_store(f, x);
    for (int j = n > 0 ? n : 0; j < 16; j++)
        f[j] = other;
    return vf_load(f);
#endif
}

#endif
