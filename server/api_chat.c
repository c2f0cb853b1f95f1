/* SPDX-License-Identifier: Apache-2.0 */
/* api_chat.c - /v1/chat/completions: messages, checked one by one, rendered by the model's
 * template.
 *
 * chat.c knows templates and takes C strings; here is what a client may send: roles, content as a
 * string or as typed parts, null where an assistant said nothing. A message this server could
 * only drop or guess at - an image, a tool call - is refused by name.
 *
 * The texts stay as json.c left them (C0 80 for a NUL character) until they are rendered.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/chat.h"
#include "server/generation.h"
#include "server/limits.h"
#include "server/router.h"
#include "server/server.h"

void api_chat(struct exchange *x)
{
    generation_start(x, true);
}

/* "messages[3].content" */
static const char *name_field(char out[96], int message, const char *field)
{
    snprintf(out, 96, "messages[%d].%s", message, field);
    return out;
}

/* ---- one message --------------------------------------------------------------------------- */

/* A member that must be a string if it is there. */
static int read_string(const cJSON *item, int i, const char *field, const char **out,
                       struct api_error *e)
{
    char where[96];
    const cJSON *value = json_get(item, field);
    if (value && !cJSON_IsString(value))
        return api_error_set(e, 400, name_field(where, i, field), "`%s` must be a string", where);
    *out = value ? value->valuestring : NULL;
    return 0;
}

/* The text of typed parts, joined by newlines into *owned. An assistant's may be a refusal. */
static int read_parts(const cJSON *parts, int i, bool assistant, char **owned, struct api_error *e)
{
    char where[96];
    const cJSON *part;
    struct buf text = {0};
    name_field(where, i, "content");
    cJSON_ArrayForEach(part, parts)
    {
        const cJSON *type = json_get(part, "type");
        bool refusal = assistant && cJSON_IsString(type) && !strcmp(type->valuestring, "refusal");
        const char *kind = refusal ? "refusal" : "text";
        const cJSON *string = json_get(part, kind);
        if (cJSON_IsString(type) && strcmp(type->valuestring, kind) != 0) {
            buf_free(&text);
            return api_error_code(e, 400, "unsupported", where,
                                  "`%s` has a part of type \"%.40s\"; only \"text\" is possible",
                                  where, type->valuestring);
        }
        if (!cJSON_IsString(type) || !cJSON_IsString(string)) {
            buf_free(&text);
            return api_error_set(e, 400, where, "`%s`: a part needs a `type` and a `%s`", where,
                                 kind);
        }
        if (part != parts->child)
            buf_char(&text, '\n');
        buf_str(&text, string->valuestring);
    }
    *owned = buf_take(&text, NULL);
    return 0;
}

/* What an assistant says in the place of content when it refuses: its answer, for the template. */
static int read_refusal(const cJSON *item, int i, struct chat_message *m, struct api_error *e)
{
    char where[96];
    const char *refusal = NULL;
    if (read_string(item, i, "refusal", &refusal, e))
        return -1;
    if (!refusal || !*refusal)
        return 0;
    if (m->content && *m->content)
        return api_error_set(e, 400, name_field(where, i, "refusal"),
                             "`%s`: a message has either `content` or a refusal", where);
    m->content = refusal;
    return 0;
}

static int read_content(const cJSON *item, int i, struct chat_message *m, char **owned,
                        struct api_error *e)
{
    char where[96];
    const cJSON *content = json_get(item, "content");
    bool assistant = strcmp(m->role, "assistant") == 0;
    name_field(where, i, "content");
    if (cJSON_IsString(content)) {
        m->content = content->valuestring;
    } else if (cJSON_IsArray(content)) {
        if (read_parts(content, i, assistant, owned, e))
            return -1;
        m->content = *owned;
    } else if (content) {
        return api_error_set(e, 400, where, "`%s` must be a string or a list of parts", where);
    } else if (!assistant) {
        return api_error_set(e, 400, where, "`%s` is missing", where);
    }
    return assistant ? read_refusal(item, i, m, e) : 0;
}

