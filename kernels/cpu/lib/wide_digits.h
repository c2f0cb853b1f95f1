/* SPDX-License-Identifier: Apache-2.0 */
/* wide_digits.h - tiles of tokens times panels of 16 rows by integer products (VNNI).
 *
 * Part of wide.h. One vpdpbusd makes 64 multiply-adds where a float one makes 16, so three 8-bit
 * digits of an activation cost three quarters of a float. A row x becomes, in blocks of 32,
 *
 *   x[i] ~ 2^row * unit[b] * X[i],   X[i] + 2^(8D - 1) = sum_d digit[d][i] * 256^(D-1-d)
 *
 * with unit[b] a power of two that lets the block's largest |X| fill D digits. All digits are
 * unsigned, as the instruction wants one of its factors: the offset leaves X through the first
 * value of the sums, -128 times the sum of a row's weights in the block, which is known when the
 * weights are expanded. Weights are the other factor, signed bytes: codes less the one in their
 * middle.
 *
 * A digit's sum is shifted by 8 bits and the next digit's products are added on top, so one int32
 * ends up with the exact sum over the block and is converted once. Nothing is lost: integers wrap
 * around on the way, but the result fits, 32 * 2^23 * 8 at most for 4-bit weights and three digits;
 * bytes, which Q8_0 has and IQ4_NL and IQ4_XS stand for, are converted after two digits and again
 * after the third. Blocks with a scale for each half are summed and converted by halves. Sums of 6
 * bits in halves, 16 * 2^23 * 32, and of 5 bits in whole blocks fit if the mean |X| of half a block
 * is below 2^22: where it is not, all values are of much the same size, and X has a bit less.
 *
 * Three digits keep 22 bits below a block's largest value. That is about what a float sum of
 * hundreds of products keeps, but the neighbours of an outlier would lose more. So a token's block
 * with an outlier, a value more than 24 times the mean size of the other values of its row, has a
 * fourth digit,
 *
 *   X[i] + 2^23 = sum_d digit[d][i] * 256^(2-d) + fine[i] / 256
 *
 * and a tile whose tokens have one in a block multiplies that block once more. Outliers sit in the
 * same few channels of most tokens, so that this is seldom.
 */
#ifndef WHET_KERNELS_CPU_LIB_WIDE_DIGITS_H
#define WHET_KERNELS_CPU_LIB_WIDE_DIGITS_H

/* ---- weights ------------------------------------------------------------------------------ */

/* A block of a panel: 8 vectors of signed bytes; then, for each of its halves that has a scale of
 * its own, 16 first values, that scale and what formats with a minimum have in the middle. */
#define DIGIT_FIRST(type, h) (512 + (HAS_MINIMUM(type) ? 192 : 128) * (h))
#define DIGIT_D(type, h) (DIGIT_FIRST(type, h) + 64)
#define DIGIT_MIDDLE(type, h) (DIGIT_FIRST(type, h) + 128)
#define DIGIT_BLOCK(type) DIGIT_FIRST(type, HALVES(type))
/* Whether sums are converted before digit d, which they would outgrow. */
#define DIGIT_ANEW(type, d) (CODE_BITS(type) == 8 && (d) == 2)
/* Whether there are codes of 5 or 6 bits, whose sums would outgrow three digits. */
#define DIGIT_CLOSE(type) (CODE_BITS(type) == 5 || CODE_BITS(type) == 6)
#define DIGIT_FULL \
    (DIGITS == 3 && (DIGIT_CLOSE(WTYPE) || DIGIT_CLOSE(WTYPE_2) || DIGIT_CLOSE(WTYPE_3)))

INLINE int64_t wide_panel_bytes(const int type)
{
    return (int64_t)(K / BLOCK) * DIGIT_BLOCK(type);
}

