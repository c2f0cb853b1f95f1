/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of specializer/watch.c: whose kernels are audited, what becomes of what an audit or an
 * executor finds, and what drift is. Kernels that leave while traffic goes on are in
 * test_specializer.c and test_drills.c. */
#include "tests/unit/specializer/slot_world.h"

#include "specializer/watch.c"

/* The step that was hooked has run: its outputs were so far apart. */
static void step_compared(double worst)
{
    w.s.audit.comparisons = 1;
    w.s.audit.worst_max = w.s.audit.worst_rms = worst;
    atomic_store(&w.s.audit.left, 0);
}

static void audits_go_round_the_slots_that_have_a_kernel_and_steps(void **unused)
{
    (void)unused;
    struct specializer *s = &w.s;
    struct slot_search *p[3] = {serve("attn_in/m1", 1), serve("mlp_in/m1", 2), serve("head/m1", 3)};
    s->observe.slot[serve("mlp_out/m1", 4)->index].share = 0; /* no step reads it */
    audit_poll(s);
    struct slot_search *first = s->audited;
    for (int i = 0; i < 7; i++) {
        struct slot_search *now = s->audited;
        assert_non_null(now);
        assert_ptr_equal(w.hooked, &s->audit);
        assert_int_equal(s->audit.kind, HOOK_COMPARE);
        assert_ptr_equal(s->audit.slot, now->slot);
        assert_ptr_equal(s->audit.kernel, now->slot->eager);
        assert_int_equal(s->audit.every, EVERY);
        assert_int_equal(atomic_load(&s->audit.left), 1);
        assert_string_equal(s->audited_key, now->locked.active->key);
        step_compared(0);
        audit_poll(s);
        assert_ptr_not_equal(s->audited, now);
    }
    for (int i = 0; i < 3; i++) /* seven audits of three */
        assert_int_equal(p[i]->locked.audits, p[i] == first ? 3 : 2);
    assert_int_equal(atomic_load(&s->counts.audits), 7);
    assert_int_equal(atomic_load(&s->counts.mismatches), 0);
}

static void a_kernel_in_doubt_is_audited_first_and_in_every_step(void **unused)
{
    (void)unused;
    struct specializer *s = &w.s;
    serve("attn_in/m1", 1);
    struct slot_search *p = serve("mlp_in/m1", 2);
    at("head/m1")->locked.suspect = 5; /* eager serves there */
    p->locked.suspect = 1;
    audit_poll(s);
    assert_ptr_equal(s->audited, p);
    assert_int_equal(s->audit.every, 1);
    step_compared(0);
    audit_poll(s);
    assert_int_equal(p->locked.suspect, 0);
    assert_int_equal(s->audit.every, EVERY);
    for (int i = 0; i < 4; i++, audit_poll(s))
        step_compared(0);
    assert_int_equal(p->locked.suspect, 0);
}

static void a_kernel_that_an_audit_finds_wrong_leaves_at_once(void **unused)
{
    (void)unused;
    struct specializer *s = &w.s;
    struct slot_search *p = serve("mlp_in/m1", 2);
    p->locked.suspect = 3;
    const uint64_t distrusts = dispatch_distrusts(s->env.dispatch);
    audit_poll(s);
    step_compared(0.5);
    audit_poll(s);
    assert_true(serves_eager(p));
    assert_int_equal(state_of(s->store, 2), LIFE_REFUSED);
    assert_int_equal(atomic_load(&s->counts.audits), 1);
    assert_int_equal(atomic_load(&s->counts.mismatches), 1);
    assert_int_equal(atomic_load(&s->counts.rolled_back[ROLLBACK_AUDIT]), 1);
    assert_true(dispatch_distrusts(s->env.dispatch) > distrusts);
    assert_int_equal(p->locked.suspect, 3);
    assert_null(s->audited); /* nobody else has a kernel */
    assert_null(w.hooked);
    retire_poll(s, true);
    assert_int_equal(w.unloaded, 1);
}

static void an_audit_that_no_step_takes_is_given_up_and_says_nothing(void **unused)
{
    (void)unused;
    struct specializer *s = &w.s;
    struct slot_search *p = serve("mlp_in/m1", 2), *other = serve("head/m1", 3);
    w.refusals = 1;
    audit_poll(s);
    assert_null(s->audited); /* the hook was not taken */
    assert_int_equal(w.hooks, 1);
    audit_poll(s);
    struct slot_search *first = s->audited;
    assert_true(first == p || first == other);
    s->audit.comparisons = 1; /* and it has not come to its end */
    s->audit.worst_max = 1;
    audit_poll(s);
    assert_int_equal(w.hooks, 2);
    s->audit_since_ns = clock_ns() - (HOOK_PATIENCE_S - 5) * INT64_C(1000000000);
    audit_poll(s);
    assert_int_equal(w.hooks, 2);
    s->audit_since_ns = clock_ns() - (HOOK_PATIENCE_S + 1) * INT64_C(1000000000);
    audit_poll(s);
    assert_int_equal(w.hooks, 4); /* removed, and put on another slot */
    assert_ptr_not_equal(s->audited, first);
    assert_int_equal(s->audit.comparisons, 0);
    assert_int_equal(atomic_load(&s->counts.audits), 0);
    watch_stop(s);
    assert_null(w.hooked);
    assert_null(s->audited);
    watch_stop(s); /* nothing is there to be removed */
    assert_int_equal(w.hooks, 5);
}

/* ---- executors ------------------------------------------------------------------------------- */

