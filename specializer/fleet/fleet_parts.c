/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_parts.c - see fleet_parts.h.
 *
 * The list below is what statements of this program rest on, no more: bounds of texts (CHECK) are
 * not in it, since whoever reads a row holds it to bounds. tests/e2e/test_fleet_schema.py drops
 * each part of a new database in turn, so what a migration makes and the list lacks is found.
 *
 * What is missing is made by the statements of the migrations. That is right for tables, because a
 * server's own store is its record: it sends all that it knows to a table that is new.
 */
#include "specializer/fleet/fleet_parts.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/sources.h"
#include "specializer/fleet/fleet_schema.h"

extern const struct kernel_source fleet_schemas[];

#define ASK_S 10.0
#define MAKE_S 300.0 /* an index of many rows */

/* A column that statements leave to its default has a "+"; one that the sequence numbers a "#"; one
 * that a later version added a "@" with that version. */
static const struct table {
    int version;
    const char *name, *columns, *unique;
    struct {
        const char *name, *columns;
    } index[2];
} tables[] = {
    {1,
     "whet_server",
     "server env name version device started+ seen+ stopped+ heard@3",
     "server",
     {{0}}},
    {1,
     "whet_kernel",
     "env key server seq# slot template source knobs state own_s speed reason evidence changed+",
     "env,key,server",
     {{"whet_kernel_seq", "env,seq"}, {"whet_kernel_changed", "changed"}}},
    {1, "whet_retraction", "env key seq# slot server name reason at+", "env,key", {{0}}},
    {1, "whet_verdict", "env key server name upheld words at+", "env,key,server", {{0}}},
    {1, "whet_lease", "env slot server+ since+ until+", "env,slot", {{0}}},
    {2,
     "whet_text",
     "env slot source server seq# body at+",
     "env,slot,source",
     {{"whet_text_seq", "env,seq"}}},
};
enum { TABLES = sizeof tables / sizeof *tables, PARTS_MOST = 128 };

enum kind { SCHEMA, SEQUENCE, TABLE, COLUMN, DEFAULT, NUMBERED, UNIQUE, INDEX };
static const char *const words[] = {"table",   "sequence",  "table",      "column",
                                    "default", "numbering", "uniqueness", "index"};

struct part {
    enum kind kind;
    int version;
    const char *table, *name; /* of an index; else of the relation */
    char columns[48];
};
struct parts {
    struct part part[PARTS_MOST];
    int n;
};

/* ---- the list -------------------------------------------------------------------------------- */

static struct part *add(struct parts *p, enum kind kind, int version, const char *table,
                        const char *name)
{
    struct part *one = &p->part[p->n < PARTS_MOST ? p->n++ : PARTS_MOST - 1];
    *one = (struct part){.kind = kind, .version = version, .table = table, .name = name};
    return one;
}

static void add_columns(struct parts *p, const struct table *t, int version)
{
    for (const char *at = t->columns; *at; at += strcspn(at, " "), at += *at == ' ') {
        int n = (int)strcspn(at, " +#@");
        char mark = at[n];
        int since = mark == '@' ? atoi(at + n + 1) : t->version;
        if (since > version)
            continue;
        struct part *one = add(p, COLUMN, since, t->name, t->name);
        snprintf(one->columns, sizeof one->columns, "%.*s", n, at);
        if (mark != '+' && mark != '#')
            continue;
        one = add(p, mark == '#' ? NUMBERED : DEFAULT, t->version, t->name, t->name);
        snprintf(one->columns, sizeof one->columns, "%.*s", n, at);
    }
}

