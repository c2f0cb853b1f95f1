/* SPDX-License-Identifier: Apache-2.0 */
/* value.c - making values, and what holds of all of them: truth, length, iteration. */
#include <string.h>

#include "server/jinja/run.h"

struct jinja_value jinja_string(const char *s, size_t n)
{
    return (struct jinja_value){.type = JINJA_STR, .u.s = {s, n}};
}

struct jinja_value jinja_text(const char *s)
{
    return jinja_string(s, strlen(s));
}

struct jinja_value jinja_bool(bool b)
{
    return (struct jinja_value){.type = JINJA_BOOL, .u.b = b};
}

struct jinja_value jinja_int(int64_t i)
{
    return (struct jinja_value){.type = JINJA_INT, .u.i = i};
}

struct jinja_value jinja_float(double d)
{
    return (struct jinja_value){.type = JINJA_FLOAT, .u.d = d};
}

struct jinja_value jinja_none(void)
{
    return (struct jinja_value){.type = JINJA_NONE};
}

struct jinja_value jinja_undefined(enum jinja_lack why, const char *name, size_t n, uint8_t of)
{
    return (struct jinja_value){
        .type = JINJA_UNDEFINED, .which = (uint8_t)why, .of = of, .u.s = {name, n}};
}

struct span jinja_span(struct jinja_value v)
{
    return (struct span){v.u.s.p, v.u.s.n};
}

/* ---- lists and dicts ----------------------------------------------------------------------- */

struct jinja_value jinja_values(struct jinja_run *r, enum jinja_type type, size_t room)
{
    struct jinja_list *list = jinja_alloc(&r->m, sizeof *list);
    *list = (struct jinja_list){.room = room};
    if (room)
        list->v = jinja_alloc_items(&r->m, room, sizeof *list->v);
    return (struct jinja_value){.type = (uint8_t)type, .u.list = list};
}

struct jinja_value jinja_list_new(struct jinja_run *r)
{
    return jinja_values(r, JINJA_LIST, 0);
}

void jinja_list_add(struct jinja_run *r, struct jinja_value v, struct jinja_value item)
{
    struct jinja_list *list = v.u.list;
    list->v = jinja_grow(&r->m, list->v, list->n, &list->room, sizeof *list->v);
    list->v[list->n++] = item;
}

struct jinja_value jinja_pair(struct jinja_run *r, struct jinja_value a, struct jinja_value b)
{
    struct jinja_value pair = jinja_values(r, JINJA_TUPLE, 2);
    jinja_list_add(r, pair, a);
    jinja_list_add(r, pair, b);
    return pair;
}

struct jinja_value jinja_dict_new(struct jinja_run *r)
{
    struct jinja_dict *dict = jinja_alloc(&r->m, sizeof *dict);
    *dict = (struct jinja_dict){.n = 0};
    return (struct jinja_value){.type = JINJA_DICT, .u.dict = dict};
}

/* Fails where Python has no hash: what can change cannot be a key. */
static void need_hash(struct jinja_run *r, struct jinja_value key)
{
    if (key.type == JINJA_LIST || key.type == JINJA_DICT || key.type == JINJA_VIEW)
        jinja_fail(&r->m, "unhashable type: '%s'", jinja_type_name(key.type));
    if (key.type != JINJA_TUPLE)
        return;
    jinja_deeper(r);
    for (size_t i = 0; i < key.u.list->n; i++)
        need_hash(r, key.u.list->v[i]);
    r->depth--;
}

struct jinja_value *jinja_dict_find(struct jinja_run *r, struct jinja_value v,
                                    struct jinja_value key)
{
    struct jinja_dict *dict = v.u.dict;
    need_hash(r, key);
    jinja_step(r, dict->n * 16);
    for (size_t i = 0; i < dict->n; i++) {
        struct jinja_value *k = &dict->kv[2 * i];
        bool equal = k->type == JINJA_STR && key.type == JINJA_STR
                         ? k->u.s.n == key.u.s.n && memcmp(k->u.s.p, key.u.s.p, key.u.s.n) == 0
                         : jinja_equal(r, *k, key);
        if (equal)
            return k + 1;
    }
    return NULL;
}

