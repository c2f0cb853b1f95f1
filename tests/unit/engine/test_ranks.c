/* SPDX-License-Identifier: Apache-2.0 */
/* test_ranks.c - processes that meet as the ranks of one model: strangers at the door, ranks that
 * do not belong, and the death of any of them in every state.
 *
 * The ranks here are real processes with the CPU's collectives; what stands in is the model: a step
 * is one sum over all ranks.
 */
#include "tests/unit/unit.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/log.h"
#include "config/safe_path.h"
#include "engine/crash.h"
#include "engine/ranks.h"
#include "engine/ranks_link.h"
#include "engine/ranks_watch.c"

enum { WORLD = 3, STEPS = 4 };

/* In the order in which a rank comes through them; NEVER: it does not die. */
enum state { BEFORE_JOIN, JOINED, SAID_PART, SET_UP, READY, IN_STEP, NEVER };

static const struct wire_limits limits = {
    .max_tokens = 8, .max_rows = 4, .kv_pages = 16, .vocab = 100, .max_context = 64, .slots = 20};

/* ---- a rank --------------------------------------------------------------------------------- */

struct rank {
    struct ranks_options o;
    enum state dies;
    const char *hash, *backend;
    const struct backend_ops *ops;
    int64_t room;
    bool rows; /* each of rank 0's takes a byte of its room */
    const char *gives_up;
    bool sleeps;  /* in its second step */
    bool faults;  /* there, in a kernel */
    int after_fd; /* says its part when the other end of this pipe has closed; 0: at once */
    char lost[300];
    _Atomic bool told;
};

static void on_lost(void *ctx, const char *why)
{
    struct rank *k = ctx;
    snprintf(k->lost, sizeof k->lost, "%s", why);
    atomic_store(&k->told, true);
}

static struct rank new_rank(int32_t rank, int32_t world, int32_t port)
{
    return (struct rank){.o = {.place = {rank, world, rank, "127.0.0.1", port, -1, "test"},
                               .join_timeout_s = 60,
                               .step_timeout_s = 60},
                         .dies = NEVER,
                         .hash = "0123456789abcdef",
                         .backend = "cpu",
                         .ops = &backend_cpu};
}

static void pass(const struct rank *k, enum state s)
{
    if (k->dies == s)
        raise(SIGKILL);
}

static int open_world(struct rank *k, struct ranks **r, struct collective **c,
                      struct wire_setup *setup, struct err *e)
{
    struct wire_part part = {.kv_room = k->room, .page_bytes = 10};
    k->o.on_lost = on_lost;
    k->o.ctx = k;
    pass(k, BEFORE_JOIN);
    if (!(*r = ranks_open(&k->o, e)))
        return -1;
    pass(k, JOINED);
    strcpy(part.hash, k->hash);
    strcpy(part.backend, k->backend);
    char end;
    if (k->after_fd && read(k->after_fd, &end, 1) != 0)
        return err_set(e, "the pipe says something");
    if (k->o.place.rank && ranks_hear_wish(*r, setup, e))
        return -1;
    if (k->o.place.rank && k->rows) /* which it knows before it says what it has room for */
        part.kv_room -= setup->max_rows;
    if (k->dies == SAID_PART) /* while it waits for an answer, which comes when it is dead */
        alarm(1);
    if (ranks_agree(*r, k->ops, &part, setup, e))
        return -1;
    pass(k, SET_UP);
    if (!(*c = ranks_collective(*r, k->ops, setup, e)) || ranks_begin(*r, e))
        return -1;
    pass(k, READY);
    return 0;
}

/* A step: every rank's number, summed. */
static int run(struct ranks *r, struct collective *c, float number, struct err *e)
{
    float sum = number;
    (void)r;
    if (c->ops->all_reduce(c, &sum, &sum, 1, NULL, e))
        return -1;
    return sum == number * (float)c->world
               ? 0
               : err_set(e, "the sum is %g, not %g", (double)sum, (double)number * c->world);
}

static const struct kernel deadly = {
    .id = "00000000deadbeef", .origin = ORIGIN_TEMPLATE, .name = "deadly"};

/* As the backend and the engine of a rank would, in a step with that kernel. */
static void fault(struct ranks *r)
{
    struct err e = {""};
    static const struct crash_kernels step = {1, {&deadly}};
    for (int s = 1; s < NSIG; s++) /* cmocka's, that go on with the next test */
        signal(s, SIG_DFL);
    if (ranks_note_crashes(r, &e))
        _exit(90);
    crash_thread();
    crash_step(&step);
    crash_runs(&deadly);
    *(volatile int *)8 = 1; /* NOLINT: a fault is wanted */
}

