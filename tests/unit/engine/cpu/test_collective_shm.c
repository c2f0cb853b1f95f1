/* SPDX-License-Identifier: Apache-2.0 */
/* test_collective_shm.c - sums and concatenations between real processes and between threads: the
 * same bits on every rank, whoever is early or late, and an error instead of a hang when one is
 * gone. */
#include "tests/unit/unit.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/cpu/collective_shm.h"

enum { WORLD = 4, CALLS = 60, LONG = (1 << 18) + 1000 };

static const double PATIENT = 120; /* seconds: nobody is late by that much */

static char name[64];

static void new_world(int32_t world)
{
    static int n;
    struct err e = {""};
    snprintf(name, sizeof name, "/whet-test-%d-%d", (int)getpid(), n++);
    if (collective_shm_create(name, world, &e))
        fail_msg("%s", e.msg);
}

static struct collective *join(int32_t rank, int32_t world, double timeout_s)
{
    struct err e = {""};
    struct collective *c = collective_shm_open(name, rank, world, timeout_s, &e);
    if (!c)
        fprintf(stderr, "%s\n", e.msg);
    return c;
}

/* Number i of a rank in a call: sums of these depend on the order of additions. */
static float number(int32_t rank, int call, int64_t i)
{
    uint32_t x = (uint32_t)(rank * 7919 + call * 104729) + (uint32_t)i * 2654435761u;
    x ^= x >> 15;
    x *= 2246822519u;
    return (float)(int32_t)x * (1.0f / (1 << (x & 15)));
}

static int64_t length(int call)
{
    return call % 20 == 7 ? LONG : call % 5 == 0 ? 1 : 100 + call;
}

/* ---- one rank's work: true if all of it was right ------------------------------------------- */

static bool right_sum(const float *got, int32_t world, int call, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float want = number(0, call, i);
        for (int32_t r = 1; r < world; r++)
            want += number(r, call, i);
        if (memcmp(&want, &got[i], sizeof want) != 0)
            return false;
    }
    return true;
}

static bool right_concatenation(const float *got, int32_t world, int call, int64_t n)
{
    for (int32_t r = 0; r < world; r++)
        for (int64_t i = 0; i < n; i++)
            if (got[r * n + i] != number(r, call, i))
                return false;
    return true;
}

/* Every rank dawdles at other calls. */
static void dawdle(int32_t rank, int call)
{
    if ((call * 31 + rank * 17) % 11 == 0)
        usleep((useconds_t)(500 * (rank + 1)));
}

static bool work(struct collective *c)
{
    struct err e = {""};
    float *in = malloc(LONG * sizeof *in), *out = malloc((size_t)c->world * LONG * sizeof *out);
    bool right = true;
    for (int call = 0; right && call < CALLS; call++) {
        int64_t n = length(call);
        for (int64_t i = 0; i < n; i++)
            in[i] = number(c->rank, call, i);
        dawdle(c->rank, call);
        if (call % 3 == 2)
            right = c->ops->all_gather(c, in, out, n, NULL, &e) == 0 &&
                    right_concatenation(out, c->world, call, n);
        else if (call % 3 == 1) /* in place */
            right =
                c->ops->all_reduce(c, in, in, n, NULL, &e) == 0 && right_sum(in, c->world, call, n);
        else
            right = c->ops->all_reduce(c, in, out, n, NULL, &e) == 0 &&
                    right_sum(out, c->world, call, n);
        if (call % 10 == 9)
            right = right && c->ops->barrier(c, &e) == 0;
    }
    if (!right)
        fprintf(stderr, "rank %d: wrong, or: %s\n", c->rank, e.msg);
    free(in);
    free(out);
    return right;
}

/* ---- processes ------------------------------------------------------------------------------ */

typedef bool rank_fn(struct collective *c);

static pid_t start_rank(rank_fn *fn, int32_t rank, int32_t world, double timeout_s)
{
    pid_t pid = fork();
    if (pid == 0) {
        struct collective *c = join(rank, world, timeout_s);
        _exit(c && fn(c) ? 0 : 1);
    }
    return pid;
}

