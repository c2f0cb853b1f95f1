/* SPDX-License-Identifier: Apache-2.0 */
/* client.c - a server with the toy engine on a thread, and a bare socket client. */
#include "client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "config/log.h"
#include "toy_engine.h"

struct config serving_config;
struct server *serving;
void (*serving_prepare)(void);
static struct engine *engine;
static struct specializer *specializer;
static pthread_t thread;
static int exit_code;

static void *serve(void *arg)
{
    (void)arg;
    exit_code = server_run(serving);
    return NULL;
}

void serving_start(void)
{
    static char *argv[] = {(char *)"serve", NULL};
    struct err err;
    log_set_level(LOG_ERROR);
    engine = engine_start(&serving_config, &err);
    specializer = specializer_start(&serving_config, engine, &err);
    serving = server_open(&serving_config, engine, specializer, 1, argv, &err);
    if (!serving) {
        fprintf(stderr, "server_open: %s\n", err.msg);
        abort();
    }
    if (serving_prepare)
        serving_prepare();
    pthread_create(&thread, NULL, serve, NULL);
}

int serving_stop(void)
{
    server_stop(serving);
    pthread_join(thread, NULL);
    specializer_stop(specializer);
    engine_stop(engine);
    server_close(serving);
    serving = NULL;
    return exit_code;
}

int client_open(void)
{
    return client_open_from(1);
}

int client_open_from(int host)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct timeval patience = {.tv_sec = 60};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    struct sockaddr_in a = {.sin_family = AF_INET};
    a.sin_addr.s_addr = htonl((INADDR_LOOPBACK & ~255u) | (unsigned)host);
    if (bind(fd, (struct sockaddr *)&a, sizeof(a))) {
        close(fd);
        return -1;
    }
    a.sin_port = htons((uint16_t)serving->port);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, (struct sockaddr *)&a, sizeof(a))) {
        close(fd);
        return -1;
    }
    return fd;
}

void client_send(int fd, const char *fmt, ...)
{
    va_list args;
    char *text;
    va_start(args, fmt);
    int n = vasprintf(&text, fmt, args);
    va_end(args);
    for (int sent = 0, k; sent < n; sent += k)
        if ((k = (int)send(fd, text + sent, (size_t)(n - sent), MSG_NOSIGNAL)) <= 0)
            break;
    free(text);
}

void client_post(int fd, const char *path, const char *json)
{
    client_send(fd,
                "POST %s HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
                "Content-Length: %zu\r\n\r\n%s",
                path, strlen(json), json);
}

static struct buf got;

/* Of a socket that waits for a limited time, Linux ends a wait when the process was stopped and
 * goes on. */
static ssize_t receive(int fd, char *c)
{
    ssize_t n;
    do
        n = recv(fd, c, 1, 0);
    while (n < 0 && errno == EINTR);
    return n;
}

/* One byte at a time: what follows a response stays in the socket. */
static bool more(int fd)
{
    char c;
    if (receive(fd, &c) != 1)
        return false;
    buf_char(&got, c);
    return true;
}

static const char *text(void)
{
    buf_reserve(&got, 1);
    got.p[got.n] = '\0';
    return got.p;
}

static bool ends_with(const char *s)
{
    size_t n = strlen(s);
    return got.n >= n && memcmp(got.p + got.n - n, s, n) == 0;
}

const char *client_until(int fd, const char *end)
{
    buf_clear(&got);
    while (!ends_with(end) && more(fd))
        continue;
    return text();
}

static void read_chunks(int fd)
{
    for (;;) {
        size_t start = got.n;
        while ((got.n < start + 2 || !ends_with("\r\n")) && more(fd))
            continue;
        size_t size = strtoul(text() + start, NULL, 16);
        got.n = start;
        for (size_t i = 0; i < size + 2 && more(fd); i++)
            continue;
        got.n = got.n >= 2 ? got.n - 2 : 0;
        if (!size)
            return;
    }
}

const char *client_response(int fd)
{
    if (!*client_until(fd, "\r\n\r\n"))
        return "";
    const char *length = strstr(text(), "Content-Length: ");
    if (strstr(text(), "Transfer-Encoding: chunked"))
        read_chunks(fd);
    else if (length)
        for (long left = atol(length + 16); left > 0 && more(fd); left--)
            continue;
    return text();
}

bool client_closed(int fd)
{
    char c;
    return receive(fd, &c) == 0;
}

int client_status(const char *response)
{
    int status = 0;
    sscanf(response, "HTTP/1.1 %d", &status);
    return status;
}

const char *client_body(const char *response)
{
    const char *end = strstr(response, "\r\n\r\n");
    return end ? end + 4 : "";
}
