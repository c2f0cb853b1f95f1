/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_link.c - framed messages on sockets that do not block, with an end to every wait. */
#include "engine/ranks_link.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "config/clock.h"

enum { RETRY_MS = 100, POLL_MS = 1000 };

static const uint32_t MAGIC = 0x31726b77; /* also tells the other byte order */

struct frame {
    uint32_t magic, kind;
    uint64_t n;
};

void link_message_free(struct link_message *m)
{
    free(m->data);
    *m = (struct link_message){0};
}

/* 1: `events` are there; 0: it is `until`. */
static int wait_for(int fd, short events, int64_t until)
{
    for (;;) {
        int64_t left = until ? until - clock_ns() : INT64_MAX;
        struct pollfd p = {fd, events, 0};
        int ms = left / 1000000 < POLL_MS ? (int)(left / 1000000) : POLL_MS;
        int rc = poll(&p, 1, ms > 0 ? ms : 0);
        if (rc > 0 || (rc < 0 && errno != EINTR))
            return 1; /* an error shows at the next call */
        if (left <= 0)
            return 0;
    }
}

/* ---- sockets -------------------------------------------------------------------------------- */

static struct addrinfo *resolve(const char *host, int32_t port, int flags, struct err *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
    struct addrinfo *all = NULL;
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    int code = getaddrinfo(host, service, &hints, &all);
    if (code == 0)
        return all;
    err_set(err, "rank 0 at %s: %s", host ? host : "*", gai_strerror(code));
    return NULL;
}

static void at_once(int fd)
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
}

static int listen_at(const struct addrinfo *a)
{
    int one = 1;
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 64) == 0)
        return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

static int32_t port_of(int fd)
{
    struct sockaddr_storage at;
    socklen_t n = sizeof at;
    if (getsockname(fd, (struct sockaddr *)&at, &n))
        return 0;
    return ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                          : ((struct sockaddr_in *)&at)->sin_port);
}

int link_listen(const char *host, int32_t *port, struct err *err)
{
    struct addrinfo *all = resolve(host, *port, 0, err);
    if (!all)
        return -1;
    int fd = listen_at(all);
    freeaddrinfo(all);
    if (fd < 0 && errno == EADDRNOTAVAIL && (all = resolve(NULL, *port, AI_PASSIVE, err))) {
        fd = listen_at(all);
        freeaddrinfo(all);
    }
    if (fd < 0)
        return err_set(err, "rank 0 cannot listen at %s, port %d: %s", host, *port,
                       strerror(errno));
    *port = port_of(fd);
    return fd;
}

int link_accept(int listener, int64_t until, char *who, size_t n, struct err *err)
{
    struct sockaddr_storage from;
    socklen_t size = sizeof from;
    int fd;
    while ((fd = accept4(listener, (struct sockaddr *)&from, &size, SOCK_CLOEXEC | SOCK_NONBLOCK)) <
           0) {
        bool again = errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
        if (!again)
            return err_set(err, "rank 0 cannot take connections: %s", strerror(errno));
        if (!wait_for(listener, POLLIN, until))
            return err_set(err, "nobody connected");
        size = sizeof from;
    }
    if (getnameinfo((struct sockaddr *)&from, size, who, (socklen_t)n, NULL, 0, NI_NUMERICHOST))
        snprintf(who, n, "?");
    at_once(fd);
    return fd;
}

static int connect_to(const struct addrinfo *a, int64_t until)
{
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int code = 0;
    socklen_t n = sizeof code;
    if (fd < 0)
        return -1;
    if (connect(fd, a->ai_addr, a->ai_addrlen) == 0)
        return fd;
    if (errno == EINPROGRESS && wait_for(fd, POLLOUT, until) &&
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &n) == 0 && code == 0)
        return fd;
    code = code ? code : errno;
    close(fd);
    errno = code;
    return -1;
}

int link_connect(const char *host, int32_t port, int64_t until, struct err *err)
{
    for (;;) {
        struct addrinfo *all = resolve(host, port, 0, err); /* a name may come to be known */
        int fd = -1;
        for (struct addrinfo *a = all; a && fd < 0; a = a->ai_next)
            fd = connect_to(a, until);
        if (all && fd < 0)
            err_set(err, "rank 0 at %s, port %d: %s", host, port, strerror(errno));
        if (all)
            freeaddrinfo(all);
        if (fd >= 0) {
            at_once(fd);
            return fd;
        }
        if (clock_ns() >= until)
            return -1;
        usleep(RETRY_MS * 1000);
    }
}

/* ---- messages ------------------------------------------------------------------------------- */

int link_send(int fd, enum link_kind kind, const void *data, size_t n, int64_t until,
              struct err *err)
{
    struct frame f = {MAGIC, (uint32_t)kind, n};
    struct iovec part[2] = {{&f, sizeof f}, {(void *)data, n}};
    for (int at = 0; at < 2;) {
        struct msghdr m = {.msg_iov = part + at, .msg_iovlen = (size_t)(2 - at)};
        ssize_t sent = sendmsg(fd, &m, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) {
            if (!wait_for(fd, POLLOUT, until))
                return err_set(err, "it takes no messages");
            continue;
        }
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return err_set(err, "%s", strerror(errno));
        for (; at < 2 && (size_t)sent >= part[at].iov_len; at++)
            sent -= (ssize_t)part[at].iov_len;
        if (at < 2) {
            part[at].iov_base = (char *)part[at].iov_base + sent;
            part[at].iov_len -= (size_t)sent;
        }
    }
    return 0;
}

static int read_all(int fd, char *to, size_t n, int64_t until, bool *gone, struct err *err)
{
    for (size_t at = 0; at < n;) {
        ssize_t got = recv(fd, to + at, n - at, 0);
        if (got > 0) {
            at += (size_t)got;
        } else if (got == 0 || errno == ECONNRESET || errno == EPIPE) {
            *gone = true;
            return err_set(err, "the connection was closed");
        } else if (errno == EAGAIN) {
            if (!wait_for(fd, POLLIN, until))
                return err_set(err, "no answer in time");
        } else if (errno != EINTR) {
            return err_set(err, "%s", strerror(errno));
        }
    }
    return 0;
}

int link_receive(int fd, size_t most, int64_t until, struct link_message *m, bool *gone,
                 struct err *err)
{
    struct frame f;
    bool unused;
    *m = (struct link_message){0};
    gone = gone ? gone : &unused;
    *gone = false;
    if (read_all(fd, (char *)&f, sizeof f, until, gone, err))
        return -1;
    if (f.magic != MAGIC || f.kind < LINK_JOIN || f.kind >= LINK_KINDS)
        return err_set(err, "what came is no message of a rank");
    if (f.n > most)
        return err_set(err, "a message of %llu bytes; at most %zu are taken here",
                       (unsigned long long)f.n, most);
    *m = (struct link_message){(enum link_kind)f.kind, f.n, xaligned(f.n + 1)};
    if (read_all(fd, m->data, m->n, until, gone, err) == 0)
        return 0;
    link_message_free(m);
    return -1;
}
