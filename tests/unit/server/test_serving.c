/* test_serving.c - the whole HTTP side over real sockets, with an engine that does as told. */
#include "tests/unit/unit.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client.h"
#include "config/clock.h"
#include "server/json.h"
#include "toy_engine.h"

static int start(void **state)
{
    (void)state;
    toy_reset();
    serving_config = (struct config){.server_host = (char *)"127.0.0.1",
                                     .server_max_body = 100000,
                                     .server_max_connections = 50,
                                     .server_header_timeout = 5,
                                     .server_body_timeout = 5,
                                     .server_idle_timeout = 5,
                                     .server_write_timeout = 5,
                                     .server_drain_s = 5,
                                     .server_max_queue = 8,
                                     .engine_max_batch = 8,
                                     .server_metrics_open = true,
                                     .server_cors_origins = (char *)"https://app.example"};
    serving_start();
    return 0;
}

static int stop(void **state)
{
    (void)state;
    if (serving)
        assert_int_equal(serving_stop(), 0);
    return 0;
}

/* Waits up to 3 s for a counter of the toy. */
static void wait_for(_Atomic int *counter, int value)
{
    for (int i = 0; i < 3000 && *counter != value; i++)
        usleep(1000);
    assert_int_equal(*counter, value);
}

#define LONG_STREAM "{\"prompt\":\"abcdefgh\",\"max_tokens\":500,\"stream\":true}"
#define LONG_PLAIN "{\"prompt\":\"abcdefgh\",\"max_tokens\":500}"

/* ---- requests and responses -------------------------------------------------------------------
 */

static void serving_answers_pipelined_requests_in_order(void **state)
{
    (void)state;
    int fd = client_open();
    struct buf b = {0};
    for (int i = 0; i < 20; i++)
        buf_printf(&b, "GET /v1/models/%s HTTP/1.1\r\nHost: t\r\nx-request-id: r%d\r\n\r\n",
                   i % 2 ? "toy" : "none", i);
    buf_char(&b, '\0');
    client_send(fd, "%s", b.p);
    for (int i = 0; i < 20; i++) {
        char id[40];
        const char *r = client_response(fd);
        snprintf(id, sizeof(id), "x-request-id: r%d\r\n", i);
        assert_int_equal(client_status(r), i % 2 ? 200 : 404);
        assert_non_null(strstr(r, id));
    }
    buf_free(&b);
    close(fd);
}

static void serving_pipelines_generations(void **state)
{
    (void)state;
    int fd = client_open();
    client_post(fd, "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":2}");
    client_post(fd, "/v1/completions", "{\"prompt\":\"cd\",\"max_tokens\":2,\"stream\":true}");
    client_post(fd, "/v1/completions", "{\"prompt\":\"ef\",\"max_tokens\":2}");
    assert_non_null(strstr(client_response(fd), "\"text\":\"ab\""));
    const char *stream = client_response(fd);
    assert_non_null(strstr(stream, "\"text\":\"c\""));
    assert_non_null(strstr(stream, "data: [DONE]\n\n"));
    assert_non_null(strstr(client_response(fd), "\"text\":\"ef\""));
    close(fd);
}

static void serving_reads_requests_byte_by_byte(void **state)
{
    (void)state;
    int fd = client_open();
    const char *text = "POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n"
                       "\r\nF\r\n{\"prompt\":\"xy\",\r\n11\r\n\"max_tokens\":2  }\r\n0\r\n\r\n";
    for (const char *p = text; *p; p++) {
        client_send(fd, "%c", *p);
        usleep(300);
    }
    const char *r = client_response(fd);
    assert_int_equal(client_status(r), 200);
    assert_non_null(strstr(r, "\"text\":\"xy\""));
    close(fd);
}

