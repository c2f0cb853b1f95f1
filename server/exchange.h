/* SPDX-License-Identifier: Apache-2.0 */
/* exchange.h - one request and its response on a connection.
 *
 * A handler gets an exchange and answers it exactly once: at once, or later after keeping the
 * pointer. Who keeps it sets on_gone, which is called when the client leaves first; after that,
 * and after the response was completed, the pointer is dead. Loop thread only.
 */
#ifndef WHET_SERVER_EXCHANGE_H
#define WHET_SERVER_EXCHANGE_H

#include "server/buf.h"
#include "server/error.h"
#include "server/http.h"

struct server;
struct conn;
struct route;

struct exchange {
    struct server *srv;
    struct conn *conn;
    struct http_request req;
    const struct route *route; /* NULL: no such route */
    char *rest;                /* what the route's `*` matched, or NULL */
    char allow[48];            /* methods of the path, for Allow */
    char id[REQUEST_ID_MAX + 1];
    int64_t start_ns;
    int status;          /* of the response once its head is written */
    const char *headers; /* further lines of the head, each with its CRLF; static, or NULL */
    char limits[320];    /* likewise: what the client may have */
    int retry_after;     /* seconds; 0: RETRY_AFTER_S, where it is to be said at all */
    bool close;          /* the connection ends with this response */
    bool streaming;      /* a chunked (or, in HTTP/1.0, close-delimited) body is being written */
    bool cancel_on_eof;  /* a client that stops sending has left: do not finish for nobody */
    void (*on_gone)(struct exchange *x);
    void *user;                           /* of whoever set on_gone */
    int32_t prompt_tokens, output_tokens; /* for the log line */
    uint64_t held;                        /* of the body, in server.held_bytes */
};

/* 64 random bits, for names. */
uint64_t exchange_random(void);
/* Takes the client's x-request-id if it is tame, else makes one. */
void exchange_name(struct exchange *x);

/* Counts the body so far in server.held_bytes. */
void exchange_hold_body(struct exchange *x);
/* Moves the body out of the exchange. Returns the bytes that stay counted for it: the new owner
 * gives them back with server_release() when it frees the body. */
uint64_t exchange_take_body(struct exchange *x, struct buf *body);

/* Whole responses. The body of respond_json is freed. */
void respond(struct exchange *x, int status, const char *type, const char *body, size_t n);
void respond_json(struct exchange *x, int status, struct buf *body);
void respond_error(struct exchange *x, const struct api_error *e);
void respond_fail(struct exchange *x, int status, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* A body in pieces: begin, any number of writes, end. Nothing is sent before respond_flush. */
void respond_begin(struct exchange *x, const char *type);
void respond_write(struct exchange *x, const char *bytes, size_t n);
void respond_flush(struct exchange *x);
void respond_end(struct exchange *x);

#endif
