/* SPDX-License-Identifier: Apache-2.0 */
/* Tree search: it finds the best of a landscape with structure in fewer samples than chance, plays
 * the adviser's moves, drops what is illegal, and repeats exactly from its seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "specializer/candidate/hash.h"
#include "specializer/search/mcts_tree.h"
#include "tests/unit/specializer/advice_world.h"

static int knob_of(const struct world *w, int32_t id, const char *name)
{
    struct point p;
    int k = template_knob(space_template(w->space, id), name);
    space_point(w->space, id, &p);
    return k < 0 ? 0 : p.value[k];
}

/* Its best point is far from what the formula thinks, and each knob says a part of it. */
static double speed_of(const struct world *w, int32_t id)
{
    uint64_t noise = (uint64_t)id;
    double speed = knob_of(w, id, "PREFETCH") == 1024 ? 1.4 : 1;
    speed *= knob_of(w, id, "ROWS") == 2 ? 1.5 : 1;
    speed *= knob_of(w, id, "SPLIT") == 1 ? 1.1 : 1;
    speed *= knob_of(w, id, "TOKENS") == 2 ? 1.3 : 1;
    return speed * (1 + 0.02 * random_below(&noise, 100) / 100);
}

static double optimum(const struct world *w)
{
    double best = 0;
    for (int32_t i = 0; i < space_size(w->space); i++)
        best = speed_of(w, i) > best ? speed_of(w, i) : best;
    return best;
}

/* A batch proposed, measured and learned from; every seventh point is refused. Returns its size. */
static int one_batch(struct world *w, const struct strategy *s, void *state, int want, bool refuse,
                     int32_t *id)
{
    space_predict(w->space, &w->cost);
    advice_free(&w->heuristic);
    advise_heuristic(&w->request, &w->heuristic);
    int n = s->propose(state, &w->search, id, want);
    search_pending(&w->search, id, n);
    for (int i = 0; i < n; i++) {
        struct point p;
        double speed = refuse && id[i] % 7 == 0 ? 0 : speed_of(w, id[i]);
        space_point(w->space, id[i], &p);
        search_learn(&w->search, id[i], speed);
        if (speed > 0)
            cost_learn(&w->cost, space_template(w->space, id[i]), &p, space_facts(w->space),
                       90e-6 / speed);
    }
    return n;
}

/* Samples until a point within 5 % of the optimum is measured. */
static int samples_needed(const struct strategy *s, uint64_t seed, int most)
{
    struct world w;
    int32_t id[8];
    world_open(&w, REGION_MLP_OUT, 4);
    void *state = s->open(&w.search, seed);
    double goal = 0.95 * optimum(&w);
    int samples = 0;
    for (bool found = false; !found && samples < most;) {
        int n = one_batch(&w, s, state, 6, false, id);
        for (int i = 0; i < n && !found; i++, samples++)
            found = speed_of(&w, id[i]) >= goal;
    }
    s->close(state);
    world_close(&w);
    return samples;
}

static void it_finds_the_optimum_in_a_third_of_the_samples_of_chance(void **unused)
{
    (void)unused;
    int ours = 0, chance = 0;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        int n = samples_needed(&strategy_mcts, seed, 600);
        assert_true(n < 600); /* converges, whatever the seed */
        ours += n;
        chance += samples_needed(&strategy_random, seed, 600);
    }
    print_message("samples to 95 %%: mcts %d, random %d (means of 12)\n", ours / 12, chance / 12);
    assert_true(3 * ours <= chance);
}

static void it_repeats_exactly_from_its_seed(void **unused)
{
    (void)unused;
    int32_t id[3][10][6];
    for (int run = 0; run < 3; run++) {
        struct world w;
        world_open(&w, REGION_ATTN_IN, 8);
        void *state = strategy_mcts.open(&w.search, run < 2 ? 7 : 8);
        for (int i = 0; i < 10; i++)
            assert_int_equal(one_batch(&w, &strategy_mcts, state, 6, true, id[run][i]), 6);
        strategy_mcts.close(state);
        world_close(&w);
    }
    assert_memory_equal(id[0], id[1], sizeof id[0]);
    assert_memory_not_equal(id[0], id[2], sizeof id[0]);
}

static void it_never_leaves_the_legal_space(void **unused)
{
    (void)unused;
    static const struct {
        enum region region;
        int m;
    } slots[] = {{REGION_ATTN, 16}, {REGION_MLP_IN, 1}, {REGION_HEAD, 4}, {REGION_MLP_OUT, 64}};
    for (size_t k = 0; k < sizeof slots / sizeof *slots; k++) {
        struct world w;
        int32_t id[6];
        world_open(&w, slots[k].region, slots[k].m);
        unsigned char *seen = calloc((size_t)space_size(w.space) + 1, 1);
        void *state = strategy_mcts.open(&w.search, 3);
        for (int b = 0; b < 30; b++) {
            int n = one_batch(&w, &strategy_mcts, state, 6, true, id);
            for (int i = 0; i < n; i++) {
                struct point p;
                assert_in_range(id[i], 0, space_size(w.space) - 1);
                assert_false(seen[id[i]]++);
                space_point(w.space, id[i], &p);
                assert_null(
                    template_illegal(space_template(w.space, id[i]), &p, space_facts(w.space)));
            }
        }
        strategy_mcts.close(state);
        free(seen);
        world_close(&w);
    }
}

