/* evidence.h - struct evidence as JSON: one table of fields for the store, the operators' view and
 * the export. A field that is zero or empty is left out, so a refusal shows only what was measured.
 */
#ifndef WHET_SPECIALIZER_EVIDENCE_H
#define WHET_SPECIALIZER_EVIDENCE_H

#include <cjson/cJSON.h>

#include "specializer/candidate.h"

cJSON *evidence_json(const struct evidence *e); /* caller deletes */
/* Fields of the wrong type and unknown ones are ignored: they come from stores and imports. */
void evidence_read(struct evidence *e, const cJSON *json);

#endif
