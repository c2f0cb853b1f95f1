/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of one promoted candidate by what its stages answer and by what happens meanwhile:
 * the decisions of promotion.c one by one. The loop around them is in test_promotion.c, several
 * candidates in test_promotion_sets.c. */
#include "tests/unit/specializer/promotion_world.h"

/* ---- one candidate ----------------------------------------------------------------------------
 */

static void what_passes_shadow_and_canary_is_published(void **state)
{
    (void)state;
    struct slot_search *p = promote("mlp_in/m1", 1);
    p->promoted.c->known = "a machine";
    w.s.audited = p;
    promotion_try(&w.s, p);
    assert_int_equal(play.shadows, 1);
    assert_int_equal(play.canaries, 1);
    assert_true(published(p) && slot_kernel(p->slot) == first->kernel);
    assert_null(p->promoted.c);
    assert_int_equal(state_of(w.s.store, 1), LIFE_ACTIVE);
    assert_int_equal(atomic_load(&w.s.counts.published), 1);
    assert_int_equal(atomic_load(&w.s.counts.known[KNOWN_PUBLISHED]), 1);
    assert_int_equal(count(STAGE_SHADOW, STAGE_PASS), 1);
    assert_int_equal(count(STAGE_CANARY, STAGE_PASS), 1);
    assert_int_equal(p->locked.wins, 1);
    assert_int_equal(p->dry, 0);
    assert_int_equal(play.learned + play.forgotten, 0);
    assert_non_null(strstr(last("active"), "known, bench +25.0 %"));
    assert_null(w.s.audited); /* the hook was the watch's */
}

static void who_comes_from_no_other_machine_is_not_counted_as_such(void **state)
{
    (void)state;
    struct slot_search *p = promote("mlp_in/m1", 1);
    promotion_try(&w.s, p);
    assert_true(published(p));
    assert_int_equal(atomic_load(&w.s.counts.known[KNOWN_PUBLISHED]), 0);
}

/* With an expectation of the opening that it belongs to. */
static void wrong_outputs_beside_the_incumbent_are_refused(void **state)
{
    (void)state;
    struct slot_search *p = promote("mlp_in/m1", 1);
    w.s.batch.expects.n = 1;
    w.s.batch.expects.of[0] = (struct opening_slot){.slot = p->index, .saves = 0.5};
    play.slot = "mlp_in/m1";
    play.shadow = STAGE_REFUSE;
    p->promoted.c->steps = STEPS_SLOWER; /* of another canary: it says nothing of outputs */
    promotion_try(&w.s, p);
    assert_int_equal(state_of(w.s.store, 1), LIFE_REFUSED);
    assert_int_equal(play.canaries, 0);
    assert_false(published(p));
    assert_null(p->promoted.c);
    assert_int_equal(play.learned, 1);
    assert_true(play.speed == 0);
    assert_int_equal(p->locked.refusals, 1);
    assert_int_equal(count(STAGE_SHADOW, STAGE_REFUSE), 1);
    assert_true(w.s.batch.expects.of[0].measured && w.s.batch.expects.of[0].saves == 0);
}

static enum life refused_by_steps(enum steps_say steps, double low)
{
    struct slot_search *p = promote("mlp_in/m1", 1);
    p->promoted.c->evidence.bench.low = low;
    play.slot = "mlp_in/m1";
    play.canary = STAGE_REFUSE;
    play.steps = steps;
    promotion_try(&w.s, p);
    assert_false(published(p));
    assert_null(p->promoted.c);
    assert_true(play.learned == 1 && play.speed == 0);
    assert_int_equal(count(STAGE_CANARY, STAGE_REFUSE), 1);
    return state_of(w.s.store, 1);
}

static void a_clear_gain_that_slows_steps_is_deferred(void **state)
{
    (void)state;
    assert_int_equal(refused_by_steps(STEPS_SLOWER, 0.2), LIFE_DEFERRED);
}

static void a_faint_gain_that_slows_steps_is_refused(void **state)
{
    (void)state;
    assert_int_equal(refused_by_steps(STEPS_SLOWER, 0.05), LIFE_REFUSED);
}

static void what_an_audit_found_wrong_is_refused(void **state)
{
    (void)state;
    assert_int_equal(refused_by_steps(STEPS_UNSEEN, 0.2), LIFE_REFUSED);
}

/* ---- nothing was decided ----------------------------------------------------------------------
 */

