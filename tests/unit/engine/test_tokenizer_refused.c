/* SPDX-License-Identifier: Apache-2.0 */
/* Vocabularies and tokenizer.json files that are broken or not supported: each is refused in words
 * that name what it is about. */
#include "tests/unit/unit.h"

#include <unistd.h>

#include "engine/tokenizer.h"
#include "tests/unit/engine/vocab.h"

static void expect_refusal(const struct vocab *v, const char *part)
{
    struct err err = {""};
    struct tokenizer *t = tokenizer_build(&v->src, &err);
    assert_null(t);
    if (!strstr(err.msg, part))
        fail_msg("'%s' does not say '%s'", err.msg, part);
}

static void a_broken_vocabulary_is_refused(void **state)
{
    (void)state;
    struct vocab *v = vocab_open("gpt2");
    expect_refusal(v, "tokenizer.ggml.pre is missing");
    v->src.pre = "some-model";
    expect_refusal(v, "'some-model'");
    v->src.pre = "gpt-2";
    v->src.bos = v->src.tokens;
    expect_refusal(v, "BOS id");
    v->src.bos = -1;
    v->src.eos = -7;
    expect_refusal(v, "EOS id -7");
    v->src.eos = -1;
    static const struct {
        const char *merge, *part;
    } merges[] = {{"nospace", "'nospace' is not two tokens"},
                  {"a \xE2\x82\xAC", "byte-level alphabet"},
                  {" b", "byte-level alphabet"},
                  {"zqzq b", "'zqzq b' has a token that is not in the vocabulary"}};
    for (size_t i = 0; i < sizeof merges / sizeof *merges; i++) {
        v->merge[3] = merges[i].merge;
        v->merge_length[3] = (int32_t)strlen(merges[i].merge);
        expect_refusal(v, merges[i].part);
    }
    v->merge[3] = v->merge[2];
    v->merge_length[3] = v->merge_length[2];
    v->text[v->src.tokens - 1] = "\xA9";
    v->length[v->src.tokens - 1] = 1;
    expect_refusal(v, "not UTF-8");
    v->src.tokens = 0;
    expect_refusal(v, "no tokens");
    vocab_close(v);
}

/* Writes the golden file with `find` replaced by `with`, and loads that. */
static void expect_json_refusal(const char *golden, const char *find, const char *with,
                                const char *part)
{
    size_t n;
    struct err err = {""};
    char *text = (char *)golden_bytes(golden, &n);
    char *at = strstr(text, find);
    if (!at)
        fail_msg("'%s' is not in the file", find);
    char path[] = "/tmp/whet-tokenizer-XXXXXX";
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "wb");
    assert_non_null(f);
    fprintf(f, "%.*s%s%s", (int)(at - text), text, with, at + strlen(find));
    fclose(f);
    struct tokenizer *t = tokenizer_from_json(path, TOKENS_MAX, &err);
    remove(path);
    assert_null(t);
    if (!strstr(err.msg, part) || strncmp(err.msg, path, strlen(path)) != 0)
        fail_msg("'%s' does not say '%s' of '%s'", err.msg, part, path);
    free(text);
}

static void stages_that_are_not_supported_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"\"type\":\"BPE\"", "\"type\":\"WordPiece\"", "model 'WordPiece'"},
        {"\"type\":\"BPE\"", "\"type\":\"Unigram\"", "model 'Unigram'"},
        {"\"byte_fallback\":false", "\"byte_fallback\":true", "byte_fallback"},
        {"\"dropout\":null", "\"dropout\":0.1", "dropout"},
        {"\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"</w>\"", "end_of_word_suffix"},
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"Lowercase\"}", "'Lowercase'"},
        {"\"pre_tokenizer\":{\"type\":\"Sequence\"", "\"pre_tokenizer\":{\"type\":\"Metaspace\"",
         "Metaspace with a replacement"},
        {"\"behavior\":\"Isolated\"", "\"behavior\":\"MergedWithNext\"", "'MergedWithNext'"},
        {"{\"Regex\":", "{\"Other\":", "neither a Regex nor a String"},
        {"\"type\":\"TemplateProcessing\"", "\"type\":\"BertProcessing\"", "'BertProcessing'"},
        {"\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"Metaspace\"",
         "decoder 'Metaspace'"},
        {"\"merges\":", "\"no-merges\":", "model.merges"},
        {"\"vocab\":", "\"no-vocab\":", "model.vocab"},
        {"\"vocab\":{", "\"vocab\":{\"bad\":-1,", "'bad'"},
        {"\"vocab\":{", "\"vocab\":{\"huge\":1e9,", "'huge'"},
        {"\"vocab\":{", "\"vocab\":{\"twice\":0,", "id 0 is both"},
        {"\"vocab\":{", "\"vocab\":{\"far\":1000000,", "ids go up to 1000000"},
        {"\"merges\":[", "\"merges\":[17,", "neither a string nor a pair"},
        {"\"merges\":[", "\"merges\":[[\"a\"],", "neither a string nor a pair"},
        {"{\"version\"", "version", "not valid JSON"},
        {"{\"Regex\":\"", "{\"Regex\":\"a\\\\Kb|", "is refused for: \\K"},
        {"{\"Regex\":\"", "{\"Regex\":\"(?(DEFINE)(a\\\\K))(?=(?1))|", "the group (?(D"},
        {"{\"Regex\":\"", "{\"Regex\":\"(*LIMIT_MATCH=9)", "the group (*LI"},
        {"{\"Regex\":\"", "{\"Regex\":\"(?C)", "the group (?C)"},
        {"{\"Regex\":\"", "{\"Regex\":\"(?:\\\\p{L}+)+$|", "more than 256 steps a byte"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_json_refusal("tokenizer/llama3.json", cases[i][0], cases[i][1], cases[i][2]);
}

