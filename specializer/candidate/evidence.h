/* SPDX-License-Identifier: Apache-2.0 */
/* evidence.h - struct evidence as JSON: one table of fields for the store, the operators' view and
 * the export. A field that is zero or empty is left out, so a refusal shows only what was measured.
 */
#ifndef WHET_SPECIALIZER_CANDIDATE_EVIDENCE_H
#define WHET_SPECIALIZER_CANDIDATE_EVIDENCE_H

#include <cjson/cJSON.h>

#include "specializer/candidate/candidate.h"

cJSON *evidence_json(const struct evidence *e); /* caller deletes */
enum { EVIDENCE_WORDS = 200 };
/* What a candidate that reached this state has shown, in words for the trace: "12 cases, largest
 * error 0.61 times eager's (m=1 bits)". "" where nothing was measured. */
void evidence_words(const struct evidence *e, enum life reached, char out[EVIDENCE_WORDS]);
/* Fields of the wrong type and unknown ones are ignored: they come from stores and imports. */
void evidence_read(struct evidence *e, const cJSON *json);

#endif
