/* SPDX-License-Identifier: Apache-2.0 */
/* test_auth.c - keys, the admin key, reload, CORS origins. */
#include "tests/unit/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "config/sha256.h"
#include "server/auth.h"

static char user_file[] = "/tmp/whet-auth-user-XXXXXX";
static char admin_file[] = "/tmp/whet-auth-admin-XXXXXX";

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int make_files(void **state)
{
    (void)state;
    close(mkstemp(user_file));
    close(mkstemp(admin_file));
    return 0;
}

static int remove_files(void **state)
{
    (void)state;
    unlink(user_file);
    unlink(admin_file);
    return 0;
}

/* A request with this Authorization header (NULL: none). */
static int check(const struct auth *a, const char *authorization, enum access access)
{
    static struct http_request req;
    memset(&req, 0, sizeof(req));
    if (authorization) {
        req.headers = 1;
        req.header[0].name = (struct slice){"Authorization", 13};
        req.header[0].value = (struct slice){authorization, strlen(authorization)};
    }
    return auth_check(a, &req, access, false);
}

static void auth_needs_no_key_without_keys(void **state)
{
    (void)state;
    struct auth a = {0};
    assert_int_equal(check(&a, NULL, ACCESS_USER), 0);
    assert_int_equal(check(&a, NULL, ACCESS_OPEN), 0);
    assert_int_equal(check(&a, NULL, ACCESS_METRICS), 0);
    assert_int_equal(check(&a, "Bearer x", ACCESS_ADMIN), 403);
}

static void auth_checks_keys(void **state)
{
    (void)state;
    struct auth a = {0};
    struct config c = {.server_api_keys = user_file, .server_admin_key_file = admin_file};
    struct err err;
    char longest[KEY_BYTES_MAX + 1], header[KEY_BYTES_MAX + 32], keys[KEY_BYTES_MAX + 64];
    memset(longest, 'k', KEY_BYTES_MAX);
    longest[KEY_BYTES_MAX] = '\0';
    snprintf(keys, sizeof(keys), "# comment\nsk-one\n\n  sk-two  \r\n%s\n", longest);
    write_file(user_file, keys);
    write_file(admin_file, "boss");
    assert_int_equal(auth_load(&a, &c, &err), 0);
    assert_int_equal(a.user.n, 3);
    assert_int_equal(check(&a, "Bearer sk-one", ACCESS_USER), 0);
    assert_int_equal(check(&a, "bearer  sk-two", ACCESS_USER), 0);
    snprintf(header, sizeof(header), "Bearer %s", longest);
    assert_int_equal(check(&a, header, ACCESS_USER), 0);
    strcat(header, "k"); /* the same 256 bytes and one more */
    assert_int_equal(check(&a, header, ACCESS_USER), 401);
    static const char *const wrong[] = {NULL,           "",           "Bearer",
                                        "Bearer ",      "Bearer sk-", "Bearer sk-one1",
                                        "Basic sk-one", "sk-one",     "Bearer # comment"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        assert_int_equal(check(&a, wrong[i], ACCESS_USER), 401);
        assert_int_equal(check(&a, wrong[i], ACCESS_METRICS), 401);
        assert_int_equal(check(&a, wrong[i], ACCESS_ADMIN), 401);
        assert_int_equal(check(&a, wrong[i], ACCESS_OPEN), 0);
    }
    assert_int_equal(check(&a, "Bearer sk-one", ACCESS_ADMIN), 403);
    assert_int_equal(check(&a, "Bearer boss", ACCESS_ADMIN), 0);
    assert_int_equal(check(&a, "Bearer boss", ACCESS_USER), 0);
    auth_free(&a);
}

