/* SPDX-License-Identifier: Apache-2.0 */
/* print.c - values as text: as Python prints and quotes them, and as JSON the way
 * transformers does. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/jinja/run.h"

/* The shortest decimal that is read as the same double, in Python's layout. */
void jinja_float_text(double d, char text[40])
{
    char digits[40];
    int precision = 0, exponent;
    if (isnan(d) || isinf(d)) {
        strcpy(text, isnan(d) ? "nan" : d < 0 ? "-inf" : "inf");
        return;
    }
    do
        snprintf(digits, sizeof digits, "%.*e", precision, d);
    while (strtod(digits, NULL) != d && ++precision < 17);
    exponent = atoi(strchr(digits, 'e') + 1);
    if (exponent < -4 || exponent >= 16) {
        char *e = strchr(digits, 'e');
        snprintf(text, 40, "%.*se%c%02d", (int)(e - digits), digits, exponent < 0 ? '-' : '+',
                 abs(exponent));
        return;
    }
    int behind = precision - exponent;
    snprintf(text, 40, "%.*f", behind < 1 ? 1 : behind, d);
}

static void add_int(struct jinja_run *r, struct jinja_out *out, int64_t i)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, i);
    jinja_add_text(&r->m, out, text);
}

static void add_float(struct jinja_run *r, struct jinja_out *out, double d)
{
    char text[40];
    jinja_float_text(d, text);
    jinja_add_text(&r->m, out, text);
}

/* ---- as Python quotes --------------------------------------------------------------------- */

static void repr_string(struct jinja_run *r, struct jinja_out *out, struct span s)
{
    bool doubled = memchr(s.p, '\'', s.n) && !memchr(s.p, '"', s.n);
    char quote = doubled ? '"' : '\'', text[16];
    jinja_step(r, s.n * 8);
    jinja_add(&r->m, out, &quote, 1);
    for (size_t n; s.n; s.p += n, s.n -= n) {
        uint32_t c = text_char(s.p, s.n, &n);
        if (c == '\\' || c == '\n' || c == '\r' || c == '\t') {
            char escape[2] = {'\\', c == '\n' ? 'n' : c == '\r' ? 'r' : c == '\t' ? 't' : '\\'};
            jinja_add(&r->m, out, escape, 2);
        } else if (c == (uint32_t)quote) {
            snprintf(text, sizeof text, "\\%c", quote);
            jinja_add_text(&r->m, out, text);
        } else if (text_printable(c)) {
            jinja_add(&r->m, out, s.p, n);
        } else {
            snprintf(text, sizeof text,
                     c < 0x100     ? "\\x%02x"
                     : c < 0x10000 ? "\\u%04x"
                                   : "\\U%08x",
                     c);
            jinja_add_text(&r->m, out, text);
        }
    }
    jinja_add(&r->m, out, &quote, 1);
}

static void repr_list(struct jinja_run *r, struct jinja_out *out, struct jinja_value v)
{
    const struct jinja_list *list = v.u.list;
    bool tuple = v.type == JINJA_TUPLE;
    jinja_add_text(&r->m, out, tuple ? "(" : "[");
    for (size_t i = 0; i < list->n; i++) {
        if (i)
            jinja_add_text(&r->m, out, ", ");
        jinja_repr(r, out, list->v[i]);
    }
    jinja_add_text(&r->m, out, tuple ? list->n == 1 ? ",)" : ")" : "]");
}

static void repr_dict(struct jinja_run *r, struct jinja_out *out, const struct jinja_dict *dict)
{
    jinja_add_text(&r->m, out, "{");
    for (size_t i = 0; i < dict->n; i++) {
        if (i)
            jinja_add_text(&r->m, out, ", ");
        jinja_repr(r, out, dict->kv[2 * i]);
        jinja_add_text(&r->m, out, ": ");
        jinja_repr(r, out, dict->kv[2 * i + 1]);
    }
    jinja_add_text(&r->m, out, "}");
}

static void repr_range(struct jinja_run *r, struct jinja_out *out, const struct jinja_range *range)
{
    jinja_add_text(&r->m, out, "range(");
    add_int(r, out, range->start);
    jinja_add_text(&r->m, out, ", ");
    add_int(r, out, range->stop);
    if (range->step != 1) {
        jinja_add_text(&r->m, out, ", ");
        add_int(r, out, range->step);
    }
    jinja_add_text(&r->m, out, ")");
}

static void repr_view(struct jinja_run *r, struct jinja_out *out, struct jinja_value v)
{
    static const char *const names[] = {"dict_items(", "dict_keys(", "dict_values("};
    struct jinja_value list = {.type = JINJA_LIST, .u.list = jinja_items(r, v)};
    jinja_add_text(&r->m, out, names[v.which]);
    repr_list(r, out, list);
    jinja_add_text(&r->m, out, ")");
}

