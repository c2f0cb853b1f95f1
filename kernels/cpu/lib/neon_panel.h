/* SPDX-License-Identifier: Apache-2.0 */
/* neon_panel.h - panels of 16 rows times activations in digits, on ARM. Included by panel.h.
 *
 * A dword of 16 rows is four registers here, each of 4 rows by 4 k,
 * so a block is worked off four rows at a time: its quants fill eight registers, signed and centred
 * already, and every column of x (a digit of a token) is multiplied with them before the next four
 * rows.
 *
 *   dotprod  sdot takes 4 k of four rows and one dword of x: 16 products. 8 for a column
 *   i8mm     smmla takes 8 k of two rows and of two columns: 32 products. Rows are paired once a
 *            block by zips of registers, columns by their order: digits of a token, then tokens. A
 *            last column without a partner is multiplied with itself
 *
 * Sums of a block are exact integers; the rest is panel.h's arithmetic in the same order.
 */
#ifndef WHET_KERNELS_CPU_LIB_NEON_PANEL_H
#define WHET_KERNELS_CPU_LIB_NEON_PANEL_H

/* Bits of codes, `bits` of each at p, that are to lie from bit `to` on: the eighth register i. */
INLINE uint8x16_t panel_bits(const uint8_t *p, const int bits, const int to, const int i)
{
    const int step = 8 / bits, left = to - i % step * bits;
    uint8x16_t v = vshlq_u8(vld1q_u8(p + i / step * 64), vdupq_n_s8((int8_t)left));
    return vandq_u8(v, vdupq_n_u8((uint8_t)(((1 << bits) - 1) << to)));
}

/* Quants of rows 4 q .. 4 q + 3 of block b, less the code in their middle: register i has their k =
 * 4 i .. 4 i + 3. */
INLINE void panel_load4(const int type, const uint8_t *panel, int b, const int q, int8x16_t w[8])
{
    const uint8_t *p = panel + (int64_t)b * PANEL_QUANTS(type) + 16 * q;
    const int bits = HIGH_BITS(type), low = LOW_BITS(type);
    if (type == DTYPE_Q8_0) {
        UNROLLED
        for (int i = 0; i < 8; i++)
            w[i] = vreinterpretq_s8_u8(vld1q_u8(p + 64 * i));
        return;
    }
    UNROLLED
    for (int i = 0; i < 8; i++) {
        uint8x16_t v = vld1q_u8(p + 64 * (i % 4));
        v = i < 4 ? vandq_u8(v, vdupq_n_u8(15)) : vshrq_n_u8(v, 4);
        if (low == 2)
            v = panel_bits(p, 2, 0, i);
        if (bits)
            v = vorrq_u8(v, panel_bits(p + 64 * low, bits, low, i));
        w[i] = TABLE_TYPE(type)
                   ? vqtbl1q_s8(vld1q_s8(CODE_TABLE(type)), v)
                   : vsubq_s8(vreinterpretq_s8_u8(v), vdupq_n_s8((int8_t)MIDDLE_CODE(type)));
    }
}

/* The 32 bytes of digit j of token t in block b: column t * d + j. */
INLINE const int8_t *panel_column(const struct digits *x, const int d, int b, int column)
{
    return x[column / d].digit + (b * d + column % d) * BLOCK;
}

#if ISA >= ISA_I8MM

/* sum[column] lane i = row i . column of x over half h of the block, of which there are `halves`.
 */
INLINE void panel_sums(const int8x16_t w[8], const int halves, const int h, const struct digits *x,
                       const int d, int b, const int columns, int32x4_t *sum)
{
    const int from = h * 4 / halves, to = from + 4 / halves;
    int8x16_t pair[2][4]; /* rows 0 and 1, rows 2 and 3: 8 k of each */
    UNROLLED
    for (int i = from; i < to; i++) {
        int32x4_t even = vreinterpretq_s32_s8(w[2 * i]);
        int32x4_t odd = vreinterpretq_s32_s8(w[2 * i + 1]);
        pair[0][i] = vreinterpretq_s8_s32(vzip1q_s32(even, odd));
        pair[1][i] = vreinterpretq_s8_s32(vzip2q_s32(even, odd));
    }
    UNROLLED
    for (int c = 0; c < columns; c += 2) {
        const int8_t *one = panel_column(x, d, b, c);
        const int8_t *two = panel_column(x, d, b, c + 1 < columns ? c + 1 : c);
        int32x4_t low = vdupq_n_s32(0), high = low;
        UNROLLED
        for (int i = from; i < to; i++) {
            int8x16_t both = vcombine_s8(vld1_s8(one + 8 * i), vld1_s8(two + 8 * i));
            low = vmmlaq_s32(low, pair[0][i], both);
            high = vmmlaq_s32(high, pair[1][i], both);
        }
        sum[c] = vuzp1q_s32(low, high);
        if (c + 1 < columns)
            sum[c + 1] = vuzp2q_s32(low, high);
    }
}

#else

