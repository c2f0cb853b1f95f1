/* SPDX-License-Identifier: Apache-2.0 */
/* chat.c - renders a conversation in the form its family of templates has.
 *
 * One function a family, each the Jinja program of the real template written down in C for
 * conversations without tools. The goldens in tests/golden/chat come from transformers running
 * those programs. Two things are the same for all: roles are checked first, and
 * continue_final_message ends the text right behind the last message's content, where transformers
 * puts it: families that trim messages then trim the end of the text too.
 */
#include "server/chat.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/buf.h"
#include "server/chat_family.h"

struct text {
    const char *s;
    size_t n;
};

static struct text text_of(const char *s)
{
    return (struct text){s ? s : "", s ? strlen(s) : 0};
}

static void add_text(struct buf *out, struct text s)
{
    buf_add(out, s.s, s.n);
}

/* ---- Python's strip() ---------------------------------------------------------------------- */

/* Length of the whitespace character (str.isspace) that begins at s, 0 if it is none. */
static size_t space_length(const char *s, size_t n)
{
    static const char *const wide[] = {"\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80",
                                       "\xE2\x80\xA8", "\xE2\x80\xA9", "\xE2\x80\xAF",
                                       "\xE2\x81\x9F", "\xE3\x80\x80"};
    unsigned char c = n ? (unsigned char)s[0] : 'x';
    if (c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F))
        return 1;
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        if (n >= strlen(wide[i]) && memcmp(s, wide[i], strlen(wide[i])) == 0)
            return strlen(wide[i]);
    bool quads = n >= 3 && memcmp(s, "\xE2\x80", 2) == 0 && (unsigned char)s[2] <= 0x8A;
    return quads ? 3 : 0; /* U+2000 to U+200A */
}

static struct text trim_end(struct text s)
{
    for (;;) {
        size_t gone = 0;
        for (size_t k = 1; k <= 3 && k <= s.n && !gone; k++)
            gone = space_length(s.s + s.n - k, k) == k ? k : 0;
        if (!gone)
            return s;
        s.n -= gone;
    }
}

static struct text trim(struct text s)
{
    size_t gone;
    while ((gone = space_length(s.s, s.n))) {
        s.s += gone;
        s.n -= gone;
    }
    return trim_end(s);
}

/* lstrip('\n') and rstrip('\n') */
static struct text trim_newlines(struct text s, bool left, bool right)
{
    for (; left && s.n && *s.s == '\n'; s.n--)
        s.s++;
    while (right && s.n && s.s[s.n - 1] == '\n')
        s.n--;
    return s;
}

/* ---- ChatML, Qwen2.5 and Qwen3 ------------------------------------------------------------- */

struct render {
    const struct chat_template *t;
    const struct chat_message *message;
    size_t messages;
    const struct chat_options *o;
    struct buf out;
};

static const char *role_of(const struct render *r, size_t i)
{
    const char *role = r->message[i].role;
    return strcmp(role, "developer") == 0 ? "system" : role; /* OpenAI's newer word for it */
}

static bool has_role(const struct render *r, size_t i, const char *role)
{
    return i < r->messages && strcmp(role_of(r, i), role) == 0;
}

/* The last message, and it stays open: nothing is written behind its content. */
static bool stays_open(const struct render *r, size_t i)
{
    return r->o->continue_final && i + 1 == r->messages;
}

static void im_message(struct render *r, size_t i)
{
    buf_printf(&r->out, "<|im_start|>%s\n", role_of(r, i));
    add_text(&r->out, text_of(r->message[i].content));
    if (!stays_open(r, i))
        buf_str(&r->out, "<|im_end|>\n");
}

/* Results of tools are one turn of the user, however many there are. */
static void im_tool(struct render *r, size_t i)
{
    if (i == 0 || !has_role(r, i - 1, "tool"))
        buf_str(&r->out, "<|im_start|>user");
    buf_str(&r->out, "\n<tool_response>\n");
    add_text(&r->out, text_of(r->message[i].content));
    if (stays_open(r, i))
        return;
    buf_str(&r->out, "\n</tool_response>");
    if (!has_role(r, i + 1, "tool"))
        buf_str(&r->out, "<|im_end|>\n");
}

