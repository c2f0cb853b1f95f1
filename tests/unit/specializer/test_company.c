/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of specializer/hearing.c piece by piece: what a kernel's company is, who is adjourned,
 * whose turn it is. Hearings themselves are held in test_hearing.c. */
#include "tests/unit/unit.h"

#include "specializer/hearing.c"

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
    w->dispatch = dispatch_open(table);
    w->s.config = &w->config;
    w->s.strategy = &strategy_template;
    w->s.places = dispatch_slots(w->dispatch);
    w->s.place = calloc((size_t)w->s.places, sizeof *w->s.place);
    for (int i = 0; i < w->s.places; i++)
        w->s.place[i].slot = dispatch_slot_at(w->dispatch, i);
    pthread_mutexattr_t recursive;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&w->s.lock, &recursive);
    pthread_mutexattr_destroy(&recursive);
    *state = w;
    return 0;
}

static int close_world(void **state)
{
    struct world *w = *state;
    pthread_mutex_destroy(&w->s.lock);
    dispatch_close(w->dispatch);
    free(w->s.place);
    free(w);
    return 0;
}

static struct place *place(struct world *w, const char *slot)
{
    struct place *p = place_find(&w->s, slot);
    assert_non_null(p);
    return p;
}

static void specialize(struct world *w, const char *slot, bool on)
{
    struct slot *s = place(w, slot)->slot;
    dispatch_publish(w->dispatch, s, on ? &w->fast : s->eager);
}

static struct candidate lost(enum steps_say steps, double low)
{
    struct candidate c = {.steps = steps, .evidence = {.bench = {48, low + 0.1, low, low + 0.2}}};
    c.evidence.speed = 1.1 + low;
    return c;
}

static void company_is_the_other_regions_of_the_same_bucket(void **state)
{
    struct world *w = *state;
    struct place *p = place(w, "attn_in/m8"), *attention = place(w, "attn/m8/c512");
    static const char *const strangers[] = {"attn_in/m8", "mlp_in/m6", "head/m1", "attn/m1/c512"};
    uint64_t alone = hearing_company(&w->s, p), attentive = hearing_company(&w->s, attention);
    for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++)
        specialize(w, strangers[i], true);
    assert_true(hearing_company(&w->s, p) == alone);
    specialize(w, "attn/m8/c2048", true); /* of other regions any context counts */
    assert_true(hearing_company(&w->s, p) != alone);
    specialize(w, "attn_in/m8", false);
    assert_true(hearing_company(&w->s, attention) == attentive); /* of its own none does */
    specialize(w, "attn/m8/c2048", false);
    assert_true(hearing_company(&w->s, p) == alone);
}

static void only_time_and_a_clear_bench_are_adjourned_and_not_for_ever(void **state)
{
    struct world *w = *state;
    struct place *p = place(w, "attn_in/m8");
    static const char *const others[] = {"mlp_in/m8", "mlp_out/m8", "head/m8"};
    struct candidate wrong = lost(STEPS_UNSEEN, 0.5), small = lost(STEPS_SLOWER, 0.05),
                     written = lost(STEPS_SLOWER, 0.5), open = lost(STEPS_UNDECIDED, 0.05),
                     clear = lost(STEPS_SLOWER, 0.5);
    snprintf(written.body, sizeof written.body, "a text");
    assert_false(hearing_adjourn(&w->s, p, &wrong));
    assert_false(hearing_adjourn(&w->s, p, &small));
    assert_false(hearing_adjourn(&w->s, p, &written));
    assert_false(p->hearing.some);
    assert_true(hearing_adjourn(&w->s, p, &open));
    assert_true(p->hearing.some);
    for (int i = 0; i < HEARINGS_MOST; i++) {
        assert_true(hearing_allowed(&w->s, p, &clear.evidence.heard));
        assert_int_equal(hearing_adjourn(&w->s, p, &clear), i + 1 < HEARINGS_MOST);
        assert_false(hearing_allowed(&w->s, p, &clear.evidence.heard)); /* not in this company */
        specialize(w, others[i], true);
    }
    assert_false(hearing_allowed(&w->s, p, &clear.evidence.heard)); /* nor in any other */
    assert_string_equal(clear.evidence.heard.among,
                        "eager; mlp_in/m8=01234567; mlp_in/m8=01234567 mlp_out/m8=01234567");
    for (int i = 0; i < HEARINGS_MOST; i++)
        specialize(w, others[i], false);
    assert_false(hearing_allowed(&w->s, p, &open.evidence.heard));
    specialize(w, "mlp_in/m8", true);
    assert_true(hearing_allowed(&w->s, p, &open.evidence.heard));
}

