/* SPDX-License-Identifier: Apache-2.0 */
/* is.c - tests: what may stand behind `is`, and what select and the like are told. */
#include <string.h>

#include "server/jinja/run.h"

enum test {
    IS_DEFINED,
    IS_UNDEFINED,
    IS_NONE,
    IS_STRING,
    IS_NUMBER,
    IS_INTEGER,
    IS_FLOAT,
    IS_BOOLEAN,
    IS_TRUE,
    IS_FALSE,
    IS_MAPPING,
    IS_ITERABLE,
    IS_SEQUENCE,
    IS_CALLABLE,
    IS_ODD,
    IS_EVEN,
    IS_UPPER,
    IS_LOWER,
    IS_FILTER,
    IS_TEST,
    IS_ESCAPED,
    IS_DIVISIBLEBY,
    IS_SAMEAS,
    IS_IN,
    IS_EQ,
    IS_NE,
    IS_LT,
    IS_LE,
    IS_GT,
    IS_GE,
};

static const struct {
    const char *name;
    enum test test;
} tests[] = {
    {"defined", IS_DEFINED},
    {"undefined", IS_UNDEFINED},
    {"none", IS_NONE},
    {"string", IS_STRING},
    {"number", IS_NUMBER},
    {"integer", IS_INTEGER},
    {"float", IS_FLOAT},
    {"boolean", IS_BOOLEAN},
    {"true", IS_TRUE},
    {"false", IS_FALSE},
    {"mapping", IS_MAPPING},
    {"iterable", IS_ITERABLE},
    {"sequence", IS_SEQUENCE},
    {"callable", IS_CALLABLE},
    {"odd", IS_ODD},
    {"even", IS_EVEN},
    {"upper", IS_UPPER},
    {"lower", IS_LOWER},
    {"filter", IS_FILTER},
    {"test", IS_TEST},
    {"escaped", IS_ESCAPED},
    {"divisibleby", IS_DIVISIBLEBY},
    {"sameas", IS_SAMEAS},
    {"in", IS_IN},
    {"eq", IS_EQ},
    {"equalto", IS_EQ},
    {"==", IS_EQ},
    {"ne", IS_NE},
    {"!=", IS_NE},
    {"lt", IS_LT},
    {"lessthan", IS_LT},
    {"<", IS_LT},
    {"le", IS_LE},
    {"<=", IS_LE},
    {"gt", IS_GT},
    {"greaterthan", IS_GT},
    {">", IS_GT},
    {"ge", IS_GE},
    {">=", IS_GE},
};

static int find(const char *name)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (strcmp(tests[i].name, name) == 0)
            return (int)tests[i].test;
    return -1;
}

static bool known_name(struct jinja_value v, bool filter)
{
    char name[64];
    if (v.type != JINJA_STR || v.u.s.n >= sizeof name)
        return false;
    memcpy(name, v.u.s.p, v.u.s.n);
    name[v.u.s.n] = 0;
    return filter ? jinja_is_filter(name) : find(name) >= 0;
}

/* islower() and isupper(): cased characters there are, and all of them are. */
static bool all_cased(struct jinja_run *r, struct jinja_value v, bool upper)
{
    struct jinja_value text = jinja_str(r, v);
    struct span s = jinja_span(text);
    bool any = false;
    jinja_step(r, s.n * 4);
    for (size_t n; s.n; s.p += n, s.n -= n) {
        uint32_t c = text_char(s.p, s.n, &n);
        if (!text_cased(c))
            continue;
        any = true;
        if (upper ? !text_is_upper(c) : !text_is_lower(c))
            return false;
    }
    return any;
}

static bool same(struct jinja_run *r, struct jinja_value a, struct jinja_value b)
{
    if (a.type != b.type)
        return false;
    if (a.type == JINJA_FLOAT || a.type == JINJA_STR || a.type == JINJA_INT)
        jinja_fail(&r->m, "'sameas' of '%s' values is not supported", jinja_type_name(a.type));
    return a.type == JINJA_NONE || (a.type == JINJA_BOOL ? a.u.b == b.u.b : a.u.list == b.u.list);
}

