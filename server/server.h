/* SPDX-License-Identifier: Apache-2.0 */
/* server.h - the HTTP server: what main() uses, and what the files of server/ share.
 *
 * Everything here lives on the loop thread except the inbox (engine thread appends) and the
 * lanes' threads (json, tokenizing, admin calls), which touch only what they are given.
 */
#ifndef WHET_SERVER_SERVER_H
#define WHET_SERVER_SERVER_H

#include <stdatomic.h>
#include <uv.h>

#include "config/config.h"
#include "engine/engine.h"
#include "server/auth.h"
#include "server/inbox.h"
#include "server/lanes.h"
#include "server/limits.h"
#include "server/metrics.h"
#include "server/room.h"
#include "specializer/specializer.h"

struct chat_template;
struct conn;
struct generation;

struct server {
    const struct config *config;
    struct engine *engine;
    struct specializer *specializer; /* NULL: its store could not be opened */
    int argc;                        /* the command line, read again on SIGHUP */
    char **argv;

    uv_loop_t loop;
    uv_poll_t listener; /* of listen_fd, while `listening` */
    uv_async_t wake;    /* the inbox has events, or stop was asked for */
    uv_timer_t sweep;   /* every timeout there is; runs only while there is something to time */
    uv_signal_t sigterm, sigint, sighup;
    int listen_fd, port;
    bool listening, sweeping;
    int64_t swept_ns; /* the last sweep, or when they began */

    struct conn *conns;    /* list */
    int connections, late; /* open; of them accepted while draining: nobody waits for those */
    int closing;           /* of the open ones, those whose end is only a turn of the loop away */
    struct room room;
    uint64_t held_bytes; /* of requests: bodies, those that wait for a thread, prompts */
    int exchanges;       /* requests being answered */
    struct lanes lanes;
    struct generation *generations; /* list */

    struct inbox inbox;
    struct auth auth;
    struct metrics metrics;
    int64_t started_ns;
    double keepalive_s; /* silence before a stream gets a comment */

    bool ready;                 /* the model is loaded: engine_info is valid */
    int64_t ready_ns;           /* since when */
    struct chat_template *chat; /* once ready; NULL: it cannot be run, chat_error says why */
    char chat_error[512];
    bool leaving; /* told to stop: /ready says draining, requests are taken until leave_until */
    int64_t leave_until; /* clock_ns */
    bool draining;       /* no new requests; /ready and /health say so to whoever asks */
    int64_t
        cancelled_ns;    /* the drain time was over, and what still ran was cancelled; 0: not yet */
    int64_t drain_until; /* clock_ns */
    _Atomic bool stop;   /* asked for by server_stop */
    int exit_code;
    char read_buf[65536]; /* one read at a time: the loop is one thread */
};

/* Binds and prepares; NULL with a message. `specializer` may be NULL. The engine may still be
 * loading: until it is ready generation routes answer 503. argv is what SIGHUP reads again. */
struct server *server_open(const struct config *c, struct engine *e, struct specializer *s,
                           int argc, char **argv, struct err *err);
int server_port(const struct server *s);
/* Serves until a signal or server_stop; returns the exit code. */
int server_run(struct server *s);
/* Starts the drain, as SIGTERM does; any thread. */
void server_stop(struct server *s);
/* After server_run returned and the engine was stopped. */
void server_close(struct server *s);

/* `bytes` that were counted in held_bytes are freed. */
static inline void server_release(struct server *s, uint64_t bytes)
{
    s->held_bytes -= bytes;
}
/* Copies the loop's own numbers into the metrics' gauges. */
void server_measure(struct server *s);
/* Starts the sweep timer if it is not running; it stops by itself. */
void server_sweep(struct server *s);
/* Stops listening and ends the loop when draining and nothing is left to finish. */
void server_check_drained(struct server *s);

/* `whet serve`: argv[0] is "serve". Returns the exit code. */
int serve_main(int argc, char **argv);

#endif
