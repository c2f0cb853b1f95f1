/* SPDX-License-Identifier: Apache-2.0 */
/* listener.c - see listener.h. */
#include "server/listener.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "config/log.h"
#include "server/conn.h"
#include "server/server.h"

/* Connections that the kernel keeps until they are accepted. */
enum { BACKLOG = 511 };

static void on_readable(uv_poll_t *listener, int status, int events)
{
    struct server *s = listener->data;
    struct sockaddr_storage from = {0};
    socklen_t size = sizeof from;
    (void)status;
    (void)events;
    int fd = accept4(s->listen_fd, (struct sockaddr *)&from, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
        conn_accept(s, fd, (const struct sockaddr *)&from);
        return;
    }
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)
        return; /* who wanted in has gone; or the loop comes here again */
    bool no_descriptor = errno == EMFILE || errno == ENFILE;
    bool no_room = no_descriptor || errno == ENOBUFS || errno == ENOMEM;
    log_warn("http", "cannot accept a connection: %s", strerror(errno));
    /* The loop comes here again at once, for as long as somebody waits: something has to change.
     * If all that are connected have requests under way, those go on. Other errors are those of
     * one connection, which is gone with it. */
    if (no_room && !(no_descriptor && room_without_descriptors(s)))
        uv_sleep(SWEEP_MS);
}

static int listen_on(const struct sockaddr *address)
{
    bool v6 = address->sa_family == AF_INET6;
    socklen_t size = v6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int on = 1, off = 0;
    if (fd < 0)
        return -1;
    if (v6) /* :: is both, whatever net.ipv6.bindv6only says */
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    /* A server that starts again need not wait for connections of the one before to time out. */
    if (!setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) && !bind(fd, address, size) &&
        !listen(fd, BACKLOG))
        return fd;
    int reason = errno;
    close(fd);
    errno = reason;
    return -1;
}

int listener_open(struct server *s, struct err *err)
{
    const struct config *c = s->config;
    struct sockaddr_storage address;
    int port = (int)c->server_port;
    if (uv_ip4_addr(c->server_host, port, (struct sockaddr_in *)&address) &&
        uv_ip6_addr(c->server_host, port, (struct sockaddr_in6 *)&address))
        return err_set(err, "server.host: \"%s\" is not an IP address", c->server_host);
    s->listen_fd = listen_on((const struct sockaddr *)&address);
    int rc = s->listen_fd < 0 ? uv_translate_sys_error(errno)
                              : uv_poll_init(&s->loop, &s->listener, s->listen_fd);
    if (rc) {
        if (s->listen_fd >= 0)
            close(s->listen_fd);
        return err_set(err, "cannot listen on %s port %d: %s", c->server_host, port,
                       uv_strerror(rc));
    }
    socklen_t n = sizeof address;
    getsockname(s->listen_fd, (struct sockaddr *)&address, &n);
    s->port = ntohs(((struct sockaddr_in *)&address)->sin_port);
    s->listener.data = s;
    s->listening = true;
    uv_poll_start(&s->listener, UV_READABLE, on_readable);
    return 0;
}

void listener_close(struct server *s)
{
    if (!s->listening)
        return;
    uv_close((uv_handle_t *)&s->listener, NULL);
    close(s->listen_fd);
    s->listening = false;
}
