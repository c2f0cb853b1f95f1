/* Strategies: bounded, at least two of every family, steps around the best, no repeats, never
 * outside the space; and the default must beat random on a landscape with structure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "specializer/hash.h"
#include "specializer/strategy.h"

static const struct machine machine = {
    .device = "test", .read_bandwidth = 40e9, .peak_flops = 100e9, .boundary_s = 2e-6};

static const struct strategy *const all[] = {&strategy_template, &strategy_mcts, &strategy_random,
                                             &strategy_exhaustive, &strategy_cost};

struct bench {
    struct cost cost;
    struct space *space;
    struct search search;
    struct advice advice;
};

static void open_bench(struct bench *b)
{
    struct facts f = {.HAS_AVX2 = 1,
                      .HAS_AVX512 = 1,
                      .HAS_VNNI = 1,
                      .REGION = REGION_MLP_OUT,
                      .M_MAX = 4,
                      .HIDDEN = 576,
                      .HEADS = 9,
                      .KV_HEADS = 3,
                      .HEAD_DIM = 64,
                      .FFN = 1536,
                      .VOCAB = 49152,
                      .WTYPE = DTYPE_Q4_1,
                      .WTYPE_2 = DTYPE_Q4_1,
                      .WTYPE_3 = DTYPE_Q4_1};
    cost_open(&b->cost, &machine, 2);
    b->space = space_open(&f, REGION_MLP_OUT, 4, NUMERICS_TOLERANCE);
    search_open(&b->search, b->space);
    b->advice = (struct advice){0};
}

static void ask(struct bench *b)
{
    struct advice_request r = {.space = b->space, .cost = &b->cost};
    space_predict(b->space, &b->cost);
    advice_free(&b->advice);
    advise_heuristic(&r, &b->advice);
    b->search.advice = &b->advice;
}

static void close_bench(struct bench *b)
{
    advice_free(&b->advice);
    search_close(&b->search);
    space_close(b->space);
    cost_close(&b->cost);
}

static bool knob_is(const struct template *t, const struct point *p, const char *name, int value)
{
    int k = template_knob(t, name);
    return k >= 0 && p->value[k] == value;
}

/* A landscape with structure of its own: its best point is far from what the formula thinks. */
static double speed_of(const struct bench *b, int32_t id)
{
    struct point p;
    const struct template *t = space_template(b->space, id);
    space_point(b->space, id, &p);
    double speed = 1;
    uint64_t noise = (uint64_t)id;
    speed *= knob_is(t, &p, "PREFETCH", 8192) ? 1.4 : 1;
    speed *= knob_is(t, &p, "ROWS", 2) ? 1.5 : 1;
    speed *= knob_is(t, &p, "SPLIT", 1) ? 1.1 : 1;
    speed *= knob_is(t, &p, "TOKENS", 2) ? 1.3 : 1;
    return speed * (1 + 0.02 * random_below(&noise, 100) / 100);
}

static void strategies_never_repeat_and_never_leave_the_space(void **unused)
{
    (void)unused;
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        struct bench b;
        open_bench(&b);
        void *state = all[k]->open(&b.search, 5);
        int size = space_size(b.space), total = 0, n;
        char *seen = calloc((size_t)size, 1);
        do {
            int32_t id[13];
            ask(&b);
            n = all[k]->propose(state, &b.search, id, 13);
            assert_in_range(n, 0, 13);
            for (int i = 0; i < n; i++) {
                assert_in_range(id[i], 0, size - 1);
                assert_false(seen[id[i]]);
                seen[id[i]] = 1;
            }
            search_pending(&b.search, id, n);
            for (int i = 0; i < n; i++) /* every third is refused */
                search_learn(&b.search, id[i], id[i] % 3 ? speed_of(&b, id[i]) : 0);
            total += n;
        } while (n > 0);
        assert_int_equal(total, size); /* in the end everything was tried */
        free(seen);
        all[k]->close(state);
        close_bench(&b);
    }
}

static void strategies_repeat_exactly_from_their_seed(void **unused)
{
    (void)unused;
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        int32_t first[2][16];
        for (int run = 0; run < 2; run++) {
            struct bench b;
            open_bench(&b);
            ask(&b);
            void *state = all[k]->open(&b.search, 42);
            assert_int_equal(all[k]->propose(state, &b.search, first[run], 16), 16);
            all[k]->close(state);
            close_bench(&b);
        }
        assert_memory_equal(first[0], first[1], sizeof first[0]);
    }
}

