/* SPDX-License-Identifier: Apache-2.0 */
/* report.h - how well the cost model ranks, and where it is wrong. */
#ifndef WHET_TUNE_REPORT_H
#define WHET_TUNE_REPORT_H

#include "tune/table.h"

struct config;

/* On a table: the formula's and the learned model's rank correlation with measurement, for each
 * slot and family, and the largest errors in words. To stdout, and to `json` unless NULL. */
int report_tables(const struct tables *t, const char *json, struct err *err);
/* On a store: predictions as they were when the candidates were proposed. */
int report_store(const struct config *c, const char *json, struct err *err);

#endif
