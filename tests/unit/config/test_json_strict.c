/* SPDX-License-Identifier: Apache-2.0 */
/* test_json_strict.c - which escapes and numbers JSON has. */
#include "tests/unit/unit.h"

#include <stdio.h>
#include <string.h>

#include "config/json_strict.h"

static void escapes_have_the_lengths_that_json_gives_them(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t length;
    } rows[] = {
        {"\\n", 2},
        {"\\\"x", 2},
        {"\\/", 2},
        {"\\u00e9x", 6},
        {"\\u0000", 6},
        {"\\uAbCd", 6},
        {"\\ud83d\\ude00", 12},
        {"\\", 0},
        {"\\x41", 0},
        {"\\'", 0},
        {"\\U0041", 0},
        {"\\\xc3\xa9", 0},
        {"\\u", 0},
        {"\\u12", 0},
        {"\\u12\"}", 0},
        {"\\u00g1", 0},
        {"\\u+123", 0},
        {"\\u 123", 0},
        {"\\u@ABC", 0},
        {"\\ud83d", 0},
        {"\\ud83dx", 0},
        {"\\ud83d\\n", 0},
        {"\\ud83d\\u0041", 0},
        {"\\ud83d\\ud83d", 0},
        {"\\ude00", 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (json_escape_length(rows[i].text, strlen(rows[i].text)) != rows[i].length)
            fail_msg("%s: %zu", rows[i].text,
                     json_escape_length(rows[i].text, strlen(rows[i].text)));
    assert_int_equal(json_escape_length("\\0", 2), 0);
    assert_int_equal(json_escape_length("\\\0", 2), 0);
    assert_int_equal(json_escape_length("\\u0041", 5), 0); /* the text ends before the digits do */
}

static void the_first_bad_escape_of_a_text_is_found(void **state)
{
    (void)state;
    static const char good[] = "{\"a\\\\\":\"\\\\u00g1 \\u0041\\\"\\u\\ud83d\\ude00\"}";
    const char *bad = strstr(good, "\\u\\"), *text;
    assert_ptr_equal(json_bad_place(good, sizeof good - 1), bad);
    assert_null(json_bad_place(good, (size_t)(bad - good)));
    text = "{\"a\":\"x\\u0000y\"}";
    assert_ptr_equal(json_bad_place(text, strlen(text)), strchr(text, '\\'));
    text = "{\"k\\u00zz\":1}";
    assert_ptr_equal(json_bad_place(text, strlen(text)), strchr(text, '\\'));
    assert_non_null(json_bad_place("\"a\0b\"", 5));
    assert_null(json_bad_place("\"a\"\0b", 5));
    text = "\\u [\"a\"]"; /* outside strings the parser finds it */
    assert_null(json_bad_place(text, strlen(text)));
}

static void the_first_number_that_is_none_is_found(void **state)
{
    (void)state;
    static const char *const good[] = {"0",   "-0",        "10",   "1.50",
                                       "1e5", "-1.25E-07", "0e+1", "100.001"};
    static const char *const bad[] = {"01",  "-01",  "1.", "-.5", ".5",    "+1", "1e",
                                      "1e+", "1.e1", "-",  "1-2", "0.1.2", "00"};
    char text[64];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        snprintf(text, sizeof text, "{\"a 01 1.\\\" -.5\":[%s]}", good[i]);
        assert_null(json_bad_place(text, strlen(text)));
        assert_true(json_is_number(good[i], strlen(good[i])));
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(text, sizeof text, "{\"a\":[1,%s]}", bad[i]);
        assert_ptr_equal(json_bad_place(text, strlen(text)), text + 8);
        assert_null(json_strict_parse(text));
        assert_false(json_is_number(bad[i], strlen(bad[i])));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_number_that_is_none_is_found),
        cmocka_unit_test(escapes_have_the_lengths_that_json_gives_them),
        cmocka_unit_test(the_first_bad_escape_of_a_text_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
