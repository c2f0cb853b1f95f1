/* SPDX-License-Identifier: Apache-2.0 */
/* test_descriptors.c - descriptors on a system without /dev/null or close_range.
 *
 * What is missing is taken away by a filter of system calls, which cannot be taken back: each of
 * these tests is a process of its own.
 */
#include "tests/unit/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/descriptors.h"

/* False where system calls cannot be filtered. */
static bool forbid_close_range(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) != -1;
}

enum { RIGHT, WRONG, CANNOT_BE_TRIED };

static int apart(int (*look)(void))
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0)
        _exit(look());
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int closes(void)
{
    int low = fcntl(0, F_DUPFD, 20), high = fcntl(0, F_DUPFD, 200);
    descriptors_close_from(low + 1);
    return is_open(low) && !is_open(high) && is_open(2) ? RIGHT : WRONG;
}

static int closes_without(void)
{
    return forbid_close_range() ? closes() : CANNOT_BE_TRIED;
}

static void descriptors_are_closed_on_old_kernels_too(void **state)
{
    (void)state;
    assert_int_equal(apart(closes), RIGHT);
    int old = apart(closes_without);
    if (old == CANNOT_BE_TRIED)
        skip();
    assert_int_equal(old, RIGHT);
}

static int counts(void)
{
    struct rlimit r;
    descriptors_close_from(3);
    if (getrlimit(RLIMIT_NOFILE, &r) != 0)
        return WRONG;
    r.rlim_cur = 3 + 8;
    if (setrlimit(RLIMIT_NOFILE, &r) != 0 || !descriptors_free(8) || descriptors_free(9))
        return WRONG;
    return descriptors_free(8) ? RIGHT : WRONG; /* none stayed open */
}

static void what_the_limit_leaves_is_known(void **state)
{
    (void)state;
    assert_int_equal(apart(counts), RIGHT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptors_are_closed_on_old_kernels_too),
        cmocka_unit_test(what_the_limit_leaves_is_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