/* Another rank, until rank 0 ends. 0: in good order. */
static int follow(struct rank *k, struct err *e)
{
    struct ranks *r = NULL;
    struct collective *c;
    struct wire_setup setup;
    struct ranks_order o;
    int rc = open_world(k, &r, &c, &setup, e);
    for (int n = 0; rc == 0 && (rc = ranks_next(r, &limits, &o, e)) > 0; n++) {
        if (n == 1)
            pass(k, IN_STEP);
        if (n == 1 && k->gives_up) {
            ranks_give_up(r, k->gives_up);
            rc = err_set(e, "%s", k->gives_up);
            break;
        }
        if (n == 1 && k->sleeps)
            pause();
        if (n == 1 && k->faults)
            fault(r);
        rc = run(r, c, (float)o.step.tokens[0], e);
    }
    ranks_close(r);
    return rc;
}

static pid_t start(struct rank k)
{
    pid_t pid = fork();
    if (pid == 0) {
        struct err e = {""};
        int rc = follow(&k, &e);
        _exit(rc ? 1 : 0);
    }
    return pid;
}

/* Its exit status, or 128 and a signal. */
static int ended(pid_t pid)
{
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int32_t listen_here(struct rank *k)
{
    struct err e = {""};
    k->o.place.port = 0;
    bool everywhere;
    k->o.place.listener = link_listen("127.0.0.1", &k->o.place.port, &everywhere, &e);
    if (k->o.place.listener < 0)
        fail_msg("%s", e.msg);
    return k->o.place.port;
}

static void make_step(struct step *s, int n)
{
    static int32_t token[2], position[2] = {3, 4}, at[2] = {35, 36}, page[1] = {2}, row[1] = {1};
    static struct span span = {0, 2, 5, 0};
    token[0] = n + 1;
    token[1] = 7;
    *s = (struct step){.m = 2,
                       .spans = 1,
                       .pages = 1,
                       .context = 5,
                       .rows = 1,
                       .tokens = token,
                       .position = position,
                       .kv_at = at,
                       .span = &span,
                       .page_table = page,
                       .row = row};
}

/* Rank 0: all steps, or -1 with the reason of the first failure. */
static int lead(struct rank *k, struct err *e)
{
    struct ranks *r = NULL;
    struct collective *c;
    struct wire_setup setup = {.kv_pages = 1000, .max_tokens = 8, .max_rows = 4};
    int rc = open_world(k, &r, &c, &setup, e);
    for (int n = 0; rc == 0 && n < STEPS; n++) {
        struct step s;
        struct wire_table t = {.trial_slot = -1};
        make_step(&s, n);
        rc = ranks_send_step(r, &s, &t, e) || run(r, c, (float)(n + 1), e) ? -1 : 0;
        if (r)
            ranks_step_ran(r);
    }
    /* The watching thread has its own word. */
    for (int i = 0; rc && r && k->dies == NEVER && i < 60000 && setup.id[0] && !ranks_lost(r); i++)
        usleep(1000);
    ranks_close(r);
    return rc;
}

/* ---- meeting -------------------------------------------------------------------------------- */

static void ranks_meet_run_steps_and_end_in_good_order(void **state)
{
    (void)state;
    struct rank k = new_rank(0, WORLD, 0);
    struct err e = {""};
    pid_t pid[WORLD];
    int32_t port = listen_here(&k);
    for (int32_t i = WORLD - 1; i > 0; i--)
        pid[i] = start(new_rank(i, WORLD, port));
    if (lead(&k, &e))
        fail_msg("%s", e.msg);
    for (int32_t i = 1; i < WORLD; i++)
        assert_int_equal(ended(pid[i]), 0);
    assert_false(k.told);
}

static void pages_are_what_the_smallest_device_has(void **state)
{
    (void)state;
    struct rank k = new_rank(0, 2, 0), other;
    struct err e = {""};
    struct ranks *r;
    struct collective *c;
    struct wire_setup setup = {.kv_pages = 1000, .max_tokens = 8, .max_rows = 20};
    other = new_rank(1, 2, listen_here(&k));
    other.room = 445; /* of 10 bytes each, beside 20 */
    other.rows = true;
    pid_t pid = start(other);
    if (open_world(&k, &r, &c, &setup, &e))
        fail_msg("%s", e.msg);
    assert_int_equal(setup.kv_pages, 42);
    assert_int_equal(ranks_local(r), 2);
    assert_int_equal(ranks_same_cpus(r), 2);
    ranks_close(r);
    assert_int_equal(ended(pid), 0);
}

static int knock(int32_t port)
{
    struct err e = {""};
    int fd = link_connect("127.0.0.1", port, INT64_MAX, &e);
    assert_true(fd >= 0);
    return fd;
}

static void assert_refused(int fd, const char *words)
{
    struct link_message m;
    struct err e = {""};
    if (link_receive(fd, 1000, 0, &m, NULL, &e))
        fail_msg("no answer: %s", e.msg);
    assert_int_equal(m.kind, LINK_REFUSED);
    if (!strstr(m.data, words))
        fail_msg("'%s' is not in: %s", words, m.data);
    link_message_free(&m);
    close(fd);
}

/* They knock before the real rank comes; that one is taken all the same. */
static void strangers_at_the_door_are_sent_away(void **state)
{
    (void)state;
    struct rank k = new_rank(0, 2, 0);
    struct err e = {""};
    k.o.secret = "open sesame";
    int32_t port = listen_here(&k);
    pid_t leader = fork();
    if (leader == 0)
        _exit(lead(&k, &e) ? 1 : 0);
    close(k.o.place.listener);
    int http = knock(port), empty = knock(port), bare = knock(port), huge = knock(port);
    assert_int_equal(send(http, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 28, 0), 28);
    close(empty);
    assert_int_equal(link_send(bare, LINK_JOIN, "short", 5, 0, &e), 0);
    static const char zeros[5000];
    assert_int_equal(link_send(huge, LINK_JOIN, zeros, sizeof zeros, 0, &e), 0);
    assert_refused(http, "no message of a rank");
    assert_refused(bare, "no rank of whet");
    assert_refused(huge, "5000 bytes");
    struct rank wrong[] = {new_rank(1, 2, port), new_rank(1, 3, port), new_rank(1, 2, port)};
    wrong[0].o.secret = "open barley";
    wrong[1].o.secret = "open sesame";
    wrong[2].o.secret = "open sesame";
    const char *words[] = {"does not know WHET_RANKS_SECRET", "it is of 3 ranks; here there are 2",
                           NULL};
    for (int i = 0; words[i]; i++) {
        assert_null(ranks_open(&wrong[i].o, &e));
        if (!strstr(e.msg, words[i]))
            fail_msg("'%s' is not in: %s", words[i], e.msg);
    }
    assert_int_equal(follow(&wrong[2], &e), 0); /* which is right */
    assert_int_equal(ended(leader), 0);
}

static void a_second_rank_of_one_number_is_refused(void **state)
{
    (void)state;
    struct rank k = new_rank(0, WORLD, 0);
    int32_t port = listen_here(&k);
    pid_t a = start(new_rank(1, WORLD, port)), b = start(new_rank(1, WORLD, port));
    struct err e = {""};
    k.o.join_timeout_s = 2;
    assert_null(ranks_open(&k.o, &e));
    assert_non_null(strstr(e.msg, "ranks that did not come within 2 s: 2"));
    assert_int_equal(ended(a), 1);
    assert_int_equal(ended(b), 1);
}

static void assert_fails(struct rank *leader, struct rank other, const char *words)
{
    struct err e = {""};
    other.o.place.port = listen_here(leader);
    pid_t pid = start(other);
    assert_int_equal(lead(leader, &e), -1);
    if (!strstr(e.msg, words) && !strstr(leader->lost, words))
        fail_msg("'%s' is neither in: %s, nor in: %s", words, e.msg, leader->lost);
    int status = ended(pid);
    assert_true(status == 1 || (other.dies != NEVER && status >= 128));
}

static void ranks_that_do_not_belong_together_say_so(void **state)
{
    (void)state;
    struct rank k = new_rank(0, 2, 0), other = new_rank(1, 2, 0);
    other.hash = "fedcba9876543210";
    assert_fails(&k, other, "rank 1 has another model: its hash is fedcba9876543210");
    other = new_rank(1, 2, 0);
    other.backend = "cuda";
    assert_fails(&k, other, "rank 1 has backend cuda, rank 0 has cpu");
    other = new_rank(1, 2, 0);
    other.room = 3;
    assert_fails(&k, other, "rank 1 has no room for KV pages");
}

/* ---- death ---------------------------------------------------------------------------------- */

/* One of three dies; rank 0 says which, and the third ends by itself. */
static void a_rank_may_die_in_any_state(void **state)
{
    (void)state;
    for (enum state dies = BEFORE_JOIN; dies < NEVER; dies++) {
        struct rank k = new_rank(0, WORLD, 0), other;
        struct err e = {""};
        int32_t port = listen_here(&k);
        k.o.join_timeout_s = dies == BEFORE_JOIN ? 2 : 60;
        other = new_rank(1, WORLD, port);
        other.dies = dies;
        int end[2];
        assert_int_equal(pipe(end), 0);
        pid_t one = start(other);
        close(end[1]); /* rank 1 alone has it open */
        other = new_rank(2, WORLD, port);
        other.after_fd = dies == SAID_PART ? end[0] : 0;
        pid_t two = start(other);
        close(end[0]);
        int rc = lead(&k, &e);
        const char *words = dies == BEFORE_JOIN ? "did not come within 2 s: 1" : "rank 1";
        if (rc != -1 || (!strstr(e.msg, words) && !strstr(k.lost, words)))
            fail_msg("state %d: %d, %s; %s", dies, rc, e.msg, k.lost);
        assert_true(k.told || dies < READY); /* before that it may be told otherwise */
        assert_true(!k.told || dies > BEFORE_JOIN);
        assert_true(ended(one) >= 128);
        assert_int_equal(ended(two) == 0, 0);
    }
}

/* And so may rank 0: the others end, each with a word. */
static void rank_0_may_die_in_any_state(void **state)
{
    (void)state;
    static const enum state states[] = {JOINED, SET_UP, READY, IN_STEP};
    for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
        enum state dies = states[i];
        struct rank k = new_rank(0, 2, 0), other;
        int32_t port = listen_here(&k);
        k.dies = dies;
        pid_t leader = fork();
        if (leader == 0) {
            struct err e = {""};
            if (dies == IN_STEP) { /* of rank 0: it sends one, and does not run it */
                struct ranks *r;
                struct collective *c;
                struct wire_setup setup = {.kv_pages = 1000, .max_tokens = 8, .max_rows = 4};
                struct step s;
                struct wire_table t = {.trial_slot = -1};
                make_step(&s, 0);
                if (open_world(&k, &r, &c, &setup, &e) == 0 && ranks_send_step(r, &s, &t, &e) == 0)
                    raise(SIGKILL);
            }
            _exit(lead(&k, &e) ? 1 : 0);
        }
        close(k.o.place.listener);
        other = new_rank(1, 2, port);
        other.o.step_timeout_s = 3; /* in a step nobody tells it but the clock */
        struct err e = {""};
        assert_int_equal(follow(&other, &e), -1);
        if (!strstr(e.msg, "rank 0"))
            fail_msg("state %d: %s", dies, e.msg);
        assert_true(ended(leader) >= 128);
    }
}

