/* SPDX-License-Identifier: Apache-2.0 */
/* avx2_eight.h - stored weights of a row, eight at a time, on AVX2. Included by rows.h.
 *
 * The values of row_load_scaled(), made of the eight bytes that a register's lanes need: cheaper
 * than taking 16 of them apart.
 */
#ifndef WHET_KERNELS_CPU_LIB_AVX2_EIGHT_H
#define WHET_KERNELS_CPU_LIB_AVX2_EIGHT_H

/* Eight numbers of a plain format, or bytes of Q8_0, as floats. */
INLINE __m256 block_eight(const int type, const uint8_t *p)
{
    if (type == DTYPE_F32)
        return _mm256_loadu_ps((const float *)p);
    if (type == DTYPE_Q8_0)
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
    __m128i halves = _mm_loadu_si128((const __m128i *)p);
    if (type == DTYPE_F16)
        return _mm256_cvtph_ps(halves);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

/* Numbers 8 h .. 8 h + 7 and 16 + 8 h .. of a block as block_numbers() has them, from the bytes q,
 * whose nibbles they are. */
INLINE void block_eight_nibbles(const int type, bytes16 q, uint32_t fifth, const int h,
                                __m256i n[2])
{
    if (TABLE_TYPE(type)) {
        n[0] = _mm256_cvtepi8_epi32(block_look_up(block_low(q), CODE_TABLE(type)));
        n[1] = _mm256_cvtepi8_epi32(block_look_up(block_high(q), CODE_TABLE(type)));
        return;
    }
    const __m256i bytes = _mm256_cvtepu8_epi32(q), lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    n[0] = _mm256_and_si256(bytes, _mm256_set1_epi32(15));
    n[1] = _mm256_srli_epi32(bytes, 4);
    UNROLLED
    for (int i = 0; i < 2; i++) {
        const int first = 8 * h + 16 * i - 4; /* to be bit 4 */
        if (HIGH_BITS(type)) {
            __m256i bits = _mm256_set1_epi32((int)(first < 0 ? fifth << 4 : fifth));
            bits = _mm256_and_si256(
                _mm256_srlv_epi32(
                    bits, first < 0 ? lane : _mm256_add_epi32(lane, _mm256_set1_epi32(first))),
                _mm256_set1_epi32(16));
            n[i] = _mm256_or_si256(n[i], bits);
        }
        if (!HAS_MINIMUM(type))
            n[i] = _mm256_sub_epi32(n[i], _mm256_set1_epi32(MIDDLE_CODE(type)));
    }
}

/* Weights 8 h .. 8 h + 7 and 16 + 8 h .. of a block, as block_load_scaled() has them. */
INLINE void block_load_half(const int type, const uint8_t *p, const float *scale, const int h,
                            __m256 w[2])
{
    if (type <= DTYPE_Q8_0) {
        const int bytes = BLOCK_BYTES(type) - BLOCK_HEAD(type);
        UNROLLED
        for (int i = 0; i < 2; i++) {
            w[i] = block_eight(type, p + BLOCK_HEAD(type) + (2 * i + h) * bytes / 4);
            if (type == DTYPE_Q8_0)
                w[i] = _mm256_mul_ps(_mm256_broadcast_ss(scale), w[i]);
        }
        return;
    }
    const bytes16 q = _mm_loadl_epi64((const __m128i *)(p + BLOCK_CODES(type) + 8 * h));
    const __m256 d = _mm256_broadcast_ss(scale);
    __m256i n[2];
    block_eight_nibbles(type, q, HIGH_BITS(type) ? load_u32(p + BLOCK_HEAD(type)) : 0, h, n);
    UNROLLED
    for (int i = 0; i < 2; i++) {
        w[i] = _mm256_cvtepi32_ps(n[i]);
        w[i] = HAS_MINIMUM(type) ? _mm256_fmadd_ps(d, w[i], _mm256_broadcast_ss(scale + 1))
                                 : _mm256_mul_ps(d, w[i]);
    }
}

/* The same of block j of the BLOCKS_TOGETHER ones at p. */
INLINE void row_load_half(const int type, const uint8_t *p, const int j, const float *scale,
                          const int h, __m256 w[2])
{
    if (!SUPER_TYPE(type)) {
        block_load_half(type, p, scale, h, w);
        return;
    }
    UNROLLED
    for (int i = 0; i < 2; i++) {
        bytes16 q = super_codes(type, p, j, i);
        w[i] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(h ? _mm_srli_si128(q, 8) : q));
        const __m256 d = _mm256_broadcast_ss(scale + SUPER_SCALE(type, j, i));
        w[i] =
            HAS_MINIMUM(type)
                ? _mm256_fmadd_ps(d, w[i], _mm256_broadcast_ss(scale + SUPER_MINIMUM(type, j, i)))
                : _mm256_mul_ps(d, w[i]);
    }
}

/* All of that block, as row_load_scaled() has it. */
INLINE void row_load_eights(const int type, const uint8_t *p, const int j, const float *scale,
                            vf w[2])
{
    __m256 low[2], high[2];
    row_load_half(type, p, j, scale, 0, low);
    row_load_half(type, p, j, scale, 1, high);
    UNROLLED
    for (int i = 0; i < 2; i++)
        w[i] = (vf){low[i], high[i]};
}

#endif