void jinja_repr(struct jinja_run *r, struct jinja_out *out, struct jinja_value v)
{
    jinja_deeper(r);
    switch (v.type) {
    case JINJA_UNDEFINED:
        jinja_add_text(&r->m, out, "Undefined");
        break;
    case JINJA_NONE:
        jinja_add_text(&r->m, out, "None");
        break;
    case JINJA_BOOL:
        jinja_add_text(&r->m, out, v.u.b ? "True" : "False");
        break;
    case JINJA_INT:
        add_int(r, out, v.u.i);
        break;
    case JINJA_FLOAT:
        add_float(r, out, v.u.d);
        break;
    case JINJA_STR:
        if (v.safe)
            jinja_fail(&r->m, "a string that went through |safe cannot be printed in a list");
        repr_string(r, out, jinja_span(v));
        break;
    case JINJA_LIST:
    case JINJA_TUPLE:
        repr_list(r, out, v);
        break;
    case JINJA_DICT:
        repr_dict(r, out, v.u.dict);
        break;
    case JINJA_RANGE:
        repr_range(r, out, v.u.range);
        break;
    case JINJA_VIEW:
        repr_view(r, out, v);
        break;
    default:
        jinja_fail(&r->m, "a value of type '%s' cannot be printed", jinja_type_name(v.type));
    }
    r->depth--;
}

struct jinja_value jinja_str(struct jinja_run *r, struct jinja_value v)
{
    if (v.type == JINJA_STR)
        return v;
    if (v.type == JINJA_UNDEFINED)
        return jinja_text("");
    struct jinja_out out = {0};
    jinja_repr(r, &out, v);
    return jinja_taken(&out);
}

/* ---- JSON ---------------------------------------------------------------------------------- */

struct json {
    struct jinja_run *r;
    struct jinja_out *out;
    bool ascii, sorted;
    struct span indent, comma, colon; /* indent.p NULL: all in one line */
};

static void json_string(struct json *j, struct span s)
{
    struct jinja_memory *m = &j->r->m;
    jinja_step(j->r, s.n * 4);
    jinja_add_text(m, j->out, "\"");
    while (s.n) {
        static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
        size_t plain = 0, n;
        while (plain < s.n && (unsigned char)s.p[plain] >= 32 && s.p[plain] != '"' &&
               s.p[plain] != '\\' && (unsigned char)s.p[plain] != 0xC0 &&
               !(j->ascii && (unsigned char)s.p[plain] >= 0x7F))
            plain++;
        jinja_add(m, j->out, s.p, plain);
        s.p += plain;
        s.n -= plain;
        if (!s.n)
            break;
        char text[16];
        uint32_t c = text_char(s.p, s.n, &n);
        const char *known = c && c < 128 ? strchr(from, (int)c) : NULL;
        if (known)
            snprintf(text, sizeof text, "\\%c", to[known - from]);
        else if (c == 0x7F)
            snprintf(text, sizeof text, "\x7F");
        else if (c >= 0x10000)
            snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xD7C0 + (c >> 10), 0xDC00 + (c & 0x3FF));
        else
            snprintf(text, sizeof text, "\\u%04x", c);
        jinja_add_text(m, j->out, text);
        s.p += n;
        s.n -= n;
    }
    jinja_add_text(m, j->out, "\"");
}

static void json_value(struct json *j, struct jinja_value v, int level);

static void json_line(struct json *j, int level)
{
    if (!j->indent.p)
        return;
    jinja_add_text(&j->r->m, j->out, "\n");
    for (int i = 0; i < level; i++)
        jinja_add(&j->r->m, j->out, j->indent.p, j->indent.n);
}

static void json_list(struct json *j, const struct jinja_list *list, int level)
{
    jinja_add_text(&j->r->m, j->out, "[");
    for (size_t i = 0; i < list->n; i++) {
        if (i)
            jinja_add(&j->r->m, j->out, j->comma.p, j->comma.n);
        json_line(j, level + 1);
        json_value(j, list->v[i], level + 1);
    }
    if (list->n)
        json_line(j, level);
    jinja_add_text(&j->r->m, j->out, "]");
}

