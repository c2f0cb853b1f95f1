/* SPDX-License-Identifier: Apache-2.0 */
/* test_comparator.c - how wrong outputs may be: each limit by itself, with numbers on both sides.
 */
#include "tests/unit/unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "specializer/admission/comparator.h"

enum { COLS = 8 };

/* Two rows whose truth is 1, 2, ... 8; eager is off by `eager` and own by `own` in element 7. */
static int judged_with(double eager, double own, double scale, const double *scores,
                       const struct rule *rule, struct comparison *j, struct err *err)
{
    double truth[2 * COLS];
    float e[2 * COLS], o[2 * COLS];
    for (int i = 0; i < 2 * COLS; i++) {
        truth[i] = scale * (i % COLS + 1);
        e[i] = o[i] = (float)truth[i];
    }
    e[7] = (float)(truth[7] * (1 + eager));
    o[7] = (float)(truth[7] * (1 + own));
    struct outcome out = {2, COLS, o, e, truth, scores};
    comparison_start(j);
    return compare(j, rule, &out, err);
}

static int judged(double eager, double own, double scale, const struct rule *rule,
                  struct comparison *j, struct err *err)
{
    return judged_with(eager, own, scale, NULL, rule, j, err);
}

static void comparator_allows_twice_the_error_of_eager_and_not_three_times(void **state)
{
    (void)state;
    struct rule rule = {.factor = 2};
    struct comparison j;
    struct err err;
    assert_int_equal(judged(1e-4, 1.9e-4, 1, &rule, &j, &err), 0);
    assert_float_equal(j.own_max, 1.9e-4, 1e-6);
    assert_float_equal(j.eager_max, 1e-4, 1e-6);
    assert_true(j.times == 0);
    assert_int_equal(judged(1e-4, 3e-4, 1, &rule, &j, &err), -1);
    assert_float_equal(j.times, 3, 0.01);
    assert_non_null(strstr(err.msg, "row 0"));
}

static void comparator_has_no_absolute_tolerance_for_small_outputs(void **state)
{
    (void)state;
    struct rule rule = {.factor = 2};
    struct comparison j;
    struct err err;
    assert_int_equal(judged(1e-6, 1e-3, 1e-12, &rule, &j, &err), -1);
    assert_int_equal(judged(1e-6, 1e-3, 1e12, &rule, &j, &err), -1);
}

static void comparator_forgives_a_few_units_of_float_when_eager_was_exact(void **state)
{
    (void)state;
    struct rule rule = {.factor = 2};
    struct comparison j;
    struct err err;
    assert_int_equal(judged(0, 1.5e-7, 1, &rule, &j, &err), 0);
    assert_false(j.bit_equal);
    assert_int_equal(judged(0, 2e-6, 1, &rule, &j, &err), -1);
}

/* A score of 100 is stored to 100 units: 4 of those are as good as a float, what bf16 or TF32 would
 * make of it is not, and neither is it where scores are small. */
static void comparator_forgives_in_attention_what_scores_cost(void **state)
{
    (void)state;
    const struct rule rule = {.factor = 2};
    const double large[2] = {100, 100}, small[2] = {0.5, 0.5}, other_row[2] = {0, 100};
    const double stored = 100 * 0x1p-24, tf32 = 100 * 0x1p-12;
    struct comparison j;
    struct err err;
    assert_int_equal(judged_with(stored / 2, 4 * stored, 1, large, &rule, &j, &err), 0);
    assert_int_equal(judged(stored / 2, 4 * stored, 1, &rule, &j, &err), -1);
    assert_int_equal(judged_with(stored / 2, 4 * stored, 1, small, &rule, &j, &err), -1);
    assert_int_equal(judged_with(stored / 2, 4 * stored, 1, other_row, &rule, &j, &err), -1);
    assert_int_equal(judged_with(stored / 2, tf32 / 4, 1, large, &rule, &j, &err), -1);
}

