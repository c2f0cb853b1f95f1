/* SPDX-License-Identifier: Apache-2.0 */
/* store_json.h - rows of the store as JSON: for operators and for exports. */
#ifndef WHET_SPECIALIZER_STORE_STORE_JSON_H
#define WHET_SPECIALIZER_STORE_STORE_JSON_H

#include <cjson/cJSON.h>

#include "specializer/store/store.h"

/* Imported rows have this environment: they are proposals, evidence of nothing here. */
#define ENV_IMPORTED "imported"

cJSON *record_json(const struct record *r); /* caller deletes */
cJSON *gain_json(const struct gain *g);     /* {"pairs","mean","low","high"} */
/* A string of an exported row; "" if it has none of that name. */
const char *row_text(const cJSON *row, const char *name);
cJSON *trace_json(const struct trace_row *row);
#endif
