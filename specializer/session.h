/* SPDX-License-Identifier: Apache-2.0 */
/* session.h - a specializer that its caller drives: the engine with its model, the store and the
 * compiler, without the specializer's thread and without a server.
 *
 * `whet tune` is built on it. The caller's thread is the specializer thread, so everything here
 * but session_stop() and session_stopped() belongs to the thread that opened the session. The
 * engine's own thread runs, so slices, captures and canaries work as they do while serving.
 */
#ifndef WHET_SPECIALIZER_SESSION_H
#define WHET_SPECIALIZER_SESSION_H

#include "specializer/candidate/stage.h"

struct session;

/* Loads the model of `c` (borrowed) and opens its store, which no other process may have. NULL with
 * a message, which is what becomes of a machine without a compiler too. */
struct session *session_open(const struct config *c, struct err *err);
void session_close(struct session *session); /* NULL is fine */

/* Nothing new is to be begun, and what waits for live steps or benches is given up. Any thread, and
 * a signal's handler. */
void session_stop(struct session *session);
bool session_stopped(const struct session *session);

/* ---- for those who drive stages of their own (pipeline/pipeline.h) --------------------------- */

/* What the stages work with; the session's. */
const struct stage_env *session_env(const struct session *session);
/* Where load_run() leaves its marks, and where winners are kept. */
struct store *session_store(const struct session *session);
int32_t session_threads(const struct session *session); /* that compute, on a CPU */
/* The slot of that name; NULL: there is none. */
struct slot *session_slot(struct session *session, const char *name);
/* A candidate in state proposed under the keys of this machine, model and compiler. The caller ends
 * it with candidate_free() or, once it was loaded, with session_drop(). */
struct candidate *session_candidate(struct session *session, const struct template *t,
                                    const struct point *p, const struct facts *f,
                                    struct slot *slot);
/* Unloads it and frees it at once: nothing of it may be in a slot. */
void session_drop(struct session *session, struct candidate *c);

/* ---- searching slot by slot, as the server's own loop does ----------------------------------- */

/* Validates and publishes the store's winners; reads which kernels are to be tried again. */
void session_restore(struct session *session);
/* Called when a stage begins to wait for live steps, on the session's thread. */
void session_on_live(struct session *session, void (*live)(void *ctx), void *ctx);
/* The part of a server's time that the slot is taken to need: restarts go in this order. */
void session_set_share(struct session *session, const struct slot *slot, double share);

/* A slot and its search at one moment. */
struct session_slot {
    bool pinned;
    bool exhausted;          /* every point was tried */
    bool promoted;           /* a candidate that won its batch waits for live steps */
    int32_t tried, dry;      /* points; candidates benched since the last gain */
    double gain;             /* of the kernel that serves over eager, 0.5: one and a half times */
    struct gain bench, step; /* of that kernel, as measured; no pairs: not measured */
    char kernel[160];        /* its name, "" on eager */
    char why[120];           /* on eager: why */
    char lost[120]; /* why the last one of those proposed last is not used; "": none lost */
};
void session_look(struct session *session, const struct slot *slot, struct session_slot *out);

/* Opens the slot's search. False: no template has a legal point there. */
bool session_search(struct session *session, const struct slot *slot);
/* Captures inputs of live steps to measure on; keeps those there are if none come in time. True if
 * there are any. */
bool session_capture(struct session *session, const struct slot *slot);
/* True if inputs are there; with `make`, made-up ones if there are none. */
bool session_inputs(struct session *session, const struct slot *slot, bool make);

enum session_source {
    SESSION_POINTS,   /* new ones, by the strategy */
    SESSION_RETRIALS, /* kernels that lost whole steps beside other kernels (retrial.h) */
    SESSION_TEXTS     /* the text that waits for its trial, see session_write() */
};
/* Whether a kernel of the slot is to be tried again now. */
bool session_retrial_due(struct session *session, const struct slot *slot);
/* Proposes candidates for a slot that has inputs; none may be under way. How many, which may be
 * none where the store refuses them; -1: the source has nothing (now). */
int session_propose(struct session *session, const struct slot *slot, enum session_source source);
/* Asks the adviser about a slot that is searched after the one whose batch begins, so that it can
 * think meanwhile. */
void session_ask_ahead(struct session *session, const struct slot *slot);
/* Builds, probes and benches what was proposed, a little of it; waits for children a moment where
 * there is nothing else to do. False: all of it has been decided. */
bool session_work(struct session *session);
/* The best of what passed is promoted; what is still under way is abandoned. */
void session_settle(struct session *session, const struct slot *slot);
/* What waits for live steps gives up after so many seconds from now, undecided; 0: no sooner than
 * for its own reasons. */
void session_until(struct session *session, double seconds);
/* The promoted candidate through shadow and canary on live steps, and into the slot. True: nothing
 * was decided, and it waits for more of them. */
bool session_promote(struct session *session, const struct slot *slot);
/* Texts of a language model (specializer.agentic): reads a reply that came and puts the next
 * question about that of the `n` slots where a text is worth most, by their steps so far. False:
 * nothing is under way, because it is off, its limits are used up, or nothing is worth it. */
bool session_write(struct session *session, const struct slot *const *slot, int n);
/* The slot whose text waits for its trial, which session_propose() begins; NULL: none does. */
const struct slot *session_text(struct session *session);
/* The text that waits cannot be tried now, and not before some time has passed. */
void session_text_later(struct session *session);
/* Nothing is to be done but to wait for an answer: a moment passes. */
void session_wait(struct session *session);
/* Unloads what no step can use any more, reads what the adviser answered. */
void session_upkeep(struct session *session);

#endif
