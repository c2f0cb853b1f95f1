/* SPDX-License-Identifier: Apache-2.0 */
/* test_serving_siege.c - clients that ask for more than their part of the server: its threads, its
 * memory. What has to be slow is held, so that nothing here depends on how fast a machine is. */
#include "serving_world.h"

#include "config/err.h"

/* ---- bodies that take as long as a test wants ----------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool hold;
    _Atomic int inside; /* threads that are held */
} parsing = {.lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER};

cJSON *__real_json_parse(const char *text, size_t n, struct api_error *e);
cJSON *__wrap_json_parse(const char *text, size_t n, struct api_error *e);

/* Every text of clients goes through here, on the thread that tokenizes it. */
cJSON *__wrap_json_parse(const char *text, size_t n, struct api_error *e)
{
    pthread_mutex_lock(&parsing.lock);
    parsing.inside++;
    while (parsing.hold && n > INLINE_BODY_MAX)
        pthread_cond_wait(&parsing.change, &parsing.lock);
    parsing.inside--;
    pthread_mutex_unlock(&parsing.lock);
    return __real_json_parse(text, n, e);
}

static void hold_parsing(bool hold)
{
    pthread_mutex_lock(&parsing.lock);
    parsing.hold = hold;
    pthread_cond_broadcast(&parsing.change);
    pthread_mutex_unlock(&parsing.lock);
}

/* ---- what a client sees -------------------------------------------------------------------- */

/* A gauge or counter of /metrics, asked for on a connection of its own. */
static double metric(const char *name)
{
    int fd = client_open();
    client_send(fd, "GET /metrics HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    const char *r = client_response(fd);
    close(fd);
    assert_int_equal(client_status(r), 200);
    char *line = xasprintf("\nwhet_%s ", name);
    const char *at = strstr(r, line);
    assert_non_null(at);
    double v = atof(at + strlen(line));
    free(line);
    return v;
}

static void wait_for_metric(const char *name, double lo, double hi)
{
    double v = -1;
    for (int i = 0; i < 6000; i++) {
        v = metric(name);
        if (v >= lo && v <= hi)
            return;
        usleep(10000);
    }
    fail_msg("whet_%s is %g, not within %g to %g", name, v, lo, hi);
}

static int get(const char *path)
{
    int fd = client_open();
    client_send(fd, "GET %s HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n", path);
    int status = client_status(client_response(fd));
    close(fd);
    return status;
}

/* A completion whose prompt is longer than any context, with a body of `n` bytes. */
static char *long_body(size_t n)
{
    char *json = xmalloc(n + 1);
    memset(json, 'x', n);
    memcpy(json, "{\"prompt\":\"", 11);
    memcpy(json + n - 2, "\"}", 3);
    return json;
}

static int post_body(size_t n)
{
    char *json = long_body(n);
    int fd = client_open();
    client_post(fd, "/v1/completions", json);
    free(json);
    return fd;
}

/* ---- threads ------------------------------------------------------------------------------- */

/* Twice as many clients as there are threads for texts of any length, all of which leave. */
static void serving_answers_operators_while_clients_tokenize(void **state)
{
    (void)state;
    enum { CLIENTS = 16 };
    int fds[CLIENTS];
    hold_parsing(true);
    for (int i = 0; i < CLIENTS; i++)
        fds[i] = post_body(i % 2 ? 9000 : SHORT_BODY_MAX + 1000);
    wait_for(&parsing.inside, 4);
    for (int i = 0; i < CLIENTS; i++)
        close(fds[i]);
    static const char *const asked[] = {"/health", "/metrics", "/specializer"};
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(get(asked[i]), 200);
    assert_int_equal(get("/admin/slots"), 403);    /* there is no key: answered, not run */
    wait_for_metric("pending_jobs", 4, 4);         /* what had not begun is gone already */
    int fd = client_open(), small = client_open(); /* a prompt that is read at once */
    client_post(small, "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":2}");
    assert_int_equal(client_status(client_response(small)), 200);
    hold_parsing(false);
    wait_for_metric("pending_jobs", 0, 0);
    wait_for_metric("pending_bytes", 0, 0);
    assert_int_equal(toy.submitted, 1); /* nothing that was left behind reached the engine */
    close(fd);
    close(small);
}

/* Long texts have threads of their own: short ones go past them. */
static void serving_tokenizes_short_texts_beside_long_ones(void **state)
{
    (void)state;
    int fds[8];
    hold_parsing(true);
    for (int i = 0; i < 8; i++)
        fds[i] = post_body(SHORT_BODY_MAX + 1000);
    wait_for(&parsing.inside, 2);
    int fd = post_body(9000);
    wait_for(&parsing.inside, 3);
    hold_parsing(false);
    assert_int_equal(client_status(client_response(fd)), 400); /* longer than the context */
    close(fd);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(client_status(client_response(fds[i])), 400);
        close(fds[i]);
    }
}

