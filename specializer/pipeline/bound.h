/* SPDX-License-Identifier: Apache-2.0 */
/* bound.h - the speed-of-light bound: seconds in which no kernel can do a region's work. What is
 * measured below it is refused.
 */
#ifndef WHET_SPECIALIZER_PIPELINE_BOUND_H
#define WHET_SPECIALIZER_PIPELINE_BOUND_H

#include <stdint.h>

#include "engine/plan.h"

/* Seconds in which nothing can do this work on this machine; 0 when nothing sure is known.
 * `resident` is the bytes that one round over all layers touches, `bandwidth` what reading
 * BOUND_CACHED_BYTES again and again reaches: no larger set is read faster. */
double bound_seconds(const struct machine *m, const struct region_cost *cost, int64_t resident,
                     double bandwidth);
/* What private caches may hold of a working set on a CPU: below it, no rate bounds reading. */
enum { BOUND_CACHED_BYTES = 16 << 20 };
/* Bytes a second of reading `bytes` of memory over and over, by `threads` threads if each is as
 * fast as this one. Takes 20 ms of a core, so it is for the start, not for a time of requests. */
double bound_read_bandwidth(int64_t bytes, int32_t threads);

#endif
