/* SPDX-License-Identifier: Apache-2.0 */
/* chat_family.h - what the recognizer tells the renderer. */
#ifndef WHET_SERVER_CHAT_FAMILY_H
#define WHET_SERVER_CHAT_FAMILY_H

#include "server/chat.h"

enum chat_family {
    CHAT_CHATML,       /* every message alike; maybe a system message of the model's own */
    CHAT_LLAMA3,       /* Llama 3: BOS, trimmed messages */
    CHAT_LLAMA31,      /* Llama 3.1 to 3.3: always a system message, with dates */
    CHAT_QWEN25,       /* ChatML with tool results */
    CHAT_QWEN3,        /* ... and reasoning between <think> and </think> */
    CHAT_MISTRAL,      /* [INST] with spaces around, no system message */
    CHAT_MISTRAL_NEMO, /* [INST] without, system message in the last user turn */
};

struct chat_template {
    enum chat_family family;
    char *system;                /* CHATML, QWEN25: for a conversation that has none; or NULL */
    bool bos;                    /* CHATML: the text begins with BOS */
    bool always_generate;        /* LLAMA3: old versions open the assistant's turn unasked */
    bool today;                  /* LLAMA31: tells the day, not 26 Jul 2024 */
    bool thinking_switch;        /* QWEN3: has enable_thinking */
    const char *after_assistant; /* MISTRAL: what follows the assistant's EOS */
};

/* The longest template that is read, in bytes. Those of published models have up to 20,000. */
enum { CHAT_TEMPLATE_MAX = 1 << 20 };

/* The template in canonical form, in time proportional to its length: what it writes as it is,
 * expressions as {{x}}, statements as
 * {%x%}, without the freedom of layout and quotes that Jinja gives. malloc'ed. NULL if it is not
 * well-formed. */
char *chat_canonical(const char *text);

#endif
