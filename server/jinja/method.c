/* SPDX-License-Identifier: Apache-2.0 */
/* method.c - methods by the type of their object; those of dicts and lists.
 *
 * The sandbox forbids methods that change their object. Python has more methods than are here: one
 * that it has and this file lacks is an error when it is called, so that it is never taken for a
 * key that is not there.
 */
#include <string.h>

#include "server/jinja/run.h"

#define METHOD(name)                                                             \
    static struct jinja_value name(struct jinja_run *r, struct jinja_value self, \
                                   const struct jinja_value *p, struct jinja_args *a)
#define UNUSED(...) ((void)r, (void)self, (void)p, (void)a)

/* ---- dicts and lists ----------------------------------------------------------------------- */

METHOD(dict_get)
{
    UNUSED();
    struct jinja_value *v = jinja_dict_find(r, self, p[0]);
    return v ? *v : p[1].type == JINJA_ABSENT ? jinja_none() : p[1];
}

static struct jinja_value view(struct jinja_value dict, enum jinja_view which)
{
    dict.type = JINJA_VIEW;
    dict.which = (uint8_t)which;
    return dict;
}

METHOD(dict_items)
{
    UNUSED();
    return view(self, VIEW_ITEMS);
}

METHOD(dict_keys)
{
    UNUSED();
    return view(self, VIEW_KEYS);
}

METHOD(dict_values)
{
    UNUSED();
    return view(self, VIEW_VALUES);
}

METHOD(dict_copy)
{
    UNUSED();
    struct jinja_value dict = jinja_dict_new(r);
    for (size_t i = 0; i < self.u.dict->n; i++)
        jinja_dict_set(r, dict, self.u.dict->kv[2 * i], self.u.dict->kv[2 * i + 1]);
    return dict;
}

METHOD(list_count)
{
    UNUSED();
    struct jinja_list *items = jinja_items(r, self);
    int64_t n = 0;
    for (size_t i = 0; i < items->n; i++)
        n += jinja_equal(r, items->v[i], p[0]);
    return jinja_int(n);
}

METHOD(list_index)
{
    UNUSED();
    struct jinja_list *items = jinja_items(r, self);
    for (size_t i = 0; i < items->n; i++)
        if (jinja_equal(r, items->v[i], p[0]))
            return jinja_int((int64_t)i);
    jinja_fail(&r->m, "index(): the value is not in the list");
}

METHOD(list_copy)
{
    UNUSED();
    struct jinja_args none = {0};
    return jinja_filter(r, "list", self, &none);
}

static const struct jinja_method_row dict_methods[] = {
    {"get", "- -", 1, dict_get},    {"items", "", 0, dict_items}, {"keys", "", 0, dict_keys},
    {"values", "", 0, dict_values}, {"copy", "", 0, dict_copy},   {"fromkeys", "", 0, NULL},
    {NULL, NULL, 0, NULL}};
static const struct jinja_method_row list_methods[] = {{"count", "-", 1, list_count},
                                                       {"index", "-", 1, list_index},
                                                       {"copy", "", 0, list_copy},
                                                       {NULL, NULL, 0, NULL}};
static const struct jinja_method_row tuple_methods[] = {
    {"count", "-", 1, list_count}, {"index", "-", 1, list_index}, {NULL, NULL, 0, NULL}};
static const struct jinja_method_row number_methods[] = {
    {"real", "", 0, NULL},        {"imag", "", 0, NULL},       {"numerator", "", 0, NULL},
    {"denominator", "", 0, NULL}, {"bit_length", "", 0, NULL}, {"is_integer", "", 0, NULL},
    {"conjugate", "", 0, NULL},   {"hex", "", 0, NULL},        {"as_integer_ratio", "", 0, NULL},
    {NULL, NULL, 0, NULL}};
static const struct jinja_method_row range_methods[] = {
    {"start", "", 0, NULL}, {"stop", "", 0, NULL},  {"step", "", 0, NULL},
    {"count", "", 0, NULL}, {"index", "", 0, NULL}, {NULL, NULL, 0, NULL}};

/* ---- by name ------------------------------------------------------------------------------- */

static bool among(const char *const *names, const char *name)
{
    for (; *names; names++)
        if (strcmp(*names, name) == 0)
            return true;
    return false;
}

static bool forbidden(uint8_t type, const char *name)
{
    static const char *const of_list[] = {"append", "clear",  "pop",    "reverse", "insert",
                                          "sort",   "extend", "remove", NULL};
    static const char *const of_dict[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    return (type == JINJA_LIST && among(of_list, name)) ||
           (type == JINJA_DICT && among(of_dict, name));
}

static const struct jinja_method_row *row_in(const struct jinja_method_row *row, const char *name)
{
    for (; row && row->name; row++)
        if (strcmp(row->name, name) == 0)
            return row;
    return NULL;
}

static const struct jinja_method_row *find(uint8_t type, const char *name)
{
    const struct jinja_method_row *row;
    switch (type) {
    case JINJA_STR:
        row = row_in(jinja_string_methods, name);
        return row ? row : row_in(jinja_string_methods2, name);
    case JINJA_DICT:
        return row_in(dict_methods, name);
    case JINJA_LIST:
        return row_in(list_methods, name);
    case JINJA_TUPLE:
        return row_in(tuple_methods, name);
    case JINJA_LOOP:
        return row_in(jinja_loop_methods, name);
    case JINJA_BOOL:
    case JINJA_INT:
    case JINJA_FLOAT:
        return row_in(number_methods, name);
    case JINJA_RANGE:
        return row_in(range_methods, name);
    default:
        return NULL;
    }
}

struct jinja_value jinja_method(struct jinja_run *r, struct jinja_value v, const char *name)
{
    if (forbidden(v.type, name))
        return jinja_undefined(LACK_UNSAFE, name, strlen(name), v.type);
    const struct jinja_method_row *row = find(v.type, name);
    if (!row)
        return (struct jinja_value){.type = JINJA_ABSENT};
    struct jinja_method *method = jinja_alloc(&r->m, sizeof *method);
    *method = (struct jinja_method){v, row};
    return (struct jinja_value){.type = JINJA_METHOD, .u.method = method};
}
