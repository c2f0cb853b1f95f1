/* SPDX-License-Identifier: Apache-2.0 */
/* mutate.c - one function an operator, that looks at the tokens around a place and edits there.
 *
 * Tokens say little about types and scopes. The price: some edits do not compile. Those are
 * still-born and cost a second of a compiler; they are no mutants and nobody counts them.
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
#include "tests/kernels/mutants/tokens.h"

struct edits {
    struct tokens tokens;
    const bool *wanted; /* lines */
    struct mutations *out;
};

/* ---- edits ---------------------------------------------------------------------------------- */

/* Tokens [from, to) become the text. */
static void edit(struct edits *e, enum mutation_kind kind, int from, int to, const char *fmt, ...)
{
    const struct tokens *s = &e->tokens;
    if (from >= to || to > s->n || (e->wanted && !e->wanted[s->t[from].line]))
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
    struct mutations *m = e->out;
    m->item = xrealloc(m->item, (size_t)(m->n + 1) * sizeof *m->item);
    m->item[m->n++] = (struct mutation){kind, at, end - at, s->t[from].line, xstrdup(with)};
}

static void swap_marks(struct edits *e, const struct tokens *s, int i, enum mutation_kind kind,
                       const char *const (*pair)[2])
{
    for (; (*pair)[0]; pair++)
        if (is(s, i, (*pair)[0]))
            edit(e, kind, i, i + 1, "%s", (*pair)[1]);
}

/* The comparison, arithmetic and logic operators between two values. */
static void operators(struct edits *e, const struct tokens *s, int i)
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
    swap_marks(e, s, i, MUTATE_BOUND, bound);
    swap_marks(e, s, i, MUTATE_COMPARE, compare);
    swap_marks(e, s, i, MUTATE_SIGN, sign);
    swap_marks(e, s, i, MUTATE_ARITHMETIC, arithmetic);
    int end = after_operand(s, i + 1);
    if (is(s, i, "*") && end > i + 1)
        edit(e, MUTATE_ARITHMETIC, i, i + 1, "+");
    if ((is(s, i, "*") || is(s, i, "+") || is(s, i, "-") || is(s, i, "/") || is(s, i, "%")) &&
        end > i + 1)
        edit(e, MUTATE_TERM, i, end, " ");
    /* a + b * c without its a, and a * b without its a: `+`'s left side when it is one word */
    if ((is(s, i, "*") || is(s, i, "+")) && end > i + 1 && s->t[i - 1].kind == WORD &&
        !ends_value(s, i - 2) && !is(s, i - 2, ".") && !is(s, i - 2, "->"))
        edit(e, MUTATE_TERM, i - 1, i + 1, " ");
    /* a * b + c -> c * b + a */
    if (is(s, i, "*") && s->t[i - 1].kind == WORD && i + 3 < s->n && s->t[i + 1].kind == WORD &&
        is(s, i + 2, "+") && s->t[i + 3].kind == WORD && after_operand(s, i + 3) == i + 4)
        edit(e, MUTATE_STRIDE, i - 1, i + 4, "%.*s * %.*s + %.*s", SPAN(s, i + 3, i + 4),
             SPAN(s, i + 1, i + 2), SPAN(s, i - 1, i));
}

static void loop(struct edits *e, const struct tokens *s, int i)
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
    edit(e, is(s, init, ";") ? MUTATE_TAIL : MUTATE_LOOP, cond, cond_end, "0");
    for (int j = init; j < cond - 1; j++)
        if (is(s, j, "=")) {
            int end = after_expression(s, j + 1);
            edit(e, MUTATE_START, j + 1, end, "(%.*s) + 1", SPAN(s, j + 1, end));
        }
    for (int j = cond; j < cond_end; j++)
        if (is(s, j, "<") || is(s, j, "<=")) {
            edit(e, MUTATE_BOUND, j + 1, cond_end, "(%.*s) - 1", SPAN(s, j + 1, cond_end));
            edit(e, MUTATE_BOUND, j + 1, cond_end, "(%.*s) + 1", SPAN(s, j + 1, cond_end));
        }
    for (int j = step; j < close; j++) {
        if (is(s, j, "++"))
            edit(e, MUTATE_STEP, j, j + 1, " += 2");
        if (!is(s, j, "+="))
            continue;
        int end = after_expression(s, j + 1);
        edit(e, MUTATE_STEP, j + 1, end, "2 * (%.*s)", SPAN(s, j + 1, end));
        edit(e, MUTATE_STEP, j + 1, end, "(%.*s) + 1", SPAN(s, j + 1, end));
    }
}

