/* SPDX-License-Identifier: Apache-2.0 */
/* parse_expression.c - values: literals, names, signs, and what stands behind a value:
 * attributes, items, calls, filters and tests. Operators between values are in
 * parse_operator.c. */
#include <string.h>

#include "server/jinja/ast.h"

/* ---- literals and names -------------------------------------------------------------------- */

static struct jinja_node *constant(struct jinja_parser *p, struct jinja_value v)
{
    struct jinja_node *n = jinja_node_new(p, NODE_CONST, p->at->line);
    n->value = v;
    return n;
}

static struct jinja_node *name(struct jinja_parser *p)
{
    static const struct {
        const char *name;
        uint8_t type;
        bool b;
    } words[] = {{"true", JINJA_BOOL, true},   {"True", JINJA_BOOL, true},
                 {"false", JINJA_BOOL, false}, {"False", JINJA_BOOL, false},
                 {"none", JINJA_NONE, false},  {"None", JINJA_NONE, false}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (jinja_at_name(p, words[i].name)) {
            struct jinja_value v = {.type = words[i].type, .u.b = words[i].b};
            struct jinja_node *n = constant(p, v);
            p->at++;
            return n;
        }
    struct jinja_node *n = jinja_node_new(p, NODE_NAME, p->at->line);
    n->name = jinja_expect_name(p, "a name");
    if (p->macro) {
        p->macro->varargs = p->macro->varargs || strcmp(n->name, "varargs") == 0;
        p->macro->kwargs = p->macro->kwargs || strcmp(n->name, "kwargs") == 0;
        p->macro->caller = p->macro->caller || strcmp(n->name, "caller") == 0;
    }
    return n;
}

static struct jinja_node *strings(struct jinja_parser *p)
{
    struct jinja_node *n = constant(p, p->at->v);
    for (p->at++; p->at->type == TOKEN_STRING; p->at++)
        n->value = jinja_join2(p->m, n->value, p->at->v);
    return n;
}

static struct jinja_node *list(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node_new(p, NODE_LIST, p->at->line);
    jinja_expect_operator(p, "[");
    while (!jinja_at_operator(p, "]")) {
        if (n->kids)
            jinja_expect_operator(p, ",");
        if (jinja_at_operator(p, "]"))
            break;
        jinja_node_add(p, n, jinja_expression(p, true));
    }
    jinja_expect_operator(p, "]");
    return n;
}

static struct jinja_node *dict(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node_new(p, NODE_DICT, p->at->line);
    jinja_expect_operator(p, "{");
    while (!jinja_at_operator(p, "}")) {
        if (n->kids)
            jinja_expect_operator(p, ",");
        if (jinja_at_operator(p, "}"))
            break;
        jinja_node_add(p, n, jinja_expression(p, true));
        jinja_expect_operator(p, ":");
        jinja_node_add(p, n, jinja_expression(p, true));
    }
    jinja_expect_operator(p, "}");
    return n;
}

static bool tuple_ends(const struct jinja_parser *p, const char *stop)
{
    return p->at->type == TOKEN_VARIABLE_END || p->at->type == TOKEN_BLOCK_END ||
           jinja_at_operator(p, ")") || (stop && jinja_at_name(p, stop));
}

static struct jinja_node *tuple_in(struct jinja_parser *p, bool condition, const char *stop,
                                   bool parentheses)
{
    struct jinja_node *first = NULL, *tuple = NULL;
    int line = p->at->line;
    while (!tuple_ends(p, stop)) {
        struct jinja_node *item = jinja_expression(p, condition);
        if (!first)
            first = item;
        if (!jinja_at_operator(p, ",")) {
            if (tuple)
                jinja_node_add(p, tuple, item);
            break;
        }
        if (!tuple)
            tuple = jinja_node_new(p, NODE_TUPLE, line);
        jinja_node_add(p, tuple, item);
        p->at++;
    }
    if (!first && !parentheses)
        jinja_unexpected(p, "an expression");
    if (!first)
        tuple = jinja_node_new(p, NODE_TUPLE, line);
    return tuple ? tuple : first;
}

struct jinja_node *jinja_tuple(struct jinja_parser *p, bool condition, const char *stop)
{
    return tuple_in(p, condition, stop, false);
}

struct jinja_node *jinja_primary(struct jinja_parser *p)
{
    struct jinja_node *n;
    jinja_nest(p, 1);
    if (p->at->type == TOKEN_NAME) {
        n = name(p);
    } else if (p->at->type == TOKEN_STRING) {
        n = strings(p);
    } else if (p->at->type == TOKEN_INT || p->at->type == TOKEN_FLOAT) {
        n = constant(p, p->at->v);
        p->at++;
    } else if (jinja_skip_operator(p, "(")) {
        n = tuple_in(p, true, NULL, true);
        jinja_expect_operator(p, ")");
    } else if (jinja_at_operator(p, "[")) {
        n = list(p);
    } else if (jinja_at_operator(p, "{")) {
        n = dict(p);
    } else {
        jinja_unexpected(p, "an expression");
    }
    jinja_nest(p, -1);
    return n;
}

/* ---- behind a value ------------------------------------------------------------------------ */

/* One of `[...]`: an index, or a slice with parts left out. */
static struct jinja_node *subscript(struct jinja_parser *p)
{
    struct jinja_node *part[3] = {NULL, NULL, NULL};
    int line = p->at->line, colons = 0;
    if (!jinja_at_operator(p, ":")) {
        part[0] = jinja_expression(p, true);
        if (!jinja_at_operator(p, ":"))
            return part[0];
    }
    while (colons < 2 && jinja_skip_operator(p, ":")) {
        colons++;
        if (!jinja_at_operator(p, ":") && !jinja_at_operator(p, "]") && !jinja_at_operator(p, ","))
            part[colons] = jinja_expression(p, true);
    }
    struct jinja_node *n = jinja_node_new(p, NODE_SLICE, line);
    for (int i = 0; i < 3; i++)
        jinja_node_add(p, n, part[i]);
    return n;
}

static struct jinja_node *attribute(struct jinja_parser *p, struct jinja_node *object)
{
    int line = p->at->line;
    struct jinja_node *n;
    if (jinja_skip_operator(p, ".")) {
        if (p->at->type == TOKEN_INT) {
            n = jinja_node_new(p, NODE_GETITEM, line);
            jinja_node_add(p, n, object);
            jinja_node_add(p, n, constant(p, p->at->v));
            p->at++;
            return n;
        }
        n = jinja_node_new(p, NODE_GETATTR, line);
        jinja_node_add(p, n, object);
        n->name = jinja_expect_name(p, "the name of an attribute");
        return n;
    }
    jinja_expect_operator(p, "[");
    n = jinja_node_new(p, NODE_GETITEM, line);
    jinja_node_add(p, n, object);
    jinja_node_add(p, n, subscript(p));
    if (jinja_at_operator(p, ","))
        jinja_fail(p->m, "more than one index is not supported");
    jinja_expect_operator(p, "]");
    return n;
}

static void named_argument(struct jinja_parser *p, struct jinja_args_node *a, int room)
{
    if (a->named == room)
        jinja_fail(p->m, "more than %d named arguments", room);
    a->name[a->named] = jinja_expect_name(p, "a name");
    p->at++;
    a->value[a->named++] = jinja_expression(p, true);
}

static void argument(struct jinja_parser *p, struct jinja_args_node *a, struct jinja_node *all,
                     int room)
{
    bool stars = a->star || a->two_stars;
    if (jinja_at_operator(p, "*") && !stars) {
        p->at++;
        a->star = jinja_expression(p, true);
    } else if (jinja_at_operator(p, "**") && !a->two_stars) {
        p->at++;
        a->two_stars = jinja_expression(p, true);
    } else if (p->at->type == TOKEN_NAME && p->at[1].type == TOKEN_OPERATOR &&
               p->at[1].v.u.s.n == 1 && *p->at[1].v.u.s.p == '=' && !a->two_stars) {
        named_argument(p, a, room);
    } else if (!stars && !a->named) {
        jinja_node_add(p, all, jinja_expression(p, true));
    } else {
        jinja_fail(p->m, "an argument by position stands behind others");
    }
}

/* `(...)` of a call, a filter or a test; `n` is what gets them. */
static void arguments(struct jinja_parser *p, struct jinja_node *n)
{
    enum { NAMED_MAX = 64 };
    struct jinja_args_node *a = jinja_alloc(p->m, sizeof *a);
    struct jinja_node *all = jinja_node_new(p, NODE_TUPLE, p->at->line);
    *a = (struct jinja_args_node){.n = 0};
    const char *names[NAMED_MAX];
    struct jinja_node *values[NAMED_MAX];
    a->name = names;
    a->value = values;
    bool first = true;
    jinja_expect_operator(p, "(");
    while (!jinja_at_operator(p, ")")) {
        if (!first)
            jinja_expect_operator(p, ",");
        if (jinja_at_operator(p, ")"))
            break;
        argument(p, a, all, NAMED_MAX);
        first = false;
    }
    jinja_expect_operator(p, ")");
    a->n = all->kids;
    a->v = all->kid;
    a->name = jinja_alloc_items(p->m, (size_t)a->named, sizeof *a->name);
    a->value = jinja_alloc_items(p->m, (size_t)a->named, sizeof *a->value);
    memcpy(a->name, names, (size_t)a->named * sizeof *names);
    memcpy(a->value, values, (size_t)a->named * sizeof *values);
    n->args = a;
    struct jinja_node *deepest[] = {all, a->star, a->two_stars};
    for (int i = 0; i < 3 + a->named; i++) {
        struct jinja_node *kid = i < 3 ? deepest[i] : a->value[i - 3];
        if (kid && kid->depth >= n->depth)
            n->depth = kid->depth + 1;
    }
}

static struct jinja_node *call(struct jinja_parser *p, struct jinja_node *function)
{
    struct jinja_node *n = jinja_node_new(p, NODE_CALL, p->at->line);
    jinja_node_add(p, n, function);
    arguments(p, n);
    return n;
}

static struct jinja_node *postfix(struct jinja_parser *p, struct jinja_node *n)
{
    for (;;) {
        if (jinja_at_operator(p, ".") || jinja_at_operator(p, "["))
            n = attribute(p, n);
        else if (jinja_at_operator(p, "("))
            n = call(p, n);
        else
            return n;
    }
}

struct jinja_node *jinja_filters(struct jinja_parser *p, struct jinja_node *node, bool started)
{
    while (started || jinja_skip_operator(p, "|")) {
        struct jinja_node *n = jinja_node_new(p, NODE_FILTER, p->at->line);
        jinja_node_add(p, n, node);
        n->name = jinja_expect_name(p, "the name of a filter");
        if (jinja_at_operator(p, "."))
            jinja_fail(p->m, "the filter '%s.' is not known", n->name);
        if (jinja_at_operator(p, "("))
            arguments(p, n);
        node = n;
        started = false;
    }
    return node;
}

static bool test_has_argument(const struct jinja_parser *p)
{
    switch (p->at->type) {
    case TOKEN_NAME:
        return !jinja_at_name(p, "else") && !jinja_at_name(p, "or") && !jinja_at_name(p, "and");
    case TOKEN_STRING:
    case TOKEN_INT:
    case TOKEN_FLOAT:
        return true;
    default:
        return jinja_at_operator(p, "[") || jinja_at_operator(p, "{");
    }
}

static struct jinja_node *test(struct jinja_parser *p, struct jinja_node *value)
{
    p->at++;
    bool negated = jinja_skip_name(p, "not");
    struct jinja_node *n = jinja_node_new(p, NODE_TEST, p->at->line);
    jinja_node_add(p, n, value);
    n->name = jinja_expect_name(p, "the name of a test");
    if (jinja_at_operator(p, "(")) {
        arguments(p, n);
    } else if (test_has_argument(p)) {
        if (jinja_at_name(p, "is"))
            jinja_fail(p->m, "tests with 'is' cannot be chained");
        struct jinja_args_node *a = jinja_alloc(p->m, sizeof *a);
        struct jinja_node *all = jinja_node_new(p, NODE_TUPLE, p->at->line);
        jinja_node_add(p, all, postfix(p, jinja_primary(p)));
        *a = (struct jinja_args_node){.n = 1, .v = all->kid};
        n->args = a;
        n->depth = n->depth > all->depth ? n->depth : all->depth + 1;
    }
    if (!negated)
        return n;
    struct jinja_node *not = jinja_node_new(p, NODE_NOT, n->line);
    jinja_node_add(p, not, n);
    return not ;
}

static struct jinja_node *filters_and_tests(struct jinja_parser *p, struct jinja_node *n)
{
    for (;;) {
        if (jinja_at_operator(p, "|"))
            n = jinja_filters(p, n, false);
        else if (jinja_at_name(p, "is"))
            n = test(p, n);
        else if (jinja_at_operator(p, "("))
            n = call(p, n);
        else
            return n;
    }
}

struct jinja_node *jinja_unary(struct jinja_parser *p, bool filters)
{
    struct jinja_node *n;
    bool negate = jinja_at_operator(p, "-");
    jinja_nest(p, 1);
    if (negate || jinja_at_operator(p, "+")) {
        n = jinja_node_new(p, negate ? NODE_NEGATE : NODE_PLUS, p->at->line);
        p->at++;
        jinja_node_add(p, n, jinja_unary(p, false));
    } else {
        n = jinja_primary(p);
    }
    n = postfix(p, n);
    jinja_nest(p, -1);
    return filters ? filters_and_tests(p, n) : n;
}