/* Calls of tools, as they are now and as they were before 2024, and answers that were spoken. */
static int refuse_calls(const cJSON *item, int i, struct api_error *e)
{
    static const struct {
        const char *name, *type;
        cJSON_bool (*is)(const cJSON *item);
    } members[] = {{"tool_calls", "a list", cJSON_IsArray},
                   {"function_call", "an object", cJSON_IsObject},
                   {"audio", "an object", cJSON_IsObject}};
    char where[96];
    for (size_t k = 0; k < sizeof(members) / sizeof(*members); k++) {
        if (!json_says_something(item, members[k].name))
            continue;
        name_field(where, i, members[k].name);
        if (!members[k].is(json_get(item, members[k].name)))
            return api_error_set(e, 400, where, "`%s` must be %s", where, members[k].type);
        return api_error_code(e, 400, "unsupported", where, "`%s` is not supported yet", where);
    }
    return 0;
}

/* What an assistant thought. Servers and clients do not agree on its name: the first that is there
 * counts, as in transformers. */
static int read_reasoning(const cJSON *item, int i, struct chat_message *m, struct api_error *e)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    for (size_t k = 0; k < sizeof(names) / sizeof(*names) && !m->reasoning; k++)
        if (read_string(item, i, names[k], &m->reasoning, e))
            return -1;
    return 0;
}

static int read_message(const cJSON *item, int i, struct chat_message *m, char **owned,
                        struct api_error *e)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    char where[96];
    snprintf(where, sizeof(where), "messages[%d]", i);
    if (!cJSON_IsObject(item))
        return api_error_set(e, 400, where, "`%s` must be an object", where);
    if (read_string(item, i, "role", &m->role, e) || read_string(item, i, "name", &m->name, e) ||
        read_reasoning(item, i, m, e))
        return -1;
    bool known = false;
    for (size_t r = 0; m->role && r < sizeof(roles) / sizeof(*roles); r++)
        known = known || strcmp(m->role, roles[r]) == 0;
    name_field(where, i, "role");
    if (!known)
        return api_error_set(
            e, 400, where, "`%s` must be system, developer, user, assistant or tool%s%.40s%s",
            where, m->role ? ", not \"" : "", m->role ? m->role : "", m->role ? "\"" : "");
    if (refuse_calls(item, i, e))
        return -1;
    return read_content(item, i, m, owned, e);
}

/* ---- options ------------------------------------------------------------------------------- */

