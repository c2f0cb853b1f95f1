/* SPDX-License-Identifier: Apache-2.0 */
/* test_memory.c - how much memory of the host is taken when nobody says. */
#include "tests/unit/unit.h"

#include "engine/memory.h"

static const int64_t GIB = 1 << 30;

static void a_quarter_is_taken_by_all_processes_together(void **state)
{
    (void)state;
    assert_int_equal(memory_usual_mib(4 * GIB, 1), 1024);
    assert_int_equal(memory_usual_mib(4 * GIB, 4), 256);
    assert_int_equal(memory_usual_mib(64 * GIB, 1), 2048);
    assert_int_equal(memory_usual_mib(64 * GIB, 16), 1024);
    assert_int_equal(memory_usual_mib(64 << 20, 64), 1); /* little is not "not known" */
    assert_int_equal(memory_usual_mib(0, 4), 2048);
}

static void the_system_says_how_much_there_is(void **state)
{
    (void)state;
    assert_true(memory_available() > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_quarter_is_taken_by_all_processes_together),
        cmocka_unit_test(the_system_says_how_much_there_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
