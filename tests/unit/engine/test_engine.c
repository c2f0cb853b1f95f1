/* SPDX-License-Identifier: Apache-2.0 */
/* test_engine.c - the whole engine on a fake backend: many requests, few pages. All of it runs
 * twice: with steps one by one, and with each step started while the one before it is under way
 * (what is special about that: test_steps_ahead.c). Other ends than the usual: test_engine_ends.c;
 * slices and canaries: test_tuning.c. */
#include "tests/unit/engine/engine_world.h"

static void engine_answers_as_the_model_alone_would(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 8);
    struct client *c = clients(1);
    prompt_text(c, "A prompt that is longer than a single chunk of thirty-two tokens.");
    struct engine_request r = request_of(c, 50);
    submit(e, &r);
    wait_ends(1);
    check_text(c, &r);
    check_idle(e);
    assert_int_equal(fake.most_tokens, 32);
    engine_stop(e);
    free(c);
}

static void engine_gives_each_of_two_hundred_its_own_text(void **state)
{
    (void)state;
    enum { N = 200 };
    struct engine *e = start_with(14, 24); /* room for about two of them at full length */
    struct client *c = clients(N);
    struct engine_request *r = xcalloc(N, sizeof *r);
    submit_crowd(e, c, r, N);
    check_crowd(c, r, N);
    check_idle(e);
    assert_true(metric(e, "\nwhet_preemptions_total ") > 0);
    assert_true(metric(e, "\nwhet_prefix_cache_hit_tokens_total ") > 0);
    assert_true(metric(e, "\nwhet_time_to_first_token_seconds_count ") == N);
    assert_true(metric(e, "\nwhet_queue_seconds_count ") == N);
    double tokens = 0;
    for (int i = 0; i < N; i++)
        tokens += c[i].tokens;
    assert_true(metric(e, "\nwhet_generation_tokens_total ") == tokens);
    assert_true(metric(e, "\nwhet_inter_token_latency_seconds_count ") == tokens - N);
    assert_in_range(fake.most_spans, 2, 24);
    engine_stop(e);
    free(c);
    free(r);
}

static void engine_reports_tokens_found_in_the_cache(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 4);
    struct client *c = clients(3);
    const char *text = "0123456789abcdef0123456789abcdefXYZ"; /* two pages and three tokens */
    for (int i = 0; i < 3; i++) {
        prompt_text(&c[i], text);
        struct engine_request r = request_of(&c[i], 20);
        r.prompt_logprobs = i == 2; /* scoring needs every position */
        submit(e, &r);
        wait_ends(i + 1);
        assert_int_equal(c[i].cached_tokens, i == 1 ? 32 : 0);
        assert_string_equal(c[i].text, c[0].text);
    }
    engine_stop(e);
    free(c);
}

static void engine_scores_a_prompt(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 4);
    struct client *c = clients(1);
    prompt_text(c, "Every position of this prompt, which takes three steps to read, is scored.");
    struct engine_request r = request_of(c, 0);
    r.prompt_logprobs = true;
    submit(e, &r);
    wait_ends(1);
    assert_int_equal(c->finish, FINISH_LENGTH);
    assert_int_equal(c->tokens, 0);
    assert_int_equal(c->prompts, c->prompt_n);
    assert_false(c->order_wrong);
    assert_true(isnan(c->prompt_logprob[0]));
    uint64_t h = 1;
    for (int32_t i = 1; i < c->prompt_n; i++) {
        float logits[TOY_VOCAB];
        double sum = 0;
        h = fake_hash(h, c->prompt[i - 1]);
        fake_logits(h, logits);
        for (int32_t v = 0; v < TOY_VOCAB; v++)
            sum += exp((double)logits[v] - logits[c->prompt[i]]);
        assert_true(fabs(c->prompt_logprob[i] + log(sum)) < 1e-4);
    }
    stop_idle(e);
    free(c);
}

static void engine_stops_at_strings_and_ids(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 4);
    struct client *c = clients(3);
    char text[LONG];
    int32_t ids[LONG];
    prompt_text(&c[0], "stop here");
    fake_text(c[0].prompt, c[0].prompt_n, 40, &greedy, text, ids);
    assert_true(strlen(text) > 12);
    char stop_text[4] = {text[8], text[9], text[10], 0};
    const char *const stop[] = {"never in the text", stop_text};
    char *first = strstr(text, stop_text);
    struct engine_request r = request_of(&c[0], 40);
    r.stop = stop;
    r.stops = 2;
    submit(e, &r);
    wait_ends(1);
    assert_int_equal(c[0].finish, FINISH_STOP);
    assert_string_equal(c[0].stop_string, stop_text);
    assert_int_equal(strlen(c[0].text), first - text);
    assert_memory_equal(c[0].text, text, strlen(c[0].text));

    prompt_text(&c[1], "min tokens");
    r = request_of(&c[1], 300);
    r.min_tokens = 250; /* the end would be drawn long before */
    submit(e, &r);
    wait_ends(2);
    assert_true(c[1].tokens >= 250);
    for (int32_t i = 0; i < 249; i++)
        assert_int_not_equal(c[1].ids[i], TOY_END);

    prompt_text(&c[2], "ignore eos");
    r = request_of(&c[2], 300);
    r.ignore_eos = true;
    submit(e, &r);
    wait_ends(3);
    assert_int_equal(c[2].tokens, 300);
    assert_int_equal(c[2].finish, FINISH_LENGTH);
    engine_stop(e);
    free(c);
}

