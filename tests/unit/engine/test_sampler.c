/* SPDX-License-Identifier: Apache-2.0 */
/* test_sampler.c - the draw against published vectors, a plain reference and the distributions. */
#include "tests/unit/unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "engine/sampler.h"

static const struct sampling plain = {.temperature = 1, SAMPLING_NEUTRAL, .top_logprobs = -1};

/* Runs one row on a copy of the logits. */
static struct sampled run_row(const float *logits, int32_t vocab, struct sample_row row)
{
    float *copy = xmalloc((size_t)vocab * sizeof *copy);
    void *scratch = xmalloc((size_t)sampler_scratch_bytes(vocab));
    memcpy(copy, logits, (size_t)vocab * sizeof *copy);
    sampler_run(copy, vocab, &row, scratch);
    free(copy);
    free(scratch);
    return row.out;
}

static struct sampled draw(const float *logits, int32_t vocab, const struct sampling *s,
                           uint64_t index)
{
    return run_row(logits, vocab, (struct sample_row){.params = s, .index = index, .target = -1});
}

static float random_normal(void)
{
    double u = (rand() + 1.0) / (RAND_MAX + 2.0), v = rand() / (double)RAND_MAX;
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

/* Known answers of philox4x32-10 from the Random123 distribution (kat_vectors). */
static void philox_gives_the_published_vectors(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } v[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    uint32_t out[4], same[4];
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        philox_block(v[i].counter, v[i].key, out);
        assert_memory_equal(out, v[i].out, sizeof out);
    }
    philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x13198a2e, out);
    const uint32_t counter[4] = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0};
    philox_block(counter, v[2].key, same);
    assert_memory_equal(out, same, sizeof out);
}

static void sampler_greedy_takes_the_lowest_id_on_a_tie(void **state)
{
    (void)state;
    struct sampling s = plain;
    s.temperature = 0;
    float logits[100];
    for (int n = 1; n <= 100; n++) { /* every length around the vector width */
        for (int i = 0; i < n; i++)
            logits[i] = -1.0f - (float)(i % 3);
        logits[n - 1] = 5;
        logits[n / 2] = 5;
        assert_int_equal(draw(logits, n, &s, 0).token, n / 2);
    }
    const float zeros[3] = {-0.0f, 0.0f, -1};
    assert_int_equal(draw(zeros, 3, &s, 0).token, 0);
}

static void sampler_survives_broken_logits(void **state)
{
    (void)state;
    struct sampling s = plain;
    s.top_logprobs = 2;
    const float inf[4] = {1, INFINITY, NAN, INFINITY};
    assert_int_equal(draw(inf, 4, &s, 0).token, 1);
    const float nan[4] = {NAN, NAN, 3, NAN};
    for (uint64_t i = 0; i < 50; i++)
        assert_int_equal(draw(nan, 4, &s, i).token, 2);
    assert_true(fabsf(draw(nan, 4, &s, 0).logprob) < 1e-6f);
    const float none[3] = {-INFINITY, NAN, -INFINITY};
    assert_int_equal(draw(none, 3, &s, 0).token, -1);
    struct sample_row scored = {.params = &s, .target = 1};
    assert_true(run_row(nan, 4, scored).logprob == -INFINITY);
    s.temperature = 1e-30f; /* 1 / temperature is not a float */
    const float normal[3] = {1, 2, 0};
    assert_int_equal(draw(normal, 3, &s, 0).token, 1);
}

/* ---- log-probabilities ---- */

static double reference_logprob(const float *logits, int32_t vocab, int32_t id)
{
    double sum = 0;
    for (int32_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - logits[id]);
    return -log(sum);
}

static void sampler_logprobs_are_of_the_untempered_distribution(void **state)
{
    (void)state;
    enum { VOCAB = 5003 };
    static float logits[VOCAB];
    struct sampling s = plain;
    s.temperature = 0.7f;
    s.top_k = 40;
    s.top_logprobs = 20;
    srand(3);
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < VOCAB; i++)
            logits[i] = 4 * random_normal();
        struct sampled out = draw(logits, VOCAB, &s, (uint64_t)round);
        assert_true(fabs(out.logprob - reference_logprob(logits, VOCAB, out.token)) < 2e-5);
        assert_int_equal(out.tops, 20);
        for (int t = 0; t < 20; t++) {
            int better = 0;
            for (int i = 0; i < VOCAB; i++)
                better += logits[i] > logits[out.top_id[t]];
            assert_int_equal(better, t);
            double truth = reference_logprob(logits, VOCAB, out.top_id[t]);
            assert_true(fabs(out.top_logprob[t] - truth) < 2e-5);
        }
    }
}

