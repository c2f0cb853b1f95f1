/* SPDX-License-Identifier: Apache-2.0 */
/* taken.h - groups of rows that ranks come for, so that one on a slower core does fewer.
 *
 * A count is of the whole team and 0 when a region begins (struct team): a region may share out one
 * set of groups by each of its counts, once:
 *   struct share s = share_taken(team, groups, SPLIT);
 *   for (int g = share_first(&s); g < s.end; g = share_next(&s, g))
 */
#ifndef WHET_KERNELS_CPU_LIB_TAKEN_H
#define WHET_KERNELS_CPU_LIB_TAKEN_H

#include "cpu/lib/share.h"

/* The number of what the caller does next. */
INLINE int take_number(int32_t *count)
{
    return __atomic_fetch_add(count, 1, __ATOMIC_RELAXED);
}

/* share_groups(); but groups that are dealt out go to whoever comes for one, where the team counts
 * what is taken. */
INLINE struct share share_taken(const struct team *team, int groups, int interleaved)
{
    struct share s = share_groups(team, groups, interleaved);
    s.taken.count = interleaved ? team->taken : NULL;
    return s;
}

/* The same by count number `count` for groups that take no longer than the counting: pieces begin
 * with as many as a half of a rank's share and shrink to one. */
INLINE struct share share_guided(const struct team *team, int groups, int interleaved, int count)
{
    struct share s = share_groups(team, groups, interleaved);
    s.taken.count = interleaved && team->taken ? team->taken + count : NULL;
    s.taken.size = team->size;
    return s;
}

INLINE int share_piece(const struct share *s)
{
    const int left = s->end - s->taken.at;
    return s->taken.size && left > 2 * s->taken.size ? left / (2 * s->taken.size) : 1;
}

/* Comes for the next piece; the pieces before it, which are others', are only counted up. */
INLINE int share_take(struct share *s)
{
    const int32_t mine = take_number(s->taken.count);
    if (s->taken.size == 0)
        return mine;
    for (; s->taken.piece < mine && s->taken.at < s->end; s->taken.piece++)
        s->taken.at += share_piece(s);
    s->taken.stop = s->taken.at + share_piece(s);
    return s->taken.at;
}

INLINE int share_first(struct share *s)
{
    return s->taken.count ? share_take(s) : s->first;
}

INLINE int share_next(struct share *s, int g)
{
    if (!s->taken.count)
        return g + s->step;
    return g + 1 < s->taken.stop ? g + 1 : share_take(s);
}

/* Whether item number `turn` of a region, which goes through all of them in order, is the rank's.
 * Dealt out: whoever comes for it, which is told by `next`, -1 at first; or, without counts, each
 * its turn, and every other round backwards: later items are longer. Otherwise the item whose
 * middle, `at` of `all`, lies in the rank's range. */
INLINE int item_is_mine(const struct team *team, int dealt, int turn, int *next, int64_t at,
                        int64_t all)
{
    if (!dealt)
        return at * team->size / all == team->rank;
    if (!team->taken) {
        const int place = turn % (2 * team->size);
        return (place < team->size ? place : 2 * team->size - 1 - place) == team->rank;
    }
    if (*next < turn)
        *next = take_number(team->taken);
    return *next == turn;
}

#endif