INLINE void wide_expand_block(const int type, const struct panel_source *s, int b, uint8_t *panel)
{
    const int halves = HALVES(type);
    uint8_t *to = panel + (int64_t)b * DIGIT_BLOCK(type);
    __m512i q[8];
    __m512 scale[2], minimum[2], centre = _mm512_set1_ps(MIDDLE_CODE(type));
    source_quads(type, PACK, s, b, q);
    source_scales(type, PACK, s, b, scale, minimum);
    UNROLLED
    for (int h = 0; h < halves; h++) {
        const int n = 8 / halves;
        __m512i sum = _mm512_setzero_si512();
        UNROLLED
        for (int i = h * n; i < h * n + n; i++) {
            q[i] = _mm512_sub_epi8(q[i], _mm512_set1_epi8((char)MIDDLE_CODE(type)));
            sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8((char)128), q[i]);
            _mm512_store_si512(to + 64 * i, q[i]);
        }
        _mm512_store_si512(to + DIGIT_FIRST(type, h),
                           _mm512_sub_epi32(_mm512_setzero_si512(), sum));
        _mm512_store_ps(to + DIGIT_D(type, h), scale[h]);
        if (HAS_MINIMUM(type))
            _mm512_store_ps(to + DIGIT_MIDDLE(type, h),
                            _mm512_fmadd_ps(scale[h], centre, minimum[h]));
    }
}

/* ---- activations -------------------------------------------------------------------------- */

/* A tile: [K/32][DIGITS][TILE][32] digits, [K/32][TILE] units, [SUMS][K/32][TILE] sums of the
 * block, or of each half of it, with FINE [K/32][TILE][32] fourth digits and [K/32] which tokens
 * have some, a bit each; at its end [TILE][2] factors of 2^row. */
enum { DIGIT_ROWS = DIGITS * TILE * BLOCK, FINE = DIGITS == 3 };
enum { WIDE_OUTLIER = 24 };
enum { FINE_ROWS = FINE * (TILE * BLOCK + 2) };

INLINE int64_t wide_tile_bytes(void)
{
    return ROUND64((int64_t)(K / BLOCK) * (DIGIT_ROWS + TILE * 4 * (1 + SUMS) + FINE_ROWS) +
                   TILE * 8);
}

/* The factors of 2^row of a tile's tokens, [TILE][2]. */
INLINE float *wide_back(const uint8_t *tile)
{
    return (float *)(tile + wide_tile_bytes()) - 2 * TILE;
}

INLINE float *wide_units(const uint8_t *tile)
{
    return (float *)(tile + (int64_t)(K / BLOCK) * DIGIT_ROWS);
}

INLINE uint8_t *wide_fine(const uint8_t *tile)
{
    return (uint8_t *)(wide_units(tile) + (int64_t)(K / BLOCK) * TILE * (1 + SUMS));
}

INLINE uint16_t *wide_with_fine(const uint8_t *tile)
{
    return (uint16_t *)(wide_fine(tile) + (int64_t)(K / BLOCK) * TILE * BLOCK);
}

/* Blocks of a row, in whole vectors of them. */
enum { DIGIT_LINE = (K / BLOCK + 15) / 16 * 16 };

/* The larger one of two sums of 16 sizes. */
INLINE float digit_sum(__m512 a, __m512 c)
{
    float one = _mm512_reduce_add_ps(a), two = _mm512_reduce_add_ps(c);
    return one > two ? one : two;
}

/* up[b] = 2^bits and unit[b] = 2^-bits for the digits of each block of x, values near 1 or below;
 * fine[b]: whether the block has fourth digits. */