static void json_number(struct json *j, struct jinja_value v)
{
    if (v.type == JINJA_FLOAT && isnan(v.u.d))
        jinja_add_text(&j->r->m, j->out, "NaN");
    else if (v.type == JINJA_FLOAT && isinf(v.u.d))
        jinja_add_text(&j->r->m, j->out, v.u.d < 0 ? "-Infinity" : "Infinity");
    else if (v.type == JINJA_FLOAT)
        add_float(j->r, j->out, v.u.d);
    else if (v.type == JINJA_INT)
        add_int(j->r, j->out, v.u.i);
    else if (v.type == JINJA_BOOL)
        jinja_add_text(&j->r->m, j->out, v.u.b ? "true" : "false");
    else
        jinja_add_text(&j->r->m, j->out, "null");
}

static void json_key(struct json *j, struct jinja_value key)
{
    if (key.type == JINJA_STR) {
        json_string(j, jinja_span(key));
        return;
    }
    if (key.type > JINJA_FLOAT || key.type == JINJA_UNDEFINED)
        jinja_fail(&j->r->m, "tojson: a key is of type '%s'", jinja_type_name(key.type));
    jinja_add_text(&j->r->m, j->out, "\"");
    json_number(j, key);
    jinja_add_text(&j->r->m, j->out, "\"");
}

static void json_dict(struct json *j, const struct jinja_dict *dict, int level)
{
    struct jinja_value keys = jinja_values(j->r, JINJA_LIST, dict->n), order = keys;
    struct jinja_value self = {.type = JINJA_DICT, .u.dict = (struct jinja_dict *)dict};
    for (size_t i = 0; i < dict->n; i++)
        jinja_list_add(j->r, keys, dict->kv[2 * i]);
    if (j->sorted) {
        struct jinja_args cased = {
            .named = &(struct jinja_binding){"case_sensitive", jinja_bool(true)}, .names = 1};
        order = jinja_filter(j->r, "sort", keys, &cased);
    }
    jinja_add_text(&j->r->m, j->out, "{");
    for (size_t i = 0; i < dict->n; i++) {
        struct jinja_value key = order.u.list->v[i];
        if (i)
            jinja_add(&j->r->m, j->out, j->comma.p, j->comma.n);
        json_line(j, level + 1);
        json_key(j, key);
        jinja_add(&j->r->m, j->out, j->colon.p, j->colon.n);
        json_value(j, j->sorted ? *jinja_dict_find(j->r, self, key) : dict->kv[2 * i + 1],
                   level + 1);
    }
    if (dict->n)
        json_line(j, level);
    jinja_add_text(&j->r->m, j->out, "}");
}

static void json_value(struct json *j, struct jinja_value v, int level)
{
    jinja_deeper(j->r);
    switch (v.type) {
    case JINJA_NONE:
    case JINJA_BOOL:
    case JINJA_INT:
    case JINJA_FLOAT:
        json_number(j, v);
        break;
    case JINJA_STR:
        json_string(j, jinja_span(v));
        break;
    case JINJA_LIST:
    case JINJA_TUPLE:
        json_list(j, v.u.list, level);
        break;
    case JINJA_DICT:
        json_dict(j, v.u.dict, level);
        break;
    default:
        jinja_need(j->r, v);
        jinja_fail(&j->r->m, "tojson: a value of type '%s' is not JSON", jinja_type_name(v.type));
    }
    j->r->depth--;
}

/* options: ensure_ascii, indent, separators, sort_keys. */
void jinja_json(struct jinja_run *r, struct jinja_out *out, struct jinja_value v,
                const struct jinja_value *o)
{
    struct json j = {.r = r, .out = out, .comma = {", ", 2}, .colon = {": ", 2}};
    j.ascii = o[0].type != JINJA_ABSENT && jinja_truth(r, o[0]);
    j.sorted = o[3].type != JINJA_ABSENT && jinja_truth(r, o[3]);
    if (o[1].type == JINJA_STR) {
        j.indent = jinja_span(o[1]);
    } else if (o[1].type != JINJA_ABSENT && o[1].type != JINJA_NONE) {
        int64_t width = jinja_integer(r, o[1], "tojson: indent");
        static const char spaces[] = "                                ";
        if (width > (int64_t)sizeof spaces - 1)
            jinja_fail(&r->m, "tojson: an indent of more than 32 is not supported");
        j.indent = (struct span){spaces, width < 0 ? 0 : (size_t)width};
    }
    if (j.indent.p)
        j.comma.n = 1;
    if (o[2].type != JINJA_ABSENT && o[2].type != JINJA_NONE) {
        struct jinja_list *pair = jinja_items(r, o[2]);
        if (pair->n != 2 || pair->v[0].type != JINJA_STR || pair->v[1].type != JINJA_STR)
            jinja_fail(&r->m, "tojson: separators must be two strings");
        j.comma = jinja_span(pair->v[0]);
        j.colon = jinja_span(pair->v[1]);
    }
    json_value(&j, v, 0);
}
