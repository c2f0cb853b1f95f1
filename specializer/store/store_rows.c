/* SPDX-License-Identifier: Apache-2.0 */
/* store_rows.c - the rows of the search: candidates, winners, trace, calls of the adviser.
 *
 * store_move() is the heart: evidence, new state, who holds the slot and why, in one transaction.
 * A reader can therefore trust that a winner is an active candidate and that nobody else is.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/clock.h"
#include "config/log.h"
#include "specializer/candidate/evidence.h"
#include "specializer/candidate/life.h"
#include "specializer/store/store_sql.h"

/* ---- candidates ----------------------------------------------------------------------------- */

static int put(struct store *s, const struct record *r, enum life to, struct err *err)
{
    cJSON *json = evidence_json(&r->evidence);
    char *evidence = cJSON_PrintUnformatted(json);
    cJSON_Delete(json);
    int result = store_run(
        s, err,
        "INSERT INTO candidate(key, object_key, object_sum, env, source, template, slot, knobs,"
        " name, origin, state, bit_equal, predicted_s, evidence, reason, rollbacks, changed, log)"
        " VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18)"
        " ON CONFLICT(key) DO UPDATE SET object_key=?2, object_sum=?3, origin=?10, state=?11,"
        " bit_equal=?12, predicted_s=?13, evidence=?14, reason=?15, rollbacks=?16, changed=?17,"
        " log=coalesce(?18, log),"
        " probe_deaths=CASE WHEN ?11 IN ('probed','refused') THEN 0 ELSE probe_deaths END",
        "sssssssssisidssiis", r->key, r->object_key, r->object_sum, r->env, r->source, r->template,
        r->slot, r->knobs, r->name, (int64_t)r->origin, life_name(to), (int64_t)r->bit_equal,
        r->predicted_s, evidence, r->reason, (int64_t)r->rollbacks, store_stamp(s), r->log);
    free(evidence);
    return result;
}

/* `r` becomes the winner of its slot; the one before is retired and remembered. */
static int crown(struct store *s, const struct record *r, struct err *err)
{
    if (store_run(s, err,
                  "UPDATE candidate SET state='retired', changed=?4 WHERE key IN (SELECT key FROM"
                  " winner WHERE env=?1 AND slot=?2 AND key<>?3) AND state='active'",
                  "sssi", r->env, r->slot, r->key, store_stamp(s)) != 0)
        return -1;
    return store_run(s, err,
                     "INSERT INTO winner(env, slot, key, changed) VALUES(?1,?2,?3,?4)"
                     " ON CONFLICT(env, slot) DO UPDATE SET previous=CASE WHEN key=?3 THEN "
                     "previous ELSE key END,"
                     " key=?3, changed=?4",
                     "sssi", r->env, r->slot, r->key, store_stamp(s));
}

int store_move_row(struct store *s, const struct record *r, enum life to, const char *why,
                   const char *who, struct err *err)
{
    int result = put(s, r, to, err);
    if (result == 0 && to == LIFE_ACTIVE)
        result = crown(s, r, err);
    else if (result == 0)
        result = store_run(s, err, "DELETE FROM winner WHERE key=?", "s", r->key);
    if (result == 0)
        result = store_trace_row(s, r->slot, r->key, life_name(to), why ? why : "", who, err);
    return result;
}

int store_move(struct store *s, const struct record *r, enum life to, const char *why,
               const char *who, struct err *err)
{
    pthread_mutex_lock(&s->lock);
    store_settle_locked(s);
    const char *trouble = store_owes_locked(s, r->key);
    int result = trouble ? err_set(err, "its last move is not stored yet: %s", trouble)
                         : store_begin(s, err);
    if (result == 0)
        result = store_end(s, store_move_row(s, r, to, why, who, err), err);
    pthread_mutex_unlock(&s->lock);
    return result;
}

static const char columns[] = "key, object_key, object_sum, env, source, template, slot, knobs,"
                              " name, origin, state, bit_equal, predicted_s, evidence, reason,"
                              " rollbacks, deaths, changed, served_deaths, probe_deaths";

