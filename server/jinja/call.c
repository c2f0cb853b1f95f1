/* SPDX-License-Identifier: Apache-2.0 */
/* call.c - calls: macros, the functions that every template has, and methods. */
#include <stdio.h>
#include <string.h>

#include "server/jinja/run.h"

enum function { RANGE, DICT, NAMESPACE, RAISE, STRFTIME, LIPSUM, CYCLER, JOINER, FUNCTIONS };

static const char *const function_names[FUNCTIONS] = {
    "range", "dict", "namespace", "raise_exception", "strftime_now", "lipsum", "cycler", "joiner"};

void jinja_globals(struct jinja_run *r)
{
    for (uint8_t i = 0; i < FUNCTIONS; i++) {
        const char *name = jinja_interned(r->program, function_names[i]);
        if (name)
            jinja_bind(r, r->globals, name,
                       (struct jinja_value){.type = JINJA_FUNCTION, .which = i});
    }
}

/* ---- arguments ----------------------------------------------------------------------------- */

/* Place of `name` in "a b c", or -1. "-" stands for one that has no name in calls. */
static int place_of(const char *params, const char *name)
{
    size_t n = strlen(name);
    for (int i = 0;; i++) {
        size_t length = strcspn(params, " ");
        if (length == n && memcmp(params, name, n) == 0)
            return i;
        if (!params[length])
            return -1;
        params += length + 1;
    }
}

void jinja_place(struct jinja_run *r, const char *what, const char *params, int required,
                 const struct jinja_args *a, struct jinja_value place[JINJA_PARAMS])
{
    size_t room = *params ? 1 : 0;
    for (const char *p = params; *p; p++)
        room += *p == ' ';
    for (int i = 0; i < JINJA_PARAMS; i++)
        place[i] = (struct jinja_value){.type = JINJA_ABSENT};
    if (a->n > room)
        jinja_fail(&r->m, "'%s' takes at most %zu arguments, not %zu", what, room, a->n);
    for (size_t i = 0; i < a->n; i++)
        place[i] = a->v[i];
    for (size_t i = 0; i < a->names; i++) {
        int at = place_of(params, a->named[i].name);
        if (at < 0 || !*params)
            jinja_fail(&r->m, "'%s' has no argument '%.40s'", what, a->named[i].name);
        if (place[at].type != JINJA_ABSENT)
            jinja_fail(&r->m, "the argument '%.40s' of '%s' is given twice", a->named[i].name,
                       what);
        place[at] = a->named[i].v;
    }
    for (int i = 0; i < required; i++)
        if (place[i].type == JINJA_ABSENT)
            jinja_fail(&r->m, "'%s' needs %d argument%s", what, required, required > 1 ? "s" : "");
}

/* ---- macros -------------------------------------------------------------------------------- */

static struct jinja_value take_named(struct jinja_args *a, const char *name)
{
    for (size_t i = 0; i < a->names; i++)
        if (strcmp(a->named[i].name, name) == 0) {
            struct jinja_value v = a->named[i].v;
            a->named[i] = a->named[--a->names];
            return v;
        }
    return (struct jinja_value){.type = JINJA_ABSENT};
}

/* What is left over: for `caller`, `kwargs` and `varargs` of the body, else an error. */
static void bind_rest(struct jinja_run *r, struct jinja_scope *scope,
                      const struct jinja_signature *s, struct jinja_args *a)
{
    struct jinja_value caller = take_named(a, "caller");
    if (caller.type != JINJA_ABSENT && !s->caller)
        jinja_fail(&r->m, "macro '%s' calls no caller", s->name);
    if (s->caller && caller.type != JINJA_ABSENT)
        jinja_bind(r, scope, jinja_interned(r->program, "caller"), caller);
    else if (s->caller)
        jinja_bind(r, scope, jinja_interned(r->program, "caller"),
                   jinja_undefined(LACK_VARIABLE, "caller", 6, 0));
    if (a->names && !s->kwargs)
        jinja_fail(&r->m, "macro '%s' takes no argument '%.40s'", s->name, a->named[0].name);
    if (s->kwargs) {
        struct jinja_value dict = jinja_dict_new(r);
        for (size_t i = 0; i < a->names; i++)
            jinja_dict_set(r, dict, jinja_text(a->named[i].name), a->named[i].v);
        jinja_bind(r, scope, jinja_interned(r->program, "kwargs"), dict);
    }
    if (a->n > (size_t)s->n && !s->varargs)
        jinja_fail(&r->m, "macro '%s' takes not more than %d arguments", s->name, s->n);
    if (s->varargs) {
        struct jinja_value rest = jinja_values(r, JINJA_TUPLE, 0);
        for (size_t i = (size_t)s->n; i < a->n; i++)
            jinja_list_add(r, rest, a->v[i]);
        jinja_bind(r, scope, jinja_interned(r->program, "varargs"), rest);
    }
}

