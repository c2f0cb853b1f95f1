/* SPDX-License-Identifier: Apache-2.0 */
/* world.c - one server for all inputs of a process. */
#include "tests/fuzz/world.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "config/log.h"
#include "server/conn.h"
#include "server/dashboard.h"
#include "server/generation.h"
#include "server/server.h"
#include "tests/unit/server/toy_engine.h"

const unsigned char dashboard_page[] = "page";
const size_t dashboard_size = 4;
const char dashboard_policy[] = "default-src 'self'";

static struct server *server;

static void turn(void)
{
    uv_run(&server->loop, UV_RUN_NOWAIT);
}

static void start(void)
{
    static char *argv[] = {(char *)"serve", NULL};
    static struct config c = {.server_host = (char *)"127.0.0.1",
                              .server_max_body = 16384,
                              .server_max_answer = 1 << 20,
                              .server_max_connections = 8,
                              .server_header_timeout = 3600,
                              .server_body_timeout = 3600,
                              .server_idle_timeout = 3600,
                              .server_write_timeout = 3600,
                              .server_max_queue = 256,
                              .engine_max_batch = 64,
                              .server_metrics_open = true,
                              .server_hosts = (char *)"h",
                              .server_cors_origins = (char *)"https://app.example"};
    struct err err;
    signal(SIGPIPE, SIG_IGN);
    log_set_level(LOG_ERROR);
    toy_reset();
    toy.batch = 64;
    toy.queue = 256;
    struct engine *engine = engine_start(&c, &err);
    server = server_open(&c, engine, specializer_start(&c, engine, &err), 1, argv, &err);
    if (!server) {
        fprintf(stderr, "server_open: %s\n", err.msg);
        abort();
    }
    uv_signal_stop(&server->sigterm); /* libFuzzer has its own ideas of them */
    uv_signal_stop(&server->sigint);
    server_sweep(server);
    while (!server->ready)
        uv_run(&server->loop, UV_RUN_ONCE);
}

static int connect_to(int port)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct linger reset = {.l_onoff = 1}; /* no port waits for a minute after each input */
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, (struct sockaddr *)&a, sizeof(a)))
        abort();
    int now = 1;
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &now, sizeof(now));
    return fd;
}

/* Takes what has been sent to the client; what it is does not matter here. */
static size_t take(int fd)
{
    static char answers[65536];
    ssize_t n = recv(fd, answers, sizeof(answers), MSG_DONTWAIT);
    return n > 0 ? (size_t)n : 0;
}

/* Turns the loop until nothing moves any more: three turns with nothing to read, work or send. */
static void settle(int fd)
{
    for (int still = 0; still < 3;) {
        bool busy = server->generations || lanes_works(&server->lanes);
        uv_run(&server->loop, busy ? UV_RUN_ONCE : UV_RUN_NOWAIT);
        still = busy || take(fd) ? 0 : still + 1;
    }
}

struct fuzz_counts fuzz_send(const char *data, size_t n, size_t piece)
{
    struct fuzz_counts counts;
    if (!server)
        start();
    memcpy(counts.requests, server->metrics.requests, sizeof(counts.requests));
    int fd = connect_to(server->port);
    for (size_t at = 0; at < n; at += piece) {
        if (send(fd, data + at, n - at < piece ? n - at : piece, MSG_NOSIGNAL) < 0)
            break; /* it has been refused and closed */
        turn();
    }
    settle(fd);
    close(fd);
    while (server->connections || server->generations || lanes_works(&server->lanes))
        uv_run(&server->loop, UV_RUN_ONCE);
    if (server->held_bytes || server->exchanges || server->room.reserved || server->closing) {
        fprintf(stderr, "left behind: %llu bytes, %d requests, %d places\n",
                (unsigned long long)server->held_bytes, server->exchanges, server->room.reserved);
        abort();
    }
    for (int r = 0; r < METRIC_ROUTES; r++)
        for (int c = 0; c < METRIC_CODES; c++)
            counts.requests[r][c] = server->metrics.requests[r][c] - counts.requests[r][c];
    return counts;
}
