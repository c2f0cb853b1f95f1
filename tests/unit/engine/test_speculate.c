/* SPDX-License-Identifier: Apache-2.0 */
/* test_speculate.c - guesses change nothing but the number of steps, and never cost more than they
 * may. The engine's tests run with steps one by one and with steps started ahead. */
#include "tests/unit/engine/engine_world.h"

#include "engine/scheduler.h"

#define ACCEPTED "\nwhet_speculation_accepted_tokens_total "

/* ---- the engine ---------------------------------------------------------------------------- */

/* What the answer will be, all of it or with every `wrong`-th token another one. */
static void predict(struct client *c, struct engine_request *r, int32_t *predicted, int wrong)
{
    static char text[2 * LONG];
    (void)c;
    r->predicted_n =
        fake_text(r->prompt, r->prompt_n, r->max_tokens, &r->sampling, text, predicted);
    r->predicted = predicted;
    r->speculates = true;
    for (int32_t i = 0; wrong > 0 && i < r->predicted_n; i++)
        if (i % wrong == wrong - 1)
            predicted[i] = (predicted[i] + 1) % 256;
}

static void an_answer_that_was_predicted_takes_few_steps(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 4);
    struct client *c = clients(2);
    int32_t predicted[LONG];
    for (int i = 0; i < 2; i++) {
        prompt_text(&c[i], "Say it as I think you will.");
        struct engine_request r = request_of(&c[i], 60);
        r.ignore_eos = true;
        if (i == 1)
            predict(&c[i], &r, predicted, 0);
        uint64_t before = fake.steps;
        submit(e, &r);
        wait_ends(i + 1);
        assert_int_equal(c[i].tokens, c[0].tokens);
        assert_memory_equal(c[i].ids, c[0].ids, (size_t)c[0].tokens * sizeof *c->ids);
        assert_string_equal(c[i].text, c[0].text);
        /* How often it pays to guess depends on what steps are found to take, but for the first
         * time, when no wide one was seen: then there are several guesses. */
        uint64_t steps = fake.steps - before, accepted = (uint64_t)metric(e, ACCEPTED);
        assert_true(i == 0 ? accepted == 0 : accepted >= 4);
        assert_true(steps + accepted <= (uint64_t)c[0].tokens + 3);
    }
    assert_true(metric(e, "\nwhet_speculation_proposed_tokens_total ") >= metric(e, ACCEPTED));
    assert_true(metric(e, "\nwhet_inter_token_latency_seconds_count ") == 2 * (c[0].tokens - 1));
    stop_idle(e);
    free(c);
}

/* Greedy and sampled, with penalties, shared beginnings, few pages and failing steps; predictions
 * right, half right and of another answer. */
static void a_crowd_gets_the_texts_it_would_have_got(void **state)
{
    (void)state;
    enum { N = SANITIZED ? 40 : 120 };
    for (int round = 0; round < 3; round++) {
        struct engine *e = start_with(round == 1 ? 14 : 200, round == 2 ? 3 : 24);
        struct client *c = clients(N);
        struct engine_request *r = xcalloc(N, sizeof *r);
        int32_t(*predicted)[LONG] = xcalloc(N, sizeof *predicted);
        if (round == 1)
            fake.fail_every = 37;
        for (int i = 0; i < N; i++) {
            crowd_request(&c[i], &r[i], i);
            r[i].speculates = i % 5 > 0;
            if (i % 5 > 1)
                predict(&c[i], &r[i], predicted[i], i % 5 == 2 ? 0 : i % 5 == 3 ? 5 : 2);
            r[i].min_tokens = i % 7 == 0 && r[i].max_tokens > 3 ? 3 : 0;
            if (r[i].min_tokens > 0)
                r[i].speculates = true;
        }
        for (int i = 0; i < N; i++)
            submit(e, &r[i]);
        wait_ends(N);
        for (int i = 0; i < N; i++)
            if (r[i].min_tokens == 0)
                check_text(&c[i], &r[i]);
        assert_true(metric(e, "\nwhet_speculation_accepted_tokens_total ") > 0);
        stop_idle(e);
        free(c);
        free(r);
        free(predicted);
    }
}

