/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_schema.c - see fleet_schema.h. */
#include "specializer/fleet/fleet_schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/sources.h"
#include "specializer/fleet/fleet_parts.h"

extern const struct kernel_source fleet_schemas[]; /* schema/NNN.sql, in order */
extern const int fleet_schema_count;

#define MIGRATE_S 30.0
#define ASK_S 10.0

/* Who may still write after each migration. */
static const int least_of[FLEET_SCHEMA] = {1, 1, 1};

static const char version_table[] =
    "CREATE TABLE IF NOT EXISTS whet_schema (version int PRIMARY KEY, least int NOT NULL,"
    " at timestamptz NOT NULL DEFAULT now());";

/* One migration with its row. */
static char *migration(int version)
{
    return xasprintf("%s %s INSERT INTO whet_schema(version, least) VALUES (%d, %d);",
                     version == 1 ? version_table : "", fleet_schemas[version - 1].text, version,
                     least_of[version - 1]);
}

char *fleet_schema_rows(int version)
{
    char *sql = xstrdup(version_table);
    for (int v = 1; v <= version && v <= FLEET_SCHEMA; v++) {
        char *more = xasprintf("%s INSERT INTO whet_schema(version, least) VALUES (%d, %d);", sql,
                               v, least_of[v - 1]);
        free(sql);
        sql = more;
    }
    return sql;
}

int fleet_schema_version(struct fleet_db *db, int *version, int *least, struct err *err)
{
    struct fleet_rows rows;
    *version = *least = 0;
    /* By the catalog itself: what a session knows of names may be older than the lock that its
     * transaction has waited for, and reading a table brings it up to date. */
    if (fleet_db_run(db, ASK_S,
                     "SELECT EXISTS (SELECT FROM pg_class WHERE oid = to_regclass('whet_schema'))",
                     NULL, 0, &rows, err) != 0)
        return -1;
    bool there = strcmp(fleet_value(&rows, 0, 0), "t") == 0;
    fleet_rows_free(&rows);
    if (!there)
        return 0;
    if (fleet_db_run(db, ASK_S,
                     "SELECT version, least FROM whet_schema ORDER BY version DESC LIMIT 1", NULL,
                     0, &rows, err) != 0)
        return -1;
    *version = atoi(fleet_value(&rows, 0, 0));
    *least = atoi(fleet_value(&rows, 0, 1));
    fleet_rows_free(&rows);
    return 0;
}

static int migrate(struct fleet_db *db, int from, struct err *err)
{
    for (int v = from + 1; v <= FLEET_SCHEMA; v++) {
        char *sql = migration(v);
        int r = fleet_db_run(db, MIGRATE_S, sql, NULL, 0, NULL, err);
        free(sql);
        if (r != 0) {
            bool forbidden = strcmp(fleet_db_state(db), "42501") == 0 ||
                             strcmp(fleet_db_state(db), "25006") == 0;
            return err_prefix(err,
                              forbidden ? "tables of version %d are missing and this role may not "
                                          "create them (whet fleet migrate, as their owner)"
                                        : "migration to version %d",
                              v);
        }
    }
    return 0;
}

int fleet_schema_begin(struct fleet_db *db, struct err *err)
{
    static const char lock[] = "SELECT pg_advisory_xact_lock(2003330420)";
    int r = fleet_db_run(db, ASK_S, "BEGIN", NULL, 0, NULL, err);
    if (r == 0 && fleet_db_run(db, MIGRATE_S, lock, NULL, 0, NULL, err) != 0)
        r = fleet_schema_end(db, -1, err);
    return r;
}

int fleet_schema_end(struct fleet_db *db, int ok, struct err *err)
{
    if (ok == 0)
        ok = fleet_db_run(db, MIGRATE_S, "COMMIT", NULL, 0, NULL, err);
    if (ok != 0 && fleet_db_alive(db))
        fleet_db_run(db, ASK_S, "ROLLBACK", NULL, 0, NULL, NULL);
    return ok;
}

/* Tables without a version are not migrated: what is there would be in the way. */
static int none_there(struct fleet_db *db, struct err *err)
{
    struct fleet_missing there;
    if (fleet_parts_missing(db, &there, err) != 0)
        return -1;
    return there.empty ? 0
                       : err_set(err,
                                 "the tables are not whole, missing: %s (whet fleet repair, as "
                                 "their owner)",
                                 there.text);
}

/* All that is missing in one transaction, whose lock ends with it. Holding the lock it looks again:
 * another server may have done it meanwhile. */
static int migrate_alone(struct fleet_db *db, int *version, int *least, struct err *err)
{
    int r = fleet_schema_begin(db, err);
    if (r != 0)
        return -1;
    r = fleet_schema_version(db, version, least, err);
    if (r == 0 && *version == 0)
        r = none_there(db, err);
    if (r == 0)
        r = migrate(db, *version, err);
    if (r == 0)
        r = fleet_schema_version(db, version, least, err);
    return fleet_schema_end(db, r, err);
}

int fleet_schema_ready(struct fleet_db *db, int *version, struct err *err)
{
    int least;
    _Static_assert(sizeof least_of / sizeof *least_of == FLEET_SCHEMA, "a row for each migration");
    if (fleet_schema_count != FLEET_SCHEMA)
        return err_set(err, "this program carries %d migrations of %d", fleet_schema_count,
                       (int)FLEET_SCHEMA);
    if (fleet_schema_version(db, version, &least, err) != 0)
        return -1;
    if (*version < FLEET_SCHEMA && migrate_alone(db, version, &least, err) != 0)
        return -1;
    if (*version < FLEET_SCHEMA)
        return err_set(err, "the tables stay at version %d", *version);
    if (least > FLEET_SCHEMA)
        return err_set(err,
                       "the database is of schema version %d, which programs from version %d on "
                       "may use; this one knows %d: use a newer whet",
                       *version, least, (int)FLEET_SCHEMA);
    return 0;
}
