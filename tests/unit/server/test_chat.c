/* SPDX-License-Identifier: Apache-2.0 */
/* Expected texts: transformers running Jinja on the templates of tests/golden/chat
 * (scripts/make-golden-chat, which also holds them against the real ones). */
#include "server/chat.h"

#include "tests/unit/unit.h"

#include "server/chat_family.h"
#include "tests/unit/engine/golden.h"

static struct chat_template *recognize_file(const char *name)
{
    size_t n;
    struct err err = {""};
    char *file = xasprintf("chat/%s.jinja", name);
    char *text = (char *)golden_bytes(file, &n);
    text[n] = 0;
    struct chat_template *t = chat_recognize(text, &err);
    if (!t)
        fail_msg("%s: %s", file, err.msg);
    free(text);
    free(file);
    return t;
}

static const char *member(const cJSON *object, const char *name)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));
}

static bool flag(const cJSON *object, const char *name)
{
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(object, name));
}

static void check_case(const struct chat_template *t, const cJSON *c, const cJSON *golden)
{
    struct chat_message message[16];
    size_t messages = 0, n;
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(c, "messages"))
    {
        message[messages++] = (struct chat_message){
            .role = member(item, "role"),
            .content = member(item, "content"),
            .reasoning = member(item, "reasoning_content"),
        };
    }
    struct chat_options o = {.generate = flag(c, "generate"),
                             .continue_final = flag(c, "continue_final"),
                             .no_thinking = flag(c, "no_thinking"),
                             .bos = golden_string(golden, "bos"),
                             .eos = golden_string(golden, "eos"),
                             .date = golden_string(golden, "date")};
    struct err err = {""};
    char *text;
    if (chat_render(t, message, messages, &o, &text, &n, &err))
        fail_msg("%s: %s", chat_name(t), err.msg);
    assert_string_equal(text, golden_string(c, "text"));
    assert_int_equal(n, strlen(text));
    free(text);
}

static void conversations_render_as_in_jinja(void **state)
{
    (void)state;
    cJSON *golden = golden_json("chat/cases.json");
    const cJSON *template, *c;
    int templates = 0;
    cJSON_ArrayForEach(template, cJSON_GetObjectItem(golden, "templates"))
    {
        struct chat_template *t = recognize_file(template->string);
        assert_true(cJSON_GetArraySize(template) > 30);
        cJSON_ArrayForEach(c, template)
        {
            check_case(t, c, golden);
        }
        chat_free(t);
        templates++;
    }
    assert_int_equal(templates, 9);
    cJSON_Delete(golden);
}

