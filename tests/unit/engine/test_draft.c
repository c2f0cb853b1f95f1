/* SPDX-License-Identifier: Apache-2.0 */
/* test_draft.c - a draft model beside the served one: its keys and values follow what is accepted,
 * shared, preempted and thrown away, and whatever it says, answers are those without it.
 *
 * Both models are the fake (fake.h), whose draft copy reads its own pages: as long as it is right
 * about every sequence's tokens it guesses exactly what the served one draws, so one guess that is
 * wrong means that its pages were not what they had to be. */
#include "tests/unit/engine/engine_world.h"

#include "engine/draft.h"

#define PROPOSED "\nwhet_speculation_draft_proposed_tokens_total "
#define ACCEPTED "\nwhet_speculation_draft_accepted_tokens_total "
#define STEPS "\nwhet_speculation_draft_steps_total "

/* What the draft copy does wrong: of its tokens, one in so many is another; from this step on all
 * steps fail. */
static _Atomic uint32_t wrong_every, fail_from;
static _Atomic uint32_t draft_steps, draft_draws, draft_tokens;
/* Of these steps and their tokens, those that warmed it before the engine was ready. */
static uint32_t warm_steps, warm_tokens;
/* And the served one: of the tokens that follow a guess, one in so many is the guess that stands
 * there, right or not. */
static _Atomic uint32_t believes_every, draws_behind;

static int draft_step(struct backend *b, const struct step *s, const struct overrides *o,
                      struct err *e)
{
    draft_steps++;
    draft_tokens += (uint32_t)s->m;
    if (fail_from > 0 && draft_steps >= fail_from)
        return err_set(e, "the draft model fails from here on");
    static struct sampling likeliest[DRAFT_WIDTH];
    bool wrong[DRAFT_WIDTH];
    for (int32_t r = 0; r < s->rows; r++) {
        wrong[r] = wrong_every > 0 && draft_draws++ % wrong_every == 0;
        if (wrong[r]) { /* the likeliest token, which is wrong for those that are sampled */
            likeliest[r] = *s->sample[r].params;
            likeliest[r].temperature = 0;
            s->sample[r].params = &likeliest[r];
        }
    }
    if (fake_step(b, s, o, e))
        return -1;
    for (int32_t r = 0; r < s->rows; r++)
        if (wrong[r] && s->sample[r].params->seed == 0) /* greedy ones */
            s->sample[r].out.token = 'a' + (s->sample[r].out.token + 1) % 6;
    return 0;
}
static const struct backend_ops draft_ops = {.name = "draft",
                                             .open = fake_open,
                                             .close = fake_close,
                                             .machine = fake_machine,
                                             .eager = fake_eager,
                                             .set_dispatch = fake_set_dispatch,
                                             .step = draft_step};

static int believing_step(struct backend *b, const struct step *s, const struct overrides *o,
                          struct err *e)
{
    if (fake_step(b, s, o, e))
        return -1;
    for (int32_t r = 0; r + 1 < s->rows; r++)
        if (fake_span_of(s, s->row[r]) == fake_span_of(s, s->row[r + 1]) &&
            draws_behind++ % believes_every == 0)
            s->sample[r].out.token = s->tokens[s->row[r] + 1];
    return 0;
}

static const struct backend_ops believing_ops = {.name = "fake",
                                                 .usual_chunk = 72,
                                                 .open = fake_open,
                                                 .close = fake_close,
                                                 .machine = fake_machine,
                                                 .eager = fake_eager,
                                                 .set_dispatch = fake_set_dispatch,
                                                 .step = believing_step};

static struct engine *start_draft(int pages, int batch, int tokens, uint32_t wrong)
{
    fake_reset();
    wrong_every = wrong;
    fail_from = draft_steps = draft_draws = draft_tokens = 0;
    struct config c = config_of(pages, batch);
    c.engine_draft_tokens = tokens;
    struct engine *e = start_beside(&c, &draft_ops);
    warm_steps = draft_steps;
    warm_tokens = draft_tokens;
    return e;
}

