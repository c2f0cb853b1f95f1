/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_meet.c - how the ranks of a world come together.
 *
 * Who connects to rank 0's port may be anybody: until a JOIN is right in every point it is given a
 * few seconds and a few hundred bytes, beside all others who do so, and a wrong one is told why and
 * costs nothing else. A right one keeps its connection for good.
 */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/cores.h"
#include "config/log.h"
#include "engine/launch.h"
#include "engine/ranks_private.h"

enum { CALLERS = 64, LOOK_MS = 50 };

/* Who has connected and not yet said who it is, in the order in which they came. */
struct caller {
    int fd;
    bool began; /* a part of its message is there */
    int64_t until;
    char who[64];
};
struct door {
    struct caller caller[CALLERS];
    int n;
};

/* The machine's boot id: equal for processes that can share memory, containers apart. */
static void name_machine(char *to, size_t n)
{
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    to[0] = 0;
    if (f && fgets(to, (int)n, f))
        to[strcspn(to, "\n")] = 0;
    if (f)
        fclose(f);
}

/* A machine with more CPUs than there are bits: those behind them change bytes in ways of their
 * own, so that other sets still are other bytes. */
static void fill_cpus(unsigned char *to, size_t n)
{
    struct cores_set set;
    cores_affinity(&set);
    const unsigned char *from = (const unsigned char *)set.word;
    for (size_t i = 0; i < sizeof set.word; i++)
        to[i % n] ^= (unsigned char)(from[i] ? from[i] ^ (0x9d * (i / n)) : 0);
}

static void fill_join(const struct ranks *r, struct wire_join *j)
{
    *j = (struct wire_join){.version = WIRE_VERSION,
                            .rank = r->options.place.rank,
                            .world = r->options.place.world,
                            .pid = getpid()};
    snprintf(j->program, sizeof j->program, WHET_VERSION ", %zu, %zu bytes", sizeof(struct step),
             sizeof(struct wire_setup));
    name_machine(j->host, sizeof j->host);
    snprintf(j->secret, sizeof j->secret, "%s", r->secret);
    fill_cpus(j->cpus, sizeof j->cpus);
}

/* Looks at every byte, whatever the first ones say. */
static bool same_secret(const char *a, const char *b, size_t n)
{
    unsigned differ = 0;
    for (size_t i = 0; i < n; i++)
        differ |= (unsigned)(a[i] ^ b[i]);
    return differ == 0;
}

/* Why this JOIN is none of this world. */
static int check_join(const struct ranks *r, const struct link_message *m, struct err *err)
{
    const struct wire_join *j = (const struct wire_join *)(const void *)m->data;
    struct wire_join own;
    fill_join(r, &own);
    if (m->kind != LINK_JOIN || m->n != sizeof *j)
        return err_set(err, "it is no rank of whet, or of another version");
    if (j->version != own.version || memcmp(j->program, own.program, sizeof own.program) != 0)
        return err_set(err, "it runs another version of whet than rank 0");
    if (!same_secret(j->secret, own.secret, sizeof own.secret))
        return err_set(err, "it does not know WHET_RANKS_SECRET");
    if (j->world != own.world)
        return err_set(err, "it is of %d ranks; here there are %d", j->world, own.world);
    if (j->rank < 1 || j->rank >= own.world)
        return err_set(err, "it is rank %d; 1 to %d are expected", j->rank, own.world - 1);
    if (r->peer[j->rank].fd >= 0)
        return err_set(err, "there is a rank %d already (process %lld at %s)", j->rank,
                       (long long)r->peer[j->rank].join.pid, r->peer[j->rank].address);
    return 0;
}

