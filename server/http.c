/* SPDX-License-Identifier: Apache-2.0 */
/* http.c - strict HTTP/1.x requests; llhttp reads the head.
 *
 * llhttp knows the grammar of a head, but how strict it is depends on its version and on how it
 * was compiled (8.x takes a bare CR as a line end, and outside its strict mode any two bytes as
 * the end of a chunk), and request smuggling lives in exactly those differences. So a head is
 * first collected whole (it is small and bounded) and scanned by rules of our own: every line ends
 * in CRLF, no control characters, no folded lines. Then llhttp gets it in one piece, which also
 * makes every header a contiguous slice. What frames the body - Content-Length and
 * Transfer-Encoding - is checked here again, and bodies are taken apart by http_body.c.
 */
#include "server/http_parts.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "config/err.h"

enum parse_result http_refuse(struct http_parser *h, int status, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(h->message, sizeof(h->message), fmt, args);
    va_end(args);
    h->status = status;
    h->state = AT_END;
    return PARSE_REFUSED;
}

/* Without the white space around it. */
static struct slice trimmed(struct slice s)
{
    while (s.n && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\t'))
        s.n--;
    while (s.n && (*s.p == ' ' || *s.p == '\t'))
        s.p++, s.n--;
    return s;
}

/* ---- llhttp callbacks ---------------------------------------------------------------------- */

static int on_url(llhttp_t *p, const char *at, size_t n)
{
    struct http_parser *h = p->data;
    h->req->target = (struct slice){at, n};
    return 0;
}

static int on_field(llhttp_t *p, const char *at, size_t n)
{
    struct http_parser *h = p->data;
    if (h->req->headers == HTTP_HEADERS_MAX) {
        http_refuse(h, 431, "more than %d header fields", HTTP_HEADERS_MAX);
        return HPE_USER;
    }
    h->req->header[h->req->headers++] = (struct http_header){{at, n}, {at + n, 0}};
    return 0;
}

static int on_value(llhttp_t *p, const char *at, size_t n)
{
    struct http_parser *h = p->data;
    if (!h->req->headers) { /* llhttp lets a header without a name through */
        http_refuse(h, 400, "a header has no name");
        return HPE_USER;
    }
    h->req->header[h->req->headers - 1].value = trimmed((struct slice){at, n});
    return 0;
}

/* The body is not llhttp's business: stop at the end of the head, whatever Upgrade may say. */
static int on_head_done(llhttp_t *p)
{
    (void)p;
    return HPE_PAUSED;
}

static const llhttp_settings_t *settings(void)
{
    static const llhttp_settings_t s = {
        .on_url = on_url,
        .on_header_field = on_field,
        .on_header_value = on_value,
        .on_headers_complete = on_head_done,
    };
    return &s;
}

/* ---- the head ------------------------------------------------------------------------------ */

void http_begin(struct http_parser *h, struct http_request *req, uint64_t max_body)
{
    *h = (struct http_parser){.req = req, .max_body = max_body};
    llhttp_init(&h->llhttp, HTTP_REQUEST, settings());
    h->llhttp.data = h;
}

/* Looks at data[scanned..n) for the end of the head; -1 refused, 0 not there yet, else its size.
 */
static int64_t head_end(struct http_parser *h, const char *data, size_t n)
{
    size_t i = h->scanned;
    for (; i < n; i++) {
        unsigned char c = (unsigned char)data[i];
        if (c == '\n') {
            if (i == 0 || data[i - 1] != '\r')
                return http_refuse(h, 400, "a line of the head ends in a bare LF"), -1;
            if (i >= 3 && data[i - 2] == '\n')
                return (int64_t)i + 1;
        } else if (i > 0 && data[i - 1] == '\r') {
            return http_refuse(h, 400, "the head contains a bare CR"), -1;
        } else if ((c == ' ' || c == '\t') && i > 0 && data[i - 1] == '\n') {
            return http_refuse(h, 400, "a header is folded over several lines"), -1;
        } else if ((c < 0x20 && c != '\t' && c != '\r') || c == 0x7f) {
            return http_refuse(h, 400, "the head contains a control character"), -1;
        }
        if (i >= HTTP_HEAD_MAX)
            return http_refuse(h, 431, "the head is larger than %d bytes", HTTP_HEAD_MAX), -1;
    }
    h->scanned = n;
    return 0;
}

int http_hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool is_hex(char c)
{
    return http_hex(c) >= 0;
}

/* Of field names and methods (RFC 9110 5.6.2). */
bool http_is_token(char c)
{
    bool alnum = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
    return alnum || (c && strchr("!#$%&'*+-.^_`|~", c));
}

/* Every line after the first is a name, a colon and whatever else. llhttp is not asked: as Debian
 * builds it, it takes spaces within names, and a proxy may see another name before the space. */
static bool names_are_tokens(const char *head, size_t n)
{
    const char *end = head + n - 2, *p = memchr(head, '\n', n);
    while (p && ++p < end) {
        const char *name = p;
        while (p < end && http_is_token(*p))
            p++;
        if (p == name || *p != ':')
            return false;
        p = memchr(p, '\n', (size_t)(end - p));
    }
    return true;
}

/* Percent-decoded copy; NULL if an escape is malformed or stands for NUL. */
static char *percent_decode(struct slice s, bool plus)
{
    char *out = xmalloc(s.n + 1), *w = out;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] != '%') {
            *w++ = plus && s.p[i] == '+' ? ' ' : s.p[i];
            continue;
        }
        int hi = i + 2 < s.n ? http_hex(s.p[i + 1]) : -1;
        int lo = i + 2 < s.n ? http_hex(s.p[i + 2]) : -1;
        if (hi < 0 || lo < 0 || hi * 16 + lo == 0) {
            free(out);
            return NULL;
        }
        *w++ = (char)(hi * 16 + lo);
        i += 2;
    }
    *w = '\0';
    return out;
}

