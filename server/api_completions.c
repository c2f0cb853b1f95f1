/* SPDX-License-Identifier: Apache-2.0 */
/* api_completions.c - /v1/completions: a prompt is text, token ids, or a list of either. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "server/generation.h"
#include "server/limits.h"
#include "server/router.h"

void api_completions(struct exchange *x)
{
    generation_start(x, false);
}

/* What the ids spell, special tokens included. The bytes of a character that the last ids leave
 * unfinished stay out: the engine puts them before the first byte that it generates. */
static void spell(struct prompt *p, const struct tokenizer *t)
{
    struct utf8_stream characters = {0};
    struct buf text = {0};
    bool begun = false;
    for (int64_t i = 0; i < p->n; i++) {
        size_t n;
        const char *bytes = tokenizer_next_bytes(t, p->ids[i], true, &begun, &n);
        buf_reserve(&text, 3 * n + 16);
        text.n += utf8_stream_push(&characters, bytes, n, false, text.p + text.n);
    }
    p->unfinished = characters.n > 0;
    p->text = buf_take(&text, &p->text_n);
}

/* A prompt given as ids; `where` names it in errors. */
static int ids_prompt(struct generation *g, const cJSON *list, const char *where,
                      struct api_error *e)
{
    struct prompt *p = &g->prompt[g->prompts];
    const struct tokenizer *t = g->info->tokenizer;
    p->n = params_ids(list, tokenizer_vocab(t), where, &p->ids, e);
    if (p->n < 0)
        return -1;
    if (g->params.echo)
        spell(p, t);
    g->prompts++;
    return 0;
}

static int text_prompt(struct generation *g, const cJSON *item, bool special, struct api_error *e)
{
    size_t n;
    char *text = json_bytes(item, &n);
    int rc = generation_prompt(g, text, n, special, "prompt", e);
    free(text);
    return rc;
}

int completions_prompts(struct generation *g, const cJSON *body, struct api_error *e)
{
    const cJSON *prompt = json_get(body, "prompt"), *item;
    bool special = true;
    if (!prompt)
        return api_error_set(e, 400, "prompt", "`prompt` is missing");
    if (json_bool(body, "add_special_tokens", &special, e) < 0)
        return -1;
    bool list = cJSON_IsArray(prompt);
    bool ids = list && cJSON_IsNumber(prompt->child);
    if (list && !prompt->child)
        return api_error_set(e, 400, "prompt", "`prompt` is an empty list");
    int count = list && !ids ? cJSON_GetArraySize(prompt) : 1;
    if (count > CHOICES_MAX)
        return api_error_set(e, 400, "prompt", "`prompt` lists %d prompts, at most %d are possible",
                             count, CHOICES_MAX);
    g->prompt = xcalloc((size_t)count, sizeof(*g->prompt));
    if (ids)
        return ids_prompt(g, prompt, "prompt", e);
    if (cJSON_IsString(prompt))
        return text_prompt(g, prompt, special, e);
    if (!list)
        return api_error_set(e, 400, "prompt",
                             "`prompt` must be a string, a list of token ids, or "
                             "a list of either");
    cJSON_ArrayForEach(item, prompt)
    {
        char where[32];
        snprintf(where, sizeof(where), "prompt[%d]", g->prompts);
        int rc = cJSON_IsString(item)  ? text_prompt(g, item, special, e)
                 : cJSON_IsArray(item) ? ids_prompt(g, item, where, e)
                                       : api_error_set(e, 400, "prompt",
                                                       "`prompt` lists something that is neither "
                                                       "a string nor a list of token ids");
        if (rc)
            return -1;
    }
    return 0;
}
