/* SPDX-License-Identifier: Apache-2.0 */
/* loop.c - the server as a whole: the listener, signals, the sweep, the drain.
 *
 * One libuv loop. Every timeout is a deadline that one timer looks at every 50 ms while there is
 * something to look at, so connections and generations need no timers of their own and nothing
 * wakes an idle server.
 *
 * Stopping: after the first SIGTERM or SIGINT /ready says draining. For server.drain_delay_s
 * requests are taken all the same, because a balancer goes on sending them until it has asked
 * /ready again; each answer closes its connection, but idle ones stay: a request may be on its way
 * there. Then running requests may end, and new ones are refused with 503. The port stays open
 * meanwhile, so that a balancer reads "draining" and not a refused connection. After server.drain_s
 * what runs is cancelled with an error; when the last connection from before the signal is gone,
 * the port and whoever came late are closed and the loop ends. An engine that makes no step for
 * DRAIN_GRACE_S meanwhile ends the process. The first signal also gives up the
 * handlers, so a second one ends the process at once, whatever the loop is doing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/log.h"
#include "server/chat.h"
#include "server/conn.h"
#include "server/generation.h"
#include "server/listener.h"
#include "server/server.h"

/* ---- the drain ----------------------------------------------------------------------------- */

static void close_all(uv_handle_t *h, void *arg)
{
    (void)arg;
    if (!uv_is_closing(h))
        uv_close(h, NULL);
}

static void each_conn(struct server *s, void (*fn)(struct conn *c))
{
    for (struct conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        fn(c);
    }
}

void server_check_drained(struct server *s)
{
    if (!s->draining || s->connections > s->late || s->generations)
        return;
    listener_close(s);
    each_conn(s, conn_close);
    if (!s->connections && !lanes_works(&s->lanes))
        uv_walk(&s->loop, close_all, NULL);
}

static void start_drain(struct server *s, const char *why)
{
    if (s->draining)
        return;
    if (s->ready)
        log_info("server", "%s: no new requests; %d running get %.1f s", why, s->exchanges,
                 s->config->server_drain_s);
    s->draining = true;
    s->drain_until = clock_ns() + (int64_t)(s->config->server_drain_s * 1e9);
    each_conn(s, conn_drain);
    server_sweep(s);
    server_check_drained(s);
}

/* The first word that it is to stop. Nobody sends requests to a server that was never ready, so
 * that one need not wait for a balancer. */
static void begin_stop(struct server *s, const char *why)
{
    if (s->leaving || s->draining) /* and what happened since may have closed every handle */
        return;
    uv_signal_stop(&s->sigterm);
    uv_signal_stop(&s->sigint);
    double delay = s->config->server_drain_delay_s;
    if (!s->ready || delay <= 0) {
        start_drain(s, why);
        return;
    }
    log_info("server", "%s: /ready says draining; requests are taken for another %.1f s", why,
             delay);
    s->leaving = true;
    s->leave_until = clock_ns() + (int64_t)(delay * 1e9);
    server_sweep(s);
}

/* What was cancelled ends with the engine's next step. If there is none, nothing that waits for the
 * engine would end either; the kernel takes back its memory and its device, and the store bears any
 * end. */
static void end_if_stalled(const struct server *s, int64_t now)
{
    double stalled = engine_stalled_s(s->engine);
    if ((double)(now - s->cancelled_ns) < DRAIN_GRACE_S * 1e9 || stalled < DRAIN_GRACE_S)
        return;
    log_error("server",
              "the engine has made no step for %.0f s and cannot be stopped; giving it up",
              stalled);
    fflush(NULL);
    _exit(1);
}

/* The drain time is over: first an error to everybody, a moment later the connections, and then
 * an engine that does not stop. */
static void end_drain(struct server *s, int64_t now)
{
    if (!s->cancelled_ns) {
        s->cancelled_ns = now;
        s->drain_until = now + 1000000000;
        if (s->exchanges)
            log_warn("server", "drain time is over: cancelling %d requests", s->exchanges);
        generations_cancel(s);
    } else {
        each_conn(s, conn_close);
        end_if_stalled(s, now);
    }
}