struct jinja_value jinja_call_macro(struct jinja_run *r, struct jinja_value macro,
                                    struct jinja_args *a)
{
    const struct jinja_macro *m = macro.u.macro;
    const struct jinja_signature *s = m->signature;
    struct jinja_scope *scope = jinja_scope_new(r, m->scope), *around = r->scope;
    struct jinja_args rest = *a;
    rest.named = jinja_alloc_items(&r->m, a->names, sizeof *rest.named);
    memcpy(rest.named, a->named, a->names * sizeof *rest.named);
    struct jinja_value given[64];
    for (int i = 0; i < s->n; i++) {
        given[i] = (struct jinja_value){.type = JINJA_ABSENT};
        if ((size_t)i < a->n)
            given[i] = a->v[i];
        else
            given[i] = take_named(&rest, s->param[i]);
    }
    bind_rest(r, scope, s, &rest);
    r->scope = scope; /* a default may name the parameters before it */
    for (int i = 0; i < s->n; i++) {
        if (given[i].type == JINJA_ABSENT && s->fallback[i])
            given[i] = jinja_eval(r, s->fallback[i]);
        else if (given[i].type == JINJA_ABSENT)
            given[i] = jinja_undefined(LACK_ARGUMENT, s->param[i], strlen(s->param[i]), 0);
        jinja_bind(r, scope, s->param[i], given[i]);
    }
    struct jinja_value text = jinja_capture(r, m->body, scope, NULL);
    r->scope = around;
    return text;
}

/* ---- functions ----------------------------------------------------------------------------- */

struct jinja_value jinja_range_new(struct jinja_run *r, struct jinja_args *a)
{
    int64_t v[3] = {0, 0, 1};
    if (a->names || a->n < 1 || a->n > 3)
        jinja_fail(&r->m, "range() takes one to three numbers");
    for (size_t i = 0; i < a->n; i++)
        v[a->n == 1 ? 1 : i] = jinja_integer(r, a->v[i], "an argument of range()");
    if (v[2] == 0)
        jinja_fail(&r->m, "the step of range() must not be zero");
    uint64_t distance = v[2] > 0 ? (v[1] > v[0] ? (uint64_t)v[1] - (uint64_t)v[0] : 0)
                                 : (v[0] > v[1] ? (uint64_t)v[0] - (uint64_t)v[1] : 0);
    uint64_t stride = v[2] > 0 ? (uint64_t)v[2] : 0 - (uint64_t)v[2];
    uint64_t n = distance ? (distance - 1) / stride + 1 : 0;
    if (n > JINJA_RANGE_MAX)
        jinja_fail(&r->m, "range() gives at most %d numbers", JINJA_RANGE_MAX);
    struct jinja_range *range = jinja_alloc(&r->m, sizeof *range);
    *range = (struct jinja_range){v[0], v[1], v[2], (size_t)n};
    return (struct jinja_value){.type = JINJA_RANGE, .u.range = range};
}

