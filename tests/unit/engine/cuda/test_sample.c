/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of engine/cuda/sample.c: what is sent to the device's sampler. */
#include "tests/unit/unit.h"

#include "engine/cuda/sample.c"

static struct sampling params;
static struct eager_sample sample[4];
static struct eager_adjust adjust[16];

static struct inflight rig(void)
{
    params = (struct sampling){SAMPLING_NEUTRAL, .top_logprobs = -1};
    return (struct inflight){.sample = sample, .adjust = adjust};
}

static void only_the_best_token_needs_no_sampler(void **state)
{
    (void)state;
    rig();
    struct sample_row row = {.params = &params, .target = -1};
    struct step s = {.rows = 1, .sample = &row};
    assert_true(sample_plain(&s));
    params.top_k = 5; /* means nothing without a temperature */
    assert_true(sample_plain(&s));
    params.frequency_penalty = 0.1f;
    assert_false(sample_plain(&s));
    params.frequency_penalty = 0;
    params.top_logprobs = 0;
    assert_false(sample_plain(&s));
    params.top_logprobs = -1;
    row.target = 3;
    assert_false(sample_plain(&s));
}

static void each_token_of_a_history_is_listed_once(void **state)
{
    (void)state;
    const int32_t history[] = {9, 4, 4, 7, 4, 4, 2, 9};
    struct list l = {adjust, 0, 16};
    rig();
    params.presence_penalty = 0.5f;
    params.frequency_penalty = 0.25f;
    struct sample_row row = {.params = &params, .history = history, .history_n = 8, .prompt_n = 4};
    add_penalties(&l, &row);
    const int32_t id[] = {2, 4, 7, 9};
    const float value[] = {1, 2, 0, 1}; /* times it was drawn */
    assert_int_equal(l.n, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(adjust[i].id, id[i]);
        assert_true(adjust[i].value == value[i]);
    }
}

static void a_list_without_room_leaves_its_row_to_the_cpu(void **state)
{
    (void)state;
    struct inflight f = rig();
    const struct logit_bias bias[3] = {{1, 1}, {2, 1}, {3, 1}};
    struct sampling other = params;
    struct sample_row rows[3] = {{.params = &params, .target = -1},
                                 {.params = &params, .target = -1},
                                 {.params = &other, .target = -1}};
    struct step s = {.rows = 3, .sample = rows};
    struct list l = {adjust, 0, 4};
    params.bias = bias;
    params.biases = 3;
    assert_false(fill(&f, &s, &l)); /* which the next step must know */
    assert_int_equal(sample[0].adjusts, 3);
    assert_int_equal(sample[1].target, ON_CPU);
    assert_int_equal(sample[2].target, -1);
    assert_int_equal(sample[2].adjusts, 0);
    assert_int_equal(l.n, 3);
    assert_int_equal(sample[2].unseen, -1);
    rows[2].unseen = 7; /* token 6 of the step is the last of its history */
    assert_true(fill(&f, &(struct step){.rows = 1, .sample = &rows[2]}, &l));
    assert_int_equal(sample[0].unseen, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_the_best_token_needs_no_sampler),
        cmocka_unit_test(each_token_of_a_history_is_listed_once),
        cmocka_unit_test(a_list_without_room_leaves_its_row_to_the_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
