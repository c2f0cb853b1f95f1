/* SPDX-License-Identifier: Apache-2.0 */
/* test_stats.c - intervals checked against distributions whose centre is known. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "specializer/candidate/stage.h"
#include "specializer/candidate/stats.h"

static uint64_t state_ = 1;

static double unit(void)
{
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return ((double)(state_ >> 11) + 0.5) / 9007199254740992.0;
}

static double normal(void)
{
    return sqrt(-2 * log(unit())) * cos(6.283185307179586 * unit());
}

static double cauchy(void)
{
    return tan(3.141592653589793 * (unit() - 0.5));
}

/* One sample in ten is thrown far to a random side. */
static double contaminated(void)
{
    double x = normal();
    return unit() < 0.1 ? x + (unit() < 0.5 ? -30 : 30) * unit() : x;
}

static void stats_quantiles_are_those_of_the_normal_table(void **state)
{
    (void)state;
    assert_float_equal(stats_normal_quantile(0.5), 0, 1e-12);
    assert_float_equal(stats_normal_quantile(0.975), 1.959963984540054, 1e-9);
    assert_float_equal(stats_normal_quantile(0.001), -3.090232306167813, 1e-9);
}

static void stats_median_of_odd_even_and_none(void **state)
{
    (void)state;
    double odd[] = {5, 1, 3}, even[] = {4, 1, 3, 2};
    assert_float_equal(stats_median(odd, 3), 3, 0);
    assert_float_equal(stats_median(even, 4), 2.5, 0);
    assert_float_equal(stats_median(NULL, 0), 0, 0);
}

/* Reference by hand: n = 6, averages of {1,2,4,8,16,32} sorted are 21 values, the 11th is 8.5;
 * C = 10.5 - 1.96 * sqrt(6 * 7 * 13 / 24) = 1.15, so the interval is the whole range. */
static void stats_interval_of_six_values_is_the_one_worked_by_hand(void **state)
{
    (void)state;
    double x[] = {32, 1, 16, 2, 8, 4};
    struct interval i = stats_centre(x, 6, 0.95, 1);
    assert_float_equal(i.mid, 8.5, 1e-12);
    assert_float_equal(i.low, 1, 0);
    assert_float_equal(i.high, 32, 0);
}

static void stats_says_nothing_from_too_few_samples(void **state)
{
    (void)state;
    double a[] = {2, 2, 2}, b[] = {1, 1, 1};
    struct gain g = stats_gain(a, b, 3, 0.95, 1);
    assert_float_equal(g.low, -1, 0);
    assert_float_equal(g.mean, 1, 1e-12);
    g = stats_gain(NULL, NULL, 0, 0.95, 1);
    assert_int_equal(g.pairs, 0);
    assert_float_equal(g.low, -1, 0);
}

/* Share of intervals that hold the true centre. */
static double coverage(double (*draw)(void), int n, int rounds)
{
    int hit = 0;
    double *x = malloc((size_t)n * sizeof *x);
    for (int r = 0; r < rounds; r++) {
        for (int i = 0; i < n; i++)
            x[i] = 0.7 + draw();
        struct interval c = stats_centre(x, n, 0.95, (uint64_t)r);
        hit += c.low <= 0.7 && 0.7 <= c.high;
    }
    free(x);
    return (double)hit / rounds;
}

static void stats_intervals_cover_as_often_as_they_claim(void **state)
{
    (void)state;
    double (*draw[])(void) = {normal, cauchy, contaminated};
    for (int d = 0; d < 3; d++)
        for (int n = 12; n <= 60; n += 24) {
            double c = coverage(draw[d], n, 2000);
            /* 4 standard errors of 2000 rounds are 0.02; small n is conservative. */
            assert_true(c > 0.95 - 0.02 && c < 0.995);
        }
    double c = coverage(contaminated, 700, 40); /* the sampled averages */
    assert_true(c > 0.8);
}

static void stats_interval_is_nearly_as_narrow_as_the_t_interval(void **state)
{
    (void)state;
    double width = 0, x[50];
    for (int r = 0; r < 400; r++) {
        for (int i = 0; i < 50; i++)
            x[i] = normal();
        struct interval c = stats_centre(x, 50, 0.95, 1);
        width += c.high - c.low;
    }
    double t = 2 * 2.0096 / sqrt(50); /* 2 t(0.975, 49) sigma / sqrt(n) */
    assert_true(width / 400 < 1.1 * t);
}

/* Times with a shared drift and one-sided spikes: what a machine gives. */
static struct gain measured(double true_ratio, int n)
{
    double a[400], b[400];
    for (int i = 0; i < n; i++) {
        double drift = exp(0.3 * sin(i / 9.0));
        a[i] = 1e-3 * true_ratio * drift * exp(0.03 * normal()) * (unit() < 0.05 ? 3 : 1);
        b[i] = 1e-3 * drift * exp(0.03 * normal()) * (unit() < 0.05 ? 3 : 1);
    }
    return stats_gain(a, b, n, 0.95, 7);
}

static void gain_finds_three_percent_under_ten_times_as_much_drift(void **state)
{
    (void)state;
    struct gain g = measured(1.03, 200);
    assert_true(g.low > 0.01 && g.low < 0.03 && g.high > 0.03 && g.high < 0.05);
    assert_int_equal(g.pairs, 200);
}

static void gain_of_nothing_is_claimed_in_one_of_forty(void **state)
{
    (void)state;
    int claims = 0;
    for (int r = 0; r < 1500; r++)
        claims += measured(1.0, 40).low > 0;
    assert_true(claims < 1500 * 0.04);
    assert_true(claims > 1500 * 0.008);
}

static void gain_ignores_pairs_that_were_not_timed(void **state)
{
    (void)state;
    double a[20], b[20];
    for (int i = 0; i < 20; i++) {
        a[i] = i < 10 ? 0 : 2;
        b[i] = 1;
    }
    struct gain g = stats_gain(a, b, 20, 0.95, 1);
    assert_int_equal(g.pairs, 10);
    assert_float_equal(g.mean, 1, 1e-12);
    assert_float_equal(g.low, 1, 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stats_quantiles_are_those_of_the_normal_table),
        cmocka_unit_test(stats_median_of_odd_even_and_none),
        cmocka_unit_test(stats_interval_of_six_values_is_the_one_worked_by_hand),
        cmocka_unit_test(stats_says_nothing_from_too_few_samples),
        cmocka_unit_test(stats_intervals_cover_as_often_as_they_claim),
        cmocka_unit_test(stats_interval_is_nearly_as_narrow_as_the_t_interval),
        cmocka_unit_test(gain_finds_three_percent_under_ten_times_as_much_drift),
        cmocka_unit_test(gain_of_nothing_is_claimed_in_one_of_forty),
        cmocka_unit_test(gain_ignores_pairs_that_were_not_timed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
