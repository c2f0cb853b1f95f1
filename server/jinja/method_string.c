/* SPDX-License-Identifier: Apache-2.0 */
/* method_string.c - methods of strings that look for something or take strings apart. */
#include <string.h>

#include "server/jinja/run.h"

#define METHOD(name)                                                             \
    static struct jinja_value name(struct jinja_run *r, struct jinja_value self, \
                                   const struct jinja_value *p, struct jinja_args *a)
#define UNUSED(...) ((void)r, (void)self, (void)p, (void)a)

static bool given(struct jinja_value v)
{
    return v.type != JINJA_ABSENT && v.type != JINJA_NONE;
}

static struct span string_of(struct jinja_run *r, struct jinja_value v, const char *what)
{
    jinja_need(r, v);
    if (v.type != JINJA_STR)
        jinja_fail(&r->m, "%s() needs a string, not '%s'", what, jinja_type_name(v.type));
    return jinja_span(v);
}

static struct jinja_value text_of(struct span s)
{
    return jinja_string(s.p, s.n);
}

/* ---- strip --------------------------------------------------------------------------------- */

static struct jinja_value strip(struct jinja_run *r, struct jinja_value self,
                                const struct jinja_value *p, bool left, bool right)
{
    struct span chars = {"", 0}, s = jinja_span(self);
    if (given(p[0]))
        chars = string_of(r, p[0], "strip");
    if (chars.n > 64) /* each character may be compared with all of them */
        jinja_step(r, s.n * chars.n);
    s = text_strip(s, given(p[0]) ? &chars : NULL, left, right);
    jinja_step(r, (self.u.s.n - s.n) * (chars.n + 1));
    return text_of(s);
}

METHOD(strip_both)
{
    UNUSED();
    return strip(r, self, p, true, true);
}

METHOD(lstrip)
{
    UNUSED();
    return strip(r, self, p, true, false);
}

METHOD(rstrip)
{
    UNUSED();
    return strip(r, self, p, false, true);
}

METHOD(removeprefix)
{
    UNUSED();
    struct span s = jinja_span(self), part = string_of(r, p[0], "removeprefix");
    if (text_starts(s, part))
        s = (struct span){s.p + part.n, s.n - part.n};
    return text_of(s);
}

METHOD(removesuffix)
{
    UNUSED();
    struct span s = jinja_span(self), part = string_of(r, p[0], "removesuffix");
    if (text_ends(s, part))
        s.n -= part.n;
    return text_of(s);
}

/* ---- split --------------------------------------------------------------------------------- */

static int64_t most_of(struct jinja_run *r, struct jinja_value v)
{
    int64_t most = v.type == JINJA_ABSENT ? -1 : jinja_integer(r, v, "split(): maxsplit");
    return most < 0 ? INT64_MAX : most;
}

static void split_space(struct jinja_run *r, struct jinja_value out, struct span s, int64_t most)
{
    for (;; most--) {
        s = text_strip(s, NULL, true, false);
        if (!s.n)
            return;
        size_t n = 0, length;
        if (most == 0) { /* the rest keeps the space at its end */
            jinja_list_add(r, out, text_of(s));
            return;
        }
        while (n < s.n && !text_space(text_char(s.p + n, s.n - n, &length)))
            n += length;
        jinja_list_add(r, out, jinja_string(s.p, n));
        s.p += n;
        s.n -= n;
        jinja_step(r, 0);
    }
}

static void turn_round(struct jinja_value list)
{
    struct jinja_list *l = list.u.list;
    for (size_t i = 0; i < l->n / 2; i++) {
        struct jinja_value v = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = v;
    }
}

static void rsplit_space(struct jinja_run *r, struct jinja_value out, struct span s, int64_t most)
{
    for (;; most--) {
        s = text_strip(s, NULL, false, true);
        if (!s.n)
            break;
        size_t n = s.n, length;
        if (most == 0) {
            jinja_list_add(r, out, text_of(s));
            break;
        }
        while (n > 0) {
            size_t last = text_last(s.p, n);
            if (text_space(text_char(s.p + n - last, last, &length)))
                break;
            n -= last;
        }
        jinja_list_add(r, out, jinja_string(s.p + n, s.n - n));
        s.n = n;
        jinja_step(r, 0);
    }
    turn_round(out);
}

