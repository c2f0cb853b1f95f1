/* SPDX-License-Identifier: Apache-2.0 */
/* test_engine_clients.c - several clients of one engine: whoever makes room for another loses no
 * token for it, and what was displaced or limited says so. Twice, as in test_engine.c. */
#include "tests/unit/engine/engine_world.h"

/* Two hundred requests of five clients on few pages and few places: all get their own text. */
static void engine_gives_each_client_the_right_text_whoever_makes_room(void **state)
{
    (void)state;
    enum { N = 200 };
    const struct request_limits one_at_a_time = {.running = 1, .waiting = -1};
    struct engine *e = start_with(14, 6);
    struct client *c = clients(N);
    struct engine_request *r = xcalloc(N, sizeof *r);
    for (int i = 0; i < N; i++) {
        crowd_request(&c[i], &r[i], i);
        r[i].client = (uint64_t)(i < 120 ? 1 : 1 + i % 5);
        r[i].limits = r[i].client == 3 ? &one_at_a_time : NULL;
        submit(e, &r[i]);
        if (i > 120 && i % 16 == 0)
            wait_another_end(i + 1);
    }
    check_crowd(c, r, N);
    check_idle(e);
    assert_true(metric(e, "\nwhet_preemptions_total ") > 0);
    engine_stop(e);
    free(c);
    free(r);
}

static void engine_gives_a_newcomer_a_place_and_takes_no_token_from_anybody(void **state)
{
    (void)state;
    enum { N = 5 };
    struct engine *e = start_with(200, 3);
    struct client *c = clients(N);
    struct engine_request r[N];
    fake.delay_us = 5000; /* whole seconds for what client 1 has to do */
    for (int i = 0; i < N; i++) {
        prompt_text(&c[i], "a story");
        r[i] = request_of(&c[i], i < 3 ? 900 : 20);
        r[i].client = i < 3 ? 1 : 2;
        r[i].ignore_eos = i < 3;
    }
    for (int i = 0; i < 3; i++)
        submit(e, &r[i]);
    for (int i = 0; i < 3; i++)
        wait_tokens(&c[i], 1);
    submit(e, &r[3]);
    submit(e, &r[4]);
    fake.delay_us = 0;
    wait_ends(N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(c[i].ends, 1);
        if (i >= 3)
            check_text(&c[i], &r[i]);
        else
            assert_int_equal(c[i].tokens, 900);
    }
    assert_string_equal(c[2].text, c[0].text); /* the one that made room */
    assert_true(metric(e, "\nwhet_yields_total ") >= 1);
    assert_true(metric(e, "\nwhet_preemptions_total ") == 0);
    stop_idle(e);
    free(c);
}

static void engine_ends_the_newest_waiting_request_of_who_has_most(void **state)
{
    (void)state;
    enum { N = 7 };
    struct config config = config_of(64, 2);
    config.server_max_queue = 4;
    fake_reset();
    struct engine *e = start(&config);
    struct client *c = clients(N);
    struct engine_request r[N];
    struct err err = {""};
    for (int i = 0; i < N; i++) {
        prompt_text(&c[i], "hello");
        r[i] = request_of(&c[i], 60);
        r[i].ignore_eos = true;
        r[i].client = i < 6 ? 1 : 2;
    }
    fake.hold = true;
    for (int i = 0; i < 6; i++)
        submit(e, &r[i]);
    assert_int_equal(engine_submit(e, &r[5], NULL, &err), SUBMIT_FULL);
    submit(e, &r[6]);
    fake.hold = false;
    wait_ends(N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(c[i].ends, 1);
        assert_int_equal(c[i].finish, i == 5 ? FINISH_DISPLACED : FINISH_LENGTH);
        assert_int_equal(c[i].tokens, i == 5 ? 0 : 60);
    }
    assert_true(metric(e, "\nwhet_displaced_total ") == 1);
    stop_idle(e);
    free(c);
}

/* `n` requests of 60 tokens each, all at once. */
static enum submit_result submit_all(struct engine *e, struct client *c, uint64_t client, int n)
{
    struct engine_request r[8] = {0};
    uint64_t id[8];
    struct err err;
    for (int i = 0; i < n; i++) {
        prompt_text(&c[i], "hello");
        r[i] = request_of(&c[i], 60);
        r[i].ignore_eos = true;
        r[i].client = client;
    }
    enum submit_result result = engine_submit_all(e, r, n, id, &err);
    for (int i = 0; i < n && result == SUBMIT_OK; i++)
        c[i].id = id[i];
    return result;
}

static void check_ends(const struct client *c, int n, enum finish finish, int32_t tokens)
{
    for (int i = 0; i < n; i++) {
        assert_int_equal(c[i].ends, 1);
        assert_int_equal(c[i].finish, finish);
        assert_int_equal(c[i].tokens, tokens);
    }
}

static void engine_displaces_no_part_of_an_answer_that_has_begun(void **state)
{
    (void)state;
    struct config config = config_of(64, 2);
    config.server_max_queue = 4;
    fake_reset();
    struct engine *e = start(&config);
    struct client *c = clients(8);
    fake.delay_us = 2000;
    assert_int_equal(submit_all(e, c, 1, 6), SUBMIT_OK);
    wait_tokens(&c[0], 1);
    assert_int_equal(submit_all(e, c + 6, 2, 1), SUBMIT_OK); /* a place is made for a newcomer */
    assert_int_equal(submit_all(e, c + 7, 2, 1), SUBMIT_FULL);
    fake.delay_us = 0;
    wait_ends(7);
    check_ends(c, 7, FINISH_LENGTH, 60);
    assert_true(metric(e, "\nwhet_displaced_total ") == 0);
    stop_idle(e);
    free(c);
}

