/* SPDX-License-Identifier: Apache-2.0 */
/* store.c - opening the store, and the tables that operators own.
 *
 * WAL with synchronous=NORMAL: a commit survives the death of the process at any instruction; a
 * power cut may lose the last moments but never tears a transaction. Both are what we need, since
 * losing a moment costs a repeated measurement. The file is checked when it is opened: a damaged
 * one is worth less than a server that starts, so it is moved aside (kept for whoever wants to
 * look) and the search begins again from nothing.
 *
 * The rows of the search itself are in store_rows.c.
 */
#include "specializer/store/store.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/log.h"
#include "config/safe_path.h"
#include "specializer/store/store_file.h"
#include "specializer/store/store_sql.h"

static const char schema[] =
    "CREATE TABLE candidate(key TEXT PRIMARY KEY, object_key TEXT, object_sum TEXT, env TEXT,"
    " source TEXT, template TEXT, slot TEXT, knobs TEXT, name TEXT, origin INTEGER, state TEXT,"
    " bit_equal INTEGER, predicted_s REAL, evidence TEXT, reason TEXT,"
    " rollbacks INTEGER NOT NULL DEFAULT 0, deaths INTEGER NOT NULL DEFAULT 0,"
    " trial INTEGER NOT NULL DEFAULT 0, changed INTEGER, log TEXT) WITHOUT ROWID;"
    "CREATE INDEX candidate_slot ON candidate(env, slot, state);"
    "CREATE INDEX candidate_object ON candidate(object_key);"
    "CREATE TABLE winner(env TEXT, slot TEXT, key TEXT NOT NULL, previous TEXT NOT NULL DEFAULT '',"
    " share REAL NOT NULL DEFAULT 0, gain_eager REAL NOT NULL DEFAULT 0, changed INTEGER,"
    " PRIMARY KEY(env, slot)) WITHOUT ROWID;"
    "CREATE TABLE pin(slot TEXT PRIMARY KEY, kernel TEXT NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE disable(what TEXT PRIMARY KEY, reason TEXT NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE setting(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE trace(id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL, slot TEXT, key TEXT,"
    " event TEXT, text TEXT, who TEXT);"
    "CREATE INDEX trace_slot ON trace(slot, id);"
    "CREATE TABLE exchange(id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL, request TEXT, reply TEXT,"
    " verdict TEXT, seconds REAL, tokens_in INTEGER, tokens_out INTEGER);"
    "PRAGMA application_id = 2003330420;";

/* The tables that schema version 2 added; a new file gets them too. */
static const char agent_schema[] =
    "CREATE INDEX IF NOT EXISTS trace_event ON trace(event, id);"
    "CREATE TABLE agent_node(env TEXT, slot TEXT, id INTEGER, parent INTEGER, state TEXT,"
    " attempts INTEGER, debugs INTEGER, speed REAL, label TEXT, plan TEXT, text TEXT, source TEXT,"
    " prompts TEXT, reason TEXT, log TEXT, PRIMARY KEY(env, slot, id)) WITHOUT ROWID;"
    "CREATE INDEX agent_source ON agent_node(source);"
    "PRAGMA user_version = 2;";

/* "whet" in ASCII: tells a damaged store of ours from a database that is not ours to move. */
#define APPLICATION_ID "2003330420"

/* ---- helpers -------------------------------------------------------------------------------- */

static int fault(struct store *s, struct err *err)
{
    atomic_fetch_add(&s->errors, 1);
    return err_set(err, "store %s: %s", s->path, sqlite3_errmsg(s->db));
}

static sqlite3_stmt *bind_all(struct store *s, struct err *err, const char *sql, const char *types,
                              va_list args)
{
    sqlite3_stmt *q = NULL;
    if (sqlite3_prepare_v2(s->db, sql, -1, &q, NULL) != SQLITE_OK) {
        fault(s, err);
        return NULL;
    }
    for (int i = 0; types[i]; i++) {
        if (types[i] == 's')
            sqlite3_bind_text(q, i + 1, va_arg(args, const char *), -1, SQLITE_TRANSIENT);
        else if (types[i] == 'd')
            sqlite3_bind_double(q, i + 1, va_arg(args, double));
        else
            sqlite3_bind_int64(q, i + 1, va_arg(args, int64_t));
    }
    return q;
}