static void auth_keeps_old_keys_when_a_reload_fails(void **state)
{
    (void)state;
    struct auth a = {0};
    struct config c = {.server_api_keys = user_file};
    struct err err;
    write_file(user_file, "old\n");
    assert_int_equal(auth_load(&a, &c, &err), 0);
    write_file(user_file, "# nothing\n");
    assert_int_equal(auth_load(&a, &c, &err), -1);
    assert_non_null(strstr(err.msg, user_file));
    write_file(user_file, "has space\n");
    assert_int_equal(auth_load(&a, &c, &err), -1);
    c.server_api_keys = (char *)"/nonexistent/keys";
    assert_int_equal(auth_load(&a, &c, &err), -1);
    assert_non_null(strstr(err.msg, "server.api_keys"));
    assert_int_equal(check(&a, "Bearer old", ACCESS_USER), 0);
    c.server_api_keys = user_file;
    write_file(user_file, "new\n");
    assert_int_equal(auth_load(&a, &c, &err), 0);
    assert_int_equal(check(&a, "Bearer old", ACCESS_USER), 401);
    assert_int_equal(check(&a, "Bearer new", ACCESS_USER), 0);
    auth_free(&a);
}

static struct client *client_with(struct auth *a, const char *authorization)
{
    static struct http_request req;
    struct sockaddr from = {.sa_family = AF_INET};
    memset(&req, 0, sizeof(req));
    req.headers = 1;
    req.header[0].name = (struct slice){"Authorization", 13};
    req.header[0].value = (struct slice){authorization, strlen(authorization)};
    struct client *c = auth_client(a, &req, &from);
    clients_release(a->clients, c);
    return c;
}

static void auth_tells_clients_by_name_or_key_over_reloads(void **state)
{
    (void)state;
    struct auth a = {0};
    struct config c = {.server_api_keys = user_file,
                       .server_admin_key_file = admin_file,
                       .server_key_limits = (char *)"acme running=3"};
    struct err err;
    write_file(user_file, "one name=acme # theirs\ntwo\tname=acme\nthree\nfour # no name\nf#ve\n");
    write_file(admin_file, "boss\n");
    assert_int_equal(auth_load(&a, &c, &err), 0);
    assert_int_equal(a.user.n, 5);
    struct client *acme = client_with(&a, "Bearer one"), *three = client_with(&a, "Bearer three");
    assert_ptr_equal(client_with(&a, "Bearer two"), acme);
    assert_int_equal(acme->limits.requests.running, 3);
    assert_int_equal(three->limits.requests.running, 0);
    assert_int_equal(client_with(&a, "Bearer f#ve")->name.kind, CLIENT_KEY);
    assert_int_equal(client_with(&a, "Bearer boss")->name.kind, CLIENT_KEY);
    assert_int_equal(client_with(&a, "Bearer on")->name.kind, CLIENT_ADDRESS);
    assert_ptr_not_equal(three, client_with(&a, "Bearer four"));
    uint64_t id = three->id;
    write_file(user_file, "three\nnew name=acme\nthree name=acme\n"); /* once by each name */
    assert_int_equal(auth_load(&a, &c, &err), 0);
    assert_ptr_equal(client_with(&a, "Bearer new"), acme);
    assert_int_equal(client_with(&a, "Bearer three")->id, id);
    c.server_key_limits = (char *)"acme running=3,acne running=2";
    assert_int_equal(auth_load(&a, &c, &err), -1);
    assert_non_null(strstr(err.msg, "server.key_limits line 2"));
    static const char *const bad[] = {"key name=",      "key nom=x",      "key name=x y",
                                      "key name=a/b",   "key name=other", "key name=all",
                                      "key x # name=x", "key nome=acme"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        write_file(user_file, bad[i]);
        assert_int_equal(auth_load(&a, &c, &err), -1);
        assert_non_null(strstr(err.msg, "line 1"));
    }
    assert_ptr_equal(client_with(&a, "Bearer new"), acme);
    auth_free(&a);
}

/* "sha256:" and the first ten digits of the key's digest. */
static void add_digest(char *list, size_t room, const char *key, const char *limits)
{
    unsigned char digest[SHA256_BYTES];
    sha256(key, strlen(key), digest);
    size_t n = strlen(list);
    n += (size_t)snprintf(list + n, room - n, "%ssha256:", n ? "," : "");
    for (int i = 0; i < 5; i++)
        n += (size_t)snprintf(list + n, room - n, "%02x", digest[i]);
    snprintf(list + n, room - n, " %s", limits);
}

