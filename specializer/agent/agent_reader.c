/* SPDX-License-Identifier: Apache-2.0 */
/* agent_reader.c - see agent_reader.h. */
#include "specializer/agent/agent_reader.h"

#include "specializer/agent/agent_names.h"

static bool listed(const struct token *const *list, int n, const struct token *name)
{
    for (int i = 0; i < n; i++)
        if (token_same(list[i], name))
            return true;
    return false;
}

bool reader_defines(const struct reader *r, const struct token *name)
{
    return listed(r->function, r->functions, name);
}

bool reader_names_type(const struct reader *r, const struct token *name)
{
    return listed(r->type, r->types, name);
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
    if (reader_defines(r, name))
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

int reader_define(struct reader *r)
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
            token_is(t, "enum") || token_is(t, "union") || reader_names_type(r, t));
}

bool reader_is_type(const struct reader *r, const struct token *t)
{
    return is_plain_type(r, t) || macro_is_type(r->m, t, is_plain_type, r);
}

bool reader_is_cast(const struct reader *r, int open)
{
    int end = open + r->code[open].pair;
    if (end == open + 1 || r->code[open + 1].kind != LEXEME_NAME)
        return false;
    for (int i = open + 1; i < end; i++)
        if (!at(r, i, "*") && !reader_is_type(r, &r->code[i]) &&
            !(is_name(r, i) && is_tag_word(r, i - 1)))
            return false;
    return true;
}
