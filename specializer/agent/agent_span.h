/* SPDX-License-Identifier: Apache-2.0 */
/* agent_span.h - the parts of a kernel's text that may be changed.
 *
 * A plan names spans of lines; the text is then shown with a marker line before and after each:
 *     // [span 1]
 *     ...
 *     // [end 1]
 * What comes back is the spans alone, or the same text, markers included, but for the lines inside.
 * A repair may also name lines, as the text is numbered for it:
 *     // [lines 14 to 15]
 *     ...
 *     // [end]
 * so that one character costs no more than its line. Pure.
 */
#ifndef WHET_SPECIALIZER_AGENT_AGENT_SPAN_H
#define WHET_SPECIALIZER_AGENT_AGENT_SPAN_H

#include "config/err.h"

enum { SPANS_MOST = 6 };

/* Lines first to last, counted from 1, both included. */
struct span_lines {
    int first, last;
};

/* The text with markers; NULL with a message if spans overlap, are out of order or of range.
 * Caller frees. */
char *span_mark(const char *text, const struct span_lines *span, int n, struct err *err);
/* The text without its markers. Caller frees. */
char *span_strip(const char *marked);
/* 0 if `after` is `before` but for lines inside spans (blanks at line ends do not count); -1 with
 * the first line that is not. */
int span_verify(const char *before, const char *after, struct err *err);
/* `before` as a reply changes it: the whole text, only spans (those that it leaves out stay), or
 * edits of lines inside spans, counted from 1 over `before` with its markers. Both in rising order,
 * none twice. NULL with a message if anything outside spans would change, or nothing is said.
 * Caller frees. */
char *span_apply(const char *before, const char *reply, struct err *err);
/* The text with a number in front of every line, as planners are shown it. Caller frees. */
char *span_number(const char *text);

#endif
