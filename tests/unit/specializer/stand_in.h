/* SPDX-License-Identifier: Apache-2.0 */
/* stand_in.h - a chat completions endpoint that can misbehave: one thread, one connection at a
 * time, on a port of its own. What it does next is `mode`; what it was sent last is kept. */
#ifndef WHET_TESTS_UNIT_SPECIALIZER_STAND_IN_H
#define WHET_TESTS_UNIT_SPECIALIZER_STAND_IN_H

#include <arpa/inet.h>
#include <cjson/cJSON.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum stand_in_mode {
    STAND_IN_OK,      /* a completion with `content` */
    STAND_IN_PLAIN,   /* the same, but 400 if response_format is given */
    STAND_IN_LATE,    /* the same after 300 ms */
    STAND_IN_HELD,    /* the same once it is in another mode */
    STAND_IN_SILENT,  /* says nothing at all */
    STAND_IN_CLOSED,  /* closes its half without a word */
    STAND_IN_HALF,    /* half of what Content-Length promises, then closes */
    STAND_IN_GARBAGE, /* bytes that are no HTTP */
    STAND_IN_TEXT,    /* HTTP with text that is no JSON */
    STAND_IN_OTHER,   /* JSON that is no completion */
    STAND_IN_ZERO,    /* a completion with a zero in its text */
    STAND_IN_ESCAPE,  /* a completion with a malformed escape */
    STAND_IN_BIG,     /* 10 MB, with its length */
    STAND_IN_HEADERS, /* 10 MB of headers, then a completion's */
    STAND_IN_ENDLESS, /* as much as is taken, without a length */
    STAND_IN_STATUS,  /* `status` with `header` */
};

enum { STAND_IN_REQUEST = 256 * 1024 };

struct stand_in {
    int socket, port;
    pthread_t thread;
    atomic_bool stop;
    _Atomic int mode, status, requests;
    char header[200];
    pthread_mutex_t lock;
    char *content;                  /* lock: stand_in_say() */
    char claims[120];               /* lock: of its usage, if not the usual */
    char request[STAND_IN_REQUEST]; /* lock: head and body of the last one, stand_in_heard() */
    char reading[STAND_IN_REQUEST]; /* the one that is coming in */
};

static inline void stand_in_send(int to, const char *data, size_t n)
{
    while (n > 0) {
        ssize_t k = send(to, data, n, MSG_NOSIGNAL);
        if (k <= 0)
            return;
        data += k;
        n -= (size_t)k;
    }
}

/* Reads one request into s->request; false if the connection ended. */
static inline bool stand_in_read(struct stand_in *s, int from)
{
    char *in = s->reading;
    size_t n = 0, want = 0;
    in[0] = 0;
    while (n + 1 < STAND_IN_REQUEST && (want == 0 || n < want)) {
        ssize_t k = recv(from, in + n, STAND_IN_REQUEST - 1 - n, 0);
        if (k <= 0)
            return false;
        n += (size_t)k;
        in[n] = 0;
        const char *body = strstr(in, "\r\n\r\n");
        const char *length = strcasestr(in, "\r\nContent-Length:");
        if (body && length)
            want = (size_t)(body + 4 - in) + strtoul(length + 17, NULL, 10);
    }
    pthread_mutex_lock(&s->lock);
    memcpy(s->request, in, n + 1);
    pthread_mutex_unlock(&s->lock);
    return want > 0 && n >= want;
}

static inline void stand_in_answer(int to, int status, const char *header, const char *body)
{
    char head[600];
    snprintf(head, sizeof head, "HTTP/1.1 %d Some\r\nContent-Length: %zu\r\n%s\r\n", status,
             strlen(body), header);
    stand_in_send(to, head, strlen(head));
    stand_in_send(to, body, strlen(body));
}

/* `claims`: JSON of the usage in place of the usual, or "". */
static inline char *stand_in_completion(const char *content, const char *claims)
{
    cJSON *o = cJSON_CreateObject(), *choice = cJSON_CreateObject();
    cJSON_AddItemToArray(cJSON_AddArrayToObject(o, "choices"), choice);
    cJSON *message = cJSON_AddObjectToObject(choice, "message");
    cJSON_AddStringToObject(message, "role", "assistant");
    cJSON_AddStringToObject(message, "content", content);
    cJSON_AddRawToObject(o, "usage",
                         *claims ? claims : "{\"prompt_tokens\":1234,\"completion_tokens\":56}");
    char *text = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    return text;
}

static inline void stand_in_flood(int to, bool with_length)
{
    static char block[65536];
    const char *head = with_length ? "HTTP/1.1 200 OK\r\nContent-Length: 10485760\r\n\r\n"
                                   : "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
    memset(block, ' ', sizeof block);
    stand_in_send(to, head, strlen(head));
    for (int i = 0; i < 160; i++)
        stand_in_send(to, block, sizeof block);
}