static bool about_type(struct jinja_value v, enum test test)
{
    switch (test) {
    case IS_DEFINED:
        return v.type != JINJA_UNDEFINED;
    case IS_UNDEFINED:
        return v.type == JINJA_UNDEFINED;
    case IS_NONE:
        return v.type == JINJA_NONE;
    case IS_STRING:
        return v.type == JINJA_STR;
    case IS_NUMBER:
        return v.type == JINJA_BOOL || v.type == JINJA_INT || v.type == JINJA_FLOAT;
    case IS_INTEGER:
        return v.type == JINJA_INT;
    case IS_FLOAT:
        return v.type == JINJA_FLOAT;
    case IS_BOOLEAN:
        return v.type == JINJA_BOOL;
    case IS_TRUE:
        return v.type == JINJA_BOOL && v.u.b;
    case IS_FALSE:
        return v.type == JINJA_BOOL && !v.u.b;
    case IS_MAPPING:
        return v.type == JINJA_DICT;
    case IS_ITERABLE:
        return jinja_iterable(v);
    case IS_SEQUENCE:
        return v.type == JINJA_STR || v.type == JINJA_LIST || v.type == JINJA_TUPLE ||
               v.type == JINJA_DICT || v.type == JINJA_RANGE || v.type == JINJA_UNDEFINED;
    default: /* IS_CALLABLE */
        return v.type == JINJA_MACRO || v.type == JINJA_FUNCTION || v.type == JINJA_METHOD ||
               v.type == JINJA_LOOP || v.type == JINJA_UNDEFINED;
    }
}

static bool about_value(struct jinja_run *r, struct jinja_value v, enum test test)
{
    switch (test) {
    case IS_ODD:
    case IS_EVEN: {
        struct jinja_value rest = jinja_binary(r, OP_MOD, v, jinja_int(2));
        return jinja_equal(r, rest, jinja_int(test == IS_ODD));
    }
    case IS_UPPER:
        return all_cased(r, v, true);
    case IS_LOWER:
        return all_cased(r, v, false);
    case IS_FILTER:
        return known_name(v, true);
    case IS_TEST:
        return known_name(v, false);
    default: /* IS_ESCAPED */
        return v.type == JINJA_STR && v.safe;
    }
}

static bool with_other(struct jinja_run *r, struct jinja_value v, enum test test,
                       struct jinja_value other)
{
    switch (test) {
    case IS_DIVISIBLEBY:
        return jinja_equal(r, jinja_binary(r, OP_MOD, v, other), jinja_int(0));
    case IS_SAMEAS:
        return same(r, v, other);
    case IS_IN:
        return jinja_contains(r, other, v);
    case IS_EQ:
        return jinja_equal(r, v, other);
    case IS_NE:
        return !jinja_equal(r, v, other);
    case IS_LT:
        return jinja_order(r, v, other, "<") < 0;
    case IS_LE:
        return jinja_order(r, v, other, "<=") <= 0;
    case IS_GT:
        return jinja_order(r, v, other, ">") > 0;
    default:
        return jinja_order(r, v, other, ">=") >= 0;
    }
}

bool jinja_test(struct jinja_run *r, const char *name, struct jinja_value v, struct jinja_args *a)
{
    int test = find(name);
    size_t other = test >= IS_DIVISIBLEBY ? 1 : 0;
    if (test < 0)
        jinja_fail(&r->m, "the test '%.40s' is not known", name);
    if (a->names || a->n != other)
        jinja_fail(&r->m, "the test '%s' takes %s argument", name, other ? "one" : "no");
    if (other)
        return with_other(r, v, (enum test)test, a->v[0]);
    return test < IS_ODD ? about_type(v, (enum test)test) : about_value(r, v, (enum test)test);
}