/* dict() and namespace(): of a dict or of pairs, and of named arguments. */
static struct jinja_value dict_of(struct jinja_run *r, struct jinja_args *a, const char *what)
{
    struct jinja_value dict = jinja_dict_new(r);
    if (a->n > 1)
        jinja_fail(&r->m, "%s() takes at most one argument without a name", what);
    if (a->n && a->v[0].type == JINJA_DICT) {
        for (size_t i = 0; i < a->v[0].u.dict->n; i++)
            jinja_dict_set(r, dict, a->v[0].u.dict->kv[2 * i], a->v[0].u.dict->kv[2 * i + 1]);
    } else if (a->n) {
        jinja_need(r, a->v[0]);
        struct jinja_list *items = jinja_items(r, a->v[0]);
        for (size_t i = 0; i < items->n; i++) {
            struct jinja_list *pair = jinja_items(r, items->v[i]);
            if (pair->n != 2)
                jinja_fail(&r->m, "%s() takes pairs", what);
            jinja_dict_set(r, dict, pair->v[0], pair->v[1]);
        }
    }
    for (size_t i = 0; i < a->names; i++)
        jinja_dict_set(r, dict, jinja_text(a->named[i].name), a->named[i].v);
    return dict;
}

static struct jinja_value strftime_now(struct jinja_run *r, struct jinja_value format)
{
    char text[512], f[128];
    time_t now = r->limits.now ? r->limits.now : time(NULL);
    struct tm tm;
    if (format.type != JINJA_STR || format.u.s.n >= sizeof f)
        jinja_fail(&r->m, "strftime_now() takes a format of at most %zu bytes", sizeof f - 1);
    memcpy(f, format.u.s.p, format.u.s.n);
    f[format.u.s.n] = 0;
    if (!localtime_r(&now, &tm))
        jinja_fail(&r->m, "strftime_now(): the time is not known");
    size_t n = *f ? strftime(text, sizeof text, f, &tm) : 0;
    char *copy = jinja_alloc(&r->m, n + 1);
    memcpy(copy, text, n);
    return jinja_string(copy, n);
}

struct jinja_value jinja_call_function(struct jinja_run *r, uint8_t which, struct jinja_args *a)
{
    struct jinja_value p[JINJA_PARAMS], v;
    switch (which) {
    case RANGE:
        return jinja_range_new(r, a);
    case DICT:
        return dict_of(r, a, "dict");
    case NAMESPACE:
        v = dict_of(r, a, "namespace");
        v.type = JINJA_NAMESPACE;
        return v;
    case RAISE:
        jinja_place(r, "raise_exception", "message", 1, a, p);
        v = jinja_str(r, p[0]);
        jinja_leave(&r->m, JINJA_RAISED, "%.*s", (int)(v.u.s.n < 500 ? v.u.s.n : 500), v.u.s.p);
    case STRFTIME:
        jinja_place(r, "strftime_now", "format", 1, a, p);
        return strftime_now(r, p[0]);
    default:
        jinja_fail(&r->m, "the function '%s' is not supported", function_names[which]);
    }
}

static struct jinja_value call_method(struct jinja_run *r, const struct jinja_method *method,
                                      struct jinja_args *a)
{
    struct jinja_value p[JINJA_PARAMS];
    const struct jinja_method_row *row = method->row;
    if (!row->call)
        jinja_fail(&r->m, "the method '%s' of '%s' is not supported", row->name,
                   jinja_type_name(method->self.type));
    if (method->self.safe)
        jinja_fail(&r->m, "methods of a string that went through |safe are not supported");
    if (row->params)
        jinja_place(r, row->name, row->params, row->required, a, p);
    return row->call(r, method->self, p, a);
}

struct jinja_value jinja_call(struct jinja_run *r, struct jinja_value f, struct jinja_args *a)
{
    switch (f.type) {
    case JINJA_MACRO:
        return jinja_call_macro(r, f, a);
    case JINJA_FUNCTION:
        return jinja_call_function(r, f.which, a);
    case JINJA_METHOD:
        return call_method(r, f.u.method, a);
    case JINJA_LOOP:
        return jinja_call_loop(r, f, a);
    default:
        jinja_need(r, f);
        jinja_fail(&r->m, "'%s' object is not callable", jinja_type_name(f.type));
    }
}
