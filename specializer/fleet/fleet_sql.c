/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_sql.c - see fleet_sql.h.
 *
 * Rows are numbered by a sequence, and readers ask for what is above the number they have seen.
 * That is only right if numbers become visible in their order, so writers of one environment take
 * turns (an advisory lock for one short statement).
 *
 * It is also only right if every number came from the sequence. A row above what the sequence has
 * given would make who reads it deaf to all that come after, and there may be such rows: whoever
 * may write may choose a number, and logical replication takes tables along but not where a
 * sequence was. Readers pass over them until one of the servers has given them numbers.
 */
#include "specializer/fleet/fleet_sql.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "specializer/candidate/evidence.h"
#include "specializer/candidate/life.h"
#include "specializer/fleet/fleet_row.h"

/* The turn of a writer; and the last number that the sequence has given (0: none yet). A role that
 * may not ask for that believes every number. */
#define TURN "turn AS MATERIALIZED (SELECT pg_advisory_xact_lock(hashtextextended($1, 2003330420)))"
#define GIVEN                                                               \
    "(SELECT CASE WHEN has_sequence_privilege('whet_seq', 'USAGE, SELECT')" \
    " THEN coalesce(pg_sequence_last_value('whet_seq'), 0) ELSE 9223372036854775807 END)"
#define NUMBERED " AND seq > 0 AND seq <= " GIVEN

/* Runs a statement whose result has no rows. */
static int run(struct fleet_db *db, const char *sql, const char *const *value, int n,
               struct err *err)
{
    return fleet_db_run(db, FLEET_STATEMENT_S, sql, value, n, NULL, err);
}

static int ask_process(struct fleet_db *db, int *process, struct err *err)
{
    struct fleet_rows rows;
    if (fleet_db_run(db, FLEET_STATEMENT_S, "SELECT pg_backend_pid()", NULL, 0, &rows, err) != 0)
        return -1;
    *process = atoi(fleet_value(&rows, 0, 0));
    fleet_rows_free(&rows);
    return 0;
}

int fleet_same_session(struct fleet_db *db, int process, struct err *err)
{
    int now;
    if (ask_process(db, &now, err) != 0)
        return -1;
    return now == process
               ? 0
               : err_set(err, "specializer.fleet is the address of a pooler that gives every "
                              "transaction another session: it must be the database's own, or of a "
                              "pooler of sessions");
}

/* What a role has by default is for others: a session that listens is idle for seconds, and the
 * statements are made for READ COMMITTED, where one that waits its turn sees what others wrote
 * meanwhile. Time-outs that only newer servers have are set where there are such.
 *
 * A database of no encoding (SQL_ASCII) takes any bytes, and would not hand a page of rows out as
 * UTF-8 while one of them is none. */
int fleet_limit(struct fleet_db *db, int *process, struct err *err)
{
    if (ask_process(db, process, err) != 0)
        return -1;
    if (*process != fleet_db_process(db))
        return 0;
    return run(db,
               "SET statement_timeout = '20s'; SET lock_timeout = '5s';"
               " SET idle_in_transaction_session_timeout = '20s';"
               " SET default_transaction_isolation = 'read committed';"
               " SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN"
               " ('idle_session_timeout', 'transaction_timeout');"
               " SELECT set_config('client_encoding', 'SQL_ASCII', false)"
               " WHERE current_setting('server_encoding') = 'SQL_ASCII'",
               NULL, 0, err);
}

/* ---- servers -------------------------------------------------------------------------------- */

int fleet_listen(struct fleet_db *db, const struct fleet_self *self, struct err *err)
{
    char listen[64];
    snprintf(listen, sizeof listen, "LISTEN \"whet_%s\"", self->env);
    return run(db, listen, NULL, 0, err);
}

/* A row that was there is updated, and the old version of it ended by this transaction. */
#define BEAT(column, value, set)                                                                 \
    "INSERT INTO whet_server(server, env, name, version, device" column ") VALUES"               \
    " ($1,$2,$3,$4,$5" value ") ON CONFLICT (server) DO UPDATE SET env=$2, name=$3, version=$4," \
    " device=$5, started=CASE WHEN $6::boolean THEN now() ELSE whet_server.started END,"         \
    " seen=now(), stopped=false" set " RETURNING xmax = 0"

