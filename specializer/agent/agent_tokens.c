/* SPDX-License-Identifier: Apache-2.0 */
/* agent_tokens.c - see agent_tokens.h. */
#include "specializer/agent/agent_tokens.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/utf8.h"

enum { BRACKETS_MOST = 256, MESSAGE_MOST = 200 };

struct lexer {
    const char *at, *end;
    int line;
    bool first, apart;
    bool message; /* the last token was one: its assertion's parenthesis closes behind it */
    struct tokens *out;
};

/* ---- refusals ------------------------------------------------------------------------------ */

int text_refuse(const struct tokens *t, int line, const char *rule, const char *fmt, ...)
{
    char what[200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    for (char *c = what; *c; c++)
        if (*c < 0x20 || *c > 0x7e)
            *c = '?';
    return err_set(t->err, "line %d: rule %s: %s", line, rule, what);
}

int token_refuse(const struct tokens *t, const struct token *at, const char *rule, const char *why)
{
    return text_refuse(t, at->line, rule, "%.*s%s%s", at->n < 60 ? at->n : 60, at->at,
                       *why ? " " : "", why);
}

bool token_is(const struct token *t, const char *text)
{
    return (size_t)t->n == strlen(text) && memcmp(t->at, text, (size_t)t->n) == 0;
}

bool token_same(const struct token *a, const struct token *b)
{
    return a->n == b->n && memcmp(a->at, b->at, (size_t)a->n) == 0;
}

/* ---- bytes --------------------------------------------------------------------------------- */

/* A character that turns the direction of writing or ends a line for some readers and not for
 * others: the text would not be what a person sees. */
static bool is_steering(uint32_t cp)
{
    return (cp >= 0x7f && cp <= 0x9f) || cp == 0x61c || cp == 0x200e || cp == 0x200f ||
           (cp >= 0x2028 && cp <= 0x202e) || (cp >= 0x2066 && cp <= 0x2069) || cp == 0xfeff;
}

/* A backslash with nothing but blanks behind it joins two lines, in comments too. */
static int check_join(const struct tokens *t, const char *at, const char *end, int line)
{
    const char *k = at + 1;
    while (k < end && (*k == ' ' || *k == '\t'))
        k++;
    return k == end || *k == '\n' ? text_refuse(t, line, "backslash", "a line may not be continued")
                                  : 0;
}

static int check_bytes(const struct tokens *t, const char *text, size_t n)
{
    int line = 1;
    if (n == 0)
        return text_refuse(t, 1, "size", "no text");
    if (n > AGENT_TEXT_MOST)
        return text_refuse(t, 1, "size", "%zu bytes, at most %d", n, AGENT_TEXT_MOST);
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        int k = utf8_decode(text + i, n - i, &cp);
        if (k <= 0 || is_steering(cp) || (cp < 0x20 && cp != '\n' && cp != '\t'))
            return text_refuse(t, line, "character", "control or damaged character, byte 0x%02x",
                               (unsigned)(unsigned char)text[i]);
        line += cp == '\n';
        if (cp == '\\' && check_join(t, text + i, text + n, line) != 0)
            return -1;
        i += (size_t)k;
    }
    if (line > AGENT_LINES_MOST)
        return text_refuse(t, line, "size", "more than %d lines", AGENT_LINES_MOST);
    return 0;
}

/* ---- tokens -------------------------------------------------------------------------------- */

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Behind a comment's opening; true if it has an end. */
static bool skip_comment(struct lexer *x, bool block)
{
    for (; x->at < x->end; x->at++) {
        if (block && x->at + 1 < x->end && x->at[0] == '*' && x->at[1] == '/') {
            x->at += 2;
            return true;
        }
        if (*x->at == '\n') {
            if (!block)
                return true;
            x->line++;
        }
    }
    return !block;
}

/* Blanks and comments. A line's end in a comment ends no directive, and makes no token the first
 * of its line. */
static int skip_blank(struct lexer *x)
{
    x->apart = false;
    for (; x->at < x->end; x->apart = true) {
        char c = *x->at;
        if (c == '\n') {
            x->line++;
            x->first = true;
            x->at++;
        } else if (c == ' ' || c == '\t') {
            x->at++;
        } else if (c == '/' && x->at + 1 < x->end && (x->at[1] == '/' || x->at[1] == '*')) {
            int line = x->line;
            x->at += 2;
            if (!skip_comment(x, x->at[-1] == '*'))
                return text_refuse(x->out, line, "comment", "it has no end");
        } else {
            break;
        }
    }
    return 0;
}

