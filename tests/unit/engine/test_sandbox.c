/* SPDX-License-Identifier: Apache-2.0 */
/* test_sandbox.c - whether system calls can be filtered, asked while no process can be made: for a
 * moment, which changes nothing, and for longer, which is no answer. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

#include "engine/sandbox.h"

static int asked, refused; /* clone()s, and how many of the first of them have failed */

int __real_clone(int (*fn)(void *), void *stack, int flags, void *arg, ...);
int __wrap_clone(int (*fn)(void *), void *stack, int flags, void *arg, ...);
int __wrap_clone(int (*fn)(void *), void *stack, int flags, void *arg, ...)
{
    if (asked++ < refused) {
        errno = EAGAIN;
        return -1;
    }
    return __real_clone(fn, stack, flags, arg);
}

static bool ask(int times, struct err *why)
{
    why->msg[0] = 0;
    asked = 0;
    refused = times;
    return sandbox_works(why);
}

static void a_moment_without_processes_says_nothing_of_the_filter(void **state)
{
    (void)state;
    struct err why, later;
    bool works = ask(0, &why);
    if (asked == 0)
        skip(); /* a build that cannot filter does not try */
    assert_int_equal(ask(3, &later), works);
    assert_int_equal(asked, 4);
    assert_string_equal(later.msg, why.msg);
    assert_true(works == !why.msg[0]);
}

static void without_any_process_it_is_not_known(void **state)
{
    (void)state;
    struct err why;
    ask(0, &why);
    if (asked == 0)
        skip();
    assert_false(ask(1000000, &why));
    assert_non_null(strstr(why.msg, "there is no process to try whether"));
    assert_non_null(strstr(why.msg, strerror(EAGAIN)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_moment_without_processes_says_nothing_of_the_filter),
        cmocka_unit_test(without_any_process_it_is_not_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
