/* test_engine.c - the whole engine on a fake backend: many requests, few pages, failures. All of it
 * runs twice: with steps one by one, and with each step started while the one before it is under
 * way. */
#include "tests/unit/unit.h"

#include <math.h>
#include <pthread.h>
#include <time.h>

#include "config/clock.h"
#include "config/log.h"
#include "engine/engine_private.h"
#include "tests/unit/engine/fake.h"

enum { LONG = 1024 };

/* ---- an engine and its clients ---- */

static const struct backend_ops *ops = &fake_ops;

static struct config config_of(int pages, int batch)
{
    struct config c = {.engine_model = "fake",
                       .engine_model_name = "fake",
                       .engine_backend = "cpu",
                       .engine_kv_pages = pages,
                       .engine_max_batch = batch,
                       .engine_prefill_chunk = 32,
                       .engine_prefix_cache = true,
                       .server_max_queue = 1000,
                       .specializer_share = 0.05,
                       .specializer_slice_ms = 1};
    return c;
}

static struct engine *start(const struct config *c)
{
    const struct model_shape shape = {.layers = 2,
                                      .hidden = 32,
                                      .heads = 2,
                                      .kv_heads = 1,
                                      .head_dim = 16,
                                      .ffn = 32,
                                      .vocab = TOY_VOCAB,
                                      .max_context = LONG,
                                      .eps = 1e-5f,
                                      .rope_base = 1e4f};
    struct err err = {""};
    struct model *m = model_random(&shape, DTYPE_F32, 1);
    m->tokenizer = toy_tokenizer();
    struct engine *e = engine_start_parts(c, &(struct engine_parts){ops, m}, &err);
    assert_non_null(e);
    while (engine_state(e, NULL, NULL, 0) == ENGINE_LOADING)
        usleep(200);
    return e;
}

static struct engine *start_with(int pages, int batch)
{
    fake_reset();
    struct config c = config_of(pages, batch);
    return start(&c);
}

