/* SPDX-License-Identifier: Apache-2.0 */
/* The folder of compiled kernels: what goes when it is old or too large, and what never does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <utime.h>

#include <cmocka.h>

#include "config/err.h"
#include "specializer/build/objects.h"

static char folder[] = "/tmp/whet-test-objects-XXXXXX";

/* A file of `kib` KiB that was written `days` ago. */
static void put(const char *name, int kib, int days)
{
    char *path = xasprintf("%s/%s", folder, name), block[1024] = {0};
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < kib; i++)
        assert_int_equal(fwrite(block, sizeof block, 1, f), 1);
    fclose(f);
    struct utimbuf when = {time(NULL) - days * 86400, time(NULL) - days * 86400};
    assert_int_equal(utime(path, &when), 0);
    free(path);
}

static bool there(const char *name)
{
    char *path = xasprintf("%s/%s", folder, name);
    bool found = access(path, F_OK) == 0;
    free(path);
    return found;
}

static bool kept(void *ctx, const char *key)
{
    return strcmp(key, ctx) == 0;
}

static int prune(int kib, int days, const char *winner)
{
    struct objects_limit limit = {(int64_t)kib << 10, days * INT64_C(86400)};
    return objects_prune(folder, limit, kept, (void *)winner);
}

static int empty_folder(void **unused)
{
    (void)unused;
    char command[80];
    snprintf(command, sizeof command, "rm -rf %s/*", folder);
    return system(command);
}

static void objects_within_bounds_stay(void **unused)
{
    (void)unused;
    put("aa.so", 10, 1);
    put("bb.so", 10, 2);
    assert_int_equal(prune(20, 30, ""), 0);
    assert_true(there("aa.so") && there("bb.so"));
}

static void objects_go_the_oldest_first_until_they_fit(void **unused)
{
    (void)unused;
    put("aa.so", 10, 3);
    put("bb.so", 10, 1);
    put("cc.so", 10, 2);
    assert_int_equal(prune(15, 30, ""), 2);
    assert_true(!there("aa.so") && there("bb.so") && !there("cc.so"));
}

static void objects_go_when_they_are_old(void **unused)
{
    (void)unused;
    put("aa.so", 1, 31);
    put("dd.cubin", 1, 31);
    put("bb.so", 1, 29);
    assert_int_equal(prune(1000, 30, ""), 2);
    assert_true(!there("aa.so") && !there("dd.cubin") && there("bb.so"));
}

static void objects_in_use_never_go(void **unused)
{
    (void)unused;
    put("aa.so", 50, 400);
    put("bb.so", 10, 1);
    assert_int_equal(prune(15, 30, "aa"), 1); /* and it counts: nothing else fits beside it */
    assert_true(there("aa.so") && !there("bb.so"));
}

static void objects_leave_other_files_alone_and_take_what_a_dead_process_left(void **unused)
{
    (void)unused;
    char *probe = xasprintf("%s/aa.so.probe-abcdef", folder);
    put("aa.so.77-1.tmp", 5, 2);
    put("bb.so.78-1.tmp", 5, 0); /* may be a compiler's at work */
    put("notes", 5, 99);
    assert_int_equal(mkdir(probe, 0700), 0);
    put("aa.so.probe-abcdef/request.json", 1, 2);
    struct utimbuf when = {time(NULL) - 2 * 86400, time(NULL) - 2 * 86400};
    assert_int_equal(utime(probe, &when), 0);
    assert_int_equal(prune(1, 1, ""), 2);
    assert_true(!there("aa.so.77-1.tmp") && there("bb.so.78-1.tmp") && there("notes"));
    assert_false(there("aa.so.probe-abcdef"));
    free(probe);
}

static void objects_of_a_folder_that_is_gone_are_none(void **unused)
{
    (void)unused;
    struct objects_limit limit = {1, 1};
    assert_int_equal(objects_prune("/nonexistent/folder", limit, kept, (void *)""), 0);
}

static int open_folder(void **unused)
{
    (void)unused;
    return mkdtemp(folder) ? 0 : -1;
}

static int close_folder(void **unused)
{
    empty_folder(unused);
    return rmdir(folder);
}

#define TEST(f) cmocka_unit_test_setup(f, empty_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(objects_within_bounds_stay),
        TEST(objects_go_the_oldest_first_until_they_fit),
        TEST(objects_go_when_they_are_old),
        TEST(objects_in_use_never_go),
        TEST(objects_leave_other_files_alone_and_take_what_a_dead_process_left),
        TEST(objects_of_a_folder_that_is_gone_are_none),
    };
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