/* All parts of version 1 to `version`, in the order in which they can be made. */
static void list(struct parts *p, int version)
{
    p->n = 0;
    add(p, SCHEMA, 1, "whet_schema", "whet_schema");
    add(p, SEQUENCE, 1, "whet_seq", "whet_seq");
    for (int i = 0; i < TABLES; i++) {
        const struct table *t = &tables[i];
        if (t->version > version)
            continue;
        add(p, TABLE, t->version, t->name, t->name);
        add_columns(p, t, version);
        struct part *one = add(p, UNIQUE, t->version, t->name, t->name);
        snprintf(one->columns, sizeof one->columns, "%s", t->unique);
        for (int k = 0; k < 2 && t->index[k].name; k++) {
            one = add(p, INDEX, t->version, t->name, t->index[k].name);
            snprintf(one->columns, sizeof one->columns, "%s", t->index[k].columns);
        }
    }
}

static char *list_json(const struct parts *p)
{
    cJSON *all = cJSON_CreateArray();
    for (int i = 0; i < p->n; i++) {
        cJSON *one = cJSON_CreateObject();
        cJSON_AddNumberToObject(one, "i", i);
        cJSON_AddNumberToObject(one, "kind", p->part[i].kind);
        cJSON_AddStringToObject(one, "tab", p->part[i].table);
        cJSON_AddStringToObject(one, "cols", p->part[i].columns);
        cJSON_AddItemToArray(all, one);
    }
    char *text = cJSON_PrintUnformatted(all);
    cJSON_Delete(all);
    return text;
}

/* ---- what is there --------------------------------------------------------------------------- */

/* By the catalog, whatever indexes are called: a DBA may have made them anew under other names. An
 * index that is not valid, not for all rows or checked late keeps nothing unique. The numbers are
 * of enum kind. Nothing here waits for the lock of a table, as pg_get_expr would. */
static const char missing_sql[] =
    "WITH p AS (SELECT p.*, c.oid AS rel FROM jsonb_to_recordset($1::jsonb) AS"
    " p(i int, kind int, tab text, cols text) LEFT JOIN pg_class c ON c.oid = to_regclass(p.tab)),"
    " x AS (SELECT x.indrelid, x.indisunique AND x.indimmediate AS holds,"
    " array_agg(a.attname::text ORDER BY k.n) AS cols"
    " FROM pg_index x, unnest(x.indkey::int2[]) WITH ORDINALITY k(num, n), pg_attribute a"
    " WHERE x.indrelid IN (SELECT rel FROM p) AND x.indisvalid AND x.indpred IS NULL"
    " AND x.indexprs IS NULL AND k.n <= x.indnkeyatts AND a.attrelid = x.indrelid"
    " AND a.attnum = k.num GROUP BY x.indexrelid, x.indrelid, holds)"
    " SELECT p.i FROM p WHERE CASE WHEN p.kind <= 2 THEN p.rel IS NULL WHEN p.rel IS NULL THEN"
    " false WHEN p.kind <= 5 THEN NOT EXISTS (SELECT FROM pg_attribute a LEFT JOIN pg_attrdef d"
    " ON d.adrelid = a.attrelid AND d.adnum = a.attnum WHERE a.attrelid = p.rel AND"
    " a.attname = p.cols AND NOT a.attisdropped AND CASE p.kind WHEN 3 THEN true WHEN 4 THEN"
    " a.atthasdef ELSE EXISTS (SELECT FROM pg_depend e WHERE"
    " e.classid = 'pg_attrdef'::regclass AND e.objid = d.oid AND"
    " e.refobjid = to_regclass('whet_seq')) END)"
    " WHEN p.kind = 6 THEN NOT EXISTS (SELECT FROM x WHERE x.indrelid = p.rel AND x.holds AND"
    " x.cols @> string_to_array(p.cols, ',') AND x.cols <@ string_to_array(p.cols, ','))"
    " ELSE NOT EXISTS (SELECT FROM x WHERE x.indrelid = p.rel AND"
    " x.cols[1:cardinality(string_to_array(p.cols, ','))] = string_to_array(p.cols, ','))"
    " END ORDER BY p.i";

