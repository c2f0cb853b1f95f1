/* SPDX-License-Identifier: Apache-2.0 */
/* export_text.h - texts of a language model in an export of the store, and back out of one.
 *
 * The row of an admitted kernel that a model wrote carries the text itself:
 *   "agent": {"text", "label", "plan", "prompts"}
 * On import nothing of it is believed: the text is read against the rules here, its hash is made
 * anew, and it waits, under an environment of its own, until the agent takes it into the tree of
 * its slot as a text like any other (agent_adopt()), with every stage of admission before it. */
#ifndef WHET_SPECIALIZER_TRANSFER_EXPORT_TEXT_H
#define WHET_SPECIALIZER_TRANSFER_EXPORT_TEXT_H

#include <cjson/cJSON.h>

#include "specializer/agent/agent_store.h"
#include "specializer/candidate/template.h"

/* Adds the text to an exported row, if it is a text's. */
void export_text(struct store *s, cJSON *row);
/* The text of a row's "agent" as a node that waits to be tried; free with tree_node_free(). -1 with
 * the rule that it breaks. */
int import_node(const struct template *t, const cJSON *agent, struct agent_node *out,
                struct err *err);

#endif
