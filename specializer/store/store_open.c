/* SPDX-License-Identifier: Apache-2.0 */
/* store_open.c - opening the store, and closing it.
 *
 * WAL with synchronous=NORMAL: a commit survives the death of the process at any instruction; a
 * power cut may lose the last moments but never tears a transaction. Both are what we need, since
 * losing a moment costs a repeated measurement. The file is checked when it is opened: a damaged
 * one is worth less than a server that starts, so it is moved aside (kept for whoever wants to
 * look) and the search begins again from nothing. What never was a store of ours is somebody's who
 * mistyped a path: it is refused by name, with not a byte of it changed.
 */
#include "specializer/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
    "PRAGMA application_id = 2003330420;"; /* STORE_APPLICATION_ID */

/* The tables that schema version 2 added; a new file gets them too. */
static const char agent_schema[] =
    "CREATE INDEX IF NOT EXISTS trace_event ON trace(event, id);"
    "CREATE TABLE agent_node(env TEXT, slot TEXT, id INTEGER, parent INTEGER, state TEXT,"
    " attempts INTEGER, debugs INTEGER, speed REAL, label TEXT, plan TEXT, text TEXT, source TEXT,"
    " prompts TEXT, reason TEXT, log TEXT, PRIMARY KEY(env, slot, id)) WITHOUT ROWID;"
    "CREATE INDEX agent_source ON agent_node(source);"
    "PRAGMA user_version = 2;";

/* Columns of `candidate` that came after version 2. A file that lacks them gets them and keeps its
 * version, because programs that do not know them read and write the others as ever, also beside
 * one that does. */
static const char *const later[] = {"served_deaths", "probe_deaths"};
enum { LATER = sizeof later / sizeof *later };

/* A table that came after them, in the same way: programs that do not know it leave it alone. */
static const char word_schema[] =
    "CREATE TABLE IF NOT EXISTS fleet_word(id INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER,"
    " told INTEGER NOT NULL DEFAULT 0, verdict INTEGER NOT NULL, upheld INTEGER NOT NULL,"
    " env TEXT NOT NULL, key TEXT NOT NULL, slot TEXT NOT NULL, words TEXT NOT NULL,"
    " server TEXT NOT NULL, name TEXT NOT NULL, UNIQUE(server, env, key, verdict));";

/* What a file holds. */
struct contents {
    int version; /* 0: it is empty */
    int later;   /* how many of these columns */
    bool words;  /* that table */
};

static bool up_to_date(const struct contents *c)
{
    return c->version == STORE_VERSION && c->later == LATER && c->words;
}

/* ---- what is in the file -------------------------------------------------------------------- */

enum health { HEALTHY, DAMAGED, UNUSABLE };

/* True if SQLite's complaint is about what is in the file, not about reaching it. */
static bool is_damage(int code)
{
    return code == SQLITE_CORRUPT || code == SQLITE_NOTADB || code == SQLITE_FORMAT;
}

