/* SPDX-License-Identifier: Apache-2.0 */
/* test_scheduler.c - what runs next: order, budgets, pages, and that everything ends. */
#include "engine/backlog.h"
#include "tests/unit/engine/scheduler_world.h"

static void scheduler_decodes_first_and_fills_up_with_prompts(void **state)
{
    (void)state;
    struct bench *b = bench_open(100, 8, 32);
    struct sequence *a = arrive(b, 10, 50, 0);
    step(b);
    struct sequence *c = arrive(b, 40, 5, 1000), *d = arrive(b, 40, 5, 2000);
    step(b);
    assert_int_equal(b->plan.tokens, 32);
    assert_ptr_equal(b->plan.item[0].seq, a);
    assert_int_equal(b->plan.item[0].count, 1);
    assert_int_equal(item_of(b, c)->count, 31);
    assert_null(item_of(b, d));
    step(b); /* the end of one prompt and the start of the next share a step */
    assert_int_equal(item_of(b, a)->count, 1);
    assert_int_equal(item_of(b, c)->count, 9);
    assert_true(item_of(b, c)->draw);
    assert_int_equal(item_of(b, d)->count, 22);
    assert_false(item_of(b, d)->draw);
    bench_close(b);
}

static void scheduler_keeps_some_budget_for_prompts_when_many_decode(void **state)
{
    (void)state;
    struct bench *b = bench_open(200, 16, 16);
    for (int i = 0; i < 15; i++)
        arrive(b, 1, 100, 10 * i);
    step(b);
    struct sequence *late = arrive(b, 32, 4, 5000);
    step(b);
    assert_int_equal(b->plan.items, 16);
    assert_int_equal(item_of(b, late)->count, 16);
    bench_close(b);
}

static void scheduler_reads_prompts_beside_decodes_at_the_pace_set(void **state)
{
    (void)state;
    struct bench *b = bench_open(200, 4, 128);
    scheduler_pace(b->s, 24);
    arrive(b, 100, 50, 0);
    step(b);
    assert_int_equal(b->plan.tokens, 100); /* nobody decodes: no need for patience */
    struct sequence *late = arrive(b, 100, 4, 5000);
    step(b);
    assert_int_equal(item_of(b, late)->count, 24);
    scheduler_pace(b->s, 0);
    step(b);
    assert_int_equal(item_of(b, late)->count, 16);
    bench_close(b);
}

static void scheduler_runs_no_more_than_max_batch_in_order_of_arrival(void **state)
{
    (void)state;
    struct bench *b = bench_open(100, 2, 64);
    struct sequence *s[4];
    for (int i = 0; i < 4; i++)
        s[i] = arrive(b, 4, 2 + i, 100 * i);
    step(b);
    assert_int_equal(b->plan.items, 2);
    assert_non_null(item_of(b, s[0]));
    assert_non_null(item_of(b, s[1]));
    assert_int_equal(step(b), 1);
    step(b);
    assert_non_null(item_of(b, s[2]));
    assert_null(item_of(b, s[3]));
    bench_close(b);
}

/* engine_setup.c opens no more pages than all sequences can use: then all must run. */
static void scheduler_keeps_no_page_for_those_who_cannot_grow(void **state)
{
    (void)state;
    struct bench *b = bench_open(8, 4, 256);
    for (int i = 0; i < 4; i++)
        arrive(b, 20, 12, 100 * i); /* two pages at the start and at the end */
    scheduler_plan(b->s, &b->plan, b->admitted);
    assert_int_equal(scheduler_running(b->s), 4);
    bench_close(b);
}

static void scheduler_takes_a_known_prefix_from_the_cache_but_never_the_last_token(void **state)
{
    (void)state;
    struct bench *b = bench_open(100, 4, 64);
    arrive(b, 48, 1, 0);
    assert_int_equal(step(b), 1);
    struct sequence *same = arrive(b, 48, 2, 0), *longer = arrive(b, 50, 2, 0);
    step(b);
    assert_int_equal(same->cached_tokens, 32); /* 48 would leave nothing to compute */
    assert_int_equal(longer->cached_tokens, 48);
    assert_int_equal(item_of(b, same)->count, 16);
    assert_int_equal(item_of(b, longer)->count, 2);
    assert_int_equal(same->page[1], longer->page[1]);
    bench_close(b);
}