/* One of the four has to go; without it the other three would be computed for nothing. */
static void engine_displaces_an_answer_that_has_not_begun_as_a_whole(void **state)
{
    (void)state;
    struct config config = config_of(64, 2);
    config.server_max_queue = 4;
    fake_reset();
    struct engine *e = start(&config);
    struct client *c = clients(7);
    fake.delay_us = 2000;
    assert_int_equal(submit_all(e, c, 1, 2), SUBMIT_OK);
    wait_tokens(&c[0], 1);
    assert_int_equal(submit_all(e, c + 2, 1, 4), SUBMIT_OK);
    assert_int_equal(submit_all(e, c + 6, 2, 1), SUBMIT_OK);
    wait_ends(4);
    fake.delay_us = 0;
    wait_ends(7);
    check_ends(c + 2, 4, FINISH_DISPLACED, 0);
    check_ends(c, 2, FINISH_LENGTH, 60);
    check_ends(c + 6, 1, FINISH_LENGTH, 60);
    stop_idle(e);
    free(c);
}

static void engine_takes_all_of_an_answer_or_none(void **state)
{
    (void)state;
    struct config config = config_of(64, 2);
    config.server_max_queue = 4;
    fake_reset();
    struct engine *e = start(&config);
    struct client *c = clients(8);
    assert_int_equal(submit_all(e, c, 1, 7), SUBMIT_FULL);
    assert_int_equal(engine_active(e), 0);
    assert_int_equal(submit_all(e, c, 1, 6), SUBMIT_OK);
    wait_ends(6);
    check_ends(c, 6, FINISH_LENGTH, 60);
    assert_int_equal(e->backlog.clients.items, 0);
    stop_idle(e);
    free(c);
}

/* Displacing, cancelling and ending meet in every order; the counts come out even. */
static void engine_counts_right_while_a_full_queue_changes(void **state)
{
    (void)state;
    enum { N = 400 };
    struct config config = config_of(40, 3);
    config.server_max_queue = 5;
    fake_reset();
    struct engine *e = start(&config);
    struct client *c = clients(N);
    struct engine_request r;
    struct err err = {""};
    int taken = 0, ends = 0;
    srand(5);
    for (int i = 0; i < N; i++) {
        prompt_text(&c[i], "any");
        r = request_of(&c[i], 1 + rand() % 8);
        r.client = (uint64_t)(rand() % 3 ? 1 : 2 + rand() % 20);
        if (rand() % 4 == 0 && i + 4 < N) {
            bool all = submit_all(e, &c[i], r.client, 4) == SUBMIT_OK;
            taken += all ? 4 : 0;
            i += 3;
        } else {
            taken += engine_submit(e, &r, &c[i].id, &err) == SUBMIT_OK;
        }
        if (rand() % 5 == 0 && i > 0)
            engine_cancel(e, c[rand() % i].id);
        if (rand() % 8 == 0)
            usleep((useconds_t)(rand() % 300));
    }
    wait_ends(taken);
    for (int i = 0; i < N; i++) {
        assert_true(c[i].ends <= 1);
        ends += c[i].ends;
    }
    assert_int_equal(ends, taken);
    check_idle(e);
    assert_int_equal(engine_room(e, 1, NULL, &err), SUBMIT_OK);
    assert_int_equal(e->backlog.active, 0);
    assert_int_equal(e->backlog.waiting, 0);
    assert_int_equal(e->backlog.displacing, 0);
    assert_int_equal(e->backlog.clients.items, 0);
    engine_stop(e);
    free(c);
}

static void engine_finds_no_prompt_of_another_client(void **state)
{
    (void)state;
    const char *text = "0123456789abcdef0123456789abcdefXYZ";
    static const char *const mode[] = {"off", "salted", "shared"};
    for (int m = 0; m < 3; m++) {
        struct config config = config_of(64, 4);
        config.engine_prefix_cache = (char *)mode[m];
        fake_reset();
        struct engine *e = start(&config);
        struct client *c = clients(3);
        for (int i = 0; i < 3; i++) {
            prompt_text(&c[i], text);
            struct engine_request r = request_of(&c[i], 4);
            r.client = i < 2 ? 1 : 2;
            submit(e, &r);
            wait_ends(i + 1);
        }
        assert_int_equal(c[0].cached_tokens, 0);
        assert_int_equal(c[1].cached_tokens, m == 0 ? 0 : 32);
        assert_int_equal(c[2].cached_tokens, m == 2 ? 32 : 0);
        engine_stop(e);
        free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engine_gives_each_client_the_right_text_whoever_makes_room),
        cmocka_unit_test(engine_gives_a_newcomer_a_place_and_takes_no_token_from_anybody),
        cmocka_unit_test(engine_ends_the_newest_waiting_request_of_who_has_most),
        cmocka_unit_test(engine_displaces_no_part_of_an_answer_that_has_begun),
        cmocka_unit_test(engine_displaces_an_answer_that_has_not_begun_as_a_whole),
        cmocka_unit_test(engine_takes_all_of_an_answer_or_none),
        cmocka_unit_test(engine_counts_right_while_a_full_queue_changes),
        cmocka_unit_test(engine_finds_no_prompt_of_another_client),
    };
    log_set_level(LOG_ERROR);
    int failed = cmocka_run_group_tests_name("one by one", tests, NULL, NULL);
    ops = &fake_pipelined_ops;
    return failed + cmocka_run_group_tests_name("ahead", tests, NULL, NULL);
}