static void serving_refuses_when_too_many_texts_wait(void **state)
{
    (void)state;
    serving_stop();
    serving_config.server_max_connections = 2 * WORKS_MAX;
    serving_start();
    static int fds[WORKS_MAX];
    hold_parsing(true);
    for (int i = 0; i < WORKS_MAX; i++)
        fds[i] = post_body(2000);
    wait_for_metric("pending_jobs", WORKS_MAX, WORKS_MAX);
    static const char *const paths[] = {"/v1/completions", "/tokenize", "/v1/chat/completions"};
    char *json = long_body(2000);
    for (size_t i = 0; i < 3; i++) {
        int fd = client_open();
        client_post(fd, paths[i], json);
        const char *r = client_response(fd);
        assert_int_equal(client_status(r), 429);
        assert_non_null(strstr(r, "Retry-After: "));
        close(fd);
    }
    free(json);
    for (int i = 0; i < WORKS_MAX; i++)
        close(fds[i]);
    wait_for_metric("pending_jobs", 0, 2);
    hold_parsing(false);
    wait_for_metric("pending_bytes", 0, 0);
}

/* ---- memory: requests ---------------------------------------------------------------------- */

/* Many times as many bodies as may be held, from clients that leave at once. */
static void serving_counts_bodies_of_clients_that_left(void **state)
{
    (void)state;
    enum { BODY = 99000, CLIENTS = 3 * BODIES_IN_FLIGHT, HELD = 100000 * BODIES_IN_FLIGHT };
    serving_stop();
    serving_config.server_max_connections = 2 * CLIENTS;
    serving_start();
    hold_parsing(true);
    int first = post_body(BODY);
    wait_for_metric("pending_jobs", 1, 1);
    for (int i = 0; i < CLIENTS; i++) {
        close(post_body(BODY));
        assert_true(metric("pending_bytes") <= HELD + BODY);
    }
    wait_for_metric("pending_jobs", 0, 2); /* those that had begun */
    wait_for_metric("pending_bytes", BODY, 2 * BODY);
    int fds[BODIES_IN_FLIGHT + 4], refused = 0;
    for (int i = 0; i < BODIES_IN_FLIGHT + 4; i++)
        fds[i] = post_body(BODY); /* these stay */
    for (int i = 0; i < 6000 && serving->metrics.bytes_in < (uint64_t)BODY * 30; i++)
        usleep(10000);
    wait_for_metric("pending_bytes", HELD - 2 * BODY, HELD + BODY);
    int fd = post_body(2000); /* a short one is not kept out by them */
    wait_for(&parsing.inside, 3);
    hold_parsing(false);
    assert_int_equal(client_status(client_response(fd)), 400);
    close(fd);
    for (int i = 0; i < BODIES_IN_FLIGHT + 4; i++) {
        const char *r = client_response(fds[i]);
        refused += client_status(r) == 429 && strstr(r, "Retry-After: ");
        close(fds[i]);
    }
    assert_true(refused > 0 && refused < 10);
    close(first);
    wait_for_metric("pending_bytes", 0, 0);
}

/* ---- memory: answers ----------------------------------------------------------------------- */

