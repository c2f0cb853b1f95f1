/* SPDX-License-Identifier: Apache-2.0 */
/* launcher.h - which rank this process is, as whoever started it says in the environment. */
#ifndef WHET_ENGINE_LAUNCHER_H
#define WHET_ENGINE_LAUNCHER_H

#include <stdint.h>

#include "config/err.h"

enum { RANK_PORT_USUAL = 29500 };

struct launched;

struct rank_place {
    int32_t rank, world;
    int32_t local_rank;              /* among those of this host; -1: not said */
    char host[256];                  /* where rank 0 is found, a name or an address */
    int32_t port;                    /* and its TCP port */
    int listener;                    /* rank 0: a socket that listens there already; -1: none */
    const char *launcher;            /* "Slurm", ...: for messages */
    const struct launched *children; /* rank 0: the others, if it started them itself; or NULL */
};

/* Reads the variables of the launcher that started this process: RANK, WORLD_SIZE, LOCAL_RANK
 * (torchrun and others), OMPI_*, PMI_* (MPICH, Intel MPI), SLURM_* or LWS_* (a Kubernetes
 * LeaderWorkerSet); MASTER_ADDR and MASTER_PORT over what those say of rank 0's address; a name is
 * the loopback where the launcher says that all ranks are on this host. `get` is getenv(). -1 with
 * a message naming the variable that is missing or wrong. */
int rank_place_read(struct rank_place *p, const char *(*get)(const char *name), struct err *err);

#endif
