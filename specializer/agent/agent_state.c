/* SPDX-License-Identifier: Apache-2.0 */
/* agent_state.c - see agent_state.h. */
#include "specializer/agent/agent_state.h"

#include "specializer/agent/agent_names.h"

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
        return is_name(r, i - 1) && reader_defines(r, &r->code[i - 1]);
    }
    const struct token *name = &r->code[i];
    return is_name(r, i) && !reader_is_type(r, name) && !name_keyword(name->at, (size_t)name->n) &&
           !macro_find(r->m, name);
}

/* __device__ or static at `i`, at `depth` braces: what is declared is a function: __device__ int
 * (a), __device__ A, and in a body static int a(1). */
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

int state_check(struct reader *r, int i, int depth)
{
    return r->t->language == AGENT_CUDA && is_name(r, i) && begins_declaration(r, &r->code[i])
               ? check_declared(r, i, depth)
               : 0;
}