sqlite3_stmt *store_query(struct store *s, struct err *err, const char *sql, const char *types, ...)
{
    va_list args;
    va_start(args, types);
    sqlite3_stmt *q = bind_all(s, err, sql, types, args);
    va_end(args);
    return q;
}

int store_done(struct store *s, sqlite3_stmt *q, int code, struct err *err)
{
    int r = code == SQLITE_DONE || code == SQLITE_ROW ? 0 : fault(s, err);
    sqlite3_finalize(q);
    return r;
}

int store_run(struct store *s, struct err *err, const char *sql, const char *types, ...)
{
    va_list args;
    va_start(args, types);
    sqlite3_stmt *q = bind_all(s, err, sql, types, args);
    va_end(args);
    if (!q)
        return -1;
    int code;
    while ((code = sqlite3_step(q)) == SQLITE_ROW)
        ;
    return store_done(s, q, code, err);
}

void store_text(sqlite3_stmt *q, int column, char *out, size_t n)
{
    const char *text = (const char *)sqlite3_column_text(q, column);
    snprintf(out, n, "%s", text ? text : "");
}

int store_begin(struct store *s, struct err *err)
{
    return store_run(s, err, "BEGIN IMMEDIATE", "");
}

int store_end(struct store *s, int ok, struct err *err)
{
    if (ok == 0 && store_run(s, err, "COMMIT", "") == 0)
        return 0;
    store_run(s, NULL, "ROLLBACK", "");
    return -1;
}

int64_t store_stamp(struct store *s)
{
    int64_t now = clock_wall_s();
    s->stamp_s = now > s->stamp_s ? now : s->stamp_s;
    return s->stamp_s;
}

/* ---- opening -------------------------------------------------------------------------------- */

enum health { HEALTHY, DAMAGED, UNUSABLE };

/* True if SQLite's complaint is about what is in the file, not about reaching it. */
static bool is_damage(int code)
{
    return code == SQLITE_CORRUPT || code == SQLITE_NOTADB || code == SQLITE_FORMAT;
}

static enum health unusable(struct store *s, struct err *err)
{
    int code = sqlite3_errcode(s->db);
    fault(s, err);
    return is_damage(code) ? DAMAGED : UNUSABLE;
}

/* Reads one value of a pragma; HEALTHY and the text, or what is wrong. */
static enum health pragma(struct store *s, const char *sql, char *out, size_t n, struct err *err)
{
    sqlite3_stmt *q;
    out[0] = 0;
    if (sqlite3_prepare_v2(s->db, sql, -1, &q, NULL) != SQLITE_OK)
        return unusable(s, err);
    int code = sqlite3_step(q);
    if (code == SQLITE_ROW)
        store_text(q, 0, out, n);
    enum health h = code == SQLITE_ROW || code == SQLITE_DONE ? HEALTHY : unusable(s, err);
    sqlite3_finalize(q);
    return h;
}

/* Finds out whether the file is a store: HEALTHY if it is one and whole, of version *found (0: an
 * empty file). Tables of others in it, a backup tool's, are no business of ours. */
static enum health identify(struct store *s, int *found, struct err *err)
{
    char id[16], version[16], tables[16], first[16], second[16];
    enum health h;
    if ((h = pragma(s, "PRAGMA application_id", id, sizeof id, err)) != HEALTHY ||
        (h = pragma(s, "PRAGMA user_version", version, sizeof version, err)) != HEALTHY ||
        (h = pragma(s,
                    "SELECT count(*) FROM sqlite_master WHERE type='table' AND name NOT LIKE"
                    " 'sqlite_%'",
                    tables, sizeof tables, err)) != HEALTHY ||
        (h = pragma(s,
                    "SELECT count(*) FROM sqlite_master WHERE type='table' AND name IN"
                    " ('candidate','winner','pin','disable','setting','trace','exchange')",
                    first, sizeof first, err)) != HEALTHY ||
        (h = pragma(s,
                    "SELECT count(*) FROM sqlite_master WHERE type='table' AND name='agent_node'",
                    second, sizeof second, err)) != HEALTHY)
        return h;
    *found = 0;
    if (strcmp(tables, "0") == 0)
        return HEALTHY;
    if (strcmp(id, APPLICATION_ID) != 0) {
        err_set(err, "store %s is an SQLite database of another program", s->path);
        return UNUSABLE;
    }
    if (atoi(version) > STORE_VERSION) {
        err_set(err,
                "store %s has schema version %s, this program knows %d: use a newer whet or "
                "another --store",
                s->path, version, (int)STORE_VERSION);
        return UNUSABLE;
    }
    *found = atoi(version);
    if (*found < 1 || atoi(first) != 7 || (*found > 1 && atoi(second) != 1)) {
        err_set(err, "store %s: tables are missing", s->path);
        return DAMAGED;
    }
    return HEALTHY;
}

