/* SPDX-License-Identifier: Apache-2.0 */
/* tokens.h - C text as tokens, and the few questions about their neighbourhood that edits ask.
 *
 * An index that is no token's is allowed everywhere and is none of the things asked for. One
 * thread; the tokens borrow `text`.
 */
#ifndef WHET_TESTS_KERNELS_MUTANTS_TOKENS_H
#define WHET_TESTS_KERNELS_MUTANTS_TOKENS_H

#include <stdbool.h>
#include <stddef.h>

enum token_kind { WORD, NUMBER, MARK, TEXT };
struct token {
    enum token_kind kind;
    size_t at, n;
    int line;
    int mate; /* of brackets: the index of the other one; else -1 */
};

struct tokens {
    const char *text;
    struct token *t;
    int n;
};

void tokens_open(struct tokens *s, const char *text);
void tokens_close(struct tokens *s);

bool is(const struct tokens *s, int i, const char *what);
bool is_one_of(const struct tokens *s, int i, const char *const *list); /* that ends with NULL */
bool is_type(const struct tokens *s, int i);
bool is_keyword(const struct tokens *s, int i); /* if, for, return, ... */
/* Ends a value: what an operator after it takes as its left side. */
bool ends_value(const struct tokens *s, int i);
/* The token after the simple operand that begins at i: a name or number with its indices, members
 * and arguments, or brackets. i itself if there is none. */
int after_operand(const struct tokens *s, int i);
/* Where an expression that begins at i ends: at a comma, semicolon or bracket of its own level. */
int after_expression(const struct tokens *s, int i);

/* Tokens [from, to) for printf's %.*s. */
#define SPAN(s, from, to) \
    (int)((s)->t[(to)-1].at + (s)->t[(to)-1].n - (s)->t[from].at), (s)->text + (s)->t[from].at

#endif
