/* SPDX-License-Identifier: Apache-2.0 */
/* test_params.c - every member of a completion request: defaults, ranges, refusals. */
#include "tests/unit/unit.h"

#include <stdio.h>
#include <string.h>

#include "server/params.h"

static const struct params_model model = {"m", 1000};

static int read(struct params *p, const char *json, bool chat, struct api_error *e)
{
    *e = (struct api_error){0};
    cJSON *body = json_parse(json, strlen(json), e);
    if (!body)
        fail_msg("not JSON: %s", json);
    int rc = params_read(p, body, chat, &model, e);
    cJSON_Delete(body);
    return rc;
}

struct refusal {
    const char *json, *param;
};

static void expect_refusals(const struct refusal *r, size_t n, bool chat, int status)
{
    for (size_t i = 0; i < n; i++) {
        struct params p;
        struct api_error e;
        if (read(&p, r[i].json, chat, &e) == 0)
            fail_msg("accepted: %s", r[i].json);
        if (e.status != status || strcmp(e.param, r[i].param) != 0)
            fail_msg("%s: got %d, param %s", r[i].json, e.status, e.param);
        assert_non_null(strstr(e.message, r[i].param));
        params_free(&p);
    }
}

static void params_have_openai_defaults(void **state)
{
    (void)state;
    struct params p;
    struct api_error e;
    assert_int_equal(read(&p, "{}", false, &e), 0);
    assert_int_equal(p.n, 1);
    assert_int_equal(p.max_tokens, -1);
    assert_false(p.stream);
    assert_false(p.seeded);
    assert_false(p.logprobs);
    assert_int_equal(p.sampling.top_logprobs, -1);
    assert_true(p.sampling.temperature == 1.0f);
    assert_true(p.sampling.top_p == 1.0f);
    assert_true(p.sampling.repetition_penalty == 1.0f);
    assert_int_equal(p.sampling.top_k, 0);
    params_free(&p);
}

static float sampling_number(const struct params *p, size_t at)
{
    float f;
    memcpy(&f, (const char *)&p->sampling + at, sizeof f);
    return f;
}

/* One number of kernels/sampling.h, `at` its place: absent, at the ends of its range, beyond. */
static void check_number(const char *name, size_t at, double value, double least, double most)
{
    const double given[] = {least, most, least - 1, most + 1};
    struct params p;
    struct api_error e;
    assert_int_equal(read(&p, "{\"prompt\":\"x\"}", false, &e), 0);
    assert_true(sampling_number(&p, at) == (float)value);
    params_free(&p);
    for (int i = 0; i < 4; i++) {
        char json[128];
        snprintf(json, sizeof json, "{\"prompt\":\"x\",\"%s\":%.9g}", name, given[i]);
        int r = read(&p, json, false, &e);
        float much = sampling_number(&p, at) - (float)given[i]; /* top_p: 0 is the least above it */
        if (r ? strcmp(e.param, name) != 0 : i > 1 || much < 0 || much > 1e-6f)
            fail_msg("%s: %s", json, r ? e.message : "taken");
        params_free(&p);
    }
}

