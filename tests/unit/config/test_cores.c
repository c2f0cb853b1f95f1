/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of config/cores: sets of CPUs, those of large machines too. */
#include "tests/unit/unit.h"

#include "config/cores.h"

static void lists_of_the_kernel_are_read(void **state)
{
    (void)state;
    const struct {
        const char *list;
        int32_t count, first, last;
    } row[] = {{"0\n", 1, 0, 0},
               {"0-3,8,10-11\n", 7, 0, 11},
               {"5-5", 1, 5, 5},
               {"", 0, -1, -1},
               {"\n", 0, -1, -1},
               {"0-191,384-575", 384, 0, 575},
               {"1023-1024,8191", 3, 1023, 8191},
               {"8190-9000,123456789", 2, 8190, 8191}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct cores_set s;
        assert_true(cores_parse(row[i].list, &s));
        assert_int_equal(cores_count(&s), row[i].count);
        assert_int_equal(cores_nth(&s, 0), row[i].first);
        assert_int_equal(cores_nth(&s, row[i].count - 1), row[i].last);
        assert_int_equal(cores_nth(&s, row[i].count), -1);
    }
}

static void what_is_no_list_is_refused(void **state)
{
    (void)state;
    const char *const bad[] = {"x", "1-", "-1", "3-1", "1,,2", "1;2", "1 2", "1-2-3", "1234567890"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct cores_set s;
        assert_false(cores_parse(bad[i], &s));
        assert_int_equal(cores_count(&s), 0);
    }
}

static void members_beyond_the_end_are_none(void **state)
{
    (void)state;
    struct cores_set s = {{0}};
    cores_add(&s, -1);
    cores_add(&s, CORES_SET_MOST);
    assert_int_equal(cores_count(&s), 0);
    assert_false(cores_has(&s, -1) || cores_has(&s, CORES_SET_MOST));
}

/* Bits that the machine does not have are passed over by the kernel. */
static void a_thread_keeps_to_a_core_and_is_let_go(void **state)
{
    (void)state;
    struct cores_set all, one = {{0}}, now;
    assert_true(cores_affinity(&all));
    assert_int_equal(cores_count(&all), cores_allowed());
    cores_add(&one, cores_nth(&all, cores_count(&all) - 1));
    cores_add(&one, CORES_SET_MOST - 1);
    assert_true(cores_keep_to(&one));
    assert_true(cores_affinity(&now));
    assert_int_equal(cores_count(&now), 1);
    assert_int_equal(cores_nth(&now, 0), cores_nth(&one, 0));
    assert_true(cores_keep_to(&all));
    assert_int_equal(cores_allowed(), cores_count(&all));
}

static void threads_are_what_was_asked_for_or_bounded(void **state)
{
    (void)state;
    assert_int_equal(cores_or(200), 200);
    assert_in_range(cores_or(0), 1, CORES_THREADS_MOST);
    assert_int_equal(cores_threads(0, 3), 3);
    assert_int_equal(cores_threads(0, CORES_THREADS_MOST), CORES_THREADS_MOST);
    assert_int_equal(cores_threads(0, 384), CORES_THREADS_MOST);
    assert_int_equal(cores_threads(7, 384), 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_of_the_kernel_are_read),
        cmocka_unit_test(what_is_no_list_is_refused),
        cmocka_unit_test(members_beyond_the_end_are_none),
        cmocka_unit_test(a_thread_keeps_to_a_core_and_is_let_go),
        cmocka_unit_test(threads_are_what_was_asked_for_or_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
