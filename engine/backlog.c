/* SPDX-License-Identifier: Apache-2.0 */
/* backlog.c - who is refused when the queue is full.
 *
 * A client that would have fewer requests waiting than the one with most gets in, and the newest
 * waiting request of that one is ended in its place, before it cost anything. So however many
 * requests one client sends, the others find room, and no two clients can go on displacing each
 * other: each time the difference between them gets smaller.
 *
 * Where nobody has more than one waiting (server.max_queue is 0, say) there is nothing to displace.
 * A client that has no request at all gets in nevertheless as long as some other has two: the
 * scheduler makes a place in the batch for it. At most max_batch requests are over the limit so.
 */
#include "engine/backlog.h"

#include <stdlib.h>

struct entry {
    struct ranked ranked;
    int32_t active, waiting, displacing;
};

static int32_t waits(const struct entry *e)
{
    return e ? e->waiting - e->displacing : 0;
}

static bool before(const struct ranked *a, const struct ranked *b)
{
    return waits((const struct entry *)a) > waits((const struct entry *)b);
}

void backlog_init(struct backlog *b, int32_t max_batch, int32_t max_queue)
{
    *b = (struct backlog){.max_batch = max_batch, .max_queue = max_queue};
    ranking_init(&b->clients, before);
}

void backlog_batch(struct backlog *b, int32_t max_batch)
{
    b->max_batch = max_batch;
}

void backlog_free(struct backlog *b)
{
    for (uint32_t i = 0; b->clients.bucket && i <= b->clients.mask; i++)
        for (struct ranked *item = b->clients.bucket[i], *next; item; item = next) {
            next = item->next_same;
            free(item);
        }
    ranking_free(&b->clients);
}

static struct entry *find(const struct backlog *b, uint64_t client)
{
    return (struct entry *)ranking_find(&b->clients, client);
}

/* ---- judging ------------------------------------------------------------------------------- */

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* A request that can start at once does not count as waiting, though it does until the next step.
 */
static bool limited(const struct backlog *b, const struct entry *mine,
                    const struct request_limits *l, struct err *err)
{
    int32_t running = mine ? mine->active - mine->waiting : 0;
    int32_t places = b->max_batch - (b->active - b->waiting);
    if (l->running > 0)
        places = least(places, l->running - running);
    if (places < 1)
        places = running == 0; /* a place will be made for it */
    if (l->waiting < 0 || waits(mine) < l->waiting + places)
        return false;
    err_set(err, "%d of your requests run and %d wait: your limit is running=%d waiting=%d",
            running, waits(mine), l->running > 0 ? l->running : b->max_batch, l->waiting);
    return true;
}

enum submit_result backlog_admit(const struct backlog *b, uint64_t client,
                                 const struct request_limits *limits, uint64_t *displaced,
                                 struct err *err)
{
    const struct entry *mine = find(b, client);
    const struct entry *most = (const struct entry *)ranking_first(&b->clients);
    int32_t active = b->active - b->displacing;
    *displaced = 0;
    if (limits && limited(b, mine, limits, err))
        return SUBMIT_LIMITED;
    if (active < b->max_batch + b->max_queue)
        return SUBMIT_OK;
    int32_t ahead = waits(most) - waits(mine);
    bool fewer = most && (mine ? mine->active : 0) + 1 < most->active;
    if (most != mine && (ahead > 1 || (ahead == 1 && fewer))) {
        *displaced = most->ranked.id;
        return SUBMIT_OK;
    }
    if (!mine && b->clients.items < active && active < 2 * b->max_batch + b->max_queue)
        return SUBMIT_OK;
    err_set(err, "the queue is full"); /* how full is nobody's business */
    return SUBMIT_FULL;
}

/* ---- counting ------------------------------------------------------------------------------ */

static void rank(struct backlog *b, struct entry *e)
{
    if (waits(e) > 0)
        ranking_rank(&b->clients, &e->ranked);
    else
        ranking_unrank(&b->clients, &e->ranked);
}

void backlog_enter(struct backlog *b, uint64_t client)
{
    struct entry *e = find(b, client);
    if (!e) {
        e = xcalloc(1, sizeof *e);
        e->ranked.id = client;
        ranking_add(&b->clients, &e->ranked);
    }
    e->active++, b->active++;
    e->waiting++, b->waiting++;
    rank(b, e);
}

void backlog_started(struct backlog *b, uint64_t client)
{
    struct entry *e = find(b, client);
    e->waiting--, b->waiting--;
    rank(b, e);
}

void backlog_leave(struct backlog *b, uint64_t client, bool waited)
{
    struct entry *e = find(b, client);
    e->active--, b->active--;
    e->waiting -= waited, b->waiting -= waited;
    rank(b, e);
    if (e->active == 0 && e->displacing == 0) {
        ranking_remove(&b->clients, &e->ranked);
        free(e);
    }
}

void backlog_displace(struct backlog *b, uint64_t client)
{
    struct entry *e = find(b, client);
    e->displacing++, b->displacing++;
    rank(b, e);
}

void backlog_displaced(struct backlog *b, uint64_t client)
{
    struct entry *e = find(b, client);
    e->displacing--, b->displacing--;
    rank(b, e);
    if (e->active == 0 && e->displacing == 0) {
        ranking_remove(&b->clients, &e->ranked);
        free(e);
    }
}
