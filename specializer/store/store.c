/* SPDX-License-Identifier: Apache-2.0 */
/* store.c - how statements are run, and the tables that operators own.
 *
 * The file is opened in store_open.c, the rows of the search itself are in store_rows.c.
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

/* ---- helpers -------------------------------------------------------------------------------- */

int store_fault(struct store *s, struct err *err)
{
    atomic_fetch_add(&s->errors, 1);
    return err_set(err, "store %s: %s", s->path, sqlite3_errmsg(s->db));
}

static sqlite3_stmt *bind_all(struct store *s, struct err *err, const char *sql, const char *types,
                              va_list args)
{
    sqlite3_stmt *q = NULL;
    if (sqlite3_prepare_v2(s->db, sql, -1, &q, NULL) != SQLITE_OK) {
        store_fault(s, err);
        return NULL;
    }
    int code = SQLITE_OK;
    for (int i = 0; types[i] && code == SQLITE_OK; i++) {
        if (types[i] == 's')
            code = sqlite3_bind_text(q, i + 1, va_arg(args, const char *), -1, SQLITE_TRANSIENT);
        else if (types[i] == 'd')
            code = sqlite3_bind_double(q, i + 1, va_arg(args, double));
        else
            code = sqlite3_bind_int64(q, i + 1, va_arg(args, int64_t));
    }
    if (code == SQLITE_OK)
        return q;
    store_fault(s, err); /* no memory, or a text that is too long: it would be NULL */
    sqlite3_finalize(q);
    return NULL;
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
    int r = code == SQLITE_DONE || code == SQLITE_ROW ? 0 : store_fault(s, err);
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
