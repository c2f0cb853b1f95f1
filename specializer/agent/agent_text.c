/* SPDX-License-Identifier: Apache-2.0 */
/* agent_text.c - see agent_text.h.
 *
 * In this order: the tokens (agent_tokens.c), directives and the brackets around them, the words
 * (agent_words.c), macros (agent_macros.c), calls (agent_calls.c). Branches of conditions are all
 * read, as if none was left out, so none may open or close a bracket that is not its own.
 */
#include "specializer/agent/agent_text.h"

#include <stdlib.h>

#include "specializer/agent/agent_calls.h"
#include "specializer/agent/agent_macros.h"
#include "specializer/agent/agent_tokens.h"
#include "specializer/agent/agent_words.h"

enum { CONDITIONS_MOST = 32, BRACKETS_MOST = 256 };

struct text {
    struct tokens t;
    struct token *code; /* what is outside of directives */
    int n;
    struct macros macros;
    char open[BRACKETS_MOST]; /* brackets around the token that is read */
    int depth;
    int floor[CONDITIONS_MOST]; /* depths at which conditions were opened */
    int conditions;
};

/* ---- words --------------------------------------------------------------------------------- */

/* __attribute__((a, b(...))): every name directly inside is of the list. Returns how many tokens
 * it has behind the word, or -1. */
static int check_attribute(const struct tokens *t, const struct token *word, int n)
{
    int depth = 0, i = 1;
    for (; i < n && (depth > 0 || i == 1); i++) {
        const struct token *k = &word[i];
        depth += token_is(k, "(") ? 1 : token_is(k, ")") ? -1 : 0;
        if (i <= 2 && !token_is(k, "("))
            break;
        bool name = k->kind == LEXEME_NAME;
        bool plain = name || k->kind == LEXEME_NUMBER || token_is(k, "(") || token_is(k, ")") ||
                     token_is(k, ",") || token_is(k, "*") || token_is(k, "+");
        if (!plain)
            return token_refuse(t, k, "attribute", "has no place in one");
        if (name && !word_attribute(k->at, (size_t)k->n) && (depth <= 2 || k->at[0] == '_'))
            return token_refuse(t, k, "attribute", "");
        const char *rule = name ? word_forbidden(k->at, (size_t)k->n, t->language) : NULL;
        if (rule)
            return token_refuse(t, k, rule, "");
        if (depth == 0)
            return i;
    }
    return text_refuse(t, word->line, "attribute", "__attribute__((...)) and nothing else");
}

/* CUDA, behind __device__ or static: what is declared is a function or a constant of the compiler.
 * A variable would outlive the launch, and the cubin would be refused for it (agent_cubin.c), but
 * there nobody can say in which line. */
static int check_declared(const struct tokens *t, const struct token *word, int n)
{
    for (int i = 1; i < n; i++) {
        const struct token *k = &word[i];
        if (token_is(k, "__align__") || token_is(k, "alignas") || token_is(k, "__attribute__")) {
            int depth = 0;
            do {
                i++;
                depth += i < n && token_is(&word[i], "(")   ? 1
                         : i < n && token_is(&word[i], ")") ? -1
                                                            : 0;
            } while (i < n && depth > 0);
            continue;
        }
        if (token_is(k, "constexpr") || token_is(k, "("))
            return 0;
        if (token_is(k, ";") || token_is(k, "=") || token_is(k, "[") || token_is(k, "{"))
            return text_refuse(t, word->line, "state", "a %.*s variable outlives the launch",
                               word->n, word->at);
    }
    return 0;
}

