/* SPDX-License-Identifier: Apache-2.0 */
/* params.c - reads and checks the members that both completion routes share.
 *
 * Grouped as people know them: what is refused, lengths, sampling, stops, logprobs, streaming.
 * Ranges are OpenAI's where it has the member and vLLM's where only that has it, so that a client
 * of either finds the limits it expects.
 */
#include "server/params.h"

#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "server/limits.h"

/* ---- what cannot be delivered -------------------------------------------------------------- */

static int unsupported(struct api_error *e, const char *name, const char *why)
{
    return api_error_code(e, 400, "unsupported", name, "`%s` %s", name, why);
}

/* Members of OpenAI's and of vLLM's and SGLang's that change what comes back. */
static int refuse_unsupported(const cJSON *body, bool chat, struct api_error *e)
{
    static const char constrains[] = "would constrain the output, which this server cannot do yet",
                      tools[] = "is not supported: this server gives a model no tools to call",
                      code[] = "is not supported: requests cannot bring code";
    static const struct {
        const char *name, *why;
        bool chat_only;
    } members[] = {
        {"tools", tools, false},
        {"functions", tools, false},
        {"guided_json", constrains, false},
        {"guided_regex", constrains, false},
        {"guided_choice", constrains, false},
        {"guided_grammar", constrains, false},
        {"structured_outputs", constrains, false},
        {"grammar", constrains, false},
        {"json_schema", constrains, false},
        {"regex", constrains, false},
        {"bad_words", constrains, false},
        {"allowed_token_ids", constrains, false},
        {"truncate_prompt_tokens", "would cut the prompt, which this server never does", false},
        {"use_beam_search", "is not supported: tokens are drawn one after the other", false},
        {"prompt_logprobs", "is not supported; /v1/completions has `echo` with `logprobs`", false},
        {"prompt_embeds", "is not supported: a prompt is text or token ids", false},
        {"return_tokens_as_token_ids", "is not supported; `return_token_ids` gives the ids", false},
        {"logits_processors", code, false},
        {"custom_logit_processor", code, false},
        {"lora_path", "is not supported: this server has no adapters", false},
        {"ebnf", constrains, false},
        {"stop_regex", "is not supported; `stop` takes strings", false},
        {"moderation", "is not supported: this server has no model that judges texts", false},
        {"documents", "is not supported: put their text into the messages", true},
        {"echo", "is not supported in chat, only in /v1/completions", true},
    };
    for (size_t i = 0; i < sizeof(members) / sizeof(*members); i++)
        if ((chat || !members[i].chat_only) && json_says_something(body, members[i].name))
            return unsupported(e, members[i].name, members[i].why);
    /* Of this one an empty object says something: search as usual. */
    static const char search[] = "web_search_options";
    if (json_says_something(body, search) || cJSON_IsObject(json_get(body, search)))
        return unsupported(e, search, "is not supported: this server searches nothing");
    return 0;
}

/* Tools to choose from are refused: what then is left to say is that none is called. */
static int refuse_choice(const cJSON *body, const char *name, struct api_error *e)
{
    const cJSON *item = json_get(body, name);
    const char *how = cJSON_IsString(item) ? item->valuestring : "";
    if (!json_says_something(body, name) || strcmp(how, "none") == 0 || strcmp(how, "auto") == 0)
        return 0;
    return unsupported(e, name,
                       "other than \"none\" and \"auto\" is not supported: this server "
                       "gives a model no tools to call");
}

static int refuse_modalities(const cJSON *body, struct api_error *e)
{
    const cJSON *list = json_get(body, "modalities"), *item;
    bool text = !json_says_something(body, "modalities") || cJSON_IsArray(list);
    cJSON_ArrayForEach(item, list)
    {
        text = text && cJSON_IsString(item) && strcmp(item->valuestring, "text") == 0;
    }
    return text ? 0 : unsupported(e, "modalities", "other than [\"text\"] is not supported");
}

