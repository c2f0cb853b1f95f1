/* SPDX-License-Identifier: Apache-2.0 */
/* What the searches are worth, on spaces measured on real hardware (tests/golden/tune_table*.json):
 * the claims of docs/ablation.md, held to. And the replay itself: regret, time, late advice. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "specializer/adviser/adviser_request.h"
#include "tests/unit/specializer/stand_in.h"
#include "tests/unit/unit.h"
#include "tune/ablate.h"
#include "tune/report.h"

enum { SEEDS = SANITIZED ? 4 : 12 };
static struct tables tables;

static int open_named(const char *name)
{
    struct err err;
    char path[512];
    const char *root = getenv("WHET_SOURCE_ROOT");
    snprintf(path, sizeof path, "%s/tests/golden/%s", root ? root : ".", name);
    if (tables_read(&tables, path, &err) == 0)
        return 0;
    print_error("%s\n", err.msg);
    return -1;
}

static int open_tables(void **state)
{
    (void)state;
    return open_named("tune_table.json");
}

static int close_tables(void **state)
{
    (void)state;
    tables_free(&tables);
    return 0;
}

static struct trial_run run(const struct table *t, const char *strategy,
                            enum sim_adviser_kind adviser, uint64_t seed)
{
    struct trial_run r;
    struct err err;
    struct trial_terms terms = {.tables = &tables,
                                .table = t,
                                .strategy = strategy_find(strategy),
                                .adviser = adviser,
                                .seed = seed,
                                .budget_s = 1e9};
    assert_int_equal(trial_run(&terms, &r, &err), 0);
    return r;
}

/* Samples to 95 %, or what a search that never got there needs at least. */
static int needed(const struct trial_run *r)
{
    return r->to_95 > 0 ? r->to_95 : r->samples + 1;
}

/* Mean over seeds and slots of samples to 95 %; slots count alike. */
static double mean_samples(const char *strategy, enum sim_adviser_kind adviser)
{
    double sum = 0;
    for (int i = 0; i < tables.n; i++)
        for (uint64_t seed = 1; seed <= SEEDS; seed++) {
            struct trial_run r = run(&tables.table[i], strategy, adviser, seed);
            sum += needed(&r);
            trial_free(&r);
        }
    return sum / (SEEDS * tables.n);
}

/* ---- what advice is worth -------------------------------------------------------------------- */

static void right_advice_needs_a_third_of_the_samples_of_random_order(void **unused)
{
    (void)unused;
    for (int i = 0; i < tables.n; i++) {
        double right = 0, chance = 0;
        for (uint64_t seed = 1; seed <= SEEDS; seed++) {
            struct trial_run a = run(&tables.table[i], "template", SIM_RIGHT, seed);
            struct trial_run b = run(&tables.table[i], "random", SIM_HEURISTIC, seed);
            right += needed(&a);
            chance += needed(&b);
            trial_free(&a);
            trial_free(&b);
        }
        print_message("%-14s right %.1f, random order %.1f samples to 95 %%\n",
                      tables.table[i].slot, right / SEEDS, chance / SEEDS);
        assert_true(3 * right <= chance);
    }
}

/* The other table: a formula that is nearly right leaves no strategy much to do. */
static void it_does_so_where_the_formula_is_right_already(void **state)
{
    close_tables(state);
    assert_int_equal(open_named("tune_table_huge.json"), 0);
    right_advice_needs_a_third_of_the_samples_of_random_order(state);
    close_tables(state);
    assert_int_equal(open_tables(state), 0);
}

static void rejected_and_missing_advice_change_nothing(void **unused)
{
    (void)unused;
    static const enum sim_adviser_kind silent[] = {SIM_GARBAGE, SIM_DEAD};
    for (int i = 0; i < tables.n; i++)
        for (int k = 0; k < 4; k++) {
            const char *strategy = k < 2 ? "template" : "mcts";
            struct trial_run alone = run(&tables.table[i], strategy, SIM_HEURISTIC, 1);
            struct trial_run other = run(&tables.table[i], strategy, silent[k % 2], 1);
            assert_int_equal(alone.samples, other.samples); /* the same points in the same order */
            assert_memory_equal(alone.seconds, other.seconds,
                                (size_t)alone.samples * sizeof *alone.seconds);
            trial_free(&alone);
            trial_free(&other);
        }
}

/* Over many landscapes: every seed has six tenths of each table. Bad advice of every kind, valid
 * as it is, costs less than a tenth; to the sample, or so, where it is absurd. */
