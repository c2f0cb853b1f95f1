/* SPDX-License-Identifier: Apache-2.0 */
/* The adviser on recordings, and who shares its line: a store can be replayed, moves and the
 * agent's texts are asked for beside advice, tokens and money are counted by task. */
#include "specializer/store/store_sql.h"
#include "tests/unit/specializer/adviser/adviser_world.h"

/* ---- replay -------------------------------------------------------------------------------- */

/* An exchange with the server is in the store afterwards. */
static void record_one(void)
{
    struct adviser *a = open_server();
    exchange(a);
    adviser_close(a);
}

static struct adviser *open_replay(void)
{
    char url[300];
    snprintf(url, sizeof url, "replay:%s", store_path(store));
    return open_url(url);
}

static void a_store_replays_its_exchanges(void **unused)
{
    (void)unused;
    struct advice advice;
    record_one();
    struct adviser *a = open_replay();
    assert_true(adviser_is_remote(a));
    exchange(a);
    assert_true(ask(a, &advice));
    assert_string_equal(advice.label, "as the model sees it");
    advice_free(&advice);
    assert_int_equal(atomic_load(&server.requests), 1);
    assert_int_equal(last_exchange()->n, 1); /* what is replayed is not recorded again */
    for (int32_t i = 1; i < 13; i++)
        search_learn(&w.search, i, 1);
    exchange(a);
    assert_true(metric(a, "whet_adviser_faults_total{reason=\"no_record\"} ") == 1);
    adviser_close(a);
}

/* A row whose question is lost answers nothing, and the others do. */
static void a_store_replays_what_is_left_of_its_exchanges(void **unused)
{
    (void)unused;
    struct advice advice;
    record_one();
    assert_int_equal(store_run(store, NULL,
                               "INSERT INTO exchange(request, reply, seconds)"
                               " SELECT NULL, reply, -1 FROM exchange",
                               ""),
                     0);
    struct adviser *a = open_replay();
    exchange(a);
    assert_true(ask(a, &advice));
    advice_free(&advice);
    adviser_close(a);
}

#define RECORDING "replay:%s/recorded.jsonl"

/* The URL of a recording of these lines, until the next one; its path follows "replay:". */
static const char *recorded(const char *lines)
{
    static char url[300];
    snprintf(url, sizeof url, RECORDING, folder);
    FILE *out = fopen(strchr(url, ':') + 1, "wb");
    assert_non_null(out);
    assert_true(fputs(lines, out) >= 0 && fclose(out) == 0);
    return url;
}

/* The same, where "%s" of the lines is what the server would answer, as a JSON string. */
static const char *recorded_content(const char *lines)
{
    cJSON *content = cJSON_CreateString(server.content);
    char *quoted = cJSON_PrintUnformatted(content), *text = NULL;
    const char *hole = strstr(lines, "%s");
    assert_true(asprintf(&text, "%.*s%s%s", (int)(hole - lines), lines, quoted, hole + 2) > 0);
    const char *url = recorded(text);
    cJSON_Delete(content);
    free(quoted);
    free(text);
    return url;
}

static void recorded_lines_are_replayed_in_order_and_as_late(void **unused)
{
    (void)unused;
    struct advice advice;
    const char *url = recorded_content(
        "{\"region\":\"head/m1\",\"reply\":\"not asked for\"}\n\n"
        "{\"region\":\"mlp_out/m4\",\"kind\":\"moves\",\"reply\":\"another kind\"}\n"
        "{\"region\":\"mlp_out/m4\",\"reply\":%s,\"seconds\":0.3}\n");
    struct adviser *a = open_url(url);
    int64_t start = clock_ns();
    exchange(a);
    assert_true((double)(clock_ns() - start) >= 0.28e9);
    assert_true(ask(a, &advice));
    advice_free(&advice);
    adviser_close(a);
    config.adviser_timeout = 0.1; /* now the recorded one is too slow */
    a = open_url(url);
    exchange(a);
    assert_true(metric(a, "whet_adviser_faults_total{reason=\"timeout\"} ") == 1);
    adviser_close(a);
}

/* A kernel that takes an hour to write is under way, and advice comes all the same; but both count.
 */
