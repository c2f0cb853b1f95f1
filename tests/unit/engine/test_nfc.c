/* SPDX-License-Identifier: Apache-2.0 */
/* Expected forms: Hugging Face's NFC (scripts/make-golden-tokenizer), and libutf8proc's own way
 * through short texts, where its time does not matter. */
#include "engine/nfc.h"

#include <utf8proc.h>

#include "engine/utf8.h"
#include "tests/unit/engine/tokens.h"

static void expect_form(const char *text, size_t n, const char *want, size_t want_n)
{
    struct encode_control control = {0};
    char *nfc;
    size_t length = 0;
    assert_int_equal(nfc_normalize(text, n, &nfc, &length, &control, NULL), 0);
    assert_int_equal(nfc ? length : n, want_n);
    assert_memory_equal(nfc ? nfc : text, want, want_n);
    free(nfc);
}

static void marks_stand_as_in_hugging_face(void **state)
{
    (void)state;
    struct lines l = lines_read("nfc.txt");
    assert_true(l.n >= 1000);
    for (size_t i = 0; i < l.n; i++) {
        char *want = strchr(l.line[i], '\t');
        assert_non_null(want);
        *want++ = 0;
        size_t n = unescape(l.line[i]), m = unescape(want);
        expect_form(l.line[i], n, want, m);
    }
    lines_free(&l);
}

/* Characters that move, join, fall apart or separate: marks of many classes, starters that compose,
 * that are swallowed or decompose into marks, syllables and their parts. */
static const uint32_t palette[] = {
    0x61,    0x20,    0xE9,    0x1EAD,  0x0300,  0x0301,  0x0323,  0x0327,  0x0328, 0x0334,
    0x0338,  0x0340,  0x0344,  0x0345,  0x035C,  0x0360,  0x05B0,  0x05BC,  0x0653, 0x0627,
    0x093C,  0x0915,  0x0958,  0x09C7,  0x09BE,  0x0B47,  0x0B56,  0x0F71,  0x0F73, 0x0F74,
    0x0F81,  0x1100,  0x1161,  0x11A8,  0xAC00,  0xAC01,  0x11C2,  0x3099,  0x304B, 0x302A,
    0x2126,  0x212B,  0x0340,  0x1D157, 0x1D165, 0x1D15E, 0x1D16E, 0xFB1D,  0x2ADC, 0x200D,
    0x1F468, 0x110BA, 0x11099, 0x110A5, 0x11131, 0x11127, 0x6F22,  0x2F800, 0xF900, 0x0041,
};

static uint32_t draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void short_texts_are_as_the_library_has_them(void **state)
{
    (void)state;
    uint32_t r = 7;
    for (int i = 0; i < 60000; i++) {
        char text[4 * 96];
        size_t n = 0, characters = i % 8 ? 1 + draw(&r) % 8 : 33 + draw(&r) % 63;
        uint32_t few = 2 + draw(&r) % (sizeof palette / sizeof *palette - 2);
        uint32_t first = draw(&r);
        for (size_t k = 0; k < characters; k++)
            n += (size_t)utf8_encode(
                palette[(first + draw(&r) % few) % (sizeof palette / sizeof *palette)], text + n);
        utf8proc_uint8_t *want;
        utf8proc_ssize_t length = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n,
                                               &want, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        assert_true(length >= 0);
        expect_form(text, n, (const char *)want, (size_t)length);
        free(want);
    }
}

/* Long enough to be composed in pieces: everything that a piece could be cut off from. */
static void long_texts_are_as_the_library_has_them(void **state)
{
    (void)state;
    static const uint32_t letters[] = {0x304B, 0x3099, 0x30C8, 0x309A,  0x6F22, 0xAC00, 0x11A8,
                                       0x1100, 0x1161, 0x0301, 0x1F468, 0x200D, 0x302A, 0x0323};
    enum { CHARACTERS = 60000 };
    char *text = xmalloc(4 * CHARACTERS);
    size_t n = 0;
    uint32_t r = 3;
    for (int k = 0; k < CHARACTERS; k++)
        n += (size_t)utf8_encode(letters[draw(&r) % (sizeof letters / sizeof *letters)], text + n);
    utf8proc_uint8_t *want;
    utf8proc_ssize_t length = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n,
                                           &want, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    assert_true(length >= 0);
    expect_form(text, n, (const char *)want, (size_t)length);
    free(want);
    free(text);
}

/* n marks in the worst order behind a letter; returns what was counted. */
static int64_t work_of_marks(size_t n)
{
    static const char *const worst[] = {"\xCC\x81", "\xCC\xA3", "\xCC\xA8", "\xCC\xB4"};
    struct encode_control control = {0};
    char *text = xmalloc(2 * n + 1), *nfc;
    size_t length;
    text[0] = 'x';
    for (size_t i = 0; i < n; i++)
        memcpy(text + 1 + 2 * i, worst[4 * i / n], 2);
    assert_int_equal(nfc_normalize(text, 2 * n + 1, &nfc, &length, &control, NULL), 0);
    assert_int_equal(length, 2 * n + 1);
    assert_memory_equal(nfc + 1, worst[3], 2);
    assert_memory_equal(nfc + length - 2, worst[0], 2);
    free(nfc);
    free(text);
    return control.work;
}

/* libutf8proc alone would take a day for the last of these. */
static void marks_are_ordered_in_linear_work(void **state)
{
    (void)state;
    int64_t small = work_of_marks(1 << 16), large = work_of_marks(1 << 18);
    assert_true(small >= 1 << 16);
    assert_true(large <= 4 * small + 4096);
    assert_true(work_of_marks(4 << 20) <= (int64_t)8 * (4 << 20));
}

static void a_run_of_marks_can_be_cancelled(void **state)
{
    (void)state;
    atomic_bool cancel = true;
    struct encode_control control = {.cancel = &cancel};
    struct err err = {""};
    size_t n = 1 << 20, length = 0;
    char *text = xmalloc(n), *nfc;
    for (size_t i = 0; i < n; i += 2)
        memcpy(text + i, i % 4 ? "\xCC\x81" : "\xCC\xA3", 2);
    assert_int_equal(nfc_normalize(text, n, &nfc, &length, &control, &err), -1);
    assert_null(nfc);
    assert_true(control.cancelled);
    assert_non_null(strstr(err.msg, "cancelled"));
    assert_true(control.work < 10000);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(marks_stand_as_in_hugging_face),
        cmocka_unit_test(short_texts_are_as_the_library_has_them),
        cmocka_unit_test(long_texts_are_as_the_library_has_them),
        cmocka_unit_test(marks_are_ordered_in_linear_work),
        cmocka_unit_test(a_run_of_marks_can_be_cancelled),
    };
    return cmocka_run_group_tests_name("engine/nfc", tests, NULL, NULL);
}
