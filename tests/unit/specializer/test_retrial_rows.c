/* SPDX-License-Identifier: Apache-2.0 */
/* Which deferred kernel of the store is tried again, and whether now: retrial.c, decision by
 * decision. What is deferred and beside what is in test_coresident.c, retrials in the loop in
 * test_retrial.c. */
#include "tests/unit/specializer/slot_world.h"

#include "specializer/retrial.c"

static const char slot[] = "mlp_out/m8";

static int open_rows(void **state)
{
    int rc = open_world(state);
    w.s.strategy = &strategy_template;
    w.config.specializer_min_gain = 0.02;
    snprintf(w.s.keys.env, sizeof w.s.keys.env, "env");
    return rc;
}

static int close_rows(void **state)
{
    free(w.s.locked.disabled);
    return close_world(state);
}

/* One that lost whole steps once, beside a kernel that serves no more. */
static struct record deferred(int key, double speed)
{
    struct record r = row_of(key, slot);
    template_source_hash(template_find(r.template), r.source);
    r.evidence.lost = (struct losses){.n = 1, .low = 0.25, .speed = speed};
    r.evidence.lost.among[0].n = 1;
    snprintf(r.evidence.lost.among[0].kernel[0].slot,
             sizeof r.evidence.lost.among[0].kernel[0].slot, "head/m8");
    snprintf(r.evidence.lost.among[0].kernel[0].key, sizeof r.evidence.lost.among[0].kernel[0].key,
             "feed");
    return r;
}

static void keep(const struct record *r, enum life state)
{
    struct err err = {""};
    if (store_move(w.s.store, r, state, "", NULL, &err) != 0)
        fail_msg("%s", err.msg);
}

/* The key of the kernel that is next, or "". */
static const char *next(void)
{
    struct slot_search *p = at(slot);
    p->retrial.dirty = true;
    find_next(&w.s, p);
    return p->retrial.key;
}

static void the_fastest_that_waits_comes_next(void **state)
{
    (void)state;
    const double speed[] = {1.3, 1.6, 1.5};
    assert_string_equal(next(), "");
    for (int i = 0; i < 3; i++) {
        struct record r = deferred(i + 1, speed[i]);
        keep(&r, LIFE_DEFERRED);
    }
    assert_string_equal(next(), "0000000000000002");
    /* a quarter faster is a fifth of the time, halved by a trial that was lost */
    assert_float_equal(at(slot)->retrial.promise, 0.1, 1e-12);
    struct record r = deferred(4, 1.7);
    r.evidence.lost.n = 2;
    r.evidence.lost.among[1] = r.evidence.lost.among[0];
    keep(&r, LIFE_DEFERRED);
    assert_string_equal(next(), "0000000000000004");
    assert_float_equal(at(slot)->retrial.promise, 0.05, 1e-12);
}

/* Those whose retrial was not finished wait as well; the others have had their verdict. */
static void only_who_has_no_verdict_waits(void **state)
{
    (void)state;
    for (int s = 0; s < LIFE_COUNT; s++) {
        struct record r = deferred(s + 1, 1.5 + s / 100.);
        char key[24];
        snprintf(key, sizeof key, "%016x", s + 1);
        keep(&r, (enum life)s);
        bool waits = s == LIFE_DEFERRED || s <= LIFE_CANARY;
        assert_int_equal(strcmp(next(), key) == 0, waits);
    }
}

static bool is_next(const struct record *r)
{
    keep(r, LIFE_DEFERRED);
    return strcmp(next(), r->key) == 0;
}

static void who_would_not_be_tried_by_anybody_does_not_wait(void **state)
{
    (void)state;
    struct record never = deferred(1, 1.5), other = deferred(2, 1.5), often = deferred(3, 1.5),
                  same = deferred(4, 1.5), good = deferred(5, 1.5), strange = deferred(6, 1.5);
    never.evidence.lost.n = 0; /* it lost no steps: the search proposes it */
    other.source[0] ^= 1;      /* its template has another text by now */
    often.evidence.lost.n = RETRIALS_MOST;
    same.evidence.lost.among[0].n = 0; /* among eager kernels, which serve now */
    snprintf(strange.template, sizeof strange.template, "nobody's");
    assert_false(is_next(&never) || is_next(&other) || is_next(&often));
    assert_false(is_next(&same) || is_next(&strange));
    assert_true(is_next(&good));
}

