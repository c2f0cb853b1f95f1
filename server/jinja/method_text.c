/* SPDX-License-Identifier: Apache-2.0 */
/* method_text.c - methods of strings that make other ones, and those that ask what they are
 * made of. */
#include <string.h>

#include "engine/utf8.h"
#include "server/jinja/run.h"

#define METHOD(name)                                                             \
    static struct jinja_value name(struct jinja_run *r, struct jinja_value self, \
                                   const struct jinja_value *p, struct jinja_args *a)
#define UNUSED(...) ((void)r, (void)self, (void)p, (void)a)

/* ---- case ---------------------------------------------------------------------------------- */

static void add_cased(struct jinja_run *r, struct jinja_out *out, uint32_t c, const char *at,
                      size_t n, char how)
{
    char text[4];
    uint32_t to = c;
    if (how == 'u' && c == 0xDF) { /* the one of its kind that is in everyday use */
        jinja_add(&r->m, out, "SS", 2);
        return;
    }
    bool known = how == 'u' ? text_upper(c, &to) : text_lower(c, &to);
    if (!known)
        jinja_fail(&r->m, "the other case of U+%04X is not supported", c);
    if (to == c)
        jinja_add(&r->m, out, at, n);
    else
        jinja_add(&r->m, out, text, (size_t)utf8_encode(to, text));
}

struct jinja_value jinja_case(struct jinja_run *r, struct jinja_value v, char how)
{
    struct span s = jinja_span(v);
    struct jinja_out out = {0};
    bool within = false;
    jinja_step(r, s.n * 8);
    for (size_t n; s.n; s.p += n, s.n -= n) {
        uint32_t c = text_char(s.p, s.n, &n);
        char to = how;
        if (how == 'c' || how == 't')
            to = within ? 'l' : 'u';
        if (how == 's')
            to = text_is_upper(c) ? 'l' : 'u';
        add_cased(r, &out, c, s.p, n, to);
        within = how == 'c' || text_cased(c);
    }
    return jinja_taken(&out);
}

METHOD(upper)
{
    UNUSED();
    return jinja_case(r, self, 'u');
}

METHOD(lower)
{
    UNUSED();
    return jinja_case(r, self, 'l');
}

METHOD(title)
{
    UNUSED();
    return jinja_case(r, self, 't');
}

METHOD(capitalize)
{
    UNUSED();
    return jinja_case(r, self, 'c');
}

METHOD(swapcase)
{
    UNUSED();
    return jinja_case(r, self, 's');
}

/* ---- replacing and joining ----------------------------------------------------------------- */

struct jinja_value jinja_replace(struct jinja_run *r, struct span s, struct span from,
                                 struct span to, int64_t most)
{
    struct jinja_out out = {0};
    const char *at;
    size_t n;
    most = most < 0 ? INT64_MAX : most;
    jinja_step(r, s.n);
    for (; from.n && most > 0 && (at = text_find(s, from)); most--) {
        jinja_step(r, to.n);
        jinja_add(&r->m, &out, s.p, (size_t)(at - s.p));
        jinja_add(&r->m, &out, to.p, to.n);
        s.n -= (size_t)(at + from.n - s.p);
        s.p = at + from.n;
    }
    for (; !from.n && most > 0; most--) { /* before every character and at the end */
        jinja_step(r, to.n);
        jinja_add(&r->m, &out, to.p, to.n);
        if (!s.n)
            break;
        text_char(s.p, s.n, &n);
        jinja_add(&r->m, &out, s.p, n);
        s.p += n;
        s.n -= n;
    }
    jinja_add(&r->m, &out, s.p, s.n);
    return jinja_taken(&out);
}

static struct span string_of(struct jinja_run *r, struct jinja_value v, const char *what)
{
    jinja_need(r, v);
    if (v.type != JINJA_STR)
        jinja_fail(&r->m, "%s() needs a string, not '%s'", what, jinja_type_name(v.type));
    return jinja_span(v);
}

METHOD(replace)
{
    UNUSED();
    int64_t most = p[2].type == JINJA_ABSENT ? -1 : jinja_integer(r, p[2], "replace(): count");
    return jinja_replace(r, jinja_span(self), string_of(r, p[0], "replace"),
                         string_of(r, p[1], "replace"), most);
}

METHOD(join)
{
    UNUSED();
    struct jinja_out out = {0};
    jinja_need(r, p[0]);
    struct jinja_list *items = jinja_items(r, p[0]);
    for (size_t i = 0; i < items->n; i++) {
        struct span s = string_of(r, items->v[i], "join");
        jinja_step(r, s.n + self.u.s.n);
        if (i)
            jinja_add(&r->m, &out, self.u.s.p, self.u.s.n);
        jinja_add(&r->m, &out, s.p, s.n);
    }
    return jinja_taken(&out);
}

/* ---- padding ------------------------------------------------------------------------------- */

