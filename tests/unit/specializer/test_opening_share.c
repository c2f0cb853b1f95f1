/* SPDX-License-Identifier: Apache-2.0 */
/* What an opening may take from steps: what it is expected to gain, before and after its benches.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "specializer/opening_share.h"

#define LEAST 0.025
#define MOST 0.25

/* The regions of a small model, mlp_in first, by their parts of a step. */
static const double share[] = {0.31, 0.18, 0.13, 0.07, 0.04, 0.24};
enum { SLOTS = sizeof share / sizeof *share };

/* All slots promise the same: points that were `speed` times as fast as eager elsewhere. */
static struct opening_slots opening(double speed, bool reads)
{
    struct opening_slots o = {.n = 0};
    for (int i = 0; i < SLOTS; i++)
        opening_promised(&o, 10 + i, share[i], opening_promise(speed, reads));
    return o;
}

static bool near(double a, double b)
{
    return a > b - 1e-9 && a < b + 1e-9;
}

static void steps_that_take_part_of_the_time_less_are_so_much_faster(void **unused)
{
    (void)unused;
    struct opening_slots o = {.n = 0};
    assert_true(opening_gain(&o) == 0);
    opening_promised(&o, 1, 0.5, 0.2);
    assert_true(near(opening_gain(&o), 0.1 / 0.9));
    opening_measured(&o, 1, 2);
    assert_true(near(opening_gain(&o), 0.25 / 0.75));
    opening_measured(&o, 2, 9); /* of another batch */
    assert_true(near(opening_gain(&o), 0.25 / 0.75));
}

static void
a_point_that_won_by_more_promises_more_and_most_where_arithmetic_is_the_limit(void **unused)
{
    (void)unused;
    assert_true(opening_promise(2, false) > opening_promise(1.5, false));
    assert_true(opening_promise(2, false) > opening_promise(2, true));
    assert_true(opening_promise(0, false) > opening_promise(0, true));
    assert_true(opening_promise(1e9, false) <= 0.5);
    assert_true(opening_promise(0, true) > 0);
    assert_true(opening_promise(0.9, true) == opening_promise(0, true)); /* it won nothing there */
}

static void little_to_gain_takes_no_more_than_a_search_takes(void **unused)
{
    (void)unused;
    struct opening_slots one = opening(0, true), several = opening(2, false);
    assert_true(opening_share(&one, LEAST, MOST) == LEAST);
    assert_true(opening_share(&several, LEAST, MOST) == MOST);
    assert_true(opening_share(&several, LEAST, 0.01) == 0.01); /* the operator has the last word */
    struct opening_slots none = {.n = 0};
    assert_true(opening_share(&none, LEAST, MOST) == LEAST);
}

/* One bench of a slot that makes up a third of a step. */
static void the_first_bench_says_what_the_others_may_expect(void **unused)
{
    (void)unused;
    struct opening_slots good = opening(0, true), bad = opening(2, false);
    double before = opening_gain(&good);
    opening_measured(&good, 10, 1.9);
    assert_true(opening_gain(&good) > before + 0.31 * 0.4);
    assert_true(opening_share(&good, LEAST, MOST) > 4 * LEAST);
    before = opening_gain(&bad);
    opening_measured(&bad, 10, 1); /* refused */
    assert_true(opening_gain(&bad) < before / 2);
    opening_measured(&bad, 11, 1.02);
    opening_measured(&bad, 15, 0.7); /* slower than eager, which goes on serving */
    assert_true(opening_share(&bad, LEAST, MOST) == LEAST);
}

/* A small slot is no sample of the others. */
static void a_small_slot_decides_little(void **unused)
{
    (void)unused;
    struct opening_slots o = opening(2, false);
    double before = opening_gain(&o);
    opening_measured(&o, 14, 1);
    assert_true(opening_gain(&o) > before * 0.7);
    opening_measured(&o, 14, 50);
    assert_true(opening_gain(&o) < before * 2);
}

static void what_whole_steps_refuse_gains_nothing(void **unused)
{
    (void)unused;
    struct opening_slots o = opening(0, true);
    opening_measured(&o, 10, 1.9);
    double promised = opening_gain(&o);
    opening_measured(&o, 10, 1);
    assert_true(opening_gain(&o) < promised / 4);
}

static void there_are_no_more_slots_than_a_batch_has(void **unused)
{
    (void)unused;
    struct opening_slots o = opening(2, false);
    assert_true(o.n == OPENING_SLOTS);
    double before = opening_gain(&o);
    opening_promised(&o, 99, 1, 1);
    assert_true(opening_gain(&o) == before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_that_take_part_of_the_time_less_are_so_much_faster),
        cmocka_unit_test(
            a_point_that_won_by_more_promises_more_and_most_where_arithmetic_is_the_limit),
        cmocka_unit_test(little_to_gain_takes_no_more_than_a_search_takes),
        cmocka_unit_test(the_first_bench_says_what_the_others_may_expect),
        cmocka_unit_test(a_small_slot_decides_little),
        cmocka_unit_test(what_whole_steps_refuse_gains_nothing),
        cmocka_unit_test(there_are_no_more_slots_than_a_batch_has),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
