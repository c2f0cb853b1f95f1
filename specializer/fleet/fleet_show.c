/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_show.c - see fleet_show.h.
 *
 * It answers what lists of the newest do not: why a server does not run a kernel that another one
 * found, who searches a slot and since when, who found a kernel wrong and whether everybody heard.
 */
#include "specializer/fleet/fleet_show.h"

#include <stdlib.h>
#include <string.h>

#include "specializer/fleet/fleet_row.h"
#include "specializer/fleet/fleet_sql.h"

/* Ages are a difference of numbers, as one of the times may be infinite. */
#define AGE(time) "(extract(epoch FROM now()) - extract(epoch FROM " time "))::float8"
#define RETRACTED_AGE AGE("r.at")
#define CHANGED_AGE AGE("k.changed")
#define STARTED_AGE AGE("s.started")
#define SEEN_AGE AGE("s.seen")
#define SINCE_AGE AGE("l.since")
#define UNTIL_AGE AGE("l.until")
#define UTC(time) "to_char(" time " AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS')"
#define RETRACTED_UTC UTC("r.at")
#define SINCE_UTC UTC("l.since")

/* Values of one row as printable text. */
enum { VALUES = 13 };
struct values {
    char text[VALUES][FLEET_WORD];
};

static struct values values_of(const struct fleet_rows *rows, int row)
{
    struct values v;
    for (int c = 0; c < VALUES; c++)
        fleet_plain(fleet_value(rows, row, c), v.text[c]);
    return v;
}

/* Prints what a statement finds; how many rows that were, or -1. */
static int print_rows(struct fleet_db *db, const char *sql, const char *const *value, int values,
                      void (*print)(FILE *out, const struct values *v), FILE *out, struct err *err)
{
    struct fleet_rows rows;
    if (fleet_db_run(db, FLEET_STATEMENT_S, sql, value, values, &rows, err) != 0)
        return -1;
    for (int i = 0; i < rows.n; i++) {
        struct values v = values_of(&rows, i);
        print(out, &v);
    }
    int n = rows.n;
    fleet_rows_free(&rows);
    return n;
}

static bool is_true(const char *text)
{
    return strcmp(text, "t") == 0;
}

/* "+12.3 %" of a speed over eager, or "not measured". */
static void print_speed(FILE *out, const char *speed)
{
    double v = strtod(speed, NULL);
    if (v > 0 && v <= 10000)
        fprintf(out, "%+.1f %% over eager", (v - 1) * 100);
    else
        fputs("not measured", out);
}

static void print_name(FILE *out, const char *name, const char *server)
{
    bool both = name[0] && server[0];
    fprintf(out, "%s%s%s%s", name, both ? " (" : "", server, both ? ")" : "");
}

/* ---- a kernel -------------------------------------------------------------------------------- */

/* Who found it wrong; columns as in show_retraction(). */
static void print_retraction(FILE *out, const struct values *v)
{
    fputs("  found wrong by ", out);
    print_name(out, v->text[0], v->text[1]);
    fprintf(out, " at %s UTC (%.0f s ago): %s\n  heard by %s of %s servers that are there\n",
            v->text[4], strtod(v->text[3], NULL), v->text[2], v->text[5], v->text[6]);
}

static int show_retraction(struct fleet_db *db, const char *env, const char *key, FILE *out,
                           struct err *err)
{
    static const char sql[] =
        "WITH " FLEET_THERE " SELECT r.name, r.server, r.reason, " RETRACTED_AGE ", " RETRACTED_UTC
        ","
        " (SELECT count(*) FROM there t WHERE t.env = $1 AND (t.server = r.server OR"
        " t.heard >= r.seq)), (SELECT count(*) FROM there t WHERE t.env = $1)"
        " FROM whet_retraction r WHERE r.env = $1 AND r.key = $2";
    const char *value[] = {env, key};
    return print_rows(db, sql, value, 2, print_retraction, out, err);
}

/* What one server has to do with the kernel; columns as in show_servers(). */
static void print_server(FILE *out, const struct values *v)
{
    const char *state = v->text[4], *other = v->text[8], *said = v->text[10];
    fputs("  ", out);
    print_name(out, v->text[0], v->text[1]);
    if (!state[0]) {
        fputs(": told nothing of it", out);
    } else {
        fprintf(out, ": %s, ", state);
        print_speed(out, v->text[5]);
        fprintf(out, ", since %.0f s%s%s", strtod(v->text[7], NULL), v->text[6][0] ? ": " : "",
                v->text[6]);
    }
    if (other[0] && strcmp(state, "active") != 0) {
        fprintf(out, "; serves %s there, ", other);
        print_speed(out, v->text[9]);
    }
    if (said[0])
        fprintf(out, "; looked again: %s", said);
    if (v->text[11][0])
        fputs(is_true(v->text[11]) ? "; heard that it is wrong"
                                   : "; has not heard that it is wrong",
              out);
    if (!v->text[2][0])
        fputs("; its row is gone", out);
    else if (!is_true(v->text[2]))
        fprintf(out, "; %s %.0f s ago", is_true(v->text[3]) ? "stopped" : "not seen since",
                strtod(v->text[12], NULL));
    fputc('\n', out);
}

