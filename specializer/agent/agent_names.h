/* SPDX-License-Identifier: Apache-2.0 */
/* agent_names.h - the names that a kernel's text finds in place: keywords, types, what it may call,
 * and the words of its frame. Pure; the words need no zero behind them.
 *
 * The lists of the frame's names must agree with the files that kernels/cpu/agent.c and
 * kernels/cuda/agent.cu include; tests/unit/specializer/agent/test_agent_names.c reads those and
 * says what is missing. */
#ifndef WHET_SPECIALIZER_AGENT_AGENT_NAMES_H
#define WHET_SPECIALIZER_AGENT_AGENT_NAMES_H

#include <stdbool.h>
#include <stddef.h>

#include "specializer/agent/agent_text.h"

bool name_keyword(const char *at, size_t n);
/* A parenthesis behind it belongs to the language: if (...), sizeof (...), return (...). */
bool name_takes_parentheses(const char *at, size_t n);
/* A type, or what stands with one: int, const, vf, __m512i, float4. */
bool name_type(const char *at, size_t n, enum agent_language language);
/* A function that is there: a helper of the frame, an intrinsic, a function of the maths library.
 * It may be called and not be named otherwise. */
bool name_callable(const char *at, size_t n, enum agent_language language);
/* A macro of the frame that takes arguments. */
bool name_frame_macro(const char *at, size_t n, enum agent_language language);
/* A constant, macro or description of the frame, which a text may not define again. */
bool name_frame(const char *at, size_t n, enum agent_language language);
/* A macro by which a text tells the frame about itself: THREADS, PACKED. */
bool name_told(const char *at, size_t n, enum agent_language language);

#endif
