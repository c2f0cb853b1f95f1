/* SPDX-License-Identifier: Apache-2.0 */
/* Expected texts: transformers running Jinja on the templates of tests/golden/chat
 * (scripts/make-golden-chat, which also holds them against the real ones). What the language
 * itself does is in test_jinja.c. */
#include "server/chat.h"

#include "tests/unit/unit.h"

#include "tests/unit/engine/golden.h"

static struct chat_template *parse_file(const char *name)
{
    size_t n;
    struct err err = {""};
    char *file = xasprintf("chat/%s.jinja", name);
    char *text = (char *)golden_bytes(file, &n);
    text[n] = 0;
    struct chat_template *t = chat_parse(text, &err);
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

static void check_case(const struct chat_template *t, const char *name, const cJSON *c,
                       const cJSON *golden)
{
    struct chat_message message[16];
    size_t messages = 0, n;
    const cJSON *item;
    const cJSON *conversation = cJSON_GetArrayItem(cJSON_GetObjectItem(golden, "conversations"),
                                                   cJSON_GetObjectItem(c, "messages")->valueint);
    cJSON_ArrayForEach(item, conversation)
    {
        message[messages++] = (struct chat_message){
            .role = member(item, "role"),
            .content = member(item, "content"),
            .reasoning = member(item, "reasoning_content"),
        };
    }
    struct chat_variable variable[] = {
        {"date_string", jinja_text(golden_string(golden, "date"))},
        {"enable_thinking", jinja_bool(false)},
    };
    struct chat_options o = {.generate = flag(c, "generate"),
                             .continue_final = flag(c, "continue_final"),
                             .variable = variable + (flag(c, "date") ? 0 : 1),
                             .variables =
                                 (flag(c, "date") ? 1u : 0u) + (flag(c, "no_thinking") ? 1u : 0u),
                             .bos = golden_string(golden, "bos"),
                             .eos = golden_string(golden, "eos")};
    struct err err = {""};
    char *text;
    const cJSON *refused = cJSON_GetObjectItem(c, "refused");
    enum chat_end end = chat_render(t, message, messages, &o, &text, &n, &err);
    if (refused) {
        assert_int_equal(end, CHAT_REFUSED);
        assert_string_equal(err.msg, refused->valuestring);
        return;
    }
    if (end != CHAT_OK)
        fail_msg("%s: %s", name, err.msg);
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
        struct chat_template *t = parse_file(template->string);
        assert_true(cJSON_GetArraySize(template) > 30);
        cJSON_ArrayForEach(c, template)
        {
            check_case(t, template->string, c, golden);
        }
        chat_free(t);
        templates++;
    }
    assert_int_equal(templates, 16);
    cJSON_Delete(golden);
}

static void a_template_that_is_too_long_is_refused_in_words(void **state)
{
    (void)state;
    struct err err = {""};
    char *text = xmalloc(JINJA_TEMPLATE_MAX + 2);
    memset(text, 'x', JINJA_TEMPLATE_MAX + 1);
    text[JINJA_TEMPLATE_MAX + 1] = 0;
    assert_null(chat_parse(text, &err));
    assert_non_null(strstr(err.msg, "more than 1048576 bytes"));
    text[JINJA_TEMPLATE_MAX] = 0;
    struct chat_template *t = chat_parse(text, &err);
    assert_non_null(t);
    chat_free(t);
    free(text);
}

static void no_template_and_nonsense_are_errors(void **state)
{
    (void)state;
    static const char *const texts[] = {NULL, "{{", "{% for %}", "a\n{% nope %}", "{{ 'a }}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct err err = {""};
        assert_null(chat_parse(texts[i], &err));
        assert_non_null(strstr(err.msg, "chat template"));
        assert_true(!texts[i] || strstr(err.msg, "line ") != NULL);
    }
}

/* Renders `n` messages of "x" by a template's text; the message of the refusal if there is one. */
static char *render(const char *template, const struct chat_message *message, size_t n,
                    struct chat_options o)
{
    struct err err = {""};
    struct chat_template *t = chat_parse(template, &err);
    char *text = NULL;
    size_t length;
    if (!t)
        fail_msg("%s", err.msg);
    if (chat_render(t, message, n, &o, &text, &length, &err) != CHAT_OK)
        text = xasprintf("refused: %s", err.msg);
    chat_free(t);
    return text;
}

static void expect(const char *template, struct chat_message m, struct chat_options o,
                   const char *text)
{
    char *got = render(template, &m, 1, o);
    assert_string_equal(got, text);
    free(got);
}

