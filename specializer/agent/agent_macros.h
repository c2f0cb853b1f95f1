/* SPDX-License-Identifier: Apache-2.0 */
/* agent_macros.h - the macros that a kernel's text defines.
 *
 * A text is judged by the tokens that it shows, so nothing may become another token behind the
 * reader's back: macros have names in capitals (no keyword, attribute, function or member of a
 * struct has), never a name of the frame, are never empty, hold whole pairs of brackets, never
 * mention themselves, and their bodies are read by the rules of the text. How many tokens they
 * expand to is bounded by what is computed here, without expanding anything. */
#ifndef WHET_SPECIALIZER_AGENT_AGENT_MACROS_H
#define WHET_SPECIALIZER_AGENT_AGENT_MACROS_H

#include "specializer/agent/agent_tokens.h"

enum { MACROS_MOST = 512, EXPANSION_MOST = 1 << 18 };

struct macro {
    const struct token *name;
    const struct token *param; /* names and the commas between them */
    struct token *body;
    int params, tokens; /* of param and body */
    bool takes;         /* arguments */
    bool pending;       /* its expansion is being counted */
    bool opens;         /* a parenthesis comes first in it */
    bool gone;          /* undefined, as far as the text is read */
    double base,
        slope; /* tokens it becomes: base + slope * tokens of its arguments; < 0: not known */
};

struct macros {
    struct macro macro[MACROS_MOST]; /* a name may have several */
    int n;
};

/* Reads the definition behind `#define`; `line` has the tokens behind it. */
int macros_define(struct macros *m, const struct tokens *t, struct token *line, int n);
/* `name` is undefined from here on. */
int macros_undef(struct macros *m, const struct tokens *t, const struct token *name);

/* NULL: none has that name. */
const struct macro *macro_find(const struct macros *m, const struct token *name);
/* The text has undefined it, and not defined it again. */
bool macro_gone(const struct macros *m, const struct token *name);
bool macro_has_param(const struct macro *m, const struct token *name);
/* In the expansion of `t` a parenthesis comes first; `in`: the macro whose body it stands in. */
bool macro_opens(const struct macros *m, const struct macro *in, const struct token *t);
/* It stands for a type: (VEC)x. */
bool macro_is_type(const struct macros *m, const struct token *name,
                   bool (*type)(const void *ctx, const struct token *t), const void *ctx);

/* 0 if the tokens outside of directives become at most EXPANSION_MOST. Finds macros that lead to
 * themselves. Tokens are paired. */
int macros_expand(struct macros *m, const struct tokens *t, const struct token *code, int n);

#endif
