/* SPDX-License-Identifier: Apache-2.0 */
/* agent_source.h - from a text that a language model wrote to something that can be built.
 *
 * All agent kernels of a region and machine share one template: "agent_<region>", the frame
 * kernels/cpu/agent.c with the knob ISA, which is the best there is, or "agent_cuda_<region>", the
 * frame kernels/cuda/agent.cu. What distinguishes them is the body, by the hash of its text. These
 * templates are no part of any space and template_find() does not know them.
 */
#ifndef WHET_SPECIALIZER_AGENT_AGENT_SOURCE_H
#define WHET_SPECIALIZER_AGENT_AGENT_SOURCE_H

#include "specializer/agent/agent_text.h"
#include "specializer/candidate/candidate.h"

/* NULL for REGION_EMBED. */
const struct template *agent_template(enum machine_kind machine, enum region region);
const struct template *agent_template_find(const char *id); /* NULL: none */

/* What texts for a machine are written in. */
enum agent_language agent_language(enum machine_kind machine);

/* The point to compile for here: the last legal value of the template's knob, which is the best
 * instruction set. False if these facts allow none. */
bool agent_point(const struct template *t, const struct facts *f, struct point *out);

/* Hash of a body without markers. */
void agent_body_hash(const char *body, char out[17]);
/* Whether a text, with the markers of its spans or without, has that hash. */
bool agent_text_has_hash(const char *text, const char *hash);
/* Writes the body where candidate_body_name() says, so that diagnostics say "kernel:<line>". */
int agent_body_write(const char *kernel_dir, enum machine_kind machine, const char *hash,
                     const char *body, struct err *err);

#endif
