/* SPDX-License-Identifier: Apache-2.0 */
/* conn.c - one TCP connection as a small state machine.
 *
 * Reading goes on while a request is answered (bounded by CONN_INPUT_MAX), because end-of-file is
 * how we learn that the client left and its work can be cancelled. Requests are strictly one
 * after the other: the next head is parsed when the response before it is complete and mostly
 * sent, so a client that pipelines without reading stops itself.
 *
 * Writing: handlers append to `out`; one uv_write is in flight at a time, while more gathers in
 * `out`. A client that takes no bytes for server.write_timeout is cut. Nothing waits for a client.
 *
 * Invariant: between callbacks either x is NULL, or it is being received (HEAD, BODY), or a
 * handler owns its answer (ANSWER).
 */
#include "server/conn.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/log.h"
#include "server/router.h"
#include "server/server.h"

enum { STATUS_GONE = 499 }; /* in metrics and the log: the client left before the answer */

static void process(struct conn *c);

static int64_t after(double seconds)
{
    return clock_ns() + (int64_t)(seconds * 1e9);
}

static void enter(struct conn *c, enum conn_phase phase, double seconds)
{
    c->phase = phase;
    c->since = clock_ns();
    c->deadline = seconds > 0 ? after(seconds) : 0;
}

/* ---- the exchange -------------------------------------------------------------------------- */

static void begin_exchange(struct conn *c)
{
    struct exchange *x = xcalloc(1, sizeof(*x));
    x->srv = c->srv;
    x->conn = c;
    x->start_ns = clock_ns();
    x->req.method = "-";
    x->close = c->reserved;
    c->x = x;
    c->srv->exchanges++;
    http_begin(&c->parser, &x->req, (uint64_t)c->srv->config->server_max_body);
    enter(c, PHASE_HEAD, c->srv->config->server_header_timeout);
}

/* Counts and logs the request, then forgets it. */
static void end_exchange(struct conn *c, int status)
{
    struct exchange *x = c->x;
    double seconds = (double)(clock_ns() - x->start_ns) * 1e-9;
    metrics_request(&c->srv->metrics, router_label(x->route), status, seconds);
    const char *path = x->req.path ? x->req.path : "-";
    bool cut = strnlen(path, LOG_PATH_MAX + 1) > LOG_PATH_MAX;
    log_info("http", "%s %s %.*s%s %d %.1f ms prompt=%d output=%d", x->id[0] ? x->id : "-",
             x->req.method, LOG_PATH_MAX, path, cut ? "..." : "", status, seconds * 1e3,
             x->prompt_tokens, x->output_tokens);
    server_release(c->srv, x->held);
    c->srv->exchanges--;
    c->x = NULL;
    http_request_free(&x->req);
    free(x->rest);
    free(x);
}

void conn_answered(struct conn *c)
{
    bool unread = c->phase == PHASE_HEAD || c->phase == PHASE_BODY;
    /* The head of a stream may be older than the drain, and then it promised another request. */
    if (c->x->close || unread || c->srv->draining)
        c->close_after = true;
    end_exchange(c, c->x->status);
    c->answered = true;
    enter(c, PHASE_IDLE, c->srv->config->server_idle_timeout);
    conn_flush(c);
    process(c);
    server_check_drained(c->srv);
}

/* ---- closing ------------------------------------------------------------------------------- */

static void on_closed(uv_handle_t *h)
{
    struct conn *c = h->data;
    struct server *srv = c->srv;
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
    srv->connections--;
    srv->closing--;
    srv->late -= c->late;
    buf_free(&c->in);
    buf_free(&c->out);
    buf_free(&c->sending);
    free(c);
    server_check_drained(srv);
}

void conn_close(struct conn *c)
{
    if (c->closing)
        return;
    c->closing = true;
    c->srv->closing++;
    c->srv->room.reserved -= c->reserved;
    c->reserved = false;
    peer_leave(c->peer);
    c->peer = NULL;
    if (c->x) {
        if (c->phase == PHASE_ANSWER)
            c->srv->metrics.disconnects++;
        if (c->x->on_gone)
            c->x->on_gone(c->x);
        end_exchange(c, STATUS_GONE);
    }
    uv_close((uv_handle_t *)&c->tcp, on_closed);
}