static int show_servers(struct fleet_db *db, const char *env, const char *key, const char *slot,
                        FILE *out, struct err *err)
{
    static const char sql[] =
        "SELECT coalesce(s.name, ''), x.server, " FLEET_IS_THERE ", s.stopped,"
        " k.state, k.speed, k.reason, " CHANGED_AGE ", b.key, b.speed,"
        " CASE WHEN v.upheld THEN 'right' WHEN NOT v.upheld THEN 'wrong' END || ', ' || v.words,"
        " CASE WHEN r.key IS NOT NULL AND s.server IS NOT NULL THEN"
        " r.server = s.server OR coalesce(" FLEET_HEARD " >= r.seq, false) END, " SEEN_AGE
        " FROM (SELECT server FROM whet_server WHERE env = $1"
        " UNION SELECT server FROM whet_kernel WHERE env = $1 AND key = $2"
        " UNION SELECT server FROM whet_verdict WHERE env = $1 AND key = $2) x"
        " LEFT JOIN whet_server s ON s.server = x.server"
        " LEFT JOIN whet_kernel k ON k.env = $1 AND k.key = $2 AND k.server = x.server"
        " LEFT JOIN whet_verdict v ON v.env = $1 AND v.key = $2 AND v.server = x.server"
        " LEFT JOIN whet_retraction r ON r.env = $1 AND r.key = $2"
        " LEFT JOIN LATERAL (SELECT a.key, a.speed FROM whet_kernel a WHERE a.env = $1 AND"
        " a.server = x.server AND a.slot = $3 AND a.state = 'active' ORDER BY a.seq DESC LIMIT 1)"
        " b ON true ORDER BY k.state IS NULL, k.state, s.name, x.server LIMIT 200";
    const char *value[] = {env, key, slot};
    return print_rows(db, sql, value, 3, print_server, out, err);
}

/* How many environments know of it. */
static int show_kernel(struct fleet_db *db, const char *key, FILE *out, struct err *err)
{
    static const char sql[] =
        "SELECT x.env, coalesce(k.slot, r.slot), coalesce(k.template || ' ' || k.knobs, ''),"
        " k.n, k.median, (SELECT count(*) FROM whet_server s WHERE s.env <> x.env AND"
        " " FLEET_IS_THERE ") FROM (SELECT env FROM whet_kernel WHERE key = $1 UNION"
        " SELECT env FROM whet_retraction WHERE key = $1) x LEFT JOIN"
        " (SELECT env, min(slot) AS slot, max(template) AS template, max(knobs) AS knobs,"
        " count(*) FILTER (WHERE " FLEET_SPEED_IS_ONE ") AS n, percentile_cont(0.5) WITHIN GROUP"
        " (ORDER BY speed) FILTER (WHERE " FLEET_SPEED_IS_ONE ") AS median FROM whet_kernel"
        " WHERE key = $1 GROUP BY env) k USING (env)"
        " LEFT JOIN whet_retraction r ON r.env = x.env AND r.key = $1 ORDER BY 1 LIMIT 16";
    const char *value[] = {key};
    struct fleet_rows rows;
    int r = 0;
    if (fleet_db_run(db, FLEET_STATEMENT_S, sql, value, 1, &rows, err) != 0)
        return -1;
    for (int i = 0; i < rows.n && r == 0; i++) {
        struct values v = values_of(&rows, i);
        const char *env = fleet_value(&rows, i, 0), *slot = fleet_value(&rows, i, 1);
        fprintf(out, "kernel %s: %s %s\n  environment %s (%s servers of others do not see it)\n",
                key, v.text[1], v.text[2], v.text[0], v.text[5]);
        fprintf(out, "  measured by %s servers, median ", v.text[3][0] ? v.text[3] : "0");
        print_speed(out, v.text[4]);
        fputc('\n', out);
        bool failed = show_retraction(db, env, key, out, err) < 0 ||
                      show_servers(db, env, key, slot, out, err) < 0;
        r = failed ? -1 : 0;
    }
    int n = rows.n;
    fleet_rows_free(&rows);
    return r != 0 ? r : n;
}

/* ---- leases and what serves ------------------------------------------------------------------ */

/* Columns as in show_leases(). */
static void print_lease(FILE *out, const struct values *v)
{
    double left = strtod(v->text[6], NULL);
    fprintf(out, "  %s %s is leased by ", v->text[0], v->text[1]);
    print_name(out, v->text[2], v->text[3]);
    fprintf(out, " since %s UTC (%.0f s), %s %.0f s\n", v->text[4], strtod(v->text[5], NULL),
            left >= 0 ? "left" : "over for", left >= 0 ? left : -left);
}

