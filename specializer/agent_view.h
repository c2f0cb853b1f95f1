/* SPDX-License-Identifier: Apache-2.0 */
/* agent_view.h - what the agent is told of a slot besides its own texts: the kernel that serves
 * with its evidence and its source, what the templates' search measured, the compiler. Specializer
 * thread. */
#ifndef WHET_SPECIALIZER_AGENT_VIEW_H
#define WHET_SPECIALIZER_AGENT_VIEW_H

#include "specializer/agent/agent_prompt.h"

struct candidate;
struct slot_search;
struct specializer;
struct template;

struct told {
    char *compiler, *serving, *source, *tuned;
};
/* Fills `out` and lets `v` point to it. */
void agent_tell(struct specializer *s, struct slot_search *p, struct agent_view *v,
                struct told *out);
void agent_told_free(struct told *t);

/* The template's text as it is compiled for an instruction set (-1: it is of no CPU) and, as far as
 * there is room, the headers that are its own, its main one's parts first; what is left out is
 * named. Caller frees. */
char *agent_template_text(const struct template *t, int32_t isa);

/* What a trial of a text measured besides its speed, into out[n]; "" if it was not benched. */
void agent_trial_words(const struct specializer *s, const struct candidate *c, char *out, size_t n);

#endif
