/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_parts.h - is every part of the tables there that statements rest on?
 *
 * The version in whet_schema says which migrations ran. It says nothing of what somebody dropped
 * afterwards, or of a restore that left a table out.
 */
#ifndef WHET_SPECIALIZER_FLEET_FLEET_PARTS_H
#define WHET_SPECIALIZER_FLEET_FLEET_PARTS_H

#include "specializer/fleet/fleet_db.h"

enum { FLEET_MISSING_TEXT = 400 };

struct fleet_missing {
    int n;       /* parts that are missing */
    int needed;  /* of them those without which statements fail: all but indexes for speed */
    int version; /* of the tables, by whet_schema; 0: it says none */
    bool empty;  /* nothing of whet is there */
    /* "table whet_kernel, uniqueness of whet_lease (env, slot)": as many as fit, and how many more.
     */
    char text[FLEET_MISSING_TEXT];
};
/* Looks for all parts of the version that the database has, at most FLEET_SCHEMA. A table that is
 * missing counts once, without its parts. Takes no lock and no rights but to read the catalog. */
int fleet_parts_missing(struct fleet_db *db, struct fleet_missing *out, struct err *err);
/* Makes what is missing, all or nothing: tables come empty, servers fill them again. Needs the
 * owner's rights. `said` has what was made. -1 also for what cannot be made without a loss (a
 * column of a table that has rows, uniqueness of rows that are not unique). */
int fleet_parts_repair(struct fleet_db *db, struct fleet_missing *said, struct err *err);

#endif
