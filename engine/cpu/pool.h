/* SPDX-License-Identifier: Apache-2.0 */
/* pool.h - the compute threads of the CPU backend.
 *
 * The caller is rank 0; size-1 workers wait (spin briefly, then sleep) and run the same function.
 * One region at a time: pool_run() returns when every rank has. One caller at a time.
 */
#ifndef WHET_ENGINE_CPU_POOL_H
#define WHET_ENGINE_CPU_POOL_H

#include <stdint.h>

#include "kernels/args.h"

struct pool;

struct pool *pool_open(int32_t size, int64_t scratch_bytes);
void pool_close(struct pool *p);
int32_t pool_size(const struct pool *p);

/* Runs fn(args, team) on every rank; the team's counts are 0 when it begins. Grows scratch to
 * `scratch_bytes` first if needed. */
void pool_run(struct pool *p, void (*fn)(const void *args, const struct team *team),
              const void *args, int64_t scratch_bytes);

/* From now on each rank keeps to a core of its own, the caller too, and with it all threads and
 * processes that the caller starts; until pool_unpin(), by the same thread. */
void pool_pin(struct pool *p);
void pool_unpin(struct pool *p);

/* Somebody else gets the cores until the next pool_run(): workers stop spinning for it and sleep.
 */
void pool_rest(struct pool *p);

#endif