int fleet_beat(struct fleet_db *db, const struct fleet_self *self, bool begins, int64_t heard,
               bool *entered, struct err *err)
{
    static const char plain[] = BEAT("", "", ""),
                      hears[] = BEAT(", heard", ",$7::bigint", ", heard=$7::bigint");
    struct fleet_rows rows;
    char number[24];
    const char *v[] = {self->server,  self->env,    self->name,
                       self->version, self->device, begins ? "true" : "false",
                       number};
    snprintf(number, sizeof number, "%lld", (long long)heard);
    if (fleet_db_run(db, FLEET_STATEMENT_S, heard < 0 ? plain : hears, v, heard < 0 ? 6 : 7, &rows,
                     err) != 0)
        return -1;
    *entered = strcmp(fleet_value(&rows, 0, 0), "t") == 0;
    fleet_rows_free(&rows);
    return 0;
}

int fleet_bye(struct fleet_db *db, const struct fleet_self *self, struct err *err)
{
    char none[40];
    const char *v[] = {self->server};
    if (fleet_take_lease(db, self, NULL, 0, none, err) != 0)
        return -1;
    return run(db, "UPDATE whet_server SET seen=now(), stopped=true WHERE server=$1", v, 1, err);
}

/* ---- kernels -------------------------------------------------------------------------------- */

cJSON *fleet_kernel_json(const struct record *r)
{
    char reason[FLEET_WORD];
    cJSON *o = cJSON_CreateObject(), *evidence = evidence_json(&r->evidence);
    char *text = cJSON_PrintUnformatted(evidence);
    cJSON_Delete(evidence);
    fleet_plain(r->reason, reason);
    cJSON_AddStringToObject(o, "key", r->key);
    cJSON_AddStringToObject(o, "slot", r->slot);
    cJSON_AddStringToObject(o, "template", r->template);
    cJSON_AddStringToObject(o, "source", r->source);
    cJSON_AddStringToObject(o, "knobs", r->knobs);
    cJSON_AddStringToObject(o, "state", life_name(r->state));
    cJSON_AddNumberToObject(o, "own_s", r->evidence.own_s);
    cJSON_AddNumberToObject(o, "speed", r->evidence.speed);
    cJSON_AddStringToObject(o, "reason", reason); /* begins with the stage: "probe: ..." */
    cJSON_AddStringToObject(o, "evidence", text);
    free(text);
    return o;
}

int fleet_publish(struct fleet_db *db, const struct fleet_self *self, const cJSON *kernels,
                  bool news, struct err *err)
{
    static const char sql[] =
        "WITH " TURN
        " INSERT INTO whet_kernel(env, key, server, slot, template, source, knobs, state, own_s,"
        " speed, reason, evidence)"
        " SELECT $1, r.key, $2, r.slot, r.template, r.source, r.knobs, r.state, r.own_s, r.speed,"
        " r.reason, r.evidence FROM turn, jsonb_to_recordset($3::jsonb) AS r(key text, slot text,"
        " template text, source text, knobs text, state text, own_s float8, speed float8,"
        " reason text, evidence text)"
        " ON CONFLICT (env, key, server) DO UPDATE SET state=excluded.state, own_s=excluded.own_s,"
        " speed=excluded.speed, reason=excluded.reason, evidence=excluded.evidence,"
        " seq=nextval('whet_seq'), changed=now()"
        " WHERE (whet_kernel.state, whet_kernel.own_s, whet_kernel.speed, whet_kernel.reason)"
        " IS DISTINCT FROM (excluded.state, excluded.own_s, excluded.speed, excluded.reason)";
    char *text = cJSON_PrintUnformatted(kernels), channel[40];
    const char *v[] = {self->env, self->server, text}, *note[] = {channel};
    int r = run(db, sql, v, 3, err);
    free(text);
    snprintf(channel, sizeof channel, "whet_%s", self->env);
    return r == 0 && news
               ? run(db, "SELECT pg_notify($1, '" FLEET_NOTE_OF_KERNEL "')", note, 1, err)
               : r;
}

