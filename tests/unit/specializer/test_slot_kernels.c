/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of specializer/swap.c move by move: what may fill a slot, what stays behind it, what the
 * store says then, and when a kernel is unloaded. Swaps under load are in test_swap.c. */
#include "tests/unit/specializer/slot_world.h"

static struct candidate *candidate(const char *slot, int key, double speed)
{
    struct candidate *c = candidate_for(slot, key);
    c->evidence.speed = speed;
    return c;
}

static bool serves(const struct slot_search *p, const struct candidate *c)
{
    return p->locked.active == c && slot_kernel(p->slot) == c->kernel;
}

static void out(struct slot_search *p, enum life to, enum rollback kind)
{
    pthread_mutex_lock(&w.s.lock);
    swap_out_locked(&w.s, p, to, kind, "for a test", NULL);
    pthread_mutex_unlock(&w.s.lock);
}

static int back(struct slot_search *p)
{
    pthread_mutex_lock(&w.s.lock);
    int r = swap_back_locked(&w.s, p, "somebody");
    pthread_mutex_unlock(&w.s.lock);
    return r;
}

static void disable(const char *what)
{
    w.s.locked.disabled = xcalloc(1, sizeof *w.s.locked.disabled);
    w.s.locked.disables = 1;
    snprintf(w.s.locked.disabled->what, sizeof w.s.locked.disabled->what, "%s", what);
}

static void enable(void)
{
    free(w.s.locked.disabled);
    w.s.locked.disabled = NULL;
    w.s.locked.disables = 0;
}

static void what_is_disabled_or_not_pinned_fills_no_slot(void **unused)
{
    (void)unused;
    struct slot_search *p = at("mlp_in/m1");
    struct candidate *c = candidate("mlp_in/m1", 1, 1.5);
    const char *const disabled[] = {c->key, c->template->id};
    for (int i = 0; i < 2; i++) {
        disable(disabled[i]);
        assert_int_equal(swap_in(&w.s, p, c, "", NULL), -1);
        enable();
    }
    snprintf(p->locked.pinned, sizeof p->locked.pinned, "eager");
    assert_int_equal(swap_in(&w.s, p, c, "", NULL), -1);
    assert_true(serves_eager(p));
    assert_int_equal(c->state, LIFE_CANARY);
    assert_int_equal(p->locked.swaps, 0);
    disable("another");
    snprintf(p->locked.pinned, sizeof p->locked.pinned, "%s", c->key);
    p->locked.pin_missing = true;
    assert_int_equal(swap_in(&w.s, p, c, "", NULL), 0);
    enable();
    assert_true(serves(p, c));
    assert_false(p->locked.pin_missing);
    assert_int_equal(state_of(w.s.store, 1), LIFE_ACTIVE);
}

static void a_new_kernel_begins_anew_and_keeps_one_behind_it(void **unused)
{
    (void)unused;
    struct slot_search *p = at("mlp_in/m1");
    struct candidate *c[3];
    for (int i = 0; i < 3; i++) {
        c[i] = candidate("mlp_in/m1", i + 1, i == 2 ? 0 : 1.5);
        p->locked.audits = 7;
        p->promise_s = 1;
        p->window.runs = 9;
        assert_int_equal(swap_in(&w.s, p, c[i], "", NULL), 0);
        assert_true(serves(p, c[i]));
        assert_ptr_equal(p->locked.previous, i ? c[i - 1] : NULL);
        assert_int_equal(p->locked.swaps, i + 1);
        assert_float_equal(p->locked.gain_eager, i == 2 ? 0 : 0.5, 1e-9);
        assert_int_equal(p->locked.audits, 0);
        assert_true(p->promise_s == 0 && p->window.runs == 0);
    }
    assert_int_equal(c[1]->state, LIFE_RETIRED);
    assert_int_equal(state_of(w.s.store, 1), LIFE_RETIRED);
    assert_int_equal(state_of(w.s.store, 2), LIFE_RETIRED);
    assert_int_equal(state_of(w.s.store, 3), LIFE_ACTIVE);
    retire_poll(&w.s, true);
    assert_int_equal(w.unloaded, 1); /* the first */
}

static void what_is_rolled_back_twice_is_refused(void **unused)
{
    (void)unused;
    struct slot_search *p = serve("mlp_in/m1", 1);
    uint64_t distrusts = dispatch_distrusts(w.s.env.dispatch);
    out(p, LIFE_ROLLED_BACK, ROLLBACK_DRIFT);
    assert_true(serves_eager(p));
    assert_true(p->locked.stale);
    assert_int_equal(state_of(w.s.store, 1), LIFE_ROLLED_BACK);
    assert_int_equal(dispatch_distrusts(w.s.env.dispatch), distrusts); /* only slow */
    struct candidate *again = candidate("mlp_in/m1", 1, 1.5);
    again->rollbacks = 1;
    assert_int_equal(swap_in(&w.s, p, again, "", NULL), 0);
    out(p, LIFE_ROLLED_BACK, ROLLBACK_AUDIT);
    assert_int_equal(state_of(w.s.store, 1), LIFE_REFUSED);
    assert_true(dispatch_distrusts(w.s.env.dispatch) > distrusts);
    assert_int_equal(atomic_load(&w.s.counts.rolled_back[ROLLBACK_DRIFT]), 1);
    assert_int_equal(atomic_load(&w.s.counts.rolled_back[ROLLBACK_AUDIT]), 1);
    out(p, LIFE_ROLLED_BACK, ROLLBACK_AUDIT); /* eager cannot be */
    assert_int_equal(atomic_load(&w.s.counts.rolled_back[ROLLBACK_AUDIT]), 1);
    assert_int_equal(p->locked.swaps, 4);
}

