/* SPDX-License-Identifier: Apache-2.0 */
/* filter_list.c - filters that go through lists: what passes, what each becomes, sums.
 *
 * Jinja's map, select and the like are generators. Here they are computed at once and can be read
 * once, which a program cannot tell from it but by an error in an item that nobody reads.
 */
#include <string.h>

#include "server/jinja/run.h"

#define FILTER(name)                                                          \
    static struct jinja_value name(struct jinja_run *r, struct jinja_value v, \
                                   const struct jinja_value *p, struct jinja_args *a)
#define UNUSED(...) ((void)r, (void)v, (void)p, (void)a)

static bool given(struct jinja_value v)
{
    return v.type != JINJA_ABSENT && v.type != JINJA_NONE;
}

static bool is_digits(struct span s)
{
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] < '0' || s.p[i] > '9')
            return false;
    return s.n > 0 && s.n < 10;
}

static struct jinja_value item_or(struct jinja_run *r, struct jinja_value v, struct jinja_value key,
                                  struct jinja_value otherwise)
{
    v = jinja_getitem(r, v, key);
    return v.type == JINJA_UNDEFINED && given(otherwise) ? otherwise : v;
}

struct jinja_value jinja_path(struct jinja_run *r, struct jinja_value v, struct jinja_value path)
{
    return jinja_path_or(r, v, path, (struct jinja_value){.type = JINJA_ABSENT});
}

struct jinja_value jinja_path_or(struct jinja_run *r, struct jinja_value v, struct jinja_value path,
                                 struct jinja_value otherwise)
{
    if (path.type != JINJA_STR)
        return given(path) ? item_or(r, v, path, otherwise) : v;
    struct span rest = jinja_span(path);
    for (;;) {
        const char *dot = text_find(rest, (struct span){".", 1});
        struct span part = {rest.p, dot ? (size_t)(dot - rest.p) : rest.n};
        struct jinja_value key = jinja_string(part.p, part.n);
        if (is_digits(part)) {
            key = jinja_int(0);
            for (size_t i = 0; i < part.n; i++)
                key.u.i = key.u.i * 10 + (part.p[i] - '0');
        }
        v = item_or(r, v, key, otherwise);
        if (!dot)
            return v;
        rest.n -= (size_t)(dot + 1 - rest.p);
        rest.p = dot + 1;
    }
}

/* The arguments behind the first `n`. */
static struct jinja_args behind(const struct jinja_args *a, size_t n)
{
    return (struct jinja_args){a->v + n, a->n - n, a->named, a->names};
}

static const char *name_of(struct jinja_run *r, struct jinja_value v, const char *what)
{
    if (v.type != JINJA_STR || v.u.s.n > 60)
        jinja_fail(&r->m, "the name of a %s must be a string", what);
    char *name = jinja_alloc(&r->m, v.u.s.n + 1);
    memcpy(name, v.u.s.p, v.u.s.n);
    name[v.u.s.n] = 0;
    return name;
}

static struct jinja_value map_attribute(struct jinja_run *r, struct jinja_list *items,
                                        struct jinja_args *a)
{
    struct jinja_value path = {.type = JINJA_ABSENT}, otherwise = path;
    struct jinja_value out = jinja_values(r, JINJA_ITERATOR, items->n);
    for (size_t i = 0; i < a->names; i++) {
        if (strcmp(a->named[i].name, "attribute") == 0)
            path = a->named[i].v;
        else if (strcmp(a->named[i].name, "default") == 0)
            otherwise = a->named[i].v;
        else
            jinja_fail(&r->m, "map: unexpected argument '%.40s'", a->named[i].name);
    }
    for (size_t i = 0; i < items->n; i++)
        jinja_list_add(r, out, jinja_path_or(r, items->v[i], path, otherwise));
    return out;
}

FILTER(map)
{
    UNUSED();
    struct jinja_value out;
    if (!jinja_truth(r, v))
        return jinja_values(r, JINJA_ITERATOR, 0);
    struct jinja_list *items = jinja_items(r, v);
    if (!a->n && a->names)
        return map_attribute(r, items, a);
    if (!a->n)
        jinja_fail(&r->m, "map needs the name of a filter or an attribute");
    const char *name = name_of(r, a->v[0], "filter");
    out = jinja_values(r, JINJA_ITERATOR, items->n);
    for (size_t i = 0; i < items->n; i++) {
        struct jinja_args rest = behind(a, 1);
        jinja_list_add(r, out, jinja_filter(r, name, items->v[i], &rest));
    }
    return out;
}

/* select and the like: what passes the test (or not, `wanted` false), of an attribute or as it
 * is. */
static struct jinja_value choose(struct jinja_run *r, struct jinja_value v, struct jinja_args *a,
                                 bool wanted, bool attribute)
{
    struct jinja_value out = jinja_values(r, JINJA_ITERATOR, 0);
    size_t skip = attribute ? 1 : 0;
    if (!jinja_truth(r, v))
        return out;
    if (a->n < skip)
        jinja_fail(&r->m, "the name of the attribute is missing");
    const char *test = a->n > skip ? name_of(r, a->v[skip], "test") : NULL;
    struct jinja_list *items = jinja_items(r, v);
    for (size_t i = 0; i < items->n; i++) {
        struct jinja_value item = attribute ? jinja_path(r, items->v[i], a->v[0]) : items->v[i];
        struct jinja_args rest = {0};
        if (test)
            rest = behind(a, skip + 1);
        bool passes = test ? jinja_test(r, test, item, &rest) : jinja_truth(r, item);
        if (passes == wanted)
            jinja_list_add(r, out, items->v[i]);
    }
    return out;
}

FILTER(select)
{
    UNUSED();
    return choose(r, v, a, true, false);
}

