/* SPDX-License-Identifier: Apache-2.0 */
/* test_fair.c - the scheduler between clients: work, places, pages, and that nobody starves. All
 * of it is counted in tokens computed and steps, none in time. */
#include "engine/fair.h"
#include "tests/unit/engine/scheduler_world.h"

enum { GREEDY = 1, VICTIM = 2 };

/* Tokens computed for anybody from now until `seq` has drawn its first. */
static uint64_t work_to_first_token(struct bench *b, const struct sequence *seq)
{
    uint64_t before = scheduler_work(b->s);
    for (int steps = 0; seq->n == seq->prompt_n; steps++) {
        assert_true(steps < 10000);
        step(b);
    }
    return scheduler_work(b->s) - before;
}

/* ---- order --------------------------------------------------------------------------------- */

static void fair_gives_a_newcomer_a_place_in_a_full_batch(void **state)
{
    (void)state;
    struct bench *b = bench_open(1000, 8, 64);
    for (int i = 0; i < 40; i++)
        arrive_from(b, GREEDY, 16, 500, 1000 * i);
    for (int i = 0; i < 50; i++)
        step(b);
    assert_int_equal(scheduler_running(b->s), 8); /* alone it has everything */
    assert_int_equal(scheduler_yields(b->s), 0);
    struct sequence *victim = arrive_from(b, VICTIM, 40, 5, 7);
    /* Its prompt, and what decodes beside it; each stream before it has 500. */
    assert_in_range(work_to_first_token(b, victim), 40, 100);
    assert_int_equal(scheduler_yields(b->s), 1);
    assert_int_equal(scheduler_running(b->s), 8);
    bench_close(b);
}

static void fair_reads_a_newcomers_prompt_before_a_heap_of_others(void **state)
{
    (void)state;
    struct bench *b = bench_open(4000, 16, 64);
    for (int i = 0; i < 50; i++)
        arrive_from(b, GREEDY, 800, 4, 1000 * i);
    for (int i = 0; i < 20; i++)
        step(b);
    struct sequence *victim = arrive_from(b, VICTIM, 200, 5, 7);
    assert_in_range(work_to_first_token(b, victim), 200, 600); /* of 38800 that wait before it */
    bench_close(b);
}

static void fair_shares_a_step_between_prompts(void **state)
{
    (void)state;
    struct bench *b = bench_open(4000, 16, 256);
    struct sequence *one = arrive_from(b, 1, 1000, 4, 0), *two = arrive_from(b, 2, 1000, 4, 5000);
    arrive_from(b, 1, 1000, 4, 9000);
    step(b);
    assert_int_equal(item_of(b, one)->count, 128);
    assert_int_equal(item_of(b, two)->count, 128);
    scheduler_remove(b->s, two);
    sequence_free(two);
    step(b);
    assert_int_equal(item_of(b, one)->count, 256); /* and who is alone gets all of it */
    bench_close(b);
}

/* Scoring a prompt takes a row a token; who draws one token must not wait for rows until it ends.
 */
static void fair_leaves_rows_to_others_while_a_prompt_is_scored(void **state)
{
    (void)state;
    struct bench *b = bench_open(1000, 4, 256);
    for (int i = 0; i < 3; i++) {
        struct sequence *seq = arrive_from(b, GREEDY, 400, 4, 1000 * i);
        seq->prompt_logprobs = true;
        seq->scored = 1;
    }
    step(b);
    step(b);
    struct sequence *victim = arrive_from(b, VICTIM, 20, 5, 7);
    step(b);
    assert_int_equal(victim->n, victim->prompt_n + 1);
    bench_close(b);
}

/* Beside many streams the pace is as slow as it gets; but it is for streams of several clients. */
static void fair_reads_a_prompt_as_fast_as_another_client_decodes(void **state)
{
    (void)state;
    struct bench *b = bench_open(2000, 48, 512);
    scheduler_pace(b->s, 1);
    for (int i = 0; i < 60; i++)
        arrive_from(b, GREEDY, 2, 500, 1000 * i);
    for (int i = 0; i < 30; i++)
        step(b);
    struct sequence *victim = arrive_from(b, VICTIM, 300, 5, 7);
    assert_in_range(work_to_first_token(b, victim), 300, 2 * 300 + 2 * 48);
    bench_close(b);
}

/* ---- shares -------------------------------------------------------------------------------- */

