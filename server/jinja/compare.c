/* SPDX-License-Identifier: Apache-2.0 */
/* compare.c - equality, order and membership as Python has them. */
#include <string.h>

#include "server/jinja/run.h"

static bool equal_lists(struct jinja_run *r, const struct jinja_list *a, const struct jinja_list *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (!jinja_equal(r, a->v[i], b->v[i]))
            return false;
    return true;
}

static bool equal_dicts(struct jinja_run *r, struct jinja_value a, struct jinja_value b)
{
    if (a.u.dict->n != b.u.dict->n)
        return false;
    for (size_t i = 0; i < a.u.dict->n; i++) {
        struct jinja_value *v = jinja_dict_find(r, b, a.u.dict->kv[2 * i]);
        if (!v || !jinja_equal(r, a.u.dict->kv[2 * i + 1], *v))
            return false;
    }
    return true;
}

static bool equal_ranges(const struct jinja_range *a, const struct jinja_range *b)
{
    return a->n == b->n &&
           (a->n == 0 || (a->start == b->start && (a->n == 1 || a->step == b->step)));
}

static bool equal_types(struct jinja_run *r, struct jinja_value a, struct jinja_value b)
{
    switch (a.type) {
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        return true;
    case JINJA_STR:
        jinja_step(r, a.u.s.n);
        return a.u.s.n == b.u.s.n && memcmp(a.u.s.p, b.u.s.p, a.u.s.n) == 0;
    case JINJA_LIST:
    case JINJA_TUPLE:
        return equal_lists(r, a.u.list, b.u.list);
    case JINJA_DICT:
        return equal_dicts(r, a, b);
    case JINJA_RANGE:
        return equal_ranges(a.u.range, b.u.range);
    case JINJA_FUNCTION:
        return a.which == b.which;
    case JINJA_VIEW:
    case JINJA_METHOD:
        jinja_fail(&r->m, "values of type '%s' cannot be compared here", jinja_type_name(a.type));
    default:
        return a.u.list == b.u.list;
    }
}

bool jinja_equal(struct jinja_run *r, struct jinja_value a, struct jinja_value b)
{
    double x, y;
    jinja_step(r, 0);
    if (a.type == JINJA_INT && b.type == JINJA_INT)
        return a.u.i == b.u.i;
    if (jinja_number(a, &x) && jinja_number(b, &y))
        return x == y;
    if (a.type != b.type)
        return false;
    jinja_deeper(r);
    bool equal = equal_types(r, a, b);
    r->depth--;
    return equal;
}

static int order_lists(struct jinja_run *r, const struct jinja_list *a, const struct jinja_list *b,
                       const char *op)
{
    size_t n = a->n < b->n ? a->n : b->n;
    for (size_t i = 0; i < n; i++)
        if (!jinja_equal(r, a->v[i], b->v[i]))
            return jinja_order(r, a->v[i], b->v[i], op);
    return (a->n > b->n) - (a->n < b->n);
}

int jinja_order(struct jinja_run *r, struct jinja_value a, struct jinja_value b, const char *op)
{
    double x, y;
    jinja_need(r, a);
    jinja_need(r, b);
    jinja_step(r, 0);
    if (a.type == JINJA_INT && b.type == JINJA_INT)
        return (a.u.i > b.u.i) - (a.u.i < b.u.i);
    if (jinja_number(a, &x) && jinja_number(b, &y)) {
        if (x != x || y != y)
            jinja_fail(&r->m, "NaN has no order");
        return (x > y) - (x < y);
    }
    if (a.type == JINJA_STR && b.type == JINJA_STR) {
        size_t n = a.u.s.n < b.u.s.n ? a.u.s.n : b.u.s.n;
        jinja_step(r, n);
        int c = memcmp(a.u.s.p, b.u.s.p, n);
        return c ? c : (a.u.s.n > b.u.s.n) - (a.u.s.n < b.u.s.n);
    }
    if (a.type != b.type || (a.type != JINJA_LIST && a.type != JINJA_TUPLE))
        jinja_fail(&r->m, "'%s' not supported between instances of '%s' and '%s'", op,
                   jinja_type_name(a.type), jinja_type_name(b.type));
    jinja_deeper(r);
    int order = order_lists(r, a.u.list, b.u.list, op);
    r->depth--;
    return order;
}

bool jinja_contains(struct jinja_run *r, struct jinja_value in, struct jinja_value v)
{
    if (in.type == JINJA_STR) {
        if (v.type != JINJA_STR)
            jinja_fail(&r->m, "'in <string>' requires string as left operand, not %s",
                       jinja_type_name(v.type));
        jinja_step(r, in.u.s.n);
        return text_find(jinja_span(in), jinja_span(v)) != NULL;
    }
    if (in.type == JINJA_DICT || (in.type == JINJA_VIEW && in.which == VIEW_KEYS))
        return jinja_dict_find(r, in, v) != NULL;
    if (!jinja_iterable(in))
        jinja_fail(&r->m, "argument of type '%s' is not iterable", jinja_type_name(in.type));
    struct jinja_list *items = jinja_items(r, in);
    for (size_t i = 0; i < items->n; i++)
        if (jinja_equal(r, items->v[i], v))
            return true;
    return false;
}