static void what_was_not_decided_is_tried_again_after_a_while(void **state)
{
    (void)state;
    struct slot_search *p = promote("mlp_in/m1", 1);
    play.slot = "mlp_in/m1";
    play.shadow = STAGE_RETRY;
    candidate_explain(p->promoted.c, STAGE_SHADOW, CAUSE_OTHER, 0, "no live steps came");
    promotion_try(&w.s, p);
    assert_ptr_equal(p->promoted.c, first);
    assert_non_null(strstr(p->locked.why.undecided, "no live steps came"));
    assert_true(due_in(p, RETRY_AFTER_S));
    assert_int_equal(p->promoted.c->retries, 1);
    assert_int_equal(count(STAGE_SHADOW, STAGE_RETRY), 1);
    assert_int_equal(p->promoted.at, STAGE_SHADOW);
    play.shadow = STAGE_PASS;
    promotion_try(&w.s, p);
    assert_true(published(p));
}

/* The server stops, or an operator speaks: that is no try. */
static void what_was_stopped_is_tried_again_at_once(void **state)
{
    (void)state;
    struct slot_search *p = promote("mlp_in/m1", 1);
    play.slot = "mlp_in/m1";
    play.shadow = STAGE_STOPPED;
    for (int i = 0; i < RETRIES_MOST + 1; i++)
        promotion_try(&w.s, p);
    assert_ptr_equal(p->promoted.c, first);
    assert_true(due_in(p, 1));
    assert_int_equal(p->promoted.c->retries, 0);
    assert_int_equal(play.learned + play.forgotten, 0);
}

static enum life set_aside_by_steps(enum steps_say steps)
{
    struct slot_search *p = promote("mlp_in/m1", 1);
    play.slot = "mlp_in/m1";
    play.canary = STAGE_RETRY;
    play.steps = steps;
    for (int i = 1; i <= RETRIES_MOST; i++) {
        assert_ptr_equal(p->promoted.c, first);
        promotion_try(&w.s, p);
        assert_int_equal(play.canaries, i);
    }
    assert_int_equal(play.shadows, 1); /* what was proved stays */
    assert_null(p->promoted.c);
    assert_true(play.learned == 1 && play.speed == 1.25); /* no verdict: the bench's counts */
    assert_non_null(strstr(p->locked.why.words, "whole steps")); /* what operators are told */
    assert_non_null(strstr(last("set_aside"), "could not decide"));
    assert_non_null(strstr(last("unresolved"), "whole steps"));
    return state_of(w.s.store, 1);
}

static void what_three_tries_cannot_decide_is_set_aside_until_others_serve(void **state)
{
    (void)state;
    assert_int_equal(set_aside_by_steps(STEPS_UNDECIDED), LIFE_DEFERRED);
}

static void what_met_no_steps_at_all_is_set_aside(void **state)
{
    (void)state;
    assert_int_equal(set_aside_by_steps(STEPS_UNSEEN), LIFE_SHADOWED);
}

/* A move that the store refuses, as a full disk would. */
static void what_the_store_does_not_take_goes_no_further(void **state)
{
    (void)state;
    struct slot_search *p = promote("mlp_in/m1", 1);
    p->promoted.c->state = LIFE_RETIRED; /* no way from here */
    promotion_try(&w.s, p);
    assert_ptr_equal(p->promoted.c, first);
    assert_int_equal(play.canaries, 0);
    assert_true(due_in(p, RETRY_AFTER_S));
}

/* ---- what happens meanwhile -------------------------------------------------------------------
 */

/* An operator puts another kernel into the slot. */
static void exchange(void)
{
    play.at_publish = NULL;
    assert_int_equal(swap_in(&w.s, at("mlp_in/m1"), candidate_for("mlp_in/m1", 9), "", "me"), 0);
}

static void exchange_beside(void)
{
    assert_int_equal(swap_in(&w.s, at("head/m1"), candidate_for("head/m1", 8), "", "me"), 0);
}

static void exchange_elsewhere(void)
{
    assert_int_equal(swap_in(&w.s, at("head/m8"), candidate_for("head/m8", 8), "", "me"), 0);
}

/* A verdict against a kernel that is gone is none, whichever it was. */
static void judged_against_another_kernel(enum stage stage, enum stage_result r, enum steps_say say)
{
    struct slot_search *p = promote("mlp_in/m1", 1);
    play.slot = "mlp_in/m1";
    play.steps = say;
    *(stage == STAGE_SHADOW ? &play.shadow : &play.canary) = r;
    play.meanwhile = exchange;
    play.meanwhile_at = stage;
    promotion_try(&w.s, p);
    assert_ptr_equal(p->promoted.c, first);
    assert_int_equal(p->promoted.at, stage);
    assert_int_equal(p->promoted.c->retries, 1);
    assert_int_equal(p->promoted.c->steps, STEPS_UNSEEN);
    assert_non_null(strstr(p->promoted.c->reason, "the slot's kernel was exchanged"));
    assert_int_equal(count(stage, STAGE_RETRY), 1);
    assert_string_equal(slot_kernel(p->slot)->id, "0000000000000009");
}

