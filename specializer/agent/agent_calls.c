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
    return i >= 0 && i < r->n && r->code[i].kind == TOKEN_NAME;
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
            for (; i < end; i++)
                if (find_type(r, i) != 0)
                    return -1;
        }
    }
    return 0;
}

/* ---- types --------------------------------------------------------------------------------- */

static bool is_plain_type(const void *ctx, const struct token *t)
{
    const struct reader *r = ctx;
    return t->kind == TOKEN_NAME &&
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
    if (end == open + 1 || r->code[open + 1].kind != TOKEN_NAME)
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
        return 0;
    if (is_function(r, name))
        return check_function(r, i);
    if (macro && macro->takes && !at(r, i + 1, "("))
        return token_refuse(r->t, name, "macro", "is used without its arguments");
    if (r->t->language == AGENT_C && name_told(name->at, (size_t)name->n, AGENT_C))
        return token_refuse(r->t, name, "frame", "is for the frame alone");
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
    bool number = first->kind == TOKEN_NUMBER || first->kind == TOKEN_CHARACTER;
    number = number && !token_is(first, "0");
    if (at(r, next, "("))
        number = r->code[next + 1].kind == TOKEN_NUMBER || is_integer_type(r, next);
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
    if (at(r, i, "]") && cuda && at(r, i + 1, "{"))
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
            rc = check_nested(r, i, depth + (in != NULL));
        if (rc != 0)
            return -1;
        if (at(r, i, "__attribute__") && at(r, i + 1, "("))
            i += r->code[i + 1].pair; /* read by agent_text.c; at its last parenthesis next */
        depth += at(r, i, "{") ? 1 : at(r, i, "}") ? -1 : 0;
    }
    return 0;
}

int calls_check(const struct tokens *t, const struct macros *m, const struct token *code, int n)
{
    struct reader *r = xcalloc(1, sizeof *r);
    *r = (struct reader){.t = t, .m = m, .code = code, .n = n};
    int rc = find_definitions(r);
    if (rc == 0)
        rc = check_range(r, code, n, NULL);
    for (int i = 0; i < m->n && rc == 0; i++)
        rc = check_range(r, m->macro[i].body, m->macro[i].tokens, &m->macro[i]);
    free(r);
    return rc;
}