static void sampler_scores_a_target_on_the_models_own_logits(void **state)
{
    (void)state;
    const float logits[4] = {1, 2, 3, 4};
    const int32_t history[] = {1, 1, 2}, banned[] = {3};
    struct sampling s = plain;
    s.repetition_penalty = 3;
    s.presence_penalty = 2;
    s.banned = banned;
    s.banneds = 1;
    struct sampled out =
        run_row(logits, 4,
                (struct sample_row){
                    .params = &s, .history = history, .history_n = 3, .prompt_n = 1, .target = 1});
    assert_int_equal(out.token, 1);
    assert_true(fabs(out.logprob - reference_logprob(logits, 4, 1)) < 1e-6);
}

/* ---- every number does something ---- */

/* Whether any of a few draws is another one than the plain one's, in its token or how likely it is.
 */
static bool draws_otherwise(const struct sampling *s)
{
    enum { VOCAB = 60, HISTORY = 12, DRAWS = 50 };
    static float logits[VOCAB];
    int32_t history[HISTORY];
    struct sampling usual = plain, other = *s;
    bool otherwise = false;
    usual.top_logprobs = other.top_logprobs = 5;
    for (int i = 0; i < VOCAB; i++)
        logits[i] = (float)(i * 7 % 23) / 8;
    for (int i = 0; i < HISTORY; i++)
        history[i] = i * 5 % VOCAB;
    for (uint64_t i = 0; i < DRAWS; i++) {
        struct sample_row row = {.params = &usual,
                                 .index = i,
                                 .history = history,
                                 .history_n = HISTORY,
                                 .prompt_n = HISTORY / 2,
                                 .target = -1};
        struct sampled a = run_row(logits, VOCAB, row);
        row.params = &other;
        struct sampled b = run_row(logits, VOCAB, row);
        otherwise |= a.token != b.token || a.logprob != b.logprob;
    }
    return otherwise;
}

static void sampler_heeds_every_number(void **state)
{
    (void)state;
    assert_false(draws_otherwise(&plain));
#define HEEDED(name, value, least, most)                                                \
    {                                                                                   \
        struct sampling low = plain, high = plain;                                      \
        low.name = (least), high.name = (most);                                         \
        if (!draws_otherwise(&low) && !draws_otherwise(&high))                          \
            fail_msg("%s changes no draw at %g and none at %g", #name, (double)(least), \
                     (double)(most));                                                   \
    }
    SAMPLING_NUMBERS(HEEDED)
#undef HEEDED
}

/* ---- bias and penalties ---- */

static void sampler_applies_bias_bans_and_penalties(void **state)
{
    (void)state;
    /* Token 0 was in the prompt only, 1 in both, 2 twice in the output, 3 and 4 nowhere. */
    const float logits[5] = {2, 2, -2, 1, 9};
    const int32_t history[] = {0, 1, 1, 2, 2}, banned[] = {4};
    const struct logit_bias bias[] = {{3, 0.5f}, {77, 100}};
    struct sampling s = plain;
    s.temperature = 0;
    s.repetition_penalty = 2;
    s.presence_penalty = 0.25f;
    s.frequency_penalty = 0.125f;
    s.bias = bias;
    s.biases = 2;
    s.banned = banned;
    s.banneds = 1;
    s.top_logprobs = 5;
    struct sampled out =
        run_row(logits, 5,
                (struct sample_row){
                    .params = &s, .history = history, .history_n = 5, .prompt_n = 2, .target = -1});
    const float after[4] = {2 / 2.0f, 2 / 2.0f - 0.25f - 0.125f, -2 * 2.0f - 0.25f - 0.25f, 1.5f};
    const int32_t order[4] = {3, 0, 1, 2};
    assert_int_equal(out.token, 3);
    assert_int_equal(out.tops, 4); /* a banned token has no probability */
    for (int i = 0; i < 4; i++) {
        assert_int_equal(out.top_id[i], order[i]);
        double truth = reference_logprob(after, 4, order[i]);
        assert_true(fabs(out.top_logprob[i] - truth) < 1e-5);
    }
}