static void expect_refusal(const char *name, const char *const *roles, size_t n, const char *part)
{
    struct chat_template *t = parse_file(name);
    struct chat_message message[8];
    struct chat_options o = {.generate = true};
    struct err err = {""};
    char *text;
    size_t length;
    for (size_t i = 0; i < n; i++)
        message[i] = (struct chat_message){.role = roles[i], .content = "x"};
    assert_int_equal(chat_render(t, message, n, &o, &text, &length, &err), CHAT_REFUSED);
    if (!strstr(err.msg, part))
        fail_msg("'%s' does not say '%s'", err.msg, part);
    chat_free(t);
}

#define ROLES(...) (const char *const[]){__VA_ARGS__}, sizeof((const char *[]){__VA_ARGS__}) / 8

static void conversations_the_template_refuses_are_errors(void **state)
{
    (void)state;
    expect_refusal("chatml", NULL, 0, "messages: the list is empty");
    expect_refusal("mistral", ROLES("user", "user"), "roles must alternate");
    expect_refusal("mistral-nemo", ROLES("system", "assistant"), "roles must alternate");
    expect_refusal("mistral-nemo", ROLES("user", "system"), "only user and assistant");
}

static const struct chat_message hello = {.role = "user", .content = "x"};

static void what_the_template_raises_is_the_answer(void **state)
{
    (void)state;
    expect("{{ raise_exception('Only ' ~ messages[0].content ~ ', please.') }}", hello,
           (struct chat_options){0}, "refused: Only x, please.");
    expect("a\n{{ messages[0].nothing.more }}", hello, (struct chat_options){0},
           "refused: the model's chat template: line 2: 'dict object' has no attribute 'nothing'");
}

static void the_developer_is_the_system_unless_the_template_knows_the_role(void **state)
{
    (void)state;
    struct chat_message m = {.role = "developer", .content = "x"};
    expect("{{ messages[0].role }}", m, (struct chat_options){0}, "system");
    expect("{{ messages[0].role }}{# developer #}", m, (struct chat_options){0}, "developer");
}

static void content_may_be_null(void **state)
{
    (void)state;
    expect("[{{ messages[0].content + 'y' }}]", (struct chat_message){.role = "assistant"},
           (struct chat_options){0}, "[y]");
}

static void members_that_are_not_given_are_not_there(void **state)
{
    (void)state;
    static const char all[] = "{{ messages[0] | tojson }}{{ tools }}{{ documents }}"
                              "{{ add_generation_prompt }}{{ enable_thinking }}";
    expect(all, hello, (struct chat_options){0},
           "{\"role\": \"user\", \"content\": \"x\"}NoneNoneFalse");
    struct chat_message m = {"assistant", "x", "Ann", "why"};
    expect(all, m, (struct chat_options){.generate = true},
           "{\"thinking\": \"why\", \"role\": \"assistant\", \"content\": \"x\", "
           "\"name\": \"Ann\", \"reasoning_content\": \"why\"}NoneNoneTrue");
}

static void tokens_that_the_model_lacks_are_undefined(void **state)
{
    (void)state;
    expect("{{ bos_token }}[{{ eos_token is defined }}]", hello, (struct chat_options){0},
           "[False]");
    expect("{{ bos_token }}[{{ eos_token }}]", hello,
           (struct chat_options){.bos = "<s>", .eos = "</s>"}, "<s>[</s>]");
}

static void variables_of_the_request_are_the_templates(void **state)
{
    (void)state;
    struct chat_variable v[] = {{"enable_thinking", jinja_bool(false)},
                                {"effort", jinja_text("high")},
                                {"budget", jinja_int(5)},
                                {"unused", jinja_none()},
                                {"messages", jinja_none()}};
    struct chat_options o = {.variable = v, .variables = 5};
    expect("{{ enable_thinking }} {{ effort }} {{ budget + 1 }} {{ messages | length }}", hello, o,
           "False high 6 1");
}

static void layout_and_escapes_are_those_of_the_language(void **state)
{
    (void)state;
    expect("{% if true %}\r\n{{ 'it\\u2019s\\r' }}\r\n{% endif %}\r\n", hello,
           (struct chat_options){0}, "it\xE2\x80\x99s\r\n");
    expect("{{ 'Use {name} and {{x}}.' }}", hello, (struct chat_options){0},
           "Use {name} and {{x}}.");
}

static void the_day_is_today_only_where_the_template_asks(void **state)
{
    (void)state;
    expect("{{ strftime_now('%Y') }}", hello, (struct chat_options){.now = 1770091200}, "2026");
    char *text = render("{{ strftime_now('%Y') }}", &hello, 1, (struct chat_options){0});
    assert_true(strcmp(text, "2026") >= 0);
    free(text);
}

