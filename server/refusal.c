/* SPDX-License-Identifier: Apache-2.0 */
/* refusal.c - the answers to a client that there is no room for, in OpenAI's words: 429,
 * rate_limit_exceeded where the limit is its own, Retry-After, and what it has left. */
#include "server/refusal.h"

#include <math.h>

#include "config/clock.h"
#include "server/server.h"

static void count_refusal(struct generation *g, enum client_refusal why)
{
    g->client->counts->refused[why]++;
    client_headers(g->client, clock_ns(), g->x->limits, sizeof(g->x->limits));
}

void refusal_room(struct generation *g, enum submit_result result, const struct err *err)
{
    struct api_error e;
    bool own = result == SUBMIT_LIMITED;
    if (!own)
        g->x->retry_after = engine_retry_s(g->srv->engine);
    api_error_code(&e, 429, own ? "rate_limit_exceeded" : "queue_full", NULL, "%s; try again later",
                   err->msg);
    count_refusal(g, own ? REFUSED_REQUESTS : REFUSED_QUEUE);
    generation_fail(g, &e);
}

bool refusal_choices(struct generation *g)
{
    struct api_error e;
    const struct request_limits *l = &g->client->limits.requests;
    bool batch = l->running == 0 || l->running > g->info->max_batch;
    int32_t running = batch ? g->info->max_batch : l->running;
    int32_t choices = g->prompts * g->params.n;
    if (l->waiting < 0 || choices <= (int64_t)running + l->waiting)
        return false;
    /* As above a minute's tokens: no 429, which clients would try again in vain. */
    api_error_code(&e, 400, "rate_limit_exceeded", g->params.n > 1 ? "n" : "prompt",
                   "%d prompts x %d choices are %d generations, but your limit is running=%d "
                   "waiting=%d",
                   g->prompts, g->params.n, choices, running, l->waiting);
    count_refusal(g, REFUSED_REQUESTS);
    generation_fail(g, &e);
    return true;
}

bool refusal_tokens(struct generation *g, int64_t tokens)
{
    struct api_error e;
    int64_t now = clock_ns(), most = g->client->limits.tokens_per_minute;
    double wait = client_wait_s(g->client, tokens, now);
    if (wait <= 0)
        return false;
    if (isinf(wait)) { /* no 429: clients would try it again, and again in vain */
        api_error_code(&e, 400, "rate_limit_exceeded", g->params.chat ? "messages" : "prompt",
                       "the prompt has %lld tokens, but your limit is tokens_per_minute=%lld",
                       (long long)tokens, (long long)most);
    } else {
        g->x->retry_after = (int)ceil(wait);
        api_error_code(&e, 429, "rate_limit_exceeded", NULL,
                       "your limit is tokens_per_minute=%lld, and of it %lld are left: this "
                       "request needs at least %lld; try again in %d s",
                       (long long)most, (long long)(g->client->tokens > 0 ? g->client->tokens : 0),
                       (long long)tokens, g->x->retry_after);
    }
    count_refusal(g, REFUSED_TOKENS);
    generation_fail(g, &e);
    return true;
}

void refusal_displaced(struct generation *g)
{
    struct api_error e;
    if (!g->x)
        return;
    api_error_code(&e, 429, "queue_full", NULL,
                   "the queue is full, and you have more requests waiting than others; try again "
                   "later");
    g->x->retry_after = engine_retry_s(g->srv->engine);
    client_charge(g->client, -g->charged, clock_ns()); /* nothing was computed */
    count_refusal(g, REFUSED_DISPLACED);
    generation_fail(g, &e);
}

bool refusal_early(struct generation *g)
{
    struct err err = {""};
    enum submit_result room =
        engine_room(g->srv->engine, g->client->id, &g->client->limits.requests, &err);
    if (room == SUBMIT_OK)
        return refusal_tokens(g, 1);
    refusal_room(g, room, &err);
    return true;
}
