/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_schema.h - the tables in the database, and how they came to be what they are.
 *
 * Migrations are the numbered files of schema/, each a transaction, one server at a time (advisory
 * lock). A migration only adds, so that servers of the versions before it go on working; one that
 * could not be followed by them would say so in `least`, the oldest version that may still write.
 */
#ifndef WHET_SPECIALIZER_FLEET_FLEET_SCHEMA_H
#define WHET_SPECIALIZER_FLEET_FLEET_SCHEMA_H

#include "specializer/fleet/fleet_db.h"

/* That this program knows, and the oldest that it can follow a newer database from. */
enum { FLEET_SCHEMA = 3 };
/* The oldest that servers of this program can do with, where they may not bring it up. */
enum {
    FLEET_SCHEMA_SERVES = 2,
    FLEET_SCHEMA_HEARD = 3 /* since then whet_server.heard is there */
};

/* What whet_schema says: the version, and the oldest that may write. 0: it says nothing. */
int fleet_schema_version(struct fleet_db *db, int *version, int *least, struct err *err);
/* whet_schema itself, if it is not there, and its rows up to `version`. Caller frees. */
char *fleet_schema_rows(int version);
/* A transaction that nobody else changes the tables in; its end: COMMIT if `ok` is 0, else
 * ROLLBACK. `ok`, or -1. */
int fleet_schema_begin(struct fleet_db *db, struct err *err);
int fleet_schema_end(struct fleet_db *db, int ok, struct err *err);

/* Brings the tables to FLEET_SCHEMA, or finds them there or newer. *version: what the database has
 * then. -1: not reachable, no right to create tables, or newer than this program may use. */
int fleet_schema_ready(struct fleet_db *db, int *version, struct err *err);

#endif
