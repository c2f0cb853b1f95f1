/* SPDX-License-Identifier: Apache-2.0 */
/* room.c - places for connections.
 *
 * Looking for a place is one pass over the connections, and only when they are all taken: some
 * thousands of pointers, for an accept that costs as much by itself.
 */
#include "server/room.h"

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/descriptors.h"
#include "config/err.h"
#include "config/log.h"
#include "server/conn.h"
#include "server/server.h"

/* ---- how much room ------------------------------------------------------------------------- */

static int open_descriptors(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

/* Connections that the limit of descriptors leaves. */
static int64_t descriptors_left(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) || r.rlim_cur == RLIM_INFINITY)
        return INT32_MAX;
    int64_t left = (int64_t)r.rlim_cur - open_descriptors() - FDS_ELSEWHERE - OPERATOR_CONNECTIONS;
    return left > 1 ? left : 1;
}

void room_open(struct server *s)
{
    struct room *r = &s->room;
    int64_t wanted = s->config->server_max_connections, left = descriptors_left();
    r->capacity = (int)(wanted < left ? wanted : left);
    if (left < wanted)
        log_warn("http",
                 "the limit of open files leaves %d connections, less than "
                 "server.max_connections (%lld)",
                 r->capacity, (long long)wanted);
    r->secret = exchange_random();
    r->spare = -1;
    room_take_spare(s);
}

void room_close(struct server *s)
{
    if (s->room.spare >= 0)
        close(s->room.spare);
}

/* ---- addresses ----------------------------------------------------------------------------- */