static struct span separator(struct jinja_run *r, struct jinja_value v)
{
    struct span sep = string_of(r, v, "split");
    if (!sep.n)
        jinja_fail(&r->m, "split(): empty separator");
    return sep;
}

METHOD(split)
{
    UNUSED();
    struct jinja_value out = jinja_list_new(r);
    struct span s = jinja_span(self);
    int64_t most = most_of(r, p[1]);
    jinja_step(r, s.n);
    if (!given(p[0])) {
        split_space(r, out, s, most);
        return out;
    }
    struct span sep = separator(r, p[0]);
    const char *at;
    for (; most-- > 0 && (at = text_find(s, sep)); jinja_step(r, 0)) {
        jinja_list_add(r, out, jinja_string(s.p, (size_t)(at - s.p)));
        s.n -= (size_t)(at + sep.n - s.p);
        s.p = at + sep.n;
    }
    jinja_list_add(r, out, text_of(s));
    return out;
}

METHOD(rsplit)
{
    UNUSED();
    struct jinja_value out = jinja_list_new(r);
    struct span s = jinja_span(self);
    int64_t most = most_of(r, p[1]);
    jinja_step(r, s.n);
    if (!given(p[0])) {
        rsplit_space(r, out, s, most);
        return out;
    }
    struct span sep = separator(r, p[0]);
    const char *at;
    jinja_step(r, s.n * sep.n); /* looking from the end compares at each place */
    for (; most-- > 0 && (at = text_find_last(s, sep)); jinja_step(r, 0)) {
        jinja_list_add(r, out, jinja_string(at + sep.n, s.n - (size_t)(at + sep.n - s.p)));
        s.n = (size_t)(at - s.p);
    }
    jinja_list_add(r, out, text_of(s));
    turn_round(out);
    return out;
}

/* Bytes of the end of a line at s, 0 if there is none. */
static size_t line_end(struct span s)
{
    size_t n;
    if (s.n >= 2 && s.p[0] == '\r' && s.p[1] == '\n')
        return 2;
    uint32_t c = text_char(s.p, s.n, &n);
    bool ends = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
                c == 0x2029;
    return ends ? n : 0;
}

METHOD(splitlines)
{
    UNUSED();
    struct jinja_value out = jinja_list_new(r);
    struct span s = jinja_span(self);
    bool keep = p[0].type != JINJA_ABSENT && jinja_truth(r, p[0]);
    jinja_step(r, s.n * 8);
    while (s.n) {
        size_t n = 0, end = 0, length;
        while (n < s.n && !(end = line_end((struct span){s.p + n, s.n - n}))) {
            text_char(s.p + n, s.n - n, &length);
            n += length;
        }
        jinja_list_add(r, out, jinja_string(s.p, n + (keep ? end : 0)));
        s.p += n + end;
        s.n -= n + end;
        jinja_step(r, 0);
    }
    return out;
}

static struct jinja_value partition(struct jinja_run *r, struct span s, const char *at, size_t n,
                                    bool last)
{
    struct jinja_value out = jinja_values(r, JINJA_TUPLE, 3);
    struct jinja_value empty = jinja_text("");
    size_t before = at ? (size_t)(at - s.p) : 0;
    if (!at && last)
        jinja_list_add(r, out, empty);
    jinja_list_add(r, out, at ? jinja_string(s.p, before) : last ? empty : text_of(s));
    if (at)
        jinja_list_add(r, out, jinja_string(at, n));
    else if (!last)
        jinja_list_add(r, out, empty);
    jinja_list_add(r, out, at ? jinja_string(at + n, s.n - before - n) : last ? text_of(s) : empty);
    return out;
}

METHOD(partition_first)
{
    UNUSED();
    struct span s = jinja_span(self), sep = separator(r, p[0]);
    jinja_step(r, s.n);
    return partition(r, s, text_find(s, sep), sep.n, false);
}

METHOD(partition_last)
{
    UNUSED();
    struct span s = jinja_span(self), sep = separator(r, p[0]);
    jinja_step(r, s.n * sep.n);
    return partition(r, s, text_find_last(s, sep), sep.n, true);
}

/* ---- looking for something ----------------------------------------------------------------- */

