/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of specializer/specializer.c: where a search is worth most, and what a span of regions
 * waits for. */
#include "tests/unit/unit.h"

#include <stdlib.h>

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
    w->dispatch = dispatch_open_spans(table);
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

/* A span's share is that of its parts together, so it is always worth more than each. */
static void a_span_is_searched_after_its_parts(void **state)
{
    struct world *w = *state;
    struct candidate active = {0};
    struct slot_search *span = slot_search(w, "mlp/m1", 0.5);
    struct slot_search *in = slot_search(w, "mlp_in/m1", 0.3),
                       *out = slot_search(w, "mlp_out/m1", 0.2);
    assert_ptr_equal(choose(&w->s), in);
    in->locked.active = &active;
    assert_ptr_equal(choose(&w->s), in); /* the span waits for mlp_out */
    out->locked.active = &active;
    assert_ptr_equal(choose(&w->s), span);
    out->locked.active = NULL;
    out->exhausted = true; /* there is nothing to wait for */
    assert_ptr_equal(choose(&w->s), span);
    out->exhausted = false;
    out->locked.worth = 0;
    assert_ptr_equal(choose(&w->s), span);
}

/* An operator may want spans alone; and other M buckets have parts of their own. */
static void a_span_waits_for_no_part_that_nobody_will_search(void **state)
{
    struct world *w = *state;
    struct slot_search *span = slot_search(w, "mlp/m2", 0.5);
    struct slot_search *in = slot_search(w, "mlp_in/m2", 0.3);
    slot_search(w, "mlp_out/m1", 0.1);
    assert_ptr_equal(choose(&w->s), in);
    in->left_out = true;
    assert_ptr_equal(choose(&w->s), span);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_slot_that_is_worth_most_is_searched, open_world,
                                        close_world),
        cmocka_unit_test_setup_teardown(a_span_is_searched_after_its_parts, open_world,
                                        close_world),
        cmocka_unit_test_setup_teardown(a_span_waits_for_no_part_that_nobody_will_search,
                                        open_world, close_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