static struct peer address_of(const struct sockaddr *a)
{
    struct peer p = {0};
    if (a->sa_family == AF_INET) {
        p.bits = ((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr;
    } else if (a->sa_family == AF_INET6) {
        const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
        uint32_t v4;
        p.v6 = !IN6_IS_ADDR_V4MAPPED(v6);
        memcpy(&p.bits, v6->s6_addr, sizeof(p.bits));
        memcpy(&v4, v6->s6_addr + 12, sizeof(v4));
        if (!p.v6)
            p.bits = v4;
    }
    return p;
}

struct peer *peer_join(struct room *r, const struct sockaddr *address)
{
    struct peer want = address_of(address), *p;
    uint64_t hash = (want.bits ^ r->secret ^ want.v6) * UINT64_C(0x9e3779b97f4a7c15);
    struct peer **bucket = &r->bucket[hash >> 32 & (PEER_BUCKETS - 1)];
    for (p = *bucket; p && (p->bits != want.bits || p->v6 != want.v6); p = p->next)
        continue;
    if (!p) {
        p = xcalloc(1, sizeof(*p));
        *p = want;
        p->link = bucket;
        p->next = *bucket;
        if (p->next)
            p->next->link = &p->next;
        *bucket = p;
    }
    p->connections++;
    return p;
}

void peer_leave(struct peer *p)
{
    if (!p || --p->connections)
        return;
    *p->link = p->next;
    if (p->next)
        p->next->link = p->link;
    free(p);
}

/* ---- places -------------------------------------------------------------------------------- */

static bool beyond_share(const struct conn *c)
{
    int64_t share = c->srv->config->server_address_connections;
    if (share == 0)
        share = (c->srv->room.capacity + 1) / 2;
    return c->peer && c->peer->connections > share;
}

/* How willingly a connection is given up. */
enum { KEPT, OF_MANY, IDLE, IDLE_OF_MANY };

/* For `newcomer`; NULL: for whoever comes. */
static int rank(const struct conn *c, const struct conn *newcomer)
{
    if (c == newcomer || c->closing || c->reserved)
        return KEPT;
    bool beyond = beyond_share(c);
    if (conn_idle(c))
        return beyond ? IDLE_OF_MANY : IDLE;
    return beyond && newcomer && !beyond_share(newcomer) && !conn_busy(c) ? OF_MANY : KEPT;
}

static int rank_reserved(const struct conn *c, const struct conn *newcomer)
{
    return c != newcomer && !c->closing && c->reserved && !conn_busy(c) ? OF_MANY : KEPT;
}

/* Bytes of the client lie in the kernel, which the loop comes to in its next round. */
static bool is_unread(const struct conn *c)
{
    uv_os_fd_t fd;
    int n = 0;
    return !uv_fileno((const uv_handle_t *)&c->tcp, &fd) && !ioctl(fd, FIONREAD, &n) && n > 0;
}

/* Nothing of a request is read, so there is no exchange; the answer looks like every other. */
static void say_full(struct conn *c)
{
    struct api_error e;
    struct buf body = {0}, out = {0};
    char date[HTTP_DATE_SIZE];
    api_error_set(&e, 503, NULL, "too many connections are open (server.max_connections)");
    api_error_json(&body, &e);
    http_date(date, clock_wall_s());
    buf_printf(&out,
               "HTTP/1.1 503 %s\r\nDate: %s\r\nx-request-id: req-%016llx\r\nRetry-After: %d\r\n"
               "Content-Type: application/json\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
               http_reason(503), date, (unsigned long long)exchange_random(), RETRY_AFTER_S,
               body.n);
    buf_add(&out, body.p, body.n);
    uv_buf_t b = uv_buf_init(out.p, (unsigned)out.n);
    uv_try_write((uv_stream_t *)&c->tcp, &b, 1);
    buf_free(&body);
    buf_free(&out);
}

/* Closes the connection of the highest rank, of those the one that has waited longest. One that is
 * idle only because its request has not been read yet is none: that request would be lost. So may
 * be the first one of who has not sent it: it is told why. */
static bool give_up_one(struct server *s, const struct conn *newcomer,
                        int (*rank_of)(const struct conn *c, const struct conn *newcomer))
{
    struct conn *victim = NULL;
    int best = KEPT;
    for (struct conn *c = s->conns; c; c = c->next) {
        int r = rank_of(c, newcomer);
        bool better = r > best || (r != KEPT && r == best && c->since < victim->since);
        if (better && !(r >= IDLE && is_unread(c))) {
            best = r;
            victim = c;
        }
    }
    if (!victim)
        return false;
    s->metrics.connections_evicted++;
    if (!victim->answered)
        say_full(victim);
    conn_close(victim);
    return true;
}

bool room_again(const struct server *s)
{
    return s->connections - s->closing - s->room.reserved < s->room.capacity;
}

bool room_admit(struct conn *c)
{
    struct server *s = c->srv;
    if (s->connections - s->closing - s->room.reserved <= s->room.capacity ||
        give_up_one(s, c, rank))
        return true;
    if (s->room.reserved >= OPERATOR_CONNECTIONS && !give_up_one(s, c, rank_reserved))
        return false;
    c->reserved = true;
    s->room.reserved++;
    return true;
}

/* Whoever has sent no whole request, a head that never ends among them. */
static int rank_unheard(const struct conn *c, const struct conn *newcomer)
{
    return c != newcomer && !c->closing && !conn_busy(c) ? IDLE : KEPT;
}

/* Without a free descriptor accept() fails even when nobody waits, so that one has to be found
 * before it can be known whether somebody does. */
bool room_without_descriptors(struct server *s)
{
    if (s->room.spare < 0) /* another thread was given its number */
        return give_up_one(s, NULL, rank) || give_up_one(s, NULL, rank_reserved) ||
               give_up_one(s, NULL, rank_unheard);
    close(s->room.spare);
    s->room.spare = -1;
    return true;
}

bool room_for_spare(struct conn *c)
{
    struct server *s = c->srv;
    return s->room.spare >= 0 || give_up_one(s, c, rank) || give_up_one(s, c, rank_reserved);
}

void room_take_spare(struct server *s)
{
    if (s->room.spare < 0)
        s->room.spare = descriptor_nowhere(O_RDONLY | O_CLOEXEC);
}

void room_turn_away(struct conn *c)
{
    say_full(c);
    c->srv->metrics.connections_refused++;
    conn_close(c);
}