static void params_give_every_sampling_number_its_default_and_range(void **state)
{
    (void)state;
#define CHECK_NUMBER(name, value, least, most) \
    check_number(#name, offsetof(struct sampling, name), value, least, most);
    SAMPLING_NUMBERS(CHECK_NUMBER)
}

static void params_tolerate_nulls_and_unknown_members(void **state)
{
    (void)state;
    struct params p;
    struct api_error e;
    const char *json =
        "{\"model\":null,\"n\":null,\"max_tokens\":null,\"temperature\":null,"
        "\"stop\":null,\"stream\":null,\"stream_options\":null,\"logprobs\":null,"
        "\"logit_bias\":null,\"seed\":null,\"tools\":null,\"response_format\":null,"
        "\"best_of\":null,\"suffix\":null,\"user\":null,\"never_heard_of\":{\"a\":1},"
        "\"tools\":[],\"suffix\":\"\"}";
    assert_int_equal(read(&p, json, false, &e), 0);
    params_free(&p);
    assert_int_equal(read(&p, json, true, &e), 0);
    params_free(&p);
}

/* Members that clients always send, with what they mean by "not". */
static void params_take_what_constrains_nothing(void **state)
{
    (void)state;
    static const char *const said[] = {
        "{\"bad_words\":[],\"allowed_token_ids\":null,\"regex\":null,\"use_beam_search\":false}",
        "{\"truncate_prompt_tokens\":null,\"prompt_logprobs\":null,\"echo\":false}",
        "{\"logits_processors\":[],\"moderation\":null,\"documents\":[]}",
        "{\"web_search_options\":null}",
        "{\"return_tokens_as_token_ids\":false,\"lora_path\":\"\",\"web_search_options\":false}",
        "{\"tools\":[],\"tool_choice\":\"none\",\"function_call\":\"none\"}",
        "{\"tools\":null,\"tool_choice\":\"auto\",\"function_call\":\"auto\"}",
        "{\"tool_choice\":null,\"function_call\":null,\"modalities\":null}",
        "{\"modalities\":[\"text\"]}",
        "{\"modalities\":[]}",
        "{\"response_format\":{},\"best_of\":false}",
        "{\"response_format\":\"\",\"best_of\":[]}",
        "{\"response_format\":false,\"best_of\":\"\"}",
        "{\"response_format\":[],\"best_of\":{}}",
    };
    struct params p;
    struct api_error e;
    for (size_t i = 0; i < sizeof said / sizeof *said; i++)
        for (int chat = 0; chat < 2; chat++) {
            if (read(&p, said[i], chat, &e))
                fail_msg("%s: %s", said[i], e.message);
            params_free(&p);
        }
}

static void params_read_every_member(void **state)
{
    (void)state;
    struct params p;
    struct api_error e;
    assert_int_equal(
        read(&p,
             "{\"model\":\"m\",\"n\":2,\"best_of\":2,\"max_tokens\":9,\"min_tokens\":3,"
             "\"temperature\":0.5,\"top_p\":0.25,\"min_p\":0.125,\"top_k\":-1,\"seed\":-5,"
             "\"presence_penalty\":-2,\"frequency_penalty\":2,\"repetition_penalty\":1.5,"
             "\"logit_bias\":{\"7\":-100,\"999\":1.5},\"stop\":[\"a\",\"bc\"],"
             "\"stop_token_ids\":[3,4],\"logprobs\":5,\"echo\":true,\"stream\":true,"
             "\"stream_options\":{\"include_usage\":true},\"ignore_eos\":true,"
             "\"include_stop_str_in_output\":true,\"return_token_ids\":true,"
             "\"skip_special_tokens\":false,\"response_format\":{\"type\":\"text\"}}",
             false, &e),
        0);
    assert_int_equal(p.n, 2);
    assert_int_equal(p.max_tokens, 9);
    assert_int_equal(p.min_tokens, 3);
    assert_true(p.seeded);
    assert_true(p.sampling.seed == (uint64_t)-5);
    assert_true(p.sampling.temperature == 0.5f && p.sampling.top_p == 0.25f);
    assert_true(p.sampling.min_p == 0.125f && p.sampling.repetition_penalty == 1.5f);
    assert_true(p.sampling.presence_penalty == -2 && p.sampling.frequency_penalty == 2);
    assert_int_equal(p.sampling.top_k, 0);
    assert_int_equal(p.sampling.biases, 2);
    assert_int_equal(p.sampling.bias[1].id, 999);
    assert_true(p.sampling.bias[1].bias == 1.5f);
    assert_int_equal(p.stops, 2);
    assert_string_equal(p.stop[1], "bc");
    assert_int_equal(p.stop_tokens, 2);
    assert_int_equal(p.sampling.top_logprobs, 5);
    assert_true(p.logprobs && p.echo && p.stream && p.include_usage && p.ignore_eos);
    assert_true(p.include_stop && p.return_token_ids && p.keep_special);
    params_free(&p);
    assert_int_equal(
        read(&p, "{\"stop\":\"x\",\"max_completion_tokens\":4,\"logprobs\":true}", true, &e), 0);
    assert_int_equal(p.stops, 1);
    assert_int_equal(p.max_tokens, 4);
    assert_int_equal(p.sampling.top_logprobs, 0);
    params_free(&p);
    assert_int_equal(read(&p, "{\"top_p\":0}", false, &e), 0);
    assert_true(p.sampling.top_p > 0); /* the sampler wants more than 0 */
    params_free(&p);
}

/* Bodies, and the member that the refusal names. */
static const struct refusal refused_by_both[] = {
    {"{\"model\":3}", "model"},
    {"{\"user\":3}", "user"},
    {"{\"n\":0}", "n"},
    {"{\"n\":-1}", "n"},
    {"{\"n\":1.5}", "n"},
    {"{\"n\":\"1\"}", "n"},
    {"{\"n\":257}", "n"},
    {"{\"n\":true}", "n"},
    {"{\"best_of\":3}", "best_of"},
    {"{\"max_tokens\":-1}", "max_tokens"},
    {"{\"max_tokens\":1e10}", "max_tokens"},
    {"{\"max_tokens\":\"5\"}", "max_tokens"},
    {"{\"max_tokens\":2.5}", "max_tokens"},
    {"{\"max_completion_tokens\":-1}", "max_completion_tokens"},
    {"{\"max_tokens\":4,\"min_tokens\":5}", "min_tokens"},
    {"{\"temperature\":-0.1}", "temperature"},
    {"{\"temperature\":2.1}", "temperature"},
    {"{\"temperature\":1e999}", "temperature"},
    {"{\"temperature\":\"hot\"}", "temperature"},
    {"{\"temperature\":[]}", "temperature"},
    {"{\"top_p\":1.1}", "top_p"},
    {"{\"top_p\":-0.5}", "top_p"},
    {"{\"min_p\":2}", "min_p"},
    {"{\"top_k\":-2}", "top_k"},
    {"{\"top_k\":0.5}", "top_k"},
    {"{\"presence_penalty\":2.5}", "presence_penalty"},
    {"{\"frequency_penalty\":-2.5}", "frequency_penalty"},
    {"{\"repetition_penalty\":0}", "repetition_penalty"},
    {"{\"seed\":\"a\"}", "seed"},
    {"{\"seed\":1.5}", "seed"},
    {"{\"seed\":1e300}", "seed"},
    {"{\"seed\":9223372036854775808}", "seed"},
    {"{\"seed\":-9223372036854775809}", "seed"},
    {"{\"stop\":3}", "stop"},
    {"{\"stop\":[\"\"]}", "stop"},
    {"{\"stop\":\"\"}", "stop"},
    {"{\"stop\":[1]}", "stop"},
    {"{\"stop\":[null]}", "stop"},
    {"{\"stop\":\"a\\u0000\"}", "stop"},
    {"{\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"10\",\"11\",\"12\","
     "\"13\",\"14\",\"15\",\"16\",\"17\"]}",
     "stop"},
    {"{\"stop_token_ids\":5}", "stop_token_ids"},
    {"{\"stop_token_ids\":[1000]}", "stop_token_ids"},
    {"{\"stop_token_ids\":[-1]}", "stop_token_ids"},
    {"{\"stop_token_ids\":[\"1\"]}", "stop_token_ids"},
    {"{\"logit_bias\":[]}", "logit_bias"},
    {"{\"logit_bias\":{\"x\":1}}", "logit_bias"},
    {"{\"logit_bias\":{\"\":1}}", "logit_bias"},
    {"{\"logit_bias\":{\"1000\":1}}", "logit_bias"},
    {"{\"logit_bias\":{\"-1\":1}}", "logit_bias"},
    {"{\"logit_bias\":{\"1\":101}}", "logit_bias"},
    {"{\"logit_bias\":{\"1\":\"a\"}}", "logit_bias"},
    {"{\"stream\":1}", "stream"},
    {"{\"stream_options\":{}}", "stream_options"},
    {"{\"stream\":true,\"stream_options\":3}", "stream_options"},
    {"{\"stream\":true,\"stream_options\":{\"include_usage\":1}}", "include_usage"},
    {"{\"ignore_eos\":\"yes\"}", "ignore_eos"},
    {"{\"return_token_ids\":1}", "return_token_ids"},
    {"{\"tools\":[{\"type\":\"function\"}]}", "tools"},
    {"{\"functions\":[{}]}", "functions"},
    {"{\"guided_regex\":\"a+\"}", "guided_regex"},
    {"{\"bad_words\":[\"a\"]}", "bad_words"},
    {"{\"allowed_token_ids\":[1]}", "allowed_token_ids"},
    {"{\"regex\":\"a+\"}", "regex"},
    {"{\"truncate_prompt_tokens\":5}", "truncate_prompt_tokens"},
    {"{\"use_beam_search\":true}", "use_beam_search"},
    {"{\"prompt_logprobs\":0}", "prompt_logprobs"},
    {"{\"prompt_embeds\":\"AAAA\"}", "prompt_embeds"},
    {"{\"return_tokens_as_token_ids\":true}", "return_tokens_as_token_ids"},
    {"{\"logits_processors\":[\"a.b\"]}", "logits_processors"},
    {"{\"custom_logit_processor\":\"x\"}", "custom_logit_processor"},
    {"{\"lora_path\":\"a\"}", "lora_path"},
    {"{\"ebnf\":\"root ::= x\"}", "ebnf"},
    {"{\"stop_regex\":\"a+\"}", "stop_regex"},
    {"{\"moderation\":{\"model\":\"m\"}}", "moderation"},
    {"{\"web_search_options\":{}}", "web_search_options"},
    {"{\"web_search_options\":{\"search_context_size\":\"low\"}}", "web_search_options"},
    {"{\"response_format\":{\"type\":\"json_object\"}}", "response_format"},
    {"{\"response_format\":{\"type\":5}}", "response_format"},
    {"{\"response_format\":true}", "response_format"},
    {"{\"response_format\":\"text\"}", "response_format"},
};

static const struct refusal refused_by_completions[] = {
    {"{\"logprobs\":21}", "logprobs"},   {"{\"logprobs\":-1}", "logprobs"},
    {"{\"logprobs\":true}", "logprobs"}, {"{\"echo\":1}", "echo"},
    {"{\"suffix\":\"x\"}", "suffix"},    {"{\"min_tokens\":17}", "min_tokens"},
};

static const struct refusal refused_by_chat[] = {
    {"{\"logprobs\":5}", "logprobs"},
    {"{\"top_logprobs\":5}", "top_logprobs"},
    {"{\"logprobs\":true,\"top_logprobs\":21}", "top_logprobs"},
    {"{\"logprobs\":true,\"top_logprobs\":-1}", "top_logprobs"},
    {"{\"max_tokens\":0}", "max_tokens"},
    {"{\"tool_choice\":\"required\"}", "tool_choice"},
    {"{\"tool_choice\":{\"type\":\"function\"}}", "tool_choice"},
    {"{\"function_call\":{\"name\":\"f\"}}", "function_call"},
    {"{\"modalities\":[\"text\",\"audio\"]}", "modalities"},
    {"{\"modalities\":\"audio\"}", "modalities"},
    {"{\"echo\":true}", "echo"},
    {"{\"documents\":[{\"text\":\"a\"}]}", "documents"},
};

#define COUNT(a) (sizeof(a) / sizeof *(a))

static void params_refuse_by_name(void **state)
{
    (void)state;
    expect_refusals(refused_by_both, COUNT(refused_by_both), false, 400);
    expect_refusals(refused_by_both, COUNT(refused_by_both), true, 400);
    expect_refusals(refused_by_completions, COUNT(refused_by_completions), false, 400);
    expect_refusals(refused_by_chat, COUNT(refused_by_chat), true, 400);
}

/* Errors name the member that the client sent, not its older name. */
static void params_say_which_member_gave_the_limit(void **state)
{
    (void)state;
    static const struct {
        const char *json, *name;
    } given[] = {{"{}", "max_tokens"},
                 {"{\"max_tokens\":3}", "max_tokens"},
                 {"{\"max_completion_tokens\":3}", "max_completion_tokens"},
                 {"{\"max_completion_tokens\":3,\"max_tokens\":9}", "max_completion_tokens"}};
    struct params p;
    struct api_error e;
    for (size_t i = 0; i < COUNT(given); i++) {
        assert_int_equal(read(&p, given[i].json, true, &e), 0);
        assert_string_equal(p.max_tokens_name, given[i].name);
        assert_int_equal(p.max_tokens, i ? 3 : -1);
        params_free(&p);
    }
    assert_int_equal(read(&p, "{\"max_completion_tokens\":3,\"min_tokens\":4}", true, &e), -1);
    assert_non_null(strstr(e.message, "`max_completion_tokens`"));
    params_free(&p);
}

/* What looked at the body before, in another language, has seen the last one. */
static void params_take_the_last_of_members_with_one_name(void **state)
{
    (void)state;
    struct params p;
    struct api_error e;
    assert_int_equal(read(&p,
                          "{\"max_tokens\":9,\"max_tokens\":3,\"n\":\"x\",\"n\":2,\"seed\":1,"
                          "\"seed\":null,\"logit_bias\":{\"7\":-100,\"8\":1,\"07\":50,\"7\":2}}",
                          false, &e),
                     0);
    assert_int_equal(p.max_tokens, 3);
    assert_int_equal(p.n, 2);
    assert_false(p.seeded);
    assert_int_equal(p.sampling.biases, 2);
    assert_int_equal(p.sampling.bias[0].id, 7);
    assert_true(p.sampling.bias[0].bias == 2);
    params_free(&p);
    assert_int_equal(read(&p, "{\"model\":\"m\",\"model\":\"other\"}", true, &e), -1);
    assert_int_equal(e.status, 404);
    params_free(&p);
}

/* OpenAI's and vLLM's seeds are 64-bit integers: more than a double holds. */
static void params_read_every_seed(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        int64_t seed;
    } row[] = {{"{\"stop\":\"1\\\"234567890123456789\",\"seed\":9223372036854775807}", INT64_MAX},
               {"{\"user\":\"\\\\\",\"max_tokens\":3,\"seed\":-9223372036854775808}", INT64_MIN},
               {"{\"x\":[1,{\"y\":-2.5e3}],\"seed\":9007199254740993}", 9007199254740993},
               {"{\"x\":12345678901234567890,\"seed\":0}", 0},
               {"{\"x\":[\"-\",true],\"seed\":1e3}", 1000}};
    struct params p;
    struct api_error e;
    for (size_t i = 0; i < COUNT(row); i++) {
        if (read(&p, row[i].json, false, &e))
            fail_msg("%s: %s", row[i].json, e.message);
        assert_true(p.seeded && p.sampling.seed == (uint64_t)row[i].seed);
        params_free(&p);
    }
    assert_int_equal(read(&p, "{\"seed\":9223372036854775808}", false, &e), -1);
    assert_non_null(strstr(e.message, "is 9223372036854775808, but must be between "
                                      "-9223372036854775808 and 9223372036854775807"));
    params_free(&p);
}

