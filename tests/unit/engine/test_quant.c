/* SPDX-License-Identifier: Apache-2.0 */
/* test_quant.c - element formats against the gguf Python package and numpy (golden/quant.json,
 * written by scripts/make-golden-quant). */
#include "tests/unit/unit.h"

#include <math.h>

#include "engine/quant.h"
#include "tests/unit/engine/golden.h"

static enum dtype dtype_named(const char *name)
{
    for (int t = 0; t < DTYPE_COUNT; t++)
        if (!strcmp(dtype_name((enum dtype)t), name))
            return (enum dtype)t;
    fail_msg("no dtype is called %s", name);
    return DTYPE_COUNT;
}

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static void dequant_row_gives_the_floats_of_gguf_bit_for_bit(void **state)
{
    (void)state;
    cJSON *golden = golden_json("quant.json"), *entry;
    bool seen[DTYPE_COUNT] = {false};

    cJSON_ArrayForEach(entry, cJSON_GetObjectItem(golden, "dequantize"))
    {
        size_t n, bytes;
        enum dtype t = dtype_named(golden_string(entry, "type"));
        seen[t] = true;
        uint8_t *blocks = golden_hex(entry, "blocks", &bytes);
        uint8_t *expected = golden_hex(entry, "floats", &n);
        n /= sizeof(float);
        assert_int_equal(dtype_bytes(t, (int64_t)n), bytes);
        float *got = xmalloc(n * sizeof *got);
        dequant_row(t, blocks, got, (int64_t)n);
        for (size_t i = 0; i < n; i++) {
            uint32_t want;
            memcpy(&want, expected + 4 * i, 4);
            if (bits_of(got[i]) != want)
                fail_msg("%s value %zu: %a", dtype_name(t), i, (double)got[i]);
        }
        free(blocks);
        free(expected);
        free(got);
    }
    for (int t = 0; t < DTYPE_COUNT; t++)
        if (!seen[t])
            fail_msg("%s is not in tests/golden/quant.json: scripts/make-golden-quant",
                     dtype_name((enum dtype)t));
    cJSON_Delete(golden);
}

/* gguf cannot write K and IQ4 formats, so these are held to their resolution: a value is at most
 * half a step of its own sub-block away, plus what rounding scale and minimum to six bits costs. */
static const struct {
    enum dtype type;
    double most;
} bound[] = {{DTYPE_Q4_K, 0.21}, {DTYPE_Q5_K, 0.13},   {DTYPE_Q6_K, 0.06}, {DTYPE_Q2_K, 0.8},
             {DTYPE_Q3_K, 0.4},  {DTYPE_IQ4_NL, 0.27}, {DTYPE_IQ4_XS, 0.3}};

static void quant_row_writes_the_blocks_of_gguf(void **state)
{
    (void)state;
    cJSON *golden = golden_json("quant.json"), *entry;
    bool seen[DTYPE_COUNT] = {[DTYPE_F32] = true}; /* a copy */

    cJSON_ArrayForEach(entry, cJSON_GetObjectItem(golden, "quantize"))
    {
        size_t n, bytes;
        enum dtype t = dtype_named(golden_string(entry, "type"));
        seen[t] = true;
        uint8_t *floats = golden_hex(entry, "floats", &n);
        uint8_t *expected = golden_hex(entry, "blocks", &bytes);
        n /= sizeof(float);
        assert_int_equal(dtype_bytes(t, (int64_t)n), bytes);
        uint8_t *got = xmalloc(bytes);
        quant_row(t, (float *)(void *)floats, got, (int64_t)n);
        for (size_t i = 0; i < bytes; i++)
            if (got[i] != expected[i])
                fail_msg("%s byte %zu: %02x, expected %02x", dtype_name(t), i, got[i], expected[i]);
        free(floats);
        free(expected);
        free(got);
    }
    for (size_t k = 0; k < sizeof bound / sizeof *bound; k++)
        seen[bound[k].type] = true;
    for (int t = 0; t < DTYPE_COUNT; t++)
        if (!seen[t])
            fail_msg("what quant_row() writes of %s is compared with nothing: quantizations() in "
                     "scripts/make-golden-quant, or a bound here",
                     dtype_name((enum dtype)t));
    cJSON_Delete(golden);
}

static void fitted_formats_come_back_within_their_resolution(void **state)
{
    (void)state;
    float in[512], out[512];
    uint8_t blocks[2 * 210];

    for (int i = 0; i < 512; i++) /* smooth, both signs, sub-blocks of different size */
        in[i] = sinf((float)i * 0.37f) * (1 + (float)(i / 32 % 4)) * 0.5f + 0.1f;
    for (size_t k = 0; k < sizeof bound / sizeof *bound; k++) {
        double worst = 0;
        quant_row(bound[k].type, in, blocks, 512);
        dequant_row(bound[k].type, blocks, out, 512);
        for (int i = 0; i < 512; i++)
            worst = fmax(worst, fabs((double)in[i] - (double)out[i]));
        if (!(worst < bound[k].most))
            fail_msg("%s: %g away", dtype_name(bound[k].type), worst);
    }
}

static void blocks_of_zeros_come_back_as_zeros(void **state)
{
    (void)state;
    float in[256] = {0}, out[256];
    uint8_t blocks[1024];

    for (int t = 0; t < DTYPE_COUNT; t++) {
        quant_row((enum dtype)t, in, blocks, 256);
        for (int i = 0; i < 256; i++)
            out[i] = 1;
        dequant_row((enum dtype)t, blocks, out, 256);
        for (int i = 0; i < 256; i++)
            assert_true(out[i] == 0);
    }
}