/* ---- an adviser that knows ----------------------------------------------------------------- */

struct oracle {
    struct world *w;
    struct lineage asked[256];
    int n, calls;
    int deaf;   /* so many times nothing is heard first */
    bool knows; /* else: words that are illegal or mean nothing */
};

static int oracle_moves(void *ctx, int32_t node, struct moves *out)
{
    static const struct change good[] = {
        {"TOKENS", 2}, {"ROWS", 2}, {"PREFETCH", 1024}, {"SPLIT", 1}};
    static const struct change bad[] = {{"ROWS", 77}, {"NO_KNOB", 1}, {"ISA", 9}, {"TOKENS", -1}};
    struct oracle *o = ctx;
    for (int i = 0; i < o->n; i++)
        if (o->asked[i].id[0] == node) {
            o->asked[i].id[0] = -1;
            out->node = node;
            out->n = 4;
            memcpy(out->change, o->knows ? good : bad, sizeof good);
            return 1;
        }
    return 0;
}

static bool oracle_want(void *ctx, const struct lineage *l, int n)
{
    struct oracle *o = ctx;
    o->calls++;
    if (o->deaf > 0) {
        o->deaf--;
        return false;
    }
    for (int i = 0; i < n && o->n < 256; i++) {
        for (int k = 1; k < LINEAGE; k++)
            if (l[i].id[k] >= 0) /* an edge is a change of one knob */
                assert_int_equal(space_distance(o->w->space, l[i].id[k - 1], l[i].id[k]), 1);
        assert_true(l[i].score[0] >= 0 && l[i].score[0] <= 1);
        o->asked[o->n++] = l[i];
    }
    return true;
}

static int samples_with(bool knows, uint64_t seed)
{
    struct world w;
    int32_t id[8];
    world_open(&w, REGION_MLP_OUT, 4);
    struct oracle o = {.w = &w, .knows = knows};
    struct mover mover = {&o, oracle_moves, oracle_want};
    w.search.mover = &mover;
    void *state = strategy_mcts.open(&w.search, seed);
    double goal = 0.95 * optimum(&w);
    int samples = 0;
    for (bool found = false; !found && samples < 600;) {
        int n = one_batch(&w, &strategy_mcts, state, 6, false, id);
        for (int i = 0; i < n && !found; i++, samples++)
            found = speed_of(&w, id[i]) >= goal;
    }
    assert_true(o.calls > 0);
    strategy_mcts.close(state);
    world_close(&w);
    return samples;
}

static void moves_that_are_right_save_samples_and_illegal_ones_cost_none(void **unused)
{
    (void)unused;
    int right = 0, illegal = 0, alone = 0;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        right += samples_with(true, seed);
        illegal += samples_with(false, seed);
        alone += samples_needed(&strategy_mcts, seed, 600);
    }
    print_message("samples to 95 %%: right moves %d, illegal %d, heuristic %d (means of 8)\n",
                  right / 8, illegal / 8, alone / 8);
    /* A third saved over 32 seeds; eight of them say a quarter for certain. Not more, because one
     * leaf of six is all that is tried of a mover until it was right once (advice_budget.c): the
     * price of losing nothing to one that never is. */
    assert_true(4 * right <= 3 * alone);
    assert_int_equal(illegal, alone);
}

static void calls_for_moves_are_capped(void **unused)
{
    (void)unused;
    struct world w;
    int32_t id[2];
    world_open(&w, REGION_MLP_OUT, 4);
    struct oracle o = {.w = &w};
    struct mover mover = {&o, oracle_moves, oracle_want};
    w.search.mover = &mover;
    void *state = strategy_mcts.open(&w.search, 1);
    for (int i = 0; i < 100; i++)
        one_batch(&w, &strategy_mcts, state, 2, false, id);
    assert_int_equal(o.calls, 64);
    strategy_mcts.close(state);
    world_close(&w);
}

/* Speeds rise from batch to batch, so what was the fastest once is worth less later; and the cost
 * model has learned. */