/* One character or one simple escape between quotes. */
static int read_character(struct lexer *x, struct token *t)
{
    const char *c = x->at + 1;
    bool escaped = c < x->end && *c == '\\';
    c += escaped;
    if (c + 1 >= x->end || *c < 0x20 || *c > 0x7e || c[1] != '\'' ||
        (escaped ? !strchr("abfnrtv0'\"\\", *c) : *c == '\''))
        return text_refuse(x->out, t->line, "character",
                           "a character constant is one character or a simple escape");
    x->at = c + 2;
    /* C++ has literals of one's own, 'a'x, and one token where C has two. */
    if (x->at < x->end && (is_letter(*x->at) || is_digit(*x->at) || *x->at == '\''))
        return text_refuse(x->out, t->line, "spelling", "a name directly behind a quote");
    t->kind = LEXEME_CHARACTER;
    return 0;
}

static bool all_of(const char *at, const char *end, const char *set)
{
    for (; at < end; at++)
        if (!strchr(set, *at))
            return false;
    return true;
}

static const char *skip_of(const char *at, const char *end, const char *set)
{
    while (at < end && *at && strchr(set, *at))
        at++;
    return at;
}

/* What is left of a number behind its digits, point and exponent is a suffix of the language: no
 * digit separator, no literal of the text's own, no other kind of number. */
static bool is_number(const char *at, const char *end)
{
    bool hex = end - at > 2 && at[0] == '0' && (at[1] == 'x' || at[1] == 'X');
    bool binary = end - at > 2 && at[0] == '0' && (at[1] == 'b' || at[1] == 'B');
    const char *digits = hex ? "0123456789abcdefABCDEF" : binary ? "01" : "0123456789";
    const char *c = skip_of(hex || binary ? at + 2 : at, end, digits);
    if (c < end && *c == '.')
        c = skip_of(c + 1, end, digits);
    if (c < end && (*c == (hex ? 'p' : 'e') || *c == (hex ? 'P' : 'E'))) {
        c += c + 1 < end && (c[1] == '+' || c[1] == '-') ? 2 : 1;
        if (c == end || !is_digit(*c))
            return false;
        c = skip_of(c, end, "0123456789");
    }
    return end - c <= 3 && all_of(c, end, "uUlLfF");
}

/* As long as the preprocessor's numbers are. */
static int read_number(struct lexer *x, struct token *t)
{
    while (x->at < x->end && (is_letter(*x->at) || is_digit(*x->at) || *x->at == '.' ||
                              ((*x->at == '+' || *x->at == '-') && strchr("eEpP", x->at[-1]))))
        x->at++;
    t->kind = LEXEME_NUMBER;
    return is_number(t->at, x->at)
               ? 0
               : text_refuse(x->out, t->line, "number", "%.*s",
                             x->at - t->at < 60 ? (int)(x->at - t->at) : 60, t->at);
}

/* The next token is the last operand of a static assertion, outside of directives: there, and only
 * there, a string says something to a reader and nothing to the program. */
static bool is_message(const struct lexer *x)
{
    const struct tokens *t = x->out;
    int depth = 0, i = t->n - 1, line = i;
    while (line > 0 && !t->token[line].first)
        line--;
    if (i < 3 || !token_is(&t->token[i], ",") || (!x->first && token_is(&t->token[line], "#")))
        return false;
    for (; i > 0; i--) {
        const struct token *k = &t->token[i];
        depth += token_is(k, ")") || token_is(k, "]") || token_is(k, "}");
        if (!token_is(k, "(") && !token_is(k, "[") && !token_is(k, "{"))
            continue;
        if (depth-- == 0)
            return token_is(k, "(") &&
                   token_is(k - 1, t->language == AGENT_C ? "_Static_assert" : "static_assert");
    }
    return false;
}

static int read_message(struct lexer *x, struct token *t)
{
    const char *c = x->at + 1;
    if (!is_message(x))
        return text_refuse(x->out, t->line, "string",
                           "a string literal is the message of a static assertion or nothing");
    while (c < x->end && *c >= 0x20 && *c <= 0x7e && !strchr("\"\\", *c))
        c++;
    if (c == x->end || *c != '"' || c - x->at > MESSAGE_MOST)
        return text_refuse(x->out, t->line, "string",
                           "a message is at most %d plain characters on one line", MESSAGE_MOST);
    x->at = c + 1;
    x->message = true;
    t->kind = LEXEME_MESSAGE;
    return 0;
}

