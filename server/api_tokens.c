/* SPDX-License-Identifier: Apache-2.0 */
/* api_tokens.c - /tokenize and /detokenize. Off the loop: a megabyte of text takes a while. */
#include <stdlib.h>

#include "server/job.h"
#include "server/json.h"
#include "server/params.h"
#include "server/router.h"
#include "server/server.h"

static void tokenize(struct job *j, const cJSON *body)
{
    const struct engine_info *info = engine_info(j->srv->engine);
    const char *name = json_get(body, "prompt") ? "prompt" : "content";
    const cJSON *text = json_get(body, name);
    bool special = true;
    if (!cJSON_IsString(text)) {
        api_error_set(&j->error, 400, "prompt", "`prompt` (or `content`) must be a string");
        return;
    }
    if (json_bool(body, "add_special_tokens", &special, &j->error) < 0)
        return;
    size_t n;
    char *bytes = json_bytes(text, &n);
    int32_t *ids = NULL;
    struct err err;
    struct encode_control control = {.cancel = &j->work.cancelled};
    int64_t count =
        tokenizer_encode_cancellable(info->tokenizer, bytes, n, special, &control, &ids, &err);
    free(bytes);
    if (count < 0) {
        api_error_set(&j->error, 400, name, "`%s` could not be tokenized: %s", name, err.msg);
        return;
    }
    buf_str(&j->out, "{\"tokens\":[");
    for (int64_t i = 0; i < count; i++)
        buf_printf(&j->out, "%s%d", i ? "," : "", ids[i]);
    buf_printf(&j->out, "],\"count\":%lld,\"max_model_len\":%d}", (long long)count,
               info->max_context);
    free(ids);
}

static void detokenize(struct job *j, const cJSON *body)
{
    const struct tokenizer *t = engine_info(j->srv->engine)->tokenizer;
    const cJSON *tokens = json_get(body, "tokens");
    int32_t *ids = NULL;
    if (!tokens) {
        api_error_set(&j->error, 400, "tokens", "`tokens` is missing");
        return;
    }
    int64_t n = params_ids(tokens, tokenizer_vocab(t), "tokens", &ids, &j->error);
    if (n < 0)
        return;
    size_t length;
    char *text = tokenizer_decode(t, ids, n, true, &length);
    buf_str(&j->out, "{\"prompt\":");
    json_put_string(&j->out, text, length);
    buf_char(&j->out, '}');
    free(text);
    free(ids);
}

static const char *served(const struct job *j)
{
    return engine_info(j->srv->engine)->model_name;
}

static void run_tokenize(struct job *j)
{
    cJSON *body = json_parse(j->body.p, j->body.n, &j->error);
    if (body && !job_cancelled(j) && !params_served(body, served(j), &j->error))
        tokenize(j, body);
    cJSON_Delete(body);
}

static void run_detokenize(struct job *j)
{
    cJSON *body = json_parse(j->body.p, j->body.n, &j->error);
    if (body && !job_cancelled(j) && !params_served(body, served(j), &j->error))
        detokenize(j, body);
    cJSON_Delete(body);
}

void api_tokenize(struct exchange *x)
{
    job_start_body(job_new(x, run_tokenize));
}

void api_detokenize(struct exchange *x)
{
    job_start_body(job_new(x, run_detokenize));
}