static void rewards_are_by_the_yardstick_of_now(void **unused)
{
    (void)unused;
    struct world w;
    int32_t id[6];
    world_open(&w, REGION_MLP_OUT, 4);
    void *state = strategy_mcts.open(&w.search, 5);
    struct mcts_tree *t = state;
    for (int i = 0; i < 12; i++)
        one_batch(&w, &strategy_mcts, state, 6, true, id);
    space_predict(w.space, &w.cost);
    mcts_calibrate(t, &w.search);
    mcts_learn(t, &w.search);
    double sum = 0;
    int measured = 0, visits = 0;
    for (int i = 1; i < t->nodes; i++) {
        const struct mcts_node *n = &t->node[i];
        sum += n->reward;
        visits += n->scored;
        if (w.search.trial[n->id] < TRIAL_MEASURED)
            continue;
        measured++;
        double share = (double)w.search.speed[n->id] / t->fastest;
        assert_float_equal(n->reward, share < 1 ? share : 1, 1e-6);
    }
    assert_true(measured > 40);
    assert_float_equal(t->node[MCTS_ROOT].value, sum, 1e-6 * sum);
    assert_int_equal(t->node[MCTS_ROOT].visits, visits);
    strategy_mcts.close(state);
    world_close(&w);
}

/* Somebody whose line is taken most of the time is asked as often as one whose line is free, and
 * about the nodes that were wanted meanwhile. */
static void nodes_that_nobody_was_asked_about_are_wanted_again(void **unused)
{
    (void)unused;
    struct world w;
    int32_t id[2];
    world_open(&w, REGION_MLP_OUT, 4);
    struct oracle o = {.w = &w, .deaf = 70};
    struct mover mover = {&o, oracle_moves, oracle_want};
    w.search.mover = &mover;
    void *state = strategy_mcts.open(&w.search, 1);
    one_batch(&w, &strategy_mcts, state, 2, false, id);
    struct mcts_tree *t = state;
    for (int i = 1; i < t->nodes; i++)
        assert_int_equal(t->node[i].wanted, 0);
    for (int i = 0; i < 70; i++)
        one_batch(&w, &strategy_mcts, state, 2, false, id);
    assert_int_equal(o.deaf, 0);
    assert_int_equal(o.calls, 71);
    assert_int_equal(t->wants, 1);
    assert_true(o.n > 0);
    strategy_mcts.close(state);
    world_close(&w);
}

static void winners_of_neighbours_come_first(void **unused)
{
    (void)unused;
    struct world w;
    int32_t id[6];
    world_open(&w, REGION_MLP_OUT, 4);
    w.search.first = malloc(sizeof *w.search.first);
    w.search.first[0] = space_size(w.space) / 2;
    w.search.firsts = 1;
    void *state = strategy_mcts.open(&w.search, 1);
    assert_int_equal(strategy_mcts.propose(state, &w.search, id, 6), 6);
    assert_int_equal(id[0], w.search.first[0]);
    strategy_mcts.close(state);
    world_close(&w);
}

/* Sixteen points that a model named, of which one is measured on its word: the formula's favourites
 * among them are not hidden by that. */
static void what_an_untrusted_model_named_is_still_a_beginning(void **unused)
{
    (void)unused;
    struct world w;
    int32_t id[6];
    world_open(&w, REGION_MLP_OUT, 4);
    space_predict(w.space, &w.cost);
    advice_free(&w.heuristic);
    advise_heuristic(&w.request, &w.heuristic);
    const int32_t favourite = w.heuristic.priority[0];
    struct advice told = {.priority = xcalloc(16, sizeof(int32_t)), .priorities = 16};
    told.priority[0] = w.heuristic.priority[40];
    for (int i = 1; i < 16; i++)
        told.priority[i] = w.heuristic.priority[i - 1];
    advice_add_heuristic(&told, &w.heuristic);
    w.search.advice = &told;
    void *state = strategy_mcts.open(&w.search, 1);
    const struct mcts_tree *t = state;
    int n = strategy_mcts.propose(state, &w.search, id, 6), found = 0;
    for (int i = 0; i < n; i++)
        found += id[i] == favourite;
    assert_int_equal(found, 1);
    assert_true(t->of[favourite] > 0);
    assert_int_equal(t->node[t->of[favourite]].parent, MCTS_ROOT);
    strategy_mcts.close(state);
    advice_free(&told);
    w.search.advice = &w.heuristic;
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_finds_the_optimum_in_a_third_of_the_samples_of_chance),
        cmocka_unit_test(it_repeats_exactly_from_its_seed),
        cmocka_unit_test(it_never_leaves_the_legal_space),
        cmocka_unit_test(moves_that_are_right_save_samples_and_illegal_ones_cost_none),
        cmocka_unit_test(calls_for_moves_are_capped),
        cmocka_unit_test(rewards_are_by_the_yardstick_of_now),
        cmocka_unit_test(nodes_that_nobody_was_asked_about_are_wanted_again),
        cmocka_unit_test(winners_of_neighbours_come_first),
        cmocka_unit_test(what_an_untrusted_model_named_is_still_a_beginning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
