/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of config/watchdog.c: who hangs is found, who waits for a core is not, on either side. */
#include "tests/unit/unit.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/watchdog.h"

#define SLEEP_S 0.4

static pid_t child_that(void (*does)(void))
{
    pid_t pid = fork();
    if (pid == 0) {
        for (;;)
            does();
    }
    assert_true(pid > 0);
    return pid;
}

static void sleep_on(void)
{
    pause();
}

static volatile unsigned long turns;

static void spin(void)
{
    turns++;
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void look_until_over(struct watchdog *w)
{
    while (!watchdog_over(w))
        usleep(10000);
}

static void one_that_sleeps_is_found(void **state)
{
    (void)state;
    struct watchdog w;
    pid_t pid = child_that(sleep_on);
    watchdog_start(&w, pid, 60, SLEEP_S);
    look_until_over(&w);
    assert_non_null(strstr(w.why, "hang: asleep for "));
    end(pid);
}

static void one_that_runs_is_found_by_its_cpu_time(void **state)
{
    (void)state;
    struct watchdog w;
    pid_t pid = child_that(spin);
    watchdog_start(&w, pid, 0.5, SLEEP_S);
    look_until_over(&w);
    assert_non_null(strstr(w.why, "s of CPU time"));
    end(pid);
}

/* The child may have done its work while nobody looked: that it sleeps now says nothing. */
static void a_look_after_a_long_absence_condemns_nobody(void **state)
{
    (void)state;
    struct watchdog w;
    pid_t pid = child_that(sleep_on);
    watchdog_start(&w, pid, 60, SLEEP_S);
    usleep((useconds_t)(4 * SLEEP_S * 1e6));
    assert_false(watchdog_over(&w));
    usleep((useconds_t)(4 * SLEEP_S * 1e6));
    assert_false(watchdog_over(&w));
    look_until_over(&w);
    end(pid);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_that_sleeps_is_found),
        cmocka_unit_test(one_that_runs_is_found_by_its_cpu_time),
        cmocka_unit_test(a_look_after_a_long_absence_condemns_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