static void params_name_a_default_as_such(void **state)
{
    (void)state;
    struct params p;
    struct api_error e;
    assert_int_equal(read(&p, "{\"min_tokens\":20}", false, &e), -1);
    assert_string_equal(e.message, "`min_tokens` is 20, more than 16, the default of `max_tokens`");
    params_free(&p);
    assert_int_equal(read(&p, "{\"min_tokens\":20,\"max_tokens\":3}", false, &e), -1);
    assert_string_equal(e.message, "`min_tokens` is 20, more than the 3 of `max_tokens`");
    params_free(&p);
    assert_int_equal(read(&p, "{\"tools\":[{}]}", true, &e), -1);
    assert_null(strstr(e.message, "constrain"));
    params_free(&p);
}

static void params_know_only_the_served_model(void **state)
{
    (void)state;
    static const struct refusal other[] = {{"{\"model\":\"gpt-4\"}", "model"},
                                           {"{\"model\":\"\"}", "model"}};
    expect_refusals(other, 2, false, 404);
}

static void check_ways_to_guess(void)
{
    static const struct {
        const char *body;
        bool speculates, undrafted, bit_equal;
    } ways[] = {
        {"{\"speculate\": \"off\"}", false, false, false},
        {"{\"speculate\": \"ngram\"}", true, true, false},
        {"{\"speculate\": \"draft\", \"bit_equal\": true}", true, false, true},
        {"{\"speculate\": true, \"bit_equal\": null}", true, false, false},
        {"{\"bit_equal\": true}", true, false, true},
        {"{\"bit_equal\": false}", true, false, false},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct params p;
        struct api_error e;
        const struct params_model m = {"m", 1000, true, true};
        cJSON *body = json_parse(ways[i].body, strlen(ways[i].body), &e);
        assert_int_equal(params_read(&p, body, true, &m, &e), 0);
        assert_int_equal(p.speculates, ways[i].speculates);
        assert_int_equal(p.undrafted, ways[i].undrafted);
        assert_int_equal(p.bit_equal, ways[i].bit_equal);
        params_free(&p);
        cJSON_Delete(body);
    }
}

