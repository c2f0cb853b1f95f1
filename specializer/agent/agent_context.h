/* SPDX-License-Identifier: Apache-2.0 */
/* agent_context.h - what a prompt says of the other texts: of the same tree, and of other slots'.
 *
 * Each agent is told what helps with its task (STARK, arXiv 2510.16996, section on context
 * windows): who plans sees a text's children with their results, the best texts and what other
 * slots found; who writes, the best text and the siblings' code; who repairs, a sibling that was
 * repaired. All functions return malloc'ed text for a prompt, "" where there is nothing to say.
 * Pure.
 */
#ifndef WHET_SPECIALIZER_AGENT_AGENT_CONTEXT_H
#define WHET_SPECIALIZER_AGENT_AGENT_CONTEXT_H

#include "specializer/agent/agent_prompt.h"

/* The fastest texts with their whole plans, and the newest dead ends with what refused them. */
char *context_leaders(const struct agent_tree *t);
char *context_dead(const struct agent_tree *t);
/* What was made of `parent`: how much faster or slower than it each child is, or why it is none. */
char *context_children(const struct agent_tree *t, int32_t parent);
/* What other slots' texts came to: the best of each, and the change that lost most. */
char *context_kin(const struct agent_view *v);
/* The whole text that `parent` is to be read beside: the best of the tree, or if that is the parent
 * or the seed, the best of another slot. */
char *context_reference(const struct agent_view *v, const struct agent_tree *t, int32_t parent);
/* For the writer of `node`: the best text, and the fastest sibling. */
char *context_code(const struct agent_tree *t, int32_t node);
/* For a repair of `node`: the fastest sibling that was repaired, else that needed no repair. */
char *context_debug(const struct agent_tree *t, int32_t node);

/* At most `most` bytes of `text`, and no half of a character. */
int whole_characters(const char *text, int most);

#endif
