/* SPDX-License-Identifier: Apache-2.0 */
/* agent_tokens.h - a kernel's text as the tokens that a compiler would see.
 *
 * A tokenizer must not see other tokens than the compiler does, or a rule could be walked around.
 * So whatever makes C's early phases surprising is refused here: control characters, bytes beyond
 * ASCII outside comments, a backslash anywhere but in a character constant (it joins lines),
 * digraphs, trigraphs, string literals (but the message of a static assertion, which no code ever
 * sees), literals with prefixes, suffixes of one's own or digit separators. Pure; any thread. */
#ifndef WHET_SPECIALIZER_AGENT_AGENT_TOKENS_H
#define WHET_SPECIALIZER_AGENT_AGENT_TOKENS_H

#include <stdbool.h>
#include <stddef.h>

#include "specializer/agent/agent_text.h"

enum lexeme { LEXEME_NAME, LEXEME_NUMBER, LEXEME_CHARACTER, LEXEME_MESSAGE, LEXEME_PUNCTUATION };

/* Points into the text. Punctuation is one character, but for -> -- ++. */
struct token {
    enum lexeme kind;
    const char *at;
    int n, line;
    int pair;   /* of a bracket: how many tokens on its other half is, negative for a closing one */
    bool first; /* of its line */
    bool apart; /* something stands between it and the token before */
};

struct tokens {
    struct token *token;
    int n;
    enum agent_language language;
    struct err *err;
};

/* 0, or -1 with the rule broken. Free in either case. */
int tokens_read(struct tokens *t, const char *text, size_t n, enum agent_language language,
                struct err *err);
void tokens_free(struct tokens *t);

bool token_is(const struct token *t, const char *text);
/* The same letters. */
bool token_same(const struct token *a, const struct token *b);
/* Sets `pair` of every bracket in the range; -1 for one without its other half. */
int tokens_pair(const struct tokens *t, struct token *range, int n);

/* Returns -1, after "line 12: rule NAME: ..." went into the error. */
int text_refuse(const struct tokens *t, int line, const char *rule, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* The same, quoting a token: "line 12: rule NAME: token why". */
int token_refuse(const struct tokens *t, const struct token *at, const char *rule, const char *why);

#endif
