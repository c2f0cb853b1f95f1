/* SPDX-License-Identifier: Apache-2.0 */
/* test_crash.c - what a process that dies of a fault leaves behind: which kernels, and when none.
 * Each death is a child's. */
#include "tests/unit/unit.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/safe_path.h"
#include "engine/crash.h"

static char folder[] = "/tmp/whet-crash-XXXXXX", path[64];

static const struct kernel eager = {.id = "eager", .origin = ORIGIN_EAGER},
                           one = {.id = "0000000000000001",
                                  .origin = ORIGIN_TEMPLATE,
                                  .name = "one"},
                           two = {
                               .id = "0000000000000002", .origin = ORIGIN_RESTORED, .name = "two"};
static const struct crash_kernels step = {2, {&one, &two}};

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/store.db.crash", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    safe_folder_remove(folder);
    return 0;
}

/* ---- ways to die ---------------------------------------------------------------------------- */

static void write_nowhere(void)
{
    *(volatile int *)8 = 1; /* NOLINT: a fault is wanted */
}

static void do_nothing_legal(void)
{
    __builtin_trap();
}

/* All of the stack, a frame at a time. */
static volatile bool on = true;
static int dig(volatile char *above)
{
    volatile char frame[4096];
    frame[0] = above[0];
    return on ? dig(frame) + frame[0] : 0;
}

static void use_up_stack(void)
{
    volatile char top[1] = {0};
    dig(top);
}

static void *on_a_thread(void *die)
{
    (*(void (**)(void))die)();
    return NULL;
}

static void (*of_another)(void);
static void elsewhere(void)
{
    pthread_t t;
    if (pthread_create(&t, NULL, on_a_thread, &of_another) == 0)
        pthread_join(t, NULL);
}

static void be_sent(void)
{
    pid_t pid = getpid(), other = fork();
    if (other == 0) {
        kill(pid, SIGSEGV);
        _exit(0);
    }
    for (;;)
        pause();
}

static void be_killed(void)
{
    kill(getpid(), SIGKILL);
}

/* ---- what is left --------------------------------------------------------------------------- */

/* A child that computes a step with both kernels, or none, in the code of `k`, and dies. */
static int death(const struct crash_kernels *of, const struct kernel *k, void (*die)(void))
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        struct err err;
        alarm(60);
        for (int s = 1; s < NSIG; s++) /* cmocka's, that go on with the next test */
            signal(s, SIG_DFL);
        if (crash_open(path, &err) != 0)
            _exit(90);
        crash_thread();
        crash_step(of);
        crash_runs(k);
        die();
        _exit(91);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
}

/* A sanitizer ends a process by itself, once it has said its say. */
static void assert_died(int got, int sig)
{
    if (SANITIZED)
        assert_true(got == sig || (got < 0 && got > -90));
    else
        assert_int_equal(got, sig);
}

static void assert_blames(const char *what, bool inside, int n, const char *first)
{
    struct crash_record r;
    assert_int_equal(crash_read(path, &r), 1);
    assert_string_equal(r.what, what);
    assert_int_equal(r.inside, inside);
    assert_int_equal(r.n, n);
    assert_string_equal(r.kernel[0], first);
}

static void assert_blames_nobody(void)
{
    struct crash_record r;
    assert_int_equal(crash_read(path, &r), 0);
}

static void a_fault_in_a_kernel_is_that_kernels(void **state)
{
    (void)state;
    assert_died(death(&step, &two, write_nowhere), SIGSEGV);
    assert_blames("SIGSEGV", true, 1, two.id);
    assert_died(death(&step, &one, abort), SIGABRT);
    assert_blames("SIGABRT", true, 1, one.id);
    int trap = death(&step, &two, do_nothing_legal); /* another signal on another processor */
    assert_true(SANITIZED || trap == SIGILL || trap == SIGTRAP);
    assert_blames(trap == SIGTRAP ? "SIGTRAP" : "SIGILL", true, 1, two.id);
    assert_died(death(NULL, &one, write_nowhere), SIGSEGV); /* in a bench */
    assert_blames("SIGSEGV", true, 1, one.id);
}

static void a_kernel_that_uses_up_the_stack_is_seen(void **state)
{
    (void)state;
    assert_died(death(&step, &one, use_up_stack), SIGSEGV);
    assert_blames("SIGSEGV", true, 1, one.id);
}

static void a_fault_beside_them_suspects_all_of_the_step(void **state)
{
    (void)state;
    assert_died(death(&step, NULL, write_nowhere), SIGSEGV);
    assert_blames("SIGSEGV", false, 2, one.id);
    assert_died(death(&step, &eager, write_nowhere), SIGSEGV);
    assert_blames("SIGSEGV", false, 2, one.id);
    assert_died(death(NULL, NULL, write_nowhere), SIGSEGV); /* between two steps */
    assert_blames_nobody();
}

static void what_comes_from_outside_blames_nobody(void **state)
{
    (void)state;
    assert_int_equal(death(&step, &one, be_killed), SIGKILL);
    assert_blames_nobody();
    assert_died(death(&step, &one, be_sent), SIGSEGV);
    assert_blames_nobody();
    of_another = write_nowhere;
    assert_died(death(&step, &one, elsewhere), SIGSEGV); /* on a thread that computes nothing */
    assert_blames_nobody();
}

