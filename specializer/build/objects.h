/* SPDX-License-Identifier: Apache-2.0 */
/* objects.h - the folder of compiled kernels: a cache, kept within bounds. */
#ifndef WHET_SPECIALIZER_BUILD_OBJECTS_H
#define WHET_SPECIALIZER_BUILD_OBJECTS_H

#include <stdbool.h>
#include <stdint.h>

struct objects_limit {
    int64_t bytes; /* of all objects together */
    int64_t age_s; /* of one */
};

/* Deletes what is older than the limit, then the oldest until the rest fits, but no object for
 * whose key `kept` says true; and what a killed process left behind (half-built objects, folders of
 * probes and compilers) once it is a day old. Returns how many files went. One thread; the folder
 * may be gone. */
int objects_prune(const char *folder, struct objects_limit limit,
                  bool (*kept)(void *ctx, const char *object_key), void *ctx);

#endif