static void on_shutdown(uv_shutdown_t *req, int status)
{
    (void)status; /* a failed shutdown ends with the linger deadline all the same */
    (void)req;
}

/* Everything is sent and this was the last response. */
static void linger(struct conn *c)
{
    if (c->phase == PHASE_LINGER)
        return;
    if (c->eof) {
        conn_close(c);
        return;
    }
    enter(c, PHASE_LINGER, LINGER_S);
    buf_clear(&c->in);
    if (uv_shutdown(&c->shutdown, (uv_stream_t *)&c->tcp, on_shutdown))
        conn_close(c);
}

void conn_drain(struct conn *c)
{
    if (c->phase != PHASE_IDLE || c->in.n)
        return;
    if (c->writing || c->out.n) /* an answer is on its way and may say nothing of the end */
        c->close_after = true;
    else
        conn_close(c);
}

/* ---- writing ------------------------------------------------------------------------------- */

struct buf *conn_out(struct conn *c)
{
    return &c->out;
}

size_t conn_unsent(const struct conn *c)
{
    return c->out.n + (c->writing ? uv_stream_get_write_queue_size((uv_stream_t *)&c->tcp) : 0);
}

bool conn_idle(const struct conn *c)
{
    bool between = c->phase == PHASE_LINGER || (c->phase == PHASE_IDLE && !c->in.n);
    return between && !c->writing && !c->out.n;
}

bool conn_busy(const struct conn *c)
{
    return c->phase == PHASE_BODY || c->phase == PHASE_ANSWER;
}

/* What a large answer needed is not kept for the small ones after it. */
static void forget(struct buf *b)
{
    if (b->room > CONN_KEEP_MAX)
        buf_free(b);
    else
        buf_clear(b);
}

static void on_written(uv_write_t *req, int status)
{
    struct conn *c = req->data;
    c->writing = false;
    forget(&c->sending);
    if (c->closing)
        return;
    if (status < 0) {
        conn_close(c);
        return;
    }
    conn_flush(c);
    process(c);
}

void conn_flush(struct conn *c)
{
    if (c->closing || c->writing || !c->out.n)
        return;
    buf_swap(&c->out, &c->sending);
    /* An answer may have 4 GiB and more: uv_buf_init() would take its length for an unsigned. The
     * kernel writes at most 2 GiB at once, libuv then goes on. */
    uv_buf_t b = {.base = c->sending.p, .len = c->sending.n};
    int n = uv_try_write((uv_stream_t *)&c->tcp, &b, 1);
    c->srv->metrics.bytes_out += c->sending.n;
    if (n > 0) {
        b.base += n;
        b.len -= (size_t)n;
    }
    if (b.len == 0) {
        forget(&c->sending);
        return;
    }
    c->writing = true;
    c->write.data = c;
    c->unsent = 0;
    c->progress_ns = clock_ns();
    /* An error here means a dead socket; the read side or on_written closes it. */
    if (uv_write(&c->write, (uv_stream_t *)&c->tcp, &b, 1, on_written))
        c->writing = false;
}

/* ---- reading ------------------------------------------------------------------------------- */

/* Refuses what the parser could not read; the connection ends with the answer. */
static void refuse(struct conn *c, int status, const char *message)
{
    c->x->close = true;
    if (!c->x->id[0])
        exchange_name(c->x);
    respond_fail(c->x, status, NULL, "%s", message);
}

/* A connection that was accepted for one request may be an operator's, or find room by now; false
 * if it has been refused. */
static bool keep_place(struct conn *c)
{
    if (!c->reserved)
        return true;
    if (room_again(c->srv)) {
        c->reserved = false;
        c->srv->room.reserved--;
        c->x->close = false;
        return true;
    }
    if (router_for_operators(c->x->route))
        return true;
    c->srv->metrics.connections_refused++;
    refuse(c, 503, "too many connections are open (server.max_connections)");
    return false;
}

