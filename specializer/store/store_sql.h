/* SPDX-License-Identifier: Apache-2.0 */
/* store_sql.h - inside the store: the connection and the helpers its queries are made of. They
 * expect the lock held, which is a plain one. */
#ifndef WHET_SPECIALIZER_STORE_STORE_SQL_H
#define WHET_SPECIALIZER_STORE_STORE_SQL_H

#include <pthread.h>
#include <sqlite3.h>

#include "specializer/store/store.h"

struct store {
    sqlite3 *db;
    char *path;
    pthread_mutex_t lock; /* of all below, and for as long as a transaction */
    _Atomic uint64_t errors;
    _Atomic uint64_t lost;         /* trace lines in a row */
    char (*unmarked)[KEY_HEX + 1]; /* kernels that left this process with no room to say so */
    int unmarkeds;
    struct owed *owed; /* moves that took effect with no room to say so (store_owed.c) */
    int oweds;
    int64_t stamp_s;      /* the last store_stamp() */
    int lock_fd;          /* held while this process has the store alone; -1: it has not */
    char *folder;         /* of a copy, removed with it; or NULL */
    struct store *origin; /* of a copy: what it was copied from, for words to a fleet; or NULL */
};

/* SQLite's last complaint as the message, counted; -1. */
int store_fault(struct store *s, struct err *err);
/* A statement with its parameters bound: one letter each in `types`: s text or NULL, i int64_t,
 * d double. NULL with a message. */
sqlite3_stmt *store_query(struct store *s, struct err *err, const char *sql, const char *types,
                          ...);
/* The same, run to its end. */
int store_run(struct store *s, struct err *err, const char *sql, const char *types, ...);
/* Text of a column, "" for NULL, copied. */
void store_text(sqlite3_stmt *q, int column, char *out, size_t n);
/* Ends a loop of sqlite3_step() whose last result was `code`. */
int store_done(struct store *s, sqlite3_stmt *q, int code, struct err *err);
/* BEGIN IMMEDIATE; then COMMIT if `ok` is 0, else ROLLBACK; returns ok or -1. */
int store_begin(struct store *s, struct err *err);
int store_end(struct store *s, int ok, struct err *err);
/* store_move() inside a transaction of the caller's. */
int store_move_row(struct store *s, const struct record *r, enum life to, const char *why,
                   const char *who, struct err *err);
/* Unix seconds for a row: the clock's, but never less than the last, so that the newest row has the
 * largest even if the clock was set back. */
int64_t store_stamp(struct store *s);
/* Says of kernels what could not be said before: takes off marks (store_trial()). */
void store_unmark(struct store *s);
/* store_settle() for who has the lock. */
void store_settle_locked(struct store *s);
/* Why a move of this kernel is still owed, or NULL: none is. */
const char *store_owes_locked(const struct store *s, const char *key);
/* `r` as it will be when all that is owed is written. */
void store_overlay_owed(const struct store *s, struct record *r);
/* When the store closes: what could not be written is lost, and logged. */
void store_forget_owed(struct store *s);
/* The row of a trace; inside or outside a transaction. */
int store_trace_row(struct store *s, const char *slot, const char *key, const char *event,
                    const char *text, const char *who, struct err *err);
/* store_trace() for who has the lock: a line that is lost is logged, and that is all. */
void store_trace_locked(struct store *s, const char *slot, const char *key, const char *event,
                        const char *who, const char *text);

#endif
