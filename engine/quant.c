/* SPDX-License-Identifier: Apache-2.0 */
/* quant.c - what a stored weight means.
 *
 * A block format stores 32 values as small integers q with one or two half-precision numbers; the
 * 256-value K formats add a second level, integer scales of sub-blocks under a shared half:
 *
 *   Q4_K { f16 d, dmin; u8 scales[12]; nibble q[256]; }      w = (d s_j) q - (dmin m_j), j = i / 32
 *   Q5_K { the same, and before q u8 high[32]: bit j of high[i % 32] is the fifth of q[i] }
 *   Q6_K { u8 low[128], high[64]; i8 s[16]; f16 d; }         w = (d s_j) (q - 32),       j = i / 16
 *   Q2_K { u8 s[16]; q2 q[256]; f16 d, dmin; }   w = (d (s_j & 15)) q - dmin (s_j >> 4), j = i / 16
 *   Q3_K { u8 third[32]; q2 q[256]; u8 s[12]; f16 d; }  w = (d (s_j - 32)) (q - 4),   j = i / 16
 *   IQ4_XS { f16 d; u16 high; u8 low[4]; nibble q[256]; } w = (d (s_j - 32)) table[q], j = i / 32
 *
 * IQ4_NL and IQ4_XS look their four bits up in a table of 16 numbers; MXFP4 (OCP Microscaling
 * Formats 1.0) is a float of four bits, s eem, and a power of two for 32 of them.
 *
 * dequant_row() defines the value of every bit pattern, one rounding an operation: a product and a
 * sum are never fused here (build with -ffp-contract=off), so kernels that follow the same order
 * get the same bits on every instruction set. The reading of the formats is held against the gguf
 * Python package by tests/golden/quant.json.
 *
 * quant_row() is in quant_write.c.
 *
 * Blocks have an alignment of 2 at best, so multi-byte fields are moved with memcpy.
 */
#include "engine/quant.h"

#include <string.h>

#include "engine/wider.h"

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

/* ---- stored to float: one block each -------------------------------------------------------- */

FOR_WIDER_CORES static void dequant_q8_0(const uint8_t *b, float *w)
{
    float d = load_half(b);
    for (int i = 0; i < QK; i++)
        w[i] = d * (float)(int8_t)b[2 + i];
}

FOR_WIDER_CORES static void dequant_q4_0(const uint8_t *b, float *w)
{
    float d = load_half(b);
    for (int i = 0; i < QK / 2; i++) {
        w[i] = d * (float)((b[2 + i] & 15) - 8);
        w[i + QK / 2] = d * (float)((b[2 + i] >> 4) - 8);
    }
}

FOR_WIDER_CORES static void dequant_q4_1(const uint8_t *b, float *w)
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

FOR_WIDER_CORES static void dequant_q5_0(const uint8_t *b, float *w)
{
    int v[QK];
    float d = load_half(b);
    unpack_q5(b + 2, b + 6, v);
    for (int i = 0; i < QK; i++)
        w[i] = d * (float)(v[i] - 16);
}

FOR_WIDER_CORES static void dequant_q5_1(const uint8_t *b, float *w)
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

FOR_WIDER_CORES static void dequant_q4_k(const uint8_t *b, float *w)
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

FOR_WIDER_CORES static void dequant_q5_k(const uint8_t *b, float *w)
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

FOR_WIDER_CORES static void dequant_q6_k(const uint8_t *b, float *w)
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

/* Two-bit code i of Q2_K and Q3_K: in each half of 128, 32 bytes hold i, i + 32, i + 64, i + 96. */
static int two_bits(const uint8_t *q, int i)
{
    return q[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
}

static void dequant_q2_k(const uint8_t *b, float *w)
{
    float d = load_half(b + 80), dmin = load_half(b + 82);

    for (int i = 0; i < QK_K; i++) {
        float ds = d * (float)(b[i / 16] & 15), m = dmin * (float)(b[i / 16] >> 4);
        float scaled = ds * (float)two_bits(b + 16, i);
        w[i] = scaled - m;
    }
}

/* Six-bit scale j of 16: its low nibble in byte j % 8, the two bits above in byte 8 + j % 4. */
static int q3_k_scale(const uint8_t *s, int j)
{
    return (s[j % 8] >> j / 8 * 4 & 15) | (s[8 + j % 4] >> j / 4 * 2 & 3) << 4;
}

static void dequant_q3_k(const uint8_t *b, float *w)
{
    float d = load_half(b + 108);

    for (int i = 0; i < QK_K; i++) {
        float ds = d * (float)(q3_k_scale(b + 96, i / 16) - 32);
        int q = two_bits(b + 32, i) | (b[i % 32] >> i / 32 & 1) << 2;
        w[i] = ds * (float)(q - 4);
    }
}

const float iq4_values[16] = {IQ4_VALUES};
const float mxfp4_values[16] = {MXFP4_VALUES};

static void dequant_table(const uint8_t *q, float d, const float *table, float *w)
{
    for (int i = 0; i < QK / 2; i++) {
        w[i] = d * table[q[i] & 15];
        w[i + QK / 2] = d * table[q[i] >> 4];
    }
}

static void dequant_iq4_nl(const uint8_t *b, float *w)
{
    dequant_table(b + 2, load_half(b), iq4_values, w);
}

static void dequant_iq4_xs(const uint8_t *b, float *w)
{
    float d = load_half(b);

    for (int j = 0; j < 8; j++) {
        int s = (b[4 + j / 2] >> j % 2 * 4 & 15) | (load16(b + 2) >> 2 * j & 3) << 4;
        dequant_table(b + 8 + 16 * j, d * (float)(s - 32), iq4_values, w + 32 * j);
    }
}

static void dequant_mxfp4(const uint8_t *b, float *w)
{
    dequant_table(b + 1, mxfp4_scale(b[0]), mxfp4_values, w);
}

float e4m3_to_f32(uint8_t q)
{
    return float_of((uint32_t)(q & 0x80) << 24 | (uint32_t)(q & 0x7f) << 20) * 0x1p120f;
}

static void dequant_f8(const uint8_t *b, float *w)
{
    float d;
    memcpy(&d, b, sizeof d);
    for (int i = 0; i < QK; i++)
        w[i] = d * e4m3_to_f32(b[4 + i]);
}

void dequant_row(enum dtype t, const void *src, float *dst, int64_t n)
{
    static void (*const block[])(const uint8_t *, float *) = {
        [DTYPE_Q8_0] = dequant_q8_0,     [DTYPE_Q4_0] = dequant_q4_0,
        [DTYPE_Q4_1] = dequant_q4_1,     [DTYPE_Q5_0] = dequant_q5_0,
        [DTYPE_Q5_1] = dequant_q5_1,     [DTYPE_Q4_K] = dequant_q4_k,
        [DTYPE_Q6_K] = dequant_q6_k,     [DTYPE_Q5_K] = dequant_q5_k,
        [DTYPE_Q2_K] = dequant_q2_k,     [DTYPE_Q3_K] = dequant_q3_k,
        [DTYPE_IQ4_NL] = dequant_iq4_nl, [DTYPE_IQ4_XS] = dequant_iq4_xs,
        [DTYPE_MXFP4] = dequant_mxfp4,   [DTYPE_F8] = dequant_f8,
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
