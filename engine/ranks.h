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
 *   loads its part                      loads its part                    ALIVE ->
 *   ranks_agree (WISH)                  ranks_hear_wish
 *               (hears all, SET_UP)     ranks_agree (PART, hears SET_UP)
 *   ranks_collective                    ranks_collective                  (all at once)
 *   ranks_begin (hears all READY)       ranks_begin (READY)
 *   ranks_send_step ... ranks_close     ranks_next ...
 *
 * Kernels: what rank 0 wants to try or to publish, the others load first (ranks_load), each from
 * the bytes that come with the message, and say whether they could: one that cannot is
 * enough for it to be nowhere. Every step then says with which kernels it runs, as changes of a
 * table that all ranks have, so that a step runs with one table on all of them.
 *
 * A rank that is gone, says that it cannot go on, or nothing where it must (while it starts, that
 * it gets on with it, each join_timeout_s; later, when it is asked, within step_timeout_s), ends
 * the world on all: whoever waits in a collective comes back with an error, and on rank 0 `on_lost`
 * is called, once, by the thread that watches. A step of which no end is seen within the timeout is
 * the same. If even that does not bring the step back, the process ends itself with
 * RANKS_EXIT_LOST: a device that hangs for good must not keep a server that looks alive.
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
    double join_timeout_s;                       /* for all to come; of no progress in a start */
    double step_timeout_s;                       /* for a step; for an answer between steps */
    const char *secret;                          /* what all must know, or NULL */
    void (*on_lost)(void *ctx, const char *why); /* rank 0; on the watching thread. Or NULL */
    void *ctx;
};

/* All ranks of the world, or NULL with a message. Copies the options. From here on the ranks watch
 * each other. */
struct ranks *ranks_open(const struct ranks_options *o, struct err *err);
int32_t ranks_rank(const struct ranks *r);
int32_t ranks_world(const struct ranks *r);
/* Ranks on this machine, itself included. */
int32_t ranks_local(const struct ranks *r);
/* Of those, the ranks that may run on the same CPUs as this one, itself included. */
int32_t ranks_same_cpus(const struct ranks *r);

/* Another rank, when it has its part of the model: waits until rank 0 has its own, and says what
 * that would open its backend with, by which this one reckons what it has room for. -1 with a
 * message. */
int ranks_hear_wish(struct ranks *r, struct wire_setup *wish, struct err *err);
/* Each rank with what it has. Rank 0 fills `setup` beforehand but for `id`, and of kv_pages takes
 * the least that any device has room for; the others are told. `ops` must have `ranks`.
 * -1 with a message that names the rank at fault: another model, another backend, several hosts
 * where there must be one. */
int ranks_agree(struct ranks *r, const struct backend_ops *ops, const struct wire_part *part,
                struct wire_setup *setup, struct err *err);
/* On the thread that runs steps. NULL with a message. Belongs to `r`. */
struct collective *ranks_collective(struct ranks *r, const struct backend_ops *ops,
                                    const struct wire_setup *setup, struct err *err);
/* When its backend is open: rank 0 waits until all others have opened theirs. */
int ranks_begin(struct ranks *r, struct err *err);

/* Rank 0, before it runs the step itself; and after it ran. Of `t` the trial and the changes are
 * the caller's, its numbers are set here. -1 with a message: the world is over. */
int ranks_send_step(struct ranks *r, const struct step *s, struct wire_table *t, struct err *err);
void ranks_step_ran(struct ranks *r);
/* The same for a kernel of reduce that all ranks run now, which is timed; then ranks_step_ran(). */
int ranks_send_timing(struct ranks *r, const struct wire_timing *t, struct err *err);

/* Rank 0, one thread at a time, beside steps: returns when all others have loaded the kernel, which
 * is *number from then on. -1 with a message that names a rank: it could not, or did not answer in
 * time (err.outside: that says nothing of the kernel); then none has it. */
int ranks_load(struct ranks *r, const struct kernel_object *o, int32_t *number, struct err *err);
/* Rank 0: no step that is sent from now on names it. 0: none. */
void ranks_unload(struct ranks *r, int32_t number);
/* Rank 0: NULL, or which rank runs it no more, and why. */
const char *ranks_broke(struct ranks *r, int32_t number);
/* Rank 0, any thread: the table of the last step that the rank is known to have run. */
int64_t ranks_version(struct ranks *r, int32_t rank);
/* Rank 0, after ranks_agree(): a rank that cannot run the region's kernels of rank 0, because its
 * part has another shape there or its machine is another; 0: none. */
int32_t ranks_unequal(const struct ranks *r, enum region region);

/* Another rank: waits for what rank 0 says next; it lives until the call after the next. ORDER_END:
 * that one has ended in good order; -1 with a message. */
enum { ORDER_END, ORDER_STEP, ORDER_LOAD, ORDER_UNLOAD, ORDER_TIME };
struct ranks_order {
    struct step step;
    struct wire_table table;
    struct wire_kernel kernel; /* ORDER_LOAD */
    const char *bytes;         /* of it */
    int32_t number;            /* ORDER_UNLOAD */
    struct wire_timing timing; /* ORDER_TIME */
};
int ranks_next(struct ranks *r, const struct wire_limits *l, struct ranks_order *o,
               struct err *err);
/* Another rank, any thread: it has loaded the kernel (`why` NULL) or cannot; it runs no more; the
 * table that the last step ran with. */
void ranks_loaded(struct ranks *r, int32_t number, const struct err *why);
void ranks_broken(struct ranks *r, int32_t number, const char *why);
void ranks_ran_with(struct ranks *r, const struct wire_table *t);
/* Another rank: tells rank 0 why it cannot go on; its own collective is over. */
void ranks_give_up(struct ranks *r, const char *why);
/* Another rank, on its way to the first step: a fault of this process is told to rank 0 from now on
 * until ranks_close(), which notes it in its own crash record (crash.h). 0 or -1. */
int ranks_note_crashes(struct ranks *r, struct err *err);

/* NULL, or why the world is over. Any thread. */
const char *ranks_lost(struct ranks *r);

/* Rank 0 tells the others that it has ended, and why if that is not in good order. After the
 * backend is closed. NULL is fine. */
void ranks_close(struct ranks *r);

#endif
