/* SPDX-License-Identifier: Apache-2.0 */
/* quant.c - what a stored weight means.
 *
 * A block format stores 32 values as small integers q with one or two half-precision numbers; the
 * 256-value K formats add a second level, integer scales of sub-blocks under a shared half:
 *
 *   Q4_K { f16 d, dmin; u8 scales[12]; nibble q[256]; }      w = (d s_j) q - (dmin m_j), j = i / 32
 *   Q5_K { the same, and before q u8 high[32]: bit j of high[i % 32] is the fifth of q[i] }
 *   Q6_K { u8 low[128], high[64]; i8 s[16]; f16 d; }         w = (d s_j) (q - 32),       j = i / 16
 *
 * dequant_row() defines the value of every bit pattern, one rounding an operation: a product and a
 * sum are never fused here (build with -ffp-contract=off), so kernels that follow the same order
 * get the same bits on every instruction set. The reading of the formats is held against the gguf
 * Python package by tests/golden/quant.json.
 *
 * quant_row() exists for fixtures, tests and conversion. For Q8_0 it rounds as the reference does;
 * K formats get a plain min/max fit, not a search for the least error.
 *
 * Blocks have an alignment of 2 at best, so multi-byte fields are moved with memcpy.
 */
#include "engine/quant.h"

#include <math.h>
#include <string.h>

enum { QK = DTYPE_BLOCK(DTYPE_Q8_0), QK_K = DTYPE_BLOCK(DTYPE_Q4_K) };

static const struct {
    const char *name;
    int block, bytes;
} formats[] = {
#define FORMAT(t, number, name, block, bytes) [number] = {#name, block, bytes},
    DTYPES(FORMAT, 0)
#undef FORMAT
};

const char *dtype_name(enum dtype t)
{
    return (unsigned)t < DTYPE_COUNT ? formats[t].name : "?";
}

int dtype_block(enum dtype t)
{
    return formats[t].block;
}

int dtype_block_bytes(enum dtype t)
{
    return formats[t].bytes;
}

int64_t dtype_bytes(enum dtype t, int64_t n)
{
    return n / formats[t].block * formats[t].bytes;
}

/* ---- half precision ------------------------------------------------------------------------ */

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = h >> 10 & 31, fraction = h & 1023;

    if (exponent == 0) /* zero and subnormals: fraction * 2^-24, exact in a float */
        return float_of(sign | bits_of((float)fraction * 0x1p-24f));
    if (exponent == 31)
        return float_of(sign | 0x7f800000 | fraction << 13);
    return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

uint16_t f32_to_f16(float f)
{
    uint32_t bits = bits_of(f), size = bits & 0x7fffffff;
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);

    if (size > 0x7f800000) /* a quiet NaN that keeps the top of its payload */
        return (uint16_t)(sign | 0x7e00 | (size >> 13 & 0x1ff));
    if (size >= 0x477ff000) /* 65520 and more round to infinity */
        return sign | 0x7c00;
    if (size <
        0x38800000) /* below 2^-14; one ulp of [0.5, 1) is 2^-24: the sum does the rounding */
        return (uint16_t)(sign | (bits_of(float_of(size) + 0.5f) - bits_of(0.5f)));
    size += 0xfff + (size >> 13 & 1);
    return (uint16_t)(sign | ((size >> 13) - (112 << 10)));
}

float bf16_to_f32(uint16_t h)
{
    return float_of((uint32_t)h << 16);
}

uint16_t f32_to_bf16(float f)
{
    uint32_t bits = bits_of(f);

    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 64);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static uint16_t load16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static float load_half(const uint8_t *p)
{
    return f16_to_f32(load16(p));
}

static void store_half(uint8_t *p, float f)
{
    uint16_t v = f32_to_f16(f);
    memcpy(p, &v, sizeof v);
}

/* ---- stored to float: one block each -------------------------------------------------------- */

static void dequant_q8_0(const uint8_t *b, float *w)
{
    float d = load_half(b);
    for (int i = 0; i < QK; i++)
        w[i] = d * (float)(int8_t)b[2 + i];
}

static void dequant_q4_0(const uint8_t *b, float *w)
{
    float d = load_half(b);
    for (int i = 0; i < QK / 2; i++) {
        w[i] = d * (float)((b[2 + i] & 15) - 8);
        w[i + QK / 2] = d * (float)((b[2 + i] >> 4) - 8);
    }
}

static void dequant_q4_1(const uint8_t *b, float *w)
{
    float d = load_half(b), m = load_half(b + 2);
    for (int i = 0; i < QK / 2; i++) {
        float low = d * (float)(b[4 + i] & 15), high = d * (float)(b[4 + i] >> 4);
        w[i] = low + m;
        w[i + QK / 2] = high + m;
    }
}

/* The five-bit values of Q5_0 and Q5_1: `high` is four bytes of fifth bits, `q` the nibbles. */
static void unpack_q5(const uint8_t *high, const uint8_t *q, int v[QK])
{
    uint32_t fifth;
    memcpy(&fifth, high, sizeof fifth);
    for (int i = 0; i < QK / 2; i++) {
        v[i] = (q[i] & 15) | (int)(fifth >> i & 1) << 4;
        v[i + QK / 2] = q[i] >> 4 | (int)(fifth >> (i + QK / 2) & 1) << 4;
    }
}

static void dequant_q5_0(const uint8_t *b, float *w)
{
    int v[QK];
    float d = load_half(b);
    unpack_q5(b + 2, b + 6, v);
    for (int i = 0; i < QK; i++)
        w[i] = d * (float)(v[i] - 16);
}

