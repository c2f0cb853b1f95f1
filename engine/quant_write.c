/* SPDX-License-Identifier: Apache-2.0 */
/* quant_write.c - floats to stored weights: for fixtures, tests and random models.
 *
 * Where the gguf Python package can write a format, this rounds as it does (golden/quant.json). The
 * others, K formats and the IQ4 ones, get a plain fit of scales to the extremes, not a search for
 * the least error. Layouts: quant.c.
 */
#include <math.h>
#include <string.h>

#include "engine/quant.h"

enum { QK = DTYPE_BLOCK(DTYPE_Q8_0), QK_K = DTYPE_BLOCK(DTYPE_Q4_K) };

static float load_half(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return f16_to_f32(v);
}

static void store_half(uint8_t *p, float f)
{
    uint16_t v = f32_to_f16(f);
    memcpy(p, &v, sizeof v);
}

/* ---- float to stored: one block each -------------------------------------------------------- */

static int clamp(int v, int low, int high)
{
    return v < low ? low : v > high ? high : v;
}

static void range_of(const float *w, int n, float *least, float *most)
{
    *least = *most = w[0];
    for (int i = 1; i < n; i++) {
        *least = w[i] < *least ? w[i] : *least;
        *most = w[i] > *most ? w[i] : *most;
    }
}

/* The value of largest magnitude, with its sign: symmetric formats map it to their lowest code,
 * which reaches one step further than the highest. */
static float extreme_of(const float *w, int n)
{
    float e = w[0];
    for (int i = 1; i < n; i++)
        e = fabsf(w[i]) > fabsf(e) ? w[i] : e;
    return e;
}

/* 1/d, and 0 where that is no finite number: a block of zeros or next to zeros. */
static float inverse(float d)
{
    return fabsf(d) >= 0x1p-126f ? 1 / d : 0;
}

static void quant_q8_0(const float *w, uint8_t *b)
{
    float d = fabsf(extreme_of(w, QK)) / 127, id = inverse(d);
    store_half(b, d);
    for (int i = 0; i < QK; i++)
        b[2 + i] = (uint8_t)(int8_t)clamp((int)roundf(w[i] * id), -127, 127);
}

static void quant_q4_0(const float *w, uint8_t *b)
{
    float d = extreme_of(w, QK) / -8, id = inverse(d);
    store_half(b, d);
    for (int i = 0; i < QK / 2; i++) {
        int low = clamp((int)(w[i] * id + 8.5f), 0, 15);
        int high = clamp((int)(w[i + QK / 2] * id + 8.5f), 0, 15);
        b[2 + i] = (uint8_t)(low | high << 4);
    }
}

static void quant_q4_1(const float *w, uint8_t *b)
{
    float least, most;
    range_of(w, QK, &least, &most);
    float d = (most - least) / 15, id = inverse(d);
    store_half(b, d);
    store_half(b + 2, least);
    for (int i = 0; i < QK / 2; i++) {
        int low = clamp((int)((w[i] - least) * id + 0.5f), 0, 15);
        int high = clamp((int)((w[i + QK / 2] - least) * id + 0.5f), 0, 15);
        b[4 + i] = (uint8_t)(low | high << 4);
    }
}

static void pack_q5(const int v[QK], uint8_t *high, uint8_t *q)
{
    uint32_t fifth = 0;
    for (int i = 0; i < QK / 2; i++)
        q[i] = (uint8_t)((v[i] & 15) | (v[i + QK / 2] & 15) << 4);
    for (int i = 0; i < QK; i++)
        fifth |= (uint32_t)(v[i] >> 4) << i;
    memcpy(high, &fifth, sizeof fifth);
}

static void quant_q5_0(const float *w, uint8_t *b)
{
    int v[QK];
    float d = extreme_of(w, QK) / -16, id = inverse(d);
    store_half(b, d);
    for (int i = 0; i < QK; i++)
        v[i] = clamp((int)(w[i] * id + 16.5f), 0, 31);
    pack_q5(v, b + 2, b + 6);
}

static void quant_q5_1(const float *w, uint8_t *b)
{
    int v[QK];
    float least, most;
    range_of(w, QK, &least, &most);
    float d = (most - least) / 31, id = inverse(d);
    store_half(b, d);
    store_half(b + 2, least);
    for (int i = 0; i < QK; i++)
        v[i] = clamp((int)((w[i] - least) * id + 0.5f), 0, 31);
    pack_q5(v, b + 4, b + 8);
}

