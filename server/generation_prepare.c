/* SPDX-License-Identifier: Apache-2.0 */
/* generation_prepare.c - a request's body becomes prompts: parsed, checked, rendered, tokenized.
 *
 * On a lane's thread, or for small bodies on the loop: touches only the generation and what never
 * changes. Between prompts, and within long ones, it looks whether the client has left.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/generation.h"
#include "server/limits.h"
#include "server/server.h"

int generation_prompt(struct generation *g, const char *text, size_t n, bool special,
                      const char *param, struct api_error *e)
{
    struct prompt *p = &g->prompt[g->prompts];
    struct err err;
    if (generation_cancelled(g))
        return api_error_set(e, 503, NULL, "the client left");
    struct encode_control control = {.cancel = &g->work.cancelled};
    p->n =
        tokenizer_encode_cancellable(g->info->tokenizer, text, n, special, &control, &p->ids, &err);
    if (control.cancelled)
        return api_error_set(e, 503, NULL, "the client left");
    if (p->n < 0)
        return api_error_set(e, 400, param, "`%s` could not be tokenized: %s", param, err.msg);
    if (g->params.echo) {
        p->text = xmalloc(n + 1);
        memcpy(p->text, text, n);
        p->text[n] = '\0';
        p->text_n = n;
    }
    g->prompts++;
    return 0;
}

/* Begins as OpenAI's message does: by these words, and not by `code`, litellm and others know what
 * a shorter prompt or another model may mend. */
__attribute__((format(printf, 4, 5))) static int too_long(struct api_error *e, int64_t max,
                                                          const char *param, const char *fmt, ...)
{
    char why[160];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof(why), fmt, args);
    va_end(args);
    return api_error_code(e, 400, "context_length_exceeded", param,
                          "This model's maximum context length is %lld tokens, but %s",
                          (long long)max, why);
}

/* Every prompt must fit together with what is to be generated. */
static int check_lengths(struct generation *g, struct api_error *e)
{
    const char *param = g->params.chat ? "messages" : "prompt";
    int64_t max = g->info->max_context;
    for (int32_t i = 0; i < g->prompts; i++) {
        int64_t n = g->prompt[i].n;
        char which[32] = "the prompt"; /* of a list: which of them */
        if (g->prompts > 1)
            snprintf(which, sizeof(which), "`prompt[%d]`", i);
        if (n == 0 && g->prompts > 1)
            return api_error_set(e, 400, param, "%s has no tokens", which);
        if (n == 0)
            return api_error_set(e, 400, param, "`%s` has no tokens", param);
        if (n == max && g->params.max_tokens != 0)
            return too_long(e, max, param,
                            "%s has as many tokens, so that no room is left for output", which);
        if (n > max)
            return too_long(e, max, param, "%s has %lld tokens", which, (long long)n);
        if (g->params.max_tokens > max - n)
            return too_long(e, max, g->params.max_tokens_name,
                            "%s has %lld tokens and %lld more were asked for (`%s`)", which,
                            (long long)n, (long long)g->params.max_tokens,
                            g->params.max_tokens_name);
        if (g->params.min_tokens > max - n)
            return api_error_set(e, 400, "min_tokens",
                                 "`min_tokens` is %lld, but only %lld tokens fit after %s",
                                 (long long)g->params.min_tokens, (long long)(max - n), which);
    }
    return 0;
}

int generation_above_limit(struct api_error *e, uint64_t max)
{
    return api_error_code(e, 400, "answer_too_large", NULL,
                          "the answer is larger than %llu bytes (server.max_answer): ask for fewer "
                          "choices, tokens or log-probabilities, or for a stream",
                          (unsigned long long)max);
}

static int check_choices(struct generation *g, struct api_error *e)
{
    const struct config *c = g->srv->config;
    int64_t choices = (int64_t)g->prompts * g->params.n;
    int64_t most = g->info->max_batch + c->server_max_queue; /* refusal_choices(): its client's */
    if (most > CHOICES_MAX)
        most = CHOICES_MAX;
    uint64_t echoed = 0, max = (uint64_t)c->server_max_answer;
    for (int32_t i = 0; i < g->prompts; i++)
        echoed += g->prompt[i].text_n * (uint64_t)g->params.n;
    if (echoed > max)
        return generation_above_limit(e, max);
    if (choices > most)
        return api_error_set(e, 400, g->params.n > 1 ? "n" : "prompt",
                             "%d prompts x %d choices are %lld generations; at most %lld can be "
                             "asked for at once",
                             g->prompts, g->params.n, (long long)choices, (long long)most);
    return 0;
}

/* The tokens of the answer that the client expects, no more of them than can be generated. */
static int predict(struct generation *g, struct api_error *e)
{
    struct params *p = &g->params;
    struct encode_control control = {.cancel = &g->work.cancelled};
    struct err err;
    if (!p->predicted_text)
        return 0;
    int64_t n = tokenizer_encode_cancellable(g->info->tokenizer, p->predicted_text,
                                             strlen(p->predicted_text), false, &control,
                                             &p->predicted, &err);
    if (control.cancelled)
        return api_error_set(e, 503, NULL, "the client left");
    if (n < 0)
        return api_error_set(e, 400, "prediction", "`prediction` could not be tokenized: %s",
                             err.msg);
    /* The request may wait for long: neither the text nor what is too long is kept meanwhile. */
    p->predicted_n = (int32_t)(n < g->info->max_context ? n : g->info->max_context);
    p->predicted = xrealloc(p->predicted, (size_t)p->predicted_n * sizeof *p->predicted + 1);
    free(p->predicted_text);
    p->predicted_text = NULL;
    return 0;
}

void generation_prepare(struct generation *g)
{
    struct api_error *e = &g->error;
    const char *speculate = g->srv->config->engine_speculate;
    struct params_model m = {g->info->model_name, tokenizer_vocab(g->info->tokenizer),
                             speculate && strcmp(speculate, "off") != 0,
                             speculate && strncmp(speculate, "draft:", 6) == 0};
    cJSON *body = json_parse(g->body.p, g->body.n, e);
    if (!body)
        return;
    bool chat = g->params.chat;
    if (params_read(&g->params, body, chat, &m, e) == 0 &&
        (chat ? chat_prompts : completions_prompts)(g, body, e) == 0 && check_choices(g, e) == 0 &&
        predict(g, e) == 0)
        check_lengths(g, e);
    cJSON_Delete(body);
    buf_free(&g->body);
}
