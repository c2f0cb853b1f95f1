/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_chat.c - any bytes as a chat template: parsed and, if it is one, run on a conversation made
 * of the input, with small limits, so that the fuzzer spends its time on templates and not in
 * loops. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "server/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The input's lines as messages: roles in turn, or as the first character says. */
static void render(const struct chat_template *t, char *text, bool final)
{
    static const char *const roles[] = {"user", "assistant", "system", "tool", "developer", "odd"};
    struct chat_message message[8];
    size_t n = 0, length;
    for (char *line = text; line && n < 8; n++) {
        char *end = strchr(line, '\n');
        if (end)
            *end = 0;
        int role = *line >= '0' && *line <= '5' ? *line - '0' : (int)n % 2;
        message[n] = (struct chat_message){.role = roles[role],
                                           .content = *line == '-' ? NULL : line,
                                           .reasoning = *line == '+' ? line : NULL};
        line = end ? end + 1 : NULL;
    }
    struct chat_variable v = {"enable_thinking", jinja_bool(false)};
    struct chat_options o = {.generate = !final,
                             .continue_final = final,
                             .variable = &v,
                             .variables = n % 2,
                             .bos = n % 3 ? "<bos>" : NULL,
                             .eos = "<eos>",
                             .steps = 20000};
    struct err err = {""};
    char *out;
    if (chat_render(t, message, n, &o, &out, &length, &err) == CHAT_OK) {
        if (strlen(out) != length)
            abort();
        free(out);
    } else if (!*err.msg) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = memchr(data, 0, size);
    size_t n = zero ? (size_t)(zero - data) : size;
    char *text = xmalloc(n + 1), *rest = xmalloc(size - n + 1);
    struct err err = {""};
    memcpy(text, data, n);
    text[n] = 0;
    memcpy(rest, data + n, size - n);
    rest[size - n] = 0;
    struct chat_template *t = chat_parse(text, &err);
    if (t) {
        render(t, size > n ? rest + 1 : rest, false);
        render(t, text, true);
    } else if (!*err.msg) {
        abort();
    }
    chat_free(t);
    free(rest);
    free(text);
    return 0;
}
