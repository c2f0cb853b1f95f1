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
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "config/clock.h"

enum { RETRY_MS = 100, POLL_MS = 1000 };
enum { KEEP_IDLE_S = 10, KEEP_EACH_S = 5, KEEP_TIMES = 3, BACKLOG = 64 };

#define CONNECT_NS INT64_C(5000000000)
#define OLD_IN_NEW "::ffff:"

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
    err_set(err, "rank 0 at %s: %s", host, gai_strerror(code));
    return NULL;
}

/* A host that is gone closes nothing: what nobody has answered for this long counts as closed, be
 * it data or a question whether the other end is there. */
static void prepare(int fd)
{
    const struct {
        int level, name, value;
    } option[] = {{IPPROTO_TCP, TCP_NODELAY, 1},
                  {SOL_SOCKET, SO_KEEPALIVE, 1},
                  {IPPROTO_TCP, TCP_KEEPIDLE, KEEP_IDLE_S},
                  {IPPROTO_TCP, TCP_KEEPINTVL, KEEP_EACH_S},
                  {IPPROTO_TCP, TCP_KEEPCNT, KEEP_TIMES},
                  {IPPROTO_TCP, TCP_USER_TIMEOUT, 1000 * (KEEP_IDLE_S + KEEP_TIMES * KEEP_EACH_S)}};
    for (size_t i = 0; i < sizeof option / sizeof *option; i++)
        setsockopt(fd, option[i].level, option[i].name, &option[i].value, sizeof option[i].value);
}

static int listen_at(const struct sockaddr *at, socklen_t n)
{
    int one = 1, zero = 0;
    int fd = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (at->sa_family == AF_INET6) /* [::] takes IPv4 too, whatever the system's default is */
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    if (bind(fd, at, n) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

/* At all addresses of this machine: of both kinds, or of IPv4 where there is no other. */
static int listen_at_all(int32_t port)
{
    const struct sockaddr_in6 both = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    const struct sockaddr_in old = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = listen_at((const struct sockaddr *)&both, sizeof both);
    return fd >= 0 || errno == EADDRINUSE ? fd
                                          : listen_at((const struct sockaddr *)&old, sizeof old);
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

static bool loopback(const struct sockaddr *at)
{
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)at;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)at;
    return at->sa_family == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr)
                                     : ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

/* A name is not looked up: what a machine calls itself is often its loopback (Debian's 127.0.1.1),
 * or not known before somebody has seen it ready (a pod's). An address that is not this machine's
 * may lead to it all the same, by translation. */
int link_listen(const char *host, int32_t *port, bool *everywhere, struct err *err)
{
    struct addrinfo *literal =
        resolve(strcmp(host, "localhost") ? host : "127.0.0.1", *port, AI_NUMERICHOST, NULL);
    int fd = literal ? listen_at(literal->ai_addr, literal->ai_addrlen) : -1, why = errno;
    *everywhere = !literal || (fd < 0 && why == EADDRNOTAVAIL && !loopback(literal->ai_addr));
    if (literal)
        freeaddrinfo(literal);
    if (*everywhere) {
        fd = listen_at_all(*port);
        why = errno;
    }
    if (fd < 0)
        return err_set(err, "rank 0 cannot listen at %s, port %d: %s",
                       *everywhere ? "all addresses" : host, *port, strerror(why));
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
    if (!strncmp(who, OLD_IN_NEW, strlen(OLD_IN_NEW))) /* IPv4 at a socket of both */
        memmove(who, who + strlen(OLD_IN_NEW), strlen(who + strlen(OLD_IN_NEW)) + 1);
    prepare(fd);
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
    code = code ? code : errno == EINPROGRESS ? ETIMEDOUT : errno;
    close(fd);
    errno = code;
    return -1;
}

int link_connect(const char *host, int32_t port, int64_t until, struct err *err)
{
    for (;;) {
        struct addrinfo *all = resolve(host, port, 0, err); /* a name may come to be known */
        int fd = -1;
        for (struct addrinfo *a = all; a && fd < 0; a = a->ai_next) {
            int64_t own = clock_ns() + CONNECT_NS; /* the next may answer */
            fd = connect_to(a, own < until ? own : until);
        }
        if (all && fd < 0)
            err_set(err, "rank 0 at %s, port %d: %s", host, port, strerror(errno));
        if (all)
            freeaddrinfo(all);
        if (fd >= 0) {
            prepare(fd);
            return fd;
        }
        if (clock_ns() >= until)
            return -1;
        usleep(RETRY_MS * 1000);
    }
}

/* ---- messages ------------------------------------------------------------------------------- */

void link_head(enum link_kind kind, size_t n, char head[LINK_HEAD])
{
    struct frame f = {MAGIC, (uint32_t)kind, n};
    _Static_assert(sizeof f == LINK_HEAD, "a frame without gaps");
    memcpy(head, &f, sizeof f);
}

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

static bool right(const struct frame *f)
{
    return f->magic == MAGIC && f->kind >= LINK_JOIN && f->kind < LINK_KINDS;
}

int link_there(int fd, size_t most)
{
    struct frame f;
    int there = 0;
    ssize_t got = recv(fd, &f, sizeof f, MSG_PEEK | MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return LINK_NOTHING;
    if (got <= 0) /* closed, or broken */
        return LINK_WHOLE;
    if ((size_t)got < sizeof f)
        return LINK_BEGUN;
    if (!right(&f) || f.n > most || ioctl(fd, FIONREAD, &there))
        return LINK_WHOLE;
    return (size_t)there - sizeof f >= f.n ? LINK_WHOLE : LINK_BEGUN;
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
    if (!right(&f))
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
