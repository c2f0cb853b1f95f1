/* SPDX-License-Identifier: Apache-2.0 */
/* adviser_http.h - one question to an OpenAI-style chat completions endpoint.
 *
 * Bounded in every direction: time (connect, whole exchange), bytes of the answer, no redirects,
 * http and https only. The key is read from its file for each call, sent in one header and wiped;
 * it is in no message, log or store. One thread posts at a time; stop may come from any.
 */
#ifndef WHET_SPECIALIZER_ADVISER_ADVISER_HTTP_H
#define WHET_SPECIALIZER_ADVISER_ADVISER_HTTP_H

#include <stddef.h>
#include <stdint.h>

#include "config/config.h"
#include "config/err.h"

/* Bytes of an HTTP answer; the text in it has its own bound (adviser_reply.h). */
enum { ANSWER_BYTES_MOST = 1024 * 1024 };

/* Why no text came: constant, name in metrics and verdicts. */
#define CALL_FAULT_LIST(F)           \
    F(KEY, "key")                    \
    F(CONNECT, "connect")            \
    F(TIMEOUT, "timeout")            \
    F(BROKEN, "broken")              \
    F(TOO_LARGE, "answer_too_large") \
    F(REDIRECT, "redirect")          \
    F(RATE, "http_429")              \
    F(REFUSED, "http_4xx")           \
    F(SERVER, "http_5xx")            \
    F(PROTOCOL, "not_a_completion")  \
    F(NO_RECORD, "no_record")        \
    F(STOPPED, "stopped")
enum call_fault {
    CALL_OK,
#define F(id, name) CALL_##id,
    CALL_FAULT_LIST(F)
#undef F
        CALL_FAULTS
};
const char *call_fault_name(enum call_fault f);

/* How an answer is wanted. */
struct call_style {
    const char *model; /* NULL: adviser.model */
    int32_t max_tokens;
    double timeout;     /* seconds of the whole exchange */
    double temperature; /* below 0: the endpoint's own */
};

struct call {
    const char *task, *document; /* system and user message */
    const char *schema;          /* JSON text of the reply's schema, or NULL */
    const char *name;            /* of the schema */
    struct call_style style;
};

struct answer {
    enum call_fault fault;
    char why[200]; /* in words, if there is a fault */
    char *text;    /* what the model said; free it. NULL if there is a fault */
    int32_t calls; /* HTTP requests made: 2 when response_format had to be left out */
    int32_t tokens_in, tokens_out; /* as the endpoint counted; 0: it did not say */
    double seconds;
    double retry_after_s; /* the endpoint's wish, with http_429 and http_5xx; 0: none */
};

struct adviser_http;
/* NULL with a message when the URL cannot be used. */
struct adviser_http *adviser_http_open(const struct config *c, struct err *err);
void adviser_http_close(struct adviser_http *h);
void adviser_http_post(struct adviser_http *h, const struct call *call, struct answer *out);
/* The call under way, and all later ones, end at once. Any thread. */
void adviser_http_stop(struct adviser_http *h);

#endif
