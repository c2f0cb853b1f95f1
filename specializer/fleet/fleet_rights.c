/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_rights.c - see fleet_rights.h.
 *
 * The list below is what statements of this program do. tests/e2e/test_fleet_rights.py takes each
 * right away in turn and holds the list to what a role can do that has what is listed alone.
 */
#include "specializer/fleet/fleet_rights.h"

#include <stdio.h>
#include <string.h>

#define ASK_S 10.0

/* A schema that a role may not use is passed over when names are looked up: the tables in it look
 * as if they were not there. A sequence gives its next number to who may use or update it. */
static const char missing_sql[] =
    "WITH need(kind, name, rights) AS (VALUES"
    " ('TABLE', 'whet_schema', 'SELECT'),"
    " ('TABLE', 'whet_server', 'SELECT,INSERT,UPDATE,DELETE'),"
    " ('TABLE', 'whet_kernel', 'SELECT,INSERT,UPDATE,DELETE'),"
    " ('TABLE', 'whet_retraction', 'SELECT,INSERT,UPDATE,DELETE'),"
    " ('TABLE', 'whet_verdict', 'SELECT,INSERT,UPDATE,DELETE'),"
    " ('TABLE', 'whet_lease', 'SELECT,INSERT,UPDATE,DELETE'),"
    " ('TABLE', 'whet_text', 'SELECT,INSERT,UPDATE,DELETE'),"
    " ('SEQUENCE', 'whet_seq', 'USAGE'),"
    " ('FUNCTION', 'pg_notify(text,text)', 'EXECUTE'),"
    " ('FUNCTION', 'pg_advisory_xact_lock(bigint)', 'EXECUTE')),"
    " one AS (SELECT need.*, n, r, CASE WHEN kind <> 'FUNCTION' THEN to_regclass(name) END AS rel"
    " FROM need, unnest(string_to_array(rights, ',')) WITH ORDINALITY u(r, n)),"
    " lack AS (SELECT kind, name, rel, string_agg(r, ', ' ORDER BY n) AS lacks FROM one WHERE CASE"
    " WHEN kind = 'FUNCTION' THEN NOT has_function_privilege(name, r) WHEN rel IS NULL THEN false"
    " WHEN kind = 'SEQUENCE' THEN NOT has_sequence_privilege(rel, 'USAGE, UPDATE')"
    " WHEN has_table_privilege(rel, r) THEN false WHEN r = 'DELETE' THEN true"
    " ELSE EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = rel AND a.attnum > 0 AND"
    " NOT a.attisdropped AND NOT has_column_privilege(rel, a.attnum, r)) END"
    " GROUP BY kind, name, rel)"
    " SELECT lacks || ' on ' || name, format('GRANT %s ON %s%s TO %I', lacks,"
    " CASE kind WHEN 'TABLE' THEN '' ELSE kind || ' ' END, coalesce((SELECT format('%I.%I', "
    "n.nspname,"
    " c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = rel),"
    " name), current_user) FROM lack"
    " UNION ALL SELECT 'USAGE on schema ' || n.nspname, format('GRANT USAGE ON SCHEMA %I TO %I',"
    " n.nspname, current_user) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE c.relname = 'whet_schema' AND c.relkind = 'r' AND to_regclass('whet_schema') IS NULL"
    " AND NOT has_schema_privilege(n.oid, 'USAGE') ORDER BY 1 LIMIT 24";

static int ask_role(struct fleet_db *db, struct fleet_rights *out, struct err *err)
{
    struct fleet_rows rows;
    char plain[FLEET_WORD];
    if (fleet_db_run(db, ASK_S, "SELECT current_user, current_setting('transaction_read_only')",
                     NULL, 0, &rows, err) != 0)
        return -1;
    fleet_plain(fleet_value(&rows, 0, 0), plain);
    snprintf(out->role, sizeof out->role, "%.99s", plain);
    out->read_only = strcmp(fleet_value(&rows, 0, 1), "on") == 0;
    fleet_rows_free(&rows);
    return 0;
}

int fleet_rights_missing(struct fleet_db *db, struct fleet_rights *out, struct err *err)
{
    _Static_assert(FLEET_RIGHTS_MOST == 24, "the LIMIT above");
    struct fleet_rows rows;
    size_t at = 0;
    *out = (struct fleet_rights){.n = 0};
    if (ask_role(db, out, err) != 0 ||
        fleet_db_run(db, ASK_S, missing_sql, NULL, 0, &rows, err) != 0)
        return -1;
    for (; out->n < rows.n && out->n < FLEET_RIGHTS_MOST; out->n++) {
        char *what = out->missing[out->n].what;
        fleet_plain(fleet_value(&rows, out->n, 0), what);
        fleet_plain(fleet_value(&rows, out->n, 1), out->missing[out->n].grant);
        if (at + strlen(what) + 8 < sizeof out->text)
            at += (size_t)snprintf(out->text + at, sizeof out->text - at, "%s%s", at ? "; " : "",
                                   what);
    }
    fleet_rows_free(&rows);
    return 0;
}