static void scheduler_scores_every_position_of_a_prompt_exactly_once(void **state)
{
    (void)state;
    struct bench *b = bench_open(100, 2, 64);
    arrive(b, 48, 1, 0);
    step(b);
    struct sequence *seq = arrive(b, 48, 2, 0);
    seq->prompt_logprobs = true;
    seq->scored = 1; /* position 0 has nothing to score */
    int32_t scores = 0;
    while (seq->computed < 48) {
        step(b);
        assert_int_equal(seq->cached_tokens, 0);
        assert_true(b->plan.rows <= b->limits.max_rows);
        scores += item_of(b, seq)->scores;
    }
    assert_int_equal(scores, 47);
    bench_close(b);
}

static void scheduler_preempts_the_youngest_when_pages_run_out(void **state)
{
    (void)state;
    struct bench *b = bench_open(6, 4, 64);
    struct sequence *old = arrive(b, 16, 60, 0), *young = arrive(b, 16, 60, 500);
    while (scheduler_preemptions(b->s) == 0)
        step(b);
    assert_int_equal(scheduler_preemptions(b->s), 1);
    assert_int_equal(old->place, PLACE_RUNNING);
    assert_int_equal(young->place, PLACE_WAITING);
    assert_int_equal(young->pages, 0);
    int32_t kept = young->n;
    while (old->n < sequence_longest(old) - 1)
        step(b);
    step(b);
    step(b);
    assert_int_equal(young->place, PLACE_RUNNING);
    assert_in_range(young->n, kept, kept + 2); /* nothing that was drawn is lost */
    assert_int_equal(b->waiting[0], 0);        /* it was admitted once */
    bench_close(b);
}

static void scheduler_runs_suspects_alone_until_they_pass(void **state)
{
    (void)state;
    struct bench *b = bench_open(100, 8, 64);
    for (int i = 0; i < 3; i++)
        arrive(b, 20, 10, 100 * i);
    scheduler_plan(b->s, &b->plan, b->admitted);
    assert_int_equal(b->plan.items, 3);
    scheduler_suspect(b->s, &b->plan); /* the step failed */
    for (int i = 0; i < 3; i++) {
        step(b);
        assert_int_equal(b->plan.items, 1);
        assert_int_equal(b->plan.item[0].seq->id, (uint64_t)i + 1);
    }
    step(b);
    assert_int_equal(b->plan.items, 3);
    bench_close(b);
}

static void scheduler_lets_a_sequence_in_only_if_it_can_ever_fit(void **state)
{
    (void)state;
    struct kvcache *kv = kvcache_open(4);
    assert_true(scheduler_fits(kv, 4 * KV_PAGE));
    assert_false(scheduler_fits(kv, 4 * KV_PAGE + 1));
    kvcache_close(kv);
}

/* Of one client's prompts the one with the least left is read first, the oldest of equals; one that
 * has waited long comes before them. */
static void scheduler_reads_short_prompts_first_and_long_ones_in_the_end(void **state)
{
    (void)state;
    struct bench *b = bench_open(400, 8, 64);
    struct sequence *longest = arrive(b, 1000, 1, 0);
    struct sequence *shorter = arrive(b, 80, 1, 2000), *same = arrive(b, 80, 1, 3000);
    step(b);
    assert_int_equal(b->plan.items, 1);
    assert_ptr_equal(b->plan.item[0].seq, shorter);
    step(b);
    assert_int_equal(b->plan.items, 2);
    assert_ptr_equal(b->plan.item[0].seq, shorter);
    assert_ptr_equal(b->plan.item[1].seq, same);
    int32_t steps = 0;
    while (longest->computed == 0) { /* whatever comes, it has its turn */
        arrive(b, 60, 1, 5000 + 100 * steps)->submit_work = scheduler_work(b->s);
        step(b);
        assert_true(++steps < AGEING * 1000 / 64 + 4);
    }
    assert_true(steps > 4);
    bench_close(b);
}

static void scheduler_finds_who_runs_and_who_waits(void **state)
{
    (void)state;
    struct bench *b = bench_open(100, 2, 64);
    struct sequence *s[5];
    for (int i = 0; i < 5; i++)
        s[i] = arrive(b, 4, 20, 100 * i);
    step(b);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(s[i]->place, i < 2 ? PLACE_RUNNING : PLACE_WAITING);
        assert_ptr_equal(scheduler_find(b->s, s[i]->id), s[i]);
    }
    assert_null(scheduler_find(b->s, 6));
    bench_close(b);
}