/* As a library that waits for a peer that will never come. */
static struct collective *open_for_ever(const char id[RANKS_ID], int32_t rank, int32_t world,
                                        double timeout_s, struct err *e)
{
    (void)id;
    (void)rank;
    (void)world;
    (void)timeout_s;
    (void)e;
    while (pause() == -1)
        continue;
    return NULL;
}

/* Nothing can be called back there, so the process is what ends: of rank 0 when the other dies, and
 * of the other when rank 0 does. */
static void who_cannot_be_called_back_ends_with_its_process(void **state)
{
    (void)state;
    int usual = grace_s;
    grace_s = 1;
    for (int stuck = 0; stuck < 2; stuck++) {
        struct ranks_ops ranks = *backend_cpu.ranks;
        struct backend_ops ops = backend_cpu;
        struct rank k[2] = {new_rank(0, 2, 0), new_rank(1, 2, 0)};
        ranks.open = open_for_ever;
        ops.ranks = &ranks;
        k[1].o.place.port = listen_here(&k[0]);
        k[stuck].ops = &ops;
        k[!stuck].dies = SET_UP;
        pid_t leader = fork();
        if (leader == 0) {
            struct err e = {""};
            _exit(lead(&k[0], &e) ? 1 : 0);
        }
        close(k[0].o.place.listener);
        pid_t other = start(k[1]);
        assert_int_equal(ended(stuck ? other : leader), RANKS_EXIT_LOST);
        assert_true(ended(stuck ? leader : other) >= 128);
    }
    grace_s = usual;
}

