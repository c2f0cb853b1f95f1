/* SPDX-License-Identifier: Apache-2.0 */
/* agent_sass.h - the instructions of a language model's kernel, as bytes.
 *
 * On a GPU a text shares a context with everything that serves, so after its words (agent_text.h)
 * and its symbols (agent_cubin.h) its machine code is read, for what has no place in a function of
 * its inputs. Pure; any thread. */
#ifndef WHET_SPECIALIZER_AGENT_AGENT_SASS_H
#define WHET_SPECIALIZER_AGENT_AGENT_SASS_H

#include <stddef.h>

#include "config/err.h"

/* 0; or -1 naming the first instruction that reads a clock or a place (which multiprocessor, which
 * counter), sleeps, traps, uses textures or surfaces, or calls through a register. `code`: a .text
 * section of compute capability 7.0 or later. */
int agent_sass_inspect(const void *code, size_t n, struct err *err);

#endif