static void dict_append(struct jinja_run *r, struct jinja_dict *dict, struct jinja_value key,
                        struct jinja_value v)
{
    dict->kv = jinja_grow(&r->m, dict->kv, dict->n, &dict->room, 2 * sizeof *dict->kv);
    dict->kv[2 * dict->n] = key;
    dict->kv[2 * dict->n++ + 1] = v;
}

void jinja_dict_set(struct jinja_run *r, struct jinja_value dict, struct jinja_value key,
                    struct jinja_value v)
{
    struct jinja_value *found = jinja_dict_find(r, dict, key);
    if (found)
        *found = v;
    else
        dict_append(r, dict.u.dict, key, v);
}

void jinja_dict_put(struct jinja_run *r, struct jinja_value dict, const char *key,
                    struct jinja_value v)
{
    dict_append(r, dict.u.dict, jinja_text(key), v);
}

/* ---- what holds of all --------------------------------------------------------------------- */

const char *jinja_type_name(uint8_t type)
{
    static const char *const names[] = {
        [JINJA_UNDEFINED] = "Undefined", [JINJA_NONE] = "NoneType",
        [JINJA_BOOL] = "bool",           [JINJA_INT] = "int",
        [JINJA_FLOAT] = "float",         [JINJA_STR] = "str",
        [JINJA_LIST] = "list",           [JINJA_TUPLE] = "tuple",
        [JINJA_DICT] = "dict",           [JINJA_RANGE] = "range",
        [JINJA_VIEW] = "view of a dict", [JINJA_ITERATOR] = "generator",
        [JINJA_NAMESPACE] = "Namespace", [JINJA_LOOP] = "LoopContext",
        [JINJA_MACRO] = "Macro",         [JINJA_FUNCTION] = "function",
        [JINJA_METHOD] = "method",       [JINJA_ABSENT] = "missing argument",
    };
    return names[type];
}

void jinja_need(struct jinja_run *r, struct jinja_value v)
{
    int n = (int)(v.u.s.n < 80 ? v.u.s.n : 80);
    if (v.type != JINJA_UNDEFINED)
        return;
    switch (v.which) {
    case LACK_ATTRIBUTE:
        jinja_fail(&r->m, "'%s object' has no attribute '%.*s'", jinja_type_name(v.of), n, v.u.s.p);
    case LACK_UNSAFE:
        jinja_fail(&r->m, "access to attribute '%.*s' of '%s' object is unsafe", n, v.u.s.p,
                   jinja_type_name(v.of));
    case LACK_ITEM:
        jinja_fail(&r->m, "a '%s' has no such element", jinja_type_name(v.of));
    case LACK_ELSE:
        jinja_fail(&r->m, "the value of an 'if' without 'else' is undefined");
    case LACK_ARGUMENT:
        jinja_fail(&r->m, "parameter '%.*s' was not provided", n, v.u.s.p);
    default:
        jinja_fail(&r->m, "'%.*s' is undefined", n, v.u.s.p);
    }
}

bool jinja_truth(struct jinja_run *r, struct jinja_value v)
{
    switch (v.type) {
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        return false;
    case JINJA_BOOL:
        return v.u.b;
    case JINJA_INT:
        return v.u.i != 0;
    case JINJA_FLOAT:
        return v.u.d != 0;
    case JINJA_STR:
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_DICT:
    case JINJA_RANGE:
    case JINJA_VIEW:
    case JINJA_LOOP:
        return jinja_length(r, v) > 0;
    default:
        return true;
    }
}