/* Keeps those of `p` that are missing. */
static int keep_missing(struct fleet_db *db, struct parts *p, struct err *err)
{
    _Static_assert(SCHEMA == 0 && TABLE == 2 && COLUMN == 3 && DEFAULT == 4 && NUMBERED == 5 &&
                       UNIQUE == 6,
                   "the numbers above");
    struct fleet_rows rows;
    char *text = list_json(p);
    const char *v[] = {text};
    int r = fleet_db_run(db, ASK_S, missing_sql, v, 1, &rows, err);
    free(text);
    if (r != 0)
        return -1;
    int n = 0;
    for (int i = 0; i < rows.n; i++) {
        int at = atoi(fleet_value(&rows, i, 0));
        if (at >= n && at < p->n)
            p->part[n++] = p->part[at];
    }
    fleet_rows_free(&rows);
    p->n = n;
    return 0;
}

/* The version by whet_schema, 0: it says none; and *there, the newest of which a table is there. */
static int versions(struct fleet_db *db, int *said, int *there, struct err *err)
{
    struct parts p;
    int least;
    if (fleet_schema_version(db, said, &least, err) != 0)
        return -1;
    list(&p, FLEET_SCHEMA);
    if (keep_missing(db, &p, err) != 0)
        return -1;
    *there = 0;
    for (int i = 0; i < TABLES; i++) {
        bool gone = false;
        for (int k = 0; k < p.n && !gone; k++)
            gone = p.part[k].kind == TABLE && strcmp(p.part[k].table, tables[i].name) == 0;
        if (!gone && tables[i].version > *there)
            *there = tables[i].version;
    }
    return 0;
}

/* What is missing of the version that the tables are of. */
static int look(struct fleet_db *db, struct parts *p, struct fleet_missing *out, struct err *err)
{
    int there;
    *out = (struct fleet_missing){0};
    if (versions(db, &out->version, &there, err) != 0)
        return -1;
    int version = out->version > 0 ? out->version : there;
    out->empty = version == 0;
    p->n = 0;
    if (out->empty)
        return 0;
    list(p, version < FLEET_SCHEMA ? version : FLEET_SCHEMA);
    if (keep_missing(db, p, err) != 0)
        return -1;
    bool said = p->n > 0 && p->part[0].kind == SCHEMA;
    if (out->version == 0 && !said && p->n < PARTS_MOST) { /* it is there and has no row */
        memmove(p->part + 1, p->part, (size_t)p->n++ * sizeof *p->part);
        p->part[0] = (struct part){SCHEMA, 1, "whet_schema", "rows of whet_schema", ""};
    }
    return 0;
}

static void describe(const struct parts *p, struct fleet_missing *out)
{
    size_t at = 0;
    out->n = p->n;
    for (int i = 0; i < p->n; i++) {
        const struct part *one = &p->part[i];
        char text[120];
        snprintf(text, sizeof text, "%s%s %s%s%s%s", i ? ", " : "", words[one->kind],
                 one->kind == INDEX ? one->name : one->table, one->columns[0] ? " (" : "",
                 one->columns, one->columns[0] ? ")" : "");
        out->needed += one->kind != INDEX;
        if (at + strlen(text) + 16 < sizeof out->text)
            at += (size_t)snprintf(out->text + at, sizeof out->text - at, "%s", text);
        else if (out->text[at - 1] != '.')
            at += (size_t)snprintf(out->text + at, sizeof out->text - at, ", ...");
    }
}

int fleet_parts_missing(struct fleet_db *db, struct fleet_missing *out, struct err *err)
{
    struct parts p;
    if (look(db, &p, out, err) != 0)
        return -1;
    describe(&p, out);
    return 0;
}

/* ---- making it ------------------------------------------------------------------------------- */

/* The statement of a migration that begins with `head`, to its semicolon. Caller frees. */
static char *statement(int version, const char *head)
{
    const char *from = strstr(fleet_schemas[version - 1].text, head);
    const char *to = from ? strchr(from, ';') : NULL;
    return to ? xasprintf("%.*s;", (int)(to - from), from) : NULL;
}

