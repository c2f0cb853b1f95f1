/* SPDX-License-Identifier: Apache-2.0 */
/* store_deaths.c - what the store knows of processes that died with a kernel in them.
 *
 * Three counts of a candidate's row, since they are known in different ways. A kernel on trial has
 * a mark for as long as it is loaded, so whatever ended the process, its trial is suspected. One
 * that serves has none: it would be suspected of every power cut. It is blamed by what the process
 * noted of its own last moment (engine/crash.h). And a probe is a process of its own, whose parent
 * sees how it ended.
 */
#include <stdio.h>
#include <string.h>

#include "specializer/store/store_sql.h"

/* ---- on trial ------------------------------------------------------------------------------- */

static int mark(struct store *s, const char *key, bool on, struct err *err)
{
    return store_run(s, err, "UPDATE candidate SET trial=?, deaths=deaths*? WHERE key=?", "iis",
                     (int64_t)on, (int64_t)on, key);
}

static void forget_unmarked(struct store *s, const char *key)
{
    for (int i = 0; i < s->unmarkeds; i++)
        if (strcmp(s->unmarked[i], key) == 0)
            memmove(s->unmarked[i--], s->unmarked[--s->unmarkeds], sizeof *s->unmarked);
}

void store_unmark(struct store *s)
{
    while (s->unmarkeds > 0 && mark(s, s->unmarked[s->unmarkeds - 1], false, NULL) == 0)
        s->unmarkeds--;
}

int store_trial(struct store *s, const char *key, bool on, struct err *err)
{
    pthread_mutex_lock(&s->lock);
    int r = mark(s, key, on, err);
    if (r == 0 || on) /* `on` that failed is not loaded: its mark, if any, is as it was */
        forget_unmarked(s, key);
    if (r == 0) {
        store_settle_locked(s);
    } else if (!on) { /* the disk is full, say: a death from here on is not this kernel's */
        s->unmarked = xrealloc(s->unmarked, (size_t)(s->unmarkeds + 1) * sizeof *s->unmarked);
        snprintf(s->unmarked[s->unmarkeds++], sizeof *s->unmarked, "%s", key);
    }
    pthread_mutex_unlock(&s->lock);
    return r;
}

int store_deaths(struct store *s, struct err *err)
{
    pthread_mutex_lock(&s->lock);
    int r = store_run(s, err, "UPDATE candidate SET deaths=deaths+1, trial=0 WHERE trial<>0", "");
    if (r == 0)
        r = sqlite3_changes(s->db);
    pthread_mutex_unlock(&s->lock);
    return r;
}

/* ---- serving, and in a probe ---------------------------------------------------------------- */

/* One more in a column of the row; returns the new count, -1 if there is no such row. */
static int count(struct store *s, const char *column, const char *key, struct err *err)
{
    char update[128], select[128];
    int n = -1, code = SQLITE_ERROR;
    snprintf(update, sizeof update, "UPDATE candidate SET %s=%s+1 WHERE key=?", column, column);
    snprintf(select, sizeof select, "SELECT %s FROM candidate WHERE key=?", column);
    pthread_mutex_lock(&s->lock);
    sqlite3_stmt *q =
        store_run(s, err, update, "s", key) == 0 ? store_query(s, err, select, "s", key) : NULL;
    while (q && (code = sqlite3_step(q)) == SQLITE_ROW)
        n = sqlite3_column_int(q, 0);
    if (q && store_done(s, q, code, err) != 0)
        n = -1;
    else if (q && n < 0)
        err_set(err, "the store does not know kernel %s", key);
    pthread_mutex_unlock(&s->lock);
    return n;
}

int store_served_death(struct store *s, const char *key, struct err *err)
{
    return count(s, "served_deaths", key, err);
}

int store_probe_death(struct store *s, const char *key, struct err *err)
{
    return count(s, "probe_deaths", key, err);
}

int store_forgive(struct store *s, const char *key, struct err *err)
{
    pthread_mutex_lock(&s->lock);
    int r = store_run(s, err,
                      "UPDATE candidate SET deaths=0, served_deaths=0, probe_deaths=0 WHERE key=?",
                      "s", key);
    pthread_mutex_unlock(&s->lock);
    return r;
}
