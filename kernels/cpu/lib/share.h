/* SPDX-License-Identifier: Apache-2.0 */
/* share.h - which groups of rows a rank of the team computes. */
#ifndef WHET_KERNELS_CPU_LIB_SHARE_H
#define WHET_KERNELS_CPU_LIB_SHARE_H

#include "args.h"
#include "cpu/lib/isa.h"

struct share {
    int first, end, step; /* for (g = first; g < end; g += step) */
    int32_t *taken;       /* or NULL: taken.h */
};

/* `groups` groups over the team: neighbouring ones to a rank, or dealt out in turn. */
INLINE struct share share_groups(const struct team *team, int groups, int interleaved)
{
    if (interleaved)
        return (struct share){team->rank, groups, team->size, NULL};
    return (struct share){(int)((int64_t)groups * team->rank / team->size),
                          (int)((int64_t)groups * (team->rank + 1) / team->size), 1, NULL};
}

#endif
