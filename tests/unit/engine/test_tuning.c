/* SPDX-License-Identifier: Apache-2.0 */
/* test_tuning.c - what the engine lends to whoever measures: slices of its time between steps,
 * at most its share of it under load, and whole steps that alternate by a coin toss. Twice, as
 * test_engine.c.
 */
#include "tests/unit/engine/engine_world.h"

enum { GAPS = 64 };

struct slicer {
    const struct engine *e;
    uint64_t apart;
    _Atomic uint64_t sooner; /* slices that steps brought which were longer than usual */
    int32_t want, have;
    int64_t each_ns, ended_ns, gap_ns[GAPS]; /* gap: before the slice, since the last one ended */
};

static int burn(void *ctx, int64_t budget_ns)
{
    struct slicer *s = ctx;
    int64_t start = clock_ns(), ns = s->each_ns ? s->each_ns : budget_ns;
    if (s->e) /* whose thread this is */
        s->sooner += s->e->meter.small || s->e->meter.apart < s->apart;
    s->gap_ns[s->have % GAPS] = s->ended_ns ? start - s->ended_ns : 0;
    while (clock_ns() - start < ns)
        ;
    s->ended_ns = clock_ns();
    return ++s->have >= s->want ? 1 : 0;
}

static int by_length(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* What the engine has lent, and the longest that it lent between two looks. */
struct lent {
    uint64_t ns, longest_ns;
};

static void look(struct engine *e, struct lent *l)
{
    uint64_t now = atomic_load(&e->stats.slice_ns);
    l->longest_ns = now - l->ns > l->longest_ns ? now - l->ns : l->longest_ns;
    l->ns = now;
}

/* A share of 5 % would keep slices of 1 ms 19 ms apart, all of them; a busy machine only some. */
static void engine_lends_slices_back_to_back_when_idle(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 4);
    struct slicer s = {.want = 51};
    assert_int_equal(engine_slices(e, burn, &s), 1);
    assert_int_equal(s.have, 51);
    qsort(s.gap_ns, 51, sizeof *s.gap_ns, by_length);
    assert_true(s.gap_ns[25] < 10000000);
    engine_stop(e);
}

struct forever {
    struct engine *e;
    struct slicer s;
    int rc;
};

static void *slices_forever(void *arg)
{
    struct forever *f = arg;
    f->rc = engine_slices(f->e, burn, &f->s);
    return NULL;
}

static void engine_keeps_slices_to_their_share_under_load(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 4);
    struct client *c = clients(1);
    struct forever f = {.e = e, .s = {.want = 1000000, .each_ns = 4000000}}; /* 4 x the budget */
    struct lent lent = {0};
    pthread_t thread;
    fake.delay_us = 500;
    prompt_text(c, "load");
    struct engine_request r = request_of(c, 1000);
    r.ignore_eos = true;
    submit(e, &r);
    wait_tokens(c, 1);
    fake.hold = true; /* whenever the thread starts: from here on, under load */
    int64_t start = clock_ns();
    pthread_create(&thread, NULL, slices_forever, &f);
    while (!atomic_load(&e->slice_here))
        usleep(1000);
    pthread_mutex_lock(&lock);
    int32_t had = c->tokens;
    pthread_mutex_unlock(&lock);
    fake.hold = false;
    for (int n = had; n < 910; n += 10) {
        wait_tokens(c, n < 900 ? n : 900);
        look(e, &lent);
    }
    int64_t now = clock_ns();
    engine_cancel(e, c->id); /* no idle slices: the job is still in when the engine stops */
    engine_stop(e);
    pthread_join(thread, NULL);
    assert_int_equal(f.rc, -1);
    /* 5 %, and one slice ahead of the clock. */
    assert_true((double)lent.ns < 0.05 * (double)(now - start) + 2 * (double)lent.longest_ns);
    /* And it makes progress: most of that, of the least that these steps take. */
    double least_ns = 500e3 * (900 - had);
    assert_true((double)lent.ns > 0.04 * least_ns - (double)lent.longest_ns);
    free(c);
}

enum { TOKENS = 600 };

/* Slices that are always due: whether so many came beside so many steps, and never closer to each
 * other than that. */
