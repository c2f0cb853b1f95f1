/* SPDX-License-Identifier: Apache-2.0 */
/* test_scheduler_share.c - what several running sequences begin with is computed once. */
#include "engine/scheduler_private.h"
#include "tests/unit/engine/scheduler_world.h"

static struct bench *shared_open(void)
{
    struct bench *b = bench_open(400, 16, 256);
    b->limits.prefix_cache = PREFIX_SHARED;
    scheduler_close(b->s);
    b->s = scheduler_open(b->kv, &b->limits);
    return b;
}

static void the_choices_of_a_request_read_its_prompt_once(void **state)
{
    (void)state;
    struct bench *b = shared_open();
    struct sequence *choice[4];
    for (int i = 0; i < 4; i++)
        choice[i] = arrive(b, 100, 8, 0);
    step(b);
    assert_int_equal(b->plan.items, 1);
    assert_int_equal(item_of(b, choice[0])->count, 100);
    step(b);
    assert_int_equal(b->plan.items, 4);
    for (int i = 1; i < 4; i++) { /* six whole pages, and the last token is never taken */
        assert_int_equal(item_of(b, choice[i])->count, 4);
        assert_true(item_of(b, choice[i])->draw);
        assert_int_equal(choice[i]->cached_tokens, 96);
        assert_int_equal(choice[i]->page[5], choice[0]->page[5]);
    }
    assert_int_equal(scheduler_cached(b->s), 3 * 96);
    bench_close(b);
}

/* A long prompt takes several steps; those that follow it never compute a token of what it does. */
static void a_burst_with_one_beginning_reads_it_once(void **state)
{
    (void)state;
    struct bench *b = shared_open();
    struct sequence *seq[5];
    for (int i = 0; i < 5; i++) {
        seq[i] = arrive(b, 1000, 4, 0);
        for (int q = 980; q < 1000; q++)
            seq[i]->tokens[q] = 5000 * (i + 1) + q;
    }
    uint64_t ends = 0;
    while (ends < 5)
        ends += (uint64_t)step(b);
    /* 61 pages are the same */
    assert_int_equal(b->work[0], 1000 + 4 * (1000 - 61 * KV_PAGE) + 5 * 3);
    bench_close(b);
}

/* While the first one's step is under way the second has nothing to do, and then no longer. */
static void pages_of_a_step_under_way_are_waited_for(void **state)
{
    (void)state;
    struct bench *b = shared_open();
    struct sequence *first = arrive(b, 300, 4, 0);
    assert_int_equal(scheduler_plan(b->s, &b->plan, b->admitted), 1);
    struct schedule flying = b->plan;
    struct schedule_item item = b->item[0];
    flying.item = &item;
    compute(b, &item);
    scheduler_started(b->s, &flying);
    assert_int_equal(first->computed, 256);

    struct sequence *second = arrive(b, 300, 4, 0);
    scheduler_plan(b->s, &b->plan, b->admitted);
    assert_null(item_of(b, second));
    assert_int_equal(item_of(b, first)->count, 44); /* steps may follow each other at once */

    scheduler_undone(b->s, &flying); /* it failed: there is nothing to wait for */
    scheduler_remove(b->s, first);
    sequence_free(first);
    step(b);
    assert_int_equal(item_of(b, second)->first, 0);
    assert_int_equal(item_of(b, second)->count, 256);
    bench_close(b);
}

/* One page in common, of a template say, is no reason to wait. */
static void a_common_greeting_holds_nobody_up(void **state)
{
    (void)state;
    struct bench *b = shared_open();
    struct sequence *one = arrive(b, 100, 4, 0), *other = arrive(b, 100, 4, 0);
    for (int q = KV_PAGE; q < 100; q++)
        other->tokens[q] += 7000;
    step(b);
    assert_int_equal(item_of(b, one)->count, 100);
    assert_int_equal(item_of(b, other)->count, 100);
    assert_int_equal(one->page[0], other->page[0]); /* one copy is left */
    bench_close(b);
}

static void clients_with_pages_of_their_own_wait_for_nobody(void **state)
{
    (void)state;
    struct bench *b = bench_open(400, 16, 256); /* PREFIX_SALTED */
    struct sequence *one = arrive_from(b, 1, 100, 4, 0), *other = arrive_from(b, 2, 100, 4, 0);
    step(b);
    assert_int_equal(item_of(b, one)->count, 100);
    assert_int_equal(item_of(b, other)->count, 100);
    assert_int_not_equal(one->page[0], other->page[0]);
    bench_close(b);
}

/* Whoever is scored needs the logits of all positions, from pages of its own. */
static void a_prompt_that_is_scored_neither_waits_nor_takes(void **state)
{
    (void)state;
    struct bench *b = shared_open();
    arrive(b, 100, 4, 0);
    struct sequence *scored = arrive(b, 100, 4, 0);
    scored->prompt_logprobs = true;
    scored->scored = 1;
    step(b);
    assert_non_null(item_of(b, scored));
    assert_int_equal(item_of(b, scored)->first, 0);
    step(b);
    assert_int_equal(scored->cached_tokens, 0);
    bench_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_choices_of_a_request_read_its_prompt_once),
        cmocka_unit_test(a_burst_with_one_beginning_reads_it_once),
        cmocka_unit_test(pages_of_a_step_under_way_are_waited_for),
        cmocka_unit_test(a_common_greeting_holds_nobody_up),
        cmocka_unit_test(clients_with_pages_of_their_own_wait_for_nobody),
        cmocka_unit_test(a_prompt_that_is_scored_neither_waits_nor_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