/* The tables that the file lacks, as one transaction. */
static enum health bring_up(struct store *s, struct err *err)
{
    int ok = 0, found;
    enum health h;
    if (store_begin(s, err) != 0)
        return unusable(s, err);
    if ((h = identify(s, &found, err)) !=
        HEALTHY) { /* another process may have made them meanwhile */
        store_end(s, -1, NULL);
        return h;
    }
    if (found < 1)
        ok = sqlite3_exec(s->db, schema, NULL, NULL, NULL) == SQLITE_OK ? 0 : fault(s, err);
    if (ok == 0 && found < STORE_VERSION)
        ok = sqlite3_exec(s->db, agent_schema, NULL, NULL, NULL) == SQLITE_OK ? 0 : fault(s, err);
    return store_end(s, ok, err) == 0 ? HEALTHY : UNUSABLE;
}

static enum health open_file(struct store *s, struct err *err)
{
    char text[256];
    enum health h;
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
    if (sqlite3_open_v2(s->path, &s->db, flags, NULL) != SQLITE_OK)
        return unusable(s, err);
    sqlite3_busy_timeout(s->db, 2000);
    if ((h = pragma(s, "PRAGMA journal_mode=WAL", text, sizeof text, err)) != HEALTHY ||
        (h = pragma(s, "PRAGMA synchronous=NORMAL", text, sizeof text, err)) != HEALTHY ||
        (h = pragma(s, "PRAGMA quick_check(1)", text, sizeof text, err)) != HEALTHY)
        return h;
    if (strcmp(text, "ok") != 0) {
        err_set(err, "store %s: %s", s->path, text);
        return DAMAGED;
    }
    int found;
    if ((h = identify(s, &found, err)) != HEALTHY || found == STORE_VERSION)
        return h;
    return bring_up(s, err);
}

/* Opens the file; a damaged one is moved aside and begun anew, but never under another process. */
static enum health open_or_begin(struct store *s, struct err *err)
{
    struct err why = {""};
    bool taken;
    enum health h = open_file(s, err);
    if (h != DAMAGED)
        return h;
    sqlite3_close(s->db);
    s->db = NULL;
    int lock = s->lock_fd >= 0 ? s->lock_fd : store_file_lock(s->path, &taken, &why);
    if (lock < 0) {
        err_prefix(err, "%.250s", why.msg);
        return UNUSABLE;
    }
    if (store_file_move_aside(s->path, err->msg, err) == 0)
        h = store_file_make(s->path, err) == 0 ? open_file(s, err) : UNUSABLE;
    if (lock != s->lock_fd)
        close(lock);
    return h;
}