static void blocks_of_subnormal_floats_stay_finite(void **state)
{
    (void)state;
    float in[256], out[256];
    uint8_t blocks[1024];

    for (int i = 0; i < 256; i++)
        in[i] = 1e-40f * (float)(i - 128);
    for (int t = 0; t < DTYPE_COUNT; t++) {
        quant_row((enum dtype)t, in, blocks, 256);
        dequant_row((enum dtype)t, blocks, out, 256);
        for (int i = 0; i < 256; i++)
            assert_true(fabsf(out[i]) < 1e-6f);
    }
}

static void f32_to_f16_rounds_to_nearest_even_as_numpy_does(void **state)
{
    (void)state;
    cJSON *golden = golden_json("quant.json"), *pair;
    int pairs = 0;

    cJSON_ArrayForEach(pair, cJSON_GetObjectItem(golden, "halves"))
    {
        uint32_t bits = (uint32_t)cJSON_GetArrayItem(pair, 0)->valuedouble;
        int half = cJSON_GetArrayItem(pair, 1)->valueint;
        float f;
        memcpy(&f, &bits, sizeof f);
        if (f32_to_f16(f) != half)
            fail_msg("%08x: %04x, expected %04x", bits, f32_to_f16(f), (unsigned)half);
        pairs++;
    }
    assert_true(pairs >= 100);
    cJSON_Delete(golden);
}

static void every_half_is_its_own_float_and_back(void **state)
{
    (void)state;
    for (unsigned h = 0; h < 65536; h++) {
        int exponent = h >> 10 & 31, fraction = h & 1023;
        double sign = h & 0x8000 ? -1 : 1;
        float f = f16_to_f32((uint16_t)h);
        if (exponent == 31 && fraction) {
            assert_true(isnan(f));
            assert_true(isnan(f16_to_f32(f32_to_f16(f))));
            continue;
        }
        double want = exponent == 31 ? INFINITY
                      : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                     : ldexp(fraction, -24);
        assert_true((double)f == sign * want);
        assert_int_equal(f32_to_f16(f), h);
    }
}

static void f32_to_bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    static const struct {
        uint32_t bits;
        uint16_t want;
    } cases[] = {
        {0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, /* a tie goes to the even neighbour */
        {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81}, {0x3f807fff, 0x3f80},
        {0x80000000, 0x8000}, {0x7f7fffff, 0x7f80}, /* the largest float is nearer to infinity */
        {0x7f800000, 0x7f80}, {0xff800000, 0xff80},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float f;
        memcpy(&f, &cases[i].bits, sizeof f);
        assert_int_equal(f32_to_bf16(f), cases[i].want);
    }
    assert_true(isnan(bf16_to_f32(f32_to_bf16(NAN))));
    for (unsigned h = 0; h < 65536; h++)
        if (!isnan(bf16_to_f32((uint16_t)h)))
            assert_int_equal(f32_to_bf16(bf16_to_f32((uint16_t)h)), h);
}

/* F8 is what checkpoints have, whose finest blocks are 128 columns wide. */
static void f8_has_a_scale_for_128_columns(void **state)
{
    (void)state;
    enum { COLS = 160 };
    float in[COLS], out[COLS];
    uint8_t blocks[COLS / 32 * 36];
    for (int i = 0; i < COLS; i++)
        in[i] = (float)(i - 64) / 8;
    quant_row(DTYPE_F8, in, blocks, COLS);
    for (int b = 0; b < COLS / 32; b++) {
        float scale;
        memcpy(&scale, blocks + 36 * b, sizeof scale);
        assert_float_equal(scale, (b < 4 ? 8.0f : 11.875f) / 448, 1e-9f);
    }
    dequant_row(DTYPE_F8, blocks, out, COLS);
    for (int i = 0; i < COLS; i++)
        assert_true(fabsf(out[i] - in[i]) <= fabsf(in[i]) / 16 + 1e-6f);
}

static void sizes_are_those_of_whole_blocks(void **state)
{
    (void)state;
    assert_int_equal(dtype_bytes(DTYPE_F32, 7), 28);
    assert_int_equal(dtype_bytes(DTYPE_BF16, 7), 14);
    assert_int_equal(dtype_bytes(DTYPE_Q4_1, 64), 40);
    assert_int_equal(dtype_bytes(DTYPE_Q4_K, 512), 288);
    assert_int_equal(dtype_bytes(DTYPE_Q6_K, (int64_t)256 << 32), (int64_t)210 << 32);
    assert_string_equal(dtype_name(DTYPE_Q5_0), "Q5_0");
    assert_string_equal(dtype_name((enum dtype)99), "?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dequant_row_gives_the_floats_of_gguf_bit_for_bit),
        cmocka_unit_test(quant_row_writes_the_blocks_of_gguf),
        cmocka_unit_test(fitted_formats_come_back_within_their_resolution),
        cmocka_unit_test(blocks_of_zeros_come_back_as_zeros),
        cmocka_unit_test(blocks_of_subnormal_floats_stay_finite),
        cmocka_unit_test(f32_to_f16_rounds_to_nearest_even_as_numpy_does),
        cmocka_unit_test(every_half_is_its_own_float_and_back),
        cmocka_unit_test(f32_to_bf16_rounds_to_nearest_even),
        cmocka_unit_test(f8_has_a_scale_for_128_columns),
        cmocka_unit_test(sizes_are_those_of_whole_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
