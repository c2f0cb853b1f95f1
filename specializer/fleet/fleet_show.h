/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_show.h - all that the database knows of one kernel, one slot or one server. */
#ifndef WHET_SPECIALIZER_FLEET_FLEET_SHOW_H
#define WHET_SPECIALIZER_FLEET_FLEET_SHOW_H

#include <stdio.h>

#include "specializer/fleet/fleet_db.h"

/* `word`: the key of a kernel, the name of a slot, the id or the name of a server. For people:
 * lines to `out`. -1 with a message, also if nothing is known by that word. One statement each, of
 * at most 200 rows. */
int fleet_show(struct fleet_db *db, const char *word, FILE *out, struct err *err);

#endif
