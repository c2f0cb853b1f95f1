/* SPDX-License-Identifier: Apache-2.0 */
/* test_ranks_watch.c - a watching thread that stood still itself, as in a machine that was paused:
 * nobody is condemned for what it could not hear meanwhile, and everybody afterwards. And what
 * another rank is told to set up. */
#include "tests/unit/unit.h"

#include <string.h>
#include <sys/socket.h>

#include "engine/ranks_watch.c"

#define S INT64_C(1000000000)

/* Rank 0 of two, which asked 60 s ago and was answered before that; its last look was then. */
static void open_world(struct ranks *r)
{
    int64_t then = clock_ns() - 60 * S;
    memset(r, 0, sizeof *r);
    r->options.place.world = 2;
    r->options.step_timeout_s = 30;
    r->options.join_timeout_s = 30;
    r->asked_ns = r->looked_ns = then;
    r->peer[1].heard_ns = then - S;
    pthread_mutex_init(&r->lock, NULL);
    ranks_kernels_open(r);
}

static void close_world(struct ranks *r)
{
    ranks_kernels_close(r);
    pthread_mutex_destroy(&r->lock);
}

/* As if this thread had come back that long ago, and looked all the time since. */
static void came_back(struct ranks *r, int64_t ago)
{
    r->back_ns = clock_ns() - ago;
    note_look(r);
}

static void who_runs_and_is_silent_has_its_time_again(void **state)
{
    (void)state;
    struct ranks r;
    open_world(&r);
    atomic_store(&r.began, true);
    note_look(&r);
    look_at_silence(&r);
    assert_null(ranks_lost(&r));
    came_back(&r, 31 * S);
    look_at_silence(&r);
    assert_non_null(strstr(r.why, "does not answer (engine.rank_step_s) for 30.0 s"));
    close_world(&r);
}

static void who_starts_has_its_time_again(void **state)
{
    (void)state;
    struct ranks r;
    open_world(&r);
    atomic_store(&r.awaits_ns, r.asked_ns);
    note_look(&r);
    look_at_silence(&r);
    assert_null(ranks_lost(&r));
    came_back(&r, 31 * S);
    look_at_silence(&r);
    assert_non_null(strstr(r.why, "has got no further with its start (engine.rank_join_s)"));
    close_world(&r);
}

static void a_step_has_its_time_again(void **state)
{
    (void)state;
    struct ranks r;
    open_world(&r);
    atomic_store(&r.step_ns, r.asked_ns);
    note_look(&r);
    look_at_step(&r);
    assert_null(ranks_lost(&r));
    came_back(&r, 31 * S);
    look_at_step(&r);
    assert_non_null(strstr(r.why, "a step did not end within 30.0 s"));
    close_world(&r);
}

/* What is short enough to be a busy machine gives nobody more time. */
static void a_late_look_is_no_pause(void **state)
{
    (void)state;
    struct ranks r;
    open_world(&r);
    atomic_store(&r.step_ns, r.asked_ns);
    r.looked_ns = clock_ns() - S / 2;
    note_look(&r);
    look_at_step(&r);
    assert_non_null(ranks_lost(&r));
    close_world(&r);
}

/* Another rank makes buffers by what rank 0 says: no number of it is out of bounds. */
static void what_rank_0_asks_for_is_bounded(void **state)
{
    (void)state;
    static const struct {
        struct wire_setup says;
        bool right;
    } all[] = {
        {{.kv_pages = 10, .max_tokens = 8, .max_rows = 4}, true},
        {{.kv_pages = 0, .max_tokens = 8, .max_rows = 4}, false},
        {{.kv_pages = INT32_MAX, .max_tokens = 8, .max_rows = 4}, false},
        {{.kv_pages = 10, .max_tokens = -8, .max_rows = 4}, false},
        {{.kv_pages = 10, .max_tokens = INT32_MAX, .max_rows = 4}, false},
        {{.kv_pages = 10, .max_tokens = 8, .max_rows = 0}, false},
        {{.kv_pages = 10, .max_tokens = 8, .max_rows = INT32_MAX}, false},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct ranks r;
        struct wire_setup says = all[i].says, heard_setup;
        struct err e = {""};
        int end[2];
        open_world(&r);
        memset(says.id, 'x', sizeof says.id); /* and no text without an end */
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, end), 0);
        r.peer[0].fd = end[1];
        assert_int_equal(link_send(end[0], LINK_WISH, &says, sizeof says, 0, &e), 0);
        assert_int_equal(ranks_hear_wish(&r, &heard_setup, &e) == 0, all[i].right);
        if (all[i].right)
            assert_int_equal(strlen(heard_setup.id), sizeof says.id - 1);
        else
            assert_non_null(strstr(e.msg, "rank 0 asks for "));
        close(end[0]);
        close(end[1]);
        close_world(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_runs_and_is_silent_has_its_time_again),
        cmocka_unit_test(who_starts_has_its_time_again),
        cmocka_unit_test(a_step_has_its_time_again),
        cmocka_unit_test(a_late_look_is_no_pause),
        cmocka_unit_test(what_rank_0_asks_for_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