/* What a URI may hold; a `#` never reaches a server (RFC 3986 3.5). */
static bool is_uri(struct slice t)
{
    for (size_t i = 0; i < t.n; i++)
        if (t.p[i] <= ' ' || t.p[i] >= 0x7f || strchr("\"#<>\\^`{|}", t.p[i]))
            return false;
    return true;
}

/* A host, and a port if there is one: registered names, IP addresses, those of IPv6 in brackets. */
static bool is_authority(struct slice a)
{
    size_t i = 0;
    if (a.n && *a.p == '[') {
        const char *end = memchr(a.p, ']', a.n);
        i = end ? (size_t)(end - a.p) + 1 : 0;
        for (size_t k = 1; k + 1 < i; k++)
            if (!is_hex(a.p[k]) && a.p[k] != ':' && a.p[k] != '.')
                return false;
    } else {
        while (i < a.n &&
               (http_is_token(a.p[i]) && a.p[i] != '^' && a.p[i] != '`' && a.p[i] != '|'))
            i++;
    }
    if (i < a.n && (i == 0 || a.p[i] != ':'))
        return false;
    for (i++; i < a.n; i++)
        if (a.p[i] < '0' || a.p[i] > '9')
            return false;
    return true;
}

/* Splits the request target: origin form, or the absolute form that proxies send. */
static int parse_target(struct http_parser *h)
{
    struct slice t = h->req->target;
    if (!is_uri(t))
        return http_refuse(h, 400, "the request target is malformed"), -1;
    if (t.n > 7 && strncasecmp(t.p, "http://", 7) == 0) {
        size_t n = 7;
        while (n < t.n && t.p[n] != '/' && t.p[n] != '?')
            n++;
        h->req->host = (struct slice){t.p + 7, n - 7};
        if (n == 7 || !is_authority(h->req->host))
            return http_refuse(h, 400, "the request target is malformed"), -1;
        t = (struct slice){t.p + n, t.n - n};
        if (!t.n || *t.p == '?') /* the path may be left out */
            h->req->path = xstrdup("/");
    }
    const char *mark = memchr(t.p, '?', t.n);
    if (mark) {
        h->req->query = (struct slice){mark + 1, (size_t)(t.p + t.n - mark - 1)};
        t.n = (size_t)(mark - t.p);
    }
    if (h->req->path)
        return 0;
    h->req->path = percent_decode(t, false);
    bool star = t.n == 1 && *t.p == '*';
    if (!h->req->path || !t.n || (*t.p != '/' && !star))
        return http_refuse(h, 400, "the request target is malformed"), -1;
    return 0;
}

