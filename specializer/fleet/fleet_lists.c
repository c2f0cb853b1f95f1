/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_lists.c - what operators see of a fleet: the newest of each list, as JSON (fleet_sql.h). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "specializer/fleet/fleet_sql.h"

/* Whoever writes may write a time or a speed that is infinite or not a number. */
static double bounded(double v)
{
    return isnan(v) ? 0 : v > 1e9 ? 1e9 : v < -1e9 ? -1e9 : v;
}

/* The first letter of a column's name says whether it is a number or a truth value instead of a
 * text. */
static void add_value(cJSON *o, const char *name, const char *text)
{
    char plain[FLEET_WORD];
    if (name[0] == '#') {
        cJSON_AddNumberToObject(o, name + 1, bounded(strtod(text, NULL)));
    } else if (name[0] == '?') {
        cJSON_AddBoolToObject(o, name + 1, strcmp(text, "t") == 0);
    } else {
        fleet_plain(text, plain);
        cJSON_AddStringToObject(o, name, plain);
    }
}

/* Ages are a difference of numbers: of times, one may be infinite, from which no other can be
 * taken. */
enum { VIEW_COLUMNS = 12 };
static const struct view {
    const char *name, *sql; /* its first column says how many rows there are, beyond its LIMIT */
    const char *column[VIEW_COLUMNS]; /* the others; "#": a number, "?": true or false */
} views[] = {
    {"servers",
     "SELECT count(*) OVER (), server, env, name, version, device,"
     " (extract(epoch FROM now()) - extract(epoch FROM started))::float8,"
     " (extract(epoch FROM now()) - extract(epoch FROM seen))::float8, stopped"
     " FROM whet_server WHERE $1 IN ('', env) ORDER BY seen DESC LIMIT 200",
     {"server", "env", "name", "version", "device", "#started_s", "#seen_s", "?stopped"}},
    {"leases",
     "SELECT count(*) OVER (), l.env, l.slot, l.server, coalesce(s.name, ''),"
     " (extract(epoch FROM now()) - extract(epoch FROM l.since))::float8,"
     " (extract(epoch FROM l.until) - extract(epoch FROM now()))::float8"
     " FROM whet_lease l LEFT JOIN whet_server s USING (server)"
     " WHERE $1 IN ('', l.env) AND l.server <> '' AND l.until > '-infinity'"
     " ORDER BY l.since DESC, l.env, l.slot LIMIT 200",
     {"env", "slot", "server", "name", "#held_s", "#left_s"}},
    {"winners",
     "SELECT count(*) OVER (), k.env, k.slot, k.key, k.template || ' ' || k.knobs, k.speed, k.n,"
     " coalesce(s.name, ''), (extract(epoch FROM now()) - extract(epoch FROM k.changed))::float8,"
     " k.n_all"
     " FROM (SELECT *, count(*) OVER (PARTITION BY env, slot, key) AS n,"
     " count(*) OVER (PARTITION BY env, slot) AS n_all,"
     " row_number() OVER (PARTITION BY env, slot ORDER BY speed DESC, seq) AS rank"
     " FROM whet_kernel"
     " WHERE $1 IN ('', env) AND state = 'active' AND " FLEET_SPEED_IS_ONE ") k"
     " LEFT JOIN whet_server s USING (server)"
     " WHERE k.rank = 1 ORDER BY k.changed DESC, k.env, k.slot LIMIT 200",
     {"env", "slot", "key", "kernel", "#speed", "#servers", "name", "#changed_s", "#of"}},
    {"retractions",
     "WITH " FLEET_THERE
     " SELECT count(*) OVER (), r.env, r.key, r.slot, r.server, r.name, r.reason,"
     " (extract(epoch FROM now()) - extract(epoch FROM r.at))::float8,"
     " count(v.server) FILTER (WHERE v.upheld), count(v.server) FILTER (WHERE NOT v.upheld),"
     " (SELECT count(*) FROM there t WHERE t.env = r.env AND (t.server = r.server OR t.heard >= "
     "r.seq)),"
     " (SELECT count(*) FROM there t WHERE t.env = r.env)"
     " FROM whet_retraction r LEFT JOIN whet_verdict v USING (env, key)"
     " WHERE $1 IN ('', r.env) GROUP BY r.env, r.key, r.slot, r.server, r.name, r.reason,"
     " r.at, r.seq ORDER BY r.seq DESC LIMIT 200",
     {"env", "key", "slot", "server", "name", "reason", "#at_s", "#refuted_by", "#confirmed_by",
      "#heard_by", "#heard_of"}},
};

cJSON *fleet_view(struct fleet_db *db, const char *env, struct err *err)
{
    const char *v[] = {env ? env : ""};
    cJSON *o = cJSON_CreateObject(), *totals = cJSON_AddObjectToObject(o, "totals");
    for (size_t i = 0; i < sizeof views / sizeof *views; i++) {
        struct fleet_rows rows;
        if (fleet_db_run(db, FLEET_STATEMENT_S, views[i].sql, v, 1, &rows, err) != 0) {
            cJSON_Delete(o);
            return NULL;
        }
        cJSON *all = cJSON_AddArrayToObject(o, views[i].name);
        cJSON_AddNumberToObject(totals, views[i].name, strtod(fleet_value(&rows, 0, 0), NULL));
        for (int k = 0; k < rows.n && k < 200; k++) {
            cJSON *row = cJSON_CreateObject();
            for (int c = 0; c < VIEW_COLUMNS && views[i].column[c]; c++)
                add_value(row, views[i].column[c], fleet_value(&rows, k, c + 1));
            cJSON_AddItemToArray(all, row);
        }
        fleet_rows_free(&rows);
    }
    return o;
}