/* Each of the three numbers alone, at values that are another one's neutral one. */
static void sampler_applies_each_penalty_by_itself(void **state)
{
    (void)state;
    const float logits[2] = {2, 1.5f};
    const int32_t history[] = {1, 0, 0};
    struct sampling s = plain;
    struct sample_row row = {
        .params = &s, .history = history, .history_n = 3, .prompt_n = 1, .target = -1};
    s.temperature = 0;
    assert_int_equal(run_row(logits, 2, row).token, 0);
    s.frequency_penalty = 1;
    assert_int_equal(run_row(logits, 2, row).token, 1);
    s.frequency_penalty = 0;
    s.presence_penalty = 1;
    assert_int_equal(run_row(logits, 2, row).token, 1);
    s.presence_penalty = 0;
    s.repetition_penalty = 2; /* of the prompt as well */
    assert_int_equal(run_row(logits, 2, row).token, 0);
    row.history_n = 2;
    row.history = history + 1;
    assert_int_equal(run_row(logits, 2, row).token, 1);
}

/* What no vocabulary has is nobody's token: nothing is written beside the logits. */
static void sampler_ignores_tokens_that_are_none(void **state)
{
    (void)state;
    enum { VOCAB = 4 };
    float logits[VOCAB + 2] = {7, 1, 3, 2, 0, 7};
    char *scratch = xmalloc((size_t)sampler_scratch_bytes(VOCAB));
    const int32_t history[] = {-1, VOCAB}, banned[] = {-1, VOCAB};
    const struct logit_bias bias[] = {{-1, 100}, {VOCAB, 100}};
    struct sampling s = plain;
    s.temperature = 0;
    s.presence_penalty = 1;
    s.bias = bias;
    s.banned = banned;
    s.biases = s.banneds = 2;
    struct sample_row row = {
        .params = &s, .history = history, .history_n = 2, .prompt_n = 0, .target = -1};
    sampler_run(logits + 1, VOCAB, &row, scratch);
    assert_int_equal(row.out.token, 1);
    assert_true(logits[0] == 7 && logits[VOCAB + 1] == 7);
    free(scratch);
}

static void sampler_scores_the_first_token_of_the_vocabulary(void **state)
{
    (void)state;
    const float logits[3] = {1, 5, 2};
    struct sample_row row = {.params = &plain, .target = 0};
    struct sampled out = run_row(logits, 3, row);
    assert_int_equal(out.token, 0);
    assert_true(fabs(out.logprob - reference_logprob(logits, 3, 0)) < 1e-6);
}

/* ---- cuts, against a plain reference ---- */

struct entry {
    double p;
    int32_t id;
};

static int by_p(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return x->p != y->p ? (x->p < y->p ? 1 : -1) : x->id - y->id;
}

/* Survivors of temperature, top-k, top-p and min-p with their probabilities, in order. */
SAMPLING_NUMBERS_ARE(6); /* penalties have tests of their own */

static int32_t reference(const float *logits, int32_t vocab, const struct sampling *s,
                         struct entry *e)
{
    double sum = 0, top = -1e30;
    for (int32_t i = 0; i < vocab; i++)
        top = logits[i] > top ? logits[i] : top;
    for (int32_t i = 0; i < vocab; i++)
        e[i] = (struct entry){exp((logits[i] - top) / s->temperature), i};
    qsort(e, (size_t)vocab, sizeof *e, by_p);
    int32_t n = s->top_k > 0 && s->top_k < vocab ? s->top_k : vocab;
    for (int32_t i = 0; i < n; i++)
        sum += e[i].p;
    if (s->top_p < 1) {
        double mass = 0;
        int32_t kept = 0;
        while (kept < n && mass < s->top_p * sum)
            mass += e[kept++].p;
        n = kept;
    }
    while (n > 1 && e[n - 1].p < s->min_p)
        n--;
    sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += e[i].p;
    for (int32_t i = 0; i < n; i++)
        e[i].p /= sum;
    return n;
}

/* The token that a uniform number picks from the survivors in order of id, or -1 too close to an
 * edge to say. */
static int32_t reference_draw(const struct entry *e, int32_t n, int32_t vocab, uint64_t seed,
                              uint64_t index)
{
    double p[1000] = {0}, at = 0;
    for (int32_t i = 0; i < n; i++)
        p[e[i].id] = e[i].p;
    uint32_t w[4];
    philox(seed, index, 0, w);
    double u = (double)(((uint64_t)w[0] << 32 | w[1]) >> 11) / 9007199254740992.0;
    for (int32_t i = 0; i < vocab; i++) {
        at += p[i];
        if (fabs(u - at) < 1e-5 && p[i] > 0)
            return -1;
        if (u < at)
            return i;
    }
    return -1;
}

