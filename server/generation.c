/* SPDX-License-Identifier: Apache-2.0 */
/* generation.c - one completion request from body to answer.
 *
 * Ownership is by counting what may still call back: a lane (preparing) and the engine
 * (running choices). A generation is freed when it owes nothing to either and its exchange has
 * been answered or is gone. Nothing else keeps a pointer to it.
 *
 * 429 comes before any work: the queue and the client's limits are looked at before the body is
 * even parsed. Between that look and the submit another request may take the last place; then this
 * one is told the same, and so it is when its place in a full queue goes to a client that has fewer
 * waiting. All choices enter the queue together or none does, and once one of them has run none is
 * displaced: of a request that is refused nothing was computed.
 *
 * Tokens a minute: the prompt is charged when all choices are in the queue, each output token when
 * it is there. So a client is refused before it gets more prompt tokens than it has left, and pays
 * for an answer that went further with the time until its next request.
 */
#include "server/generation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "config/log.h"
#include "server/chat.h"
#include "server/conn.h"
#include "server/limits.h"
#include "server/refusal.h"
#include "server/reply.h"
#include "server/server.h"

/* ---- life ---------------------------------------------------------------------------------- */

static void free_answer(struct choice *c)
{
    struct logprobs *l = &c->logprobs;
    struct buf *bufs[] = {&c->text, &c->token_ids, &l->tokens, &l->values,
                          &l->tops, &l->offsets,   &l->content};
    for (size_t i = 0; i < sizeof(bufs) / sizeof(*bufs); i++)
        buf_free(bufs[i]);
}

/* Of what an answer is made of. */
static size_t answer_size(const struct choice *c)
{
    const struct logprobs *l = &c->logprobs;
    return c->text.n + c->token_ids.n + l->tokens.n + l->values.n + l->tops.n + l->offsets.n +
           l->content.n;
}

/* The client has left. The engine may take a step yet to stop. */
static void drop_answer(struct generation *g)
{
    for (int32_t i = 0; i < g->choices; i++)
        free_answer(&g->choice[i]);
    g->answer_bytes = 0;
}

/* Frees it if nothing can refer to it any more. */
static void release(struct generation *g)
{
    if (g->x || g->preparing || g->running)
        return;
    *g->link = g->next;
    if (g->next)
        g->next->link = g->link;
    drop_answer(g);
    for (int32_t i = 0; i < g->choices; i++)
        free(g->choice[i].stop_string);
    for (int32_t i = 0; i < g->prompts; i++) {
        free(g->prompt[i].ids);
        free(g->prompt[i].text);
    }
    free(g->choice);
    free(g->prompt);
    params_free(&g->params);
    buf_free(&g->body);
    struct server *srv = g->srv;
    clients_release(srv->auth.clients, g->client);
    server_release(srv, g->held);
    free(g);
    server_check_drained(srv);
}

static void cancel(struct generation *g)
{
    if (g->cancelled)
        return;
    g->cancelled = true;
    if (g->preparing)
        work_cancel(&g->work);
    drop_answer(g);
    for (int32_t i = 0; i < g->choices; i++)
        if (g->choice[i].submitted && !g->choice[i].ended)
            engine_cancel(g->srv->engine, g->choice[i].id);
}

/* The client left. */
static void on_gone(struct exchange *x)
{
    struct generation *g = x->user;
    g->x = NULL;
    cancel(g);
    release(g);
}

/* Lets go of the exchange before its last bytes are written. */
static struct exchange *detach(struct generation *g)
{
    struct exchange *x = g->x;
    g->x = NULL;
    x->on_gone = NULL;
    return x;
}

void generation_fail(struct generation *g, const struct api_error *e)
{
    if (!g->x)
        return;
    cancel(g);
    struct exchange *x = detach(g);
    if (g->streaming) {
        struct buf b = {0};
        buf_str(&b, "data: ");
        api_error_json(&b, e);
        buf_str(&b, "\n\n");
        log_info("http", "%s ends with an error: %s", x->id, e->message);
        respond_write(x, b.p, b.n);
        buf_free(&b);
        respond_end(x);
    } else {
        respond_error(x, e);
    }
}

/* ---- prepared ------------------------------------------------------------------------------ */