static bool slices_come(const struct config *config, bool opening, uint64_t least, uint64_t apart)
{
    fake_reset();
    struct engine *e = start(config);
    engine_opening(e, opening);
    struct client *c = clients(1);
    struct forever f = {.e = e, .s = {.want = 1000000, .e = e, .apart = apart}};
    pthread_t thread;
    fake.delay_us = 2000;
    fake.hold = true;
    prompt_text(c, "load");
    struct engine_request r = request_of(c, 1000);
    r.ignore_eos = true;
    submit(e, &r);
    while (!fake.held)
        usleep(1000);
    pthread_create(&thread, NULL, slices_forever, &f);
    while (!atomic_load(&e->slice_here))
        usleep(1000);
    uint64_t idle = atomic_load(&e->stats.slices), from = engine_steps(e);
    fake.hold = false;
    wait_tokens(c, TOKENS);
    /* On a busy machine who asks for slices may be late: there are more tokens to wait for. */
    for (int32_t n = TOKENS; n < 950 && atomic_load(&e->stats.slices) - idle < least; n += 50)
        wait_tokens(c, n);
    uint64_t lent = atomic_load(&e->stats.slices) - idle, steps = engine_steps(e) - from;
    uint64_t sooner = f.s.sooner;
    pthread_mutex_lock(&lock);
    bool under_load = c->ends == 0; /* all of them */
    pthread_mutex_unlock(&lock);
    engine_cancel(e, c->id);
    engine_stop(e);
    pthread_join(thread, NULL);
    assert_true(lent <= steps / apart + 2 + sooner || !under_load);
    free(c);
    return lent >= least && under_load && (opening || 2 * sooner <= lent);
}

/* A slice in which the machine stood still is paid for like any other, by a time without slices,
 * and a step in which it did brings one sooner: a try with such says nothing. */
static void check_slices(const struct config *config, bool opening, uint64_t least, uint64_t apart)
{
    int tries = 0;
    while (!slices_come(config, opening, least, apart))
        assert_true(++tries < 8);
}

static void check_slices_are_apart(const struct config *config, bool opening, uint64_t apart)
{
    check_slices(config, opening, TOKENS / apart / 2, apart);
}

static void engine_on_a_cpu_delays_one_step_in_so_many(void **state)
{
    (void)state;
    for (int opening = 0; opening < 2; opening++) {
        struct config config = config_of(64, 4);
        config.specializer_cpu_slice_steps = 64; /* 2 ms each, in which 6.4 ms are saved */
        config.specializer_cpu_slice_ms = 8;
        if (opening) /* more than there may be in 950 steps without one */
            check_slices(&config, opening, 950 / 64 + 4, 4);
        else
            check_slices_are_apart(&config, opening, 64);
    }
}

/* A slice is several steps long there. In an opening it comes when a whole one is saved, as long as
 * step and slice are shorter than tokens may be apart. */
static void engine_on_a_gpu_opens_within_its_target(void **state)
{
    (void)state;
    static const struct backend_ops device = {FAKE_OPS, .short_steps = true, .usual_itl_ms = 30};
    const struct backend_ops *before = ops;
    for (int opening = 0; opening < 3; opening++) {
        ops = &device;
        struct config config = config_of(64, 4);
        config.specializer_gpu_slice_steps = 128; /* 2 ms each, in which 12.8 ms are saved */
        config.specializer_gpu_slice_ms = 6;
        if (opening == 2)
            config.engine_itl_target_ms =
                3;        /* beside these steps: less than a quarter of a slice */
        if (opening == 1) /* 20 steps save one, fewer where they are longer */
            check_slices(&config, opening, TOKENS / 40, 1);
        else
            check_slices_are_apart(&config, opening, 128);
        ops = before;
    }
}

static void engine_lends_nothing_once_the_device_is_lost(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 4);
    struct client *c = clients(1);
    struct forever f = {.e = e, .s = {.want = 1000000}};
    pthread_t thread;
    fake.delay_us = 50000; /* a slice is due after every step */
    prompt_text(c, "lost beside a slice");
    struct engine_request r = request_of(c, 1000);
    r.ignore_eos = true;
    submit(e, &r);
    pthread_create(&thread, NULL, slices_forever, &f);
    while (atomic_load(&e->stats.slices) == 0)
        usleep(1000);
    fake.hold = true;
    while (!fake.held)
        usleep(1000);
    uint64_t lent = atomic_load(&e->stats.slices);
    fake.lost = true;
    fake.hold = false;
    wait_ends(1);
    pthread_join(thread, NULL);
    assert_int_equal(f.rc, -1);
    assert_int_equal(engine_state(e, NULL, NULL, 0), ENGINE_LOST);
    assert_int_equal(atomic_load(&e->stats.slices), lent);
    engine_stop(e);
    free(c);
}

