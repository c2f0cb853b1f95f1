/* SPDX-License-Identifier: Apache-2.0 */
/* Kernel sources as files beside a store: whole for every process that writes them at once, and
 * apart from those of other versions. */
#include "tests/unit/unit.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <utime.h>

#include "config/safe_path.h"
#include "kernels/sources.h"
#include "specializer/build/sources.h"

enum { WRITERS = 4, ROUNDS = 6, DAY = 86400 };

static char root[] = "/tmp/whet-test-sources-XXXXXX";
static char *own; /* this program's folder */

static void make_root(void)
{
    struct err err = {""};
    char store[80];
    assert_non_null(mkdtemp(root));
    snprintf(store, sizeof store, "%s/store.db", root);
    own = kernel_sources_folder(store);
    assert_int_equal(kernel_sources_write(own, &err), 0);
}

static const char *at(const char *name)
{
    static char path[200];
    snprintf(path, sizeof path, "%s/store.db.kernels/%s", root, name);
    return path;
}

static void all_are_whole(void)
{
    for (int i = 0; i < kernel_source_count; i++) {
        char path[300], *text = xcalloc(kernel_sources[i].size + 2, 1);
        snprintf(path, sizeof path, "%s/%s", own, kernel_sources[i].name);
        FILE *f = fopen(path, "r");
        assert_non_null(f);
        assert_int_equal(fread(text, 1, kernel_sources[i].size + 1, f), kernel_sources[i].size);
        assert_string_equal(text, kernel_sources[i].text);
        fclose(f);
        free(text);
    }
}

/* A folder of another version, last used `days` ago. */
static void other(const char *name, int days)
{
    struct utimbuf then = {time(NULL) - days * DAY, time(NULL) - days * DAY};
    char path[300];
    snprintf(path, sizeof path, "%s/cuda/lib", at(name));
    assert_int_equal(safe_folder_make(path, NULL), 0);
    snprintf(path, sizeof path, "%s/cuda/lib/mma.cuh", at(name));
    FILE *f = fopen(path, "w");
    assert_true(f && fputs("/* of another version */", f) >= 0 && fclose(f) == 0);
    assert_int_equal(utime(at(name), &then), 0);
}

static void test_the_folder_is_named_by_what_the_texts_say(void **unused)
{
    (void)unused;
    const char *name = strrchr(own, '/') + 1;
    assert_int_equal(strspn(name, "0123456789abcdef"), 16);
    assert_int_equal(strlen(name), 16);
    char *elsewhere = kernel_sources_folder("/another/store.db");
    assert_string_equal(strrchr(elsewhere, '/') + 1, name);
    assert_int_equal(strncmp(elsewhere, "/another/store.db.kernels/", 26), 0);
    free(elsewhere);
    all_are_whole();
}

static void test_processes_may_write_them_at_once(void **unused)
{
    (void)unused;
    pid_t child[WRITERS];
    for (int i = 0; i < WRITERS; i++)
        if ((child[i] = fork()) == 0) {
            struct err err = {""};
            int failed = 0;
            for (int r = 0; r < ROUNDS; r++)
                failed |= kernel_sources_write(own, &err) != 0;
            if (failed)
                fprintf(stderr, "%s\n", err.msg);
            _exit(failed);
        }
    for (int i = 0; i < WRITERS; i++) {
        int status = -1;
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_int_equal(status, 0);
    }
    all_are_whole();
}

static void test_what_another_version_uses_stays_and_what_it_left_goes(void **unused)
{
    (void)unused;
    other("0123456789abcdef", 0);
    other("fedcba9876543210", 2);
    other("cuda", 2); /* before folders had names */
    const struct timespec then[2] = {{time(NULL) - 2 * DAY, 0}, {time(NULL) - 2 * DAY, 0}};
    assert_int_equal(symlink("0123456789abcdef", at("link")), 0);
    assert_int_equal(utimensat(AT_FDCWD, at("link"), then, AT_SYMLINK_NOFOLLOW), 0);
    kernel_sources_prune(own);
    assert_int_equal(access(at("link"), F_OK), -1); /* what it leads to stays: */
    assert_int_equal(access(at("0123456789abcdef/cuda/lib/mma.cuh"), F_OK), 0);
    assert_int_equal(access(at("fedcba9876543210"), F_OK), -1);
    assert_int_equal(access(at("cuda"), F_OK), -1);
    all_are_whole();
}

/* Its files are exchanged one by one, which leaves a folder's own time as it was. */
static void test_a_folder_in_use_is_never_old(void **unused)
{
    (void)unused;
    struct err err = {""};
    struct utimbuf then = {time(NULL) - 9 * DAY, time(NULL) - 9 * DAY};
    struct stat st;
    assert_int_equal(utime(own, &then), 0);
    assert_int_equal(kernel_sources_write(own, &err), 0);
    assert_int_equal(stat(own, &st), 0);
    assert_true(st.st_mtime > time(NULL) - DAY);
}

static void test_a_folder_that_cannot_be_made_is_an_error_with_its_name(void **unused)
{
    (void)unused;
    struct err err = {""};
    char path[200];
    snprintf(path, sizeof path, "%s/args.h/inside", own);
    assert_int_equal(kernel_sources_write(path, &err), -1);
    assert_non_null(strstr(err.msg, "args.h"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_folder_is_named_by_what_the_texts_say),
        cmocka_unit_test(test_processes_may_write_them_at_once),
        cmocka_unit_test(test_what_another_version_uses_stays_and_what_it_left_goes),
        cmocka_unit_test(test_a_folder_in_use_is_never_old),
        cmocka_unit_test(test_a_folder_that_cannot_be_made_is_an_error_with_its_name),
    };
    make_root();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    safe_folder_remove(root);
    free(own);
    return failed;
}
