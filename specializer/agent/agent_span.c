/* SPDX-License-Identifier: Apache-2.0 */
/* agent_span.c - see agent_span.h. Everything goes line by line; a line's end may be missing at the
 * end of the text. */
#include "specializer/agent/agent_span.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum marker { NO_MARKER, BEGINS, ENDS };

/* One line without its end and without blanks there. */
struct line {
    const char *at;
    int n;
};

/* Takes the next line off *text; false at the end. */
static bool take_line(const char **text, struct line *l)
{
    if (!**text)
        return false;
    size_t n = strcspn(*text, "\n");
    l->at = *text;
    *text += n + ((*text)[n] == '\n');
    while (n > 0 && strchr(" \t\r", l->at[n - 1]))
        n--;
    l->n = (int)n;
    return true;
}

/* Behind `word` a number of one or two digits, as span_mark() writes it, and the end of the line:
 * that number, else -1. */
static int number_behind(const char *at, int n, const char *word)
{
    const int k = (int)strlen(word);
    int digits = 0, number = 0;
    if (n < k || memcmp(at, word, (size_t)k) != 0)
        return -1;
    if (k < n && at[k] == '0')
        return -1;
    for (; digits < 3 && k + digits < n && at[k + digits] >= '0' && at[k + digits] <= '9'; digits++)
        number = 10 * number + at[k + digits] - '0';
    return digits > 0 && digits < 3 && n == k + digits + 1 && at[n - 1] == ']' ? number : -1;
}

/* Markers are recognized whatever their indentation, models like to indent; and otherwise as they
 * are spelled, or a line could be one marker to this reader and another to the next. */
static enum marker marker_of(const struct line *l, int *number)
{
    int skip = 0;
    while (skip < l->n && strchr(" \t", l->at[skip]))
        skip++;
    if ((*number = number_behind(l->at + skip, l->n - skip, "// [span ")) >= 0)
        return BEGINS;
    *number = number_behind(l->at + skip, l->n - skip, "// [end ");
    return *number >= 0 ? ENDS : NO_MARKER;
}

static int check_spans(const char *text, const struct span_lines *span, int n, struct err *err)
{
    struct line l;
    int lines = 0, number;
    for (const char *at = text; take_line(&at, &l); lines++)
        if (marker_of(&l, &number) != NO_MARKER)
            return err_set(err, "the text has markers already");
    if (n < 1 || n > SPANS_MOST)
        return err_set(err, "%d spans; 1 to %d", n, SPANS_MOST);
    for (int i = 0; i < n; i++) {
        if (span[i].first < 1 || span[i].last < span[i].first || span[i].last > lines)
            return err_set(err, "span %d is lines %d to %d of %d", i + 1, span[i].first,
                           span[i].last, lines);
        if (i > 0 && span[i].first <= span[i - 1].last)
            return err_set(err, "span %d begins before span %d has ended", i + 1, i);
    }
    return 0;
}

char *span_mark(const char *text, const struct span_lines *span, int n, struct err *err)
{
    struct line l;
    char *out = NULL;
    size_t size = 0;
    if (check_spans(text, span, n, err) != 0)
        return NULL;
    FILE *f = xmemstream(&out, &size);
    int at = 1, i = 0;
    for (; take_line(&text, &l); at++) {
        if (i < n && at == span[i].first)
            fprintf(f, "// [span %d]\n", i + 1);
        fprintf(f, "%.*s\n", l.n, l.at);
        if (i < n && at == span[i].last)
            fprintf(f, "// [end %d]\n", ++i);
    }
    fclose(f);
    return out;
}

char *span_strip(const char *marked)
{
    struct line l;
    char *out = NULL;
    size_t size = 0;
    int number;
    FILE *f = xmemstream(&out, &size);
    while (take_line(&marked, &l))
        if (marker_of(&l, &number) == NO_MARKER)
            fprintf(f, "%.*s\n", l.n, l.at);
    fclose(f);
    return out;
}

/* The next line outside spans, markers included; behind a beginning marker the lines up to its end
 * are passed over. */