/* The head is complete: refuse early, or let the body come. */
static void accept_head(struct conn *c)
{
    struct exchange *x = c->x;
    exchange_name(x);
    struct api_error e = {0};
    if (router_admit(x, &e)) {
        x->close = x->close || x->req.chunked || x->req.length;
        if (!x->close)
            c->phase = PHASE_ANSWER; /* there is no body: the connection can go on */
        respond_error(x, &e);
        return;
    }
    if (!keep_place(c))
        return;
    const struct slice *expect = http_header(&x->req, "expect");
    if (expect && !slice_is(*expect, "100-continue")) {
        refuse(c, 417, "only `Expect: 100-continue` is understood");
        return;
    }
    bool body = x->req.chunked || x->req.length;
    if (expect && body && x->req.minor == 1) {
        buf_str(&c->out, "HTTP/1.1 100 Continue\r\n\r\n");
        conn_flush(c);
    }
    enter(c, PHASE_BODY, c->srv->config->server_body_timeout);
}

/* Keeps count of the bodies in memory; false if this one was refused. Short ones never are: who
 * fills the memory that there is for bodies must not keep everybody else out. */
static bool count_body(struct conn *c)
{
    struct server *srv = c->srv;
    uint64_t most = (uint64_t)srv->config->server_max_body * BODIES_IN_FLIGHT;
    exchange_hold_body(c->x);
    if (srv->held_bytes <= most || c->x->held <= SHORT_BODY_MAX)
        return true;
    refuse(c, 429, "the requests in memory are as large as may be; try again");
    return false;
}

/* Takes one step through the input; false if it needs more bytes. */
static bool step(struct conn *c)
{
    if (!c->x) {
        buf_consume(&c->in, http_blank(c->in.p, c->in.n));
        if (!c->in.n || (c->in.n == 1 && *c->in.p == '\r')) /* maybe half of another empty line */
            return false;
        begin_exchange(c);
    }
    size_t used;
    enum parse_result r = http_parse(&c->parser, c->in.p, c->in.n, &used);
    buf_consume(&c->in, used);
    switch (r) {
    case PARSE_MORE:
        if (c->phase == PHASE_BODY && !count_body(c))
            return true;
        return used > 0 && c->in.n > 0;
    case PARSE_HEAD:
        accept_head(c);
        return true;
    case PARSE_COMPLETE:
        if (!count_body(c))
            return true;
        enter(c, PHASE_ANSWER, 0);
        router_run(c->x);
        return true;
    case PARSE_REFUSED:
        refuse(c, c->parser.status, c->parser.message);
        return true;
    }
    return false;
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *b)
{
    (void)suggested;
    struct conn *c = h->data;
    *b = uv_buf_init(c->srv->read_buf, sizeof(c->srv->read_buf));
}

static void on_eof(struct conn *c)
{
    c->eof = true;
    bool answering = c->phase == PHASE_ANSWER && !c->x->cancel_on_eof;
    bool sending = !c->x && (c->writing || c->out.n);
    if (answering)
        c->x->close = true;
    else if (sending)
        c->close_after = true;
    else
        conn_close(c);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *b)
{
    struct conn *c = stream->data;
    if (n < 0) {
        uv_read_stop(stream);
        c->reading = false;
        if (n == UV_EOF)
            on_eof(c);
        else
            conn_close(c);
        return;
    }
    if (c->phase == PHASE_LINGER || c->close_after)
        return;
    c->srv->metrics.bytes_in += (uint64_t)n;
    buf_add(&c->in, b->base, (size_t)n);
    process(c);
}

static void control_reading(struct conn *c)
{
    bool want = !c->eof && (c->phase == PHASE_LINGER || c->in.n < CONN_INPUT_MAX);
    if (want == c->reading)
        return;
    c->reading = want;
    if (!want)
        uv_read_stop((uv_stream_t *)&c->tcp);
    else if (uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read))
        conn_close(c);
}

