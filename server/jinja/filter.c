/* SPDX-License-Identifier: Apache-2.0 */
/* filter.c - filters by name, and those of texts and single values. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "server/jinja/run.h"

static const struct jinja_filter_row *const tables[] = {jinja_text_filters, jinja_list_filters,
                                                        jinja_order_filters};

static const struct jinja_filter_row *find(const char *name)
{
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (const struct jinja_filter_row *row = tables[t]; row->name; row++)
            if (strcmp(row->name, name) == 0)
                return row;
    return NULL;
}

bool jinja_is_filter(const char *name)
{
    return find(name) != NULL;
}

struct jinja_value jinja_filter(struct jinja_run *r, const char *name, struct jinja_value v,
                                struct jinja_args *a)
{
    const struct jinja_filter_row *row = find(name);
    struct jinja_value p[JINJA_PARAMS];
    if (!row)
        jinja_fail(&r->m, "the filter '%.40s' is not known", name);
    if (row->params)
        jinja_place(r, row->name, row->params, row->required, a, p);
    jinja_step(r, 0);
    return row->call(r, v, row->params ? p : NULL, a);
}

#define FILTER(name)                                                          \
    static struct jinja_value name(struct jinja_run *r, struct jinja_value v, \
                                   const struct jinja_value *p, struct jinja_args *a)
#define UNUSED(...) ((void)r, (void)v, (void)p, (void)a)

static bool given(struct jinja_value v)
{
    return v.type != JINJA_ABSENT;
}

/* ---- texts --------------------------------------------------------------------------------- */

static struct jinja_value plain(struct jinja_run *r, struct jinja_value v)
{
    v = jinja_str(r, v);
    v.safe = false;
    return v;
}

FILTER(trim)
{
    UNUSED();
    struct jinja_value text = plain(r, v);
    struct span chars, s = jinja_span(text);
    bool some = given(p[0]) && p[0].type != JINJA_NONE;
    if (some && p[0].type != JINJA_STR)
        jinja_fail(&r->m, "trim: characters must be a string");
    if (some)
        chars = jinja_span(p[0]);
    if (some && chars.n > 64) /* each character may be compared with all of them */
        jinja_step(r, s.n * chars.n);
    s = text_strip(s, some ? &chars : NULL, true, true);
    jinja_step(r, (text.u.s.n - s.n) * (some ? chars.n + 1 : 1));
    return jinja_string(s.p, s.n);
}

FILTER(upper)
{
    UNUSED();
    return jinja_case(r, plain(r, v), 'u');
}

FILTER(lower)
{
    UNUSED();
    return jinja_case(r, plain(r, v), 'l');
}

FILTER(capitalize)
{
    UNUSED();
    return jinja_case(r, plain(r, v), 'c');
}

/* Words begin behind space and some brackets, other than in str.title(). */
FILTER(title)
{
    UNUSED();
    struct jinja_value text = plain(r, v);
    struct span s = jinja_span(text);
    struct jinja_out out = {0};
    jinja_step(r, s.n * 8);
    while (s.n) {
        size_t n = 0, length;
        while (n < s.n) {
            uint32_t c = text_char(s.p + n, s.n - n, &length);
            if (text_space(c) || (c < 128 && c && strchr("-({[<", (int)c)))
                break;
            n += length;
        }
        struct jinja_value word = jinja_case(r, jinja_string(s.p, n), 'c');
        jinja_add(&r->m, &out, word.u.s.p, word.u.s.n);
        s.p += n;
        s.n -= n;
        if (s.n) {
            text_char(s.p, s.n, &length);
            jinja_add(&r->m, &out, s.p, length);
            s.p += length;
            s.n -= length;
        }
    }
    return jinja_taken(&out);
}

FILTER(replace)
{
    UNUSED();
    struct jinja_value from = jinja_str(r, p[0]), to = jinja_str(r, p[1]);
    int64_t most =
        given(p[2]) && p[2].type != JINJA_NONE ? jinja_integer(r, p[2], "replace: count") : -1;
    return jinja_replace(r, jinja_span(jinja_str(r, v)), jinja_span(from), jinja_span(to), most);
}

FILTER(string)
{
    UNUSED();
    return jinja_str(r, v);
}

FILTER(safe)
{
    UNUSED();
    v = jinja_str(r, v);
    v.safe = true;
    return v;
}

FILTER(escape)
{
    UNUSED();
    if (v.type == JINJA_STR && v.safe)
        return v;
    static const char *const marks[][2] = {
        {"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&#34;"}, {"'", "&#39;"}};
    struct jinja_value text = jinja_str(r, v);
    for (size_t i = 0; i < 5; i++)
        text = jinja_replace(r, jinja_span(text), (struct span){marks[i][0], 1},
                             (struct span){marks[i][1], strlen(marks[i][1])}, -1);
    text.safe = true;
    return text;
}