static int refuse_format(const cJSON *body, struct api_error *e)
{
    const cJSON *format = json_get(body, "response_format");
    if (!json_says_something(body, "response_format"))
        return 0;
    const cJSON *type = cJSON_IsObject(format) ? json_get(format, "type") : NULL;
    if (!cJSON_IsString(type))
        return api_error_set(e, 400, "response_format", "`response_format.type` must be a string");
    if (strcmp(type->valuestring, "text") != 0)
        return api_error_code(e, 400, "unsupported", "response_format",
                              "`response_format` of type %.40s would constrain the output, which "
                              "this server cannot do yet; only \"text\" is possible",
                              type->valuestring);
    return 0;
}

int params_served(const cJSON *body, const char *served, struct api_error *e)
{
    const char *name = NULL;
    if (json_string(body, "model", &name, e) < 0)
        return -1;
    if (name && strcmp(name, served) != 0)
        return api_error_code(e, 404, "model_not_found", "model",
                              "the model `%.200s` does not exist; this server has `%s`", name,
                              served);
    return 0;
}

/* ---- lengths ------------------------------------------------------------------------------- */

static int read_counts(struct params *p, const cJSON *body, struct api_error *e)
{
    int64_t n = 1, best_of;
    p->max_tokens = -1;
    if (json_int(body, "n", 1, CHOICES_MAX, &n, e) < 0)
        return -1;
    p->n = (int32_t)n;
    static const char *const names[] = {"max_tokens", "max_completion_tokens"};
    p->max_tokens_name = names[0];
    for (int i = 0; i < 2; i++) {
        int given = json_int(body, names[i], p->chat ? 1 : 0, INT32_MAX, &p->max_tokens, e);
        if (given < 0)
            return -1;
        if (given)
            p->max_tokens_name = names[i];
    }
    if (json_int(body, "min_tokens", 0, INT32_MAX, &p->min_tokens, e) < 0)
        return -1;
    int64_t most = p->max_tokens < 0 && !p->chat ? DEFAULT_MAX_TOKENS : p->max_tokens;
    if (most >= 0 && p->min_tokens > most)
        return api_error_set(e, 400, "min_tokens",
                             p->max_tokens < 0
                                 ? "`min_tokens` is %lld, more than %lld, the default of `%s`"
                                 : "`min_tokens` is %lld, more than the %lld of `%s`",
                             (long long)p->min_tokens, (long long)most, p->max_tokens_name);
    int given = json_says_something(body, "best_of")
                    ? json_int(body, "best_of", 1, CHOICES_MAX, &best_of, e)
                    : 0;
    if (given < 0)
        return -1;
    if (given && best_of != n)
        return api_error_code(e, 400, "unsupported", "best_of",
                              "`best_of` other than `n` is not supported");
    if (!p->chat && json_says_something(body, "suffix"))
        return api_error_code(e, 400, "unsupported", "suffix", "`suffix` is not supported");
    return 0;
}

/* ---- sampling ------------------------------------------------------------------------------ */

/* The entry of a token that was named before ("7" and "07"), else a new one. */
static struct logit_bias *bias_of(struct params *p, int32_t id)
{
    for (int32_t i = 0; i < p->sampling.biases; i++)
        if (p->bias[i].id == id)
            return &p->bias[i];
    return &p->bias[p->sampling.biases++];
}