static void comparator_demands_bits_or_exactness_where_the_rule_says_so(void **state)
{
    (void)state;
    struct rule bits = {.factor = 2, .bit_equal = true}, exact = {.factor = 2, .exact = true};
    struct comparison j;
    struct err err;
    assert_int_equal(judged(1e-6, 1e-6, 1, &bits, &j, &err), 0);
    assert_true(j.bit_equal);
    assert_int_equal(judged(1e-6, 0, 1, &bits, &j, &err), -1);
    assert_memory_equal(err.msg, "1 of 16 values", 14);
    assert_int_equal(judged(1e-6, 0, 1, &exact, &j, &err), 0);
    assert_int_equal(judged(1e-6, 2e-7, 1, &exact, &j, &err), -1);
    assert_non_null(strstr(err.msg, "exact result is 8"));
}

static void comparator_refuses_what_is_not_finite_by_row(void **state)
{
    (void)state;
    struct rule rule = {.factor = 2};
    struct comparison j;
    struct err err;
    assert_int_equal(judged(0, NAN, 1, &rule, &j, &err), -1);
    assert_non_null(strstr(err.msg, "row 0 of 2: 1 of 8"));
    assert_int_equal(judged(0, HUGE_VAL, 1, &rule, &j, &err), -1);
    float own[2 * COLS] = {[COLS] = NAN}, eager[2 * COLS] = {0};
    double truth[2 * COLS] = {0};
    struct outcome first = {2, COLS, own, eager, truth, NULL};
    comparison_start(&j);
    assert_int_equal(compare(&j, &rule, &first, &err), -1);
    assert_non_null(strstr(err.msg, "row 1 of 2: 1 of 8"));
}

enum { MANY = 16, WIDE = 4096 };

/* MANY rows of WIDE values `size`. Eager is off in row 0 by this part of each value; own by another
 * in the first `values` of each row. */
static int judged_wide(double size, double eager, double own, int values, struct comparison *j,
                       struct err *err)
{
    const struct rule rule = {.factor = 2};
    double *truth = xmalloc(MANY * WIDE * sizeof *truth);
    float *e = xmalloc(MANY * WIDE * sizeof *e), *o = xmalloc(MANY * WIDE * sizeof *o);
    for (int i = 0; i < MANY * WIDE; i++) {
        truth[i] = size;
        e[i] = (float)(size * (i < WIDE ? 1 + eager : 1));
        o[i] = (float)(size * (i % WIDE < values ? 1 + own : 1));
    }
    const struct outcome out = {MANY, WIDE, o, e, truth, NULL};
    err->msg[0] = '\0';
    comparison_start(j);
    int rc = compare(j, &rule, &out, err);
    free(truth);
    free(e);
    free(o);
    return rc;
}

/* Each limit refuses what the other two let pass: one value that is wrong, all of a row a little,
 * all rows as much as only one of eager's. What is half a unit below its limit passes. */
static void comparator_has_three_limits(void **state)
{
    (void)state;
    const double unit = 0x1p-24, size[] = {1, 0x1p-40, 0x1p40};
    struct comparison j;
    struct err err;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(judged_wide(size[i], 0, 8 * unit, 1, &j, &err), 0);
        assert_int_equal(judged_wide(size[i], 0, 10 * unit, 1, &j, &err), -1);
        assert_memory_equal(err.msg, "row 0: largest", 14);
        assert_int_equal(judged_wide(size[i], 0, 2 * unit, WIDE, &j, &err), 0);
        assert_int_equal(judged_wide(size[i], 0, 4 * unit, WIDE, &j, &err), -1);
        assert_memory_equal(err.msg, "row 0: rms", 10);
        assert_int_equal(judged_wide(size[i], 0x1p-10, 0x1p-10, WIDE, &j, &err), -1);
        assert_memory_equal(err.msg, "all rows: rms", 13);
        assert_int_equal(judged_wide(size[i], 0x1p-10, 0x1p-11, WIDE, &j, &err), 0);
    }
}