/* Inverse of q4_k_scale() for all eight sub-blocks. */
static void pack_q4_k_scales(const int scale[8], const int minimum[8], uint8_t *s)
{
    for (int j = 0; j < 4; j++) {
        s[j] = (uint8_t)(scale[j] | scale[j + 4] >> 4 << 6);
        s[j + 4] = (uint8_t)(minimum[j] | minimum[j + 4] >> 4 << 6);
        s[j + 8] = (uint8_t)((scale[j + 4] & 15) | (minimum[j + 4] & 15) << 4);
    }
}

/* Q4_K and Q5_K: the fit of all sub-blocks, with codes up to `most_code`, and the first 16 bytes.
 * What a code of sub-block j is to be is in inverse_of[j] and offset[j]. */
static void fit_k(const float *w, int most_code, uint8_t *b, float *inverse_of, float *offset)
{
    float step[8], below[8], least, most, top_step = 0, top_below = 0;
    int scale[8], minimum[8];

    for (int j = 0; j < 8; j++) { /* the format has no positive minimum: 0 is always in range */
        range_of(w + j * 32, 32, &least, &most);
        below[j] = least < 0 ? -least : 0;
        step[j] = (most + below[j] > 0 ? most + below[j] : 0) / (float)most_code;
        top_step = step[j] > top_step ? step[j] : top_step;
        top_below = below[j] > top_below ? below[j] : top_below;
    }
    store_half(b, top_step / 63);
    store_half(b + 2, top_below / 63);
    float d = load_half(b), dmin = load_half(b + 2);
    for (int j = 0; j < 8; j++) {
        scale[j] = clamp((int)(step[j] * inverse(d) + 0.5f), 0, 63);
        minimum[j] = clamp((int)(below[j] * inverse(dmin) + 0.5f), 0, 63);
    }
    pack_q4_k_scales(scale, minimum, b + 4);
    for (int j = 0; j < 8; j++) {
        inverse_of[j] = inverse(d * (float)scale[j]);
        offset[j] = dmin * (float)minimum[j];
    }
}

static void quant_q4_k(const float *w, uint8_t *b)
{
    float id[8], m[8];

    fit_k(w, 15, b, id, m);
    memset(b + 16, 0, QK_K / 2);
    for (int i = 0; i < QK_K; i++) {
        int j = i / 32, q = clamp((int)((w[i] + m[j]) * id[j] + 0.5f), 0, 15);
        b[16 + j / 2 * 32 + i % 32] |= (uint8_t)(q << (j & 1) * 4);
    }
}

static void quant_q5_k(const float *w, uint8_t *b)
{
    float id[8], m[8];

    fit_k(w, 31, b, id, m);
    memset(b + 16, 0, QK_K / 8 + QK_K / 2);
    for (int i = 0; i < QK_K; i++) {
        int j = i / 32, q = clamp((int)((w[i] + m[j]) * id[j] + 0.5f), 0, 31);
        b[16 + i % 32] |= (uint8_t)(q >> 4 << j);
        b[48 + j / 2 * 32 + i % 32] |= (uint8_t)((q & 15) << (j & 1) * 4);
    }
}

static void quant_q6_k(const float *w, uint8_t *b)
{
    float step[16], top = 0;

    for (int j = 0; j < 16; j++) {
        step[j] = extreme_of(w + j * 16, 16) / -32;
        top = fabsf(step[j]) > fabsf(top) ? step[j] : top;
    }
    memset(b, 0, DTYPE_BYTES(DTYPE_Q6_K));
    store_half(b + 208, top / -128);
    float d = load_half(b + 208);
    for (int j = 0; j < 16; j++)
        b[192 + j] = (uint8_t)(int8_t)clamp((int)roundf(step[j] * inverse(d)), -128, 127);
    for (int i = 0; i < QK_K; i++) {
        float id = inverse(d * (float)(int8_t)b[192 + i / 16]);
        int q = clamp((int)roundf(w[i] * id) + 32, 0, 63), half = i / 128, r = i % 128;
        b[half * 64 + r % 64] |= (uint8_t)((q & 15) << r / 64 * 4);
        b[128 + half * 32 + r % 32] |= (uint8_t)(q >> 4 << r / 32 * 2);
    }
}

