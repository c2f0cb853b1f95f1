/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of specializer/fleet/fleet_pace.c: how often servers listen and notify, by how many there
 * are. */
#include "tests/unit/unit.h"

#include <string.h>

#include "config/clock.h"
#include "specializer/fleet/fleet_private.h"

#define S INT64_C(1000000000)
#define FAR (INT64_MAX / 2)

/* One that has just listened to everything and has nothing else to do. */
static struct fleet *begin(int servers)
{
    static struct fleet f;
    memset(&f, 0, sizeof f);
    f.servers = servers;
    f.pulled_ns = f.wrong_ns = clock_ns();
    f.pull_due_ns = f.wrong_due_ns = f.beat_due_ns = FAR;
    return &f;
}

static double from_now(int64_t ns)
{
    return (double)(ns - clock_ns()) / 1e9;
}

static void test_the_more_there_are_the_seldomer_each_listens(void **state)
{
    (void)state;
    double before = 0;
    for (int n = 0; n < 1000; n++) {
        double pause = fleet_listen_pause(n);
        assert_true(pause >= before && pause >= 0.2 && pause <= FLEET_PULL_S);
        if (pause < FLEET_PULL_S)
            assert_true(n / pause <= 50.001); /* all of them, in a second */
        before = pause;
    }
    assert_true(fleet_listen_pause(2) < 0.201);
    assert_true(before == FLEET_PULL_S);
}

static void test_what_is_wrong_is_heard_soon_by_however_many(void **state)
{
    (void)state;
    for (int n = 1; n < 4000; n = 2 * n + 1) {
        struct fleet *f = begin(n);
        fleet_listen_soon(f, FLEET_NOTE_WRONG);
        assert_true(from_now(f->wrong_due_ns) <= 1.21);
        assert_true(f->pull_due_ns == FAR); /* all the rest waits */
        f = begin(n);
        fleet_listen_soon(f, FLEET_NOTE_KERNEL);
        assert_true(f->wrong_due_ns == FAR);
        assert_true(f->pull_due_ns - f->pulled_ns >= (int64_t)(fleet_listen_pause(n) * 1e9));
        assert_true(from_now(f->pull_due_ns) <= 2 * FLEET_PULL_S);
    }
}

static void test_a_turn_that_is_due_earlier_stays_so_and_many_notes_are_as_one(void **state)
{
    (void)state;
    struct fleet *f = begin(100);
    int64_t soon = f->pull_due_ns = clock_ns() + S / 100;
    fleet_listen_soon(f, FLEET_NOTE_KERNEL | FLEET_NOTE_WRONG);
    assert_true(f->pull_due_ns == soon);
    f = begin(100);
    for (int i = 0; i < 1000; i++)
        fleet_listen_soon(f, FLEET_NOTE_KERNEL | FLEET_NOTE_WRONG);
    assert_true(f->wrong_due_ns - f->wrong_ns >= S / 5);
    assert_true(f->pull_due_ns - f->pulled_ns >= 2 * S);
}

static void test_who_was_just_notified_notifies_nobody(void **state)
{
    (void)state;
    struct fleet *f = begin(240);
    assert_true(fleet_may_notify(f));
    assert_false(fleet_may_notify(f));
    f->noted_ns -= S; /* a second ago */
    assert_true(fleet_may_notify(f));
    f->noted_ns -= S;
    fleet_listen_soon(f, FLEET_NOTE_KERNEL);
    assert_false(fleet_may_notify(f));
    f = begin(1000); /* who listen every five seconds, told or not */
    assert_false(fleet_may_notify(f));
}

static void test_what_was_heard_is_told_once_a_second(void **state)
{
    (void)state;
    for (int n = 1; n < 300; n = 2 * n + 1) {
        struct fleet *f = begin(n);
        int64_t from_ns = clock_ns();
        for (int i = 0; i < 1000; i++)
            fleet_heard(f);
        assert_true(f->beat_due_ns - from_ns >= S);
        assert_true(from_now(f->beat_due_ns) < 1.01 + 0.02 * n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_more_there_are_the_seldomer_each_listens),
        cmocka_unit_test(test_what_is_wrong_is_heard_soon_by_however_many),
        cmocka_unit_test(test_a_turn_that_is_due_earlier_stays_so_and_many_notes_are_as_one),
        cmocka_unit_test(test_who_was_just_notified_notifies_nobody),
        cmocka_unit_test(test_what_was_heard_is_told_once_a_second),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