/* Both always have requests waiting: one's are mostly output, the other's mostly prompt. */
static void fair_serves_the_same_work_whatever_the_requests(void **state)
{
    (void)state;
    struct bench *b = bench_open(2000, 8, 64);
    for (int steps = 0, n = 0; steps < 5000; steps++) {
        while (b->waiting[1] < 12)
            arrive_from(b, 1, 10, 90, 400 * n++);
        while (b->waiting[2] < 3)
            arrive_from(b, 2, 300, 2, 400 * n++);
        step(b);
    }
    double ratio = (double)b->work[1] / (double)b->work[2];
    assert_true(b->work[1] > 10000);
    assert_true(ratio > 0.75 && ratio < 1.33);
    bench_close(b);
}

static void fair_runs_no_more_of_a_client_than_its_limit(void **state)
{
    (void)state;
    struct bench *b = bench_open(1000, 8, 64);
    struct sequence *seq[6];
    const struct request_limits limits = {.running = 2, .waiting = -1};
    for (int i = 0; i < 6; i++) {
        int32_t token = i;
        struct engine_request r = {
            .client = GREEDY, .limits = &limits, .prompt = &token, .prompt_n = 1, .max_tokens = 10};
        seq[i] = sequence_new(&r, &(struct sequence_model){0});
        seq[i]->id = b->next_id++;
        scheduler_add(b->s, seq[i]);
    }
    struct sequence *other = arrive_from(b, VICTIM, 4, 100, 50);
    for (int i = 0; i < 9; i++) {
        step(b);
        assert_int_equal(scheduler_running(b->s), 3);
    }
    assert_int_equal(step(b), 2);
    step(b);
    assert_int_equal(scheduler_running(b->s), 3); /* the next two of it */
    assert_int_equal(other->place, PLACE_RUNNING);
    bench_close(b);
}

/* Newcomers without end, each of a new address: who had more than others is served all the same,
 * after a bounded amount of their work. */
static void fair_starves_nobody_under_a_stream_of_newcomers(void **state)
{
    (void)state;
    struct bench *b = bench_open(1000, 4, 64);
    uint64_t client = 100;
    struct sequence *last = NULL;
    for (int i = 0; i < 12; i++) /* in the first steps it has everything */
        last = arrive_from(b, GREEDY, 200, 30, 300 * i);
    for (int i = 0; i < 20; i++)
        step(b);
    int steps = 0;
    for (; last->place == PLACE_WAITING; steps++) {
        for (; scheduler_waiting(b->s) < 40; client++)
            arrive_from(b, client, 20, 8, (int32_t)client);
        step(b);
        assert_true(steps < 30000);
    }
    assert_true(client > 200); /* they did stand in its way */
    bench_close(b);
}

/* ---- pages --------------------------------------------------------------------------------- */

static void fair_makes_room_for_a_newcomer_in_a_full_cache(void **state)
{
    (void)state;
    struct bench *b = bench_open(40, 16, 256);
    struct sequence *first = arrive_from(b, GREEDY, 16, 200, 0);
    for (int i = 1; i < 12; i++)
        arrive_from(b, GREEDY, 16, 200, 1000 * i);
    for (int i = 0; i < 60; i++)
        step(b);
    struct sequence *victim = arrive_from(b, VICTIM, 100, 5, 7);
    assert_in_range(work_to_first_token(b, victim), 100, 200);
    assert_int_equal(first->place, PLACE_RUNNING);
    bench_close(b);
}

/* Who runs out of pages is not who pays: the one that holds the most does. */
static void fair_takes_pages_from_the_client_that_holds_the_most(void **state)
{
    (void)state;
    struct bench *b = bench_open(30, 8, 256);
    for (int i = 0; i < 6; i++)
        arrive_from(b, GREEDY, 32, 300, 1000 * i);
    for (int i = 0; i < 10; i++)
        step(b);
    struct sequence *victim = arrive_from(b, VICTIM, 10, 100, 7); /* the youngest of all */
    step(b);
    while (victim->n < sequence_longest(victim) - 1) {
        step(b);
        assert_int_equal(victim->place, PLACE_RUNNING);
    }
    assert_true(scheduler_preemptions(b->s) > 0);
    bench_close(b);
}

/* ---- what is remembered -------------------------------------------------------------------- */

static void fair_finds_prompts_of_the_same_client_only(void **state)
{
    (void)state;
    for (int mode = PREFIX_OFF; mode <= PREFIX_SHARED; mode++) {
        struct bench *b = bench_open(100, 4, 64);
        b->limits.prefix_cache = (enum prefix_cache)mode;
        scheduler_close(b->s);
        b->s = scheduler_open(b->kv, &b->limits);
        arrive_from(b, 1, 48, 1, 0);
        assert_int_equal(step(b), 1);
        struct sequence *own = arrive_from(b, 1, 48, 2, 0), *other = arrive_from(b, 2, 48, 2, 0);
        step(b);
        assert_int_equal(own->cached_tokens, mode == PREFIX_OFF ? 0 : 32);
        assert_int_equal(other->cached_tokens, mode == PREFIX_SHARED ? 32 : 0);
        bench_close(b);
    }
}

