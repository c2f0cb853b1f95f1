/* SPDX-License-Identifier: Apache-2.0 */
/* Retrials, in the loop that pretends (loop_world.h): what made whole steps slower beside some
 * kernels is tried again beside others, and only then; what ends it; what operators, freezing and a
 * restart do to it. mlp_out/m1 and head/m1 share steps here; mlp_out loses whole steps while head
 * is eager.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "specializer/retrial.h"
#include "tests/unit/specializer/loop_world.h"

/* ---- what the store says ------------------------------------------------------------------- */

struct deferred {
    int n, most_lost;
    double speed;
    char best[24];
};

/* The sets beside which it lost, each once. */
static void check_sets(const struct losses *h)
{
    assert_true(h->n <= RETRIALS_MOST);
    for (int i = 0; i < h->n; i++)
        for (int k = 0; k < i; k++)
            assert_true(coresidents_hash(&h->among[i]) != coresidents_hash(&h->among[k]));
}

static void count_deferred(void *ctx, const struct record *r)
{
    struct deferred *a = ctx;
    check_sets(&r->evidence.lost);
    a->most_lost = r->evidence.lost.n > a->most_lost ? r->evidence.lost.n : a->most_lost;
    if (r->state != LIFE_DEFERRED || strcmp(r->slot, "mlp_out/m1") != 0)
        return;
    a->n++;
    assert_true(r->evidence.bench.low >= CLEAR_GAIN && r->evidence.lost.low >= CLEAR_GAIN);
    assert_non_null(strstr(r->reason, "canary: whole steps"));
    if (r->evidence.lost.speed > a->speed) {
        a->speed = r->evidence.lost.speed;
        snprintf(a->best, sizeof a->best, "%s", r->key);
    }
}

static struct deferred deferred(struct specializer *s)
{
    struct deferred a = {0};
    struct record_filter all = {0};
    store_each(s->store, &all, count_deferred, &a, NULL);
    return a;
}

struct told {
    const char *key; /* NULL: any */
    int times;
    char text[200];
};

static void count_retrials(void *ctx, const struct trace_row *row)
{
    struct told *t = ctx;
    if (strcmp(row->event, "retried") != 0 || (t->key && strcmp(row->key, t->key) != 0))
        return;
    t->times++;
    snprintf(t->text, sizeof t->text, "%s", row->text);
}

static struct told retried(struct specializer *s, const char *key)
{
    struct told t = {.key = key};
    store_traces(s->store, NULL, 0, 0, count_retrials, &t, NULL);
    return t;
}

struct counted {
    int n, times[16];
    char key[16][24];
};

static void count_key(void *ctx, const struct trace_row *row)
{
    struct counted *c = ctx;
    int i = 0;
    if (strcmp(row->event, "retried") != 0)
        return;
    while (i < c->n && strcmp(c->key[i], row->key) != 0)
        i++;
    if (i == c->n) {
        assert_true(c->n < 16);
        snprintf(c->key[c->n++], sizeof c->key[0], "%s", row->key);
    }
    c->times[i]++;
}

/* How often the kernel was tried again that was tried most often, and all that were are as fast as
 * the best: which ones depends on what the search found first, since many are equally fast here. */
static int most_retrials_of_one(struct specializer *s, double best)
{
    struct counted c = {0};
    struct record r;
    int most = 0;
    store_traces(s->store, NULL, 0, 0, count_key, &c, NULL);
    for (int i = 0; i < c.n; i++) {
        most = c.times[i] > most ? c.times[i] : most;
        assert_int_equal(store_get(s->store, c.key[i], &r, NULL), 1);
        free(r.log);
        assert_true(r.evidence.lost.speed > best * 0.999);
    }
    return most;
}

static void note_last(void *ctx, const struct trace_row *row) /* newest first */
{
    char *last = ctx;
    if (!last[0] && (strcmp(row->event, "asleep") == 0 || strcmp(row->event, "batch") == 0 ||
                     strcmp(row->event, "retried") == 0))
        snprintf(last, 20, "%s", row->event);
}

/* The last that was told of the search is that nothing is worth looking at. */
static bool settled(struct specializer *s)
{
    char last[20] = "";
    store_traces(s->store, NULL, 0, 0, note_last, last, NULL);
    return strcmp(last, "asleep") == 0 && asleep(s);
}

/* The search has gone round, and whatever it would try again was tried. */
static void let_it_go_round(struct specializer *s)
{
    int turns = atomic_load(&fake.turns);
    WAIT_FOR(atomic_load(&fake.turns) > turns + 2 && settled(s));
}

