/* SPDX-License-Identifier: Apache-2.0 */
/* agent_calls.c - see agent_calls.h.
 *
 * Nothing is parsed: each rule looks at a token and its neighbours, so it holds in the body of a
 * macro as well as in code. What a macro may begin with is asked for where it matters
 * (macro_opens()), and a parameter of a macro may be anything. Where a token's role cannot be told
 * that way the text is refused; the message says how to write it. */
#include "specializer/agent/agent_calls.h"

#include <stdlib.h>

#include "specializer/agent/agent_names.h"
#include "specializer/agent/agent_reader.h"
#include "specializer/agent/agent_state.h"

enum { TEMPLATE_TOKENS_MOST = 64 };

/* In the expansion, a parenthesis may stand here. */
static bool opens(const struct reader *r, int i)
{
    return i < r->n && macro_opens(r->m, r->in, &r->code[i]);
}

/* f<4, N>(x): the parenthesis behind the arguments of a template; -1: there is none. */
static int skip_template(const struct reader *r, int i)
{
    int depth = 0;
    for (int k = i; k < r->n && k < i + TEMPLATE_TOKENS_MOST; k++) {
        if (at(r, k, "("))
            k += r->code[k].pair;
        depth += at(r, k, "<") ? 1 : at(r, k, ">") ? -1 : 0;
        if (depth == 0)
            return at(r, k + 1, "(") ? k + 1 : -1;
        if (at(r, k, ";") || at(r, k, "{") || at(r, k, ")"))
            return -1;
    }
    return -1;
}

/* team->barrier(team), and nothing else with that member. */
static int check_barrier(const struct reader *r, int i)
{
    bool right = at(r, i - 1, "->") && is_name(r, i - 2) && at(r, i + 1, "(") &&
                 is_name(r, i + 2) && token_same(&r->code[i - 2], &r->code[i + 2]) &&
                 at(r, i + 3, ")") && !at(r, i - 3, ".") && !at(r, i - 3, "->");
    return right ? 0
                 : token_refuse(r->t, &r->code[i], "call",
                                "is called as team->barrier(team), and not used otherwise");
}

/* A name behind . or -> */
static int check_member(const struct reader *r, int i)
{
    if (at(r, i, "host"))
        return token_refuse(r->t, &r->code[i], "frame", "belongs to the pool of threads");
    if (r->t->language == AGENT_C && at(r, i, "barrier"))
        return check_barrier(r, i);
    return i + 1 < r->n && opens(r, i + 1)
               ? token_refuse(r->t, &r->code[i], "call", "is a member, and members are not called")
               : 0;
}

static bool is_function(const struct reader *r, const struct token *name)
{
    return reader_defines(r, name) || name_callable(name->at, (size_t)name->n, r->t->language);
}

static int check_function(const struct reader *r, int i)
{
    bool called = at(r, i + 1, "(");
    if (r->t->language == AGENT_CUDA && at(r, i + 1, "<"))
        called = skip_template(r, i + 1) >= 0;
    return called ? 0
                  : token_refuse(r->t, &r->code[i], "function",
                                 "is a function: it is called, and not named otherwise (nor is "
                                 "anything else called that)");
}

/* NAME < in CUDA, where NAME is neither a function nor a type of the text: a comparison. A template
 * of the compiler's own headers would be called without a parenthesis behind its name, so what can
 * be read as one is refused: a type among the arguments, or their end in front of a parenthesis and
 * no
 * && or || before, as in a < b && c > (d). */
static int check_template(const struct reader *r, int i)
{
    const struct token *name = &r->code[i];
    bool logical = false;
    if (at(r, i + 2, "<") || at(r, i + 2, "=") || token_is(name, "template") ||
        token_is(name, "static_cast") || reader_is_type(r, name))
        return 0;
    for (int k = i + 1, depth = 0, read = 0; k < r->n; k++) {
        if (at(r, k, ";") || at(r, k, "{") || at(r, k, ")"))
            return 0;
        int call = k > i + 1 && is_name(r, k) && at(r, k + 1, "<") ? skip_template(r, k + 1) : -1;
        if (call >= 0)
            k = call;
        if (at(r, k, "(") || at(r, k, "["))
            k += r->code[k].pair;
        depth += at(r, k, "<") ? 1 : at(r, k, ">") ? -1 : 0;
        logical |= (at(r, k, "&") || at(r, k, "|")) && token_same(&r->code[k], &r->code[k - 1]);
        bool type = is_name(r, k) && reader_is_type(r, &r->code[k]) && !at(r, k + 1, "(");
        if (type || ++read == TEMPLATE_TOKENS_MOST ||
            (depth == 0 && !logical && k + 1 < r->n && opens(r, k + 1)))
            return token_refuse(r->t, name, "call",
                                "in front of < reads as a template that the text does not define");
        if (depth == 0)
            return 0;
    }
    return 0;
}