/* Of an answer's requests the newest that waits, whatever of the same client came after it. */
static void scheduler_names_the_newest_of_an_answer_that_waits(void **state)
{
    (void)state;
    struct bench *b = bench_open(100, 1, 64);
    struct backlog_group answer[3] = {{.client = 4}, {.client = 4}, {.client = 5}};
    struct sequence *s[4];
    for (int i = 0; i < 4; i++) {
        s[i] = arrive_from(b, 4, 4, 2, 100 * i);
        s[i]->group = &answer[i / 3];
    }
    step(b); /* the first runs */
    assert_ptr_equal(scheduler_newest(b->s, &answer[0]), s[2]);
    assert_ptr_equal(scheduler_newest(b->s, &answer[1]), s[3]);
    assert_null(scheduler_newest(b->s, &answer[2]));
    scheduler_remove(b->s, s[2]);
    sequence_free(s[2]);
    assert_ptr_equal(scheduler_newest(b->s, &answer[0]), s[1]);
    scheduler_remove(b->s, s[1]);
    sequence_free(s[1]);
    assert_null(scheduler_newest(b->s, &answer[0]));
    bench_close(b);
}

/* A sequence whose last token is drawn by a step under way has nothing to compute in the next. */
static void scheduler_plans_nothing_for_who_ends_with_the_step_under_way(void **state)
{
    (void)state;
    struct bench *b = bench_open(100, 2, 64);
    struct sequence *last = arrive(b, 10, 1, 0), *goes_on = arrive(b, 10, 3, 100);
    scheduler_plan(b->s, &b->plan, b->admitted);
    assert_int_equal(b->plan.items, 2);
    scheduler_started(b->s, &b->plan);
    struct schedule_item item[MOST];
    struct schedule next = {.item = item};
    scheduler_plan(b->s, &next, b->admitted);
    assert_int_equal(next.items, 1);
    assert_ptr_equal(item[0].seq, goes_on);
    assert_int_equal(item[0].first, 10);
    scheduler_done(b->s, &b->plan);
    assert_int_equal(last->in_flight, 0);
    bench_close(b);
}

static void scheduler_reserves_pages_behind_the_tokens_as_far_as_nobody_needs_them(void **state)
{
    (void)state;
    struct bench *b = bench_open(6, 2, 64);
    struct sequence *seq = arrive(b, 15, 200, 0);
    step(b);
    assert_int_equal(seq->n, KV_PAGE);
    assert_int_equal(scheduler_reserve(b->s, seq, 20), 20);
    assert_int_equal(seq->pages, 3);
    assert_int_equal(scheduler_reserve(b->s, seq, 32), 32);
    assert_int_equal(seq->pages, 3);
    assert_int_equal(scheduler_reserve(b->s, seq, 1000), 4 * KV_PAGE);
    assert_int_equal(kvcache_available(b->kv), 1); /* one is left for a sequence that may grow */
    bench_close(b);
}

/* A guess needs a row beside the one that draws, and the rows of others come first. A prompt has
 * none. */
static void scheduler_plans_guesses_where_rows_are_left(void **state)
{
    (void)state;
    struct bench *b = bench_open(100, 2, 64); /* 6 rows */
    struct sequence *first = arrive(b, 10, 50, 0), *second = arrive(b, 10, 50, 100);
    first->guesses = 3;
    step(b);
    assert_int_equal(b->plan.guesses, 0);
    first->guesses = 10;
    second->guesses = 1;
    scheduler_plan(b->s, &b->plan, b->admitted);
    assert_int_equal(b->plan.items, 2);
    assert_int_equal(item_of(b, first)->guesses, 4); /* six less two that draw */
    assert_int_equal(item_of(b, first)->count, 5);
    assert_int_equal(item_of(b, second)->guesses, 0);
    assert_int_equal(item_of(b, second)->count, 1);
    assert_int_equal(b->plan.rows, 6);
    assert_int_equal(b->plan.tokens, 6);
    bench_close(b);
}

/* Where who was served least finds no page, the client with the most pages makes room, not the one
 * with the most places in the batch. */
static void scheduler_makes_room_at_the_cost_of_who_has_the_most_pages(void **state)
{
    (void)state;
    struct bench *b = bench_open(12, 8, 256);
    struct sequence *large = arrive_from(b, 1, 7 * KV_PAGE, 15, 0), *small[2];
    for (int i = 0; i < 2; i++)
        small[i] = arrive_from(b, 2, 10, 100, 1000 * (i + 1));
    for (int i = 0; i < 3; i++)
        step(b);
    struct sequence *newcomer = arrive_from(b, 3, 3 * KV_PAGE, 4, 5000);
    newcomer->flow->served = 0; /* least of all */
    step(b);
    assert_int_equal(newcomer->place, PLACE_RUNNING);
    assert_int_equal(large->place, PLACE_WAITING);
    assert_int_equal(small[0]->place, PLACE_RUNNING);
    assert_int_equal(small[1]->place, PLACE_RUNNING);
    assert_int_equal(scheduler_preemptions(b->s), 1);
    bench_close(b);
}

