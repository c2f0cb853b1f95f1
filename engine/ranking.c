/* SPDX-License-Identifier: Apache-2.0 */
/* ranking.c - see ranking.h. Numbers are ours, not a client's, so the table's hash needs no key. */
#include "engine/ranking.h"

#include <stdlib.h>

#include "config/err.h"

enum { BUCKETS_LEAST = 16 };

void ranking_init(struct ranking *r, bool (*before)(const struct ranked *, const struct ranked *))
{
    *r = (struct ranking){.before = before, .mask = BUCKETS_LEAST - 1};
    r->bucket = xcalloc(BUCKETS_LEAST, sizeof *r->bucket);
}

void ranking_free(struct ranking *r)
{
    free(r->bucket);
    free(r->heap);
    *r = (struct ranking){0};
}

/* ---- by number ----------------------------------------------------------------------------- */

static struct ranked **bucket_of(const struct ranking *r, uint64_t id)
{
    return &r->bucket[(id * 0x9e3779b97f4a7c15u >> 32) & r->mask];
}

struct ranked *ranking_find(const struct ranking *r, uint64_t id)
{
    struct ranked *item = *bucket_of(r, id);
    while (item && item->id != id)
        item = item->next_same;
    return item;
}

static void put(struct ranking *r, struct ranked *item)
{
    struct ranked **head = bucket_of(r, item->id);
    item->next_same = *head;
    *head = item;
}

static void widen(struct ranking *r)
{
    struct ranked **old = r->bucket;
    uint32_t buckets = r->mask + 1;
    r->mask = 2 * buckets - 1;
    r->bucket = xcalloc(2 * (size_t)buckets, sizeof *r->bucket);
    for (uint32_t i = 0; i < buckets; i++)
        for (struct ranked *item = old[i], *next; item; item = next) {
            next = item->next_same;
            put(r, item);
        }
    free(old);
}

void ranking_add(struct ranking *r, struct ranked *item)
{
    if ((uint32_t)r->items > r->mask)
        widen(r);
    item->at = 0;
    put(r, item);
    r->items++;
}

void ranking_remove(struct ranking *r, struct ranked *item)
{
    struct ranked **link = bucket_of(r, item->id);
    ranking_unrank(r, item);
    while (*link != item)
        link = &(*link)->next_same;
    *link = item->next_same;
    r->items--;
}

/* ---- by rank ------------------------------------------------------------------------------- */

static void place(struct ranking *r, struct ranked *item, int32_t at)
{
    r->heap[at] = item;
    item->at = at;
}

static void settle(struct ranking *r, struct ranked *item, int32_t at)
{
    for (; at > 1 && r->before(item, r->heap[at / 2]); at /= 2)
        place(r, r->heap[at / 2], at);
    for (int32_t child; (child = 2 * at) <= r->n; at = child) {
        if (child < r->n && r->before(r->heap[child + 1], r->heap[child]))
            child++;
        if (!r->before(r->heap[child], item))
            break;
        place(r, r->heap[child], at);
    }
    place(r, item, at);
}

void ranking_rank(struct ranking *r, struct ranked *item)
{
    if (item->at == 0) {
        if (r->n + 1 >= r->size) {
            r->size = 2 * r->size + 16;
            r->heap = xrealloc(r->heap, (size_t)r->size * sizeof *r->heap);
        }
        item->at = ++r->n;
    }
    settle(r, item, item->at);
}

void ranking_unrank(struct ranking *r, struct ranked *item)
{
    if (item->at == 0)
        return;
    struct ranked *last = r->heap[r->n--];
    if (last != item)
        settle(r, last, item->at);
    item->at = 0;
}

struct ranked *ranking_first(const struct ranking *r)
{
    return r->n > 0 ? r->heap[1] : NULL;
}
