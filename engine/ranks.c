/* SPDX-License-Identifier: Apache-2.0 */
/* ranks.c - what ranks that have met say to each other.
 *
 * Rank 0 says what it wishes when it has its part, and hears what each has room for before it tells
 * all how to open their backends. What the others say is read by its watching thread
 * (ranks_watch.c), which hands it over here.
 */
#include "engine/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/log.h"
#include "engine/crash.h"
#include "engine/ranks_private.h"

enum { POLL_US = 2000, STEP_MOST = 1 << 24 /* tokens or rows */ };

int32_t ranks_rank(const struct ranks *r)
{
    return r->options.place.rank;
}

int32_t ranks_world(const struct ranks *r)
{
    return r->options.place.world;
}

int32_t ranks_local(const struct ranks *r)
{
    return r->welcome.local_ranks;
}

int32_t ranks_same_cpus(const struct ranks *r)
{
    return r->welcome.same_cpus;
}

const char *ranks_lost(struct ranks *r)
{
    return atomic_load(&r->lost) ? r->why : NULL;
}

/* Keeps the first reason only: later failures follow from it. */
void ranks_lose(struct ranks *r, const char *why)
{
    pthread_mutex_lock(&r->lock);
    bool first = !atomic_load(&r->lost);
    if (first) {
        snprintf(r->why, sizeof r->why, "%s", why);
        atomic_store(&r->lost_ns, clock_ns());
        atomic_store(&r->lost, true);
    }
    pthread_mutex_unlock(&r->lock);
    if (!first)
        return;
    log_error("ranks", "%s: the ranks of this model cannot go on", why);
    ranks_kernels_wake(r);
    struct collective *c = atomic_load(&r->collective);
    if (c)
        c->ops->abort(c, why);
    if (r->options.on_lost)
        r->options.on_lost(r->options.ctx, why);
}

/* ---- opening -------------------------------------------------------------------------------- */

struct ranks *ranks_open(const struct ranks_options *o, struct err *err)
{
    struct ranks *r = xcalloc(1, sizeof *r);
    r->options = *o;
    r->listener = -1;
    for (int i = 0; i < SHARD_WORLD_MAX; i++)
        r->peer[i].fd = -1;
    snprintf(r->secret, sizeof r->secret, "%s", o->secret ? o->secret : "");
    pthread_mutex_init(&r->lock, NULL);
    pthread_mutex_init(&r->send, NULL);
    ranks_kernels_open(r);
    if ((o->place.rank == 0 ? ranks_lead(r, err) : ranks_join(r, err)) == 0 &&
        ranks_watch(r, err) == 0)
        return r;
    ranks_close(r);
    return NULL;
}

/* ---- agreeing ------------------------------------------------------------------------------- */

/* Receives a message of that kind and size from rank 0, without a time limit: it may be loading its
 * model, and if its host is lost the connection ends. */
static int hear(struct ranks *r, enum link_kind kind, void *to, size_t n, struct err *err)
{
    struct link_message m;
    if (link_receive(r->peer[0].fd, n > WIRE_TEXT ? n : WIRE_TEXT, 0, &m, NULL, err))
        return err_prefix(err, "rank 0");
    int rc = 0;
    if (m.kind == LINK_LOST || m.kind == LINK_REFUSED)
        rc = err_set(err, "rank 0: %.*s", (int)m.n, m.data);
    else if (m.kind != kind || m.n != n)
        rc = err_set(err, "rank 0 said something unexpected (%d, %zu bytes)", (int)m.kind, m.n);
    else
        memcpy(to, m.data, n);
    link_message_free(&m);
    return rc;
}

/* Rank 0: until the watching thread has heard from that rank what it has. */
static int await_part(struct ranks *r, int32_t from, struct err *err)
{
    while (!atomic_load(&r->peer[from].has_part)) {
        if (ranks_lost(r))
            return err_set(err, "%s", r->why);
        usleep(POLL_US);
    }
    return 0;
}