static void a_shadow_beside_a_kernel_that_left_proves_nothing(void **state)
{
    (void)state;
    judged_against_another_kernel(STAGE_SHADOW, STAGE_PASS, STEPS_UNSEEN);
}

static void nor_does_it_condemn(void **state)
{
    (void)state;
    judged_against_another_kernel(STAGE_SHADOW, STAGE_REFUSE, STEPS_UNSEEN);
}

static void steps_that_alternated_with_a_kernel_that_left_prove_nothing(void **state)
{
    (void)state;
    judged_against_another_kernel(STAGE_CANARY, STAGE_PASS, STEPS_UNSEEN);
}

static void nor_do_they_condemn(void **state)
{
    (void)state;
    judged_against_another_kernel(STAGE_CANARY, STAGE_REFUSE, STEPS_SLOWER);
}

/* Audits compare with eager, which is what it was. */
static void what_an_audit_found_holds_whatever_was_exchanged(void **state)
{
    (void)state;
    play.meanwhile = exchange;
    play.meanwhile_at = STAGE_CANARY;
    struct slot_search *p = promote("mlp_in/m1", 1);
    play.slot = "mlp_in/m1";
    play.canary = STAGE_REFUSE;
    promotion_try(&w.s, p);
    assert_null(p->promoted.c);
    assert_int_equal(state_of(w.s.store, 1), LIFE_REFUSED);
}

/* What was exchanged before live steps began is what they judge against. */
static void an_exchange_before_the_stage_changes_nothing(void **state)
{
    (void)state;
    struct slot_search *p = promote("mlp_in/m1", 1);
    exchange();
    promotion_try(&w.s, p);
    assert_ptr_equal(p->locked.active, first);
    assert_int_equal(play.canaries, 1);
}

static enum life slower_beside(void (*f)(void))
{
    struct slot_search *p = promote("mlp_in/m1", 1);
    play.slot = "mlp_in/m1";
    play.canary = STAGE_REFUSE;
    play.steps = STEPS_SLOWER;
    play.meanwhile = f;
    play.meanwhile_at = STAGE_CANARY;
    promotion_try(&w.s, p);
    if (p->promoted.c)
        assert_non_null(strstr(p->promoted.c->reason, "other kernels of the step were exchanged"));
    return state_of(w.s.store, 1);
}

/* Steps are slow with a kernel among those that serve around it. */
static void a_verdict_on_time_needs_the_kernels_that_it_was_made_beside(void **state)
{
    (void)state;
    assert_int_equal(slower_beside(exchange_beside), LIFE_SHADOWED);
    assert_ptr_equal(at("mlp_in/m1")->promoted.c, first);
}

static void kernels_of_other_steps_do_not_count(void **state)
{
    (void)state;
    assert_int_equal(slower_beside(exchange_elsewhere), LIFE_DEFERRED);
}

/* Between the verdict and the swap. */
static void nothing_is_published_over_a_kernel_that_came_meanwhile(void **state)
{
    (void)state;
    struct slot_search *p = promote("mlp_in/m1", 1);
    play.at_publish = exchange;
    promotion_try(&w.s, p);
    assert_null(p->promoted.c);
    assert_int_equal(play.forgotten, 1);
    assert_int_equal(state_of(w.s.store, 1), LIFE_CANARY); /* may be proposed again */
    assert_string_equal(slot_kernel(p->slot)->id, "0000000000000009");
    assert_int_equal(atomic_load(&w.s.counts.published), 0);
    assert_int_equal(p->locked.wins, 0);
}

static void pin(void)
{
    play.at_publish = NULL;
    snprintf(at("mlp_in/m1")->locked.pinned, 24, "eager");
}

static void nothing_is_published_into_a_slot_that_was_pinned_meanwhile(void **state)
{
    (void)state;
    struct slot_search *p = promote("mlp_in/m1", 1);
    play.at_publish = pin;
    promotion_try(&w.s, p);
    assert_null(p->promoted.c);
    assert_int_equal(play.forgotten, 1);
    assert_true(serves_eager(p));
}

/* What steps with it wrote is not believed: it may be in the cache of keys and values. */
static void disable_first(void)
{
    disable("0000000000000001");
}

static void what_is_disabled_while_steps_run_it_is_distrusted(void **state)
{
    (void)state;
    struct slot_search *p = promote("mlp_in/m1", 1);
    uint64_t before = dispatch_distrusts(w.s.env.dispatch);
    play.meanwhile = disable_first;
    play.meanwhile_at = STAGE_CANARY;
    promotion_try(&w.s, p);
    assert_true(dispatch_distrusts(w.s.env.dispatch) == before + 1);
    assert_false(published(p));
    assert_int_equal(play.forgotten, 1);
}