static void template_strategy_tries_two_of_every_family_first(void **unused)
{
    (void)unused;
    struct bench b;
    open_bench(&b);
    ask(&b);
    void *state = strategy_template.open(&b.search, 1);
    int32_t id[8];
    int *per = calloc((size_t)space_families(), sizeof *per);
    double *best = calloc((size_t)space_families(), sizeof *best), fastest = 1e30;
    for (int32_t i = 0; i < space_size(b.space); i++) {
        double *of = &best[space_family(b.space, i)], s = space_predicted(b.space, i);
        *of = *of == 0 || s < *of ? s : *of;
        fastest = s < fastest ? s : fastest;
    }
    int n = strategy_template.propose(state, &b.search, id, 8), families = 0;
    for (int i = 0; i < n; i++)
        per[space_family(b.space, id[i])]++;
    for (int f = 0; f < space_families(); f++)
        if (best[f] > 0 && best[f] < 2 * fastest) {
            assert_true(per[f] >= 2);
            families++;
        }
    assert_true(families >= 2); /* avx512 rows and panels; avx2 is too far behind */
    free(per);
    free(best);
    strategy_template.close(state);
    close_bench(&b);
}

static void template_strategy_steps_around_the_best_two(void **unused)
{
    (void)unused;
    struct bench b;
    open_bench(&b);
    ask(&b);
    void *state = strategy_template.open(&b.search, 1);
    int32_t id[12], best[2] = {space_size(b.space) / 3, space_size(b.space) / 2};
    int n = strategy_template.propose(state, &b.search, id, 8); /* the families are served */
    search_pending(&b.search, id, n);
    search_learn(&b.search, best[0], 3.0);
    search_learn(&b.search, best[1], 2.5);
    n = strategy_template.propose(state, &b.search, id, 12);
    int near = 0;
    for (int i = 0; i < n; i++)
        near += space_distance(b.space, id[i], best[0]) == 1 ||
                space_distance(b.space, id[i], best[1]) == 1;
    assert_true(near >= 4);
    assert_true(near < n); /* and the ranking goes on */
    strategy_template.close(state);
    close_bench(&b);
}

static void template_strategy_tries_neighbouring_slots_winners_first(void **unused)
{
    (void)unused;
    struct bench b;
    open_bench(&b);
    ask(&b);
    int32_t wanted = space_size(b.space) - 1, id[4];
    b.search.first = malloc(sizeof wanted);
    b.search.first[0] = wanted;
    b.search.firsts = 1;
    void *state = strategy_template.open(&b.search, 1);
    assert_int_equal(strategy_template.propose(state, &b.search, id, 4), 4);
    assert_int_equal(id[0], wanted);
    strategy_template.close(state);
    close_bench(&b);
}

/* Best speed found with `budget` measurements. */
static double best_after(const struct strategy *s, int budget, uint64_t seed)
{
    struct bench b;
    open_bench(&b);
    void *state = s->open(&b.search, seed);
    double best = 0;
    for (int spent = 0; spent < budget;) {
        int32_t id[8];
        ask(&b);
        int n = s->propose(state, &b.search, id, 8);
        search_pending(&b.search, id, n);
        for (int i = 0; i < n; i++, spent++) {
            double speed = speed_of(&b, id[i]);
            struct point p;
            space_point(b.space, id[i], &p);
            search_learn(&b.search, id[i], speed);
            cost_learn(&b.cost, space_template(b.space, id[i]), &p, space_facts(b.space),
                       20e-6 / speed);
            best = speed > best ? speed : best;
        }
    }
    s->close(state);
    close_bench(&b);
    return best;
}

static void template_strategy_beats_random_on_the_same_budget(void **unused)
{
    (void)unused;
    double ours = 0, chance = 0;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        ours += best_after(&strategy_template, 40, seed) / 10;
        chance += best_after(&strategy_random, 40, seed) / 10;
    }
    assert_true(ours > chance * 1.02);
}

static void search_forgets_what_was_never_decided(void **unused)
{
    (void)unused;
    struct bench b;
    open_bench(&b);
    int32_t id[2] = {3, 4}, best[2];
    search_pending(&b.search, id, 2);
    search_learn(&b.search, 3, 1.5);
    search_forget(&b.search, 3); /* decided: stays */
    search_forget(&b.search, 4);
    assert_int_equal(b.search.trial[3], TRIAL_MEASURED);
    assert_int_equal(b.search.trial[4], TRIAL_NONE);
    assert_int_equal(b.search.tried, 1);
    assert_int_equal(search_best(&b.search, best, 2), 1);
    assert_int_equal(best[0], 3);
    search_learn(&b.search, 3, 0); /* refused later, by the canary */
    assert_int_equal(search_best(&b.search, best, 2), 0);
    close_bench(&b);
}

static void strategies_are_found_by_name(void **unused)
{
    (void)unused;
    assert_ptr_equal(strategy_find("template"), &strategy_template);
    assert_ptr_equal(strategy_find("cost"), &strategy_cost);
    assert_null(strategy_find("clairvoyant"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strategies_never_repeat_and_never_leave_the_space),
        cmocka_unit_test(strategies_repeat_exactly_from_their_seed),
        cmocka_unit_test(template_strategy_tries_two_of_every_family_first),
        cmocka_unit_test(template_strategy_steps_around_the_best_two),
        cmocka_unit_test(template_strategy_tries_neighbouring_slots_winners_first),
        cmocka_unit_test(template_strategy_beats_random_on_the_same_budget),
        cmocka_unit_test(search_forgets_what_was_never_decided),
        cmocka_unit_test(strategies_are_found_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