INLINE void panel_sums(const int8x16_t w[8], const int halves, const int h, const struct digits *x,
                       const int d, int b, const int columns, int32x4_t *sum)
{
    const int from = h * 2 / halves, to = from + 2 / halves;
    UNROLLED
    for (int c = 0; c < columns; c++) {
        const int8_t *column = panel_column(x, d, b, c);
        int32x4_t s = vdupq_n_s32(0);
        UNROLLED
        for (int i = from; i < to; i++) { /* a register of x: four dwords, picked by their number */
            int8x16_t v = vld1q_s8(column + 16 * i);
            s = vdotq_laneq_s32(s, w[4 * i], v, 0);
            s = vdotq_laneq_s32(s, w[4 * i + 1], v, 1);
            s = vdotq_laneq_s32(s, w[4 * i + 2], v, 2);
            s = vdotq_laneq_s32(s, w[4 * i + 3], v, 3);
        }
        sum[c] = s;
    }
}

#endif

/* sum over digits of s[j] * 256^(d-1-j), as float */
INLINE float32x4_t panel_join(const int d, const int32x4_t *s)
{
    if (d == 1)
        return vcvtq_f32_s32(s[0]);
    float32x4_t high = vcvtq_f32_s32(vaddq_s32(vshlq_n_s32(s[0], 8), s[1]));
    if (d == 2)
        return high;
    if (d == 3)
        return vfmaq_f32(vcvtq_f32_s32(s[2]), high, vdupq_n_f32(256.0f));
    float32x4_t low = vcvtq_f32_s32(vaddq_s32(vshlq_n_s32(s[2], 8), s[3]));
    return vfmaq_f32(low, high, vdupq_n_f32(65536.0f));
}

INLINE float32x4_t panel_halves(const uint8_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}

/* MXFP4_SCALE() of 4 exponents: the second number is the larger one of 0 and 1 only. */
INLINE float32x4_t panel_exponents(const uint8_t *p)
{
    uint16x8_t v = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(load_u32(p))));
    const int32x4_t e = vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(v))), one = vdupq_n_s32(1);
    int32x4_t bits = vshlq_n_s32(vsubq_s32(e, one), 23);
    int32x4_t least = vshlq_n_s32(vaddq_s32(vminq_s32(e, one), one), 21);
    return vreinterpretq_f32_s32(vmaxq_s32(bits, least));
}

/* Four signed bytes as floats. */
INLINE float32x4_t panel_bytes4(const uint8_t *p)
{
    int16x8_t v = vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(load_u32(p))));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(v)));
}

/* For rows 4 q .. of block b: its scale, or those of its halves, and what its weights have in the
 * middle of their codes. */
INLINE void panel_scales4(const int type, const uint8_t *panel, int blocks, int b, const int q,
                          float32x4_t scale[2], float32x4_t middle[2])
{
    const uint8_t *head = panel_head(type, panel, blocks, b) + 4 * PANEL_NUMBER(type) * q;
    const float32x4_t d = type == DTYPE_MXFP4 ? panel_exponents(head) : panel_halves(head);
    const float32x4_t centre = vdupq_n_f32(MIDDLE_CODE(type));
    const float32x4_t m = HAS_MINIMUM(type) ? panel_halves(head + 2 * PANEL) : d;
    scale[0] = scale[1] = d;
    middle[0] = middle[1] = vfmaq_f32(m, d, centre);
    if (!SUPER_TYPE(type))
        return;
    const uint8_t *factor = panel_factors(type, panel, blocks, b) + 4 * q;
    const int halves = HALVES(type);
    UNROLLED
    for (int h = 0; h < halves; h++, factor += PANEL) {
        scale[h] = vmulq_f32(d, panel_bytes4(factor));
        if (HAS_MINIMUM(type)) {
            float32x4_t minimum = vmulq_f32(m, panel_bytes4(factor + halves * PANEL));
            middle[h] = vfmaq_f32(vnegq_f32(minimum), scale[h], centre);
        }
    }
}

/* Tokens whose columns are multiplied together: as many as make their number even. */
#define PAIR(d) (ISA >= ISA_I8MM && (d) % 2 ? 2 : 1)

/* acc[t] += block b of the panel . token t, without the tokens' own scale 2^row. */
INLINE void panel_block(const int type, const int d, const uint8_t *panel, int blocks, int b,
                        const struct digits *x, const int tokens, vf *acc)
{
    const int halves = HALVES(type);
    UNROLLED
    for (int q = 0; q < 4; q++) {
        int8x16_t w[8];
        float32x4_t scale[2], middle[2];
        NO_SOONER();
        panel_load4(type, panel, b, q, w);
        panel_scales4(type, panel, blocks, b, q, scale, middle);
        UNROLLED
        for (int t0 = 0; t0 < tokens; t0 += PAIR(d)) {
            const int n = tokens - t0 < PAIR(d) ? tokens - t0 : PAIR(d);
            UNROLLED
            for (int h = 0; h < halves; h++) {
                int32x4_t sum[2 * 4];
                panel_sums(w, halves, h, x + t0, d, b, n * d, sum);
                UNROLLED
                for (int t = t0; t < t0 + n; t++) {
                    float32x4_t unit = vmulq_n_f32(scale[h], x[t].unit[b]);
                    float32x4_t joined = panel_join(d, sum + (t - t0) * d);
                    acc[t].p[q] = vfmaq_f32(acc[t].p[q], joined, unit);
                    if (HAS_MINIMUM(type))
                        acc[t].p[q] =
                            vfmaq_n_f32(acc[t].p[q], middle[h], digits_sum(type, x + t, b, h));
                }
            }
        }
    }
}

#endif