static int read_bias(struct params *p, const cJSON *body, int32_t vocab, struct api_error *e)
{
    const cJSON *bias = json_get(body, "logit_bias"), *item;
    if (!bias)
        return 0;
    if (!cJSON_IsObject(bias))
        return api_error_set(e, 400, "logit_bias", "`logit_bias` must map token ids to numbers");
    int count = cJSON_GetArraySize(bias);
    if (count > BIAS_MAX)
        return api_error_set(e, 400, "logit_bias",
                             "`logit_bias` has %d entries, at most %d are "
                             "possible",
                             count, BIAS_MAX);
    p->bias = xcalloc((size_t)count + 1, sizeof(*p->bias));
    cJSON_ArrayForEach(item, bias)
    {
        char *end;
        long id = strtol(item->string, &end, 10);
        if (*end || end == item->string || id < 0 || id >= vocab)
            return api_error_set(e, 400, "logit_bias",
                                 "`logit_bias`: \"%.40s\" is not a token id from 0 to %d",
                                 item->string, vocab - 1);
        if (!cJSON_IsNumber(item) || !(item->valuedouble >= -100 && item->valuedouble <= 100))
            return api_error_set(e, 400, "logit_bias",
                                 "`logit_bias` of token %ld must be a number from -100 to 100", id);
        *bias_of(p, (int32_t)id) = (struct logit_bias){(int32_t)id, (float)item->valuedouble};
    }
    p->sampling.bias = p->bias;
    return 0;
}

static int read_float(const cJSON *body, const char *name, double lo, double hi, float *out,
                      struct api_error *e)
{
    double v = *out;
    if (json_number(body, name, lo, hi, &v, e) < 0)
        return -1;
    *out = (float)v;
    return 0;
}

