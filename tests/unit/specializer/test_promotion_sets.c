/* SPDX-License-Identifier: Apache-2.0 */
/* Who is tried when, alone or with whom, and what becomes of a set by what live steps say of it:
 * the decisions of promotion.c over several candidates. One candidate is in test_promotion_rules.c.
 */
#include "tests/unit/specializer/promotion_world.h"

static bool all_published(const char *const *slot, int n)
{
    bool all = true;
    for (int i = 0; i < n; i++)
        all &= published(at(slot[i]));
    return all;
}

/* ---- a set ----------------------------------------------------------------------------------- */

static const char *const four[] = {"attn_in/m1", "mlp_in/m1", "mlp_out/m1", "head/m1"};

static void promote_four(void)
{
    for (int i = 0; i < 4; i++)
        promote(four[i], i + 1);
}

static void what_passes_together_is_published_together(void **state)
{
    (void)state;
    promote_four();
    assert_true(promotions_try(&w.s));
    assert_true(all_published(four, 4));
    assert_int_equal(play.shadows, 4);
    assert_int_equal(play.sets, 1);
    assert_int_equal(play.set_size[0], 4);
    assert_int_equal(play.canaries, 0);
    assert_int_equal(atomic_load(&w.s.counts.published), 4);
    assert_non_null(strstr(last("active"), " of 4 together"));
    assert_int_equal(count(STAGE_CANARY, STAGE_PASS), 4);
}

/* The first half holds it: two of two, then each by itself; the second half passes at once. */
static void one_that_drags_is_found_by_halves_and_takes_nobody_with_it(void **state)
{
    (void)state;
    promote_four();
    play.drags = play.slot = "mlp_in/m1";
    play.canary = STAGE_REFUSE;
    play.steps = STEPS_SLOWER;
    promotions_try(&w.s);
    assert_int_equal(play.sets, 3);
    assert_int_equal(play.set_size[0], 4);
    assert_int_equal(play.set_size[1], 2);
    assert_int_equal(play.set_size[2], 2);
    assert_string_equal(play.tried, "attn_in/m1 mlp_in/m1");
    assert_true(published(at("attn_in/m1")) && published(at("mlp_out/m1")));
    assert_true(published(at("head/m1")) && !published(at("mlp_in/m1")));
    assert_int_equal(state_of(w.s.store, 2), LIFE_DEFERRED);
    assert_non_null(strstr(last("halved"), "2 kernels did not pass together"));
}

/* It is out, so the others are judged again as they are. */
static void one_that_is_at_fault_leaves_and_the_others_stay_together(void **state)
{
    (void)state;
    promote_four();
    play.wrong = "mlp_out/m1";
    promotions_try(&w.s);
    assert_int_equal(play.sets, 2);
    assert_int_equal(play.set_size[1], 3);
    assert_int_equal(play.canaries, 0);
    assert_false(published(at("mlp_out/m1")));
    assert_int_equal(state_of(w.s.store, 3), LIFE_REFUSED);
    assert_true(published(at("attn_in/m1")) && published(at("mlp_in/m1")));
    assert_true(published(at("head/m1")));
    assert_string_equal(last("halved"), "");
}

/* Steps of another size say nothing of those. */
static void another_bucket_passes_by_itself(void **state)
{
    (void)state;
    promote_four();
    promote("mlp_in/m8", 5);
    promote("head/m8", 6);
    play.drags = play.slot = "mlp_in/m8";
    play.canary = STAGE_REFUSE;
    play.steps = STEPS_SLOWER;
    promotions_try(&w.s);
    assert_int_equal(play.sets, 1); /* of two, each half is one */
    assert_true(all_published(four, 4));
    assert_true(published(at("head/m8")) && !published(at("mlp_in/m8")));
    assert_string_equal(play.tried, "mlp_in/m8 head/m8");
}

/* Of three, one half is two: nobody is forgotten. */
static void an_odd_set_is_halved_into_all_of_it(void **state)
{
    (void)state;
    for (int i = 1; i < 4; i++)
        promote(four[i], i + 1);
    play.drags = play.slot = "head/m1";
    play.canary = STAGE_REFUSE;
    play.steps = STEPS_SLOWER;
    promotions_try(&w.s);
    assert_string_equal(play.tried, "mlp_in/m1 mlp_out/m1 head/m1");
    assert_true(published(at(four[1])) && published(at(four[2])));
    assert_int_equal(state_of(w.s.store, 4), LIFE_DEFERRED);
}