/* One request as its client sees it. */
struct client {
    uint64_t id;
    int32_t prompt[LONG], prompt_n;
    char text[2 * LONG];
    int32_t ids[LONG], tokens, prompts, ends;
    float prompt_logprob[LONG];
    enum finish finish;
    char stop_string[32], error[128];
    int32_t output_tokens, cached_tokens;
    int64_t first_ns;
    bool order_wrong;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int32_t all_ends;

static void on_end(struct client *c, const struct engine_event *e)
{
    c->ends++;
    c->finish = e->finish;
    c->output_tokens = e->output_tokens;
    c->cached_tokens = e->cached_tokens;
    snprintf(c->stop_string, sizeof c->stop_string, "%s", e->stop_string ? e->stop_string : "");
    snprintf(c->error, sizeof c->error, "%s", e->error ? e->error : "");
    all_ends++;
}

static void on_event(void *user, const struct engine_event *e)
{
    struct client *c = user;
    pthread_mutex_lock(&lock);
    c->order_wrong |= c->ends > 0;
    if (e->kind == EVENT_PROMPT) {
        c->order_wrong |= e->index != c->prompts || c->tokens > 0;
        c->order_wrong |= e->sampled->token != c->prompt[e->index];
        c->prompt_logprob[c->prompts++] = e->sampled->logprob;
    } else {
        strncat(c->text, e->text, e->text_n);
        if (e->kind == EVENT_TOKEN) {
            c->first_ns = c->tokens ? c->first_ns : clock_ns();
            c->ids[c->tokens++] = e->sampled->token;
        } else {
            on_end(c, e);
        }
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static const struct sampling greedy = {.top_p = 1, .repetition_penalty = 1, .top_logprobs = -1};

static struct engine_request request_of(struct client *c, int32_t max_tokens)
{
    return (struct engine_request){.prompt = c->prompt,
                                   .prompt_n = c->prompt_n,
                                   .max_tokens = max_tokens,
                                   .sampling = greedy,
                                   .on_event = on_event,
                                   .user = c};
}

static void prompt_text(struct client *c, const char *text)
{
    c->prompt_n = (int32_t)strlen(text);
    for (int32_t i = 0; i < c->prompt_n; i++)
        c->prompt[i] = (unsigned char)text[i];
}

static struct client *clients(int n)
{
    all_ends = 0;
    return xcalloc((size_t)n, sizeof(struct client));
}

static void submit(struct engine *e, const struct engine_request *r)
{
    struct err err = {""};
    struct client *c = r->user;
    assert_int_equal(engine_submit(e, r, &c->id, &err), SUBMIT_OK);
}

static void wait_ends(int32_t n)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    pthread_mutex_lock(&lock);
    int rc = 0;
    while (all_ends < n && rc == 0)
        rc = pthread_cond_timedwait(&changed, &lock, &until);
    pthread_mutex_unlock(&lock);
    assert_int_equal(rc, 0); /* every request ends */
}

static void wait_tokens(struct client *c, int32_t n)
{
    pthread_mutex_lock(&lock);
    while (c->tokens < n && !c->ends)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static double metric(struct engine *e, const char *line)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    engine_metrics(e, f);
    fclose(f);
    char *at = strstr(text, line);
    double value = at ? strtod(at + strlen(line), NULL) : NAN;
    free(text);
    return value;
}

/* What must hold once nothing runs. */
static void check_idle(struct engine *e)
{
    assert_int_equal(engine_active(e), 0);
    assert_true(metric(e, "\nwhet_kv_pages_used ") == 0);
    assert_true(metric(e, "\nwhet_requests_running ") == 0);
    assert_true(metric(e, "\nwhet_requests_waiting ") == 0);
    assert_true(engine_stalled_s(e) == 0);
}

static void check_text(const struct client *c, const struct engine_request *r)
{
    static char text[2 * LONG];
    static int32_t ids[LONG];
    int32_t n = fake_text(c->prompt, c->prompt_n, r->max_tokens, &r->sampling, text, ids);
    assert_int_equal(c->ends, 1);
    assert_false(c->order_wrong);
    assert_int_equal(c->tokens, n);
    assert_int_equal(c->output_tokens, n);
    assert_memory_equal(c->ids, ids, (size_t)n * sizeof *ids);
    assert_string_equal(c->text, text);
    assert_int_equal(c->finish, ids[n - 1] == TOY_END ? FINISH_STOP : FINISH_LENGTH);
}

/* ---- serving ---- */

static void engine_answers_as_the_model_alone_would(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 8);
    struct client *c = clients(1);
    prompt_text(c, "A prompt that is longer than a single chunk of thirty-two tokens.");
    struct engine_request r = request_of(c, 50);
    submit(e, &r);
    wait_ends(1);
    check_text(c, &r);
    check_idle(e);
    assert_int_equal(fake.most_tokens, 32);
    engine_stop(e);
    free(c);
}

/* Prompts with common beginnings, greedy and sampled, far more than pages and places. */
static void crowd_request(struct client *c, struct engine_request *r, int i)
{
    char text[200];
    snprintf(text, sizeof text, "%.*s request %d of a crowd", 16 * (i % 5),
             "the same long beginning that many of these requests share with each other", i % 60);
    prompt_text(c, text);
    *r = request_of(c, 1 + (i * 7) % 70);
    if (i % 2) {
        r->sampling.temperature = 0.9f;
        r->sampling.seed = (uint64_t)(i + 1);
        r->sampling.top_k = i % 3 ? 0 : 20;
        r->sampling.presence_penalty = i % 4 ? 0 : 0.5f;
    }
}

static void engine_gives_each_of_two_hundred_its_own_text(void **state)
{
    (void)state;
    enum { N = 200 };
    struct engine *e = start_with(14, 24); /* room for about two of them at full length */
    struct client *c = clients(N);
    struct engine_request *r = xcalloc(N, sizeof *r);
    for (int i = 0; i < N; i++) {
        crowd_request(&c[i], &r[i], i);
        submit(e, &r[i]);
    }
    wait_ends(N);
    for (int i = 0; i < N; i++)
        check_text(&c[i], &r[i]);
    check_idle(e);
    assert_true(metric(e, "\nwhet_preemptions_total ") > 0);
    assert_true(metric(e, "\nwhet_prefix_cache_hit_tokens_total ") > 0);
    assert_true(metric(e, "\nwhet_time_to_first_token_seconds_count ") == N);
    assert_true(metric(e, "\nwhet_queue_seconds_count ") == N);
    double tokens = 0;
    for (int i = 0; i < N; i++)
        tokens += c[i].tokens;
    assert_true(metric(e, "\nwhet_generation_tokens_total ") == tokens);
    assert_true(metric(e, "\nwhet_inter_token_latency_seconds_count ") == tokens - N);
    assert_in_range(fake.most_spans, 2, 24);
    engine_stop(e);
    free(c);
    free(r);
}

static void engine_reports_tokens_found_in_the_cache(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 4);
    struct client *c = clients(3);
    const char *text = "0123456789abcdef0123456789abcdefXYZ"; /* two pages and three tokens */
    for (int i = 0; i < 3; i++) {
        prompt_text(&c[i], text);
        struct engine_request r = request_of(&c[i], 20);
        r.prompt_logprobs = i == 2; /* scoring needs every position */
        submit(e, &r);
        wait_ends(i + 1);
        assert_int_equal(c[i].cached_tokens, i == 1 ? 32 : 0);
        assert_string_equal(c[i].text, c[0].text);
    }
    engine_stop(e);
    free(c);
}