/* How many tokens behind the word were read with it, or -1. */
static int check_word(const struct tokens *t, const struct token *word, int n)
{
    const size_t k = (size_t)word->n;
    const char *rule = word_forbidden(word->at, k, t->language);
    if (rule)
        return token_refuse(t, word, rule, "");
    if (word->at[0] == '_' && !word_reserved(word->at, k, t->language))
        return token_refuse(t, word, "name", "is not on the list of names a kernel may use");
    if (t->language == AGENT_CUDA && (token_is(word, "static") || token_is(word, "__device__")))
        return check_declared(t, word, n);
    return token_is(word, "__attribute__") ? check_attribute(t, word, n) : 0;
}

static int check_words(const struct tokens *t, const struct token *token, int n)
{
    for (int i = 0; i < n; i++) {
        int more = token[i].kind == LEXEME_NAME ? check_word(t, &token[i], n - i) : 0;
        if (more < 0)
            return -1;
        i += more;
    }
    return 0;
}

/* ---- directives ---------------------------------------------------------------------------- */

static int check_condition(struct text *x, const struct token *word, const struct token *rest,
                           int n)
{
    const struct tokens *t = &x->t;
    bool opens = token_is(word, "if") || token_is(word, "ifdef") || token_is(word, "ifndef");
    for (int i = 0; i < n; i++)
        if (token_is(&rest[i], "#"))
            return text_refuse(t, word->line, "directive", "# inside a line");
    if (check_words(t, rest, n) != 0)
        return -1;
    if (opens) {
        if (x->conditions == CONDITIONS_MOST)
            return text_refuse(t, word->line, "directive", "conditions nested deeper than %d",
                               CONDITIONS_MOST);
        x->floor[x->conditions++] = x->depth;
        return 0;
    }
    if (x->conditions == 0)
        return token_refuse(t, word, "directive", "without #if");
    if (x->floor[x->conditions - 1] != x->depth)
        return token_refuse(t, word, "brackets", "comes before a bracket of its branch is closed");
    x->conditions -= token_is(word, "endif");
    return 0;
}

static int check_pragma(const struct tokens *t, const struct token *rest, int n)
{
    bool gcc = n > 0 && token_is(rest, "GCC");
    if (n > gcc && (token_is(&rest[gcc], "unroll") || (gcc && token_is(&rest[gcc], "ivdep"))))
        return check_words(t, rest, n);
    return text_refuse(t, n > 0 ? rest->line : 0, "directive",
                       "#pragma other than unroll and ivdep");
}

/* The line of `n` tokens behind a #. */
static int check_directive(struct text *x, struct token *line, int n, int at)
{
    const struct tokens *t = &x->t;
    if (n == 0 || line->kind != LEXEME_NAME)
        return text_refuse(t, at, "directive", "only macros, conditions and #pragma unroll");
    if (x->depth > 0 && x->open[x->depth - 1] != '{')
        return token_refuse(t, line, "directive", "is inside of parentheses");
    if (!word_directive(line->at, (size_t)line->n) && !token_is(line, "pragma"))
        return text_refuse(t, at, "directive", "#%.*s", line->n < 60 ? line->n : 60, line->at);
    if (token_is(line, "pragma"))
        return n > 1 ? check_pragma(t, line + 1, n - 1)
                     : text_refuse(t, at, "directive", "#pragma other than unroll and ivdep");
    if (!token_is(line, "define") && !token_is(line, "undef"))
        return check_condition(x, line, line + 1, n - 1);
    if (n < 2)
        return text_refuse(t, at, "directive", "#%.*s of nothing", line->n, line->at);
    if (check_words(t, line + 2, n - 2) != 0)
        return -1;
    /* Before that it was something else, which the compiler would not replace. */
    for (int i = 0; i < x->n && token_is(line, "define"); i++)
        if (token_same(&x->code[i], &line[1]) && !macro_find(&x->macros, &line[1]))
            return token_refuse(t, &line[1], "macro", "is used before it is defined");
    if (token_is(line, "define"))
        return macros_define(&x->macros, t, line + 1, n - 1);
    return n == 2 ? macros_undef(&x->macros, t, line + 1)
                  : text_refuse(t, at, "directive", "#undef of more than a name");
}

