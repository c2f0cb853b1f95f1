/* SPDX-License-Identifier: Apache-2.0 */
/* attribute.c - what stands behind a value: `.name`, `[key]` and `[a:b:c]`.
 *
 * As in Jinja, `.name` is an attribute (here: a method) before it is a key, `[key]` the other way
 * round, and what is not there is undefined and no error. A slice of what has none is an error.
 */
#include <string.h>

#include "server/jinja/run.h"

static struct jinja_value lacking(struct jinja_value v, const char *name, size_t n)
{
    return jinja_undefined(LACK_ATTRIBUTE, name, n, v.type);
}

/* The attributes that an object of Python has beside its keys. */
static struct jinja_value own_attribute(struct jinja_run *r, struct jinja_value v, const char *name)
{
    if (v.type == JINJA_LOOP)
        return jinja_loop_attribute(r, v, name);
    if (v.type == JINJA_NAMESPACE && !(name[0] == '_' && name[1] == '_')) {
        struct jinja_value *found = jinja_dict_find(r, v, jinja_text(name));
        return found ? *found : (struct jinja_value){.type = JINJA_ABSENT};
    }
    if (v.type == JINJA_MACRO && strcmp(name, "name") == 0)
        return jinja_text(v.u.macro->signature->name);
    if (v.type == JINJA_MACRO || v.type == JINJA_METHOD || v.type == JINJA_FUNCTION)
        jinja_fail(&r->m, "attributes of a '%s' are not supported", jinja_type_name(v.type));
    if (v.type == JINJA_TUPLE && v.which && strcmp(name, "grouper") == 0)
        return v.u.list->v[0];
    if (v.type == JINJA_TUPLE && v.which && strcmp(name, "list") == 0)
        return v.u.list->v[1];
    if (v.type != JINJA_NAMESPACE)
        return jinja_method(r, v, name);
    return (struct jinja_value){.type = JINJA_ABSENT};
}

struct jinja_value jinja_getattr(struct jinja_run *r, struct jinja_value v, const char *name)
{
    jinja_need(r, v);
    struct jinja_value found = own_attribute(r, v, name);
    if (found.type != JINJA_ABSENT)
        return found;
    size_t n = strlen(name);
    if (name[0] == '_' && name[1] == '_' && n > 4 && strcmp(name + n - 2, "__") == 0)
        return jinja_undefined(LACK_UNSAFE, name, n, v.type);
    if (v.type == JINJA_DICT) {
        struct jinja_value *item = jinja_dict_find(r, v, jinja_string(name, n));
        if (item)
            return *item;
    }
    return lacking(v, name, n);
}

/* ---- items --------------------------------------------------------------------------------- */

/* The index of an integer counted from either end; false: out of range. */
static bool place(int64_t i, size_t n, size_t *at)
{
    if (i < 0)
        i += (int64_t)n;
    *at = (size_t)i;
    return i >= 0 && (size_t)i < n;
}

static struct jinja_value character(struct jinja_run *r, struct jinja_value v, int64_t i)
{
    size_t n = jinja_length(r, v), at, length;
    if (!place(i, n, &at))
        return jinja_undefined(LACK_ITEM, "", 0, v.type);
    size_t byte = n == v.u.s.n ? at : text_offset(v.u.s.p, v.u.s.n, at);
    jinja_step(r, byte);
    text_char(v.u.s.p + byte, v.u.s.n - byte, &length);
    return jinja_string(v.u.s.p + byte, length);
}

static struct jinja_value by_number(struct jinja_run *r, struct jinja_value v, int64_t i)
{
    size_t at;
    switch (v.type) {
    case JINJA_STR:
        return character(r, v, i);
    case JINJA_LIST:
    case JINJA_TUPLE:
        if (place(i, v.u.list->n, &at))
            return v.u.list->v[at];
        break;
    case JINJA_RANGE:
        if (place(i, v.u.range->n, &at))
            return jinja_int(v.u.range->start + (int64_t)at * v.u.range->step);
        break;
    default:
        break;
    }
    return jinja_undefined(LACK_ITEM, "", 0, v.type);
}

static bool may_be_key(struct jinja_value key)
{
    return key.type != JINJA_LIST && key.type != JINJA_DICT && key.type != JINJA_VIEW;
}