static int check_part(const struct wire_part *own, const struct wire_part *part, int32_t rank,
                      struct err *err)
{
    if (strncmp(own->hash, part->hash, sizeof own->hash) != 0)
        return err_set(err, "rank %d has another model: its hash is %.23s, rank 0's is %s", rank,
                       part->hash, own->hash);
    if (strncmp(own->backend, part->backend, sizeof own->backend) != 0)
        return err_set(err, "rank %d has backend %.15s, rank 0 has %s", rank, part->backend,
                       own->backend);
    return 0;
}

int ranks_tell_all(struct ranks *r, enum link_kind kind, const void *data, size_t n,
                   struct err *err)
{
    int rc = 0;
    pthread_mutex_lock(&r->send);
    for (int32_t i = 1; i < r->options.place.world && rc == 0; i++)
        if (link_send(r->peer[i].fd, kind, data, n, clock_ns() + SEND_NS, err))
            rc = err_prefix(err, "rank %d (process %lld at %s)", i, (long long)r->peer[i].join.pid,
                            r->peer[i].address);
    pthread_mutex_unlock(&r->send);
    return rc;
}

int ranks_tell_first(struct ranks *r, enum link_kind kind, const void *data, size_t n,
                     struct err *err)
{
    pthread_mutex_lock(&r->send);
    int rc = link_send(r->peer[0].fd, kind, data, n, clock_ns() + SEND_NS, err);
    pthread_mutex_unlock(&r->send);
    return rc;
}

static void compare_shapes(struct ranks *r, const struct wire_part *own,
                           const struct wire_part *part, int32_t rank)
{
    for (int k = 0; k < REGION_NODES; k++)
        if (own->shape[k] != part->shape[k] && !r->unequal[k])
            r->unequal[k] = rank;
}

static int lead_agreement(struct ranks *r, const struct wire_part *own, struct wire_setup *setup,
                          struct err *err)
{
    char device[SHARD_WORLD_MAX][sizeof own->device];
    bool shared = false;
    memcpy(device[0], own->device, sizeof own->device);
    if (ranks_tell_all(r, LINK_WISH, setup, sizeof *setup, err))
        return -1;
    atomic_store(&r->awaits_ns, clock_ns());
    for (int32_t i = 1; i < r->options.place.world; i++) {
        const struct wire_part *part = &r->peer[i].part;
        if (await_part(r, i, err) || check_part(own, part, i, err))
            return -1;
        compare_shapes(r, own, part, i);
        memcpy(device[i], part->device, sizeof part->device);
        for (int32_t k = 0; k < i; k++)
            shared |= *part->device && !memcmp(device[k], part->device, sizeof part->device);
        int64_t fit = part->kv_room > 0 && part->page_bytes > 0 ? part->kv_room / part->page_bytes
                                                                : setup->kv_pages;
        if (fit < 1)
            return err_set(err, "rank %d has no room for KV pages", i);
        setup->kv_pages = fit < setup->kv_pages ? (int32_t)fit : setup->kv_pages;
    }
    if (r->ops->ranks->make(setup->id, r->options.place.world, r->welcome.one_host, shared, err))
        return -1;
    memcpy(r->id, setup->id, sizeof r->id);
    r->id_made = true;
    atomic_store(&r->awaits_ns, clock_ns());
    atomic_store(&r->set_up, true);
    return ranks_tell_all(r, LINK_SET_UP, setup, sizeof *setup, err);
}

/* By these numbers buffers are made, and steps are checked later. */
static int hear_setup(struct ranks *r, enum link_kind kind, struct wire_setup *s, struct err *err)
{
    if (hear(r, kind, s, sizeof *s, err))
        return -1;
    s->id[sizeof s->id - 1] = 0;
    if (s->kv_pages < 1 || s->kv_pages > INT32_MAX / KV_PAGE || s->max_tokens < 1 ||
        s->max_tokens > STEP_MOST || s->max_rows < 1 || s->max_rows > STEP_MOST)
        return err_set(err, "rank 0 asks for %d KV pages, %d tokens and %d rows of a step",
                       s->kv_pages, s->max_tokens, s->max_rows);
    return 0;
}

int ranks_hear_wish(struct ranks *r, struct wire_setup *wish, struct err *err)
{
    return hear_setup(r, LINK_WISH, wish, err);
}

