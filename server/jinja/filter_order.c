/* SPDX-License-Identifier: Apache-2.0 */
/* filter_order.c - filters that compare items with each other: sort, dictsort, groupby,
 * unique, min and max. Strings are compared in lower case unless the program asks for their case.
 */
#include <string.h>

#include "server/jinja/run.h"

#define FILTER(name)                                                          \
    static struct jinja_value name(struct jinja_run *r, struct jinja_value v, \
                                   const struct jinja_value *p, struct jinja_args *a)
#define UNUSED(...) ((void)r, (void)v, (void)p, (void)a)

struct sorted {
    struct jinja_value key, item;
};

static bool yes(struct jinja_run *r, struct jinja_value v)
{
    return v.type != JINJA_ABSENT && jinja_truth(r, v);
}

static struct jinja_value key_of(struct jinja_run *r, struct jinja_value v, bool cased)
{
    return v.type == JINJA_STR && !cased ? jinja_case(r, v, 'l') : v;
}

/* Merges two sorted runs; of equal ones those of the first come first. */
static void merge(struct jinja_run *r, const struct sorted *x, size_t nx, const struct sorted *y,
                  size_t ny, struct sorted *out, bool reverse)
{
    size_t i = 0, k = 0;
    while (i < nx && k < ny) {
        bool second = reverse ? jinja_order(r, x[i].key, y[k].key, "<") < 0
                              : jinja_order(r, y[k].key, x[i].key, "<") < 0;
        *out++ = second ? y[k++] : x[i++];
    }
    while (i < nx)
        *out++ = x[i++];
    while (k < ny)
        *out++ = y[k++];
}

/* `s` or other memory, sorted. */
static struct sorted *sort_keys(struct jinja_run *r, struct sorted *s, size_t n, bool reverse)
{
    struct sorted *other = jinja_alloc_items(&r->m, n, sizeof *other);
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t at = 0; at < n; at += 2 * width) {
            size_t left = n - at < width ? n - at : width, rest = n - at - left;
            merge(r, s + at, left, s + at + left, rest < width ? rest : width, other + at, reverse);
        }
        struct sorted *swap = s;
        s = other;
        other = swap;
    }
    return s;
}

static struct jinja_value sort_items(struct jinja_run *r, struct sorted *s, size_t n, bool reverse)
{
    s = sort_keys(r, s, n, reverse);
    struct jinja_value out = jinja_values(r, JINJA_LIST, n);
    for (size_t i = 0; i < n; i++)
        jinja_list_add(r, out, s[i].item);
    return out;
}

/* By one attribute, or by several with commas between them. */
static struct jinja_value sort_key(struct jinja_run *r, struct jinja_value v,
                                   struct jinja_value paths, bool cased)
{
    if (paths.type != JINJA_STR || !memchr(paths.u.s.p, ',', paths.u.s.n))
        return key_of(r, jinja_path(r, v, paths), cased);
    struct jinja_value keys = jinja_list_new(r);
    struct span rest = jinja_span(paths);
    for (;;) {
        const char *comma = text_find(rest, (struct span){",", 1});
        size_t n = comma ? (size_t)(comma - rest.p) : rest.n;
        jinja_list_add(r, keys, key_of(r, jinja_path(r, v, jinja_string(rest.p, n)), cased));
        if (!comma)
            return keys;
        rest.n -= n + 1;
        rest.p += n + 1;
    }
}

FILTER(sort)
{
    UNUSED();
    struct jinja_list *items = jinja_items(r, v);
    struct sorted *s = jinja_alloc_items(&r->m, items->n, sizeof *s);
    bool cased = yes(r, p[1]);
    for (size_t i = 0; i < items->n; i++)
        s[i] = (struct sorted){sort_key(r, items->v[i], p[2], cased), items->v[i]};
    return sort_items(r, s, items->n, yes(r, p[0]));
}

