/* replay.c - see replay.h.
 *
 * Tokens are drawn anew for every request, so no prefix is shared and prompts are really read. A
 * sequence decodes for a while before it is replaced, since each new prompt costs steps that belong
 * to other slots.
 */
#include "tune/replay.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "config/err.h"
#include "config/log.h"
#include "specializer/hash.h"

enum { CLIENTS_MOST = 64, SHORT_PROMPT = 48, DECODE_TOKENS = 256 };

struct client {
    struct replay *replay;
    uint64_t id;
    bool running; /* lock */
};

struct replay {
    struct engine *engine;
    int32_t prompt, tokens, vocab;
    uint64_t random;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop; /* lock */
    struct client client[CLIENTS_MOST];
    int clients;
};

/* Engine thread. */
static void on_event(void *user, const struct engine_event *event)
{
    struct client *c = user;
    if (event->kind != EVENT_END)
        return;
    pthread_mutex_lock(&c->replay->lock);
    c->running = false;
    pthread_cond_broadcast(&c->replay->wake);
    pthread_mutex_unlock(&c->replay->lock);
}

static void submit(struct replay *r, struct client *c)
{
    int32_t *prompt = xcalloc((size_t)r->prompt, sizeof *prompt);
    const struct sampling greedy = {.top_p = 1, .repetition_penalty = 1, .top_logprobs = -1};
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
        for (int i = 0; i < r->clients; i++)
            if (!r->client[i].running) {
                pthread_mutex_unlock(&r->lock);
                submit(r, &r->client[i]);
                pthread_mutex_lock(&r->lock);
            }
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        if (!r->stop)
            pthread_cond_timedwait(&r->wake, &r->lock, &until);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

struct replay *replay_start(struct engine *e, const struct slot *slot, int sequences, uint64_t seed,
                            struct err *err)
{
    const struct engine_info *info = engine_info(e);
    bool decode = slot->m <= sequences && slot->m <= CLIENTS_MOST;
    struct replay *r = xcalloc(1, sizeof *r);
    r->engine = e;
    r->random = seed;
    r->vocab = tokenizer_vocab(info->tokenizer);
    r->clients = decode ? slot->m : 1;
    /* Of an attention slot's contexts: the upper half of the bucket, where decoding stays in it. */
    r->prompt = decode ? SHORT_PROMPT : slot->m;
    if (slot->region == REGION_ATTN && decode)
        r->prompt = slot->context * 5 / 8;
    else if (slot->region == REGION_ATTN && slot->context > slot->m)
        r->prompt = slot->context;
    r->tokens = decode ? DECODE_TOKENS : 1;
    if (slot->region == REGION_ATTN && decode && r->tokens > slot->context - r->prompt)
        r->tokens = slot->context - r->prompt;
    if (r->prompt + r->tokens > info->max_context) {
        err_set(err, "%s: the context ends at %d tokens", slot->name, info->max_context);
        free(r);
        return NULL;
    }
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->wake, NULL);
    for (int i = 0; i < r->clients; i++)
        r->client[i].replay = r;
    if (pthread_create(&r->thread, NULL, replay_thread, r) == 0)
        return r;
    err_set(err, "no thread for replayed steps");
    free(r);
    return NULL;
}

void replay_stop(struct replay *r)
{
    if (!r)
        return;
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
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->wake);
    free(r);
}