/* What operators are told of a slot on eager. */
static void assert_why(struct specializer *s, const char *slot, const char *why)
{
    char *text = NULL;
    cJSON *o = json_of(ANSWER_DONE, specializer_slots(s, slot, &text), &text);
    assert_string_equal(cJSON_GetObjectItem(o, "why")->valuestring, why);
    cJSON_Delete(o);
}

/* A store in which mlp_out has lost all that was clear, among eager kernels alone. */
static struct deferred lose_among_eager(void)
{
    atomic_store(&fake.shy, "mlp_out/m1");
    struct specializer *s = start("--specializer-slots", "mlp_out");
    WAIT_FOR(settled(s));
    assert_false(specialized("mlp_out/m1"));
    struct deferred a = deferred(s);
    assert_true(a.n > 0);
    assert_int_equal(a.most_lost, 1);
    assert_int_equal(retried(s, NULL).times, 0); /* nothing changed around it */
    assert_why(s, "mlp_out/m1", "canary: whole steps -1.0 % [-2.0, -0.5]");
    assert_why(s, "head/m1", "left out by specializer.slots");
    stop(s);
    return a;
}

/* ---- the rule ------------------------------------------------------------------------------ */

static void
a_clear_gain_is_tried_again_when_its_neighbours_changed_even_after_a_restart(void **unused)
{
    (void)unused;
    struct record r;
    lose_among_eager();
    atomic_store(&fake.needs, "head/m1");
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && settled(s));
    assert_int_equal(store_get(s->store, serving("mlp_out/m1")->id, &r, NULL), 1);
    free(r.log);
    struct told t = retried(s, r.key);
    assert_true(t.times >= 1);
    assert_non_null(strstr(t.text, "head/m1 changed since; trial "));
    assert_true(r.evidence.lost.n >= 1 && retried(s, NULL).times >= 1);
    assert_true(r.evidence.probe_cases > 0 && r.evidence.bench.pairs > 0); /* proved again */
    stop(s);
    s = start("--specializer-paused", "true"); /* a winner like any other */
    WAIT_FOR(strcmp(serving("mlp_out/m1")->id, r.key) == 0);
    stop(s);
}

/* The same in one life: the search of the slot is over when its neighbour changes. */
static void a_slot_whose_search_is_over_has_retrials_too(void **unused)
{
    (void)unused;
    char *text = NULL;
    atomic_store(&fake.shy, "mlp_out/m1");
    atomic_store(&fake.needs, "head/m1");
    struct specializer *s = start(NULL, NULL);
    expect(ANSWER_DONE, specializer_pin(s, "head/m1", "eager", "r1", &text), &text);
    WAIT_FOR(settled(s) && deferred(s).n > 0);
    assert_false(specialized("mlp_out/m1") || specialized("head/m1"));
    expect(ANSWER_DONE, specializer_unpin(s, "head/m1", "r2", &text), &text);
    WAIT_FOR(specialized("head/m1") && specialized("mlp_out/m1"));
    assert_true(retried(s, serving("mlp_out/m1")->id).times >= 1);
    stop(s);
}

/* Swaps that go to and fro make no set beside which it has not lost. */
static void nothing_is_tried_twice_beside_the_same_kernels(void **unused)
{
    (void)unused;
    char *text = NULL, id[24];
    struct deferred a = lose_among_eager();
    struct specializer *s = start("--specializer-slots", "head,mlp_out"); /* it always loses now */
    WAIT_FOR(specialized("head/m1") && settled(s) && retried(s, NULL).times > 0);
    snprintf(id, sizeof id, "%s", serving("head/m1")->id);
    for (int i = 0; i < 4; i++) {
        expect(ANSWER_DONE, specializer_pin(s, "head/m1", i % 2 ? id : "eager", "r", &text), &text);
        WAIT_FOR(specialized("head/m1") == (i % 2 != 0));
        let_it_go_round(s);
    }
    assert_false(specialized("mlp_out/m1"));
    assert_true(deferred(s).most_lost <= RETRIALS_MOST);
    int most = most_retrials_of_one(s, a.speed);
    int times = retried(s, NULL).times, canaries = atomic_load(&fake.canaries);
    assert_true(most >= 1 && most < RETRIALS_MOST);
    for (int i = 0; i < 4; i++) { /* all of these it knows */
        expect(ANSWER_DONE, specializer_pin(s, "head/m1", i % 2 ? id : "eager", "r", &text), &text);
        WAIT_FOR(specialized("head/m1") == (i % 2 != 0));
        let_it_go_round(s);
    }
    assert_int_equal(retried(s, NULL).times, times);
    assert_int_equal(atomic_load(&fake.canaries), canaries);
    stop(s);
}