/* A stop token or stop string among the guesses ends the answer there, and not later. */
static void an_answer_ends_among_its_guesses(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 4);
    struct client *c = clients(80);
    int32_t predicted[LONG];
    int ended = 0, among = 0;
    for (int i = 0; i < 40; i++) {
        char text[64];
        snprintf(text, sizeof text, "Where does number %d end?", i);
        for (int with = 0; with < 2; with++) {
            struct client *mine = &c[2 * i + with];
            const char *stop[] = {"ab"};
            prompt_text(mine, text);
            struct engine_request r = request_of(mine, 90);
            if (with)
                predict(mine, &r, predicted, 0);
            r.stop = stop;
            r.stops = i % 2;
            submit(e, &r);
            wait_ends(++ended);
        }
        const struct client *plain = &c[2 * i], *guessed = &c[2 * i + 1];
        assert_string_equal(guessed->text, plain->text);
        assert_int_equal(guessed->tokens, plain->tokens);
        assert_int_equal(guessed->finish, plain->finish);
        assert_string_equal(guessed->stop_string, plain->stop_string);
        among += plain->finish == FINISH_STOP;
    }
    assert_true(among > 10);
    stop_idle(e);
    free(c);
}

static void who_does_not_ask_gets_no_guesses(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 4);
    struct client *c = clients(1);
    prompt_text(c, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    struct engine_request r = request_of(c, 50);
    submit(e, &r);
    wait_ends(1);
    check_text(c, &r);
    assert_true(metric(e, "\nwhet_speculation_proposed_tokens_total ") == 0);
    engine_stop(e);
    free(c);
}

/* Bits are promised for no width on this backend, so none is made wider. */
static void no_guesses_where_bits_must_be_equal_and_are_not_promised(void **state)
{
    (void)state;
    fake_reset();
    struct config config = config_of(64, 4);
    config.specializer_numerics = (char *)"bit_equal";
    struct engine *e = start(&config);
    struct client *c = clients(1);
    int32_t predicted[LONG];
    prompt_text(c, "To the last bit.");
    struct engine_request r = request_of(c, 50);
    predict(c, &r, predicted, 0);
    submit(e, &r);
    wait_ends(1);
    check_text(c, &r);
    assert_true(metric(e, "\nwhet_speculation_proposed_tokens_total ") == 0);
    engine_stop(e);
    free(c);
}

/* ---- the policy, on times that are made up --------------------------------------------------- */

struct bet {
    struct kvcache *kv;
    struct scheduler *scheduler;
    struct speculator *s;
    struct sequence *seq;
    struct schedule plan;
    struct schedule_item item[4];
    double ns, plain_ns; /* all steps; what they would have taken without guesses */
    int64_t guesses;
    /* with a draft model: */
    struct draft *draft;
    double draft_cost; /* of a step of one token, in such steps of the served model */
    int right_of_ten;  /* guesses */
    int64_t drafted;
};

static void bet_open(struct bet *b, int32_t same_bits)
{
    static const struct scheduler_limits limits = {
        .max_batch = 4, .prefill_chunk = 32, .max_rows = 40, .prefix_cache = PREFIX_OFF};
    *b = (struct bet){.kv = kvcache_open(4000), .s = speculate_open(same_bits)};
    b->scheduler = scheduler_open(b->kv, &limits);
    b->plan.item = b->item;
    const int32_t prompt[] = {1, 2, 3};
    struct engine_request r = {
        .prompt = prompt, .prompt_n = 3, .max_tokens = 50000, .speculates = true};
    b->seq = sequence_new(&r, &(struct sequence_model){0});
    b->seq->id = 1;
    scheduler_add(b->scheduler, b->seq);
}

/* A draft model of which so many of ten guesses are right, and a step costs so much. */
static void bet_draft(struct bet *b, double cost, int right_of_ten)
{
    struct model *served = toy_model(), *small = toy_model();
    struct draft_parts parts = {
        .ops = &fake_ops, .model = small, .served = served, .options = {.kv_pages = 4000}};
    small->shape.max_context = 4000 * KV_PAGE;
    struct err err = {""};
    fake_reset();
    b->draft = draft_open(&parts, &err);
    assert_non_null(b->draft);
    model_close(served);
    draft_use_pages(b->draft, b->kv);
    b->draft_cost = cost;
    b->right_of_ten = right_of_ten;
    speculate_use_draft(b->s, b->draft, 0.2, 0);
}

