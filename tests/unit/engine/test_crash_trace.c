/* SPDX-License-Identifier: Apache-2.0 */
/* test_crash_trace.c - the last words of a process that dies of a fault, on its stderr; each is a
 * child. A sanitizer's stack is laid out otherwise, so there only the first line is looked at. */
#include "tests/unit/unit.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/clock.h"
#include "engine/crash.h"

static char said[1 << 16];

/* ---- ways to die ---------------------------------------------------------------------------- */

static volatile int zero;

static __attribute__((noinline)) int writes_nowhere(int n)
{
    *(volatile int *)8 = n; /* NOLINT: a fault is wanted */
    return n + zero;
}

static __attribute__((noinline)) int calls_it(int n)
{
    return writes_nowhere(n + 1) + zero;
}

static void *on_a_thread(void *unused)
{
    pthread_setname_np(pthread_self(), "whet-elsewhere");
    zero += calls_it(3);
    return unused;
}

static void on_one(void *(*run)(void *))
{
    pthread_t t;
    if (pthread_create(&t, NULL, run, NULL) == 0)
        pthread_join(t, NULL);
}

static void of_a_thread(void)
{
    on_one(on_a_thread);
}

/* Of many at once one has the word. */
static pthread_barrier_t together;
static void *with_others(void *unused)
{
    pthread_barrier_wait(&together);
    return on_a_thread(unused);
}

static void of_many(void)
{
    enum { MANY = 16 };
    pthread_t t[MANY];
    pthread_barrier_init(&together, NULL, MANY);
    for (int i = 0; i < MANY; i++)
        pthread_create(&t[i], NULL, with_others, NULL);
    pthread_join(t[0], NULL);
}

static void of_a_device_before(void)
{
    static const struct kernel k = {.id = "0000000000000001", .name = "one"};
    static const struct crash_kernels step = {1, {&k}};
    crash_thread();
    crash_device(&step, "an illegal memory access was encountered");
    zero += calls_it(3);
}

/* A call that never comes back, of which a thread's stack has no end to see. */
static __attribute__((noinline)) int never_comes_back(int n)
{
    volatile char some[4096];
    some[n % 4096] = (char)n;
    if (n < 0) /* never, which a compiler need not know */
        return n;
    return never_comes_back(n + 1) + some[(n + 7) % 4096];
}

static void *without_end(void *unused)
{
    pthread_setname_np(pthread_self(), "whet-endless");
    crash_stack();
    zero += never_comes_back(1);
    return unused;
}

static void of_a_thread_without_end(void)
{
    on_one(without_end);
}

static void of_the_first_thread_without_end(void)
{
    zero += never_comes_back(1);
}

/* The stack is the thread's until then, and another's afterwards. */
static void *with_a_stack_for_a_while(void *unused)
{
    stack_t now;
    zero = 0;
    crash_stack();
    zero += sigaltstack(NULL, &now) != 0 || now.ss_flags & SS_DISABLE ? 1 : 0;
    crash_stack_end();
    zero += SANITIZED || (sigaltstack(NULL, &now) == 0 && now.ss_flags & SS_DISABLE) ? 0 : 2;
    return unused;
}

static void from_outside(void)
{
    pid_t pid = getpid();
    if (fork() == 0) {
        kill(pid, SIGSEGV);
        _exit(0);
    }
    for (;;)
        pause();
}

/* ---- */

static void die(void (*how)(void))
{
    for (int s = 1; s < NSIG; s++) /* cmocka's, that go on with the next test */
        signal(s, SIG_DFL);
    crash_catch();
    how();
    _exit(91);
}

