/* SPDX-License-Identifier: Apache-2.0 */
/* backlog.c - who is refused when the queue is full.
 *
 * A client that would have fewer requests waiting than the one with most gets in, and the newest
 * waiting request of that one is ended in its place, before it cost anything. So however many
 * requests one client sends, the others find room, and no two clients can go on displacing each
 * other: each time the difference between them gets smaller.
 *
 * A request of an answer that has begun would cost what its group has computed, and the answer that
 * its client may be reading. Such a request is kept: it counts as waiting where clients are
 * compared but is never what is ended. Whoever has nothing but such requests waiting loses none,
 * and the next client, by the number waiting, gives way.
 *
 * Where nobody has more than one waiting (server.max_queue is 0, say) there is nothing to displace.
 * A client that has no request at all gets in nevertheless as long as some other has two: the
 * scheduler makes a place in the batch for it. At most max_batch requests are over the limit so.
 */
#include "engine/backlog.h"

#include <stdio.h>
#include <stdlib.h>

struct entry {
    struct ranked ranked;
    int32_t active, waiting, displacing;
    int32_t kept; /* of `waiting`: their group has begun */
};

static int32_t waits(const struct entry *e)
{
    return e ? e->waiting - e->displacing : 0;
}

static bool displaceable(const struct entry *e)
{
    return waits(e) > e->kept;
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

/* Whether the queue has a place for one more of this client's, or some other client's. */
static bool has_place(const struct backlog *b, uint64_t client, uint64_t *displaced)
{
    const struct entry *mine = find(b, client);
    const struct entry *most = (const struct entry *)ranking_first(&b->clients);
    int32_t active = b->active - b->displacing;
    *displaced = 0;
    if (active < b->max_batch + b->max_queue)
        return true;
    int32_t ahead = waits(most) - waits(mine);
    bool fewer = most && (mine ? mine->active : 0) + 1 < most->active;
    if (most != mine && (ahead > 1 || (ahead == 1 && fewer))) {
        *displaced = most->ranked.id;
        return true;
    }
    return !mine && b->clients.items < active && active < 2 * b->max_batch + b->max_queue;
}

enum submit_result backlog_admit(const struct backlog *b, uint64_t client,
                                 const struct request_limits *limits, uint64_t *displaced,
                                 struct err *err)
{
    *displaced = 0;
    if (limits && limited(b, find(b, client), limits, 1, err))
        return SUBMIT_LIMITED;
    if (has_place(b, client, displaced))
        return SUBMIT_OK;
    err_set(err, "the queue is full"); /* how full is nobody's business */
    return SUBMIT_FULL;
}

enum submit_result backlog_enter_all(struct backlog *b, uint64_t client,
                                     const struct request_limits *limits,
                                     struct backlog_group *group, int32_t n, uint64_t *displaced,
                                     struct err *err)
{
    int32_t entered = 0;
    if (limits && limited(b, find(b, client), limits, n, err))
        return SUBMIT_LIMITED;
    for (; entered < n && has_place(b, client, &displaced[entered]); entered++) {
        if (displaced[entered])
            backlog_displace(b, displaced[entered]);
        backlog_enter(b, client, group);
    }
    if (entered == n)
        return SUBMIT_OK;
    while (entered-- > 0) {
        backlog_leave(b, client, group, true);
        if (displaced[entered])
            backlog_displaced(b, displaced[entered]);
    }
    if (n == 1)
        err_set(err, "the queue is full");
    else
        err_set(err, "the queue has no room for %d more", n);
    return SUBMIT_FULL;
}

/* ---- counting ------------------------------------------------------------------------------ */

static void rank(struct backlog *b, struct entry *e)
{
    if (displaceable(e))
        ranking_rank(&b->clients, &e->ranked);
    else
        ranking_unrank(&b->clients, &e->ranked);
}

void backlog_enter(struct backlog *b, uint64_t client, struct backlog_group *group)
{
    struct entry *e = find(b, client);
    if (!e) {
        e = xcalloc(1, sizeof *e);
        e->ranked.id = client;
        ranking_add(&b->clients, &e->ranked);
    }
    e->active++, b->active++;
    e->waiting++, b->waiting++;
    if (group) {
        group->active++, group->waiting++;
        e->kept += group->begun;
    }
    rank(b, e);
}

static void waits_no_more(struct backlog *b, struct entry *e, struct backlog_group *group)
{
    e->waiting--, b->waiting--;
    if (group) {
        group->waiting--;
        e->kept -= group->begun;
    }
}

void backlog_started(struct backlog *b, uint64_t client, struct backlog_group *group)
{
    struct entry *e = find(b, client);
    waits_no_more(b, e, group);
    if (group && !group->begun) {
        group->begun = true;
        e->kept += group->waiting;
    }
    rank(b, e);
}

void backlog_leave(struct backlog *b, uint64_t client, struct backlog_group *group, bool waited)
{
    struct entry *e = find(b, client);
    e->active--, b->active--;
    if (group)
        group->active--;
    if (waited)
        waits_no_more(b, e, group);
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
