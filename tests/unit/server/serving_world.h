/* SPDX-License-Identifier: Apache-2.0 */
/* serving_world.h - a server on a toy engine for every test, and requests that take long. */
#ifndef WHET_TESTS_UNIT_SERVER_SERVING_WORLD_H
#define WHET_TESTS_UNIT_SERVER_SERVING_WORLD_H

#include "tests/unit/unit.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client.h"
#include "config/clock.h"
#include "server/json.h"
#include "toy_engine.h"

static inline int start(void **state)
{
    (void)state;
    toy_reset();
    serving_config = (struct config){.server_host = (char *)"127.0.0.1",
                                     .server_max_body = 100000,
                                     .server_max_connections = 50,
                                     .server_max_answer = 64 << 20,
                                     .server_hosts = (char *)"t",
                                     .server_header_timeout = 60,
                                     .server_body_timeout = 60,
                                     .server_idle_timeout = 60,
                                     .server_write_timeout = 60,
                                     .server_drain_s = 5,
                                     .server_max_queue = 8,
                                     .engine_max_batch = 8,
                                     .server_metrics_open = true,
                                     .server_cors_origins = (char *)"https://app.example"};
    serving_start();
    return 0;
}

static inline int stop(void **state)
{
    (void)state;
    if (serving)
        assert_int_equal(serving_stop(), 0);
    return 0;
}

/* Waits for a counter of the toy, a minute at most. */
static inline void wait_for(_Atomic int *counter, int value)
{
    for (int i = 0; i < 60000 && *counter != value; i++)
        usleep(1000);
    assert_int_equal(*counter, value);
}

/* Gets `path`, each time on a connection of its own, until the answer has `status`. */
static inline void wait_for_status(const char *path, int status)
{
    int got = 0;
    for (int i = 0; i < 6000 && got != status; i++) {
        int fd = client_open();
        client_send(fd, "GET %s HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n", path);
        got = client_status(client_response(fd));
        close(fd);
        usleep(got == status ? 0 : 10000);
    }
    assert_int_equal(got, status);
}

#define LONG_STREAM "{\"prompt\":\"abcdefgh\",\"max_tokens\":500,\"stream\":true}"
#define LONG_PLAIN "{\"prompt\":\"abcdefgh\",\"max_tokens\":500}"

#define TEST(f) cmocka_unit_test_setup_teardown(f, start, stop)

#endif