static void branch(struct edits *e, const struct tokens *s, int i)
{
    if (is(s, i, "if") && is(s, i + 1, "(") && s->t[i + 1].mate > i + 2) {
        edit(e, MUTATE_BRANCH, i + 2, s->t[i + 1].mate, "0");
        edit(e, MUTATE_BRANCH, i + 2, s->t[i + 1].mate, "1");
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
        edit(e, MUTATE_BRANCH, i + 1, end, "%.*s : %.*s", SPAN(s, colon + 1, end),
             SPAN(s, i + 1, colon));
}

static void index_of(struct edits *e, const struct tokens *s, int i)
{
    if (!is(s, i, "[") || !ends_value(s, i - 1) || s->t[i].mate <= i + 1)
        return;
    int end = s->t[i].mate;
    edit(e, MUTATE_INDEX, i + 1, end, "(%.*s) + 1", SPAN(s, i + 1, end));
    edit(e, MUTATE_INDEX, i + 1, end, "(%.*s) - 1", SPAN(s, i + 1, end));
    if (is(s, end + 1, "[") && s->t[end + 1].mate > end + 2)
        edit(e, MUTATE_INDEX, i + 1, s->t[end + 1].mate, "%.*s][%.*s",
             SPAN(s, end + 2, s->t[end + 1].mate), SPAN(s, i + 1, end));
}

static void arguments(struct edits *e, const struct tokens *s, int i)
{
    if (s->t[i].kind != WORD || is_type(s, i) || is_keyword(s, i) || !is(s, i + 1, "(") ||
        is_type(s, i - 1) || is(s, i - 1, "*"))
        return;
    int close = s->t[i + 1].mate;
    for (int from = i + 2; from < close;) {
        int end = after_expression(s, from), next = end + 1;
        int next_end = next < close ? after_expression(s, next) : next;
        if (is(s, end, ",") && next_end > next && !is_type(s, from) && !is_type(s, next))
            edit(e, MUTATE_ARGUMENTS, from, next_end, "%.*s, %.*s", SPAN(s, next, next_end),
                 SPAN(s, from, end));
        from = next;
    }
}

static void number(struct edits *e, const struct tokens *s, int i)
{
    if (s->t[i].kind != NUMBER)
        return;
    const char *text = s->text + s->t[i].at;
    int n = (int)s->t[i].n;
    bool hex = n > 1 && (text[1] == 'x' || text[1] == 'X');
    bool real = memchr(text, '.', s->t[i].n) || (hex && memchr(text, 'p', s->t[i].n)) ||
                (!hex && memchr(text, 'e', s->t[i].n));
    if (real) {
        edit(e, MUTATE_CONSTANT, i, i + 1, "(%.*s * 1.01f)", n, text);
        edit(e, MUTATE_CONSTANT, i, i + 1, "(%.*s * 2)", n, text);
        edit(e, MUTATE_CONSTANT, i, i + 1, "(%.*s + 1)", n, text);
        return;
    }
    edit(e, MUTATE_CONSTANT, i, i + 1, "(%.*s + 1)", n, text);
    edit(e, MUTATE_CONSTANT, i, i + 1, "(%.*s - 1)", n, text);
    if (strncmp(text, "0", (size_t)n) != 0)
        edit(e, MUTATE_CONSTANT, i, i + 1, "(%.*s * 2)", n, text);
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

static void likeness(struct edits *e, const struct tokens *s, int i)
{
    if (s->t[i].kind != WORD || is_type(s, i - 1))
        return;
    for (size_t g = 0; g < sizeof alike / sizeof *alike; g++) {
        bool in = false;
        for (int j = 0; j < 8 && alike[g][j]; j++)
            in |= is(s, i, alike[g][j]);
        for (int j = 0; in && j < 8 && alike[g][j]; j++)
            if (!is(s, i, alike[g][j]))
                edit(e, MUTATE_NAME, i, i + 1, "%s", alike[g][j]);
    }
}

/* A variable: a lower-case name that is neither declared here, nor called, nor a member. */
static bool variable(const struct tokens *s, int i)
{
    return i > 0 && i + 1 < s->n && s->t[i].kind == WORD &&
           islower((unsigned char)s->text[s->t[i].at]) && !is_type(s, i) && !is_keyword(s, i) &&
           !is_type(s, i - 1) && !is(s, i - 1, "*") && !is(s, i - 1, ".") && !is(s, i - 1, "->") &&
           !is(s, i + 1, "(") && !is(s, i + 1, "=");
}

/* The variable before this one in the same statement in its place. */
static void confusion(struct edits *e, const struct tokens *s, int i)
{
    if (!variable(s, i))
        return;
    for (int j = i - 1; j > 0 && i - j < 12 && !is(s, j, "{") && !is(s, j, "}"); j--)
        if (variable(s, j) &&
            (s->t[i].n != s->t[j].n ||
             memcmp(s->text + s->t[i].at, s->text + s->t[j].at, s->t[i].n) != 0)) {
            edit(e, MUTATE_NAME, i, i + 1, "%.*s", SPAN(s, j, j + 1));
            return;
        }
}

static bool begins_statement(const struct tokens *s, int i)
{
    return is(s, i - 1, ";") || is(s, i - 1, "{") || is(s, i - 1, "}") ||
           (is(s, i - 1, ")") && s->t[i - 1].mate > 0 &&
            (is(s, s->t[i - 1].mate - 1, "if") || is(s, s->t[i - 1].mate - 1, "for"))) ||
           is(s, i - 1, "else");
}

static void statement(struct edits *e, const struct tokens *s, int i)
{
    if (!begins_statement(s, i) || is_type(s, i) || is_keyword(s, i) ||
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
        edit(e, barrier ? MUTATE_BARRIER : MUTATE_STATEMENT, i, end, " ");
}

static const char *const rounding[] = {"vf_fma",    "vf_mla",   "vf_mul",          "vf_add",
                                       "vf_fold",   "lane_fma", "_mm512_fmadd_ps", "vf_load",
                                       "lane_fold", "vf_sub",   "_mm512_mul_ps",   NULL};

static void narrow(struct edits *e, const struct tokens *s, int i)
{
    static const char *const smaller[][2] = {{"int64_t", "int32_t"},   {"int32_t", "int16_t"},
                                             {"uint32_t", "uint16_t"}, {"uint8_t", "int8_t"},
                                             {"uint16_t", "int16_t"},  {0}};
    if (is_one_of(s, i, rounding) && is(s, i + 1, "(") && !is_type(s, i - 1)) {
        int end = s->t[i + 1].mate + 1;
        edit(e, MUTATE_NARROW, i, end, "MUTANT_BF16(%.*s)", SPAN(s, i, end));
        edit(e, MUTATE_NARROW, i, end, "MUTANT_HALF(%.*s)", SPAN(s, i, end));
    }
    if (is(s, i, "float") && s->t[i + 1].kind == WORD && is(s, i + 2, "=") && !is(s, i + 3, "{")) {
        int end = after_expression(s, i + 3);
        edit(e, MUTATE_NARROW, i + 3, end, "MUTANT_BF16(%.*s)", SPAN(s, i + 3, end));
        edit(e, MUTATE_NARROW, i + 3, end, "MUTANT_HALF(%.*s)", SPAN(s, i + 3, end));
    }
    swap_marks(e, s, i, MUTATE_NARROW, smaller);
}

/* ---- the list ------------------------------------------------------------------------------- */

/* One past a static assertion that begins at i, or i. */
static int past_assertion(const struct tokens *s, int i)
{
    return (is(s, i, "_Static_assert") || is(s, i, "LEGAL")) && is(s, i + 1, "(") &&
                   s->t[i + 1].mate > 0
               ? s->t[i + 1].mate + 1
               : i;
}

void mutations_of(const char *text, const bool *wanted, struct mutations *out)
{
    static void (*const all[])(struct edits *, const struct tokens *,
                               int) = {operators, loop,     branch,    index_of,  arguments,
                                       number,    likeness, confusion, statement, narrow};
    struct edits e = {.wanted = wanted, .out = out};
    memset(out, 0, sizeof *out);
    tokens_open(&e.tokens, text);
    for (int i = 0; i < e.tokens.n; i++) {
        i = past_assertion(&e.tokens, i);
        for (size_t o = 0; i < e.tokens.n && o < sizeof all / sizeof *all; o++)
            all[o](&e, &e.tokens, i);
    }
    tokens_close(&e.tokens);
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
