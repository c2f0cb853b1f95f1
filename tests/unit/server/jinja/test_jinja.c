/* SPDX-License-Identifier: Apache-2.0 */
/* Expected texts: jinja2 in the environment of transformers (scripts/make-golden-jinja). Where it
 * fails, so does whet; how is in the tables below. */
#include "server/jinja/jinja.h"

#include "tests/unit/unit.h"

#include "tests/unit/engine/golden.h"

static const struct jinja_limits wide = {
    .steps = 1 << 22, .memory = 64 << 20, .output = 1 << 20, .now = 1770091200};

static struct jinja_value value_of(struct jinja_run *r, const cJSON *json)
{
    struct jinja_value v;
    const cJSON *item;
    if (cJSON_IsString(json))
        return jinja_text(json->valuestring);
    if (cJSON_IsBool(json))
        return jinja_bool(cJSON_IsTrue(json));
    if (cJSON_IsNull(json))
        return jinja_none();
    if (cJSON_IsNumber(json) && json->valuedouble == (double)json->valueint)
        return jinja_int(json->valueint);
    if (cJSON_IsNumber(json))
        return jinja_float(json->valuedouble);
    v = cJSON_IsArray(json) ? jinja_list_new(r) : jinja_dict_new(r);
    cJSON_ArrayForEach(item, json)
    {
        if (cJSON_IsArray(json))
            jinja_list_add(r, v, value_of(r, item));
        else
            jinja_dict_put(r, v, item->string, value_of(r, item));
    }
    return v;
}

/* The text, or NULL and a message. */
static char *render(const char *template, const cJSON *variables, struct jinja_limits limits,
                    struct err *err)
{
    struct jinja *program = jinja_parse(template, strlen(template), err);
    const cJSON *item;
    char *text = NULL;
    size_t n;
    if (!program)
        return NULL;
    struct jinja_run *r = jinja_run_new(program);
    cJSON_ArrayForEach(item, variables)
    {
        jinja_variable(r, item->string, value_of(r, item));
    }
    enum jinja_end end = jinja_render(r, &limits, &text, &n, err);
    assert_true((end == JINJA_DONE) == (text != NULL));
    assert_true(!text || strlen(text) == n);
    jinja_run_free(r);
    jinja_free(program);
    return text;
}

static void templates_give_what_jinja2_gives(void **state)
{
    (void)state;
    cJSON *golden = golden_json("jinja.json");
    const cJSON *c, *variables = cJSON_GetObjectItem(golden, "variables");
    int cases = 0, wrong = 0;
    cJSON_ArrayForEach(c, cJSON_GetObjectItem(golden, "cases"))
    {
        const char *template = c->child->valuestring;
        const char *expected = cJSON_GetStringValue(c->child->next);
        struct err err = {""};
        char *text = render(template, variables, wide, &err);
        bool same = expected && text ? strcmp(expected, text) == 0 : !expected && !text;
        if (!same)
            print_error("%s\n  expected %s\n  got %s %s\n", template,
                        expected ? expected : "an error", text ? text : "an error:", err.msg);
        wrong += !same;
        cases++;
        assert_true(text || *err.msg);
        free(text);
    }
    assert_int_equal(wrong, 0);
    assert_true(cases > 700);
    cJSON_Delete(golden);
}

static void expect_error(const char *template, const char *message)
{
    struct err err = {""};
    char *text = render(template, NULL, wide, &err);
    if (text)
        fail_msg("'%s' gives '%s'", template, text);
    if (strcmp(err.msg, message) != 0)
        fail_msg("'%s' says '%s', not '%s'", template, err.msg, message);
}