static void an_operator_goes_back_one_kernel(void **unused)
{
    (void)unused;
    struct slot_search *p = at("mlp_in/m1");
    assert_int_equal(back(p), -1);
    serve("mlp_in/m1", 1);
    struct candidate *first = p->locked.active;
    serve("mlp_in/m1", 2);
    assert_int_equal(back(p), 0);
    assert_true(serves(p, first));
    assert_null(p->locked.previous);
    assert_int_equal(state_of(w.s.store, 1), LIFE_ACTIVE);
    assert_int_equal(state_of(w.s.store, 2), LIFE_ROLLED_BACK);
    assert_int_equal(atomic_load(&w.s.counts.rolled_back[ROLLBACK_OPERATOR]), 1);
    assert_int_equal(back(p), 0); /* to eager */
    assert_true(serves_eager(p));
    assert_int_equal(back(p), -1);
}

static void a_previous_kernel_that_may_not_serve_stays_behind(void **unused)
{
    (void)unused;
    struct slot_search *p = serve("mlp_in/m1", 1);
    struct candidate *first = p->locked.active;
    serve("mlp_in/m1", 2);
    disable(first->key);
    assert_int_equal(back(p), 0);
    enable();
    assert_true(serves_eager(p));
    assert_ptr_equal(p->locked.previous, first);
    assert_int_equal(back(p), 0); /* it may now */
    assert_true(serves(p, first));
}

static void eager_in_a_kernels_place_keeps_it_loaded(void **unused)
{
    (void)unused;
    struct slot_search *p = serve("mlp_in/m1", 1);
    struct candidate *c = p->locked.active;
    for (int i = 0; i < 2; i++) { /* the second time it is there */
        pthread_mutex_lock(&w.s.lock);
        swap_eager_locked(&w.s, p, "pinned", "somebody");
        pthread_mutex_unlock(&w.s.lock);
        assert_true(serves_eager(p));
        assert_ptr_equal(p->locked.previous, c);
        assert_int_equal(state_of(w.s.store, 1), LIFE_RETIRED);
    }
    retire_poll(&w.s, true);
    assert_int_equal(w.unloaded, 0);
    assert_int_equal(back(p), 0);
    assert_true(serves(p, c));
    assert_null(p->locked.previous);
}

/* A step may be under way with it, and somebody may be reading its name. */
static void a_kernel_is_unloaded_when_no_step_can_use_it_and_after_a_grace(void **unused)
{
    (void)unused;
    struct dispatch *d = w.s.env.dispatch;
    struct slot_search *p = serve("mlp_in/m1", 1);
    dispatch_boundary(d, false);
    out(p, LIFE_ROLLED_BACK, ROLLBACK_AUDIT);
    assert_int_equal(w.s.locked.retires, 1);
    int64_t *since = &w.s.locked.retired[0].since_ns;
    *since -= INT64_C(2000000000);
    retire_poll(&w.s, false); /* the step goes on */
    assert_int_equal(w.unloaded, 0);
    dispatch_boundary(d, false);
    *since = clock_ns();
    retire_poll(&w.s, false); /* the grace */
    assert_int_equal(w.unloaded, 0);
    *since -= INT64_C(2000000000);
    retire_poll(&w.s, false);
    assert_int_equal(w.unloaded, 1);
    assert_int_equal(w.s.locked.retires, 0);
}

static void what_is_refused_is_stored_counted_and_unloaded(void **unused)
{
    (void)unused;
    struct slot_search *p = at("mlp_in/m1");
    struct candidate *c = candidate("mlp_in/m1", 1, 1.5);
    candidate_explain(c, STAGE_CANARY, CAUSE_OTHER, 0, "planted");
    c->evidence.impossible = true;
    candidate_refuse(&w.s, c, STAGE_CANARY, LIFE_REFUSED);
    assert_int_equal(state_of(w.s.store, 1), LIFE_REFUSED);
    assert_int_equal(atomic_load(&w.s.counts.stage[STAGE_CANARY][STAGE_REFUSE]), 1);
    assert_int_equal(atomic_load(&w.s.counts.impossible), 1);
    assert_int_equal(p->locked.refusals, 1);
    assert_non_null(strstr(p->locked.why.last, "planted"));
    candidate_refuse(&w.s, candidate("mlp_in/m1", 2, 1.5), STAGE_PROBE, LIFE_REFUSED);
    assert_int_equal(atomic_load(&w.s.counts.impossible), 1);
    retire_poll(&w.s, true);
    assert_int_equal(w.unloaded, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_disabled_or_not_pinned_fills_no_slot, open_world,
                                        close_world),
        cmocka_unit_test_setup_teardown(a_new_kernel_begins_anew_and_keeps_one_behind_it,
                                        open_world, close_world),
        cmocka_unit_test_setup_teardown(what_is_rolled_back_twice_is_refused, open_world,
                                        close_world),
        cmocka_unit_test_setup_teardown(an_operator_goes_back_one_kernel, open_world, close_world),
        cmocka_unit_test_setup_teardown(a_previous_kernel_that_may_not_serve_stays_behind,
                                        open_world, close_world),
        cmocka_unit_test_setup_teardown(eager_in_a_kernels_place_keeps_it_loaded, open_world,
                                        close_world),
        cmocka_unit_test_setup_teardown(
            a_kernel_is_unloaded_when_no_step_can_use_it_and_after_a_grace, open_world,
            close_world),
        cmocka_unit_test_setup_teardown(what_is_refused_is_stored_counted_and_unloaded, open_world,
                                        close_world),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
