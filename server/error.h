/* SPDX-License-Identifier: Apache-2.0 */
/* error.h - what goes wrong with a request: a status, the parameter at fault, a sentence.
 *
 * Written out as OpenAI's clients expect: {"error":{"message","type","param","code"}}. The type
 * follows from the status; a wrong request is never a 5xx, because SDKs retry those.
 */
#ifndef WHET_SERVER_ERROR_H
#define WHET_SERVER_ERROR_H

#include "server/buf.h"

struct api_error {
    int status; /* 0: none */
    char param[96];
    const char *code; /* static, or NULL */
    char message[640];
};

/* Fills `e`; returns -1. `param` may be NULL. */
int api_error_set(struct api_error *e, int status, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* The same with a code of its own instead of the status's default. */
int api_error_code(struct api_error *e, int status, const char *code, const char *param,
                   const char *fmt, ...) __attribute__((format(printf, 5, 6)));
void api_error_json(struct buf *out, const struct api_error *e);

#endif
