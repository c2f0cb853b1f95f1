/* SPDX-License-Identifier: Apache-2.0 */
/* test_steps_ahead.c - steps that are started while the one before them is under way: what that
 * saves, and what has to be undone when the step before ended otherwise than thought.
 */
#include "tests/unit/engine/engine_world.h"

static void a_step_is_started_while_the_one_before_it_is_under_way(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 4);
    struct client *c = clients(1);
    prompt_text(c, "one after the other");
    struct engine_request r = request_of(c, 300);
    r.ignore_eos = true;
    submit(e, &r);
    wait_ends(1);
    assert_int_equal(c->tokens, 300);
    engine_stop(e);
    assert_int_equal(fake.steps, 300); /* how many are wanted is known: none for nothing */
    assert_int_equal(fake.ahead, 299);
    free(c);
}

static void a_token_drawn_after_the_end_is_nobodys(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 4);
    struct client *c = clients(2);
    prompt_text(&c[0], "this one ends by itself");
    struct engine_request r = request_of(&c[0], 400);
    submit(e, &r);
    wait_ends(1);
    check_text(&c[0], &r);
    assert_int_equal(c[0].finish, FINISH_STOP);
    prompt_text(&c[1], "and so does the one after it");
    r = request_of(&c[1], 400);
    submit(e, &r);
    wait_ends(2);
    check_text(&c[1], &r);
    check_idle(e);
    assert_true(metric(e, "\nwhet_generation_tokens_total ") == c[0].tokens + c[1].tokens);
    engine_stop(e);
    assert_int_equal(fake.steps, (uint64_t)(c[0].tokens + c[1].tokens) + 2); /* one more each */
    free(c);
}

/* Everything that changes a draw with the tokens before it. */
static void penalties_and_bans_know_the_token_under_way(void **state)
{
    (void)state;
    enum { N = 12 };
    struct engine *e = start_with(64, 4);
    struct client *c = clients(N);
    struct engine_request r[N];
    for (int i = 0; i < N; i++) {
        prompt_text(&c[i], "abcdef abcdef");
        r[i] = request_of(&c[i], 120);
        r[i].ignore_eos = true;
        r[i].sampling.repetition_penalty = i % 3 == 0 ? 1.7f : 1;
        r[i].sampling.presence_penalty = i % 3 == 1 ? 1.1f : 0;
        r[i].sampling.frequency_penalty = i % 3 == 2 ? 0.6f : 0;
        r[i].sampling.temperature = i % 2 ? 0.8f : 0;
        r[i].sampling.seed = (uint64_t)i + 1;
        r[i].sampling.top_logprobs = i % 4 ? -1 : 3;
        submit(e, &r[i]);
    }
    wait_ends(N);
    for (int i = 0; i < N; i++) {
        char text[2 * LONG];
        int32_t ids[LONG],
            n = fake_text(c[i].prompt, c[i].prompt_n, 120, &r[i].sampling, text, ids);
        n = n < c[i].tokens ? n : c[i].tokens; /* fake_text() stops at the end token */
        assert_int_equal(c[i].tokens, 120);
        assert_memory_equal(c[i].ids, ids, (size_t)n * sizeof *ids);
    }
    engine_stop(e);
    free(c);
}

static void tokens_that_stay_off_the_device_are_waited_for(void **state)
{
    (void)state;
    enum { N = 40 };
    struct engine *e = start_with(20, 8);
    struct client *c = clients(N);
    struct engine_request r[N];
    fake.keep_in = 3; /* the fake fails a step that names such a row */
    submit_crowd(e, c, r, N);
    check_crowd(c, r, N);
    assert_true(metric(e, "\nwhet_failed_steps_total ") == 0);
    assert_true(fake.ahead > 0 && fake.ahead < fake.starts);
    stop_idle(e);
    free(c);
}

static void what_a_failed_step_and_the_next_computed_is_computed_again(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 4);
    struct client *c = clients(2);
    struct engine_request r[2];
    fake.fail_every = 5;
    for (int i = 0; i < 2; i++) {
        prompt_text(&c[i], i ? "another of the two" : "one of the two that meet failures");
        r[i] = request_of(&c[i], 200);
        submit(e, &r[i]);
    }
    wait_ends(2);
    check_text(&c[0], &r[0]);
    check_text(&c[1], &r[1]);
    assert_true(metric(e, "\nwhet_failed_steps_total ") > 10);
    assert_true(fake.ahead > 10);
    stop_idle(e);
    free(c);
}

int main(void)
{
    log_set_level(LOG_ERROR); /* of which some are wanted */
    ops = &fake_pipelined_ops;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_started_while_the_one_before_it_is_under_way),
        cmocka_unit_test(a_token_drawn_after_the_end_is_nobodys),
        cmocka_unit_test(penalties_and_bans_know_the_token_under_way),
        cmocka_unit_test(tokens_that_stay_off_the_device_are_waited_for),
        cmocka_unit_test(what_a_failed_step_and_the_next_computed_is_computed_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
