/* agent_text.c - see agent_text.h.
 *
 * A tokenizer that must not see other tokens than the compiler does, or a rule could be walked
 * around. So whatever makes C's early phases surprising is a rule of its own: no backslash outside
 * a character constant (it joins lines), no digraphs or trigraphs, no # or ## operator (pasting
 * makes names that stand nowhere), no bytes but ASCII outside comments. After that a token is what
 * it looks like, and the rest is lists.
 */
#include "specializer/agent/agent_text.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "specializer/agent/agent_words.h"

enum kind { NAME, NUMBER, CHARACTER, PUNCTUATION, END };

struct token {
    enum kind kind;
    const char *at;
    size_t n;
    int line;
    bool first; /* of its line */
};

struct reader {
    const char *at, *end;
    int line;
    bool first;
    enum agent_language language;
    struct err *err;
    char open[256]; /* brackets that wait for their other half */
    int depth;
};

static bool is(const struct token *t, const char *text)
{
    return t->n == strlen(text) && memcmp(t->at, text, t->n) == 0;
}

/* ---- refusals ------------------------------------------------------------------------------ */

static int refuse(const struct reader *r, int line, const char *rule, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static int refuse(const struct reader *r, int line, const char *rule, const char *fmt, ...)
{
    char what[160];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    for (char *c = what; *c; c++)
        if (*c < 0x20 || *c > 0x7e)
            *c = '?';
    return err_set(r->err, "line %d: rule %s: %s", line, rule, what);
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
static bool skip_comment(struct reader *r, bool block)
{
    for (; r->at < r->end; r->at++) {
        if (block && r->at + 1 < r->end && r->at[0] == '*' && r->at[1] == '/') {
            r->at += 2;
            return true;
        }
        if (*r->at == '\n') {
            if (!block)
                return true;
            r->line++;
        }
    }
    return !block;
}

/* A backslash with nothing but blanks behind it joins two lines, in comments too. */
static int check_joins(struct reader *r, const char *text, size_t n)
{
    int line = 1;
    for (size_t i = 0; i < n; i++) {
        size_t k = i + 1;
        line += text[i] == '\n';
        if (text[i] != '\\')
            continue;
        while (k < n && (text[k] == ' ' || text[k] == '\t' || text[k] == '\r'))
            k++;
        if (k == n || text[k] == '\n')
            return refuse(r, line, "backslash", "a line may not be continued");
    }
    return 0;
}

/* Blanks and comments. 0 or -1. */
static int skip_blank(struct reader *r)
{
    while (r->at < r->end) {
        char c = *r->at;
        if (c == '\n') {
            r->line++;
            r->first = true;
            r->at++;
        } else if (c == ' ' || c == '\t') {
            r->at++;
        } else if (c == '/' && r->at + 1 < r->end && (r->at[1] == '/' || r->at[1] == '*')) {
            int line = r->line;
            r->at += 2;
            if (!skip_comment(r, r->at[-1] == '*'))
                return refuse(r, line, "comment", "it has no end");
        } else {
            break;
        }
    }
    return 0;
}

static int read_character(struct reader *r, struct token *t)
{
    for (r->at++; r->at < r->end && *r->at != '\'' && *r->at != '\n'; r->at++)
        if (*r->at == '\\' && r->at + 1 < r->end && r->at[1] != '\n')
            r->at++;
    if (r->at == r->end || *r->at != '\'')
        return refuse(r, t->line, "character", "a character constant has no end");
    r->at++;
    t->kind = CHARACTER;
    return 0;
}

static void read_number(struct reader *r)
{
    while (r->at < r->end && (is_letter(*r->at) || is_digit(*r->at) || *r->at == '.' ||
                              ((*r->at == '+' || *r->at == '-') && strchr("eEpP", r->at[-1]))))
        r->at++;
}

static int read_punctuation(struct reader *r, struct token *t)
{
    static const char *const early[] = {"<:", ":>", "<%", "%>", "%:", "??", "[["};
    char c = *r->at;
    for (size_t i = 0; i < sizeof early / sizeof *early; i++)
        if (r->end - r->at >= 2 && memcmp(r->at, early[i], 2) == 0)
            return refuse(r, t->line, "spelling", "%s", early[i]);
    if (c == '"')
        return refuse(r, t->line, "string", "string literals have no use in a kernel");
    if (c == '\\')
        return refuse(r, t->line, "backslash", "outside a character constant");
    if (!strchr("{}[]()<>;:,.?~!%^&*-+=|/#", c))
        return refuse(r, t->line, "character", "byte 0x%02x", (unsigned)(unsigned char)c);
    r->at++;
    t->kind = PUNCTUATION;
    return 0;
}

/* The next token; END behind the last. 0 or -1. */
static int next(struct reader *r, struct token *t)
{
    if (skip_blank(r) != 0)
        return -1;
    *t = (struct token){.kind = END, .at = r->at, .line = r->line, .first = r->first};
    r->first = false;
    if (r->at == r->end)
        return 0;
    char c = *r->at;
    int rc = 0;
    if (is_letter(c)) {
        t->kind = NAME;
        while (r->at < r->end && (is_letter(*r->at) || is_digit(*r->at)))
            r->at++;
    } else if (is_digit(c) || (c == '.' && r->at + 1 < r->end && is_digit(r->at[1]))) {
        t->kind = NUMBER;
        read_number(r);
    } else if (c == '\'') {
        rc = read_character(r, t);
    } else {
        rc = read_punctuation(r, t);
    }
    t->n = (size_t)(r->at - t->at);
    return rc;
}

/* ---- rules --------------------------------------------------------------------------------- */

static int check_plain(struct reader *r, const struct token *t)
{
    const char *rule = word_forbidden(t->at, t->n);
    return rule ? refuse(r, t->line, rule, "%.*s", (int)t->n, t->at) : 0;
}

/* __attribute__((a, b(...))): every name directly inside is of the list. Stands behind the word. */
static int check_attribute(struct reader *r, int line)
{
    struct token t;
    int depth = 0;
    do {
        if (next(r, &t) != 0)
            return -1;
        if (t.kind == END || (depth == 0 && !is(&t, "(")))
            return refuse(r, line, "attribute", "__attribute__((...)) and nothing else");
        depth += is(&t, "(") ? 1 : is(&t, ")") ? -1 : 0;
        bool ok = t.kind != NAME || word_attribute(t.at, t.n) || (depth > 2 && t.at[0] != '_');
        if (!ok)
            return refuse(r, t.line, "attribute", "%.*s", (int)(t.n < 60 ? t.n : 60), t.at);
        if (t.kind == NAME && check_plain(r, &t) != 0)
            return -1;
    } while (depth > 0);
    return 0;
}

/* Over the (...) behind __align__ and its like. */
static int skip_parentheses(struct reader *r)
{
    struct token t;
    int depth = 0;
    do {
        if (next(r, &t) != 0)
            return -1;
        depth += is(&t, "(") ? 1 : is(&t, ")") ? -1 : 0;
    } while (depth > 0 && t.kind != END);
    return 0;
}

/* CUDA, behind __device__ or static: what is declared is a function or a constant of the compiler.
 * A variable would outlive the launch, and the cubin would be refused for it (agent_cubin.c), but
 * there nobody can say in which line. */
static int check_declared(const struct reader *r, const struct token *word)
{
    struct reader ahead = *r;
    struct token t;
    while (next(&ahead, &t) == 0 && t.kind != END) {
        if (is(&t, "constexpr") || is(&t, "("))
            return 0;
        if (is(&t, ";") || is(&t, "=") || is(&t, "[") || is(&t, "{"))
            return refuse(r, word->line, "state", "a %.*s variable outlives the launch",
                          (int)word->n, word->at);
        if ((is(&t, "__align__") || is(&t, "__attribute__")) && skip_parentheses(&ahead) != 0)
            break;
    }
    return 0; /* the end, or a token that the main loop refuses in its turn */
}

static int check_name(struct reader *r, const struct token *t)
{
    bool declares = r->language == AGENT_CUDA && (is(t, "static") || is(t, "__device__"));
    if (t->at[0] != '_' && check_plain(r, t) != 0)
        return -1;
    if (t->at[0] == '_' && !word_reserved(t->at, t->n, r->language))
        return refuse(r, t->line, "name", "%.*s is not on the list of names a kernel may use",
                      (int)(t->n < 60 ? t->n : 60), t->at);
    if (declares)
        return check_declared(r, t);
    return is(t, "__attribute__") ? check_attribute(r, t->line) : 0;
}

/* Behind the # of a directive. */
static int check_directive(struct reader *r, int line)
{
    struct token t;
    if (next(r, &t) != 0)
        return -1;
    if (t.kind != NAME || t.line != line)
        return refuse(r, line, "directive", "only macros, conditions and #pragma unroll");
    if (is(&t, "define") || is(&t, "undef")) {
        if (next(r, &t) != 0)
            return -1;
        if (t.kind != NAME || t.at[0] == '_')
            return refuse(r, line, "directive", "a reserved name cannot be defined");
        return check_name(r, &t);
    }
    if (word_directive(t.at, t.n))
        return 0;
    if (!is(&t, "pragma"))
        return refuse(r, line, "directive", "#%.*s", (int)(t.n < 60 ? t.n : 60), t.at);
    if (next(r, &t) == 0 && is(&t, "GCC") && next(r, &t) == 0 && t.line == line &&
        (is(&t, "unroll") || is(&t, "ivdep")))
        return 0;
    if (t.line == line && is(&t, "unroll"))
        return 0;
    return refuse(r, line, "directive", "#pragma other than unroll and ivdep");
}

static int check_bracket(struct reader *r, const struct token *t)
{
    static const char pairs[] = "()[]{}";
    const char *at = t->n == 1 ? strchr(pairs, *t->at) : NULL;
    if (!at)
        return 0;
    if ((at - pairs) % 2 == 0) {
        if (r->depth == (int)sizeof r->open)
            return refuse(r, t->line, "brackets", "nested deeper than %d", (int)sizeof r->open);
        r->open[r->depth++] = at[1];
        return 0;
    }
    if (r->depth == 0 || r->open[r->depth - 1] != *t->at)
        return refuse(r, t->line, "brackets", "%c without its other half", *t->at);
    r->depth--;
    return 0;
}

static int check_bytes(struct reader *r, const char *text, size_t n)
{
    int line = 1;
    if (n == 0)
        return refuse(r, 1, "size", "no text");
    if (n > AGENT_TEXT_MOST)
        return refuse(r, 1, "size", "%zu bytes, at most %d", n, AGENT_TEXT_MOST);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        line += c == '\n';
        if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f)
            return refuse(r, line, "character", "control character 0x%02x", c);
    }
    if (line > AGENT_LINES_MOST)
        return refuse(r, line, "size", "more than %d lines", AGENT_LINES_MOST);
    return check_joins(r, text, n);
}

int agent_text_check(const char *text, size_t n, enum agent_language language, struct err *err)
{
    struct reader r = {
        .at = text, .end = text + n, .line = 1, .first = true, .language = language, .err = err};
    struct token t;
    if (check_bytes(&r, text, n) != 0)
        return -1;
    for (;;) {
        int rc = next(&r, &t);
        if (rc != 0)
            return -1;
        if (t.kind == END)
            break;
        if (t.kind == NAME)
            rc = check_name(&r, &t);
        else if (is(&t, "#"))
            rc = t.first ? check_directive(&r, t.line)
                         : refuse(&r, t.line, "directive", "# inside a line");
        else if (t.kind == PUNCTUATION)
            rc = check_bracket(&r, &t);
        if (rc != 0)
            return -1;
    }
    return r.depth == 0 ? 0
                        : refuse(&r, r.line, "brackets", "a bracket is open at the end: %c missing",
                                 r.open[r.depth - 1]);
}