static void on_signal(uv_signal_t *h, int signum)
{
    begin_stop(h->data, signum == SIGINT ? "SIGINT" : "SIGTERM");
}

/* Re-reads keys and the log level; what cannot be read leaves everything as it was. */
static void on_hup(uv_signal_t *h, int signum)
{
    (void)signum;
    struct server *s = h->data;
    struct err err;
    struct config fresh;
    memset(&fresh, 0, sizeof(fresh));
    if (config_parse(&fresh, s->argc, s->argv, &err) != 0) {
        log_error("server", "SIGHUP: %s; nothing changed", err.msg);
        config_free(&fresh);
        return;
    }
    if (auth_load(&s->auth, &fresh, &err)) {
        log_error("server", "SIGHUP: %s; nothing changed", err.msg);
    } else {
        log_info("server", "SIGHUP: %d API keys, %d admin keys", s->auth.user.n, s->auth.admin.n);
        log_set_level((enum log_level)log_level_parse(fresh.log_level));
    }
    config_free(&fresh);
}

/* ---- the sweep ----------------------------------------------------------------------------- */

/* While the model loads: is it there, has it failed? A model that cannot be loaded ends whet. */
static void check_engine(struct server *s)
{
    double progress;
    char message[512];
    enum engine_state state = engine_state(s->engine, &progress, message, sizeof(message));
    if (state == ENGINE_LOADING)
        return;
    if (state == ENGINE_FAILED) {
        log_error("server", "the model could not be loaded: %s", message);
        s->exit_code = 1;
        begin_stop(s, "no model");
        return;
    }
    const struct engine_info *info = engine_info(s->engine);
    struct err err;
    s->chat = chat_parse(info->chat_template, &err);
    if (!s->chat) {
        snprintf(s->chat_error, sizeof(s->chat_error), "%s", err.msg);
        log_warn("server", "/v1/chat/completions is off: %s", s->chat_error);
    }
    s->ready = true;
    s->ready_ns = clock_ns();
    log_info("server", "ready after %.1f s: %s (%s) on %s, context %d",
             (double)(clock_ns() - s->started_ns) * 1e-9, info->model_name, info->description,
             info->device, info->max_context);
}

/* Bytes of answers: those that gather, and those that clients have not taken. */
static uint64_t answer_bytes(const struct server *s, struct conn **most, struct generation **all)
{
    uint64_t sum = 0, largest = 0;
    *most = NULL;
    *all = NULL;
    for (struct conn *c = s->conns; c; c = c->next) {
        uint64_t n = c->closing ? 0 : conn_unsent(c);
        sum += n;
        if (n > largest) {
            largest = n;
            *most = c;
        }
    }
    for (struct generation *g = s->generations; g; g = g->next) {
        sum += g->answer_bytes;
        if (g->x && g->answer_bytes > largest) {
            largest = g->answer_bytes;
            *all = g;
        }
    }
    return sum;
}

/* However many clients there are: whoever holds most is the first to lose it. */
static void limit_answers(struct server *s)
{
    uint64_t max = (uint64_t)s->config->server_max_answer * ANSWERS_IN_FLIGHT;
    struct conn *conn;
    struct generation *g;
    while (answer_bytes(s, &conn, &g) > max && (conn || g))
        if (g)
            generation_too_large(g, max);
        else
            conn_cut(conn, "answers that no client takes fill the memory there is for them");
}

void server_measure(struct server *s)
{
    struct conn *conn;
    struct generation *g;
    s->metrics.connections = s->connections - s->closing;
    s->metrics.pending_bytes = s->held_bytes;
    s->metrics.pending_jobs = (uint64_t)lanes_client_works(&s->lanes);
    s->metrics.answer_bytes = answer_bytes(s, &conn, &g);
}