INLINE void digit_units(const float *x, float *up, float *unit, uint8_t *fine)
{
    float twice[DIGIT_LINE] __attribute__((aligned(64))); /* the mean size in either half */
    __m512 sizes[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int b = 0; b < K / BLOCK; b++) {
        __m512 a = _mm512_abs_ps(_mm512_loadu_ps(x + b * BLOCK));
        __m512 c = _mm512_abs_ps(_mm512_loadu_ps(x + b * BLOCK + 16));
        up[b] = _mm512_reduce_max_ps(_mm512_max_ps(a, c));
        twice[b] = DIGIT_FULL ? digit_sum(a, c) * (2.0f / 16) : 0;
        sizes[0] = _mm512_add_ps(sizes[0], a);
        sizes[1] = _mm512_add_ps(sizes[1], c);
    }
    for (int b = K / BLOCK; b < DIGIT_LINE; b++)
        up[b] = twice[b] = 0;
    __m512 most = _mm512_set1_ps(_mm512_reduce_add_ps(_mm512_add_ps(sizes[0], sizes[1])) *
                                 DIGITS_OUTLIER(K, WIDE_OUTLIER));
    for (int b = 0; b < DIGIT_LINE; b += 16) {
        /* 1.01: a value just below a power of two may round up to it, which has no digits. */
        __m512 top = _mm512_load_ps(up + b);
        __mmask16 far = _mm512_cmp_ps_mask(top, most, _CMP_GT_OQ);
        top = _mm512_mul_ps(_mm512_max_ps(top, _mm512_load_ps(twice + b)), _mm512_set1_ps(1.01f));
        __m512 e = _mm512_getexp_ps(_mm512_max_ps(top, _mm512_set1_ps(0x1p-80f)));
        __m512 bits = _mm512_sub_ps(_mm512_set1_ps(8 * DIGITS - 2), e), one = _mm512_set1_ps(1);
        _mm512_store_ps(up + b, _mm512_scalef_ps(one, bits));
        _mm512_store_ps(unit + b, _mm512_scalef_ps(one, _mm512_sub_ps(_mm512_setzero_ps(), bits)));
        _mm_store_si128((__m128i *)(fine + b), _mm_maskz_set1_epi8(FINE ? far : 0, 1));
    }
}

/* The digits of 32 values at `to`, those of the next digit TILE * 32 bytes on, and those behind
 * them at `fine`; sum[]: sums of two values each, or of halves one value each. */
INLINE void digit_block(uint8_t *to, uint8_t *fine, const float *x, float up, int deep,
                        __m512 sum[SUMS])
{
    const __m512i offset = _mm512_set1_epi32(1 << (8 * DIGITS - 1));
    const __m512 times = _mm512_set1_ps(deep ? up * 256 : up);
    __m512i q[2];
    UNROLLED
    for (int h = 0; h < 2; h++)
        q[h] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * h), times));
    const __m512 back = _mm512_set1_ps(deep ? 1.0f / 256 : 1);
    __m512 half[2] = {_mm512_cvtepi32_ps(q[0]), _mm512_cvtepi32_ps(q[1])};
    if (SUMS == 1)
        half[0] = _mm512_add_ps(half[0], half[1]);
    UNROLLED
    for (int h = 0; h < SUMS; h++)
        sum[h] = _mm512_mul_ps(half[h], back);
    if (FINE) {
        __m512i low = _mm512_set1_epi32(deep ? 255 : 0);
        UNROLLED
        for (int h = 0; h < 2; h++) {
            _mm_storeu_si128((__m128i *)fine + h,
                             _mm512_cvtepi32_epi8(_mm512_and_si512(q[h], low)));
            q[h] = _mm512_srai_epi32(q[h], deep ? 8 : 0);
        }
    }
    UNROLLED
    for (int h = 0; h < 2; h++)
        q[h] = _mm512_add_epi32(q[h], offset);
    UNROLLED
    for (int d = 0; d < DIGITS; d++) {
        UNROLLED
        for (int h = 0; h < 2; h++)
            _mm_store_si128((__m128i *)(to + d * TILE * BLOCK) + h,
                            _mm512_cvtepi32_epi8(_mm512_srli_epi32(q[h], 8 * (DIGITS - 1 - d))));
    }
}

/* Writes token row `r` of a tile, row 0 before the others. */
INLINE void wide_split(uint8_t *tile, int r, const float *x)
{
    float up[DIGIT_LINE] __attribute__((aligned(64))),
        unit[DIGIT_LINE] __attribute__((aligned(64)));
    uint8_t deep[DIGIT_LINE] __attribute__((aligned(16))), *fine = wide_fine(tile) + r * BLOCK;
    float sums[SUMS][DIGIT_LINE], *units = wide_units(tile) + r;
    digit_units(x, up, unit, deep);
    for (int line = 0; line < K / BLOCK; line += 16) {
        __m512 sum[SUMS][16], one[SUMS];
        for (int i = 0; i < SUMS * 16; i++)
            sum[i / 16][i % 16] = _mm512_setzero_ps();
        for (int b = line; b < line + 16 && b < K / BLOCK; b++) {
            digit_block(tile + (int64_t)b * DIGIT_ROWS + r * BLOCK, fine + b * TILE * BLOCK,
                        x + b * BLOCK, up[b], deep[b], one);
            for (int h = 0; h < SUMS; h++)
                sum[h][b - line] = one[h];
        }
        for (int h = 0; h < SUMS; h++)
            _mm512_storeu_ps(sums[h] + line,
                             _mm512_mul_ps(vf_fold16(sum[h]), _mm512_load_ps(unit + line)));
    }
    for (int b = 0; b < K / BLOCK; b++) {
        units[b * TILE] = unit[b];
        for (int h = 0; h < SUMS; h++)
            units[((1 + h) * (K / BLOCK) + b) * TILE] = sums[h][b];
        if (FINE)
            wide_with_fine(tile)[b] = (uint16_t)((r ? wide_with_fine(tile)[b] : 0) | deep[b] << r);
    }
}