static void engine_refuses_what_it_cannot_serve(void **state)
{
    (void)state;
    struct config config = config_of(8, 1);
    config.server_max_queue = 2;
    fake_reset();
    struct engine *e = start(&config);
    assert_int_equal(engine_info(e)->max_context, 8 * KV_PAGE);
    struct client *c = clients(4);
    struct err err = {""};
    for (int i = 0; i < 4; i++)
        prompt_text(&c[i], "hello");
    struct engine_request r = request_of(&c[0], 124);
    assert_int_equal(engine_submit(e, &r, NULL, &err), SUBMIT_TOO_LONG);
    assert_non_null(strstr(err.msg, "5 tokens"));
    assert_non_null(strstr(err.msg, "128 tokens"));
    r = request_of(&c[0], 5);
    r.prompt_n = 0;
    assert_int_equal(engine_submit(e, &r, NULL, &err), SUBMIT_BAD);
    r = request_of(&c[0], 5);
    r.sampling.top_p = NAN;
    assert_int_equal(engine_submit(e, &r, NULL, &err), SUBMIT_BAD);
    assert_non_null(strstr(err.msg, "top_p"));
    c[0].prompt[2] = TOY_VOCAB;
    r = request_of(&c[0], 5);
    assert_int_equal(engine_submit(e, &r, NULL, &err), SUBMIT_BAD);
    assert_non_null(strstr(err.msg, "token id 259"));
    c[0].prompt[2] = 'l';

    fake.hold = true;
    for (int i = 0; i < 3; i++) { /* one runs, two wait */
        r = request_of(&c[i], 30);
        r.ignore_eos = true;
        assert_int_equal(engine_room(e, 0, NULL, &err), SUBMIT_OK);
        submit(e, &r);
    }
    assert_int_equal(engine_room(e, 0, NULL, &err), SUBMIT_FULL);
    r = request_of(&c[3], 5);
    assert_int_equal(engine_submit(e, &r, NULL, &err), SUBMIT_FULL);
    while (engine_retry_s(e) < 3) /* it grows as long as none ends */
        usleep(10000);
    assert_true(engine_retry_s(e) <= DRAIN_MOST_S);
    fake.hold = false;
    wait_ends(3);
    assert_int_equal(engine_room(e, 0, NULL, &err), SUBMIT_OK);
    engine_stop(e);
    free(c);
}

/* Largest step of a prompt of 200 tokens, with this engine.prefill_chunk. */
static int32_t most_tokens_of_a_prompt(int64_t asked)
{
    struct config config = config_of(64, 4);
    struct client *c = clients(1);
    fake_reset();
    config.engine_prefill_chunk = asked;
    struct engine *e = start(&config);
    for (c[0].prompt_n = 0; c[0].prompt_n < 200; c[0].prompt_n++)
        c[0].prompt[c[0].prompt_n] = 'a' + c[0].prompt_n % 26;
    struct engine_request r = request_of(&c[0], 1);
    submit(e, &r);
    wait_ends(1);
    engine_stop(e);
    free(c);
    return fake.most_tokens;
}

static void engine_reads_prompts_in_chunks_of_the_backends_size_unless_told(void **state)
{
    (void)state;
    assert_int_equal(most_tokens_of_a_prompt(0), 72); /* fake.h */
    assert_int_equal(most_tokens_of_a_prompt(40), 40);
    assert_int_equal(most_tokens_of_a_prompt(3), 16); /* the least */
}

static void engine_decodes_as_many_together_as_the_backend_is_used_to_unless_told(void **state)
{
    (void)state;
    struct backend_ops gpu = {.usual_batch = 256}, any = {.name = "any"};
    assert_int_equal(backend_batch(&backend_cpu, 0), 64);
    assert_int_equal(backend_batch(&gpu, 0), 256);
    assert_int_equal(backend_batch(&gpu, 7), 7);
    assert_int_equal(backend_batch(&any, 0), 64);
    struct engine *e = start_with(400, 0);
    assert_int_equal(engine_info(e)->max_batch, 64);
    engine_stop(e);
}

