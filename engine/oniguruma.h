/* SPDX-License-Identifier: Apache-2.0 */
/* oniguruma.h - pre-tokenizer patterns are written for Oniguruma; PCRE2 is what we run. */
#ifndef WHET_ENGINE_ONIGURUMA_H
#define WHET_ENGINE_ONIGURUMA_H

#include "config/err.h"

/* The PCRE2 pattern (for PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE) that matches what `pattern`
 * matches in Oniguruma's Ruby syntax; malloc'ed. It has a callout wherever a match can go on in
 * more than one way. NULL with a message for a construct that the two read differently and that is
 * not translated (a wrong cut would be a silent error), or that does more than match. */
char *oniguruma_to_pcre2(const char *pattern, struct err *err);

#endif