static void comparator_gives_a_declared_precision_its_budget_and_no_more(void **state)
{
    (void)state;
    struct rule rule = {.factor = 2, .precision = PRECISION_BF16};
    struct comparison j;
    struct err err;
    assert_int_equal(judged(1e-7, 3e-3, 1, &rule, &j, &err), 0);
    assert_int_equal(judged(1e-7, 3e-2, 1, &rule, &j, &err), -1);
    rule.precision = PRECISION_F32;
    assert_int_equal(judged(1e-7, 3e-3, 1, &rule, &j, &err), -1);
    rule.precision = PRECISION_E4M3;
    assert_int_equal(judged(1e-7, 3e-2, 1, &rule, &j, &err), 0);
    assert_int_equal(judged(1e-7, 2e-1, 1, &rule, &j, &err), -1);
}

static void comparator_compares_unsampled_rows_with_eager(void **state)
{
    (void)state;
    struct rule rule = {.factor = 2};
    struct comparison j;
    struct err err;
    assert_int_equal(judged(1e-6, 1e-6, 1, &rule, &j, &err), 0);
    float e[COLS] = {1, 2, 3, 4, 5, 6, 7, 8}, o[COLS] = {1, 2, 3, 4, 5, 6, 7, 8.000002f};
    struct outcome rest = {1, COLS, o, e, NULL};
    assert_int_equal(compare_rest(&j, &rule, &rest, &err), 0);
    o[7] = 8.001f;
    assert_int_equal(compare_rest(&j, &rule, &rest, &err), -1);
    rule.bit_equal = true;
    o[7] = 8.000002f;
    assert_int_equal(compare_rest(&j, &rule, &rest, &err), -1);
    assert_memory_equal(err.msg, "1 of 8 values", 13);
}

/* Three times twice eager's rms error, by the row that is wrong. */
static void comparator_allows_unsampled_rows_what_both_may_be_off(void **state)
{
    (void)state;
    const struct rule rule = {.factor = 2};
    struct comparison j;
    struct err err;
    assert_int_equal(judged(1e-4, 1e-4, 1, &rule, &j, &err), 0);
    float e[2 * COLS], o[2 * COLS];
    for (int i = 0; i < 2 * COLS; i++)
        e[i] = o[i] = (float)(1 + i);
    const struct outcome rest = {2, COLS, o, e, NULL, NULL};
    for (int i = 0; i < COLS; i++)
        o[COLS + i] = e[COLS + i] * (float)(1 + 5 * j.eager_rms);
    assert_int_equal(compare_rest(&j, &rule, &rest, &err), 0);
    for (int i = 0; i < COLS; i++)
        o[COLS + i] = e[COLS + i] * (float)(1 + 7 * j.eager_rms);
    assert_int_equal(compare_rest(&j, &rule, &rest, &err), -1);
    assert_memory_equal(err.msg, "row 1", 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comparator_allows_twice_the_error_of_eager_and_not_three_times),
        cmocka_unit_test(comparator_has_no_absolute_tolerance_for_small_outputs),
        cmocka_unit_test(comparator_forgives_a_few_units_of_float_when_eager_was_exact),
        cmocka_unit_test(comparator_forgives_in_attention_what_scores_cost),
        cmocka_unit_test(comparator_demands_bits_or_exactness_where_the_rule_says_so),
        cmocka_unit_test(comparator_refuses_what_is_not_finite_by_row),
        cmocka_unit_test(comparator_has_three_limits),
        cmocka_unit_test(comparator_gives_a_declared_precision_its_budget_and_no_more),
        cmocka_unit_test(comparator_compares_unsampled_rows_with_eager),
        cmocka_unit_test(comparator_allows_unsampled_rows_what_both_may_be_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
