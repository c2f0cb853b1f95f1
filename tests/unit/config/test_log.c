/* SPDX-License-Identifier: Apache-2.0 */
/* test_log.c - what is left of a message in its line. */
#include "tests/unit/unit.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "config/log.h"

/* The text of the line that a message makes. */
static const char *logged(const char *message)
{
    static char line[4096];
    int ends[2], stderr_was = dup(STDERR_FILENO);
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    log_info("here", "%s", message);
    dup2(stderr_was, STDERR_FILENO);
    close(stderr_was);
    close(ends[1]);
    ssize_t n = read(ends[0], line, sizeof line - 1);
    close(ends[0]);
    assert_true(n > 0 && line[n - 1] == '\n');
    line[n - 1] = 0;
    return strstr(line, "here: ") + strlen("here: ");
}

static void texts_of_any_language_stay(void **state)
{
    (void)state;
    static const char *const right[] = {"plain", "\xc3\xbc",
                                        "\xe2\x82\xac \xed\x9f\xbf \xee\x80\x80",
                                        "\xf0\x9f\x99\x82 \xf4\x8f\xbf\xbf", "\xc2\xa0"};
    for (size_t i = 0; i < sizeof right / sizeof *right; i++)
        assert_string_equal(logged(right[i]), right[i]);
}

static void what_steers_a_terminal_is_blank(void **state)
{
    (void)state;
    assert_string_equal(logged("a\nb\x1b[31mc\x7f"), "a b [31mc ");
    assert_string_equal(logged("a\xc2\x9b"
                               "31mb\xc2\x80\xc2\x9f"),
                        "a  31mb    "); /* C1 */
    assert_string_equal(logged("a\xe2\x80\xa8"
                               "b\xe2\x80\xa9"
                               "c"),
                        "a   b   c");                       /* U+2028, U+2029 */
    assert_string_equal(logged("a\xe2\x80\xaez"), "a   z"); /* right to left from here */
}

static void bytes_that_are_no_text_are_blank(void **state)
{
    (void)state;
    assert_string_equal(logged("/\xff\xfe"), "/  ");
    assert_string_equal(logged("\x9b"
                               "31m"),
                        " 31m");
    assert_string_equal(logged("\xc0\x8a|\xe0\x80\x8a|\xf0\x80\x80\x8a"),
                        "  |   |    "); /* too long a newline */
    assert_string_equal(logged("\xed\xa0\x80|\xf4\x90\x80\x80"), "   |    ");
    assert_string_equal(logged("\xc3"), " ");
    assert_string_equal(logged("\xe2\x82|"), "  |");
}

/* A line is bounded, and what is cut within a character is no character. */
static void a_long_message_ends_between_characters(void **state)
{
    (void)state;
    char text[3001];
    for (int i = 0; i < 3000; i += 3)
        memcpy(text + i, "\xe2\x82\xac", 3);
    text[3000] = 0;
    const char *got = logged(text);
    size_t whole = 0;
    while (memcmp(got + whole, "\xe2\x82\xac", 3) == 0)
        whole += 3;
    assert_true(whole > 1500);
    assert_int_equal(strspn(got + whole, " "), strlen(got + whole));
}

/* A reader that is stuck: SIGALRM ends the test where a line waits for it. */
static void nobody_waits_for_a_reader_of_the_log(void **state)
{
    (void)state;
    enum { LINES = 3000 };
    static char text[1 << 20];
    int ends[2], stderr_was = dup(STDERR_FILENO), written = 0, gaps = 0, missing = 0;
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    alarm(60);
    for (int i = 0; i < LINES; i++)
        log_info("here", "line %d of many that fill the pipe after some time", i);
    ssize_t n = read(ends[0], text, sizeof text - 1); /* it goes on */
    log_info("here", "the last one");
    dup2(stderr_was, STDERR_FILENO);
    alarm(0);
    close(stderr_was);
    close(ends[1]);
    assert_true(n > 0);
    ssize_t more = read(ends[0], text + n, sizeof text - 1 - (size_t)n);
    close(ends[0]);
    assert_true(more > 0);
    text[n + more] = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        const char *gap = strstr(line, " warn  log: ");
        written += strstr(line, "here: line ") != NULL;
        gaps += gap && sscanf(gap, " warn log: %d lines are missing here", &missing) == 1;
        assert_true(gap || strstr(line, "here: "));
    }
    assert_int_equal(gaps, 1);
    assert_true(written > 100 && missing > 100);
    assert_int_equal(written + missing, LINES); /* and what is missing is counted */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_of_any_language_stay),
        cmocka_unit_test(what_steers_a_terminal_is_blank),
        cmocka_unit_test(bytes_that_are_no_text_are_blank),
        cmocka_unit_test(a_long_message_ends_between_characters),
        cmocka_unit_test(nobody_waits_for_a_reader_of_the_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