static bool take_outside(const char **text, struct line *l, bool *inside)
{
    int number;
    while (take_line(text, l)) {
        enum marker m = marker_of(l, &number);
        if (*inside && m == NO_MARKER)
            continue;
        *inside = m == BEGINS;
        return true;
    }
    return false;
}

/* Blank lines at the end of a text are nobody's edit. */
static bool rest_is_blank(const char *text)
{
    return text[strspn(text, " \t\r\n")] == 0;
}

static bool same(const struct line *a, const struct line *b)
{
    int na, nb;
    enum marker ma = marker_of(a, &na), mb = marker_of(b, &nb);
    if (ma != NO_MARKER || mb != NO_MARKER)
        return ma == mb && na == nb;
    return a->n == b->n && memcmp(a->at, b->at, (size_t)a->n) == 0;
}

int span_verify(const char *before, const char *after, struct err *err)
{
    struct line a = {"", 0}, b = {"", 0};
    bool in_a = false, in_b = false;
    for (;;) {
        const char *a0 = before, *b0 = after;
        bool more_a = take_outside(&before, &a, &in_a), more_b = take_outside(&after, &b, &in_b);
        if (!more_a && !more_b)
            return 0;
        if ((!more_a && rest_is_blank(b0)) || (!more_b && rest_is_blank(a0)))
            return 0;
        if (!more_b)
            return err_set(err, "a line outside the spans is gone: %.*s", a.n < 100 ? a.n : 100,
                           a.at);
        if (!more_a)
            return err_set(err, "a line outside the spans is new: %.*s", b.n < 100 ? b.n : 100,
                           b.at);
        if (!same(&a, &b))
            return err_set(err, "a line outside the spans was \"%.*s\" and is \"%.*s\"",
                           a.n < 80 ? a.n : 80, a.at, b.n < 80 ? b.n : 80, b.at);
    }
}

/* ---- what a reply changes ------------------------------------------------------------------- */

/* "// [lines 14 to 15]": its numbers; false if the line is no such thing. */
static bool edit_of(const struct line *l, struct span_lines *out)
{
    char text[64];
    int used = 0, skip = 0;
    while (skip < l->n && strchr(" \t", l->at[skip]))
        skip++;
    snprintf(text, sizeof text, "%.*s", l->n - skip, l->at + skip);
    return l->n - skip < (int)sizeof text &&
           sscanf(text, "// [lines %6d to %6d]%n", &out->first, &out->last, &used) == 2 &&
           used == l->n - skip;
}

static bool is_edit_end(const struct line *l)
{
    int skip = 0;
    while (skip < l->n && strchr(" \t", l->at[skip]))
        skip++;
    return l->n - skip == 8 && memcmp(l->at + skip, "// [end]", 8) == 0;
}

/* Copies lines of *before up to `line`, which is the next one then, or to the end (0). */
static void copy_lines(FILE *f, const char **before, int *at, int line, bool *inside)
{
    struct line l;
    int number;
    while ((line == 0 || *at < line) && take_line(before, &l)) {
        enum marker m = marker_of(&l, &number);
        *inside = m == NO_MARKER ? *inside : m == BEGINS;
        fprintf(f, "%.*s\n", l.n, l.at);
        ++*at;
    }
}

/* Passes over the lines that an edit replaces: all of them exist and are inside a span. */
static int drop_lines(const char **before, int *at, const struct span_lines *e, bool inside,
                      struct err *err)
{
    struct line l;
    int number;
    for (; *at <= e->last; ++*at)
        if (!take_line(before, &l) || !inside || marker_of(&l, &number) != NO_MARKER)
            return err_set(err, "lines %d to %d: line %d is outside the spans", e->first, e->last,
                           *at);
    return 0;
}

/* The new lines of an edit, up to its end. */
static int write_edit(FILE *f, const char **reply, const struct span_lines *e, struct err *err)
{
    struct line l;
    struct span_lines other;
    int number;
    while (take_line(reply, &l)) {
        if (is_edit_end(&l))
            return 0;
        if (edit_of(&l, &other) || marker_of(&l, &number) != NO_MARKER)
            return err_set(err, "lines %d to %d: a marker among the new lines", e->first, e->last);
        fprintf(f, "%.*s\n", l.n, l.at);
    }
    return err_set(err, "lines %d to %d have no // [end]", e->first, e->last);
}

