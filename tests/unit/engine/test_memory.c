/* SPDX-License-Identifier: Apache-2.0 */
/* test_memory.c - how much memory is left, who says so, and what is taken of it when nobody says.
 */
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/safe_path.h"
#include "engine/memory.h"

static char root[] = "/tmp/whet-memory-XXXXXX";

static void put(const char *name, const char *text)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void folder(const char *name)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", root, name);
    assert_int_equal(mkdir(path, 0700), 0);
}

static void the_smaller_of_machine_and_group_decides(void **state)
{
    (void)state;
    char why[200];
    assert_non_null(mkdtemp(root));
    assert_int_equal(memory_available_in(root, why, sizeof why), 0);
    folder("proc");
    folder("proc/self");
    folder("cg");
    put("proc/meminfo", "MemTotal: 9000000 kB\nMemFree: 1 kB\nMemAvailable:    1024 kB\n");
    assert_int_equal(memory_available_in(root, why, sizeof why), 1 << 20);
    assert_string_equal(why, "MemAvailable of the machine");
    put("proc/self/cgroup", "0::/\n");
    put("proc/self/mountinfo", "29 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n");
    put("cg/memory.max", "419430400\n");
    assert_int_equal(memory_available_in(root, why, sizeof why), 1 << 20);
    put("cg/memory.current", "419000000\n");
    assert_int_equal(memory_available_in(root, why, sizeof why), 430400);
    assert_string_equal(why, "/cg/memory.max is 400 MiB");
    put("cg/memory.current", "419430400\n"); /* nothing left is not the same as nothing known */
    assert_int_equal(memory_available_in(root, why, sizeof why), 1);
    safe_folder_remove(root);
}

/* 0 if a limit of 2 GiB is what decides, not the machine's 16 GiB: in a process of its own. */
static int limited(int resource, const char *name)
{
    char why[200];
    struct rlimit r;
    const int64_t mib = 1 << 20;
    if (getrlimit(resource, &r) != 0)
        return 1;
    r.rlim_cur = (rlim_t)(2048 * mib);
    if (setrlimit(resource, &r) != 0)
        return 2;
    int64_t left = memory_available_in(root, why, sizeof why);
    if (left != 2038 * mib || !strstr(why, name) || !strstr(why, " is 2048 MiB"))
        return 3;
    put("proc/self/status", "VmPeak:\t 1 kB\nVmSize:\t 9999999 kB\nVmData:\t 9999999 kB\n");
    return memory_available_in(root, why, sizeof why) == 1 ? 0 : 4;
}

static void what_the_process_may_have_decides_where_it_is_less(void **state)
{
    static const struct {
        int resource;
        const char *name;
    } limits[] = {{RLIMIT_AS, "RLIMIT_AS"}, {RLIMIT_DATA, "RLIMIT_DATA"}};
    (void)state;
    if (SANITIZED)
        skip(); /* its own memory is beyond any limit */
    strcpy(root, "/tmp/whet-memory-XXXXXX");
    assert_non_null(mkdtemp(root));
    folder("proc");
    folder("proc/self");
    put("proc/meminfo", "MemAvailable:    16777216 kB\n");
    for (size_t i = 0; i < 2; i++) {
        int status = 0;
        put("proc/self/status", "VmPeak:\t 1 kB\nVmSize:\t 10240 kB\nVmData:\t 10240 kB\n");
        pid_t pid = fork();
        if (pid == 0)
            _exit(limited(limits[i].resource, limits[i].name));
        assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    safe_folder_remove(root);
}

static void this_process_has_some(void **state)
{
    (void)state;
    assert_true(memory_available() > 0);
}

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

static void pages_are_those_asked_for_as_long_as_there_is_memory(void **state)
{
    (void)state;
    assert_int_equal(memory_pages(1024, 1 << 20, GIB), 1024);
    assert_int_equal(memory_pages(1025, 1 << 20, GIB), 768);
    assert_int_equal(memory_pages(INT32_MAX, 1 << 20, 0), INT32_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_smaller_of_machine_and_group_decides),
        cmocka_unit_test(what_the_process_may_have_decides_where_it_is_less),
        cmocka_unit_test(this_process_has_some),
        cmocka_unit_test(a_quarter_is_taken_by_all_processes_together),
        cmocka_unit_test(pages_are_those_asked_for_as_long_as_there_is_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
