/* SPDX-License-Identifier: Apache-2.0 */
/* operators.h - what answers to operators share: admin.c for changes, status.c for the
 * dashboard. */
#ifndef WHET_SPECIALIZER_OPERATORS_H
#define WHET_SPECIALIZER_OPERATORS_H

#include <cjson/cJSON.h>

struct specializer;

extern const char *const mode_names[]; /* of enum specializer_mode, as the store has them */
cJSON *slots_json_locked(struct specializer *s);

#endif
