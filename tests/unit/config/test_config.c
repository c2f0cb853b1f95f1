/* SPDX-License-Identifier: Apache-2.0 */
/* test_config.c - the option parser: precedence, ranges, messages. */
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/config.h"

static int parse(struct config *c, struct err *e, int n, const char **arg)
{
    char *argv[16] = {(char *)"whet"};
    for (int i = 0; i < n; i++)
        argv[i + 1] = (char *)arg[i];
    return config_parse(c, n + 1, argv, e);
}

#define PARSE(c, e, ...)                                                \
    parse(c, e, sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *), \
          (const char *[]){__VA_ARGS__})

static char *write_file(const char *text)
{
    static char path[64];
    strcpy(path, "/tmp/whet-config-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    return path;
}

static void defaults_are_those_of_the_table(void **state)
{
    (void)state;
    struct config c;
    struct err e;
    assert_int_equal(PARSE(&c, &e, "--log-level", "info"), 0);
    assert_int_equal(c.server_port, 8080);
    assert_string_equal(c.server_host, "127.0.0.1");
    assert_true(c.specializer_enabled);
    config_free(&c);
}

static void flags_beat_environment_beats_file(void **state)
{
    (void)state;
    struct config c;
    struct err e;
    char *path = write_file("[server]\nport = 1\nmax_queue = 1\nidle_timeout = 1.5\n");
    setenv("WHET_SERVER_PORT", "2", 1);
    setenv("WHET_SERVER_MAX_QUEUE", "2", 1);
    assert_int_equal(PARSE(&c, &e, "--config", path, "--port", "3"), 0);
    assert_int_equal(c.server_port, 3);
    assert_int_equal(c.server_max_queue, 2);
    assert_true(c.server_idle_timeout == 1.5);
    unsetenv("WHET_SERVER_PORT");
    unsetenv("WHET_SERVER_MAX_QUEUE");
    config_free(&c);
    unlink(path);
}

static const char *prefix_cache(const char *flag, const char *value)
{
    static struct config c;
    static char is[32];
    struct err e = {""};
    const char *arg[] = {flag, value};
    config_free(&c);
    assert_int_equal(parse(&c, &e, value ? 2 : 1, arg), 0);
    snprintf(is, sizeof is, "%s", c.engine_prefix_cache);
    config_free(&c);
    return is;
}

static void an_enum_that_was_a_boolean_still_takes_what_it_took(void **state)
{
    (void)state;
    struct config c;
    struct err e;
    assert_string_equal(prefix_cache("--log-level", "info"), "salted");
    assert_string_equal(prefix_cache("--engine-prefix-cache", NULL), "salted");
    assert_string_equal(prefix_cache("--no-engine-prefix-cache", NULL), "off");
    assert_string_equal(prefix_cache("--engine-prefix-cache=true", NULL), "salted");
    assert_string_equal(prefix_cache("--engine-prefix-cache", "false"), "off");
    assert_string_equal(prefix_cache("--engine-prefix-cache", "no"), "off");
    assert_string_equal(prefix_cache("--engine-prefix-cache", "off"), "off");
    assert_string_equal(prefix_cache("--engine-prefix-cache", "shared"), "shared");
    assert_string_equal(prefix_cache("--engine-prefix-cache=salted", NULL), "salted");
    assert_int_equal(PARSE(&c, &e, "--engine-prefix-cache=maybe"), -1);
    assert_non_null(strstr(e.msg, "off|salted|shared"));
    config_free(&c);
    assert_int_equal(PARSE(&c, &e, "--specializer-agentic"), -1); /* never was one */
    config_free(&c);
}

static void booleans_may_stand_alone_or_be_negated(void **state)
{
    (void)state;
    struct config c;
    struct err e;
    assert_int_equal(PARSE(&c, &e, "--no-specializer-enabled", "--specializer-paused"), 0);
    assert_false(c.specializer_enabled);
    assert_true(c.specializer_paused);
    config_free(&c);
    assert_int_equal(PARSE(&c, &e, "--specializer-enabled=false", "--specializer-paused", "no"), 0);
    assert_false(c.specializer_enabled);
    assert_false(c.specializer_paused);
    config_free(&c);
}

static void every_refusal_names_the_option_and_the_value(void **state)
{
    (void)state;
    static const struct {
        const char *arg[2];
        const char *want[2];
    } bad[] = {
        {{"--port", "65536"}, {"server.port", "65536"}},
        {{"--port", "80x"}, {"server.port", "80x"}},
        {{"--server-idle-timeout", "nan"}, {"server.idle_timeout", "nan"}},
        {{"--specializer-numerics", "exact"}, {"specializer.numerics", "tolerance|bit_equal"}},
        {{"--specializer-enabled=maybe", NULL}, {"specializer.enabled", "maybe"}},
        {{"--no-such-option", "1"}, {"--no-such-option", "--help"}},
        {{"model.gguf", NULL}, {"model.gguf", "--"}},
        {{"--model", NULL}, {"--model", "value"}},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct config c;
        struct err e = {""};
        assert_int_equal(parse(&c, &e, bad[i].arg[1] ? 2 : 1, (const char **)bad[i].arg), -1);
        assert_non_null(strstr(e.msg, bad[i].want[0]));
        assert_non_null(strstr(e.msg, bad[i].want[1]));
        config_free(&c);
    }
}

static void help_names_flags_as_they_are_written(void **state)
{
    (void)state;
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    config_help(out);
    fclose(out);
    assert_non_null(strstr(text, "short for --engine-model-name\n"));
    for (const char *at = strstr(text, "--"); at; at = strstr(at + 2, "--"))
        assert_true(at[strcspn(at, "_ \n")] != '_');
    free(text);
}

static void a_damaged_file_is_refused_by_name(void **state)
{
    (void)state;
    static char long_line[1000];
    static const struct {
        const char *text, *want;
    } bad[] = {
        {"[server]\nprot = 1\n", "server.prot"},
        {"[server]\nport = x\n", "server.port"},
        {"[server\n", "line 1"},
        {"[server\nport = 8081\n", "line 1"}, /* what is wrong is the section, not the port */
        {"hello world\n", "line 1"},
        {"[server]\nprot = 1\nport = 8081\n", "server.prot"}, /* the first, not the last */
        {"[server]\n  port = y\n", "server.port"},
        {"[engine]\nmodel = m\n  threads = x\n", "engine.threads"}, /* no more of the model */
        {long_line, "line 2 is longer"},
    };
    memset(long_line, 'x', sizeof long_line - 1);
    memcpy(long_line, "[server]\ncors_origins = ", 24);

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct config c;
        struct err e = {""};
        char *path = write_file(bad[i].text);
        assert_int_equal(PARSE(&c, &e, "--config", path), -1);
        assert_non_null(strstr(e.msg, path));
        assert_non_null(strstr(e.msg, bad[i].want));
        config_free(&c);
        unlink(path);
    }
    struct config c;
    struct err e = {""};
    assert_int_equal(PARSE(&c, &e, "--config", "/no/such/file"), -1);
    assert_non_null(strstr(e.msg, "/no/such/file"));
    config_free(&c);
    assert_int_equal(PARSE(&c, &e, "--config", "/tmp"), -1); /* a folder is no empty file */
    assert_non_null(strstr(e.msg, "/tmp: cannot be read"));
    config_free(&c);
}