static void what_operators_disabled_does_not_wait(void **state)
{
    (void)state;
    struct record r = deferred(1, 1.5);
    assert_true(is_next(&r));
    w.s.locked.disabled = xcalloc(1, sizeof *w.s.locked.disabled);
    w.s.locked.disables = 1;
    snprintf(w.s.locked.disabled[0].what, NAME_MOST, "%s", r.key);
    assert_string_equal(next(), "");
    snprintf(w.s.locked.disabled[0].what, NAME_MOST, "%s", r.template);
    assert_string_equal(next(), "");
}

/* Better than what serves by what a kernel must gain: 1.4 * 1.02. */
static void it_has_to_beat_what_serves(void **state)
{
    (void)state;
    struct record r = deferred(1, 1.428), better = deferred(2, 1.429);
    at(slot)->locked.gain_eager = 0.4;
    assert_false(is_next(&r));
    assert_true(is_next(&better));
}

/* ---- now or not -------------------------------------------------------------------------------
 */

/* As after a look into the store. */
static struct slot_search *found(void)
{
    struct slot_search *p = at(slot);
    p->retrial.some = true;
    p->retrial.set = retrial_coresident(&w.s, p);
    snprintf(p->retrial.key, sizeof p->retrial.key, "0123456789abcdef");
    return p;
}

static void a_retrial_is_due_unless_the_slot_is_taken(void **state)
{
    (void)state;
    struct slot_search *p = found();
    struct candidate c = {.state = LIFE_BENCHED};
    static const struct strategy none = {.name = "none"};
    assert_true(retrial_due(&w.s, p));
    p->left_out = true;
    assert_false(retrial_due(&w.s, p));
    p->left_out = false;
    p->promoted.c = &c;
    assert_false(retrial_due(&w.s, p));
    p->promoted.c = NULL;
    snprintf(p->locked.pinned, sizeof p->locked.pinned, "eager");
    assert_false(retrial_due(&w.s, p));
    p->locked.pinned[0] = 0;
    p->not_before_ns = clock_ns() + INT64_C(3600000000000);
    assert_false(retrial_due(&w.s, p));
    p->not_before_ns = 0;
    w.s.strategy = &none;
    assert_int_equal(retrial_due(&w.s, p), strategy_proposes(&none));
    w.s.strategy = &strategy_template;
    p->retrial.some = false;
    assert_false(retrial_due(&w.s, p));
    p->retrial.some = true;
    assert_true(retrial_due(&w.s, p));
    p->retrial.key[0] = 0;
    assert_false(retrial_due(&w.s, p));
}

/* The store is asked again when something may have changed, and not before. */
static void the_next_one_is_looked_up_when_something_changed(void **state)
{
    (void)state;
    struct record r = deferred(1, 1.5);
    keep(&r, LIFE_DEFERRED);
    struct slot_search *p = found();
    find_next(&w.s, p);
    assert_string_equal(p->retrial.key, "0123456789abcdef");
    p->retrial.dirty = true;
    find_next(&w.s, p);
    assert_string_equal(p->retrial.key, r.key);
    assert_false(p->retrial.dirty);
    found();
    serve("mlp_in/m8", 9); /* another set */
    find_next(&w.s, p);
    assert_string_equal(p->retrial.key, r.key);
    assert_true(p->retrial.set == retrial_coresident(&w.s, p));
}

static void a_set_has_two_retrials_and_the_last_sets_are_remembered(void **state)
{
    (void)state;
    struct slot_search *p = found();
    for (int i = 0; i < RETRIALS_A_SET; i++) {
        assert_true(retrial_due(&w.s, p));
        assert_int_equal(held(p, false), i);
        assert_int_equal(held(p, true), i + 1);
    }
    assert_false(retrial_due(&w.s, p));
    uint64_t mine = p->retrial.set;
    for (int i = 1; i < SETS_REMEMBERED; i++) {
        p->retrial.set = mine + (uint64_t)i;
        assert_int_equal(held(p, false), 0);
        assert_int_equal(held(p, true), 1);
    }
    p->retrial.set = mine;
    assert_int_equal(held(p, false), RETRIALS_A_SET);
    p->retrial.set = mine + SETS_REMEMBERED;
    held(p, true); /* one more than there is room for: the first is forgotten */
    p->retrial.set = mine;
    assert_int_equal(held(p, false), 0);
    p->retrial.set = mine + 1;
    assert_int_equal(held(p, false), 1);
}