/* Random traffic on too few pages: plans stay legal, decoding sequences never wait while they
 * hold pages, the oldest moves before much else was computed, pages are conserved, and everything
 * ends. */
static void random_traffic(unsigned seed, int32_t pages, int32_t batch, int32_t chunk,
                           uint64_t clients)
{
    struct bench *b = bench_open(pages, batch, chunk);
    int32_t arrived = 0, ended = 0, steps = 0;
    const int32_t all = 150;
    const uint64_t patience = 2 * AGEING * (uint64_t)pages * KV_PAGE;
    uint64_t moved = 0, waits = 0; /* scheduler_work() when the oldest, which is `waits`, moved */
    int32_t computed = 0;
    srand(seed);
    while (ended < all) {
        while (arrived < all && rand() % 3) {
            int32_t prompt = 1 + rand() % (pages * KV_PAGE / 2);
            int32_t output = 1 + rand() % (pages * KV_PAGE / 2);
            struct sequence *seq =
                arrive_from(b, (uint64_t)rand() % clients, prompt, output, rand() % 3);
            seq->submit_work = scheduler_work(b->s);
            seq->prompt_logprobs = rand() % 8 == 0;
            seq->scored = seq->prompt_logprobs;
            arrived++;
        }
        struct sequence *oldest = scheduler_oldest(b->s);
        if (!oldest)
            continue;
        if (oldest->id != waits || oldest->computed != computed)
            moved = scheduler_work(b->s);
        waits = oldest->id;
        computed = oldest->computed;
        if (clients == 1) /* with others, it may be theirs */
            assert_true(scheduler_work(b->s) - moved <= patience);
        if (rand() % 40 == 0) { /* a cancel */
            struct sequence *seq = scheduler_find(b->s, (uint64_t)(1 + rand() % arrived));
            if (seq) {
                scheduler_remove(b->s, seq);
                sequence_free(seq);
                ended++;
                continue;
            }
        }
        ended += step(b);
        assert_int_equal(kvcache_used(b->kv) + kvcache_available(b->kv), pages);
        assert_true(++steps < 100000);
    }
    assert_int_equal(scheduler_running(b->s) + scheduler_waiting(b->s), 0);
    bench_close(b);
}

static void scheduler_ends_every_request_under_random_load(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 20; seed++)
        random_traffic(seed, 6 + (int32_t)seed, 1 + (int32_t)seed % 12,
                       16 + 8 * (int32_t)(seed % 5), 1);
    for (unsigned seed = 1; seed <= 100; seed++)
        random_traffic(seed, 6 + (int32_t)(seed % 20), 1 + (int32_t)seed % 12,
                       16 + 8 * (int32_t)(seed % 5), 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scheduler_decodes_first_and_fills_up_with_prompts),
        cmocka_unit_test(scheduler_keeps_some_budget_for_prompts_when_many_decode),
        cmocka_unit_test(scheduler_reads_prompts_beside_decodes_at_the_pace_set),
        cmocka_unit_test(scheduler_runs_no_more_than_max_batch_in_order_of_arrival),
        cmocka_unit_test(scheduler_keeps_no_page_for_those_who_cannot_grow),
        cmocka_unit_test(scheduler_takes_a_known_prefix_from_the_cache_but_never_the_last_token),
        cmocka_unit_test(scheduler_scores_every_position_of_a_prompt_exactly_once),
        cmocka_unit_test(scheduler_preempts_the_youngest_when_pages_run_out),
        cmocka_unit_test(scheduler_runs_suspects_alone_until_they_pass),
        cmocka_unit_test(scheduler_lets_a_sequence_in_only_if_it_can_ever_fit),
        cmocka_unit_test(scheduler_reads_short_prompts_first_and_long_ones_in_the_end),
        cmocka_unit_test(scheduler_finds_who_runs_and_who_waits),
        cmocka_unit_test(scheduler_names_the_newest_of_an_answer_that_waits),
        cmocka_unit_test(scheduler_plans_nothing_for_who_ends_with_the_step_under_way),
        cmocka_unit_test(scheduler_reserves_pages_behind_the_tokens_as_far_as_nobody_needs_them),
        cmocka_unit_test(scheduler_plans_guesses_where_rows_are_left),
        cmocka_unit_test(scheduler_makes_room_at_the_cost_of_who_has_the_most_pages),
        cmocka_unit_test(scheduler_ends_every_request_under_random_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