static void engine_sleeps_the_share_away_while_children_starve(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 4);
    struct client *c = clients(2);
    fake.delay_us = 500;
    prompt_text(&c[0], "load");
    struct engine_request r = request_of(&c[0], 1000);
    r.ignore_eos = true;
    int64_t start = clock_ns();
    engine_yield_windows(e, 0.05);
    submit(e, &r);
    struct lent lent = {0};
    for (int n = 10; n <= 600; n += 10) {
        wait_tokens(&c[0], n);
        look(e, &lent);
    }
    int64_t passed = clock_ns() - start;
    assert_true(atomic_load(&e->stats.slices) >= 1);
    /* A wake-up that came late is paid for later. */
    assert_true((double)lent.ns < 0.05 * (double)passed + 2 * (double)lent.longest_ns);
    wait_ends(1);
    uint64_t windows = atomic_load(&e->stats.slices);
    usleep(40000); /* nobody waits: nothing to lend, but after the step with which it ended */
    assert_in_range(atomic_load(&e->stats.slices), windows, windows + 1);
    engine_yield_windows(e, 0);
    prompt_text(&c[1], "load without windows");
    r = request_of(&c[1], 300);
    r.ignore_eos = true;
    submit(e, &r);
    wait_tokens(&c[1], 1);
    windows = atomic_load(&e->stats.slices);
    wait_ends(2);
    assert_int_equal(atomic_load(&e->stats.slices), windows);
    engine_stop(e);
    free(c);
}

static void engine_tosses_a_coin_for_the_canary(void **state)
{
    (void)state;
    enum { WANT = 200 };
    struct engine *e = start_with(64, 4);
    struct client *c = clients(2);
    struct kernel candidate = {
        .id = "0123456789abcdef", .region = REGION_MLP_IN, .origin = ORIGIN_TEMPLATE};
    struct canary canary = {
        .candidates = {1,
                       {{dispatch_slot(engine_dispatch(e), REGION_MLP_IN, 0, 1, 0), &candidate}}},
        .cell = {1},
        .cells = 1,
        .seed = 9,
        .want = WANT};
    canary.step = xcalloc(WANT, sizeof *canary.step);
    engine_canary(e, &canary);
    prompt_text(&c[0], "a canary sings");
    struct engine_request r = request_of(&c[0], 400);
    r.ignore_eos = true;
    submit(e, &r);
    wait_ends(1);
    assert_int_equal(atomic_load(&canary.have), WANT);
    int32_t tried = 0;
    for (int i = 0; i < WANT; i++) {
        tried += canary.step[i].candidate;
        assert_int_equal(canary.step[i].m, 1);
        assert_true(canary.step[i].context > 14 && canary.step[i].ns > 0);
    }
    assert_in_range(tried, WANT / 2 - 40, WANT / 2 + 40);
    /* one more may have been started before the last one wanted had landed */
    uint64_t ran = fake.override_steps;
    assert_in_range(ran, (uint64_t)tried, (uint64_t)tried + (ops->step_start != NULL));
    engine_canary(e, NULL);
    prompt_text(&c[1], "a canary is quiet");
    r = request_of(&c[1], 100);
    submit(e, &r);
    wait_ends(2);
    assert_int_equal(fake.override_steps, ran);
    engine_stop(e);
    free(canary.step);
    free(c);
}

/* Cells: what decodes of one token use; a slot of the prompt's step, which uses one of the first
 * cell too; and two slots that no step uses both of. */
