/* SPDX-License-Identifier: Apache-2.0 */
/* Strategies: bounded, at least two of every family, steps around the best, no repeats, never
 * outside the space; and the default must beat random on a landscape with structure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "specializer/candidate/hash.h"
#include "specializer/search/strategy.h"
#include "tests/unit/specializer/shapes.h"

static const struct machine machine = {
    .device = "test", .read_bandwidth = 40e9, .peak_flops = 100e9, .boundary_s = 2e-6};

static const struct strategy *const all[] = {&strategy_template,   &strategy_mcts, &strategy_random,
                                             &strategy_exhaustive, &strategy_cost, &strategy_evolve,
                                             &strategy_mcts4};

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
                      .M_MAX = 3, /* narrow templates alone */
                      SMOLLM_SHAPE};
    cost_open(&b->cost, &machine, 2);
    b->space = space_open(&f, REGION_MLP_OUT, 3, NUMERICS_TOLERANCE);
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
            int n = all[k]->propose(state, &b.search, first[run], 16);
            assert_in_range(n, 4, 16);
            memset(first[run] + n, 0, (size_t)(16 - n) * sizeof first[run][0]);
            all[k]->close(state);
            close_bench(&b);
        }
        assert_memory_equal(first[0], first[1], sizeof first[0]);
    }
}

/* One batch proposed, measured by `speed` and learned from; returns its size. */
static int measure_batch(struct bench *b, const struct strategy *s, void *state, int want,
                         double (*speed)(const struct bench *, int32_t), int32_t *id)
{
    ask(b);
    int n = s->propose(state, &b->search, id, want);
    search_pending(&b->search, id, n);
    for (int i = 0; i < n; i++) {
        struct point p;
        double fast = speed(b, id[i]);
        space_point(b->space, id[i], &p);
        search_learn(&b->search, id[i], fast);
        cost_learn(&b->cost, space_template(b->space, id[i]), &p, space_facts(b->space),
                   20e-6 / fast);
    }
    return n;
}

/* The best prediction of every family; of all in *fastest. */
static double *family_best(const struct bench *b, double *fastest)
{
    double *best = calloc((size_t)space_families(), sizeof *best);
    *fastest = 1e30;
    for (int32_t i = 0; i < space_size(b->space); i++) {
        double *of = &best[space_family(b->space, i)], s = space_predicted(b->space, i);
        *of = *of == 0 || s < *of ? s : *of;
        *fastest = s < *fastest ? s : *fastest;
    }
    return best;
}

/* Within a batch more than that many points take. */
static void template_strategy_tries_two_of_every_family_at_first(void **unused)
{
    enum { BATCH = 6 };
    (void)unused;
    struct bench b;
    open_bench(&b);
    ask(&b);
    void *state = strategy_template.open(&b.search, 1);
    int32_t id[BATCH];
    int *per = calloc((size_t)space_families(), sizeof *per), families = 0, near = 0;
    double fastest, *best = family_best(&b, &fastest); /* before anything was learned */
    for (int f = 0; f < space_families(); f++)
        near += best[f] > 0 && best[f] < 4 * fastest;
    for (int batch = 0; batch < 1 + (2 * near + BATCH - 1) / BATCH; batch++)
        for (int i = measure_batch(&b, &strategy_template, state, BATCH, speed_of, id); i-- > 0;)
            per[space_family(b.space, id[i])]++;
    for (int f = 0; f < space_families(); f++)
        if (best[f] > 0 &&
            best[f] < 4 * fastest) { /* what is learned moves the limit, 5, a little */
            assert_true(per[f] >= 2);
            families++;
        }
    assert_true(families >= 2); /* avx512, panels; avx2 is near the limit */
    free(per);
    free(best);
    strategy_template.close(state);
    close_bench(&b);
}