/* What ended the child, which is killed after a minute. Its words are in said[]. */
static int death(bool first_of_its_own, void (*how)(void))
{
    int from[2], status = 0;
    size_t n = 0;
    assert_int_equal(pipe(from), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(from[1], STDERR_FILENO);
        close(from[0]);
        close(from[1]);
        if (!first_of_its_own)
            die(how);
        if (unshare(CLONE_NEWPID) != 0)
            _exit(77);
        pid_t first = fork();
        if (first == 0)
            die(how);
        for (int64_t until = clock_ns() + 60 * INT64_C(1000000000); clock_ns() < until;
             usleep(5000))
            if (waitpid(first, &status, WNOHANG) == first)
                _exit(WIFSIGNALED(status) ? WTERMSIG(status) : 90);
        kill(first, SIGKILL);
        _exit(92);
    }
    close(from[1]);
    for (ssize_t r; n < sizeof said - 1 && (r = read(from[0], said + n, sizeof said - 1 - n)) > 0;)
        n += (size_t)r;
    said[n] = 0;
    close(from[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

static int count(const char *word)
{
    int n = 0;
    for (const char *at = said; (at = strstr(at, word)); at++)
        n++;
    return n;
}

/* Whether an address "[0x...]" of a line is in the first bytes of a function. */
static bool names(int (*function)(int))
{
    for (const char *at = said; (at = strstr(at, "[0x")); at++) {
        uintptr_t address = strtoull(at + 1, NULL, 16);
        if (address >= (uintptr_t)function && address < (uintptr_t)function + 128)
            return true;
    }
    return false;
}

static void a_fault_says_where_it_was_and_who_called(void **state)
{
    (void)state;
    int code = death(false, of_a_thread);
    assert_non_null(
        strstr(said, "error crash: SIGSEGV writing 0x8 in thread whet-elsewhere, at 0x"));
    if (SANITIZED)
        return;
    assert_int_equal(code, SIGSEGV);
    assert_true(names(writes_nowhere));
    assert_true(names(calls_it));
}

static void of_many_one_has_the_word(void **state)
{
    (void)state;
    int code = death(false, of_many);
    assert_int_equal(count("error crash: "), 1);
    assert_true(SANITIZED || code == SIGSEGV);
}

/* Which has been noted by then, so that the fault is not. */
static void a_fault_after_a_lost_device_ends_the_process(void **state)
{
    (void)state;
    int code = death(false, of_a_device_before);
    assert_int_equal(count("error crash: SIGSEGV"), 1);
    assert_true(SANITIZED || code == SIGSEGV);
}

static void whose_stack_is_used_up_has_last_words(void **state)
{
    (void)state;
    if (SANITIZED)
        skip(); /* which has a stack for it, and words of its own */
    assert_int_equal(death(false, of_a_thread_without_end), SIGSEGV);
    assert_int_equal(count("error crash: SIGSEGV"), 1);
    assert_int_equal(count("in thread whet-endless"), 1);
    assert_true(names(never_comes_back));
    assert_int_equal(death(false, of_the_first_thread_without_end), SIGSEGV);
    assert_int_equal(count("error crash: SIGSEGV"), 1);
}

static void a_stack_for_handlers_goes_with_its_thread(void **state)
{
    (void)state;
    zero = 1; /* until that has run */
    on_one(with_a_stack_for_a_while);
    assert_int_equal(zero, 0);
}

static void what_somebody_sent_is_no_fault(void **state)
{
    (void)state;
    int code = death(false, from_outside);
    assert_int_equal(count("error crash: "), 0);
    assert_true(SANITIZED || code == SIGSEGV);
}

/* As in a container. Signals that such a process sends to itself do not end it. */
static void the_first_process_ends_by_a_fault(void **state)
{
    (void)state;
    static void (*const ways[])(void) = {abort, of_a_thread, of_many};
    for (int i = 0; i < 3; i++) {
        int code = death(true, ways[i]);
        if (code == 77)
            skip(); /* who is not root may make no such namespace */
        assert_int_equal(count("error crash: SIG"), 1);
        assert_true(SANITIZED ? code != 92 : code == SIGSEGV || code == SIGABRT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fault_says_where_it_was_and_who_called),
        cmocka_unit_test(of_many_one_has_the_word),
        cmocka_unit_test(a_fault_after_a_lost_device_ends_the_process),
        cmocka_unit_test(whose_stack_is_used_up_has_last_words),
        cmocka_unit_test(a_stack_for_handlers_goes_with_its_thread),
        cmocka_unit_test(what_somebody_sent_is_no_fault),
        cmocka_unit_test(the_first_process_ends_by_a_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
