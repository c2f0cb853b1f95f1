/* SPDX-License-Identifier: Apache-2.0 */
/* Which winner of others is worth a proof, when every speed has its noise and some are lies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "specializer/fleet/fleet_offer.h"

enum { POINTS = 8 };

/* What this server did with each point. */
struct own {
    int trials[POINTS];
    double speed[POINTS];
};

static int trials(void *ctx, int32_t id, double *speed)
{
    const struct own *o = ctx;
    *speed = o->speed[id];
    return o->trials[id];
}

static int32_t best(const struct fleet_word *word, int n, int32_t serving, double seen,
                    struct own *own, double *gain)
{
    const struct fleet_offer_ask ask = {word, n, serving, seen, trials, own};
    return fleet_offer_best(&ask, gain);
}

static void the_fastest_winner_of_others_is_offered(void **state)
{
    const struct fleet_word word[] = {{1, 1.2, true}, {2, 1.5, true}, {3, 9, false}};
    struct own own = {{0}, {0}};
    double gain;
    (void)state;
    assert_int_equal(best(word, 3, -1, 1, &own, &gain), 2);
    assert_true(gain > 1.49 && gain < 1.51);
    own.trials[2] = -1; /* refused here */
    assert_int_equal(best(word, 3, -1, 1, &own, &gain), 1);
    assert_int_equal(best(word, 3, -1, 1.19, &own, &gain),
                     -1); /* by less than is told from noise */
}

/* With a specializer.min_gain below 0 a fleet's kernel is taken although it gains nothing, but only
 * where eager serves: who has one keeps it. */
static void where_speed_is_no_matter_any_winner_is_offered_to_eager(void **state)
{
    const struct fleet_word word[] = {{1, 0.95, true}, {2, 0.96, true}};
    struct own own = {{0}, {0}};
    struct fleet_offer_ask ask = {word, 2, -1, 1, trials, &own};
    double gain;
    (void)state;
    assert_int_equal(fleet_offer_best(&ask, &gain), -1);
    ask.enough = 0.1;
    assert_int_equal(fleet_offer_best(&ask, &gain), 2);
    assert_true(gain > 0.95 && gain < 0.97);
    ask.serving = 1;
    assert_int_equal(fleet_offer_best(&ask, &gain), -1);
}

/* 1.4 here, by luck; 1.2 is what four others found, and of point 2 they say 1.3. */
static void a_kernel_that_was_measured_too_well_here_does_not_stay(void **state)
{
    const struct fleet_word word[] = {
        {1, 1.2, true}, {1, 1.21, true}, {1, 1.19, true},
        {1, 1.2, true}, {2, 1.3, true},  {2, 1.31, true},
    };
    struct own own = {{0, 1}, {0, 1.4}};
    double gain;
    (void)state;
    assert_int_equal(best(word, 6, 1, 1.4, &own, &gain), 2);
    assert_int_equal(best(word, 6, -1, 1.4, &own, &gain), -1); /* one whom nobody else knows does */
}

static void a_point_that_was_measured_too_low_here_is_tried_again_but_not_forever(void **state)
{
    const struct fleet_word word[] = {{2, 1.5, true}, {2, 1.52, true}};
    struct own own = {{0, 0, 1}, {0, 0, 1.05}};
    double gain;
    (void)state;
    assert_int_equal(best(word, 2, -1, 1.1, &own, &gain), 2);
    own.trials[2] = 2;
    assert_int_equal(best(word, 2, -1, 1.1, &own, &gain), 2);
    own.trials[2] = 3;
    assert_int_equal(best(word, 2, -1, 1.1, &own, &gain), -1);
}

static void one_liar_among_many_does_not_move_a_median(void **state)
{
    const struct fleet_word word[] = {{1, 1.2, true},  {1, 1.2, true}, {1, 1.2, true},
                                      {1, 9000, true}, {4, 1.3, true}, {4, 1.3, true},
                                      {4, 1.3, true}};
    struct own own = {{0}, {0}};
    double gain;
    (void)state;
    assert_int_equal(best(word, 7, -1, 1, &own, &gain), 4);
    assert_true(gain < 1.31);
}

/* 1.4 here and at another, both by luck; of point 2 three say 1.38. */
static void a_word_of_two_against_three_is_looked_into_once(void **state)
{
    const struct fleet_word word[] = {{1, 1.39, true}, {2, 1.38, true}, {2, 1.37, true},
                                      {2, 1.38, true}, {3, 1.38, true}, {4, 1.2, true},
                                      {4, 1.2, true},  {4, 1.2, true}};
    struct own own = {{0, 1}, {0, 1.4}};
    double gain;
    (void)state;
    assert_int_equal(best(word, 8, 1, 1.4, &own, &gain), 2);
    assert_true(gain > 0.97 && gain < 1);
    own.trials[2] = 1; /* that was it */
    own.speed[2] = 1.38;
    assert_int_equal(best(word, 8, 1, 1.4, &own, &gain), -1);
    /* Three who know it are believed. */
    const struct fleet_word known[] = {
        {1, 1.39, true}, {1, 1.4, true}, {2, 1.38, true}, {2, 1.38, true}, {2, 1.38, true}};
    own.trials[2] = 0;
    assert_int_equal(best(known, 5, 1, 1.4, &own, &gain), -1);
}

static void offers_are_due_when_waiting_has_cost_enough(void **state)
{
    const double gain[] = {1.05, 1.5, 1.1}, fresh[] = {0.1, 0.1, 0.1}, some[] = {3, 3, 3},
                 long_ago[] = {9, 0, 0};
    (void)state;
    assert_false(fleet_offers_due(gain, fresh, 0));
    assert_false(fleet_offers_due(gain, fresh, 3));
    assert_false(fleet_offers_due(gain, some, 1));    /* 0.15 s lost */
    assert_true(fleet_offers_due(gain, some, 3));     /* 1.95 s */
    assert_true(fleet_offers_due(gain, long_ago, 1)); /* nothing is kept for ever */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fastest_winner_of_others_is_offered),
        cmocka_unit_test(where_speed_is_no_matter_any_winner_is_offered_to_eager),
        cmocka_unit_test(a_kernel_that_was_measured_too_well_here_does_not_stay),
        cmocka_unit_test(a_point_that_was_measured_too_low_here_is_tried_again_but_not_forever),
        cmocka_unit_test(one_liar_among_many_does_not_move_a_median),
        cmocka_unit_test(a_word_of_two_against_three_is_looked_into_once),
        cmocka_unit_test(offers_are_due_when_waiting_has_cost_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