static void serving_sends_100_continue_only_for_a_body_it_wants(void **state)
{
    (void)state;
    int fd = client_open();
    client_send(fd, "POST /v1/completions HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\n"
                    "Content-Length: 15\r\n\r\n");
    assert_string_equal(client_until(fd, "\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
    client_send(fd, "{\"prompt\":\"ab\"}");
    assert_int_equal(client_status(client_response(fd)), 200);
    client_send(fd, "POST /v1/completions HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\n"
                    "Content-Length: 100001\r\n\r\n");
    const char *r = client_response(fd);
    assert_int_equal(client_status(r), 413);
    assert_non_null(strstr(r, "Connection: close"));
    assert_true(client_closed(fd));
    close(fd);
    fd = client_open();
    client_send(fd, "POST /v1/completions HTTP/1.1\r\nHost: t\r\nExpect: magic\r\n"
                    "Content-Length: 15\r\n\r\n");
    assert_int_equal(client_status(client_response(fd)), 417);
    close(fd);
}

static void serving_handles_head_options_and_wrong_methods(void **state)
{
    (void)state;
    int fd = client_open();
    client_send(fd, "HEAD /health HTTP/1.1\r\nHost: t\r\n\r\n");
    const char *r = client_until(fd, "\r\n\r\n");
    assert_int_equal(client_status(r), 200);
    assert_null(strstr(r, "Content-Length: 0"));
    client_send(fd, "OPTIONS /v1/completions HTTP/1.1\r\nHost: t\r\n\r\n");
    r = client_until(fd, "\r\n\r\n");
    assert_int_equal(client_status(r), 204);
    assert_non_null(strstr(r, "Allow: POST, OPTIONS\r\n"));
    client_send(fd, "GET /v1/completions HTTP/1.1\r\nHost: t\r\n\r\n");
    r = client_response(fd);
    assert_int_equal(client_status(r), 405);
    assert_non_null(strstr(r, "Allow: POST, OPTIONS\r\n"));
    client_send(fd, "DELETE /health HTTP/1.1\r\nHost: t\r\n\r\n");
    r = client_response(fd);
    assert_non_null(strstr(r, "Allow: GET, HEAD, OPTIONS\r\n"));
    client_send(fd, "GET /nowhere HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_int_equal(client_status(client_response(fd)), 404);
    client_send(fd, "POST /v1/completions HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_int_equal(client_status(client_response(fd)), 411);
    close(fd);
}

static void serving_allows_listed_origins(void **state)
{
    (void)state;
    int fd = client_open();
    client_send(fd, "OPTIONS /v1/completions HTTP/1.1\r\nHost: t\r\nOrigin: https://app.example\r\n"
                    "Access-Control-Request-Method: POST\r\n\r\n");
    const char *r = client_until(fd, "\r\n\r\n");
    assert_non_null(strstr(r, "Access-Control-Allow-Origin: https://app.example\r\n"));
    assert_non_null(strstr(r, "Access-Control-Allow-Headers: authorization"));
    client_send(fd, "GET /health HTTP/1.1\r\nHost: t\r\nOrigin: https://evil.example\r\n\r\n");
    r = client_response(fd);
    assert_int_equal(client_status(r), 200);
    assert_null(strstr(r, "Access-Control"));
    close(fd);
}

/* ---- generation -------------------------------------------------------------------------------
 */

/* The texts of a stream's chunks, joined. */
static void join(const char *stream, char *out, size_t room)
{
    struct api_error e = {0};
    size_t n = 0;
    for (const char *p = strstr(stream, "data: {"); p; p = strstr(p + 1, "data: {")) {
        const char *end = strstr(p, "\n\n");
        cJSON *j = json_parse(p + 6, (size_t)(end - p - 6), &e);
        assert_non_null(j);
        const cJSON *choice = json_get(j, "choices")->child;
        const cJSON *text = choice ? json_get(choice, "text") : NULL;
        if (text)
            n += (size_t)snprintf(out + n, room - n, "%s", text->valuestring);
        cJSON_Delete(j);
    }
}

#define KEEP_STOP                                                   \
    "{\"prompt\":\"abSTOPcd\",\"max_tokens\":40,\"stop\":\"STOP\"," \
    "\"include_stop_str_in_output\":true%s}"

static void serving_streams_what_it_answers_plainly(void **state)
{
    (void)state;
    static const char *const requests[] = {
        "{\"prompt\":\"h\u00e9llo \u4e16\u754c \\ud83d\\ude00\",\"max_tokens\":40%s}",
        "{\"prompt\":\"one STOP two\",\"max_tokens\":40,\"stop\":[\"STOP\",\"zzz\"]%s}",
        "{\"prompt\":\"one STOX two\",\"max_tokens\":40,\"stop\":\"STOP\"%s}",
        KEEP_STOP,
        "{\"prompt\":\"half \xc3\xa9\",\"max_tokens\":6%s}",
        "{\"prompt\":\"the end<|endoftext|>never\",\"max_tokens\":40%s}",
        "{\"prompt\":\"echo\",\"max_tokens\":3,\"echo\":true%s}",
    };
    static const char *const texts[] = {"héllo 世界 😀héllo 世界 \xf0\x9f\x98\x80h",
                                        "one ",
                                        "one STOX twoone STOX twoone STOX twoone ",
                                        "abSTOP",
                                        "half \xef\xbf\xbd",
                                        "the end",
                                        "echoech"};
    int fd = client_open();
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        char json[300], joined[2000];
        struct api_error e = {0};
        snprintf(json, sizeof(json), requests[i], "");
        client_post(fd, "/v1/completions", json);
        const char *body = client_body(client_response(fd));
        cJSON *j = json_parse(body, strlen(body), &e);
        assert_non_null(j);
        char *text = strdup(json_get(json_get(j, "choices")->child, "text")->valuestring);
        cJSON_Delete(j);
        snprintf(json, sizeof(json), requests[i], ",\"stream\":true");
        client_post(fd, "/v1/completions", json);
        const char *r = client_response(fd);
        assert_non_null(strstr(r, "Content-Type: text/event-stream"));
        assert_non_null(strstr(r, "X-Accel-Buffering: no"));
        join(client_body(r), joined, sizeof(joined));
        assert_string_equal(joined, text);
        if (i > 0)
            assert_string_equal(text, texts[i]);
        free(text);
    }
    close(fd);
}

static void serving_gives_every_choice_one_finish(void **state)
{
    (void)state;
    int fd = client_open();
    client_post(fd, "/v1/completions",
                "{\"prompt\":[\"ab\",[99,100]],\"n\":2,\"max_tokens\":3,\"stream\":true,"
                "\"stream_options\":{\"include_usage\":true}}");
    const char *r = client_response(fd);
    int finishes = 0, usages = 0;
    for (const char *p = r; (p = strstr(p, "\"finish_reason\":\"length\"")); p++)
        finishes++;
    for (const char *p = r; (p = strstr(p, "\"usage\":{")); p++)
        usages++;
    assert_int_equal(finishes, 4);
    assert_int_equal(usages, 1);
    assert_non_null(strstr(r, "\"choices\":[],\"usage\":{\"prompt_tokens\":4,"
                              "\"completion_tokens\":12,\"total_tokens\":16"));
    close(fd);
}

static void serving_scores_prompts_for_evaluation(void **state)
{
    (void)state;
    int fd = client_open();
    client_post(fd, "/v1/completions",
                "{\"prompt\":\"a\u00e9b\",\"max_tokens\":0,\"echo\":true,\"logprobs\":1}");
    const char *r = client_response(fd);
    assert_non_null(strstr(r, "\"text\":\"a\u00e9b\""));
    assert_non_null(strstr(r, "\"tokens\":[\"a\",\"bytes:\\\\xc3\",\"bytes:\\\\xa9\",\"b\"]"));
    assert_non_null(strstr(r, "\"text_offset\":[0,1,2,2]"));
    assert_non_null(strstr(r, "\"finish_reason\":\"length\""));
    assert_non_null(strstr(r, "\"completion_tokens\":0"));
    close(fd);
}

static void serving_tokenizes_large_texts_beside_the_loop(void **state)
{
    (void)state;
    int fd = client_open();
    char *json = malloc(90000);
    strcpy(json, "{\"prompt\":\"");
    memset(json + 11, 'x', 80000);
    strcpy(json + 80011, "\"}");
    client_post(fd, "/v1/completions", json);
    const char *r = client_response(fd);
    assert_int_equal(client_status(r), 400);
    assert_non_null(strstr(r, "80000"));
    assert_non_null(strstr(r, "512"));
    assert_non_null(strstr(r, "context_length_exceeded"));
    client_post(fd, "/tokenize", json);
    assert_non_null(strstr(client_response(fd), "\"count\":80000,\"max_model_len\":512"));
    free(json);
    close(fd);
}

/* ---- trouble ----------------------------------------------------------------------------------
 */

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
    assert_non_null(strstr(r, "Retry-After: "));
    assert_int_equal(toy.submitted, 16);
    toy.hold = false;
    for (int i = 0; i < 16; i++) {
        assert_int_equal(client_status(client_response(fds[i])), 200);
        close(fds[i]);
    }
    close(fd);
}

/* All choices or none: what was submitted before the queue was full is taken back. */
static void serving_takes_back_half_submitted_requests(void **state)
{
    (void)state;
    toy.hold = true;
    toy.queue = 0;
    int fd = client_open();
    client_post(fd, "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":2,\"n\":12}");
    assert_int_equal(client_status(client_response(fd)), 429);
    wait_for(&toy.cancelled, 8);
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
    toy.step_us = 5000;
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
    int64_t before = clock_ns();
    int fast = client_open();
    for (int i = 0; i < 50; i++) {
        client_send(fast, "GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
        assert_int_equal(client_status(client_response(fast)), 200);
    }
    assert_true(clock_ns() - before < 2000000000);
    for (int i = 0; i < 300 && serving->metrics.slow_clients == 0; i++)
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
    serving_config.server_header_timeout = 0.2;
    serving_config.server_body_timeout = 0.2;
    serving_config.server_idle_timeout = 0.3;
    serving_start();
    int silent = client_open(), head = client_open(), body = client_open(), idle = client_open();
    client_send(head, "GET /health HTTP/1.1\r\nHo");
    client_send(body, "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 99\r\n\r\n{");
    client_send(idle, "GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_int_equal(client_status(client_response(idle)), 200);
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
    for (int i = 0; i < 50; i++) {
        fds[i] = client_open();
        client_send(fds[i], "GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
        assert_int_equal(client_status(client_response(fds[i])), 200);
    }
    int extra = client_open();
    const char *r = client_response(extra);
    assert_int_equal(client_status(r), 503);
    assert_non_null(strstr(r, "Retry-After"));
    close(extra);
    close(fds[0]);
    for (int i = 0; i < 100; i++) { /* a place is free again */
        usleep(5000);
        extra = client_open();
        client_send(extra, "GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
        if (client_status(client_response(extra)) == 200)
            break;
        close(extra);
    }
    client_send(extra, "GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_int_equal(client_status(client_response(extra)), 200);
    close(extra);
    for (int i = 1; i < 50; i++)
        close(fds[i]);
}

/* ---- start and end ----------------------------------------------------------------------------
 */

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
    usleep(200000);
    client_send(fd, "GET /ready HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_int_equal(client_status(client_response(fd)), 200);
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
    toy.step_us = 5000;
    int fd = client_open(), idle = client_open(), stream = client_open();
    client_post(fd, "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":60}");
    client_post(stream, "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":60,\"stream\":true}");
    client_until(stream, "data: ");
    wait_for(&toy.submitted, 2);
    server_stop(serving);
    const char *r = client_response(fd);
    assert_int_equal(client_status(r), 200);
    assert_non_null(strstr(r, "Connection: close"));
    assert_true(client_closed(idle));
    assert_non_null(strstr(client_until(stream, "data: [DONE]\n\n"), "[DONE]"));
    close(fd);
    close(idle);
    close(stream);
    assert_int_equal(serving_stop(), 0);
    assert_int_equal(toy.cancelled, 0);
}

static void serving_says_that_it_drains_and_takes_nothing_new(void **state)
{
    (void)state;
    toy.hold = true;
    int busy = client_open(), half = client_open();
    client_post(busy, "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":2}");
    client_send(half, "GET /ready HT");
    wait_for(&toy.submitted, 1);
    usleep(50000);
    server_stop(serving);
    usleep(100000);
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

static void serving_cancels_with_an_error_after_the_drain_time(void **state)
{
    (void)state;
    serving_stop();
    serving_config.server_drain_s = 0.2;
    serving_start();
    toy.step_us = 5000;
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

#define TEST(f) cmocka_unit_test_setup_teardown(f, start, stop)

int main(void)
{
    signal(SIGPIPE, SIG_IGN); /* as serve_main does: the loop runs in this process */
    const struct CMUnitTest tests[] = {
        TEST(serving_answers_pipelined_requests_in_order),
        TEST(serving_pipelines_generations),
        TEST(serving_reads_requests_byte_by_byte),
        TEST(serving_sends_100_continue_only_for_a_body_it_wants),
        TEST(serving_handles_head_options_and_wrong_methods),
        TEST(serving_allows_listed_origins),
        TEST(serving_streams_what_it_answers_plainly),
        TEST(serving_gives_every_choice_one_finish),
        TEST(serving_scores_prompts_for_evaluation),
        TEST(serving_tokenizes_large_texts_beside_the_loop),
        TEST(serving_answers_an_early_failure_plainly),
        TEST(serving_refuses_when_the_queue_is_full),
        TEST(serving_takes_back_half_submitted_requests),
        TEST(serving_cancels_for_clients_that_left),
        TEST(serving_notices_a_client_that_left_behind_unread_input),
        TEST(serving_cuts_slow_readers_only),
        TEST(serving_keeps_silent_streams_alive),
        TEST(serving_times_out_slow_requests),
        TEST(serving_turns_away_too_many_connections),
        TEST(serving_says_that_the_model_is_loading),
        TEST(serving_reports_a_stalled_engine),
        TEST(serving_says_that_the_device_is_lost),
        TEST(serving_finishes_what_runs_before_it_stops),
        TEST(serving_says_that_it_drains_and_takes_nothing_new),
        TEST(serving_cancels_with_an_error_after_the_drain_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
