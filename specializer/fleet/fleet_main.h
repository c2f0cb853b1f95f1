/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_main.h - `whet fleet`. */
#ifndef WHET_SPECIALIZER_FLEET_FLEET_MAIN_H
#define WHET_SPECIALIZER_FLEET_FLEET_MAIN_H

#include "config/config.h"

/* `whet fleet status|retract KEY REASON|export FILE|migrate`: the database of a fleet from the
 * command line. The process's exit status. */
int fleet_main(const struct config *c, int argc, char **argv);
extern const char fleet_usage[];

#endif
