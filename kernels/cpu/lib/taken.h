/* SPDX-License-Identifier: Apache-2.0 */
/* taken.h - groups of rows that ranks come for, so that one on a slower core does fewer.
 *
 * A count is of the whole team and 0 when a region begins (struct team): a region may share out one
 * set of groups by it.
 */
#ifndef WHET_KERNELS_CPU_LIB_TAKEN_H
#define WHET_KERNELS_CPU_LIB_TAKEN_H

#include "cpu/lib/share.h"

/* share_groups(); but groups that are dealt out go to whoever comes for one, where the team counts
 * what is taken:
 *   for (g = share_first(&s); g < s.end; g = share_next(&s, g))
 * Once in a region. */
INLINE struct share share_taken(const struct team *team, int groups, int interleaved)
{
    struct share s = share_groups(team, groups, interleaved);
    s.taken = interleaved ? team->taken : NULL;
    return s;
}

INLINE int share_take(int32_t *taken)
{
    return __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED);
}

INLINE int share_first(const struct share *s)
{
    return s->taken ? share_take(s->taken) : s->first;
}

INLINE int share_next(const struct share *s, int g)
{
    return s->taken ? share_take(s->taken) : g + s->step;
}

#endif
