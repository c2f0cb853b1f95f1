/* SPDX-License-Identifier: Apache-2.0 */
/* test_serving_trouble.c - the HTTP side when something is wrong: full queues, clients that leave
 * or do not read, a model that loads or a device that is lost, the end under load. */
#include "server/conn.h"
#include "server/limits.h"
#include "serving_world.h"

/* ---- trouble ------------------------------------------------------------------------------- */

static void serving_answers_an_early_failure_plainly(void **state)
{
    (void)state;
    int fd = client_open();
    toy.fail_at = 0;
    client_post(fd, "/v1/completions", LONG_STREAM);
    const char *r = client_response(fd);
    assert_int_equal(client_status(r), 500);
    assert_non_null(strstr(r, "the toy was told to fail"));
    assert_non_null(strstr(r, "application/json"));
    toy.fail_at = 3;
    client_post(fd, "/v1/completions", LONG_STREAM);
    r = client_response(fd);
    assert_int_equal(client_status(r), 200);
    assert_non_null(strstr(r, "data: {\"error\":{\"message\":\"the generation failed: the toy"));
    assert_null(strstr(r, "[DONE]"));
    client_post(fd, "/v1/completions", LONG_PLAIN);
    assert_int_equal(client_status(client_response(fd)), 500);
    close(fd);
}

static void serving_refuses_when_the_queue_is_full(void **state)
{
    (void)state;
    toy.hold = true;
    toy.retry_s = 17;
    int fds[16];
    for (int i = 0; i < 16; i++) {
        fds[i] = client_open();
        client_post(fds[i], "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":2}");
    }
    wait_for(&toy.submitted, 16);
    int fd = client_open();
    client_post(fd, "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":2}");
    const char *r = client_response(fd);
    assert_int_equal(client_status(r), 429);
    assert_non_null(strstr(r, "Retry-After: 17\r\n")); /* by what the engine says */
    assert_int_equal(toy.submitted, 16);
    toy.hold = false;
    for (int i = 0; i < 16; i++) {
        assert_int_equal(client_status(client_response(fds[i])), 200);
        close(fds[i]);
    }
    close(fd);
}

/* What the specializer cannot do is the client's fault, the store's, or a matter of waiting: the
 * status says which, and the body why. */
static void serving_answers_operators_with_what_is_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *kernel;
        int status;
    } asked[] = {{"k1", 200},     {"wrong", 400}, {"missing", 404},
                 {"pinned", 409}, {"full", 500},  {"early", 503}};
    const char *r;
    char file[] = "/tmp/whet-serving-admin-XXXXXX", says[64];
    int key = mkstemp(file);
    assert_int_equal(write(key, "boss", 4), 4);
    close(key);
    assert_int_equal(serving_stop(), 0);
    serving_config.server_admin_key_file = file;
    serving_start();
    int fd = client_open();
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        client_send(fd,
                    "GET /admin/kernels/%s HTTP/1.1\r\nHost: t\r\n"
                    "Authorization: Bearer boss\r\n\r\n",
                    asked[i].kernel);
        r = client_response(fd);
        assert_int_equal(client_status(r), asked[i].status);
        if (asked[i].status == 200)
            continue;
        snprintf(says, sizeof says, "{\"error\":{\"message\":\"the toy says: %s\"",
                 asked[i].kernel);
        assert_ptr_equal(strstr(client_body(r), says), client_body(r));
    }
    /* What a compiler said may be no UTF-8; the answer is. */
    client_send(fd, "GET /specializer HTTP/1.1\r\nHost: t\r\n\r\n");
    r = client_body(client_response(fd));
    assert_non_null(strstr(r, "\"specializer\":{\"says\":\"caf\xef\xbf\xbd\"}}"));
    client_send(fd, "GET /admin/fleet HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer boss\r\n\r\n");
    r = client_body(client_response(fd));
    assert_string_equal(r, "{\"state\":\"caf\xef\xbf\xbd\"}");
    close(fd);
    unlink(file);
}

/* Of twelve choices eight would find room: the engine is given none. */
static void serving_submits_all_choices_or_none(void **state)
{
    (void)state;
    toy.hold = true;
    toy.queue = 0;
    int fd = client_open();
    client_post(fd, "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":2,\"n\":12}");
    assert_int_equal(client_status(client_response(fd)), 429);
    assert_int_equal(toy.submitted, 0);
    client_post(fd, "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":2,\"n\":17}");
    assert_int_equal(client_status(client_response(fd)), 400);
    toy.hold = false;
    client_post(fd, "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":2,\"n\":8}");
    assert_int_equal(client_status(client_response(fd)), 200);
    close(fd);
}

