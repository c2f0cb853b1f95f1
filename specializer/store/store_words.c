/* SPDX-License-Identifier: Apache-2.0 */
/* store_words.c - see store_words.h. */
#include "specializer/store/store_words.h"

#include "config/clock.h"
#include "specializer/store/store_sql.h"

static struct store *place_of(struct store *s)
{
    return s->origin ? s->origin : s;
}

static int add(struct store *s, const struct store_word *w, struct err *err)
{
    int64_t now = store_stamp(s);
    if (store_run(s, err,
                  "INSERT OR REPLACE INTO fleet_word(at, told, verdict, upheld, env, key, slot,"
                  " words, server, name) VALUES (?,0,?,?,?,?,?,?,?,?)",
                  "iiissssss", now, (int64_t)w->verdict, (int64_t)w->upheld, w->env, w->key,
                  w->slot, w->words, w->server, w->name) != 0)
        return -1;
    return store_run(s, err,
                     "DELETE FROM fleet_word WHERE told BETWEEN 1 AND ?1 OR id NOT IN"
                     " (SELECT id FROM fleet_word ORDER BY told<>0, verdict, id DESC LIMIT ?2)",
                     "ii", now - (int64_t)STORE_TOLD_DAYS * 86400, (int64_t)STORE_WORDS_MOST);
}

int store_word_keep(struct store *s, const struct store_word *w, struct err *err)
{
    s = place_of(s);
    pthread_mutex_lock(&s->lock);
    int r = store_begin(s, err);
    if (r == 0)
        r = store_end(s, add(s, w, err), err);
    pthread_mutex_unlock(&s->lock);
    return r;
}

int store_words(struct store *s, bool told, const char *server, int64_t others_s, int64_t after,
                int most, store_word_fn *fn, void *ctx, struct err *err)
{
    s = place_of(s);
    pthread_mutex_lock(&s->lock);
    sqlite3_stmt *q = store_query(s, err,
                                  "SELECT id, at, verdict, upheld, env, key, slot, words, server,"
                                  " name FROM fleet_word WHERE (told<>0)=?1 AND id>?2 AND"
                                  " (server=?3 OR at<=?4) ORDER BY id LIMIT ?5",
                                  "iisii", (int64_t)told, after, server, clock_wall_s() - others_s,
                                  (int64_t)most);
    int code = SQLITE_ERROR;
    while (q && (code = sqlite3_step(q)) == SQLITE_ROW) {
        struct store_word w = {.id = sqlite3_column_int64(q, 0),
                               .at = sqlite3_column_int64(q, 1),
                               .verdict = sqlite3_column_int(q, 2) != 0,
                               .upheld = sqlite3_column_int(q, 3) != 0};
        store_text(q, 4, w.env, sizeof w.env);
        store_text(q, 5, w.key, sizeof w.key);
        store_text(q, 6, w.slot, sizeof w.slot);
        store_text(q, 7, w.words, sizeof w.words);
        store_text(q, 8, w.server, sizeof w.server);
        store_text(q, 9, w.name, sizeof w.name);
        fn(ctx, &w);
    }
    int r = q ? store_done(s, q, code, err) : -1;
    pthread_mutex_unlock(&s->lock);
    return r;
}

static int change(struct store *s, const char *sql, int64_t id, int64_t now, struct err *err)
{
    s = place_of(s);
    pthread_mutex_lock(&s->lock);
    int r = store_run(s, err, sql, "ii", id, now);
    pthread_mutex_unlock(&s->lock);
    return r;
}

int store_word_told(struct store *s, int64_t id, struct err *err)
{
    return change(s, "UPDATE fleet_word SET told=?2 WHERE id=?1", id, clock_wall_s(), err);
}

int store_word_forget(struct store *s, int64_t id, struct err *err)
{
    return change(s, "DELETE FROM fleet_word WHERE id=?1 AND ?2>0", id, clock_wall_s(), err);
}

int store_words_untold(struct store *s)
{
    s = place_of(s);
    int n = 0;
    pthread_mutex_lock(&s->lock);
    sqlite3_stmt *q = store_query(s, NULL, "SELECT count(*) FROM fleet_word WHERE told=0", "");
    if (q && sqlite3_step(q) == SQLITE_ROW)
        n = sqlite3_column_int(q, 0);
    sqlite3_finalize(q);
    pthread_mutex_unlock(&s->lock);
    return n;
}

int store_words_allow(struct store *s, const char *key, struct err *err)
{
    s = place_of(s);
    pthread_mutex_lock(&s->lock);
    int r = store_run(s, err, "DELETE FROM fleet_word WHERE key=?", "s", key);
    pthread_mutex_unlock(&s->lock);
    return r;
}
