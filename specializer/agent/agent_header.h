/* SPDX-License-Identifier: Apache-2.0 */
/* agent_header.h - the program's own sources as they are shown to a language model: what is
 * compiled, and no more. */
#ifndef WHET_SPECIALIZER_AGENT_AGENT_HEADER_H
#define WHET_SPECIALIZER_AGENT_AGENT_HEADER_H

#include <stdbool.h>
#include <stdint.h>

/* The text without licence, include guard, what it includes in turn, and the branches of conditions
 * on ISA that another instruction set compiles. Other conditions stay as they are written, and all
 * of them where isa < 0. Caller frees. */
char *agent_header(const char *text, int32_t isa);

/* Whether a header by its name is of another instruction set alone. Never where isa < 0. */
bool agent_header_is_of_others(const char *name, int32_t isa);

#endif