/* Operators may put the old kernels back while one is tried beside new ones. */
static void a_set_that_came_back_during_a_retrial_is_noted_once(void **unused)
{
    (void)unused;
    struct specializer *s = start("--specializer-paused", "true");
    struct candidate c = {.steps = STEPS_SLOWER};
    c.evidence.bench.low = CLEAR_GAIN;
    for (int i = 0; i < 2; i++) {
        assert_true(retrial_defer(s, slot_search_find(s, "mlp_out/m1"), &c));
        check_sets(&c.evidence.lost);
        assert_int_equal(c.evidence.lost.n, 1);
    }
    stop(s);
}

/* A pin and a disable hold for who waits, too. */
static void operators_keep_a_retrial_from_beginning(void **unused)
{
    (void)unused;
    char *text = NULL;
    struct deferred a = lose_among_eager();
    atomic_store(&fake.needs, "head/m1");
    struct specializer *s = start("--specializer-paused", "true");
    expect(ANSWER_DONE, specializer_pin(s, "mlp_out/m1", "eager", "r1", &text), &text);
    expect(ANSWER_DONE, specializer_disable(s, a.best, "not that one", "r2", &text), &text);
    expect(ANSWER_DONE, specializer_set_mode(s, SPECIALIZER_RUN, "r3", &text), &text);
    WAIT_FOR(specialized("head/m1") && settled(s));
    let_it_go_round(s);
    assert_int_equal(retried(s, NULL).times, 0);
    assert_why(s, "mlp_out/m1", "pinned to it");
    expect(ANSWER_DONE, specializer_unpin(s, "mlp_out/m1", "r4", &text), &text);
    WAIT_FOR(retried(s, NULL).times > 0 && specialized("mlp_out/m1") && settled(s));
    assert_int_equal(retried(s, a.best).times, 0);
    assert_string_not_equal(serving("mlp_out/m1")->id, a.best);
    stop(s);
}

/* Frozen, nothing is tried, whatever changed; the thaw, after a restart, finds it all. */
static void frozen_nothing_is_tried_again(void **unused)
{
    (void)unused;
    char *text = NULL;
    lose_among_eager();
    atomic_store(&fake.needs, "head/m1");
    struct specializer *s = start("--specializer-paused", "true");
    expect(ANSWER_DONE, specializer_pin(s, "mlp_out/m1", "eager", "r1", &text), &text);
    expect(ANSWER_DONE, specializer_set_mode(s, SPECIALIZER_RUN, "r2", &text), &text);
    WAIT_FOR(specialized("head/m1") && settled(s));
    expect(ANSWER_DONE, specializer_set_mode(s, SPECIALIZER_FREEZE, "r3", &text), &text);
    expect(ANSWER_DONE, specializer_unpin(s, "mlp_out/m1", "r4", &text), &text);
    int canaries = atomic_load(&fake.canaries);
    for (int life = 0; life < 2; life++) {
        WAIT_FOR(specialized("head/m1") && atomic_load(&s->doing) == DOING_FROZEN);
        uint64_t looks = atomic_load(&s->counts.audits);
        WAIT_FOR(atomic_load(&s->counts.audits) > looks + 10); /* the loop goes round */
        assert_int_equal(atomic_load(&fake.canaries), canaries);
        assert_int_equal(retried(s, NULL).times, 0);
        assert_why(s, "mlp_out/m1", "canary: whole steps -1.0 % [-2.0, -0.5]"); /* kept */
        stop(s);
        s = start(NULL, NULL);
    }
    expect(ANSWER_DONE, specializer_set_mode(s, SPECIALIZER_RUN, "r5", &text), &text);
    WAIT_FOR(specialized("mlp_out/m1") && retried(s, NULL).times > 0);
    stop(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_clear_gain_is_tried_again_when_its_neighbours_changed_even_after_a_restart),
        TEST(a_slot_whose_search_is_over_has_retrials_too),
        TEST(nothing_is_tried_twice_beside_the_same_kernels),
        TEST(a_set_that_came_back_during_a_retrial_is_noted_once),
        TEST(operators_keep_a_retrial_from_beginning),
        TEST(frozen_nothing_is_tried_again),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
