/* SPDX-License-Identifier: Apache-2.0 */
/* world.h - a whole server for fuzz targets: real sockets, the real loop, the echoing toy engine.
 * The loop runs on the caller's thread. */
#ifndef WHET_TESTS_FUZZ_WORLD_H
#define WHET_TESTS_FUZZ_WORLD_H

#include <stddef.h>
#include <stdint.h>

#include "server/metrics.h"

/* Requests by route and status. */
struct fuzz_counts {
    uint64_t requests[METRIC_ROUTES][METRIC_CODES];
};

/* Sends `n` bytes on a new connection, `piece` at a time, waits for the answers to whatever is a
 * request in them, and leaves. What was counted meanwhile; aborts if anything is left behind. */
struct fuzz_counts fuzz_send(const char *data, size_t n, size_t piece);

#endif
