/* SPDX-License-Identifier: Apache-2.0 */
/* Promotions of several slots, in the loop that pretends (loop_world.h): what waits for live steps
 * at the same time is judged together, and one that is bad takes no other with it. mlp_out/m1 and
 * head/m1 share steps here.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "specializer/fleet/fleet_private.h"
#include "tests/unit/specializer/loop_world.h"

struct found {
    int active, together, gone;
};

static void look_at(void *ctx, const struct record *r)
{
    struct found *f = ctx;
    if (r->state == LIFE_ACTIVE) {
        f->active++;
        f->together += r->evidence.together == 2;
    }
    f->gone += r->state == LIFE_ROLLED_BACK;
}

static struct found look(struct specializer *s)
{
    struct found f = {0};
    struct record_filter all = {0};
    store_each(s->store, &all, look_at, &f, NULL);
    return f;
}

/* The first candidates of both slots are benched while there is no traffic. */
static struct specializer *start_together(void)
{
    /* An opening needs to have seen some. */
    WAIT_FOR(dispatch_find(fake.dispatch, "mlp_out/m1")->counters.ns > 400000000);
    atomic_store(&fake.hold_probes, true);
    atomic_store(&fake.benches, 0);
    atomic_store(&fake.sets, 0);
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(last_of(s, "opening") > 0);
    atomic_store(&fake.live, false);
    atomic_store(&fake.hold_probes, false);
    WAIT_FOR(atomic_load(&fake.benches) >= 2 && last_of(s, "benched") > 0);
    usleep(100000);
    assert_false(specialized("mlp_out/m1") || specialized("head/m1"));
    return s;
}

static void what_waits_together_is_judged_and_published_together(void **unused)
{
    (void)unused;
    if (!isa_facts()->HAS_AVX2)
        skip(); /* no START row holds */
    struct specializer *s = start_together();
    atomic_store(&fake.live, true);
    WAIT_FOR(specialized("mlp_out/m1") && specialized("head/m1"));
    assert_int_equal(atomic_load(&fake.sets), 1);
    char *text = NULL;
    expect(ANSWER_DONE, specializer_set_mode(s, SPECIALIZER_FREEZE, "test", &text), &text);
    struct found f = look(s);
    assert_true(f.active >= 2 && f.together >= 1); /* who was replaced meanwhile is retired */

    /* Each can go alone. */
    const struct kernel *head = serving("head/m1");
    expect(ANSWER_DONE, specializer_rollback(s, "mlp_out/m1", NULL, "test", &text), &text);
    assert_ptr_equal(serving("head/m1"), head);
    assert_true(head->origin != ORIGIN_EAGER);
    assert_true(look(s).gone > 0);
    stop(s);
}

/* Whole steps are slower with mlp_out's: the halves say whose fault it was. */
static void one_that_is_bad_is_not_published_and_drags_nobody(void **unused)
{
    (void)unused;
    if (!isa_facts()->HAS_AVX2)
        skip();
    atomic_store(&fake.shy, "mlp_out/m1");
    struct specializer *s = start_together();
    atomic_store(&fake.live, true);
    WAIT_FOR(specialized("head/m1") && last_of(s, "halved") > 0);
    WAIT_FOR(last_of(s, "deferred") > 0);
    assert_false(specialized("mlp_out/m1"));
    assert_int_equal(atomic_load(&fake.bad_published), 0);
    stop(s);
}

/* An operator disables one of the set while it waits. */
static void one_that_an_operator_disabled_is_not_tried_with_the_others(void **unused)
{
    (void)unused;
    if (!isa_facts()->HAS_AVX2)
        skip();
    struct specializer *s = start_together();
    char *text = NULL;
    expect(ANSWER_DONE, specializer_pin(s, "mlp_out/m1", "eager", "test", &text), &text);
    atomic_store(&fake.live, true);
    WAIT_FOR(specialized("head/m1"));
    assert_false(specialized("mlp_out/m1"));
    assert_int_equal(atomic_load(&fake.sets), 0);
    stop(s);
}

