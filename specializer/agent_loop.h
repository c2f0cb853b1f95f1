/* SPDX-License-Identifier: Apache-2.0 */
/* agent_loop.h - texts that a language model writes, in the loop. Specializer thread. */
#ifndef WHET_SPECIALIZER_AGENT_LOOP_H
#define WHET_SPECIALIZER_AGENT_LOOP_H

#include <stdbool.h>

struct slot;
struct slot_search;
struct specializer;

/* Reads a reply and makes the agent's next move, in one of these `n` slots or, with 0, in any;
 * never waits. False: nothing is under way, neither a question nor a text. */
bool agent_advance(struct specializer *s, const struct slot *const *among, int n);
/* The slot for which a text is ready; NULL: there is none now. */
struct slot_search *agent_waiting(struct specializer *s);
/* The text that is ready cannot be tried now: it is not before some time has passed. */
void agent_postpone(struct specializer *s);

#endif