static void the_agent_has_a_line_of_its_own(void **unused)
{
    (void)unused;
    struct advice advice;
    const char *url = recorded_content(
        "{\"region\":\"mlp_out/m4\",\"kind\":\"plan\",\"reply\":\"x\",\"seconds\":3600}\n"
        "{\"region\":\"mlp_out/m4\",\"reply\":%s}\n");
    free(config.specializer_agentic);
    config.specializer_agentic = strdup("on");
    config.adviser_calls_per_hour = 2;
    struct adviser *a = open_url(url);
    struct llm *l = adviser_llm(a);
    struct llm_question q = {
        .user = LLM_AGENT,
        .task = strdup("write"),
        .document = strdup("{\"kind\":\"plan\",\"region\":\"mlp_out/m4\"}"),
        .style = {.max_tokens = 100, .timeout = 7200},
    };
    assert_int_equal(llm_ask(l, &q), HOLD_NOT);
    assert_int_equal(llm_hold(l, LLM_AGENT, 0), HOLD_BUSY);
    while (!ask(a, &advice)) { /* as soon as it was carried, not in an hour */
        advice_free(&advice);
        usleep(1000);
    }
    advice_free(&advice);
    assert_int_equal(llm_hold(l, LLM_AGENT, 0), HOLD_BUSY);
    assert_int_equal(llm_hold(l, LLM_ADVISER, 0), HOLD_CALLS); /* one spent, one reserved */
    adviser_close(a);
}

/* The writer of kernels, whose questions are long, leaves advice a part of the hour. */
static void kernels_take_no_more_than_their_share_of_the_hour(void **unused)
{
    (void)unused;
    const char *url = recorded("{\"region\":\"mlp_out/m4\",\"kind\":\"plan\",\"reply\":\"x\"}\n"
                               "{\"region\":\"mlp_out/m4\",\"kind\":\"plan\",\"reply\":\"x\"}\n");
    free(config.specializer_agentic);
    config.specializer_agentic = strdup("on");
    config.adviser_calls_per_hour = 3;
    config.adviser_tokens_per_hour = 1000;
    config.agentic_share = 0.5;
    struct adviser *a = open_url(url);
    struct llm *l = adviser_llm(a);
    assert_int_equal(llm_hold(l, LLM_AGENT, 501), HOLD_TOKENS);
    assert_int_equal(llm_hold(l, LLM_AGENT, 500), HOLD_NOT);
    assert_int_equal(llm_hold(l, LLM_ADVISER, 1000), HOLD_NOT);
    for (int i = 0; i < 2; i++) {
        const struct answer *answer;
        struct llm_question q = {
            .user = LLM_AGENT,
            .task = strdup("write"),
            .document = strdup("{\"kind\":\"plan\",\"region\":\"mlp_out/m4\"}"),
            .style = {.max_tokens = 10, .timeout = 10},
        };
        assert_int_equal(llm_ask(l, &q), HOLD_NOT);
        while (!llm_over(l, LLM_AGENT, &answer))
            usleep(1000);
        llm_settle(l, LLM_AGENT, true, "accepted", NULL);
    }
    assert_int_equal(llm_hold(l, LLM_AGENT, 0), HOLD_CALLS); /* half of three, rounded up */
    assert_int_equal(llm_hold(l, LLM_ADVISER, 0), HOLD_NOT);
    adviser_close(a);
}

static struct adviser_replay *open_recording(const char *lines)
{
    struct err err;
    struct adviser_replay *r = adviser_replay_open(strchr(recorded(lines), ':') + 1, &err);
    assert_non_null(r);
    return r;
}

static void assert_answer(struct adviser_replay *r, const char *document, const char *text)
{
    struct answer answer;
    adviser_replay_next(r, document, &answer);
    if (text)
        assert_string_equal(answer.text, text);
    else
        assert_int_equal(answer.fault, CALL_NO_RECORD);
    free(answer.text);
}

#define ASKED(measured) \
    "{\"regions\":[{\"region\":\"head/m1\",\"results\":{\"measured\":" measured "}}]}"

/* Whoever asks in another order than the recording, or more than once, is told what fits. */
static void a_recording_answers_by_the_state_it_was_asked_in(void **unused)
{
    (void)unused;
    struct adviser_replay *new = adviser_replay_new();
    char *lines[3], *all = NULL;
    const char *const asked[] = {ASKED("0"), ASKED("6"), ASKED("12")};
    for (int i = 0; i < 3; i++) {
        char text[] = "reply 0";
        text[6] = (char)('0' + i);
        lines[i] = adviser_replay_keep(new, asked[i], &(struct answer){.text = text}, NULL);
    }
    assert_true(asprintf(&all, "%s\n%s\n%s\n", lines[0], lines[1], lines[2]) > 0);
    struct adviser_replay *r = open_recording(all);
    assert_answer(r, asked[2], "reply 2");
    assert_answer(r, ASKED("18"), "reply 0"); /* the first that is left */
    assert_answer(r, asked[2], "reply 2");
    assert_answer(r, asked[0], "reply 0");
    assert_answer(r, ASKED("18"), "reply 1");
    assert_answer(r, ASKED("18"), NULL);
    adviser_replay_close(r);
    r = open_recording(/* as an export of a store's table */
                       "{\"request\":\"{\\\"regions\\\":[{\\\"region\\\":\\\"head/"
                       "m1\\\",\\\"results"
                       "\\\":{\\\"measured\\\":6}}]}\",\"reply\":\"a\"}\n"
                       "{\"request\":\"{}\",\"reply\":\"\"}\n");
    assert_answer(r, asked[1], "a");
    adviser_replay_close(r);
    adviser_replay_close(new);
    for (int i = 0; i < 3; i++)
        free(lines[i]);
    free(all);
}

