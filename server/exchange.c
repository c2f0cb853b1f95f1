/* SPDX-License-Identifier: Apache-2.0 */
/* exchange.c - responses: heads, whole bodies, streamed bodies.
 *
 * Every response carries x-request-id and, whole or chunked, an exact end, so that keep-alive
 * works; HTTP/1.0 streams end with the connection. A response that leaves request bytes unread
 * closes the connection: the framing of what follows is not worth guessing.
 */
#include "server/exchange.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "config/clock.h"
#include "config/log.h"
#include "server/conn.h"
#include "server/server.h"

/* 64 random bits; the counter is for a kernel that has none to give yet. */
uint64_t exchange_random(void)
{
    static uint64_t counter;
    uint64_t v = 0;
    if (getrandom(&v, sizeof(v), GRND_NONBLOCK) != sizeof(v))
        v = (uint64_t)clock_ns() * 0x9e3779b97f4a7c15u + ++counter;
    return v;
}

void exchange_name(struct exchange *x)
{
    const struct slice *given = http_header(&x->req, "x-request-id");
    bool tame = given && given->n > 0 && given->n <= REQUEST_ID_MAX;
    for (size_t i = 0; tame && i < given->n; i++) {
        char c = given->p[i];
        bool alnum = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
        tame = alnum || strchr("-_.:+/=", c);
    }
    if (tame)
        snprintf(x->id, sizeof(x->id), "%.*s", (int)given->n, given->p);
    else
        snprintf(x->id, sizeof(x->id), "req-%016llx", (unsigned long long)exchange_random());
}

void exchange_hold_body(struct exchange *x)
{
    x->srv->held_bytes += x->req.body.n - x->held;
    x->held = x->req.body.n;
}

uint64_t exchange_take_body(struct exchange *x, struct buf *body)
{
    uint64_t held = x->held;
    x->held = 0;
    buf_swap(body, &x->req.body);
    return held;
}

static void put_cors(struct exchange *x, struct buf *out)
{
    struct slice origin = auth_origin(&x->srv->auth, &x->req);
    if (x->srv->auth.origins)
        buf_str(out, "Vary: Origin\r\n");
    if (!origin.n)
        return;
    buf_printf(out,
               "Access-Control-Allow-Origin: %.*s\r\n"
               "Access-Control-Expose-Headers: x-request-id, retry-after, "
               "x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
               "x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, "
               "x-ratelimit-reset-tokens\r\n",
               (int)origin.n, origin.p);
    if (strcmp(x->req.method, "OPTIONS") != 0)
        return;
    /* Whatever headers it asks for: OpenAI's SDK sends a dozen x-stainless-* of its own. */
    const struct slice *asked = http_header(&x->req, "access-control-request-headers");
    static const struct slice usual = {"authorization, content-type, x-request-id", 41};
    struct slice allowed = asked && asked->n ? *asked : usual;
    buf_printf(out,
               "Access-Control-Allow-Methods: GET, POST, DELETE, OPTIONS\r\n"
               "Access-Control-Allow-Headers: %.*s\r\n"
               "Access-Control-Max-Age: 600\r\n",
               (int)allowed.n, allowed.p);
}

static void put_head(struct exchange *x, int status, const char *type, struct buf *out)
{
    x->status = status;
    if (x->srv->leaving || x->srv->draining || !x->req.keep_alive)
        x->close = true;
    char date[HTTP_DATE_SIZE];
    http_date(date, clock_wall_s());
    buf_printf(out, "HTTP/1.1 %d %s\r\nDate: %s\r\nx-request-id: %s\r\n", status,
               http_reason(status), date, x->id);
    if (type)
        buf_printf(out, "Content-Type: %s\r\n", type);
    if (status == 429 || status == 503)
        buf_printf(out, "Retry-After: %d\r\n", x->retry_after ? x->retry_after : RETRY_AFTER_S);
    buf_str(out, x->limits);
    if (status == 401)
        buf_str(out, "WWW-Authenticate: Bearer\r\n");
    if (x->allow[0] && (status == 405 || status == 204))
        buf_printf(out, "Allow: %s\r\n", x->allow);
    put_cors(x, out);
    if (x->headers)
        buf_str(out, x->headers);
    if (x->close)
        buf_str(out, "Connection: close\r\n");
    else if (x->req.minor == 0)
        buf_str(out, "Connection: keep-alive\r\n");
}

void respond(struct exchange *x, int status, const char *type, const char *body, size_t n)
{
    struct buf *out = conn_out(x->conn);
    put_head(x, status, type, out);
    if (status != 204)
        buf_printf(out, "Content-Length: %zu\r\n", n);
    buf_str(out, "\r\n");
    if (!x->req.method || strcmp(x->req.method, "HEAD") != 0)
        buf_add(out, body, n);
    conn_answered(x->conn);
}

void respond_json(struct exchange *x, int status, struct buf *body)
{
    struct buf b = *body;
    *body = (struct buf){0};
    respond(x, status, "application/json", b.p, b.n);
    buf_free(&b);
}

void respond_error(struct exchange *x, const struct api_error *e)
{
    struct buf b = {0};
    log_info("http", "%s refused with %d: %s", x->id, e->status, e->message);
    api_error_json(&b, e);
    respond_json(x, e->status, &b);
}

void respond_fail(struct exchange *x, int status, const char *param, const char *fmt, ...)
{
    struct api_error e;
    char message[sizeof(e.message)];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof(message), fmt, args);
    va_end(args);
    api_error_set(&e, status, param, "%s", message);
    respond_error(x, &e);
}

void respond_begin(struct exchange *x, const char *type)
{
    struct buf *out = conn_out(x->conn);
    if (x->req.minor == 0)
        x->close = true;
    put_head(x, 200, type, out);
    buf_str(out, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
    if (x->req.minor == 1)
        buf_str(out, "Transfer-Encoding: chunked\r\n");
    buf_str(out, "\r\n");
    x->streaming = true;
}

void respond_write(struct exchange *x, const char *bytes, size_t n)
{
    if (!n)
        return;
    struct buf *out = conn_out(x->conn);
    if (x->req.minor == 1)
        buf_printf(out, "%zx\r\n", n);
    buf_add(out, bytes, n);
    if (x->req.minor == 1)
        buf_str(out, "\r\n");
}

void respond_flush(struct exchange *x)
{
    conn_flush(x->conn);
}

void respond_end(struct exchange *x)
{
    if (x->req.minor == 1)
        buf_str(conn_out(x->conn), "0\r\n\r\n");
    conn_answered(x->conn);
}
