/* SPDX-License-Identifier: Apache-2.0 */
/* engine_world.h - an engine on the fake backend (fake.h) and clients of it, for tests of the
 * whole.
 *
 * `ops` decides how steps run: one by one, or each started while the one before it is under way.
 */
#ifndef WHET_TESTS_UNIT_ENGINE_ENGINE_WORLD_H
#define WHET_TESTS_UNIT_ENGINE_ENGINE_WORLD_H

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

static inline struct config config_of(int pages, int batch)
{
    struct config c = {.engine_model = "fake",
                       .engine_model_name = "fake",
                       .engine_backend = "cpu",
                       .engine_kv_pages = pages,
                       .engine_max_batch = batch,
                       .engine_prefill_chunk = 32,
                       .engine_prefix_cache = (char *)"salted",
                       .server_max_queue = 1000,
                       .specializer_share = 0.05,
                       .specializer_slice_ms = 1};
    return c;
}

static inline struct model *toy_model(void)
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
    struct model *m = model_random(&shape, DTYPE_F32, 1);
    m->tokenizer = toy_tokenizer();
    return m;
}

/* With a draft model on `draft`, if that is not NULL. */
static inline struct engine *start_beside(const struct config *c, const struct backend_ops *draft)
{
    struct err err = {""};
    struct engine_parts parts = {ops, toy_model(), draft, draft ? toy_model() : NULL};
    struct engine *e = engine_start_parts(c, &parts, &err);
    assert_non_null(e);
    while (engine_state(e, NULL, NULL, 0) == ENGINE_LOADING)
        usleep(200);
    return e;
}

static inline struct engine *start(const struct config *c)
{
    return start_beside(c, NULL);
}

static inline struct engine *start_with(int pages, int batch)
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

static inline void on_end(struct client *c, const struct engine_event *e)
{
    c->ends++;
    c->finish = e->finish;
    c->output_tokens = e->output_tokens;
    c->cached_tokens = e->cached_tokens;
    snprintf(c->stop_string, sizeof c->stop_string, "%s", e->stop_string ? e->stop_string : "");
    snprintf(c->error, sizeof c->error, "%s", e->error ? e->error : "");
    all_ends++;
}

static inline void on_event(void *user, const struct engine_event *e)
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

static const struct sampling greedy = {SAMPLING_NEUTRAL, .top_logprobs = -1};

static inline struct engine_request request_of(struct client *c, int32_t max_tokens)
{
    return (struct engine_request){.prompt = c->prompt,
                                   .prompt_n = c->prompt_n,
                                   .max_tokens = max_tokens,
                                   .sampling = greedy,
                                   .on_event = on_event,
                                   .user = c};
}

static inline void prompt_text(struct client *c, const char *text)
{
    c->prompt_n = (int32_t)strlen(text);
    for (int32_t i = 0; i < c->prompt_n; i++)
        c->prompt[i] = (unsigned char)text[i];
}

static inline struct client *clients(int n)
{
    all_ends = 0;
    return xcalloc((size_t)n, sizeof(struct client));
}

/* Prompts with common beginnings, greedy and sampled. */
static inline void crowd_request(struct client *c, struct engine_request *r, int i)
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

static inline void submit(struct engine *e, const struct engine_request *r)
{
    struct err err = {""};
    struct client *c = r->user;
    assert_int_equal(engine_submit(e, r, &c->id, &err), SUBMIT_OK);
}

static inline void wait_ends(int32_t n)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 600; /* a limit, never reached by an engine that works */
    pthread_mutex_lock(&lock);
    int rc = 0;
    while (all_ends < n && rc == 0)
        rc = pthread_cond_timedwait(&changed, &lock, &until);
    pthread_mutex_unlock(&lock);
    assert_int_equal(rc, 0); /* every request ends */
}

/* One more than have by now, unless all `submitted` ones have. */
static inline void wait_another_end(int32_t submitted)
{
    pthread_mutex_lock(&lock);
    int32_t ends = all_ends;
    pthread_mutex_unlock(&lock);
    wait_ends(ends < submitted ? ends + 1 : submitted);
}

static inline void wait_tokens(struct client *c, int32_t n)
{
    pthread_mutex_lock(&lock);
    while (c->tokens < n && !c->ends)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static inline double metric(struct engine *e, const char *line)
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
static inline void check_idle(struct engine *e)
{
    assert_int_equal(engine_active(e), 0);
    assert_true(metric(e, "\nwhet_kv_pages_used ") == 0);
    assert_true(metric(e, "\nwhet_requests_running ") == 0);
    assert_true(metric(e, "\nwhet_requests_waiting ") == 0);
    assert_true(engine_stalled_s(e) == 0);
}

static inline void stop_idle(struct engine *e)
{
    check_idle(e);
    engine_stop(e);
}

static inline void check_text(const struct client *c, const struct engine_request *r)
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

/* All of a crowd at once; and that each gets its own text in the end. */
static inline void submit_crowd(struct engine *e, struct client *c, struct engine_request *r, int n)
{
    for (int i = 0; i < n; i++) {
        crowd_request(&c[i], &r[i], i);
        submit(e, &r[i]);
    }
}

static inline void check_crowd(const struct client *c, const struct engine_request *r, int n)
{
    wait_ends(n);
    for (int i = 0; i < n; i++)
        check_text(&c[i], &r[i]);
}

#endif
