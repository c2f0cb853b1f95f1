/* SPDX-License-Identifier: Apache-2.0 */
/* launch.h - the ranks of `whet serve` and `whet bench`: which one this process is, and starting
 * the others. */
#ifndef WHET_ENGINE_LAUNCH_H
#define WHET_ENGINE_LAUNCH_H

#include <sys/types.h>

#include "config/config.h"
#include "engine/launcher.h"
#include "engine/shard.h"

struct launched {
    int ranks;
    pid_t pid[SHARD_WORLD_MAX]; /* from rank 1 on, until launch_wait() */
};

/* Reads engine.ranks: where this process is rank 0 of ranks that it is to start itself, starts
 * them, with the command line argv; *l must then live as long as *place. Before any thread is made.
 * -1 with a message. */
int launch_ranks(const struct config *c, int argc, char **argv, struct rank_place *place,
                 struct launched *l, struct err *err);
/* Any thread, before launch_wait(): -1 with a message if one of them has ended, which says how. */
int launch_look(const struct launched *l, struct err *err);
/* Waits for those it started, which end when rank 0 has; the slow ones are killed. */
void launch_wait(struct launched *l);

#endif