static void a_kernel_whose_executor_broke_leaves_the_slot_or_its_place_behind_it(void **unused)
{
    (void)unused;
    struct specializer *s = &w.s;
    struct slot_search *p = serve("mlp_in/m1", 2), *other = serve("head/m1", 3);
    serve("mlp_in/m1", 4);
    broken_poll(s);
    assert_string_equal(p->locked.active->key, "0000000000000004");
    assert_string_equal(p->locked.previous->key, "0000000000000002");
    w.broken = p->locked.previous->kernel;
    broken_poll(s);
    assert_null(p->locked.previous);
    assert_string_equal(p->locked.active->key, "0000000000000004");
    w.broken = p->locked.active->kernel;
    broken_poll(s);
    assert_true(serves_eager(p));
    assert_false(serves_eager(other));
    assert_int_equal(state_of(s->store, 4), LIFE_ROLLED_BACK);
    assert_int_equal(atomic_load(&s->counts.rolled_back[ROLLBACK_EXECUTOR]), 1);
    retire_poll(s, true);
    assert_int_equal(w.unloaded, 2);
    w.broken = NULL;
    w.ops.broken = NULL; /* a backend without executors */
    watch_poll(s);
    assert_false(serves_eager(other));
}

/* ---- drift ----------------------------------------------------------------------------------- */

/* So many runs of the slot, each of so many nanoseconds, tokens and positions. */
static bool runs(struct slot_search *p, uint64_t n, uint64_t ns, uint64_t tokens, uint64_t context)
{
    struct slot_counters *c = &p->slot->counters;
    atomic_fetch_add(&c->runs, n);
    atomic_fetch_add(&c->ns, n * ns);
    atomic_fetch_add(&c->tokens, n * tokens);
    atomic_fetch_add(&c->context, n * context);
    return window_drifted(p);
}

static void drift_is_a_window_a_quarter_slower_at_like_work(void **unused)
{
    (void)unused;
    struct slot_search *p = serve("mlp_in/m1", 2);
    assert_false(runs(p, 100, 1, 1, 1)); /* where the first window begins */
    assert_false(runs(p, WINDOW_RUNS - 1, 1000, 10, 500));
    assert_true(p->promise_s == 0);
    assert_false(runs(p, 1, 1000, 10, 500));
    assert_true(fabs(p->promise_s - 1e-6) < 1e-12);
    assert_false(runs(p, WINDOW_RUNS, 1200, 10, 500));
    assert_true(runs(p, WINDOW_RUNS, 1300, 10, 500));
    assert_true(runs(p, WINDOW_RUNS, 1300, 11, 450));
    assert_false(runs(p, WINDOW_RUNS, 1300, 13, 500)); /* other work */
    assert_false(runs(p, WINDOW_RUNS, 1300, 10, 700));
    assert_false(runs(p, WINDOW_RUNS, 500, 10, 500));
    assert_true(fabs(p->promise_s - 1e-6) < 1e-12); /* it is kept */
    assert_true(runs(p, WINDOW_RUNS, 5000, 10, 500));
}

static void frozen_nobody_looks_for_drift(void **unused)
{
    (void)unused;
    struct slot_search *p = serve("mlp_in/m1", 2);
    atomic_fetch_add(&p->slot->counters.runs, 100);
    atomic_store(&w.s.mode, SPECIALIZER_FREEZE);
    watch_poll(&w.s);
    assert_int_equal(p->window.runs, 0);
    assert_ptr_equal(w.s.audited, p); /* audits go on */
    atomic_store(&w.s.mode, SPECIALIZER_RUN);
    watch_poll(&w.s);
    assert_int_equal(p->window.runs, 100);
}

/* ---- one audit ------------------------------------------------------------------------------- */

/* A kernel that another server found wrong is looked at in so many live steps. Those of the one
 * that served before it are not among them. */
static void an_audit_counts_for_the_kernel_that_it_looked_at_alone(void **unused)
{
    (void)unused;
    struct specializer *s = xcalloc(1, sizeof *s);
    struct slot_search *p = xcalloc(1, sizeof *p);
    struct candidate *c = xcalloc(1, sizeof *c);
    struct slot slot = {.name = "mlp_in/m1"};
    pthread_mutex_init(&s->lock, NULL);
    p->slot = &slot;
    p->locked.active = c;
    p->locked.suspect = 3;
    s->audit.comparisons = 1;
    snprintf(c->key, sizeof c->key, "after");
    snprintf(s->audited_key, sizeof s->audited_key, "before");
    conclude_audit(s, p);
    assert_int_equal(p->locked.suspect, 3);
    assert_int_equal(p->locked.audits, 0);
    pthread_mutex_destroy(&s->lock);
    free(c);
    free(p);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(audits_go_round_the_slots_that_have_a_kernel_and_steps,
                                        open_world, close_world),
        cmocka_unit_test_setup_teardown(a_kernel_in_doubt_is_audited_first_and_in_every_step,
                                        open_world, close_world),
        cmocka_unit_test_setup_teardown(a_kernel_that_an_audit_finds_wrong_leaves_at_once,
                                        open_world, close_world),
        cmocka_unit_test_setup_teardown(an_audit_that_no_step_takes_is_given_up_and_says_nothing,
                                        open_world, close_world),
        cmocka_unit_test_setup_teardown(
            a_kernel_whose_executor_broke_leaves_the_slot_or_its_place_behind_it, open_world,
            close_world),
        cmocka_unit_test_setup_teardown(drift_is_a_window_a_quarter_slower_at_like_work, open_world,
                                        close_world),
        cmocka_unit_test_setup_teardown(frozen_nobody_looks_for_drift, open_world, close_world),
        cmocka_unit_test(an_audit_counts_for_the_kernel_that_it_looked_at_alone),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
