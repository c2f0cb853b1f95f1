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

enum { FUNCTIONS_MOST = 512, TYPES_MOST = 256, TEMPLATE_TOKENS_MOST = 64 };

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

static bool listed(const struct token *const *list, int n, const struct token *name)
{
    for (int i = 0; i < n; i++)
        if (token_same(list[i], name))
            return true;
    return false;
}

static bool at(const struct reader *r, int i, const char *text)
{
    return i >= 0 && i < r->n && token_is(&r->code[i], text);
}

static bool is_name(const struct reader *r, int i)
{
    return i >= 0 && i < r->n && r->code[i].kind == LEXEME_NAME;
}

/* In the expansion, a parenthesis may stand here. */
static bool opens(const struct reader *r, int i)
{
    return i < r->n && macro_opens(r->m, r->in, &r->code[i]);
}

static bool is_tag_word(const struct reader *r, int i)
{
    return at(r, i, "struct") || at(r, i, "union") || at(r, i, "enum") || at(r, i, "class");
}

/* ---- what the text defines ----------------------------------------------------------------- */

/* NAME (...) { outside of everything is a function with its body. */
static int find_function(struct reader *r, int i)
{
    const struct token *name = &r->code[i];
    const size_t n = (size_t)name->n;
    if (!is_name(r, i) || !at(r, i + 1, "(") || !at(r, i + 1 + r->code[i + 1].pair + 1, "{") ||
        macro_find(r->m, name) || name_takes_parentheses(name->at, n))
        return 0;
    if (name_keyword(name->at, n) || name_type(name->at, n, r->t->language) ||
        name_callable(name->at, n, r->t->language) || name_frame(name->at, n, r->t->language))
        return token_refuse(r->t, name, "frame", "is a name that is taken");
    if (listed(r->function, r->functions, name))
        return 0;
    if (r->functions == FUNCTIONS_MOST)
        return text_refuse(r->t, name->line, "size", "more than %d functions", FUNCTIONS_MOST);
    r->function[r->functions++] = name;
    return 0;
}

/* The last name of a typedef, and in C++ tags. Types of functions cannot get here: what is between
 * is read like everything else. */
static int find_type(struct reader *r, int i)
{
    int name = -1;
    if (r->t->language == AGENT_CUDA && (is_tag_word(r, i) || at(r, i, "typename")))
        name = i + 1;
    if (at(r, i, "typedef")) {
        int k = i;
        while (k < r->n && !at(r, k, ";"))
            k += at(r, k, "{") || at(r, k, "(") || at(r, k, "[") ? r->code[k].pair + 1 : 1;
        for (name = k - 1; name > i && !is_name(r, name); name--)
            name += at(r, name, "]") || at(r, name, ")") ? r->code[name].pair : 0;
    }
    if (!is_name(r, name) || listed(r->type, r->types, &r->code[name]))
        return 0;
    if (r->types == TYPES_MOST)
        return text_refuse(r->t, r->code[i].line, "size", "more than %d types", TYPES_MOST);
    r->type[r->types++] = &r->code[name];
    return 0;
}

static int find_definitions(struct reader *r)
{
    for (int i = 0; i < r->n; i++) {
        if (find_type(r, i) != 0)
            return -1;
        if (find_function(r, i) != 0)
            return -1;
        if (at(r, i, "{")) { /* bodies have types, and no functions */
            int end = i + r->code[i].pair;
            for (; i < end; i++) {
                /* Elsewhere its name could be a function's: (strdup)(p) would be no cast. */
                if (at(r, i, "typedef"))
                    return token_refuse(r->t, &r->code[i], "scope", "belongs outside of functions");
                if (find_type(r, i) != 0)
                    return -1;
            }
        }
    }
    return 0;
}

/* ---- types --------------------------------------------------------------------------------- */

static bool is_plain_type(const void *ctx, const struct token *t)
{
    const struct reader *r = ctx;
    return t->kind == LEXEME_NAME &&
           (name_type(t->at, (size_t)t->n, r->t->language) || token_is(t, "struct") ||
            token_is(t, "enum") || token_is(t, "union") || listed(r->type, r->types, t));
}

static bool is_type(const struct reader *r, const struct token *t)
{
    return is_plain_type(r, t) || macro_is_type(r->m, t, is_plain_type, r);
}

/* What is between the parentheses at `open` is the name of a type, so they are a cast. */
static bool is_cast(const struct reader *r, int open)
{
    int end = open + r->code[open].pair;
    if (end == open + 1 || r->code[open + 1].kind != LEXEME_NAME)
        return false;
    for (int i = open + 1; i < end; i++)
        if (!at(r, i, "*") && !is_type(r, &r->code[i]) && !(is_name(r, i) && is_tag_word(r, i - 1)))
            return false;
    return true;
}