static void bet_close(struct bet *b)
{
    scheduler_remove(b->scheduler, b->seq);
    sequence_free(b->seq);
    speculate_close(b->s);
    draft_close(b->draft);
    scheduler_close(b->scheduler);
    kvcache_close(b->kv);
}

/* The draft model's steps before a step: what it really guesses is exchanged for what is right, or
 * surely wrong, and what it really took for its price. */
static void bet_drafts(struct bet *b, int32_t (*text)(int32_t i))
{
    struct draft_steps done;
    struct err err = {""};
    struct sequence *seq = b->seq;
    int32_t jobs, output = seq->n - seq->prompt_n;
    const struct drafting *job = speculate_jobs(b->s, &jobs);
    if (jobs == 0)
        return;
    assert_int_equal(jobs, 1);
    assert_int_equal(draft_run(b->draft, job, jobs, &done, &err), 0);
    for (int32_t i = 0; job->guesses > 0 && i < seq->guesses; i++) {
        bool right = (output + i) * 7 % 10 < b->right_of_ten;
        seq->tokens[seq->n + i] = right ? text(output + i) : 250;
        b->drafted++;
    }
    for (int32_t i = 0; i < done.n; i++) {
        done.ns[i] = (int64_t)(1e6 * b->draft_cost * (1 + 0.02 * (done.width[i] - 1)));
        b->ns += (double)done.ns[i];
    }
    speculate_drafted(b->s, &done);
}

/* One step, in which token i of the answer is text(i) and a step of m tokens takes cost * (m - 1)
 * longer than one of a single token, which is 1 ms. */
static void bet_step(struct bet *b, int32_t (*text)(int32_t i), double cost)
{
    struct sequence *admitted[4], *seq = b->seq;
    assert_true(sequence_length(seq) <
                sequence_longest(seq)); /* behind its end nothing is guessed */
    if (speculate_plan(b->s, b->scheduler, false))
        bet_drafts(b, text);
    scheduler_plan(b->scheduler, &b->plan, admitted);
    struct schedule_item *item = &b->plan.item[0];
    scheduler_started(b->scheduler, &b->plan);
    int32_t output = seq->n - seq->prompt_n;
    item->right = 0;
    while (item->right < item->guesses &&
           seq->tokens[seq->n + item->right] == text(output + item->right))
        item->right++;
    if (b->draft && item->guesses > 0)
        draft_checked(b->draft, seq, item->right);
    scheduler_done(b->scheduler, &b->plan);
    if (item->guesses > 0)
        speculate_score(b->s, seq, item->guesses, item->right);
    bool decode = item->first + 1 > seq->prompt_n;
    double ns = 1e6 * (1 + cost * (b->plan.tokens - 1));
    for (int32_t i = 0; i <= item->right; i++) {
        sequence_room(seq, 1);
        seq->tokens[seq->n++] = text(output + i);
    }
    if (!decode)
        return;
    speculate_time(b->s, &b->plan, item->right, (int64_t)ns);
    b->ns += ns;
    b->plain_ns += 1e6 * (1 + item->right);
    b->guesses += item->guesses;
}

static int32_t never_again(int32_t i) /* pairs come again, what follows them does not */
{
    return i % 3 == 2 ? 1000 + i : i % 3;
}

static int32_t never_the_same(int32_t i) /* no pair of tokens comes again soon */
{
    uint32_t h = (uint32_t)i * 2654435761u;
    h = (h ^ h >> 15) * 2246822519u;
    return (int32_t)((h ^ h >> 13) % 200);
}

static int32_t round_and_round(int32_t i)
{
    return i % 23;
}

static void what_is_never_right_costs_little(void **state)
{
    (void)state;
    const double cost[] = {0.02, 0.1, 0.35, 1};
    for (int k = 0; k < 4; k++) {
        struct bet b;
        bet_open(&b, 0);
        for (int i = 0; i < 200; i++)
            bet_step(&b, never_again, cost[k]);
        assert_true(b.guesses > 0); /* it did try */
        assert_true(b.ns < b.plain_ns / 0.97);
        for (int i = 0; i < 5000; i++)
            bet_step(&b, never_again, cost[k]);
        assert_true(b.ns < b.plain_ns * 1.022);
        bet_close(&b);
    }
}