/* From here on the prompts, and the answer that the client expects, are what it holds. */
static void hold_prompts(struct generation *g)
{
    uint64_t bytes = (uint64_t)g->params.predicted_n * sizeof *g->params.predicted;
    for (int32_t i = 0; i < g->prompts; i++)
        bytes += (uint64_t)g->prompt[i].n * sizeof(*g->prompt[i].ids) + g->prompt[i].text_n;
    g->srv->held_bytes += bytes - g->held;
    g->held = bytes;
}

/* ---- what the engine is asked for ---------------------------------------------------------- */

static void on_event(void *user, const struct engine_event *event)
{
    struct choice *c = user;
    inbox_push(&c->g->srv->inbox, c, event);
}

/* Seed 0 tells the engine to draw one; a request's own 0 must stay fixed. */
static uint64_t choice_seed(const struct generation *g, int32_t n)
{
    uint64_t base =
        g->params.seeded ? g->params.sampling.seed : (uint64_t)g->srv->config->engine_seed;
    if (!g->params.seeded && !base)
        return 0;
    uint64_t seed = base + (uint64_t)n;
    return seed ? seed : UINT64_C(0x5eed000000000000);
}

/* Tokens to generate: what was asked for, else OpenAI's default of the route, as far as it fits. */
static int64_t output_limit(const struct generation *g, const struct prompt *p)
{
    int64_t room = g->info->max_context - p->n;
    if (g->params.max_tokens >= 0)
        return g->params.max_tokens;
    return g->params.chat || room < DEFAULT_MAX_TOKENS ? room : DEFAULT_MAX_TOKENS;
}

/* ---- submit -------------------------------------------------------------------------------- */

static struct engine_request request_of(struct choice *c)
{
    const struct generation *g = c->g;
    const struct params *p = &g->params;
    const struct prompt *prompt = &g->prompt[c->prompt];
    struct engine_request r = {
        .client = g->client->id,
        .limits = &g->client->limits.requests,
        .prompt = prompt->ids,
        .prompt_n = (int32_t)prompt->n,
        .max_tokens = (int32_t)output_limit(g, prompt),
        .min_tokens = (int32_t)p->min_tokens,
        .sampling = p->sampling,
        .stop = (const char *const *)p->stop,
        .stops = p->stops,
        .stop_token = p->stop_token,
        .stop_tokens = p->stop_tokens,
        .include_stop = p->include_stop,
        .ignore_eos = p->ignore_eos,
        .prompt_logprobs = p->echo && p->logprobs,
        .echo = p->echo,
        .keep_special = p->keep_special,
        .speculates = p->speculates,
        .undrafted = p->undrafted,
        .bit_equal = p->bit_equal,
        .predicted = p->predicted,
        .predicted_n = p->predicted_n,
        .on_event = on_event,
        .user = c,
    };
    r.sampling.seed = choice_seed(g, c->index % p->n);
    return r;
}

static enum submit_result submit_choices(struct generation *g, struct err *err)
{
    struct engine_request *r = xcalloc((size_t)g->choices, sizeof(*r));
    uint64_t *id = xcalloc((size_t)g->choices, sizeof(*id));
    for (int32_t i = 0; i < g->choices; i++)
        r[i] = request_of(&g->choice[i]);
    enum submit_result result = engine_submit_all(g->srv->engine, r, g->choices, id, err);
    for (int32_t i = 0; i < g->choices && result == SUBMIT_OK; i++) {
        g->choice[i].id = id[i];
        g->choice[i].submitted = true;
    }
    free(r);
    free(id);
    return result;
}

static void submit_failed(struct generation *g, enum submit_result result, const struct err *err)
{
    struct api_error e;
    const char *param = g->params.chat ? "messages" : "prompt";
    if (result == SUBMIT_FULL || result == SUBMIT_LIMITED) {
        refusal_room(g, result, err);
        return;
    }
    if (result == SUBMIT_NOT_READY)
        api_error_set(&e, 503, NULL, "%s", err->msg);
    else if (result == SUBMIT_TOO_LONG)
        api_error_code(&e, 400, "context_length_exceeded", param, "%s", err->msg);
    else
        api_error_set(&e, 400, param, "%s", err->msg);
    generation_fail(g, &e);
}