static void engine_scores_a_prompt(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 4);
    struct client *c = clients(1);
    prompt_text(c, "Every position of this prompt, which takes three steps to read, is scored.");
    struct engine_request r = request_of(c, 0);
    r.prompt_logprobs = true;
    submit(e, &r);
    wait_ends(1);
    assert_int_equal(c->finish, FINISH_LENGTH);
    assert_int_equal(c->tokens, 0);
    assert_int_equal(c->prompts, c->prompt_n);
    assert_false(c->order_wrong);
    assert_true(isnan(c->prompt_logprob[0]));
    uint64_t h = 1;
    for (int32_t i = 1; i < c->prompt_n; i++) {
        float logits[TOY_VOCAB];
        double sum = 0;
        h = fake_hash(h, c->prompt[i - 1]);
        fake_logits(h, logits);
        for (int32_t v = 0; v < TOY_VOCAB; v++)
            sum += exp((double)logits[v] - logits[c->prompt[i]]);
        assert_true(fabs(c->prompt_logprob[i] + log(sum)) < 1e-4);
    }
    check_idle(e);
    engine_stop(e);
    free(c);
}

static void engine_stops_at_strings_and_ids(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 4);
    struct client *c = clients(3);
    char text[LONG];
    int32_t ids[LONG];
    prompt_text(&c[0], "stop here");
    fake_text(c[0].prompt, c[0].prompt_n, 40, &greedy, text, ids);
    assert_true(strlen(text) > 12);
    char stop_text[4] = {text[8], text[9], text[10], 0};
    const char *const stop[] = {"never in the text", stop_text};
    char *first = strstr(text, stop_text);
    struct engine_request r = request_of(&c[0], 40);
    r.stop = stop;
    r.stops = 2;
    submit(e, &r);
    wait_ends(1);
    assert_int_equal(c[0].finish, FINISH_STOP);
    assert_string_equal(c[0].stop_string, stop_text);
    assert_int_equal(strlen(c[0].text), first - text);
    assert_memory_equal(c[0].text, text, strlen(c[0].text));

    prompt_text(&c[1], "min tokens");
    r = request_of(&c[1], 300);
    r.min_tokens = 250; /* the end would be drawn long before */
    submit(e, &r);
    wait_ends(2);
    assert_true(c[1].tokens >= 250);
    for (int32_t i = 0; i < 249; i++)
        assert_int_not_equal(c[1].ids[i], TOY_END);

    prompt_text(&c[2], "ignore eos");
    r = request_of(&c[2], 300);
    r.ignore_eos = true;
    submit(e, &r);
    wait_ends(3);
    assert_int_equal(c[2].tokens, 300);
    assert_int_equal(c[2].finish, FINISH_LENGTH);
    engine_stop(e);
    free(c);
}

