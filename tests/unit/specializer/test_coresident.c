/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of specializer/retrial.c piece by piece: what a kernel's co-resident kernels are,
 * what is deferred, which comes next. Retrials themselves are in test_retrial.c. */
#include "tests/unit/unit.h"

#include "specializer/candidate/evidence.h"
#include "specializer/retrial.c"

struct world {
    struct dispatch *dispatch;
    struct kernel eager[REGION_COUNT], fast;
    struct specializer s;
    struct config config;
};

static int open_world(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    const struct kernel *table[REGION_COUNT];
    for (int r = 0; r < REGION_COUNT; r++)
        table[r] = &w->eager[r];
    w->fast = (struct kernel){.id = "0123456789abcdef", .origin = ORIGIN_TEMPLATE};
    w->dispatch = dispatch_open(table, NULL);
    w->s.config = &w->config;
    w->s.strategy = &strategy_template;
    w->s.slot_searches = dispatch_slots(w->dispatch);
    w->s.slot_search = calloc((size_t)w->s.slot_searches, sizeof *w->s.slot_search);
    for (int i = 0; i < w->s.slot_searches; i++)
        w->s.slot_search[i].slot = dispatch_slot_at(w->dispatch, i);
    pthread_mutex_init(&w->s.lock, NULL);
    *state = w;
    return 0;
}

static int close_world(void **state)
{
    struct world *w = *state;
    pthread_mutex_destroy(&w->s.lock);
    dispatch_close(w->dispatch);
    free(w->s.slot_search);
    free(w);
    return 0;
}

static struct slot_search *slot_search(struct world *w, const char *slot)
{
    struct slot_search *p = slot_search_find(&w->s, slot);
    assert_non_null(p);
    return p;
}

static void specialize(struct world *w, const char *slot, bool on)
{
    struct slot *s = slot_search(w, slot)->slot;
    dispatch_publish(w->dispatch, s, on ? &w->fast : s->eager);
}

static struct candidate lost(enum steps_say steps, double low)
{
    struct candidate c = {.steps = steps, .evidence = {.bench = {48, low + 0.1, low, low + 0.2}}};
    c.evidence.speed = 1.1 + low;
    return c;
}

static void coresident_are_the_other_regions_of_the_same_bucket(void **state)
{
    struct world *w = *state;
    struct slot_search *p = slot_search(w, "attn_in/m8"),
                       *attention = slot_search(w, "attn/m8/c512");
    static const char *const unrelated[] = {"attn_in/m8", "mlp_in/m6", "head/m1", "attn/m1/c512"};
    uint64_t alone = retrial_coresident(&w->s, p), attentive = retrial_coresident(&w->s, attention);
    for (size_t i = 0; i < sizeof unrelated / sizeof *unrelated; i++)
        specialize(w, unrelated[i], true);
    assert_true(retrial_coresident(&w->s, p) == alone);
    specialize(w, "attn/m8/c2048", true); /* of other regions any context counts */
    assert_true(retrial_coresident(&w->s, p) != alone);
    specialize(w, "attn_in/m8", false);
    assert_true(retrial_coresident(&w->s, attention) == attentive); /* of its own none does */
    specialize(w, "attn/m8/c2048", false);
    assert_true(retrial_coresident(&w->s, p) == alone);
}

static void only_time_and_a_clear_bench_are_deferred_and_not_for_ever(void **state)
{
    struct world *w = *state;
    struct slot_search *p = slot_search(w, "attn_in/m8");
    static const char *const others[] = {"mlp_in/m8", "mlp_out/m8", "head/m8"};
    struct candidate wrong = lost(STEPS_UNSEEN, 0.5), small = lost(STEPS_SLOWER, 0.05),
                     written = lost(STEPS_SLOWER, 0.5), open = lost(STEPS_UNDECIDED, 0.05),
                     clear = lost(STEPS_SLOWER, 0.5);
    snprintf(written.body, sizeof written.body, "a text");
    assert_false(retrial_defer(&w->s, p, &wrong));
    assert_false(retrial_defer(&w->s, p, &small));
    assert_false(retrial_defer(&w->s, p, &written));
    assert_false(p->retrial.some);
    assert_true(retrial_defer(&w->s, p, &open));
    assert_true(p->retrial.some);
    for (int i = 0; i < RETRIALS_MOST; i++) {
        assert_true(retrial_allowed(&w->s, p, &clear.evidence.lost));
        assert_int_equal(retrial_defer(&w->s, p, &clear), i + 1 < RETRIALS_MOST);
        assert_false(retrial_allowed(&w->s, p, &clear.evidence.lost)); /* not beside these */
        specialize(w, others[i], true);
    }
    assert_false(retrial_allowed(&w->s, p, &clear.evidence.lost)); /* nor beside others */
    const struct coresidents *among = clear.evidence.lost.among;
    assert_int_equal(among[0].n, 0);
    assert_int_equal(among[1].n, 1);
    assert_int_equal(among[2].n, 2);
    assert_string_equal(among[2].kernel[0].slot, "mlp_in/m8");
    assert_string_equal(among[2].kernel[1].slot, "mlp_out/m8");
    assert_string_equal(among[2].kernel[1].key, "01234567");
    for (int i = 0; i < RETRIALS_MOST; i++)
        specialize(w, others[i], false);
    assert_false(retrial_allowed(&w->s, p, &open.evidence.lost));
    specialize(w, "mlp_in/m8", true);
    assert_true(retrial_allowed(&w->s, p, &open.evidence.lost));
}