int fleet_given(struct fleet_db *db, int64_t *given, struct err *err)
{
    struct fleet_rows rows;
    if (fleet_db_run(db, FLEET_STATEMENT_S, "SELECT " GIVEN, NULL, 0, &rows, err) != 0)
        return -1;
    *given = atoll(fleet_value(&rows, 0, 0));
    fleet_rows_free(&rows);
    return 0;
}

/* Reads rows that other servers wrote, on one side of `seq`. */
static int of_others(struct fleet_db *db, const char *sql, const struct fleet_self *self,
                     int64_t seq, struct fleet_rows *rows, struct err *err)
{
    char from[24];
    const char *v[] = {self->env, from, self->server};
    snprintf(from, sizeof from, "%lld", (long long)seq);
    return fleet_db_run(db, FLEET_STATEMENT_S, sql, v, 3, rows, err);
}

int fleet_pull(struct fleet_db *db, const struct fleet_self *self, int64_t seq,
               struct fleet_rows *rows, struct err *err)
{
    _Static_assert(FLEET_PAGE == 500, "the LIMIT below");
    return of_others(db,
                     "SELECT " FLEET_COLUMN_NAMES
                     " FROM whet_kernel WHERE env=$1 AND seq>$2::bigint"
                     " AND server<>$3" NUMBERED " ORDER BY seq LIMIT 500",
                     self, seq, rows, err);
}

int fleet_pull_back(struct fleet_db *db, const struct fleet_self *self, int64_t seq,
                    struct fleet_rows *rows, struct err *err)
{
    return of_others(db,
                     "SELECT " FLEET_COLUMN_NAMES
                     " FROM whet_kernel WHERE env=$1 AND seq<$2::bigint"
                     " AND server<>$3" NUMBERED " ORDER BY seq DESC LIMIT 500",
                     self, seq, rows, err);
}

/* ---- texts ---------------------------------------------------------------------------------- */

int fleet_publish_text(struct fleet_db *db, const struct fleet_self *self, const char *slot,
                       const char *source, const char *body, struct err *err)
{
    const char *v[] = {self->env, self->server, slot, source, body};
    return run(db,
               "WITH " TURN " INSERT INTO whet_text(env, server, slot, source, body)"
               " SELECT $1, $2, $3, $4, $5 FROM turn ON CONFLICT DO NOTHING",
               v, 5, err);
}

int fleet_pull_texts(struct fleet_db *db, const struct fleet_self *self, int64_t seq,
                     struct fleet_rows *rows, struct err *err)
{
    return of_others(db,
                     "SELECT seq, body FROM whet_text WHERE env=$1 AND seq>$2::bigint"
                     " AND server<>$3" NUMBERED " ORDER BY seq LIMIT 16",
                     self, seq, rows, err);
}

/* ---- retractions ---------------------------------------------------------------------------- */

int fleet_retract(struct fleet_db *db, const char *env, const char *key, const char *slot,
                  const char *server, const char *name, const char *reason, bool again,
                  struct err *err)
{
    char plain[FLEET_WORD], channel[40];
    const char *v[] = {env, key, slot, server, name, plain, again ? "true" : "false"};
    const char *note[] = {channel};
    struct fleet_rows rows;
    fleet_plain(reason, plain);
    snprintf(channel, sizeof channel, "whet_%s", env);
    if (fleet_db_run(db, FLEET_STATEMENT_S,
                     "WITH " TURN
                     " INSERT INTO whet_retraction(env, key, slot, server, name, reason)"
                     " SELECT $1, $2, $3, $4, $5, $6 FROM turn ON CONFLICT (env, key) DO UPDATE SET"
                     " seq=nextval('whet_seq'), slot=$3, server=$4, name=$5, reason=$6, at=now()"
                     " WHERE NOT $7::boolean RETURNING 1",
                     v, 7, &rows, err) != 0)
        return -1;
    int n = rows.n;
    fleet_rows_free(&rows);
    return n == 0 ? 0 : run(db, "SELECT pg_notify($1, '" FLEET_NOTE_OF_WRONG "')", note, 1, err);
}