/* s[start:end] as bytes; false if start is behind the end. */
static bool part_of(struct jinja_run *r, struct jinja_value self, const struct jinja_value *p,
                    struct span *s, size_t *before)
{
    struct jinja_value part[3] = {given(p[1]) ? p[1] : jinja_none(),
                                  given(p[2]) ? p[2] : jinja_none(), jinja_none()};
    *before = 0;
    *s = jinja_span(self);
    if (!given(p[1]) && !given(p[2]))
        return true;
    if (given(p[1]) && jinja_integer(r, p[1], "a position") > (int64_t)jinja_length(r, self))
        return false;
    struct jinja_value cut = jinja_slice(r, self, part);
    if (cut.type != JINJA_STR)
        jinja_fail(&r->m, "positions must be integers");
    *before = text_chars(self.u.s.p, (size_t)(cut.u.s.p - self.u.s.p));
    *s = jinja_span(cut);
    return true;
}

static struct jinja_value found(struct jinja_run *r, struct jinja_value self,
                                const struct jinja_value *p, bool last, bool must)
{
    struct span part = string_of(r, p[0], "find"), s;
    size_t before;
    jinja_step(r, self.u.s.n * (last ? part.n + 1 : 1));
    bool inside = part_of(r, self, p, &s, &before);
    const char *at = !inside ? NULL : last ? text_find_last(s, part) : text_find(s, part);
    if (!at && must)
        jinja_fail(&r->m, "index(): substring not found");
    return jinja_int(at ? (int64_t)(before + text_chars(s.p, (size_t)(at - s.p))) : -1);
}

METHOD(find_first)
{
    UNUSED();
    return found(r, self, p, false, false);
}

METHOD(find_last)
{
    UNUSED();
    return found(r, self, p, true, false);
}

METHOD(index_first)
{
    UNUSED();
    return found(r, self, p, false, true);
}

METHOD(index_last)
{
    UNUSED();
    return found(r, self, p, true, true);
}

METHOD(count)
{
    UNUSED();
    struct span part = string_of(r, p[0], "count"), s;
    size_t before;
    int64_t n = 0;
    jinja_step(r, self.u.s.n);
    if (!part_of(r, self, p, &s, &before))
        return jinja_int(0);
    if (!part.n)
        return jinja_int((int64_t)text_chars(s.p, s.n) + 1);
    for (const char *at; (at = text_find(s, part)); n++) {
        s.n -= (size_t)(at + part.n - s.p);
        s.p = at + part.n;
    }
    return jinja_int(n);
}

static struct jinja_value has_end(struct jinja_run *r, struct jinja_value self,
                                  const struct jinja_value *p, bool end)
{
    bool (*has)(struct span, struct span) = end ? text_ends : text_starts;
    struct span s;
    size_t before;
    if (!part_of(r, self, p, &s, &before))
        return jinja_bool(false);
    if (p[0].type != JINJA_TUPLE)
        return jinja_bool(has(s, string_of(r, p[0], end ? "endswith" : "startswith")));
    bool any = false;
    for (size_t i = 0; i < p[0].u.list->n && !any; i++)
        any = has(s, string_of(r, p[0].u.list->v[i], end ? "endswith" : "startswith"));
    return jinja_bool(any);
}

METHOD(startswith)
{
    UNUSED();
    return has_end(r, self, p, false);
}

METHOD(endswith)
{
    UNUSED();
    return has_end(r, self, p, true);
}

const struct jinja_method_row jinja_string_methods[] = {
    {"strip", "-", 0, strip_both},
    {"lstrip", "-", 0, lstrip},
    {"rstrip", "-", 0, rstrip},
    {"removeprefix", "-", 1, removeprefix},
    {"removesuffix", "-", 1, removesuffix},
    {"split", "sep maxsplit", 0, split},
    {"rsplit", "sep maxsplit", 0, rsplit},
    {"splitlines", "keepends", 0, splitlines},
    {"partition", "-", 1, partition_first},
    {"rpartition", "-", 1, partition_last},
    {"find", "- - -", 1, find_first},
    {"rfind", "- - -", 1, find_last},
    {"index", "- - -", 1, index_first},
    {"rindex", "- - -", 1, index_last},
    {"count", "- - -", 1, count},
    {"startswith", "- - -", 1, startswith},
    {"endswith", "- - -", 1, endswith},
    {NULL, NULL, 0, NULL},
};