static void engine_refuses_what_it_cannot_serve(void **state)
{
    (void)state;
    struct config config = config_of(8, 1);
    config.server_max_queue = 2;
    fake_reset();
    struct engine *e = start(&config);
    assert_int_equal(engine_info(e)->max_context, 8 * KV_PAGE);
    struct client *c = clients(4);
    struct err err = {""};
    for (int i = 0; i < 4; i++)
        prompt_text(&c[i], "hello");
    struct engine_request r = request_of(&c[0], 124);
    assert_int_equal(engine_submit(e, &r, NULL, &err), SUBMIT_TOO_LONG);
    assert_non_null(strstr(err.msg, "5 tokens"));
    assert_non_null(strstr(err.msg, "128 tokens"));
    r = request_of(&c[0], 5);
    r.prompt_n = 0;
    assert_int_equal(engine_submit(e, &r, NULL, &err), SUBMIT_BAD);
    r = request_of(&c[0], 5);
    r.sampling.top_p = NAN;
    assert_int_equal(engine_submit(e, &r, NULL, &err), SUBMIT_BAD);
    assert_non_null(strstr(err.msg, "top_p"));
    c[0].prompt[2] = TOY_VOCAB;
    r = request_of(&c[0], 5);
    assert_int_equal(engine_submit(e, &r, NULL, &err), SUBMIT_BAD);
    assert_non_null(strstr(err.msg, "token id 259"));
    c[0].prompt[2] = 'l';

    fake.delay_us = 2000;
    for (int i = 0; i < 3; i++) { /* one runs, two wait */
        r = request_of(&c[i], 30);
        r.ignore_eos = true;
        assert_false(engine_queue_full(e));
        submit(e, &r);
    }
    assert_true(engine_queue_full(e));
    r = request_of(&c[3], 5);
    assert_int_equal(engine_submit(e, &r, NULL, &err), SUBMIT_FULL);
    wait_ends(3);
    assert_false(engine_queue_full(e));
    engine_stop(e);
    free(c);
}

static void engine_reads_a_long_prompt_without_stopping_the_others(void **state)
{
    (void)state;
    fake_reset();
    struct config config = config_of(64, 4);
    config.engine_prefill_chunk = 512;
    config.engine_mixed_ms = 20;
    struct engine *e = start(&config);
    struct client *c = clients(2);
    for (int i = 0; i < 2; i++)
        for (c[i].prompt_n = 0; c[i].prompt_n < (i ? 512 : 64); c[i].prompt_n++)
            c[i].prompt[c[i].prompt_n] = 'a' + (c[i].prompt_n * 7 + i) % 26;
    fake.token_us = 500; /* the long prompt at once would take a quarter of a second */
    struct engine_request r = request_of(&c[0], 400);
    r.ignore_eos = true;
    submit(e, &r);
    wait_tokens(&c[0], 1);
    fake.most_tokens = 0;
    r = request_of(&c[1], 1);
    submit(e, &r);
    wait_tokens(&c[1], 1);
    pthread_mutex_lock(&lock);
    int32_t meanwhile = c[0].tokens;
    pthread_mutex_unlock(&lock);
    assert_true(meanwhile > 8);
    assert_in_range(fake.most_tokens, 17, 64); /* 20 ms are 40 tokens, and some for the clock */
    engine_stop(e);
    check_text(&c[1], &r);
    free(c);
}

/* ---- ends of other kinds ---- */

static void engine_cancels_in_any_state(void **state)
{
    (void)state;
    enum { N = 200 };
    struct engine *e = start_with(40, 16);
    struct client *c = clients(N);
    struct engine_request *r = xcalloc(N, sizeof *r);
    fake.delay_us = 100;
    srand(4);
    int cancelled = 0;
    for (int i = 0; i < N; i++) {
        crowd_request(&c[i], &r[i], i);
        submit(e, &r[i]);
        if (rand() % 2)
            engine_cancel(e, c[rand() % (i + 1)].id);
        if (rand() % 4 == 0)
            usleep((useconds_t)(rand() % 2000));
    }
    engine_cancel(e, 999999); /* nobody */
    wait_ends(N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(c[i].ends, 1);
        if (c[i].finish != FINISH_CANCELLED)
            check_text(&c[i], &r[i]);
        cancelled += c[i].finish == FINISH_CANCELLED;
    }
    assert_in_range(cancelled, 10, N - 10);
    check_idle(e);
    engine_stop(e);
    free(c);
    free(r);
}

static void engine_stop_ends_everything(void **state)
{
    (void)state;
    enum { N = 12 };
    struct engine *e = start_with(64, 4);
    struct client *c = clients(N);
    fake.delay_us = 1000;
    for (int i = 0; i < N; i++) {
        prompt_text(&c[i], "endless");
        struct engine_request r = request_of(&c[i], 500);
        r.ignore_eos = true;
        submit(e, &r);
    }
    wait_tokens(&c[0], 3);
    engine_stop(e);
    for (int i = 0; i < N; i++) {
        assert_int_equal(c[i].ends, 1);
        assert_int_equal(c[i].finish, FINISH_CANCELLED);
    }
    free(c);
}