/* A row in the order of `columns`. */
static void read_row(sqlite3_stmt *q, struct record *r)
{
    *r = (struct record){0};
    char state[24];
    store_text(q, 0, r->key, sizeof r->key);
    store_text(q, 1, r->object_key, sizeof r->object_key);
    store_text(q, 2, r->object_sum, sizeof r->object_sum);
    store_text(q, 3, r->env, sizeof r->env);
    store_text(q, 4, r->source, sizeof r->source);
    store_text(q, 5, r->template, sizeof r->template);
    store_text(q, 6, r->slot, sizeof r->slot);
    store_text(q, 7, r->knobs, sizeof r->knobs);
    store_text(q, 8, r->name, sizeof r->name);
    int origin = sqlite3_column_int(q, 9);
    r->origin = origin >= ORIGIN_EAGER && origin < ORIGINS ? (enum origin)origin : ORIGIN_TEMPLATE;
    store_text(q, 10, state, sizeof state);
    int life = life_parse(state);
    r->state = life < 0 ? LIFE_REFUSED : (enum life)life;
    r->bit_equal = sqlite3_column_int(q, 11) != 0;
    r->predicted_s = sqlite3_column_double(q, 12);
    const char *text = (const char *)sqlite3_column_text(q, 13);
    cJSON *json = text ? cJSON_Parse(text) : NULL;
    evidence_read(&r->evidence, json);
    cJSON_Delete(json);
    store_text(q, 14, r->reason, sizeof r->reason);
    if (r->evidence.refusal.cause == CAUSE_NONE)
        refusal_of_sentence(&r->evidence.refusal, r->reason);
    r->rollbacks = sqlite3_column_int(q, 15);
    r->deaths = sqlite3_column_int(q, 16);
    r->changed_s = sqlite3_column_int64(q, 17);
    r->served_deaths = sqlite3_column_int(q, 18);
    r->probe_deaths = sqlite3_column_int(q, 19);
}

int store_get(struct store *s, const char *key, struct record *out, struct err *err)
{
    char sql[512];
    snprintf(sql, sizeof sql, "SELECT %s, log FROM candidate WHERE key=?", columns);
    pthread_mutex_lock(&s->lock);
    sqlite3_stmt *q = store_query(s, err, sql, "s", key);
    int r = -1;
    if (q) {
        int code = sqlite3_step(q);
        bool found = code == SQLITE_ROW;
        if (found) {
            read_row(q, out);
            store_overlay_owed(s, out);
            const char *log = (const char *)sqlite3_column_text(q, 20);
            out->log = log ? xstrdup(log) : NULL;
        }
        r = store_done(s, q, code, err) == 0 ? found : -1;
    }
    pthread_mutex_unlock(&s->lock);
    return r;
}

int store_each(struct store *s, const struct record_filter *f, record_fn *fn, void *ctx,
               struct err *err)
{
    char sql[1024];
    int n = snprintf(sql, sizeof sql,
                     "SELECT %s FROM candidate WHERE (?1 IS NULL OR env=?1) AND (?2 IS NULL OR"
                     " slot=?2) AND (?3 IS NULL OR source=?3) AND (?4 IS NULL OR template=?4)",
                     columns);
    if (f->states) {
        n += snprintf(sql + n, sizeof sql - (size_t)n, " AND state IN (''");
        for (int i = 0; i < LIFE_COUNT; i++)
            if (f->states & 1u << i)
                n += snprintf(sql + n, sizeof sql - (size_t)n, ",'%s'", life_name((enum life)i));
        n += snprintf(sql + n, sizeof sql - (size_t)n, ")");
    }
    snprintf(sql + n, sizeof sql - (size_t)n, " ORDER BY changed DESC, key LIMIT ?5");
    pthread_mutex_lock(&s->lock);
    sqlite3_stmt *q = store_query(s, err, sql, "ssssi", f->env, f->slot, f->source, f->template,
                                  (int64_t)(f->limit ? f->limit : -1));
    int r = -1, code;
    if (q) {
        struct record row;
        while ((code = sqlite3_step(q)) == SQLITE_ROW) {
            read_row(q, &row);
            fn(ctx, &row);
        }
        r = store_done(s, q, code, err);
    }
    pthread_mutex_unlock(&s->lock);
    return r;
}

static int newest_trace(struct store *s, int64_t *id, struct err *err)
{
    sqlite3_stmt *q = store_query(s, err, "SELECT coalesce(max(id), 0) FROM trace", "");
    if (!q)
        return -1;
    int code = sqlite3_step(q);
    if (code == SQLITE_ROW)
        *id = sqlite3_column_int64(q, 0);
    return store_done(s, q, code, err);
}

/* Up to `limit` keys, *n of them. */
static int moved_keys(struct store *s, int64_t *after, int limit, char (*key)[KEY_HEX + 1], int *n,
                      struct err *err)
{
    sqlite3_stmt *q = store_query(s, err,
                                  "SELECT key, max(id) FROM (SELECT key, id FROM trace WHERE id>?"
                                  " ORDER BY id LIMIT ?) GROUP BY key",
                                  "ii", *after, (int64_t)limit);
    int code = SQLITE_ERROR;
    while (q && (code = sqlite3_step(q)) == SQLITE_ROW) {
        int64_t id = sqlite3_column_int64(q, 1);
        if (*n < limit)
            store_text(q, 0, key[(*n)++], sizeof *key);
        *after = id > *after ? id : *after;
    }
    return q ? store_done(s, q, code, err) : -1;
}