static void a_shadow_wrote_nothing_that_must_be_distrusted(void **state)
{
    (void)state;
    struct slot_search *p = promote("mlp_in/m1", 1);
    uint64_t before = dispatch_distrusts(w.s.env.dispatch);
    play.slot = "mlp_in/m1";
    play.shadow = STAGE_STOPPED;
    play.meanwhile = disable_first;
    play.meanwhile_at = STAGE_SHADOW;
    promotion_try(&w.s, p);
    assert_true(dispatch_distrusts(w.s.env.dispatch) == before);
    promotion_try(&w.s, p); /* by now nobody wants it */
    assert_null(p->promoted.c);
    assert_int_equal(play.shadows, 1);
}

/* ---- who wants it -----------------------------------------------------------------------------
 */

static void not_tried(struct slot_search *p)
{
    promotion_try(&w.s, p);
    assert_null(p->promoted.c);
    assert_int_equal(play.shadows + play.canaries, 0);
    assert_int_equal(play.forgotten, 1);
    assert_false(published(p));
}

static void what_an_operator_disabled_is_not_tried(void **state)
{
    (void)state;
    struct slot_search *p = promote("mlp_in/m1", 1);
    disable(p->promoted.c->template->id); /* or its template */
    not_tried(p);
}

static void nothing_is_tried_in_a_pinned_slot(void **state)
{
    (void)state;
    struct slot_search *p = promote("mlp_in/m1", 1);
    snprintf(p->locked.pinned, sizeof p->locked.pinned, "eager");
    not_tried(p);
}

static void retracted_at(enum stage stage, uint64_t distrusts)
{
    struct slot_search *p = promote("mlp_in/m1", 1);
    uint64_t before = dispatch_distrusts(w.s.env.dispatch);
    play.retracted = "0000000000000001";
    p->promoted.at = stage;
    not_tried(p);
    assert_non_null(strstr(last("doubted"), "another server found it wrong"));
    assert_true(dispatch_distrusts(w.s.env.dispatch) == before + distrusts);
}

static void what_others_found_wrong_begins_again(void **state)
{
    (void)state;
    retracted_at(STAGE_SHADOW, 0);
}

static void and_what_steps_wrote_with_it_is_distrusted(void **state)
{
    (void)state;
    retracted_at(STAGE_CANARY, 1);
}

static void retract(void)
{
    play.at_publish = NULL;
    play.retracted = "0000000000000001";
}

static void what_others_found_wrong_in_the_last_moment_is_not_published(void **state)
{
    (void)state;
    struct slot_search *p = promote("mlp_in/m1", 1);
    play.at_publish = retract;
    promotion_try(&w.s, p);
    assert_int_equal(play.canaries, 1);
    assert_null(p->promoted.c);
    assert_int_equal(play.forgotten, 1);
    assert_true(serves_eager(p));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RULE(what_passes_shadow_and_canary_is_published),
        RULE(who_comes_from_no_other_machine_is_not_counted_as_such),
        RULE(wrong_outputs_beside_the_incumbent_are_refused),
        RULE(a_clear_gain_that_slows_steps_is_deferred),
        RULE(a_faint_gain_that_slows_steps_is_refused),
        RULE(what_an_audit_found_wrong_is_refused),
        RULE(what_was_not_decided_is_tried_again_after_a_while),
        RULE(what_was_stopped_is_tried_again_at_once),
        RULE(what_three_tries_cannot_decide_is_set_aside_until_others_serve),
        RULE(what_met_no_steps_at_all_is_set_aside),
        RULE(what_the_store_does_not_take_goes_no_further),
        RULE(a_shadow_beside_a_kernel_that_left_proves_nothing),
        RULE(nor_does_it_condemn),
        RULE(steps_that_alternated_with_a_kernel_that_left_prove_nothing),
        RULE(nor_do_they_condemn),
        RULE(what_an_audit_found_holds_whatever_was_exchanged),
        RULE(an_exchange_before_the_stage_changes_nothing),
        RULE(a_verdict_on_time_needs_the_kernels_that_it_was_made_beside),
        RULE(kernels_of_other_steps_do_not_count),
        RULE(nothing_is_published_over_a_kernel_that_came_meanwhile),
        RULE(nothing_is_published_into_a_slot_that_was_pinned_meanwhile),
        RULE(what_is_disabled_while_steps_run_it_is_distrusted),
        RULE(a_shadow_wrote_nothing_that_must_be_distrusted),
        RULE(what_an_operator_disabled_is_not_tried),
        RULE(nothing_is_tried_in_a_pinned_slot),
        RULE(what_others_found_wrong_begins_again),
        RULE(and_what_steps_wrote_with_it_is_distrusted),
        RULE(what_others_found_wrong_in_the_last_moment_is_not_published),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
