/* SPDX-License-Identifier: Apache-2.0 */
/* agent_words.h - single words in a kernel's text: which are refused, which reserved ones are not.
 * Pure; the words need no zero behind them. */
#ifndef WHET_SPECIALIZER_AGENT_AGENT_WORDS_H
#define WHET_SPECIALIZER_AGENT_AGENT_WORDS_H

#include <stdbool.h>
#include <stddef.h>

#include "specializer/agent/agent_text.h"

/* A row of the list, which ends with NULL, is the word; or its beginning if the row ends in a star.
 */
bool word_listed(const char *const *list, const char *at, size_t n);
/* The rule that a plain word breaks, or NULL. */
const char *word_forbidden(const char *at, size_t n, enum agent_language language);
/* A name that begins with an underscore may be used. */
bool word_reserved(const char *at, size_t n, enum agent_language language);
/* An attribute says something about data or speed alone; with or without __ around it. */
bool word_attribute(const char *at, size_t n);
/* A macro or a condition (#pragma is not among them). */
bool word_directive(const char *at, size_t n);

#endif
