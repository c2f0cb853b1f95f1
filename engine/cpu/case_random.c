/* SPDX-License-Identifier: Apache-2.0 */
/* case_random.c - inputs that look for trouble.
 *
 * Weights are drawn in the stored format, not quantized from floats: every bit pattern of a block
 * turns up (all nibbles, high bits, sub-scales), which real weights alone do not promise.
 */
#include "engine/cpu/case_random.h"

#include <math.h>
#include <string.h>

#include "config/table.h"
#include "engine/quant.h"

uint64_t random_u64(struct random *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

double random_unit(struct random *r)
{
    return (double)(random_u64(r) >> 11) * 0x1p-53;
}

/* Sum of four uniforms: one word a number, and near enough to a bell for test data. */
float random_normal(struct random *r)
{
    uint64_t u = random_u64(r);
    int32_t sum = (int32_t)(u & 0xffff) + (int32_t)(u >> 16 & 0xffff) +
                  (int32_t)(u >> 32 & 0xffff) + (int32_t)(u >> 48);
    return ((float)sum - 131070.0f) * (1.7320508f / 65536.0f);
}

int32_t random_below(struct random *r, int32_t n)
{
    return (int32_t)(random_u64(r) % (uint64_t)n);
}

const char *fill_name(enum fill f)
{
    static const char *const name[] = {
        [FILL_NORMAL] = "normal",     [FILL_SMALL] = "small",     [FILL_LARGE] = "large",
        [FILL_SHIFTED] = "shifted",   [FILL_OUTLIER] = "outlier", [FILL_ZERO] = "zero",
        [FILL_DENORMAL] = "denormal", [FILL_BITS] = "bits",
    };
    EVERY_ROW(name, FILL_COUNT);
    return (unsigned)f < FILL_COUNT ? name[f] : "?";
}

static float draw(struct random *r, enum fill fill, bool outlier)
{
    float g = random_normal(r);
    switch (fill) {
    case FILL_SMALL:
        return 1e-4f * g;
    case FILL_LARGE:
        return 100 * g;
    case FILL_SHIFTED:
        return 50 + 0.1f * g;
    case FILL_OUTLIER:
        return outlier ? 1000 * g : g;
    case FILL_ZERO:
        return 0;
    case FILL_DENORMAL:
        return 1e-40f * g;
    case FILL_BITS:
        return g > 0;
    default:
        return g;
    }
}

void random_rows(struct random *r, enum fill fill, float *dst, int64_t rows, int64_t cols)
{
    int64_t outlier = random_below(r, (int32_t)cols);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            dst[i * cols + j] = draw(r, fill, j == outlier);
}

/* Where a block keeps its scale and offset (-1: none), how far its random integers spread around
 * their middle, and that middle: enough to scale blocks of random bytes to a wanted deviation. The
 * scale of MXFP4 is a power of two in one byte. */
static const struct form {
    int d_at, m_at;
    float spread, middle;
} form[] = {
    [DTYPE_Q8_0] = {0, -1, 74, 0},      [DTYPE_Q4_0] = {0, -1, 4.6f, 0},
    [DTYPE_Q4_1] = {0, 2, 4.6f, 7.5f},  [DTYPE_Q5_0] = {0, -1, 9.2f, 0},
    [DTYPE_Q5_1] = {0, 2, 9.2f, 15.5f}, [DTYPE_Q4_K] = {0, 2, 200, 7.5f},
    [DTYPE_Q6_K] = {208, -1, 1370, 0},  [DTYPE_Q5_K] = {0, 2, 400, 15.5f},
    [DTYPE_Q2_K] = {80, 82, 14, 1.5f},  [DTYPE_Q3_K] = {108, -1, 43, 0},
    [DTYPE_IQ4_NL] = {0, -1, 67, 0},    [DTYPE_IQ4_XS] = {0, -1, 1250, 0},
    [DTYPE_MXFP4] = {0, -1, 5.9f, 0},   [DTYPE_F8] = {0, -1, 105, 0},
};
EVERY_DTYPE(form);

static void put_f16(char *dst, float f)
{
    uint16_t h = f32_to_f16(f);
    memcpy(dst, &h, sizeof h);
}

/* A scale that is no half, and no code for what is no number. */
static void random_f8(struct random *r, char *block, float d, bool integers)
{
    static const uint8_t whole[] = {0x00, 0x38, 0x40, 0x44, 0x48, 0x4a, 0x4c, 0x4e, 0x50};
    float scale = integers ? 1 : d;

    memcpy(block, &scale, sizeof scale);
    for (int i = 4; i < DTYPE_BYTES(DTYPE_F8); i++) {
        if (integers)
            block[i] = (char)(whole[random_below(r, 9)] | (block[i] & 0x80));
        else if ((block[i] & 0x7f) == 0x7f)
            block[i] = (char)(block[i] ^ 1);
    }
}

static void random_block(struct random *r, enum dtype t, char *block, float deviation,
                         bool integers)
{
    int n = dtype_block_bytes(t);
    for (int i = 0; i < n; i += 8) {
        uint64_t word = random_u64(r);
        memcpy(block + i, &word, (size_t)(n - i < 8 ? n - i : 8));
    }
    for (int i = 2; t == DTYPE_Q8_0 && i < n; i++)
        if ((int8_t)block[i] == -128) /* quantizers never write it */
            block[i] = (char)-127;
    const struct form *f = &form[t];
    float d = deviation / f->spread * (0.5f + (float)random_unit(r));
    if (t == DTYPE_MXFP4) {
        block[0] = (char)(integers ? 128 : 128 + (int)lrintf(log2f(d)));
        return;
    }
    if (t == DTYPE_F8) {
        random_f8(r, block, d, integers);
        return;
    }
    put_f16(block + f->d_at, integers ? 1 : d);
    if (f->m_at < 0)
        return;
    if (t == DTYPE_Q4_K || t == DTYPE_Q5_K ||
        t == DTYPE_Q2_K) /* its offset is subtracted, and scaled by six bits of its own */
        put_f16(block + f->m_at, integers ? 1 : d * f->middle);
    else
        put_f16(block + f->m_at, integers ? -floorf(f->middle) : -d * f->middle);
}

static void random_plain(struct random *r, enum dtype t, char *dst, int64_t n, float deviation,
                         bool integers)
{
    for (int64_t i = 0; i < n; i++) {
        float v = integers ? (float)(random_below(r, 17) - 8) : deviation * random_normal(r);
        uint16_t h = t == DTYPE_F16 ? f32_to_f16(v) : f32_to_bf16(v);
        if (t == DTYPE_F32)
            memcpy(dst + i * 4, &v, 4);
        else
            memcpy(dst + i * 2, &h, 2);
    }
}

void random_weight(struct random *r, const struct weight *w, void *dst, bool integers)
{
    enum dtype t = (enum dtype)w->type;
    int64_t n = (int64_t)w->rows * w->cols;
    float deviation = 1 / sqrtf((float)w->cols);
    if (dtype_block(t) == 1) {
        random_plain(r, t, dst, n, deviation, integers);
        return;
    }
    char *block = dst;
    for (int64_t i = 0; i < n / dtype_block(t); i++)
        random_block(r, t, block + i * dtype_block_bytes(t), deviation, integers);
}
