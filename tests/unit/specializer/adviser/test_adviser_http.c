/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP client against an endpoint that does everything wrong: each failure has its name, none
 * is taken for a timeout, and the key is nowhere it should not be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <curl/curl.h>
#include <netdb.h>

#include "specializer/adviser/adviser_http.h"
#include "tests/unit/specializer/stand_in.h"

enum { PATIENCE_S = 120 }; /* a timeout that no answer needs */
static struct stand_in server, other;
static struct config config;
static char key_path[] = "/tmp/whet-test-key-XXXXXX", url[80];
static const char key[] = "sk-very-secret-0123456789";

static struct call call = {.task = "the task",
                           .document = "{\"a\":1}",
                           .schema = "{\"type\":\"object\"}",
                           .name = "x",
                           .style = {.max_tokens = 2048, .temperature = -1}};

static int open_all(void **unused)
{
    (void)unused;
    setenv("no_proxy", "127.0.0.1", 1);
    int fd = mkstemp(key_path);
    if (fd < 0 || write(fd, key, strlen(key)) < 0 || write(fd, "\n", 1) < 0)
        return -1;
    close(fd);
    stand_in_open(&server);
    stand_in_open(&other);
    stand_in_say(&server, strdup("what the model said"));
    char *argv[] = {(char *)"whet", NULL};
    struct err err;
    return config_parse(&config, 1, argv, &err);
}

static int close_all(void **unused)
{
    (void)unused;
    stand_in_close(&server);
    stand_in_close(&other);
    config_free(&config);
    return unlink(key_path);
}

static struct adviser_http *open_client(double timeout)
{
    struct err err;
    snprintf(url, sizeof url, "http://127.0.0.1:%d/v1/chat/completions", server.port);
    free(config.adviser_url);
    config.adviser_url = strdup(url);
    free(config.adviser_model);
    config.adviser_model = strdup("some-model");
    free(config.adviser_key_file);
    config.adviser_key_file = strdup(key_path);
    call.style.timeout = timeout;
    atomic_store(&server.mode, STAND_IN_OK);
    atomic_store(&server.requests, 0);
    struct adviser_http *h = adviser_http_open(&config, &err);
    assert_non_null(h);
    return h;
}

static void question_carries_task_document_model_and_key(void **unused)
{
    (void)unused;
    struct adviser_http *h = open_client(PATIENCE_S);
    struct answer a;
    adviser_http_post(h, &call, &a);
    assert_int_equal(a.fault, CALL_OK);
    assert_string_equal(a.text, "what the model said");
    assert_int_equal(a.tokens_in, 1234);
    assert_int_equal(a.tokens_out, 56);
    assert_int_equal(a.calls, 1);
    free(a.text);
    assert_true(stand_in_heard(&server, "POST /v1/chat/completions HTTP/1.1"));
    assert_true(stand_in_heard(&server, "Authorization: Bearer sk-very-secret-0123456789\r\n"));
    cJSON *o = cJSON_Parse(strstr(server.request, "\r\n\r\n") + 4);
    assert_string_equal(cJSON_GetObjectItem(o, "model")->valuestring, "some-model");
    const cJSON *messages = cJSON_GetObjectItem(o, "messages");
    const cJSON *system = cJSON_GetArrayItem(messages, 0), *user = cJSON_GetArrayItem(messages, 1);
    assert_string_equal(cJSON_GetObjectItem(system, "content")->valuestring, "the task");
    assert_string_equal(cJSON_GetObjectItem(user, "content")->valuestring, "{\"a\":1}");
    const cJSON *format = cJSON_GetObjectItem(o, "response_format");
    assert_string_equal(cJSON_GetObjectItem(format, "type")->valuestring, "json_schema");
    const cJSON *schema = cJSON_GetObjectItem(format, "json_schema");
    assert_true(cJSON_IsTrue(cJSON_GetObjectItem(schema, "strict")));
    assert_true(cJSON_IsObject(cJSON_GetObjectItem(schema, "schema")));
    cJSON_Delete(o);
    adviser_http_close(h);
}

