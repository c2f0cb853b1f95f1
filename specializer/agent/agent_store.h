/* SPDX-License-Identifier: Apache-2.0 */
/* agent_store.h - the store's rows of texts that a language model wrote. Any thread. */
#ifndef WHET_SPECIALIZER_AGENT_AGENT_STORE_H
#define WHET_SPECIALIZER_AGENT_AGENT_STORE_H

#include "engine/plan.h"
#include "specializer/agent/agent_tree.h"
#include "specializer/store/store.h"

/* Where imported texts for a machine wait. */
const char *imported_texts(enum machine_kind machine);

/* One node of a slot's tree, new or changed; its strings may be NULL. */
int agent_store_put(struct store *s, const char *env, const char *slot, const struct agent_node *n,
                    struct err *err);
/* All nodes of the slot's tree into an empty `out`. */
int agent_store_tree(struct store *s, const char *env, const char *slot, struct agent_tree *out,
                     struct err *err);
/* One more node of such a "tree" of texts without order; sets its id. The caller has the store's
 * lock, as an import does for its whole transaction. */
int agent_store_append_locked(struct store *s, const char *env, const char *slot,
                              struct agent_node *n, struct err *err);
/* A node whose text has this hash, whatever its slot: 1 found (tree_node_free() it), 0 not, -1.
 */
int agent_store_find(struct store *s, const char *source, struct agent_node *out, struct err *err);

#endif