/* What is not there is named, with its line, and never taken for something else. */
static void what_is_not_known_is_named(void **state)
{
    (void)state;
    static const char *const texts[][2] = {
        {"\n\n{% include 'x' %}", "line 3: the tag 'include' is not known here"},
        {"{% for i in [1] %}\n{{ loop([2]) }}{% endfor %}",
         "line 2: loop() needs a loop that is marked 'recursive'"},
        {"a\n{{ 'x' | urlize }}", "line 2: the filter 'urlize' is not known"},
        {"{{ 1 is prime }}", "line 1: the test 'prime' is not known"},
        {"\n{{ 'x'.encode() }}", "line 2: the method 'encode' of 'str' is not supported"},
        {"{{ cycler('a') }}", "line 1: the function 'cycler' is not supported"},
        {"{{ 10 ** 20 }}", "line 1: integers beyond 64 bits are not supported"},
        {"{{ range }}", "line 1: a value of type 'function' cannot be printed"},
        {"{{ 0x10 }}", "line 1: a number that is not decimal is not supported"},
        {"{{ '\\N{DASH}' }}", "line 1: \\N{...} in a string is not supported"},
        {"{{ '\\ud83d' }}", "line 1: an escape in a string names U+D83D, which is no character"},
        {"{{ 'x' | safe + 'y' }}", "line 1: '+' with a string that went through |safe or |escape "
                                   "is not supported"},
        {"{{ '\xEF\xAC\x81' | upper }}", "line 1: the other case of U+FB01 is not supported"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        expect_error(texts[i][0], texts[i][1]);
}

static void mistakes_are_named(void **state)
{
    (void)state;
    static const char *const texts[][2] = {
        {"{{ a b }}", "line 1: '}}' was expected before 'b'"},
        {"{{ 1 + }}", "line 1: an expression was expected before the end of the tag"},
        {"\n{% if x %}", "line 2: the template ends before 'endif'"},
        {"{{ (1 }}", "line 1: unexpected '}'"},
        {"{{ (1", "line 1: a tag is not closed"},
        {"{{ x.y }}", "line 1: 'x' is undefined"},
        {"{{ {}.x.y }}", "line 1: 'dict object' has no attribute 'x'"},
        {"{{ [].append(1) }}", "line 1: access to attribute 'append' of 'list' object is unsafe"},
        {"{{ 1 + 'a' }}", "line 1: unsupported operand types for +: 'int' and 'str'"},
        {"{{ 'a'.split(',', x=1) }}", "line 1: 'split' has no argument 'x'"},
        {"{% macro m(a) %}{% endmacro %}\n{{ m(b=1) }}", "line 2: macro 'm' takes no argument 'b'"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        expect_error(texts[i][0], texts[i][1]);
}

/* `n` times a, then b, then n times c. */
static char *nested(const char *a, const char *b, const char *c, size_t n)
{
    size_t la = strlen(a), lb = strlen(b), lc = strlen(c);
    char *text = xmalloc(n * (la + lc) + lb + 1), *at = text;
    for (size_t i = 0; i < n; i++, at += la)
        memcpy(at, a, la);
    memcpy(at, b, lb);
    at += lb;
    for (size_t i = 0; i < n; i++, at += lc)
        memcpy(at, c, lc);
    *at = 0;
    return text;
}

static void depth_has_a_limit(void **state)
{
    (void)state;
    static const char *const parts[][3] = {
        {"{{ ", "1", ""},       {"{% if 1 %}", "", "{% endif %}"},
        {"(", "1", ")"},        {"[", "", "]"},
        {"{1:", "1", "}"},      {"-", "1", ""},
        {"not ", "1", ""},      {"f(", "", ")"},
        {"a[", "1", "]"},       {"1 if 1 else ", "1", ""},
        {"1 + ", "1", ""},      {"a.", "a", ""},
        {"1 and ", "1", ""},    {"{% set x %}", "", "{% endset %}"},
        {"1|abs(", "1", ")"},   {"{% macro m() %}", "", "{% endmacro %}"},
        {"1 is eq(", "1", ")"}, {"{% for (", "a", ") in x %}{% endfor %}"},
        {"1 ** ", "1", ""},     {"1 ~ (", "1", ")"},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        bool tags = parts[i][0][0] == '{' && parts[i][0][1] == '%';
        char *inner = nested(parts[i][0], parts[i][1], parts[i][2], 50000);
        char *text = tags ? xasprintf("%s", inner) : xasprintf("{{ %s }}", inner);
        struct err err = {""};
        char *out = render(text, NULL, wide, &err);
        if (out)
            fail_msg("%s...", parts[i][0]);
        assert_true(*err.msg);
        free(text);
        free(inner);
    }
}

/* Values that hold values, deeper than any stack would take. */
static void deep_values_have_a_limit(void **state)
{
    (void)state;
    static const char *const uses[] = {"v",          "v == w",    "v < w",
                                       "{v: 1}",     "v in [w]",  "[v, w] | sort",
                                       "v | tojson", "{}.get(v)", "[v, w] | unique | list"};
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
        struct err err = {""};
        char *text = xasprintf("{%% set ns = namespace(v=(1,), w=(1,)) %%}"
                               "{%% for i in range(100000) %%}{%% set ns.v = (ns.v,) %%}"
                               "{%% set ns.w = (ns.w,) %%}{%% endfor %%}"
                               "{%% set v = ns.v %%}{%% set w = ns.w %%}{{ %s }}",
                               uses[i]);
        char *out = render(text, NULL, wide, &err);
        if (out || !strstr(err.msg, "nested more than"))
            fail_msg("%s: %s", uses[i], out ? out : err.msg);
        free(text);
    }
    struct err err = {""};
    char *out = render("{% for x in [1] recursive %}{{ loop([x]) }}{% endfor %}", NULL, wide, &err);
    if (out || !strstr(err.msg, "nested more than"))
        fail_msg("a loop without an end: %s", out ? out : err.msg);
}

/* Megabytes in one value: what goes through them once must not do so once for each character. */
static void long_texts_take_time_by_their_length(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{{ s | trim | length }}",
        "{{ s.split('a') | length }}",
        "{{ s.split() | length }}",
        "{{ s.rsplit('a') | length }}",
        "{{ s.replace('a', 'bc') | length }}",
        "{{ s.strip('a ') | length }}",
        "{{ s[::-1] | length }}",
        "{{ s.splitlines() | length }}",
        "{{ (s | tojson) | length }}",
        "{{ s.upper() | length }}",
        "{{ s.count('a') }}",
        "{{ (s ~ s) | length }}",
        "{{ s | indent | length }}",
        "{{ s.title() | length }}",
    };
    enum { N = 1 << 20 };
    char *s = xmalloc(N + 1);
    for (size_t i = 0; i < N; i++)
        s[i] = "a \n "[i % 4];
    s[N] = 0;
    cJSON *variables = cJSON_CreateObject();
    cJSON_AddStringToObject(variables, "s", s);
    struct jinja_limits limits = {.steps = 1 << 21, .memory = 512 << 20, .output = 1 << 20};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct err err = {""};
        char *text = render(texts[i], variables, limits, &err);
        if (!text)
            fail_msg("%s: %s", texts[i], err.msg);
        free(text);
    }
    cJSON_Delete(variables);
    free(s);
}

/* A text that grows piece by piece is not kept once for each piece. */
static void growing_texts_take_memory_by_their_length(void **state)
{
    (void)state;
    struct err err = {""};
    struct jinja_limits limits = {.steps = 1 << 22, .memory = 64 << 20, .output = 1 << 20};
    char *text = render("{% set ns = namespace(s='') %}{% for i in range(20000) %}"
                        "{% set ns.s = ns.s + '0123456789' ~ 'x' %}{% endfor %}"
                        "{{ ns.s | length }}",
                        NULL, limits, &err);
    if (!text)
        fail_msg("%s", err.msg);
    assert_string_equal(text, "220000");
    free(text);
}

static void a_template_has_a_limit_of_parts(void **state)
{
    (void)state;
    struct err err = {""};
    char *text = nested("{{a}}", "", "", 200000), *out = render(text, NULL, wide, &err);
    assert_null(out);
    assert_non_null(strstr(err.msg, "more than 262144 parts"));
    free(text);
    text = nested("{##}", "", "", 200000);
    out = render(text, NULL, wide, &err);
    assert_string_equal(out, "");
    free(out);
    free(text);
}

static void nul_characters_are_characters(void **state)
{
    (void)state;
    struct err err = {""};
    char *text =
        render("{{ 'a\\x00b' | length }}{{ 'a\\x00b' | tojson }}{{ 'a\\x00b' }}", NULL, wide, &err);
    assert_string_equal(text, "3\"a\\u0000b\"a\xC0\x80"
                              "b");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(templates_give_what_jinja2_gives),
        cmocka_unit_test(what_is_not_known_is_named),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(depth_has_a_limit),
        cmocka_unit_test(deep_values_have_a_limit),
        cmocka_unit_test(long_texts_take_time_by_their_length),
        cmocka_unit_test(growing_texts_take_memory_by_their_length),
        cmocka_unit_test(a_template_has_a_limit_of_parts),
        cmocka_unit_test(nul_characters_are_characters),
    };
    return cmocka_run_group_tests_name("server/jinja", tests, NULL, NULL);
}