static void an_answer_of_a_perfect_draft_takes_few_steps(void **state)
{
    (void)state;
    struct engine *e = start_draft(64, 4, 4, 0);
    struct client *c = clients(1);
    prompt_text(c, "Say it, and let somebody say it before you.");
    struct engine_request r = request_of(c, 60);
    r.ignore_eos = r.speculates = true;
    submit(e, &r);
    wait_ends(1);
    int32_t ids[LONG];
    char text[2 * LONG];
    fake_text(c->prompt, c->prompt_n, 60, &r.sampling, text, ids);
    int32_t same = 0;
    while (same < 60 && ids[same] == c->ids[same] && ids[same] != TOY_END)
        same++;
    assert_true(same == 60 || ids[same] == TOY_END); /* fake_text() ends there */
    assert_int_equal(c->tokens, 60);
    /* Two steps read the prompt and make one token, then five a step. */
    assert_int_equal(fake.steps - draft_steps, 2 + 12);
    assert_true(metric(e, PROPOSED) == 47 && metric(e, ACCEPTED) == 47);
    assert_true(metric(e, STEPS) == 47);
    stop_idle(e);
    free(c);
}

/* It runs before the first request does, which is counted as nobody's guesses. */
static void the_draft_is_warm_when_the_engine_is_ready(void **state)
{
    (void)state;
    struct engine *e = start_draft(64, 4, 4, 0);
    assert_true(draft_steps >= 4 && draft_tokens > 2 * DRAFT_READ);
    assert_true(metric(e, STEPS) == 0 && metric(e, PROPOSED) == 0);
    engine_stop(e);
    fake_reset();
    draft_steps = 0;
    fail_from = 1; /* and where it cannot, the engine starts all the same */
    struct config c = config_of(64, 4);
    e = start_beside(&c, &draft_ops);
    assert_int_equal(engine_state(e, NULL, NULL, 0), ENGINE_READY);
    assert_int_equal(draft_steps, 1);
    assert_int_equal(e->draft_failures, 0);
    fail_from = 0;
    engine_stop(e);
}

/* Shared beginnings, few pages, sampled and greedy, some that do not speculate. */
static void the_drafts_pages_are_those_of_the_tokens(void **state)
{
    (void)state;
    enum { N = 120 };
    for (int round = 0; round < 4; round++) {
        struct engine *e =
            start_draft(round == 1 ? 14 : 200, round == 2 ? 3 : 24, 1 + round * 3, 0);
        struct client *c = clients(N);
        struct engine_request *r = xcalloc(N, sizeof *r);
        for (int i = 0; i < N; i++) {
            crowd_request(&c[i], &r[i], i);
            r[i].speculates = i % 5 > 0;
            r[i].client = (uint64_t)(i % 3);
            submit(e, &r[i]);
        }
        check_crowd(c, r, N);
        assert_true(metric(e, PROPOSED) > 100);
        assert_true(metric(e, PROPOSED) == metric(e, ACCEPTED));
        if (round == 1)
            assert_true(atomic_load(&e->stats.preemptions) > 0);
        assert_true(atomic_load(&e->stats.cached_tokens) > 0);
        assert_int_equal(e->draft_failures, 0);
        stop_idle(e);
        free(c);
        free(r);
    }
}

/* A prompt that was answered before is in the cache of both, and need not be read by the draft
 * model again: what it reads is the difference. */
static void a_prompt_in_the_cache_is_not_read_again(void **state)
{
    (void)state;
    uint32_t read[2];
    struct engine *e = start_draft(200, 4, 2, 0);
    struct client *c = clients(2);
    for (int i = 0; i < 2; i++) {
        char text[400];
        memset(text, 'x', sizeof text);
        text[320] = 0;
        prompt_text(&c[i], text);
        struct engine_request r = request_of(&c[i], 6);
        r.ignore_eos = r.speculates = true;
        submit(e, &r);
        wait_ends(i + 1);
        read[i] = draft_tokens - warm_tokens;
    }
    assert_int_equal(c[1].cached_tokens, 304);
    assert_in_range(read[0], 320, 340);
    assert_in_range(read[1] - read[0], 2, 20); /* the last page was sealed meanwhile */
    assert_true(metric(e, PROPOSED) == metric(e, ACCEPTED));
    engine_stop(e);
    free(c);
}

