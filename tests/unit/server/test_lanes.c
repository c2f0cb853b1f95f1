/* SPDX-License-Identifier: Apache-2.0 */
/* test_lanes.c - a machine that has no thread for a lane. */
#include "tests/unit/unit.h"

#include <string.h>

#include "server/lanes.h"

static int threads_left;

int __real_uv_thread_create(uv_thread_t *id, uv_thread_cb run, void *arg);
int __wrap_uv_thread_create(uv_thread_t *id, uv_thread_cb run, void *arg);
int __wrap_uv_thread_create(uv_thread_t *id, uv_thread_cb run, void *arg)
{
    return threads_left-- > 0 ? __real_uv_thread_create(id, run, arg) : UV_EAGAIN;
}

static void on_wake(uv_async_t *wake)
{
    (void)wake;
}

static void a_thread_that_is_missing_is_an_error(void **state)
{
    (void)state;
    uv_loop_t loop;
    uv_async_t wake;
    struct lanes lanes;
    int least = 0, rc = -1;
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(uv_async_init(&loop, &wake, on_wake), 0);
    for (; rc != 0 && least < 100; least++) {
        struct err err = {""};
        threads_left = least;
        rc = lanes_open(&lanes, &wake, &err);
        assert_true(rc == 0 ||
                    (strstr(err.msg, "no thread for requests") && strstr(err.msg, "pids.max")));
        lanes_close(&lanes); /* ends those that did start */
    }
    assert_true(rc == 0 && least > 2);
    uv_close((uv_handle_t *)&wake, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_that_is_missing_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