static void a_rank_that_gives_up_says_why(void **state)
{
    (void)state;
    struct rank k = new_rank(0, 2, 0), other = new_rank(1, 2, 0);
    other.gives_up = "out of memory on the device";
    assert_fails(&k, other, "gave up: out of memory on the device");
}

/* It cannot write what rank 0 has open; rank 0 is still there and can. */
static void a_rank_that_dies_of_a_fault_says_in_which_kernel(void **state)
{
    (void)state;
    char folder[] = "/tmp/whet-ranks-XXXXXX", path[64];
    struct rank k = new_rank(0, 2, 0), other = new_rank(1, 2, 0);
    struct crash_record c;
    struct err e = {""};
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/store.db.crash", folder);
    other.faults = true;
    other.o.place.port = listen_here(&k);
    pid_t pid = start(other);
    assert_int_equal(crash_open(path, &e), 0);
    assert_int_equal(lead(&k, &e), -1);
    crash_close();
    int how = ended(pid);
    assert_true(how == 128 + SIGSEGV || (SANITIZED && how > 0 && how != 90));
    if (!strstr(k.lost, "rank 1 (process") || !strstr(k.lost, "is gone: it died of SIGSEGV"))
        fail_msg("%s", k.lost);
    assert_int_equal(crash_read(path, &c), 1);
    assert_string_equal(c.what, "SIGSEGV on rank 1");
    assert_true(c.inside);
    assert_int_equal(c.n, 1);
    assert_string_equal(c.kernel[0], deadly.id);
    safe_folder_remove(folder);
}