static void render_chatml(struct render *r)
{
    if (r->t->bos)
        buf_str(&r->out, r->o->bos ? r->o->bos : "<s>");
    if (r->t->system && !has_role(r, 0, "system"))
        buf_printf(&r->out, "<|im_start|>system\n%s<|im_end|>\n", r->t->system);
    for (size_t i = 0; i < r->messages; i++)
        if (has_role(r, i, "tool"))
            im_tool(r, i);
        else
            im_message(r, i);
    if (r->o->generate)
        buf_str(&r->out, "<|im_start|>assistant\n");
}

/* The last message of the user that is a question and not the results of tools. What the
 * assistant says behind it is its present answer, and keeps its reasoning. */
static size_t last_question(const struct render *r)
{
    static const char head[] = "<tool_response>", tail[] = "</tool_response>";
    for (size_t i = r->messages; i-- > 0;) {
        struct text c = text_of(r->message[i].content);
        bool results = c.n >= sizeof tail - 1 && strncmp(c.s, head, sizeof head - 1) == 0 &&
                       strcmp(c.s + c.n - (sizeof tail - 1), tail) == 0;
        if (has_role(r, i, "user") && !results)
            return i;
    }
    return r->messages - 1;
}

static const char *last_of(struct text s, const char *part)
{
    const char *found = NULL;
    size_t n = strlen(part);
    for (size_t i = 0; i + n <= s.n; i++)
        if (memcmp(s.s + i, part, n) == 0)
            found = s.s + i;
    return found;
}

/* Takes "<think>...</think>" off the content, unless the reasoning came separately. */
static struct text split_reasoning(const struct chat_message *m, struct text *content)
{
    if (m->reasoning)
        return text_of(m->reasoning);
    const char *first = strstr(content->s, "</think>"), *last = last_of(*content, "</think>");
    if (!first)
        return text_of(NULL);
    struct text before = {content->s, (size_t)(first - content->s)};
    before = trim_newlines(before, false, true);
    const char *open = last_of(before, "<think>");
    if (open) {
        before.n -= (size_t)(open + 7 - before.s);
        before.s = open + 7;
    }
    *content = trim_newlines(text_of(last + 8), true, false);
    return trim_newlines(before, true, false);
}

static void qwen3_assistant(struct render *r, size_t i, size_t question)
{
    struct text content = text_of(r->message[i].content);
    struct text reasoning = split_reasoning(&r->message[i], &content);
    buf_str(&r->out, "<|im_start|>assistant\n");
    if (i > question && (i + 1 == r->messages || reasoning.n)) {
        buf_str(&r->out, "<think>\n");
        add_text(&r->out, trim_newlines(reasoning, true, true));
        buf_str(&r->out, "\n</think>\n\n");
        content = trim_newlines(content, true, false);
    }
    add_text(&r->out, content);
    if (!stays_open(r, i))
        buf_str(&r->out, "<|im_end|>\n");
}

static void render_qwen3(struct render *r)
{
    size_t question = last_question(r);
    for (size_t i = 0; i < r->messages; i++)
        if (has_role(r, i, "assistant"))
            qwen3_assistant(r, i, question);
        else if (has_role(r, i, "tool"))
            im_tool(r, i);
        else
            im_message(r, i);
    if (r->o->generate)
        buf_str(&r->out, "<|im_start|>assistant\n");
    if (r->o->generate && r->t->thinking_switch && r->o->no_thinking)
        buf_str(&r->out, "<think>\n\n</think>\n\n");
}

/* ---- Llama 3 ------------------------------------------------------------------------------- */

static void llama3_message(struct render *r, size_t i)
{
    buf_printf(&r->out, "<|start_header_id|>%s<|end_header_id|>\n\n", role_of(r, i));
    add_text(&r->out, trim(text_of(r->message[i].content)));
    if (!stays_open(r, i))
        buf_str(&r->out, "<|eot_id|>");
}

/* Llama 3.1 has a system message whether the conversation has one or not. */
static size_t llama31_system(struct render *r)
{
    bool given = has_role(r, 0, "system");
    char today[32] = "26 Jul 2024";
    time_t now = time(NULL);
    struct tm tm;
    if (r->t->today && localtime_r(&now, &tm))
        strftime(today, sizeof today, "%d %b %Y", &tm);
    buf_printf(&r->out,
               "<|start_header_id|>system<|end_header_id|>\n\n"
               "Cutting Knowledge Date: December 2023\nToday Date: %s\n\n",
               r->t->today && r->o->date ? r->o->date : today);
    if (given)
        add_text(&r->out, trim(text_of(r->message[0].content)));
    if (!(given && stays_open(r, 0)))
        buf_str(&r->out, "<|eot_id|>");
    return given ? 1 : 0;
}

