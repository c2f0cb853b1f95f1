/* export_text.h - texts of a language model in an export of the store, and back out of one.
 *
 * The row of an admitted kernel that a model wrote carries the text itself:
 *   "agent": {"text", "label", "plan", "prompts"}
 * On import nothing of it is believed: the text is read against the rules here, its hash is made
 * anew, and it waits, under an environment of its own, until the agent takes it into the tree of
 * its slot as a text like any other (agent_adopt()), with every stage of admission before it. */
#ifndef WHET_SPECIALIZER_EXPORT_TEXT_H
#define WHET_SPECIALIZER_EXPORT_TEXT_H

#include <cjson/cJSON.h>

#include "engine/plan.h"
#include "specializer/store/store.h"

/* Where imported texts for a machine wait. */
const char *imported_texts(enum machine_kind machine);

/* Adds the text to an exported row, if it is a text's. */
void export_text(struct store *s, cJSON *row);
/* 1 taken, or there already; 0: no text, or one that breaks a rule (said in the trace); -1 error.
 */
int import_text(struct store *s, const cJSON *row, const char *who, struct err *err);

#endif
