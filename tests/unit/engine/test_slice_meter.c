/* SPDX-License-Identifier: Apache-2.0 */
/* test_slice_meter.c - when the engine may lend time and how much, on clocks that are told. */
#include "tests/unit/unit.h"

#include "engine/slice_meter.h"

static void slice_meter_lends_its_share_and_collects_debts(void **state)
{
    (void)state;
    struct slice_meter m;
    slice_meter_init(&m, 0.05, 2000000, 0);
    int64_t lent = 0;
    for (int64_t now = 0; now < 10000000000; now += 5000000) /* a boundary every 5 ms, 10 s */
        if (slice_meter_due(&m, now, 0)) {
            int64_t took = now < 5000000000 ? 2000000 : 30000000; /* later ones overrun */
            slice_meter_spend(&m, took, 0);
            lent += took;
        }
    assert_in_range(lent, 450000000, 530000000); /* 5 % of 10 s */
    slice_meter_init(&m, 0, 2000000, 0);
    assert_false(slice_meter_due(&m, 100000000000, 0));
}

static void a_spread_meter_delays_one_step_in_so_many_and_keeps_to_its_share(void **state)
{
    (void)state;
    struct slice_meter m;
    slice_meter_init(&m, 0.05, 1000000, 0);
    slice_meter_spread(&m, 100, 8000000);
    int64_t lent = 0, now = 0, longest = 0;
    int slices = 0;
    for (uint64_t step = 1; step <= 20000; step++) { /* steps of 1 ms */
        now += 1000000;
        if (!slice_meter_due(&m, now, step))
            continue;
        int64_t took = slice_meter_budget(&m);
        slice_meter_spend(&m, took, step);
        longest = took > longest ? took : longest;
        lent += took;
        now += took;
        slices++;
    }
    assert_in_range(slices, 150, 200);                       /* one in a hundred at most */
    assert_in_range(lent, now / 100 * 4, now / 100 * 5 + 1); /* 5 % */
    assert_in_range(longest, 1000000, 8000000);
}

static void what_a_spread_meter_saved_is_spent_in_longer_slices(void **state)
{
    (void)state;
    struct slice_meter m;
    slice_meter_init(&m, 0.05, 1000000, 0);
    slice_meter_spread(&m, 100, 8000000);
    assert_true(slice_meter_due(&m, 10000000000, 100)); /* ten seconds in which nobody asked */
    assert_int_equal(slice_meter_budget(&m), 8000000);
    slice_meter_spend(&m, 8000000, 100);
    assert_false(slice_meter_due(&m, 10001000000, 199));
    assert_true(slice_meter_due(&m, 10001000000, 200));
    assert_int_equal(slice_meter_budget(&m), 8000000);
    for (uint64_t step = 300; slice_meter_due(&m, 10001000000, step); step += 100)
        slice_meter_spend(&m, 8000000, step);
    assert_true(slice_meter_budget(&m) < 1000000); /* and then it is gone */
}

static void a_spread_meter_lends_at_once_what_is_small_against_a_step(void **state)
{
    (void)state;
    struct slice_meter m;
    slice_meter_init(&m, 0.05, 1000000, 0);
    slice_meter_spread(&m, 100, 8000000);
    assert_true(slice_meter_due(&m, 10000000000, 100));
    slice_meter_spend(&m, 8000000, 100);
    m.step_ns = 19000000; /* of which the share is less than the shortest slice */
    assert_false(slice_meter_due(&m, 10001000000, 101));
    m.step_ns = 60000000;
    assert_true(slice_meter_due(&m, 10001000000, 101));
    assert_int_equal(slice_meter_budget(&m), 3000000);
    m.step_ns = 300000000;
    assert_true(slice_meter_due(&m, 10001000000, 102));
    assert_int_equal(slice_meter_budget(&m), 8000000);
    assert_true(slice_meter_due(&m, 10001000000, 200)); /* far enough from the last in any case */
    assert_int_equal(slice_meter_budget(&m), 8000000);
    slice_meter_spend(&m, 400000000, 200);
    assert_false(slice_meter_due(&m, 10001000000, 201)); /* the share holds */
}

/* A run of a kernel cannot be cut: one that is longer than a small slice is not lent as one again.
 */