static void speculation_is_asked_for_or_the_servers_choice(void **state)
{
    (void)state;
    struct params p;
    struct api_error e;
    assert_int_equal(read(&p, "{}", false, &e), 0);
    assert_false(p.speculates);
    params_free(&p);
    assert_int_equal(read(&p, "{\"speculate\": true}", true, &e), 0);
    assert_true(p.speculates);
    params_free(&p);
    cJSON *body = json_parse("{\"speculate\": false}", 20, &e);
    assert_int_equal(params_read(&p, body, true, &(struct params_model){"m", 1000, true}, &e), 0);
    assert_false(p.speculates);
    params_free(&p);
    cJSON_Delete(body);
    check_ways_to_guess();
    const char *parts =
        "{\"prediction\": {\"type\": \"content\", \"content\": [{\"type\": \"text\","
        " \"text\": \"ab\"}, \"c\"]}}";
    assert_int_equal(read(&p, parts, true, &e), 0);
    assert_true(p.speculates);
    assert_string_equal(p.predicted_text, "abc");
    params_free(&p);
    const struct refusal wrong[] = {
        {"{\"speculate\": 1}", "speculate"},
        {"{\"speculate\": \"lookahead\"}", "speculate"},
        {"{\"speculate\": \"draft\"}", "speculate"}, /* there is none */
        {"{\"bit_equal\": \"yes\"}", "bit_equal"},
        {"{\"speculate\": \"off\", \"prediction\": {\"type\": \"content\", \"content\": \"x\"}}",
         "speculate"},
        {"{\"prediction\": []}", "prediction"},
        {"{\"prediction\": {\"type\": \"content\"}}", "prediction"},
        {"{\"prediction\": {\"type\": \"text\", \"content\": \"x\"}}", "prediction"},
        {"{\"prediction\": {\"type\": \"content\", \"content\": [{}]}}", "prediction"},
        {"{\"prediction\": {\"type\": \"content\", \"content\": \"a\\u0000\"}}", "prediction"},
        {"{\"speculate\": false, \"prediction\": {\"type\": \"content\", \"content\": \"x\"}}",
         "speculate"},
    };
    expect_refusals(wrong, sizeof wrong / sizeof *wrong, true, 400);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(params_have_openai_defaults),
        cmocka_unit_test(speculation_is_asked_for_or_the_servers_choice),
        cmocka_unit_test(params_give_every_sampling_number_its_default_and_range),
        cmocka_unit_test(params_tolerate_nulls_and_unknown_members),
        cmocka_unit_test(params_take_what_constrains_nothing),
        cmocka_unit_test(params_read_every_member),
        cmocka_unit_test(params_read_every_seed),
        cmocka_unit_test(params_name_a_default_as_such),
        cmocka_unit_test(params_refuse_by_name),
        cmocka_unit_test(params_say_which_member_gave_the_limit),
        cmocka_unit_test(params_take_the_last_of_members_with_one_name),
        cmocka_unit_test(params_know_only_the_served_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