static int apply_edits(FILE *f, const char *before, const char *reply, struct err *err)
{
    struct line l;
    struct span_lines e;
    bool inside = false;
    int at = 1;
    while (take_line(&reply, &l)) {
        if (l.n == 0)
            continue;
        if (!edit_of(&l, &e))
            return err_set(err, "outside of edits: %.*s", l.n < 100 ? l.n : 100, l.at);
        if (e.first < at || e.last < e.first)
            return err_set(err, "lines %d to %d are out of order", e.first, e.last);
        copy_lines(f, &before, &at, e.first, &inside);
        if (drop_lines(&before, &at, &e, inside, err) != 0 || write_edit(f, &reply, &e, err) != 0)
            return -1;
    }
    copy_lines(f, &before, &at, 0, &inside);
    return 0;
}

/* Copies *before up to the beginning of span `number`, that line included; the old lines of the
 * span are passed over, its end is next. */
static bool find_span(FILE *f, const char **before, int number)
{
    struct line l;
    int n;
    while (take_line(before, &l)) {
        enum marker m = marker_of(&l, &n);
        fprintf(f, "%.*s\n", l.n, l.at);
        if (m != BEGINS || n != number)
            continue;
        for (const char *at = *before; take_line(&at, &l); *before = at)
            if (marker_of(&l, &n) == ENDS)
                return true;
        return false;
    }
    return false;
}

static int apply_spans(FILE *f, const char *before, const char *reply, struct err *err)
{
    struct line l;
    int open = 0, number;
    while (take_line(&reply, &l)) {
        enum marker m = marker_of(&l, &number);
        if (open && m == NO_MARKER) {
            fprintf(f, "%.*s\n", l.n, l.at);
        } else if (!open && m == BEGINS) {
            if (!find_span(f, &before, number))
                return err_set(err, "span %d is not there, or comes twice or too late", number);
            open = number;
        } else if (open && m == ENDS && number == open) {
            open = 0;
        } else if (l.n > 0) {
            return err_set(err, "%.*s is out of place", l.n < 100 ? l.n : 100, l.at);
        }
    }
    if (open)
        return err_set(err, "span %d has no end", open);
    bool inside = false;
    int at = 1;
    copy_lines(f, &before, &at, 0, &inside);
    return 0;
}

/* How a reply says what it changes. */
enum reply_form { WHOLE, SPANS_ALONE, EDITS };

static enum reply_form form_of(const char *reply)
{
    struct line l;
    struct span_lines e;
    bool inside = false, some = false;
    int number;
    while (take_line(&reply, &l)) {
        enum marker m = marker_of(&l, &number);
        if (!inside && edit_of(&l, &e))
            return EDITS;
        if (!inside && m == NO_MARKER && l.n > 0)
            return WHOLE;
        some |= m != NO_MARKER;
        inside = m == NO_MARKER ? inside : m == BEGINS;
    }
    return some ? SPANS_ALONE : WHOLE;
}

char *span_apply(const char *before, const char *reply, struct err *err)
{
    char *out = NULL;
    size_t size = 0;
    int rc;
    const enum reply_form form = form_of(reply);
    FILE *f = xmemstream(&out, &size);
    if (form == WHOLE)
        rc = fputs(reply, f) >= 0 ? 0 : -1;
    else
        rc =
            form == EDITS ? apply_edits(f, before, reply, err) : apply_spans(f, before, reply, err);
    fclose(f);
    if (rc == 0 && span_verify(before, out, err) == 0)
        return out;
    free(out);
    return NULL;
}

char *span_number(const char *text)
{
    struct line l;
    char *out = NULL;
    size_t size = 0;
    int at = 1;
    FILE *f = xmemstream(&out, &size);
    for (; take_line(&text, &l); at++)
        fprintf(f, "%4d| %.*s\n", at, l.n, l.at);
    fclose(f);
    return out;
}