static int read_punctuation(struct lexer *x, struct token *t)
{
    static const char *const early[] = {"<:", ":>", "<%", "%>", "%:", "??"};
    static const char *const longer[] = {"->", "--", "++"};
    char c = *x->at;
    for (size_t i = 0; i < sizeof early / sizeof *early; i++)
        if (x->end - x->at >= 2 && memcmp(x->at, early[i], 2) == 0)
            return text_refuse(x->out, t->line, "spelling", "%s", early[i]);
    if (c == '\\')
        return text_refuse(x->out, t->line, "backslash", "outside a character constant");
    if (!c || !strchr("{}[]()<>;:,.?~!%^&*-+=|/#", c))
        return text_refuse(x->out, t->line, "character", "byte 0x%02x", (unsigned)(unsigned char)c);
    x->at++;
    for (size_t i = 0; i < sizeof longer / sizeof *longer; i++)
        if (x->at < x->end && c == longer[i][0] && *x->at == longer[i][1]) {
            x->at++;
            break;
        }
    t->kind = LEXEME_PUNCTUATION;
    return 0;
}

static int read_token(struct lexer *x, struct token *t)
{
    char c = *x->at;
    int rc = 0;
    *t = (struct token){.at = x->at, .line = x->line, .first = x->first, .apart = x->apart};
    const bool message = x->message;
    x->message = false;
    if (message && c != ')')
        return text_refuse(x->out, t->line, "string", "the message of an assertion ends it");
    if (is_letter(c)) {
        t->kind = LEXEME_NAME;
        while (x->at < x->end && (is_letter(*x->at) || is_digit(*x->at)))
            x->at++;
    } else if (is_digit(c) || (c == '.' && x->at + 1 < x->end && is_digit(x->at[1]))) {
        rc = read_number(x, t);
    } else if (c == '\'') {
        rc = read_character(x, t);
    } else if (c == '"') {
        rc = read_message(x, t);
    } else {
        rc = read_punctuation(x, t);
    }
    x->first = false;
    t->n = (int)(x->at - t->at);
    /* A digit separator, or the prefix of a literal. */
    if (rc == 0 && (t->kind == LEXEME_NAME || t->kind == LEXEME_NUMBER) && x->at < x->end &&
        (*x->at == '\'' || *x->at == '"'))
        rc = text_refuse(x->out, t->line, "spelling", "a quote directly behind a name or number");
    return rc;
}

int tokens_read(struct tokens *out, const char *text, size_t n, enum agent_language language,
                struct err *err)
{
    struct lexer x = {.at = text, .end = text + n, .line = 1, .first = true, .out = out};
    int room = 0;
    *out = (struct tokens){.language = language, .err = err};
    if (check_bytes(out, text, n) != 0)
        return -1;
    for (;;) {
        if (skip_blank(&x) != 0)
            return -1;
        if (x.at == x.end)
            return 0;
        if (out->n == room) {
            room = room ? 2 * room : 256;
            out->token = xrealloc(out->token, (size_t)room * sizeof *out->token);
        }
        if (read_token(&x, &out->token[out->n]) != 0)
            return -1;
        out->n++;
    }
}

void tokens_free(struct tokens *t)
{
    free(t->token);
    t->token = NULL;
    t->n = 0;
}

int tokens_pair(const struct tokens *t, struct token *range, int n)
{
    static const char pairs[] = "()[]{}";
    int open[BRACKETS_MOST], depth = 0;
    for (int i = 0; i < n; i++) {
        const char *at = range[i].kind == LEXEME_PUNCTUATION && range[i].n == 1
                             ? strchr(pairs, *range[i].at)
                             : NULL;
        if (!at)
            continue;
        if ((at - pairs) % 2 == 0) {
            if (depth == BRACKETS_MOST)
                return text_refuse(t, range[i].line, "brackets", "nested deeper than %d",
                                   BRACKETS_MOST);
            open[depth++] = i;
            continue;
        }
        if (depth == 0 || *range[open[depth - 1]].at != at[-1])
            return text_refuse(t, range[i].line, "brackets", "%c without its other half", *at);
        depth--;
        range[i].pair = open[depth] - i;
        range[open[depth]].pair = i - open[depth];
    }
    if (depth == 0)
        return 0;
    const struct token *last = &range[open[depth - 1]];
    return text_refuse(t, last->line, "brackets", "a bracket is open at the end: %c missing",
                       strchr(pairs, *last->at)[1]);
}
