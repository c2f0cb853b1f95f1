/* SPDX-License-Identifier: Apache-2.0 */
/* measure.h - fills tables of measured points: builds, probes and benches every point of a slot. */
#ifndef WHET_TUNE_MEASURE_H
#define WHET_TUNE_MEASURE_H

#include "specializer/session.h"
#include "tune/table.h"

/* A new table for each slot of `names`; `most` points in each (0: all). -1: no such slot. */
int measure_prepare(struct session *s, struct tables *t, char **names, int n, int most,
                    struct err *err);

/* Builds and probes what is new, then (unless `build_only`) benches what was probed, for at most
 * `seconds`; goes on where the table stands, and writes it to `path` as it goes. Points whose
 * objects are gone are built again. -1 with a message; stopping early is no failure. */
int measure_run(struct session *s, struct tables *t, double seconds, bool build_only,
                const char *path, struct err *err);

#endif
