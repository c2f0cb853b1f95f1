/* SPDX-License-Identifier: Apache-2.0 */
/* test_ranks_meet.c - how ranks find each other, and silence: at the door, in a start, and between
 * two steps.
 *
 * The ranks are real processes; nothing here runs a step.
 */
#include "tests/unit/unit.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "config/clock.h"
#include "engine/engine_private.h"
#include "engine/launch.h"
#include "engine/ranks.h"
#include "engine/ranks_link.h"

static const struct wire_limits limits = {
    .max_tokens = 8, .max_rows = 4, .kv_pages = 16, .vocab = 100, .max_context = 64, .slots = 20};

/* What a rank does instead of loading its model, or instead of waiting for steps. */
enum conduct { QUICK, PAUSES, WORKS, DIES, PAUSES_READY };

static struct ranks_options options(int32_t rank, int32_t world, int32_t port)
{
    return (struct ranks_options){
        .place = {rank, world, rank, "127.0.0.1", port, -1, "test", NULL},
        .join_timeout_s = 60,
        .step_timeout_s = 60,
    };
}

static int32_t listen_here(struct ranks_options *o)
{
    struct err e = {""};
    bool everywhere;
    o->place.listener = link_listen("127.0.0.1", &o->place.port, &everywhere, &e);
    if (o->place.listener < 0)
        fail_msg("%s", e.msg);
    return o->place.port;
}

/* So many seconds of its processor's time. */
static void work(double s)
{
    struct timespec t = {0};
    while ((double)t.tv_sec + (double)t.tv_nsec * 1e-9 < s)
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
}

static int start_up(const struct ranks_options *o, enum conduct c, struct ranks **r, struct err *e)
{
    struct wire_part part = {.hash = "0123456789abcdef", .backend = "cpu"};
    struct wire_setup setup = {.kv_pages = 10, .max_tokens = 8, .max_rows = 4};
    if (!(*r = ranks_open(o, e)))
        return -1;
    while (c == PAUSES)
        pause();
    if (c == WORKS)
        work(1.5 * o->join_timeout_s);
    if (c == DIES)
        raise(SIGKILL);
    if ((o->place.rank && ranks_hear_wish(*r, &setup, e)) ||
        ranks_agree(*r, &backend_cpu, &part, &setup, e) ||
        !ranks_collective(*r, &backend_cpu, &setup, e))
        return -1;
    return ranks_begin(*r, e);
}

static pid_t start(struct ranks_options o, enum conduct c)
{
    pid_t pid = fork();
    if (pid == 0) {
        struct err e = {""};
        struct ranks *r = NULL;
        struct ranks_order order;
        int rc = start_up(&o, c, &r, &e);
        while (c == PAUSES_READY)
            pause();
        if (rc == 0)
            rc = ranks_next(r, &limits, &order, &e);
        ranks_close(r);
        _exit(rc ? 1 : 0);
    }
    return pid;
}

