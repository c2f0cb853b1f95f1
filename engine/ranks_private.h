/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_private.h - inside engine/ranks*.c: the state of a world, and how it is met. */
#ifndef WHET_ENGINE_RANKS_PRIVATE_H
#define WHET_ENGINE_RANKS_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/ranks.h"
#include "engine/ranks_link.h"
#include "engine/shard.h"

/* Nanoseconds: for who connected to say who it is; for a rank to take a message. */
#define HELLO_NS INT64_C(3000000000)
#define SEND_NS INT64_C(10000000000)

struct peer {
    int fd;
    struct wire_join join;
    char address[64];
};

struct ranks {
    struct ranks_options options;
    char host[256], secret[72];
    int listener;
    struct peer peer[SHARD_WORLD_MAX]; /* rank 0: by rank; another: [0] is rank 0 */
    int32_t local, one_host;
    char id[RANKS_ID];
    bool id_made;
    _Atomic(struct collective *) collective;
    const struct backend_ops *ops;
    struct wire_buffer wire;
    struct link_message step;

    pthread_t watcher;
    bool watching, began;    /* began: all were ready */
    _Atomic int32_t readies; /* rank 0: that said so */
    _Atomic bool busy;       /* this rank sets itself up or runs a step: it may wait for others */
    _Atomic int64_t lost_ns;
    _Atomic bool stop, lost;
    pthread_mutex_t lock; /* why, until `lost` is set */
    char why[300];
    _Atomic int64_t step_ns; /* when the step under way began; 0: none is */
};

/* ranks_meet.c: rank 0 waits until all others have come; another one comes to it. */
int ranks_lead(struct ranks *r, struct err *err);
int ranks_join(struct ranks *r, struct err *err);

#endif