static struct sequence *bare(uint64_t client)
{
    int32_t token = 1;
    struct engine_request r = {.client = client, .prompt = &token, .prompt_n = 1, .max_tokens = 1};
    struct sequence *seq = sequence_new(&r, &(struct sequence_model){0});
    seq->place = PLACE_WAITING;
    return seq;
}

static void fair_forgets_idle_clients_but_not_what_they_were_served(void **state)
{
    (void)state;
    struct fair *f = fair_open();
    struct sequence *busy = bare(1), *greedy = bare(2);
    fair_enter(f, busy);
    fair_enter(f, greedy);
    fair_charge(f, greedy->flow, 1000);
    uint64_t served = greedy->flow->served;
    fair_leave(f, greedy);
    fair_enter(f, greedy); /* gone for a moment only */
    assert_true(greedy->flow->served == served);
    assert_int_equal(fair_next(f)->ranked.id, 1);
    fair_leave(f, greedy);
    for (uint64_t client = 10; client < 20000; client++) {
        struct sequence *seq = bare(client);
        fair_enter(f, seq);
        fair_charge(f, seq->flow, 3);
        fair_leave(f, seq);
        assert_in_range(fair_remembered(f), 1, FAIR_IDLE + 1);
        sequence_free(seq);
    }
    fair_charge(f, busy->flow, 100000); /* the clock passes all of them */
    fair_leave(f, busy);
    assert_int_equal(fair_remembered(f), 0);
    sequence_free(busy);
    sequence_free(greedy);
    fair_close(f);
}

/* ---- everything at once -------------------------------------------------------------------- */

static int32_t some(int32_t below)
{
    return rand() % below;
}

/* Random requests of several clients on too few pages: plans stay legal (check_plan), pages are
 * conserved, all clients get on and everything ends. */
static void random_traffic(unsigned seed, int32_t pages, int32_t batch, int32_t chunk)
{
    struct bench *b = bench_open(pages, batch, chunk);
    int32_t arrived = 0, ended = 0, steps = 0;
    const int32_t all = 200;
    srand(seed);
    while (ended < all) {
        while (arrived < all && some(3)) {
            struct sequence *seq = arrive_from(b, (uint64_t)some(6), 1 + some(pages * KV_PAGE / 2),
                                               1 + some(pages * KV_PAGE / 2), some(3));
            seq->prompt_logprobs = some(8) == 0;
            seq->scored = seq->prompt_logprobs;
            seq->flow->max_running = seq->max_running = seq->client == 5 ? 1 : 0;
            arrived++;
        }
        if (!scheduler_oldest(b->s))
            continue;
        if (some(40) == 0) { /* a cancel */
            struct sequence *seq = scheduler_find(b->s, (uint64_t)(1 + some(arrived)));
            if (seq) {
                scheduler_remove(b->s, seq);
                sequence_free(seq);
                ended++;
                continue;
            }
        }
        ended += step(b);
        assert_int_equal(kvcache_used(b->kv) + kvcache_available(b->kv), pages);
        assert_true(++steps < 200000);
    }
    assert_int_equal(scheduler_running(b->s) + scheduler_waiting(b->s), 0);
    bench_close(b);
}

static void fair_ends_every_request_under_random_load(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 40; seed++)
        random_traffic(seed, 6 + (int32_t)seed, 1 + (int32_t)seed % 12,
                       16 + 8 * (int32_t)(seed % 5));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fair_gives_a_newcomer_a_place_in_a_full_batch),
        cmocka_unit_test(fair_reads_a_newcomers_prompt_before_a_heap_of_others),
        cmocka_unit_test(fair_shares_a_step_between_prompts),
        cmocka_unit_test(fair_leaves_rows_to_others_while_a_prompt_is_scored),
        cmocka_unit_test(fair_reads_a_prompt_as_fast_as_another_client_decodes),
        cmocka_unit_test(fair_serves_the_same_work_whatever_the_requests),
        cmocka_unit_test(fair_runs_no_more_of_a_client_than_its_limit),
        cmocka_unit_test(fair_starves_nobody_under_a_stream_of_newcomers),
        cmocka_unit_test(fair_makes_room_for_a_newcomer_in_a_full_cache),
        cmocka_unit_test(fair_takes_pages_from_the_client_that_holds_the_most),
        cmocka_unit_test(fair_finds_prompts_of_the_same_client_only),
        cmocka_unit_test(fair_forgets_idle_clients_but_not_what_they_were_served),
        cmocka_unit_test(fair_ends_every_request_under_random_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