static inline void stand_in_flood_headers(int to)
{
    static const char head[] = "HTTP/1.1 200 OK\r\n", end[] = "Content-Length: 2\r\n\r\n{}";
    char line[8192];
    memset(line, 'x', sizeof line);
    memcpy(line, "X-Filler: ", 10);
    memcpy(line + sizeof line - 2, "\r\n", 2);
    stand_in_send(to, head, sizeof head - 1);
    for (int i = 0; i < 1280; i++)
        stand_in_send(to, line, sizeof line);
    stand_in_send(to, end, sizeof end - 1);
}

static inline void stand_in_misbehave(struct stand_in *s, int to, int mode)
{
    static const char half[] = "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{\"choices\":[{";
    static const char garbage[] = "\x16\x03\x01\x02 \xff\xfe surely no HTTP\r\n\r\n\x01\x02";
    if (mode == STAND_IN_SILENT)
        while (!atomic_load(&s->stop) && atomic_load(&s->mode) == mode)
            usleep(2000);
    else if (mode == STAND_IN_HALF)
        stand_in_send(to, half, sizeof half - 1);
    else if (mode == STAND_IN_GARBAGE)
        stand_in_send(to, garbage, sizeof garbage - 1);
    else if (mode == STAND_IN_TEXT)
        stand_in_answer(to, 200, "", "<html>Welcome to the captive portal</html>");
    else if (mode == STAND_IN_OTHER)
        stand_in_answer(to, 200, "", "{\"choices\":[{\"message\":{\"content\":[1]}}]}");
    else if (mode == STAND_IN_ZERO)
        stand_in_answer(to, 200, "", "{\"choices\":[{\"message\":{\"content\":\"{}\\u0000{}\"}}]}");
    else if (mode == STAND_IN_ESCAPE)
        stand_in_answer(to, 200, "", "{\"choices\":[{\"message\":{\"content\":\"{}\\u00g1\"}}]}");
    else if (mode == STAND_IN_BIG || mode == STAND_IN_ENDLESS)
        stand_in_flood(to, mode == STAND_IN_BIG);
    else if (mode == STAND_IN_HEADERS)
        stand_in_flood_headers(to);
    else if (mode == STAND_IN_CLOSED)
        shutdown(to, SHUT_WR);
}

static inline void stand_in_serve(struct stand_in *s, int to)
{
    if (!stand_in_read(s, to))
        return;
    int mode = atomic_load(&s->mode);
    atomic_fetch_add(&s->requests, 1);
    if (mode == STAND_IN_LATE)
        usleep(300000);
    while (mode == STAND_IN_HELD && !atomic_load(&s->stop) && atomic_load(&s->mode) == mode)
        usleep(2000);
    if (mode == STAND_IN_STATUS) {
        stand_in_answer(to, atomic_load(&s->status), s->header, "{\"error\":\"no\"}");
    } else if (mode == STAND_IN_PLAIN && strstr(s->reading, "response_format")) {
        stand_in_answer(to, 400, "", "{\"error\":\"response_format is not supported\"}");
    } else if (mode <= STAND_IN_HELD) {
        pthread_mutex_lock(&s->lock);
        char *text = stand_in_completion(s->content ? s->content : "", s->claims);
        pthread_mutex_unlock(&s->lock);
        stand_in_answer(to, 200, "Content-Type: application/json\r\n", text);
        free(text);
    } else {
        stand_in_misbehave(s, to, mode);
    }
}

static inline void *stand_in_thread(void *ctx)
{
    struct stand_in *s = ctx;
    while (!atomic_load(&s->stop)) {
        int to = accept(s->socket, NULL, NULL);
        if (to < 0)
            continue;
        stand_in_serve(s, to);
        close(to);
    }
    return NULL;
}

/* Whether its last request has this text in it; any thread, also while the next one comes in. */
static inline bool stand_in_heard(struct stand_in *s, const char *text)
{
    pthread_mutex_lock(&s->lock);
    bool heard = strstr(s->request, text) != NULL;
    pthread_mutex_unlock(&s->lock);
    return heard;
}

/* What completions say from now on; malloc'ed, taken over. */
static inline void stand_in_say(struct stand_in *s, char *content)
{
    pthread_mutex_lock(&s->lock);
    free(s->content);
    s->content = content;
    pthread_mutex_unlock(&s->lock);
}

static inline void stand_in_open(struct stand_in *s)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    memset(s, 0, sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    s->socket = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(s->socket, (struct sockaddr *)&at, sizeof at) != 0 || listen(s->socket, 8) != 0 ||
        getsockname(s->socket, (struct sockaddr *)&at, &n) != 0)
        abort();
    s->port = ntohs(at.sin_port);
    if (pthread_create(&s->thread, NULL, stand_in_thread, s) != 0)
        abort();
}

static inline void stand_in_close(struct stand_in *s)
{
    atomic_store(&s->stop, true);
    shutdown(s->socket, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->socket);
    stand_in_say(s, NULL);
    pthread_mutex_destroy(&s->lock);
}

#endif
