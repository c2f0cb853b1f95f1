/* SPDX-License-Identifier: Apache-2.0 */
/* replay.c - see replay.h.
 *
 * Tokens are drawn anew for every request, so no prefix is shared and prompts are really read. A
 * sequence decodes for a while, since prompts cost steps that belong to other slots; and they begin
 * together when the last ones have all ended: replaced one by one, they would soon be out of step,
 * and of many short ones nearly every step would read some prompt beside the others' tokens.
 */
#include "tune/replay.h"

#include <pthread.h>
#include <stdlib.h>

#include "config/clock.h"
#include "config/err.h"
#include "config/log.h"
#include "specializer/candidate/hash.h"

enum { CLIENTS_MOST = 512, SHORT_PROMPT = 48, DECODE_TOKENS = 256 };

struct replay_client {
    struct replay *replay;
    uint64_t id;
    bool running; /* lock */
};

struct replay {
    struct engine *engine;
    int32_t prompt, tokens, vocab;
    uint64_t random;
    bool running; /* the thread is there */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop; /* lock */
    struct replay_client client[CLIENTS_MOST];
    int clients;
};

/* Engine thread. */
static void on_event(void *user, const struct engine_event *event)
{
    struct replay_client *c = user;
    if (event->kind != EVENT_END)
        return;
    pthread_mutex_lock(&c->replay->lock);
    c->running = false;
    pthread_cond_broadcast(&c->replay->wake);
    pthread_mutex_unlock(&c->replay->lock);
}

static void submit(struct replay *r, struct replay_client *c)
{
    int32_t *prompt = xcalloc((size_t)r->prompt, sizeof *prompt);
    const struct sampling greedy = {SAMPLING_NEUTRAL, .top_logprobs = -1};
    struct err err;
    for (int32_t i = 0; i < r->prompt; i++)
        prompt[i] = random_below(&r->random, r->vocab);
    struct engine_request q = {.prompt = prompt,
                               .prompt_n = r->prompt,
                               .max_tokens = r->tokens,
                               .sampling = greedy,
                               .ignore_eos = true,
                               .on_event = on_event,
                               .user = c};
    pthread_mutex_lock(&r->lock);
    c->running = true;
    pthread_mutex_unlock(&r->lock);
    if (engine_submit(r->engine, &q, &c->id, &err) != SUBMIT_OK) {
        log_warn("tune", "replayed steps: %s", err.msg);
        pthread_mutex_lock(&r->lock);
        c->running = false;
        pthread_mutex_unlock(&r->lock);
    }
    free(prompt);
}

static void *replay_thread(void *ctx)
{
    struct replay *r = ctx;
    pthread_mutex_lock(&r->lock);
    while (!r->stop) {
        bool over = true;
        for (int i = 0; i < r->clients; i++)
            over &= !r->client[i].running;
        for (int i = 0; i < r->clients && over; i++) {
            pthread_mutex_unlock(&r->lock);
            submit(r, &r->client[i]);
            pthread_mutex_lock(&r->lock);
        }
        struct timespec until = clock_in(1);
        if (!r->stop)
            pthread_cond_timedwait(&r->wake, &r->lock, &until);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* Prompt and decoded tokens of a sequence. An attention slot sees the upper half of its bucket; in
 * the others' steps attention is the bucket's, so they may begin where it does. */
static void lengths(struct replay *r, const struct slot *slot, bool decode, int context)
{
    int bucket = context_bucket_of(context), before = bucket > 0 ? context_bucket[bucket - 1] : 0;
    r->tokens = decode ? DECODE_TOKENS : 1;
    if (!decode)
        r->prompt = slot->context > slot->m ? slot->context : slot->m;
    else if (slot->region == REGION_ATTN)
        r->prompt = context * 5 / 8;
    else
        r->prompt = before > SHORT_PROMPT ? before : SHORT_PROMPT;
    if (decode && r->tokens > context - r->prompt)
        r->tokens = context - r->prompt;
}

struct replay *replay_new(struct engine *e, const struct slot *slot, int sequences, int context,
                          uint64_t seed, struct err *err)
{
    const struct engine_info *info = engine_info(e);
    bool decode = slot->m <= sequences && slot->m <= CLIENTS_MOST;
    struct replay *r = xcalloc(1, sizeof *r);
    r->engine = e;
    r->random = seed;
    r->vocab = tokenizer_vocab(info->tokenizer);
    r->clients = decode ? slot->m : 1;
    lengths(r, slot, decode, slot->context > 0 ? slot->context : context);
    if (r->tokens > info->max_context - r->prompt)
        r->tokens = info->max_context - r->prompt;
    if (r->tokens < 1) {
        err_set(err, "%s: the context ends at %d tokens", slot->name, info->max_context);
        free(r);
        return NULL;
    }
    pthread_mutex_init(&r->lock, NULL);
    clock_cond_init(&r->wake);
    for (int i = 0; i < r->clients; i++)
        r->client[i].replay = r;
    return r;
}

int replay_run(struct replay *r, struct err *err)
{
    if (!r->running && pthread_create(&r->thread, NULL, replay_thread, r) != 0)
        return err_set(err, "no thread for replayed steps");
    r->running = true;
    return 0;
}

/* The thread ends; no request is left behind it. */
static void finish(struct replay *r)
{
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_broadcast(&r->wake);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    for (int i = 0; i < r->clients; i++)
        engine_cancel(r->engine, r->client[i].id);
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < r->clients; i++)
        while (r->client[i].running)
            pthread_cond_wait(&r->wake, &r->lock);
    pthread_mutex_unlock(&r->lock);
}

void replay_stop(struct replay *r)
{
    if (!r)
        return;
    if (r->running)
        finish(r);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->wake);
    free(r);
}