/* 4 digits in every lane. As a float: gcc takes an integer through a general register, which costs
 * a vector operation more than a load. */
INLINE __m512i digit_broadcast(const uint8_t *p)
{
    float four;
    __builtin_memcpy(&four, p, sizeof four);
    return _mm512_castps_si512(_mm512_set1_ps(four));
}

/* ---- products ----------------------------------------------------------------------------- */

/* The sum of a token's values in half h of a block, or in all of it; unit: its own in that block.
 */
INLINE float digit_value_sum(const int type, const int h, const float *unit)
{
    const float *sum = unit + K / BLOCK * TILE, *second = sum + (SUMS - 1) * (K / BLOCK) * TILE;
    return SUMS == 1 ? *sum : HALVES(type) == 2 ? *(h ? second : sum) : *sum + *second;
}

/* out (+)= the integers of half h of a block, or all of it, with its scale applied. `times`: a
 * factor of the integers; `last`: they are the block's last. */
INLINE void digit_apply(const int type, const int cols, const int h, const __m512i s[TILE][4],
                        const uint8_t *block, const float *unit, const float times, const int last,
                        float *out, int64_t ldo, int add)
{
    const int64_t stride = wide_panel_bytes(type);
    UNROLLED
    for (int c = 0; c < cols; c++) {
        const uint8_t *p = block + c * stride;
        __m512 d = _mm512_mul_ps(_mm512_load_ps(p + DIGIT_D(type, h)), _mm512_set1_ps(times));
        UNROLLED
        for (int t = 0; t < TILE; t++) {
            float *to = out + t * ldo + c * PANEL;
            __m512 acc = add ? _mm512_loadu_ps(to) : _mm512_setzero_ps();
            acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[t][c]),
                                  _mm512_mul_ps(d, _mm512_set1_ps(unit[t])), acc);
            if (HAS_MINIMUM(type) && last)
                acc = _mm512_fmadd_ps(_mm512_load_ps(p + DIGIT_MIDDLE(type, h)),
                                      _mm512_set1_ps(digit_value_sum(type, h, unit + t)), acc);
            _mm512_storeu_ps(to, acc);
        }
    }
}

/* What the sums start with before digit d: the offset's share, or the digits before it. */
INLINE void digit_start(const int type, const int cols, const int h, const int d,
                        const uint8_t *block, __m512i s[TILE][4])
{
    UNROLLED
    for (int t = 0; t < TILE; t++) {
        UNROLLED
        for (int c = 0; c < cols; c++)
            s[t][c] =
                d == 0
                    ? _mm512_load_si512(block + c * wide_panel_bytes(type) + DIGIT_FIRST(type, h))
                : DIGIT_ANEW(type, d) ? _mm512_setzero_si512()
                                      : _mm512_slli_epi32(s[t][c], 8);
    }
}

/* s += one digit of the columns of half h of a block, or all of it, times the weights */
INLINE void digit_products(const int type, const int cols, const int h, const uint8_t *block,
                           const uint8_t *x, __m512i s[TILE][4])
{
    const int n = 8 / HALVES(type);
    UNROLLED
    for (int i = h * n; i < h * n + n; i++) {
        NO_SOONER(); /* all of a block's weights at its start would leave sums no registers */
        __m512i w[4];
        UNROLLED
        for (int c = 0; c < cols; c++)
            w[c] = _mm512_load_si512(block + c * wide_panel_bytes(type) + 64 * i);
        UNROLLED
        for (int t = 0; t < TILE; t++) {
            __m512i four = digit_broadcast(x + t * BLOCK + 4 * i);
            UNROLLED
            for (int c = 0; c < cols; c++)
                s[t][c] = _mm512_dpbusd_epi32(s[t][c], four, w[c]);
        }
    }
}