/* Follows the brackets of code, so that directives know where they stand. */
static int follow_bracket(struct text *x, const struct token *k)
{
    if (k->kind != LEXEME_PUNCTUATION)
        return 0;
    if (token_is(k, "(") || token_is(k, "[") || token_is(k, "{")) {
        if (x->depth == BRACKETS_MOST)
            return text_refuse(&x->t, k->line, "brackets", "nested deeper than %d", BRACKETS_MOST);
        x->open[x->depth++] = *k->at;
    } else if (token_is(k, ")") || token_is(k, "]") || token_is(k, "}")) {
        if (x->depth == (x->conditions > 0 ? x->floor[x->conditions - 1] : 0))
            return text_refuse(&x->t, k->line, "brackets", "%c without its other half%s", *k->at,
                               x->conditions > 0 ? " in its branch" : "");
        x->depth--;
    }
    return 0;
}

/* Takes directives and code apart. */
static int split(struct text *x)
{
    const struct tokens *t = &x->t;
    for (int i = 0; i < t->n; i++) {
        if (!token_is(&t->token[i], "#")) {
            if (follow_bracket(x, &t->token[i]) != 0)
                return -1;
            if (t->token[i].kind == LEXEME_NAME && macro_gone(&x->macros, &t->token[i]))
                return token_refuse(t, &t->token[i], "macro", "is used after it was undefined");
            x->code[x->n++] = t->token[i];
            continue;
        }
        int from = i + 1, to = from;
        if (!t->token[i].first)
            return text_refuse(t, t->token[i].line, "directive", "# inside a line");
        while (to < t->n && !t->token[to].first)
            to++;
        if (check_directive(x, &t->token[from], to - from, t->token[i].line) != 0)
            return -1;
        i = to - 1;
    }
    return x->conditions == 0
               ? 0
               : text_refuse(t, t->token[t->n - 1].line, "directive", "a condition has no #endif");
}

/* ---- all of it ----------------------------------------------------------------------------- */

static int check(struct text *x)
{
    if (split(x) != 0)
        return -1;
    if (check_words(&x->t, x->code, x->n) != 0)
        return -1;
    if (tokens_pair(&x->t, x->code, x->n) != 0)
        return -1;
    if (macros_expand(&x->macros, &x->t, x->code, x->n) != 0)
        return -1;
    return calls_check(&x->t, &x->macros, x->code, x->n);
}

/* The text has no tokens from somewhere on. A word before that says more: asm("...") is assembly
 * before it is a string. */
static int refuse_broken(const struct tokens *t)
{
    for (int i = 0; i < t->n; i++) {
        const struct token *k = &t->token[i];
        const char *rule =
            k->kind == LEXEME_NAME ? word_forbidden(k->at, (size_t)k->n, t->language) : NULL;
        if (rule)
            return token_refuse(t, k, rule, "");
        if (token_is(k, "#") && k->first && i + 1 < t->n && !k[1].first &&
            !word_directive(k[1].at, (size_t)k[1].n) && !token_is(&k[1], "pragma"))
            return text_refuse(t, k->line, "directive", "#%.*s", k[1].n < 60 ? k[1].n : 60,
                               k[1].at);
        if (k->kind == LEXEME_NAME && k->at[0] == '_' &&
            !word_reserved(k->at, (size_t)k->n, t->language))
            return check_word(t, k, 1);
    }
    return -1;
}

int agent_text_check(const char *text, size_t n, enum agent_language language, struct err *err)
{
    struct text *x = xcalloc(1, sizeof *x);
    int rc = tokens_read(&x->t, text, n, language, err);
    if (rc == 0) {
        x->code = xcalloc((size_t)x->t.n + 1, sizeof *x->code);
        rc = check(x);
    } else {
        refuse_broken(&x->t);
    }
    free(x->code);
    tokens_free(&x->t);
    free(x);
    return rc;
}
