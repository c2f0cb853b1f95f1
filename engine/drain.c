/* SPDX-License-Identifier: Apache-2.0 */
/* drain.c - see drain.h. */
#include "engine/drain.h"

#include <math.h>

#define FORGOTTEN_NS INT64_C(60000000000)

/* How long the batch was full, in sum. */
static int64_t full_ns(const struct drain *d, int64_t now_ns)
{
    return d->full_ns + (d->full ? now_ns - d->since_ns : 0);
}

void drain_full(struct drain *d, bool full, int64_t now_ns)
{
    if (full == d->full)
        return;
    d->full_ns = full_ns(d, now_ns);
    if (full && now_ns - d->since_ns > FORGOTTEN_NS) {
        d->began_ns = d->full_ns;
        d->ends = 0;
    }
    d->full = full;
    d->since_ns = now_ns;
}

void drain_ended(struct drain *d, int64_t now_ns)
{
    if (d->full)
        d->end[d->ends++ % DRAIN_ENDS] = full_ns(d, now_ns);
}

int32_t drain_wait_s(const struct drain *d, int32_t waiting, int64_t now_ns)
{
    bool ring = d->ends >= DRAIN_ENDS; /* then the oldest of it begins what is looked at */
    int64_t from = ring ? d->end[d->ends % DRAIN_ENDS] : d->began_ns;
    double ended = ring ? DRAIN_ENDS - 1 : d->ends > 0 ? d->ends : 1;
    double wait = ceil(waiting * (double)(full_ns(d, now_ns) - from) / 1e9 / ended);
    return wait < DRAIN_LEAST_S  ? DRAIN_LEAST_S
           : wait > DRAIN_MOST_S ? DRAIN_MOST_S
                                 : (int32_t)wait;
}
