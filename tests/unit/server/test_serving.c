/* SPDX-License-Identifier: Apache-2.0 */
/* test_serving.c - the whole HTTP side over real sockets, with an engine that does as told:
 * requests, responses, generation. What goes wrong, start and end: test_serving_trouble.c. */
#include "serving_world.h"

/* ---- requests and responses ---------------------------------------------------------------- */

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
    const char *text =
        "POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n"
        "Content-Type: application/json\r\n\r\nF\r\n{\"prompt\":\"xy\",\r\n11\r\n\"max_tokens\":2  "
        "}\r\n0\r\n\r\n";
    client_send(fd, "\r"); /* an empty line before a request is skipped, in two pieces too */
    for (int i = 0; i < 60000 && !serving->metrics.bytes_in; i++)
        usleep(1000);
    client_send(fd, "\n");
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
    client_send(fd, "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
                    "Expect: 100-continue\r\n"
                    "Content-Length: 15\r\n\r\n");
    assert_string_equal(client_until(fd, "\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
    client_send(fd, "{\"prompt\":\"ab\"}");
    assert_int_equal(client_status(client_response(fd)), 200);
    client_send(fd, "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
                    "Expect: 100-continue\r\n"
                    "Content-Length: 100001\r\n\r\n");
    const char *r = client_response(fd);
    assert_int_equal(client_status(r), 413);
    assert_non_null(strstr(r, "Connection: close"));
    assert_true(client_closed(fd));
    close(fd);
    fd = client_open();
    client_send(fd, "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
                    "Expect: magic\r\n"
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
    /* OpenAI's SDK in a browser: one header that is not allowed, and nothing is sent at all. */
    client_send(fd, "OPTIONS /v1/completions HTTP/1.1\r\nHost: t\r\nOrigin: https://app.example\r\n"
                    "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: "
                    "authorization,content-type,x-stainless-os\r\n\r\n");
    r = client_until(fd, "\r\n\r\n");
    assert_non_null(strstr(r, "Access-Control-Allow-Headers: "
                              "authorization,content-type,x-stainless-os\r\n"));
    client_send(fd, "OPTIONS /health HTTP/1.1\r\nHost: t\r\nOrigin: https://evil.example\r\n"
                    "Access-Control-Request-Headers: x-stainless-os\r\n\r\n");
    assert_null(strstr(client_until(fd, "\r\n\r\n"), "Access-Control"));
    client_send(fd, "GET /health HTTP/1.1\r\nHost: t\r\nOrigin: https://evil.example\r\n\r\n");
    r = client_response(fd);
    assert_int_equal(client_status(r), 200);
    assert_null(strstr(r, "Access-Control"));
    close(fd);
}

/* ---- generation ---------------------------------------------------------------------------- */

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
        "{\"prompt\":[181,132,97,232],\"max_tokens\":3,\"echo\":true%s}", /* within a character */
        "{\"prompt\":[97,232],\"max_tokens\":1,\"echo\":true%s}",
        "{\"prompt\":[97,232],\"max_tokens\":1%s}",
    };
    static const char *const texts[] = {"héllo 世界 😀héllo 世界 \xf0\x9f\x98\x80h",
                                        "one ",
                                        "one STOX twoone STOX twoone STOX twoone ",
                                        "abSTOP",
                                        "half \xef\xbf\xbd",
                                        "the end",
                                        "echoech",
                                        "\357\277\275\357\277\275a资a",
                                        "a\357\277\275a",
                                        "a"};
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

/* The toy answers `<|im_start|>user...`, and the s ends it. */
#define UNTIL_S                                                                \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"logprobs\":true," \
    "\"stop_token_ids\":[115]%s}"

static void serving_lists_no_logprob_of_a_chats_end(void **state)
{
    (void)state;
    static const struct {
        const char *more;
        bool end;
    } rows[] = {{"", false},
                {",\"skip_special_tokens\":false", true},
                {",\"stream\":true,\"stream_options\":{\"include_usage\":true}", false}};
    int fd = client_open();
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        char json[300];
        snprintf(json, sizeof(json), UNTIL_S, rows[i].more);
        client_post(fd, "/v1/chat/completions", json);
        const char *r = client_response(fd);
        assert_int_equal(client_status(r), 200);
        assert_non_null(strstr(r, "{\"token\":\"u\""));
        assert_int_equal(strstr(r, "{\"token\":\"s\"") != NULL, rows[i].end);
        assert_non_null(strstr(r, "\"completion_tokens\":3")); /* it counts */
        assert_non_null(strstr(r, "\"finish_reason\":\"stop\",\"stop_reason\":115"));
    }
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
        TEST(serving_lists_no_logprob_of_a_chats_end),
        TEST(serving_tokenizes_large_texts_beside_the_loop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
