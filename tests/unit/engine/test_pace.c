/* SPDX-License-Identifier: Apache-2.0 */
/* test_pace.c - prompt tokens beside decodes: what steps take is learned, and both targets are met
 * by a scheduler whose steps take what a made-up device says. Its clock is made up as well. */
#include "tests/unit/engine/scheduler_world.h"

#include <math.h>

/* A device of so many nanoseconds a step, a prompt token, a decode and a position attended to, and
 * for products of so many tokens. */
struct device {
    double step, prompt, decode, context;
    bool products;
};

static const struct device GPU = {5e5, 0, 0, 43, true};
static const struct device LINEAR = {2e6, 14e3, 20e3, 1.5, false};
static const struct device CPU = {20e6, 900e3, 9e6, 40, false};

/* Products of Qwen3-4B on an H200 in milliseconds (docs/lab/2026-11-29-gpu-prompts.md): a step of
 * few tokens takes as long as its weights are read, and each token of a large one as long as the
 * other. */
static double products_ns(double tokens)
{
    static const double at[][2] = {{0, 1.7},   {64, 2.1},  {128, 2.9},   {256, 3.8},
                                   {512, 6.1}, {1024, 12}, {2048, 23.6}, {1e9, 1.15e7}};
    size_t i = 1;
    while (tokens > at[i][0])
        i++;
    double part = (tokens - at[i - 1][0]) / (at[i][0] - at[i - 1][0]);
    return (at[i - 1][1] + part * (at[i][1] - at[i - 1][1])) * 1e6;
}

static int64_t takes(const struct device *d, const struct step_size *s)
{
    double ns = d->step + d->prompt * s->prompt + d->decode * s->decodes +
                d->context * ((double)s->context + (double)s->prompt_context / 64);
    return (int64_t)(ns + (d->products ? products_ns(s->prompt + s->decodes) : 0));
}

static struct step_size some_step(void)
{
    struct step_size s = {.prompt = rand() % 3 ? rand() % 512 : 0, .decodes = rand() % 64};
    s.context = (int64_t)s.decodes * (rand() % 4000);
    s.prompt_context = (int64_t)s.prompt * (s.prompt + rand() % 2000);
    s.decodes += s.prompt + s.decodes == 0;
    return s;
}

static void teach(struct pace *p, const struct device *d, int steps)
{
    for (int i = 0; i < steps; i++) {
        struct step_size s = some_step();
        pace_learn(p, &s, takes(d, &s));
    }
}

static double worst_error(const struct pace *p, const struct device *d)
{
    double worst = 0;
    for (int i = 0; i < 200; i++) {
        struct step_size s = some_step();
        worst = fmax(worst, fabs(pace_ns(p, &s) / (double)takes(d, &s) - 1));
    }
    return worst;
}

static void pace_learns_what_steps_take(void **state)
{
    (void)state;
    struct device linear = LINEAR;
    struct pace p;
    srand(1);
    pace_open(&p, 30, 200);
    assert_true(pace_ns(&p, &(struct step_size){.decodes = 1}) == 0);
    teach(&p, &linear, 300);
    assert_true(worst_error(&p, &linear) < 0.02);
    /* One step in 20 is held up by something else. */
    for (int i = 0; i < 400; i++) {
        struct step_size s = some_step();
        pace_learn(&p, &s, takes(&linear, &s) * (i % 20 ? 1 : 50));
    }
    assert_true(worst_error(&p, &linear) < 0.2);
    /* Faster kernels serve. */
    linear.step /= 2;
    linear.prompt /= 2;
    linear.decode /= 2;
    linear.context /= 2;
    pace_doubt(&p);
    teach(&p, &linear, 100);
    assert_true(worst_error(&p, &linear) < 0.25);
    teach(&p, &linear, 1000);
    assert_true(worst_error(&p, &linear) < 0.02);
}

/* ---- a scheduler on a device --------------------------------------------------------------- */

struct world {
    struct bench *b;
    const struct device *device;
    struct pace pace;
    int32_t fixed; /* prompt tokens beside decodes, whatever happens; 0: the pace's */
    int64_t now;
    int64_t tokens, steps;
    double longest_mixed; /* ns, of the steps that decoded and read a prompt, after the first 20 */
    double first[4096];   /* ns until the first token, of those that came after step 200 */
    int32_t firsts;
};