/* The dearer a wide step, the fewer guesses; none where every one costs a step of its own. */
static void what_is_always_right_is_taken_as_far_as_it_pays(void **state)
{
    (void)state;
    const double cost[] = {0.02, 0.1, 0.5, 1.2}, faster[] = {8, 4, 1.6, 0.97};
    for (int k = 0; k < 4; k++) {
        struct bet b;
        bet_open(&b, 0);
        for (int i = 0; i < 3000; i++)
            bet_step(&b, round_and_round, cost[k]);
        assert_true(b.plain_ns / b.ns > faster[k]);
        bet_close(&b);
    }
}

static void no_step_is_wider_than_bits_stay_the_same(void **state)
{
    (void)state;
    struct bet b;
    bet_open(&b, 5);
    for (int i = 0; i < 300; i++) {
        bet_step(&b, round_and_round, 0.01);
        assert_true(b.plan.tokens <= 5);
    }
    assert_true(b.guesses > 400);
    bet_close(&b);
}

/* Who wants the same bits has them, also beside somebody who does not care. */
static void a_sequence_that_wants_the_same_bits_has_guesses_where_kernels_give_them(void **state)
{
    (void)state;
    static const int32_t known[] = {0, 1, 3, 16};
    for (int k = 0; k < 4; k++) {
        struct bet b;
        bet_open(&b, 0);
        speculate_equal(b.s, known[k]);
        for (int i = 0; i < 300; i++) {
            b.seq->bit_equal = i >= 20; /* wide steps, before */
            int64_t before = b.guesses;
            bet_step(&b, round_and_round, 0.01);
            int32_t most = known[k] > 1 ? known[k] : 1;
            assert_true(i < 20 || b.guesses - before < most);
            assert_true(b.guesses == before || speculate_is_equal(b.s, b.plan.tokens) || i < 20);
        }
        assert_true(known[k] < 2 || b.guesses > 280);
        bet_close(&b);
    }
}

/* Another kernel: what was known of times says nothing any more. */
static void times_are_learned_anew(void **state)
{
    (void)state;
    struct bet b;
    bet_open(&b, 0);
    for (int i = 0; i < 200; i++)
        bet_step(&b, round_and_round, 1.2);
    b.guesses = 0;
    for (int i = 0; i < 100; i++)
        bet_step(&b, round_and_round, 0.02);
    speculate_forget(b.s);
    assert_true(speculate_step_s(b.s, 1) == 0);
    for (int i = 0; i < 300; i++)
        bet_step(&b, round_and_round, 0.02);
    assert_true(b.guesses > 1000);
    assert_true(speculate_step_s(b.s, 1) > 0);
    bet_close(&b);
}

/* Something else held up the first wide step: that says nothing of those to come. */
static void a_wide_step_that_was_held_up_is_not_the_last(void **state)
{
    (void)state;
    struct bet b;
    bet_open(&b, 0);
    for (int i = 0; i < 100 && b.guesses == 0; i++)
        bet_step(&b, round_and_round, 8);
    assert_true(b.guesses > 0);
    b.guesses = 0;
    for (int i = 0; i < 300; i++)
        bet_step(&b, round_and_round, 0.02);
    assert_true(b.guesses > 1000);
    bet_close(&b);
}

static void a_draft_that_is_never_right_costs_little(void **state)
{
    (void)state;
    const double cost[] = {0.02, 0.1, 0.3, 1};
    for (int k = 0; k < 4; k++) {
        struct bet b;
        bet_open(&b, 0);
        bet_draft(&b, cost[k], 0);
        for (int i = 0; i < 200; i++)
            bet_step(&b, never_the_same, 0.06);
        assert_true(b.drafted > 0 || cost[k] == 1); /* it did try */
        assert_true(b.ns < b.plain_ns / 0.97);
        for (int i = 0; i < 5000; i++)
            bet_step(&b, never_the_same, 0.06);
        assert_true(b.ns < b.plain_ns * 1.022);
        bet_close(&b);
    }
}

