/* SPDX-License-Identifier: Apache-2.0 */
/* test_key_file.c - who is warned of a key that others may read, and what the warning names. */
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/key_file.h"
#include "config/log.h"

static char path[] = "/tmp/whet-key-XXXXXX";

/* What key_file_warn() writes to the log of a file of this mode; "" if it does not warn. */
static const char *warning(mode_t mode)
{
    static char text[600];
    int fd[2], old = dup(STDERR_FILENO);
    assert_int_equal(chmod(path, mode), 0);
    assert_int_equal(pipe(fd), 0);
    dup2(fd[1], STDERR_FILENO);
    bool warned = key_file_warn("adviser.key_file", path);
    dup2(old, STDERR_FILENO);
    close(fd[1]);
    close(old);
    ssize_t n = read(fd[0], text, sizeof text - 1);
    close(fd[0]);
    text[n > 0 ? n : 0] = 0;
    assert_int_equal(warned, text[0] != 0);
    return text;
}

static void key_that_others_may_read_is_named_with_its_mode(void **state)
{
    (void)state;
    static const struct {
        mode_t mode;
        const char *text;
    } open[] = {{0644, "(mode 0644)"}, {0604, "(mode 0604)"}, {0640, "(mode 0640)"}};
    for (size_t i = 0; i < sizeof open / sizeof *open; i++) {
        const char *text = warning(open[i].mode);
        assert_non_null(strstr(text, " warn "));
        assert_non_null(strstr(text, "adviser.key_file"));
        assert_non_null(strstr(text, path));
        assert_non_null(strstr(text, open[i].text));
    }
}

static void key_of_its_owner_alone_is_no_reason(void **state)
{
    (void)state;
    static const mode_t closed[] = {0600, 0400, 0700, 0622};
    for (size_t i = 0; i < sizeof closed / sizeof *closed; i++)
        assert_string_equal(warning(closed[i]), "");
}

static void no_file_is_no_reason(void **state)
{
    (void)state;
    assert_false(key_file_warn("adviser.key_file", ""));
    assert_false(key_file_warn("adviser.key_file", "/nonexistent/key"));
}

static int make(void **state)
{
    (void)state;
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int drop(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    log_set_level(LOG_WARN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(key_that_others_may_read_is_named_with_its_mode),
        cmocka_unit_test(key_of_its_owner_alone_is_no_reason),
        cmocka_unit_test(no_file_is_no_reason),
    };
    return cmocka_run_group_tests(tests, make, drop);
}
