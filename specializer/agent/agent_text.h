/* SPDX-License-Identifier: Apache-2.0 */
/* agent_text.h - what a kernel's text from a language model may say at all.
 *
 * Read token by token before any compiler sees it. The rules leave a language that can compute on
 * the memory it is given and nothing else: no directives but macros and conditions, no names from
 * outside a list, no assembly, no strings, no attributes that make the loader run code. What words
 * cannot show (state, symbols, instructions) the object is asked about (object.h), and what that
 * cannot show the sealed probe finds out. Pure; any thread.
 */
#ifndef WHET_SPECIALIZER_AGENT_AGENT_TEXT_H
#define WHET_SPECIALIZER_AGENT_AGENT_TEXT_H

#include <stddef.h>

#include "config/err.h"

enum agent_language { AGENT_C, AGENT_CUDA };

enum { AGENT_TEXT_MOST = 64 * 1024, AGENT_LINES_MOST = 2000 };

/* 0; or -1 with the first rule broken and its line: "line 12: rule assembly: asm". */
int agent_text_check(const char *text, size_t n, enum agent_language language, struct err *err);

#endif