/* Runs requests out of the input for as long as there are bytes and room for answers. Not
 * re-entrant: an answer given within it returns here through conn_answered. */
static void process(struct conn *c)
{
    if (c->processing || c->closing)
        return;
    c->processing = true;
    while (!c->closing && !c->close_after && c->phase != PHASE_ANSWER && c->phase != PHASE_LINGER &&
           conn_unsent(c) < CONN_OUTPUT_BUSY) {
        bool body_due = c->phase == PHASE_BODY && c->parser.state == AT_END;
        if ((!c->in.n && !body_due) || !step(c))
            break;
    }
    c->processing = false;
    if (c->closing)
        return;
    if (c->close_after && !c->writing && !c->out.n)
        linger(c);
    if (!c->closing)
        control_reading(c);
}

/* ---- life ---------------------------------------------------------------------------------- */

void conn_accept(struct server *srv, int fd, const struct sockaddr *from)
{
    struct conn *c = xcalloc(1, sizeof(*c));
    c->srv = srv;
    uv_tcp_init(&srv->loop, &c->tcp);
    c->tcp.data = c;
    c->since = clock_ns();
    c->link = &srv->conns;
    c->next = srv->conns;
    if (c->next)
        c->next->link = &c->next;
    srv->conns = c;
    srv->connections++;
    c->late = srv->draining;
    srv->late += c->late;
    srv->metrics.connections_total++;
    if (uv_tcp_open(&c->tcp, fd)) {
        close(fd);
        conn_close(c);
        return;
    }
    c->peer = peer_join(&srv->room, from);
    bool place = room_for_spare(c) && room_admit(c);
    if (!place)
        room_turn_away(c);
    room_take_spare(srv);
    if (!place)
        return;
    uv_tcp_nodelay(&c->tcp, 1);
    /* A fixed send buffer: what a slow client has not taken stays here, where it is seen. */
    int size = 256 * 1024;
    uv_send_buffer_size((uv_handle_t *)&c->tcp, &size);
    enter(c, PHASE_IDLE, srv->config->server_header_timeout);
    server_sweep(srv);
    control_reading(c);
}

/* While we do not read, only poll() tells that the peer is gone. */
static bool peer_left(struct conn *c)
{
    uv_os_fd_t fd;
    if (c->reading || c->eof || uv_fileno((uv_handle_t *)&c->tcp, &fd))
        return false;
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

static void time_out(struct conn *c)
{
    if (c->phase == PHASE_HEAD || c->phase == PHASE_BODY)
        refuse(c, 408,
               c->phase == PHASE_HEAD ? "the request's headers took too long"
                                      : "the request's body took too long");
    else
        conn_close(c);
}

void conn_cut(struct conn *c, const char *why)
{
    log_info("http", "%s cut: %s", c->x ? c->x->id : "-", why);
    c->srv->metrics.slow_clients++;
    conn_close(c);
}

void conn_sweep(struct conn *c, int64_t now, bool paused)
{
    if (c->closing)
        return;
    size_t queued = c->writing ? uv_stream_get_write_queue_size((uv_stream_t *)&c->tcp) : 0;
    if (queued < c->unsent || !c->unsent || paused)
        c->progress_ns = now;
    c->unsent = queued;
    if (c->writing && c->phase == PHASE_IDLE) /* not idle yet: the answer is on its way */
        c->deadline = after(c->srv->config->server_idle_timeout);
    bool stuck =
        c->writing && (double)(now - c->progress_ns) > c->srv->config->server_write_timeout * 1e9;
    bool flooded = c->x && c->x->streaming && c->out.n > CONN_OUTPUT_MAX;
    if (stuck || flooded) {
        conn_cut(c, "the client takes no bytes");
    } else if (c->deadline && now > c->deadline && !paused) {
        time_out(c);
    } else if (peer_left(c)) {
        conn_close(c);
    }
}
