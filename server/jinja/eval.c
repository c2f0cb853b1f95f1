/* SPDX-License-Identifier: Apache-2.0 */
/* eval.c - expressions into values. */
#include <string.h>

#include "server/jinja/run.h"

void jinja_step(struct jinja_run *r, size_t bytes)
{
    uint64_t before = r->steps;
    r->steps += 1 + bytes / 64;
    if (r->steps > r->limits.steps)
        jinja_leave(&r->m, JINJA_LIMIT, "the chat template took more than %llu steps (line %d)",
                    (unsigned long long)r->limits.steps, r->m.line);
    if ((before ^ r->steps) >> 10 && r->limits.cancel && *r->limits.cancel)
        jinja_leave(&r->m, JINJA_CANCELLED, "the client left");
}

void jinja_deeper(struct jinja_run *r)
{
    jinja_step(r, 0);
    if (++r->depth > JINJA_CALLS_MAX)
        jinja_leave(&r->m, JINJA_LIMIT, "line %d: values or calls are nested more than %d deep",
                    r->m.line, JINJA_CALLS_MAX);
}

/* ---- arguments ----------------------------------------------------------------------------- */

static void add_named(struct jinja_run *r, struct jinja_args *a, size_t room, const char *name,
                      struct jinja_value v)
{
    for (size_t i = 0; i < a->names; i++)
        if (strcmp(a->named[i].name, name) == 0)
            jinja_fail(&r->m, "the argument '%.40s' is given twice", name);
    if (a->names == room)
        jinja_fail(&r->m, "too many named arguments");
    a->named[a->names++] = (struct jinja_binding){name, v};
}

static void add_stars(struct jinja_run *r, struct jinja_args *a, size_t room, struct jinja_value v)
{
    jinja_need(r, v);
    if (v.type != JINJA_DICT)
        jinja_fail(&r->m, "what follows ** must be a dict");
    for (size_t i = 0; i < v.u.dict->n; i++) {
        struct jinja_value key = v.u.dict->kv[2 * i];
        if (key.type != JINJA_STR)
            jinja_fail(&r->m, "what follows ** must have strings as keys");
        char *name = jinja_alloc(&r->m, key.u.s.n + 1);
        memcpy(name, key.u.s.p, key.u.s.n);
        name[key.u.s.n] = 0;
        add_named(r, a, room, name, v.u.dict->kv[2 * i + 1]);
    }
}

struct jinja_args jinja_arguments(struct jinja_run *r, const struct jinja_args_node *n)
{
    struct jinja_args a = {0};
    if (!n)
        return a;
    struct jinja_value list = jinja_values(r, JINJA_LIST, (size_t)n->n);
    for (int i = 0; i < n->n; i++)
        jinja_list_add(r, list, jinja_eval(r, n->v[i]));
    if (n->star) {
        struct jinja_list *more = jinja_items(r, jinja_eval(r, n->star));
        for (size_t i = 0; i < more->n; i++)
            jinja_list_add(r, list, more->v[i]);
    }
    size_t room = (size_t)n->named + (n->two_stars ? 64 : 0);
    a.named = jinja_alloc_items(&r->m, room, sizeof *a.named);
    for (int i = 0; i < n->named; i++)
        add_named(r, &a, room, n->name[i], jinja_eval(r, n->value[i]));
    if (n->two_stars)
        add_stars(r, &a, room, jinja_eval(r, n->two_stars));
    a.v = list.u.list->v;
    a.n = list.u.list->n;
    return a;
}

/* ---- kinds of expressions ------------------------------------------------------------------ */

static struct jinja_value eval_name(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_value *v = jinja_find(r, r->scope, n->name);
    return v ? *v : jinja_undefined(LACK_VARIABLE, n->name, strlen(n->name), 0);
}

static struct jinja_value eval_list(struct jinja_run *r, const struct jinja_node *n)
{
    enum jinja_type type = n->kind == NODE_TUPLE ? JINJA_TUPLE : JINJA_LIST;
    struct jinja_value list = jinja_values(r, type, (size_t)n->kids);
    for (int i = 0; i < n->kids; i++)
        jinja_list_add(r, list, jinja_eval(r, n->kid[i]));
    return list;
}

static struct jinja_value eval_dict(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_value dict = jinja_dict_new(r);
    for (int i = 0; i < n->kids; i += 2) {
        struct jinja_value key = jinja_eval(r, n->kid[i]);
        jinja_dict_set(r, dict, key, jinja_eval(r, n->kid[i + 1]));
    }
    return dict;
}

static struct jinja_value eval_item(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_value v = jinja_eval(r, n->kid[0]);
    if (n->kid[1]->kind != NODE_SLICE)
        return jinja_getitem(r, v, jinja_eval(r, n->kid[1]));
    struct jinja_value part[3];
    for (int i = 0; i < 3; i++)
        part[i] = n->kid[1]->kid[i] ? jinja_eval(r, n->kid[1]->kid[i]) : jinja_none();
    return jinja_slice(r, v, part);
}