#define READ(name, value, least, most)                         \
    s->name = value;                                           \
    if (read_float(body, #name, least, most, &s->name, e) < 0) \
        return -1;

static int read_sampling(struct params *p, const cJSON *body, int32_t vocab, struct api_error *e)
{
    struct sampling *s = &p->sampling;
    int64_t top_k = 0, seed = 0;
    *s = (struct sampling){.top_logprobs = -1};
    SAMPLING_NUMBERS(READ);
    if (json_int(body, "top_k", -1, INT32_MAX, &top_k, e) < 0)
        return -1;
    if (s->top_p < 1e-6f)
        s->top_p = 1e-6f; /* OpenAI allows 0: the most likely token alone */
    s->top_k = top_k < 0 ? 0 : (int32_t)top_k;
    int given = json_int(body, "seed", INT64_MIN, INT64_MAX, &seed, e);
    if (given < 0)
        return -1;
    p->seeded = given;
    s->seed = (uint64_t)seed;
    return read_bias(p, body, vocab, e);
}

/* ---- stops --------------------------------------------------------------------------------- */

static int add_stop(struct params *p, const cJSON *item, struct api_error *e)
{
    if (!cJSON_IsString(item))
        return api_error_set(e, 400, "stop", "`stop` must be a string or a list of strings");
    size_t n = strlen(item->valuestring);
    if (n == 0 || n > STOP_BYTES_MAX)
        return api_error_set(e, 400, "stop", "a stop string has between 1 and %d bytes, not %zu",
                             STOP_BYTES_MAX, n);
    if (strstr(item->valuestring, "\xc0\x80"))
        return api_error_set(e, 400, "stop", "a stop string contains a NUL character");
    p->stop[p->stops++] = xstrdup(item->valuestring);
    return 0;
}

static int read_stops(struct params *p, const cJSON *body, int32_t vocab, struct api_error *e)
{
    const cJSON *stop = json_get(body, "stop"), *item;
    if (stop) {
        int count = cJSON_IsArray(stop) ? cJSON_GetArraySize(stop) : 1;
        if (count > STOPS_MAX)
            return api_error_set(e, 400, "stop", "`stop` has %d strings, at most %d are possible",
                                 count, STOPS_MAX);
        p->stop = xcalloc((size_t)count + 1, sizeof(*p->stop));
        if (!cJSON_IsArray(stop) && add_stop(p, stop, e))
            return -1;
        if (cJSON_IsArray(stop))
            cJSON_ArrayForEach(item, stop)
            {
                if (add_stop(p, item, e))
                    return -1;
            }
    }
    const cJSON *ids = json_get(body, "stop_token_ids");
    if (!ids)
        return 0;
    int64_t n = params_ids(ids, vocab, "stop_token_ids", &p->stop_token, e);
    if (n > STOP_TOKENS_MAX)
        return api_error_set(e, 400, "stop_token_ids",
                             "`stop_token_ids` has %lld ids, at most %d are possible", (long long)n,
                             STOP_TOKENS_MAX);
    p->stop_tokens = n < 0 ? 0 : (int32_t)n;
    return n < 0 ? -1 : 0;
}

/* ---- logprobs and the shape of the answer -------------------------------------------------- */

static int read_logprobs(struct params *p, const cJSON *body, struct api_error *e)
{
    int64_t top = -1;
    if (!p->chat) {
        if (json_int(body, "logprobs", 0, LOGPROBS_MAX, &top, e) < 0)
            return -1;
        p->logprobs = top >= 0;
    } else {
        if (json_bool(body, "logprobs", &p->logprobs, e) < 0 ||
            json_int(body, "top_logprobs", 0, LOGPROBS_MAX, &top, e) < 0)
            return -1;
        if (top > 0 && !p->logprobs)
            return api_error_set(e, 400, "top_logprobs", "`top_logprobs` needs `logprobs`: true");
        top = p->logprobs ? (top < 0 ? 0 : top) : -1;
    }
    p->sampling.top_logprobs = (int32_t)top;
    return 0;
}

static int read_stream(struct params *p, const cJSON *body, struct api_error *e)
{
    if (json_bool(body, "stream", &p->stream, e) < 0)
        return -1;
    const cJSON *options = json_get(body, "stream_options");
    if (!options)
        return 0;
    if (!cJSON_IsObject(options))
        return api_error_set(e, 400, "stream_options", "`stream_options` must be an object");
    if (!p->stream)
        return api_error_set(e, 400, "stream_options", "`stream_options` needs `stream`: true");
    return json_bool(options, "include_usage", &p->include_usage, e) < 0 ? -1 : 0;
}

static int read_flags(struct params *p, const cJSON *body, struct api_error *e)
{
    bool skip_special = true;
    if (json_bool(body, "ignore_eos", &p->ignore_eos, e) < 0 ||
        json_bool(body, "include_stop_str_in_output", &p->include_stop, e) < 0 ||
        json_bool(body, "skip_special_tokens", &skip_special, e) < 0 ||
        json_bool(body, "return_token_ids", &p->return_token_ids, e) < 0)
        return -1;
    p->keep_special = !skip_special;
    return p->chat || json_bool(body, "echo", &p->echo, e) >= 0 ? 0 : -1;
}

/* ---- speculation --------------------------------------------------------------------------- */

static int add_prediction(struct buf *text, const cJSON *part, struct api_error *e)
{
    const cJSON *string = cJSON_IsObject(part) ? json_get(part, "text") : part;
    const cJSON *type = cJSON_IsObject(part) ? json_get(part, "type") : NULL;
    if (type && (!cJSON_IsString(type) || strcmp(type->valuestring, "text") != 0))
        return api_error_set(e, 400, "prediction",
                             "`prediction.content`: only parts of type \"text\" are possible");
    if (cJSON_IsString(string) && strstr(string->valuestring, "\xc0\x80"))
        return api_error_set(e, 400, "prediction", "`prediction` contains a NUL character");
    if (!cJSON_IsString(string))
        return api_error_set(e, 400, "prediction",
                             "`prediction.content` must be a string or a list of text parts");
    buf_str(text, string->valuestring);
    return 0;
}

/* OpenAI's predicted output: guesses come from it, the answer is what it would be without. */
static int read_prediction(struct params *p, const cJSON *body, struct api_error *e)
{
    const cJSON *prediction = json_get(body, "prediction"), *part;
    if (!prediction)
        return 0;
    const cJSON *type = cJSON_IsObject(prediction) ? json_get(prediction, "type") : NULL;
    const cJSON *content = type ? json_get(prediction, "content") : NULL;
    if (!cJSON_IsString(type) || strcmp(type->valuestring, "content") != 0 || !content)
        return api_error_set(e, 400, "prediction",
                             "`prediction` must be an object with `type` \"content\" and the "
                             "text in `content`");
    struct buf text = {0};
    int failed = 0;
    if (!cJSON_IsArray(content))
        failed = add_prediction(&text, content, e);
    else
        cJSON_ArrayForEach(part, content)
        {
            failed = failed ? failed : add_prediction(&text, part, e);
        }
    p->predicted_text = buf_take(&text, NULL);
    p->speculates = true;
    return failed;
}

/* How to guess: true or false, or by name. *off: by nothing, and the request says so. */
static int read_speculate(struct params *p, const cJSON *body, const struct params_model *m,
                          bool *off, struct api_error *e)
{
    const cJSON *item = json_get(body, "speculate");
    const char *how = cJSON_IsString(item) ? item->valuestring : cJSON_IsFalse(item) ? "off" : "";
    *off = strcmp(how, "off") == 0;
    bool ngram = strcmp(how, "ngram") == 0, draft = strcmp(how, "draft") == 0;
    if (!item)
        return 0;
    if (!cJSON_IsBool(item) && !*off && !ngram && !draft)
        return api_error_set(e, 400, "speculate",
                             "`speculate` must be true, false, \"off\", \"ngram\" or \"draft\"");
    if (draft && !m->drafts)
        return api_error_set(e, 400, "speculate",
                             "`speculate`: this server has no draft model (engine.speculate)");
    p->speculates = !*off;
    p->undrafted = ngram;
    return 0;
}

static int read_speculation(struct params *p, const cJSON *body, const struct params_model *m,
                            struct api_error *e)
{
    bool off;
    if (read_speculate(p, body, m, &off, e) || read_prediction(p, body, e) ||
        json_bool(body, "bit_equal", &p->bit_equal, e) < 0)
        return -1;
    if (off && p->predicted_text)
        return api_error_set(e, 400, "speculate", "`prediction` needs `speculate` not to be false");
    return 0;
}

int params_read(struct params *p, const cJSON *body, bool chat, const struct params_model *m,
                struct api_error *e)
{
    *p = (struct params){.chat = chat, .speculates = m->speculates};
    const char *user = NULL; /* which nothing here asks for */
    if (params_served(body, m->name, e) || json_string(body, "user", &user, e) < 0 ||
        refuse_unsupported(body, chat, e) || refuse_format(body, e))
        return -1;
    if (chat && (refuse_choice(body, "tool_choice", e) || refuse_choice(body, "function_call", e) ||
                 refuse_modalities(body, e)))
        return -1;
    if (read_counts(p, body, e) || read_sampling(p, body, m->vocab, e) ||
        read_stops(p, body, m->vocab, e) || read_logprobs(p, body, e) || read_stream(p, body, e) ||
        read_flags(p, body, e) || read_speculation(p, body, m, e))
        return -1;
    return 0;
}

void params_free(struct params *p)
{
    for (int32_t i = 0; i < p->stops; i++)
        free(p->stop[i]);
    free(p->stop);
    free(p->stop_token);
    free(p->bias);
    free(p->predicted_text);
    free(p->predicted);
    *p = (struct params){0};
}

int64_t params_ids(const cJSON *item, int32_t vocab, const char *param, int32_t **ids,
                   struct api_error *e)
{
    const cJSON *id;
    int64_t n = 0, v;
    if (!cJSON_IsArray(item))
        return api_error_set(e, 400, param, "`%s` must be a list of token ids", param);
    *ids = xcalloc((size_t)cJSON_GetArraySize(item) + 1, sizeof(**ids));
    cJSON_ArrayForEach(id, item)
    {
        if (!json_whole(id, 0, vocab - 1, &v)) {
            free(*ids);
            *ids = NULL;
            return api_error_set(e, 400, param, "`%s`: element %lld is not a token id from 0 to %d",
                                 param, (long long)n, vocab - 1);
        }
        (*ids)[n++] = (int32_t)v;
    }
    return n;
}