static void engine_survives_steps_that_fail_now_and_then(void **state)
{
    (void)state;
    enum { N = 40 };
    struct engine *e = start_with(64, 8);
    struct client *c = clients(N);
    struct engine_request *r = xcalloc(N, sizeof *r);
    fake.fail_every = 10;
    for (int i = 0; i < N; i++) {
        crowd_request(&c[i], &r[i], i);
        submit(e, &r[i]);
    }
    wait_ends(N);
    for (int i = 0; i < N; i++)
        check_text(&c[i], &r[i]);
    assert_true(metric(e, "\nwhet_failed_steps_total ") >= 4);
    check_idle(e);
    engine_stop(e);
    free(c);
    free(r);
}

static void engine_gives_up_only_the_request_that_breaks_the_step(void **state)
{
    (void)state;
    enum { N = 20, BAD = 7 };
    struct engine *e = start_with(64, 8);
    struct client *c = clients(N);
    struct engine_request *r = xcalloc(N, sizeof *r);
    fake.poison = TOY_TAG;
    fake.delay_us = 100;
    for (int i = 0; i < N; i++) {
        crowd_request(&c[i], &r[i], i);
        if (i == BAD)
            c[i].prompt[4] = TOY_TAG;
        submit(e, &r[i]);
    }
    wait_ends(N);
    for (int i = 0; i < N; i++)
        if (i != BAD)
            check_text(&c[i], &r[i]);
    assert_int_equal(c[BAD].finish, FINISH_ERROR);
    assert_string_equal(c[BAD].error, "token 258 is poison");
    assert_int_equal(c[BAD].ends, 1);
    check_idle(e);

    fake.fail_next = 1000000; /* the device is dead */
    all_ends = 0;
    for (int i = 0; i < N; i++) {
        c[i].ends = 0;
        submit(e, &r[i]);
    }
    wait_ends(N);
    for (int i = 0; i < N; i++)
        assert_int_equal(c[i].finish, FINISH_ERROR);
    check_idle(e);
    engine_stop(e);
    free(c);
    free(r);
}

static void engine_says_why_it_did_not_load(void **state)
{
    (void)state;
    fake_reset();
    fake.fail_open = true;
    struct config config = config_of(8, 1);
    struct engine *e = start(&config);
    char message[200];
    assert_int_equal(engine_state(e, NULL, message, sizeof message), ENGINE_FAILED);
    assert_string_equal(message, "backend fake: the fake refuses to open");
    struct client *c = clients(1);
    prompt_text(c, "hello");
    struct engine_request r = request_of(c, 5);
    struct err err = {""};
    assert_int_equal(engine_submit(e, &r, NULL, &err), SUBMIT_NOT_READY);
    assert_int_equal(engine_slices(e, NULL, NULL), -1);
    engine_stop(e);
    free(c);
}

static void engine_notices_that_it_stalls(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 4);
    struct client *c = clients(1);
    usleep(30000);
    assert_true(engine_stalled_s(e) == 0); /* idle is no stall */
    fake.delay_us = 100000;
    prompt_text(c, "slow");
    struct engine_request r = request_of(c, 1);
    submit(e, &r);
    assert_true(engine_stalled_s(e) < 0.05);
    usleep(70000);
    assert_true(engine_stalled_s(e) > 0.02);
    wait_ends(1);
    assert_true(engine_stalled_s(e) == 0);
    engine_stop(e);
    free(c);
}

/* ---- the lab ---- */

struct slicer {
    int32_t want, have;
    int64_t took_ns, longest_ns, each_ns;
};

static int burn(void *ctx, int64_t budget_ns)
{
    struct slicer *s = ctx;
    int64_t start = clock_ns(), ns = s->each_ns ? s->each_ns : budget_ns;
    while (clock_ns() - start < ns)
        ;
    ns = clock_ns() - start;
    s->took_ns += ns;
    s->longest_ns = ns > s->longest_ns ? ns : s->longest_ns;
    return ++s->have >= s->want ? 1 : 0;
}

static void slice_meter_lends_its_share_and_collects_debts(void **state)
{
    (void)state;
    struct slice_meter m;
    slice_meter_init(&m, 0.05, 2000000, 0);
    int64_t lent = 0;
    for (int64_t now = 0; now < 10000000000; now += 5000000) /* a boundary every 5 ms, 10 s */
        if (slice_meter_due(&m, now, 0)) {
            int64_t took = now < 5000000000 ? 2000000 : 30000000; /* later ones overrun */
            slice_meter_spend(&m, took, 0);
            lent += took;
        }
    assert_in_range(lent, 450000000, 530000000); /* 5 % of 10 s */
    slice_meter_init(&m, 0, 2000000, 0);
    assert_false(slice_meter_due(&m, 100000000000, 0));
}