/* After a start. */
static void slots_with_deferred_kernels_are_recalled(void **state)
{
    (void)state;
    struct record r = deferred(1, 1.5), lost_none = row_of(2, "head/m8"), gone = deferred(3, 1.5);
    snprintf(gone.slot, sizeof gone.slot, "head/m1");
    keep(&r, LIFE_DEFERRED);
    keep(&lost_none, LIFE_DEFERRED);
    keep(&gone, LIFE_REFUSED);
    retrials_recall(&w.s);
    assert_true(at(slot)->retrial.some && at(slot)->retrial.dirty);
    assert_false(at("head/m8")->retrial.some || at("head/m1")->retrial.some);
}

/* ---- deferring --------------------------------------------------------------------------------
 */

static void what_is_deferred_is_looked_up_with_its_bench(void **state)
{
    (void)state;
    static const char *const other[] = {"mlp_in/m8", "head/m8", "attn_in/m8", "attn_out/m8"};
    struct slot_search *p = at(slot);
    struct candidate c = {.steps = STEPS_SLOWER};
    c.evidence.bench = (struct gain){50, 0.2, CLEAR_GAIN, 0.3};
    c.evidence.speed = 1.3;
    assert_true(retrial_defer(&w.s, p, &c));
    assert_true(p->retrial.some && p->retrial.dirty);
    assert_true(c.evidence.lost.low == CLEAR_GAIN && c.evidence.lost.speed == 1.3);
    assert_int_equal(c.evidence.lost.n, 1);
    assert_true(retrial_defer(&w.s, p, &c)); /* beside the same kernels: noted once */
    assert_int_equal(c.evidence.lost.n, 1);
    c.evidence.bench.low = 0.09; /* its mean is clear, and not it */
    assert_false(retrial_defer(&w.s, p, &c));
    c.steps = STEPS_UNDECIDED; /* no verdict: whatever the bench said, and however often */
    for (int i = 0; i < RETRIALS_MOST + 1; i++) {
        serve(other[i], 20 + i);
        assert_true(retrial_defer(&w.s, p, &c));
    }
    assert_int_equal(c.evidence.lost.n, RETRIALS_MOST);
}

/* Of several trials the last one says what was there then. */
static void what_changed_is_told_since_the_last_trial(void **state)
{
    (void)state;
    struct slot_search *p = at(slot);
    struct candidate c = {.steps = STEPS_SLOWER, .evidence = {.bench = {50, 0.3, 0.2, 0.4}}};
    char words[160];
    assert_true(retrial_defer(&w.s, p, &c));
    serve("mlp_in/m8", 30);
    assert_true(retrial_defer(&w.s, p, &c));
    serve("head/m8", 31);
    changed_since(&w.s, p, &c.evidence.lost, words, sizeof words);
    assert_string_equal(words, "head/m8");
    serve("attn_in/m8", 32);
    serve("attn_out/m8", 33);
    changed_since(&w.s, p, &c.evidence.lost, words, sizeof words);
    assert_string_equal(words, "attn_in/m8, attn_out/m8, head/m8");
}

#define ROWS_TEST(f) cmocka_unit_test_setup_teardown(f, open_rows, close_rows)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ROWS_TEST(the_fastest_that_waits_comes_next),
        ROWS_TEST(only_who_has_no_verdict_waits),
        ROWS_TEST(who_would_not_be_tried_by_anybody_does_not_wait),
        ROWS_TEST(what_operators_disabled_does_not_wait),
        ROWS_TEST(it_has_to_beat_what_serves),
        ROWS_TEST(a_retrial_is_due_unless_the_slot_is_taken),
        ROWS_TEST(the_next_one_is_looked_up_when_something_changed),
        ROWS_TEST(a_set_has_two_retrials_and_the_last_sets_are_remembered),
        ROWS_TEST(slots_with_deferred_kernels_are_recalled),
        ROWS_TEST(what_is_deferred_is_looked_up_with_its_bench),
        ROWS_TEST(what_changed_is_told_since_the_last_trial),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