static void endpoint_without_schemas_is_asked_plainly_from_then_on(void **unused)
{
    (void)unused;
    struct adviser_http *h = open_client(PATIENCE_S);
    struct answer a;
    atomic_store(&server.mode, STAND_IN_PLAIN);
    adviser_http_post(h, &call, &a);
    assert_int_equal(a.fault, CALL_OK);
    assert_int_equal(a.calls, 2);
    free(a.text);
    adviser_http_post(h, &call, &a);
    assert_int_equal(a.fault, CALL_OK);
    assert_int_equal(a.calls, 1);
    free(a.text);
    assert_int_equal(atomic_load(&server.requests), 3);
    adviser_http_close(h);
}

static void every_way_to_fail_has_its_name(void **unused)
{
    (void)unused;
    static const struct {
        int mode;
        enum call_fault fault;
    } ways[] = {
        {STAND_IN_CLOSED, CALL_BROKEN},     {STAND_IN_HALF, CALL_BROKEN},
        {STAND_IN_GARBAGE, CALL_BROKEN},    {STAND_IN_TEXT, CALL_PROTOCOL},
        {STAND_IN_OTHER, CALL_PROTOCOL},    {STAND_IN_ZERO, CALL_PROTOCOL},
        {STAND_IN_ESCAPE, CALL_PROTOCOL},   {STAND_IN_BIG, CALL_TOO_LARGE},
        {STAND_IN_ENDLESS, CALL_TOO_LARGE}, {STAND_IN_HEADERS, CALL_TOO_LARGE},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct adviser_http *h = open_client(PATIENCE_S);
        struct answer a;
        atomic_store(&server.mode, ways[i].mode);
        adviser_http_post(h, &call, &a);
        if (a.fault != ways[i].fault)
            print_error("mode %d: %s\n", ways[i].mode, call_fault_name(a.fault));
        assert_int_equal(a.fault, ways[i].fault);
        assert_null(a.text);
        assert_true(a.why[0] && !strstr(a.why, key));
        adviser_http_close(h);
    }
}

static void statuses_are_told_apart(void **unused)
{
    (void)unused;
    static const struct {
        int status, calls;
        enum call_fault fault;
    } ways[] = {{429, 1, CALL_RATE},    {500, 1, CALL_SERVER},  {503, 1, CALL_SERVER},
                {401, 1, CALL_REFUSED}, {403, 1, CALL_REFUSED}, {404, 2, CALL_REFUSED},
                {400, 2, CALL_REFUSED}, {204, 1, CALL_PROTOCOL}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct adviser_http *h = open_client(PATIENCE_S);
        struct answer a;
        atomic_store(&server.status, ways[i].status);
        snprintf(server.header, sizeof server.header, "Retry-After: 7\r\n");
        atomic_store(&server.mode, STAND_IN_STATUS);
        adviser_http_post(h, &call, &a);
        if (a.fault != ways[i].fault || a.calls != ways[i].calls)
            print_error("%d: %s, %d calls\n", ways[i].status, call_fault_name(a.fault), a.calls);
        assert_int_equal(a.fault, ways[i].fault);
        assert_int_equal(a.calls, ways[i].calls);
        assert_true(a.retry_after_s == 7);
        adviser_http_close(h);
    }
    server.header[0] = 0;
}

static void redirects_are_not_followed(void **unused)
{
    (void)unused;
    struct adviser_http *h = open_client(PATIENCE_S);
    struct answer a;
    snprintf(server.header, sizeof server.header, "Location: http://127.0.0.1:%d/\r\n", other.port);
    for (int status = 301; status <= 308; status += 7) {
        atomic_store(&server.status, status);
        atomic_store(&server.mode, STAND_IN_STATUS);
        adviser_http_post(h, &call, &a);
        assert_int_equal(a.fault, CALL_REDIRECT);
    }
    assert_int_equal(atomic_load(&other.requests), 0);
    server.header[0] = 0;
    adviser_http_close(h);
}

