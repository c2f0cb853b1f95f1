/* SPDX-License-Identifier: Apache-2.0 */
/* http.h - HTTP/1.x requests out of bytes, strictly, without sockets.
 *
 * The caller offers whatever bytes it has; the parser takes them in order and says what it knows:
 * more bytes are needed, the head is complete (time to refuse or to say 100 Continue), the whole
 * request is complete, or it is refused with a status and a sentence. http_begin() makes the parser
 * of a connection ready for its next request.
 *
 * Refused with 400: bare CR or LF, obs-fold, control characters, field names that are no tokens
 * (white space within one or before its colon), repeated or malformed Content-Length,
 * Transfer-Encoding other than one `chunked`, both together, any in HTTP/1.0, a missing, repeated
 * or malformed Host or one that the target contradicts, targets that are no URI, chunk sizes of
 * 2^63 and more, long chunk extensions, trailers that are no field lines. 431: head or trailers
 * too large. 413: body too large.
 */
#ifndef WHET_SERVER_HTTP_H
#define WHET_SERVER_HTTP_H

#include <llhttp.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/buf.h"
#include "server/limits.h"

struct slice {
    const char *p;
    size_t n;
};

struct http_header {
    struct slice name, value; /* value without surrounding white space */
};

struct http_request {
    struct buf head; /* the head as received; the slices point into it */
    struct http_header header[HTTP_HEADERS_MAX];
    int headers;
    const char *method;  /* "GET"; static */
    struct slice target; /* as received */
    char *path;          /* percent-decoded, without the query; owned */
    struct slice query;  /* without '?' */
    struct slice host; /* of the target if that names one, else of the Host header; p NULL: none */
    int minor;         /* HTTP/1.minor */
    bool keep_alive, chunked, has_length;
    uint64_t length; /* Content-Length */
    struct buf body;
};

enum parse_result { PARSE_MORE, PARSE_HEAD, PARSE_COMPLETE, PARSE_REFUSED };

struct http_parser {
    llhttp_t llhttp;
    struct http_request *req; /* being filled */
    size_t scanned;           /* bytes of the head already seen to be clean */
    enum { IN_HEAD, IN_BODY, AT_END } state;
    uint64_t max_body, left; /* bytes to come of the body, or of its current chunk */
    uint64_t framing;        /* bytes of chunk lines and trailers so far */
    enum chunk_state {
        CHUNK_SIZE,
        CHUNK_EXTENSION,
        CHUNK_SIZE_LF,
        CHUNK_DATA,
        CHUNK_DATA_CR,
        CHUNK_DATA_LF,
        TRAILER_START,
        TRAILER_NAME,
        TRAILER,
        TRAILER_LF,
        CHUNK_END_LF,
    } chunk;
    int digits;         /* of the chunk size */
    uint32_t extension; /* bytes of the current one */
    uint32_t trailers;  /* bytes of all of them */
    int status;         /* of a refusal */
    char message[160];
};

/* Starts on a request; `req` must be zeroed and outlive the parse. */
void http_begin(struct http_parser *h, struct http_request *req, uint64_t max_body);
/* Takes bytes from data[0..n); *used says how many. PARSE_HEAD is returned once a request. Bytes
 * of an unfinished head are not used up: offer them again with what follows. */
enum parse_result http_parse(struct http_parser *h, const char *data, size_t n, size_t *used);
/* Bytes of empty lines at the front, which are skipped between requests (RFC 9112 2.2). */
size_t http_blank(const char *data, size_t n);
void http_request_free(struct http_request *req);

/* Value of a header (case-insensitive name), or NULL. */
const struct slice *http_header(const struct http_request *req, const char *name);
bool slice_is(struct slice s, const char *text); /* case-insensitive */
/* Value of a query parameter, percent-decoded and malloc'ed; NULL if absent. */
char *http_query(const struct http_request *req, const char *name);
/* Every status that is answered with, and its reason; requests are counted by it
 * (server/metrics.c). 499 is not sent: the client left first. */
#define HTTP_STATUSES(X)                      \
    X(200, "OK")                              \
    X(204, "No Content")                      \
    X(400, "Bad Request")                     \
    X(401, "Unauthorized")                    \
    X(403, "Forbidden")                       \
    X(404, "Not Found")                       \
    X(405, "Method Not Allowed")              \
    X(408, "Request Timeout")                 \
    X(409, "Conflict")                        \
    X(411, "Length Required")                 \
    X(413, "Content Too Large")               \
    X(415, "Unsupported Media Type")          \
    X(417, "Expectation Failed")              \
    X(421, "Misdirected Request")             \
    X(429, "Too Many Requests")               \
    X(431, "Request Header Fields Too Large") \
    X(499, "Client Closed Request")           \
    X(503, "Service Unavailable")             \
    X(500, "Internal Server Error")
/* "Unknown" of a status that is not there. */
const char *http_reason(int status);

enum { HTTP_DATE_SIZE = 64 };
/* Seconds since 1970 as a Date header has them: `Sun, 06 Nov 1994 08:49:37 GMT`. */
void http_date(char out[HTTP_DATE_SIZE], int64_t seconds);

#endif
