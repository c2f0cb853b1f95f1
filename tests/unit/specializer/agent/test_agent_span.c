/* SPDX-License-Identifier: Apache-2.0 */
/* Spans: marking, stripping, and edits that stay inside them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "specializer/agent/agent_span.h"

static const char text[] = "one\ntwo\nthree\nfour\nfive\n";
static const char marked[] = "one\n// [span 1]\ntwo\nthree\n// [end 1]\nfour\n// [span 2]\nfive\n"
                             "// [end 2]\n";

static void marks_are_put_around_spans_and_taken_away(void **state)
{
    (void)state;
    struct err err = {""};
    const struct span_lines span[] = {{2, 3}, {5, 5}};
    char *m = span_mark(text, span, 2, &err);
    assert_string_equal(m, marked);
    char *s = span_strip(m);
    assert_string_equal(s, text);
    char *n = span_number("a\n\nb");
    assert_string_equal(n, "   1| a\n   2| \n   3| b\n");
    free(m);
    free(s);
    free(n);
}

static void spans_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    static const struct {
        struct span_lines span[2];
        int n;
        const char *word;
    } bad[] = {
        {{{0, 1}}, 1, "lines 0"},        {{{4, 3}}, 1, "lines 4 to 3"},
        {{{5, 6}}, 1, "of 5"},           {{{1, 3}, {3, 4}}, 2, "before span 1"},
        {{{4, 4}, {1, 1}}, 2, "before"}, {{{1, 1}}, 0, "0 spans"},
        {{{1, 1}}, SPANS_MOST + 1, "7"}, {{{-5, 2000000000}}, 1, "lines -5"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err err = {""};
        if (span_mark(text, bad[i].span, bad[i].n, &err) != NULL || !strstr(err.msg, bad[i].word))
            fail_msg("row %zu: \"%s\"", i, err.msg);
    }
    struct err err = {""};
    const struct span_lines all = {1, 1};
    assert_null(span_mark(marked, &all, 1, &err));
    assert_non_null(strstr(err.msg, "markers"));
}

static void markers_have_one_spelling(void **state)
{
    (void)state;
    static const char *const others[] = {
        "// [end \v2]", "//[end 2]",           "// [end +2]", "// [end 2 ]", "// [end  2]",
        "// [end -2]",  "// [end 4294967298]", "//\v[end 2]", "// [end 2",   "// [end 02]"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        char other[120];
        struct err err = {""};
        snprintf(other, sizeof other, "%.*s%s\n", (int)(strstr(marked, "// [end 2]") - marked),
                 marked, others[i]);
        if (span_verify(marked, other, &err) == 0)
            fail_msg("taken for a marker: %s", others[i]);
    }
}

static void edits_inside_spans_are_accepted(void **state)
{
    (void)state;
    static const char *const good[] = {
        marked,
        "one\n// [span 1]\nother\nand\nmore\n// [end 1]\nfour\n// [span 2]\nsix\n// [end 2]\n",
        "one\n// [span 1]\n// [end 1]\nfour\n// [span 2]\n// [end 2]\n", /* all gone */
        "one  \n// [span 1]\ntwo\n// [end 1]\t\nfour\r\n  // [span 2]\nfive\n// [end 2]", /* blanks
                                                                                           */
        "one\n// [span 1]\ntwo\n// [end 1]\nfour\n// [span 2]\nfive\n// [end 2]\n\n \n",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct err err = {""};
        if (span_verify(marked, good[i], &err) != 0)
            fail_msg("row %zu: %s", i, err.msg);
    }
}

static void edits_outside_spans_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *word;
    } bad[] = {
        {"One\n// [span 1]\ntwo\n// [end 1]\nfour\n// [span 2]\nfive\n// [end 2]\n", "\"one\""},
        {"one\nnew\n// [span 1]\ntwo\n// [end 1]\nfour\n// [span 2]\nfive\n// [end 2]\n",
         "\"new\""},
        {"one\n// [span 1]\ntwo\n// [end 1]\n// [span 2]\nfive\n// [end 2]\n", "\"four\""},
        {"one\n// [span 1]\ntwo\n// [end 1]\nfour\n// [span 2]\nfive\n// [end 2]\nmore\n",
         "is new"},
        {"one\n// [span 1]\ntwo\n// [end 1]\nfour\n", "is gone"},
        {"one\n// [span 1]\ntwo\n// [end 1]\nfour\n// [span 3]\nfive\n// [end 3]\n", "span 2"},
        {"one\ntwo\nthree\nfour\nfive\n", "span 1"},
        /* a span closed by another's end, and one more opened inside */
        {"one\n// [span 1]\ntwo\n// [end 2]\nfour\n// [span 2]\nfive\n// [end 2]\n", "end 1"},
        {"one\n// [span 1]\n// [span 1]\ntwo\n// [end 1]\nfour\n// [span 2]\n// [end 2]\n",
         "end 1"},
        {"", "is gone"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err err = {""};
        if (span_verify(marked, bad[i].text, &err) == 0 || !strstr(err.msg, bad[i].word))
            fail_msg("row %zu: \"%s\"", i, err.msg);
    }
}

