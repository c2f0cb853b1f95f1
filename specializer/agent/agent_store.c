/* SPDX-License-Identifier: Apache-2.0 */
/* agent_store.c - the trees of texts that a language model wrote, so that a restart goes on where
 * it was and a kernel's text can be read for as long as its evidence is kept. */
#include "specializer/agent/agent_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "specializer/agent/agent_source.h"
#include "specializer/store/store_sql.h"

const char *imported_texts(enum machine_kind machine)
{
    return target_of(machine)->imported;
}

static const char columns[] = "id, parent, state, attempts, debugs, speed, label, plan, text,"
                              " source, prompts, reason, log";

static int put_locked(struct store *s, const char *env, const char *slot,
                      const struct agent_node *n, struct err *err)
{
    return store_run(s, err,
                     "INSERT OR REPLACE INTO agent_node(env, slot, id, parent, state, attempts,"
                     " debugs, speed, label, plan, text, source, prompts, reason, log)"
                     " VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                     "ssiisiidsssssss", env, slot, (int64_t)n->id, (int64_t)n->parent,
                     agent_state_name(n->state), (int64_t)n->attempts, (int64_t)n->debugs, n->speed,
                     n->label, n->plan, n->text, n->source, n->prompts, n->reason, n->log);
}

int agent_store_put(struct store *s, const char *env, const char *slot, const struct agent_node *n,
                    struct err *err)
{
    pthread_mutex_lock(&s->lock);
    int r = put_locked(s, env, slot, n, err);
    pthread_mutex_unlock(&s->lock);
    return r;
}

static char *text_of(sqlite3_stmt *q, int column)
{
    const char *text = (const char *)sqlite3_column_text(q, column);
    return text ? xstrdup(text) : NULL;
}

/* A count of what a model was asked; no more than a tree of them can be summed of. */
static int32_t count_of(sqlite3_stmt *q, int column)
{
    enum { MOST = 10000 };
    int64_t n = sqlite3_column_int64(q, column);
    return n < 0 ? 0 : n > MOST ? MOST : (int32_t)n;
}

/* A row in the order of `columns`. */
static void read_node(sqlite3_stmt *q, struct agent_node *n)
{
    char state[16];
    store_text(q, 2, state, sizeof state);
    int known = agent_state_parse(state);
    *n = (struct agent_node){.id = sqlite3_column_int(q, 0),
                             .parent = sqlite3_column_int(q, 1),
                             .state = known < 0 ? AGENT_FAILED : (enum agent_state)known,
                             .attempts = count_of(q, 3),
                             .debugs = count_of(q, 4),
                             .speed = sqlite3_column_double(q, 5),
                             .label = text_of(q, 6),
                             .plan = text_of(q, 7),
                             .text = text_of(q, 8),
                             .reason = text_of(q, 11),
                             .log = text_of(q, 12)};
    store_text(q, 9, n->source, sizeof n->source);
    store_text(q, 10, n->prompts, sizeof n->prompts);
}

int agent_store_tree(struct store *s, const char *env, const char *slot, struct agent_tree *out,
                     struct err *err)
{
    char sql[300];
    snprintf(sql, sizeof sql, "SELECT %s FROM agent_node WHERE env=? AND slot=? ORDER BY id",
             columns);
    pthread_mutex_lock(&s->lock);
    sqlite3_stmt *q = store_query(s, err, sql, "ss", env, slot);
    int r = -1, code;
    if (q) {
        while ((code = sqlite3_step(q)) == SQLITE_ROW) {
            struct agent_node n;
            read_node(q, &n);
            /* Ids count up from 0 and parents come first, or the row is not ours. */
            if (n.id == out->nodes && n.parent >= -1 && n.parent < n.id && n.text) {
                int32_t id = tree_add(out, n.parent);
                out->node[id] = n;
            } else {
                tree_node_free(&n);
            }
        }
        r = store_done(s, q, code, err);
    }
    pthread_mutex_unlock(&s->lock);
    return r;
}

int agent_store_find(struct store *s, const char *source, struct agent_node *out, struct err *err)
{
    char sql[300];
    snprintf(sql, sizeof sql, "SELECT %s FROM agent_node WHERE source=?", columns);
    pthread_mutex_lock(&s->lock);
    sqlite3_stmt *q = store_query(s, err, sql, "s", source);
    bool found = false;
    int r = -1, code;
    if (q) {
        /* An older store may have the hash in a row whose text was written anew since. */
        while (!found && (code = sqlite3_step(q)) == SQLITE_ROW) {
            read_node(q, out);
            found = out->text && agent_text_has_hash(out->text, out->source);
            if (!found)
                tree_node_free(out);
        }
        r = store_done(s, q, found ? SQLITE_ROW : code, err) == 0 ? found : -1;
    }
    pthread_mutex_unlock(&s->lock);
    return r;
}

int agent_store_append_locked(struct store *s, const char *env, const char *slot,
                              struct agent_node *n, struct err *err)
{
    sqlite3_stmt *q = store_query(s, err,
                                  "SELECT coalesce(max(id) + 1, 0) FROM agent_node WHERE env=? AND"
                                  " slot=?",
                                  "ss", env, slot);
    int r = -1;
    if (q) {
        int code = sqlite3_step(q);
        n->id = sqlite3_column_int(q, 0);
        r = store_done(s, q, code, err);
    }
    return r == 0 ? put_locked(s, env, slot, n, err) : -1;
}
