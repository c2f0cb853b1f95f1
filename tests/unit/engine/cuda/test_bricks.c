/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of engine/cuda/bricks.c: every code and scale of a row is found where kernels/bricks.h says
 * it is, read here by a reader of its own, and means what dequant_row() makes of the row. */
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "tests/unit/unit.h"

#include "engine/cuda/bricks.h"
#include "kernels/bricks.h"

enum { ROWS = 35, COLS = 512 };

static const enum dtype kept[] = {DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q5_0, DTYPE_Q5_1,
                                  DTYPE_Q4_K, DTYPE_Q6_K, DTYPE_Q5_K, DTYPE_F8};
enum { KEPT = sizeof kept / sizeof *kept };
_Static_assert((int)KEPT == BRICK_KINDS, "all of them");

static unsigned bits(const char *base, int word, int from, unsigned mask)
{
    uint32_t v;
    memcpy(&v, base + 4 * (size_t)word, sizeof v);
    return v >> from & mask;
}

static float half(const char *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return f16_to_f32(v);
}

/* Where element (r, c) of a brick has its bits; by the table in the header. */
static int code_of(enum dtype type, const char *brick, int r, int c)
{
    int h = r / 8, g = r % 8, t = c / 32, s = c % 32 / 16, q = c % 16 / 4, j = c % 4;
    int lane = 4 * g + q;
    const char *high = brick + brick_low((int)type);
    if (type == DTYPE_Q8_0 || type == DTYPE_F8)
        return (int8_t)bits(brick, (t * 32 + lane) * 4 + 2 * h + s, 8 * (j / 2 + 2 * (j % 2)), 255);
    int at = 8 * (j / 2 + 2 * (j % 2));
    unsigned v = bits(brick, (t / 2 * 32 + lane) * 4 + 2 * (t % 2) + h, at + 4 * s, 15);
    if (type == DTYPE_Q5_0 || type == DTYPE_Q5_1 || type == DTYPE_Q5_K)
        v += 16 * bits(high, lane * 4 + t / 2, at + 4 * (t % 2) + 2 * h + s, 1);
    if (type == DTYPE_Q6_K)
        v += 16 * bits(high, (t / 4 * 32 + lane) * 4 + t % 4, at + 2 * (2 * h + s), 3);
    return (int)v;
}

/* Six-bit scale (`top` 0) or minimum (4) number t, as the format lays them out. */
static float six_bits(const uint8_t *s, int t, int top)
{
    if (t < 4)
        return (float)(s[t + top] & 63);
    return (float)((top ? s[t + 4] >> 4 : s[t + 4] & 15) | (s[t - 4 + top] >> 6) << 4);
}

static float value_of(enum dtype type, const char *w, int cols, int row, int col)
{
    const char *brick =
        w + (row / 16 * bricks_across(cols) + col / 256) * (int64_t)brick_bytes((int)type);
    const char *scales = brick + brick_low((int)type) + brick_high((int)type);
    int r = row % 16, c = col % 256, t = c / 32;
    const char *own = scales + 16 * r;
    float code = (float)code_of(type, brick, r, c), d = half(own + 2 * t);
    switch (type) {
    case DTYPE_F8:
        memcpy(&d, scales + 8 * r + 4 * (t / 4), sizeof d);
        return d * e4m3_to_f32((uint8_t)(int)code);
    case DTYPE_Q6_K:
        d = half(scales + 256 + 2 * r) * (float)(int8_t)own[c / 16];
        return d * (code - 32);
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        d = half(own) * six_bits((const uint8_t *)own + 4, t, 0);
        d = d * code;
        return d - half(own + 2) * six_bits((const uint8_t *)own + 4, t, 4);
    case DTYPE_Q4_1:
    case DTYPE_Q5_1:
        d = d * code;
        return d + half(own + 256 + 2 * t);
    default:
        return d * (type == DTYPE_Q4_0 ? code - 8 : type == DTYPE_Q5_0 ? code - 16 : code);
    }
}

static uint64_t state_of_lot = 1;

