/* SPDX-License-Identifier: Apache-2.0 */
/* import.c - an export of another store, row by row into this one.
 *
 * An export carries evidence so that people can read it, but an import believes none of it: what
 * was fast and right elsewhere is only a good place to begin here. Nor does it believe that the
 * file is what it says. Slot, template and knobs must be ones that this program has; keys and
 * hashes are made anew, so no name of the file becomes a name here; and what one file may leave in
 * the store is bounded, of each slot and in all, however often it is sent.
 *
 * The work is a constant for each row: what is there is counted once a batch, and whether a row is
 * there is asked by index. A batch is one transaction, between two of them others get their turn.
 * What is refused is said in the trace a few times and then counted, or a long file would push all
 * else out of it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/json_strict.h"
#include "engine/plan.h"
#include "specializer/agent/agent_source.h"
#include "specializer/agent/agent_store.h"
#include "specializer/candidate/hash.h"
#include "specializer/candidate/life.h"
#include "specializer/store/store_json.h"
#include "specializer/store/store_sql.h"
#include "specializer/transfer/export_text.h"
#include "specializer/transfer/transfer.h"

enum { BATCH = 1024, VALUES_MOST = 1 << 22, DEPTH_MOST = 16, SAID_MOST = 16 };

/* What imports have left of one slot, or in all. */
struct left {
    int64_t kernels, texts, bytes;
};

static const struct left most_of_slot = {64, 32, 1 << 20};
static const struct left most_in_all = {IMPORT_KERNELS_MOST, IMPORT_TEXTS_MOST, IMPORT_TEXT_BYTES};

struct import {
    struct store *s;
    const char *who;
    struct dispatch *slots; /* whose names there are */
    struct left *left;      /* [slots], then in all */
    int said;               /* refusals in the trace */
    int refused, full;      /* rows that broke a rule; that found no room */
};

/* ---- what is there -------------------------------------------------------------------------- */

static struct left *in_all(const struct import *m)
{
    return &m->left[dispatch_slots(m->slots)];
}

/* Index of a slot's name, which all format classes of it have, -1: there is no such slot. */
static int slot_index(const struct import *m, const char *name)
{
    const struct slot *s = dispatch_find_plain(m->slots, name);
    return s ? (int)(s - dispatch_slot_at(m->slots, 0)) : -1;
}

static void add_left(struct import *m, int slot, struct left more)
{
    struct left *to[] = {in_all(m), slot >= 0 ? &m->left[slot] : NULL};
    for (int i = 0; i < 2 && to[i]; i++) {
        to[i]->kernels += more.kernels;
        to[i]->texts += more.texts;
        to[i]->bytes += more.bytes;
    }
}

static int count_left(struct import *m, struct err *err)
{
    memset(m->left, 0, ((size_t)dispatch_slots(m->slots) + 1) * sizeof *m->left);
    sqlite3_stmt *q = store_query(m->s, err,
                                  "SELECT slot, count(*), 0, 0 FROM candidate WHERE env=?1 GROUP BY"
                                  " slot UNION ALL SELECT slot, 0, count(*), sum(length(text)) FROM"
                                  " agent_node WHERE env LIKE ?2 GROUP BY slot",
                                  "ss", ENV_IMPORTED, ENV_IMPORTED "/%");
    int code = SQLITE_DONE;
    while (q && (code = sqlite3_step(q)) == SQLITE_ROW) {
        char name[64];
        store_text(q, 0, name, sizeof name);
        add_left(m, slot_index(m, name),
                 (struct left){sqlite3_column_int64(q, 1), sqlite3_column_int64(q, 2),
                               sqlite3_column_int64(q, 3)});
    }
    return q ? store_done(m->s, q, code, err) : -1;
}

/* Is there room for this much more of the slot? */
static bool has_room(const struct import *m, int slot, struct left more)
{
    const struct left *have[] = {&m->left[slot], in_all(m)};
    const struct left *most[] = {&most_of_slot, &most_in_all};
    for (int i = 0; i < 2; i++)
        if (have[i]->kernels + more.kernels > most[i]->kernels ||
            have[i]->texts + more.texts > most[i]->texts ||
            have[i]->bytes + more.bytes > most[i]->bytes)
            return false;
    return true;
}