int fleet_pull_retractions(struct fleet_db *db, const struct fleet_self *self, int64_t seq,
                           struct fleet_rows *rows, struct err *err)
{
    return of_others(db,
                     "SELECT seq, key, slot, server, name, reason, extract(epoch FROM at)::text"
                     " FROM whet_retraction WHERE env=$1"
                     " AND seq>$2::bigint AND server<>$3" NUMBERED " ORDER BY seq LIMIT 500",
                     self, seq, rows, err);
}

int fleet_say_verdict(struct fleet_db *db, const struct fleet_self *self, const char *key,
                      bool upheld, const char *words, bool again, struct err *err)
{
    char plain[FLEET_WORD];
    const char *v[] = {self->env,
                       key,
                       self->server,
                       self->name,
                       upheld ? "true" : "false",
                       plain,
                       again ? "true" : "false"};
    fleet_plain(words, plain);
    return run(db,
               "INSERT INTO whet_verdict(env, key, server, name, upheld, words)"
               " VALUES ($1,$2,$3,$4,$5::boolean,$6) ON CONFLICT (env, key, server)"
               " DO UPDATE SET upheld=$5::boolean, words=$6, at=now() WHERE NOT $7::boolean",
               v, 7, err);
}

/* ---- leases --------------------------------------------------------------------------------- */

/* {"a","b","a+2","b+2", ...}: first a slot that nobody has, then one that fewest have. Names of
 * slots need no escapes. Caller frees. */
static char *array_text(const char *const *slot, int n)
{
    size_t bytes = 0;
    char *text = NULL;
    FILE *out = xmemstream(&text, &bytes);
    fputc('{', out);
    for (int holder = 1; holder <= FLEET_HOLDERS; holder++)
        for (int i = 0; i < n; i++) {
            fprintf(out, "%s\"%s", holder > 1 || i > 0 ? "," : "", slot[i]);
            fprintf(out, holder > 1 ? "+%d\"" : "\"", holder);
        }
    fputc('}', out);
    fclose(out);
    return text;
}

/* Nobody's lease is for longer than FLEET_LEASE_S: one that ends later was given by a clock that
 * has gone back since (another database took over), or by nobody. */
int fleet_take_lease(struct fleet_db *db, const struct fleet_self *self, const char *const *slot,
                     int n, char out[40], struct err *err)
{
    static const char take[] =
        "WITH mine AS MATERIALIZED (SELECT l.slot FROM unnest($3::text[]) WITH ORDINALITY w(slot, "
        "n)"
        " JOIN whet_lease l ON l.env=$1 AND l.slot=w.slot"
        " WHERE l.server=$2 OR l.until<=clock_timestamp() OR"
        " l.until>clock_timestamp() + 2 * $4::int * interval '1 second' ORDER BY w.n LIMIT 1"
        " FOR UPDATE OF l SKIP LOCKED),"
        " freed AS (UPDATE whet_lease SET server='', until='-infinity' WHERE env=$1 AND server=$2"
        " AND slot NOT IN (SELECT slot FROM mine))"
        " UPDATE whet_lease SET since=CASE WHEN server=$2 THEN since ELSE now() END, server=$2,"
        " until=clock_timestamp() + $4::int * interval '1 second'"
        " WHERE env=$1 AND slot IN (SELECT slot FROM mine) RETURNING slot";
    char *slots = array_text(slot, n), seconds[12];
    const char *v[] = {self->env, self->server, slots, seconds};
    const char *rows_of[] = {self->env, slots};
    struct fleet_rows rows = {0};
    snprintf(seconds, sizeof seconds, "%d", FLEET_LEASE_S);
    out[0] = 0;
    int r = n == 0 ? 0
                   : run(db,
                         "INSERT INTO whet_lease(env, slot) SELECT $1, unnest($2::text[])"
                         " ON CONFLICT DO NOTHING",
                         rows_of, 2, err);
    if (r == 0)
        r = fleet_db_run(db, FLEET_STATEMENT_S, take, v, 4, &rows, err);
    const char *got = r == 0 ? fleet_value(&rows, 0, 0) : "";
    for (int i = 0; i < n; i++) /* a name that was asked for, and no other */
        if (strlen(slot[i]) == strcspn(got, "+") && strncmp(slot[i], got, strlen(slot[i])) == 0)
            snprintf(out, 40, "%s", slot[i]);
    fleet_rows_free(&rows);
    free(slots);
    return r;
}

