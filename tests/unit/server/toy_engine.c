/* SPDX-License-Identifier: Apache-2.0 */
/* toy_engine.c - an engine that echoes. */
#include "toy_engine.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/metrics.h"
#include "engine/engine.h"
#include "engine/sequence.h"

struct toy toy;

void toy_reset(void)
{
    toy.step_us = 0;
    toy.loading = toy.lost = false;
    toy.hold = false;
    toy.fail_at = toy.pause_at = -1;
    toy.batch = 8;
    toy.queue = 8;
    toy.retry_s = 1;
    toy.submitted = toy.cancelled = toy.ended = 0;
    toy.stalled = 0;
}

struct engine {
    pthread_t thread;
    pthread_mutex_t lock;
    struct sequence *first; /* in order of arrival, under lock */
    uint64_t next_id;
    bool stop;
    _Atomic int active;
    struct engine_info info;
    struct tokenizer *tokenizer;
};

/* ---- the vocabulary: every byte a token ------------------------------------------------------ */

/* GPT-2's map from bytes to printable characters. */
static int put_byte(unsigned char b, char *out)
{
    bool plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    int shifted = 0;
    for (int i = 0; i < b; i++)
        shifted += !((i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174);
    int c = plain ? b : 256 + shifted;
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    out[0] = (char)(0xc0 | c >> 6);
    out[1] = (char)(0x80 | (c & 0x3f));
    return 2;
}

static struct tokenizer *byte_tokenizer(struct err *err)
{
    static char bytes[256][2];
    static const char *text[TOY_VOCAB] = {
        [TOY_EOS] = "<|endoftext|>", [TOY_IM_START] = "<|im_start|>", [TOY_IM_END] = "<|im_end|>"};
    static int32_t length[TOY_VOCAB];
    static uint8_t kind[TOY_VOCAB];
    for (int i = 0; i < TOY_VOCAB; i++) {
        if (i < 256) {
            text[i] = bytes[i];
            length[i] = put_byte((unsigned char)i, bytes[i]);
        } else {
            length[i] = (int32_t)strlen(text[i]);
        }
        kind[i] = i < 256 ? TOKEN_NORMAL : TOKEN_CONTROL;
    }
    struct vocab_source src = {.tokens = TOY_VOCAB,
                               .text = text,
                               .length = length,
                               .kind = kind,
                               .pre = "gpt-2",
                               .bos = -1,
                               .eos = TOY_EOS};
    return tokenizer_build(&src, err);
}

/* ---- the thread ---------------------------------------------------------------------------- */

static void finish(struct engine *e, struct sequence **link, enum finish why, const char *error)
{
    struct sequence *s = *link;
    *link = s->newer;
    e->active--;
    toy.ended++;
    toy.cancelled += why == FINISH_CANCELLED;
    sequence_end(s, why, error);
    sequence_free(s);
}

static void fill_logprobs(const struct sequence *s, struct sampled *out)
{
    out->logprob = -0.5f;
    out->tops = s->sampling.top_logprobs > 0 ? s->sampling.top_logprobs : 0;
    for (int i = 0; i < out->tops; i++) {
        out->top_id[i] = (out->token + i) % TOY_VOCAB;
        out->top_logprob[i] = -0.5f - (float)i;
    }
}

/* One token of one sequence; true if that was its end. */
static bool advance(struct sequence *s)
{
    struct sampled out = {0};
    if (s->prompt_logprobs && s->scored < s->prompt_n)
        for (int i = 0; i < s->prompt_n; i++) {
            out.token = s->tokens[i];
            fill_logprobs(s, &out);
            sequence_scored(s, i, &out);
        }
    if (s->max_tokens == 0)
        return true;
    out.token = s->tokens[sequence_output(s) % s->prompt_n];
    fill_logprobs(s, &out);
    sequence_token(s, &out);
    return s->finish != FINISH_NONE;
}

static void step(struct engine *e)
{
    int running = 0;
    struct sequence **link = &e->first;
    while (*link && running++ < toy.batch) {
        struct sequence *s = *link;
        if (toy.fail_at >= 0 && sequence_output(s) >= toy.fail_at)
            finish(e, link, FINISH_ERROR, "the toy was told to fail");
        else if (toy.pause_at >= 0 && sequence_output(s) >= toy.pause_at)
            link = &s->newer;
        else if (advance(s))
            finish(e, link, FINISH_LENGTH, NULL);
        else
            link = &s->newer;
    }
}

static void *work(void *arg)
{
    struct engine *e = arg;
    for (;;) {
        pthread_mutex_lock(&e->lock);
        bool stop = e->stop, busy = e->first != NULL;
        while (stop && e->first)
            finish(e, &e->first, FINISH_CANCELLED, NULL);
        if (!stop && !toy.hold)
            step(e);
        pthread_mutex_unlock(&e->lock);
        if (stop)
            return NULL;
        usleep(busy && !toy.hold ? (useconds_t)toy.step_us : 500);
    }
}

/* ---- engine.h ------------------------------------------------------------------------------ */

struct engine *engine_start(const struct config *c, struct err *err)
{
    struct engine *e = xcalloc(1, sizeof(*e));
    e->tokenizer = byte_tokenizer(err);
    if (!e->tokenizer) {
        free(e);
        return NULL;
    }
    e->next_id = 1;
    e->info = (struct engine_info){
        .model_name = "toy",
        .description = "echo",
        .model_hash = "0",
        .backend = "toy",
        .device = "none",
        .tokenizer = e->tokenizer,
        .max_context = TOY_CONTEXT,
        .max_batch = (int32_t)c->engine_max_batch,
        .created = 1,
        .chat_template =
            "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' "
            "+ message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"};
    pthread_mutex_init(&e->lock, NULL);
    pthread_create(&e->thread, NULL, work, e);
    return e;
}

void engine_stop(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
    pthread_mutex_destroy(&e->lock);
    tokenizer_free(e->tokenizer);
    free(e);
}

enum engine_state engine_state(const struct engine *e, double *progress, char *message, size_t n)
{
    (void)e;
    if (progress)
        *progress = toy.loading ? 0.25 : 1;
    if (message)
        strncpy(message, "toy", n);
    return toy.loading ? ENGINE_LOADING : toy.lost ? ENGINE_LOST : ENGINE_READY;
}

const struct engine_info *engine_info(const struct engine *e)
{
    return &e->info;
}

void engine_fingerprint(const struct engine *e, char out[40])
{
    (void)e;
    strcpy(out, "fp_toy");
}

enum submit_result engine_submit_all(struct engine *e, const struct engine_request *r, int32_t n,
                                     uint64_t *id, struct err *err)
{
    static const int32_t eos = TOY_EOS;
    struct sequence_model m = {e->tokenizer, &eos, 1};
    if (e->active + n > toy.batch + toy.queue) {
        err_set(err, "the queue is full");
        return SUBMIT_FULL;
    }
    pthread_mutex_lock(&e->lock);
    struct sequence **link = &e->first;
    while (*link)
        link = &(*link)->newer;
    for (int32_t i = 0; i < n; i++) {
        *link = sequence_new(&r[i], &m);
        (*link)->id = id[i] = e->next_id++;
        link = &(*link)->newer;
    }
    e->active += n;
    toy.submitted += n;
    pthread_mutex_unlock(&e->lock);
    return SUBMIT_OK;
}

void engine_cancel(struct engine *e, uint64_t id)
{
    pthread_mutex_lock(&e->lock);
    for (struct sequence **link = &e->first; *link; link = &(*link)->newer)
        if ((*link)->id == id) {
            finish(e, link, FINISH_CANCELLED, NULL);
            break;
        }
    pthread_mutex_unlock(&e->lock);
}

enum submit_result engine_room(struct engine *e, uint64_t client,
                               const struct request_limits *limits, struct err *err)
{
    (void)client;
    (void)limits;
    if (e->active < toy.batch + toy.queue)
        return SUBMIT_OK;
    err_set(err, "the queue is full");
    return SUBMIT_FULL;
}

int32_t engine_retry_s(struct engine *e)
{
    (void)e;
    return toy.retry_s;
}

int32_t engine_active(const struct engine *e)
{
    return e->active;
}

double engine_stalled_s(const struct engine *e)
{
    (void)e;
    return toy.stalled;
}

void engine_metrics(const struct engine *e, FILE *out)
{
    metric_head(out, "requests_running", "gauge", "Requests that run.");
    metric_value(out, "requests_running", NULL, e->active);
}

char *engine_json(const struct engine *e)
{
    (void)e;
    return xstrdup("{}");
}

char *engine_history_json(const struct engine *e, int seconds)
{
    (void)e;
    return xasprintf("{\"seconds\":%d}", seconds);
}
