/* SPDX-License-Identifier: Apache-2.0 */
/* drain.h - how fast a full queue gets shorter, for who is told to come back later.
 *
 * Only what happens while the batch is full says so: where places are free, requests end as fast as
 * they come, and a quiet hour is no slow one. So ends are counted, and time is measured, while at
 * least as many requests are in the engine as run together; the last few ends, and the time since
 * them, are the rate. Pure arithmetic on what it is told; the caller locks.
 */
#ifndef WHET_ENGINE_DRAIN_H
#define WHET_ENGINE_DRAIN_H

#include <stdbool.h>
#include <stdint.h>

enum { DRAIN_ENDS = 16, DRAIN_LEAST_S = 1, DRAIN_MOST_S = 60 };

/* All-zero: nothing was seen. */
struct drain {
    bool full;
    int64_t since_ns;        /* full: since when; else when it last was */
    int64_t full_ns;         /* how long it was full before that, in sum */
    int64_t began_ns;        /* full_ns when the counting began */
    int64_t end[DRAIN_ENDS]; /* full_ns at the last ends, a ring */
    uint32_t ends;           /* since the counting began */
};

/* Whether the batch is full from now on. After so long a time without that what was counted is of
 * another load, and the counting begins anew. */
void drain_full(struct drain *d, bool full, int64_t now_ns);
/* A request that ran has ended. Before the call that says what is full then. */
void drain_ended(struct drain *d, int64_t now_ns);
/* Seconds until `waiting` requests have begun, if others go on ending as fast as they did:
 * DRAIN_LEAST_S to DRAIN_MOST_S. Where none has ended yet, one is taken to end now. */
int32_t drain_wait_s(const struct drain *d, int32_t waiting, int64_t now_ns);

#endif