/* What follows DEFAULT in the line of a column. Caller frees. */
static char *default_sql(const struct part *p)
{
    char head[64], line[64];
    snprintf(head, sizeof head, "CREATE TABLE %s (", p->table);
    snprintf(line, sizeof line, "\n    %s ", p->columns);
    char *table = statement(p->version, head);
    const char *at = table ? strstr(table, line) : NULL, *from = at ? strstr(at, "DEFAULT ") : NULL;
    size_t n = from ? strcspn(from, "\n") : 0;
    char *sql = NULL;
    if (n > 0 && at + 1 + strcspn(at + 1, "\n") > from) {
        const char *check = strstr(from, " CHECK");
        n = check && check < from + n ? (size_t)(check - from) : n - (from[n - 1] == ',');
        sql = xasprintf("ALTER TABLE %s ALTER %s SET %.*s", p->table, p->columns, (int)n, from);
    }
    free(table);
    return sql;
}

/* The statement that makes a part; NULL: there is none that is safe. Caller frees. */
static char *making(const struct part *p, int version)
{
    char head[120];
    switch (p->kind) {
    case SCHEMA:
        return fleet_schema_rows(version);
    case SEQUENCE:
        return statement(p->version, "CREATE SEQUENCE whet_seq");
    case TABLE:
        snprintf(head, sizeof head, "CREATE TABLE %s (", p->table);
        return statement(p->version, head);
    case INDEX:
        snprintf(head, sizeof head, "CREATE INDEX %s ON", p->name);
        return statement(p->version, head);
    case UNIQUE:
        return xasprintf("ALTER TABLE %s ADD PRIMARY KEY (%s)", p->table, p->columns);
    case DEFAULT:
    case NUMBERED:
        return default_sql(p);
    case COLUMN: /* of those that a later version added */
        snprintf(head, sizeof head, "ALTER TABLE %s ADD COLUMN IF NOT EXISTS %s", p->table,
                 p->columns);
        return statement(p->version, head);
    }
    return NULL;
}

static int make(struct fleet_db *db, const struct part *p, int version, struct err *err)
{
    char *sql = making(p, version);
    if (!sql)
        return err_set(err,
                       "%s %s (%s) cannot be made again: drop the table, then repair: servers tell "
                       "what they know anew",
                       words[p->kind], p->table, p->columns);
    int r = fleet_db_run(db, MAKE_S, sql, NULL, 0, NULL, err);
    free(sql);
    return r == 0 ? 0 : err_prefix(err, "%s %s", words[p->kind], p->name);
}

/* One part after the other: a table brings its columns, and some indexes come with it. */
static int make_all(struct fleet_db *db, struct fleet_missing *said, struct err *err)
{
    struct parts p, first;
    struct fleet_missing now;
    if (look(db, &first, said, err) != 0)
        return -1;
    describe(&first, said);
    int least, r = look(db, &p, &now, err);
    for (int turn = 0; r == 0 && p.n > 0; turn++) {
        int version = 0;
        if (turn == PARTS_MOST)
            return err_set(err, "still missing: %s %s", words[p.part[0].kind], p.part[0].name);
        if (p.part[0].kind == SCHEMA)
            r = versions(db, &least, &version, err);
        if (r == 0)
            r = make(db, &p.part[0], version, err);
        if (r == 0)
            r = look(db, &p, &now, err);
    }
    return r;
}

int fleet_parts_repair(struct fleet_db *db, struct fleet_missing *said, struct err *err)
{
    *said = (struct fleet_missing){0};
    int r = fleet_schema_begin(db, err);
    /* An index of a large table may take longer than statements of servers. */
    if (r == 0)
        r = fleet_db_run(db, ASK_S, "SET LOCAL statement_timeout = '300s'", NULL, 0, NULL, err);
    if (r == 0)
        r = make_all(db, said, err);
    return fleet_schema_end(db, r, err);
}