static void a_spread_meter_delays_one_step_in_so_many_and_keeps_to_its_share(void **state)
{
    (void)state;
    struct slice_meter m;
    slice_meter_init(&m, 0.05, 1000000, 0);
    slice_meter_spread(&m, 100, 8000000);
    int64_t lent = 0, now = 0, longest = 0;
    int slices = 0;
    for (uint64_t step = 1; step <= 20000; step++) { /* steps of 1 ms */
        now += 1000000;
        if (!slice_meter_due(&m, now, step))
            continue;
        int64_t took = slice_meter_budget(&m);
        slice_meter_spend(&m, took, step);
        longest = took > longest ? took : longest;
        lent += took;
        now += took;
        slices++;
    }
    assert_in_range(slices, 150, 200);                       /* one in a hundred at most */
    assert_in_range(lent, now / 100 * 4, now / 100 * 5 + 1); /* 5 % */
    assert_in_range(longest, 1000000, 8000000);
}

static void what_a_spread_meter_saved_is_spent_in_longer_slices(void **state)
{
    (void)state;
    struct slice_meter m;
    slice_meter_init(&m, 0.05, 1000000, 0);
    slice_meter_spread(&m, 100, 8000000);
    assert_true(slice_meter_due(&m, 10000000000, 100)); /* ten seconds in which nobody asked */
    assert_int_equal(slice_meter_budget(&m), 8000000);
    slice_meter_spend(&m, 8000000, 100);
    assert_false(slice_meter_due(&m, 10001000000, 199));
    assert_true(slice_meter_due(&m, 10001000000, 200));
    assert_int_equal(slice_meter_budget(&m), 8000000);
    for (uint64_t step = 300; slice_meter_due(&m, 10001000000, step); step += 100)
        slice_meter_spend(&m, 8000000, step);
    assert_true(slice_meter_budget(&m) < 1000000); /* and then it is gone */
}

