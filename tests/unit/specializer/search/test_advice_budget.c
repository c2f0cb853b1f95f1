/* SPDX-License-Identifier: Apache-2.0 */
/* Trust: what bad advice may cost is bounded whatever it says, and good advice is soon followed.
 * Speeds are made up: the cost model's predictions are the only thing that is known of points. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "specializer/candidate/hash.h"
#include "specializer/search/advice_budget.h"
#include "specializer/search/strategy.h"
#include "tests/unit/specializer/shapes.h"

enum { BATCH = 6, BATCHES = 40 };

struct world {
    struct cost cost;
    struct space *space;
    struct search search;
    struct advice_budget budget;
    int32_t *order; /* by prediction, fastest first */
    int size;
    bool backwards; /* the rest of a batch is what the model likes least */
};

static const struct machine machine = {
    .device = "test", .read_bandwidth = 40e9, .peak_flops = 100e9, .boundary_s = 2e-6};

static int open_world(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    struct facts f = {.HAS_AVX2 = 1,
                      .HAS_AVX512 = 1,
                      .HAS_VNNI = 1,
                      .REGION = REGION_MLP_OUT,
                      .M_MAX = 1,
                      SMOLLM_SHAPE};
    cost_open(&w->cost, &machine, 2);
    w->space = space_open(&f, REGION_MLP_OUT, 1, NUMERICS_TOLERANCE);
    w->size = space_size(w->space);
    space_predict(w->space, &w->cost);
    search_open(&w->search, w->space);
    w->order = calloc((size_t)w->size, sizeof *w->order);
    for (int32_t i = 0; i < w->size; i++)
        w->order[i] = i;
    space_sort(w->space, w->order, w->size);
    *state = w;
    return 0;
}

static int close_world(void **state)
{
    struct world *w = *state;
    search_close(&w->search);
    space_close(w->space);
    cost_close(&w->cost);
    free(w->order);
    free(w);
    return 0;
}

/* One batch in which `named` is offered in that order and the rest of the batch goes through the
 * prediction's order; named points turn out at `speed`, others at 1. Returns how many were taken.
 */
static int one_batch(struct world *w, const int32_t *named, int n, double speed)
{
    int taken = 0, others = 0;
    advice_budget_batch(&w->budget, &w->search, BATCH);
    for (int i = 0; i < 2 * n; i++) { /* first as near ones, then as far ones */
        int32_t id = named[i % n];
        bool may = i < n ? advice_budget_near(&w->budget, &w->search, id)
                         : advice_budget_far(&w->budget, &w->search, id);
        if (!may || w->search.trial[id] != TRIAL_NONE)
            continue;
        advice_budget_took(&w->budget, &w->search, id);
        search_learn(&w->search, id, speed);
        taken++;
    }
    for (int i = 0; i < w->size && others < BATCH - taken; i++) {
        int32_t id = w->order[w->backwards ? w->size - 1 - i : i];
        if (w->search.trial[id] != TRIAL_NONE)
            continue;
        search_learn(&w->search, id, 1);
        others++;
    }
    return taken;
}

static void absurd_advice_costs_at_most_a_twentieth_of_the_samples(void **state)
{
    struct world *w = *state;
    int32_t slowest[64];
    int wasted = 0;
    for (int i = 0; i < 64; i++)
        slowest[i] = w->order[w->size - 1 - i];
    assert_true(space_predicted(w->space, slowest[63]) >
                4 * space_predicted(w->space, w->order[0]));
    for (int i = 0; i < BATCHES; i++) {
        wasted += one_batch(w, slowest, 64, 0.1);
        assert_true(20 * wasted <= w->search.tried);
    }
    assert_true(wasted > 0); /* they are looked at all the same: the model may be wrong */
}

/* The slowest of the points that the model thinks possible. */
static int last_plausible(const struct world *w)
{
    int at = 0;
    while (space_predicted(w->space, w->order[at + 1]) < 2 * space_predicted(w->space, w->order[0]))
        at++;
    return at;
}

static void plausible_bad_advice_costs_one_sample_and_then_one_in_fifty(void **state)
{
    struct world *w = *state;
    int at = last_plausible(w), wasted = 0;
    assert_true(at > 3 + 2 * 16 && w->size - at > BATCH * 17);
    search_learn(&w->search, w->order[0], 1.1);
    w->backwards = true;
    assert_int_equal(one_batch(w, &w->order[at - 2], 3, 0.5), 1);
    for (int i = 1; i <= 16; i++)
        wasted += one_batch(w, &w->order[at - 2 - 2 * i], 2, 0.5);
    assert_int_equal(wasted, 16 / 8); /* a new chance every eight batches */
}

static void advice_that_was_right_gets_more_of_the_next_batch(void **state)
{
    struct world *w = *state;
    int32_t named[24];
    int last = 1;
    for (int i = 0; i < 24; i++)
        named[i] = w->order[30 + i];
    assert_int_equal(one_batch(w, named, 24, 2), 1);
    for (int i = 0; i < 3; i++) {
        int now = one_batch(w, named, 24, 2);
        assert_true(now >= last && now > 1);
        last = now;
    }
    assert_true(last >= 4);
}

static void who_is_right_is_believed_against_the_cost_model(void **state)
{
    struct world *w = *state;
    int32_t far = w->order[w->size - 1], near = w->order[10];
    advice_budget_batch(&w->budget, &w->search, BATCH);
    assert_false(advice_budget_near(&w->budget, &w->search, far));
    advice_budget_took(&w->budget, &w->search, near);
    search_learn(&w->search, near, 3);
    advice_budget_batch(&w->budget, &w->search, BATCH);
    assert_true(advice_budget_near(&w->budget, &w->search, far));
}

/* Refusals count as misses: a point that does not build was no good advice. */
static void refused_picks_lose_trust_like_slow_ones(void **state)
{
    struct world *w = *state;
    search_learn(&w->search, w->order[0], 1);
    advice_budget_batch(&w->budget, &w->search, BATCH);
    advice_budget_took(&w->budget, &w->search, w->order[5]);
    search_learn(&w->search, w->order[5], 0);
    advice_budget_batch(&w->budget, &w->search, BATCH);
    assert_false(advice_budget_near(&w->budget, &w->search, w->order[6]));
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, open_world, close_world)
    const struct CMUnitTest tests[] = {
        T(absurd_advice_costs_at_most_a_twentieth_of_the_samples),
        T(plausible_bad_advice_costs_one_sample_and_then_one_in_fifty),
        T(advice_that_was_right_gets_more_of_the_next_batch),
        T(who_is_right_is_believed_against_the_cost_model),
        T(refused_picks_lose_trust_like_slow_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
