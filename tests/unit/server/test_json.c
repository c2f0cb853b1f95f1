/* SPDX-License-Identifier: Apache-2.0 */
/* test_json.c - checked JSON: caps, types, ranges, NUL characters, and writing. */
#include "tests/unit/unit.h"

#include <math.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/json.h"
#include "server/limits.h"

static cJSON *parse(const char *text, struct api_error *e)
{
    *e = (struct api_error){0};
    return json_parse(text, strlen(text), e);
}

static void json_refuses_what_is_not_an_object(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "   ",
        "{",
        "[]",
        "3",
        "\"x\"",
        "null",
        "{\"a\":1}x",
        "{}{}",
        "{\"a\":}",
        "{'a':1}",
        "{\"a\":1,}",
        "{\"a\" 1}",
        "{\"a\":\"\xff\"}",
        "{\"a\":\"\xed\xa0\x80\"}",
        "{\"a\":\"\xc0\x80\"}",
        "{\"a\":\"x\ny\"}",
        "{\"a\":\"\\ud800\"}",
        "{\"a\":\"\\x\"}",
        "{\"a\":\"abc\\u00g1 more\"}",
        "{\"a\":\"abc\\uZZZZ\"}",
        "{\"a\":\"abc\\u12\"}",
        "{\"a\":\"\\ude00\"}",
        "{\"a\":\"\\ud83d\\u0041\"}",
        "{\"a\\u00zz\":1}",
        "{\"a\":\"x}",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct api_error e;
        cJSON *j = parse(bad[i], &e);
        if (j)
            fail_msg("accepted: %s", bad[i]);
        assert_int_equal(e.status, 400);
        assert_true(strlen(e.message) > 10);
    }
    struct api_error e = {0};
    assert_null(json_parse("{}\0", 3, &e));
    assert_int_equal(e.status, 400);
    assert_null(parse("{\"a\":\"abc\\u00g1 more\"}", &e));
    assert_non_null(strstr(e.message, "malformed escape in a string at byte 9"));
}

/* What cJSON takes beyond JSON, and what it must go on taking. */
static void json_numbers_are_those_of_the_grammar(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool good;
    } rows[] = {
        {"0", true},         {"-0", true},    {"10", true},         {"-1.5", true},
        {"0.10", true},      {"1e5", true},   {"1E+05", true},      {"2.5e-3", true},
        {"0e0", true},       {"1e999", true}, {"1234567890", true}, {"01", false},
        {"-01", false},      {"00", false},   {"00.5", false},      {"1.", false},
        {"1.e5", false},     {".5", false},   {"-.5", false},       {"+1", false},
        {"1e", false},       {"1e+", false},  {"1E-", false},       {"-", false},
        {"--1", false},      {"1-1", false},  {"1.2.3", false},     {"1e5.0", false},
        {"1e5e5", false},    {"NaN", false},  {"Infinity", false},  {"-Infinity", false},
        {"nan", false},      {"inf", false},  {"-inf", false},      {"0x10", false},
        {"1_000", false},    {"1,5", false},  {"1f", false},        {"\u0661", false},
        {"\xd9\xa1", false},
    };
    static const char *const around[] = {"{\"a\":%s}", "{\"a\":[0, %s ,0]}"};
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows) * 2; i++) {
        if (i % 2 && strchr(rows[i / 2].text, ','))
            continue; /* two elements of a list */
        char text[64];
        struct api_error e;
        snprintf(text, sizeof text, around[i % 2], rows[i / 2].text);
        cJSON *j = parse(text, &e);
        if (rows[i / 2].good != (j != NULL))
            fail_msg("%s: %s", j ? "accepted" : "refused", text);
        assert_int_equal(e.status, j ? 0 : 400);
        cJSON_Delete(j);
    }
    struct api_error e;
    assert_null(parse("{\"ab\": 01}", &e));
    assert_non_null(strstr(e.message, "malformed number at byte 7"));
}

