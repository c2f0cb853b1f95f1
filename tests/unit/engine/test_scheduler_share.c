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

static int32_t random_number(uint64_t *state, int32_t below)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (int32_t)((*state >> 20) % (uint64_t)below);
}

/* Choices of a request of one of three clients, whose prompt begins as one of three others do. */
static void arrive_alike(struct bench *b, uint64_t *random)
{
    int32_t common = random_number(random, 300), own = 1 + random_number(random, 120);
    int32_t like = random_number(random, 3), client = 1 + random_number(random, 3);
    int32_t choices = 1 + random_number(random, 4), output = 1 + random_number(random, 60);
    int32_t other = (int32_t)b->next_id * 977;
    for (; choices > 0; choices--) {
        struct sequence *seq = arrive_from(b, (uint64_t)client, common + own, output, 0);
        for (int32_t q = 0; q < common + own; q++)
            seq->tokens[q] = q < common ? like * 100000 + q : other + q;
    }
}

/* Of the plan that ran last; sequences that ended with it are not looked at. */
static void check_counts(const struct bench *b)
{
    for (const struct sequence *seq = b->s->running.oldest; seq; seq = seq->newer)
        assert_true(seq->cached_tokens < seq->prompt_n);
    for (int32_t i = 0; i < b->plan.decodes; i++) /* they come first */
        assert_int_equal(b->plan.item[i].count, 1);
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

/* Sequences that come, lose their pages and read what they had again, by lot: no token of a prompt
 * is counted as found twice, nor one that its sequence had computed, and pieces of prompts are none
 * of the decodes. */
static void what_was_found_counts_once(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        uint64_t random = seed * 0x9e3779b97f4a7c15ull;
        struct bench *b =
            bench_open(40 + random_number(&random, 80), 2 + random_number(&random, 10),
                       16 + random_number(&random, 100));
        b->limits.prefix_cache = PREFIX_SHARED;
        scheduler_close(b->s);
        b->s = scheduler_open(b->kv, &b->limits);
        for (int steps = 0; steps < 800; steps++) {
            if (scheduler_waiting(b->s) < 20 && random_number(&random, 4) == 0)
                arrive_alike(b, &random);
            if (!scheduler_oldest(b->s))
                continue;
            step(b);
            check_counts(b);
        }
        bench_close(b);
    }
}

/* One that lost its pages finds all but its last token in the cache while the step is planned: what
 * is left looks like a decode, and stands among the pieces of prompts. */
static void the_rest_of_what_is_read_again_is_no_decode(void **state)
{
    (void)state;
    struct bench *b = shared_open();
    struct sequence *decoding = arrive(b, 20, 40, 5000), *again = arrive(b, 100, 40, 0);
    while (again->n < 7 * KV_PAGE + 1)
        step(b);
    for (int i = 0; i < 7; i++) {
        kvcache_drop(b->kv, again->page[i]);
        again->page[i] = kvcache_take(b->kv);
    }
    again->page[again->pages++] =
        kvcache_take(b->kv); /* as whoever is admitted has for all of it */
    again->flow->pages++;
    again->computed = again->sealed = 0;
    struct sequence *prompt = arrive(b, 50, 4, 9000);
    step(b);
    assert_int_equal(b->plan.items, 3);
    assert_int_equal(item_of(b, again)->count, 1);
    assert_int_equal(item_of(b, prompt)->count, 50);
    assert_ptr_equal(b->plan.item[0].seq, decoding);
    assert_int_equal(b->plan.decodes, 1);
    bench_close(b);
}

/* Whoever has computed something when a wrong kernel leaves never shares it, nor what it computes
 * behind it, until it begins anew; and nobody waits for it. */
static void nobody_shares_what_a_wrong_kernel_may_have_written(void **state)
{
    (void)state;
    struct bench *b = bench_open(300, 16, 128);
    arrive(b, 48, 1, 0);
    assert_int_equal(step(b), 1);
    struct sequence *longer = arrive(b, 100, 80, 5000);
    while (longer->computed < 100)
        step(b);
    struct sequence *beginner = arrive(b, 10, 80, 9000), *late = arrive(b, 40, 80, 20000);
    struct sequence *reader = arrive(b, 100, 50, 30000);
    b->distrust = true;
    step(b);
    assert_int_equal(scheduler_forgotten(b->s), 3 + 6);
    assert_int_equal(beginner->computed, 10);
    assert_int_equal(late->computed, 40);
    assert_in_range(reader->computed, 16, 99);
    struct sequence *behind = arrive(b, 110, 40, 30000);
    step(b);
    assert_true(reader->computed == 100 && behind->computed > 0);
    while (beginner->computed < 40)
        step(b);
    const struct sequence *doubted[] = {longer, beginner, late};
    for (int i = 0; i < 3; i++)
        for (int32_t k = 0; k < doubted[i]->computed / KV_PAGE; k++)
            assert_true(kvcache_writable(b->kv, doubted[i]->page[k])); /* nobody else finds it */
    for (int32_t round = 0; round < 2; round++) /* clean pages are shared as ever */
        for (int i = 0; i < 3; i++) {
            const int32_t first[] = {0, 5000, 20000};
            struct sequence *same = arrive(b, 33, 20, first[i]);
            step(b);
            assert_int_equal(same->cached_tokens, round ? 32 : 0);
            assert_int_equal(same->computed, 33);
            assert_false(same->doubted);
        }
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
        cmocka_unit_test(what_was_found_counts_once),
        cmocka_unit_test(the_rest_of_what_is_read_again_is_no_decode),
        cmocka_unit_test(nobody_shares_what_a_wrong_kernel_may_have_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