static void serving_cancels_for_clients_that_left(void **state)
{
    (void)state;
    toy.step_us = 50000; /* half a minute for each, if nobody ended them */
    int stream = client_open(), plain = client_open(), many = client_open();
    client_post(stream, "/v1/completions", LONG_STREAM);
    client_post(plain, "/v1/completions", LONG_PLAIN);
    client_post(many, "/v1/completions",
                "{\"prompt\":\"ab\",\"max_tokens\":500,\"n\":3,\"stream\":true}");
    client_until(stream, "data: ");
    client_until(many, "data: ");
    wait_for(&toy.submitted, 5);
    close(stream);
    close(plain);
    close(many);
    wait_for(&toy.cancelled, 5);
    toy.hold = true;
    int queued = client_open();
    client_post(queued, "/v1/completions", LONG_STREAM);
    wait_for(&toy.submitted, 6);
    shutdown(queued, SHUT_WR);
    wait_for(&toy.cancelled, 6);
    close(queued);
}

/* A client that floods its input while it waits is still seen to leave. */
static void serving_notices_a_client_that_left_behind_unread_input(void **state)
{
    (void)state;
    toy.hold = true;
    int fd = client_open();
    client_post(fd, "/v1/completions", LONG_PLAIN);
    wait_for(&toy.submitted, 1);
    char *junk = malloc(100001);
    memset(junk, 'x', 100000);
    junk[100000] = '\0';
    client_send(fd, "%s", junk);
    free(junk);
    close(fd);
    wait_for(&toy.cancelled, 1);
}