static int ended(pid_t pid)
{
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void processes_agree_to_the_last_bit(void **state)
{
    (void)state;
    pid_t pid[WORLD];
    new_world(WORLD);
    for (int32_t r = 0; r < WORLD; r++)
        pid[r] = start_rank(work, r, WORLD, PATIENT);
    for (int32_t r = 0; r < WORLD; r++)
        assert_int_equal(ended(pid[r]), 0);
    shm_unlink(name);
}

/* Ends in the middle of its work, without a word. */
static bool work_and_die(struct collective *c)
{
    struct err e;
    float v = 1;
    for (int i = 0; i < 20; i++)
        c->ops->all_reduce(c, &v, &v, 1, NULL, &e);
    raise(SIGKILL);
    return false;
}

/* Works on until there is an error, which must name the rank that is gone. */
static bool outlive(struct collective *c)
{
    struct err e = {""};
    float v = 1;
    int rc = 0;
    for (int i = 0; rc == 0 && i < 1000; i++)
        rc = c->ops->all_reduce(c, &v, &v, 1, NULL, &e);
    bool named = strstr(e.msg, "rank 1 did not come to all_reduce number 21") ||
                 strstr(e.msg, "another rank gave up");
    if (rc == 0 || !named || !c->ops->broken(c))
        fprintf(stderr, "rank %d: %s\n", c->rank, e.msg);
    return rc && named && c->ops->broken(c) && c->ops->barrier(c, &e);
}

static void a_rank_that_died_is_an_error_on_all_others(void **state)
{
    (void)state;
    pid_t pid[WORLD];
    new_world(WORLD);
    for (int32_t r = 0; r < WORLD; r++)
        pid[r] = start_rank(r == 1 ? work_and_die : outlive, r, WORLD, 2);
    for (int32_t r = 0; r < WORLD; r++)
        assert_int_equal(ended(pid[r]), r == 1 ? 128 + SIGKILL : 0);
    shm_unlink(name);
}

/* ---- threads -------------------------------------------------------------------------------- */

struct rank_thread {
    pthread_t thread;
    rank_fn *fn;
    struct collective *c;
    bool right;
};

static void *rank_main(void *arg)
{
    struct rank_thread *t = arg;
    t->right = t->fn(t->c);
    return NULL;
}

static void run_threads(struct rank_thread *t, rank_fn *fn, int32_t world, double timeout_s)
{
    new_world(world);
    for (int32_t r = 0; r < world; r++)
        assert_non_null(t[r].c = join(r, world, timeout_s));
    shm_unlink(name);
    for (int32_t r = 0; r < world; r++) {
        t[r].fn = t[r].fn ? t[r].fn : fn;
        assert_int_equal(pthread_create(&t[r].thread, NULL, rank_main, &t[r]), 0);
    }
}

static void end_threads(struct rank_thread *t, int32_t world)
{
    for (int32_t r = 0; r < world; r++) {
        pthread_join(t[r].thread, NULL);
        t[r].c->ops->close(t[r].c);
    }
}

static void threads_agree_to_the_last_bit(void **state)
{
    (void)state;
    struct rank_thread t[WORLD] = {0};
    run_threads(t, work, WORLD, PATIENT);
    end_threads(t, WORLD);
    for (int32_t r = 0; r < WORLD; r++)
        assert_true(t[r].right);
}

static void a_world_of_one_is_its_own_sum(void **state)
{
    (void)state;
    struct rank_thread t[1] = {0};
    run_threads(t, work, 1, PATIENT);
    end_threads(t, 1);
    assert_true(t[0].right);
}

/* Waits for a rank that never comes. */
static bool wait_for_nobody(struct collective *c)
{
    struct err e = {""};
    return c->ops->barrier(c, &e) == -1 && strstr(e.msg, "the operator has had enough");
}

static void abort_ends_a_wait(void **state)
{
    (void)state;
    new_world(2);
    struct rank_thread t = {.fn = wait_for_nobody};
    assert_non_null(t.c = join(0, 2, PATIENT));
    assert_int_equal(pthread_create(&t.thread, NULL, rank_main, &t), 0);
    usleep(20000);
    t.c->ops->abort(t.c, "the operator has had enough");
    t.c->ops->abort(t.c, "and says so again"); /* the first reason stays */
    pthread_join(t.thread, NULL);
    assert_true(t.right);
    assert_string_equal(t.c->ops->broken(t.c), "the operator has had enough");
    t.c->ops->close(t.c);
    shm_unlink(name);
}

static bool reduce_of(struct collective *c, int64_t n)
{
    struct err e = {""};
    float v[8] = {0};
    return c->ops->all_reduce(c, v, v, n, NULL, &e) == -1 &&
           (strstr(e.msg, "does not do what") || strstr(e.msg, "another rank gave up"));
}

static bool reduce_three(struct collective *c)
{
    return reduce_of(c, 3);
}

static bool reduce_four(struct collective *c)
{
    return reduce_of(c, 4);
}

static void ranks_that_do_different_things_find_out(void **state)
{
    (void)state;
    struct rank_thread t[2] = {{.fn = reduce_three}, {.fn = reduce_four}};
    run_threads(t, NULL, 2, PATIENT);
    end_threads(t, 2);
    assert_true(t[0].right);
    assert_true(t[1].right);
}

/* ---- opening -------------------------------------------------------------------------------- */

static void what_is_not_that_worlds_memory_is_refused(void **state)
{
    (void)state;
    struct err e = {""};
    new_world(2);
    assert_int_equal(collective_shm_create(name, 2, &e), -1); /* a name is used once */
    assert_null(collective_shm_open(name, 0, 3, 1, &e));
    assert_non_null(strstr(e.msg, "the shared memory of 3 ranks cannot be opened"));
    shm_unlink(name);
    assert_null(collective_shm_open(name, 0, 2, 1, &e));
    assert_non_null(strstr(e.msg, "No such file"));
}

/* ---- names: the server's own ---------------------------------------------------------------- */

static bool there(const char *id)
{
    struct stat st;
    char path[64 + RANKS_ID];
    snprintf(path, sizeof path, "/dev/shm%.*s", RANKS_ID, id);
    return stat(path, &st) == 0;
}

static void make_one(char id[RANKS_ID])
{
    struct err e = {""};
    memset(id, 0, RANKS_ID);
    if (collective_shm_ranks.make(id, 2, true, true, &e))
        fail_msg("%s", e.msg);
}

/* Another process makes memory, says its name, and is killed before all ranks have come. */
static void leave_one(char id[RANKS_ID])
{
    int way[2];
    assert_int_equal(pipe(way), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        make_one(id);
        _exit(write(way[1], id, RANKS_ID) == RANKS_ID ? raise(SIGKILL) : 1);
    }
    assert_int_equal(read(way[0], id, RANKS_ID), RANKS_ID);
    assert_int_equal(ended(pid), 128 + SIGKILL);
    close(way[0]);
    close(way[1]);
}

static void what_a_killed_process_left_goes_and_what_is_held_stays(void **state)
{
    (void)state;
    char left[RANKS_ID], again[RANKS_ID], own[RANKS_ID];
    new_world(2); /* of another name: not the server's to remove */
    leave_one(left);
    assert_true(there(left));
    make_one(own);
    assert_false(there(left));
    assert_true(there(own));
    leave_one(again); /* which looked for leftovers, too */
    assert_true(there(own));
    collective_shm_ranks.made(own);
    assert_false(there(own));
    assert_true(there(name));
    make_one(own);
    assert_false(there(again));
    collective_shm_ranks.made(own);
    shm_unlink(name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_agree_to_the_last_bit),
        cmocka_unit_test(a_rank_that_died_is_an_error_on_all_others),
        cmocka_unit_test(threads_agree_to_the_last_bit),
        cmocka_unit_test(a_world_of_one_is_its_own_sum),
        cmocka_unit_test(abort_ends_a_wait),
        cmocka_unit_test(ranks_that_do_different_things_find_out),
        cmocka_unit_test(what_is_not_that_worlds_memory_is_refused),
        cmocka_unit_test(what_a_killed_process_left_goes_and_what_is_held_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