/* Of a slot ("" for all) and of a server ("" for all). */
static int show_leases(struct fleet_db *db, const char *slot, const char *server, FILE *out,
                       struct err *err)
{
    static const char sql[] =
        "SELECT l.env, split_part(l.slot, '+', 1), coalesce(s.name, ''), l.server, " SINCE_UTC ","
        " " SINCE_AGE ", -" UNTIL_AGE " FROM whet_lease l LEFT JOIN whet_server s USING (server)"
        " WHERE $1 IN ('', split_part(l.slot, '+', 1)) AND $2 IN ('', l.server)"
        " AND l.server <> '' AND l.until > '-infinity' ORDER BY 1, 2, l.since LIMIT 200";
    const char *value[] = {slot, server};
    return print_rows(db, sql, value, 2, print_lease, out, err);
}

/* Columns as in show_active(). */
static void print_active(FILE *out, const struct values *v)
{
    fprintf(out, "  %s %s: ", v->text[0], v->text[1]);
    print_name(out, v->text[2], v->text[3]);
    fprintf(out, " serves %s, ", v->text[4]);
    print_speed(out, v->text[5]);
    fprintf(out, ", since %.0f s: %s\n", strtod(v->text[6], NULL), v->text[7]);
}

static int show_active(struct fleet_db *db, const char *slot, const char *server, FILE *out,
                       struct err *err)
{
    static const char sql[] =
        "SELECT k.env, k.slot, coalesce(s.name, ''), k.server, k.key, k.speed, " CHANGED_AGE ","
        " k.template || ' ' || k.knobs FROM whet_kernel k LEFT JOIN whet_server s USING (server)"
        " WHERE $1 IN ('', k.slot) AND $2 IN ('', k.server) AND k.state = 'active'"
        " ORDER BY 1, 2, k.speed DESC, 4 LIMIT 200";
    const char *value[] = {slot, server};
    return print_rows(db, sql, value, 2, print_active, out, err);
}

static int show_slot(struct fleet_db *db, const char *slot, FILE *out, struct err *err)
{
    fprintf(out, "slot %s\n", slot);
    int leases = show_leases(db, slot, "", out, err);
    int active = leases < 0 ? -1 : show_active(db, slot, "", out, err);
    if (active >= 0 && leases == 0)
        fputs("  nobody has it leased\n", out);
    if (active == 0)
        fputs("  eager serves everywhere\n", out);
    return active < 0 ? -1 : 0;
}

/* ---- a server -------------------------------------------------------------------------------- */

static int show_server(struct fleet_db *db, const char *word, FILE *out, struct err *err)
{
    static const char sql[] =
        "SELECT s.name, s.server, s.env, s.version, s.device, " STARTED_AGE ", " SEEN_AGE ","
        " s.stopped, (SELECT count(*) FROM whet_retraction r WHERE r.env = s.env AND"
        " r.server <> s.server AND r.seq > " FLEET_HEARD "), " FLEET_HEARD " IS NULL"
        " FROM whet_server s WHERE $1 IN (s.server, s.name) ORDER BY s.seen DESC LIMIT 16";
    const char *value[] = {word};
    struct fleet_rows rows;
    int r = 0;
    if (fleet_db_run(db, FLEET_STATEMENT_S, sql, value, 1, &rows, err) != 0)
        return -1;
    for (int i = 0; i < rows.n && r >= 0; i++) {
        struct values v = values_of(&rows, i);
        const char *id = fleet_value(&rows, i, 1);
        fputs("server ", out);
        print_name(out, v.text[0], v.text[1]);
        fprintf(out, ": whet %s, environment %s, %s\n  started %.0f s ago, %s %.0f s ago\n",
                v.text[3], v.text[2], v.text[4], strtod(v.text[5], NULL),
                is_true(v.text[7]) ? "stopped" : "seen", strtod(v.text[6], NULL));
        if (is_true(v.text[9]))
            fputs("  does not tell which kernels it heard to be wrong\n", out);
        else
            fprintf(out, "  has not heard yet of %s kernels that others found wrong\n", v.text[8]);
        r = show_leases(db, "", id, out, err);
        if (r == 0)
            fputs("  has nothing leased\n", out);
        r = r < 0 ? -1 : show_active(db, "", id, out, err);
    }
    int n = rows.n;
    fleet_rows_free(&rows);
    return r < 0 ? -1 : n;
}

static bool is_slot(const char *word)
{
    const char *m = strstr(word, "/m");
    return m && m > word && m[2] >= '0' && m[2] <= '9';
}

int fleet_show(struct fleet_db *db, const char *word, FILE *out, struct err *err)
{
    int found = fleet_is_key(word) ? show_kernel(db, word, out, err) : 0;
    if (found == 0)
        found = show_server(db, word, out, err);
    if (found == 0 && is_slot(word))
        return show_slot(db, word, out, err);
    if (found < 0)
        return -1;
    return found > 0 ? 0
                     : err_set(err,
                               "nothing is known of \"%.60s\": it is no kernel's key, no slot "
                               "(mlp_out/m1) and no server's id or name",
                               word);
}