static void auth_limits_a_client_by_the_digest_of_any_of_its_keys(void **state)
{
    (void)state;
    struct auth a = {0};
    char one[200] = "", two[200] = "acme running=5", both[200] = "";
    struct config c = {.server_api_keys = user_file, .server_key_limits = one};
    struct err err;
    add_digest(one, sizeof one, "new", "running=2");
    add_digest(two, sizeof two, "new", "running=2");
    add_digest(both, sizeof both, "old", "running=3");
    add_digest(both, sizeof both, "new", "running=2");
    write_file(user_file, "old name=acme\nnew name=acme\nother\n");
    assert_int_equal(auth_load(&a, &c, &err), 0);
    assert_int_equal(client_with(&a, "Bearer old")->limits.requests.running, 2);
    assert_int_equal(client_with(&a, "Bearer new")->limits.requests.running, 2);
    assert_int_equal(client_with(&a, "Bearer other")->limits.requests.running, 0);
    write_file(user_file, "new name=acme\nlast name=acme\n"); /* and the client is remembered */
    assert_int_equal(auth_load(&a, &c, &err), 0);
    assert_int_equal(client_with(&a, "Bearer last")->limits.requests.running, 2);
    c.server_key_limits = two;
    assert_int_equal(auth_load(&a, &c, &err), -1);
    assert_non_null(strstr(err.msg, "server.key_limits line 2: line 1 is for the same client"));
    write_file(user_file, "old name=acme\nnew name=acme\n");
    c.server_key_limits = both;
    assert_int_equal(auth_load(&a, &c, &err), -1);
    assert_non_null(strstr(err.msg, "is for the same client"));
    assert_int_equal(client_with(&a, "Bearer last")->limits.requests.running, 2);
    write_file(user_file, "old name=acme\nnew\n");
    assert_int_equal(auth_load(&a, &c, &err), 0);
    assert_int_equal(client_with(&a, "Bearer old")->limits.requests.running, 3);
    assert_int_equal(client_with(&a, "Bearer new")->limits.requests.running, 2);
    write_file(user_file, "old name=acme\nnew name=acme\n");
    c.server_key_limits = one;
    assert_int_equal(auth_load(&a, &c, &err), 0);
    write_file(user_file, "last name=acme\n"); /* the key that the line names is gone */
    assert_int_equal(auth_load(&a, &c, &err), -1);
    assert_non_null(strstr(err.msg, "no key has this name, or this digest"));
    auth_free(&a);
}

static bool origin_allowed(const struct auth *a, const char *origin)
{
    static struct http_request req;
    memset(&req, 0, sizeof(req));
    req.headers = 1;
    req.header[0].name = (struct slice){"Origin", 6};
    req.header[0].value = (struct slice){origin, strlen(origin)};
    return auth_origin(a, &req).n > 0;
}

static void auth_allows_listed_origins_only(void **state)
{
    (void)state;
    struct auth a = {0};
    struct err err;
    assert_false(origin_allowed(&a, "https://a.example"));
    struct config c = {.server_cors_origins = (char *)"https://a.example, http://localhost:3000/"};
    assert_int_equal(auth_load(&a, &c, &err), 0);
    assert_true(origin_allowed(&a, "https://a.example"));
    assert_true(origin_allowed(&a, "http://localhost:3000"));
    assert_false(origin_allowed(&a, "https://a.example.evil"));
    assert_false(origin_allowed(&a, "http://localhost"));
    assert_false(origin_allowed(&a, "null"));
    c.server_cors_origins = (char *)"*";
    assert_int_equal(auth_load(&a, &c, &err), 0);
    assert_true(origin_allowed(&a, "https://anything"));
    auth_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(auth_needs_no_key_without_keys),
        cmocka_unit_test(auth_checks_keys),
        cmocka_unit_test(auth_keeps_old_keys_when_a_reload_fails),
        cmocka_unit_test(auth_tells_clients_by_name_or_key_over_reloads),
        cmocka_unit_test(auth_limits_a_client_by_the_digest_of_any_of_its_keys),
        cmocka_unit_test(auth_allows_listed_origins_only),
    };
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