static void a_small_slice_that_overran_is_the_last_before_one_that_is_far(void **state)
{
    (void)state;
    struct slice_meter m;
    slice_meter_init(&m, 0.05, 500000, 0);
    slice_meter_spread(&m, 100, 20000000);
    m.step_ns = 12000000;
    assert_true(slice_meter_due(&m, 10000000000, 10));
    slice_meter_spend(&m, 600000, 10); /* as long as it might be */
    assert_true(slice_meter_due(&m, 10012000000, 11));
    slice_meter_spend(&m, 2600000, 11);
    for (uint64_t step = 12; step < 111; step++)
        assert_false(slice_meter_due(&m, 10012000000, step));
    assert_true(slice_meter_due(&m, 10012000000, 111));
    slice_meter_spend(&m, 20000000, 111);
    assert_true(slice_meter_due(&m, 20000000000, 112));
}

static void a_slice_is_saved_by_so_many_steps(void **state)
{
    (void)state;
    assert_int_equal(slice_meter_saves(0.15, 20000000, 4500000, 256), 29);
    assert_int_equal(slice_meter_saves(0.15, 20000000, 840000, 256), 158);
    assert_int_equal(slice_meter_saves(0.05, 20000000, 840000, 256), 256);
    assert_int_equal(slice_meter_saves(0.15, 20000000, 0, 256), 256); /* there was no step yet */
    assert_int_equal(slice_meter_saves(0, 20000000, 4500000, 256), 256);
    assert_int_equal(slice_meter_saves(1, 1000000, 4500000, 256), 1);
}

static void a_slice_has_the_room_that_decodes_leave_of_the_target(void **state)
{
    (void)state;
    struct slice_gaps g;
    slice_gaps_init(&g, 30000000, 20000000);
    assert_int_equal(slice_gaps_room(&g), 20000000); /* there was no step yet */
    g.decodes_ns = 5400000;
    assert_int_equal(slice_gaps_room(&g), 20000000);
    g.decodes_ns = 18000000;
    assert_int_equal(slice_gaps_room(&g), 12000000);
    g.decodes_ns = 26000000; /* 4 ms are left: less than a quarter of a slice */
    assert_int_equal(slice_gaps_room(&g), 0);
    g.decodes_ns = 40000000;
    assert_int_equal(slice_gaps_room(&g), 0);
    slice_gaps_init(&g, 0, 20000000); /* tokens may be any time apart */
    g.decodes_ns = 40000000;
    assert_int_equal(slice_gaps_room(&g), 20000000);
}

/* Steps of decodes, and every so many of them one that reads a prompt as well. */
static void run_steps(struct slice_gaps *g, int steps, int64_t decodes_ns, int every, int64_t ns)
{
    g->decodes_ns = decodes_ns;
    for (int i = 1; i <= steps; i++)
        slice_gaps_step(g, i % every == 0 ? ns : decodes_ns);
}

static void slices_hide_among_steps_that_are_as_long(void **state)
{
    (void)state;
    struct slice_gaps g;
    slice_gaps_init(&g, 30000000, 20000000);
    run_steps(&g, 5000, 5400000, 8, 28000000); /* as 128 clients of a 4B on an H200 */
    assert_true(slice_gaps_hide(&g));
    run_steps(&g, 5000, 3200000, 8, 8000000); /* 32 of them: nobody waits as long */
    assert_false(slice_gaps_hide(&g));
    run_steps(&g, 5000, 5400000, 8, 28000000);
    run_steps(&g, 5000, 5400000, 90, 28000000); /* one in ninety would let slices be seen */
    assert_false(slice_gaps_hide(&g));
    run_steps(&g, 5000, 5400000, 8, 28000000);
    g.decodes_ns = 29000000; /* longer decodes leave no room, whatever came before */
    assert_false(slice_gaps_hide(&g));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slice_meter_lends_its_share_and_collects_debts),
        cmocka_unit_test(a_spread_meter_delays_one_step_in_so_many_and_keeps_to_its_share),
        cmocka_unit_test(what_a_spread_meter_saved_is_spent_in_longer_slices),
        cmocka_unit_test(a_spread_meter_lends_at_once_what_is_small_against_a_step),
        cmocka_unit_test(a_small_slice_that_overran_is_the_last_before_one_that_is_far),
        cmocka_unit_test(a_slice_is_saved_by_so_many_steps),
        cmocka_unit_test(a_slice_has_the_room_that_decodes_leave_of_the_target),
        cmocka_unit_test(slices_hide_among_steps_that_are_as_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