static void submit(struct generation *g)
{
    struct err err = {""};
    int64_t prompts = 0;
    for (int32_t i = 0; i < g->prompts; i++)
        prompts += g->prompt[i].n;
    if (refusal_choices(g) || refusal_tokens(g, prompts))
        return;
    g->choices = g->prompts * g->params.n;
    g->choice = xcalloc((size_t)g->choices, sizeof(*g->choice));
    engine_fingerprint(g->srv->engine, g->fingerprint);
    for (int32_t i = 0; i < g->choices; i++) {
        struct choice *c = &g->choice[i];
        *c = (struct choice){.g = g, .index = i, .prompt = i / g->params.n};
        if (g->params.echo)
            buf_add(&c->text, g->prompt[c->prompt].text, g->prompt[c->prompt].text_n);
        g->answer_bytes += answer_size(c);
    }
    enum submit_result result = submit_choices(g, &err);
    if (result != SUBMIT_OK) {
        submit_failed(g, result, &err);
        return;
    }
    g->running = g->choices;
    g->client->active += g->choices;
    g->client->counts->active += g->choices;
    g->charged = prompts;
    g->client->counts->requests += (uint64_t)g->choices;
    g->client->counts->prompt_tokens += (uint64_t)prompts;
    client_charge(g->client, prompts, clock_ns());
    client_headers(g->client, clock_ns(), g->x->limits, sizeof(g->x->limits));
}

static void prepared(struct generation *g)
{
    hold_prompts(g);
    if (g->x && g->error.status)
        generation_fail(g, &g->error);
    else if (g->x)
        submit(g);
    release(g);
}

static void on_work(struct work *w)
{
    generation_prepare((struct generation *)w);
}

static void on_work_done(struct work *w, bool ran)
{
    struct generation *g = (struct generation *)w;
    (void)ran; /* it was, unless nobody waits for it */
    g->preparing = false;
    prepared(g);
}

static struct client *client_of(struct exchange *x)
{
    struct sockaddr_storage from = {0};
    int n = sizeof(from);
    uv_tcp_getpeername(&x->conn->tcp, (struct sockaddr *)&from, &n);
    return auth_client(&x->srv->auth, &x->req, (struct sockaddr *)&from);
}

bool generation_cancelled(const struct generation *g)
{
    return atomic_load_explicit(&g->work.cancelled, memory_order_relaxed);
}

void generation_start(struct exchange *x, bool chat)
{
    struct server *s = x->srv;
    if (s->cancelled_ns) {
        respond_fail(x, 503, NULL, "the server is shutting down");
        return;
    }
    bool small = x->req.body.n <= INLINE_BODY_MAX && !(chat && chat_is_slow(s->chat));
    if (!small && lanes_client_works(&s->lanes) >= WORKS_MAX) {
        respond_fail(x, 429, NULL, WORKS_MESSAGE, WORKS_MAX);
        return;
    }
    struct generation *g = xcalloc(1, sizeof(*g));
    g->srv = s;
    g->x = x;
    g->client = client_of(x);
    g->info = engine_info(s->engine);
    g->params.chat = chat;
    g->created = clock_wall_s();
    g->quiet_since = x->start_ns;
    snprintf(g->id, sizeof(g->id), "%s-%016llx%016llx", chat ? "chatcmpl" : "cmpl",
             (unsigned long long)exchange_random(), (unsigned long long)exchange_random());
    g->link = &s->generations;
    g->next = s->generations;
    if (g->next)
        g->next->link = &g->next;
    s->generations = g;
    if (refusal_early(g)) {
        release(g);
        return;
    }
    g->held = exchange_take_body(x, &g->body);
    x->user = g;
    x->on_gone = on_gone;
    x->cancel_on_eof = true;
    server_sweep(s);
    if (small) {
        generation_prepare(g);
        prepared(g);
        return;
    }
    g->preparing = true;
    g->work.run = on_work;
    g->work.done = on_work_done;
    work_start(&s->lanes, &g->work, lane_of_body(g->body.n));
}

/* ---- deliver ------------------------------------------------------------------------------- */