/* Instruction sets that look clearly slower cost no build before the first results are in. */
static void template_strategy_begins_a_cold_search_with_families_that_look_fast(void **unused)
{
    (void)unused;
    struct bench b;
    open_bench(&b);
    ask(&b);
    void *state = strategy_template.open(&b.search, 1);
    int32_t id[6];
    double fastest, *best = family_best(&b, &fastest);
    int n = strategy_template.propose(state, &b.search, id, 6);
    assert_in_range(n, 4, 6);
    for (int i = 0; i < n; i++)
        assert_true(best[space_family(b.space, id[i])] <= 1.7 * fastest);
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

/* Samples until a point within 5 % of the optimum is measured; `most` if none was by then. */
static int samples_needed(const struct strategy *s, uint64_t seed, int most,
                          double (*speed)(const struct bench *, int32_t))
{
    struct bench b;
    int32_t id[6];
    open_bench(&b);
    void *state = s->open(&b.search, seed);
    double goal = 0;
    int samples = 0;
    for (int32_t i = 0; i < space_size(b.space); i++)
        goal = speed(&b, i) > goal ? speed(&b, i) : goal;
    for (bool found = false; !found && samples < most;) {
        int n = measure_batch(&b, s, state, 6, speed, id);
        for (int i = 0; i < n && !found; i++, samples++)
            found = speed(&b, id[i]) >= 0.95 * goal;
    }
    s->close(state);
    close_bench(&b);
    return samples;
}

enum { SEEDS = 10, SAMPLES_MOST = 600 };

static int mean_samples(const struct strategy *s, double (*speed)(const struct bench *, int32_t))
{
    int sum = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        sum += samples_needed(s, seed, SAMPLES_MOST, speed);
    return sum / SEEDS;
}

static void template_strategy_needs_a_quarter_of_the_samples_of_chance(void **unused)
{
    (void)unused;
    int ours = mean_samples(&strategy_template, speed_of);
    int chance = mean_samples(&strategy_random, speed_of);
    print_message("samples to 95 %%: template %d, random %d\n", ours, chance);
    assert_true(4 * ours <= chance);
}

/* The fastest family is the one that the formula thinks slowest but for the portable one. */
static double speed_by_family(const struct bench *b, int32_t id)
{
    struct point p;
    const struct template *t = space_template(b->space, id);
    space_point(b->space, id, &p);
    return speed_of(b, id) * (knob_is(t, &p, "ISA", 1) ? 3 : 1);
}

static void template_strategy_leaves_the_family_it_measured_first_for_a_faster_one(void **unused)
{
    (void)unused;
    int ours = mean_samples(&strategy_template, speed_by_family);
    int chance = mean_samples(&strategy_random, speed_by_family);
    print_message("samples to 95 %%: template %d, random %d\n", ours, chance);
    assert_true(4 * ours <= chance);
}

/* A baseline that is worth being one: what is bred is better than what is drawn. */
static void evolution_needs_less_than_half_of_the_samples_of_chance(void **unused)
{
    (void)unused;
    int bred = mean_samples(&strategy_evolve, speed_of);
    int chance = mean_samples(&strategy_random, speed_of);
    print_message("samples to 95 %%: evolve %d, random %d\n", bred, chance);
    assert_true(2 * bred < chance);
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

/* What operators may ask for is in this program, and was looked at by the tests above. */
static void every_choice_of_the_option_is_a_strategy(void **unused)
{
    (void)unused;
    static const struct {
        const char *name, *choices;
    } options[] = {
#define SECTION(section, help)
#define OPT_STR(section, name, def, help)
#define OPT_INT(section, name, def, lo, hi, help)
#define OPT_NUM(section, name, def, lo, hi, help)
#define OPT_BOOL(section, name, def, help)
#define OPT_ENUM(section, name, def, choices, help) {#section "." #name, choices},
#include "config/options.def"
    };
    size_t o = 0;
    while (strcmp(options[o].name, "specializer.strategy") != 0)
        o++;
    char *words = xstrdup(options[o].choices), *rest = words, *word;
    while ((word = strtok_r(rest, "|", &rest))) {
        const struct strategy *s = strategy_find(word);
        bool tested = s == &strategy_agentic; /* which proposes no points */
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            tested |= s == all[i];
        if (!s || !tested)
            fail_msg("%s is %s", word, s ? "not in this test" : "no strategy");
    }
    free(words);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strategies_never_repeat_and_never_leave_the_space),
        cmocka_unit_test(strategies_repeat_exactly_from_their_seed),
        cmocka_unit_test(template_strategy_tries_two_of_every_family_at_first),
        cmocka_unit_test(template_strategy_begins_a_cold_search_with_families_that_look_fast),
        cmocka_unit_test(template_strategy_steps_around_the_best_two),
        cmocka_unit_test(template_strategy_tries_neighbouring_slots_winners_first),
        cmocka_unit_test(template_strategy_needs_a_quarter_of_the_samples_of_chance),
        cmocka_unit_test(template_strategy_leaves_the_family_it_measured_first_for_a_faster_one),
        cmocka_unit_test(evolution_needs_less_than_half_of_the_samples_of_chance),
        cmocka_unit_test(search_forgets_what_was_never_decided),
        cmocka_unit_test(strategies_are_found_by_name),
        cmocka_unit_test(every_choice_of_the_option_is_a_strategy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