/* What transformers gives every template under a name of its own. */
static bool is_reserved(const char *name)
{
    static const char *const names[] = {
        "messages",     "tools", "documents", "add_generation_prompt", "continue_final_message",
        "chat_template"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

static int read_variable(const cJSON *item, struct chat_variable *v, struct api_error *e)
{
    char where[96];
    int64_t whole;
    snprintf(where, sizeof(where), "chat_template_kwargs.%.64s", item->string);
    v->name = item->string;
    if (is_reserved(item->string))
        return api_error_set(e, 400, where,
                             "`%s`: the template has this variable from the request "
                             "itself",
                             where);
    if (strcmp(item->string, "enable_thinking") == 0 && !cJSON_IsBool(item) && !cJSON_IsNull(item))
        return api_error_set(e, 400, where, "`%s` must be true or false", where);
    if (cJSON_IsBool(item))
        v->value = jinja_bool(cJSON_IsTrue(item));
    else if (cJSON_IsString(item))
        v->value = jinja_text(item->valuestring);
    else if (cJSON_IsNumber(item) && json_whole(item, INT64_MIN, INT64_MAX, &whole))
        v->value = jinja_int(whole);
    else if (cJSON_IsNumber(item))
        v->value = jinja_float(item->valuedouble);
    else if (cJSON_IsNull(item))
        v->value = jinja_none();
    else
        return api_error_set(e, 400, where, "`%s` must be a string, a number, true, false or null",
                             where);
    return 0;
}

/* chat_template_kwargs: the template's own variables, into *out. */
static int read_variables(const cJSON *body, struct chat_variable **out, size_t *n,
                          struct api_error *e)
{
    const cJSON *more = json_get(body, "chat_template_kwargs"), *item;
    if (!more)
        return 0;
    if (!cJSON_IsObject(more))
        return api_error_set(e, 400, "chat_template_kwargs",
                             "`chat_template_kwargs` must be an object");
    int count = cJSON_GetArraySize(more);
    if (count > TEMPLATE_KWARGS_MAX)
        return api_error_set(e, 400, "chat_template_kwargs",
                             "`chat_template_kwargs` has %d members, at most %d are possible",
                             count, TEMPLATE_KWARGS_MAX);
    *out = xcalloc((size_t)count + 1, sizeof(**out));
    cJSON_ArrayForEach(item, more)
    {
        if (read_variable(item, &(*out)[*n], e))
            return -1;
        ++*n;
    }
    return 0;
}

static int read_options(const cJSON *body, struct chat_options *o, struct api_error *e)
{
    o->generate = true;
    int given = json_bool(body, "add_generation_prompt", &o->generate, e);
    if (given < 0 || json_bool(body, "continue_final_message", &o->continue_final, e) < 0)
        return -1;
    if (o->continue_final && given && o->generate)
        return api_error_set(e, 400, "continue_final_message",
                             "`continue_final_message` and `add_generation_prompt` exclude each "
                             "other");
    if (o->continue_final)
        o->generate = false;
    if (json_says_something(body, "chat_template"))
        return api_error_code(e, 400, "unsupported", "chat_template",
                              "`chat_template`: only the model's own template is used");
    return 0;
}

/* Text of a special token as a C string; NULL if the model has none. Caller frees. */
static char *token_text(const struct tokenizer *t, int32_t id)
{
    size_t n;
    if (id < 0)
        return NULL;
    const char *s = tokenizer_text(t, id, &n);
    return xstrndup(s, n);
}

/* ---- the prompt ---------------------------------------------------------------------------- */

static int render(struct generation *g, const cJSON *body, const struct chat_message *messages,
                  int count, struct api_error *e)
{
    const struct tokenizer *t = g->info->tokenizer;
    char *bos = token_text(t, tokenizer_bos(t)), *eos = token_text(t, tokenizer_eos(t));
    struct chat_options o = {.bos = bos, .eos = eos, .cancel = &g->work.cancelled};
    struct chat_variable *variables = NULL;
    char *text = NULL;
    size_t n;
    struct err err;
    int rc =
        read_options(body, &o, e) || read_variables(body, &variables, &o.variables, e) ? -1 : 0;
    o.variable = variables;
    enum chat_end end = CHAT_OK;
    if (rc == 0)
        end = chat_render(g->srv->chat, messages, (size_t)count, &o, &text, &n, &err);
    if (end == CHAT_CANCELLED)
        rc = api_error_set(e, 503, NULL, "the client left");
    else if (end != CHAT_OK)
        rc = api_error_set(e, 400, "messages", "%s", err.msg);
    if (rc == 0) {
        n = json_restore_nul(text, n);
        g->prompt = xcalloc(1, sizeof(*g->prompt));
        rc = generation_prompt(g, text, n, false, "messages", e);
    }
    free(text);
    free(variables);
    free(bos);
    free(eos);
    return rc;
}

int chat_prompts(struct generation *g, const cJSON *body, struct api_error *e)
{
    const cJSON *list = json_get(body, "messages"), *item;
    if (!g->srv->chat)
        return api_error_code(e, 400, "no_chat_template", "messages",
                              "this model cannot chat: %s; use /v1/completions",
                              g->srv->chat_error);
    if (!cJSON_IsArray(list) || !list->child)
        return api_error_set(e, 400, "messages",
                             "`messages` must be a list of at least one "
                             "message");
    int count = cJSON_GetArraySize(list), i = 0, rc = 0;
    if (count > MESSAGES_MAX)
        return api_error_set(e, 400, "messages",
                             "`messages` has %d messages, at most %d are "
                             "possible",
                             count, MESSAGES_MAX);
    struct chat_message *messages = xcalloc((size_t)count, sizeof(*messages));
    char **owned = xcalloc((size_t)count, sizeof(*owned));
    cJSON_ArrayForEach(item, list)
    {
        rc = read_message(item, i, &messages[i], &owned[i], e);
        if (rc)
            break;
        i++;
    }
    if (rc == 0)
        rc = render(g, body, messages, count, e);
    for (i = 0; i < count; i++)
        free(owned[i]);
    free(owned);
    free(messages);
    return rc;
}
