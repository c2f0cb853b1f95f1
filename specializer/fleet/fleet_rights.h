/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_rights.h - what the role of a connection may not do, of what servers do.
 *
 * A role that lacks a right on one table is told so by each statement that needs it, minutes or
 * days later. This asks the catalog before, and says which GRANT is missing.
 */
#ifndef WHET_SPECIALIZER_FLEET_FLEET_RIGHTS_H
#define WHET_SPECIALIZER_FLEET_FLEET_RIGHTS_H

#include "specializer/fleet/fleet_db.h"

enum { FLEET_RIGHTS_MOST = 24 };

struct fleet_rights {
    char role[100];
    bool read_only; /* nothing can be written in this session, whatever the role may */
    int n;          /* objects on which something is missing, at most FLEET_RIGHTS_MOST */
    struct {
        char what[FLEET_WORD];  /* "INSERT, UPDATE on whet_verdict" */
        char grant[FLEET_WORD]; /* the statement that gives it, as the owner: "GRANT ... TO ..." */
    } missing[FLEET_RIGHTS_MOST];
    char text[400]; /* the first of them in one line: "INSERT on whet_verdict, ..." */
};
/* What is missing on the parts that are there (fleet_parts.h says which are not), and on the schema
 * in which they are. Rights on all columns of a table are as good as one on the table. Takes no
 * lock and no rights but to read the catalog. */
int fleet_rights_missing(struct fleet_db *db, struct fleet_rights *out, struct err *err);

#endif
