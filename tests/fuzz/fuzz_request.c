/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_request.c - any bytes as the body of a request: JSON, parameters, prompts, answers.
 *
 * What params_read() lets through must be within what it promises, whatever the JSON says; then the
 * body goes to every route that reads one, on a whole server.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/limits.h"
#include "server/params.h"
#include "tests/fuzz/world.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(condition)                                         \
    do {                                                        \
        if (!(condition)) {                                     \
            fprintf(stderr, "does not hold: %s\n", #condition); \
            abort();                                            \
        }                                                       \
    } while (0)

static void check_params(const struct params *p)
{
    const struct sampling *s = &p->sampling;
    MUST(p->n >= 1 && p->n <= CHOICES_MAX);
    MUST(p->max_tokens >= -1 && p->max_tokens <= INT32_MAX);
    MUST(p->min_tokens >= 0 && p->min_tokens <= INT32_MAX);
    MUST(p->stops >= 0 && p->stops <= STOPS_MAX);
    MUST(p->stop_tokens >= 0 && p->stop_tokens <= STOP_TOKENS_MAX);
    for (int32_t i = 0; i < p->stops; i++)
        MUST(strlen(p->stop[i]) >= 1 && strlen(p->stop[i]) <= STOP_BYTES_MAX);
#define IN_RANGE(name, value, least, most) \
    MUST(s->name >= (float)(least) && s->name <= (float)(most));
    SAMPLING_NUMBERS(IN_RANGE)
    MUST(s->top_p > 0 && s->top_k >= 0);
    MUST(s->top_logprobs >= -1 && s->top_logprobs <= LOGPROBS_MAX);
    MUST(p->logprobs == (s->top_logprobs >= 0));
}

static void read_params(const char *text, size_t n)
{
    static const struct params_model model = {"toy", 259, false, true};
    struct api_error e = {0};
    cJSON *body = json_parse(text, n, &e);
    MUST(body || (e.status == 400 && e.message[0]));
    for (int chat = 0; body && chat < 2; chat++) {
        struct params p;
        e = (struct api_error){0};
        if (params_read(&p, body, chat, &model, &e) == 0)
            check_params(&p);
        else
            MUST((e.status == 400 || e.status == 404) && e.message[0]);
        params_free(&p);
    }
    cJSON_Delete(body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const routes[] = {"/v1/completions", "/v1/chat/completions", "/tokenize",
                                         "/detokenize"};
    read_params((const char *)data, size);
    struct buf b = {0};
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        buf_printf(&b,
                   "POST %s HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
                   "Content-Length: %zu\r\n\r\n",
                   routes[i], size);
        buf_add(&b, data, size);
    }
    fuzz_send(b.p, b.n, b.n);
    buf_free(&b);
    return 0;
}