/* The state of the world's questions: for moves from point `node`, or (below 0) for advice. */
static void world_state(int32_t node, char out[17])
{
    struct lineage l = {.id = {node, -1, -1}, .score = {1}};
    char *document = node < 0 ? adviser_request_text(&w.request, &w.heuristic)
                              : adviser_moves_text(&w.request, &l, 1);
    struct adviser_replay *r = adviser_replay_new();
    char *line = adviser_replay_keep(r, document, &(struct answer){.text = "reply"}, NULL);
    cJSON *o = cJSON_Parse(line);
    snprintf(out, 17, "%s", cJSON_GetObjectItem(o, "state")->valuestring);
    cJSON_Delete(o);
    free(line);
    free(document);
    adviser_replay_close(r);
}

/* Another machine asks, at another time, with a cost model that has learned: the same state. One
 * more measurement, another result, a lesson, another node: another one. */
static void a_state_is_what_is_known_and_no_more(void **unused)
{
    (void)unused;
    char state[8][17];
    const struct advice_request before = w.request;
    const struct machine *machine = w.cost.machine;
    struct machine other = {.device = "another", .read_bandwidth = 9e9, .peak_flops = 7e10};
    search_learn(&w.search, 7, 1.5);
    world_state(-1, state[0]);
    w.cost.machine = &other;
    w.request.run_s = w.request.eager_s = 9e-6;
    w.request.share = w.request.m = 0.5;
    w.request.lives = 1;
    space_predict(w.space, &w.cost);
    world_state(-1, state[1]);
    assert_string_equal(state[0], state[1]);
    world_state(5, state[1]);
    world_state(6, state[2]);
    search_learn(&w.search, 8, 1.25);
    world_state(-1, state[3]);
    w.search.speed[8] = 1.75f;
    world_state(-1, state[4]);
    w.request.lesson = &(struct lesson){.slot = "head/m1", .id = "head:1", .speed = 2};
    w.request.lessons = 1;
    world_state(-1, state[5]);
    w.dead[0] = (struct dead_end){.id = 9, .reason = "build"};
    w.request.deads = 1;
    world_state(-1, state[6]);
    for (int i = 0; i < 7; i++)
        for (int k = i + 1; k < 7; k++)
            assert_string_not_equal(state[i], state[k]);
    w.cost.machine = machine;
    w.request = before;
    space_predict(w.space, &w.cost);
}

static void a_recording_that_is_none_is_refused(void **unused)
{
    (void)unused;
    static const char *const lines[] = {"{\"reply\":\"whose?\"}\n",
                                        "{\"region\":\"mlp_in\",\"reply\":\"a\\u00g1 b\"}\n", ""};
    char url[300];
    snprintf(url, sizeof url, RECORDING, folder);
    unlink(strchr(url, ':') + 1);
    for (int i = 0; i < 3; i++) { /* no file; no exchange in it; half of one */
        struct adviser *a = open_url(url);
        assert_false(adviser_is_remote(a));
        ask_and_forget(a);
        adviser_close(a);
        recorded(lines[i]);
    }
    assert_int_equal(access(strchr(url, ':') + 1, F_OK), 0); /* it was not ours to move */
}

/* ---- moves --------------------------------------------------------------------------------- */

static void moves_are_asked_for_and_given_once(void **unused)
{
    (void)unused;
    char id[ID_TEXT];
    struct adviser *a = open_server();
    struct moves m;
    struct lineage l = {.id = {5, 6, -1}, .score = {1, 0.5, 0}, .measured = {true, false, false}};
    exchange(a); /* opens the slot's desk */
    adviser_id_text(w.space, 5, id);
    char *text = NULL;
    assert_true(asprintf(&text,
                         "{\"version\":1,\"nodes\":[{\"node\":\"%s\",\"changes\":[\"ROWS=2\","
                         "\"faster please\"]}]}",
                         id) > 0);
    stand_in_say(&server, text);
    assert_int_equal(adviser_moves(a, &w.request, 5, &m), 0);
    adviser_want_moves(a, &w.request, &l, 1);
    assert_true(adviser_wait(a, PATIENCE_S));
    assert_int_equal(adviser_moves(a, &w.request, 6, &m), 0);
    assert_int_equal(adviser_moves(a, &w.request, 5, &m), 1);
    assert_int_equal(m.n, 1);
    assert_string_equal(m.change[0].knob, "ROWS");
    assert_int_equal(adviser_moves(a, &w.request, 5, &m), 0);
    assert_true(stand_in_heard(&server, "grandparent"));
    assert_true(REQUESTS("accepted") == 2);
    struct point p;
    const struct template *t = space_template(w.space, 5);
    space_point(w.space, 5, &p);
    p.value[template_knob(t, "ROWS")] = 2;
    int legal = space_find(w.space, t, &p) >= 0;
    assert_true(metric(a, "whet_adviser_changes_total{result=\"kept\"} ") == legal);
    assert_true(metric(a, "whet_adviser_changes_total{result=\"dropped\"} ") == 2 - legal);
    adviser_close(a);
}