/* Hears who has something to say or no time left. True if it is a rank that was missing. */
static bool take_one(struct ranks *r, const struct caller *c)
{
    struct link_message m;
    struct err why = {""};
    int bad = link_receive(c->fd, sizeof(struct wire_join), c->until, &m, NULL, &why);
    if (!bad)
        bad = check_join(r, &m, &why);
    if (bad) {
        log_warn("ranks", "%s is not taken as a rank: %s", c->who, why.msg);
        link_send(c->fd, LINK_REFUSED, why.msg, strlen(why.msg), clock_ns(), NULL);
        close(c->fd);
    } else {
        const struct wire_join *j = (const struct wire_join *)(const void *)m.data;
        struct peer *p = &r->peer[j->rank];
        p->fd = c->fd;
        p->join = *j;
        p->join.host[sizeof p->join.host - 1] = 0;
        snprintf(p->address, sizeof p->address, "%s", c->who);
        log_info("ranks", "rank %d of %d is here: process %lld at %s", j->rank,
                 r->options.place.world, (long long)j->pid, c->who);
    }
    link_message_free(&m);
    return !bad;
}

/* ---- waiting for all ------------------------------------------------------------------------ */

static void forget(struct door *d, int i)
{
    d->n--;
    memmove(d->caller + i, d->caller + i + 1, (size_t)(d->n - i) * sizeof *d->caller);
}

/* Where there are too many, who has been silent longest makes room: a rank speaks at once. */
static void open_door(const struct ranks *r, struct door *d)
{
    for (int i = 0; i < CALLERS; i++) {
        struct caller c = {.until = clock_ns() + HELLO_NS};
        if ((c.fd = link_accept(r->listener, clock_ns(), c.who, sizeof c.who, NULL)) < 0)
            return;
        if (d->n == CALLERS) {
            close(d->caller[0].fd);
            forget(d, 0);
        }
        d->caller[d->n++] = c;
    }
}

/* How many ranks that were missing are among those at the door. */
static int hear_callers(struct ranks *r, struct door *d)
{
    int taken = 0;
    for (int i = 0; i < d->n;) {
        struct caller *c = &d->caller[i];
        int there = link_there(c->fd, sizeof(struct wire_join));
        c->began = there == LINK_BEGUN;
        if (there == LINK_WHOLE || clock_ns() >= c->until) {
            taken += take_one(r, c);
            forget(d, i);
        } else {
            i++;
        }
    }
    return taken;
}

/* How many that had come have gone; they may come again. */
static int look_for_gone(struct ranks *r)
{
    int gone = 0;
    for (int32_t i = 1; i < r->options.place.world; i++) {
        struct peer *p = &r->peer[i];
        struct pollfd at = {p->fd, POLLRDHUP, 0};
        if (p->fd < 0 || poll(&at, 1, 0) <= 0)
            continue;
        log_warn("ranks", "rank %d (process %lld at %s) has gone before all were here", i,
                 (long long)p->join.pid, p->address);
        close(p->fd);
        p->fd = -1;
        gone++;
    }
    return gone;
}

/* Until somebody connects, speaks or goes, or for a moment. Who has said a part of a message would
 * end every wait at once. */
static void wait_at(const struct ranks *r, const struct door *d)
{
    struct pollfd p[1 + CALLERS + SHARD_WORLD_MAX] = {{r->listener, POLLIN, 0}};
    nfds_t n = 1;
    for (int i = 0; i < d->n; i++)
        if (!d->caller[i].began)
            p[n++] = (struct pollfd){d->caller[i].fd, POLLIN, 0};
    for (int32_t i = 1; i < r->options.place.world; i++)
        p[n++] = (struct pollfd){r->peer[i].fd, POLLRDHUP, 0};
    poll(p, n, LOOK_MS);
}

/* "1, 3": for a message. */
static void list_missing(const struct ranks *r, char *to, size_t n)
{
    size_t at = 0;
    to[0] = 0;
    for (int32_t i = 1; i < r->options.place.world && at < n; i++)
        if (r->peer[i].fd < 0)
            at += (size_t)snprintf(to + at, n - at, "%s%d", at ? ", " : "", i);
}