int ranks_agree(struct ranks *r, const struct backend_ops *ops, const struct wire_part *part,
                struct wire_setup *setup, struct err *err)
{
    r->ops = ops;
    if (!ops->ranks)
        return err_set(err, "backend %s runs no model in several ranks", ops->name);
    if (!ops->ranks->many_hosts && !r->welcome.one_host)
        return err_set(err, "backend %s: all ranks must be on one machine", ops->name);
    if (r->options.place.rank == 0)
        return lead_agreement(r, part, setup, err);
    if (ranks_tell_first(r, LINK_PART, part, sizeof *part, err))
        return err_prefix(err, "rank 0");
    if (hear_setup(r, LINK_SET_UP, setup, err))
        return -1;
    memcpy(r->id, setup->id, sizeof r->id);
    r->id_made = true; /* this rank removes it too, in case rank 0 dies */
    return 0;
}

struct collective *ranks_collective(struct ranks *r, const struct backend_ops *ops,
                                    const struct wire_setup *setup, struct err *err)
{
    atomic_store(&r->busy, true);
    struct collective *c = ops->ranks->open(setup->id, r->options.place.rank,
                                            r->options.place.world, r->options.step_timeout_s, err);
    atomic_store(&r->collective, c);
    /* A loss before `collective` was set could not be handled by the watching thread. */
    if (c && ranks_lost(r))
        c->ops->abort(c, r->why);
    return c;
}

int ranks_begin(struct ranks *r, struct err *err)
{
    atomic_store(&r->busy, false); /* rank 0 waits below, but reads messages meanwhile */
    if (r->options.place.rank > 0) {
        atomic_store(&r->began, true);
        if (ranks_tell_first(r, LINK_READY, NULL, 0, err))
            return err_prefix(err, "rank 0");
        return 0;
    }
    for (int32_t i = 1; i < r->options.place.world; i++)
        while (!atomic_load(&r->peer[i].ready)) {
            if (ranks_lost(r))
                return err_set(err, "%s", r->why);
            usleep(POLL_US);
        }
    r->ops->ranks->made(r->id);
    r->id_made = false;
    atomic_store(&r->began, true);
    return 0;
}

/* ---- steps ---------------------------------------------------------------------------------- */

/* From here on this rank may wait for the others. */
static int send_order(struct ranks *r, enum link_kind kind, const void *data, size_t n,
                      struct err *err)
{
    atomic_store(&r->busy, true);
    atomic_store(&r->step_ns, clock_ns());
    if (ranks_tell_all(r, kind, data, n, err) == 0)
        return 0;
    ranks_lose(r, err->msg);
    ranks_step_ran(r);
    return -1;
}

int ranks_send_step(struct ranks *r, const struct step *s, struct wire_table *t, struct err *err)
{
    if (ranks_lost(r))
        return err_set(err, "%s", r->why);
    t->step = ++r->steps;
    t->version = r->version += t->changes > 0;
    wire_pack(s, t, &r->wire);
    atomic_store(&r->version_of[0], t->version);
    return send_order(r, LINK_STEP, r->wire.data, r->wire.n, err);
}

int ranks_send_timing(struct ranks *r, const struct wire_timing *t, struct err *err)
{
    if (ranks_lost(r))
        return err_set(err, "%s", r->why);
    return send_order(r, LINK_TIME, t, sizeof *t, err);
}

void ranks_step_ran(struct ranks *r)
{
    atomic_store(&r->step_ns, 0);
    atomic_store(&r->busy, false);
}

/* Checks the number of the step and of its dispatch table: the backend itself would not notice a
 * step that was missed or a table that this rank does not have. */
static int take_step(struct ranks *r, const struct wire_limits *l, struct ranks_order *o,
                     struct err *err)
{
    const struct wire_table *t = &o->table;
    const struct link_message *m = &r->order[r->turn];
    if (wire_unpack(m->data, m->n, l, &o->step, &o->table, err))
        return -1;
    if (t->step != r->steps + 1 || t->version != r->version + (t->changes > 0))
        return err_set(
            err, "rank 0 sends step %lld with table %lld after step %lld with table %lld",
            (long long)t->step, (long long)t->version, (long long)r->steps, (long long)r->version);
    r->steps = t->step;
    r->version = t->version;
    atomic_store(&r->busy, true);
    return ORDER_STEP;
}