static void a_wrong_draft_changes_no_answer(void **state)
{
    (void)state;
    enum { N = 90 };
    static const uint32_t wrong[] = {1, 2, 5};
    for (int round = 0; round < 3; round++) {
        struct engine *e = start_draft(round == 1 ? 14 : 200, 16, 5, wrong[round]);
        struct client *c = clients(N);
        struct engine_request *r = xcalloc(N, sizeof *r);
        if (round == 2)
            fake.fail_every = 41; /* of either model */
        for (int i = 0; i < N; i++) {
            crowd_request(&c[i], &r[i], i);
            r[i].speculates = true;
            submit(e, &r[i]);
        }
        check_crowd(c, r, N);
        /* How many are right depends on who is submitted when; a sampled token may be the likeliest
         * one all the same. */
        double proposed = metric(e, PROPOSED), accepted = metric(e, ACCEPTED);
        assert_true(accepted > 0 && accepted < proposed);
        stop_idle(e);
        free(c);
        free(r);
    }
}

/* Stop strings, cancels and several answers of one prompt. */
static void answers_end_among_the_drafts_guesses(void **state)
{
    (void)state;
    enum { N = 60 };
    struct engine *e = start_draft(100, 8, 7, 3);
    struct client *c = clients(N);
    const char *stop[] = {"ab", "ca"};
    for (int i = 0; i < N; i++) {
        prompt_text(&c[i], i % 3 ? "How does it end?" : "Where?");
        struct engine_request r = request_of(&c[i], 300);
        r.sampling.temperature = 1;
        r.sampling.seed = (uint64_t)(i + 1);
        r.sampling.top_logprobs = 3;
        r.stop = stop;
        r.stops = i % 2 ? 2 : 0;
        r.ignore_eos = i % 4 == 0;
        r.speculates = true;
        submit(e, &r);
        if (i % 4 == 0)
            engine_cancel(e, c[i].id);
    }
    wait_ends(N);
    for (int i = 0; i < N; i++) {
        struct engine_request r = request_of(&c[i], 300);
        static char text[2 * LONG];
        static int32_t ids[LONG];
        r.sampling.temperature = 1;
        r.sampling.seed = (uint64_t)(i + 1);
        int32_t n = fake_text(c[i].prompt, c[i].prompt_n, 300, &r.sampling, text, ids);
        int32_t common = n < c[i].tokens ? n : c[i].tokens;
        assert_false(c[i].order_wrong);
        assert_memory_equal(c[i].ids, ids, (size_t)common * sizeof *ids);
        assert_true(c[i].finish == FINISH_CANCELLED || c[i].finish == FINISH_STOP ||
                    c[i].tokens == 300);
        assert_true(c[i].finish != FINISH_STOP || !*c[i].stop_string ||
                    !strstr(c[i].text, c[i].stop_string));
    }
    stop_idle(e);
    free(c);
}

static void a_draft_that_fails_is_given_up_and_nobody_notices(void **state)
{
    (void)state;
    struct engine *e = start_draft(64, 4, 3, 0);
    fail_from = warm_steps + 8;
    struct client *c = clients(1);
    prompt_text(c, "It will break.");
    struct engine_request r = request_of(c, 50);
    r.speculates = true;
    submit(e, &r);
    wait_ends(1);
    check_text(c, &r);
    assert_int_equal(draft_steps, warm_steps + 10); /* three failures in a row */
    assert_true(metric(e, "\nwhet_failed_steps_total ") == 0);
    stop_idle(e);
    free(c);
}

/* ---- distributions ------------------------------------------------------------------------- */

enum {
    KEPT = 5,
    DRAWN = 3,
    CASES = KEPT * KEPT * KEPT,
    SAMPLES = SANITIZED ? 1500 : 6000 /* in twenties */
};

/* The KEPT likeliest tokens after a text, and how likely each is among them, worked out here. */
static void after(const int32_t *tokens, int32_t n, int32_t id[KEPT], double p[KEPT])
{
    float logits[TOY_VOCAB];
    uint64_t h = 1;
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        h = fake_hash(h, tokens[i]);
    fake_logits(h, logits);
    for (int k = 0; k < KEPT; k++) {
        int32_t best = 0;
        for (int32_t i = 1; i < TOY_VOCAB; i++)
            best = logits[i] > logits[best] ? i : best;
        id[k] = best;
        p[k] = exp((double)logits[best]);
        sum += p[k];
        logits[best] = -INFINITY;
    }
    for (int k = 0; k < KEPT; k++)
        p[k] /= sum;
}