/* ---- bounds --------------------------------------------------------------------------------- */

int fleet_renumber(struct fleet_db *db, const char *env, int64_t *changed, struct err *err)
{
    static const char sql[] =
        "WITH " TURN ", given AS MATERIALIZED (SELECT " GIVEN " AS last FROM turn),"
        " k AS (UPDATE whet_kernel SET seq=nextval('whet_seq') FROM given WHERE env=$1"
        " AND (seq <= 0 OR seq > last) RETURNING 1),"
        " r AS (UPDATE whet_retraction SET seq=nextval('whet_seq') FROM given WHERE env=$1"
        " AND (seq <= 0 OR seq > last) RETURNING 1),"
        " t AS (UPDATE whet_text SET seq=nextval('whet_seq') FROM given WHERE env=$1"
        " AND (seq <= 0 OR seq > last) RETURNING 1)"
        " SELECT (SELECT count(*) FROM k) + (SELECT count(*) FROM r) + (SELECT count(*) FROM t)";
    const char *v[] = {env};
    struct fleet_rows rows;
    if (fleet_db_run(db, FLEET_STATEMENT_S, sql, v, 1, &rows, err) != 0)
        return -1;
    *changed = atoll(fleet_value(&rows, 0, 0));
    fleet_rows_free(&rows);
    return 0;
}

int fleet_prune(struct fleet_db *db, const char *env, int64_t *removed, struct err *err)
{
    static const char sql[] =
        "WITH s AS (DELETE FROM whet_server WHERE seen < now() - $2::int * interval '1 day'"
        " RETURNING 1),"
        " k AS (DELETE FROM whet_kernel WHERE ctid IN (SELECT ctid FROM whet_kernel WHERE"
        " changed < now() - $3::int * interval '1 day' AND NOT (state='active' AND EXISTS (SELECT"
        " FROM whet_server w WHERE w.server=whet_kernel.server AND w.env=whet_kernel.env AND"
        " w.seen >= now() - $2::int * interval '1 day')) LIMIT 5000) RETURNING 1),"
        " m AS (DELETE FROM whet_kernel WHERE env=$1 AND seq <= (SELECT seq FROM whet_kernel"
        " WHERE env=$1 ORDER BY seq DESC OFFSET $5::int LIMIT 1) AND state NOT IN"
        " ('active', 'retired') RETURNING 1),"
        " r AS (DELETE FROM whet_retraction WHERE at < now() - $4::int * interval '1 day'"
        " RETURNING 1),"
        " v AS (DELETE FROM whet_verdict WHERE at < now() - $4::int * interval '1 day'"
        " RETURNING 1),"
        " l AS (DELETE FROM whet_lease WHERE until < now() - interval '1 day' AND"
        " until > '-infinity' RETURNING 1),"
        " t AS (DELETE FROM whet_text WHERE env=$1 AND seq <= (SELECT seq FROM whet_text"
        " WHERE env=$1 ORDER BY seq DESC OFFSET $6::int LIMIT 1) RETURNING 1)"
        " SELECT (SELECT count(*) FROM s) + (SELECT count(*) FROM k) + (SELECT count(*) FROM m) +"
        " (SELECT count(*) FROM r) + (SELECT count(*) FROM v) + (SELECT count(*) FROM l) +"
        " (SELECT count(*) FROM t)";
    char n[5][12];
    const int limit[5] = {FLEET_SERVER_DAYS, FLEET_KERNEL_DAYS, FLEET_RETRACTION_DAYS,
                          FLEET_KERNELS_MOST, FLEET_TEXTS_MOST};
    const char *v[6] = {env};
    struct fleet_rows rows;
    for (int i = 0; i < 5; i++) {
        snprintf(n[i], sizeof n[i], "%d", limit[i]);
        v[i + 1] = n[i];
    }
    if (fleet_db_run(db, FLEET_STATEMENT_S, sql, v, 6, &rows, err) != 0)
        return -1;
    *removed = atoll(fleet_value(&rows, 0, 0));
    fleet_rows_free(&rows);
    return 0;
}
