/* agent_source.h - from a text that a language model wrote to something that can be built.
 *
 * All agent kernels of a region share one template, "agent_<region>": the frame kernels/cpu/agent.c
 * with the knob ISA, which is the best there is. What distinguishes them is the body, by the hash
 * of its text. These templates are no part of any space and template_find() does not know them.
 */
#ifndef WHET_SPECIALIZER_AGENT_SOURCE_H
#define WHET_SPECIALIZER_AGENT_SOURCE_H

#include "specializer/search/space.h"

enum { AGENT_PREFIX_N = 6 }; /* "agent_" */

/* NULL for REGION_EMBED. */
const struct template *agent_template(enum region region);
const struct template *agent_template_find(const char *id); /* NULL: none */

/* The point to compile for here: the best instruction set. False if these facts allow none. */
bool agent_point(const struct template *t, const struct facts *f, struct point *out);

/* Hash of a body without markers. */
void agent_body_hash(const char *body, char out[17]);
/* "agent/<hash>.c", relative to the folder of kernel sources. */
void agent_body_name(const char *hash, char out[40]);
/* Writes the body there, so that diagnostics say "kernel:<line>". */
int agent_body_write(const char *kernel_dir, const char *hash, const char *body, struct err *err);

#endif
