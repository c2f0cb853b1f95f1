/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_host.c - what is wrong with a database that answers: what is missing there, and that it can
 * only be read.
 *
 * After a failover the server that was the primary may be there still, as a standby or fenced off
 * by default_transaction_read_only, and a connection to it stays; so does one that came to a
 * standby because it is the first host of the address. Such a database is read as long as there is
 * no better one. Beside it the address is tried anew for a host that takes what is written (a name
 * may lead to another machine by now), and the fleet's thread moves there.
 */
#include <string.h>

#include "config/clock.h"
#include "config/log.h"
#include "specializer/fleet/fleet_parts.h"
#include "specializer/fleet/fleet_private.h"
#include "specializer/fleet/fleet_rights.h"
#include "specializer/fleet/fleet_schema.h"

#define SEEK_FIRST_S 1.0
#define SEEK_MOST_S 60.0
#define CONNECT_S 5.0 /* leases and rows of others wait meanwhile */

/* ---- what is missing there ------------------------------------------------------------------- */

int fleet_name_rights(struct fleet *f, struct err *err)
{
    struct fleet_rights rights;
    if (fleet_rights_missing(f->db, &rights, err) != 0)
        return -1;
    if (rights.n > 0)
        log_warn("fleet", "role %s lacks rights: %s (whet fleet status names what gives them)",
                 rights.role, rights.text);
    return 0;
}

int fleet_name_parts(struct fleet *f, struct err *err)
{
    struct fleet_missing missing;
    if (fleet_parts_missing(f->db, &missing, err) != 0)
        return -1;
    if (missing.n > 0)
        log_warn("fleet", "the tables are not whole, missing: %s (whet fleet repair)",
                 missing.text);
    return 0;
}

int fleet_tables_ready(struct fleet *f, int *version, struct err *err)
{
    *version = 0;
    if (fleet_schema_ready(f->db, version, err) == 0)
        return 0;
    if (!fleet_db_alive(f->db) || *version < FLEET_SCHEMA_SERVES || *version >= FLEET_SCHEMA)
        return -1;
    log_warn("fleet", "%s; it goes on with those of version %d", err->msg, *version);
    return 0;
}

/* ---- a host that can be written -------------------------------------------------------------- */

static int64_t in(double seconds)
{
    return clock_ns() + (int64_t)(seconds * 1e9);
}

void fleet_read_only_begins(struct fleet *f)
{
    if (strcmp(fleet_db_state(f->db), "25006") != 0 || atomic_exchange(&f->read_only, true))
        return;
    log_warn("fleet", "the database can only be read: a host that can be written is looked for");
    f->seek_s = SEEK_FIRST_S;
    f->seek_due_ns = in(fleet_by_lot(SEEK_FIRST_S));
}

void fleet_read_only_ends(struct fleet *f)
{
    if (atomic_exchange(&f->read_only, false))
        log_info("fleet", "the database can be written");
}

/* 1: it can, 0: it cannot, -1 with a message. */
static int can_write(struct fleet_db *db, struct err *err)
{
    struct fleet_rows rows;
    if (fleet_db_run(db, FLEET_STATEMENT_S, "SELECT current_setting('transaction_read_only')", NULL,
                     0, &rows, err) != 0)
        return -1;
    int can = strcmp(fleet_value(&rows, 0, 0), "off") == 0;
    fleet_rows_free(&rows);
    return can;
}

int fleet_seek(struct fleet *f, struct err *err)
{
    struct err why;
    if (!atomic_load(&f->read_only))
        return 0;
    int can = can_write(f->db, err);
    if (can != 0) {
        f->beat_due_ns = 0; /* which finds it so */
        return can < 0 ? -1 : 0;
    }
    f->next = fleet_db_open_writable(&f->address, CONNECT_S, &f->stop, &why);
    if (f->next) {
        log_info("fleet", "there is a host that can be written: the connection moves there");
        fleet_db_end(f->db);
        return 0;
    }
    log_debug("fleet", "no host can be written: %s", why.msg);
    f->seek_due_ns = in(f->seek_s + fleet_by_lot(f->seek_s / 2));
    f->seek_s = f->seek_s * 2 < SEEK_MOST_S ? f->seek_s * 2 : SEEK_MOST_S;
    return 0;
}
