/* SPDX-License-Identifier: Apache-2.0 */
/* agent_state.h - a CUDA text keeps nothing from one launch to the next.
 *
 * What outlives a launch would let one result depend on an earlier one. agent_text.c refuses a
 * variable of the device or a static one where it shows by itself; here are those that need to know
 * what is a type, a function, a macro. */
#ifndef WHET_SPECIALIZER_AGENT_AGENT_STATE_H
#define WHET_SPECIALIZER_AGENT_AGENT_STATE_H

#include "specializer/agent/agent_reader.h"

/* The token at `i`, at `depth` braces; -1 with the rule broken if it begins such a variable. */
int state_check(struct reader *r, int i, int depth);

#endif