/* A name that is no function, with a parenthesis behind it. */
static int check_parenthesis(const struct reader *r, int i)
{
    const struct token *name = &r->code[i];
    const size_t n = (size_t)name->n;
    const struct macro *macro = macro_find(r->m, name);
    bool direct = at(r, i + 1, "(");
    if (name_takes_parentheses(name->at, n) || is_tag_word(r, i - 1) ||
        (!direct && is_tag_word(r, i)))
        return 0;
    /* float (*rows)[16]; in C++ also float(x). */
    if (reader_is_type(r, name) && (!direct || r->t->language == AGENT_CUDA || at(r, i + 2, "*")))
        return 0;
    if (direct && ((macro && macro->takes) || name_frame_macro(name->at, n, r->t->language)))
        return 0;
    return token_refuse(r->t, name, "call",
                        macro || macro_has_param(r->in, name)
                            ? "is a macro in front of a parenthesis"
                            : "is neither a function that the text defines before or after, nor "
                              "one on the list");
}

static int check_name(const struct reader *r, int i)
{
    const struct token *name = &r->code[i];
    const struct macro *macro = macro_find(r->m, name);
    if (at(r, i - 1, ".") || at(r, i - 1, "->"))
        return check_member(r, i);
    if (at(r, i, "team") && at(r, i - 1, "struct") && !at(r, i + 1, "*"))
        return token_refuse(r->t, name, "frame", "there is one team, and a pointer to it");
    if (is_tag_word(r, i - 1))
        return macro_has_param(r->in, name) || macro
                   ? token_refuse(r->t, name, "macro", "cannot be the name of a struct or enum")
                   : 0;
    if (is_function(r, name))
        return check_function(r, i);
    if (macro && macro->takes && !at(r, i + 1, "("))
        return token_refuse(r->t, name, "macro", "is used without its arguments");
    if (r->t->language == AGENT_C && name_told(name->at, (size_t)name->n, AGENT_C))
        return token_refuse(r->t, name, "frame", "is for the frame alone");
    if (r->t->language == AGENT_CUDA && at(r, i + 1, "<"))
        return check_template(r, i);
    return i + 1 < r->n && opens(r, i + 1) ? check_parenthesis(r, i) : 0;
}

/* ( or what may become one, behind a parenthesis: a condition, a cast, or a call. */
static int check_group(const struct reader *r, int close)
{
    int open = close + r->code[close].pair;
    bool condition = at(r, open - 1, "if") || at(r, open - 1, "while") || at(r, open - 1, "for") ||
                     at(r, open - 1, "switch");
    bool plain = !is_name(r, open - 1) ||
                 name_takes_parentheses(r->code[open - 1].at, (size_t)r->code[open - 1].n);
    if (condition || (plain && reader_is_cast(r, open)))
        return 0;
    return text_refuse(r->t, r->code[close].line, "call",
                       "only a function's name, and the name of a type in parentheses, stand "
                       "before a parenthesis");
}

static bool is_integer_type(const struct reader *r, int open)
{
    static const char *const whole[] = {"char",     "short",     "int",     "long",   "signed",
                                        "unsigned", "int32_t",   "int64_t", "size_t", "uint64_t",
                                        "uint32_t", "ptrdiff_t", NULL};
    bool found = false;
    int end = open + r->code[open].pair;
    for (int i = open + 1; i < end; i++) {
        if (at(r, i, "*"))
            return false;
        for (int k = 0; whole[k]; k++)
            found |= at(r, i, whole[k]);
    }
    return found;
}