static void slow_endpoint_costs_no_more_than_the_timeout(void **unused)
{
    (void)unused;
    struct adviser_http *h = open_client(0.4);
    struct answer a;
    atomic_store(&server.mode, STAND_IN_SILENT);
    adviser_http_post(h, &call, &a); /* which would never answer */
    assert_int_equal(a.fault, CALL_TIMEOUT);
    atomic_store(&server.mode, STAND_IN_OK);
    adviser_http_close(h);
    h = open_client(PATIENCE_S);
    atomic_store(&server.mode, STAND_IN_LATE); /* late, but in time */
    adviser_http_post(h, &call, &a);
    assert_int_equal(a.fault, CALL_OK);
    assert_true(a.seconds >= 0.29);
    free(a.text);
    adviser_http_close(h);
}

static void *stop_it(void *h)
{
    while (atomic_load(&server.requests) == 0) /* until it is waiting for the answer */
        usleep(1000);
    adviser_http_stop(h);
    return NULL;
}

static void stop_ends_a_call_at_once(void **unused)
{
    (void)unused;
    struct adviser_http *h = open_client(PATIENCE_S);
    struct answer a;
    pthread_t thread;
    atomic_store(&server.mode, STAND_IN_SILENT);
    assert_int_equal(pthread_create(&thread, NULL, stop_it, h), 0);
    adviser_http_post(h, &call, &a);
    assert_int_equal(a.fault, CALL_STOPPED); /* and not CALL_TIMEOUT, later */
    pthread_join(thread, NULL);
    atomic_store(&server.mode, STAND_IN_OK);
    adviser_http_close(h);
}

/* The system's resolver, which takes its time over one name: as long as nobody says more. libcurl
 * calls this one. */
static atomic_bool looked_up, looking, enough;

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                struct addrinfo **out)
{
    (void)service, (void)hints, (void)out;
    if (!node || strcmp(node, "slow.test") != 0)
        return EAI_NONAME; /* all others are addresses, which need none */
    atomic_store(&looking, true);
    for (int i = 0; i < 10000 && !atomic_load(&enough); i++)
        usleep(1000);
    atomic_store(&looked_up, true);
    return EAI_AGAIN;
}

static void *stop_the_lookup(void *h)
{
    while (!atomic_load(&looking))
        usleep(1000);
    adviser_http_stop(h);
    return NULL;
}

static void stop_does_not_wait_for_a_name(void **unused)
{
    (void)unused;
    adviser_http_close(open_client(PATIENCE_S));
    free(config.adviser_url);
    config.adviser_url = strdup("http://slow.test/v1");
    struct err err;
    struct adviser_http *h = adviser_http_open(&config, &err);
    assert_non_null(h);
    pthread_t thread;
    struct answer a;
    assert_int_equal(pthread_create(&thread, NULL, stop_the_lookup, h), 0);
    adviser_http_post(h, &call, &a);
    assert_int_equal(a.fault, CALL_STOPPED);
    pthread_join(thread, NULL);
    adviser_http_close(h);
#if LIBCURL_VERSION_NUM >= 0x075700
    assert_false(atomic_load(&looked_up));
#endif
    atomic_store(&enough, true);
    while (!atomic_load(&looked_up))
        usleep(1000);
}

