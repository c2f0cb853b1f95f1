/* SPDX-License-Identifier: Apache-2.0 */
/* chat.h - conversations into prompts, by the model's own chat template.
 *
 * A chat template is a Jinja program that comes with the model. It is parsed when the model is
 * loaded and run for every conversation as transformers runs it (server/jinja/jinja.h), with the
 * same variables: messages, add_generation_prompt, tools and documents (None), bos_token and
 * eos_token where the model has them, and what the request adds. No tensors, no sockets, any
 * thread.
 */
#ifndef WHET_SERVER_CHAT_H
#define WHET_SERVER_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/err.h"
#include "server/jinja/jinja.h"

/* Steps of a rendering (struct jinja_limits) that the event loop may be kept for. */
enum { CHAT_STEPS_SHORT = 50000 };

struct chat_template;

/* The program of a template's text (NULL: the model has none). NULL with a message that names what
 * is wrong or not known, and its line. chat_free() when done. */
struct chat_template *chat_parse(const char *text, struct err *err);
void chat_free(struct chat_template *t);
/* Whether a rendering took more than CHAT_STEPS_SHORT steps since the template was parsed; false
 * for NULL. */
bool chat_is_slow(const struct chat_template *t);

struct chat_message {
    const char *role;      /* system, developer, user, assistant, tool */
    const char *content;   /* UTF-8; NULL counts as empty */
    const char *name;      /* or NULL */
    const char *reasoning; /* reasoning_content of a message, however it was called, or NULL */
};

/* A variable of the template that the request names, e.g. enable_thinking. */
struct chat_variable {
    const char *name;
    struct jinja_value value; /* a string, a number, a bool or none */
};

struct chat_options {
    bool generate;       /* add_generation_prompt: the assistant's turn is opened */
    bool continue_final; /* continue_final_message: the last message stays open */
    const struct chat_variable *variable;
    size_t variables;
    const char *bos, *eos; /* texts of the model's tokens; NULL: it has none, and the template's
                            * variable is undefined */
    time_t now;            /* what strftime_now() tells; 0: the clock */
    const _Atomic bool *cancel; /* nobody waits any more; may be NULL */
    uint64_t steps;             /* at most; 0: by the size of the conversation */
};

enum chat_end {
    CHAT_OK,
    CHAT_REFUSED, /* the conversation: by the template, in its words, or by us */
    CHAT_CANCELLED,
};

/* Renders to *text, malloc'ed and NUL-terminated. The text has the BOS token's text in it where
 * the template puts it, so it is to be tokenized without adding special tokens. A message for the
 * client otherwise. The role "developer" is "system" for a template that does not mention it. */
enum chat_end chat_render(const struct chat_template *t, const struct chat_message *message,
                          size_t messages, const struct chat_options *options, char **text,
                          size_t *n, struct err *err);

#endif
