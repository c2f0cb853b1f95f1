/* SPDX-License-Identifier: Apache-2.0 */
/* store.h - what the specializer remembers: an SQLite file.
 *
 * Candidates with their evidence (wins and refusals alike), the winner of every slot, operators'
 * pins and disables, the decision trace, calls of the adviser. A transition and everything
 * that goes with it is one transaction, so whatever kills the process leaves either the old state
 * or the new one. A damaged file is moved aside with a log line and a new one begun, if it was a
 * store (store_file_kind()); any other file is refused, and nothing of it is changed.
 *
 * Any thread: one connection behind one mutex; every call is a few rows. A function that is handed
 * a row runs with that mutex held: it may not call the store, unless it says here that it may.
 * Functions return 0 (or a count), -1 with a message.
 */
#ifndef WHET_SPECIALIZER_STORE_STORE_H
#define WHET_SPECIALIZER_STORE_STORE_H

#include "config/err.h"
#include "specializer/candidate/record.h"

enum { STORE_VERSION = 2 };

struct store;

/* Opens or creates the file and its folder, for single changes. NULL when it cannot be used at all:
 * no permission, a file or folder that is not ours alone (store_file.h), a file of another program,
 * or a schema newer than this program. */
struct store *store_open(const char *path, struct err *err);
/* The same to read, beside a process that has it or not: makes nothing and moves nothing, changes
 * fail. NULL also when there is no such file, or it is empty or damaged. */
struct store *store_open_read(const char *path, struct err *err);
/* The same for who runs kernels and blames them for how the last process ended, or keeps files
 * beside the store: one process at a time, until the store is closed or the process is gone. NULL
 * with *taken true when another has it; the message says which and since when. */
struct store *store_open_alone(const char *path, bool *taken, struct err *err);
/* A store in a new temporary folder that begins with what the one at `path` holds now, winners'
 * objects too; store_close() removes it. For who does not get that store alone. */
struct store *store_open_copy(const char *path, struct err *err);
void store_close(struct store *s);
const char *store_path(const struct store *s);
/* Calls that failed since it was opened: a full disk, a file that others hold. */
uint64_t store_errors(const struct store *s);
/* specializer.store, or <user's cache folder>/whet/store.db. Caller frees. */
char *store_default_path(const char *configured);

/* ---- candidates ----------------------------------------------------------------------------- */

/* Writes `r` with state `to` and a trace line. to = active makes it the slot's winner and retires
 * the one before; leaving active takes the winner away. All in one transaction. */
int store_move(struct store *s, const struct record *r, enum life to, const char *why,
               const char *who, struct err *err);
/* A move that is in effect though store_move() said `trouble`: it is written before the next
 * change, by store_settle() or at the end, and holds for store_get() and store_move() from now on.
 */
void store_owe(struct store *s, const struct record *r, enum life to, const char *why,
               const char *who, const char *trouble);
/* Writes what is owed, if it can be. */
void store_settle(struct store *s);
/* True, with the reason, while a move of this kernel is owed: a restart would not know of it. */
bool store_owes(struct store *s, const char *key, struct err *why);
/* 1 found, 0 not, -1 error. */
int store_get(struct store *s, const char *key, struct record *out, struct err *err);

/* Checksum of a finished build of this object by anybody; false if none is known. */
bool store_object_sum(struct store *s, const char *object_key, char out[17]);
/* True if a winner of any machine and model, the kernel before it, or a pinned one is made of this
 * object. */
bool store_object_used(struct store *s, const char *object_key);

struct record_filter {
    const char *env, *slot, *source, *template; /* NULL: any */
    unsigned states;                            /* bit mask of enum life; 0: any */
    int limit;                                  /* 0: no limit; newest first */
};
typedef void record_fn(void *ctx, const struct record *r);
int store_each(struct store *s, const struct record_filter *f, record_fn *fn, void *ctx,
               struct err *err);

/* Keys of candidates that moved, or were spoken of, since row *after of the trace, each once, of at
 * most `limit` rows; *after goes on. *after < 0: only sets it to the newest row. Here `fn` may call
 * the store. */