static struct world *world_open(const struct device *d, double itl_ms, double ttft_ms,
                                int32_t fixed)
{
    struct world *w = xcalloc(1, sizeof *w);
    w->b = bench_open(8192, MOST, 2048);
    w->device = d;
    w->fixed = fixed;
    w->now = 1000;
    pace_open(&w->pace, itl_ms, ttft_ms);
    return w;
}

static void world_close(struct world *w)
{
    bench_close(w->b);
    free(w);
}

static struct sequence *come(struct world *w, uint64_t client, int32_t prompt, int32_t output)
{
    struct sequence *seq =
        arrive_from(w->b, client, prompt, output, (int32_t)w->b->next_id * 10000);
    seq->submit_ns = w->now;
    seq->submit_work = scheduler_work(w->b->s);
    return seq;
}

static void drew(struct world *w, struct sequence *seq)
{
    if (seq->n == seq->tokens_size) {
        seq->tokens_size *= 2;
        seq->tokens = xrealloc(seq->tokens, (size_t)seq->tokens_size * sizeof(int32_t));
    }
    seq->tokens[seq->n] = (int32_t)(seq->id * 1000) + seq->n;
    seq->n++;
    w->tokens++;
    if (seq->last_token_ns == 0 && w->steps > 200 && w->firsts < 4096)
        w->first[w->firsts++] = (double)(w->now - seq->submit_ns);
    seq->last_token_ns = w->now;
}