/* All choices have ended: the plain answer, or the end of the stream. */
static void finish(struct generation *g)
{
    for (int32_t i = 0; i < g->prompts; i++)
        g->x->prompt_tokens += (int32_t)g->prompt[i].n;
    for (int32_t i = 0; i < g->choices; i++)
        g->x->output_tokens += g->choice[i].end.event.output_tokens;
    struct buf b = {0};
    if (g->params.stream) {
        reply_stream_end(g, &b);
        struct exchange *x = detach(g);
        respond_write(x, b.p, b.n);
        buf_free(&b);
        respond_end(x);
    } else {
        reply_whole(g, &b);
        drop_answer(g); /* not a moment three of it: respond() copies too */
        respond_json(detach(g), 200, &b);
    }
}

static void on_end(struct choice *c, const struct inbox_event *in)
{
    struct generation *g = c->g;
    c->ended = true;
    c->end = *in;
    c->stop_string = in->event.stop_string ? xstrdup(in->event.stop_string) : NULL;
    g->running--;
    g->client->active--;
    g->client->counts->active--;
    struct api_error e;
    if (in->event.finish == FINISH_DISPLACED) {
        refusal_displaced(g);
    } else if (in->event.finish == FINISH_ERROR) {
        api_error_set(&e, 500, NULL, "the generation failed: %s",
                      in->event.error ? in->event.error : "no reason given");
        generation_fail(g, &e);
    } else if (in->event.finish == FINISH_CANCELLED) {
        api_error_set(&e, 503, NULL, "the server is shutting down");
        generation_fail(g, &e);
    }
}

void generation_too_large(struct generation *g, uint64_t max)
{
    struct api_error e;
    if (max == (uint64_t)g->srv->config->server_max_answer)
        generation_above_limit(&e, max);
    else
        /* No 503: a balancer would have the same answer computed again elsewhere. */
        api_error_code(&e, 429, "answers_full", NULL,
                       "the answers that this server holds are larger than %llu bytes together "
                       "(%d times server.max_answer): ask for a stream, or try again later",
                       (unsigned long long)max, ANSWERS_IN_FLIGHT);
    generation_fail(g, &e);
}

static void begin_stream(struct generation *g)
{
    if (g->streaming)
        return;
    g->streaming = true;
    respond_begin(g->x, "text/event-stream; charset=utf-8");
}

static void deliver(void *ctx, const struct inbox_event *in)
{
    (void)ctx;
    struct choice *c = in->choice;
    struct generation *g = c->g;
    bool end = in->event.kind == EVENT_END;
    if (in->event.kind == EVENT_TOKEN) {
        client_charge(g->client, 1, in->at_ns);
        g->client->counts->generated_tokens++;
    }
    if (end)
        on_end(c, in);
    if (g->x) {
        size_t before = answer_size(c);
        reply_event(c, in);
        struct buf b = {0};
        if (g->params.stream)
            reply_chunk(c, &b);
        g->answer_bytes += answer_size(c) - before;
        if (b.n) {
            begin_stream(g);
            respond_write(g->x, b.p, b.n);
            g->dirty = true;
            g->quiet_since = in->at_ns;
        }
        buf_free(&b);
        if (g->answer_bytes > (uint64_t)g->srv->config->server_max_answer)
            generation_too_large(g, (uint64_t)g->srv->config->server_max_answer);
        else if (!g->running)
            finish(g);
    }
    if (end)
        release(g);
}

void generations_deliver(struct server *s)
{
    inbox_drain(&s->inbox, deliver, s);
    for (struct generation *g = s->generations, *next; g; g = next) {
        next = g->next;
        if (g->dirty && g->x)
            respond_flush(g->x);
        g->dirty = false;
    }
}

/* Streams that have been silent get a comment, so that no proxy gives them up. */
void generations_sweep(struct server *s, int64_t now)
{
    for (struct generation *g = s->generations, *next; g; g = next) {
        next = g->next;
        if (!g->x || g->preparing || !g->params.stream || !g->running ||
            now - g->quiet_since < (int64_t)(s->keepalive_s * 1e9))
            continue;
        g->quiet_since = now;
        begin_stream(g);
        respond_write(g->x, ": keep-alive\n\n", 14);
        respond_flush(g->x);
    }
}

/* The drain time is over. */
void generations_cancel(struct server *s)
{
    struct api_error e;
    api_error_set(&e, 503, NULL, "the server is shutting down");
    for (struct generation *g = s->generations, *next; g; g = next) {
        next = g->next;
        generation_fail(g, &e);
        release(g);
    }
}