/* The target's authority comes before the Host header (RFC 9112 3.2.2), but who sends two different
 * ones is up to something. */
static int parse_host(struct http_parser *h, struct slice v)
{
    struct http_request *r = h->req;
    if (!is_authority(v))
        return http_refuse(h, 400, "the Host header is malformed"), -1;
    if (r->host.p && (r->host.n != v.n || strncasecmp(r->host.p, v.p, v.n) != 0))
        return http_refuse(h, 400, "the request target and Host name different hosts"), -1;
    r->host = v;
    return 0;
}

static int parse_length(struct http_parser *h, struct slice v)
{
    struct http_request *r = h->req;
    if (r->has_length)
        return http_refuse(h, 400, "Content-Length is given twice"), -1;
    if (!v.n || v.n > 18)
        return http_refuse(h, 400, "Content-Length is not a number of bytes"), -1;
    for (size_t i = 0; i < v.n; i++) {
        if (v.p[i] < '0' || v.p[i] > '9')
            return http_refuse(h, 400, "Content-Length is not a number of bytes"), -1;
        r->length = r->length * 10 + (uint64_t)(v.p[i] - '0');
    }
    r->has_length = true;
    return 0;
}

/* Checks what frames the request; 0, or -1 refused. */
static int check_headers(struct http_parser *h)
{
    struct http_request *r = h->req;
    int hosts = 0;
    for (int i = 0; i < r->headers; i++) {
        struct slice name = r->header[i].name, value = r->header[i].value;
        if (slice_is(name, "host")) {
            if (hosts++ == 0 && parse_host(h, value))
                return -1;
        } else if (slice_is(name, "content-length")) {
            if (parse_length(h, value))
                return -1;
        } else if (slice_is(name, "transfer-encoding")) {
            if (r->chunked || !slice_is(value, "chunked"))
                return http_refuse(h, 400, "Transfer-Encoding must be a single `chunked`"), -1;
            r->chunked = true;
        }
    }
    if (r->chunked && r->has_length)
        return http_refuse(h, 400, "Transfer-Encoding and Content-Length exclude each other"), -1;
    if (r->chunked && r->minor == 0)
        return http_refuse(h, 400, "HTTP/1.0 has no Transfer-Encoding"), -1;
    if (hosts > 1 || (hosts == 0 && r->minor == 1))
        return http_refuse(h, 400, "exactly one Host header is needed"), -1;
    if (r->length > h->max_body)
        return http_refuse(h, 413, "the body of %llu bytes is larger than the limit of %llu",
                           (unsigned long long)r->length, (unsigned long long)h->max_body),
               -1;
    return 0;
}

/* Is `option` in a Connection header? There may be several, each a list (RFC 9110 7.6.1). */
static bool connection_says(const struct http_request *r, const char *option)
{
    for (int i = 0; i < r->headers; i++) {
        struct slice rest = r->header[i].value;
        while (rest.n && slice_is(r->header[i].name, "connection")) {
            const char *comma = memchr(rest.p, ',', rest.n);
            size_t n = comma ? (size_t)(comma - rest.p) : rest.n;
            if (slice_is(trimmed((struct slice){rest.p, n}), option))
                return true;
            n += comma != NULL;
            rest = (struct slice){rest.p + n, rest.n - n};
        }
    }
    return false;
}

/* The request line holds exactly two spaces; llhttp would take more. */
static bool two_spaces(const char *head, size_t n)
{
    int spaces = 0;
    for (size_t i = 0; i < n && head[i] != '\r'; i++)
        spaces += head[i] == ' ' ? 1 : head[i] == '\t' ? 3 : 0;
    return spaces == 2;
}