/* One step; returns how many ended. */
static int32_t world_step(struct world *w)
{
    struct bench *b = w->b;
    struct step_size size;
    struct prompt_load load;
    scheduler_load(b->s, &size, &load);
    int32_t chunk = b->limits.prefill_chunk;
    scheduler_pace(b->s, w->fixed ? w->fixed : pace_tokens(&w->pace, &size, &load, w->now, chunk));
    scheduler_plan(b->s, &b->plan, b->admitted);
    scheduler_size(&b->plan, &size);
    int64_t ns = takes(w->device, &size);
    w->now += ns;
    if (w->steps++ > 20 && size.prompt > 0 && size.decodes > 0)
        w->longest_mixed = fmax(w->longest_mixed, (double)ns);
    scheduler_started(b->s, &b->plan);
    scheduler_done(b->s, &b->plan);
    pace_learn(&w->pace, &size, ns);
    int32_t ended = 0;
    for (int32_t i = 0; i < b->plan.items; i++) {
        struct sequence *seq = b->plan.item[i].seq;
        if (b->plan.item[i].draw)
            drew(w, seq);
        if (seq->n < sequence_longest(seq))
            continue;
        scheduler_remove(b->s, seq);
        sequence_free(seq);
        ended++;
    }
    return ended;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_first_ms(struct world *w)
{
    assert_true(w->firsts > 20);
    qsort(w->first, (size_t)w->firsts, sizeof *w->first, ascending);
    return w->first[w->firsts / 2] * 1e-6;
}

/* Clients, each with its next request as soon as one has ended; returns tokens a second after the
 * beginning. */
static double closed_loop(struct world *w, int steps, int clients)
{
    int64_t tokens = 0, from = 0;
    for (int i = 0; i < clients; i++)
        come(w, 1, 256, 64 + i);
    for (int i = 0; i < steps; i++) {
        for (int32_t ended = world_step(w); ended > 0; ended--)
            come(w, 1, 256, 128);
        if (i == steps / 4) {
            tokens = w->tokens;
            from = w->now;
        }
    }
    return (double)(w->tokens - tokens) / ((double)(w->now - from) * 1e-9);
}

/* The most tokens a second that any fixed pace gives. */
static double best_fixed(int clients)
{
    double best = 0;
    for (int32_t fixed = 16; fixed <= 2048; fixed *= 2) {
        struct world *w = world_open(&GPU, 0, 0, fixed);
        best = fmax(best, closed_loop(w, 3000, clients));
        world_close(w);
    }
    return best;
}

static void full_batch_is_served_as_fast_as_any_fixed_pace_and_within_both_targets(void **state)
{
    (void)state;
    struct world *w = world_open(&GPU, 20, 200, 0);
    double speed = closed_loop(w, 3000, MOST);
    assert_true(speed > 0.97 * best_fixed(MOST));
    assert_true(w->longest_mixed < 22e6);
    assert_true(median_first_ms(w) < 200);
    world_close(w);
}

/* Nobody is in a hurry for the target's sake, but who waits does not decode. */
static void few_clients_are_served_as_fast_as_at_any_fixed_pace(void **state)
{
    (void)state;
    for (int clients = 4; clients < MOST; clients *= 2) {
        struct world *w = world_open(&GPU, 20, 200, 0);
        double speed = closed_loop(w, 3000, clients);
        assert_true(speed > 0.97 * best_fixed(clients));
        assert_true(median_first_ms(w) < 50);
        world_close(w);
    }
}

/* A target that not even decodes meet: prompts are read all the same. */
static void target_that_cannot_be_met_starves_nobody(void **state)
{
    (void)state;
    struct world *w = world_open(&GPU, 1, 200, 0);
    closed_loop(w, 3000, MOST);
    assert_true(median_first_ms(w) < 400);
    assert_true(w->longest_mixed < 2.5 * 6e6); /* decodes alone take up to 6 ms */
    world_close(w);
}

/* One stream, and prompts that take a second beside it, now and then. */
static void long_prompts_stay_within_the_target_between_tokens(void **state)
{
    (void)state;
    struct world *w = world_open(&CPU, 250, 1000, 0);
    come(w, 1, 20, 3000);
    for (int i = 0; i < 400; i++) {
        if (i % 40 == 20)
            come(w, 2, 1000, 1);
        world_step(w);
    }
    assert_true(w->longest_mixed < 300e6);
    world_close(w);
}

/* With nobody in a hurry a prompt is spread: its steps are shorter than they might be. */
static void short_prompt_beside_a_stream_makes_steps_no_longer_than_it_must(void **state)
{
    (void)state;
    struct world *w = world_open(&CPU, 250, 2000, 0);
    come(w, 1, 20, 3000);
    for (int i = 0; i < 60; i++)
        world_step(w);
    int64_t from = w->now;
    struct sequence *seq = come(w, 2, 300, 10);
    w->longest_mixed = 0;
    while (seq->last_token_ns == 0)
        world_step(w);
    assert_true(w->now - from < 2000000000);
    assert_true(w->longest_mixed < 200e6); /* 250 ms would be allowed */
    world_close(w);
}

/* Whoever decodes waited for a slice already: the step behind it has less left of the target. */
static void a_slice_takes_the_place_of_prompt_tokens(void **state)
{
    (void)state;
    struct pace p;
    pace_open(&p, 30, 200);
    srand(3);
    teach(&p, &LINEAR, 500);
    struct step_size size = {.decodes = 128, .context = 128 * 320};
    struct prompt_load load = {7000, 256, 1, 7000 * 128}; /* all that the target allows */
    struct step_size plain = size, after = size;
    int64_t now = 1 + 40000000; /* not late yet */
    plain.prompt = pace_tokens(&p, &size, &load, now, 2048);
    load.lent_ns = 12000000;
    after.prompt = pace_tokens(&p, &size, &load, now, 2048);
    plain.prompt_context = plain.prompt * 128;
    after.prompt_context = after.prompt * 128;
    assert_true(after.prompt > 1 && after.prompt < plain.prompt);
    assert_true(pace_ns(&p, &plain) > 25e6);
    assert_true(pace_ns(&p, &after) + 12e6 < 31e6);
}

static void without_targets_a_step_reads_all_there_is(void **state)
{
    (void)state;
    struct pace p;
    pace_open(&p, 0, 0);
    srand(2);
    teach(&p, &GPU, 50);
    struct step_size size = {.decodes = 10, .context = 5000};
    struct prompt_load load = {4000, 4000, 1, 8000000};
    assert_int_equal(pace_tokens(&p, &size, &load, 2, 2048), 2048);
    load = (struct prompt_load){0};
    assert_int_equal(pace_tokens(&p, &size, &load, 2, 2048), 2048);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pace_learns_what_steps_take),
        cmocka_unit_test(full_batch_is_served_as_fast_as_any_fixed_pace_and_within_both_targets),
        cmocka_unit_test(few_clients_are_served_as_fast_as_at_any_fixed_pace),
        cmocka_unit_test(target_that_cannot_be_met_starves_nobody),
        cmocka_unit_test(long_prompts_stay_within_the_target_between_tokens),
        cmocka_unit_test(short_prompt_beside_a_stream_makes_steps_no_longer_than_it_must),
        cmocka_unit_test(a_slice_takes_the_place_of_prompt_tokens),
        cmocka_unit_test(without_targets_a_step_reads_all_there_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
