/* SPDX-License-Identifier: Apache-2.0 */
/* test_engine_ends.c - the ends that the engine's requests come to when something is wrong: a
 * client that left, a stop, a step that fails, a model that does not load, a device that is lost.
 * Twice, as in test_engine.c. */
#include "tests/unit/engine/engine_world.h"

static void engine_cancels_in_any_state(void **state)
{
    (void)state;
    enum { N = 200 };
    struct engine *e = start_with(40, 16);
    struct client *c = clients(N);
    struct engine_request *r = xcalloc(N, sizeof *r);
    fake.delay_us = 100;
    srand(4);
    int cancelled = 0;
    for (int i = 0; i < N; i++) {
        crowd_request(&c[i], &r[i], i);
        submit(e, &r[i]);
        if (rand() % 2)
            engine_cancel(e, c[rand() % 2 ? i : rand() % (i + 1)].id);
        if (rand() % 4 == 0)
            usleep((useconds_t)(rand() % 2000));
    }
    engine_cancel(e, 999999); /* nobody */
    wait_ends(N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(c[i].ends, 1);
        if (c[i].finish != FINISH_CANCELLED)
            check_text(&c[i], &r[i]);
        cancelled += c[i].finish == FINISH_CANCELLED;
    }
    assert_in_range(cancelled, 10, N - 10);
    stop_idle(e);
    free(c);
    free(r);
}

static void engine_stop_ends_everything(void **state)
{
    (void)state;
    enum { N = 12 };
    struct engine *e = start_with(64, 4);
    struct client *c = clients(N);
    fake.delay_us = 20000; /* ten seconds for each, if nobody ended them */
    for (int i = 0; i < N; i++) {
        prompt_text(&c[i], "endless");
        struct engine_request r = request_of(&c[i], 500);
        r.ignore_eos = true;
        submit(e, &r);
    }
    wait_tokens(&c[0], 3);
    engine_stop(e);
    for (int i = 0; i < N; i++) {
        assert_int_equal(c[i].ends, 1);
        assert_int_equal(c[i].finish, FINISH_CANCELLED);
    }
    free(c);
}

static void engine_survives_steps_that_fail_now_and_then(void **state)
{
    (void)state;
    enum { N = 40 };
    struct engine *e = start_with(64, 8);
    struct client *c = clients(N);
    struct engine_request *r = xcalloc(N, sizeof *r);
    fake.fail_every = 10;
    submit_crowd(e, c, r, N);
    check_crowd(c, r, N);
    assert_true(metric(e, "\nwhet_failed_steps_total ") >= 4);
    stop_idle(e);
    free(c);
    free(r);
}

static void engine_gives_up_only_the_request_that_breaks_the_step(void **state)
{
    (void)state;
    enum { N = 20, BAD = 7 };
    struct engine *e = start_with(64, 8);
    struct client *c = clients(N);
    struct engine_request *r = xcalloc(N, sizeof *r);
    fake.poison = TOY_TAG;
    fake.delay_us = 100;
    for (int i = 0; i < N; i++) {
        crowd_request(&c[i], &r[i], i);
        if (i == BAD)
            c[i].prompt[4] = TOY_TAG;
        submit(e, &r[i]);
    }
    wait_ends(N);
    for (int i = 0; i < N; i++)
        if (i != BAD)
            check_text(&c[i], &r[i]);
    assert_int_equal(c[BAD].finish, FINISH_ERROR);
    assert_string_equal(c[BAD].error, "token 258 is poison");
    assert_int_equal(c[BAD].ends, 1);
    check_idle(e);

    fake.fail_next = 1000000; /* the device is dead */
    all_ends = 0;
    for (int i = 0; i < N; i++) {
        c[i].ends = 0;
        submit(e, &r[i]);
    }
    wait_ends(N);
    for (int i = 0; i < N; i++)
        assert_int_equal(c[i].finish, FINISH_ERROR);
    stop_idle(e);
    free(c);
    free(r);
}

static void engine_says_why_it_did_not_load(void **state)
{
    (void)state;
    fake_reset();
    fake.fail_open = true;
    struct config config = config_of(8, 1);
    struct engine *e = start(&config);
    char message[200];
    assert_int_equal(engine_state(e, NULL, message, sizeof message), ENGINE_FAILED);
    assert_string_equal(message, "backend fake: the fake refuses to open");
    struct client *c = clients(1);
    prompt_text(c, "hello");
    struct engine_request r = request_of(c, 5);
    struct err err = {""};
    assert_int_equal(engine_submit(e, &r, NULL, &err), SUBMIT_NOT_READY);
    assert_int_equal(engine_slices(e, NULL, NULL), -1);
    engine_stop(e);
    free(c);
}

static void engine_notices_that_it_stalls(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 4);
    struct client *c = clients(1);
    usleep(30000);
    assert_true(engine_stalled_s(e) == 0); /* idle is no stall */
    fake.hold = true;
    prompt_text(c, "slow");
    struct engine_request r = request_of(c, 1);
    int64_t begun = clock_ns();
    submit(e, &r);
    double stalled = engine_stalled_s(e); /* not since it had work the last time */
    assert_true(stalled <= (double)(clock_ns() - begun) * 1e-9);
    while (engine_stalled_s(e) < 0.05) /* for ever, if it did not notice */
        usleep(1000);
    /* A long step that gets on has not stalled. */
    atomic_store(&e->progress_ns, clock_ns() - INT64_C(3600000000000));
    assert_true(engine_stalled_s(e) > 3000);
    fake.moves = true;
    while (engine_stalled_s(e) > 3000)
        usleep(1000);
    fake.hold = false;
    wait_ends(1);
    assert_true(engine_stalled_s(e) == 0);
    engine_stop(e);
    free(c);
}