/* Reads the head of `n` bytes, already scanned. */
static enum parse_result parse_head(struct http_parser *h, const char *data, size_t n)
{
    struct http_request *r = h->req;
    buf_add(&r->head, data, n);
    if (!two_spaces(data, n))
        return http_refuse(h, 400, "the request line is malformed");
    if (!names_are_tokens(data, n))
        return http_refuse(h, 400, "a header's name is not a token");
    enum llhttp_errno e = llhttp_execute(&h->llhttp, r->head.p, n);
    if (h->status)
        return PARSE_REFUSED;
    bool http2 = e == HPE_OK; /* no end yet: only HTTP/2's preface (PRI) goes on behind a head */
    if (e != HPE_PAUSED && !http2)
        return http_refuse(h, 400, "malformed request: %s", llhttp_get_error_reason(&h->llhttp));
    if (http2 || h->llhttp.http_major != 1 || h->llhttp.http_minor > 1)
        return http_refuse(h, 400, "only HTTP/1.0 and HTTP/1.1 are spoken here");
    r->minor = h->llhttp.http_minor;
    r->method = llhttp_method_name((llhttp_method_t)h->llhttp.method);
    r->keep_alive =
        !connection_says(r, "close") && (r->minor == 1 || connection_says(r, "keep-alive"));
    if (parse_target(h) || check_headers(h))
        return PARSE_REFUSED;
    h->left = r->length;
    h->state = r->chunked || r->length ? IN_BODY : AT_END;
    return PARSE_HEAD;
}

size_t http_blank(const char *data, size_t n)
{
    size_t blank = 0;
    while (blank + 1 < n && data[blank] == '\r' && data[blank + 1] == '\n')
        blank += 2;
    return blank;
}

enum parse_result http_parse(struct http_parser *h, const char *data, size_t n, size_t *used)
{
    *used = 0;
    if (h->status)
        return PARSE_REFUSED;
    if (h->req->head.n) {
        if (h->state == AT_END)
            return PARSE_COMPLETE;
        return n ? http_parse_body(h, data, n, used) : PARSE_MORE;
    }
    int64_t size = head_end(h, data, n);
    if (size < 0)
        return PARSE_REFUSED;
    if (size == 0)
        return PARSE_MORE;
    *used = (size_t)size;
    return parse_head(h, data, (size_t)size);
}

void http_request_free(struct http_request *req)
{
    buf_free(&req->head);
    buf_free(&req->body);
    free(req->path);
    req->path = NULL;
}

/* ---- looking things up --------------------------------------------------------------------- */

bool slice_is(struct slice s, const char *text)
{
    return s.n == strlen(text) && strncasecmp(s.p, text, s.n) == 0;
}

const struct slice *http_header(const struct http_request *req, const char *name)
{
    for (int i = 0; i < req->headers; i++)
        if (slice_is(req->header[i].name, name))
            return &req->header[i].value;
    return NULL;
}

char *http_query(const struct http_request *req, const char *name)
{
    struct slice rest = req->query;
    size_t want = strlen(name);
    while (rest.n) {
        const char *amp = memchr(rest.p, '&', rest.n);
        size_t n = amp ? (size_t)(amp - rest.p) : rest.n;
        if (n > want && rest.p[want] == '=' && memcmp(rest.p, name, want) == 0)
            return percent_decode((struct slice){rest.p + want + 1, n - want - 1}, true);
        n += amp ? 1 : 0;
        rest.p += n;
        rest.n -= n;
    }
    return NULL;
}

void http_date(char out[HTTP_DATE_SIZE], int64_t seconds)
{
    time_t t = (time_t)seconds;
    struct tm tm;
    gmtime_r(&t, &tm);
    strftime(out, HTTP_DATE_SIZE, "%a, %d %b %Y %H:%M:%S GMT", &tm); /* whet has no locale but C */
}

const char *http_reason(int status)
{
#define STATUS_ROW(status, reason) {status, reason},
    static const struct {
        int status;
        const char *reason;
    } table[] = {HTTP_STATUSES(STATUS_ROW)};
    for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++)
        if (table[i].status == status)
            return table[i].reason;
    return "Unknown";
}
