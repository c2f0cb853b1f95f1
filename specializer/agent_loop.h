/* SPDX-License-Identifier: Apache-2.0 */
/* agent_loop.h - texts that a language model writes, in the loop. Specializer thread. */
#ifndef WHET_SPECIALIZER_AGENT_LOOP_H
#define WHET_SPECIALIZER_AGENT_LOOP_H

struct slot_search;
struct specializer;

/* Reads a reply and makes the agent's next move; never waits. */
void agent_advance(struct specializer *s);
/* The slot for which a text is ready, with inputs; NULL: there is none now. */
struct slot_search *agent_waiting(struct specializer *s);

#endif