static void indent_line(struct jinja_run *r, struct jinja_out *out, struct span line,
                        struct span by, bool indent)
{
    if (indent)
        jinja_add(&r->m, out, by.p, by.n);
    jinja_add(&r->m, out, line.p, line.n);
}

FILTER(indent)
{
    UNUSED();
    struct jinja_out out = {0}, wide = {0};
    struct jinja_args none = {0};
    bool first = given(p[1]) && jinja_truth(r, p[1]), blank = given(p[2]) && jinja_truth(r, p[2]);
    jinja_need(r, v);
    if (v.type != JINJA_STR || v.safe)
        jinja_fail(&r->m, "indent: '%s' is no plain string", jinja_type_name(v.type));
    if (given(p[0]) && p[0].type == JINJA_STR) {
        jinja_add(&r->m, &wide, p[0].u.s.p, p[0].u.s.n);
    } else {
        int64_t width = given(p[0]) ? jinja_integer(r, p[0], "indent: width") : 4;
        for (int64_t i = 0; i < width; i++, jinja_step(r, 1))
            jinja_add(&r->m, &wide, " ", 1);
    }
    struct span by = jinja_span(jinja_taken(&wide));
    struct jinja_value lines = jinja_call(
        r, jinja_method(r, jinja_join2(&r->m, v, jinja_text("\n")), "splitlines"), &none);
    for (size_t i = 0; i < lines.u.list->n; i++) {
        struct span line = jinja_span(lines.u.list->v[i]);
        jinja_step(r, line.n + by.n);
        if (i)
            jinja_add(&r->m, &out, "\n", 1);
        indent_line(r, &out, line, by, i ? blank || line.n : first);
    }
    return jinja_taken(&out);
}

FILTER(center)
{
    UNUSED();
    int64_t width = given(p[0]) ? jinja_integer(r, p[0], "center: width") : 80;
    return jinja_pad(r, jinja_span(plain(r, v)), width, 'c', (struct span){" ", 1});
}

FILTER(format)
{
    UNUSED();
    struct jinja_value values = jinja_values(r, JINJA_TUPLE, a->n);
    if (a->n && a->names)
        jinja_fail(&r->m, "format: arguments are by position or by name, not both");
    for (size_t i = 0; i < a->n; i++)
        jinja_list_add(r, values, a->v[i]);
    if (a->names) {
        values = jinja_dict_new(r);
        for (size_t i = 0; i < a->names; i++)
            jinja_dict_set(r, values, jinja_text(a->named[i].name), a->named[i].v);
    }
    return jinja_percent(r, plain(r, v), values);
}

FILTER(tojson)
{
    UNUSED();
    struct jinja_out out = {0};
    jinja_json(r, &out, v, p);
    return jinja_taken(&out);
}

/* ---- single values ------------------------------------------------------------------------- */

FILTER(default_filter)
{
    UNUSED();
    bool boolean = given(p[1]) && jinja_truth(r, p[1]);
    if (v.type == JINJA_UNDEFINED || (boolean && !jinja_truth(r, v)))
        return given(p[0]) ? p[0] : jinja_text("");
    return v;
}

/* The text without space around and without the `_` that stand between digits; false if it cannot
 * be a number of Python's. */
static bool number_text(struct span s, char text[64], bool floating)
{
    size_t n = 0;
    s = text_strip(s, NULL, true, true);
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i], before = i ? s.p[i - 1] : 0, after = i + 1 < s.n ? s.p[i + 1] : 0;
        bool digit = c >= '0' && c <= '9';
        if (c == '_' && before >= '0' && before <= '9' && after >= '0' && after <= '9')
            continue;
        if (n == 63 || !(digit || ((c == '-' || c == '+') && (i == 0 || (before | 32) == 'e')) ||
                         (floating && c && strchr(".eE", c))))
            return false;
        text[n++] = c;
    }
    text[n] = 0;
    return n > 0;
}

static bool read_float(struct jinja_run *r, struct span s, double *d)
{
    static const char *const words[] = {"inf", "infinity", "nan"};
    char text[64], *end;
    struct span word = text_strip(s, NULL, true, true);
    if (number_text(s, text, true)) {
        *d = strtod(text, &end);
        return *end == 0 && strpbrk(text, "0123456789");
    }
    for (size_t i = 0; i < 3 && word.n; i++) {
        size_t sign = *word.p == '-' || *word.p == '+';
        if (word.n - sign == strlen(words[i]) &&
            strncasecmp(word.p + sign, words[i], word.n - sign) == 0) {
            *d = i == 2 ? (double)NAN : *word.p == '-' ? -(double)INFINITY : (double)INFINITY;
            return true;
        }
    }
    if (word.n >= 60)
        jinja_fail(&r->m, "a number of more than 60 characters is not supported");
    return false;
}