static void each_template_is_told_apart(void **state)
{
    (void)state;
    static const char *const names[][2] = {
        {"chatml", "chatml"},     {"smollm2", "chatml"},  {"qwen2.5", "qwen2.5"},
        {"qwen3", "qwen3"},       {"llama3", "llama3"},   {"llama3.1", "llama3.1"},
        {"llama3.2", "llama3.1"}, {"mistral", "mistral"}, {"mistral-nemo", "mistral-nemo"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct chat_template *t = recognize_file(names[i][0]);
        assert_string_equal(chat_name(t), names[i][1]);
        chat_free(t);
    }
}

static void canonical_form_knows_no_layout(void **state)
{
    (void)state;
    static const char *const texts[][2] = {
        {"{{ 'a\\n' + message['role'] }}", "a\n{{message.role}}"},
        {"a\n{{message.role}}", "a\n{{message.role}}"},
        {"x  {%- if a  ==  \"user\" and b -%}  \n y", "x{%if a=='user' and b%}y"},
        {"x\n   {% endif %}\ny", "x\n{%endif%}y"},
        {"a{# '{{ unclosed #}b\n", "ab"},
        {"{{- f('+', \"}}\") ~ '}}' -}} z", "{{f('+','}}')}}}}z"},
        {"{{ m[\"a\"][0]['b c'] }}", "{{m.a[0]['b c']}}"},
        {"{% if %}\n\nx", "{%if%}\nx"},
        {"", ""},
        {"\n", ""},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char *got = chat_canonical(texts[i][0]);
        assert_non_null(got);
        assert_string_equal(got, texts[i][1]);
        free(got);
    }
    static const char *const broken[] = {"{{ x", "{% if 'a %}", "{# x", "{{ 'a }}", "{{", "{%-"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        assert_null(chat_canonical(broken[i]));
}

/* Millions of blocks: to look for the end of the text at each of them would take hours. */
static void a_template_of_many_blocks_is_read_in_one_pass(void **state)
{
    (void)state;
    static const char *const units[][2] = {
        {"{##}", ""},         {"{{'a'}}", "a"},        {"{%a%}", "{%a%}"},       {"{#-#}", ""},
        {"{{-x-}}", "{{x}}"}, {"{{'a' + 'b'}}", "ab"}, {" {%- a -%} ", "{%a%}"},
    };
    enum { BLOCKS = 4 << 20 };
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        size_t n = strlen(units[i][0]), m = strlen(units[i][1]);
        char *text = xmalloc(BLOCKS * n + 1);
        for (size_t k = 0; k < BLOCKS; k++)
            memcpy(text + k * n, units[i][0], n);
        text[BLOCKS * n] = 0;
        char *got = chat_canonical(text);
        assert_non_null(got);
        assert_int_equal(strlen(got), BLOCKS * m);
        for (size_t k = 0; k < BLOCKS * m; k += m)
            assert_memory_equal(got + k, units[i][1], m);
        free(got);
        free(text);
    }
}

static void a_template_that_is_too_long_is_refused_in_words(void **state)
{
    (void)state;
    struct err err = {""};
    char *text = xmalloc(CHAT_TEMPLATE_MAX + 2);
    memset(text, 'x', CHAT_TEMPLATE_MAX + 1);
    text[CHAT_TEMPLATE_MAX + 1] = 0;
    assert_null(chat_recognize(text, &err));
    assert_non_null(strstr(err.msg, "more than 1048576 bytes"));
    text[CHAT_TEMPLATE_MAX] = 0;
    assert_null(chat_recognize(text, &err));
    assert_non_null(strstr(err.msg, "none that whet knows"));
    free(text);
}

/* A template that is nearly one of ours would render nearly the right prompt: not good enough. */
static void a_template_that_differs_is_not_guessed(void **state)
{
    (void)state;
    static const char *const changes[][3] = {
        {"chatml", "message.content", "message.content | trim"},
        {"chatml", "<|im_end|>", "<|im_stop|>"},
        {"chatml", "{% endfor %}", "{{ eos_token }}{% endfor %}"},
        {"chatml", "<|im_start|>assistant\\n", "<|im_start|>assistant\\n<think>\\n"},
        {"smollm2", "!= \"system\"", "== \"user\""},
        {"smollm2", "trained by", "trained {{ by }}"},
        {"qwen2.5", "and not loop.first", ""},
        {"qwen2.5", "<|im_start|>assistant\\n", "<|im_start|>assistant\\n<think>\\n"},
        {"qwen3", "loop.last or (not loop.last and reasoning_content)", "true"},
        {"qwen3", "<think>\\n\\n</think>", "<think>\\n</think>"},
        {"qwen3", "message.role == \"user\" and", "message.role == \"tool\" and"},
        {"qwen3", "(message.role == \"user\") or", "(message.role == \"tool\") or"},
        {"llama3", "| trim", ""},
        {"llama3", "bos_token", "eos_token"},
        {"llama3.1", "December 2023", "June 2025"},
        {"llama3.1", "\"26 Jul 2024\"", "strftime_now(\"%Y\")"},
        {"mistral", "\"[INST] \"", "\"[INST]\""},
        {"mistral-nemo", "\\n\\n", "\\n"},
        {"mistral-nemo", "loop.last and", "loop.first and"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        size_t n;
        struct err err = {""};
        char *file = xasprintf("chat/%s.jinja", changes[i][0]);
        char *text = (char *)golden_bytes(file, &n), *at;
        text[n] = 0;
        if (!(at = strstr(text, changes[i][1])))
            fail_msg("'%s' is not in %s", changes[i][1], file);
        char *changed = xasprintf("%.*s%s%s", (int)(at - text), text, changes[i][2],
                                  at + strlen(changes[i][1]));
        struct chat_template *t = chat_recognize(changed, &err);
        if (t)
            fail_msg("%s with '%s' was taken for %s", file, changes[i][2], chat_name(t));
        assert_non_null(strstr(err.msg, "chat template"));
        free(changed);
        free(text);
        free(file);
    }
}

static void no_template_and_nonsense_are_errors(void **state)
{
    (void)state;
    static const char *const texts[] = {NULL, "", "hello", "{{", "{% for %}", "<|im_start|>"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct err err = {""};
        assert_null(chat_recognize(texts[i], &err));
        assert_non_null(strstr(err.msg, "chat template"));
    }
}

static void expect_refusal(const char *name, const char *const *roles, size_t n, const char *part)
{
    struct chat_template *t = recognize_file(name);
    struct chat_message message[8];
    struct chat_options o = {.generate = true};
    struct err err = {""};
    char *text;
    size_t length;
    for (size_t i = 0; i < n; i++)
        message[i] = (struct chat_message){.role = roles[i], .content = "x"};
    assert_int_equal(chat_render(t, message, n, &o, &text, &length, &err), -1);
    if (!strstr(err.msg, part))
        fail_msg("'%s' does not say '%s'", err.msg, part);
    chat_free(t);
}

#define ROLES(...) (const char *const[]){__VA_ARGS__}, sizeof((const char *[]){__VA_ARGS__}) / 8

static void conversations_the_template_refuses_are_errors(void **state)
{
    (void)state;
    expect_refusal("chatml", NULL, 0, "messages: the list is empty");
    expect_refusal("chatml", ROLES("user", "robot"), "messages[1]: unknown role 'robot'");
    expect_refusal("chatml", ROLES("tool"), "messages[0]: unknown role 'tool'");
    expect_refusal("chatml", ROLES(NULL), "messages[0]: unknown role ''");
    expect_refusal("llama3.1", ROLES("user", "tool"), "messages[1]: unknown role 'tool'");
    expect_refusal("mistral", ROLES("system", "user"), "messages[0]: the role must be 'user'");
    expect_refusal("mistral", ROLES("user", "user"), "messages[1]: the role must be 'assistant'");
    expect_refusal("mistral-nemo", ROLES("system", "assistant"), "messages[1]");
    expect_refusal("mistral-nemo", ROLES("user", "system"), "messages[1]");
    expect_refusal("mistral-nemo", ROLES("system"), "a system message alone");
}

static char *render_one(const char *name, const char *role, const char *content,
                        struct chat_options o)
{
    struct chat_template *t = recognize_file(name);
    struct chat_message m = {.role = role, .content = content};
    struct err err = {""};
    char *text = NULL;
    size_t n;
    if (chat_render(t, &m, 1, &o, &text, &n, &err))
        fail_msg("%s", err.msg);
    chat_free(t);
    return text;
}

static void the_developer_is_the_system(void **state)
{
    (void)state;
    char *text = render_one("chatml", "developer", "x", (struct chat_options){0});
    assert_string_equal(text, "<|im_start|>system\nx<|im_end|>\n");
    free(text);
}

static void content_may_be_null(void **state)
{
    (void)state;
    char *text = render_one("chatml", "assistant", NULL, (struct chat_options){0});
    assert_string_equal(text, "<|im_start|>assistant\n<|im_end|>\n");
    free(text);
}

static void families_know_their_usual_bos(void **state)
{
    (void)state;
    char *text = render_one("llama3", "user", "x", (struct chat_options){0});
    assert_string_equal(text, "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nx"
                              "<|eot_id|>");
    free(text);
    text = render_one("mistral-nemo", "user", "x", (struct chat_options){0});
    assert_string_equal(text, "<s>[INST]x[/INST]");
    free(text);
}

static void the_day_is_today_only_where_the_template_asks(void **state)
{
    (void)state;
    struct chat_options o = {.date = "03 Feb 2027"};
    char *text = render_one("llama3.1", "user", "x", o);
    assert_non_null(strstr(text, "Today Date: 26 Jul 2024\n"));
    free(text);
    text = render_one("llama3.2", "user", "x", o);
    assert_non_null(strstr(text, "Today Date: 03 Feb 2027\n"));
    free(text);
    text = render_one("llama3.2", "user", "x", (struct chat_options){0});
    assert_null(strstr(text, "26 Jul 2024"));
    free(text);
}

static void opening_a_turn_and_leaving_one_open_exclude_each_other(void **state)
{
    (void)state;
    struct chat_template *t = recognize_file("chatml");
    struct chat_message m = {.role = "user", .content = "x"};
    struct chat_options o = {.generate = true, .continue_final = true};
    struct err err = {""};
    char *text;
    size_t n;
    assert_int_equal(chat_render(t, &m, 1, &o, &text, &n, &err), -1);
    assert_non_null(strstr(err.msg, "continue_final_message"));
    chat_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversations_render_as_in_jinja),
        cmocka_unit_test(each_template_is_told_apart),
        cmocka_unit_test(canonical_form_knows_no_layout),
        cmocka_unit_test(a_template_of_many_blocks_is_read_in_one_pass),
        cmocka_unit_test(a_template_that_is_too_long_is_refused_in_words),
        cmocka_unit_test(a_template_that_differs_is_not_guessed),
        cmocka_unit_test(no_template_and_nonsense_are_errors),
        cmocka_unit_test(conversations_the_template_refuses_are_errors),
        cmocka_unit_test(the_developer_is_the_system),
        cmocka_unit_test(content_may_be_null),
        cmocka_unit_test(families_know_their_usual_bos),
        cmocka_unit_test(the_day_is_today_only_where_the_template_asks),
        cmocka_unit_test(opening_a_turn_and_leaving_one_open_exclude_each_other),
    };
    return cmocka_run_group_tests_name("server/chat", tests, NULL, NULL);
}