static void on_sweep(uv_timer_t *timer)
{
    struct server *s = timer->data;
    int64_t now = clock_ns();
    bool paused = now - s->swept_ns > PAUSE_MS * INT64_C(1000000);
    s->swept_ns = now; /* the next sweep comes after what has arrived is read */
    for (struct conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        conn_sweep(c, now, paused);
    }
    generations_sweep(s, now);
    limit_answers(s);
    room_take_spare(s);
    if (!s->ready && !s->draining)
        check_engine(s);
    if (s->leaving && !s->draining && now > s->leave_until)
        start_drain(s, "the drain delay is over");
    if (s->draining && now > s->drain_until)
        end_drain(s, now);
    server_check_drained(s);
    if (s->ready && !s->conns && !s->generations && !s->leaving && !s->draining) {
        uv_timer_stop(timer);
        s->sweeping = false;
    }
}

void server_sweep(struct server *s)
{
    if (s->sweeping || uv_is_closing((uv_handle_t *)&s->sweep))
        return;
    s->sweeping = true;
    s->swept_ns = clock_ns();
    uv_timer_start(&s->sweep, on_sweep, SWEEP_MS, SWEEP_MS);
}

static void on_wake(uv_async_t *h)
{
    struct server *s = h->data;
    lanes_deliver(&s->lanes);
    generations_deliver(s);
    if (atomic_load(&s->stop))
        begin_stop(s, "stop");
}

/* ---- life ---------------------------------------------------------------------------------- */

/* Nothing may be done with a loop that failed, not even close it: what it has goes with the
 * process. */
static int init_handles(struct server *s, struct err *err)
{
    int rc = uv_loop_init(&s->loop);
    if (!rc)
        rc = uv_async_init(&s->loop, &s->wake, on_wake);
    if (!rc)
        rc = uv_signal_init(&s->loop, &s->sigterm);
    if (rc)
        return err_set(err, "no event loop: %s", uv_strerror(rc));
    uv_timer_init(&s->loop, &s->sweep);
    uv_signal_init(&s->loop, &s->sigint);
    uv_signal_init(&s->loop, &s->sighup);
    s->wake.data = s->sweep.data = s;
    s->sigterm.data = s->sigint.data = s->sighup.data = s;
    return 0;
}

struct server *server_open(const struct config *c, struct engine *e, struct specializer *sp,
                           int argc, char **argv, struct err *err)
{
    struct server *s = xcalloc(1, sizeof(*s));
    s->config = c;
    s->engine = e;
    s->specializer = sp;
    s->argc = argc;
    s->argv = argv;
    s->started_ns = clock_ns();
    s->keepalive_s = KEEPALIVE_S;
    metrics_init(&s->metrics);
    if (init_handles(s, err) != 0) {
        free(s);
        return NULL;
    }
    inbox_init(&s->inbox, &s->wake);
    room_open(s);
    if (lanes_open(&s->lanes, &s->wake, err) || auth_load(&s->auth, c, err) ||
        listener_open(s, err)) {
        uv_walk(&s->loop, close_all, NULL);
        uv_run(&s->loop, UV_RUN_DEFAULT);
        server_close(s);
        return NULL;
    }
    /* Before anybody can know the port: a signal from here on waits for the loop. */
    uv_signal_start(&s->sigterm, on_signal, SIGTERM);
    uv_signal_start(&s->sigint, on_signal, SIGINT);
    uv_signal_start(&s->sighup, on_hup, SIGHUP);
    return s;
}

int server_port(const struct server *s)
{
    return s->port;
}

int server_run(struct server *s)
{
    check_engine(s);
    server_sweep(s);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    return s->exit_code;
}

void server_stop(struct server *s)
{
    atomic_store(&s->stop, true);
    uv_async_send(&s->wake);
}

void server_close(struct server *s)
{
    lanes_close(&s->lanes);
    room_close(s);
    uv_loop_close(&s->loop);
    inbox_free(&s->inbox);
    auth_free(&s->auth);
    chat_free(s->chat);
    free(s);
}
