/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_db_none.c - fleet_db.h in a program that was built without libpq: there is no connection to
 * be had, and the option that asks for one says so. */
#include "specializer/fleet/fleet_db.h"

static int missing(struct err *err)
{
    return err_set(err, "this program was built without libpq (meson setup -Dfleet=enabled)");
}

int fleet_db_check(const struct fleet_address *a, struct err *err)
{
    (void)a;
    return missing(err);
}

struct fleet_db *fleet_db_open(const struct fleet_address *a, double seconds,
                               const atomic_bool *stop, struct err *err)
{
    (void)a;
    (void)seconds;
    (void)stop;
    missing(err);
    return NULL;
}

struct fleet_db *fleet_db_open_writable(const struct fleet_address *a, double seconds,
                                        const atomic_bool *stop, struct err *err)
{
    return fleet_db_open(a, seconds, stop, err);
}

void fleet_db_close(struct fleet_db *db)
{
    (void)db;
}

bool fleet_db_alive(const struct fleet_db *db)
{
    (void)db;
    return false;
}

void fleet_db_end(struct fleet_db *db)
{
    (void)db;
}

int fleet_db_process(const struct fleet_db *db)
{
    (void)db;
    return 0;
}

void fleet_db_parting(struct fleet_db *db, double seconds)
{
    (void)db;
    (void)seconds;
}

int fleet_db_run(struct fleet_db *db, double seconds, const char *sql, const char *const *value,
                 int n, struct fleet_rows *rows, struct err *err)
{
    (void)db;
    (void)seconds;
    (void)sql;
    (void)value;
    (void)n;
    if (rows)
        *rows = (struct fleet_rows){0};
    return missing(err);
}

const char *fleet_value(const struct fleet_rows *rows, int row, int column)
{
    (void)rows;
    (void)row;
    (void)column;
    return "";
}

void fleet_rows_free(struct fleet_rows *rows)
{
    *rows = (struct fleet_rows){0};
}

const char *fleet_db_state(const struct fleet_db *db)
{
    (void)db;
    return "";
}

unsigned fleet_db_wait(struct fleet_db *db, int wake_fd, double seconds)
{
    (void)db;
    (void)wake_fd;
    (void)seconds;
    return 0;
}