/* In one it is known who is at fault, in the other it is not. */
static void two_buckets_that_do_not_pass_are_judged_apart(void **state)
{
    (void)state;
    promote_four();
    promote("mlp_in/m8", 5);
    promote("head/m8", 6);
    play.wrong = "mlp_in/m1";
    play.drags = play.slot = "mlp_in/m8";
    play.canary = STAGE_REFUSE;
    play.steps = STEPS_SLOWER;
    promotions_try(&w.s);
    assert_int_equal(play.sets, 2);
    assert_int_equal(play.set_size[1], 3);
    assert_string_equal(play.tried, "mlp_in/m8 head/m8");
    assert_false(published(at("mlp_in/m1")) || published(at("mlp_in/m8")));
    assert_true(published(at("attn_in/m1")) && published(at("mlp_out/m1")));
    assert_true(published(at("head/m1")) && published(at("head/m8")));
}

/* Two buckets that do not pass are apart, however they are mixed in the list. */
static void buckets_are_grouped_before_they_are_halved(void **state)
{
    (void)state;
    struct slot_search *p[] = {at("mlp_in/m1"), at("mlp_in/m8"), at("head/m1"), at("head/m8"),
                               at("mlp_out/m1")};
    assert_int_equal(group_size(p, 5, p[0]), 3);
    assert_int_equal(group_size(p, 5, p[1]), 2);
    assert_int_equal(group_first(p, 5), 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(p[i]->slot->m_index, at("head/m1")->slot->m_index);
    assert_ptr_equal(p[0], at("mlp_in/m1"));
    assert_int_equal(group_first(p + 3, 2), 2);
    assert_int_equal(group_first(p + 3, 1), 1);
}

static void exchange_one(void)
{
    assert_int_equal(swap_in(&w.s, at("mlp_in/m1"), candidate_for("mlp_in/m1", 9), "", "me"), 0);
}

/* The verdict on one is none; the others have theirs. */
static void a_slot_that_changed_during_a_set_is_tried_again_alone(void **state)
{
    (void)state;
    promote_four();
    play.meanwhile = exchange_one;
    play.meanwhile_at = STAGE_CANARY;
    promotions_try(&w.s);
    assert_true(published(at("attn_in/m1")) && published(at("head/m1")));
    struct slot_search *p = at("mlp_in/m1");
    assert_non_null(p->promoted.c);
    assert_true(due_in(p, RETRY_AFTER_S));
    assert_string_equal(slot_kernel(p->slot)->id, "0000000000000009");
}

/* One that changed before is judged against the kernel that it has by then. */
static void exchange_first(void)
{
    assert_int_equal(swap_in(&w.s, at(four[0]), candidate_for(four[0], 9), "", "me"), 0);
}

static void a_slot_that_changed_before_the_set_is_judged_as_it_is(void **state)
{
    (void)state;
    promote_four();
    play.meanwhile = exchange_first;
    play.meanwhile_at = STAGE_SHADOW;
    play.after_shadows = 3;
    promotions_try(&w.s);
    assert_true(all_published(four, 4));
    assert_string_equal(slot_kernel(at(four[0])->slot)->id, "0000000000000001");
}

static void disable_one(void)
{
    disable("0000000000000002");
}

static void one_that_is_disabled_during_a_set_is_not_published(void **state)
{
    (void)state;
    promote_four();
    uint64_t before = dispatch_distrusts(w.s.env.dispatch);
    play.meanwhile = disable_one;
    play.meanwhile_at = STAGE_CANARY;
    promotions_try(&w.s);
    assert_true(dispatch_distrusts(w.s.env.dispatch) == before + 1);
    assert_false(published(at("mlp_in/m1")));
    assert_true(published(at("attn_in/m1")) && published(at("mlp_out/m1")));
}

/* Its outputs were not seen to be right: the set goes on without it. */
static void who_has_not_passed_the_shadow_is_in_no_set(void **state)
{
    (void)state;
    promote_four();
    play.slot = "mlp_in/m1";
    play.shadow = STAGE_RETRY;
    promotions_try(&w.s);
    assert_int_equal(play.set_size[0], 3);
    assert_false(published(at("mlp_in/m1")));
    assert_true(published(at("attn_in/m1")) && published(at("head/m1")));
    assert_int_equal(at("mlp_in/m1")->promoted.at, STAGE_SHADOW);
}

/* After its own shadow, while others are in theirs. */
static void what_is_disabled_before_the_set_is_not_in_it(void **state)
{
    (void)state;
    promote_four();
    play.meanwhile = disable_one;
    play.meanwhile_at = STAGE_SHADOW;
    play.after_shadows = 4;
    promotions_try(&w.s);
    assert_int_equal(play.set_size[0], 3);
    assert_int_equal(play.forgotten, 1);
    assert_false(published(at("mlp_in/m1")));
}

static void silence_one(void)
{
    at("mlp_in/m1")->ran_ns = 0;
}

/* Its outputs were right, but a set would wait for it. */
static void whose_steps_have_stopped_is_in_no_set(void **state)
{
    (void)state;
    promote_four();
    play.meanwhile = silence_one;
    play.meanwhile_at = STAGE_SHADOW;
    play.after_shadows = 4;
    promotions_try(&w.s);
    assert_int_equal(play.set_size[0], 3);
    assert_int_equal(at("mlp_in/m1")->promoted.at, STAGE_CANARY);
    assert_int_equal(play.shadows, 4);
}

static void one_that_is_left_of_a_set_has_a_canary_of_its_own(void **state)
{
    (void)state;
    promote("mlp_in/m1", 1);
    promote("head/m1", 2);
    play.slot = "mlp_in/m1";
    play.shadow = STAGE_REFUSE;
    promotions_try(&w.s);
    assert_int_equal(play.sets, 0);
    assert_string_equal(play.tried, "head/m1");
    assert_true(published(at("head/m1")));
}

static void nobody_wants_one_of_the_set(void **state)
{
    (void)state;
    promote_four();
    disable("0000000000000002");
    promotions_try(&w.s);
    assert_int_equal(play.set_size[0], 3);
    assert_int_equal(play.forgotten, 1);
    assert_int_equal(play.shadows, 3);
}

/* ---- who waits ------------------------------------------------------------------------------- */

static void nobody_waits(void **state)
{
    (void)state;
    assert_false(promotions_try(&w.s));
}

static void who_rests_or_sees_no_steps_is_not_tried(void **state)
{
    (void)state;
    promote_four();
    at(four[0])->not_before_ns = after(5);
    at(four[1])->ran_ns = 0;
    promotions_try(&w.s);
    assert_int_equal(play.set_size[0], 2);
    assert_non_null(at(four[0])->promoted.c);
    assert_non_null(at(four[1])->promoted.c);
    assert_true(published(at(four[2])) && published(at(four[3])));
    assert_false(promotions_try(&w.s));
    at(four[0])->not_before_ns = clock_ns();
    assert_true(promotions_try(&w.s));
    assert_true(published(at(four[0])));
}

/* A share of the steps counts as much as a gain. */
static void one_by_one_in_the_order_of_their_promises(void)
{
    promote_four();
    at("mlp_out/m1")->locked.share = 0.31;
    at("head/m1")->locked.share = 0.9;
    at("head/m1")->promoted.c->evidence.bench.mean = -0.5;
    at("attn_in/m1")->promoted.c->evidence.bench.mean = 0.4;
    for (int i = 1; i <= 4; i++) {
        assert_true(promotions_try(&w.s));
        assert_int_equal(play.canaries, i);
    }
    assert_int_equal(play.sets, 0);
    assert_string_equal(play.tried, "attn_in/m1 mlp_out/m1 mlp_in/m1 head/m1");
    assert_false(promotions_try(&w.s));
}

/* A graph for every combination of kernels would be too much. */
static void on_a_gpu_they_are_tried_one_by_one(void **state)
{
    (void)state;
    w.machine.kind = MACHINE_CUDA;
    one_by_one_in_the_order_of_their_promises();
}

static void of_several_ranks_they_are_tried_one_by_one(void **state)
{
    (void)state;
    play.ranks = 2;
    one_by_one_in_the_order_of_their_promises();
}

static void no_more_are_tried_than_a_step_can_exchange(void **state)
{
    (void)state;
    int n = 0;
    for (int i = 0; i < w.s.slot_searches && n < OVERRIDES_MOST + 2; i++) {
        const struct slot *slot = w.s.slot_search[i].slot;
        if (slot->region != REGION_MLP && slot->region != REGION_ATTN)
            promote(slot->name, ++n);
    }
    promotions_try(&w.s);
    assert_int_equal(play.set_size[0], OVERRIDES_MOST);
    assert_int_equal(play.sets, 1);
}

/* It has the places of two of the others. */
static void a_fused_kernel_is_in_no_set(void **state)
{
    (void)state;
    promote("mlp_in/m1", 1);
    promote("head/m1", 2);
    at("mlp_out/m1")->slot->region = REGION_MLP; /* this table has none that is fused */
    promote("mlp_out/m1", 3);
    promotions_try(&w.s);
    assert_int_equal(play.sets, 1);
    assert_int_equal(play.set_size[0], 2);
    assert_non_null(at("mlp_out/m1")->promoted.c);
    assert_true(promotions_try(&w.s)); /* it has its turn by itself */
    assert_int_equal(play.canaries, 1);
}

static void while_others_are_gathered_nobody_is_tried(void **state)
{
    (void)state;
    promote_four();
    play.gathers = true;
    assert_false(promotions_try(&w.s));
    assert_int_equal(play.shadows, 0);
}

/* ---- company --------------------------------------------------------------------------------- */

static void benched(const char *slot, double share, double gain)
{
    at(slot)->locked.share = share;
    at(slot)->promoted.c->evidence.bench.mean = gain;
}

static void a_promise_is_of_whole_steps(void **state)
{
    (void)state;
    promote("mlp_in/m1", 1);
    promote("head/m1", 2);
    struct slot_search *p[] = {at("mlp_in/m1"), at("head/m1")};
    benched("mlp_in/m1", 0.3, 0.5);
    benched("head/m1", 0.2, 0.25);
    assert_float_equal(promised(&w.s, p, 1), 0.1, 1e-12);
    assert_float_equal(promised(&w.s, p, 2), 0.14, 1e-12);
    benched("head/m1", 0.2, -0.1);
    assert_float_equal(promised(&w.s, p + 1, 1), -0.02, 1e-12);
}

/* Whether one that promises so much of a step is left to wait. */
static bool is_left(double gain)
{
    struct slot_search *p = at("mlp_in/m1");
    benched("mlp_in/m1", 1, gain / (1 - gain));
    return waits_for_company(&w.s, &p, 1);
}

static void a_faint_gain_waits_while_slots_have_their_turn(void **state)
{
    (void)state;
    promote("mlp_in/m1", 1);
    play.ready = true; /* that is of an opening */
    assert_false(is_left(0.009));
    play.turns = true;
    assert_true(is_left(0.009));
    assert_false(is_left(0.011));
    w.s.batch.opening = true; /* one that is over */
    assert_true(is_left(0.009));
    assert_false(is_left(0.011));
}

static void in_an_opening_small_gains_wait_for_what_is_ready(void **state)
{
    (void)state;
    struct candidate other = {.steps = STEPS_UNSEEN};
    promote("mlp_in/m1", 1);
    w.s.batch.opening = true;
    w.s.batch.slot_search = at("head/m1");
    w.s.batch.n = 1;
    w.s.batch.trial[0].c = &other;
    w.s.batch.pipeline.last = STAGE_BENCH;
    assert_false(search_batch_over(&w.s));
    assert_true(is_left(0.009)); /* for what is still built, too */
    assert_false(is_left(0.011));
    play.ready = true;
    assert_true(is_left(0.011));
    assert_true(is_left(0.039));
    assert_false(is_left(0.041));
    play.turns = true;
    assert_false(is_left(0.041));
    w.s.batch.opening = false;
    assert_false(is_left(0.011));
}

static void nobody_and_a_full_set_wait_for_nobody(void **state)
{
    (void)state;
    struct slot_search *p[OVERRIDES_MOST];
    promote("mlp_in/m1", 1);
    play.turns = true;
    assert_true(is_left(0));
    for (int i = 0; i < OVERRIDES_MOST; i++)
        p[i] = at("mlp_in/m1");
    assert_false(waits_for_company(&w.s, p, 0));
    assert_false(waits_for_company(&w.s, p, OVERRIDES_MOST));
    assert_true(waits_for_company(&w.s, p, OVERRIDES_MOST - 1));
    assert_false(promotions_try(&w.s));
    assert_int_equal(play.shadows, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RULE(what_passes_together_is_published_together),
        RULE(one_that_drags_is_found_by_halves_and_takes_nobody_with_it),
        RULE(one_that_is_at_fault_leaves_and_the_others_stay_together),
        RULE(another_bucket_passes_by_itself),
        RULE(an_odd_set_is_halved_into_all_of_it),
        RULE(two_buckets_that_do_not_pass_are_judged_apart),
        RULE(what_is_disabled_before_the_set_is_not_in_it),
        RULE(buckets_are_grouped_before_they_are_halved),
        RULE(a_slot_that_changed_during_a_set_is_tried_again_alone),
        RULE(a_slot_that_changed_before_the_set_is_judged_as_it_is),
        RULE(one_that_is_disabled_during_a_set_is_not_published),
        RULE(who_has_not_passed_the_shadow_is_in_no_set),
        RULE(whose_steps_have_stopped_is_in_no_set),
        RULE(one_that_is_left_of_a_set_has_a_canary_of_its_own),
        RULE(nobody_wants_one_of_the_set),
        RULE(nobody_waits),
        RULE(who_rests_or_sees_no_steps_is_not_tried),
        RULE(on_a_gpu_they_are_tried_one_by_one),
        RULE(of_several_ranks_they_are_tried_one_by_one),
        RULE(no_more_are_tried_than_a_step_can_exchange),
        RULE(a_fused_kernel_is_in_no_set),
        RULE(while_others_are_gathered_nobody_is_tried),
        RULE(a_promise_is_of_whole_steps),
        RULE(a_faint_gain_waits_while_slots_have_their_turn),
        RULE(in_an_opening_small_gains_wait_for_what_is_ready),
        RULE(nobody_and_a_full_set_wait_for_nobody),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
