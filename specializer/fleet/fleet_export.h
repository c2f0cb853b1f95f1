/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_export.h - all winners and texts of a fleet, as a file that `whet kernels import` takes.
 */
#ifndef WHET_SPECIALIZER_FLEET_FLEET_EXPORT_H
#define WHET_SPECIALIZER_FLEET_FLEET_EXPORT_H

#include "specializer/fleet/fleet_db.h"

/* Writes them to the file `path` ("-": stdout), as one moment of the database had them, and says on
 * stderr how many there are. A file that is there is replaced when all is written, and not before.
 * -1 with a message. */
int fleet_export(struct fleet_db *db, const char *path, struct err *err);

#endif