static void a_reply_is_the_whole_text_or_spans_or_lines(void **state)
{
    (void)state;
    static const char after[] = "one\n// [span 1]\n2\n3\n// [end 1]\nfour\n// [span 2]\nfive\n"
                                "// [end 2]\n";
    static const char *const good[] = {
        after,
        "// [span 1]\n2\n3\n// [end 1]\n",
        "\n  // [span 1]\n2\n3\n// [end 1]\n\n// [span 2]\nfive\n// [end 2]\n",
        "// [lines 3 to 4]\n2\n3\n// [end]\n",
        "// [lines 3 to 3]\n2\n// [end]\n\n// [lines 4 to 4]\n3\n// [end]\n",
        "// [lines 3 to 4]\n2\n3\n// [end]\n// [lines 8 to 8]\nfive\n// [end]\n",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct err err = {""};
        char *out = span_apply(marked, good[i], &err);
        if (!out || strcmp(out, after) != 0)
            fail_msg("row %zu: %s: %s", i, err.msg, out ? out : "");
        free(out);
    }
    struct err err = {""};
    char *out = span_apply(marked, "// [lines 3 to 4]\n// [end]", &err); /* lines may go */
    assert_string_equal(out, "one\n// [span 1]\n// [end 1]\nfour\n// [span 2]\nfive\n// [end 2]\n");
    free(out);
}

static void a_reply_that_reaches_beyond_its_spans_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *reply, *word;
    } bad[] = {
        {"", "is gone"},
        {"two\n", "outside the spans"},
        {"// [span 3]\nx\n// [end 3]\n", "span 3 is not there"},
        {"// [span 2]\nx\n// [end 2]\n// [span 1]\nx\n// [end 1]\n", "span 1 is not there"},
        {"// [span 1]\nx\n// [end 1]\n// [span 1]\nx\n// [end 1]\n", "twice"},
        {"// [span 1]\nx\n", "no end"},
        {"// [span 1]\nx\n// [end 2]\n", "// [end 2] is out of place"},
        {"// [span 1]\n// [span 2]\nx\n// [end 1]\n", "out of place"},
        {"// [lines 1 to 1]\nx\n// [end]\n", "line 1 is outside the spans"},
        {"// [lines 2 to 2]\nx\n// [end]\n", "line 2 is outside"},
        {"// [lines 4 to 6]\nx\n// [end]\n", "line 5 is outside"},
        {"// [lines 8 to 900]\nx\n// [end]\n", "line 9 is outside"},
        {"// [lines 70 to 71]\nx\n// [end]\n", "line 10 is outside"},
        {"// [lines 0 to 3]\nx\n// [end]\n", "out of order"},
        {"// [lines 4 to 3]\nx\n// [end]\n", "out of order"},
        {"// [lines 4 to 4]\nx\n// [end]\n// [lines 3 to 3]\nx\n// [end]\n", "out of order"},
        {"// [lines 3 to 3]\nx\n", "no // [end]"},
        {"// [lines 3 to 3]\n// [end 1]\n// [end]\n", "a marker"},
        {"// [lines 3 to 3]\nx\n// [end]\nand more\n", "outside of edits: and more"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err err = {""};
        char *out = span_apply(marked, bad[i].reply, &err);
        if (out || !strstr(err.msg, bad[i].word))
            fail_msg("row %zu: \"%s\"", i, out ? out : err.msg);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(marks_are_put_around_spans_and_taken_away),
        cmocka_unit_test(spans_that_make_no_sense_are_refused),
        cmocka_unit_test(markers_have_one_spelling),
        cmocka_unit_test(edits_inside_spans_are_accepted),
        cmocka_unit_test(edits_outside_spans_are_refused),
        cmocka_unit_test(a_reply_is_the_whole_text_or_spans_or_lines),
        cmocka_unit_test(a_reply_that_reaches_beyond_its_spans_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
