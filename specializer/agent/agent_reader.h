/* SPDX-License-Identifier: Apache-2.0 */
/* agent_reader.h - a kernel's text under inspection: what it defines, and a look at its tokens.
 *
 * agent_calls.c and agent_state.c read the same tokens in the same way: first all functions and
 * types that the text defines anywhere, then each token with its neighbours, in the code and in the
 * bodies of macros. Names are pointers into the tokens, which outlive the reader. One thread. */
#ifndef WHET_SPECIALIZER_AGENT_AGENT_READER_H
#define WHET_SPECIALIZER_AGENT_AGENT_READER_H

#include "specializer/agent/agent_macros.h"

enum { FUNCTIONS_MOST = 512, TYPES_MOST = 256 };

struct reader {
    const struct tokens *t;
    const struct macros *m;
    const struct token *function[FUNCTIONS_MOST], *type[TYPES_MOST];
    int functions, types;
    signed char begins[MACROS_MOST], ends[MACROS_MOST]; /* facts of macros: 1, -1, 0 unknown */
    /* Under inspection: code, or the body of a macro. */
    const struct token *code;
    const struct macro *in;
    int n;
};

/* Finds all functions and types of the code; -1 for a function with a name that is taken, or for
 * more of them than there is room for. */
int reader_define(struct reader *r);
/* The text defines a function of that name. */
bool reader_defines(const struct reader *r, const struct token *name);
/* ... or a type; a type's name, a macro that stands for one, or the word `struct`. */
bool reader_names_type(const struct reader *r, const struct token *name);
bool reader_is_type(const struct reader *r, const struct token *t);
/* What is between the parentheses at `open` is the name of a type, so they are a cast. */
bool reader_is_cast(const struct reader *r, int open);

static inline bool at(const struct reader *r, int i, const char *text)
{
    return i >= 0 && i < r->n && token_is(&r->code[i], text);
}

static inline bool is_name(const struct reader *r, int i)
{
    return i >= 0 && i < r->n && r->code[i].kind == LEXEME_NAME;
}

static inline bool is_tag_word(const struct reader *r, int i)
{
    return at(r, i, "struct") || at(r, i, "union") || at(r, i, "enum") || at(r, i, "class");
}

#endif