static enum health unusable(struct store *s, struct err *err)
{
    int code = sqlite3_errcode(s->db);
    store_fault(s, err);
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

static enum health has_column(struct store *s, const char *name, bool *there, struct err *err)
{
    char sql[128], n[16];
    snprintf(sql, sizeof sql, "SELECT count(*) FROM pragma_table_info('candidate') WHERE name='%s'",
             name);
    enum health h = pragma(s, sql, n, sizeof n, err);
    *there = atoi(n) > 0;
    return h;
}

/* How many of the later columns there are. */
static enum health count_later(struct store *s, int *found, struct err *err)
{
    enum health h = HEALTHY;
    *found = 0;
    for (int i = 0; i < LATER && h == HEALTHY; i++) {
        bool there;
        h = has_column(s, later[i], &there, err);
        *found += there;
    }
    return h;
}

/* Finds out whether the file is a store: HEALTHY if it is one and whole, and what is in it. Tables
 * of others in it, a backup tool's, are no business of ours. */
static enum health identify(struct store *s, struct contents *found, struct err *err)
{
    char id[16], version[16], tables[16], own[16], words[16];
    enum health h;
    if ((h = pragma(s, "PRAGMA application_id", id, sizeof id, err)) != HEALTHY ||
        (h = pragma(s, "PRAGMA user_version", version, sizeof version, err)) != HEALTHY ||
        (h = pragma(s,
                    "SELECT count(*) FROM sqlite_master WHERE type='table' AND name NOT LIKE"
                    " 'sqlite_%'",
                    tables, sizeof tables, err)) != HEALTHY ||
        (h = pragma(
             s,
             "SELECT count(*) FROM sqlite_master WHERE type='table' AND name IN ('candidate',"
             "'winner','pin','disable','setting','trace','exchange','agent_node')",
             own, sizeof own, err)) != HEALTHY ||
        (h = pragma(s,
                    "SELECT count(*) FROM sqlite_master WHERE type='table' AND name='fleet_word'",
                    words, sizeof words, err)) != HEALTHY ||
        (h = count_later(s, &found->later, err)) != HEALTHY)
        return h;
    found->words = strcmp(words, "0") != 0;
    found->version = 0;
    if (strcmp(tables, "0") == 0)
        return HEALTHY;
    if (atoll(id) != STORE_APPLICATION_ID) {
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
    found->version = atoi(version);
    if (found->version < 1 || atoi(own) != (found->version == 1 ? 7 : 8)) {
        err_set(err, "store %s: tables are missing", s->path);
        return DAMAGED;
    }
    return HEALTHY;
}

static int run(struct store *s, const char *sql, struct err *err)
{
    return sqlite3_exec(s->db, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : store_fault(s, err);
}

static int add_columns(struct store *s, struct err *err)
{
    char sql[128];
    int ok = 0;
    for (int i = 0; i < LATER && ok == 0; i++) {
        bool there;
        snprintf(sql, sizeof sql, "ALTER TABLE candidate ADD COLUMN %s INTEGER NOT NULL DEFAULT 0",
                 later[i]);
        ok = has_column(s, later[i], &there, err) == HEALTHY ? 0 : -1;
        if (ok == 0 && !there)
            ok = run(s, sql, err);
    }
    return ok;
}

/* The tables and columns that the file lacks, as one transaction. */
static enum health bring_up(struct store *s, struct err *err)
{
    int ok = 0;
    struct contents found;
    enum health h;
    if (store_begin(s, err) != 0)
        return unusable(s, err);
    if ((h = identify(s, &found, err)) !=
        HEALTHY) { /* another process may have made them meanwhile */
        store_end(s, -1, NULL);
        return h;
    }
    if (found.version < 1)
        ok = run(s, schema, err);
    if (ok == 0 && found.version < STORE_VERSION)
        ok = run(s, agent_schema, err);
    if (ok == 0)
        ok = add_columns(s, err);
    if (ok == 0)
        ok = run(s, word_schema, err);
    if (store_end(s, ok, err) != 0)
        return UNUSABLE;
    /* Into the file at once, by which it is known as ours if it is damaged. */
    sqlite3_wal_checkpoint_v2(s->db, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
    return HEALTHY;
}

static enum health connect(struct store *s, int flags, struct contents *found, struct err *err)
{
    if (sqlite3_open_v2(s->path, &s->db, flags | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK)
        return unusable(s, err);
    sqlite3_busy_timeout(s->db, 2000);
    return identify(s, found, err);
}

static void disconnect(struct store *s)
{
    sqlite3_close(s->db);
    s->db = NULL;
}

static enum health is_ours(struct store *s, struct err *err)
{
    enum health h;
    struct contents found;
    switch (store_file_kind(s->path)) {
    case STORE_FILE_NONE:
    case STORE_FILE_OURS:
        return HEALTHY;
    case STORE_FILE_FOREIGN:
        err_set(err, "store %s is an SQLite database of another program", s->path);
        return UNUSABLE;
    case STORE_FILE_OTHER:
        break;
    case STORE_FILE_UNSAID:
        h = connect(s, SQLITE_OPEN_READONLY, &found, err);
        disconnect(s);
        if (h != DAMAGED)
            return h;
    }
    err_set(err,
            "store %s is no store of whet, or nothing tells that it was one: it is left as it is",
            s->path);
    return UNUSABLE;
}

/* What is in it is in *found. Nothing is written before it is known whose it is;
 * the mode of the journal is written into the file. */
static enum health open_file(struct store *s, bool reads, struct contents *found, struct err *err)
{
    char text[256];
    enum health h = is_ours(s, err);
    int flags = SQLITE_OPEN_READWRITE | (reads ? 0 : SQLITE_OPEN_CREATE);
    if (h != HEALTHY || (h = connect(s, flags, found, err)) != HEALTHY)
        return h;
    if (!reads && ((h = pragma(s, "PRAGMA journal_mode=WAL", text, sizeof text, err)) != HEALTHY ||
                   (h = pragma(s, "PRAGMA synchronous=NORMAL", text, sizeof text, err)) != HEALTHY))
        return h;
    if ((h = pragma(s, "PRAGMA quick_check(1)", text, sizeof text, err)) != HEALTHY)
        return h;
    if (strcmp(text, "ok") != 0) {
        err_set(err, "store %s: %s", s->path, text);
        return DAMAGED;
    }
    return HEALTHY;
}

static enum health open_to_write(struct store *s, struct err *err)
{
    struct contents found;
    enum health h = open_file(s, false, &found, err);
    return h != HEALTHY || up_to_date(&found) ? h : bring_up(s, err);
}

/* Closes a damaged file. What SQLite keeps beside it stays for whoever wants to look: it would be
 * written back, as far as it makes sense, and deleted. */
static void leave(struct store *s)
{
    int keep = 1;
    sqlite3_db_config(s->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    sqlite3_file_control(s->db, "main", SQLITE_FCNTL_PERSIST_WAL, &keep);
    disconnect(s);
}

/* Opens the file; a damaged one is moved aside and begun anew, but never under another process. */
static enum health open_or_begin(struct store *s, struct err *err)
{
    struct err why = {""};
    bool taken;
    enum health h = open_to_write(s, err);
    if (h != DAMAGED)
        return h;
    leave(s);
    int lock = s->lock_fd >= 0 ? s->lock_fd : store_file_lock(s->path, &taken, &why);
    if (lock < 0) {
        err_prefix(err, "%.250s", why.msg);
        return UNUSABLE;
    }
    if (store_file_move_aside(s->path, err->msg, err) == 0)
        h = store_file_make(s->path, err) == 0 ? open_to_write(s, err) : UNUSABLE;
    if (lock != s->lock_fd)
        close(lock);
    return h;
}

static struct store *store_new(const char *path, int lock)
{
    struct store *s = xcalloc(1, sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    s->path = xstrdup(path);
    s->lock_fd = lock;
    return s;
}

/* `s` if it could be opened, else NULL with the reason. */
static struct store *opened(struct store *s, enum health h, const struct err *why, struct err *err)
{
    if (h == HEALTHY)
        return s;
    err_set(err, "%s", why->msg);
    store_close(s);
    return NULL;
}

static struct store *open_with(const char *path, bool alone, bool *taken, struct err *err)
{
    if (store_file_make(path, err) != 0)
        return NULL;
    int lock = alone ? store_file_lock(path, taken, err) : -1;
    if (alone && lock < 0)
        return NULL;
    struct store *s = store_new(path, lock);
    struct err why = {""};
    return opened(s, open_or_begin(s, &why), &why, err);
}

struct store *store_open(const char *path, struct err *err)
{
    return open_with(path, false, NULL, err);
}

/* A file that says which version it is of, but not this one, is brought up: nothing of it is lost.
 */
static enum health open_to_read(struct store *s, struct err *err)
{
    char text[8];
    struct contents found;
    enum health h = open_file(s, true, &found, err);
    if (h == DAMAGED) {
        leave(s);
        struct err why = *err;
        err_set(err, "%.300s: it is damaged; a server that starts with it moves it aside", why.msg);
    } else if (h == HEALTHY && found.version < 1) {
        err_set(err, "store %s is empty", s->path);
        h = UNUSABLE;
    } else if (h == HEALTHY && !up_to_date(&found)) {
        h = bring_up(s, err);
    }
    return h == HEALTHY ? pragma(s, "PRAGMA query_only=1", text, sizeof text, err) : h;
}

struct store *store_open_read(const char *path, struct err *err)
{
    if (store_file_find(path, err) != 0)
        return NULL;
    struct store *s = store_new(path, -1);
    struct err why = {""};
    return opened(s, open_to_read(s, &why), &why, err);
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
    store_close(s->origin);
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
