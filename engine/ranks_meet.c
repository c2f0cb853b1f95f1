/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_meet.c - how the ranks of a world come together.
 *
 * Who connects to rank 0's port may be anybody: until a JOIN is right in every point it is given a
 * few seconds and a few hundred bytes, and a wrong one is told why and costs nothing else. A right
 * one keeps its connection for good.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/log.h"
#include "engine/ranks_private.h"

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
        return err_set(err, "it is no rank of whet");
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

/* True if whoever connected is a rank that was missing. */
static bool take_one(struct ranks *r, int fd, const char *who)
{
    struct link_message m;
    struct err why = {""};
    int64_t until = clock_ns() + HELLO_NS;
    int bad = link_receive(fd, sizeof(struct wire_join), until, &m, NULL, &why);
    if (!bad)
        bad = check_join(r, &m, &why);
    if (bad) {
        log_warn("ranks", "%s is not taken as a rank: %s", who, why.msg);
        link_send(fd, LINK_REFUSED, why.msg, strlen(why.msg), until, NULL);
        close(fd);
    } else {
        const struct wire_join *j = (const struct wire_join *)(const void *)m.data;
        struct peer *p = &r->peer[j->rank];
        p->fd = fd;
        p->join = *j;
        p->join.host[sizeof p->join.host - 1] = 0;
        snprintf(p->address, sizeof p->address, "%s", who);
        log_info("ranks", "rank %d of %d is here: process %lld at %s", j->rank,
                 r->options.place.world, (long long)j->pid, who);
    }
    link_message_free(&m);
    return !bad;
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

static int welcome(struct ranks *r, struct err *err)
{
    struct wire_join own;
    int32_t world = r->options.place.world;
    fill_join(r, &own);
    for (int32_t i = 0; i < world; i++) {
        const char *host = i ? r->peer[i].join.host : own.host;
        struct wire_welcome w = {.local_ranks = 0};
        for (int32_t k = 0; k < world; k++)
            w.local_ranks += strcmp(host, k ? r->peer[k].join.host : own.host) == 0;
        w.one_host = w.local_ranks == world;
        if (i == 0) {
            r->local = w.local_ranks;
            r->one_host = w.one_host;
        } else if (link_send(r->peer[i].fd, LINK_WELCOME, &w, sizeof w, clock_ns() + SEND_NS,
                             err)) {
            return err_prefix(err, "rank %d", i);
        }
    }
    return 0;
}

int ranks_lead(struct ranks *r, struct err *err)
{
    struct rank_place *p = &r->options.place;
    int64_t until = clock_ns() + (int64_t)(r->options.join_timeout_s * 1e9);
    r->listener = p->listener >= 0 ? p->listener : link_listen(p->host, &p->port, err);
    if (r->listener < 0)
        return -1;
    log_info("ranks", "rank 0 of %d waits for the others at %s, port %d", p->world, p->host,
             p->port);
    for (int32_t here = 1; here < p->world;) {
        char who[64], missing[200];
        struct err why = {""};
        int fd = link_accept(r->listener, until, who, sizeof who, &why);
        if (fd < 0) {
            list_missing(r, missing, sizeof missing);
            return err_set(err, "ranks that did not come within %.0f s: %s",
                           r->options.join_timeout_s, missing);
        }
        here += take_one(r, fd, who);
    }
    close(r->listener); /* all are here, and nobody else will be */
    r->listener = -1;
    return welcome(r, err);
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
        const struct wire_welcome *w = (const struct wire_welcome *)(const void *)m.data;
        r->local = w->local_ranks;
        r->one_host = w->one_host;
    } else {
        rc = err_set(err, "rank 0 at %s, port %d does not take this as rank %d: %.*s", p->host,
                     p->port, p->rank, m.kind == LINK_REFUSED ? (int)m.n : 0, m.data);
    }
    link_message_free(&m);
    return rc;
}