static struct jinja_value eval_call(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_value f = jinja_eval(r, n->kid[0]);
    struct jinja_args a = jinja_arguments(r, n->args);
    r->m.line = n->line;
    return jinja_call(r, f, &a);
}

static struct jinja_value eval_filter(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_value v = jinja_eval(r, n->kid[0]);
    struct jinja_args a = jinja_arguments(r, n->args);
    r->m.line = n->line;
    return jinja_filter(r, n->name, v, &a);
}

static struct jinja_value eval_test(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_value v = jinja_eval(r, n->kid[0]);
    struct jinja_args a = jinja_arguments(r, n->args);
    r->m.line = n->line;
    return jinja_bool(jinja_test(r, n->name, v, &a));
}

static struct jinja_value eval_sign(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_value v = jinja_eval(r, n->kid[0]);
    bool negate = n->kind == NODE_NEGATE;
    jinja_need(r, v);
    if (v.type == JINJA_FLOAT)
        return jinja_float(negate ? -v.u.d : v.u.d);
    if (v.type != JINJA_INT && v.type != JINJA_BOOL)
        jinja_fail(&r->m, "bad operand type for unary %c: '%s'", negate ? '-' : '+',
                   jinja_type_name(v.type));
    return jinja_binary(r, negate ? OP_SUB : OP_ADD, jinja_int(0), v);
}

static struct jinja_value eval_concat(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_value all = jinja_str(r, jinja_eval(r, n->kid[0]));
    for (int i = 1; i < n->kids; i++) {
        struct jinja_value next = jinja_str(r, jinja_eval(r, n->kid[i]));
        jinja_step(r, next.u.s.n);
        all = jinja_join2(&r->m, all, next);
    }
    all.safe = false;
    return all;
}

static bool compare(struct jinja_run *r, uint8_t op, struct jinja_value a, struct jinja_value b)
{
    switch (op) {
    case OP_EQ:
        return jinja_equal(r, a, b);
    case OP_NE:
        return !jinja_equal(r, a, b);
    case OP_LT:
        return jinja_order(r, a, b, "<") < 0;
    case OP_LE:
        return jinja_order(r, a, b, "<=") <= 0;
    case OP_GT:
        return jinja_order(r, a, b, ">") > 0;
    case OP_GE:
        return jinja_order(r, a, b, ">=") >= 0;
    case OP_IN:
        return jinja_contains(r, b, a);
    default:
        return !jinja_contains(r, b, a);
    }
}

static struct jinja_value eval_comparison(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_value a = jinja_eval(r, n->kid[0]);
    for (int i = 1; i < n->kids; i++) {
        struct jinja_value b = jinja_eval(r, n->kid[i]);
        r->m.line = n->line;
        if (!compare(r, n->ops[i - 1], a, b))
            return jinja_bool(false);
        a = b;
    }
    return jinja_bool(true);
}

static struct jinja_value eval_condition(struct jinja_run *r, const struct jinja_node *n)
{
    if (jinja_truth(r, jinja_eval(r, n->kid[0])))
        return jinja_eval(r, n->kid[1]);
    return n->kid[2] ? jinja_eval(r, n->kid[2]) : jinja_undefined(LACK_ELSE, "", 0, 0);
}

static struct jinja_value eval_choice(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_value v = jinja_eval(r, n->kid[0]);
    return jinja_truth(r, v) == (n->kind == NODE_OR) ? v : jinja_eval(r, n->kid[1]);
}

static struct jinja_value eval_kind(struct jinja_run *r, const struct jinja_node *n)
{
    switch (n->kind) {
    case NODE_CONST:
        return n->value;
    case NODE_NAME:
        return eval_name(r, n);
    case NODE_TUPLE:
    case NODE_LIST:
        return eval_list(r, n);
    case NODE_DICT:
        return eval_dict(r, n);
    case NODE_GETATTR:
        return jinja_getattr(r, jinja_eval(r, n->kid[0]), n->name);
    case NODE_GETITEM:
        return eval_item(r, n);
    case NODE_CALL:
        return eval_call(r, n);
    case NODE_FILTER:
        return eval_filter(r, n);
    case NODE_TEST:
        return eval_test(r, n);
    case NODE_NOT:
        return jinja_bool(!jinja_truth(r, jinja_eval(r, n->kid[0])));
    case NODE_NEGATE:
    case NODE_PLUS:
        return eval_sign(r, n);
    case NODE_CONCAT:
        return eval_concat(r, n);
    case NODE_AND:
    case NODE_OR:
        return eval_choice(r, n);
    case NODE_COMPARE:
        return eval_comparison(r, n);
    case NODE_CONDITION:
        return eval_condition(r, n);
    default: { /* NODE_BINARY */
        struct jinja_value a = jinja_eval(r, n->kid[0]), b = jinja_eval(r, n->kid[1]);
        r->m.line = n->line;
        return jinja_binary(r, n->op, a, b);
    }
    }
}

struct jinja_value jinja_eval(struct jinja_run *r, const struct jinja_node *n)
{
    r->m.line = n->line;
    jinja_deeper(r);
    struct jinja_value v = eval_kind(r, n);
    r->depth--;
    return v;
}
