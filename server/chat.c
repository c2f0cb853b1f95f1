/* SPDX-License-Identifier: Apache-2.0 */
/* chat.c - what a chat template is given, what it may take, and how its end is read.
 *
 * The variables are those that transformers (5.x) gives: a message has only the
 * members that are there, reasoning_content comes as `thinking` too, tools and documents are None.
 * continue_final_message is done as there: the last content is marked, and the text cut at the
 * mark.
 */
#include "server/chat.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "server/jinja/text.h"

/* What a rendering may take: some for itself, and some for each byte and message given. The text
 * is gone through a few times by the heaviest of published templates (docs/models.md). */
enum {
    STEPS_BASE = 4 << 20,
    STEPS_PER_MESSAGE = 4096,
    MEMORY_BASE = 16 << 20,
    MEMORY_PER_MESSAGE = 64 << 10,
    MEMORY_PER_BYTE = 32,
    OUTPUT_BASE = 1 << 20,
    OUTPUT_PER_MESSAGE = 4096,
    OUTPUT_PER_BYTE = 8,
};

static const char mark[] = "CONTINUE_FINAL_MESSAGE_TAG ";

struct chat_template {
    struct jinja *program;
    bool developer; /* it mentions this role */
    bool content;   /* it mentions the content of messages */
    atomic_bool slow;
};

struct chat_template *chat_parse(const char *text, struct err *err)
{
    if (!text) {
        err_set(err, "the model has no chat template");
        return NULL;
    }
    struct jinja *program = jinja_parse(text, strnlen(text, JINJA_TEMPLATE_MAX + 1), err);
    if (!program) {
        err_prefix(err, "the model's chat template");
        return NULL;
    }
    struct chat_template *t = xcalloc(1, sizeof *t);
    t->program = program;
    t->developer = jinja_mentions(program, "developer");
    t->content = jinja_mentions(program, "content");
    return t;
}

void chat_free(struct chat_template *t)
{
    if (!t)
        return;
    jinja_free(t->program);
    free(t);
}

bool chat_is_slow(const struct chat_template *t)
{
    return t && atomic_load_explicit(&t->slow, memory_order_relaxed);
}

/* ---- what it is given ---------------------------------------------------------------------- */

static void put_text(struct jinja_run *r, struct jinja_value dict, const char *key, const char *s)
{
    if (s)
        jinja_dict_put(r, dict, key, jinja_text(s));
}

static struct jinja_value message_value(const struct chat_template *t, struct jinja_run *r,
                                        const struct chat_message *m, const char *content)
{
    struct jinja_value v = jinja_dict_new(r);
    bool system = strcmp(m->role, "developer") == 0 && !t->developer;
    put_text(r, v, "thinking", m->reasoning);
    put_text(r, v, "role", system ? "system" : m->role);
    put_text(r, v, "content", content ? content : "");
    put_text(r, v, "name", m->name);
    put_text(r, v, "reasoning_content", m->reasoning);
    return v;
}

static void give(const struct chat_template *t, struct jinja_run *r,
                 const struct chat_message *message, size_t messages, const char *last,
                 const struct chat_options *o)
{
    struct jinja_value list = jinja_list_new(r);
    for (size_t i = 0; i < messages; i++) {
        const char *content = last && i + 1 == messages ? last : message[i].content;
        jinja_list_add(r, list, message_value(t, r, &message[i], content));
    }
    if (o->bos)
        jinja_variable(r, "bos_token", jinja_text(o->bos));
    if (o->eos)
        jinja_variable(r, "eos_token", jinja_text(o->eos));
    for (size_t i = 0; i < o->variables; i++)
        jinja_variable(r, o->variable[i].name, o->variable[i].value);
    jinja_variable(r, "messages", list);
    jinja_variable(r, "tools", jinja_none());
    jinja_variable(r, "documents", jinja_none());
    jinja_variable(r, "add_generation_prompt", jinja_bool(o->generate));
}

