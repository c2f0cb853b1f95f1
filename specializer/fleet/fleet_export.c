/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_export.c - see fleet_export.h.
 *
 * Rows come by a cursor, a page at a time, and go to the file at once: a fleet of years has more
 * than fits into memory here. The cursor's transaction sees one moment, however long it takes.
 *
 * An import has room for a number of kernels of each slot and takes them in the file's order. So
 * the fastest of every slot and environment come first, then the second of each: in an order by
 * environment the first environments would fill all the room.
 */
#include "specializer/fleet/fleet_export.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/json_strict.h"
#include "config/log.h"
#include "specializer/fleet/fleet_sql.h"
#include "specializer/transfer/transfer.h"

/* The first page needs all rows to be sorted. */
#define PAGE_S 120.0

struct export
{
    struct fleet_db *db;
    FILE *out;
    long long rows, bytes;
};

static int put(struct export *x, const char *text, struct err *err)
{
    x->bytes += (long long)strlen(text);
    return fputs(text, x->out) >= 0 ? 0 : err_set(err, "write: %s", strerror(errno));
}

static int put_row(struct export *x, cJSON *row, struct err *err)
{
    char *text = cJSON_PrintUnformatted(row);
    int r = put(x, x->rows++ > 0 ? ",\n" : "\n", err);
    if (r == 0)
        r = put(x, text, err);
    free(text);
    return r;
}

static cJSON *winner(const struct fleet_rows *rows, int i)
{
    static const char *const names[] = {"env", "id", "slot", "template", "knobs", "state"};
    enum { NAMES = sizeof names / sizeof *names };
    cJSON *row = cJSON_CreateObject();
    for (int c = 0; c < NAMES; c++)
        cJSON_AddStringToObject(row, names[c], fleet_value(rows, i, c));
    cJSON_AddNumberToObject(row, "speed", strtod(fleet_value(rows, i, NAMES), NULL));
    return row;
}

/* NULL: what somebody wrote is no row. */
static cJSON *text(const struct fleet_rows *rows, int i)
{
    cJSON *row = json_strict_parse(fleet_value(rows, i, 0));
    if (cJSON_IsObject(row))
        return row;
    cJSON_Delete(row);
    return NULL;
}

/* What is exported, in the order of the file; FETCH says how many rows a page has. */
static const struct export_part {
    const char *what, *cursor, *fetch;
    cJSON *(*row)(const struct fleet_rows *rows, int i);
} parts[] = {
    {"kernels",
     "DECLARE whet_export NO SCROLL CURSOR FOR SELECT env, key, slot, template, knobs, state, speed"
     " FROM (SELECT *, row_number() OVER (PARTITION BY env, slot ORDER BY speed DESC, key, state)"
     " AS place FROM (SELECT env, key, slot, template, knobs, state, max(speed) AS speed"
     " FROM whet_kernel k WHERE state IN ('active', 'retired') AND " FLEET_SPEED_IS_ONE
     " AND NOT EXISTS (SELECT 1 FROM whet_retraction r WHERE r.env=k.env AND r.key=k.key)"
     " GROUP BY 1, 2, 3, 4, 5, 6) all_of_them) placed ORDER BY place, env, slot",
     "FETCH 500 FROM whet_export", winner},
    {"texts",
     "DECLARE whet_export NO SCROLL CURSOR FOR SELECT body FROM whet_text ORDER BY seq DESC",
     "FETCH 16 FROM whet_export", text},
};

/* How many rows the part had, or -1. */
static long long put_part(struct export *x, const struct export_part *part, struct err *err)
{
    long long before = x->rows;
    int r = fleet_db_run(x->db, PAGE_S, part->cursor, NULL, 0, NULL, err), n = 1;
    while (r == 0 && n > 0) {
        struct fleet_rows rows;
        r = fleet_db_run(x->db, PAGE_S, part->fetch, NULL, 0, &rows, err);
        n = r == 0 ? rows.n : 0;
        for (int i = 0; i < n && r == 0; i++) {
            cJSON *row = part->row(&rows, i);
            r = row ? put_row(x, row, err) : 0;
            cJSON_Delete(row);
        }
        fleet_rows_free(&rows);
    }
    if (r == 0)
        r = fleet_db_run(x->db, PAGE_S, "CLOSE whet_export", NULL, 0, NULL, err);
    return r == 0 ? x->rows - before : -1;
}

static int put_all(struct export *x, struct err *err)
{
    long long n[sizeof parts / sizeof *parts];
    char head[64];
    snprintf(head, sizeof head, "{\"whet_store\": %d, \"kernels\": [", (int)EXPORT_VERSION);
    if (put(x, head, err) != 0)
        return -1;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if ((n[i] = put_part(x, &parts[i], err)) < 0)
            return -1;
    if (put(x, "\n]}\n", err) != 0)
        return -1;
    log_info("fleet", "%lld %s, %lld %s", n[0], parts[0].what, n[1], parts[1].what);
    if (x->bytes > IMPORT_BYTES_MOST)
        log_warn("fleet", "%lld bytes are more than an import takes (%d)", x->bytes,
                 (int)IMPORT_BYTES_MOST);
    return 0;
}

/* Limits of the session's statements are for servers. */
static int put_moment(struct export *x, struct err *err)
{
    int r = fleet_db_run(x->db, PAGE_S,
                         "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;"
                         " SET LOCAL statement_timeout = '120s'",
                         NULL, 0, NULL, err);
    if (r == 0)
        r = put_all(x, err);
    if (fleet_db_alive(x->db))
        fleet_db_run(x->db, PAGE_S, "ROLLBACK", NULL, 0, NULL, NULL);
    return r;
}

/* `path` with another name while it is not whole; NULL: it is no file (/dev/stdout), and is written
 * as it is. Caller frees. */
static char *part_name(const char *path)
{
    struct stat st;
    bool file = lstat(path, &st) != 0 ? errno == ENOENT : S_ISREG(st.st_mode) != 0;
    return file ? xasprintf("%s.part", path) : NULL;
}

int fleet_export(struct fleet_db *db, const char *path, struct err *err)
{
    struct export x = {.db = db};
    if (strcmp(path, "-") == 0) {
        x.out = stdout;
        int r = put_moment(&x, err);
        return r == 0 && fflush(stdout) != 0 ? err_set(err, "write: %s", strerror(errno)) : r;
    }
    char *part = part_name(path);
    x.out = fopen(part ? part : path, "we");
    int r = x.out ? put_moment(&x, err) : err_set(err, "%s", strerror(errno));
    if (x.out && fclose(x.out) != 0 && r == 0)
        r = err_set(err, "write: %s", strerror(errno));
    if (r == 0 && part && rename(part, path) != 0)
        r = err_set(err, "%s", strerror(errno));
    if (r != 0 && part && x.out)
        unlink(part);
    free(part);
    return r == 0 ? 0 : err_prefix(err, "cannot write %.200s", path);
}