static void engine_lends_slices_back_to_back_when_idle(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 4);
    struct slicer s = {.want = 50};
    int64_t start = clock_ns();
    assert_int_equal(engine_slices(e, burn, &s), 1);
    assert_int_equal(s.have, 50);
    assert_true(clock_ns() - start < 10 * s.took_ns);
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
    pthread_t thread;
    fake.delay_us = 500;
    prompt_text(c, "load");
    struct engine_request r = request_of(c, 1000);
    r.ignore_eos = true;
    submit(e, &r);
    wait_tokens(c, 1);
    pthread_create(&thread, NULL, slices_forever, &f);
    int64_t start = clock_ns();
    wait_tokens(c, 900);
    uint64_t lent = atomic_load(&e->stats.slice_ns), slices = atomic_load(&e->stats.slices);
    int64_t passed = clock_ns() - start;
    engine_cancel(e, c->id); /* no idle slices: the job is still in when the engine stops */
    engine_stop(e);
    pthread_join(thread, NULL);
    assert_int_equal(f.rc, -1);
    assert_true(slices >= 3); /* it does make progress */
    /* 5 %, and one slice ahead of the clock. */
    assert_true((double)lent < 0.05 * (double)passed + 2 * (double)f.s.longest_ns);
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
    struct canary canary = {.slot = dispatch_slot(engine_dispatch(e), REGION_MLP_IN, 1, 0),
                            .candidate = &candidate,
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

static void engine_drops_a_candidate_that_fails_a_step(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 4);
    struct client *c = clients(1);
    struct kernel candidate = {.id = "0123456789abcdef", .region = REGION_HEAD};
    struct canary canary = {.slot = dispatch_slot(engine_dispatch(e), REGION_HEAD, 1, 0),
                            .candidate = &candidate,
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

static void engine_json_tells_what_happened(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 4);
    struct client *c = clients(1);
    prompt_text(c, "numbers");
    struct engine_request r = request_of(c, 30);
    submit(e, &r);
    wait_ends(1);
    char *json = engine_json(e), expected[64], print[40];
    snprintf(expected, sizeof expected, "\"generated_tokens\":%d,", c->tokens);
    assert_non_null(strstr(json, expected));
    assert_non_null(strstr(json, "{\"region\":\"head\","));
    engine_fingerprint(e, print);
    assert_memory_equal(print, "fp_", 3);
    assert_true(metric(e, "\nwhet_hot_path_compiles_total ") == 0);
    assert_true(metric(e, "\nwhet_kernel_launches_total{region=\"embed\",origin=\"eager\"} ") ==
                (double)engine_steps(e));
    free(json);
    engine_stop(e);
    free(c);
}

static void engine_ends_everything_when_the_device_is_lost(void **state)
{
    (void)state;
    enum { N = 30 };
    struct engine *e = start_with(64, 8);
    struct client *c = clients(N + 1);
    struct engine_request r;
    fake.delay_us = 200;
    for (int i = 0; i < N; i++) {
        prompt_text(&c[i], "running, waiting or under way");
        r = request_of(&c[i], 400);
        r.ignore_eos = true;
        submit(e, &r);
    }
    wait_tokens(&c[0], 5);
    fake.lost = true;
    wait_ends(N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(c[i].ends, 1);
        assert_int_equal(c[i].finish, FINISH_ERROR);
        assert_non_null(strstr(c[i].error, "the bus"));
    }
    char message[200];
    assert_int_equal(engine_state(e, NULL, message, sizeof message), ENGINE_LOST);
    assert_string_equal(message, "the device is lost: the fake has fallen off the bus");
    check_idle(e); /* and its metrics can still be read */
    struct err err = {""};
    prompt_text(&c[N], "too late");
    r = request_of(&c[N], 5);
    assert_int_equal(engine_submit(e, &r, NULL, &err), SUBMIT_NOT_READY);
    assert_string_equal(err.msg, "the device is lost");
    assert_int_equal(engine_slices(e, NULL, NULL), -1);
    engine_canary(e, NULL); /* returns */
    engine_stop(e);
    free(c);
}

/* ---- steps started ahead ---- */

static void a_step_is_started_while_the_one_before_it_is_under_way(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 4);
    struct client *c = clients(1);
    prompt_text(c, "one after the other");
    struct engine_request r = request_of(c, 300);
    r.ignore_eos = true;
    submit(e, &r);
    wait_ends(1);
    assert_int_equal(c->tokens, 300);
    engine_stop(e);
    assert_int_equal(fake.steps, 300); /* how many are wanted is known: none for nothing */
    assert_int_equal(fake.ahead, 299);
    free(c);
}

static void a_token_drawn_after_the_end_is_nobodys(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 4);
    struct client *c = clients(2);
    prompt_text(&c[0], "this one ends by itself");
    struct engine_request r = request_of(&c[0], 400);
    submit(e, &r);
    wait_ends(1);
    check_text(&c[0], &r);
    assert_int_equal(c[0].finish, FINISH_STOP);
    prompt_text(&c[1], "and so does the one after it");
    r = request_of(&c[1], 400);
    submit(e, &r);
    wait_ends(2);
    check_text(&c[1], &r);
    check_idle(e);
    assert_true(metric(e, "\nwhet_generation_tokens_total ") == c[0].tokens + c[1].tokens);
    engine_stop(e);
    assert_int_equal(fake.steps, (uint64_t)(c[0].tokens + c[1].tokens) + 2); /* one more each */
    free(c);
}

/* Everything that changes a draw with the tokens before it. */
static void penalties_and_bans_know_the_token_under_way(void **state)
{
    (void)state;
    enum { N = 12 };
    struct engine *e = start_with(64, 4);
    struct client *c = clients(N);
    struct engine_request r[N];
    for (int i = 0; i < N; i++) {
        prompt_text(&c[i], "abcdef abcdef");
        r[i] = request_of(&c[i], 120);
        r[i].ignore_eos = true;
        r[i].sampling.repetition_penalty = i % 3 == 0 ? 1.7f : 1;
        r[i].sampling.presence_penalty = i % 3 == 1 ? 1.1f : 0;
        r[i].sampling.frequency_penalty = i % 3 == 2 ? 0.6f : 0;
        r[i].sampling.temperature = i % 2 ? 0.8f : 0;
        r[i].sampling.seed = (uint64_t)i + 1;
        r[i].sampling.top_logprobs = i % 4 ? -1 : 3;
        submit(e, &r[i]);
    }
    wait_ends(N);
    for (int i = 0; i < N; i++) {
        char text[2 * LONG];
        int32_t ids[LONG],
            n = fake_text(c[i].prompt, c[i].prompt_n, 120, &r[i].sampling, text, ids);
        n = n < c[i].tokens ? n : c[i].tokens; /* fake_text() stops at the end token */
        assert_int_equal(c[i].tokens, 120);
        assert_memory_equal(c[i].ids, ids, (size_t)n * sizeof *ids);
    }
    engine_stop(e);
    free(c);
}

