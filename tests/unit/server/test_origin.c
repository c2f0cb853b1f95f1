/* SPDX-License-Identifier: Apache-2.0 */
/* test_origin.c - names and origins of requests, taken apart. */
#include "tests/unit/unit.h"

#include <string.h>

#include "server/origin.h"

static struct slice s(const char *text)
{
    return (struct slice){text, strlen(text)};
}

static void origin_cuts_ports_off_hosts(void **state)
{
    (void)state;
    static const char *const cases[][2] = {{"a.example:80", "a.example"},
                                           {"a", "a"},
                                           {"[::1]:80", "::1"},
                                           {"[fe80::2]", "fe80::2"},
                                           {"127.0.0.1:1", "127.0.0.1"},
                                           {":80", ""},
                                           {"", ""},
                                           {"[::1", ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct slice name = host_name(s(cases[i][0]));
        assert_int_equal(name.n, strlen(cases[i][1]));
        assert_memory_equal(name.p, cases[i][1], name.n);
    }
}

static void origin_knows_hosts(void **state)
{
    (void)state;
    static const struct {
        const char *name, *names;
        bool known;
    } cases[] = {
        {"localhost", "", true},
        {"LocalHost.", "", true},
        {"whet.localhost", NULL, true},
        {"notlocalhost", "", false},
        {"localhost.com", "", false},
        {"127.0.0.1", "", true},
        {"::1", "", true},
        {"203.0.113.9", "", true},
        {"2001:db8::1", "", true},
        {"1.2.3", "", false},
        {"0x7f.1", "", false}, /* who resolves this is not asked */
        {"2130706433", "", false},
        {"127.0.0.1.example", "", false},
        {"", "", false},
        {"", ",", false},
        {".", "", false},
        {"a.example", "a.example", true},
        {"A.example.", "b.example , a.example", true},
        {"a.example", "b.example,xa.example", false},
        {"a.exampl", "a.example", false},
        {"x.a.example", "a.example", false},
        {"any.thing", "*", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (host_is_known(s(cases[i].name), cases[i].names) != cases[i].known)
            fail_msg("%s with %s", cases[i].name, cases[i].names ? cases[i].names : "NULL");
}

static void origin_compares_pages_with_hosts(void **state)
{
    (void)state;
    static const struct {
        const char *origin, *host;
        bool same;
    } cases[] = {
        {"http://a:8080", "a:8080", true},
        {"https://A.example", "a.example", true},
        {"http://a", "a:80", true},
        {"https://a", "a:443", true},
        {"https://a", "a:80", false},
        {"http://a:8080", "a", false},
        {"http://a:8080", "a:8081", false},
        {"http://b", "a", false},
        {"null", "null", false},
        {"", "", false},
        {"file://", "", false},
        {"http://", "", false},
        {"ftp://a", "a", false},
        {"http://a/", "a", false},
        {"http://a.evil", "a", false},
        {"http://[::1]:1", "[::1]:1", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (origin_is_of_host(s(cases[i].origin), s(cases[i].host)) != cases[i].same)
            fail_msg("%s and %s", cases[i].origin, cases[i].host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(origin_cuts_ports_off_hosts),
        cmocka_unit_test(origin_knows_hosts),
        cmocka_unit_test(origin_compares_pages_with_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
