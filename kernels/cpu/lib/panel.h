/* SPDX-License-Identifier: Apache-2.0 */
/* panel.h - weights repacked in panels of 16 rows, multiplied with activations in digits.
 *
 * Packed form of a matrix [N, K] in Q4_0, Q4_1 or Q8_0, panel after panel of 16 rows (zero rows
 * fill the last one). A panel is
 *
 *   quants [K/32][256 or 512 bytes]   one 64-byte vector holds, for each of the 16 rows, the 4
 *                                     bytes that are dword j of the row's block
 *   scales [K/32][16] f16 d, and for Q4_1 [16] f16 m after each d
 *
 * so that one vpdpbusd multiplies 4 consecutive k of all 16 rows with a broadcast dword of x, and
 * the 16 results are lanes of one vector: no horizontal sums, and scales are applied 16 at a time.
 * The bytes moved are those of the model's own format.
 *
 * Quants are centred before they are summed (Q4_1: w = d (q - 8) + (m + 8 d)): the sums then stay
 * small where activations share a large mean, instead of cancelling against m.
 * Sums of a block are exact integers; over blocks they are added in float in rising order. For
 * D digits a block costs 8 D dot instructions for 512 weights (16 rows) a token.
 */
#ifndef WHET_KERNELS_CPU_LIB_PANEL_H
#define WHET_KERNELS_CPU_LIB_PANEL_H

#include "cpu/lib/digits.h"

enum { PANEL = 16, PANEL_TOKENS_MOST = 8 };

/* Bytes of a block of 16 rows: its quants, its scales. */
#define PANEL_QUANTS(t) (PANEL * (BLOCK_BYTES(t) - BLOCK_HEAD(t)))
#define PANEL_SCALES(t) (PANEL * BLOCK_HEAD(t))
#define PANEL_LAYOUT "panel16"

INLINE int64_t panel_bytes(int type, int k)
{
    return ((int64_t)(k / BLOCK) * (PANEL_QUANTS(type) + PANEL_SCALES(type)) + 63) & ~(int64_t)63;
}

static inline int64_t panel_packed_bytes(const struct weight *w)
{
    return (w->rows + PANEL - 1) / PANEL * panel_bytes(w->type, w->cols);
}

/* Copies row `row` of w into its lane, or clears lane `row` if the matrix ends before it. */
INLINE void panel_pack_row(const struct weight *w, uint8_t *packed, int row)
{
    const int blocks = w->cols / BLOCK, type = w->type, size = BLOCK_BYTES(type);
    const int head = BLOCK_HEAD(type);
    uint8_t *panel = packed + row / PANEL * panel_bytes(type, w->cols);
    const uint8_t *from = (const uint8_t *)w->data + (int64_t)row * blocks * size;
    const int lane = row % PANEL;
    static const uint8_t zero[BLOCK_BYTES(DTYPE_Q8_0)];
    for (int b = 0; b < blocks; b++) {
        const uint8_t *p = row < w->rows ? from + (int64_t)b * size : zero;
        uint8_t *q = panel + (int64_t)b * PANEL_QUANTS(type) + lane * 4;
        uint8_t *s = panel + (int64_t)blocks * PANEL_QUANTS(type) + b * PANEL_SCALES(type);
        for (int j = 0; j < PANEL_QUANTS(type) / 64; j++)
            __builtin_memcpy(q + 64 * j, p + head + 4 * j, 4);
        __builtin_memcpy(s + 2 * lane, p, 2);
        if (type == DTYPE_Q4_1)
            __builtin_memcpy(s + 32 + 2 * lane, p + 2, 2);
    }
}

static inline void panel_pack(const struct weight *w, void *packed, int32_t row0, int32_t row1)
{
    int end = row1 == w->rows ? (row1 + PANEL - 1) / PANEL * PANEL : row1;
    for (int row = row0; row < end; row++)
        panel_pack_row(w, packed, row);
}

/* panel_block() is the instruction set's own; all around it is written once. */

#if ISA >= ISA_DOTPROD

#include "cpu/lib/neon_panel.h"

#elif ISA == ISA_AVX2

#include "cpu/lib/avx2_panel.h"

#elif ISA >= ISA_VNNI && ISA < ISA_NEON

/* Block b of a panel as 8 vectors of bytes; those of Q8_0 are q + 128, of Q4_x the nibbles. */
INLINE void panel_load(const int type, const uint8_t *panel, int b, __m512i w[8])
{
    const uint8_t *p = panel + (int64_t)b * PANEL_QUANTS(type);
    if (type == DTYPE_Q8_0) {
        const __m512i flip = _mm512_set1_epi8(-128);
        UNROLLED
        for (int j = 0; j < 8; j++)
            w[j] = _mm512_xor_si512(_mm512_load_si512(p + 64 * j), flip);
    } else {
        const __m512i low = _mm512_set1_epi8(15);
        UNROLLED
        for (int j = 0; j < 4; j++) {
            __m512i q = _mm512_load_si512(p + 64 * j);
            w[j] = _mm512_and_si512(q, low);
            w[j + 4] = _mm512_and_si512(_mm512_srli_epi16(q, 4), low);
        }
    }
}

/* What to start a digit's sum with, to take out the offset that panel_load() leaves in q. */
INLINE __m512i panel_start(const int type, int32_t total)
{
    return _mm512_set1_epi32(total * (type == DTYPE_Q8_0 ? -128 : -8));
}