/* One piece of advice that is read, one reply about moves that is not. */
static void replies_tokens_and_money_are_counted_by_task(void **unused)
{
    (void)unused;
    struct lineage l = {.id = {5, -1, -1}, .score = {1}};
    config.agentic_price_in = 10;
    config.agentic_price_out = 1000;
    struct adviser *a = open_server();
    exchange(a);
    stand_in_say(&server, strdup("no idea"));
    assert_true(adviser_want_moves(a, &w.request, &l, 1));
    assert_true(adviser_wait(a, PATIENCE_S));
    static const struct {
        const char *sample;
        double value;
    } told[] = {
        {"whet_adviser_replies_total{kind=\"advice\",outcome=\"accepted\"} ", 1},
        {"whet_adviser_replies_total{kind=\"advice\",outcome=\"rejected\"} ", 0},
        {"whet_adviser_replies_total{kind=\"moves\",outcome=\"rejected\"} ", 1},
        {"whet_llm_questions_total{task=\"advice\",reply=\"usable\"} ", 1},
        {"whet_llm_questions_total{task=\"moves\",reply=\"unusable\"} ", 1},
        {"whet_llm_questions_total{task=\"plan\",reply=\"usable\"} ", 0},
        {"whet_llm_tokens_total{task=\"advice\",direction=\"in\"} ", 1234},
        {"whet_llm_tokens_total{task=\"moves\",direction=\"out\"} ", 56},
    };
    for (size_t i = 0; i < sizeof told / sizeof *told; i++)
        assert_true(metric(a, told[i].sample) == told[i].value);
    assert_float_equal(metric(a, "whet_llm_cost_total{task=\"moves\"} "), 1234e-5 + 56e-3, 1e-9);
    adviser_close(a);
}

/* Advice is wanted anew and moves too: who found the line taken has the next turn. */
static void moves_and_advice_take_turns(void **unused)
{
    (void)unused;
    struct adviser *a = open_server();
    struct lineage l = {.id = {5, 6, -1}, .score = {1, 0.5, 0}, .measured = {true, false, false}};
    exchange(a);
    for (int32_t i = 1; i < 13; i++)
        search_learn(&w.search, i, 1);
    atomic_store(&server.mode, STAND_IN_HELD);
    ask_and_forget(a); /* on news */
    assert_false(adviser_want_moves(a, &w.request, &l, 1));
    atomic_store(&server.mode, STAND_IN_OK);
    assert_true(adviser_wait(a, PATIENCE_S));
    for (int32_t i = 13; i < 25; i++)
        search_learn(&w.search, i, 1);
    stand_in_say(&server, strdup("{\"version\":1,\"nodes\":[]}"));
    ask_and_forget(a); /* there is news again, but it is the turn of moves */
    assert_int_equal(atomic_load(&server.requests), 2);
    assert_true(adviser_want_moves(a, &w.request, &l, 1));
    assert_true(adviser_wait(a, PATIENCE_S));
    assert_int_equal(atomic_load(&server.requests), 3);
    assert_true(stand_in_heard(&server, "kernel_moves"));
    ask_and_forget(a); /* and now that of advice */
    assert_true(adviser_wait(a, PATIENCE_S));
    assert_int_equal(atomic_load(&server.requests), 4);
    assert_true(stand_in_heard(&server, "kernel_advice"));
    adviser_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_store_replays_its_exchanges),
        TEST(a_store_replays_what_is_left_of_its_exchanges),
        TEST(recorded_lines_are_replayed_in_order_and_as_late),
        TEST(the_agent_has_a_line_of_its_own),
        TEST(kernels_take_no_more_than_their_share_of_the_hour),
        TEST(a_recording_answers_by_the_state_it_was_asked_in),
        TEST(a_state_is_what_is_known_and_no_more),
        TEST(a_recording_that_is_none_is_refused),
        TEST(moves_are_asked_for_and_given_once),
        TEST(replies_tokens_and_money_are_counted_by_task),
        TEST(moves_and_advice_take_turns),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