static size_t length(const char *s)
{
    return s ? strlen(s) : 0;
}

static struct jinja_limits limits_for(const struct chat_message *message, size_t messages,
                                      const struct chat_options *o)
{
    size_t bytes = 0;
    for (size_t i = 0; i < messages; i++)
        bytes +=
            length(message[i].content) + length(message[i].reasoning) + length(message[i].name);
    for (size_t i = 0; i < o->variables; i++)
        if (o->variable[i].value.type == JINJA_STR)
            bytes += o->variable[i].value.u.s.n;
    return (struct jinja_limits){
        .steps = o->steps ? o->steps : STEPS_BASE + messages * STEPS_PER_MESSAGE + bytes,
        .memory = MEMORY_BASE + messages * MEMORY_PER_MESSAGE + bytes * MEMORY_PER_BYTE,
        .output = OUTPUT_BASE + messages * OUTPUT_PER_MESSAGE + bytes * OUTPUT_PER_BYTE,
        .cancel = o->cancel,
        .now = o->now};
}

/* ---- continue_final_message ---------------------------------------------------------------- */

static enum chat_end refuse(char *text, struct err *err, const char *why)
{
    free(text);
    err_set(err, "continue_final_message: %s", why);
    return CHAT_REFUSED;
}

/* Cuts the text behind the last message's content, where the mark is. */
static enum chat_end cut(const char *content, char *text, size_t *n, struct err *err)
{
    struct span all = {text, *n}, m = {mark, sizeof mark - 1};
    struct span body = text_strip((struct span){content, strlen(content)}, NULL, true, true);
    const char *at = text_find_last(all, (struct span){mark, m.n - 1});
    if (!at || !text_find(all, body))
        return refuse(text, err, "the template does not keep the content of the last message");
    all.n = (size_t)(at - text);
    if (*n - all.n < m.n || memcmp(at, mark, m.n) != 0) /* it trims contents: ours too, then */
        all = text_strip(all, NULL, false, true);
    *n = all.n;
    text[all.n] = 0;
    return CHAT_OK;
}

/* ---- all of it ----------------------------------------------------------------------------- */

static enum chat_end refuse_request(const struct chat_template *t,
                                    const struct chat_message *message, size_t messages,
                                    const struct chat_options *o, struct err *err)
{
    if (messages == 0)
        err_set(err, "messages: the list is empty");
    else if (o->generate && o->continue_final)
        err_set(err, "add_generation_prompt and continue_final_message exclude each other");
    else if (o->continue_final && !message[messages - 1].content)
        err_set(err, "continue_final_message: the last message has no content");
    else if (o->continue_final && !t->content)
        err_set(err, "continue_final_message: the template does not use the content of messages");
    else
        return CHAT_OK;
    return CHAT_REFUSED;
}

enum chat_end chat_render(const struct chat_template *t, const struct chat_message *message,
                          size_t messages, const struct chat_options *o, char **text, size_t *n,
                          struct err *err)
{
    if (refuse_request(t, message, messages, o, err) != CHAT_OK)
        return CHAT_REFUSED;
    const char *content = message[messages - 1].content;
    char *marked = o->continue_final ? xasprintf("%s%s", content, mark) : NULL;
    struct jinja_limits limits = limits_for(message, messages, o);
    struct jinja_run *r = jinja_run_new(t->program);
    give(t, r, message, messages, marked, o);
    enum jinja_end end = jinja_render(r, &limits, text, n, err);
    if (jinja_steps(r) > CHAT_STEPS_SHORT)
        atomic_store_explicit((atomic_bool *)&t->slow, true, memory_order_relaxed);
    jinja_run_free(r);
    free(marked);
    if (end == JINJA_CANCELLED)
        return CHAT_CANCELLED;
    if (end == JINJA_FAILED)
        err_prefix(err, "the model's chat template");
    if (end != JINJA_DONE)
        return CHAT_REFUSED;
    return o->continue_final ? cut(content, *text, n, err) : CHAT_OK;
}