/* Every text of up to five of these characters, against the grammar as a regular expression. */
static void json_takes_no_other_short_number(void **state)
{
    (void)state;
    static const char characters[] = "01-+.e";
    regex_t grammar;
    assert_int_equal(regcomp(&grammar, "^-?(0|[1-9][0-9]*)(\\.[0-9]+)?(e[-+]?[0-9]+)?$",
                             REG_EXTENDED | REG_NOSUB),
                     0);
    int good = 0;
    for (int n = 1, all = 6; n <= 5; n++, all *= 6)
        for (int i = 0; i < all; i++) {
            char number[8] = "", text[32];
            for (int k = 0, rest = i; k < n; k++, rest /= 6)
                number[k] = characters[rest % 6];
            snprintf(text, sizeof text, "{\"a\":%s}", number);
            struct api_error e;
            cJSON *j = parse(text, &e);
            if ((regexec(&grammar, number, 0, NULL, 0) == 0) != (j != NULL))
                fail_msg("%s: %s", j ? "accepted" : "refused", text);
            good += j != NULL;
            cJSON_Delete(j);
        }
    assert_true(good > 100);
    regfree(&grammar);
}

static void json_caps_depth_and_elements(void **state)
{
    (void)state;
    struct api_error e;
    struct buf b = {0};
    buf_str(&b, "{\"a\":");
    for (int i = 0; i < 100000; i++)
        buf_char(&b, '[');
    assert_null((e = (struct api_error){0}, json_parse(b.p, b.n, &e)));
    assert_non_null(strstr(e.message, "nested"));
    buf_clear(&b);
    buf_str(&b, "{\"a\":[0");
    for (int i = 0; i < JSON_ELEMENTS_MAX; i++)
        buf_str(&b, ",0");
    buf_str(&b, "]}");
    assert_null((e = (struct api_error){0}, json_parse(b.p, b.n, &e)));
    assert_non_null(strstr(e.message, "elements"));
    buf_free(&b);
    /* Brackets and commas in strings do not count. */
    cJSON *j = parse("{\"a\":\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\\"[[\"}", &e);
    assert_non_null(j);
    cJSON_Delete(j);
}

static void json_keeps_nul_characters(void **state)
{
    (void)state;
    struct api_error e;
    size_t n;
    cJSON *j = parse("{\"a\":\"x\\u0000y\",\"b\":\"\\\\u0000\"}", &e);
    assert_non_null(j);
    char *a = json_bytes(json_get(j, "a"), &n);
    assert_int_equal(n, 3);
    assert_memory_equal(a, "x\0y", 3);
    char *b = json_bytes(json_get(j, "b"), &n);
    assert_int_equal(n, 6);
    assert_memory_equal(b, "\\u0000", 6);
    const char *s;
    assert_int_equal(json_string(j, "a", &s, &e), -1);
    assert_string_equal(e.param, "a");
    free(a);
    free(b);
    cJSON_Delete(j);
}

static void json_getters_name_the_member(void **state)
{
    (void)state;
    struct api_error e;
    cJSON *j = parse("{\"n\":2.5,\"t\":\"x\",\"big\":1e300,\"huge\":1e999,\"nil\":null,\"ok\":7.0,"
                     "\"Case\":1}",
                     &e);
    assert_non_null(j);
    int64_t i = 11;
    double d = 11;
    bool b = true;
    const char *s = "unchanged";
    assert_int_equal(json_int(j, "nil", 0, 10, &i, &e), 0);
    assert_int_equal(json_int(j, "absent", 0, 10, &i, &e), 0);
    assert_int_equal(json_int(j, "case", 0, 10, &i, &e), 0);
    assert_int_equal(i, 11);
    assert_int_equal(json_int(j, "ok", 0, 10, &i, &e), 1);
    assert_int_equal(i, 7);
    assert_int_equal(json_int(j, "n", 0, 10, &i, &e), -1);
    assert_string_equal(e.param, "n");
    assert_int_equal(json_int(j, "big", 0, 10, &i, &e), -1);
    assert_int_equal(json_int(j, "ok", 8, 10, &i, &e), -1);
    assert_non_null(strstr(e.message, "7"));
    assert_int_equal(json_number(j, "t", 0, 1, &d, &e), -1);
    assert_int_equal(json_number(j, "huge", -1e308, 1e308, &d, &e), -1);
    assert_int_equal(json_bool(j, "ok", &b, &e), -1);
    assert_string_equal(e.param, "ok");
    assert_int_equal(json_string(j, "ok", &s, &e), -1);
    assert_int_equal(json_string(j, "nil", &s, &e), 0);
    assert_string_equal(s, "unchanged");
    cJSON_Delete(j);
}

static void json_writes_strings_that_parse_back(void **state)
{
    (void)state;
    char all[400];
    size_t n = 0;
    for (int c = 0; c < 256; c++)
        all[n++] = (char)c;
    n += (size_t)sprintf(all + n, "é €\xf0\x9f\x98\x80");
    struct buf b = {0};
    buf_str(&b, "{\"s\":");
    json_put_string(&b, all, n);
    buf_str(&b, "}");
    struct api_error e = {0};
    cJSON *j = json_parse(b.p, b.n, &e);
    assert_non_null(j);
    size_t got;
    char *s = json_bytes(json_get(j, "s"), &got);
    assert_memory_equal(s, all, 128);
    /* 128 bytes that are no UTF-8 became U+FFFD each; the valid rest is unchanged. */
    assert_int_equal(got, 128 + 128 * 3 + (n - 256));
    assert_memory_equal(s + 128 + 128 * 3, all + 256, n - 256);
    free(s);
    cJSON_Delete(j);
    buf_free(&b);
}

static void json_writes_no_infinities(void **state)
{
    (void)state;
    struct buf b = {0};
    json_put_number(&b, 0.25, "x");
    json_put_number(&b, INFINITY, " i ");
    json_put_number(&b, NAN, "n");
    buf_char(&b, '\0');
    assert_string_equal(b.p, "0.25 i n");
    buf_free(&b);
}

static void json_made_elsewhere_becomes_utf8(void **state)
{
    (void)state;
    static const struct {
        const char *made, *put;
    } all[] = {
        {"", ""},
        {"{\"a\":\"\xc3\xa9\"}", "{\"a\":\"\xc3\xa9\"}"},
        {"[\"\xff\xfe caf\xc3\"]", "[\"\xef\xbf\xbd\xef\xbf\xbd caf\xef\xbf\xbd\"]"},
        {"\"\xf0\x9f\x98", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* cut by a bound */
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct buf b = {0};
        json_put_made(&b, all[i].made);
        buf_char(&b, 0);
        assert_string_equal(b.p, all[i].put);
        buf_free(&b);
    }
}

static void json_knows_utf8(void **state)
{
    (void)state;
    assert_int_equal(utf8_sequence("a", 1), 1);
    assert_int_equal(utf8_sequence("\xc3\xa9", 2), 2);
    assert_int_equal(utf8_sequence("\xe2\x82\xac", 3), 3);
    assert_int_equal(utf8_sequence("\xf0\x9f\x98\x80", 4), 4);
    assert_int_equal(utf8_sequence("\xf0\x9f\x98\x80", 3), 0);
    assert_int_equal(utf8_sequence("\xc1\x80", 2), 0);         /* over-long */
    assert_int_equal(utf8_sequence("\xe0\x9f\xbf", 3), 0);     /* over-long */
    assert_int_equal(utf8_sequence("\xed\xa0\x80", 3), 0);     /* surrogate */
    assert_int_equal(utf8_sequence("\xf4\x90\x80\x80", 4), 0); /* above U+10FFFF */
    assert_int_equal(utf8_sequence("\x80", 1), 0);
    assert_int_equal(utf8_sequence("", 0), 0);
}

static void error_has_the_shape_that_sdks_read(void **state)
{
    (void)state;
    struct api_error e;
    struct buf b = {0};
    assert_int_equal(api_error_set(&e, 400, "top_p", "`%s` \"quoted\"", "top_p"), -1);
    api_error_json(&b, &e);
    struct api_error parse_error = {0};
    cJSON *j = json_parse(b.p, b.n, &parse_error);
    const cJSON *error = json_get(j, "error");
    assert_string_equal(json_get(error, "message")->valuestring, "`top_p` \"quoted\"");
    assert_string_equal(json_get(error, "type")->valuestring, "invalid_request_error");
    assert_string_equal(json_get(error, "param")->valuestring, "top_p");
    assert_non_null(cJSON_GetObjectItemCaseSensitive(error, "code"));
    cJSON_Delete(j);
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_refuses_what_is_not_an_object),
        cmocka_unit_test(json_numbers_are_those_of_the_grammar),
        cmocka_unit_test(json_takes_no_other_short_number),
        cmocka_unit_test(json_caps_depth_and_elements),
        cmocka_unit_test(json_keeps_nul_characters),
        cmocka_unit_test(json_getters_name_the_member),
        cmocka_unit_test(json_writes_strings_that_parse_back),
        cmocka_unit_test(json_writes_no_infinities),
        cmocka_unit_test(json_made_elsewhere_becomes_utf8),
        cmocka_unit_test(json_knows_utf8),
        cmocka_unit_test(error_has_the_shape_that_sdks_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