/* A step may fail before the watching thread has read what a rank said as it died. */
static void the_last_words_of_a_rank_are_heard_when_the_world_is_over(void **state)
{
    (void)state;
    char folder[] = "/tmp/whet-ranks-XXXXXX", path[64];
    struct ranks *r = xcalloc(1, sizeof *r);
    struct crash_record c = {.what = "SIGBUS", .n = 1};
    struct err e = {""};
    int end[2];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/store.db.crash", folder);
    assert_int_equal(crash_open(path, &e), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, end), 0);
    r->options.place.world = 2;
    r->peer[1].fd = end[0];
    strcpy(c.kernel[0], deadly.id);
    assert_int_equal(link_send(end[1], LINK_ALIVE, NULL, 0, 0, &e), 0);
    assert_int_equal(link_send(end[1], LINK_CRASH, &c, sizeof c, 0, &e), 0);
    hear_last_words(r); /* the world lives: all that is said is heard elsewhere */
    assert_int_equal(crash_read(path, &c), 0);
    atomic_store(&r->lost, true);
    hear_last_words(r);
    close(end[1]);
    hear_last_words(r);
    assert_true(r->peer[1].silent);
    crash_close();
    assert_int_equal(crash_read(path, &c), 1);
    assert_string_equal(c.what, "SIGBUS on rank 1");
    close(end[0]);
    free(r);
    safe_folder_remove(folder);
}

/* Stopped by a debugger, or swapping: nothing is closed, and yet it does not come. */
static void a_rank_that_stands_still_is_not_waited_for_for_ever(void **state)
{
    (void)state;
    struct rank k = new_rank(0, 2, 0), other = new_rank(1, 2, 0);
    struct err e = {""};
    k.o.step_timeout_s = 1;
    other.sleeps = true;
    other.o.place.port = listen_here(&k);
    pid_t pid = start(other);
    assert_int_equal(lead(&k, &e), -1);
    assert_true(k.told);
    /* "a step did not end within 1.0 s", or "does not answer for 1.0 s" if it was asked before. */
    assert_non_null(strstr(k.lost, "1.0 s"));
    kill(pid, SIGKILL);
    ended(pid);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_meet_run_steps_and_end_in_good_order),
        cmocka_unit_test(pages_are_what_the_smallest_device_has),
        cmocka_unit_test(strangers_at_the_door_are_sent_away),
        cmocka_unit_test(a_second_rank_of_one_number_is_refused),
        cmocka_unit_test(ranks_that_do_not_belong_together_say_so),
        cmocka_unit_test(a_rank_may_die_in_any_state),
        cmocka_unit_test(rank_0_may_die_in_any_state),
        cmocka_unit_test(who_cannot_be_called_back_ends_with_its_process),
        cmocka_unit_test(a_rank_that_gives_up_says_why),
        cmocka_unit_test(a_rank_that_dies_of_a_fault_says_in_which_kernel),
        cmocka_unit_test(the_last_words_of_a_rank_are_heard_when_the_world_is_over),
        cmocka_unit_test(a_rank_that_stands_still_is_not_waited_for_for_ever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
