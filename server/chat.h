/* SPDX-License-Identifier: Apache-2.0 */
/* chat.h - conversations into prompts, the way the model's own chat template does it.
 *
 * A chat template is a Jinja program that comes with the model. whet runs no Jinja: it recognizes
 * the program by its text and renders what that program would (docs/models.md lists the families).
 * A template that is not recognized is an error, never a guess. No tensors, no sockets, any thread.
 */
#ifndef WHET_SERVER_CHAT_H
#define WHET_SERVER_CHAT_H

#include <stdbool.h>
#include <stddef.h>

#include "config/err.h"

struct chat_template;

/* Recognizes the model's template text (NULL: it has none). NULL with a message if it is not
 * known. chat_free() when done. */
struct chat_template *chat_recognize(const char *text, struct err *err);
void chat_free(struct chat_template *t);
/* "chatml", "llama3", "llama3.1", "qwen2.5", "qwen3", "mistral", "mistral-nemo". */
const char *chat_name(const struct chat_template *t);

struct chat_message {
    const char *role;      /* system (or developer), user, assistant; tool where the model has it */
    const char *content;   /* UTF-8; NULL counts as empty */
    const char *name;      /* accepted and not rendered: none of these templates uses it */
    const char *reasoning; /* reasoning_content of an assistant message, or NULL */
};

struct chat_options {
    bool generate;       /* add_generation_prompt: the assistant's turn is opened */
    bool continue_final; /* continue_final_message: the last message stays open */
    bool no_thinking;    /* enable_thinking = false, where the model knows the switch */
    const char *bos;     /* texts of the model's tokens; NULL: those usual in the family */
    const char *eos;
    const char *date; /* "26 Nov 2026" for templates that tell the day; NULL: today, local time */
};

/* Renders to *text, malloc'ed and NUL-terminated. The text has the BOS token's text in it where
 * the template puts it, so it is to be tokenized without adding special tokens. -1 with a message
 * for a client: no messages, a role or an order of roles that the template refuses. */
int chat_render(const struct chat_template *t, const struct chat_message *message, size_t messages,
                const struct chat_options *options, char **text, size_t *n, struct err *err);

#endif