static void bad_advice_costs_less_than_a_tenth(void **state)
{
    static const char *const table[] = {"tune_table.json", "tune_table_huge.json"};
    static const enum sim_adviser_kind bad[] = {SIM_WRONG, SIM_INVERTED, SIM_SLY};
    enum { PARTS = 64 }; /* with 16 the mean is off by several per cent */
    for (int f = 0; f < 2; f++) {
        struct err err;
        close_tables(state);
        assert_int_equal(open_named(table[f]), 0);
        struct ablation a = {.tables = &tables, .seeds = PARTS, .budget_s = 120, .drop = 0.4};
        assert_int_equal(ablate_advisers(&a, "template", bad, 3, &err), 0);
        for (int k = 0; k < 3; k++) {
            struct band cost = variant_cost(&a, "template", bad[k], NULL);
            print_message("%-22s %-9s %.3f [%.3f, %.3f] of the samples of none\n", table[f],
                          sim_adviser_name(bad[k]), cost.mean, cost.low, cost.high);
            assert_true(cost.mean <= (bad[k] == SIM_SLY ? 1.1 : 1.05));
        }
        ablation_free(&a);
    }
    close_tables(state);
    assert_int_equal(open_tables(state), 0);
}

/* Seeds 2 and 3 alone are what they are among the first three: many landscapes can be made in
 * pieces. */
static void seeds_can_be_taken_in_pieces(void **unused)
{
    (void)unused;
    struct err err;
    static const enum sim_adviser_kind sly[] = {SIM_SLY};
    struct ablation all = {.tables = &tables, .seeds = 3, .budget_s = 60, .drop = 0.4};
    struct ablation rest = {
        .tables = &tables, .seeds = 2, .before = 1, .budget_s = 60, .drop = 0.4};
    assert_int_equal(ablate_advisers(&all, "mcts", sly, 1, &err), 0);
    assert_int_equal(ablate_advisers(&rest, "mcts", sly, 1, &err), 0);
    assert_int_equal(rest.variants, all.variants);
    int differ = 0;
    for (int i = 0; i < all.variants; i++)
        for (int k = 0; k < 2; k++) {
            const struct trial_run *one = &all.variant[i].run[k + 1],
                                   *same = &rest.variant[i].run[k];
            assert_int_equal(one->samples, same->samples);
            assert_memory_equal(one->regret, same->regret,
                                (size_t)one->samples * sizeof *one->regret);
            const struct trial_run *other = &all.variant[i].run[k];
            differ += other->samples != same->samples ||
                      memcmp(other->regret, same->regret,
                             (size_t)same->samples * sizeof *same->regret) != 0;
        }
    assert_int_equal(differ, 2 * all.variants); /* each seed has a landscape of its own */
    ablation_free(&all);
    ablation_free(&rest);
}

static void the_default_strategy_beats_the_baselines(void **unused)
{
    (void)unused;
    double ours = mean_samples("template", SIM_HEURISTIC);
    double tree = mean_samples("mcts", SIM_HEURISTIC);
    double cost = mean_samples("cost", SIM_HEURISTIC);
    double chance = mean_samples("random", SIM_HEURISTIC);
    double table = mean_samples("exhaustive", SIM_HEURISTIC);
    print_message("samples to 95 %%: template %.1f, mcts %.1f, cost %.1f, random %.1f, "
                  "exhaustive %.1f\n",
                  ours, tree, cost, chance, table);
    assert_true(ours < cost && 2 * ours < chance && 2 * ours < table);
    assert_true(2 * tree < chance);
}

/* Nobody names a point: values are all that is said, to both strategies. */
static void hints_that_are_right_save_samples(void **unused)
{
    (void)unused;
    static const char *const strategy[] = {"template", "mcts"};
    for (int i = 0; i < 2; i++) {
        double hints = mean_samples(strategy[i], SIM_HINTS);
        double none = mean_samples(strategy[i], SIM_HEURISTIC);
        double ties = mean_samples(strategy[i], SIM_TIES);
        print_message("samples to 95 %%: %s %.1f with hints, %.1f without; ties by lot %.1f\n",
                      strategy[i], hints, none, ties);
        assert_true(hints < none);
    }
}

/* ---- the replay ---------------------------------------------------------------------------- */

static void regret_falls_to_nothing_when_everything_was_tried(void **unused)
{
    (void)unused;
    const struct table *t = &tables.table[0];
    struct trial_run r = run(t, "exhaustive", SIM_HEURISTIC, 1);
    assert_int_equal(r.samples, space_size(t->space));
    double seconds = 0;
    for (int i = 0; i < r.samples; i++) {
        const struct measured *m = &t->row[i];
        seconds += (double)m->build_s + (double)m->probe_s + (double)m->bench_s;
        assert_float_equal(r.seconds[i], seconds, 1e-3 * seconds);
    }
    assert_true(r.regret[r.samples - 1] < 0.05); /* noise may hide a near tie, no more */
    assert_true(r.to_95 > 0 && r.to_95 <= r.samples && isfinite(r.to_95_s));
    trial_free(&r);
}