int store_moved(struct store *s, int64_t *after, int limit, void (*fn)(void *ctx, const char *key),
                void *ctx, struct err *err)
{
    char(*key)[KEY_HEX + 1] = xcalloc((size_t)limit + 1, sizeof *key);
    int n = 0;
    pthread_mutex_lock(&s->lock);
    int r = *after < 0 ? newest_trace(s, after, err) : moved_keys(s, after, limit, key, &n, err);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < n && r == 0; i++)
        if (key[i][0])
            fn(ctx, key[i]);
    free(key);
    return r;
}

bool store_object_sum(struct store *s, const char *object_key, char out[17])
{
    pthread_mutex_lock(&s->lock);
    bool found = false;
    sqlite3_stmt *q = store_query(s, NULL,
                                  "SELECT object_sum FROM candidate WHERE object_key=? AND"
                                  " object_sum<>'' ORDER BY changed DESC LIMIT 1",
                                  "s", object_key);
    if (q && sqlite3_step(q) == SQLITE_ROW) {
        store_text(q, 0, out, 17);
        found = true;
    }
    sqlite3_finalize(q);
    pthread_mutex_unlock(&s->lock);
    return found;
}

bool store_object_used(struct store *s, const char *object_key)
{
    pthread_mutex_lock(&s->lock);
    sqlite3_stmt *q = store_query(s, NULL,
                                  "SELECT 1 FROM candidate WHERE object_key=? AND key IN (SELECT"
                                  " key FROM winner UNION SELECT previous FROM winner UNION SELECT"
                                  " kernel FROM pin) LIMIT 1",
                                  "s", object_key);
    bool used = !q || sqlite3_step(q) != SQLITE_DONE; /* an error: spare it */
    sqlite3_finalize(q);
    pthread_mutex_unlock(&s->lock);
    return used;
}

/* ---- winners -------------------------------------------------------------------------------- */

int store_winners(struct store *s, const char *env, winner_fn *fn, void *ctx, struct err *err)
{
    pthread_mutex_lock(&s->lock);
    sqlite3_stmt *q = store_query(s, err,
                                  "SELECT slot, key, previous, share, gain_eager FROM winner WHERE"
                                  " env=? ORDER BY share DESC, slot",
                                  "s", env);
    int r = -1, code;
    if (q) {
        struct winner w;
        while ((code = sqlite3_step(q)) == SQLITE_ROW) {
            store_text(q, 0, w.slot, sizeof w.slot);
            store_text(q, 1, w.key, sizeof w.key);
            store_text(q, 2, w.previous, sizeof w.previous);
            w.share = sqlite3_column_double(q, 3);
            w.gain_eager = sqlite3_column_double(q, 4);
            fn(ctx, &w);
        }
        r = store_done(s, q, code, err);
    }
    pthread_mutex_unlock(&s->lock);
    return r;
}

int store_share(struct store *s, const char *env, const char *slot, double share, double gain_eager,
                struct err *err)
{
    pthread_mutex_lock(&s->lock);
    int r = store_run(s, err, "UPDATE winner SET share=?, gain_eager=? WHERE env=? AND slot=?",
                      "ddss", share, gain_eager, env, slot);
    if (r == 0)
        store_settle_locked(s);
    pthread_mutex_unlock(&s->lock);
    return r;
}

/* ---- trace and calls ------------------------------------------------------------------------ */

/* The newest rows that are kept; older ones go a thousand at a time. */
enum { TRACE_KEEP = 100000, TRACE_SWEEP = 1000 };

int store_trace_row(struct store *s, const char *slot, const char *key, const char *event,
                    const char *text, const char *who, struct err *err)
{
    if (store_run(s, err, "INSERT INTO trace(at, slot, key, event, text, who) VALUES(?,?,?,?,?,?)",
                  "dsssss", clock_wall(), slot, key, event, text, who) != 0)
        return -1;
    int64_t id = sqlite3_last_insert_rowid(s->db);
    log_debug("specializer", "%s %s %s: %s%s%s", slot ? slot : "-", key ? key : "-", event, text,
              who ? " by " : "", who ? who : "");
    if (id % TRACE_SWEEP == 0)
        return store_run(s, err, "DELETE FROM trace WHERE id<=?", "i", id - TRACE_KEEP);
    return 0;
}

void store_trace_locked(struct store *s, const char *slot, const char *key, const char *event,
                        const char *who, const char *text)
{
    struct err err;
    if (store_trace_row(s, slot, key, event, text, who, &err) == 0)
        atomic_store(&s->lost, 0);
    else if (log_due(&s->lost))
        log_warn("store", "trace line lost (%s): %s %s: %s", err.msg, slot ? slot : "-", event,
                 text);
}