static float lot(void)
{
    state_of_lot = state_of_lot * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(state_of_lot >> 32) / 2147483648.0f;
}

static void check_matrix(enum dtype type, int cols)
{
    float *x = xmalloc((size_t)cols * sizeof *x), *want = xmalloc((size_t)cols * sizeof *want);
    char *row = xmalloc((size_t)dtype_bytes(type, cols));
    int64_t n = bricks_bytes(type, ROWS, cols), each = bricks_bytes(type, 16, cols);
    char *w = xcalloc(1, (size_t)n);
    float *all = xmalloc((size_t)(ROWS * cols) * sizeof *all);
    assert_int_equal(n, 3 * each);
    assert_int_equal(n % 16, 0);
    for (int r = 0; r < ROWS; r++) {
        for (int c = 0; c < cols; c++)
            x[c] = lot() * (float)(1 + r);
        quant_row(type, x, row, cols);
        dequant_row(type, row, all + r * cols, cols);
        bricks_put_row(type, row, cols, r % 16, w + r / 16 * each);
    }
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < cols; c++) {
            float got = value_of(type, w, cols, r, c);
            assert_memory_equal(&got, &all[r * cols + c], sizeof got);
        }
    free(all);
    free(w);
    free(row);
    free(want);
    free(x);
}

static void a_matrix_in_bricks_has_the_values_of_its_rows(void **state)
{
    (void)state;
    for (int i = 0; i < KEPT; i++)
        check_matrix(kept[i], COLS);
}

static void a_row_may_end_within_a_brick(void **state)
{
    (void)state;
    for (int i = 0; i < KEPT; i++)
        if (dtype_block(kept[i]) == 32)
            for (int cols = 32; cols <= 608; cols += 32)
                check_matrix(kept[i], cols);
}

/* Products in units of a scale must be able to divide by it, or to leave the codes out. */
static void a_scale_that_is_next_to_nothing_has_no_codes(void **state)
{
    (void)state;
    static const float scale[] = {0, 1e-31f, -1e-31f, 1e-29f};
    char row[8 * DTYPE_BYTES(DTYPE_F8)], w[16 * sizeof row];
    for (size_t k = 0; k < sizeof scale / sizeof *scale; k++) {
        memset(w, 0, sizeof w);
        memset(row, 0x38, sizeof row); /* 1 in e4m3 */
        for (int i = 0; i < 4; i++)    /* of the first 128 columns; the others have another */
            memcpy(row + i * DTYPE_BYTES(DTYPE_F8), scale + k, sizeof *scale);
        bricks_put_row(DTYPE_F8, row, 256, 5, w);
        bool nothing = k < 3;
        assert_true(value_of(DTYPE_F8, w, 256, 5, 0) == (nothing ? 0 : scale[k]));
        assert_int_equal(code_of(DTYPE_F8, w, 5, 127), nothing ? 0 : 0x38);
        assert_int_equal(code_of(DTYPE_F8, w, 5, 128), 0x38);
    }
}

/* Nothing is made larger, and what is plain is not cut into bricks. Of F8 three scales in four are
 * the one before. */
static void bricks_are_as_large_as_the_blocks_in_them(void **state)
{
    (void)state;
    for (int i = 0; i < KEPT; i++) {
        int64_t same = kept[i] == DTYPE_F8 ? 16 * 6 * (int64_t)sizeof(float) : 0;
        assert_int_equal(bricks_bytes(kept[i], 16, 256), 16 * dtype_bytes(kept[i], 256) - same);
    }
    assert_int_equal(bricks_bytes(DTYPE_BF16, 16, 256), 0);
    assert_int_equal(bricks_bytes(DTYPE_F16, 16, 256), 0);
    assert_int_equal(bricks_bytes(DTYPE_F32, 16, 256), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_matrix_in_bricks_has_the_values_of_its_rows),
        cmocka_unit_test(a_row_may_end_within_a_brick),
        cmocka_unit_test(a_scale_that_is_next_to_nothing_has_no_codes),
        cmocka_unit_test(bricks_are_as_large_as_the_blocks_in_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
