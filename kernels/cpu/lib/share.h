/* SPDX-License-Identifier: Apache-2.0 */
/* share.h - which groups of rows a rank of the team computes. */
#ifndef WHET_KERNELS_CPU_LIB_SHARE_H
#define WHET_KERNELS_CPU_LIB_SHARE_H

#include "args.h"
#include "cpu/lib/isa.h"

/* Groups that ranks come for piece by piece, in one order for all. */
struct taken {
    int32_t *count; /* of pieces, the whole team's; NULL: none, groups are as in struct share */
    int size;       /* of the team where pieces shrink; 0: each is one group */
    int32_t piece;  /* the next one's number */
    int at, stop;   /* where that begins; where this rank's own ends */
};

struct share {
    int first, end, step; /* for (g = first; g < end; g += step) */
    struct taken taken;   /* taken.h */
};

/* `groups` groups over the team: neighbouring ones to a rank, or dealt out in turn. */
INLINE struct share share_groups(const struct team *team, int groups, int interleaved)
{
    if (interleaved)
        return (struct share){team->rank, groups, team->size, {0}};
    return (struct share){(int)((int64_t)groups * team->rank / team->size),
                          (int)((int64_t)groups * (team->rank + 1) / team->size),
                          1,
                          {0}};
}

#endif
