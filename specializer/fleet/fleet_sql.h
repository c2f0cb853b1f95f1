/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_sql.h - what servers say to the database and ask of it: one function a statement.
 *
 * All times are the database's: a server whose clock is wrong holds its lease as long as any other.
 * Functions return 0, or -1 with a message; the connection may have ended then. One thread a
 * connection.
 */
#ifndef WHET_SPECIALIZER_FLEET_FLEET_SQL_H
#define WHET_SPECIALIZER_FLEET_FLEET_SQL_H

#include <cjson/cJSON.h>
#include <stdint.h>

#include "specializer/candidate/record.h"
#include "specializer/fleet/fleet_db.h"

/* How long a statement may take; a lease holds unless it is renewed; a server's rows are kept
 * after it was last seen, and a measurement, and a retraction. */
#define FLEET_STATEMENT_S 10.0
#define FLEET_LEASE_S 30
enum {
    FLEET_SERVER_DAYS = 7,
    FLEET_KERNEL_DAYS = 90,
    FLEET_RETRACTION_DAYS = 365,
    FLEET_KERNELS_MOST = 50000, /* rows of one environment */
    FLEET_TEXTS_MOST = 512,
    FLEET_PAGE = 500, /* rows of one answer */
    FLEET_HOLDERS = 4 /* servers that search one slot, where there are more servers than slots */
};

/* What a row needs to be one of a kernel that was measured. Not a number is above all numbers. */
#define FLEET_SPEED_IS_ONE "speed > 0 AND speed <= 10000"

/* Who speaks. */
struct fleet_self {
    char server[KEY_HEX + 1]; /* drawn once a store */
    char env[KEY_HEX + 1];
    char name[100]; /* "host:8080" */
    char version[40], device[200];
};

/* The limits of the session, whatever the role's are: a statement that nobody waits for any more
 * ends there too, a session that listens does not. Through a
 * pooler nothing is set, as the session may be another's next. *process: who serves this session;
 * fleet_db_process() unless there is a pooler. */
int fleet_limit(struct fleet_db *db, int *process, struct err *err);
/* -1 if another process serves this connection than *process: a pooler gives each transaction to
 * whichever is free. */
int fleet_same_session(struct fleet_db *db, int process, struct err *err);
/* Listens to its environment, which takes no rights. */
int fleet_listen(struct fleet_db *db, const struct fleet_self *self, struct err *err);
/* Enters itself, or says that it is still there. `begins`: with this connection. `heard`: up to
 * which retraction, below 0: the tables have no room for that. *entered: it was not there. */
int fleet_beat(struct fleet_db *db, const struct fleet_self *self, bool begins, int64_t heard,
               bool *entered, struct err *err);
/* Gives its lease back and says that it ends. */
int fleet_bye(struct fleet_db *db, const struct fleet_self *self, struct err *err);

/* `r` as an element of fleet_publish()'s array. */
cJSON *fleet_kernel_json(const struct record *r);
/* An array of such rows: new ones, and old ones that changed. `news`: others are told at once. */
int fleet_publish(struct fleet_db *db, const struct fleet_self *self, const cJSON *kernels,
                  bool news, struct err *err);
/* The last number that the sequence of rows has given; all numbers for a role that may not ask. */
int fleet_given(struct fleet_db *db, int64_t *given, struct err *err);
/* Rows of others after `seq`, in order, at most FLEET_PAGE: FLEET_COLUMN_NAMES. Here and below only
 * those whose number the sequence has given. */
int fleet_pull(struct fleet_db *db, const struct fleet_self *self, int64_t seq,
               struct fleet_rows *rows, struct err *err);
/* The same before `seq`, from the newest on. */
int fleet_pull_back(struct fleet_db *db, const struct fleet_self *self, int64_t seq,
                    struct fleet_rows *rows, struct err *err);

/* A text as a row of an export. */
int fleet_publish_text(struct fleet_db *db, const struct fleet_self *self, const char *slot,
                       const char *source, const char *body, struct err *err);
/* Columns: seq, body. At most 16. */
int fleet_pull_texts(struct fleet_db *db, const struct fleet_self *self, int64_t seq,
                     struct fleet_rows *rows, struct err *err);

/* A kernel is wrong; everybody of the environment is told. `again`: only if the database knows
 * nothing of that, here and of verdicts. */
int fleet_retract(struct fleet_db *db, const char *env, const char *key, const char *slot,
                  const char *server, const char *name, const char *reason, bool again,
                  struct err *err);
/* Columns: seq, key, slot, server, name, reason, time. In order, at most FLEET_PAGE. */
int fleet_pull_retractions(struct fleet_db *db, const struct fleet_self *self, int64_t seq,
                           struct fleet_rows *rows, struct err *err);
/* What this server found when it looked at a retracted kernel. */
int fleet_say_verdict(struct fleet_db *db, const struct fleet_self *self, const char *key,
                      bool upheld, const char *words, bool again, struct err *err);

/* The first of `n` slots that nobody else holds, or if there is none one that is held by fewer than
 * FLEET_HOLDERS, for FLEET_LEASE_S from now; what else it held is free. out[0] = 0: none (or n =
 * 0).
 */
int fleet_take_lease(struct fleet_db *db, const struct fleet_self *self, const char *const *slot,
                     int n, char out[40], struct err *err);

/* Gives numbers to the rows of an environment whose numbers are not of the sequence, so that others
 * hear of them; how many in *changed. */
int fleet_renumber(struct fleet_db *db, const char *env, int64_t *changed, struct err *err);
/* Removes what is older than the limits above, or too much, but no kernel that serves on a server
 * which is there; how many rows in *removed. */
int fleet_prune(struct fleet_db *db, const char *env, int64_t *removed, struct err *err);

/* Servers that are there: env, server, name and up to which retraction they have heard (NULL: older
 * programs do not tell), also from tables without that column. */
#define FLEET_IS_THERE "NOT s.stopped AND s.seen > now() - interval '1 minute'"
#define FLEET_HEARD "(to_jsonb(s)->>'heard')::bigint"
#define FLEET_THERE                                                           \
    "there AS MATERIALIZED (SELECT s.env, s.server, " FLEET_HEARD " AS heard" \
    " FROM whet_server s WHERE " FLEET_IS_THERE ")"

/* {"servers", "leases", "winners", "retractions"} of an environment (NULL: of all), the newest 200
 * of each at most, and how many there are in "totals". Texts are plain. NULL with a message; the
 * caller deletes. */
cJSON *fleet_view(struct fleet_db *db, const char *env, struct err *err);

#endif
