/* SPDX-License-Identifier: Apache-2.0 */
/* conn.h - one TCP connection: bytes in, requests one after the other, bytes out. Loop thread. */
#ifndef WHET_SERVER_CONN_H
#define WHET_SERVER_CONN_H

#include <uv.h>

#include "server/buf.h"
#include "server/exchange.h"
#include "server/http.h"

struct peer;
struct server;

enum conn_phase {
    PHASE_IDLE,   /* between requests */
    PHASE_HEAD,   /* part of a head has come */
    PHASE_BODY,   /* the head was accepted, the body is coming */
    PHASE_ANSWER, /* a handler has the request */
    PHASE_LINGER, /* the last response is out: read on so that it is not reset away */
};

struct conn {
    uv_tcp_t tcp;
    struct server *srv;
    struct conn *next, **link;
    enum conn_phase phase;
    int64_t since;    /* clock_ns: when the phase began */
    int64_t deadline; /* likewise: when it is over; 0: never */
    struct peer *peer;

    struct buf in;
    struct http_parser parser;
    struct exchange *x; /* the request being received or answered */

    struct buf out, sending;
    uv_write_t write;
    uv_shutdown_t shutdown;
    bool reading, writing, processing, closing;
    bool eof;            /* the client will send no more */
    bool close_after;    /* close once everything is sent */
    bool late;           /* came while the server drains */
    bool answered;       /* some request of it was: to close it between two loses nothing */
    bool reserved;       /* in a place for operators (room.h): one request, and it ends */
    size_t unsent;       /* of the write in flight, when last looked at */
    int64_t progress_ns; /* when that last shrank */
};

/* Takes over the connection that was accepted as `fd`, and the descriptor with it; `from`: whose.
 */
void conn_accept(struct server *srv, int fd, const struct sockaddr *from);
/* Ends it now; the client gets no more bytes. */
void conn_close(struct conn *c);
/* Where response bytes go; they leave with conn_flush or conn_answered. */
struct buf *conn_out(struct conn *c);
void conn_flush(struct conn *c);
/* The response of c->x is complete: frees the exchange, goes on with what has been pipelined. */
void conn_answered(struct conn *c);
/* Bytes of answers that the client has not taken. */
size_t conn_unsent(const struct conn *c);
/* Cuts a client that takes too little. */
void conn_cut(struct conn *c, const char *why);
/* Between two requests, with nothing on its way in either direction. */
bool conn_idle(const struct conn *c);
/* With a request whose head has come and whose answer is not complete. */
bool conn_busy(const struct conn *c);
/* Deadlines, write progress, clients that left while we do not read. Called by the sweep. `paused`:
 * the loop stood still, so that what a deadline waits for may have come and not been read. */
void conn_sweep(struct conn *c, int64_t now, bool paused);
/* Draining: no further request; an idle connection closes. */
void conn_drain(struct conn *c);

#endif
