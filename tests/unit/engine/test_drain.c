/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of engine/drain.c: when who is turned away from a full queue had better come back. */
#include "tests/unit/unit.h"

#include <string.h>

#include "engine/drain.h"

#define MS INT64_C(1000000)
#define S (1000 * MS)

/* From `at` on, one ends every `each`; returns when the last one did. */
static int64_t ends(struct drain *d, int64_t at, int64_t each, int n)
{
    for (int i = 0; i < n; i++)
        drain_ended(d, at += each);
    return at;
}

static void the_wait_is_the_queue_by_what_ends_in_a_second(void **state)
{
    (void)state;
    struct drain d = {0};
    drain_full(&d, true, 100 * S);
    int64_t now = ends(&d, 100 * S, 500 * MS, 10);
    assert_int_equal(drain_wait_s(&d, 12, now), 6);
    assert_int_equal(drain_wait_s(&d, 13, now), 7); /* and no earlier */
    assert_int_equal(drain_wait_s(&d, 0, now), DRAIN_LEAST_S);
    now = ends(&d, now, 500 * MS, 30); /* more than it remembers */
    assert_int_equal(drain_wait_s(&d, 12, now), 6);
}

static void the_wait_is_within_bounds(void **state)
{
    (void)state;
    struct drain d = {0};
    assert_int_equal(drain_wait_s(&d, 5, 7 * S), DRAIN_LEAST_S); /* nothing was seen */
    drain_full(&d, true, 10 * S);
    int64_t fast = ends(&d, 10 * S, MS, 20);
    assert_int_equal(drain_wait_s(&d, 100, fast), DRAIN_LEAST_S);
    int64_t slow = ends(&d, fast, 30 * S, 20);
    assert_int_equal(drain_wait_s(&d, 100, slow), DRAIN_MOST_S);
}

/* Of requests that take minutes none may have ended yet: the longer that lasts, the slower it is.
 */
static void the_wait_grows_while_nothing_ends(void **state)
{
    (void)state;
    struct drain d = {0};
    drain_full(&d, true, 50 * S);
    assert_int_equal(drain_wait_s(&d, 4, 50 * S), 1);
    assert_int_equal(drain_wait_s(&d, 4, 52 * S), 8);
    assert_int_equal(drain_wait_s(&d, 4, 60 * S), 40);
    int64_t now = ends(&d, 60 * S, 100 * MS, 20); /* and then it goes fast */
    assert_int_equal(drain_wait_s(&d, 40, now), 4);
    assert_int_equal(drain_wait_s(&d, 40, now + 15 * S), 44); /* and stops again */
}

static void the_wait_follows_the_last_ends(void **state)
{
    (void)state;
    struct drain d = {0};
    drain_full(&d, true, S);
    int64_t now = ends(&d, S, 4 * S, 40);
    assert_int_equal(drain_wait_s(&d, 3, now), 12);
    now = ends(&d, now, 250 * MS, DRAIN_ENDS);
    assert_int_equal(drain_wait_s(&d, 12, now), 3);
}

/* Neither quiet hours nor requests that found a place at once say how fast a queue gets shorter. */
static void only_a_full_batch_is_measured(void **state)
{
    (void)state;
    struct drain d = {0};
    ends(&d, 0, S, 5); /* one after the other, nobody waits */
    drain_full(&d, true, 10 * S);
    int64_t now = ends(&d, 10 * S, 500 * MS, 20);
    drain_full(&d, false, now);
    assert_int_equal(drain_wait_s(&d, 10, now + 20 * S), 5);
    ends(&d, now, 5 * S, 4);
    drain_full(&d, true, now + 20 * S); /* a little later, as full as before */
    assert_int_equal(drain_wait_s(&d, 10, now + 20 * S), 5);
    drain_full(&d, true, now + 21 * S); /* it is, and has been for a second */
    assert_int_equal(drain_wait_s(&d, 10, now + 21 * S), 6);
}

static void after_a_quiet_minute_the_counting_begins_anew(void **state)
{
    (void)state;
    struct drain d = {0};
    drain_full(&d, true, S);
    int64_t now = ends(&d, S, 10 * S, 20);
    drain_full(&d, false, now);
    drain_full(&d, true, now += 100 * S);
    assert_int_equal(drain_wait_s(&d, 6, now), 1);
    now = ends(&d, now, 500 * MS, 4);
    assert_int_equal(drain_wait_s(&d, 6, now), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_wait_is_the_queue_by_what_ends_in_a_second),
        cmocka_unit_test(the_wait_is_within_bounds),
        cmocka_unit_test(the_wait_grows_while_nothing_ends),
        cmocka_unit_test(the_wait_follows_the_last_ends),
        cmocka_unit_test(only_a_full_batch_is_measured),
        cmocka_unit_test(after_a_quiet_minute_the_counting_begins_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
