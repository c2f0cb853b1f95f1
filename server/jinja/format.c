/* SPDX-License-Identifier: Apache-2.0 */
/* format.c - `format % values` and str.format(). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "server/jinja/run.h"

/* ---- % ------------------------------------------------------------------------------------- */

struct percent {
    struct jinja_run *r;
    struct jinja_value argument;
    size_t used; /* of a tuple's values */
    bool keyed;
};

static struct jinja_value next_value(struct percent *f)
{
    if (f->argument.type != JINJA_TUPLE) {
        if (f->used++)
            jinja_fail(&f->r->m, "not enough arguments for format string");
        return f->argument;
    }
    if (f->used == f->argument.u.list->n)
        jinja_fail(&f->r->m, "not enough arguments for format string");
    return f->argument.u.list->v[f->used++];
}

/* "(name)" at s, if it is there; else the value that comes next. */
static struct jinja_value pick_value(struct percent *f, struct span *key)
{
    if (!key->p)
        return next_value(f);
    f->keyed = true;
    if (f->argument.type != JINJA_DICT)
        jinja_fail(&f->r->m, "format requires a mapping");
    struct jinja_value *v = jinja_dict_find(f->r, f->argument, jinja_string(key->p, key->n));
    if (!v)
        jinja_fail(&f->r->m, "the format names a key that is not there: '%.*s'",
                   (int)(key->n < 40 ? key->n : 40), key->p);
    return *v;
}

static struct jinja_value format_number(struct percent *f, struct jinja_value v, const char *flags,
                                        char kind)
{
    char text[400], spec[48];
    double d;
    jinja_need(f->r, v);
    if (!jinja_number(v, &d))
        jinja_fail(&f->r->m, "%%%c format: a real number is required, not %s", kind,
                   jinja_type_name(v.type));
    if (strchr("di", kind)) {
        int64_t i = v.type == JINJA_INT ? v.u.i : (int64_t)(d > -9e18 && d < 9e18 ? d : 0);
        snprintf(spec, sizeof spec, "%%%s" PRId64, flags);
        snprintf(text, sizeof text, spec, i);
    } else if (strchr("xX", kind)) {
        if (v.type != JINJA_INT || v.u.i < 0)
            jinja_fail(&f->r->m, "%%%c format: an integer from 0 is required", kind);
        snprintf(spec, sizeof spec, "%%%s%s", flags, kind == 'x' ? PRIx64 : PRIX64);
        snprintf(text, sizeof text, spec, (uint64_t)v.u.i);
    } else {
        snprintf(spec, sizeof spec, "%%%s%c", flags, kind);
        snprintf(text, sizeof text, spec, d);
    }
    if (strlen(text) == sizeof text - 1)
        jinja_fail(&f->r->m, "%%%c format: the number is too long", kind);
    char *copy = jinja_alloc(&f->r->m, strlen(text) + 1);
    strcpy(copy, text);
    return jinja_text(copy);
}

/* One conversion behind the '%', up to and with its letter. */
static void convert(struct percent *f, struct jinja_out *out, struct span *s)
{
    char flags[32];
    size_t n = 0;
    struct span key = {NULL, 0};
    if (s->n && *s->p == '(') {
        const char *close = text_find(*s, (struct span){")", 1});
        if (!close)
            jinja_fail(&f->r->m, "incomplete format key");
        key = (struct span){s->p + 1, (size_t)(close - s->p - 1)};
        s->n -= (size_t)(close + 1 - s->p);
        s->p = close + 1;
    }
    while (s->n && n < 8 && *s->p && strchr("0123456789.-+ ", *s->p)) {
        flags[n++] = *s->p++;
        s->n--;
    }
    flags[n] = 0;
    if (!s->n)
        jinja_fail(&f->r->m, "incomplete format");
    char kind = *s->p++;
    s->n--;
    const char *width = flags + strspn(flags, "-+ 0"), *rest = width + strspn(width, "0123456789");
    if (*rest == '.')
        rest += 1 + strspn(rest + 1, "0123456789");
    if (kind == '%') {
        jinja_add(&f->r->m, out, "%", 1);
    } else if (kind && strchr("sr", kind) && !n) {
        struct jinja_value v = pick_value(f, &key);
        struct jinja_out text = {0};
        if (kind == 'r')
            jinja_repr(f->r, &text, v);
        v = kind == 'r' ? jinja_taken(&text) : jinja_str(f->r, v);
        jinja_add(&f->r->m, out, v.u.s.p, v.u.s.n);
    } else if (kind && strchr("dixXfFeEgG", kind) && !*rest) {
        struct jinja_value v = format_number(f, pick_value(f, &key), flags, kind);
        jinja_add(&f->r->m, out, v.u.s.p, v.u.s.n);
    } else {
        jinja_fail(&f->r->m, "the format '%%%s%c' is not supported", flags, kind);
    }
}

