/* SPDX-License-Identifier: Apache-2.0 */
/* error.c - API errors: one table from status to type and default code. */
#include "server/error.h"

#include <stdarg.h>
#include <stdio.h>

#include "server/json.h"

static const struct kind {
    int status;
    const char *type, *code;
} kinds[] = {
    {400, "invalid_request_error", NULL},
    {401, "authentication_error", "invalid_api_key"},
    {403, "permission_error", "forbidden"},
    {404, "not_found_error", "not_found"},
    {405, "invalid_request_error", "method_not_allowed"},
    {408, "timeout_error", "request_timeout"},
    {409, "conflict_error", "conflict"},
    {411, "invalid_request_error", "length_required"},
    {413, "invalid_request_error", "body_too_large"},
    {415, "invalid_request_error", "unsupported_media_type"},
    {417, "invalid_request_error", "expectation_failed"},
    {421, "invalid_request_error", "misdirected_request"},
    {429, "rate_limit_error", "queue_full"},
    {431, "invalid_request_error", "headers_too_large"},
    {503, "service_unavailable_error", "unavailable"},
    {500, "server_error", "internal_error"}, /* last: also for anything not listed */
};

static const struct kind *kind_of(int status)
{
    const struct kind *k = kinds;
    while (k->status != status && k->status != 500)
        k++;
    return k;
}

static int fill(struct api_error *e, int status, const char *code, const char *param,
                const char *fmt, va_list args)
{
    e->status = status;
    e->code = code ? code : kind_of(status)->code;
    snprintf(e->param, sizeof(e->param), "%s", param ? param : "");
    vsnprintf(e->message, sizeof(e->message), fmt, args);
    return -1;
}

int api_error_set(struct api_error *e, int status, const char *param, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fill(e, status, NULL, param, fmt, args);
    va_end(args);
    return -1;
}

int api_error_code(struct api_error *e, int status, const char *code, const char *param,
                   const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fill(e, status, code, param, fmt, args);
    va_end(args);
    return -1;
}

void api_error_json(struct buf *out, const struct api_error *e)
{
    buf_str(out, "{\"error\":{\"message\":");
    json_put_text(out, e->message);
    buf_printf(out, ",\"type\":\"%s\",\"param\":", kind_of(e->status)->type);
    if (e->param[0])
        json_put_text(out, e->param);
    else
        buf_str(out, "null");
    buf_str(out, ",\"code\":");
    if (e->code)
        json_put_text(out, e->code);
    else
        buf_str(out, "null");
    buf_str(out, "}}");
}