FILTER(dictsort)
{
    UNUSED();
    jinja_need(r, v);
    bool cased = yes(r, p[0]);
    struct jinja_value by = p[1].type == JINJA_ABSENT ? jinja_text("key") : p[1];
    bool by_value = jinja_equal(r, by, jinja_text("value"));
    if (v.type != JINJA_DICT)
        jinja_fail(&r->m, "dictsort: '%s' is no dict", jinja_type_name(v.type));
    if (!by_value && !jinja_equal(r, by, jinja_text("key")))
        jinja_fail(&r->m, "dictsort: by 'key' or by 'value'");
    size_t n = v.u.dict->n;
    struct sorted *s = jinja_alloc_items(&r->m, n, sizeof *s);
    for (size_t i = 0; i < n; i++) {
        struct jinja_value *kv = &v.u.dict->kv[2 * i];
        s[i] = (struct sorted){key_of(r, kv[by_value ? 1 : 0], cased), jinja_pair(r, kv[0], kv[1])};
    }
    return sort_items(r, s, n, yes(r, p[2]));
}

/* Pairs of a key and the list of its items, sorted by the keys; `.grouper` and `.list` are names
 * for the two. Without their case equal keys are one, written as its first item has it. */
FILTER(groupby)
{
    UNUSED();
    struct jinja_list *items = jinja_items(r, v);
    struct sorted *s = jinja_alloc_items(&r->m, items->n, sizeof *s);
    struct jinja_value out = jinja_list_new(r), list = jinja_none();
    bool cased = yes(r, p[2]);
    for (size_t i = 0; i < items->n; i++)
        s[i] = (struct sorted){key_of(r, jinja_path_or(r, items->v[i], p[0], p[1]), cased),
                               items->v[i]};
    s = sort_keys(r, s, items->n, false);
    for (size_t i = 0; i < items->n; i++) {
        if (i == 0 || !jinja_equal(r, s[i].key, s[i - 1].key)) {
            struct jinja_value key = cased ? s[i].key : jinja_path_or(r, s[i].item, p[0], p[1]);
            list = jinja_list_new(r);
            struct jinja_value group = jinja_pair(r, key, list);
            group.which = 1;
            jinja_list_add(r, out, group);
        }
        jinja_list_add(r, list, s[i].item);
    }
    return out;
}

FILTER(unique)
{
    UNUSED();
    struct jinja_list *items = jinja_items(r, v);
    struct jinja_value out = jinja_values(r, JINJA_ITERATOR, 0), seen = jinja_dict_new(r);
    bool cased = yes(r, p[0]);
    for (size_t i = 0; i < items->n; i++) {
        struct jinja_value key = key_of(r, jinja_path(r, items->v[i], p[1]), cased);
        if (jinja_dict_find(r, seen, key))
            continue;
        jinja_dict_set(r, seen, key, jinja_none());
        jinja_list_add(r, out, items->v[i]);
    }
    return out;
}

static struct jinja_value extreme(struct jinja_run *r, struct jinja_value v,
                                  const struct jinja_value *p, int sign)
{
    struct jinja_list *items = jinja_items(r, v);
    bool cased = yes(r, p[0]);
    if (!items->n)
        return jinja_undefined(LACK_ITEM, "", 0, v.type);
    struct jinja_value best = items->v[0], key = key_of(r, jinja_path(r, best, p[1]), cased);
    for (size_t i = 1; i < items->n; i++) {
        struct jinja_value other = key_of(r, jinja_path(r, items->v[i], p[1]), cased);
        if (jinja_order(r, other, key, sign < 0 ? "<" : ">") * sign > 0) {
            best = items->v[i];
            key = other;
        }
    }
    return best;
}

FILTER(min)
{
    UNUSED();
    return extreme(r, v, p, -1);
}

FILTER(max)
{
    UNUSED();
    return extreme(r, v, p, 1);
}

const struct jinja_filter_row jinja_order_filters[] = {
    {"sort", "reverse case_sensitive attribute", 0, sort},
    {"dictsort", "case_sensitive by reverse", 0, dictsort},
    {"groupby", "attribute default case_sensitive", 1, groupby},
    {"unique", "case_sensitive attribute", 0, unique},
    {"min", "case_sensitive attribute", 0, min},
    {"max", "case_sensitive attribute", 0, max},
    {NULL, NULL, 0, NULL},
};