static void dead_endpoint_is_a_failure_to_connect(void **unused)
{
    (void)unused;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    struct answer a;
    struct err err;
    int dead = socket(AF_INET, SOCK_STREAM, 0); /* it listens to nobody, and keeps its port */
    assert_int_equal(bind(dead, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(dead, (struct sockaddr *)&at, &n), 0);
    adviser_http_close(open_client(PATIENCE_S));
    snprintf(config.adviser_url, strlen(url) + 1, "http://127.0.0.1:%d/v1", ntohs(at.sin_port));
    struct adviser_http *h = adviser_http_open(&config, &err);
    adviser_http_post(h, &call, &a);
    assert_int_equal(a.fault, CALL_CONNECT);
    adviser_http_close(h);
    close(dead);
}

/* Puts `n` bytes into the key's file. */
static void write_key(const char *text, size_t n)
{
    FILE *out = fopen(key_path, "wb");
    assert_true(out && fwrite(text, 1, n, out) == n && fclose(out) == 0);
}

static void key_that_is_no_key_is_not_sent(void **unused)
{
    (void)unused;
    static char huge[8192];
    memset(huge, 'k', sizeof huge);
    const struct {
        const char *text;
        size_t n;
    } bad[] = {{"", 0}, {"\n\n", 2}, {"a\r\nX-Evil: 1", 12}, {"two words", 9}, {huge, sizeof huge}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct adviser_http *h = open_client(PATIENCE_S);
        struct answer a;
        write_key(bad[i].text, bad[i].n);
        adviser_http_post(h, &call, &a);
        assert_int_equal(a.fault, CALL_KEY);
        assert_int_equal(a.calls, 0);
        assert_null(strstr(a.why, "Evil"));
        adviser_http_close(h);
    }
    write_key(key, strlen(key));
    assert_int_equal(atomic_load(&server.requests), 0);
}

/* What an endpoint answers is stored and shown: it may well be what it was asked. */
static void key_that_is_said_back_is_blotted_out(void **unused)
{
    (void)unused;
    struct adviser_http *h = open_client(PATIENCE_S);
    struct answer a;
    char *text = NULL;
    assert_true(asprintf(&text, "you sent %s, and again %s.", key, key) > 0);
    stand_in_say(&server, text);
    adviser_http_post(h, &call, &a);
    assert_int_equal(a.fault, CALL_OK);
    assert_null(strstr(a.text, key));
    assert_non_null(strstr(a.text, "you sent ***"));
    assert_non_null(strstr(a.text, "*, and again ***"));
    assert_int_equal(strlen(a.text), strlen(text));
    free(a.text);
    write_key("sent", 4); /* too short to be told from a word */
    adviser_http_post(h, &call, &a);
    assert_non_null(strstr(a.text, "you sent "));
    free(a.text);
    write_key(key, strlen(key));
    adviser_http_close(h);
}

static void key_file_that_is_not_there_is_a_fault_and_no_call(void **unused)
{
    (void)unused;
    struct adviser_http *h = open_client(PATIENCE_S);
    struct answer a;
    static const char *const files[] = {"/nonexistent/key", "/"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        free(config.adviser_key_file);
        config.adviser_key_file = strdup(files[i]);
        adviser_http_post(h, &call, &a);
        assert_int_equal(a.fault, CALL_KEY);
        assert_non_null(strstr(a.why, files[i]));
    }
    assert_int_equal(atomic_load(&server.requests), 0);
    adviser_http_close(h);
}

static void other_schemes_are_refused(void **unused)
{
    (void)unused;
    static const char *const bad[] = {"file:///etc/passwd", "ftp://x/", "127.0.0.1", "gopher://x"};
    struct err err;
    adviser_http_close(open_client(PATIENCE_S));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        free(config.adviser_url);
        config.adviser_url = strdup(bad[i]);
        assert_null(adviser_http_open(&config, &err));
        assert_non_null(strstr(err.msg, "adviser.url"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(question_carries_task_document_model_and_key),
        cmocka_unit_test(endpoint_without_schemas_is_asked_plainly_from_then_on),
        cmocka_unit_test(every_way_to_fail_has_its_name),
        cmocka_unit_test(statuses_are_told_apart),
        cmocka_unit_test(redirects_are_not_followed),
        cmocka_unit_test(slow_endpoint_costs_no_more_than_the_timeout),
        cmocka_unit_test(stop_ends_a_call_at_once),
        cmocka_unit_test(stop_does_not_wait_for_a_name),
        cmocka_unit_test(dead_endpoint_is_a_failure_to_connect),
        cmocka_unit_test(key_that_is_no_key_is_not_sent),
        cmocka_unit_test(key_that_is_said_back_is_blotted_out),
        cmocka_unit_test(key_file_that_is_not_there_is_a_fault_and_no_call),
        cmocka_unit_test(other_schemes_are_refused),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
