/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_db.h - a connection to PostgreSQL that never waits longer than it was told.
 *
 * libpq's asynchronous calls with a deadline around each: connecting, a statement, a notification.
 * A connection that missed one deadline is closed, because what it would answer next belongs to a
 * question that nobody waits for any more. Whatever the database says is untrusted text: an
 * answer is bounded in bytes, and a message in characters. One thread a connection.
 */
#ifndef WHET_SPECIALIZER_FLEET_FLEET_DB_H
#define WHET_SPECIALIZER_FLEET_FLEET_DB_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "config/err.h"

enum { FLEET_ANSWER_BYTES = 64 << 20, FLEET_WORD = 200 };

struct fleet_db;

/* Where a database is and how its password is read. */
struct fleet_address {
    const char *uri;      /* specializer.fleet: a URI or "name=value ..." as libpq reads them */
    const char *key_file; /* holds the password, or "" */
};

/* -1 with what is wrong in the address: it cannot be read, or has a password in it. Also without
 * libpq in the program. */
int fleet_db_check(const struct fleet_address *a, struct err *err);
/* Connects to the first host of the address that answers, each within `seconds` (or the address's
 * connect_timeout), or NULL. `stop` (may be NULL): gives up soon after it is set, here and
 * in all calls below. The name of a host is looked up by the system's resolver, whose own time-out
 * holds for that. */
struct fleet_db *fleet_db_open(const struct fleet_address *a, double seconds,
                               const atomic_bool *stop, struct err *err);
/* The same to the first that can be written. NULL also where the address itself asks for one that
 * cannot (target_session_attrs: read-only, standby, prefer-standby). */
struct fleet_db *fleet_db_open_writable(const struct fleet_address *a, double seconds,
                                        const atomic_bool *stop, struct err *err);
void fleet_db_close(struct fleet_db *db);
/* False once a call failed in a way that ended the connection. */
bool fleet_db_alive(const struct fleet_db *db);
/* Ends the connection: who has it finds it so. */
void fleet_db_end(struct fleet_db *db);
/* The process of the database that serves this connection, as it was told when it began. A pooler
 * between them makes one up. */
int fleet_db_process(const struct fleet_db *db);
/* From here on `stop` ends nothing, but all that follows may take `seconds` together. */
void fleet_db_parting(struct fleet_db *db, double seconds);

/* The answer to a statement. */
struct fleet_rows {
    void *result;
    int n, columns;
};
/* One statement with `n` text parameters ($1 ...; NULL is NULL) in at most `seconds`. `rows` may be
 * NULL; otherwise free it. -1 with the database's words; the connection may have ended then. */
int fleet_db_run(struct fleet_db *db, double seconds, const char *sql, const char *const *value,
                 int n, struct fleet_rows *rows, struct err *err);
/* Never NULL; "" outside the answer. Lives as long as the rows. */
const char *fleet_value(const struct fleet_rows *rows, int row, int column);
void fleet_rows_free(struct fleet_rows *rows);
/* The five characters by which SQL names an error of the last statement ("42501"), or "". */
const char *fleet_db_state(const struct fleet_db *db);

/* What a notification is about, as its sender says; of no other kind: a kernel. */
#define FLEET_NOTE_OF_WRONG "retraction"
#define FLEET_NOTE_OF_KERNEL "kernel"
enum fleet_note { FLEET_NOTE_KERNEL = 1, FLEET_NOTE_WRONG = 2 };
/* Waits until a notification of another session comes, `wake_fd` can be read or `seconds` are over.
 * What it was told of, as bits of enum fleet_note; 0: of nothing. */
unsigned fleet_db_wait(struct fleet_db *db, int wake_fd, double seconds);
/* For what goes into logs and pages: printable ASCII, one line, at most FLEET_WORD - 1. */
void fleet_plain(const char *text, char out[FLEET_WORD]);

#endif