static void sampler_cuts_as_the_reference_does(void **state)
{
    (void)state;
    enum { VOCAB = 700 };
    static float logits[VOCAB];
    static struct entry e[VOCAB];
    srand(17);
    int unsure = 0;
    for (int round = 0; round < 4000; round++) {
        struct sampling s = plain;
        s.seed = (uint64_t)rand();
        s.temperature = 0.2f + (float)(rand() % 100) / 50;
        s.top_k = rand() % 2 ? 1 + rand() % 60 : 0;
        s.top_p = rand() % 2 ? 0.05f + (float)(rand() % 94) / 100 : 1;
        s.min_p = rand() % 3 ? 0 : (float)(rand() % 30) / 100;
        float spread = (float)(1 + rand() % 5);
        for (int i = 0; i < VOCAB; i++)
            logits[i] = spread * random_normal();
        int32_t n = reference(logits, VOCAB, &s, e);
        int32_t truth = reference_draw(e, n, VOCAB, s.seed, 5);
        unsure += truth < 0;
        if (truth >= 0)
            assert_int_equal(draw(logits, VOCAB, &s, 5).token, truth);
    }
    assert_in_range(unsure, 0, 100);
}

/* With cuts on and off, the frequencies of many draws are those of the distribution. */
static void sampler_draws_in_proportion(void **state)
{
    (void)state;
    enum { VOCAB = 12, DRAWS = 60000 };
    float logits[VOCAB];
    struct entry e[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        logits[i] = (float)((i * 5) % VOCAB) * 0.4f;
    for (int cut = 0; cut < 4; cut++) {
        struct sampling s = plain;
        s.seed = 42;
        s.temperature = 0.9f;
        s.top_k = cut & 1 ? 7 : 0;
        s.top_p = cut & 2 ? 0.8f : 1;
        int32_t n = reference(logits, VOCAB, &s, e);
        int count[VOCAB] = {0};
        for (uint64_t i = 0; i < DRAWS; i++)
            count[draw(logits, VOCAB, &s, i).token]++;
        double chi = 0;
        int seen = 0;
        for (int32_t i = 0; i < n; i++) {
            double expected = e[i].p * DRAWS, d = count[e[i].id] - expected;
            chi += d * d / expected;
            seen += count[e[i].id];
        }
        assert_int_equal(seen, DRAWS); /* nothing that was cut is ever drawn */
        assert_true(chi < 35);         /* 11 degrees of freedom: p = 0.0002 */
    }
}

static void sampler_depends_on_seed_and_index_only(void **state)
{
    (void)state;
    enum { VOCAB = 300 };
    float logits[VOCAB];
    srand(8);
    for (int i = 0; i < VOCAB; i++)
        logits[i] = random_normal();
    struct sampling a = plain, b = plain;
    a.seed = 1;
    b.seed = 2;
    int same_seed = 0, other_seed = 0, other_index = 0;
    for (uint64_t i = 0; i < 200; i++) {
        int32_t t = draw(logits, VOCAB, &a, i).token;
        same_seed += t == draw(logits, VOCAB, &a, i).token;
        other_seed += t == draw(logits, VOCAB, &b, i).token;
        other_index += t == draw(logits, VOCAB, &a, i + 1000).token;
    }
    assert_int_equal(same_seed, 200);
    assert_in_range(other_seed, 0, 20);
    assert_in_range(other_index, 0, 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_vectors),
        cmocka_unit_test(sampler_greedy_takes_the_lowest_id_on_a_tie),
        cmocka_unit_test(sampler_survives_broken_logits),
        cmocka_unit_test(sampler_logprobs_are_of_the_untempered_distribution),
        cmocka_unit_test(sampler_scores_a_target_on_the_models_own_logits),
        cmocka_unit_test(sampler_heeds_every_number),
        cmocka_unit_test(sampler_applies_bias_bans_and_penalties),
        cmocka_unit_test(sampler_applies_each_penalty_by_itself),
        cmocka_unit_test(sampler_ignores_tokens_that_are_none),
        cmocka_unit_test(sampler_scores_the_first_token_of_the_vocabulary),
        cmocka_unit_test(sampler_cuts_as_the_reference_does),
        cmocka_unit_test(sampler_draws_in_proportion),
        cmocka_unit_test(sampler_depends_on_seed_and_index_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
