/* mutate.c - a tokenizer, and one function an operator that looks at the tokens around a place.
 *
 * Working on tokens and not on a syntax tree keeps this small and lets it edit headers full of
 * macros and intrinsics. The price: some edits do not compile. Those are still-born and cost a
 * second of a compiler; they are no mutants and nobody counts them.
 *
 * Comments, strings, directives and static assertions are left alone: a mutant is to be wrong in
 * what it does.
 */
#include "tests/kernels/mutants/mutate.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"

enum token_kind { WORD, NUMBER, MARK, TEXT };
struct token {
    enum token_kind kind;
    size_t at, n;
    int line;
    int mate; /* of brackets: the index of the other one; else -1 */
};

struct source {
    const char *text;
    const bool *wanted;
    struct token *t;
    int n;
    struct mutations *out;
};

/* ---- tokens --------------------------------------------------------------------------------- */

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

static void match_brackets(struct source *s)
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

static void tokenize(struct source *s)
{
    int line = 1;
    bool fresh = true;
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

static bool is(const struct source *s, int i, const char *what)
{
    return i >= 0 && i < s->n && s->t[i].n == strlen(what) &&
           memcmp(s->text + s->t[i].at, what, s->t[i].n) == 0;
}

static bool is_one_of(const struct source *s, int i, const char *const *list)
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

static bool is_type(const struct source *s, int i)
{
    return is_one_of(s, i, types);
}

/* Ends a value: what an operator after it takes as its left side. */
static bool ends_value(const struct source *s, int i)
{
    if (i < 0)
        return false;
    return s->t[i].kind == NUMBER || is(s, i, ")") || is(s, i, "]") ||
           (s->t[i].kind == WORD && !is_type(s, i) && !is_one_of(s, i, words_of_c));
}

/* The token after the simple operand that begins at i: a name or number with its indices, members
 * and arguments, or brackets. i itself if there is none. */
static int after_operand(const struct source *s, int i)
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

/* ---- edits ---------------------------------------------------------------------------------- */

/* Tokens [from, to) become the text. */
static void edit(struct source *s, enum mutation_kind kind, int from, int to, const char *fmt, ...)
{
    if (from >= to || to > s->n || (s->wanted && !s->wanted[s->t[from].line]))
        return;
    char with[2000];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(with, sizeof with, fmt, args);
    va_end(args);
    size_t at = s->t[from].at, end = s->t[to - 1].at + s->t[to - 1].n;
    if (n >= (int)sizeof with ||
        (strlen(with) == end - at && memcmp(with, s->text + at, end - at) == 0))
        return;
    struct mutations *m = s->out;
    m->item = xrealloc(m->item, (size_t)(m->n + 1) * sizeof *m->item);
    m->item[m->n++] = (struct mutation){kind, at, end - at, s->t[from].line, xstrdup(with)};
}

#define SPAN(s, from, to) \
    (int)((s)->t[(to)-1].at + (s)->t[(to)-1].n - (s)->t[from].at), (s)->text + (s)->t[from].at

static void swap_marks(struct source *s, int i, enum mutation_kind kind,
                       const char *const (*pair)[2])
{
    for (; (*pair)[0]; pair++)
        if (is(s, i, (*pair)[0]))
            edit(s, kind, i, i + 1, "%s", (*pair)[1]);
}

/* The comparison, arithmetic and logic operators between two values. */
static void operators(struct source *s, int i)
{
    static const char *const bound[][2] = {{"<", "<="}, {"<=", "<"}, {">", ">="}, {">=", ">"}, {0}};
    static const char *const compare[][2] = {
        {"==", "!="}, {"!=", "=="}, {"&&", "||"}, {"||", "&&"}, {0}};
    static const char *const sign[][2] = {{"+", "-"}, {"-", "+"}, {"+=", "-="}, {"-=", "+="}, {0}};
    static const char *const arithmetic[][2] = {{"/", "*"},   {"%", "/"},   {"<<", ">>"},
                                                {">>", "<<"}, {"&", "|"},   {"|", "&"},
                                                {"^", "|"},   {"*=", "+="}, {0}};
    if (!ends_value(s, i - 1) || s->t[i].kind != MARK)
        return;
    swap_marks(s, i, MUTATE_BOUND, bound);
    swap_marks(s, i, MUTATE_COMPARE, compare);
    swap_marks(s, i, MUTATE_SIGN, sign);
    swap_marks(s, i, MUTATE_ARITHMETIC, arithmetic);
    int end = after_operand(s, i + 1);
    if (is(s, i, "*") && end > i + 1)
        edit(s, MUTATE_ARITHMETIC, i, i + 1, "+");
    if ((is(s, i, "*") || is(s, i, "+") || is(s, i, "-") || is(s, i, "/") || is(s, i, "%")) &&
        end > i + 1)
        edit(s, MUTATE_TERM, i, end, " ");
    /* a + b * c without its a, and a * b without its a: `+`'s left side when it is one word */
    if ((is(s, i, "*") || is(s, i, "+")) && end > i + 1 && s->t[i - 1].kind == WORD &&
        !ends_value(s, i - 2) && !is(s, i - 2, ".") && !is(s, i - 2, "->"))
        edit(s, MUTATE_TERM, i - 1, i + 1, " ");
    /* a * b + c -> c * b + a */
    if (is(s, i, "*") && s->t[i - 1].kind == WORD && i + 3 < s->n && s->t[i + 1].kind == WORD &&
        is(s, i + 2, "+") && s->t[i + 3].kind == WORD && after_operand(s, i + 3) == i + 4)
        edit(s, MUTATE_STRIDE, i - 1, i + 4, "%.*s * %.*s + %.*s", SPAN(s, i + 3, i + 4),
             SPAN(s, i + 1, i + 2), SPAN(s, i - 1, i));
}

/* Where an expression that begins at i ends: at a comma, semicolon or bracket of its own level. */
static int after_expression(const struct source *s, int i)
{
    for (; i < s->n && !is(s, i, ",") && !is(s, i, ";") && !is(s, i, ":"); i++) {
        if (is(s, i, ")") || is(s, i, "]") || is(s, i, "}"))
            return i;
        if (s->t[i].mate > i)
            i = s->t[i].mate;
    }
    return i;
}

static void loop(struct source *s, int i)
{
    if (!is(s, i, "for") || !is(s, i + 1, "(") || s->t[i + 1].mate < 0)
        return;
    int close = s->t[i + 1].mate, init = i + 2, cond = init, step;
    while (cond < close && !is(s, cond, ";"))
        cond++;
    step = ++cond;
    while (step < close && !is(s, step, ";"))
        step++;
    int cond_end = step++;
    edit(s, is(s, init, ";") ? MUTATE_TAIL : MUTATE_LOOP, cond, cond_end, "0");
    for (int j = init; j < cond - 1; j++)
        if (is(s, j, "=")) {
            int end = after_expression(s, j + 1);
            edit(s, MUTATE_START, j + 1, end, "(%.*s) + 1", SPAN(s, j + 1, end));
        }
    for (int j = cond; j < cond_end; j++)
        if (is(s, j, "<") || is(s, j, "<=")) {
            edit(s, MUTATE_BOUND, j + 1, cond_end, "(%.*s) - 1", SPAN(s, j + 1, cond_end));
            edit(s, MUTATE_BOUND, j + 1, cond_end, "(%.*s) + 1", SPAN(s, j + 1, cond_end));
        }
    for (int j = step; j < close; j++) {
        if (is(s, j, "++"))
            edit(s, MUTATE_STEP, j, j + 1, " += 2");
        if (!is(s, j, "+="))
            continue;
        int end = after_expression(s, j + 1);
        edit(s, MUTATE_STEP, j + 1, end, "2 * (%.*s)", SPAN(s, j + 1, end));
        edit(s, MUTATE_STEP, j + 1, end, "(%.*s) + 1", SPAN(s, j + 1, end));
    }
}

static void branch(struct source *s, int i)
{
    if (is(s, i, "if") && is(s, i + 1, "(") && s->t[i + 1].mate > i + 2) {
        edit(s, MUTATE_BRANCH, i + 2, s->t[i + 1].mate, "0");
        edit(s, MUTATE_BRANCH, i + 2, s->t[i + 1].mate, "1");
    }
    if (!is(s, i, "?"))
        return;
    int colon = i + 1;
    for (int depth = 0; colon < s->n && (depth || !is(s, colon, ":")); colon++) {
        depth += is(s, colon, "?") ? 1 : is(s, colon, ":") ? -1 : 0;
        if (s->t[colon].mate > colon)
            colon = s->t[colon].mate;
    }
    if (colon >= s->n)
        return;
    int end = after_expression(s, colon + 1);
    if (end > colon + 1)
        edit(s, MUTATE_BRANCH, i + 1, end, "%.*s : %.*s", SPAN(s, colon + 1, end),
             SPAN(s, i + 1, colon));
}

static void index_of(struct source *s, int i)
{
    if (!is(s, i, "[") || !ends_value(s, i - 1) || s->t[i].mate <= i + 1)
        return;
    int end = s->t[i].mate;
    edit(s, MUTATE_INDEX, i + 1, end, "(%.*s) + 1", SPAN(s, i + 1, end));
    edit(s, MUTATE_INDEX, i + 1, end, "(%.*s) - 1", SPAN(s, i + 1, end));
    if (is(s, end + 1, "[") && s->t[end + 1].mate > end + 2)
        edit(s, MUTATE_INDEX, i + 1, s->t[end + 1].mate, "%.*s][%.*s",
             SPAN(s, end + 2, s->t[end + 1].mate), SPAN(s, i + 1, end));
}

static void arguments(struct source *s, int i)
{
    if (s->t[i].kind != WORD || is_type(s, i) || is_one_of(s, i, words_of_c) ||
        !is(s, i + 1, "(") || is_type(s, i - 1) || is(s, i - 1, "*"))
        return;
    int close = s->t[i + 1].mate;
    for (int from = i + 2; from < close;) {
        int end = after_expression(s, from), next = end + 1;
        int next_end = next < close ? after_expression(s, next) : next;
        if (is(s, end, ",") && next_end > next && !is_type(s, from) && !is_type(s, next))
            edit(s, MUTATE_ARGUMENTS, from, next_end, "%.*s, %.*s", SPAN(s, next, next_end),
                 SPAN(s, from, end));
        from = next;
    }
}

static void number(struct source *s, int i)
{
    if (s->t[i].kind != NUMBER)
        return;
    const char *text = s->text + s->t[i].at;
    int n = (int)s->t[i].n;
    bool hex = n > 1 && (text[1] == 'x' || text[1] == 'X');
    bool real = memchr(text, '.', s->t[i].n) || (hex && memchr(text, 'p', s->t[i].n)) ||
                (!hex && memchr(text, 'e', s->t[i].n));
    if (real) {
        edit(s, MUTATE_CONSTANT, i, i + 1, "(%.*s * 1.01f)", n, text);
        edit(s, MUTATE_CONSTANT, i, i + 1, "(%.*s * 2)", n, text);
        edit(s, MUTATE_CONSTANT, i, i + 1, "(%.*s + 1)", n, text);
        return;
    }
    edit(s, MUTATE_CONSTANT, i, i + 1, "(%.*s + 1)", n, text);
    edit(s, MUTATE_CONSTANT, i, i + 1, "(%.*s - 1)", n, text);
    if (strncmp(text, "0", (size_t)n) != 0)
        edit(s, MUTATE_CONSTANT, i, i + 1, "(%.*s * 2)", n, text);
}

/* Things that are alike enough to be confused. */
static const char *const alike[][8] = {{"HIDDEN", "FFN", "HEAD_DIM", "K"},
                                       {"HEADS", "KV_HEADS"},
                                       {"gate", "up"},
                                       {"wq", "wk", "wv"},
                                       {"bq", "bk", "bv"},
                                       {"k_pages", "v_pages"},
                                       {"rope_cos", "rope_sin"},
                                       {"q_norm", "k_norm"},
                                       {"position", "kv_at"},
                                       {"rank", "size"},
                                       {"first", "end"},
                                       {"QKV_Q", "QKV_K", "QKV_V"},
                                       {"ROWS", "TOKENS", "PANEL", "PANELS", "TILE", "COLS"},
                                       {"BLOCK", "LANES", "SCALE_RUN", "CHUNK"},
                                       {"UNIT", "RUN", "HALF", "SLOT"},
                                       {"QUERIES", "KEYS", "KV_PAGE"},
                                       {"t0", "t1"},
                                       {"stride", "ldx", "ldy", "ldo"},
                                       {"a", "b", "c"},
                                       {"vf_mul", "vf_add", "vf_sub", "vf_max"},
                                       {"vf_fma", "vf_mla"}};

static void likeness(struct source *s, int i)
{
    if (s->t[i].kind != WORD || is_type(s, i - 1))
        return;
    for (size_t g = 0; g < sizeof alike / sizeof *alike; g++) {
        bool in = false;
        for (int j = 0; j < 8 && alike[g][j]; j++)
            in |= is(s, i, alike[g][j]);
        for (int j = 0; in && j < 8 && alike[g][j]; j++)
            if (!is(s, i, alike[g][j]))
                edit(s, MUTATE_NAME, i, i + 1, "%s", alike[g][j]);
    }
}

/* A variable: a lower-case name that is neither declared here, nor called, nor a member. */
static bool variable(const struct source *s, int i)
{
    return i > 0 && i + 1 < s->n && s->t[i].kind == WORD &&
           islower((unsigned char)s->text[s->t[i].at]) && !is_type(s, i) &&
           !is_one_of(s, i, words_of_c) && !is_type(s, i - 1) && !is(s, i - 1, "*") &&
           !is(s, i - 1, ".") && !is(s, i - 1, "->") && !is(s, i + 1, "(") && !is(s, i + 1, "=");
}

/* The variable before this one in the same statement in its place. */
static void confusion(struct source *s, int i)
{
    if (!variable(s, i))
        return;
    for (int j = i - 1; j > 0 && i - j < 12 && !is(s, j, "{") && !is(s, j, "}"); j--)
        if (variable(s, j) &&
            (s->t[i].n != s->t[j].n ||
             memcmp(s->text + s->t[i].at, s->text + s->t[j].at, s->t[i].n) != 0)) {
            edit(s, MUTATE_NAME, i, i + 1, "%.*s", SPAN(s, j, j + 1));
            return;
        }
}

static bool begins_statement(const struct source *s, int i)
{
    return is(s, i - 1, ";") || is(s, i - 1, "{") || is(s, i - 1, "}") ||
           (is(s, i - 1, ")") && s->t[i - 1].mate > 0 &&
            (is(s, s->t[i - 1].mate - 1, "if") || is(s, s->t[i - 1].mate - 1, "for"))) ||
           is(s, i - 1, "else");
}

static void statement(struct source *s, int i)
{
    if (!begins_statement(s, i) || is_type(s, i) || is_one_of(s, i, words_of_c) ||
        !(s->t[i].kind == WORD || is(s, i, "*")))
        return;
    int end = i;
    bool acts = false, declares = s->t[i].kind == WORD && i + 1 < s->n && s->t[i + 1].kind == WORD;
    for (; end < s->n && !is(s, end, ";"); end++) {
        acts |= is(s, end, "=") || is(s, end, "(") || is(s, end, "++") ||
                (s->t[end].kind == MARK && s->t[end].n == 2 && s->text[s->t[end].at + 1] == '=');
        if (s->t[end].mate > end)
            end = s->t[end].mate;
        if (is(s, end, "}"))
            return;
    }
    bool barrier = is(s, i, "team") && is(s, i + 2, "barrier");
    if (acts && !declares)
        edit(s, barrier ? MUTATE_BARRIER : MUTATE_STATEMENT, i, end, " ");
}

static const char *const rounding[] = {"vf_fma",    "vf_mla",   "vf_mul",          "vf_add",
                                       "vf_fold",   "lane_fma", "_mm512_fmadd_ps", "vf_load",
                                       "lane_fold", "vf_sub",   "_mm512_mul_ps",   NULL};

static void narrow(struct source *s, int i)
{
    static const char *const smaller[][2] = {{"int64_t", "int32_t"},   {"int32_t", "int16_t"},
                                             {"uint32_t", "uint16_t"}, {"uint8_t", "int8_t"},
                                             {"uint16_t", "int16_t"},  {0}};
    if (is_one_of(s, i, rounding) && is(s, i + 1, "(") && !is_type(s, i - 1)) {
        int end = s->t[i + 1].mate + 1;
        edit(s, MUTATE_NARROW, i, end, "MUTANT_BF16(%.*s)", SPAN(s, i, end));
        edit(s, MUTATE_NARROW, i, end, "MUTANT_HALF(%.*s)", SPAN(s, i, end));
    }
    if (is(s, i, "float") && s->t[i + 1].kind == WORD && is(s, i + 2, "=") && !is(s, i + 3, "{")) {
        int end = after_expression(s, i + 3);
        edit(s, MUTATE_NARROW, i + 3, end, "MUTANT_BF16(%.*s)", SPAN(s, i + 3, end));
        edit(s, MUTATE_NARROW, i + 3, end, "MUTANT_HALF(%.*s)", SPAN(s, i + 3, end));
    }
    swap_marks(s, i, MUTATE_NARROW, smaller);
}

/* ---- the list ------------------------------------------------------------------------------- */

/* One past a static assertion that begins at i, or i. */
static int past_assertion(const struct source *s, int i)
{
    return (is(s, i, "_Static_assert") || is(s, i, "LEGAL")) && is(s, i + 1, "(") &&
                   s->t[i + 1].mate > 0
               ? s->t[i + 1].mate + 1
               : i;
}

void mutations_of(const char *text, const bool *wanted, struct mutations *out)
{
    static void (*const all[])(struct source *, int) = {operators, loop,   branch,   index_of,
                                                        arguments, number, likeness, confusion,
                                                        statement, narrow};
    struct source s = {.text = text, .wanted = wanted, .out = out};
    memset(out, 0, sizeof *out);
    tokenize(&s);
    for (int i = 0; i < s.n; i++) {
        i = past_assertion(&s, i);
        for (size_t o = 0; i < s.n && o < sizeof all / sizeof *all; o++)
            all[o](&s, i);
    }
    free(s.t);
}

void mutations_free(struct mutations *m)
{
    for (int i = 0; i < m->n; i++)
        free(m->item[i].with);
    free(m->item);
    memset(m, 0, sizeof *m);
}

/* Keeps 8 or 11 bits of the significand of every float in x, scalar or vector. */
static const char helpers[] =
    "#define MUTANT_MASKED(x, mask) __extension__({ __typeof__(x) x_ = (x); unsigned w_[sizeof x_ "
    "/ 4]; __builtin_memcpy(w_, &x_, sizeof x_); for (unsigned i_ = 0; i_ < sizeof x_ / 4; i_++) "
    "w_[i_] &= (mask); __builtin_memcpy(&x_, w_, sizeof x_); x_; })\n"
    "#define MUTANT_BF16(x) MUTANT_MASKED(x, 0xffff0000u)\n"
    "#define MUTANT_HALF(x) MUTANT_MASKED(x, 0xffffe000u)\n"
    "#line 1\n";

char *mutation_apply(const char *text, const struct mutation *m)
{
    bool helped = strstr(m->with, "MUTANT_") != NULL;
    return xasprintf("%s%.*s%s%s", helped ? helpers : "", (int)m->at, text, m->with,
                     text + m->at + m->n);
}

const char *mutation_kind_name(enum mutation_kind k)
{
    static const char *const name[MUTATION_KINDS] = {
        [MUTATE_BOUND] = "bound",         [MUTATE_START] = "start",
        [MUTATE_STEP] = "step",           [MUTATE_TAIL] = "tail",
        [MUTATE_LOOP] = "loop",           [MUTATE_BRANCH] = "branch",
        [MUTATE_COMPARE] = "compare",     [MUTATE_INDEX] = "index",
        [MUTATE_STRIDE] = "stride",       [MUTATE_ARGUMENTS] = "arguments",
        [MUTATE_SIGN] = "sign",           [MUTATE_ARITHMETIC] = "arithmetic",
        [MUTATE_TERM] = "term",           [MUTATE_CONSTANT] = "constant",
        [MUTATE_NAME] = "name",           [MUTATE_BARRIER] = "barrier",
        [MUTATE_STATEMENT] = "statement", [MUTATE_NARROW] = "narrow",
    };
    return (unsigned)k < MUTATION_KINDS ? name[k] : "?";
}

/* White space runs become one blank. */
static int squeeze(const char *from, size_t n, char *to, int room)
{
    int used = 0;
    for (size_t i = 0; i < n && used < room - 1; i++) {
        bool blank = isspace((unsigned char)from[i]);
        if (!blank || (used > 0 && to[used - 1] != ' '))
            to[used++] = blank ? ' ' : from[i];
    }
    to[used] = 0;
    return used;
}

void mutation_describe(const char *text, const struct mutation *m, char *out, size_t n)
{
    char before[64], after[80];
    squeeze(text + m->at, m->n, before, sizeof before);
    squeeze(m->with, strlen(m->with), after, sizeof after);
    snprintf(out, n, "%s line %d: `%s` -> `%s`", mutation_kind_name(m->kind), m->line, before,
             after);
}