static struct jinja_value truncated(struct jinja_run *r, double d)
{
    if (!(d > -9.2e18 && d < 9.2e18))
        jinja_fail(&r->m, "int: the number is beyond 64 bits");
    return jinja_int((int64_t)d);
}

FILTER(int_filter)
{
    UNUSED();
    char text[64];
    double d;
    struct jinja_value otherwise = given(p[0]) ? p[0] : jinja_int(0);
    jinja_need(r, v);
    if (given(p[1]) && jinja_integer(r, p[1], "int: base") != 10)
        jinja_fail(&r->m, "int: a base other than 10 is not supported");
    if (v.type == JINJA_INT)
        return v;
    if (v.type == JINJA_STR && number_text(jinja_span(v), text, false)) {
        size_t sign = *text == '-' || *text == '+';
        if (strlen(text + sign) > 18)
            jinja_fail(&r->m, "int: the number is beyond 64 bits");
        if (text[sign])
            return jinja_int(strtoll(text, NULL, 10));
    }
    if (v.type == JINJA_STR && read_float(r, jinja_span(v), &d))
        return isfinite(d) ? truncated(r, d) : otherwise;
    if (!jinja_number(v, &d))
        return otherwise;
    if (isinf(d))
        jinja_fail(&r->m, "int: cannot convert float infinity to integer");
    return isnan(d) ? otherwise : truncated(r, d);
}

FILTER(float_filter)
{
    UNUSED();
    double d;
    jinja_need(r, v);
    if (v.type == JINJA_STR ? read_float(r, jinja_span(v), &d) : jinja_number(v, &d))
        return jinja_float(d);
    return given(p[0]) ? p[0] : jinja_float(0);
}

FILTER(absolute)
{
    UNUSED();
    jinja_need(r, v);
    if (v.type == JINJA_FLOAT)
        return jinja_float(fabs(v.u.d));
    int64_t i = jinja_integer(r, v, "abs: the value");
    return i < 0 ? jinja_binary(r, OP_SUB, jinja_int(0), jinja_int(i)) : jinja_int(i);
}

FILTER(round_filter)
{
    UNUSED();
    int64_t precision = given(p[0]) ? jinja_integer(r, p[0], "round: precision") : 0;
    struct jinja_value how = given(p[1]) ? p[1] : jinja_text("common");
    double d;
    jinja_need(r, v);
    if (!jinja_number(v, &d) || how.type != JINJA_STR)
        jinja_fail(&r->m, "round: '%s' is no number", jinja_type_name(v.type));
    bool up = jinja_equal(r, how, jinja_text("ceil")),
         down = jinja_equal(r, how, jinja_text("floor"));
    if (precision < 0 || precision > 15 || fabs(d) > 1e15)
        jinja_fail(&r->m, "round: this precision is not supported");
    if (up || down) {
        double scale = pow(10, (double)precision);
        return jinja_float((up ? ceil(d * scale) : floor(d * scale)) / scale);
    }
    if (!jinja_equal(r, how, jinja_text("common")))
        jinja_fail(&r->m, "round: the method is common, ceil or floor");
    if (v.type != JINJA_FLOAT)
        return jinja_int((int64_t)d);
    char text[64];
    snprintf(text, sizeof text, "%.*f", (int)precision, d);
    return jinja_float(strtod(text, NULL));
}

const struct jinja_filter_row jinja_text_filters[] = {
    {"trim", "chars", 0, trim},
    {"upper", "", 0, upper},
    {"lower", "", 0, lower},
    {"capitalize", "", 0, capitalize},
    {"title", "", 0, title},
    {"replace", "old new count", 2, replace},
    {"string", "", 0, string},
    {"safe", "", 0, safe},
    {"escape", "", 0, escape},
    {"e", "", 0, escape},
    {"indent", "width first blank", 0, indent},
    {"center", "width", 0, center},
    {"format", NULL, 0, format},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, tojson},
    {"default", "default_value boolean", 0, default_filter},
    {"d", "default_value boolean", 0, default_filter},
    {"int", "default base", 0, int_filter},
    {"float", "default", 0, float_filter},
    {"abs", "", 0, absolute},
    {"round", "precision method", 0, round_filter},
    {NULL, NULL, 0, NULL},
};
