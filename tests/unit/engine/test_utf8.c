/* SPDX-License-Identifier: Apache-2.0 */
/* Expected values: what Python decodes 600 random byte strings to (tests/golden/tokenizer). */
#include "engine/utf8.h"

#include "engine/tokenizer.h"
#include "tests/unit/engine/tokens.h"

/* Calls check(bytes, n, expected, m) for every line of lossy.txt. */
static void each_line(void (*check)(const char *, size_t, const char *, size_t))
{
    struct lines l = lines_read("lossy.txt");
    assert_int_equal(l.n, 600);
    for (size_t i = 0; i < l.n; i++) {
        char *tab = strchr(l.line[i], '\t');
        assert_non_null(tab);
        *tab = 0;
        size_t m = unescape(tab + 1);
        size_t n = unescape(l.line[i]);
        check(l.line[i], n, tab + 1, m);
    }
    lines_free(&l);
}

static void check_lossy(const char *bytes, size_t n, const char *expected, size_t m)
{
    size_t length;
    char *out = utf8_lossy(bytes, n, &length);
    assert_int_equal(length, m);
    assert_memory_equal(out, expected, m);
    assert_int_equal(utf8_valid(bytes, n), n == m && memcmp(bytes, expected, n) == 0);
    assert_true(utf8_valid(out, length));
    free(out);
}

static void lossy_replaces_as_python_does(void **state)
{
    (void)state;
    each_line(check_lossy);
}

/* All ways to push the bytes in two pieces, and one byte at a time. */
static void check_stream(const char *bytes, size_t n, const char *expected, size_t m)
{
    char out[512];
    for (size_t cut = 0; cut <= n + 1; cut++) {
        struct utf8_stream s = {.n = 0};
        size_t got = 0;
        if (cut <= n) {
            got = utf8_stream_push(&s, bytes, cut, false, out);
            got += utf8_stream_push(&s, bytes + cut, n - cut, true, out + got);
        } else {
            for (size_t i = 0; i < n; i++) {
                got += utf8_stream_push(&s, bytes + i, 1, false, out + got);
                assert_true(utf8_valid(out, got));
            }
            got += utf8_stream_push(&s, "", 0, true, out + got);
        }
        assert_int_equal(got, m);
        assert_memory_equal(out, expected, m);
        assert_int_equal(s.n, 0);
    }
}

static void stream_gives_the_same_text_however_it_is_cut(void **state)
{
    (void)state;
    each_line(check_stream);
}

static void stream_holds_an_unfinished_character_back(void **state)
{
    (void)state;
    struct utf8_stream s = {.n = 0};
    char out[32];
    assert_int_equal(utf8_stream_push(&s, "a\xF0\x9F", 3, false, out), 1);
    assert_int_equal(utf8_stream_push(&s, "\x99", 1, false, out), 0);
    assert_int_equal(utf8_stream_push(&s, "\x82", 1, false, out), 4);
    assert_memory_equal(out, "\xF0\x9F\x99\x82", 4);
}

static void stream_fits_the_room_its_header_promises(void **state)
{
    (void)state;
    char bytes[64], *out = xmalloc(3 * sizeof bytes + 16); /* heap: a sanitizer sees past it */
    memset(bytes, 0xFF, sizeof bytes);
    struct utf8_stream s = {.held = {0xF0, 0x9F, 0x99}, .n = 3};
    size_t got = utf8_stream_push(&s, bytes, sizeof bytes, true, out);
    assert_int_equal(got, 3 * (sizeof bytes + 1));
    free(out);
}

static void every_scalar_value_survives_encoding_and_decoding(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        char s[4];
        uint32_t back = 0;
        int n = utf8_encode(cp, s), got = utf8_decode(s, (size_t)n, &back);
        if (cp >= 0xD800 && cp < 0xE000) {
            assert_true(got < 0); /* surrogates are no characters */
            continue;
        }
        assert_int_equal(got, n);
        assert_int_equal(back, cp);
        assert_int_equal(n == 1 ? 0 : utf8_decode(s, (size_t)n - 1, &back), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lossy_replaces_as_python_does),
        cmocka_unit_test(stream_gives_the_same_text_however_it_is_cut),
        cmocka_unit_test(stream_holds_an_unfinished_character_back),
        cmocka_unit_test(stream_fits_the_room_its_header_promises),
        cmocka_unit_test(every_scalar_value_survives_encoding_and_decoding),
    };
    return cmocka_run_group_tests_name("engine/utf8", tests, NULL, NULL);
}
