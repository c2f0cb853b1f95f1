/* SPDX-License-Identifier: Apache-2.0 */
/* test_clients.c - who is one client, what rules say, and tokens a minute, on a clock of its own.
 */
#include "tests/unit/unit.h"

#include <arpa/inet.h>
#include <math.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/clock.h"
#include "server/clients.h"

static struct client_name address(const char *text)
{
    struct sockaddr_in four = {.sin_family = AF_INET};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    if (inet_pton(AF_INET, text, &four.sin_addr) == 1)
        return clients_address((struct sockaddr *)&four);
    assert_int_equal(inet_pton(AF_INET6, text, &six.sin6_addr), 1);
    return clients_address((struct sockaddr *)&six);
}

static struct client_name named(const char *name)
{
    struct client_name who = {.kind = CLIENT_NAMED};
    memcpy(who.bytes, name, strlen(name));
    return who;
}

static struct client *get(struct clients *all, const char *text)
{
    struct client_name who = address(text);
    return clients_get(all, &who);
}

/* ---- who ----------------------------------------------------------------------------------- */

static void clients_are_addresses_and_networks_of_64_bits(void **state)
{
    (void)state;
    struct clients *all = clients_open();
    struct client *four = get(all, "192.0.2.1"), *six = get(all, "2001:db8:0:1::1");
    assert_ptr_equal(get(all, "192.0.2.1"), four);
    assert_ptr_equal(get(all, "::ffff:192.0.2.1"), four);
    assert_ptr_not_equal(get(all, "192.0.2.2"), four);
    assert_ptr_equal(get(all, "2001:db8:0:1:ffff:ffff:ffff:ffff"), six);
    assert_ptr_not_equal(get(all, "2001:db8:0:2::1"), six);
    assert_ptr_not_equal(get(all, "c000:0201::"), four); /* the same first bytes */
    assert_int_equal(clients_remembered(all), 5);
    assert_int_not_equal(four->id, six->id);
    clients_close(all);
}

static void clients_that_are_idle_are_forgotten_in_the_end(void **state)
{
    (void)state;
    struct clients *all = clients_open();
    struct client *held = get(all, "192.0.2.1");
    uint64_t last = held->id;
    for (uint32_t i = 0; i < 3 * CLIENTS_IDLE; i++) {
        struct sockaddr_in four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(i)};
        struct client_name who = clients_address((struct sockaddr *)&four);
        struct client *c = clients_get(all, &who);
        assert_true(c->id > last); /* numbers are never used again: nobody inherits a cache */
        last = c->id;
        clients_release(all, c);
        assert_in_range(clients_remembered(all), 1, CLIENTS_IDLE + 1);
    }
    assert_ptr_equal(get(all, "192.0.2.1"), held);
    struct client *again = get(all, "0.0.0.0");
    assert_true(again->id > last);
    clients_close(all);
}

/* ---- rules --------------------------------------------------------------------------------- */

static void clients_have_what_the_rules_say(void **state)
{
    (void)state;
    struct client_rules r;
    struct err err = {""};
    unsigned char digest[SHA256_BYTES];
    sha256("sk-one", 6, digest); /* 0x1b...: any key */
    char list[400];
    snprintf(list, sizeof list,
             "* running=8 tokens_per_minute=600, acme running=2 waiting=3,"
             "sha256:%02X%02x%02x%02x%x waiting=0, b.c-d_e tokens_per_minute=any running=any",
             digest[0], digest[1], digest[2], digest[3], digest[4] >> 4);
    assert_int_equal(client_rules_read(&r, list, &err), 0);
    struct client_name acme = named("acme"), free_one = named("b.c-d_e"),
                       unknown = address("192.0.2.1"), key = {.kind = CLIENT_KEY};
    static const unsigned char other[SHA256_BYTES];
    memcpy(key.bytes, digest, sizeof digest);
    assert_int_equal(client_rules_add_key(&r, &acme, other, &err), 0);
    assert_int_equal(client_rules_add_key(&r, &free_one, other, &err), 0);
    assert_int_equal(client_rules_check(&r, &err), -1); /* nobody yet has the digest */
    assert_non_null(strstr(err.msg, "line 3"));
    digest[4] ^= 0x10; /* the ninth digit */
    assert_int_equal(client_rules_add_key(&r, &key, digest, &err), 0);
    assert_int_equal(client_rules_limits(&r, &key).requests.waiting, -1);
    digest[4] ^= 0x10;
    assert_int_equal(client_rules_add_key(&r, &key, digest, &err), 0);
    assert_int_equal(client_rules_check(&r, &err), 0);
    struct client_limits l = client_rules_limits(&r, &acme);
    assert_int_equal(l.requests.running, 2);
    assert_int_equal(l.requests.waiting, 3);
    assert_int_equal(l.tokens_per_minute, 600); /* of `*` */
    l = client_rules_limits(&r, &unknown);
    assert_int_equal(l.requests.running, 8);
    assert_int_equal(l.requests.waiting, -1);
    l = client_rules_limits(&r, &free_one);
    assert_int_equal(l.requests.running, 0);
    assert_int_equal(l.tokens_per_minute, 0);
    assert_int_equal(client_rules_limits(&r, &key).requests.waiting, 0);
    client_rules_free(&r);
    assert_int_equal(/* the least and the most that there may be */
                     client_rules_read(&r, "sha256:1234567f waiting=1000000 running=1000000", &err),
                     0);
    assert_int_equal(r.n, 1);
    client_rules_free(&r);
}

