/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of specializer/start_guard.c: beginnings are counted, whatever has become of the file. */
#include "tests/unit/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/safe_path.h"
#include "specializer/start_guard.h"

static char folder[200], path[300];

static int open_folder(void **state)
{
    (void)state;
    struct err err;
    char *made = safe_folder_temporary("whet-start-", &err);
    assert_non_null(made);
    snprintf(folder, sizeof folder, "%s", made);
    snprintf(path, sizeof path, "%s/s.db.start", made);
    free(made);
    return 0;
}

static int close_folder(void **state)
{
    (void)state;
    safe_folder_remove(folder);
    return 0;
}

static void write_file(const char *text, size_t n)
{
    FILE *f = fopen(path, "wbe");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(path, 0600), 0);
}

static void beginnings_that_do_not_end_are_counted(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        assert_int_equal(start_guard_ended(path), i);
        assert_int_equal(start_guard_begin(path, i), 0);
    }
    start_guard_end(path);
    assert_int_equal(start_guard_ended(path), 0);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(start_guard_begin(path, 1 << 30), 0);
    assert_in_range(start_guard_ended(path), START_ENDS, 1 << 20);
}

static void what_is_no_count_is_none(void **state)
{
    (void)state;
    static const char *const text[] = {"",        "\n",         "2",      "x\n",
                                       "-3\n",    "3 \n",       "0x3\n",  "3\n3\n",
                                       "99999\n", "12345678\n", "\xff\n", " 3\n"};
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        write_file(text[i], strlen(text[i]));
        assert_int_equal(start_guard_ended(path), 0);
    }
    write_file("3\0\n", 3);
    assert_int_equal(start_guard_ended(path), 0);
    write_file("3\n", 2);
    assert_int_equal(start_guard_ended(path), 3);
    unlink(path);
    assert_int_equal(symlink("/etc/hostname", path), 0);
    assert_int_equal(start_guard_ended(path), 0);
    assert_int_equal(start_guard_begin(path, 0), 0); /* in its place */
    assert_int_equal(start_guard_ended(path), 1);
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(start_guard_ended(path), 0);
    assert_int_equal(start_guard_begin(path, 0), -1);
    rmdir(path);
}

static void each_further_one_waits_longer(void **state)
{
    (void)state;
    for (int i = 0; i < START_ENDS; i++)
        assert_true(start_guard_wait_s(i) == 0);
    double last = 0;
    for (int i = START_ENDS; i < 2000; i++) {
        double now = start_guard_wait_s(i);
        assert_true(now >= 60 && now >= last && now <= 86400);
        last = now;
    }
    assert_true(last > start_guard_wait_s(START_ENDS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(beginnings_that_do_not_end_are_counted, open_folder,
                                        close_folder),
        cmocka_unit_test_setup_teardown(what_is_no_count_is_none, open_folder, close_folder),
        cmocka_unit_test(each_further_one_waits_longer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