/* 1, 0, or -1 with a message. */
static int is_there(struct store *s, const char *sql, const char *a, const char *b, const char *c,
                    struct err *err)
{
    sqlite3_stmt *q = store_query(s, err, sql, "sss", a, b, c);
    if (!q)
        return -1;
    int code = sqlite3_step(q);
    return store_done(s, q, code, err) == 0 ? code == SQLITE_ROW : -1;
}

static void say_refused(struct import *m, const char *slot, const char *what, const char *why)
{
    m->refused++;
    char text[400];
    snprintf(text, sizeof text, "a text for %s: %s", what, why);
    if (m->said++ < SAID_MOST)
        store_trace_locked(m->s, slot, NULL, "not_imported", m->who, text);
}

/* ---- rows: 1 taken or there already, 0 not of use here, -1 error ----------------------------- */

static int import_kernel(struct import *m, const cJSON *row, int slot, struct err *err)
{
    const char *name = row_text(row, "slot");
    const struct slot *of = dispatch_slot_at(m->slots, slot);
    const struct template *t = template_find(row_text(row, "template"));
    struct point point;
    struct record r = {.origin = ORIGIN_RESTORED, .state = LIFE_PROPOSED};
    if (!t || !template_fits(t, t->machine, of->region, of->m) ||
        point_parse(t, row_text(row, "knobs"), &point, NULL) != 0)
        return 0;
    point_text(t, &point, r.knobs, sizeof r.knobs);
    hash_hex(hash_text(hash_text(hash_text(HASH_START, name), t->id), r.knobs), r.key);
    int known =
        is_there(m->s, "SELECT 1 FROM candidate WHERE key=?1 AND env=?2 AND slot=?3 LIMIT 1", r.key,
                 ENV_IMPORTED, name, err);
    if (known != 0)
        return known;
    if (!has_room(m, slot, (struct left){.kernels = 1})) {
        m->full++;
        return 0;
    }
    snprintf(r.env, sizeof r.env, "%s", ENV_IMPORTED);
    snprintf(r.slot, sizeof r.slot, "%s", name);
    snprintf(r.template, sizeof r.template, "%s", t->id);
    snprintf(r.name, sizeof r.name, "%s (imported)", t->id);
    if (store_move_row(m->s, &r, LIFE_PROPOSED, "imported", m->who, err) != 0)
        return -1;
    add_left(m, slot, (struct left){.kernels = 1});
    return 1;
}

static int keep_text(struct import *m, const struct template *t, int slot, const char *name,
                     struct agent_node *n, struct err *err)
{
    const char *env = imported_texts(t->machine);
    struct left more = {.texts = 1, .bytes = (int64_t)strlen(n->text)};
    int known =
        is_there(m->s, "SELECT 1 FROM agent_node WHERE source=?1 AND env=?2 AND slot=?3 LIMIT 1",
                 n->source, env, name, err);
    if (known != 0)
        return known;
    if (!has_room(m, slot, more)) {
        m->full++;
        return 0;
    }
    if (agent_store_append_locked(m->s, env, name, n, err) != 0)
        return -1;
    add_left(m, slot, more);
    char text[80];
    snprintf(text, sizeof text, "a text for %s", t->id);
    store_trace_locked(m->s, name, NULL, "imported", m->who, text);
    return 1;
}

static int import_text(struct import *m, const cJSON *row, int slot, struct err *err)
{
    const char *name = row_text(row, "slot");
    const struct slot *of = dispatch_slot_at(m->slots, slot);
    const struct template *t = agent_template_find(row_text(row, "template"));
    const cJSON *agent = cJSON_GetObjectItemCaseSensitive(row, "agent");
    struct agent_node n;
    struct err why = {""};
    if (!t || !row_text(agent, "text")[0])
        return 0;
    if (t->region != of->region) {
        say_refused(m, name, t->id, "it is of another region than the slot");
        return 0;
    }
    if (import_node(t, agent, &n, &why) != 0) {
        say_refused(m, name, t->id, why.msg);
        return 0;
    }
    int r = keep_text(m, t, slot, name, &n, err);
    tree_node_free(&n);
    return r;
}