static void the_last_message_stays_open(void **state)
{
    (void)state;
    struct chat_message m = {.role = "assistant", .content = " The answer is \n"};
    struct chat_options o = {.continue_final = true};
    expect("<{{ messages[0].content }}>", m, o, "< The answer is \n");
    expect("<{{ messages[0].content | trim }}>", m, o, "<The answer is");
    expect("<{{ messages[0].role }}>{# content #}", m, o,
           "refused: continue_final_message: the template does not keep the content of the last "
           "message");
    expect("<{{ messages[0].role }}>", m, o,
           "refused: continue_final_message: the template does not use the content of messages");
    m.content = NULL;
    expect("<{{ messages[0].content }}>", m, o,
           "refused: continue_final_message: the last message has no content");
}

/* A template may take some work for itself and some for each byte of the conversation. */
static void what_a_template_takes_is_bounded(void **state)
{
    (void)state;
    static const char *const texts[][2] = {
        {"{% for i in range(100000) %}{% for k in range(100000) %}{% endfor %}{% endfor %}",
         "steps"},
        {"{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}"
         "{% endfor %}",
         "of memory"},
        {"{{ 'x' * 999999999999999999 }}", "of memory"},
        {"{{ 'x' * 12000000 }}", "of output"},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char *text = render(texts[i][0], &hello, 1, (struct chat_options){0});
        if (strncmp(text, "refused: ", 9) != 0 || !strstr(text, texts[i][1]))
            fail_msg("%s: %.200s", texts[i][0], text);
        free(text);
    }
}

static void a_long_conversation_is_within_the_bounds(void **state)
{
    (void)state;
    enum { LONG = 8 << 20, MANY = 4096 };
    struct chat_template *t = parse_file("qwen3");
    struct chat_message *message = xcalloc(MANY, sizeof *message);
    char *content = xmalloc(LONG + 1), *text;
    struct err err = {""};
    size_t n;
    memset(content, ' ', LONG);
    memcpy(content, "a</think>b", 10);
    content[LONG] = 0;
    for (size_t i = 0; i < MANY; i++)
        message[i] = (struct chat_message){.role = i % 2 ? "assistant" : "user", .content = "x"};
    message[MANY - 1].content = content;
    assert_false(chat_is_slow(t));
    struct chat_options o = {.generate = true};
    if (chat_render(t, message, MANY, &o, &text, &n, &err) != CHAT_OK)
        fail_msg("%s", err.msg);
    assert_true(n > LONG);
    assert_true(chat_is_slow(t));
    free(text);
    free(content);
    free(message);
    chat_free(t);
}

static void nobody_waits_for_a_cancelled_rendering(void **state)
{
    (void)state;
    _Atomic bool cancel = true;
    struct err err = {""};
    struct chat_template *t = chat_parse("{% for i in range(9999) %}{{ i }}{% endfor %}", &err);
    struct chat_options o = {.cancel = &cancel};
    char *text;
    size_t n;
    assert_int_equal(chat_render(t, &hello, 1, &o, &text, &n, &err), CHAT_CANCELLED);
    chat_free(t);
}

static void opening_a_turn_and_leaving_one_open_exclude_each_other(void **state)
{
    (void)state;
    struct chat_template *t = parse_file("chatml");
    struct chat_message m = {.role = "user", .content = "x"};
    struct chat_options o = {.generate = true, .continue_final = true};
    struct err err = {""};
    char *text;
    size_t n;
    assert_int_equal(chat_render(t, &m, 1, &o, &text, &n, &err), CHAT_REFUSED);
    assert_non_null(strstr(err.msg, "continue_final_message"));
    chat_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversations_render_as_in_jinja),
        cmocka_unit_test(a_template_that_is_too_long_is_refused_in_words),
        cmocka_unit_test(no_template_and_nonsense_are_errors),
        cmocka_unit_test(conversations_the_template_refuses_are_errors),
        cmocka_unit_test(what_the_template_raises_is_the_answer),
        cmocka_unit_test(the_developer_is_the_system_unless_the_template_knows_the_role),
        cmocka_unit_test(content_may_be_null),
        cmocka_unit_test(members_that_are_not_given_are_not_there),
        cmocka_unit_test(tokens_that_the_model_lacks_are_undefined),
        cmocka_unit_test(variables_of_the_request_are_the_templates),
        cmocka_unit_test(layout_and_escapes_are_those_of_the_language),
        cmocka_unit_test(the_day_is_today_only_where_the_template_asks),
        cmocka_unit_test(the_last_message_stays_open),
        cmocka_unit_test(what_a_template_takes_is_bounded),
        cmocka_unit_test(a_long_conversation_is_within_the_bounds),
        cmocka_unit_test(nobody_waits_for_a_cancelled_rendering),
        cmocka_unit_test(opening_a_turn_and_leaving_one_open_exclude_each_other),
    };
    return cmocka_run_group_tests_name("server/chat", tests, NULL, NULL);
}