struct jinja_value jinja_pad(struct jinja_run *r, struct span s, int64_t width, char how,
                             struct span fill)
{
    struct jinja_out out = {0};
    int64_t n = (int64_t)text_chars(s.p, s.n), more = width > n ? width - n : 0;
    int64_t left = how == 'r' ? more : how == 'c' ? more / 2 + (more & width & 1) : 0;
    jinja_step(r, s.n);
    for (int64_t i = 0; i < more; i++) {
        jinja_step(r, fill.n);
        if (i == left)
            jinja_add(&r->m, &out, s.p, s.n);
        jinja_add(&r->m, &out, fill.p, fill.n);
    }
    if (left == more)
        jinja_add(&r->m, &out, s.p, s.n);
    return jinja_taken(&out);
}

static struct jinja_value padded(struct jinja_run *r, struct jinja_value self,
                                 const struct jinja_value *p, char how)
{
    struct span fill = {" ", 1};
    if (p[1].type != JINJA_ABSENT)
        fill = string_of(r, p[1], "just");
    if (text_chars(fill.p, fill.n) != 1)
        jinja_fail(&r->m, "the fill character must be exactly one character long");
    return jinja_pad(r, jinja_span(self), jinja_integer(r, p[0], "the width"), how, fill);
}

METHOD(ljust)
{
    UNUSED();
    return padded(r, self, p, 'l');
}

METHOD(rjust)
{
    UNUSED();
    return padded(r, self, p, 'r');
}

METHOD(center)
{
    UNUSED();
    return padded(r, self, p, 'c');
}

METHOD(zfill)
{
    UNUSED();
    struct span s = jinja_span(self), sign = {s.p, s.n && (*s.p == '-' || *s.p == '+')};
    int64_t width = jinja_integer(r, p[0], "the width");
    s.p += sign.n;
    s.n -= sign.n;
    struct jinja_value digits =
        jinja_pad(r, s, width - (int64_t)sign.n, 'r', (struct span){"0", 1});
    return jinja_join2(&r->m, jinja_string(sign.p, sign.n), digits);
}

/* ---- what they are made of ----------------------------------------------------------------- */

static struct jinja_value all(struct jinja_run *r, struct jinja_value self, bool (*is)(uint32_t))
{
    struct span s = jinja_span(self);
    bool every = s.n > 0;
    jinja_step(r, s.n * 4);
    for (size_t n; s.n && every; s.p += n, s.n -= n)
        every = is(text_char(s.p, s.n, &n));
    return jinja_bool(every);
}

/* Digits of other scripts are digits to Python too; numbers that are none to int() as well. */
static bool is_digit(uint32_t c)
{
    return c >= '0' && c <= '9';
}

static bool is_alphanumeric(uint32_t c)
{
    return is_digit(c) || text_alphabetic(c);
}

static void need_ascii(struct jinja_run *r, struct jinja_value self, const char *what)
{
    for (size_t i = 0; i < self.u.s.n; i++)
        if ((unsigned char)self.u.s.p[i] >= 0x80)
            jinja_fail(&r->m, "%s() of characters that are not ASCII is not supported", what);
}

METHOD(is_digit_all)
{
    UNUSED();
    need_ascii(r, self, "isdigit");
    return all(r, self, is_digit);
}

METHOD(is_alnum_all)
{
    UNUSED();
    need_ascii(r, self, "isalnum");
    return all(r, self, is_alphanumeric);
}

METHOD(is_alpha_all)
{
    UNUSED();
    return all(r, self, text_alphabetic);
}

METHOD(is_space_all)
{
    UNUSED();
    return all(r, self, text_space);
}

METHOD(is_upper_all)
{
    UNUSED();
    struct jinja_args none = {0};
    return jinja_bool(jinja_test(r, "upper", self, &none));
}

METHOD(is_lower_all)
{
    UNUSED();
    struct jinja_args none = {0};
    return jinja_bool(jinja_test(r, "lower", self, &none));
}

const struct jinja_method_row jinja_string_methods2[] = {
    {"upper", "", 0, upper},
    {"lower", "", 0, lower},
    {"title", "", 0, title},
    {"capitalize", "", 0, capitalize},
    {"swapcase", "", 0, swapcase},
    {"replace", "- - -", 2, replace},
    {"join", "-", 1, join},
    {"format", NULL, 0, jinja_format_method},
    {"ljust", "- -", 1, ljust},
    {"rjust", "- -", 1, rjust},
    {"center", "- -", 1, center},
    {"zfill", "-", 1, zfill},
    {"isdigit", "", 0, is_digit_all},
    {"isdecimal", "", 0, is_digit_all},
    {"isnumeric", "", 0, is_digit_all},
    {"isalnum", "", 0, is_alnum_all},
    {"isalpha", "", 0, is_alpha_all},
    {"isspace", "", 0, is_space_all},
    {"isupper", "", 0, is_upper_all},
    {"islower", "", 0, is_lower_all},
    /* Python has these too. */
    {"casefold", NULL, 0, NULL},
    {"encode", NULL, 0, NULL},
    {"expandtabs", NULL, 0, NULL},
    {"format_map", NULL, 0, NULL},
    {"isascii", NULL, 0, NULL},
    {"isidentifier", NULL, 0, NULL},
    {"isprintable", NULL, 0, NULL},
    {"istitle", NULL, 0, NULL},
    {"maketrans", NULL, 0, NULL},
    {"translate", NULL, 0, NULL},
    {NULL, NULL, 0, NULL},
};