static void tokens_that_stay_off_the_device_are_waited_for(void **state)
{
    (void)state;
    enum { N = 40 };
    struct engine *e = start_with(20, 8);
    struct client *c = clients(N);
    struct engine_request r[N];
    fake.keep_in = 3; /* the fake fails a step that names such a row */
    for (int i = 0; i < N; i++) {
        crowd_request(&c[i], &r[i], i);
        submit(e, &r[i]);
    }
    wait_ends(N);
    for (int i = 0; i < N; i++)
        check_text(&c[i], &r[i]);
    assert_true(metric(e, "\nwhet_failed_steps_total ") == 0);
    assert_true(fake.ahead > 0 && fake.ahead < fake.starts);
    check_idle(e);
    engine_stop(e);
    free(c);
}

static void what_a_failed_step_and_the_next_computed_is_computed_again(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 4);
    struct client *c = clients(2);
    struct engine_request r[2];
    fake.fail_every = 5;
    for (int i = 0; i < 2; i++) {
        prompt_text(&c[i], i ? "another of the two" : "one of the two that meet failures");
        r[i] = request_of(&c[i], 200);
        submit(e, &r[i]);
    }
    wait_ends(2);
    check_text(&c[0], &r[0]);
    check_text(&c[1], &r[1]);
    assert_true(metric(e, "\nwhet_failed_steps_total ") > 10);
    assert_true(fake.ahead > 10);
    check_idle(e);
    engine_stop(e);
    free(c);
}

int main(void)
{
    log_set_level(LOG_ERROR); /* of which some are wanted */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engine_answers_as_the_model_alone_would),
        cmocka_unit_test(engine_gives_each_of_two_hundred_its_own_text),
        cmocka_unit_test(engine_reports_tokens_found_in_the_cache),
        cmocka_unit_test(engine_scores_a_prompt),
        cmocka_unit_test(engine_stops_at_strings_and_ids),
        cmocka_unit_test(engine_refuses_what_it_cannot_serve),
        cmocka_unit_test(engine_reads_a_long_prompt_without_stopping_the_others),
        cmocka_unit_test(engine_cancels_in_any_state),
        cmocka_unit_test(engine_stop_ends_everything),
        cmocka_unit_test(engine_survives_steps_that_fail_now_and_then),
        cmocka_unit_test(engine_gives_up_only_the_request_that_breaks_the_step),
        cmocka_unit_test(engine_says_why_it_did_not_load),
        cmocka_unit_test(engine_notices_that_it_stalls),
        cmocka_unit_test(slice_meter_lends_its_share_and_collects_debts),
        cmocka_unit_test(a_spread_meter_delays_one_step_in_so_many_and_keeps_to_its_share),
        cmocka_unit_test(what_a_spread_meter_saved_is_spent_in_longer_slices),
        cmocka_unit_test(engine_lends_slices_back_to_back_when_idle),
        cmocka_unit_test(engine_keeps_slices_to_their_share_under_load),
        cmocka_unit_test(engine_tosses_a_coin_for_the_canary),
        cmocka_unit_test(engine_drops_a_candidate_that_fails_a_step),
        cmocka_unit_test(engine_json_tells_what_happened),
        cmocka_unit_test(engine_ends_everything_when_the_device_is_lost),
    };
    const struct CMUnitTest ahead[] = {
        cmocka_unit_test(a_step_is_started_while_the_one_before_it_is_under_way),
        cmocka_unit_test(a_token_drawn_after_the_end_is_nobodys),
        cmocka_unit_test(penalties_and_bans_know_the_token_under_way),
        cmocka_unit_test(tokens_that_stay_off_the_device_are_waited_for),
        cmocka_unit_test(what_a_failed_step_and_the_next_computed_is_computed_again),
    };
    int failed = cmocka_run_group_tests_name("one by one", tests, NULL, NULL);
    ops = &fake_pipelined_ops;
    failed += cmocka_run_group_tests_name("pipelined", tests, NULL, NULL);
    return failed + cmocka_run_group_tests_name("started ahead", ahead, NULL, NULL);
}