static int ended(pid_t pid)
{
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void assert_words(const char *words, const char *in)
{
    if (!strstr(in, words))
        fail_msg("'%s' is not in: %s", words, in);
}

/* ---- where rank 0 listens ------------------------------------------------------------------- */

/* However long it takes. */
static bool answers(const char *host, int32_t port)
{
    struct err e = {""};
    int fd = link_connect(host, port, INT64_MAX, &e);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

/* Nobody listens there, of which the machine tells at once. */
static bool is_silent(const char *host, int32_t port)
{
    struct err e = {""};
    int fd = link_connect(host, port, clock_ns() + INT64_C(50000000), &e);
    if (fd >= 0)
        close(fd);
    return fd < 0;
}

static bool has_ipv6(void)
{
    int32_t port = 0;
    bool everywhere;
    int fd = link_listen("::1", &port, &everywhere, NULL);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static void a_name_need_not_be_known_where_rank_0_is(void **state)
{
    (void)state;
    static const char *const host[] = {"whet-0.whet.invalid", "2001:db8::1", "192.0.2.1"};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) {
        struct err e = {""};
        int32_t port = 0;
        bool everywhere = false;
        int fd = link_listen(host[i], &port, &everywhere, &e);
        if (fd < 0)
            fail_msg("%s: %s", host[i], e.msg);
        assert_true(everywhere);
        assert_true(answers("127.0.0.1", port) && answers("127.0.0.2", port));
        char who[64];
        int caller = link_accept(fd, INT64_MAX, who, sizeof who, &e);
        assert_string_equal(who, "127.0.0.1"); /* and not ::ffff:127.0.0.1 */
        close(caller);
        if (has_ipv6())
            assert_true(answers("::1", port));
        close(fd);
    }
}

static void an_address_of_this_machine_is_kept_to(void **state)
{
    (void)state;
    static const char *const host[] = {"127.0.0.1", "localhost"};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) {
        int32_t port = 0, again;
        bool everywhere = true;
        int fd = link_listen(host[i], &port, &everywhere, NULL);
        assert_true(fd >= 0 && !everywhere);
        assert_true(answers("127.0.0.1", port) && is_silent("127.0.0.2", port));
        struct err e = {""};
        again = port;
        assert_int_equal(link_listen(host[i], &again, &everywhere, &e), -1);
        assert_words("cannot listen at", e.msg);
        assert_false(everywhere);
        close(fd);
    }
}

static int32_t option(int fd, int name)
{
    int value = 0;
    socklen_t n = sizeof value;
    assert_int_equal(getsockopt(fd, IPPROTO_TCP, name, &value, &n), 0);
    return value;
}

/* Both ends: a machine that is gone says nothing. */
static void a_host_that_is_lost_is_noticed_within_half_a_minute(void **state)
{
    (void)state;
    int32_t port = 0;
    bool everywhere;
    struct err e = {""};
    char who[64];
    int listener = link_listen("127.0.0.1", &port, &everywhere, &e);
    int fd[] = {link_connect("127.0.0.1", port, INT64_MAX, &e), -1};
    fd[1] = link_accept(listener, INT64_MAX, who, sizeof who, &e);
    for (int i = 0; i < 2; i++) {
        assert_true(fd[i] >= 0);
        int32_t silent =
            option(fd[i], TCP_KEEPIDLE) + option(fd[i], TCP_KEEPINTVL) * option(fd[i], TCP_KEEPCNT);
        assert_in_range(silent, 1, 30);
        assert_in_range(option(fd[i], TCP_USER_TIMEOUT), 1, 30000); /* with data on the way */
        close(fd[i]);
    }
    close(listener);
}

/* ---- at the door ---------------------------------------------------------------------------- */

static void who_says_nothing_keeps_nobody_waiting(void **state)
{
    (void)state;
    enum { SILENT = 70 };
    struct ranks_options o = options(0, 2, 0);
    struct err e = {""};
    int32_t port = listen_here(&o);
    int fd[SILENT];
    pid_t leader = start(o, QUICK);
    close(o.place.listener);
    for (int i = 0; i < SILENT; i++)
        fd[i] = link_connect("127.0.0.1", port, INT64_MAX, &e);
    for (int i = 0; i < SILENT; i += 2)
        send(fd[i], "w", 1, MSG_NOSIGNAL);
    pid_t one = start(options(1, 2, port), QUICK);
    assert_int_equal(ended(leader), 1); /* ranks_next() is not rank 0's */
    assert_int_equal(ended(one), 0);
    for (int i = 0; i < SILENT; i++)
        close(fd[i]);
}

static void a_rank_that_went_away_may_come_again(void **state)
{
    (void)state;
    struct ranks_options o = options(0, 3, 0), early;
    int32_t port = listen_here(&o);
    pid_t leader = start(o, QUICK);
    close(o.place.listener);
    early = options(1, 3, port);
    early.join_timeout_s = 1;
    assert_int_equal(ended(start(early, QUICK)), 1);
    pid_t one = start(options(1, 3, port), QUICK), two = start(options(2, 3, port), QUICK);
    ended(leader);
    assert_int_equal(ended(one), 0);
    assert_int_equal(ended(two), 0);
}

static void a_rank_that_ends_before_it_comes_is_named(void **state)
{
    (void)state;
    for (int killed = 0; killed < 2; killed++) {
        struct ranks_options o = options(0, 2, 0);
        struct launched l = {.ranks = 1};
        struct err e = {""};
        listen_here(&o);
        o.place.children = &l;
        if ((l.pid[0] = fork()) == 0) {
            if (killed)
                raise(SIGKILL);
            _exit(127);
        }
        assert_null(ranks_open(&o, &e));
        assert_words("rank 1 (process", e.msg);
        assert_words(killed ? "signal 9" : "exit status 127", e.msg);
        assert_int_equal(ended(l.pid[0]), killed ? 128 + SIGKILL : 127);
    }
}

/* Each in a CPU set of its own process; -1: all that this test has. */
static void assert_threads(int one, int two, int32_t same, int32_t threads)
{
    struct ranks_options o = options(0, 2, 0);
    struct ranks *r;
    struct err e = {""};
    cpu_set_t all, set;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    int32_t port = listen_here(&o);
    const int cpu[] = {two, one};
    pid_t pid = 0;
    for (int i = 0; i < 2; i++) { /* what comes later is rank 0's */
        CPU_ZERO(&set);
        if (cpu[i] >= 0)
            CPU_SET(cpu[i], &set);
        assert_int_equal(sched_setaffinity(0, sizeof set, cpu[i] < 0 ? &all : &set), 0);
        if (i == 0)
            pid = start(options(1, 2, port), QUICK);
    }
    if (start_up(&o, QUICK, &r, &e))
        fail_msg("%s", e.msg);
    assert_int_equal(ranks_local(r), 2);
    assert_int_equal(ranks_same_cpus(r), same);
    assert_int_equal(engine_ranks_threads(r, 0), threads);
    assert_int_equal(engine_ranks_threads(r, 7), 7);
    ranks_close(r);
    assert_int_equal(ended(pid), 0);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

static void ranks_share_the_cpus_that_they_have_in_common(void **state)
{
    (void)state;
    cpu_set_t all;
    int first = 0;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    while (!CPU_ISSET(first, &all))
        first++;
    int32_t n = CPU_COUNT(&all);
    assert_threads(-1, -1, 2, n > 1 ? n / 2 : 1);
    assert_threads(first, first, 2, 1); /* a part of the machine's, which both have */
    if (n > 1)
        assert_threads(first, -1, 1, 0); /* its own: as many as a server alone would take */
}

/* ---- in a start ----------------------------------------------------------------------------- */

static char lost[300];
static _Atomic bool told;

static void on_lost(void *ctx, const char *why)
{
    (void)ctx;
    snprintf(lost, sizeof lost, "%s", why);
    atomic_store(&told, true);
}

/* Rank 0 of three, the others as they are told. */
static int lead(struct ranks_options *o, enum conduct one, enum conduct two, pid_t pid[2],
                struct ranks **r, struct err *e)
{
    int32_t port = listen_here(o);
    o->on_lost = on_lost;
    atomic_store(&told, false);
    for (int i = 0; i < 2; i++) {
        struct ranks_options other = *o;
        other.place.rank = i + 1;
        other.place.port = port;
        other.place.listener = -1;
        other.on_lost = NULL;
        pid[i] = start(other, i ? two : one);
    }
    return start_up(o, QUICK, r, e);
}

static void a_rank_that_stands_still_in_its_start_is_lost(void **state)
{
    (void)state;
    struct ranks_options o = options(0, 3, 0);
    struct ranks *r;
    struct err e = {""};
    pid_t pid[2];
    o.join_timeout_s = 2;
    assert_int_equal(lead(&o, PAUSES, QUICK, pid, &r, &e), -1);
    assert_words("rank 1 (process", e.msg);
    assert_words("has got no further with its start (engine.rank_join_s) for 2.0 s", e.msg);
    ranks_close(r);
    kill(pid[0], SIGKILL);
    ended(pid[0]);
    assert_int_equal(ended(pid[1]), 1);
}

/* However long that takes. */
static void a_rank_that_gets_on_with_its_start_is_waited_for(void **state)
{
    (void)state;
    struct ranks_options o = options(0, 3, 0);
    struct ranks *r;
    struct err e = {""};
    pid_t pid[2];
    o.join_timeout_s = 2;
    if (lead(&o, QUICK, WORKS, pid, &r, &e))
        fail_msg("%s", e.msg);
    ranks_close(r);
    for (int i = 0; i < 2; i++)
        assert_int_equal(ended(pid[i]), 0);
}

/* Rank 0 waits for another one when it dies. */
static void a_rank_that_dies_in_its_start_is_seen_at_once(void **state)
{
    (void)state;
    struct ranks_options o = options(0, 3, 0);
    struct ranks *r;
    struct err e = {""};
    pid_t pid[2];
    assert_int_equal(lead(&o, PAUSES, DIES, pid, &r, &e), -1);
    assert_words("rank 2 (process", e.msg);
    assert_words("is gone", e.msg);
    ranks_close(r);
    kill(pid[0], SIGKILL);
    ended(pid[0]);
    ended(pid[1]);
}

static void a_rank_that_stands_still_between_steps_is_lost(void **state)
{
    (void)state;
    struct ranks_options o = options(0, 3, 0);
    struct ranks *r;
    struct err e = {""};
    pid_t pid[2];
    o.step_timeout_s = 1;
    if (lead(&o, QUICK, PAUSES_READY, pid, &r, &e))
        fail_msg("%s", e.msg);
    while (!atomic_load(&told))
        usleep(1000);
    assert_words("rank 2 (process", lost);
    assert_words("does not answer (engine.rank_step_s) for 1.0 s", lost);
    ranks_close(r);
    kill(pid[1], SIGKILL);
    ended(pid[1]);
    assert_int_equal(ended(pid[0]), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_need_not_be_known_where_rank_0_is),
        cmocka_unit_test(an_address_of_this_machine_is_kept_to),
        cmocka_unit_test(a_host_that_is_lost_is_noticed_within_half_a_minute),
        cmocka_unit_test(who_says_nothing_keeps_nobody_waiting),
        cmocka_unit_test(a_rank_that_went_away_may_come_again),
        cmocka_unit_test(a_rank_that_ends_before_it_comes_is_named),
        cmocka_unit_test(ranks_share_the_cpus_that_they_have_in_common),
        cmocka_unit_test(a_rank_that_stands_still_in_its_start_is_lost),
        cmocka_unit_test(a_rank_that_gets_on_with_its_start_is_waited_for),
        cmocka_unit_test(a_rank_that_dies_in_its_start_is_seen_at_once),
        cmocka_unit_test(a_rank_that_stands_still_between_steps_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