/* ---- rules --------------------------------------------------------------------------------- */

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
    return listed(r->function, r->functions, name) ||
           name_callable(name->at, (size_t)name->n, r->t->language);
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
        token_is(name, "static_cast") || is_type(r, name))
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
        bool type = is_name(r, k) && is_type(r, &r->code[k]) && !at(r, k + 1, "(");
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
    if (is_type(r, name) && (!direct || r->t->language == AGENT_CUDA || at(r, i + 2, "*")))
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
    if (condition || (plain && is_cast(r, open)))
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
    if (!at(r, close - 1, "*") || !is_cast(r, open) || next >= r->n ||
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

/* ---- state, in CUDA ------------------------------------------------------------------------- */

/* How many tokens __align__(...) and its like have at `i`; 0: it is none. */
static int skip_alignment(const struct token *code, int n, int i)
{
    bool alignment = token_is(&code[i], "__align__") || token_is(&code[i], "alignas") ||
                     token_is(&code[i], "__attribute__");
    return alignment && i + 1 < n && token_is(&code[i + 1], "(") ? 2 + code[i + 1].pair : 0;
}

/* Facts of a macro, found once: a text may have macros of macros. */
static bool ask_macros(struct reader *r, const struct token *name, signed char *known,
                       bool (*ask)(struct reader *r, const struct macro *m))
{
    for (int i = 0; i < r->m->n; i++) {
        if (!token_same(r->m->macro[i].name, name))
            continue;
        if (known[i] == 0)
            known[i] = ask(r, &r->m->macro[i]) ? 1 : -1;
        if (known[i] > 0)
            return true;
    }
    return false;
}

static bool ask_ends(struct reader *r, const struct macro *m);

/* Between the first word of a declaration and its name: more than words, so it could end it. */
static bool may_end(struct reader *r, const struct token *t)
{
    return t->kind == LEXEME_NAME ? ask_macros(r, t, r->ends, ask_ends)
                                  : !token_is(t, "*") && !token_is(t, "&");
}

static bool ask_ends(struct reader *r, const struct macro *m)
{
    for (int i = 0; i < m->tokens; i++)
        if (may_end(r, &m->body[i]))
            return true;
    return false;
}

static bool ask_begins(struct reader *r, const struct macro *m);

/* __device__, static, or a macro that leaves open what it declares so. */
static bool begins_declaration(struct reader *r, const struct token *t)
{
    return token_is(t, "__device__") || token_is(t, "static") ||
           ask_macros(r, t, r->begins, ask_begins);
}

static bool ask_begins(struct reader *r, const struct macro *m)
{
    bool open = false;
    for (int i = 0; i < m->tokens; i++) {
        const struct token *k = &m->body[i];
        int skip = skip_alignment(m->body, m->tokens, i);
        if (skip > 0)
            i += skip - 1;
        else if (k->kind == LEXEME_NAME && begins_declaration(r, k))
            open = true;
        else if (token_is(k, "(") || token_is(k, "constexpr"))
            open = false;
    }
    return open;
}

/* __device__ float f(, f<4>(: what is in front of the parenthesis is a function's name. */
static bool declares_function(const struct reader *r, int open)
{
    int i = open - 1;
    if (at(r, i, ">")) {
        while (i > 0 && !at(r, i, "<") && !at(r, i, ";") && !at(r, i, "}"))
            i--;
        return is_name(r, i - 1) && listed(r->function, r->functions, &r->code[i - 1]);
    }
    const struct token *name = &r->code[i];
    return is_name(r, i) && !is_type(r, name) && !name_keyword(name->at, (size_t)name->n) &&
           !macro_find(r->m, name);
}

/* __device__ or static at `i`, at `depth` braces: what is declared is a function. agent_text.c has
 * refused what shows by itself that it is a variable; here are those that need to know what is a
 * type, a function, a macro: __device__ int (a), __device__ A, and in a body static int a(1). */
static int check_declared(struct reader *r, int i, int depth)
{
    const struct token *word = &r->code[i];
    const bool device = !token_is(word, "static") && !at(r, i - 1, "static");
    for (int k = i + 1, angle = 0; k < r->n; k++) {
        int skip = skip_alignment(r->code, r->n, k);
        angle += at(r, k, "<") ? 1 : at(r, k, ">") ? -1 : 0;
        if (skip > 0) {
            k += skip - 1;
            continue;
        }
        if (at(r, k, "constexpr") || (is_name(r, k) && begins_declaration(r, &r->code[k])))
            return 0;
        if (at(r, k, "<") || at(r, k, ">") || (angle > 0 && at(r, k, ",")) ||
            r->code[k].kind == LEXEME_NUMBER || (!at(r, k, "(") && !may_end(r, &r->code[k])))
            continue;
        bool body = at(r, k, "(") && at(r, k + r->code[k].pair + 1, "{");
        if (at(r, k, "(") && ((device && depth > 0) || /* of a struct: its constructor */
                              ((body || (depth == 0 && !r->in)) && declares_function(r, k))))
            return 0;
        return text_refuse(r->t, word->line, "state", "a %.*s variable outlives the launch",
                           word->n < 60 ? word->n : 60, word->at);
    }
    return 0;
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
        if (rc == 0 && r->t->language == AGENT_CUDA && is_name(r, i) &&
            begins_declaration(r, &code[i]))
            rc = check_declared(r, i, depth);
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
            if (listed(r->function, r->functions, p) || listed(r->type, r->types, p) ||
                macro_find(r->m, p) || token_is(p, "barrier") || token_is(p, "team") ||
                token_is(p, "host"))
                return token_refuse(r->t, p, "macro",
                                    "cannot be a parameter: it is something else in the text");
        }
    return 0;
}

int calls_check(const struct tokens *t, const struct macros *m, const struct token *code, int n)
{
    struct reader *r = xcalloc(1, sizeof *r);
    *r = (struct reader){.t = t, .m = m, .code = code, .n = n};
    int rc = find_definitions(r);
    if (rc == 0)
        rc = check_params(r);
    if (rc == 0)
        rc = check_range(r, code, n, NULL);
    for (int i = 0; i < m->n && rc == 0; i++)
        rc = check_range(r, m->macro[i].body, m->macro[i].tokens, &m->macro[i]);
    free(r);
    return rc;
}
