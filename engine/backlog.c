/* SPDX-License-Identifier: Apache-2.0 */
/* backlog.c - who is refused when the queue is full.
 *
 * A client that would have no more requests waiting than are left to the one with most gets in, and
 * the newest waiting answer of that one is ended in its place, before it cost anything. So however
 * many requests one client sends, the others find room, and no two clients can go on displacing
 * each other: each time the difference between them gets smaller.
 *
 * Answers are displaced one for one, however many requests they are: an answer of many choices
 * costs other clients one answer at most, and a large one is not ended for a small one whose client
 * would then have more. Clients are compared by requests, since those are what takes places.
 *
 * An answer that has begun would cost what was computed of it, and what its client may be reading.
 * It is kept: its requests count as waiting where clients are compared but are never what is ended.
 * Whoever has nothing but such answers waiting loses none, and the next client, by the number
 * waiting, gives way.
 *
 * Where nobody has more than one waiting (server.max_queue is 0, say) there is nothing to displace.
 * A client that has no request at all gets in nevertheless as long as some other has two: the
 * scheduler makes a place in the batch for it. So does an answer of more requests than the one that
 * it displaces. At most max_batch requests are over the limit so.
 */
#include "engine/backlog.h"

#include <stdio.h>
#include <stdlib.h>

struct entry {
    struct ranked ranked;
    int32_t active, waiting, displacing;
    struct backlog_group *newest; /* of those that can be displaced; NULL: there is none */
};

static int32_t waits(const struct entry *e)
{
    return e ? e->waiting - e->displacing : 0;
}

/* Among those that are displaceable. */
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

/* Whether `n` more are above its own limits. A request that can start at once does not count as
 * waiting, though it does until the next step. */
static bool limited(const struct backlog *b, const struct entry *mine,
                    const struct request_limits *l, int32_t n, struct err *err)
{
    int32_t running = mine ? mine->active - mine->waiting : 0;
    int32_t places = b->max_batch - (b->active - b->waiting);
    if (l->running > 0)
        places = least(places, l->running - running);
    if (places < 1)
        places = running == 0; /* a place will be made for it */
    if (l->waiting < 0 || waits(mine) + n <= l->waiting + places)
        return false;
    char more[48] = "";
    if (n > 1)
        snprintf(more, sizeof more, ", and these are %d more", n);
    err_set(err, "%d of your requests run and %d wait%s: your limit is running=%d waiting=%d",
            running, waits(mine), more, l->running > 0 ? l->running : b->max_batch, l->waiting);
    return true;
}

/* Whether a client, with `n` more, has no more waiting than `most` has without its newest answer;
 * or one more, and no more in all. */
static bool gives_way(const struct entry *most, const struct entry *mine, int32_t n)
{
    int32_t freed = most->newest->waiting;
    int32_t left = waits(most) - freed, want = waits(mine) + n;
    bool fewer = (mine ? mine->active : 0) + n <= most->active - freed;
    return left >= want || (left + 1 == want && fewer);
}

/* Whether the queue has places for an answer of `n` requests of this client's, or has them once
 * another one is displaced. */
static bool has_place(const struct backlog *b, uint64_t client, int32_t n,
                      struct backlog_group **displaced)
{
    const struct entry *mine = find(b, client);
    const struct entry *most = (const struct entry *)ranking_first(&b->clients);
    int32_t active = b->active - b->displacing, limit = b->max_batch + b->max_queue;
    int32_t bound = limit + b->max_batch;
    *displaced = NULL;
    if (active + n <= limit)
        return true;
    if (most && most != mine && gives_way(most, mine, n)) {
        int32_t freed = most->newest->waiting;
        if (n <= freed || active - freed + n <= bound) {
            *displaced = most->newest;
            return true;
        }
    }
    return !mine && b->clients.items < active && active + n <= bound;
}

static enum submit_result admit(const struct backlog *b, uint64_t client,
                                const struct request_limits *limits, int32_t n,
                                struct backlog_group **displaced, struct err *err)
{
    *displaced = NULL;
    if (limits && limited(b, find(b, client), limits, n, err))
        return SUBMIT_LIMITED;
    if (has_place(b, client, n, displaced))
        return SUBMIT_OK;
    if (n == 1)
        err_set(err, "the queue is full"); /* how full is nobody's business */
    else
        err_set(err, "the queue has no room for %d more", n);
    return SUBMIT_FULL;
}

enum submit_result backlog_admit(const struct backlog *b, uint64_t client,
                                 const struct request_limits *limits, struct err *err)
{
    struct backlog_group *displaced;
    return admit(b, client, limits, 1, &displaced, err);
}

/* ---- counting ------------------------------------------------------------------------------ */

static void rank(struct backlog *b, struct entry *e)
{
    if (e->newest)
        ranking_rank(&b->clients, &e->ranked);
    else
        ranking_unrank(&b->clients, &e->ranked);
}

/* It can be displaced; and no more. */
static void link_newest(struct entry *e, struct backlog_group *group)
{
    group->older = e->newest;
    if (e->newest)
        e->newest->newer = group;
    e->newest = group;
}

static void unlink_group(struct entry *e, struct backlog_group *group)
{
    if (group->begun || group->displaced)
        return; /* it was taken out then */
    *(group->newer ? &group->newer->older : &e->newest) = group->older;
    if (group->older)
        group->older->newer = group->newer;
    group->older = group->newer = NULL;
}

static struct entry *enter_client(struct backlog *b, uint64_t client)
{
    struct entry *e = find(b, client);
    if (e)
        return e;
    e = xcalloc(1, sizeof *e);
    e->ranked.id = client;
    ranking_add(&b->clients, &e->ranked);
    return e;
}

static void displace(struct backlog *b, struct backlog_group *group)
{
    struct entry *e = find(b, group->client);
    unlink_group(e, group);
    group->displaced = true;
    e->displacing += group->waiting;
    b->displacing += group->waiting;
    rank(b, e);
}

enum submit_result backlog_enter(struct backlog *b, uint64_t client,
                                 const struct request_limits *limits, struct backlog_group *group,
                                 int32_t n, struct backlog_group **displaced, struct err *err)
{
    enum submit_result result = admit(b, client, limits, n, displaced, err);
    if (result != SUBMIT_OK)
        return result;
    if (*displaced)
        displace(b, *displaced);
    struct entry *e = enter_client(b, client);
    group->client = client;
    group->active = group->waiting = n;
    link_newest(e, group);
    e->active += n, b->active += n;
    e->waiting += n, b->waiting += n;
    rank(b, e);
    return SUBMIT_OK;
}

static void count_displacing(struct backlog *b, struct entry *e, int32_t less)
{
    e->displacing -= less;
    b->displacing -= less;
}

void backlog_started(struct backlog *b, struct backlog_group *group)
{
    struct entry *e = find(b, group->client);
    unlink_group(e, group);
    if (group->displaced)
        count_displacing(b, e, group->waiting);
    group->displaced = false;
    group->begun = true;
    group->waiting--, e->waiting--, b->waiting--;
    rank(b, e);
}

void backlog_leave(struct backlog *b, struct backlog_group *group, bool waited)
{
    struct entry *e = find(b, group->client);
    group->active--, e->active--, b->active--;
    if (waited) {
        group->waiting--, e->waiting--, b->waiting--;
        count_displacing(b, e, group->displaced);
        if (group->waiting == 0)
            unlink_group(e, group);
    }
    rank(b, e);
    if (e->active == 0) {
        ranking_remove(&b->clients, &e->ranked);
        free(e);
    }
}