static struct store *open_with(const char *path, bool alone, bool *taken, struct err *err)
{
    if (store_file_make(path, err) != 0)
        return NULL;
    int lock = alone ? store_file_lock(path, taken, err) : -1;
    if (alone && lock < 0)
        return NULL;
    struct store *s = xcalloc(1, sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    s->path = xstrdup(path);
    s->lock_fd = lock;
    struct err why = {""};
    if (open_or_begin(s, &why) == HEALTHY)
        return s;
    err_set(err, "%s", why.msg);
    store_close(s);
    return NULL;
}

struct store *store_open(const char *path, struct err *err)
{
    return open_with(path, false, NULL, err);
}

/* Rows that were written while the clock was ahead would stay the newest until it reaches their
 * time. */
static void bring_stamps_back(struct store *s)
{
    int64_t now = store_stamp(s);
    if (store_run(s, NULL, "UPDATE candidate SET changed=?1 WHERE changed>?1", "i", now) == 0 &&
        sqlite3_changes(s->db) > 0)
        log_warn("store",
                 "%s: %d rows were of a time to come, since the clock was set back: they "
                 "are of now",
                 s->path, sqlite3_changes(s->db));
}

struct store *store_open_alone(const char *path, bool *taken, struct err *err)
{
    *taken = false;
    struct store *s = open_with(path, true, taken, err);
    if (s)
        bring_stamps_back(s);
    return s;
}

void store_close(struct store *s)
{
    if (!s)
        return;
    if (s->db)
        store_settle_locked(s);
    if (s->unmarkeds > 0)
        log_warn("store", "%s: %d kernels stay marked as running: it cannot be written", s->path,
                 s->unmarkeds);
    sqlite3_close(s->db);
    store_forget_owed(s);
    free(s->unmarked);
    if (s->folder)
        safe_folder_remove(s->folder);
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    pthread_mutex_destroy(&s->lock);
    free(s->folder);
    free(s->path);
    free(s);
}

uint64_t store_errors(const struct store *s)
{
    return atomic_load(&s->errors);
}

const char *store_path(const struct store *s)
{
    return s->path;
}

/* ---- operators' tables ---------------------------------------------------------------------- */

/* Writes one change of an operator and its trace line in one transaction. */
static int change(struct store *s, struct err *err, const char *sql, const char *a, const char *b,
                  const char *event, const char *who)
{
    pthread_mutex_lock(&s->lock);
    store_settle_locked(s);
    int r = store_begin(s, err);
    if (r == 0) {
        bool slot = strchr(a, '/') != NULL; /* "mlp_in/m1"; keys and template names have none */
        r = store_run(s, err, sql, b ? "ss" : "s", a, b);
        if (r == 0)
            r = store_trace_row(s, slot ? a : NULL, slot ? NULL : a, event, b ? b : "", who, err);
        r = store_end(s, r, err);
    }
    pthread_mutex_unlock(&s->lock);
    return r;
}

int store_pin(struct store *s, const char *slot, const char *kernel, const char *who,
              struct err *err)
{
    return change(s, err, "INSERT OR REPLACE INTO pin(slot, kernel) VALUES(?,?)", slot, kernel,
                  "pin", who);
}

int store_unpin(struct store *s, const char *slot, const char *who, struct err *err)
{
    return change(s, err, "DELETE FROM pin WHERE slot=?", slot, NULL, "unpin", who);
}

int store_disable(struct store *s, const char *what, const char *reason, const char *who,
                  struct err *err)
{
    return change(s, err, "INSERT OR REPLACE INTO disable(what, reason) VALUES(?,?)", what, reason,
                  "disable", who);
}

int store_enable(struct store *s, const char *what, const char *who, struct err *err)
{
    return change(s, err, "DELETE FROM disable WHERE what=?", what, NULL, "enable", who);
}

static int each_pair(struct store *s, const char *sql, pair_fn *fn, void *ctx, struct err *err)
{
    pthread_mutex_lock(&s->lock);
    sqlite3_stmt *q = store_query(s, err, sql, "");
    int r = -1, code = SQLITE_DONE;
    if (q) {
        char name[64], value[512];
        while ((code = sqlite3_step(q)) == SQLITE_ROW) {
            store_text(q, 0, name, sizeof name);
            store_text(q, 1, value, sizeof value);
            fn(ctx, name, value);
        }
        r = store_done(s, q, code, err);
    }
    pthread_mutex_unlock(&s->lock);
    return r;
}

int store_pins(struct store *s, pair_fn *fn, void *ctx, struct err *err)
{
    return each_pair(s, "SELECT slot, kernel FROM pin ORDER BY slot", fn, ctx, err);
}

int store_disables(struct store *s, pair_fn *fn, void *ctx, struct err *err)
{
    return each_pair(s, "SELECT what, reason FROM disable ORDER BY what", fn, ctx, err);
}

int store_set(struct store *s, const char *name, const char *value, struct err *err)
{
    pthread_mutex_lock(&s->lock);
    int r = store_run(s, err, "INSERT OR REPLACE INTO setting(name, value) VALUES(?,?)", "ss", name,
                      value);
    pthread_mutex_unlock(&s->lock);
    return r;
}

bool store_value(struct store *s, const char *name, char *out, size_t n)
{
    pthread_mutex_lock(&s->lock);
    bool found = false;
    sqlite3_stmt *q = store_query(s, NULL, "SELECT value FROM setting WHERE name=?", "s", name);
    if (q && sqlite3_step(q) == SQLITE_ROW) {
        store_text(q, 0, out, n);
        found = true;
    }
    sqlite3_finalize(q);
    pthread_mutex_unlock(&s->lock);
    return found;
}