/* Two-bit code i, as quant.c reads it, into bytes that are zero. */
static void put_two_bits(uint8_t *q, int i, int code)
{
    q[i / 128 * 32 + i % 32] |= (uint8_t)(code << i % 128 / 32 * 2);
}

static void quant_q2_k(const float *w, uint8_t *b)
{
    float step[16], below[16], least, most, top_step = 0, top_below = 0;

    for (int j = 0; j < 16; j++) { /* the format has no positive minimum: 0 is always in range */
        range_of(w + j * 16, 16, &least, &most);
        below[j] = least < 0 ? -least : 0;
        step[j] = (most + below[j] > 0 ? most + below[j] : 0) / 3;
        top_step = step[j] > top_step ? step[j] : top_step;
        top_below = below[j] > top_below ? below[j] : top_below;
    }
    memset(b, 0, DTYPE_BYTES(DTYPE_Q2_K));
    store_half(b + 80, top_step / 15);
    store_half(b + 82, top_below / 15);
    float d = load_half(b + 80), dmin = load_half(b + 82);
    for (int j = 0; j < 16; j++) {
        int scale = clamp((int)(step[j] * inverse(d) + 0.5f), 0, 15);
        int minimum = clamp((int)(below[j] * inverse(dmin) + 0.5f), 0, 15);
        b[j] = (uint8_t)(scale | minimum << 4);
    }
    for (int i = 0; i < QK_K; i++) {
        float id = inverse(d * (float)(b[i / 16] & 15)), m = dmin * (float)(b[i / 16] >> 4);
        put_two_bits(b + 16, i, clamp((int)((w[i] + m) * id + 0.5f), 0, 3));
    }
}

/* Scales of `n` sub-blocks of `size` values as six-bit numbers 0 .. 63 that stand for -32 .. 31, so
 * that the sub-block's extreme becomes `lowest`. Returns what they multiply. */
static float fit_signed(const float *w, int n, int size, float lowest, int *scale)
{
    float step[16], top = 0;

    for (int j = 0; j < n; j++) {
        step[j] = extreme_of(w + j * size, size) / lowest;
        top = fabsf(step[j]) > fabsf(top) ? step[j] : top;
    }
    float d = f16_to_f32(f32_to_f16(top / -32));
    for (int j = 0; j < n; j++)
        scale[j] = clamp((int)roundf(step[j] * inverse(d)), -32, 31) + 32;
    return d;
}

static void quant_q3_k(const float *w, uint8_t *b)
{
    int scale[16];
    float d = fit_signed(w, 16, 16, -4, scale);

    memset(b, 0, DTYPE_BYTES(DTYPE_Q3_K));
    store_half(b + 108, d);
    for (int j = 0; j < 16; j++) {
        b[96 + j % 8] |= (uint8_t)((scale[j] & 15) << j / 8 * 4);
        b[104 + j % 4] |= (uint8_t)(scale[j] >> 4 << j / 4 * 2);
    }
    for (int i = 0; i < QK_K; i++) {
        float id = inverse(d * (float)(scale[i / 16] - 32));
        int q = clamp((int)roundf(w[i] * id) + 4, 0, 7);
        put_two_bits(b + 32, i, q & 3);
        b[i % 32] |= (uint8_t)(q >> 2 << i / 32);
    }
}

/* 32 codes: of each value the entry of the table that is nearest to it, the first of two. */
static void put_nearest(const float *w, float d, const float *table, uint8_t *q)
{
    memset(q, 0, QK / 2);
    for (int i = 0; i < QK; i++) {
        int best = 0;
        for (int k = 1; k < 16; k++)
            best = fabsf(d * table[k] - w[i]) < fabsf(d * table[best] - w[i]) ? k : best;
        q[i % (QK / 2)] |= (uint8_t)(best << i / (QK / 2) * 4);
    }
}

static void quant_iq4_nl(const float *w, uint8_t *b)
{
    store_half(b, extreme_of(w, QK) / iq4_values[0]);
    put_nearest(w, load_half(b), iq4_values, b + 2);
}