/* Whatever serves around it is in the row, and comes back from there. */
static void the_largest_set_is_kept(void **state)
{
    struct world *w = *state;
    struct slot_search *p = slot_search(w, "mlp_out/m1024");
    struct candidate c = lost(STEPS_SLOWER, 0.5);
    struct evidence back = {0};
    for (int i = 0; i < w->s.slot_searches; i++)
        dispatch_publish(w->dispatch, w->s.slot_search[i].slot, &w->fast);
    retrial_defer(&w->s, p, &c);
    const struct coresidents *set = &c.evidence.lost.among[0];
    assert_true(set->n > CONTEXT_BUCKETS);
    assert_string_equal(set->kernel[set->n - 1].slot, "head/m1024");
    cJSON *json = evidence_json(&c.evidence);
    evidence_read(&back, json);
    assert_int_equal(back.lost.n, 1);
    assert_true(coresidents_hash(&back.lost.among[0]) == coresidents_hash(set));
    assert_false(retrial_allowed(&w->s, p, &back.lost));
    cJSON_Delete(json);
}

/* A store is a file that anybody may have written, or an older whet. */
static void sets_of_strange_rows_are_read_as_far_as_they_go(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        int n, kernels;
    } row[] = {
        {"{\"lost_n\": 2, \"lost_among\": \"eager; mlp_in/m8=01234567\"}", 2, 0},
        {"{\"lost_n\": 900, \"lost_among\": [{\"head/m8\": \"01234567\"}, 5]}", RETRIALS_MOST, 1},
        {"{\"lost_n\": -4, \"lost_among\": [{\"head/m8\": \"01234567\"}]}", 0, 0},
        {"{\"lost_n\": 1, \"lost_among\": [{\"mlp_in/m8\": 7,"
         " \"head/m8\": \"0123456789abcdef\"}]}",
         1, 1},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct evidence e = {0};
        cJSON *json = cJSON_Parse(row[i].json);
        assert_non_null(json);
        evidence_read(&e, json);
        assert_int_equal(e.lost.n, row[i].n);
        assert_int_equal(e.lost.among[0].n, row[i].kernels);
        if (row[i].kernels > 0)
            assert_string_equal(e.lost.among[0].kernel[0].key, "01234567");
        cJSON_Delete(json);
    }
}

static void what_changed_since_is_named(void **state)
{
    struct world *w = *state;
    struct slot_search *p = slot_search(w, "attn_in/m8");
    struct candidate c = lost(STEPS_SLOWER, 0.5);
    char words[160];
    specialize(w, "mlp_in/m8", true);
    retrial_defer(&w->s, p, &c);
    specialize(w, "mlp_in/m8", false);
    changed_since(&w->s, p, &c.evidence.lost, words, sizeof words);
    assert_string_equal(words, "mlp_in/m8"); /* back on eager is a change too */
    specialize(w, "mlp_out/m8", true);
    changed_since(&w->s, p, &c.evidence.lost, words, sizeof words);
    assert_string_equal(words, "mlp_in/m8, mlp_out/m8");
    specialize(w, "head/m8", true);
    specialize(w, "attn/m8/c256", true);
    specialize(w, "attn_out/m8", true);
    changed_since(&w->s, p, &c.evidence.lost, words, sizeof words);
    assert_string_equal(words, "attn/m8/c256, attn_out/m8, mlp_in/m8 and 2 more");
}

/* As after a look into the store. */
static void waits(struct world *w, const char *slot, double share, double promise)
{
    struct slot_search *p = slot_search(w, slot);
    p->locked.share = share;
    p->retrial.some = true;
    p->retrial.set = retrial_coresident(&w->s, p);
    p->retrial.promise = promise;
    snprintf(p->retrial.key, sizeof p->retrial.key, "0123456789abcdef");
}

static void a_retrial_waits_while_new_candidates_are_worth_more(void **state)
{
    struct world *w = *state;
    assert_null(retrial_choose(&w->s, 0));
    waits(w, "attn_in/m8", 0.2, 0.1);
    waits(w, "mlp_in/m8", 0.5, 0.06);
    waits(w, "head/m8", 0.001, 0.5); /* below the least worth */
    assert_ptr_equal(retrial_choose(&w->s, 0), slot_search(w, "mlp_in/m8"));
    assert_ptr_equal(retrial_choose(&w->s, 0.029), slot_search(w, "mlp_in/m8"));
    assert_null(retrial_choose(&w->s, 0.031));
    struct slot_search *p = slot_search(w, "mlp_in/m8");
    assert_int_equal(held(p, true), 1);
    assert_int_equal(held(p, true), RETRIALS_A_SET);
    assert_ptr_equal(retrial_choose(&w->s, 0), slot_search(w, "attn_in/m8"));
    snprintf(slot_search(w, "attn_in/m8")->locked.pinned, 24, "eager");
    assert_null(retrial_choose(&w->s, 0));
}

int main(void)
{
#define WORLD_TEST(f) cmocka_unit_test_setup_teardown(f, open_world, close_world)
    const struct CMUnitTest tests[] = {
        WORLD_TEST(coresident_are_the_other_regions_of_the_same_bucket),
        WORLD_TEST(only_time_and_a_clear_bench_are_deferred_and_not_for_ever),
        WORLD_TEST(the_largest_set_is_kept),
        cmocka_unit_test(sets_of_strange_rows_are_read_as_far_as_they_go),
        WORLD_TEST(what_changed_since_is_named),
        WORLD_TEST(a_retrial_waits_while_new_candidates_are_worth_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
