/* SPDX-License-Identifier: Apache-2.0 */
/* ranking.h - things that are known by a number, and the first of some of them in an order.
 *
 * A hash table and a binary heap over the same items, which belong to the caller and begin with a
 * struct ranked: found in constant time, put in order in logarithmic time. Whoever owns it locks.
 */
#ifndef WHET_ENGINE_RANKING_H
#define WHET_ENGINE_RANKING_H

#include <stdbool.h>
#include <stdint.h>

struct ranked {
    uint64_t id;
    struct ranked *next_same; /* in its bucket */
    int32_t at;               /* place in the heap, from 1; 0: it has no rank */
};

struct ranking {
    bool (*before)(const struct ranked *a, const struct ranked *b);
    struct ranked **bucket; /* [mask + 1] */
    uint32_t mask;
    int32_t items;
    struct ranked **heap; /* [1 .. n] */
    int32_t n, size;
};

void ranking_init(struct ranking *r, bool (*before)(const struct ranked *, const struct ranked *));
void ranking_free(struct ranking *r); /* not the items */

/* The item with this number, or NULL. */
struct ranked *ranking_find(const struct ranking *r, uint64_t id);
/* Its number must be set and not be known yet; it has no rank at first. */
void ranking_add(struct ranking *r, struct ranked *item);
void ranking_remove(struct ranking *r, struct ranked *item);

/* Gives it the rank it has by `before` now; again after anything changed that `before` looks at. */
void ranking_rank(struct ranking *r, struct ranked *item);
void ranking_unrank(struct ranking *r, struct ranked *item);
/* The first of those with a rank, or NULL. */
struct ranked *ranking_first(const struct ranking *r);

#endif