/* Those beyond what running sequences can use are prefix cache. A page has 4 KiB here. */
static void engine_has_as_many_pages_as_were_asked_for(void **state)
{
    (void)state;
    fake_reset();
    static const int32_t pages[] = {5000, 0, 0}, mib[] = {0, 2, 0}, are[] = {5000, 512, 128};
    for (int i = 0; i < 3; i++) {
        struct config config = config_of(pages[i], 2); /* two sequences of 64 pages at most */
        config.engine_kv_mib = mib[i];
        struct engine *e = start(&config);
        assert_true(metric(e, "\nwhet_kv_pages ") == are[i]);
        engine_stop(e);
    }
}

/* Whether 512 tokens came in pieces of 20 ms. */
static bool long_prompt_comes_in_pieces(void)
{
    fake_reset();
    struct config config = config_of(64, 4);
    config.engine_prefill_chunk = 512;
    config.engine_itl_target_ms = 20;
    config.engine_ttft_target_ms = 0;
    struct engine *e = start(&config);
    struct client *c = clients(2);
    for (int i = 0; i < 2; i++)
        for (c[i].prompt_n = 0; c[i].prompt_n < (i ? 512 : 64); c[i].prompt_n++)
            c[i].prompt[c[i].prompt_n] = 'a' + (c[i].prompt_n * 7 + i) % 26;
    fake.token_us = 500; /* the long prompt at once would take a quarter of a second */
    struct engine_request r = request_of(&c[0], 400);
    r.ignore_eos = true;
    submit(e, &r);
    wait_tokens(&c[0], 1);
    fake.most_tokens = 0;
    r = request_of(&c[1], 1);
    submit(e, &r);
    wait_tokens(&c[1], 1);
    pthread_mutex_lock(&lock);
    int32_t meanwhile = c[0].tokens;
    pthread_mutex_unlock(&lock);
    /* 20 ms are 40 tokens, and some for the clock */
    bool pieces = meanwhile > 8 && fake.most_tokens >= 17 && fake.most_tokens <= 64;
    engine_stop(e);
    check_text(&c[1], &r);
    free(c);
    return pieces;
}

/* The engine learns from the clock what a token takes: a try in which the machine stood still says
 * nothing. */
static void engine_reads_a_long_prompt_without_stopping_the_others(void **state)
{
    (void)state;
    int tries = 0;
    while (!long_prompt_comes_in_pieces())
        assert_true(++tries < 5);
}

static void engine_json_tells_what_happened(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 4);
    struct client *c = clients(1);
    prompt_text(c, "numbers");
    struct engine_request r = request_of(c, 30);
    submit(e, &r);
    wait_ends(1);
    char *json = engine_json(e), expected[64], print[40];
    snprintf(expected, sizeof expected, "\"generated_tokens\":%d,", c->tokens);
    assert_non_null(strstr(json, expected));
    assert_non_null(strstr(json, "{\"region\":\"head\","));
    engine_fingerprint(e, print);
    assert_memory_equal(print, "fp_", 3);
    assert_true(metric(e, "\nwhet_hot_path_compiles_total ") == 0);
    /* A step is counted behind its last event, here and there one after the other. */
    const char *launches = "\nwhet_kernel_launches_total{region=\"embed\",origin=\"eager\"} ";
    bool agree = false;
    for (int i = 0; !agree && i < 60000; i++) {
        double n = metric(e, launches);
        agree = n >= c->tokens && n == (double)engine_steps(e);
        usleep(agree ? 0 : 1000);
    }
    assert_true(agree);
    free(json);
    engine_stop(e);
    free(c);
}

int main(void)
{
    log_set_level(LOG_ERROR); /* of which some are wanted */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engine_answers_as_the_model_alone_would),
        cmocka_unit_test(engine_gives_each_of_two_hundred_its_own_text),
        cmocka_unit_test(engine_reports_tokens_found_in_the_cache),
        cmocka_unit_test(engine_scores_a_prompt),
        cmocka_unit_test(engine_stops_at_strings_and_ids),
        cmocka_unit_test(engine_refuses_what_it_cannot_serve),
        cmocka_unit_test(engine_reads_prompts_in_chunks_of_the_backends_size_unless_told),
        cmocka_unit_test(engine_decodes_as_many_together_as_the_backend_is_used_to_unless_told),
        cmocka_unit_test(engine_has_as_many_pages_as_were_asked_for),
        cmocka_unit_test(engine_reads_a_long_prompt_without_stopping_the_others),
        cmocka_unit_test(engine_json_tells_what_happened),
    };
    int failed = cmocka_run_group_tests_name("one by one", tests, NULL, NULL);
    ops = &fake_pipelined_ops;
    return failed + cmocka_run_group_tests_name("pipelined", tests, NULL, NULL);
}