void store_trace(struct store *s, const char *slot, const char *key, const char *event,
                 const char *who, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    pthread_mutex_lock(&s->lock);
    store_trace_locked(s, slot, key, event, who, text);
    pthread_mutex_unlock(&s->lock);
}

/* A row of the trace with the name of its kernel. */
#define TRACE_COLUMNS "SELECT t.id, t.at, t.slot, t.key, t.event, t.text, t.who, c.name"
#define TRACE_FROM " FROM trace t LEFT JOIN candidate c ON c.key=t.key"

static int each_trace(struct store *s, sqlite3_stmt *q, trace_fn *fn, void *ctx, struct err *err)
{
    int code;
    while ((code = sqlite3_step(q)) == SQLITE_ROW) {
        struct trace_row row = {
            .id = sqlite3_column_int64(q, 0),
            .at = sqlite3_column_double(q, 1),
            .slot = (const char *)sqlite3_column_text(q, 2),
            .key = (const char *)sqlite3_column_text(q, 3),
            .event = (const char *)sqlite3_column_text(q, 4),
            .text = (const char *)sqlite3_column_text(q, 5),
            .who = (const char *)sqlite3_column_text(q, 6),
            .name = (const char *)sqlite3_column_text(q, 7),
        };
        fn(ctx, &row);
    }
    return store_done(s, q, code, err);
}

int store_traces(struct store *s, const char *slot, int64_t since_s, int limit, trace_fn *fn,
                 void *ctx, struct err *err)
{
    pthread_mutex_lock(&s->lock);
    sqlite3_stmt *q =
        store_query(s, err,
                    TRACE_COLUMNS TRACE_FROM " WHERE (?1 IS NULL OR t.slot=?1) AND t.at>=?2"
                                             " ORDER BY t.id DESC LIMIT ?3",
                    "sdi", slot, (double)since_s, (int64_t)(limit > 0 ? limit : -1));
    int r = q ? each_trace(s, q, fn, ctx, err) : -1;
    pthread_mutex_unlock(&s->lock);
    return r;
}

int store_events(struct store *s, const char *event, int64_t since_s, int limit, trace_fn *fn,
                 void *ctx, struct err *err)
{
    pthread_mutex_lock(&s->lock);
    sqlite3_stmt *q = store_query(s, err,
                                  TRACE_COLUMNS TRACE_FROM
                                  " WHERE t.event=?1 AND t.at>=?2 ORDER BY t.id DESC LIMIT ?3",
                                  "sdi", event, (double)since_s, (int64_t)limit);
    int r = q ? each_trace(s, q, fn, ctx, err) : -1;
    pthread_mutex_unlock(&s->lock);
    return r;
}

enum { EXCHANGE_KEEP = 2000, EXCHANGE_SWEEP = 50 };

int store_llm_call(struct store *s, const struct llm_call *x, struct err *err)
{
    pthread_mutex_lock(&s->lock);
    int r = store_run(s, err,
                      "INSERT INTO exchange(at, request, reply, verdict, seconds, tokens_in,"
                      " tokens_out) VALUES(?,?,?,?,?,?,?)",
                      "dsssdii", clock_wall(), x->request, x->reply, x->verdict, x->seconds,
                      (int64_t)x->tokens_in, (int64_t)x->tokens_out);
    int64_t id = sqlite3_last_insert_rowid(s->db);
    if (r == 0 && id % EXCHANGE_SWEEP == 0)
        r = store_run(s, err, "DELETE FROM exchange WHERE id<=?", "i", id - EXCHANGE_KEEP);
    pthread_mutex_unlock(&s->lock);
    return r;
}

int store_llm_calls(struct store *s, llm_call_fn *fn, void *ctx, struct err *err)
{
    pthread_mutex_lock(&s->lock);
    sqlite3_stmt *q = store_query(s, err,
                                  "SELECT id, at, request, reply, verdict, seconds, tokens_in,"
                                  " tokens_out FROM exchange ORDER BY id",
                                  "");
    int r = -1, code;
    if (q) {
        while ((code = sqlite3_step(q)) == SQLITE_ROW) {
            struct llm_call x = {
                .id = sqlite3_column_int64(q, 0),
                .at = sqlite3_column_double(q, 1),
                .request = (const char *)sqlite3_column_text(q, 2),
                .reply = (const char *)sqlite3_column_text(q, 3),
                .verdict = (const char *)sqlite3_column_text(q, 4),
                .seconds = sqlite3_column_double(q, 5),
                .tokens_in = sqlite3_column_int(q, 6),
                .tokens_out = sqlite3_column_int(q, 7),
            };
            fn(ctx, &x);
        }
        r = store_done(s, q, code, err);
    }
    pthread_mutex_unlock(&s->lock);
    return r;
}