static void a_draft_is_used_as_far_as_it_pays(void **state)
{
    (void)state;
    static const struct {
        double cost;
        int right;
        double faster; /* at least */
    } is[] = {{0.05, 10, 3.5}, {0.2, 10, 2}, {0.2, 7, 1.15}, {0.5, 10, 1.2}, {1, 10, 0.97}};
    double first = 0, last = 0;
    for (int k = 0; k < 5; k++) {
        struct bet b;
        bet_open(&b, 0);
        bet_draft(&b, is[k].cost, is[k].right);
        for (int i = 0; i < 2000; i++)
            bet_step(&b, never_the_same, 0.06);
        if (b.plain_ns / b.ns < is[k].faster)
            fail_msg("case %d: %.2f", k, b.plain_ns / b.ns);
        last = (double)b.guesses;
        first = k == 0 ? last : first;
        bet_close(&b);
    }
    assert_true(last < first / 10); /* as dear as what it saves */
}

/* A long prompt that was read says nothing of steps of one token: those are known before. */
static void a_draft_whose_steps_are_known_guesses_behind_a_dear_prompt(void **state)
{
    (void)state;
    static const struct draft_steps warm = {.n = 2, .width = {1, 64}, .ns = {100000, 6000000}};
    static const struct draft_steps read = {.n = 1, .width = {64}, .ns = {6000000}};
    int64_t drafted[2];
    for (int known = 0; known < 2; known++) {
        struct bet b;
        bet_open(&b, 0);
        bet_step(&b, never_the_same, 0.06); /* the prompt */
        bet_step(&b, never_the_same, 0.06); /* and what a step takes is known */
        bet_draft(&b, 0.1, 10);
        if (known)
            speculate_draft_times(b.s, &warm);
        speculate_drafted(b.s, &read);
        for (int i = 0; i < 20; i++)
            bet_step(&b, never_the_same, 0.06);
        drafted[known] = b.drafted;
        bet_close(&b);
    }
    assert_int_equal(drafted[0], 0); /* 3 ms for each, it thinks, where a step takes 1 */
    assert_true(drafted[1] >= 20);
}

/* One that was given up because it was never right is tried again, and kept when it is. */
static void a_draft_that_was_given_up_gets_another_chance(void **state)
{
    (void)state;
    struct bet b;
    bet_open(&b, 0);
    bet_draft(&b, 0.1, 0);
    for (int i = 0; i < 3000; i++)
        bet_step(&b, never_the_same, 0.06);
    b.right_of_ten = 10;
    for (int i = 0; i < 1500; i++)
        bet_step(&b, never_the_same, 0.06);
    b.ns = b.plain_ns = 0;
    for (int i = 0; i < 500; i++)
        bet_step(&b, never_the_same, 0.06);
    assert_true(b.plain_ns > 2 * b.ns);
    bet_close(&b);
}

int main(void)
{
    const struct CMUnitTest policy[] = {
        cmocka_unit_test(a_draft_that_is_never_right_costs_little),
        cmocka_unit_test(a_draft_is_used_as_far_as_it_pays),
        cmocka_unit_test(a_draft_that_was_given_up_gets_another_chance),
        cmocka_unit_test(a_draft_whose_steps_are_known_guesses_behind_a_dear_prompt),
        cmocka_unit_test(what_is_never_right_costs_little),
        cmocka_unit_test(what_is_always_right_is_taken_as_far_as_it_pays),
        cmocka_unit_test(no_step_is_wider_than_bits_stay_the_same),
        cmocka_unit_test(a_sequence_that_wants_the_same_bits_has_guesses_where_kernels_give_them),
        cmocka_unit_test(times_are_learned_anew),
        cmocka_unit_test(a_wide_step_that_was_held_up_is_not_the_last),
    };
    const struct CMUnitTest engine[] = {
        cmocka_unit_test(an_answer_that_was_predicted_takes_few_steps),
        cmocka_unit_test(a_crowd_gets_the_texts_it_would_have_got),
        cmocka_unit_test(an_answer_ends_among_its_guesses),
        cmocka_unit_test(who_does_not_ask_gets_no_guesses),
        cmocka_unit_test(no_guesses_where_bits_must_be_equal_and_are_not_promised),
    };
    log_set_level(LOG_ERROR);
    /* The policy has one thread. */
    int failed = THREADS_WATCHED ? 0 : cmocka_run_group_tests(policy, NULL, NULL);
    failed += cmocka_run_group_tests(engine, NULL, NULL);
    ops = &fake_pipelined_ops;
    return failed + cmocka_run_group_tests_name("with steps started ahead", engine, NULL, NULL);
}
