/* SPDX-License-Identifier: Apache-2.0 */
/* ranks.h - the processes that compute one model together: how they meet, what rank 0 tells the
 * others, and how each learns that another is gone.
 *
 * Every rank holds one TCP connection to rank 0, which stays open as long as the world lives. On it
 * they agree before anything runs (who is who, the same model and backend, how much memory), rank 0
 * sends each step's inputs, and its closing is how a death is seen. Numbers of the step itself
 * travel by other ways (collective.h).
 *
 *   rank 0                              another rank
 *   ranks_open (listens)                ranks_open (connects, JOIN)       -> WELCOME or REFUSED
 *   loads its part                      loads its part                    -> PART
 *   ranks_agree (hears all, SET_UP)     ranks_agree (hears SET_UP)
 *   ranks_collective                    ranks_collective                  (all at once)
 *   ranks_begin (hears all READY)       ranks_begin (READY)
 *   ranks_send_step ... ranks_close     ranks_next_step ...
 *
 * A rank that is gone, or says that it cannot go on, ends the world on all: whoever waits in a
 * collective comes back with an error, and on rank 0 `on_lost` is called, once, by the thread that
 * watches. A step of which no end is seen within the timeout is the same. If even that does not
 * bring the step back, the process ends itself with RANKS_EXIT_LOST: a device that hangs for good
 * must not keep a server that looks alive.
 */
#ifndef WHET_ENGINE_RANKS_H
#define WHET_ENGINE_RANKS_H

#include "engine/backend.h"
#include "engine/launcher.h"
#include "engine/ranks_wire.h"

/* Exit status of a server whose world ended. */
enum { RANKS_EXIT_LOST = 3 };

struct ranks;

struct ranks_options {
    struct rank_place place;
    double join_timeout_s;                       /* for all to come */
    double step_timeout_s;                       /* for a step */
    const char *secret;                          /* what all must know, or NULL */
    void (*on_lost)(void *ctx, const char *why); /* rank 0; on the watching thread. Or NULL */
    void *ctx;
};

/* All ranks of the world, or NULL with a message. Copies the options. */
struct ranks *ranks_open(const struct ranks_options *o, struct err *err);
int32_t ranks_rank(const struct ranks *r);
int32_t ranks_world(const struct ranks *r);
/* Ranks on this machine, itself included. */
int32_t ranks_local(const struct ranks *r);

/* Each rank with what it has. Rank 0 fills `setup` beforehand but for kv_pages, of which it takes
 * the least that any device has room for, and `id`; the others are told. `ops` must have `ranks`.
 * -1 with a message that names the rank at fault: another model, another backend, several hosts
 * where there must be one. */
int ranks_agree(struct ranks *r, const struct backend_ops *ops, const struct wire_part *part,
                struct wire_setup *setup, struct err *err);
/* On the thread that runs steps. NULL with a message. Belongs to `r`. From here on the ranks watch
 * each other, since what follows waits for the others. */
struct collective *ranks_collective(struct ranks *r, const struct backend_ops *ops,
                                    const struct wire_setup *setup, struct err *err);
/* When its backend is open: rank 0 waits until all others have opened theirs. */
int ranks_begin(struct ranks *r, struct err *err);

/* Rank 0, before it runs the step itself; and after it ran. -1 with a message: the world is over.
 */
int ranks_send_step(struct ranks *r, const struct step *s, struct err *err);
void ranks_step_ran(struct ranks *r);

/* Another rank: waits for the next step; it lives until the next call. 1: a step; 0: rank 0 has
 * ended in good order; -1 with a message. */
int ranks_next_step(struct ranks *r, const struct wire_limits *l, struct step *s, struct err *err);
/* Another rank: tells rank 0 why it cannot go on. */
void ranks_give_up(struct ranks *r, const char *why);

/* NULL, or why the world is over. Any thread. */
const char *ranks_lost(struct ranks *r);

/* Rank 0 tells the others that it has ended, and why if that is not in good order. After the
 * backend is closed. NULL is fine. */
void ranks_close(struct ranks *r);

#endif