/* The number of the case that the tokens drawn after `tokens` [n] are; with `p`, its probability.
 */
static int case_of(int32_t *tokens, int32_t n, const int32_t *drawn, double *p)
{
    int number = 0;
    *p = 1;
    for (int i = 0; i < DRAWN; i++) {
        int32_t id[KEPT];
        double each[KEPT];
        int k = 0;
        after(tokens, n + i, id, each);
        while (k < KEPT && id[k] != drawn[i])
            k++;
        assert_true(k < KEPT);
        tokens[n + i] = drawn[i];
        number = number * KEPT + k;
        *p *= each[k];
    }
    return number;
}

static void fill(int32_t *tokens, int32_t n, int depth, int number, double so_far, double *expected)
{
    int32_t id[KEPT];
    double p[KEPT];
    if (depth == DRAWN) {
        expected[number] = so_far;
        return;
    }
    after(tokens, n + depth, id, p);
    for (int k = 0; k < KEPT; k++) {
        tokens[n + depth] = id[k];
        fill(tokens, n, depth + 1, number * KEPT + k, so_far * p[k], expected);
    }
}

/* Pearson's chi-square of what was drawn against the model's own probabilities, in deviations from
 * its mean: (x - df) / sqrt(2 df). Cases that are expected fewer than five times are one. */
static double deviations(const int *seen, const double *expected)
{
    double x = 0, rare_seen = 0, rare = 0;
    int df = -1;
    for (int i = 0; i < CASES; i++) {
        double e = expected[i] * SAMPLES;
        if (e < 5) {
            rare += e;
            rare_seen += seen[i];
            continue;
        }
        x += (seen[i] - e) * (seen[i] - e) / e;
        df++;
    }
    if (rare >= 5) {
        x += (rare_seen - rare) * (rare_seen - rare) / rare;
        df++;
    }
    return (x - df) / sqrt(2.0 * df);
}

/* Draws SAMPLES answers of which the second and third token are guessed by a draft model that is
 * wrong every third time, and says how far they are from what the model says. */
static double drawn_distribution(void)
{
    enum { AT_ONCE = 20 };
    struct engine *e = start_draft(200, AT_ONCE, 2, 3);
    struct client *c = clients(SAMPLES);
    struct engine_request together[AT_ONCE]; /* nobody guesses while prompts are read */
    struct err err = {""};
    static double expected[CASES];
    static int seen[CASES];
    int32_t tokens[64];
    memset(seen, 0, sizeof seen);
    for (int i = 0; i < SAMPLES; i++) {
        prompt_text(&c[i], "?");
        struct engine_request r = request_of(&c[i], DRAWN + 1);
        r.sampling.temperature = 1;
        r.sampling.top_k = KEPT;
        r.sampling.seed = (uint64_t)(1000 + i);
        r.ignore_eos = r.speculates = true;
        together[i % AT_ONCE] = r;
        if (i % AT_ONCE < AT_ONCE - 1)
            continue;
        assert_int_equal(engine_submit_all(e, together, AT_ONCE, NULL, &err), SUBMIT_OK);
        wait_ends(i + 1);
    }
    memcpy(tokens, c[0].prompt, (size_t)c[0].prompt_n * sizeof *tokens);
    fill(tokens, c[0].prompt_n, 0, 0, 1, expected);
    for (int i = 0; i < SAMPLES; i++) {
        double p;
        assert_int_equal(c[i].tokens, DRAWN + 1);
        seen[case_of(tokens, c[0].prompt_n, c[i].ids, &p)]++;
    }
    double proposed = metric(e, PROPOSED), accepted = metric(e, ACCEPTED);
    assert_true(proposed > SAMPLES && accepted > 0.3 * proposed &&
                (ops == &believing_ops || accepted < proposed));
    engine_stop(e);
    free(c);
    return deviations(seen, expected);
}

static void sampled_answers_have_the_models_distribution(void **state)
{
    (void)state;
    if (THREADS_WATCHED) /* as many as these are for the numbers' sake, not the threads' */
        skip();
    double d = drawn_distribution();
    if (fabs(d) > 4) /* once in thousands of seeds; these are fixed */
        fail_msg("%.1f deviations", d);
}