FILTER(reject)
{
    UNUSED();
    return choose(r, v, a, false, false);
}

FILTER(selectattr)
{
    UNUSED();
    return choose(r, v, a, true, true);
}

FILTER(rejectattr)
{
    UNUSED();
    return choose(r, v, a, false, true);
}

FILTER(join)
{
    UNUSED();
    struct jinja_list *items = jinja_items(r, v);
    struct jinja_value between = jinja_str(r, p[0].type == JINJA_ABSENT ? jinja_text("") : p[0]);
    struct jinja_out out = {0};
    for (size_t i = 0; i < items->n; i++) {
        struct jinja_value text = jinja_str(r, jinja_path(r, items->v[i], p[1]));
        jinja_step(r, text.u.s.n + between.u.s.n);
        if (i)
            jinja_add(&r->m, &out, between.u.s.p, between.u.s.n);
        jinja_add(&r->m, &out, text.u.s.p, text.u.s.n);
    }
    return jinja_taken(&out);
}

FILTER(length)
{
    UNUSED();
    return jinja_int((int64_t)jinja_length(r, v));
}

FILTER(first)
{
    UNUSED();
    if (v.type == JINJA_ITERATOR && v.u.list->at < v.u.list->n)
        return v.u.list->v[v.u.list->at++];
    if (v.type == JINJA_STR && v.u.s.n)
        return jinja_getitem(r, v, jinja_int(0));
    struct jinja_list *items = jinja_items(r, v);
    return items->n ? items->v[0] : jinja_undefined(LACK_ITEM, "", 0, v.type);
}

FILTER(last)
{
    UNUSED();
    if (v.type == JINJA_ITERATOR || v.type == JINJA_LOOP)
        jinja_fail(&r->m, "last: '%s' object is not reversible", jinja_type_name(v.type));
    if (v.type == JINJA_STR && v.u.s.n)
        return jinja_getitem(r, v, jinja_int(-1));
    struct jinja_list *items = jinja_items(r, v);
    return items->n ? items->v[items->n - 1] : jinja_undefined(LACK_ITEM, "", 0, v.type);
}

FILTER(list)
{
    UNUSED();
    struct jinja_list *items = jinja_items(r, v);
    struct jinja_value out = jinja_values(r, JINJA_LIST, items->n);
    jinja_step(r, items->n * sizeof *items->v);
    for (size_t i = 0; i < items->n; i++)
        jinja_list_add(r, out, items->v[i]);
    return out;
}

FILTER(reverse)
{
    UNUSED();
    if (v.type == JINJA_STR) {
        struct jinja_value part[3] = {jinja_none(), jinja_none(), jinja_int(-1)};
        return jinja_slice(r, v, part);
    }
    struct jinja_list *items = jinja_items(r, v);
    struct jinja_value out =
        jinja_values(r, v.type == JINJA_ITERATOR ? JINJA_LIST : JINJA_ITERATOR, items->n);
    jinja_step(r, items->n * sizeof *items->v);
    for (size_t i = items->n; i-- > 0;)
        jinja_list_add(r, out, items->v[i]);
    return out;
}

FILTER(items)
{
    UNUSED();
    struct jinja_value out = jinja_values(r, JINJA_ITERATOR, 0);
    if (v.type == JINJA_UNDEFINED)
        return out;
    if (v.type != JINJA_DICT)
        jinja_fail(&r->m, "items: '%s' is no mapping", jinja_type_name(v.type));
    v.type = JINJA_VIEW;
    v.which = VIEW_ITEMS;
    struct jinja_list *pairs = jinja_items(r, v);
    for (size_t i = 0; i < pairs->n; i++)
        jinja_list_add(r, out, pairs->v[i]);
    return out;
}

FILTER(sum)
{
    UNUSED();
    struct jinja_value total = p[1].type == JINJA_ABSENT ? jinja_int(0) : p[1];
    struct jinja_list *items = jinja_items(r, v);
    if (total.type == JINJA_STR)
        jinja_fail(&r->m, "sum: strings cannot be summed");
    for (size_t i = 0; i < items->n; i++)
        total = jinja_binary(r, OP_ADD, total, jinja_path(r, items->v[i], p[0]));
    return total;
}

FILTER(batch)
{
    UNUSED();
    struct jinja_list *items = jinja_items(r, v);
    struct jinja_value out = jinja_values(r, JINJA_ITERATOR, 0), row = out;
    int64_t count = jinja_integer(r, p[0], "batch: count");
    if (count < 1)
        jinja_fail(&r->m, "batch: the count must be at least 1");
    for (size_t i = 0; i < items->n; i++) {
        if (i == 0 || (int64_t)row.u.list->n == count) {
            row = jinja_list_new(r);
            jinja_list_add(r, out, row);
        }
        jinja_list_add(r, row, items->v[i]);
    }
    for (; items->n && given(p[1]) && (int64_t)row.u.list->n < count; jinja_step(r, 64))
        jinja_list_add(r, row, p[1]);
    return out;
}

const struct jinja_filter_row jinja_list_filters[] = {
    {"map", NULL, 0, map},
    {"select", NULL, 0, select},
    {"reject", NULL, 0, reject},
    {"selectattr", NULL, 0, selectattr},
    {"rejectattr", NULL, 0, rejectattr},
    {"join", "d attribute", 0, join},
    {"length", "", 0, length},
    {"count", "", 0, length},
    {"first", "", 0, first},
    {"last", "", 0, last},
    {"list", "", 0, list},
    {"reverse", "", 0, reverse},
    {"items", "", 0, items},
    {"sum", "attribute start", 0, sum},
    {"batch", "linecount fill_with", 1, batch},
    {NULL, NULL, 0, NULL},
};