static void quant_iq4_xs(const float *w, uint8_t *b)
{
    int scale[8];
    float d = fit_signed(w, 8, 32, iq4_values[0], scale);
    uint16_t high = 0;

    memset(b, 0, DTYPE_BYTES(DTYPE_IQ4_XS));
    store_half(b, d);
    for (int j = 0; j < 8; j++) {
        high |= (uint16_t)(scale[j] >> 4 << 2 * j);
        b[4 + j / 2] |= (uint8_t)((scale[j] & 15) << j % 2 * 4);
        put_nearest(w + 32 * j, d * (float)(scale[j] - 32), iq4_values, b + 8 + 16 * j);
    }
    memcpy(b + 2, &high, sizeof high);
}

/* The power of two that leaves the largest value between 4 and 8, of which 6 is the format's most.
 */
static void quant_mxfp4(const float *w, uint8_t *b)
{
    float most = fabsf(extreme_of(w, QK));
    int exponent;

    frexpf(most, &exponent);
    b[0] = (uint8_t)(most > 0 ? clamp(exponent - 3 + 127, 0, 254) : 0);
    put_nearest(w, mxfp4_scale(b[0]), mxfp4_values, b + 1);
}

/* Round to nearest even, at most 448. */
static uint8_t f32_to_e4m3(float f)
{
    float size = fabsf(f) < 448 ? fabsf(f) : 448;
    uint32_t bits, sign = signbit(f) ? 0x80 : 0;

    if (size < 0x1p-6f) /* subnormal: a multiple of 2^-9 */
        return (uint8_t)(sign | (uint32_t)rintf(size * 512));
    memcpy(&bits, &size, sizeof bits);
    bits += 0x7ffff + (bits >> 20 & 1);
    return (uint8_t)(sign | ((bits >> 20) - (120 << 3)));
}

/* `n` values that share a scale. */
static void quant_f8(const float *w, uint8_t *b, int n)
{
    float d = fabsf(extreme_of(w, n)) / 448;
    for (int i = 0; i < n; i++) {
        if (i % QK == 0)
            memcpy(b + i / QK * (4 + QK), &d, sizeof d);
        b[i / QK * (4 + QK) + 4 + i % QK] = inverse(d) != 0 ? f32_to_e4m3(w[i] / d) : 0;
    }
}

/* With a scale for 128 columns, the finest that checkpoints have. */
static void quant_row_f8(const float *src, uint8_t *d, int64_t n)
{
    enum { COLUMNS = 128 };
    for (int64_t i = 0; i < n; i += COLUMNS)
        quant_f8(src + i, d + i / QK * (4 + QK), n - i < COLUMNS ? (int)(n - i) : COLUMNS);
}

void quant_row(enum dtype t, const float *src, void *dst, int64_t n)
{
    static void (*const block[])(const float *, uint8_t *) = {
        [DTYPE_Q8_0] = quant_q8_0,     [DTYPE_Q4_0] = quant_q4_0,
        [DTYPE_Q4_1] = quant_q4_1,     [DTYPE_Q5_0] = quant_q5_0,
        [DTYPE_Q5_1] = quant_q5_1,     [DTYPE_Q4_K] = quant_q4_k,
        [DTYPE_Q6_K] = quant_q6_k,     [DTYPE_Q5_K] = quant_q5_k,
        [DTYPE_Q2_K] = quant_q2_k,     [DTYPE_Q3_K] = quant_q3_k,
        [DTYPE_IQ4_NL] = quant_iq4_nl, [DTYPE_IQ4_XS] = quant_iq4_xs,
        [DTYPE_MXFP4] = quant_mxfp4,   [DTYPE_F8] = NULL, /* quant_row_f8() */
    };
    EVERY_DTYPE(block);
    uint8_t *d = dst;

    if (t == DTYPE_F8) {
        quant_row_f8(src, d, n);
    } else if (t == DTYPE_F32) {
        memcpy(dst, src, (size_t)n * sizeof *src);
    } else if (t == DTYPE_F16 || t == DTYPE_BF16) {
        for (int64_t i = 0; i < n; i++) {
            uint16_t v = t == DTYPE_F16 ? f32_to_f16(src[i]) : f32_to_bf16(src[i]);
            memcpy(d + 2 * i, &v, sizeof v);
        }
    } else {
        for (int64_t i = 0; i < n; i += dtype_block(t), d += dtype_block_bytes(t))
            block[t](src + i, d);
    }
}