int store_moved(struct store *s, int64_t *after, int limit, void (*fn)(void *ctx, const char *key),
                void *ctx, struct err *err);

/* Marks `key` as running inside this process (on), or safely out of it again (off). A mark found at
 * start means that the process died meanwhile: store_deaths() counts those and clears the marks. */
int store_trial(struct store *s, const char *key, bool on, struct err *err);
int store_deaths(struct store *s, struct err *err);
/* The process died of a fault with `key` in its step, or a probe of `key` was killed: one more in
 * its row. Returns how often by now, -1 on an error or if there is no such row. The count of probes
 * begins anew with a verdict, that is, when the candidate moves to probed or refused. */
int store_served_death(struct store *s, const char *key, struct err *err);
int store_probe_death(struct store *s, const char *key, struct err *err);
/* All three counts of deaths begin anew: an operator allows the kernel again. */
int store_forgive(struct store *s, const char *key, struct err *err);

/* ---- winners -------------------------------------------------------------------------------- */

struct winner {
    char slot[40], key[KEY_HEX + 1], previous[KEY_HEX + 1];
    double share;      /* of step time when last seen: the order of restoring */
    double gain_eager; /* over the eager kernel */
};
typedef void winner_fn(void *ctx, const struct winner *w);
/* Largest share first. */
int store_winners(struct store *s, const char *env, winner_fn *fn, void *ctx, struct err *err);
int store_share(struct store *s, const char *env, const char *slot, double share, double gain_eager,
                struct err *err);

/* ---- operators ------------------------------------------------------------------------------ */

typedef void pair_fn(void *ctx, const char *name, const char *value);
int store_pin(struct store *s, const char *slot, const char *kernel, const char *who,
              struct err *err);
int store_unpin(struct store *s, const char *slot, const char *who, struct err *err);
int store_pins(struct store *s, pair_fn *fn, void *ctx, struct err *err);
/* `what`: a kernel's key or a template's name; value of store_disables() is the reason. */
int store_disable(struct store *s, const char *what, const char *reason, const char *who,
                  struct err *err);
int store_enable(struct store *s, const char *what, const char *who, struct err *err);
int store_disables(struct store *s, pair_fn *fn, void *ctx, struct err *err);
/* Small persistent settings ("mode"). */
/* Their names begin so, and go on with an environment: what it is in words, for exports. */
#define STORE_ENVIRONMENT "environment."
enum { STORE_ENVIRONMENT_MOST = 1024 };
int store_set(struct store *s, const char *name, const char *value, struct err *err);
bool store_value(struct store *s, const char *name, char *out, size_t n);

/* ---- trace and calls ------------------------------------------------------------------------ */

struct trace_row {
    int64_t id;
    double at; /* unix seconds */
    const char *slot, *key, *event, *text, *who;
    const char *name; /* of the kernel, as far as the store knows it */
};
/* Also logs it. slot, key, who may be NULL. Losing a trace line is not an error worth stopping for:
 * it is logged and forgotten. */
void store_trace(struct store *s, const char *slot, const char *key, const char *event,
                 const char *who, const char *fmt, ...) __attribute__((format(printf, 6, 7)));
typedef void trace_fn(void *ctx, const struct trace_row *row);
/* Newest first. */
int store_traces(struct store *s, const char *slot, int64_t since_s, int limit, trace_fn *fn,
                 void *ctx, struct err *err);
/* The newest `limit` rows of one event, newest first: by index, so it may be asked every second. */
int store_events(struct store *s, const char *event, int64_t since_s, int limit, trace_fn *fn,
                 void *ctx, struct err *err);

struct llm_call {
    const char *request, *reply, *verdict; /* verdict: "accepted" or why not */
    double seconds;
    int32_t tokens_in, tokens_out;
    int64_t id; /* id and at (unix seconds): only from store_llm_calls() */
    double at;
};
int store_llm_call(struct store *s, const struct llm_call *x, struct err *err);
typedef void llm_call_fn(void *ctx, const struct llm_call *x);
/* Oldest first; the newest few thousand are kept. */
int store_llm_calls(struct store *s, llm_call_fn *fn, void *ctx, struct err *err);

#endif