static void a_canary_of_several_counts_the_steps_of_each_cell(void **state)
{
    (void)state;
    enum { WANT = 60 };
    struct engine *e = start_with(64, 4);
    struct client *c = clients(2);
    struct kernel k = {.id = "0123456789abcdef", .origin = ORIGIN_TEMPLATE};
    struct dispatch *d = engine_dispatch(e);
    struct canary canary = {.candidates = {6,
                                           {{dispatch_slot(d, REGION_MLP_IN, 0, 1, 0), &k},
                                            {dispatch_slot(d, REGION_ATTN, 0, 1, 1), &k},
                                            {dispatch_slot(d, REGION_HEAD, 0, 1, 0), &k},
                                            {dispatch_slot(d, REGION_MLP_IN, 0, 14, 0), &k},
                                            {dispatch_slot(d, REGION_MLP_OUT, 0, 2, 0), &k},
                                            {dispatch_slot(d, REGION_MLP_IN, 0, 3, 0), &k}}},
                            .cell = {7, 8, 48},
                            .cells = 3,
                            .seed = 9,
                            .want = WANT};
    canary.step = xcalloc(WANT, sizeof *canary.step);
    engine_canary(e, &canary);
    prompt_text(&c[0], "fourteen bytes");
    struct engine_request r = request_of(&c[0], 40);
    r.ignore_eos = true;
    submit(e, &r);
    wait_ends(1);
    /* The prompt's step, which uses the head of one row, is nobody's. */
    int have = atomic_load(&canary.have);
    assert_in_range(have, 38, 39);
    for (int i = 0; i < have; i++) {
        assert_int_equal(canary.step[i].cell, 0);
        assert_int_equal(canary.step[i].m, 1);
    }
    atomic_store(&canary.decided, 1); /* the first cell gets no more */
    prompt_text(&c[1], "a canary of sixteen");
    r = request_of(&c[1], 40);
    submit(e, &r);
    wait_ends(2);
    assert_int_equal(atomic_load(&canary.have), have);
    engine_canary(e, NULL);
    engine_stop(e);
    free(canary.step);
    free(c);
}

/* They would be slower than the incumbent is, and the candidate would seem to gain. */
static void steps_that_had_to_do_without_a_graph_are_no_samples(void **state)
{
    (void)state;
    enum { WANT = 40 };
    struct engine *e = start_with(64, 4);
    struct client *c = clients(1);
    struct kernel candidate = {.id = "0123456789abcdef", .region = REGION_MLP_IN};
    struct canary canary = {
        .candidates = {1,
                       {{dispatch_slot(engine_dispatch(e), REGION_MLP_IN, 0, 1, 0), &candidate}}},
        .cell = {1},
        .cells = 1,
        .seed = 9,
        .want = WANT};
    canary.step = xcalloc(WANT, sizeof *canary.step);
    fake.uncaptured = true;
    engine_canary(e, &canary);
    prompt_text(c, "a canary alone");
    struct engine_request r = request_of(c, 400);
    r.ignore_eos = true;
    submit(e, &r);
    wait_ends(1);
    assert_int_equal(atomic_load(&canary.have), WANT);
    for (int i = 0; i < WANT; i++)
        assert_true(canary.step[i].candidate);
    engine_canary(e, NULL);
    engine_stop(e);
    free(canary.step);
    free(c);
}

static void engine_drops_a_candidate_that_fails_a_step(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 4);
    struct client *c = clients(1);
    struct kernel candidate = {.id = "0123456789abcdef", .region = REGION_HEAD};
    struct canary canary = {
        .candidates = {1, {{dispatch_slot(engine_dispatch(e), REGION_HEAD, 0, 1, 0), &candidate}}},
        .cell = {1},
        .cells = 1,
        .seed = 9,
        .want = 50};
    canary.step = xcalloc(50, sizeof *canary.step);
    fake.fail_override = true;
    engine_canary(e, &canary);
    prompt_text(c, "a canary dies");
    struct engine_request r = request_of(c, 100);
    submit(e, &r);
    wait_ends(1);
    check_text(c, &r); /* the request does not notice */
    assert_true(atomic_load(&canary.failed));
    assert_in_range(fake.override_steps, 1, 1 + (ops->step_start != NULL));
    engine_stop(e);
    free(canary.step);
    free(c);
}

int main(void)
{
    log_set_level(LOG_ERROR); /* of which some are wanted */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engine_on_a_cpu_delays_one_step_in_so_many),
        cmocka_unit_test(engine_on_a_gpu_opens_within_its_target),
        cmocka_unit_test(engine_lends_slices_back_to_back_when_idle),
        cmocka_unit_test(engine_keeps_slices_to_their_share_under_load),
        cmocka_unit_test(engine_lends_nothing_once_the_device_is_lost),
        cmocka_unit_test(engine_sleeps_the_share_away_while_children_starve),
        cmocka_unit_test(engine_tosses_a_coin_for_the_canary),
        cmocka_unit_test(a_canary_of_several_counts_the_steps_of_each_cell),
        cmocka_unit_test(steps_that_had_to_do_without_a_graph_are_no_samples),
        cmocka_unit_test(engine_drops_a_candidate_that_fails_a_step),
    };
    int failed = cmocka_run_group_tests_name("one by one", tests, NULL, NULL);
    ops = &fake_pipelined_ops;
    return failed + cmocka_run_group_tests_name("pipelined", tests, NULL, NULL);
}