/* out += the fourth digits of a block. Not inlined: the loop over digits needs all registers. */
__attribute__((noinline)) static void digit_finish(const int type, const int cols,
                                                   const uint8_t *block, const uint8_t *fine,
                                                   const float *unit, float *out, int64_t ldo)
{
    for (int h = 0; h < HALVES(type); h++) {
        __m512i s[TILE][4];
        UNROLLED
        for (int t = 0; t < TILE; t++) {
            UNROLLED
            for (int c = 0; c < cols; c++)
                s[t][c] = _mm512_setzero_si512();
        }
        digit_products(type, cols, h, block, fine, s);
        digit_apply(type, cols, h, s, block, unit, 1.0f / 256, 0, out, ldo, 1);
    }
}

/* out (+)= half h of a block, or all of it, but for fourth digits. x: its digits. */
INLINE void digit_half(const int type, const int cols, const int h, const uint8_t *block,
                       const uint8_t *x, const float *unit, float *out, int64_t ldo, int add)
{
    __m512i s[TILE][4];
    UNROLLED
    for (int d = 0; d < DIGITS; d++) {
        if (DIGIT_ANEW(type, d)) {
            digit_apply(type, cols, h, s, block, unit, 256.0f, 0, out, ldo, add);
            add = 1;
        }
        digit_start(type, cols, h, d, block, s);
        digit_products(type, cols, h, block, x + d * TILE * BLOCK, s);
    }
    digit_apply(type, cols, h, s, block, unit, 1.0f, 1, out, ldo, add);
}

/* out[t * ldo + 16 c + r] = token t of the tile . row r of panel c, for `cols` neighbouring ones */
INLINE void wide_digits_panels(const int type, const int cols, const uint8_t *panel,
                               const uint8_t *tile, float *out, int64_t ldo)
{
    const int halves = HALVES(type);
    const float *unit = wide_units(tile), *back = wide_back(tile);
    for (int b = 0; b < K / BLOCK; b++) {
        const uint8_t *block = panel + b * DIGIT_BLOCK(type), *x = tile + (int64_t)b * DIGIT_ROWS;
        UNROLLED
        for (int h = 0; h < halves; h++)
            digit_half(type, cols, h, block, x, unit + b * TILE, out, ldo, b + h > 0);
        if (FINE && wide_with_fine(tile)[b])
            digit_finish(type, cols, block, wide_fine(tile) + b * TILE * BLOCK, unit + b * TILE,
                         out, ldo);
    }
    UNROLLED
    for (int t = 0; t < TILE; t++) {
        for (int c = 0; c < cols * PANEL; c += PANEL) {
            __m512 v = _mm512_mul_ps(_mm512_loadu_ps(out + c), _mm512_set1_ps(back[2 * t]));
            _mm512_storeu_ps(out + c, _mm512_mul_ps(v, _mm512_set1_ps(back[2 * t + 1])));
        }
        out += ldo;
    }
}

/* The same for the tile at token t0 and any number of panels from slot `slot`; returns how many of
 * its tokens are real. */
INLINE int wide_tile(const struct wide *w, const int type, int slot, int panels, int t0, float *out,
                     int64_t ldo)
{
    const uint8_t *tile = w->tiles + t0 / TILE * wide_tile_bytes();
    const uint8_t *panel = w->panels + slot * wide_panel_bytes(type);
    int p = 0;
    for (; p + COLS <= panels; p += COLS)
        wide_digits_panels(type, COLS, panel + p * wide_panel_bytes(type), tile,
                           out + (int64_t)p * PANEL, ldo);
    for (; COLS > 1 && p < panels; p++)
        wide_digits_panels(type, 1, panel + p * wide_panel_bytes(type), tile,
                           out + (int64_t)p * PANEL, ldo);
    return w->t1 - t0 < TILE ? w->t1 - t0 : TILE;
}

#endif