static void a_lost_device_is_noted_at_once_and_stays_noted(void **state)
{
    (void)state;
    struct err err;
    struct stat st;
    static const struct crash_kernels none = {0};
    assert_int_equal(crash_open(path, &err), 0);
    assert_int_equal(crash_open(path, &err), -1); /* one at a time */
    crash_device(&none, "an illegal memory access was encountered");
    crash_device(&step, "an illegal memory access was encountered");
    assert_blames("an illegal memory access was encountered", false, 2, one.id);
    crash_close();
    assert_blames("an illegal memory access was encountered", false, 2, one.id);
    assert_int_equal(crash_open(path, &err), 0); /* the next one begins with nothing */
    assert_blames_nobody();
    crash_close();
    assert_int_equal(stat(path, &st), -1);
}

/* What cannot be a record, and a file that others could have put there. */
static void what_is_no_record_is_not_believed(void **state)
{
    (void)state;
    struct err err;
    assert_int_equal(crash_open(path, &err), 0);
    crash_device(&step, "said");
    crash_close();
    assert_int_equal(chmod(path, 0666), 0);
    assert_blames_nobody();
    assert_int_equal(chmod(path, 0600), 0);
    assert_blames("said", false, 2, one.id);
    assert_int_equal(truncate(path, 100), 0);
    assert_blames_nobody();
    assert_int_equal(truncate(path, 4096), 0); /* as after a power cut */
    assert_blames_nobody();
    FILE *f = fopen(path, "w");
    for (int i = 0; i < 4096; i++)
        fputc(0x7f, f);
    fclose(f);
    assert_blames_nobody();
    unlink(path);
    assert_blames_nobody();
}

/* ---- of another rank ------------------------------------------------------------------------- */

static void another_rank_sends_what_it_would_have_written(void **state)
{
    (void)state;
    struct err err;
    struct crash_record r;
    char head[5], all[sizeof head + sizeof r + 1], most[CRASH_HEAD + 1] = "";
    int end[2], reader[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, end), 0);
    assert_int_equal(crash_send(end[0], most, sizeof most, &err), -1);
    assert_int_equal(crash_send(end[0], "head:", sizeof head, &err), 0);
    assert_int_equal(crash_open(path, &err), -1); /* one at a time */
    crash_device(&step, "an illegal memory access was encountered");
    crash_close();
    assert_int_equal(read(end[1], all, sizeof all), sizeof head + sizeof r);
    assert_memory_equal(all, "head:", sizeof head);
    memcpy(&r, all + sizeof head, sizeof r);
    assert_true(crash_sound(&r));
    assert_string_equal(r.what, "an illegal memory access was encountered");
    assert_int_equal(r.n, 2);
    assert_string_equal(r.kernel[1], two.id);
    assert_int_equal(write(end[0], "x", 1), 1); /* the socket is not closed */
    close(end[0]);
    close(end[1]);
    /* Nobody reads any more: a process that dies of a fault does not wait, nor die of that. */
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, reader), 0);
    close(reader[1]);
    assert_int_equal(crash_send(reader[0], "head:", sizeof head, &err), 0);
    crash_device(&step, "lost");
    crash_close();
    close(reader[0]);
}

static void rank_0_notes_what_another_rank_died_of(void **state)
{
    (void)state;
    struct err err;
    struct crash_record r = {.inside = true, .n = 1};
    strcpy(r.what, "SIGILL");
    strcpy(r.kernel[0], two.id);
    assert_int_equal(crash_open(path, &err), 0);
    crash_of_rank(&r, 3);
    strcpy(r.kernel[0], one.id);
    crash_of_rank(&r, 2); /* follows from the first */
    crash_device(&step, "likewise");
    crash_close();
    assert_blames("SIGILL on rank 3", true, 1, two.id);
    memset(r.what, 'x', sizeof r.what);
    memset(r.kernel, 'y', sizeof r.kernel);
    assert_true(crash_sound(&r));
    assert_int_equal(strlen(r.what), sizeof r.what - 1);
    assert_int_equal(strlen(r.kernel[0]), sizeof *r.kernel - 1);
    r.n = 2;
    assert_true(crash_sound(&r) && !r.inside); /* of one kernel alone */
    for (int byte = 0; byte < 256; byte++) {   /* from a process in which something is broken */
        r.n = 1;
        memset(&r.inside, byte, sizeof r.inside);
        assert_true(crash_sound(&r));
        assert_int_equal(r.inside, byte != 0);
    }
    r.n = 0;
    assert_false(crash_sound(&r));
    r.n = CRASH_KERNELS + 1;
    assert_false(crash_sound(&r));
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fault_in_a_kernel_is_that_kernels),
        cmocka_unit_test(a_kernel_that_uses_up_the_stack_is_seen),
        cmocka_unit_test(a_fault_beside_them_suspects_all_of_the_step),
        cmocka_unit_test(what_comes_from_outside_blames_nobody),
        cmocka_unit_test(a_lost_device_is_noted_at_once_and_stays_noted),
        cmocka_unit_test(what_is_no_record_is_not_believed),
        cmocka_unit_test(another_rank_sends_what_it_would_have_written),
        cmocka_unit_test(rank_0_notes_what_another_rank_died_of),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
