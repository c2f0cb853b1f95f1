/* SPDX-License-Identifier: Apache-2.0 */
/* Budgets an hour and the circuit breaker, on a clock of the test's own. */
#include "tests/unit/unit.h"

#include "specializer/adviser/adviser_limits.h"

#define S INT64_C(1000000000)

static void calls_are_counted_over_the_last_hour(void **unused)
{
    (void)unused;
    struct limits l;
    int64_t now = 5 * S;
    limits_init(&l, 3, 1000000);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(limits_ask(&l, now, 10), HOLD_NOT);
        limits_spend(&l, now, 1, 10);
        now += 1200 * S;
    }
    assert_int_equal(limits_ask(&l, now - 600 * S, 10),
                     HOLD_CALLS);                                 /* 50 minutes after the first */
    assert_int_equal(limits_ask(&l, now + 30 * S, 10), HOLD_NOT); /* the first is an hour old */
    limits_spend(&l, now + 30 * S, 1, 10);
    assert_int_equal(limits_ask(&l, now + 60 * S, 10), HOLD_CALLS);
}

static void no_call_is_made_that_could_break_the_token_budget(void **unused)
{
    (void)unused;
    struct limits l;
    limits_init(&l, 100, 10000);
    assert_int_equal(limits_ask(&l, 0, 10000), HOLD_NOT);
    assert_int_equal(limits_ask(&l, 0, 10001), HOLD_TOKENS);
    limits_spend(&l, 0, 1, 6000);
    assert_int_equal(limits_ask(&l, 0, 4001), HOLD_TOKENS);
    assert_int_equal(limits_ask(&l, 0, 4000), HOLD_NOT);
    assert_int_equal(limits_ask(&l, 3601 * S, 10000), HOLD_NOT);
}

static void a_budget_of_none_is_none(void **unused)
{
    (void)unused;
    struct limits l;
    limits_init(&l, 0, 1000);
    assert_int_equal(limits_ask(&l, 0, 1), HOLD_CALLS);
    limits_init(&l, 10, 0);
    assert_int_equal(limits_ask(&l, 0, 1), HOLD_TOKENS);
}

static void breaker_opens_after_three_in_a_row_and_waits_longer_each_time(void **unused)
{
    (void)unused;
    struct limits l;
    int64_t now = 0;
    limits_init(&l, 1000, 1000000);
    limits_bad(&l, now, 0);
    limits_bad(&l, now, 0);
    limits_good(&l); /* not in a row */
    limits_bad(&l, now, 0);
    limits_bad(&l, now, 0);
    assert_int_equal(limits_breaker(&l, now), BREAKER_CLOSED);
    limits_bad(&l, now, 0);
    double wait = BREAKER_FIRST_S;
    for (int i = 0; i < 10; i++) {
        assert_int_equal(limits_breaker(&l, now), BREAKER_OPEN);
        assert_int_equal(limits_ask(&l, now, 1), HOLD_BREAKER);
        int64_t end = now + (int64_t)(wait * 1e9);
        assert_int_equal(limits_breaker(&l, end - 1), BREAKER_OPEN);
        assert_int_equal(limits_breaker(&l, end), BREAKER_HALF_OPEN);
        assert_int_equal(limits_ask(&l, end, 1), HOLD_NOT); /* one question may try */
        limits_bad(&l, end, 0);
        now = end;
        wait = wait * 2 < BREAKER_LONGEST_S ? wait * 2 : BREAKER_LONGEST_S;
    }
    limits_good(&l);
    assert_int_equal(limits_breaker(&l, now), BREAKER_CLOSED);
    limits_bad(&l, now, 0);
    assert_int_equal(limits_breaker(&l, now), BREAKER_CLOSED);
}

static void an_endpoint_that_asks_for_rest_gets_it_at_once(void **unused)
{
    (void)unused;
    struct limits l;
    limits_init(&l, 1000, 1000000);
    limits_bad(&l, 0, 120);
    assert_int_equal(limits_breaker(&l, 119 * S), BREAKER_OPEN);
    assert_int_equal(limits_breaker(&l, 120 * S), BREAKER_HALF_OPEN);
    limits_bad(&l, 120 * S, 1e9); /* but not for ever */
    assert_int_equal(limits_breaker(&l, (120 + 3600) * S), BREAKER_HALF_OPEN);
}

static void what_is_under_way_is_reserved(void **unused)
{
    (void)unused;
    struct limits l;
    limits_init(&l, 2, 10000);
    limits_reserve(&l, 6000);
    assert_int_equal(limits_ask(&l, 0, 4001), HOLD_TOKENS);
    assert_int_equal(limits_ask(&l, 0, 4000), HOLD_NOT);
    limits_reserve(&l, 4000);
    assert_int_equal(limits_ask(&l, 0, 0), HOLD_CALLS);
    limits_release(&l, 6000); /* it took less */
    limits_spend(&l, 0, 1, 100);
    assert_int_equal(limits_ask(&l, 0, 0), HOLD_CALLS);
    limits_release(&l, 4000); /* it was never sent */
    assert_int_equal(limits_ask(&l, 0, 9900), HOLD_NOT);
}

static void a_breaker_that_is_half_open_lets_one_question_through(void **unused)
{
    (void)unused;
    struct limits l;
    limits_init(&l, 1000, 1000000);
    limits_bad(&l, 0, 120);
    assert_int_equal(limits_ask(&l, 120 * S, 1), HOLD_NOT);
    limits_reserve(&l, 1);
    assert_int_equal(limits_ask(&l, 120 * S, 1), HOLD_BREAKER);
    limits_release(&l, 1);
    limits_good(&l);
    limits_reserve(&l, 1);
    assert_int_equal(limits_ask(&l, 120 * S, 1), HOLD_NOT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_are_counted_over_the_last_hour),
        cmocka_unit_test(no_call_is_made_that_could_break_the_token_budget),
        cmocka_unit_test(a_budget_of_none_is_none),
        cmocka_unit_test(breaker_opens_after_three_in_a_row_and_waits_longer_each_time),
        cmocka_unit_test(an_endpoint_that_asks_for_rest_gets_it_at_once),
        cmocka_unit_test(what_is_under_way_is_reserved),
        cmocka_unit_test(a_breaker_that_is_half_open_lets_one_question_through),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
