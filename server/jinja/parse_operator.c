/* SPDX-License-Identifier: Apache-2.0 */
/* parse_operator.c - operators, by recursive descent in Jinja's own order of precedence:
 * if/else, or, and, not, comparisons, + and -, ~, * / // %, **, signs. */
#include <string.h>

#include "server/jinja/ast.h"

struct sign {
    const char *text;
    enum jinja_operator op;
};

/* The operator of the list that comes next, or -1. */
static int next_of(struct jinja_parser *p, const struct sign *signs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (jinja_skip_operator(p, signs[i].text))
            return (int)signs[i].op;
    return -1;
}

static struct jinja_node *binary(struct jinja_parser *p, struct jinja_node *left, int op,
                                 struct jinja_node *right)
{
    struct jinja_node *n = jinja_node_new(p, NODE_BINARY, left->line);
    n->op = (uint8_t)op;
    jinja_node_add(p, n, left);
    jinja_node_add(p, n, right);
    return n;
}

static struct jinja_node *power(struct jinja_parser *p)
{
    static const struct sign signs[] = {{"**", OP_POW}};
    struct jinja_node *n = jinja_unary(p, true);
    for (int op; (op = next_of(p, signs, 1)) >= 0;)
        n = binary(p, n, op, jinja_unary(p, true));
    return n;
}

static struct jinja_node *product(struct jinja_parser *p)
{
    static const struct sign signs[] = {
        {"*", OP_MUL}, {"/", OP_DIV}, {"//", OP_FLOORDIV}, {"%", OP_MOD}};
    struct jinja_node *n = power(p);
    for (int op; (op = next_of(p, signs, 4)) >= 0;)
        n = binary(p, n, op, power(p));
    return n;
}

static struct jinja_node *concat(struct jinja_parser *p)
{
    struct jinja_node *n = product(p), *all;
    if (!jinja_at_operator(p, "~"))
        return n;
    all = jinja_node_new(p, NODE_CONCAT, n->line);
    jinja_node_add(p, all, n);
    while (jinja_skip_operator(p, "~"))
        jinja_node_add(p, all, product(p));
    return all;
}

static struct jinja_node *sum(struct jinja_parser *p)
{
    static const struct sign signs[] = {{"+", OP_ADD}, {"-", OP_SUB}};
    struct jinja_node *n = concat(p);
    for (int op; (op = next_of(p, signs, 2)) >= 0;)
        n = binary(p, n, op, concat(p));
    return n;
}

static struct jinja_node *comparison(struct jinja_parser *p)
{
    enum { CHAIN_MAX = 16 };
    static const struct sign signs[] = {{"==", OP_EQ}, {"!=", OP_NE}, {"<", OP_LT},
                                        {"<=", OP_LE}, {">", OP_GT},  {">=", OP_GE}};
    struct jinja_node *first = sum(p), *all = NULL;
    for (;;) {
        int op = next_of(p, signs, 6);
        if (op < 0 && jinja_skip_name(p, "in"))
            op = OP_IN;
        if (op < 0 && jinja_at_name(p, "not") && p->at[1].type == TOKEN_NAME &&
            p->at[1].v.u.s.n == 2 && memcmp(p->at[1].v.u.s.p, "in", 2) == 0) {
            p->at += 2;
            op = OP_NOT_IN;
        }
        if (op < 0)
            return all ? all : first;
        if (!all) {
            all = jinja_node_new(p, NODE_COMPARE, first->line);
            all->ops = jinja_alloc(p->m, CHAIN_MAX);
            jinja_node_add(p, all, first);
        }
        if (all->kids == CHAIN_MAX)
            jinja_fail(p->m, "more than %d comparisons in a chain", CHAIN_MAX - 1);
        all->ops[all->kids - 1] = (uint8_t)op;
        jinja_node_add(p, all, sum(p));
    }
}

static struct jinja_node *negation(struct jinja_parser *p)
{
    if (!jinja_at_name(p, "not"))
        return comparison(p);
    struct jinja_node *n = jinja_node_new(p, NODE_NOT, p->at->line);
    p->at++;
    jinja_nest(p, 1);
    jinja_node_add(p, n, negation(p));
    jinja_nest(p, -1);
    return n;
}

/* `next` and whatever is joined to it by the word, from left to right. */
static struct jinja_node *joined(struct jinja_parser *p, const char *word, enum jinja_kind kind,
                                 struct jinja_node *(*next)(struct jinja_parser *p))
{
    struct jinja_node *n = next(p), *all;
    while (jinja_skip_name(p, word)) {
        all = jinja_node_new(p, kind, n->line);
        jinja_node_add(p, all, n);
        jinja_node_add(p, all, next(p));
        n = all;
    }
    return n;
}

static struct jinja_node *conjunction(struct jinja_parser *p)
{
    return joined(p, "and", NODE_AND, negation);
}

static struct jinja_node *disjunction(struct jinja_parser *p)
{
    return joined(p, "or", NODE_OR, conjunction);
}

struct jinja_node *jinja_expression(struct jinja_parser *p, bool condition)
{
    jinja_nest(p, 1);
    struct jinja_node *n = disjunction(p);
    while (condition && jinja_skip_name(p, "if")) {
        struct jinja_node *all = jinja_node_new(p, NODE_CONDITION, n->line);
        jinja_node_add(p, all, disjunction(p));
        jinja_node_add(p, all, n);
        jinja_node_add(p, all, jinja_skip_name(p, "else") ? jinja_expression(p, true) : NULL);
        n = all;
    }
    jinja_nest(p, -1);
    return n;
}
