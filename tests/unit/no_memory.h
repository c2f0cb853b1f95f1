/* SPDX-License-Identifier: Apache-2.0 */
/* no_memory.h - a program whose allocations fail on demand: the n-th one of what is tried, and of
 * libraries too, since the program's own malloc() stands before the C library's. By decision a
 * process ends where host memory is gone, with a sentence (config/err.h); it may also refuse, or go
 * on. It does not crash, and does not hang.
 *
 * Sanitizers have a malloc() of their own: there is nothing to try with them (SANITIZED).
 */
#ifndef WHET_TESTS_UNIT_NO_MEMORY_H
#define WHET_TESTS_UNIT_NO_MEMORY_H

#include "tests/unit/unit.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#if !SANITIZED
static atomic_long allocations_left = -1; /* below 0: none fails */

static bool allocation_fails(void)
{
    return atomic_load(&allocations_left) >= 0 && atomic_fetch_sub(&allocations_left, 1) == 0;
}

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t count, size_t n);
extern void *__libc_realloc(void *p, size_t n);

static void *failed(void)
{
    errno = ENOMEM;
    return NULL;
}

void *malloc(size_t n)
{
    return allocation_fails() ? failed() : __libc_malloc(n);
}

void *calloc(size_t count, size_t n)
{
    return allocation_fails() ? failed() : __libc_calloc(count, n);
}

void *realloc(void *p, size_t n)
{
    return allocation_fails() ? failed() : __libc_realloc(p, n);
}

enum { NO_MEMORY_HANGS_S = 60, NO_MEMORY_WHOLE = 3 };

/* Runs in a process of its own with its stderr in `said`; how that ended. */
static int try_without(long nth, void (*what)(void), char *said, size_t room)
{
    int end[2], status;
    assert_int_equal(pipe(end), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(end[1], STDERR_FILENO);
        alarm(NO_MEMORY_HANGS_S);
        atomic_store(&allocations_left, nth);
        what();
        bool fell = atomic_exchange(&allocations_left, -1) < 0;
        _exit(fell ? 0 : NO_MEMORY_WHOLE);
    }
    assert_true(child > 0);
    close(end[1]);
    size_t n = 0;
    for (ssize_t got; n + 1 < room && (got = read(end[0], said + n, room - 1 - n)) > 0;)
        n += (size_t)got;
    said[n] = 0;
    close(end[0]);
    while (waitpid(child, &status, 0) < 0)
        assert_int_equal(errno, EINTR);
    return status;
}

/* Lets every allocation of `what` fail in turn, of many only some: the first 200, then every
 * `step`-th. */
static void survives_without_memory(void (*what)(void), long step)
{
    enum { EACH = 200, MOST = 1000000 };
    static char said[4096];
    long n = 0;
    for (int status = 0; n < MOST; n += n < EACH ? 1 : step) {
        status = try_without(n, what, said, sizeof said);
        if (WIFEXITED(status) && WEXITSTATUS(status) == NO_MEMORY_WHOLE)
            break;
        bool gone_on = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        bool sentence = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT &&
                        strstr(said, "whet: out of memory");
        if (!gone_on && !sentence)
            fail_msg("allocation %ld: status %x, it said \"%s\"", n, (unsigned)status, said);
    }
    assert_in_range(n, 1, MOST - 1);
}
#else
static inline void survives_without_memory(void (*what)(void), long step)
{
    (void)what, (void)step;
    skip();
}
#endif

#endif