static void dequant_q5_1(const uint8_t *b, float *w)
{
    int v[QK];
    float d = load_half(b), m = load_half(b + 2);
    unpack_q5(b + 4, b + 8, v);
    for (int i = 0; i < QK; i++) {
        float scaled = d * (float)v[i];
        w[i] = scaled + m;
    }
}

/* Six-bit scale and minimum of sub-block j: 0..3 lie in bytes j and j + 4; the low nibbles of 4..7
 * in byte j + 4, their top two bits in the top of bytes j - 4 and j. */
static void q4_k_scale(const uint8_t *s, int j, int *scale, int *minimum)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *minimum = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *minimum = s[j + 4] >> 4 | (s[j] >> 6) << 4;
    }
}

static void dequant_q4_k(const uint8_t *b, float *w)
{
    float d = load_half(b), dmin = load_half(b + 2);
    const uint8_t *q = b + 16;

    for (int j = 0; j < 8; j++) { /* two sub-blocks share 32 bytes: low nibbles, then high */
        int scale, minimum;
        q4_k_scale(b + 4, j, &scale, &minimum);
        float ds = d * (float)scale, m = dmin * (float)minimum;
        for (int i = 0; i < 32; i++) {
            float scaled = ds * (float)(q[j / 2 * 32 + i] >> (j & 1) * 4 & 15);
            w[j * 32 + i] = scaled - m;
        }
    }
}

static void dequant_q5_k(const uint8_t *b, float *w)
{
    float d = load_half(b), dmin = load_half(b + 2);
    const uint8_t *high = b + 16, *q = b + 48;

    for (int j = 0; j < 8; j++) {
        int scale, minimum;
        q4_k_scale(b + 4, j, &scale, &minimum);
        float ds = d * (float)scale, m = dmin * (float)minimum;
        for (int i = 0; i < 32; i++) {
            int code = (q[j / 2 * 32 + i] >> (j & 1) * 4 & 15) | (high[i] >> j & 1) << 4;
            float scaled = ds * (float)code;
            w[j * 32 + i] = scaled - m;
        }
    }
}

static void dequant_q6_k(const uint8_t *b, float *w)
{
    const uint8_t *low = b, *high = b + 128, *scale = b + 192;
    float d = load_half(b + 208);

    for (int i = 0; i < QK_K; i++) {
        /* In each half of 128: 64 bytes of low nibbles hold i and i + 64, 32 bytes of high bits
         * hold i, i + 32, i + 64 and i + 96. */
        int half = i / 128, r = i % 128;
        int q = low[half * 64 + r % 64] >> r / 64 * 4 & 15;
        q |= (high[half * 32 + r % 32] >> r / 32 * 2 & 3) << 4;
        float ds = d * (float)(int8_t)scale[i / 16];
        w[i] = ds * (float)(q - 32);
    }
}

void dequant_row(enum dtype t, const void *src, float *dst, int64_t n)
{
    static void (*const block[])(const uint8_t *, float *) = {
        [DTYPE_Q8_0] = dequant_q8_0, [DTYPE_Q4_0] = dequant_q4_0, [DTYPE_Q4_1] = dequant_q4_1,
        [DTYPE_Q5_0] = dequant_q5_0, [DTYPE_Q5_1] = dequant_q5_1, [DTYPE_Q4_K] = dequant_q4_k,
        [DTYPE_Q6_K] = dequant_q6_k, [DTYPE_Q5_K] = dequant_q5_k,
    };
    EVERY_DTYPE(block);
    const uint8_t *s = src;

    if (t == DTYPE_F32) {
        memcpy(dst, src, (size_t)n * sizeof *dst);
    } else if (t == DTYPE_F16) {
        for (int64_t i = 0; i < n; i++)
            dst[i] = f16_to_f32(load16(s + 2 * i));
    } else if (t == DTYPE_BF16) {
        for (int64_t i = 0; i < n; i++)
            dst[i] = bf16_to_f32(load16(s + 2 * i));
    } else {
        for (int64_t i = 0; i < n; i += formats[t].block, s += formats[t].bytes)
            block[t](s, dst + i);
    }
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

void quant_row(enum dtype t, const float *src, void *dst, int64_t n)
{
    static void (*const block[])(const float *, uint8_t *) = {
        [DTYPE_Q8_0] = quant_q8_0, [DTYPE_Q4_0] = quant_q4_0, [DTYPE_Q4_1] = quant_q4_1,
        [DTYPE_Q5_0] = quant_q5_0, [DTYPE_Q5_1] = quant_q5_1, [DTYPE_Q4_K] = quant_q4_k,
        [DTYPE_Q6_K] = quant_q6_k, [DTYPE_Q5_K] = quant_q5_k,
    };
    EVERY_DTYPE(block);
    uint8_t *d = dst;

    if (t == DTYPE_F32) {
        memcpy(dst, src, (size_t)n * sizeof *src);
    } else if (t == DTYPE_F16 || t == DTYPE_BF16) {
        for (int64_t i = 0; i < n; i++) {
            uint16_t v = t == DTYPE_F16 ? f32_to_f16(src[i]) : f32_to_bf16(src[i]);
            memcpy(d + 2 * i, &v, sizeof v);
        }
    } else {
        for (int64_t i = 0; i < n; i += formats[t].block, d += formats[t].bytes)
            block[t](src + i, d);
    }
}