static void rules_that_are_not_understood_name_file_and_line(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "acme",
        "acme running",
        "acme running=",
        "acme running=0",
        "acme running=-1",
        "acme running=2x",
        "acme running=anyone",
        "acme running=1 running=2",
        "acme speed=3",
        "acme waiting=99999999999999999999",
        "tokens_per_minute=5",
        "sha256:12345 running=1",
        "sha256:1234567g running=1",
        "all running=1",
        "other running=1",
        "this-name-is-longer-than-any-name-can-be running=1",
        "sk/secret running=1",
        "/secret running=1",
        "sha256:1234567 running=1",
        "acme waiting=1000001",
        "ok running=2",
    };
    char path[] = "/tmp/whet-rules-XXXXXX";
    close(mkstemp(path));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        FILE *f = fopen(path, "w");
        fprintf(f, "# limits\n\n  ok running=1 # one\n%s\n", wrong[i]);
        fclose(f);
        struct client_rules r;
        struct err err = {""};
        assert_int_equal(client_rules_read(&r, path, &err), -1);
        assert_non_null(strstr(err.msg, path));
        assert_non_null(strstr(err.msg, "line 4"));
        assert_null(strstr(err.msg, "sk/secret"));
        assert_int_equal(r.n, 0);
    }
    struct client_rules r;
    struct err err = {""};
    assert_int_equal(client_rules_read(&r, "a running=1,b running", &err), -1);
    assert_non_null(strstr(err.msg, "server.key_limits line 2"));
    assert_int_equal(client_rules_read(&r, "/nonexistent/rules", &err), -1);
    assert_non_null(strstr(err.msg, "/nonexistent/rules"));
    unlink(path);
}

/* ---- tokens a minute ----------------------------------------------------------------------- */

static void set_rules(struct clients *all, const char *list)
{
    struct client_rules r;
    struct err err = {""};
    assert_int_equal(client_rules_read(&r, list, &err), 0);
    clients_set_rules(all, &r);
}

static void a_bucket_fills_up_with_time_and_holds_a_minute(void **state)
{
    (void)state;
    const int64_t s = 1000000000;
    struct clients *all = clients_open();
    set_rules(all, "* tokens_per_minute=600");
    struct client *c = get(all, "192.0.2.1");
    int64_t t = c->filled_ns;
    assert_true(client_wait_s(c, 600, t) == 0);
    assert_true(isinf(client_wait_s(c, 601, t)));
    client_charge(c, 600, t);
    assert_true(fabs(client_wait_s(c, 1, t) - 0.1) < 1e-9);
    assert_true(fabs(client_wait_s(c, 300, t) - 30) < 1e-9);
    assert_true(fabs(client_wait_s(c, 300, t + 20 * s) - 10) < 1e-6);
    client_charge(c, 500, t + 20 * s); /* an answer that went on: 300 in debt */
    assert_true(fabs(client_wait_s(c, 1, t + 20 * s) - 30.1) < 1e-6);
    client_charge(c, -500, t + 20 * s);
    assert_true(client_wait_s(c, 200, t + 20 * s) < 1e-6);
    assert_true(client_wait_s(c, 600, t + 4000 * s) == 0);
    client_charge(c, 600, t + 4000 * s); /* however long it was away */
    assert_true(client_wait_s(c, 1, t + 4000 * s) > 0);
    char lines[320];
    client_headers(c, t + 4030 * s, lines, sizeof lines);
    assert_string_equal(lines, "x-ratelimit-limit-tokens: 600\r\n"
                               "x-ratelimit-remaining-tokens: 300\r\n"
                               "x-ratelimit-reset-tokens: 30s\r\n");
    clients_close(all);
}

