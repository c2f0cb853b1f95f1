/* SPDX-License-Identifier: Apache-2.0 */
/* table_machine.h - what a file of measured points tells of the machine beyond the constants of the
 * cost model, so that a language model that is asked about the table is told of that machine and
 * not of the one that replays it. A file without these fields leaves them unknown. One thread. */
#ifndef WHET_TUNE_TABLE_MACHINE_H
#define WHET_TUNE_TABLE_MACHINE_H

#include <cjson/cJSON.h>

#include "tune/table.h"

void table_machine_write(const struct tables *t, cJSON *o);
/* Into t->machine, and t->cpu if it is a CPU's. */
void table_machine_read(struct tables *t, const cJSON *o);

#endif