/* (T *)4096, (T *)(4096), (T *)(long)x: an address out of nothing. (T *)0 is a null pointer. */
static int check_address(const struct reader *r, int close)
{
    int open = close + r->code[close].pair, next = close + 1;
    if (!at(r, close - 1, "*") || !reader_is_cast(r, open) || next >= r->n ||
        (is_name(r, open - 1) && !at(r, open - 1, "return")))
        return 0;
    const struct macro *m = macro_find(r->m, &r->code[next]);
    const struct token *first = m && m->tokens > 0 ? m->body : &r->code[next];
    bool number = first->kind == LEXEME_NUMBER || first->kind == LEXEME_CHARACTER;
    number = number && !token_is(first, "0");
    if (at(r, next, "("))
        number = r->code[next + 1].kind == LEXEME_NUMBER || is_integer_type(r, next);
    return number || at(r, next, "~") || at(r, next, "-")
               ? text_refuse(r->t, r->code[close].line, "address",
                             "a number is not the address of anything")
               : 0;
}

static int check_bracket(const struct reader *r, int i)
{
    const struct token *t = &r->code[i];
    const bool cuda = r->t->language == AGENT_CUDA;
    if (at(r, i, "[") && at(r, i + 1, "["))
        return text_refuse(r->t, t->line, "spelling", "[[");
    if (at(r, i, "[") && cuda && (at(r, i + 1, "&") || at(r, i + 1, "=")))
        return text_refuse(r->t, t->line, "function", "a function without a name");
    if (at(r, i, ":") && at(r, i + 1, ":"))
        return text_refuse(r->t, t->line, "spelling", "::");
    bool lambda = at(r, i + 1, "{") ||
                  (at(r, i + 1, "<") &&
                   (at(r, i - 1, "[") || at(r, i + 2, "class") || at(r, i + 2, "typename")));
    if (at(r, i, "]") && cuda && lambda)
        return text_refuse(r->t, t->line, "function", "a function without a name");
    if (at(r, i, "]") && i + 1 < r->n && opens(r, i + 1))
        return text_refuse(r->t, t->line, "call", "through an element of an array");
    if (!at(r, i, ")"))
        return 0;
    if (i + 1 < r->n && opens(r, i + 1) && check_group(r, i) != 0)
        return -1;
    return check_address(r, i);
}
/* A function inside of another has its frame for a variable, and needs code on the stack. */
static int check_nested(const struct reader *r, int i, int depth)
{
    bool body = depth > 0 && at(r, i, "{") && at(r, i - 1, ")");
    int open = body ? i - 1 + r->code[i - 1].pair : 0;
    return body && is_name(r, open - 1) && is_function(r, &r->code[open - 1])
               ? token_refuse(r->t, &r->code[open - 1], "function", "is inside of a function")
               : 0;
}

static int check_range(struct reader *r, const struct token *code, int n, const struct macro *in)
{
    int depth = 0;
    r->code = code;
    r->n = n;
    r->in = in;
    for (int i = 0; i < n; i++) {
        int rc = is_name(r, i) ? check_name(r, i) : check_bracket(r, i);
        if (rc == 0)
            rc = state_check(r, i, depth);
        if (rc == 0)
            rc = check_nested(r, i, depth + (in != NULL));
        if (rc != 0)
            return -1;
        if (at(r, i, "__attribute__") && at(r, i + 1, "("))
            i += r->code[i + 1].pair; /* read by agent_text.c; at its last parenthesis next */
        depth += at(r, i, "{") ? 1 : at(r, i, "}") ? -1 : 0;
    }
    return 0;
}

/* A parameter stands for whatever the use says, so it may not look like a function, a type or a
 * macro of the text: #define A(f) f(1) would call what A() is given, and f is not that. */
static int check_params(const struct reader *r)
{
    for (int i = 0; i < r->m->n; i++)
        for (int k = 0; k < r->m->macro[i].params; k += 2) {
            const struct token *p = &r->m->macro[i].param[k];
            if (reader_defines(r, p) || reader_names_type(r, p) || macro_find(r->m, p) ||
                token_is(p, "barrier") || token_is(p, "team") || token_is(p, "host"))
                return token_refuse(r->t, p, "macro",
                                    "cannot be a parameter: it is something else in the text");
        }
    return 0;
}

int calls_check(const struct tokens *t, const struct macros *m, const struct token *code, int n)
{
    struct reader *r = xcalloc(1, sizeof *r);
    *r = (struct reader){.t = t, .m = m, .code = code, .n = n};
    int rc = reader_define(r);
    if (rc == 0)
        rc = check_params(r);
    if (rc == 0)
        rc = check_range(r, code, n, NULL);
    for (int i = 0; i < m->n && rc == 0; i++)
        rc = check_range(r, m->macro[i].body, m->macro[i].tokens, &m->macro[i]);
    free(r);
    return rc;
}