static atomic_bool held;
static int hang(void *ctx, int64_t budget_ns)
{
    (void)ctx, (void)budget_ns;
    while (atomic_load(&held))
        usleep(1000);
    return 1;
}

static void *lend(void *engine)
{
    engine_slices(engine, hang, NULL);
    return NULL;
}

static void *quit(void *engine)
{
    engine_quit(engine);
    return NULL;
}

/* Nobody has asked for anything, and the thread does not come back from a slice; nor does it when
 * it is told to end. */
static void engine_notices_that_a_slice_stalls(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 4);
    pthread_t lender, quitter;
    for (int told = 0; told < 2; told++) {
        atomic_store(&held, true);
        assert_int_equal(pthread_create(&lender, NULL, lend, e), 0);
        while (engine_stalled_s(e) < 1) /* for ever, if it did not notice */
            usleep(1000);
        if (told) {
            assert_int_equal(pthread_create(&quitter, NULL, quit, e), 0);
            while (engine_stalled_s(e) > 0.5) /* is given time to */
                usleep(1000);
            while (engine_stalled_s(e) < 0.6)
                usleep(1000);
        }
        atomic_store(&held, false);
        pthread_join(lender, NULL);
        while (!told && engine_stalled_s(e) > 0)
            usleep(1000);
    }
    pthread_join(quitter, NULL);
    engine_quit(e); /* over already */
    engine_stop(e);
}

/* One is in the step that loses the device, the other was accepted and nobody has looked at it. */
static void engine_tells_those_who_only_arrived_why_the_device_is_lost(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 8);
    struct client *c = clients(2);
    struct engine_request r;
    uint64_t steps = fake.steps;
    fake.hold = true;
    for (int i = 0; i < 2; i++) {
        prompt_text(&c[i], "a prompt");
        r = request_of(&c[i], 5);
        submit(e, &r);
        while (fake.steps == steps)
            usleep(100);
    }
    fake.lost = true;
    fake.hold = false;
    wait_ends(2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(c[i].finish, FINISH_ERROR);
        assert_non_null(strstr(c[i].error, "the bus"));
    }
    engine_stop(e);
    free(c);
}

static int never(void *ctx, int64_t budget_ns)
{
    (void)ctx;
    (void)budget_ns;
    fail_msg("a slice ran on a lost device");
    return 1;
}

static void engine_ends_everything_when_the_device_is_lost(void **state)
{
    (void)state;
    enum { N = 30 };
    struct engine *e = start_with(64, 8);
    struct client *c = clients(N + 1);
    struct engine_request r;
    fake.delay_us = 20000; /* none comes to its end before the device is lost */
    for (int i = 0; i < N; i++) {
        prompt_text(&c[i], "running, waiting or under way");
        r = request_of(&c[i], 400);
        r.ignore_eos = true;
        submit(e, &r);
    }
    wait_tokens(&c[0], 5);
    fake.lost = true;
    wait_ends(N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(c[i].ends, 1);
        assert_int_equal(c[i].finish, FINISH_ERROR);
        assert_non_null(strstr(c[i].error, "the bus"));
    }
    char message[200];
    assert_int_equal(engine_state(e, NULL, message, sizeof message), ENGINE_LOST);
    assert_string_equal(message, "the device is lost: the fake has fallen off the bus");
    check_idle(e); /* and its metrics can still be read */
    struct err err = {""};
    prompt_text(&c[N], "too late");
    r = request_of(&c[N], 5);
    assert_int_equal(engine_submit(e, &r, NULL, &err), SUBMIT_NOT_READY);
    assert_string_equal(err.msg, "the device is lost");
    assert_int_equal(engine_slices(e, never, NULL), -1);
    engine_canary(e, NULL); /* returns */
    engine_stop(e);
    free(c);
}

int main(void)
{
    log_set_level(LOG_ERROR); /* of which some are wanted */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engine_cancels_in_any_state),
        cmocka_unit_test(engine_stop_ends_everything),
        cmocka_unit_test(engine_survives_steps_that_fail_now_and_then),
        cmocka_unit_test(engine_gives_up_only_the_request_that_breaks_the_step),
        cmocka_unit_test(engine_says_why_it_did_not_load),
        cmocka_unit_test(engine_notices_that_it_stalls),
        cmocka_unit_test(engine_notices_that_a_slice_stalls),
        cmocka_unit_test(engine_tells_those_who_only_arrived_why_the_device_is_lost),
        cmocka_unit_test(engine_ends_everything_when_the_device_is_lost),
    };
    int failed = cmocka_run_group_tests_name("one by one", tests, NULL, NULL);
    ops = &fake_pipelined_ops;
    return failed + cmocka_run_group_tests_name("pipelined", tests, NULL, NULL);
}