/* The same test finds a rule that accepts guesses that were not drawn. */
static void the_test_of_distributions_sees_a_bias(void **state)
{
    (void)state;
    if (THREADS_WATCHED)
        skip();
    const struct backend_ops *before = ops;
    ops = &believing_ops;
    believes_every = 1; /* all: how many guesses are made depends on who is submitted when */
    double d = drawn_distribution();
    ops = before;
    if (d < 8)
        fail_msg("%.1f deviations", d);
}

/* ---- vocabularies -------------------------------------------------------------------------- */

static struct tokenizer *words(int32_t n, int other, int control)
{
    static char name[300][8];
    const char *text[300];
    int32_t length[300];
    uint8_t kind[300];
    for (int i = 0; i < n; i++) {
        snprintf(name[i], sizeof name[i], "%c%d", i == other ? 'z' : 'w', i);
        text[i] = name[i];
        length[i] = (int32_t)strlen(name[i]);
        kind[i] = i == control ? TOKEN_CONTROL : TOKEN_NORMAL;
    }
    struct vocab_source src = {.tokens = n,
                               .text = text,
                               .length = length,
                               .kind = kind,
                               .pre = "gpt-2",
                               .bos = -1,
                               .eos = -1};
    struct err err = {""};
    struct tokenizer *t = tokenizer_build(&src, &err);
    assert_non_null(t);
    return t;
}

static void another_vocabulary_is_refused_by_its_first_difference(void **state)
{
    (void)state;
    static const struct {
        int32_t n, other, control;
        const char *says;
    } is[] = {{200, -1, -1, NULL},
              {200, 77, -1, "token 77 is \"w77\" to the served model and \"z77\""},
              {200, -1, 5, "token 5 (\"w5\") is special to the draft model alone"},
              {150, -1, -1, "the served model has 200 tokens and the draft model 150"}};
    struct model served = {.tokenizer = words(200, -1, -1)};
    for (size_t i = 0; i < sizeof is / sizeof *is; i++) {
        struct model small = {.tokenizer = words(is[i].n, is[i].other, is[i].control)};
        struct err err = {""};
        assert_int_equal(draft_same_vocabulary(&served, &small, &err), is[i].says ? -1 : 0);
        if (is[i].says && !strstr(err.msg, is[i].says))
            fail_msg("%s", err.msg);
        tokenizer_free(small.tokenizer);
    }
    tokenizer_free(served.tokenizer);
}

static void options_are_read(void **state)
{
    (void)state;
    const char *path;
    struct err err = {""};
    assert_int_equal(speculate_parse("off", &path, &err), 0);
    assert_null(path);
    assert_int_equal(speculate_parse("ngram", &path, &err), 0);
    assert_null(path);
    assert_int_equal(speculate_parse("draft:/a/b.gguf", &path, &err), 0);
    assert_string_equal(path, "/a/b.gguf");
    assert_int_equal(speculate_parse("draft:", &path, &err), -1);
    assert_int_equal(speculate_parse("lookahead", &path, &err), -1);
    assert_non_null(strstr(err.msg, "want off, ngram or draft:PATH"));
}

int main(void)
{
    const struct CMUnitTest alone[] = {
        cmocka_unit_test(another_vocabulary_is_refused_by_its_first_difference),
        cmocka_unit_test(options_are_read),
        cmocka_unit_test(the_test_of_distributions_sees_a_bias),
    };
    const struct CMUnitTest engine[] = {
        cmocka_unit_test(the_draft_is_warm_when_the_engine_is_ready),
        cmocka_unit_test(an_answer_of_a_perfect_draft_takes_few_steps),
        cmocka_unit_test(the_drafts_pages_are_those_of_the_tokens),
        cmocka_unit_test(a_prompt_in_the_cache_is_not_read_again),
        cmocka_unit_test(a_wrong_draft_changes_no_answer),
        cmocka_unit_test(answers_end_among_the_drafts_guesses),
        cmocka_unit_test(a_draft_that_fails_is_given_up_and_nobody_notices),
        cmocka_unit_test(sampled_answers_have_the_models_distribution),
    };
    log_set_level(LOG_ERROR);
    int failed = cmocka_run_group_tests(alone, NULL, NULL);
    failed += cmocka_run_group_tests(engine, NULL, NULL);
    ops = &fake_pipelined_ops;
    return failed + cmocka_run_group_tests_name("with steps started ahead", engine, NULL, NULL);
}
