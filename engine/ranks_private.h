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

/* Rank 0: what it knows of kernels on the others (ranks_kernels.c). Under `lock`. */
struct rank_kernels {
    pthread_mutex_t lock;
    pthread_cond_t said;
    int32_t last; /* number given so far; the answers are about that one */
    int32_t answers;
    bool answered[SHARD_WORLD_MAX];
    char why[300]; /* the first that could not; empty */
    struct wire_answer *broke;
    int32_t brokes;
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
    struct link_message order[2]; /* the last that came, and the one before it */
    int turn;
    pthread_mutex_t send; /* held while a message goes out: to all others, or to rank 0 */
    struct rank_kernels kernels;
    int32_t unequal[REGION_NODES];
    int64_t steps, version; /* of the last step sent or received, and of its table */
    _Atomic int64_t version_of[SHARD_WORLD_MAX];

    pthread_t watcher;
    bool watching;
    _Atomic bool began;      /* all were ready */
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

/* ranks.c: to all others; why the world is over. */
int ranks_tell_all(struct ranks *r, enum link_kind kind, const void *data, size_t n,
                   struct err *err);
void ranks_lose(struct ranks *r, const char *why);

/* ranks_kernels.c: rank 0's watching thread has heard this of a kernel, or of a table. -1: it makes
 * no sense. */
int ranks_kernels_heard(struct ranks *r, int32_t from, const struct link_message *m);
/* Whoever waits for answers looks whether there will be any. */
void ranks_kernels_wake(struct ranks *r);
void ranks_kernels_open(struct ranks *r);
void ranks_kernels_close(struct ranks *r);

#endif
