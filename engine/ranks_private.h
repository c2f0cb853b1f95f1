/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_private.h - inside engine/ranks*.c: the state of a world, how it is met and watched. */
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
    /* On rank 0: what it has said, and when last. `part` does not change once it is there. */
    struct wire_part part;
    _Atomic bool has_part, ready;
    int64_t heard_ns; /* the watching thread's */
    bool silent;      /* likewise: it has said its last */
};

/* Rank 0: what it knows of kernels on the others (ranks_kernels.c). Under `lock`. */
struct rank_kernels {
    pthread_mutex_t lock;
    pthread_cond_t said;
    int32_t last; /* number given so far; the answers are about that one */
    int32_t answers;
    bool answered[SHARD_WORLD_MAX];
    char why[300]; /* the first that could not; empty */
    bool outside;  /* which says nothing of the kernel */
    struct wire_answer *broke;
    int32_t brokes;
};

struct ranks {
    struct ranks_options options;
    char host[256], secret[72];
    int listener;
    struct peer peer[SHARD_WORLD_MAX]; /* rank 0: by rank; another: [0] is rank 0 */
    struct wire_welcome welcome;
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
    int64_t looked_ns, back_ns; /* the watching thread: its last look; when it last came back from
                                   having stood still, 0: it never did */
    bool notes_crashes;         /* another rank: ranks_note_crashes() */
    _Atomic bool began;         /* all were ready */
    _Atomic bool set_up;        /* rank 0: LINK_SET_UP was sent, or is about to be */
    _Atomic int64_t awaits_ns;  /* rank 0: since when it waits for what the others do next; 0:
                                   it does not */
    int64_t asked_ns;           /* rank 0, its watching thread: when they were last asked */
    int64_t told_ns, told_work_ns; /* another's: when LINK_ALIVE was last sent, the time that its
                                      threads had computed then */
    _Atomic bool busy; /* this rank sets itself up or runs a step: it may wait for others */
    _Atomic int64_t lost_ns;
    _Atomic bool stop, lost;
    pthread_mutex_t lock; /* why, until `lost` is set */
    char why[300];
    _Atomic int64_t step_ns; /* when the step under way began; 0: none is */
};

/* ranks_meet.c: rank 0 waits until all others have come; another one comes to it. */
int ranks_lead(struct ranks *r, struct err *err);
int ranks_join(struct ranks *r, struct err *err);

/* ranks_watch.c: starts the watching thread, when all have met. */
int ranks_watch(struct ranks *r, struct err *err);

/* ranks.c: to all others; from another one to rank 0; why the world is over. */
int ranks_tell_all(struct ranks *r, enum link_kind kind, const void *data, size_t n,
                   struct err *err);
int ranks_tell_first(struct ranks *r, enum link_kind kind, const void *data, size_t n,
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