size_t jinja_length(struct jinja_run *r, struct jinja_value v)
{
    switch (v.type) {
    case JINJA_UNDEFINED:
        return 0;
    case JINJA_STR:
        jinja_step(r, v.u.s.n);
        return text_chars(v.u.s.p, v.u.s.n);
    case JINJA_LIST:
    case JINJA_TUPLE:
        return v.u.list->n;
    case JINJA_DICT:
    case JINJA_VIEW:
        return v.u.dict->n;
    case JINJA_RANGE:
        return v.u.range->n;
    case JINJA_LOOP:
        return (size_t)jinja_loop_attribute(r, v, "length").u.i;
    default:
        jinja_fail(&r->m, "object of type '%s' has no len()", jinja_type_name(v.type));
    }
}

bool jinja_iterable(struct jinja_value v)
{
    switch (v.type) {
    case JINJA_UNDEFINED:
    case JINJA_STR:
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_DICT:
    case JINJA_RANGE:
    case JINJA_VIEW:
    case JINJA_ITERATOR:
    case JINJA_LOOP:
        return true;
    default:
        return false;
    }
}

static void add_characters(struct jinja_run *r, struct jinja_value list, struct span s)
{
    for (size_t length; s.n; s.p += length, s.n -= length) {
        text_char(s.p, s.n, &length);
        jinja_list_add(r, list, jinja_string(s.p, length));
    }
}

static void add_pairs(struct jinja_run *r, struct jinja_value list, struct jinja_value v)
{
    for (size_t i = 0; i < v.u.dict->n; i++) {
        struct jinja_value *kv = &v.u.dict->kv[2 * i];
        bool keys = v.type == JINJA_DICT || v.which == VIEW_KEYS;
        jinja_list_add(r, list,
                       keys                     ? kv[0]
                       : v.which == VIEW_VALUES ? kv[1]
                                                : jinja_pair(r, kv[0], kv[1]));
    }
}

struct jinja_list *jinja_items(struct jinja_run *r, struct jinja_value v)
{
    if (v.type == JINJA_LIST || v.type == JINJA_TUPLE) {
        jinja_step(r, v.u.list->n);
        return v.u.list;
    }
    struct jinja_value list = jinja_list_new(r);
    switch (v.type) {
    case JINJA_UNDEFINED:
        break;
    case JINJA_STR:
        jinja_step(r, v.u.s.n * 64);
        add_characters(r, list, jinja_span(v));
        break;
    case JINJA_DICT:
    case JINJA_VIEW:
        jinja_step(r, v.u.dict->n * 64);
        add_pairs(r, list, v);
        break;
    case JINJA_RANGE:
        jinja_step(r, v.u.range->n * 64);
        for (size_t i = 0; i < v.u.range->n; i++)
            jinja_list_add(r, list, jinja_int(v.u.range->start + (int64_t)i * v.u.range->step));
        break;
    case JINJA_ITERATOR:
        jinja_step(r, v.u.list->n);
        for (; v.u.list->at < v.u.list->n; v.u.list->at++)
            jinja_list_add(r, list, v.u.list->v[v.u.list->at]);
        break;
    default:
        jinja_fail(&r->m, "'%s' object is not iterable", jinja_type_name(v.type));
    }
    return list.u.list;
}

int64_t jinja_integer(struct jinja_run *r, struct jinja_value v, const char *what)
{
    jinja_need(r, v);
    if (v.type == JINJA_BOOL)
        return v.u.b;
    if (v.type != JINJA_INT)
        jinja_fail(&r->m, "%s must be an integer, not '%s'", what, jinja_type_name(v.type));
    return v.u.i;
}

bool jinja_number(struct jinja_value v, double *d)
{
    if (v.type == JINJA_FLOAT)
        *d = v.u.d;
    else if (v.type == JINJA_INT)
        *d = (double)v.u.i;
    else if (v.type == JINJA_BOOL)
        *d = v.u.b;
    return v.type == JINJA_FLOAT || v.type == JINJA_INT || v.type == JINJA_BOOL;
}