/* What config_parse() writes to the log, with one more variable. */
static const char *log_with(const char *variable, const char *value)
{
    static char said[4096];
    struct config c;
    struct err e;
    FILE *log = tmpfile();
    int old = dup(STDERR_FILENO);
    dup2(fileno(log), STDERR_FILENO);
    setenv(variable, value, 1);
    int rc = PARSE(&c, &e, "--port", "1");
    unsetenv(variable);
    dup2(old, STDERR_FILENO);
    close(old);
    rewind(log);
    said[fread(said, 1, sizeof said - 1, log)] = 0;
    fclose(log);
    assert_int_equal(rc, 0);
    config_free(&c);
    return said;
}

static void a_variable_that_is_no_option_of_its_section_is_warned_of(void **state)
{
    (void)state;
    static const char *const slips[] = {"WHET_SERVER_PROT", "WHET_ENGINE_KV-MIB", "WHET_LOG_",
                                        "WHET_SPECIALIZER_PORT"};
    static const char *const others[] = {"WHET_SERVER_IDLE_TIMEOUT", "WHET_CACHE", "WHET_SERVER",
                                         "WHET_SERVERS_PROT",        "WHET_",      "SERVER_PROT"};
    for (size_t i = 0; i < sizeof slips / sizeof *slips; i++) {
        const char *said = log_with(slips[i], "9000");
        assert_non_null(strstr(said, " warn "));
        assert_non_null(strstr(said, slips[i]));
        assert_null(strstr(said, "9000")); /* it may be a secret */
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_string_equal(log_with(others[i], "9"), "");
    char name[1024]; /* longer than any option */
    memset(name, 'X', sizeof name - 1);
    memcpy(name, "WHET_SERVER_", 12);
    name[sizeof name - 1] = 0;
    assert_non_null(strstr(log_with(name, "1"), "WHET_SERVER_XXX"));
}

/* What Kubernetes sets for a Service whet-server, and Docker for a link of that name. */
static void an_address_of_a_service_is_no_port(void **state)
{
    (void)state;
    static const char *const links[] = {"tcp://10.0.0.1:80", "udp://10.0.0.1:80",
                                        "sctp://10.0.0.1:80"};
    struct config c;
    struct err e;
    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        const char *said = log_with("WHET_SERVER_PORT", links[i]); /* which expects no error */
        assert_non_null(strstr(said, " warn "));
        assert_non_null(strstr(said, "WHET_SERVER_PORT"));
        assert_non_null(strstr(said, links[i]));
    }
    char *path = write_file("[server]\nport = 81\n");
    setenv("WHET_SERVER_PORT", links[0], 1);
    assert_int_equal(PARSE(&c, &e, "--config", path), 0);
    assert_int_equal(c.server_port, 81);
    config_free(&c);
    setenv("WHET_SERVER_PORT", "http://10.0.0.1:80", 1); /* nobody sets that for us */
    assert_int_equal(PARSE(&c, &e, "--config", path), -1);
    assert_non_null(strstr(e.msg, "WHET_SERVER_PORT"));
    config_free(&c);
    unsetenv("WHET_SERVER_PORT");
    setenv("WHET_SERVER_HOST", links[0], 1); /* no link has this name */
    assert_int_equal(PARSE(&c, &e, "--config", path), 0);
    assert_string_equal(c.server_host, links[0]);
    config_free(&c);
    unsetenv("WHET_SERVER_HOST");
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_those_of_the_table),
        cmocka_unit_test(flags_beat_environment_beats_file),
        cmocka_unit_test(an_enum_that_was_a_boolean_still_takes_what_it_took),
        cmocka_unit_test(booleans_may_stand_alone_or_be_negated),
        cmocka_unit_test(every_refusal_names_the_option_and_the_value),
        cmocka_unit_test(help_names_flags_as_they_are_written),
        cmocka_unit_test(a_damaged_file_is_refused_by_name),
        cmocka_unit_test(a_variable_that_is_no_option_of_its_section_is_warned_of),
        cmocka_unit_test(an_address_of_a_service_is_no_port),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