static int import_row(struct import *m, const cJSON *row, struct err *err)
{
    int state = life_parse(row_text(row, "state")), slot = slot_index(m, row_text(row, "slot"));
    if (state < 0 || !life_admitted((enum life)state) || slot < 0)
        return 0;
    int r = import_kernel(m, row, slot, err);
    return r != 0 ? r : import_text(m, row, slot, err);
}

/* ---- the whole ------------------------------------------------------------------------------ */

/* Rows from *row on, as one transaction; *row is where the next batch begins. How many, or -1. */
static int import_batch(struct import *m, const cJSON **row, struct err *err)
{
    int taken = 0, r = 0;
    pthread_mutex_lock(&m->s->lock);
    if (store_begin(m->s, err) != 0) {
        pthread_mutex_unlock(&m->s->lock);
        return -1;
    }
    r = count_left(m, err);
    for (int i = 0; i < BATCH && *row && r >= 0; i++, *row = (*row)->next) {
        r = import_row(m, *row, err);
        taken += r > 0;
    }
    r = store_end(m->s, r < 0 ? -1 : 0, err);
    pthread_mutex_unlock(&m->s->lock);
    return r == 0 ? taken : -1;
}

static int import_rows(struct store *s, const cJSON *rows, const char *who, struct err *err)
{
    struct import m = {.s = s, .who = who, .slots = dispatch_open_names()};
    m.left = xcalloc((size_t)dispatch_slots(m.slots) + 1, sizeof *m.left);
    int taken = 0, r = 0;
    for (const cJSON *row = rows->child; row && r >= 0; taken += r)
        r = import_batch(&m, &row, err);
    if (m.refused > SAID_MOST || m.full > 0)
        store_trace(s, NULL, NULL, "not_imported", who,
                    "%d texts that break a rule; no room for %d rows more", m.refused, m.full);
    dispatch_close(m.slots);
    free(m.left);
    return r < 0 ? -1 : taken;
}

/* Before it is parsed: every value takes 64 bytes of memory, of a few that it takes in the file. */
static int check_size(const char *body, size_t n, struct err *err)
{
    int64_t values = 0, depth = 0;
    bool quoted = false;
    if (n > IMPORT_BYTES_MOST)
        return err_set(err, "import: more than %d bytes", (int)IMPORT_BYTES_MOST);
    for (size_t i = 0; i < n; i++) {
        char c = body[i];
        if (c == '\\' && quoted)
            i++;
        else if (c == '"')
            quoted = !quoted;
        else if (!quoted && (c == ',' || c == '[' || c == '{'))
            values++;
        if (!quoted && (c == '[' || c == '{'))
            depth++;
        if (!quoted && (c == ']' || c == '}'))
            depth--;
        if (depth > DEPTH_MOST)
            return err_set(err, "import: nested more than %d deep", (int)DEPTH_MOST);
    }
    if (values > VALUES_MOST)
        return err_set(err, "import: more than %d values", (int)VALUES_MOST);
    return 0;
}

int store_import(struct store *s, const char *body, size_t n, const char *who, struct err *err)
{
    if (check_size(body, n, err) != 0)
        return -1;
    const char *bad = json_bad_place(body, n);
    if (bad)
        return err_set(err, "import: not JSON: malformed escape or number, or U+0000, at byte %zu",
                       (size_t)(bad - body));
    cJSON *o = cJSON_ParseWithLength(body, n);
    const cJSON *version = cJSON_GetObjectItemCaseSensitive(o, "whet_store");
    const cJSON *rows = cJSON_GetObjectItemCaseSensitive(o, "kernels");
    int taken;
    if (!o)
        taken = err_set(err, "import: not JSON");
    else if (!cJSON_IsNumber(version) || !cJSON_IsArray(rows))
        taken = err_set(err, "import: not an export of a whet store (whet_store, kernels)");
    else if (version->valuedouble != EXPORT_VERSION)
        taken = err_set(err, "import: whet_store is %.17g, this program reads %d",
                        version->valuedouble, (int)EXPORT_VERSION);
    else
        taken = import_rows(s, rows, who, err);
    cJSON_Delete(o);
    return taken;
}
