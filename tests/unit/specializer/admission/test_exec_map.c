/* SPDX-License-Identifier: Apache-2.0 */
/* test_exec_map.c - code that the system does not let run is told from code that is bad.
 *
 * A filter of system calls stands for a noexec mount: mappings that could be run fail with EPERM
 * there, too. It cannot be taken back, so each test that needs it is a process of its own.
 */
#include "tests/unit/unit.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/exec_map.h"
#include "specializer/admission/runner.h"

/* False where system calls cannot be filtered. */
static bool forbid_code(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

enum { RIGHT, WRONG, CANNOT_BE_TRIED };

/* What `look` says in a process where no code comes out of files. */
static int where_it_is_forbidden(int (*look)(const char *file), const char *file)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0)
        _exit(forbid_code() ? look(file) : CANNOT_BE_TRIED);
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* A shared object that is loaded nowhere yet: a copy of one that is. */
static char *an_object(char path[32])
{
    Dl_info from;
    char text[4096];
    size_t n;
    int fd = mkstemp(strcpy(path, "/tmp/whet-exec-XXXXXX"));
    assert_true(fd >= 0);
    void *library = dlopen("libm.so.6", RTLD_NOW), *known = library ? dlsym(library, "cbrt") : NULL;
    assert_true(known && dladdr(known, &from) != 0);
    FILE *in = fopen(from.dli_fname, "r");
    assert_non_null(in);
    while ((n = fread(text, 1, sizeof text, in)) > 0)
        assert_int_equal(write(fd, text, n), (ssize_t)n);
    fclose(in);
    close(fd);
    return path;
}

static int it_is_said(const char *file)
{
    struct err of_file = {""}, of_folder = {""};
    bool right = exec_map_file(file, &of_file) == -1 && of_file.outside &&
                 exec_map_folder("/tmp", &of_folder) == -1 && of_folder.outside &&
                 strstr(of_file.msg, "noexec") && strstr(of_folder.msg, "/tmp");
    return right ? RIGHT : WRONG;
}

static void code_that_may_not_run_is_said_to_be_so(void **state)
{
    (void)state;
    struct err err = {""};
    char path[32];
    an_object(path);
    assert_int_equal(exec_map_file(path, &err), 0);
    assert_int_equal(exec_map_folder("/tmp", &err), 0);
    assert_int_equal(exec_map_file("/nonexistent/object", &err), 0);
    assert_int_equal(exec_map_folder("/nonexistent", &err), 0);
    int said = where_it_is_forbidden(it_is_said, path);
    unlink(path);
    if (said == CANNOT_BE_TRIED)
        skip();
    assert_int_equal(said, RIGHT);
}

/* Refused, it would never be tried again, wherever the store goes. */
static int nothing_is_learnt(const char *file)
{
    struct err err = {""};
    struct runner_options o = {.object = file, .team_max = 1, .watchdog_s = 20};
    struct runner *r = runner_open(&o, &err);
    return !r && err.outside && strstr(err.msg, "cannot be run") ? RIGHT : WRONG;
}

static void a_kernel_that_may_not_be_loaded_is_not_refused(void **state)
{
    (void)state;
    char path[32];
    struct err err = {""};
    struct runner_options o = {.object = an_object(path), .team_max = 1, .watchdog_s = 20};
    assert_null(runner_open(&o, &err)); /* it is no kernel: that is its own fault */
    assert_false(err.outside);
    int said = where_it_is_forbidden(nothing_is_learnt, path);
    unlink(path);
    if (said == CANNOT_BE_TRIED)
        skip();
    assert_int_equal(said, RIGHT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(code_that_may_not_run_is_said_to_be_so),
        cmocka_unit_test(a_kernel_that_may_not_be_loaded_is_not_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