struct jinja_value jinja_percent(struct jinja_run *r, struct jinja_value format,
                                 struct jinja_value argument)
{
    struct percent f = {.r = r, .argument = argument};
    struct jinja_out out = {0};
    struct span s = jinja_span(format);
    jinja_step(r, s.n);
    for (const char *at; (at = text_find(s, (struct span){"%", 1}));) {
        jinja_step(r, 0);
        jinja_add(&r->m, &out, s.p, (size_t)(at - s.p));
        s.n -= (size_t)(at + 1 - s.p);
        s.p = at + 1;
        convert(&f, &out, &s);
    }
    jinja_add(&r->m, &out, s.p, s.n);
    bool tuple = argument.type == JINJA_TUPLE;
    bool mapping = argument.type == JINJA_DICT || argument.type == JINJA_LIST ||
                   argument.type == JINJA_UNDEFINED;
    if (tuple ? f.used < argument.u.list->n : !f.used && !mapping)
        jinja_fail(&r->m, "not all arguments converted during string formatting");
    return jinja_taken(&out);
}

/* ---- str.format() -------------------------------------------------------------------------- */

/* The value that "{...}" names: "", "0", "name". */
static struct jinja_value named_value(struct jinja_run *r, struct span name, struct jinja_args *a,
                                      size_t *next)
{
    size_t at = 0, digits = 0;
    if (!name.n) {
        at = (*next)++;
    } else {
        for (; digits < name.n && digits < 6 && name.p[digits] >= '0' && name.p[digits] <= '9';
             digits++)
            at = at * 10 + (size_t)(name.p[digits] - '0');
    }
    if (digits == name.n) {
        if (at >= a->n)
            jinja_fail(&r->m, "format(): there is no argument %zu", at);
        return a->v[at];
    }
    for (size_t i = 0; i < a->names; i++)
        if (strlen(a->named[i].name) == name.n && memcmp(a->named[i].name, name.p, name.n) == 0)
            return a->named[i].v;
    jinja_fail(&r->m, "format(): '%.*s' is not supported or there is no such argument",
               (int)(name.n < 40 ? name.n : 40), name.p);
}

struct jinja_value jinja_format_method(struct jinja_run *r, struct jinja_value self,
                                       const struct jinja_value *p, struct jinja_args *a)
{
    struct jinja_out out = {0};
    struct span s = jinja_span(self);
    size_t next = 0;
    (void)p;
    jinja_step(r, s.n);
    while (s.n) {
        size_t n = 0;
        while (n < s.n && s.p[n] != '{' && s.p[n] != '}')
            n++;
        jinja_add(&r->m, &out, s.p, n);
        s.p += n;
        s.n -= n;
        if (!s.n)
            break;
        jinja_step(r, 0);
        if (s.n >= 2 && s.p[0] == s.p[1]) {
            jinja_add(&r->m, &out, s.p, 1);
            s.p += 2;
            s.n -= 2;
            continue;
        }
        const char *close = text_find(s, (struct span){"}", 1});
        if (*s.p == '}' || !close)
            jinja_fail(&r->m, "format(): single '%c' encountered in format string", *s.p);
        struct span name = {s.p + 1, (size_t)(close - s.p - 1)};
        struct jinja_value v = named_value(r, name, a, &next);
        v = jinja_str(r, v);
        jinja_add(&r->m, &out, v.u.s.p, v.u.s.n);
        s.n -= (size_t)(close + 1 - s.p);
        s.p = close + 1;
    }
    return jinja_taken(&out);
}
