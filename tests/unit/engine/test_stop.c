/* SPDX-License-Identifier: Apache-2.0 */
/* test_stop.c - stop strings against the definition, read off the whole text. */
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>

#include "engine/stop.h"

/* Pushes `pieces` one by one; collects what comes out; returns the match or -1. */
static int32_t run(struct stop *s, const char *const *pieces, char *out)
{
    int32_t match = -1;
    *out = 0;
    for (; *pieces && match < 0; pieces++) {
        const char *text;
        size_t n;
        match = stop_push(s, *pieces, strlen(*pieces), &text, &n);
        strncat(out, text, n);
    }
    return match;
}

static void stop_cuts_at_a_string_that_spans_tokens(void **state)
{
    (void)state;
    char out[100];
    struct stop *s = stop_open((const char *const[]){"\n\nUser:"}, 1, false);
    int32_t m = run(s, (const char *const[]){"hello\n", "\nUs", "er", ": more", NULL}, out);
    assert_int_equal(m, 0);
    assert_string_equal(out, "hello");
    stop_close(s);
}

static void stop_gives_back_what_turned_out_not_to_match(void **state)
{
    (void)state;
    char out[100];
    size_t n;
    struct stop *s = stop_open((const char *const[]){"aab", "xyz"}, 2, false);
    assert_int_equal(run(s, (const char *const[]){"aa", "a", "a", NULL}, out), -1);
    assert_string_equal(out, "aa"); /* the last two may still begin "aab" */
    const char *held = stop_held(s, &n);
    assert_int_equal(n, 2);
    assert_memory_equal(held, "aa", 2);
    assert_int_equal(run(s, (const char *const[]){"c", "xy", NULL}, out), -1);
    assert_string_equal(out, "aac");
    stop_held(s, &n);
    assert_int_equal(n, 2);
    stop_close(s);
}

static void stop_prefers_the_first_to_end_then_the_longest(void **state)
{
    (void)state;
    char out[100];
    const char *const strings[] = {"b", "ab", "abc"};
    struct stop *s = stop_open(strings, 3, false);
    assert_int_equal(run(s, (const char *const[]){"xabc", NULL}, out), 1);
    assert_string_equal(out, "x");
    stop_close(s);
}

static void stop_keeps_the_string_in_the_text_when_asked(void **state)
{
    (void)state;
    char out[100];
    struct stop *s = stop_open((const char *const[]){"END"}, 1, true);
    assert_int_equal(run(s, (const char *const[]){"the E", "NDing", NULL}, out), 0);
    assert_string_equal(out, "the END");
    stop_close(s);
}

static void stop_holds_back_whole_characters_only(void **state)
{
    (void)state;
    char out[100];
    struct stop *s = stop_open((const char *const[]){"\xc3\xa9!"}, 1, false); /* "e-acute !" */
    run(s, (const char *const[]){"a\xc3\xa8", NULL}, out); /* "a e-grave": shares a first byte */
    assert_string_equal(out, "a\xc3\xa8");
    run(s, (const char *const[]){"\xc3\xa9", NULL}, out);
    assert_string_equal(out, "");
    stop_close(s);
}

/* ---- against the definition ---- */

/* First position where some string ends; the longest that ends there. */
static int32_t first_match(const char *text, char strings[][8], int count, size_t *start)
{
    for (size_t end = 1; end <= strlen(text); end++) {
        int32_t best = -1;
        for (int i = 0; i < count; i++) {
            size_t n = strlen(strings[i]);
            if (n <= end && !strncmp(text + end - n, strings[i], n) &&
                (best < 0 || n > strlen(strings[best])))
                best = i;
        }
        if (best >= 0) {
            *start = end - strlen(strings[best]);
            return best;
        }
    }
    return -1;
}

/* Bytes at the end of `text` that begin one of the strings. */
static size_t undecided(const char *text, char strings[][8], int count)
{
    size_t n = strlen(text);
    for (size_t hold = n; hold > 0; hold--)
        for (int i = 0; i < count; i++)
            if (hold < strlen(strings[i]) && !strncmp(text + n - hold, strings[i], hold))
                return hold;
    return 0;
}

static void stop_agrees_with_a_search_of_the_whole_text(void **state)
{
    (void)state;
    srand(5);
    int matched = 0;
    for (int round = 0; round < 20000; round++) {
        char strings[3][8] = {{0}}, text[41] = {0}, out[41] = {0}, expected[41] = {0};
        const char *pointer[3] = {strings[0], strings[1], strings[2]};
        int count = 1 + rand() % 3;
        for (int i = 0; i < count; i++)
            for (int j = 0, n = 2 + rand() % 5; j < n; j++)
                strings[i][j] = "ab"[rand() % 2];
        for (int j = 0, n = rand() % 40; j < n; j++)
            text[j] = "abc"[rand() % 3];
        struct stop *s = stop_open(pointer, count, false);
        int32_t match = -1;
        size_t at = 0, start = 0, held = 0, n;
        while (at < strlen(text) && match < 0) {
            size_t piece = 1 + (size_t)rand() % 4, left = strlen(text) - at;
            piece = piece < left ? piece : left;
            const char *given;
            match = stop_push(s, text + at, piece, &given, &n);
            strncat(out, given, n);
            at += piece;
            if (match < 0) { /* nothing is held back longer than it must be */
                char so_far[41] = {0};
                memcpy(so_far, text, at);
                stop_held(s, &held);
                assert_int_equal(held, undecided(so_far, strings, count));
            }
        }
        int32_t truth = first_match(text, strings, count, &start);
        if (truth < 0)
            start = strlen(text) - held;
        memcpy(expected, text, start);
        assert_string_equal(out, expected);
        assert_int_equal(match < 0, truth < 0);
        if (truth >= 0)
            assert_string_equal(stop_string(s, match), strings[truth]);
        matched += truth >= 0;
        stop_close(s);
    }
    assert_in_range(matched, 2000, 18000); /* both outcomes were exercised */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stop_cuts_at_a_string_that_spans_tokens),
        cmocka_unit_test(stop_gives_back_what_turned_out_not_to_match),
        cmocka_unit_test(stop_prefers_the_first_to_end_then_the_longest),
        cmocka_unit_test(stop_keeps_the_string_in_the_text_when_asked),
        cmocka_unit_test(stop_holds_back_whole_characters_only),
        cmocka_unit_test(stop_agrees_with_a_search_of_the_whole_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