/* sum over digits of s[j] * 256^(d-1-j), as float */
INLINE __m512 panel_join(const int d, const __m512i *s)
{
    if (d == 1)
        return _mm512_cvtepi32_ps(s[0]);
    __m512 high = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(s[0], 8), s[1]));
    if (d == 2)
        return high;
    if (d == 3)
        return _mm512_fmadd_ps(high, _mm512_set1_ps(256.0f), _mm512_cvtepi32_ps(s[2]));
    __m512i low = _mm512_add_epi32(_mm512_slli_epi32(s[2], 8), s[3]);
    return _mm512_fmadd_ps(high, _mm512_set1_ps(65536.0f), _mm512_cvtepi32_ps(low));
}

/* acc[t] += block b of the panel . token t, without the tokens' own scale 2^row. */
INLINE void panel_block(const int type, const int d, const uint8_t *panel, int blocks, int b,
                        const struct digits *x, const int tokens, vf *acc)
{
    const uint8_t *s = panel + (int64_t)blocks * PANEL_QUANTS(type) + b * PANEL_SCALES(type);
    __m512i w[8];
    panel_load(type, panel, b, w);
    __m512 scale = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)s)), middle = scale;
    if (type == DTYPE_Q4_1)
        middle = _mm512_fmadd_ps(scale, _mm512_set1_ps(8.0f),
                                 _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(s + 32))));
    UNROLLED
    for (int t = 0; t < tokens; t++) {
        const int32_t *q = (const int32_t *)(x[t].digit + b * d * BLOCK);
        __m512i sum[4];
        UNROLLED
        for (int j = 0; j < d; j++) {
            sum[j] = panel_start(type, x[t].total[b * d + j]);
            UNROLLED
            for (int i = 0; i < 8; i++)
                sum[j] = _mm512_dpbusd_epi32(sum[j], w[i], _mm512_set1_epi32(q[8 * j + i]));
        }
        __m512 unit = _mm512_mul_ps(scale, _mm512_set1_ps(x[t].unit[b]));
        acc[t] = _mm512_fmadd_ps(panel_join(d, sum), unit, acc[t]);
        if (DIGITS_FINE(d) && x[t].deep[b]) {
            const int32_t *fine = (const int32_t *)(x[t].fine + b * BLOCK);
            sum[0] = panel_start(type, x[t].fine_total[b]);
            UNROLLED
            for (int i = 0; i < 8; i++)
                sum[0] = _mm512_dpbusd_epi32(sum[0], w[i], _mm512_set1_epi32(fine[i]));
            unit = _mm512_mul_ps(unit, _mm512_set1_ps(1.0f / 256));
            acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[0]), unit, acc[t]);
        }
        if (type == DTYPE_Q4_1)
            acc[t] = _mm512_fmadd_ps(middle, _mm512_set1_ps(x[t].sum[b]), acc[t]);
    }
}

#endif

#if ISA >= ISA_DOTPROD || ISA == ISA_VNNI || ISA == ISA_AMX || ISA == ISA_AVX2

/* out[t][p * 16 + lane] for `panels` neighbouring panels from `w` and `tokens` tokens. */
INLINE void panel_dot(const int type, const int d, const uint8_t *w, int64_t stride,
                      const int panels, const struct digits *x, const int tokens, const int k,
                      const int ahead, float *out, int64_t ldo)
{
    const int blocks = k / BLOCK;
    vf acc[4][PANEL_TOKENS_MOST];
    UNROLLED
    for (int p = 0; p < panels; p++) {
        UNROLLED
        for (int t = 0; t < tokens; t++)
            acc[p][t] = vf_zero();
    }
    for (int b = 0; b < blocks; b++) {
        UNROLLED
        for (int p = 0; p < panels; p++) {
            const uint8_t *panel = w + p * stride;
            for (int i = 0; ahead && i < PANEL_QUANTS(type); i += 64)
                __builtin_prefetch(panel + (int64_t)b * PANEL_QUANTS(type) + i + ahead);
            panel_block(type, d, panel, blocks, b, x, tokens, acc[p]);
        }
    }
    UNROLLED
    for (int p = 0; p < panels; p++) {
        UNROLLED
        for (int t = 0; t < tokens; t++) {
            vf scaled = vf_mul(acc[p][t], vf_set(x[t].scale[0]));
            vf_store(out + t * ldo + p * PANEL, vf_mul(scaled, vf_set(x[t].scale[1])));
        }
    }
}

/* The same for any m: tiles of `tile` tokens, then of 4, 2 and 1 for the rest. */
INLINE void panel_dot_all(const int type, const int d, const uint8_t *w, int64_t stride,
                          const int panels, const struct digits *x, int m, const int tile,
                          const int k, const int ahead, float *out, int64_t ldo)
{
    for (int t = 0; t < m;) {
        int left = m - t;
        float *to = out + t * ldo;
        if (left >= tile) {
            panel_dot(type, d, w, stride, panels, x + t, tile, k, ahead, to, ldo);
            t += tile;
        } else if (tile > 4 && left >= 4) {
            panel_dot(type, d, w, stride, panels, x + t, 4, k, ahead, to, ldo);
            t += 4;
        } else if (tile > 2 && left >= 2) {
            panel_dot(type, d, w, stride, panels, x + t, 2, k, ahead, to, ldo);
            t += 2;
        } else {
            panel_dot(type, d, w, stride, panels, x + t, 1, k, ahead, to, ldo);
            t += 1;
        }
    }
}

#endif

#endif