/* Of 100 points, after so many samples (0: never). */
static struct trial_run got_there(int to_95, int samples)
{
    return (struct trial_run){
        .samples = samples, .points = 100, .to_95 = to_95, .to_95_s = to_95 > 0 ? to_95 : HUGE_VAL};
}

static void a_search_that_never_got_there_counts_against_its_adviser(void **unused)
{
    (void)unused;
    struct tables one = {.table = tables.table, .n = 1};
    struct trial_run alone[3], with[3];
    struct variant v[2] = {{tables.table, "template", SIM_HEURISTIC, alone},
                           {tables.table, "template", SIM_WRONG, with}};
    struct ablation a = {.tables = &one, .seeds = 3, .variant = v, .variants = 2};
    for (int i = 0; i < 3; i++)
        alone[i] = with[i] = got_there(10, 30);
    assert_float_equal(variant_cost(&a, "template", SIM_WRONG, NULL).mean, 1, 1e-9);
    /* the time was over after two candidates: not as good as having found it after three */
    with[0] = with[1] = got_there(0, 2);
    int never;
    struct band cost = variant_cost(&a, "template", SIM_WRONG, &never),
                to = variant_to_95(&a, &v[1], false);
    assert_float_equal(cost.mean, (101 + 101 + 10) / 30.0, 1e-9);
    assert_int_equal(never, 2);
    assert_true(isinf(to.mean) && isinf(to.high));
    assert_int_equal(variant_never(&a, &v[1]), 2);
    assert_float_equal(variant_to_95_least(&a, &v[1]), 3, 1e-9);
    /* neither got there: nothing is known; without it none did: one more than was tried */
    alone[0] = got_there(0, 5);
    assert_float_equal(variant_cost(&a, "template", SIM_WRONG, NULL).mean, (101 + 10) / 20.0, 1e-9);
    with[0] = got_there(3, 30);
    assert_float_equal(variant_cost(&a, "template", SIM_WRONG, NULL).mean, (3 + 101 + 10) / 26.0,
                       1e-9);
    for (int i = 0; i < 3; i++)
        alone[i] = with[i] = got_there(0, 5);
    assert_true(isnan(variant_cost(&a, "template", SIM_WRONG, NULL).mean));
}

static void a_search_repeats_exactly_from_its_seed(void **unused)
{
    (void)unused;
    const struct table *t = &tables.table[tables.n - 1];
    struct trial_run a = run(t, "mcts", SIM_RIGHT, 3), b = run(t, "mcts", SIM_RIGHT, 3);
    struct trial_run other = run(t, "mcts", SIM_RIGHT, 4);
    assert_int_equal(a.samples, b.samples);
    assert_memory_equal(a.seconds, b.seconds, (size_t)a.samples * sizeof *a.seconds);
    assert_memory_equal(a.regret, b.regret, (size_t)a.samples * sizeof *a.regret);
    assert_memory_not_equal(a.seconds, other.seconds, (size_t)a.samples * sizeof *a.seconds);
    trial_free(&a);
    trial_free(&b);
    trial_free(&other);
}

static void a_budget_ends_a_search(void **unused)
{
    (void)unused;
    struct trial_run r;
    struct err err;
    struct trial_terms terms = {.tables = &tables,
                                .table = &tables.table[0],
                                .strategy = &strategy_random,
                                .seed = 1,
                                .budget_s = 10};
    assert_int_equal(trial_run(&terms, &r, &err), 0);
    assert_true(r.samples > 0 && r.samples < space_size(terms.table->space));
    assert_true(r.seconds[r.samples - 1] >= 10 &&
                (r.samples == 1 || r.seconds[r.samples - 2] < 10));
    trial_free(&r);
}

/* A reply that is a minute late changes nothing before, and somewhere something after. */
static void late_advice_counts_from_when_it_is_there(void **unused)
{
    (void)unused;
    int changed = 0;
    for (int i = 0; i < tables.n; i++) {
        struct trial_run slow = run(&tables.table[i], "template", SIM_SLOW, 1);
        struct trial_run none = run(&tables.table[i], "template", SIM_HEURISTIC, 1);
        int same = 0;
        while (same < none.samples && slow.seconds[same] == none.seconds[same])
            same++;
        assert_true(same == none.samples || none.seconds[same] > 60);
        changed += same < none.samples;
        trial_free(&slow);
        trial_free(&none);
    }
    assert_true(changed > 0);
}

