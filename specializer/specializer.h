/* SPDX-License-Identifier: Apache-2.0 */
/* specializer.h - the background search: watch, propose, build, prove, measure, swap, roll back.
 *
 * One thread and its child processes. server/ starts it beside the engine and passes operators'
 * wishes on; it never sees a request. With no compiler on the machine, or with
 * specializer.enabled off, it says so and serving goes on with the kernels there are.
 */
#ifndef WHET_SPECIALIZER_SPECIALIZER_H
#define WHET_SPECIALIZER_SPECIALIZER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "config/config.h"
#include "config/err.h"
#include "engine/engine.h"

struct specializer;

/* 0, or -1 with a message when options of the specializer are wrong. */
int specializer_check(const struct config *c, struct err *err);
/* Starts the thread; it waits for the engine to become ready, restores the store's winners
 * (re-validated), then works. `c` and `e` must outlive it. NULL with a message when the store
 * cannot be opened at all, the options are wrong, or there is no thread to be had. */
struct specializer *specializer_start(const struct config *c, struct engine *e, struct err *err);
/* Are the store's winners still on their way back? Any thread. */
bool specializer_restoring(const struct specializer *s);
/* Stops children and the thread, puts eager kernels back, frees. Call before engine_stop(). */
void specializer_stop(struct specializer *s);

/* ---- operators ----------------------------------------------------------------------------- */

/* What became of an operator's question or wish. */
enum specializer_answer {
    ANSWER_DONE,
    ANSWER_WRONG,    /* what was given is not what this takes */
    ANSWER_UNKNOWN,  /* there is no such slot or kernel */
    ANSWER_CONFLICT, /* not as things are */
    ANSWER_FAILED,   /* the store */
    ANSWER_LOADING,  /* no slots yet: the model loads */
    ANSWERS
};
/* Any thread. *text is malloc'ed: JSON at ANSWER_DONE, else a sentence that says why. Changes are
 * persistent and idempotent; `who` (request id) goes into the trace. */
enum specializer_answer specializer_slots(struct specializer *s, const char *slot_or_null,
                                          char **text);
enum specializer_answer specializer_kernels(struct specializer *s, const char *id_or_null,
                                            char **text);
enum specializer_answer specializer_pin(struct specializer *s, const char *slot, const char *kernel,
                                        const char *who, char **text);
enum specializer_answer specializer_unpin(struct specializer *s, const char *slot, const char *who,
                                          char **text);
enum specializer_answer specializer_disable(struct specializer *s, const char *kernel,
                                            const char *reason, const char *who, char **text);
/* Allows it again: one that was refused, rolled back or blamed for crashes begins its life anew. */
enum specializer_answer specializer_enable(struct specializer *s, const char *kernel,
                                           const char *who, char **text);
/* `from` (or NULL): the kernel that must go; if it is not there any more nothing is done. */
enum specializer_answer specializer_rollback(struct specializer *s, const char *slot,
                                             const char *from, const char *who, char **text);
/* Pause: no new search; what is under way waits, active kernels stay and stay watched. Freeze: the
 * search is forgotten and no engine time is lent; only audits and operators change a slot. */
enum specializer_mode { SPECIALIZER_RUN, SPECIALIZER_PAUSE, SPECIALIZER_FREEZE };
enum specializer_answer specializer_set_mode(struct specializer *s, enum specializer_mode mode,
                                             const char *who, char **text);
/* Decisions newest first; `lines` gives JSON lines instead of an array. */
enum specializer_answer specializer_trace(struct specializer *s, const char *slot_or_null,
                                          int64_t since_s, bool lines, char **text);
/* What servers share (specializer.fleet), as it was a few seconds ago; never waits for it. */
enum specializer_answer specializer_fleet(struct specializer *s, char **text);
enum specializer_answer specializer_export(struct specializer *s, char **text);
enum specializer_answer specializer_import(struct specializer *s, const char *body, size_t n,
                                           const char *who, char **text);

/* The JSON behind /dashboard, without the engine's part. Caller frees. */
char *specializer_json(struct specializer *s);
/* Prometheus text of the specialization metrics. */
void specializer_metrics(struct specializer *s, FILE *out);

#endif