static void a_reload_keeps_what_was_used(void **state)
{
    (void)state;
    struct clients *all = clients_open();
    struct client *c = get(all, "192.0.2.1");
    assert_true(client_wait_s(c, 1000000, clock_ns()) == 0); /* no rules, no limits */
    set_rules(all, "* tokens_per_minute=600 running=3");
    int64_t t = clock_ns() + 1000000000;
    assert_int_equal(c->limits.requests.running, 3);
    assert_true(client_wait_s(c, 600, t) == 0);
    client_charge(c, 500, t);
    set_rules(all, "* tokens_per_minute=1200");
    assert_true(client_wait_s(c, 700, t) == 0);
    assert_true(client_wait_s(c, 701, t) > 0);
    set_rules(all, "");
    assert_true(client_wait_s(c, 1000000, t) == 0);
    clients_close(all);
}

static void a_lowered_limit_takes_no_more_than_the_share_that_was_used(void **state)
{
    (void)state;
    const int64_t s = 1000000000;
    struct clients *all = clients_open();
    set_rules(all, "* tokens_per_minute=100000");
    struct client *idle = get(all, "192.0.2.1"), *half = get(all, "192.0.2.2"),
                  *owing = get(all, "192.0.2.3");
    int64_t now = clock_ns();
    client_charge(idle, 4000, now - 100 * s);
    idle->filled_ns = now - 100 * s; /* it has been quiet for longer than a minute */
    client_charge(half, 50000, now);
    half->filled_ns = now + 3600 * s; /* so that the time this test takes fills nothing */
    client_charge(owing, 150000, now);
    owing->filled_ns = now + 3600 * s;
    set_rules(all, "* tokens_per_minute=1000");
    assert_true(client_wait_s(idle, 1000, now) == 0);
    assert_true(client_wait_s(half, 500, now) == 0);
    assert_true(fabs(client_wait_s(half, 1000, now) - 30) < 1e-6);
    assert_true(fabs(client_wait_s(owing, 1000, now) - 90) < 1e-6); /* as under the old limit */
    set_rules(all, "* tokens_per_minute=2000");
    assert_true(client_wait_s(half, 1500, now) == 0); /* 500 are used */
    clients_close(all);
}

/* ---- metrics ------------------------------------------------------------------------------- */

static char *metrics(const struct clients *all, bool names)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    clients_metrics(all, names, f);
    fclose(f);
    return text;
}

static void metrics_name_only_so_many_clients(void **state)
{
    (void)state;
    struct clients *all = clients_open();
    for (int i = 0; i < CLIENTS_NAMED + 40; i++) {
        char name[32];
        snprintf(name, sizeof name, "client-%d", i);
        struct client_name who = named(name);
        struct client *c = clients_get(all, &who);
        c->counts->requests++;
    }
    get(all, "192.0.2.1")->counts->requests++;
    char *text = metrics(all, true);
    int rows = 0;
    for (const char *p = text; (p = strstr(p, "\nwhet_client_requests_total{")); p++)
        rows++;
    assert_int_equal(rows, CLIENTS_NAMED + 1);
    assert_non_null(strstr(text, "whet_client_requests_total{client=\"client-0\"} 1\n"));
    assert_non_null(strstr(text, "whet_client_requests_total{client=\"other\"} 41\n"));
    free(text);
    text = metrics(all, false);
    assert_null(strstr(text, "client-0"));
    assert_non_null(strstr(text, "whet_client_requests_total{client=\"all\"} 169\n"));
    free(text);
    clients_close(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clients_are_addresses_and_networks_of_64_bits),
        cmocka_unit_test(clients_that_are_idle_are_forgotten_in_the_end),
        cmocka_unit_test(clients_have_what_the_rules_say),
        cmocka_unit_test(rules_that_are_not_understood_name_file_and_line),
        cmocka_unit_test(a_bucket_fills_up_with_time_and_holds_a_minute),
        cmocka_unit_test(a_reload_keeps_what_was_used),
        cmocka_unit_test(a_lowered_limit_takes_no_more_than_the_share_that_was_used),
        cmocka_unit_test(metrics_name_only_so_many_clients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