static void serving_cuts_slow_readers_only(void **state)
{
    (void)state;
    serving_stop();
    serving_config.server_write_timeout = 0.4;
    serving_start();
    int slow = client_open(), size = 4096;
    setsockopt(slow, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
    toy.step_us = 200;
    client_post(slow, "/v1/completions",
                "{\"prompt\":\"abcdefgh\",\"max_tokens\":500,\"stream\":true,\"logprobs\":20,"
                "\"n\":8}");
    int fast = client_open(); /* a loop that waits for the slow one would never come to it */
    for (int i = 0; i < 50; i++) {
        client_send(fast, "GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
        assert_int_equal(client_status(client_response(fast)), 200);
    }
    for (int i = 0; i < 6000 && serving->metrics.slow_clients == 0; i++)
        usleep(10000);
    assert_int_equal(serving->metrics.slow_clients, 1);
    client_send(fast, "GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_int_equal(client_status(client_response(fast)), 200);
    close(fast);
    close(slow);
}

static void serving_keeps_silent_streams_alive(void **state)
{
    (void)state;
    serving->keepalive_s = 0.15;
    toy.hold = true;
    int fd = client_open();
    client_post(fd, "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":2,\"stream\":true}");
    assert_non_null(strstr(client_until(fd, ": keep-alive\n\n"), ": keep-alive\n\n"));
    toy.hold = false;
    assert_non_null(strstr(client_until(fd, "data: [DONE]\n\n"), "[DONE]"));
    close(fd);
}

static void serving_times_out_slow_requests(void **state)
{
    (void)state;
    serving_stop();
    /* Long enough for a test that is kept waiting between two lines of its own. */
    serving_config.server_header_timeout = serving_config.server_body_timeout = 4;
    serving_config.server_idle_timeout = 4;
    serving_start();
    int idle = client_open();
    client_send(idle, "GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_int_equal(client_status(client_response(idle)), 200);
    int head = client_open();
    client_send(head, "GET /health HTTP/1.1\r\nHo");
    int body = client_open();
    client_send(body, "POST /v1/completions HTTP/1.1\r\nHost: t\r\n"
                      "Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{");
    int silent = client_open();
    const char *r = client_response(head);
    assert_int_equal(client_status(r), 408);
    assert_non_null(strstr(r, "Connection: close"));
    assert_int_equal(client_status(client_response(body)), 408);
    assert_true(client_closed(silent));
    assert_true(client_closed(idle));
    close(silent);
    close(head);
    close(body);
    close(idle);
}

static void serving_turns_away_too_many_connections(void **state)
{
    (void)state;
    int fds[50];
    toy.queue = 50;
    toy.hold = true;
    for (int i = 0; i < 50; i++) {
        fds[i] = client_open();
        client_post(fds[i], "/v1/completions", LONG_STREAM);
    }
    wait_for(&toy.submitted, 50);
    int extra = client_open();
    client_send(extra, "GET /v1/models HTTP/1.1\r\nHost: t\r\n\r\n");
    const char *r = client_response(extra);
    assert_int_equal(client_status(r), 503);
    assert_non_null(strstr(r, "Retry-After"));
    assert_non_null(strstr(r, "x-request-id: req-")); /* an error like every other */
    assert_non_null(strstr(client_body(r), "{\"error\":{\"message\":\"too many connections"));
    close(extra);
    close(fds[0]);
    bool kept = false; /* as soon as the loop has seen that a place is free again */
    for (int i = 0; i < 6000 && !kept; i++) {
        usleep(i > 0 ? 10000 : 0);
        extra = client_open();
        client_send(extra, "GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
        r = client_response(extra);
        kept = client_status(r) == 200 && !strstr(r, "Connection: close");
        if (!kept)
            close(extra);
    }
    assert_true(kept);
    client_send(extra, "GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_int_equal(client_status(client_response(extra)), 200);
    close(extra);
    for (int i = 1; i < 50; i++)
        close(fds[i]);
}

/* ---- start and end ------------------------------------------------------------------------- */

static void serving_says_that_the_model_is_loading(void **state)
{
    (void)state;
    serving_stop();
    toy.loading = true;
    serving_start();
    int fd = client_open();
    client_post(fd, "/v1/completions", "{\"prompt\":\"ab\"}");
    const char *r = client_response(fd);
    assert_int_equal(client_status(r), 503);
    assert_non_null(strstr(r, "Retry-After: "));
    assert_true(client_closed(fd)); /* the body was not read */
    close(fd);
    fd = client_open();
    client_send(fd, "GET /ready HTTP/1.1\r\nHost: t\r\n\r\n");
    r = client_response(fd);
    assert_int_equal(client_status(r), 503);
    assert_non_null(strstr(r, "\"progress\":0.250"));
    client_send(fd, "GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_int_equal(client_status(client_response(fd)), 200);
    client_send(fd, "GET /metrics HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_int_equal(client_status(client_response(fd)), 200);
    toy.loading = false;
    wait_for_status("/ready", 200);
    close(fd);
}

static void serving_reports_a_stalled_engine(void **state)
{
    (void)state;
    int fd = client_open();
    toy.stalled = 31;
    client_send(fd, "GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_int_equal(client_status(client_response(fd)), 503);
    toy.stalled = 0;
    client_send(fd, "GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_int_equal(client_status(client_response(fd)), 200);
    close(fd);
}

static void serving_says_that_the_device_is_lost(void **state)
{
    (void)state;
    int fd = client_open();
    toy.lost = true;
    client_send(fd, "GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
    const char *r = client_response(fd);
    assert_int_equal(client_status(r), 503);
    assert_non_null(strstr(r, "\"status\":\"lost\""));
    client_send(fd, "GET /ready HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_int_equal(client_status(client_response(fd)), 503);
    client_send(fd, "GET /metrics HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_int_equal(client_status(client_response(fd)), 200); /* the process stays */
    toy.lost = false;
    close(fd);
}

static void serving_finishes_what_runs_before_it_stops(void **state)
{
    (void)state;
    toy.step_us = 20000; /* ten seconds, until it is stopped */
    int fd = client_open(), idle = client_open(), stream = client_open();
    client_post(fd, "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":500}");
    client_post(stream, "/v1/completions",
                "{\"prompt\":\"ab\",\"max_tokens\":500,\"stream\":true}");
    client_until(stream, "data: ");
    toy.hold = true;
    wait_for(&toy.submitted, 2);
    server_stop(serving);
    assert_true(client_closed(idle)); /* it drains */
    toy.step_us = 0;
    toy.hold = false;
    const char *r = client_response(fd);
    assert_int_equal(client_status(r), 200);
    assert_non_null(strstr(r, "Connection: close"));
    assert_non_null(strstr(client_until(stream, "data: [DONE]\n\n"), "[DONE]"));
    close(fd);
    close(idle);
    close(stream);
    assert_int_equal(serving_stop(), 0);
    assert_int_equal(toy.cancelled, 0);
}

/* Clients with a pool of connections hold them open: the drain must not wait for those to leave,
 * though the heads of these answers are older than it and promise another request. */
static void serving_drains_while_clients_keep_their_connections(void **state)
{
    (void)state;
    serving_stop();
    serving_config.server_drain_s = serving_config.server_idle_timeout = 600;
    serving_start();
    int slow = client_open(), stream = client_open(),
        size = 16384; /* into less than a segment TCP writes once in seconds */
    setsockopt(slow, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
    client_post(slow, "/v1/completions",
                "{\"prompt\":\"ab\",\"max_tokens\":500,\"logprobs\":20,\"n\":8}");
    for (int i = 0; i < 6000 && serving->metrics.bytes_out < 800000; i++)
        usleep(10000);
    assert_true(serving->metrics.bytes_out >= 800000); /* far more than the sockets hold */
    toy.step_us = 5000;
    client_post(stream, "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":60,\"stream\":true}");
    client_until(stream, "data: ");
    server_stop(serving);
    assert_non_null(strstr(client_until(stream, "0\r\n\r\n"), "[DONE]"));
    assert_true(client_closed(stream));
    const char *r = client_response(slow);
    assert_int_equal(client_status(r), 200);
    assert_null(strstr(r, "Connection: close"));
    assert_true(client_closed(slow));
    assert_int_equal(serving_stop(), 0);
    close(slow);
    close(stream);
}

static void serving_says_that_it_drains_and_takes_nothing_new(void **state)
{
    (void)state;
    serving_stop();
    serving_config.server_drain_s = 600;
    serving_start();
    toy.hold = true;
    int half = client_open(); /* before the other, so it is read by the time that one is served */
    client_send(half, "GET /ready HT");
    int busy = client_open();
    client_post(busy, "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":2}");
    wait_for(&toy.submitted, 1);
    server_stop(serving);
    wait_for_status("/ready", 503);
    client_send(half, "TP/1.1\r\nHost: t\r\n\r\n");
    const char *r = client_response(half);
    assert_int_equal(client_status(r), 503);
    assert_non_null(strstr(r, "draining"));
    static const struct {
        const char *request;
        int status;
        const char *says;
    } late[] = {
        {"GET /ready HTTP/1.1\r\nHost: t\r\n\r\n", 503, "draining"},
        {"GET /health HTTP/1.1\r\nHost: t\r\n\r\n", 503, "draining"},
        {"GET /v1/models HTTP/1.1\r\nHost: t\r\n\r\n", 503, "Retry-After: "},
        {"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}", 503,
         "Retry-After: "},
        {"GET /metrics HTTP/1.1\r\nHost: t\r\n\r\n", 200, "whet_ready 0"},
        {"GET /specializer HTTP/1.1\r\nHost: t\r\n\r\n", 200, "\"state\":\"draining\""},
    };
    for (size_t i = 0; i < sizeof late / sizeof *late; i++) {
        int fd = client_open();
        assert_true(fd >= 0);
        client_send(fd, "%s", late[i].request);
        r = client_response(fd);
        assert_int_equal(client_status(r), late[i].status);
        assert_non_null(strstr(r, late[i].says));
        assert_non_null(strstr(r, "Connection: close"));
        close(fd);
    }
    int idler = client_open(); /* nobody waits for those who came late */
    toy.hold = false;
    assert_int_equal(client_status(client_response(busy)), 200);
    close(busy);
    close(half);
    assert_true(client_closed(idler));
    close(idler);
    assert_int_equal(client_open(), -1);
    assert_int_equal(serving_stop(), 0);
}

static struct {
    uv_timer_t timer;
    _Atomic bool over; /* the drain delay, now: however long it was to be */
} delay;

static void look_at_delay(uv_timer_t *t)
{
    (void)t;
    if (delay.over)
        serving->leave_until = 0;
}

static void start_looking(void)
{
    uv_timer_init(&serving->loop, &delay.timer);
    uv_timer_start(&delay.timer, look_at_delay, 1, 1);
}

static struct {
    uv_check_t check; /* behind what has arrived, before timers */
    _Atomic bool asked, stands;
} pause_of_loop;

/* As a machine that was paused, or a process that was stopped, for longer than all deadlines: that
 * of every connection is over when the loop goes on. */
static void stand_still(uv_check_t *check)
{
    (void)check;
    if (!pause_of_loop.asked)
        return;
    pause_of_loop.stands = true;
    while (pause_of_loop.asked)
        usleep(1000);
    serving->swept_ns -= INT64_C(60000000000);
    for (struct conn *c = serving->conns; c; c = c->next)
        c->deadline = clock_ns() - 1;
}

static void start_standing(void)
{
    uv_check_init(&serving->loop, &pause_of_loop.check);
    uv_check_start(&pause_of_loop.check, stand_still);
}

static void serving_reads_what_came_while_it_stood_still(void **state)
{
    (void)state;
    serving_stop();
    pause_of_loop.asked = pause_of_loop.stands = false;
    serving_prepare = start_standing;
    serving_start();
    serving_prepare = NULL;
    int kept = client_open(), half = client_open(), silent = client_open();
    client_send(kept, "GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_int_equal(client_status(client_response(kept)), 200);
    client_send(half, "GET /health HTTP/1.1\r\nHo");
    usleep(50000); /* most likely read by then; right either way */
    pause_of_loop.asked = true;
    while (!pause_of_loop.stands)
        usleep(1000);
    client_send(kept, "GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
    client_send(half, "st: t\r\n\r\n");
    usleep(2 * SWEEP_MS * 1000); /* a sweep is due before anything is read */
    pause_of_loop.asked = false;
    assert_int_equal(client_status(client_response(kept)), 200);
    assert_int_equal(client_status(client_response(half)), 200);
    assert_true(client_closed(silent)); /* its time was over */
    close(kept);
    close(half);
    close(silent);
}

/* A balancer sends requests until it has asked /ready again. */
static void serving_takes_requests_until_the_drain_delay_is_over(void **state)
{
    (void)state;
    serving_stop();
    serving_config.server_drain_delay_s = 600;
    serving_config.server_drain_s = serving_config.server_idle_timeout = 600;
    delay.over = false;
    serving_prepare = start_looking;
    serving_start();
    serving_prepare = NULL;
    int idle = client_open(), pooled = client_open();
    client_post(pooled, "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":2}");
    assert_int_equal(client_status(client_response(pooled)), 200);
    server_stop(serving);
    wait_for_status("/ready", 503);
    client_post(pooled, "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":2}");
    const char *r = client_response(pooled);
    assert_int_equal(client_status(r), 200);
    assert_non_null(strstr(r, "Connection: close"));
    assert_true(client_closed(pooled));
    int fd = client_open();
    client_send(fd, "GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_int_equal(client_status(client_response(fd)), 200);
    close(fd);
    fd = client_open();
    client_send(fd, "GET /metrics HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_non_null(strstr(client_response(fd), "whet_ready 0"));
    close(fd);
    toy.hold = true; /* still running when the delay ends */
    int busy = client_open();
    client_post(busy, "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":2}");
    wait_for(&toy.submitted, 3);
    delay.over = true;
    assert_true(client_closed(idle));
    wait_for_status("/health", 503);
    fd = client_open();
    client_post(fd, "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":2}");
    assert_int_equal(client_status(client_response(fd)), 503);
    close(fd);
    toy.hold = false;
    assert_int_equal(client_status(client_response(busy)), 200);
    assert_int_equal(serving_stop(), 0);
    close(busy);
    close(idle);
    close(pooled);
    serving_config.server_drain_delay_s = 0;
}

static void serving_cancels_with_an_error_after_the_drain_time(void **state)
{
    (void)state;
    serving_stop();
    serving_config.server_drain_s = 0.2;
    serving_start();
    toy.step_us = 50000;
    int stream = client_open(), plain = client_open();
    client_post(stream, "/v1/completions", LONG_STREAM);
    client_post(plain, "/v1/completions", LONG_PLAIN);
    client_until(stream, "data: ");
    wait_for(&toy.submitted, 2);
    server_stop(serving);
    assert_int_equal(client_status(client_response(plain)), 503);
    assert_non_null(strstr(client_until(stream, "0\r\n\r\n"), "data: {\"error\":{\"message\":\"the "
                                                              "server is shutting down"));
    close(stream);
    close(plain);
    assert_int_equal(serving_stop(), 0);
    assert_int_equal(toy.cancelled, 2);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN); /* as serve_main does: the loop runs in this process */
    const struct CMUnitTest tests[] = {
        TEST(serving_answers_an_early_failure_plainly),
        TEST(serving_refuses_when_the_queue_is_full),
        TEST(serving_submits_all_choices_or_none),
        TEST(serving_cancels_for_clients_that_left),
        TEST(serving_notices_a_client_that_left_behind_unread_input),
        TEST(serving_cuts_slow_readers_only),
        TEST(serving_keeps_silent_streams_alive),
        TEST(serving_times_out_slow_requests),
        TEST(serving_turns_away_too_many_connections),
        TEST(serving_answers_operators_with_what_is_wrong),
        TEST(serving_says_that_the_model_is_loading),
        TEST(serving_reports_a_stalled_engine),
        TEST(serving_says_that_the_device_is_lost),
        TEST(serving_finishes_what_runs_before_it_stops),
        TEST(serving_drains_while_clients_keep_their_connections),
        TEST(serving_says_that_it_drains_and_takes_nothing_new),
        TEST(serving_takes_requests_until_the_drain_delay_is_over),
        TEST(serving_reads_what_came_while_it_stood_still),
        TEST(serving_cancels_with_an_error_after_the_drain_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