#define SPACE "\xE2\x96\x81"

static void stages_of_sentencepiece_that_are_not_supported_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const cases[][4] = {
        {"pieces", "\"type\":\"BPE\"", "\"type\":\"Unigram\"", "model 'Unigram'"},
        {"pieces", "{\"type\":\"Prepend\"", "{\"type\":\"Precompiled\"",
         "normalizer 'Precompiled'"},
        {"pieces", "\"prepend\":\"" SPACE "\"", "\"prepend\":\"_\"",
         "Prepend of anything but U+2581"},
        {"pieces", "\"pattern\":{\"String\":\" \"}", "\"pattern\":{\"Regex\":\" +\"}",
         "Replace of anything but"},
        {"pieces", "\"normalizers\":[", "\"normalizers\":[{\"type\":\"NFC\"},",
         "NFC beside U+2581"},
        {"pieces", "\"normalizers\":[",
         "\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"" SPACE "\"},", "Prepend twice"},
        {"pieces",
         "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" SPACE "\"}",
         "{\"type\":\"NFC\"}", "NFC beside U+2581"},
        {"pieces", "\"pre_tokenizer\":null",
         "\"pre_tokenizer\":{\"type\":\"Digits\",\"individual_digits\":true}", "another step"},
        {"pieces", "\"pre_tokenizer\":null",
         "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"" SPACE "\"}",
         "Metaspace behind a Prepend"},
        {"pieces", "\"unk_token\":\"<unk>\"", "\"unk_token\":\"<none>\"", "unk_token '<none>'"},
        {"pieces", "\"dropout\":null", "\"dropout\":0.5", "dropout"},
        {"pieces", "{\"type\":\"ByteFallback\"},", "", "decoder: a Sequence other than"},
        {"pieces", "\"start\":1", "\"start\":2", "decoder: a Sequence other than"},
        {"pieces", "\"merges\":[", "\"merges\":[[\"zq\",\"b\"],",
         "'zq b' has a token that is not in the vocabulary"},
        {"metaspace", "\"replacement\":\"" SPACE "\"", "\"replacement\":\"_\"",
         "Metaspace with a replacement other"},
        {"metaspace", "\"prepend_scheme\":\"first\"", "\"prepend_scheme\":\"last\"",
         "prepend_scheme 'last'"},
        {"metaspace", "\"decoder\":{\"type\":\"Sequence\"", "\"decoder\":{\"type\":\"Metaspace\"",
         "decoder 'Metaspace'"},
        {"metaspace", "\"pre_tokenizer\":{\"type\":\"Metaspace\"",
         "\"pre_tokenizer\":{\"type\":\"ByteLevel\"", "model.byte_fallback is only supported"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *golden = xasprintf("tokenizer/%s.json", cases[i][0]);
        expect_json_refusal(golden, cases[i][1], cases[i][2], cases[i][3]);
        free(golden);
    }
}

static void a_missing_file_is_an_error(void **state)
{
    (void)state;
    struct err err = {""};
    assert_null(tokenizer_from_json("/no/such/tokenizer.json", TOKENS_MAX, &err));
    assert_non_null(strstr(err.msg, "/no/such/tokenizer.json"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_broken_vocabulary_is_refused),
        cmocka_unit_test(stages_that_are_not_supported_are_refused_by_name),
        cmocka_unit_test(stages_of_sentencepiece_that_are_not_supported_are_refused_by_name),
        cmocka_unit_test(a_missing_file_is_an_error),
    };
    return cmocka_run_group_tests_name("engine/tokenizer_refused", tests, NULL, NULL);
}
