/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_ranks_talk.c - any bytes as what ranks say as they meet, start and go on: at rank 0's door,
 * to its watching thread, and to another rank that waits for what it is to set up. Whoever is taken
 * for a rank has said all that one says; of what is kept nothing is out of bounds.
 *
 * The first byte says who listens, and when. At the door the input changes a right JOIN (byte
 * pairs: place, value), unless its second byte says that it is one itself.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/ranks_meet.c"
#include "engine/ranks_watch.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WORLD = 3, KERNELS = 5, VERSION = 7 };
enum { AT_THE_DOOR, TO_WATCHER, TO_ANOTHER, LISTENERS };

static void demand(bool holds)
{
    if (!holds)
        abort();
}

static void open_world(struct ranks *r, int32_t rank)
{
    *r = (struct ranks){.listener = -1};
    r->options.place = (struct rank_place){.rank = rank, .world = WORLD, .listener = -1};
    r->options.join_timeout_s = r->options.step_timeout_s = 30;
    snprintf(r->secret, sizeof r->secret, "open sesame");
    for (int i = 0; i < SHARD_WORLD_MAX; i++)
        r->peer[i].fd = -1;
    pthread_mutex_init(&r->lock, NULL);
    pthread_mutex_init(&r->send, NULL);
    ranks_kernels_open(r);
}

static void close_world(struct ranks *r)
{
    for (int i = 0; i < SHARD_WORLD_MAX; i++)
        if (r->peer[i].fd >= 0)
            close(r->peer[i].fd);
    ranks_kernels_close(r);
    pthread_mutex_destroy(&r->send);
    pthread_mutex_destroy(&r->lock);
}

/* A connection on which these bytes have come, and no more will. */
static int heard_on(const void *data, size_t n)
{
    int end[2];
    demand(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, end) == 0);
    demand(n == 0 || write(end[0], data, n) == (ssize_t)n);
    shutdown(end[0], SHUT_WR);
    close(end[0]);
    return end[1];
}

/* ---- at the door ---------------------------------------------------------------------------- */

static void join(struct ranks *r, const uint8_t *data, size_t n)
{
    struct wire_join j;
    char message[LINK_HEAD + sizeof j];
    struct caller c = {.until = clock_ns(), .who = "somebody"};
    const bool bytes = n > 0 && data[0] == 0xff;
    fill_join(r, &j);
    j.rank = 1;
    link_head(LINK_JOIN, sizeof j, message);
    memcpy(message + LINK_HEAD, &j, sizeof j);
    for (size_t i = 0; !bytes && i + 2 < n; i += 3)
        message[(data[i] << 8 | data[i + 1]) % sizeof message] = (char)data[i + 2];
    c.fd = bytes ? heard_on(data + 1, n - 1) : heard_on(message, sizeof message);
    bool taken = take_one(r, &c);
    int here = 0;
    for (int i = 0; i < SHARD_WORLD_MAX; i++)
        here += r->peer[i].fd >= 0;
    demand(here == taken);
    if (!taken)
        return;
    const struct peer *p = r->peer[1].fd >= 0 ? &r->peer[1] : &r->peer[2];
    demand(p->fd >= 0 && p->join.rank == p - r->peer && p->join.world == WORLD);
    demand(strncmp(p->join.secret, r->secret, sizeof p->join.secret) == 0);
    demand(strnlen(p->join.host, sizeof p->join.host) < sizeof p->join.host);
}

/* ---- to the watching thread ----------------------------------------------------------------- */

static void talk(struct ranks *r, int when, const uint8_t *data, size_t n)
{
    r->peer[1].fd = heard_on(data, n);
    r->peer[2].fd = heard_on("", 0);
    atomic_store(&r->began, when & 1);
    atomic_store(&r->set_up, when & 2);
    r->kernels.last = when & 4 ? KERNELS : 0;
    atomic_store(&r->version_of[0], when & 8 ? VERSION : 0);
    while (!ranks_lost(r))
        heard(r, 1); /* until the connection's end, at the latest */
    hear_last_words(r);
    const struct rank_kernels *k = &r->kernels;
    demand(strnlen(r->why, sizeof r->why) < sizeof r->why);
    demand(!r->peer[2].has_part && !r->peer[2].ready && !k->answered[2]);
    demand(k->answers == k->answered[1] && k->brokes <= k->last);
    demand(strnlen(k->why, sizeof k->why) < sizeof k->why);
    for (int32_t i = 0; i < k->brokes; i++) {
        demand(k->broke[i].number > 0 && k->broke[i].number <= k->last);
        demand(strnlen(k->broke[i].why, sizeof k->broke[i].why) < sizeof k->broke[i].why);
    }
    demand(ranks_version(r, 1) >= 0 && ranks_version(r, 1) <= ranks_version(r, 0));
    demand(!r->peer[1].ready || (when & 3) == 2);
}

/* ---- to another rank ------------------------------------------------------------------------ */

static void set_up(struct ranks *r, const uint8_t *data, size_t n)
{
    struct wire_setup s;
    struct err err = {""};
    r->peer[0].fd = heard_on(data, n);
    while (ranks_hear_wish(r, &s, &err) == 0) {
        demand(s.kv_pages > 0 && s.max_tokens > 0 && s.max_rows > 0);
        demand(strnlen(s.id, sizeof s.id) < sizeof s.id);
    }
    demand(err.msg[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ranks r;
    if (size == 0 || size > 1 << 15) /* more than a socket takes while nobody reads */
        return 0;
    log_set_level((enum log_level)(LOG_ERROR - 1)); /* each world ends with an error */
    int who = data[0] % LISTENERS, when = data[0] / LISTENERS;
    open_world(&r, who == TO_ANOTHER);
    if (who == AT_THE_DOOR)
        join(&r, data + 1, size - 1);
    if (who == TO_WATCHER)
        talk(&r, when, data + 1, size - 1);
    if (who == TO_ANOTHER)
        set_up(&r, data + 1, size - 1);
    close_world(&r);
    return 0;
}