static int await_all(struct ranks *r, struct door *d, int64_t until, struct err *err)
{
    const struct rank_place *p = &r->options.place;
    for (int32_t here = 1; here < p->world;) {
        char missing[200];
        if (p->children && launch_look(p->children, err))
            return -1;
        if (clock_ns() >= until) {
            list_missing(r, missing, sizeof missing);
            return err_set(err, "ranks that did not come within %.0f s: %s",
                           r->options.join_timeout_s, missing);
        }
        wait_at(r, d);
        here -= look_for_gone(r); /* its place is free for who calls now */
        open_door(r, d);
        here += hear_callers(r, d);
    }
    return 0;
}

static bool like(const struct wire_join *a, const struct wire_join *b, bool cpus)
{
    return strcmp(a->host, b->host) == 0 &&
           (!cpus || memcmp(a->cpus, b->cpus, sizeof a->cpus) == 0);
}

static int welcome(struct ranks *r, struct err *err)
{
    int32_t world = r->options.place.world;
    fill_join(r, &r->peer[0].join);
    for (int32_t i = 0; i < world; i++) {
        const struct wire_join *own = &r->peer[i].join;
        struct wire_welcome w = {.local_ranks = 0};
        for (int32_t k = 0; k < world; k++) {
            w.local_ranks += like(own, &r->peer[k].join, false);
            w.same_cpus += like(own, &r->peer[k].join, true);
        }
        w.one_host = w.local_ranks == world;
        if (i == 0)
            r->welcome = w;
        else if (link_send(r->peer[i].fd, LINK_WELCOME, &w, sizeof w, clock_ns() + SEND_NS, err))
            return err_prefix(err, "rank %d", i);
    }
    return 0;
}

static int listen_for_all(struct ranks *r, struct err *err)
{
    struct rank_place *p = &r->options.place;
    bool everywhere = false;
    r->listener = p->listener >= 0 ? p->listener : link_listen(p->host, &p->port, &everywhere, err);
    if (r->listener < 0)
        return -1;
    log_info("ranks", "rank 0 of %d waits for the others at %s, port %d", p->world,
             everywhere ? "all addresses" : p->host, p->port);
    if (everywhere && !r->secret[0])
        log_warn("ranks",
                 "whoever reaches port %d may take a rank's place: WHET_RANKS_SECRET is "
                 "not set",
                 p->port);
    return 0;
}

int ranks_lead(struct ranks *r, struct err *err)
{
    int64_t until = clock_ns() + (int64_t)(r->options.join_timeout_s * 1e9);
    struct door d = {.n = 0};
    if (listen_for_all(r, err))
        return -1;
    int rc = await_all(r, &d, until, err);
    for (int i = 0; i < d.n; i++)
        close(d.caller[i].fd);
    close(r->listener); /* all are here, and nobody else will be */
    r->listener = -1;
    return rc ? -1 : welcome(r, err);
}

int ranks_join(struct ranks *r, struct err *err)
{
    const struct rank_place *p = &r->options.place;
    int64_t until = clock_ns() + (int64_t)(r->options.join_timeout_s * 1e9);
    struct wire_join own;
    struct link_message m;
    fill_join(r, &own);
    r->peer[0].fd = link_connect(p->host, p->port, until, err);
    if (r->peer[0].fd < 0)
        return -1;
    if (link_send(r->peer[0].fd, LINK_JOIN, &own, sizeof own, until, err) ||
        link_receive(r->peer[0].fd, WIRE_TEXT, until, &m, NULL, err))
        return err_prefix(err, "rank 0 at %s, port %d", p->host, p->port);
    int rc = 0;
    if (m.kind == LINK_WELCOME && m.n == sizeof(struct wire_welcome)) {
        memcpy(&r->welcome, m.data, sizeof r->welcome);
    } else {
        rc = err_set(err, "rank 0 at %s, port %d does not take this as rank %d: %.*s", p->host,
                     p->port, p->rank, m.kind == LINK_REFUSED ? (int)m.n : 0, m.data);
    }
    link_message_free(&m);
    return rc;
}