/* As in a server, where moves would have a clock of their own only if there were two models. */
static void advice_and_moves_share_one_line(void **unused)
{
    (void)unused;
    const struct table *t = &tables.table[0];
    struct err err;
    struct cost cost;
    struct search search;
    struct sim_adviser *c = sim_adviser_open(SIM_RIGHT, t, 1, &(struct consulted){0}, &err);
    const struct mover *mover = sim_adviser_mover(c);
    struct lineage l = {.id = {0, -1, -1}, .score = {1}};
    cost_open(&cost, &tables.machine, tables.threads);
    space_predict(t->space, &cost);
    search_open(&search, t->space);
    struct advice_request r = {.space = t->space,
                               .cost = &cost,
                               .slot = t->slot,
                               .speed = search.speed,
                               .trial = search.trial};
    struct advice advice;
    search_learn(&search, 0, 1);
    sim_adviser_ask(c, &r, 0, &advice); /* puts its question, which takes 2 s */
    advice_free(&advice);
    assert_false(mover->want(mover->ctx, &l, 1));
    sim_adviser_ask(c, &r, 3, &advice); /* answered; now it is the turn of moves */
    assert_true(advice.advised > 0);
    advice_free(&advice);
    assert_true(mover->want(mover->ctx, &l, 1));
    assert_false(mover->want(mover->ctx, &l, 1));
    search_close(&search);
    cost_close(&cost);
    sim_adviser_close(c);
}

/* A recorded reply names the table's best point. */
static void recorded_replies_are_replayed(void **unused)
{
    (void)unused;
    const struct table *t = &tables.table[0];
    char path[64];
    struct point p;
    int32_t best;
    table_best(t, &best);
    space_point(t->space, best, &p);
    snprintf(path, sizeof path, "/tmp/whet-test-replay-%d.jsonl", (int)getpid());
    FILE *f = fopen(path, "w");
    fprintf(f,
            "{\"region\":\"%s\",\"seconds\":0.5,\"reply\":\"{\\\"version\\\":1,\\\"regions\\\":"
            "[{\\\"region\\\":\\\"%s\\\",\\\"label\\\":\\\"x\\\",\\\"hints\\\":{},\\\"risks\\\":[],"
            "\\\"priority\\\":[\\\"%s:",
            t->slot, t->slot, space_template(t->space, best)->id);
    for (int k = 0; k < space_template(t->space, best)->knobs; k++)
        fprintf(f, "%s%d", k ? "," : "", p.value[k]);
    fprintf(f, "\\\"]}]}\"}\n");
    fclose(f);
    struct trial_run r;
    struct err err;
    struct trial_terms terms = {.tables = &tables,
                                .table = t,
                                .strategy = &strategy_template,
                                .adviser = SIM_REPLAY,
                                .llm = {.recording = path},
                                .seed = 1,
                                .budget_s = 1e9};
    assert_int_equal(trial_run(&terms, &r, &err), 0);
    assert_in_range(r.to_95, 1, 12); /* the first batch is under way when it comes */
    trial_free(&r);
    unlink(path);
    assert_int_equal(trial_run(&terms, &r, &err), -1); /* the recording is gone */
}

/* What a model would say of the first slot: its fastest point. */
static char *good_reply(const struct table *t)
{
    char id[ID_TEXT], *text = NULL;
    int32_t best;
    table_best(t, &best);
    adviser_id_text(t->space, best, id);
    assert_true(asprintf(&text,
                         "{\"version\":1,\"regions\":[{\"region\":\"%s\",\"label\":\"\","
                         "\"priority\":[\"%s\"],\"hints\":{},\"risks\":[]}]}",
                         t->slot, id) > 0);
    return text;
}

/* Its replies decide what is measured next; its seconds are the search's; and what it was asked
 * once it is not asked again, neither in this run nor with the file of the last one. */
