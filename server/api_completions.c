/* SPDX-License-Identifier: Apache-2.0 */
/* api_completions.c - /v1/completions: a prompt is text, token ids, or a list of either. */
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

/* A prompt given as ids. With echo its text is what the ids spell, special tokens included. */
static int ids_prompt(struct generation *g, const cJSON *list, struct api_error *e)
{
    struct prompt *p = &g->prompt[g->prompts];
    const struct tokenizer *t = g->info->tokenizer;
    p->n = params_ids(list, tokenizer_vocab(t), "prompt", &p->ids, e);
    if (p->n < 0)
        return -1;
    if (g->params.echo)
        p->text = tokenizer_decode(t, p->ids, p->n, true, &p->text_n);
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
        return ids_prompt(g, prompt, e);
    if (cJSON_IsString(prompt))
        return text_prompt(g, prompt, special, e);
    if (!list)
        return api_error_set(e, 400, "prompt",
                             "`prompt` must be a string, a list of token ids, or "
                             "a list of either");
    cJSON_ArrayForEach(item, prompt)
    {
        int rc = cJSON_IsString(item)  ? text_prompt(g, item, special, e)
                 : cJSON_IsArray(item) ? ids_prompt(g, item, e)
                                       : api_error_set(e, 400, "prompt",
                                                       "`prompt` lists something that is neither "
                                                       "a string nor a list of token ids");
        if (rc)
            return -1;
    }
    return 0;
}