static void serving_limits_what_an_answer_holds(void **state)
{
    (void)state;
    serving_stop();
    serving_config.server_max_answer = 65536;
    serving_start();
    int fd = client_open();
    client_post(fd, "/v1/completions",
                "{\"prompt\":\"ab\",\"max_tokens\":500,\"logprobs\":20,\"n\":8}");
    const char *r = client_response(fd);
    assert_int_equal(client_status(r), 400);
    assert_non_null(strstr(r, "server.max_answer"));
    assert_non_null(strstr(r, "65536"));
    assert_non_null(strstr(r, "\"code\":\"answer_too_large\""));
    wait_for(&toy.ended, 8);
    assert_true(toy.cancelled > 0);
    wait_for_metric("answer_bytes", 0, 0);
    client_post(fd, "/v1/chat/completions",
                "{\"messages\":[{\"role\":\"user\",\"content\":\"ab\"}],\"max_tokens\":400,"
                "\"logprobs\":true,\"top_logprobs\":20}");
    assert_int_equal(client_status(client_response(fd)), 400);
    /* A stream gathers nothing, and what is small is answered. */
    client_post(fd, "/v1/completions",
                "{\"prompt\":\"ab\",\"max_tokens\":200,\"logprobs\":20,\"n\":8,\"stream\":true}");
    assert_non_null(strstr(client_response(fd), "data: [DONE]"));
    client_post(fd, "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":500,\"n\":8}");
    assert_int_equal(client_status(client_response(fd)), 200);
    close(fd);
}

/* What is echoed is known before anything runs. */
static void serving_limits_echoed_prompts(void **state)
{
    (void)state;
    serving_stop();
    serving_config.server_max_answer = 65536;
    serving_config.server_max_queue = 250;
    serving_start();
    int fd = client_open();
    char prompt[401], json[600];
    memset(prompt, 'x', 400);
    prompt[400] = '\0';
    snprintf(json, sizeof(json), "{\"prompt\":\"%s\",\"echo\":true,\"max_tokens\":1,\"n\":200}",
             prompt);
    client_post(fd, "/v1/completions", json);
    const char *r = client_response(fd);
    assert_int_equal(client_status(r), 400);
    assert_non_null(strstr(r, "server.max_answer"));
    assert_int_equal(toy.submitted, 0);
    close(fd);
}

/* Each within its limit, all together above: whoever holds most loses it, the others go on. */
static void serving_limits_what_all_answers_hold(void **state)
{
    (void)state;
    enum { CLIENTS = 24 };
    serving_stop();
    serving_config.server_max_answer = 65536;
    serving_start();
    toy.batch = CLIENTS;
    toy.pause_at = 200;
    int fds[CLIENTS], good = 0, refused = 0;
    for (int i = 0; i < CLIENTS; i++) {
        fds[i] = client_open();
        client_post(fds[i], "/v1/completions",
                    "{\"prompt\":\"ab\",\"max_tokens\":201,\"logprobs\":20}");
    }
    wait_for(&toy.submitted, CLIENTS);
    for (int i = 0; i < 60000 && !toy.cancelled; i++)
        usleep(1000);
    wait_for_metric("answer_bytes", 65536, ANSWERS_IN_FLIGHT * 65536);
    toy.pause_at = -1;
    for (int i = 0; i < CLIENTS; i++) {
        const char *r = client_response(fds[i]);
        good += client_status(r) == 200;
        refused +=
            client_status(r) == 429 && strstr(r, "server.max_answer") && strstr(r, "answers_full");
        close(fds[i]);
    }
    assert_true(good > 0 && refused > 0);
    assert_int_equal(good + refused, CLIENTS);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN); /* as serve_main does: the loop runs in this process */
    const struct CMUnitTest tests[] = {
        TEST(serving_answers_operators_while_clients_tokenize),
        TEST(serving_tokenizes_short_texts_beside_long_ones),
        TEST(serving_refuses_when_too_many_texts_wait),
        TEST(serving_counts_bodies_of_clients_that_left),
        TEST(serving_limits_what_an_answer_holds),
        TEST(serving_limits_echoed_prompts),
        TEST(serving_limits_what_all_answers_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
