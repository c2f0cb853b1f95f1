/* SPDX-License-Identifier: Apache-2.0 */
/* collective_shm.h - collectives of processes on one host, through memory that all of them map. */
#ifndef WHET_ENGINE_CPU_COLLECTIVE_SHM_H
#define WHET_ENGINE_CPU_COLLECTIVE_SHM_H

#include "engine/collective.h"

/* Makes the memory of a world, under the name `name` ("/whet-..."), which must be new: rank 0 does
 * it before any rank opens it, and unlinks it (shm_unlink) once all have. */
int collective_shm_create(const char *name, int32_t world, struct err *e);

/* A rank's end of it. Waits of up to `timeout_s` for the other ranks, then the world is over. One
 * thread at a time calls it; abort() and broken() any. NULL with a message. Free with
 * ops->close(). */
struct collective *collective_shm_open(const char *name, int32_t rank, int32_t world,
                                       double timeout_s, struct err *e);

/* The same as a backend's (ranks_shm.c): names are drawn, and what a process that was killed
 * between make() and made() left under such a name goes with the next make() of its user. */
extern const struct ranks_ops collective_shm_ranks;

#endif