static int take_unload(const struct link_message *m, struct ranks_order *o, struct err *err)
{
    if (m->n != sizeof o->number)
        return err_set(err, "rank 0 takes back a kernel in %zu bytes", m->n);
    memcpy(&o->number, m->data, sizeof o->number);
    return ORDER_UNLOAD;
}

int ranks_next(struct ranks *r, const struct wire_limits *l, struct ranks_order *o, struct err *err)
{
    bool gone;
    size_t step = wire_most(l), kernel = sizeof o->kernel + (size_t)KERNEL_BYTES_MOST;
    atomic_store(&r->busy, false);
    r->turn = !r->turn;
    struct link_message *m = &r->order[r->turn];
    do {
        link_message_free(m);
        if (link_receive(r->peer[0].fd, step > kernel ? step : kernel, 0, m, &gone, err))
            return gone ? err_set(err, "rank 0 is gone") : err_prefix(err, "rank 0");
        if (m->kind == LINK_PING)
            ranks_tell_first(r, LINK_ALIVE, NULL, 0, NULL); /* else the next read finds it */
    } while (m->kind == LINK_PING);
    switch (m->kind) {
    case LINK_END:
        return ORDER_END;
    case LINK_STEP:
        return take_step(r, l, o, err);
    case LINK_LOAD:
        return wire_read_kernel(m->data, m->n, &o->kernel, &o->bytes, err) ? -1 : ORDER_LOAD;
    case LINK_UNLOAD:
        return take_unload(m, o, err);
    case LINK_TIME:
        if (wire_read_timing(m->data, m->n, l, &o->timing, err))
            return -1;
        atomic_store(&r->busy, true);
        return ORDER_TIME;
    case LINK_LOST:
        return err_set(err, "rank 0: %.*s", (int)m->n, m->data);
    default:
        return err_set(err, "rank 0 said something unexpected (%d)", (int)m->kind);
    }
}

void ranks_give_up(struct ranks *r, const char *why)
{
    size_t n = strlen(why);
    struct collective *c = atomic_load(&r->collective);
    if (c) /* a step may still be under way */
        c->ops->abort(c, why);
    ranks_tell_first(r, LINK_LOST, why, n < WIRE_TEXT ? n : WIRE_TEXT, NULL);
}

int ranks_note_crashes(struct ranks *r, struct err *err)
{
    char head[LINK_HEAD];
    link_head(LINK_CRASH, sizeof(struct crash_record), head);
    r->notes_crashes = crash_send(r->peer[0].fd, head, sizeof head, err) == 0;
    return r->notes_crashes ? 0 : -1;
}

/* ---- the end -------------------------------------------------------------------------------- */

/* Sends the last message of rank 0 to another rank. */
static void part_from(struct ranks *r, int fd)
{
    const char *why = ranks_lost(r);
    if (!why && !r->began)
        why = "it ended before all ranks were ready";
    link_send(fd, why ? LINK_LOST : LINK_END, why, why ? strlen(why) : 0, clock_ns() + HELLO_NS,
              NULL);
}

void ranks_close(struct ranks *r)
{
    if (!r)
        return;
    if (r->notes_crashes)
        crash_close();
    if (r->watching) {
        atomic_store(&r->stop, true);
        pthread_join(r->watcher, NULL);
    }
    for (int32_t i = 0; i < SHARD_WORLD_MAX; i++)
        if (r->peer[i].fd >= 0) {
            if (r->options.place.rank == 0)
                part_from(r, r->peer[i].fd);
            close(r->peer[i].fd);
        }
    if (r->listener >= 0)
        close(r->listener);
    if (r->id_made)
        r->ops->ranks->made(r->id);
    struct collective *c = atomic_load(&r->collective);
    if (c)
        c->ops->close(c);
    wire_buffer_free(&r->wire);
    for (int i = 0; i < 2; i++)
        link_message_free(&r->order[i]);
    ranks_kernels_close(r);
    pthread_mutex_destroy(&r->send);
    pthread_mutex_destroy(&r->lock);
    free(r);
}
