/* SPDX-License-Identifier: Apache-2.0 */
/* tokens.c - C text as tokens, and the few questions about their neighbourhood that edits ask.
 *
 * Working on tokens and not on a syntax tree keeps this small and lets it read headers full of
 * macros and intrinsics. Comments and directives are no tokens; a string is one. Brackets know
 * their mates, so that an expression can be stepped over without being understood.
 */
#include "tests/kernels/mutants/tokens.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"

static const char *const marks[] = {"<<=", ">>=", "...", "->", "++", "--", "<<", ">>",
                                    "<=",  ">=",  "==",  "!=", "&&", "||", "+=", "-=",
                                    "*=",  "/=",  "%=",  "&=", "|=", "^="};

static size_t mark_length(const char *p)
{
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (strncmp(p, marks[i], strlen(marks[i])) == 0)
            return strlen(marks[i]);
    return 1;
}

static bool word_char(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

static size_t literal_length(const char *p)
{
    size_t n = 1;
    while (p[n] && p[n] != *p)
        n += p[n] == '\\' ? 2 : 1;
    return n + 1;
}

static size_t number_length(const char *p)
{
    size_t n = 0;
    while (word_char(p[n]) || p[n] == '.' ||
           ((p[n] == '+' || p[n] == '-') && n > 0 && strchr("eEpP", p[n - 1]) &&
            (p[1] == 'x' ? strchr("pP", p[n - 1]) != NULL : true)))
        n++;
    return n;
}

/* Bytes of white space, comment or directive at p; 0: a token begins. */
static size_t skip_length(const char *p, bool line_start)
{
    size_t n = 0;
    if (isspace((unsigned char)*p))
        return 1;
    if (p[0] == '/' && p[1] == '/')
        return strcspn(p, "\n");
    if (p[0] == '/' && p[1] == '*') {
        const char *end = strstr(p + 2, "*/");
        return end ? (size_t)(end - p) + 2 : strlen(p);
    }
    if (*p != '#' || !line_start)
        return 0;
    for (; p[n] && p[n] != '\n'; n++)
        if (p[n] == '\\' && p[n + 1] == '\n')
            n++;
    return n;
}

static void match_brackets(struct tokens *s)
{
    int *open = xcalloc((size_t)s->n + 1, sizeof *open), depth = 0;
    for (int i = 0; i < s->n; i++) {
        char c = s->text[s->t[i].at];
        if (s->t[i].kind != MARK)
            continue;
        if (strchr("([{", c))
            open[depth++] = i;
        else if (strchr(")]}", c) && depth > 0) {
            s->t[i].mate = open[--depth];
            s->t[open[depth]].mate = i;
        }
    }
    free(open);
}

void tokens_open(struct tokens *s, const char *text)
{
    int line = 1;
    bool fresh = true;
    *s = (struct tokens){.text = text};
    s->t = xcalloc(strlen(s->text) + 1, sizeof *s->t);
    for (const char *p = s->text; *p;) {
        size_t skip = skip_length(p, fresh), n = skip;
        if (!skip) {
            struct token *t = &s->t[s->n++];
            t->kind = isdigit((unsigned char)*p) ? NUMBER
                      : word_char(*p)            ? WORD
                      : *p == '"' || *p == '\''  ? TEXT
                                                 : MARK;
            n = t->kind == NUMBER ? number_length(p)
                : t->kind == TEXT ? literal_length(p)
                : t->kind == MARK ? mark_length(p)
                                  : strspn(p, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                              "0123456789_");
            t->at = (size_t)(p - s->text);
            t->n = n;
            t->line = line;
            t->mate = -1;
            fresh = false;
        }
        for (size_t i = 0; i < n && p[i]; i++) {
            line += p[i] == '\n';
            fresh = p[i] == '\n' || (fresh && isspace((unsigned char)p[i]));
        }
        p += n;
    }
    match_brackets(s);
}

bool is(const struct tokens *s, int i, const char *what)
{
    return i >= 0 && i < s->n && s->t[i].n == strlen(what) &&
           memcmp(s->text + s->t[i].at, what, s->t[i].n) == 0;
}

bool is_one_of(const struct tokens *s, int i, const char *const *list)
{
    for (; *list; list++)
        if (is(s, i, *list))
            return true;
    return false;
}

static const char *const types[] = {
    "const",     "int",      "float",    "double",  "void",     "char",    "short",
    "long",      "unsigned", "struct",   "static",  "bool",     "vf",      "int8_t",
    "uint8_t",   "int16_t",  "uint16_t", "int32_t", "uint32_t", "int64_t", "uint64_t",
    "size_t",    "__m512",   "__m512i",  "__m256",  "__m256i",  "__m128",  "__m128i",
    "__mmask16", "enum",     "restrict", "union",   "INLINE",   NULL};
static const char *const words_of_c[] = {"if",     "for",     "while",    "return", "else",
                                         "sizeof", "break",   "continue", "do",     "switch",
                                         "case",   "default", "goto",     NULL};

bool is_type(const struct tokens *s, int i)
{
    return is_one_of(s, i, types);
}

bool is_keyword(const struct tokens *s, int i)
{
    return is_one_of(s, i, words_of_c);
}

bool ends_value(const struct tokens *s, int i)
{
    if (i < 0)
        return false;
    return s->t[i].kind == NUMBER || is(s, i, ")") || is(s, i, "]") ||
           (s->t[i].kind == WORD && !is_type(s, i) && !is_keyword(s, i));
}

int after_operand(const struct tokens *s, int i)
{
    int j = i;
    if (is(s, j, "("))
        j = s->t[j].mate + 1;
    else if (j < s->n && (s->t[j].kind == WORD || s->t[j].kind == NUMBER) && !is_type(s, j))
        j++;
    else
        return i;
    for (;;) {
        if ((is(s, j, "(") || is(s, j, "[")) && s->t[j].mate > j)
            j = s->t[j].mate + 1;
        else if (is(s, j, ".") || is(s, j, "->"))
            j += 2;
        else
            return j;
    }
}

int after_expression(const struct tokens *s, int i)
{
    for (; i < s->n && !is(s, i, ",") && !is(s, i, ";") && !is(s, i, ":"); i++) {
        if (is(s, i, ")") || is(s, i, "]") || is(s, i, "}"))
            return i;
        if (s->t[i].mate > i)
            i = s->t[i].mate;
    }
    return i;
}

void tokens_close(struct tokens *s)
{
    free(s->t);
    s->t = NULL;
}