struct jinja_value jinja_getitem(struct jinja_run *r, struct jinja_value v, struct jinja_value key)
{
    jinja_need(r, v);
    if (v.type == JINJA_DICT && may_be_key(key)) {
        struct jinja_value *item = jinja_dict_find(r, v, key);
        if (item)
            return *item;
    } else if (key.type == JINJA_INT || key.type == JINJA_BOOL) {
        return by_number(r, v, key.type == JINJA_BOOL ? key.u.b : key.u.i);
    }
    if (key.type != JINJA_STR)
        return jinja_undefined(LACK_ITEM, "", 0, v.type);
    char *name = jinja_alloc(&r->m, key.u.s.n + 1);
    memcpy(name, key.u.s.p, key.u.s.n);
    name[key.u.s.n] = 0;
    struct jinja_value found = own_attribute(r, v, name);
    return found.type == JINJA_ABSENT ? lacking(v, name, key.u.s.n) : found;
}

/* ---- slices -------------------------------------------------------------------------------- */

static int64_t integer_of(struct jinja_value v)
{
    return v.type == JINJA_BOOL ? v.u.b : v.u.i;
}

/* A bound of a slice over n items, `otherwise` where it is left out. */
static int64_t bound_of(struct jinja_value part, int64_t n, bool back, int64_t otherwise)
{
    if (part.type == JINJA_NONE)
        return otherwise;
    int64_t v = integer_of(part);
    if (v < 0)
        v += n;
    if (v < 0)
        return back ? -1 : 0;
    return v < n ? v : back ? n - 1 : n;
}

/* Python's rule: start, stop and step over n items; how many there are. */
static size_t slice_of(const struct jinja_value *part, int64_t n, int64_t *start, int64_t *step)
{
    *step = part[2].type == JINJA_NONE ? 1 : integer_of(part[2]);
    bool back = *step < 0;
    *start = bound_of(part[0], n, back, back ? n - 1 : 0);
    int64_t stop = bound_of(part[1], n, back, back ? -1 : n);
    uint64_t stride = back ? 0 - (uint64_t)*step : (uint64_t)*step;
    int64_t distance = back ? *start - stop : stop - *start;
    return distance > 0 && stride ? (size_t)(((uint64_t)distance - 1) / stride + 1) : 0;
}

static struct jinja_value slice_text(struct jinja_run *r, struct jinja_value v, int64_t start,
                                     int64_t step, size_t n)
{
    if (step == 1) {
        size_t from = text_offset(v.u.s.p, v.u.s.n, n ? (size_t)start : 0);
        return jinja_string(v.u.s.p + from, text_offset(v.u.s.p + from, v.u.s.n - from, n));
    }
    struct jinja_list *all = jinja_items(r, v);
    struct jinja_out out = {0};
    for (size_t i = 0; i < n; i++) {
        struct jinja_value c = all->v[start + (int64_t)i * step];
        jinja_add(&r->m, &out, c.u.s.p, c.u.s.n);
    }
    return jinja_taken(&out);
}

struct jinja_value jinja_slice(struct jinja_run *r, struct jinja_value v,
                               const struct jinja_value *part)
{
    int64_t start, step;
    jinja_need(r, v);
    if (v.type != JINJA_STR && v.type != JINJA_LIST && v.type != JINJA_TUPLE &&
        v.type != JINJA_RANGE)
        jinja_fail(&r->m, "'%s' object cannot be sliced", jinja_type_name(v.type));
    for (int i = 0; i < 3; i++)
        if (part[i].type != JINJA_NONE && part[i].type != JINJA_INT && part[i].type != JINJA_BOOL)
            jinja_fail(&r->m, "slice indices must be integers or none, not '%s'",
                       jinja_type_name(part[i].type));
    size_t n = slice_of(part, (int64_t)jinja_length(r, v), &start, &step);
    if (step == 0)
        jinja_fail(&r->m, "slice step cannot be zero");
    if (v.type == JINJA_STR) {
        jinja_step(r, v.u.s.n);
        return slice_text(r, v, start, step, n);
    }
    if (v.type == JINJA_RANGE)
        jinja_fail(&r->m, "a slice of a range is not supported");
    struct jinja_value list = jinja_values(r, v.type, n);
    jinja_step(r, n * sizeof(struct jinja_value));
    for (size_t i = 0; i < n; i++)
        jinja_list_add(r, list, v.u.list->v[start + (int64_t)i * step]);
    return list;
}
