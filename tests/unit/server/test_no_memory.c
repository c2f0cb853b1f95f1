/* SPDX-License-Identifier: Apache-2.0 */
/* test_no_memory.c - what reads models, chat templates, requests and the store, while allocations
 * fail: see no_memory.h.
 */
#include "tests/unit/no_memory.h"

#include "config/json_strict.h"
#include "engine/tokenizer.h"
#include "server/chat.h"
#include "server/json.h"
#include "server/params.h"

/* ---- texts and models ------------------------------------------------------------------------ */

static struct tokenizer *open_tokenizer(void)
{
    const char *root = getenv("WHET_SOURCE_ROOT");
    char path[4096];
    struct err err;
    snprintf(path, sizeof path, "%s/tests/golden/tiny-qwen3/tokenizer.json", root ? root : ".");
    return tokenizer_from_json(path, TOKENS_MAX, &err);
}

static void open_one(void)
{
    struct tokenizer *t = open_tokenizer();
    if (t)
        tokenizer_free(t);
}

static void a_tokenizer_is_opened(void **unused)
{
    (void)unused;
    struct tokenizer *t = open_tokenizer();
    assert_non_null(t);
    tokenizer_free(t);
    survives_without_memory(open_one, 997);
}

static struct tokenizer *tokenizer;

/* A text is cut and encoded right, or not at all: a word that is not seen would change a prompt. */
static void encode(void)
{
    static const char text[] = "A word, \xc3\xa9t\xc3\xa9 <|im_start|> and 12 others.\n";
    struct encode_control control = {0};
    struct err err;
    int32_t *ids = NULL;
    int64_t n =
        tokenizer_encode_cancellable(tokenizer, text, sizeof text - 1, true, &control, &ids, &err);
    if (n < 0)
        return;
    size_t length;
    char *back = tokenizer_decode(tokenizer, ids, n, true, &length);
    if (length != sizeof text - 1 || memcmp(back, text, length) != 0)
        _exit(9);
    free(back);
    free(ids);
}

static void a_prompt_is_encoded(void **unused)
{
    (void)unused;
    tokenizer = open_tokenizer();
    assert_non_null(tokenizer);
    survives_without_memory(encode, 1);
    tokenizer_free(tokenizer);
}

static void render(void)
{
    static const char source[] =
        "{%- for m in messages %}{{ '<' ~ m.role ~ '>' + m['content'] | trim }}{% endfor %}"
        "{% macro f(x) %}{{ x | tojson }}{% endmacro %}{{ f([1, 'a', {'b': none}]) }}";
    const struct chat_message message[] = {{.role = "system", .content = " be brief "},
                                           {.role = "user", .content = "hello"}};
    const struct chat_options o = {.generate = true, .eos = "<eos>", .steps = 20000};
    struct err err = {""};
    char *out;
    size_t n;
    struct chat_template *t = chat_parse(source, &err);
    if (t && chat_render(t, message, 2, &o, &out, &n, &err) == CHAT_OK)
        free(out);
    chat_free(t);
}

static void a_chat_template_is_run(void **unused)
{
    (void)unused;
    survives_without_memory(render, 1);
}

/* ---- requests -------------------------------------------------------------------------------- */

static void read_request(void)
{
    static const char body[] = "{\"prompt\":[\"a\",\"b\\u00e9\"],\"stop\":[\"x\",\"yy\"],\"logit_"
                               "bias\":{\"5\":1.5,\"7\":-2},"
                               "\"seed\":7,\"n\":2,\"temperature\":0.5,\"stream\":true}";
    static const struct params_model model = {"toy", 259, false, true};
    struct api_error e = {0};
    struct params p;
    cJSON *o = json_parse(body, sizeof body - 1, &e);
    if (params_read(&p, o, false, &model, &e) != 0)
        _exit(9); /* a right request is not called a wrong one */
    params_free(&p);
    char *text = cJSON_PrintUnformatted(o);
    if (strlen(text) < sizeof body / 2)
        _exit(9);
    free(text);
    cJSON_Delete(o);
}

static void a_request_is_read(void **unused)
{
    (void)unused;
    json_memory();
    survives_without_memory(read_request, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tokenizer_is_opened),
        cmocka_unit_test(a_prompt_is_encoded),
        cmocka_unit_test(a_chat_template_is_run),
        cmocka_unit_test(a_request_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