static void render_llama3(struct render *r)
{
    buf_str(&r->out, r->o->bos ? r->o->bos : "<|begin_of_text|>");
    for (size_t i = r->t->family == CHAT_LLAMA31 ? llama31_system(r) : 0; i < r->messages; i++)
        llama3_message(r, i);
    if (r->o->continue_final)
        r->out.n = trim_end((struct text){r->out.p, r->out.n}).n;
    else if (r->o->generate || r->t->always_generate)
        buf_str(&r->out, "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

/* ---- Mistral ------------------------------------------------------------------------------- */

static void render_mistral(struct render *r)
{
    const char *eos = r->o->eos ? r->o->eos : "</s>";
    bool nemo = r->t->family == CHAT_MISTRAL_NEMO;
    size_t first = nemo && has_role(r, 0, "system") ? 1 : 0;
    buf_str(&r->out, r->o->bos ? r->o->bos : "<s>");
    for (size_t i = first; i < r->messages; i++) {
        bool user = has_role(r, i, "user");
        if (user)
            buf_str(&r->out, nemo ? "[INST]" : "[INST] ");
        if (user && first && i + 1 == r->messages) {
            add_text(&r->out, text_of(r->message[0].content));
            buf_str(&r->out, "\n\n");
        }
        add_text(&r->out, text_of(r->message[i].content));
        if (stays_open(r, i))
            return;
        buf_str(&r->out, user ? nemo ? "[/INST]" : " [/INST]" : eos);
        if (!user && !nemo)
            buf_str(&r->out, r->t->after_assistant);
    }
}

/* Refuses messages that do not alternate, as the templates of these models do. */
static int check_turns(const struct render *r, struct err *err)
{
    size_t first = r->t->family == CHAT_MISTRAL_NEMO && has_role(r, 0, "system") ? 1 : 0;
    for (size_t i = first; i < r->messages; i++) {
        const char *expected = (i - first) % 2 ? "assistant" : "user";
        if (!has_role(r, i, expected))
            return err_set(
                err,
                "messages[%zu]: the role must be '%s', not '%s': with this model %sroles "
                "alternate user, assistant, user, ...",
                i, expected, r->message[i].role,
                r->t->family == CHAT_MISTRAL_NEMO ? "one system message may come first, then "
                                                  : "there is no system message and ");
    }
    if (first == r->messages)
        return err_set(err, "messages: a system message alone is no conversation for this model");
    return 0;
}

/* ---- all of them --------------------------------------------------------------------------- */

static int check_roles(const struct render *r, struct err *err)
{
    bool tools = r->t->family == CHAT_QWEN25 || r->t->family == CHAT_QWEN3;
    for (size_t i = 0; i < r->messages; i++) {
        const char *role = r->message[i].role;
        if (role && (has_role(r, i, "system") || has_role(r, i, "user") ||
                     has_role(r, i, "assistant") || (tools && has_role(r, i, "tool"))))
            continue;
        return err_set(err, "messages[%zu]: unknown role '%.40s' (this model's template has %s)", i,
                       role ? role : "",
                       tools ? "system, user, assistant and tool" : "system, user and assistant");
    }
    bool mistral = r->t->family == CHAT_MISTRAL || r->t->family == CHAT_MISTRAL_NEMO;
    return mistral ? check_turns(r, err) : 0;
}

int chat_render(const struct chat_template *t, const struct chat_message *message, size_t messages,
                const struct chat_options *options, char **text, size_t *n, struct err *err)
{
    struct render r = {.t = t, .message = message, .messages = messages, .o = options};
    if (messages == 0)
        return err_set(err, "messages: the list is empty");
    if (options->generate && options->continue_final)
        return err_set(err, "add_generation_prompt and continue_final_message exclude each other");
    if (check_roles(&r, err))
        return -1;
    switch (t->family) {
    case CHAT_CHATML:
    case CHAT_QWEN25:
        render_chatml(&r);
        break;
    case CHAT_QWEN3:
        render_qwen3(&r);
        break;
    case CHAT_LLAMA3:
    case CHAT_LLAMA31:
        render_llama3(&r);
        break;
    case CHAT_MISTRAL:
    case CHAT_MISTRAL_NEMO:
        render_mistral(&r);
        break;
    }
    *text = buf_take(&r.out, n);
    return 0;
}