/* Whatever serves around it, its name is in the row whole. */
static void the_largest_company_fits(void **state)
{
    struct world *w = *state;
    struct place *p = place(w, "mlp_out/m1024");
    char company[COMPANY_TEXT];
    for (int i = 0; i < w->s.places; i++)
        dispatch_publish(w->dispatch, w->s.place[i].slot, &w->fast);
    company_of(&w->s, p, company);
    assert_true(strlen(company) < COMPANY_TEXT - 1);
    assert_non_null(strstr(company, "head/m1024=01234567"));
}

static void what_changed_since_is_named(void **state)
{
    struct world *w = *state;
    struct place *p = place(w, "attn_in/m8");
    struct candidate c = lost(STEPS_SLOWER, 0.5);
    char words[160];
    specialize(w, "mlp_in/m8", true);
    hearing_adjourn(&w->s, p, &c);
    specialize(w, "mlp_in/m8", false);
    changed_since(&w->s, p, &c.evidence.heard, words, sizeof words);
    assert_string_equal(words, "mlp_in/m8"); /* back on eager is a change too */
    specialize(w, "mlp_out/m8", true);
    changed_since(&w->s, p, &c.evidence.heard, words, sizeof words);
    assert_string_equal(words, "mlp_in/m8, mlp_out/m8");
    specialize(w, "head/m8", true);
    specialize(w, "attn/m8/c256", true);
    specialize(w, "attn_out/m8", true);
    changed_since(&w->s, p, &c.evidence.heard, words, sizeof words);
    assert_string_equal(words, "attn/m8/c256, attn_out/m8, mlp_in/m8 and 2 more");
}

/* As after a look into the store. */
static void waits(struct world *w, const char *slot, double share, double promise)
{
    struct place *p = place(w, slot);
    p->share = share;
    p->hearing.some = true;
    p->hearing.company = hearing_company(&w->s, p);
    p->hearing.promise = promise;
    snprintf(p->hearing.key, sizeof p->hearing.key, "0123456789abcdef");
}

static void a_hearing_waits_while_new_candidates_are_worth_more(void **state)
{
    struct world *w = *state;
    assert_null(hearing_choose(&w->s, 0));
    waits(w, "attn_in/m8", 0.2, 0.1);
    waits(w, "mlp_in/m8", 0.5, 0.06);
    waits(w, "head/m8", 0.001, 0.5); /* below the floor of all worth */
    assert_ptr_equal(hearing_choose(&w->s, 0), place(w, "mlp_in/m8"));
    assert_ptr_equal(hearing_choose(&w->s, 0.029), place(w, "mlp_in/m8"));
    assert_null(hearing_choose(&w->s, 0.031));
    struct place *p = place(w, "mlp_in/m8");
    assert_int_equal(held(p, true), 1);
    assert_int_equal(held(p, true), HEARINGS_A_COMPANY);
    assert_ptr_equal(hearing_choose(&w->s, 0), place(w, "attn_in/m8"));
    snprintf(place(w, "attn_in/m8")->pinned, 24, "eager");
    assert_null(hearing_choose(&w->s, 0));
}

int main(void)
{
#define WORLD_TEST(f) cmocka_unit_test_setup_teardown(f, open_world, close_world)
    const struct CMUnitTest tests[] = {
        WORLD_TEST(company_is_the_other_regions_of_the_same_bucket),
        WORLD_TEST(only_time_and_a_clear_bench_are_adjourned_and_not_for_ever),
        WORLD_TEST(the_largest_company_fits),
        WORLD_TEST(what_changed_since_is_named),
        WORLD_TEST(a_hearing_waits_while_new_candidates_are_worth_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
