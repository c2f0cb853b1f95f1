/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of specializer/specializer.c: where a search is worth most, what a fused region waits
 * for, and how much of the time compilers and probes get beside steps. */
#include "tests/unit/unit.h"

#include <stdlib.h>

#include "specializer/opening.c"
#include "specializer/promotion.c"
#include "specializer/setup.h"
#include "specializer/specializer.c"

struct world {
    struct dispatch *dispatch;
    struct kernel eager[REGION_NODES];
    struct machine machine;
    struct specializer s;
};

static int open_world(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    const struct kernel *table[REGION_NODES];
    for (int r = 0; r < REGION_NODES; r++)
        table[r] = &w->eager[r];
    w->dispatch = dispatch_open_fused(table, NULL);
    w->s.env.machine = &w->machine;
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

static struct slot_search *slot_search(struct world *w, const char *slot, double worth)
{
    struct slot_search *p = slot_search_find(&w->s, slot);
    assert_non_null(p);
    p->locked.worth = worth;
    return p;
}

static void the_slot_that_is_worth_most_is_searched(void **state)
{
    struct world *w = *state;
    assert_null(choose(&w->s));
    struct slot_search *head = slot_search(w, "head/m1", 0.1),
                       *attn = slot_search(w, "attn/m1/c256", 0.2);
    assert_ptr_equal(choose(&w->s), attn);
    assert_ptr_equal(choose_but(&w->s, attn), head); /* who may come after it */
    attn->exhausted = true;
    assert_ptr_equal(choose(&w->s), head);
    head->locked.worth = OBSERVE_LEAST / 2;
    assert_null(choose(&w->s));
}

/* A fused region's share is that of its parts together, so it is always worth more than each. */
static void a_fused_region_is_searched_after_its_parts(void **state)
{
    struct world *w = *state;
    struct candidate active = {0};
    struct slot_search *fused = slot_search(w, "mlp/m1", 0.5);
    struct slot_search *in = slot_search(w, "mlp_in/m1", 0.3),
                       *out = slot_search(w, "mlp_out/m1", 0.2);
    assert_ptr_equal(choose(&w->s), in);
    in->locked.active = &active;
    assert_ptr_equal(choose(&w->s), in); /* the fused region waits for mlp_out */
    out->locked.active = &active;
    assert_ptr_equal(choose(&w->s), fused);
    out->locked.active = NULL;
    out->exhausted = true; /* there is nothing to wait for */
    assert_ptr_equal(choose(&w->s), fused);
    out->exhausted = false;
    out->locked.worth = 0;
    assert_ptr_equal(choose(&w->s), fused);
}

/* An operator may want fused regions alone; and other M buckets have parts of their own. */
static void a_fused_region_waits_for_no_part_that_nobody_will_search(void **state)
{
    struct world *w = *state;
    struct slot_search *fused = slot_search(w, "mlp/m2", 0.5);
    struct slot_search *in = slot_search(w, "mlp_in/m2", 0.3);
    slot_search(w, "mlp_out/m1", 0.1);
    assert_ptr_equal(choose(&w->s), in);
    in->left_out = true;
    assert_ptr_equal(choose(&w->s), fused);
}

static void disable_all(struct specializer *s, enum region region, int m)
{
    for (int i = 0; i < template_count(); i++)
        if (template_fits(template_at(i), MACHINE_CPU, region, m))
            operators_disable_locked(s, template_at(i)->id, "");
}

/* Nor for one of which an operator has disabled every template. */
static void a_fused_region_waits_for_no_part_without_templates(void **state)
{
    struct world *w = *state;
    struct slot_search *fused = slot_search(w, "mlp/m1", 0.5);
    struct slot_search *in = slot_search(w, "mlp_in/m1", 0.3);
    assert_ptr_equal(choose(&w->s), in);
    disable_all(&w->s, REGION_MLP_IN, 1);
    assert_ptr_equal(choose(&w->s), fused);
    free(w->s.locked.disabled);
}

/* Where no points are proposed, none are waited for. */
static void a_search_of_texts_alone_converges(void **state)
{
    struct world *w = *state;
    slot_search(w, "head/m1", 0.1);
    w->s.observe.busy_s = 2;
    assert_false(has_converged(&w->s));
    w->s.strategy = &strategy_agentic;
    assert_true(has_converged(&w->s));
    struct candidate c = {.name = "c"};
    slot_search(w, "head/m1", 0.1)->promoted.c = &c;
    assert_false(has_converged(&w->s));
}

/* The first slot that has a share is not searched alone while the others get theirs. */
static void no_batch_begins_before_an_opening_can(void **state)
{
    struct world *w = *state;
    slot_search(w, "head/m1", 0.1);
    assert_false(opening_waits(&w->s)); /* no steps: what a store says of shares is enough */
    w->s.observe.busy_s = 0.1;
    assert_true(opening_waits(&w->s));
    assert_false(search_advance(&w->s));
    assert_int_equal(w->s.batch.n, 0);
    w->s.observe.busy_s = 0.5;
    assert_false(opening_waits(&w->s));
    w->s.observe.busy_s = 0.1;
    w->s.seen_ns -= INT64_C(3000000000); /* but no more steps come */
    assert_false(opening_waits(&w->s));
    w->machine.kind = MACHINE_CUDA; /* the first steps there read many clients' prompts */
    w->s.seen_ns = 0;
    w->s.observe.busy_s = 0.5;
    assert_true(opening_waits(&w->s));
    assert_false(search_advance(&w->s));
    w->s.observe.busy_s = 2;
    assert_false(opening_waits(&w->s));
}

/* On a GPU slots take turns, each with what is known to be good for it. A rare one would wait for
 * live steps while those that matter are as they were, and so would one whose steps are over. */
static void slots_take_turns_that_live_steps_read(void **state)
{
    struct world *w = *state;
    struct candidate active = {0};
    struct slot_search *rare = slot_search(w, "mlp_in/m512", 0.002),
                       *burst = slot_search(w, "mlp_in/m2048", 0.04),
                       *attn = slot_search(w, "attn/m128/c512", 0.1),
                       *head = slot_search(w, "head/m32", 0.05);
    w->machine.kind = MACHINE_CUDA;
    rare->locked.share = 0.004;
    burst->locked.share = attn->locked.share = 0.2;
    head->locked.share = 0.1;
    rare->ran_ns = attn->ran_ns = head->ran_ns = clock_ns();
    burst->ran_ns = clock_ns() - INT64_C(60000000000);
    attn->locked.candidates = 1; /* has had its turn, and is still worth more */
    assert_ptr_equal(choose(&w->s), head);
    head->unknown = true; /* nothing is known to be good for it */
    assert_ptr_equal(choose(&w->s), attn);
    head->unknown = false;
    head->locked.active = &active;
    assert_ptr_equal(choose(&w->s), attn);
    burst->ran_ns = clock_ns();
    assert_ptr_equal(choose(&w->s), burst);
    burst->locked.candidates = 1;
    rare->locked.share = 0.02;
    assert_ptr_equal(choose(&w->s), rare);
}

/* A rare slot would wait for live steps while those that matter are as they were; so would one
 * whose steps are over, however large their share was. */
static void an_opening_is_of_slots_that_live_steps_read(void **state)
{
    struct world *w = *state;
    struct slot_search *rare = slot_search(w, "mlp_in/m512", 0.002),
                       *burst = slot_search(w, "mlp_in/m2048", 0.1),
                       *attn = slot_search(w, "attn/m128/c512", 0.1);
    rare->locked.share = 0.004;
    burst->locked.share = attn->locked.share = 0.2;
    rare->ran_ns = attn->ran_ns = clock_ns();
    assert_ptr_equal(take_next(&w->s), attn);
    assert_null(take_next(&w->s));
    burst->ran_ns = clock_ns() - INT64_C(60000000000);
    assert_null(take_next(&w->s));
    burst->ran_ns = clock_ns();
    assert_ptr_equal(take_next(&w->s), burst);
    rare->locked.share = 0.02;
    assert_ptr_equal(take_next(&w->s), rare);
}

/* What hardly shows takes live steps for long, and lets those pass that have not had their turn. */
static void a_faint_gain_lets_others_have_their_turns(void **state)
{
    struct world *w = *state;
    struct candidate faint = {.evidence.bench.mean = 0.05};
    struct slot_search *p[] = {slot_search(w, "mlp_out/m128", 0.02)},
                       *next = slot_search(w, "mlp_in/m1024", 0.04);
    w->machine.kind = MACHINE_CUDA;
    p[0]->promoted.c = &faint;
    p[0]->locked.candidates = 1;
    p[0]->locked.share = 0.07;
    next->locked.share = 0.14;
    assert_false(waits_for_company(&w->s, p, 1)); /* no steps read the other one */
    next->ran_ns = clock_ns();
    assert_true(waits_for_company(&w->s, p, 1));
    faint.evidence.bench.mean = 0.5; /* no longer faint */
    assert_false(waits_for_company(&w->s, p, 1));
    faint.evidence.bench.mean = 0.05;
    next->locked.candidates = 1;
    assert_false(waits_for_company(&w->s, p, 1));
}

/* On a GPU each has live steps of its own, and the largest gain comes first. */
static void who_promises_most_is_judged_first(void **state)
{
    struct world *w = *state;
    struct candidate small = {.evidence.bench.mean = 1}, large = {.evidence.bench.mean = 0.5};
    struct slot_search *best,
        *p[] = {slot_search(w, "attn_in/m1", 0.1), slot_search(w, "head/m1", 0.1)};
    assert_int_equal(waiting_alone(&w->s, &best), 0);
    p[0]->promoted.c = &small;
    p[0]->locked.share = 0.04;
    p[1]->promoted.c = &large;
    p[1]->locked.share = 0.2;
    p[0]->ran_ns = p[1]->ran_ns = clock_ns();
    assert_int_equal(waiting_alone(&w->s, &best), 1);
    assert_ptr_equal(best, p[1]);
    p[1]->not_before_ns = clock_ns() + INT64_C(60000000000);
    assert_int_equal(waiting_alone(&w->s, &best), 1);
    assert_ptr_equal(best, p[0]);
}

/* Nothing else is benched while a candidate waits for live steps. */
static void a_candidate_waits_for_live_steps_that_there_are(void **state)
{
    struct world *w = *state;
    struct candidate c = {0};
    struct slot_search *p = slot_search(w, "mlp_in/m2048", 0.1);
    p->promoted.c = &c;
    assert_false(waits(p)); /* none was seen yet */
    p->ran_ns = clock_ns();
    assert_true(waits(p));
    p->ran_ns -= INT64_C(60000000000);
    assert_false(waits(p));
}

/* A head is worth more than attn_out here, and costs more still. */
static void an_opening_begins_with_what_saves_most_for_its_cost(void **state)
{
    struct world *w = *state;
    struct slot_search *head = slot_search(w, "head/m1", 0.2),
                       *out = slot_search(w, "attn_out/m1", 0.1);
    head->locked.share = out->locked.share = 0.2;
    head->ran_ns = out->ran_ns = clock_ns();
    head->locked.run_s = 0.003;
    out->locked.run_s = 0.00003;
    assert_ptr_equal(take_next(&w->s), out);
    assert_ptr_equal(take_next(&w->s), head);
    assert_null(take_next(&w->s));
    head->offered = false;
    head->locked.share = 0.01; /* no inputs would come */
    assert_null(take_next(&w->s));
}

/* What hardly shows alone is judged with what comes next, as long as something comes. */
static void a_small_gain_of_an_opening_waits_for_company(void **state)
{
    struct world *w = *state;
    struct specializer *s = &w->s;
    struct candidate small = {.evidence.bench.mean = 0.25}, large = {.evidence.bench.mean = 0.6},
                     next = {0};
    struct slot_search *p[] = {slot_search(w, "attn_in/m1", 0.1), slot_search(w, "head/m1", 0.1)};
    p[0]->promoted.c = &small;
    p[1]->promoted.c = &large;
    p[0]->locked.share = 0.1; /* a fiftieth of a step */
    p[1]->locked.share = 0.2;
    s->batch.slot_search = p[0];
    s->batch.n = 1;
    s->batch.trial[0] = (struct trial){.c = &next, .at = STAGE_LOAD, .slot_search = p[1]};
    s->batch.pipeline.last = STAGE_BENCH;
    s->batch.opening = true;
    assert_true(waits_for_company(s, p, 1));
    assert_false(waits_for_company(s, p, 2)); /* a tenth */
    assert_false(waits_for_company(s, p, 0));
    s->batch.opening = false;
    assert_false(waits_for_company(s, p, 1));
    s->batch.opening = true;
    s->batch.trial[0].at = STAGE_PROBE; /* in a process of its own, meanwhile */
    assert_false(waits_for_company(s, p, 1));
    s->batch.trial[0].at = STAGE_LOAD;
    assert_true(waits_for_company(s, p, 1));
    s->batch.trial[0].c = NULL; /* the last one of them */
    assert_false(waits_for_company(s, p, 1));
}

/* The first kernels of an empty store have a share of their own, up to what they are expected to
 * gain, those after them half of the slices'. */
static void children_of_an_opening_have_a_share_of_their_own(void **state)
{
    struct world *w = *state;
    struct specializer *s = &w->s;
    struct config c = {.specializer_share = 0.04, .specializer_opening_share = 0.3};
    s->env.config = &c;
    s->batch.n = 2;
    s->batch.opening = true;
    assert_true(windows_for(s) == 0); /* nobody compiles or probes */
    s->batch.trial[1].child = (struct child *)w;
    assert_true(windows_for(s) == 0.02); /* nothing is expected of it */
    opening_promised(&s->batch.expects, 7, 0.6, 0.4);
    assert_true(windows_for(s) > 0.2 && windows_for(s) < 0.3);
    opening_measured(&s->batch.expects, 7, 3);
    assert_true(windows_for(s) == 0.3);
    opening_measured(&s->batch.expects, 7, 1.01);
    assert_true(windows_for(s) == 0.02);
    s->batch.opening = false;
    assert_true(windows_for(s) == 0.02);
}

static void windows_are_for_those_who_starve(void **state)
{
    struct world *w = *state;
    struct specializer *s = &w->s;
    struct config c = {.specializer_share = 0.04, .specializer_opening_share = 0.3};
    s->env.config = &c;
    s->batch.n = 1;
    s->batch.trial[0].child = (struct child *)w;
    for (int opening = 0; opening < 2; opening++) {
        s->batch.opening = opening > 0;
        assert_true(windows_for(s) > 0);
        atomic_store(&s->mode, SPECIALIZER_PAUSE);
        assert_true(windows_for(s) == 0);
        atomic_store(&s->mode, SPECIALIZER_RUN);
        c.specializer_idle_only = true;
        assert_true(windows_for(s) == 0);
        c.specializer_idle_only = false;
        c.specializer_share = 0; /* no time is lent at all */
        assert_true(windows_for(s) == 0);
        c.specializer_share = 0.04;
        w->machine.kind = MACHINE_CUDA; /* children have the cores */
        assert_true(windows_for(s) == 0);
        w->machine.kind = MACHINE_CPU;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_slot_that_is_worth_most_is_searched, open_world,
                                        close_world),
        cmocka_unit_test_setup_teardown(a_fused_region_is_searched_after_its_parts, open_world,
                                        close_world),
        cmocka_unit_test_setup_teardown(a_fused_region_waits_for_no_part_without_templates,
                                        open_world, close_world),
        cmocka_unit_test_setup_teardown(a_search_of_texts_alone_converges, open_world, close_world),
        cmocka_unit_test_setup_teardown(a_fused_region_waits_for_no_part_that_nobody_will_search,
                                        open_world, close_world),
        cmocka_unit_test_setup_teardown(no_batch_begins_before_an_opening_can, open_world,
                                        close_world),
        cmocka_unit_test_setup_teardown(slots_take_turns_that_live_steps_read, open_world,
                                        close_world),
        cmocka_unit_test_setup_teardown(an_opening_is_of_slots_that_live_steps_read, open_world,
                                        close_world),
        cmocka_unit_test_setup_teardown(a_faint_gain_lets_others_have_their_turns, open_world,
                                        close_world),
        cmocka_unit_test_setup_teardown(who_promises_most_is_judged_first, open_world, close_world),
        cmocka_unit_test_setup_teardown(a_candidate_waits_for_live_steps_that_there_are, open_world,
                                        close_world),
        cmocka_unit_test_setup_teardown(an_opening_begins_with_what_saves_most_for_its_cost,
                                        open_world, close_world),
        cmocka_unit_test_setup_teardown(a_small_gain_of_an_opening_waits_for_company, open_world,
                                        close_world),
        cmocka_unit_test_setup_teardown(children_of_an_opening_have_a_share_of_their_own,
                                        open_world, close_world),
        cmocka_unit_test_setup_teardown(windows_are_for_those_who_starve, open_world, close_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