/* A candidate answers half of the requests during its canary: not after "pinned to eager". */
static void a_pin_ends_the_canary_of_its_slot(void **unused)
{
    (void)unused;
    char *text = NULL;
    atomic_store(&fake.hold_canary, true);
    struct specializer *s = start("--specializer-slots", "mlp_out");
    WAIT_FOR(atomic_load(&fake.in_canary) != NULL);
    expect(ANSWER_DONE, specializer_pin(s, "mlp_out/m1", "eager", "r1", &text), &text);
    WAIT_FOR(atomic_load(&fake.in_canary) == NULL);
    assert_false(specialized("mlp_out/m1"));
    stop(s);
}

/* What a canary measured against a kernel that was rolled back meanwhile says nothing of the one
 * that serves now, and is not published over the rollback. */
static void a_rollback_during_a_canary_outlives_its_verdict(void **unused)
{
    (void)unused;
    struct specializer *s = start("--specializer-slots", "mlp_out");
    atomic_store(&fake.meddler, s);
    WAIT_FOR(atomic_load(&fake.meddler) == NULL);
    WAIT_FOR(last_of(s, "rolled_back") > 0);
    int64_t back = last_of(s, "rolled_back");
    WAIT_FOR(last_of(s, "unresolved") > back || last_of(s, "active") > back);
    assert_true(last_of(s, "unresolved") > back);
    WAIT_FOR(specialized("mlp_out/m1")); /* tried again, against what serves now */
    stop(s);
}

/* How often the kernel was proposed before it became active. */
struct proposals {
    const char *key;
    int n;
    bool active;
};

static void count_proposals(void *ctx, const struct trace_row *row) /* newest first */
{
    struct proposals *p = ctx;
    if (!row->key || strcmp(row->key, p->key) != 0)
        return;
    p->active |= strcmp(row->event, "active") == 0;
    p->n += p->active && strcmp(row->event, "proposed") == 0;
}

/* Another server found `key` wrong. */
static void hear_of(struct fleet *f, const char *key, const char *slot)
{
    pthread_mutex_lock(&f->lock);
    f->suspect = xcalloc(1, sizeof *f->suspect);
    *f->suspect = (struct fleet_suspect){.by = "somebody", .seq = 1, .came_ns = clock_ns()};
    snprintf(f->suspect->key, sizeof f->suspect->key, "%s", key);
    snprintf(f->suspect->slot, sizeof f->suspect->slot, "%s", slot);
    f->suspects = 1;
    pthread_mutex_unlock(&f->lock);
}

/* While live steps judge it: what it had passed before is in doubt, and it passes everything again
 * before it serves. A word from outside keeps nobody from serving. */
static void what_is_retracted_on_trial_begins_again(void **unused)
{
    (void)unused;
    char key[24];
    atomic_store(&fake.hold_canary, true);
    struct specializer *s = start("--specializer-fleet", "postgresql://whet@127.0.0.1:1/none");
    WAIT_FOR(atomic_load(&fake.in_canary) != NULL);
    memcpy(key, fake.canary_key, sizeof key);
    hear_of(s->fleet, key, atomic_load(&fake.in_canary));
    atomic_store(&fake.hold_canary, false);
    struct proposals p = {.key = key};
    for (int i = 0; i < PATIENCE_MS / 10 && !p.active; i++) {
        usleep(10000);
        p.n = 0;
        store_traces(s->store, NULL, 0, 0, count_proposals, &p, NULL);
    }
    assert_true(p.active);
    assert_int_equal(p.n, 2);
    assert_true(last_of(s, "doubted") > 0);
    stop(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_waits_together_is_judged_and_published_together),
        TEST(one_that_is_bad_is_not_published_and_drags_nobody),
        TEST(one_that_an_operator_disabled_is_not_tried_with_the_others),
        TEST(a_pin_ends_the_canary_of_its_slot),
        TEST(a_rollback_during_a_canary_outlives_its_verdict),
        TEST(what_is_retracted_on_trial_begins_again),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