static void a_live_model_is_consulted_in_closed_loop(void **unused)
{
    (void)unused;
    static struct stand_in model;
    const struct table *t = &tables.table[0];
    char path[64], url[64], *argv[] = {(char *)"whet", (char *)"--adviser-url", url, NULL};
    struct config config;
    struct trial_run r[3];
    struct err err;
    setenv("no_proxy", "127.0.0.1", 1);
    stand_in_open(&model);
    atomic_store(&model.mode, STAND_IN_LATE);
    stand_in_say(&model, good_reply(t));
    snprintf(url, sizeof url, "http://127.0.0.1:%d/v1", model.port);
    snprintf(path, sizeof path, "/tmp/whet-test-live-%d.jsonl", (int)getpid());
    assert_int_equal(config_parse(&config, 3, argv, &err), 0);
    int asked = 0;
    for (int i = 0; i < 3; i++) {
        struct live *live = live_open(&config, path, &err);
        assert_non_null(live);
        struct trial_terms terms = {.tables = &tables,
                                    .table = t,
                                    .strategy = &strategy_template,
                                    .adviser = SIM_REPLAY,
                                    .llm = {.live = live},
                                    .seed = i < 2 ? 1 : 2,
                                    .budget_s = 30};
        assert_int_equal(trial_run(&terms, &r[i], &err), 0);
        live_close(live);
        asked = i == 0 ? atomic_load(&model.requests) : asked;
        if (i == 1) /* all known by now */
            assert_int_equal(atomic_load(&model.requests), asked);
    }
    assert_true(asked > 0 && r[0].use.asked[SIM_ASKS_ADVICE] == asked);
    assert_int_equal(r[1].use.asked[SIM_ASKS_ADVICE], asked);
    assert_true(r[0].use.seconds >= 0.3 * asked);
    assert_int_equal(r[0].use.tokens_out, 56 * asked);
    assert_int_equal(r[0].use.rejected[SIM_ASKS_ADVICE], 0);
    assert_in_range(r[0].to_95, 1, 5); /* in the second batch, first of all */
    assert_int_equal(r[0].samples, r[1].samples);
    assert_memory_equal(r[0].seconds, r[1].seconds, (size_t)r[0].samples * sizeof(float));
    stand_in_close(&model);
    config_free(&config);
    unlink(path);
    for (int i = 0; i < 3; i++)
        trial_free(&r[i]);
}

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *text = calloc(1, 1 << 22);
    assert_true(fread(text, 1, (1 << 22) - 1, f) > 0);
    fclose(f);
    return text;
}

static void results_are_written_as_json_and_svg(void **unused)
{
    (void)unused;
    char json[64], prefix[64], path[96];
    struct err err;
    struct ablation a = {.tables = &tables, .seeds = 2, .budget_s = 60};
    snprintf(prefix, sizeof prefix, "/tmp/whet-test-ablate-%d", (int)getpid());
    snprintf(json, sizeof json, "%s.json", prefix);
    assert_int_equal(ablate(&a, &err), 0);
    assert_int_equal(ablation_write_json(&a, json, &err), 0);
    assert_int_equal(ablation_write_svg(&a, prefix, &err), 0);
    char *text = read_file(json);
    assert_non_null(strstr(text, "\"adviser\":\"wrong\""));
    assert_null(strstr(text, "nan"));
    free(text);
    unlink(json);
    const char *const figure[] = {"strategies", "advisers"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s-%s.svg", prefix, figure[i]);
        text = read_file(path);
        assert_non_null(strstr(text, "prefers-color-scheme:dark"));
        assert_non_null(strstr(text, tables.table[0].slot));
        assert_null(strstr(text, "nan"));
        assert_null(strstr(text, "inf"));
        free(text);
        unlink(path);
    }
    assert_int_equal(ablation_write_json(&a, "/nowhere/x.json", &err), -1);
    snprintf(json, sizeof json, "%s-report.json", prefix);
    assert_int_equal(report_tables(&tables, json, &err), 0);
    text = read_file(json);
    assert_non_null(strstr(text, "\"learned\""));
    free(text);
    unlink(json);
    ablation_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_advice_needs_a_third_of_the_samples_of_random_order),
        cmocka_unit_test(it_does_so_where_the_formula_is_right_already),
        cmocka_unit_test(rejected_and_missing_advice_change_nothing),
        cmocka_unit_test(bad_advice_costs_less_than_a_tenth),
        cmocka_unit_test(seeds_can_be_taken_in_pieces),
        cmocka_unit_test(the_default_strategy_beats_the_baselines),
        cmocka_unit_test(hints_that_are_right_save_samples),
        cmocka_unit_test(regret_falls_to_nothing_when_everything_was_tried),
        cmocka_unit_test(a_search_that_never_got_there_counts_against_its_adviser),
        cmocka_unit_test(a_search_repeats_exactly_from_its_seed),
        cmocka_unit_test(a_budget_ends_a_search),
        cmocka_unit_test(late_advice_counts_from_when_it_is_there),
        cmocka_unit_test(advice_and_moves_share_one_line),
        cmocka_unit_test(recorded_replies_are_replayed),
        cmocka_unit_test(a_live_model_is_consulted_in_closed_loop),
        cmocka_unit_test(results_are_written_as_json_and_svg),
    };
    return cmocka_run_group_tests(tests, open_tables, close_tables);
}
