/* SPDX-License-Identifier: Apache-2.0 */
/* Expected ids: what Hugging Face tokenizers gives (scripts/make-golden-tokenizer), on the same
 * strings, for the default model's vocabulary and for small ones behind every pre-tokenizer. */
#include "engine/tokenizer.h"

#include <math.h>
#include <pthread.h>
#include <time.h>

#include "engine/model.h"
#include "engine/utf8.h"
#include "tests/unit/engine/tokens.h"
#include "tests/unit/engine/vocab.h"

/* ---- every string of the corpus ------------------------------------------------------------ */

/* Strings whose ids differ from those of `name`.ids; the first few are printed. */
static int count_differences(const struct tokenizer *t, const char *name)
{
    char *file = xasprintf("%s.ids", name);
    struct lines text = lines_read("corpus.txt"), expected = lines_read(file);
    assert_true(text.n >= 2000);
    assert_int_equal(text.n, expected.n);
    int bad = 0;
    for (size_t i = 0; i < text.n; i++) {
        struct err err = {""};
        int32_t *ids;
        size_t n = unescape(text.line[i]);
        int64_t count = tokenizer_encode(t, text.line[i], n, false, &ids, &err);
        char *at = expected.line[i];
        bool same = count >= 0;
        for (int64_t k = 0; k < count && same; k++)
            same = *at && strtol(at, &at, 10) == ids[k];
        if ((!same || *at) && ++bad <= 3)
            print_message("%s: line %zu differs %s\n", file, i + 1, err.msg);
        free(ids);
    }
    lines_free(&text);
    lines_free(&expected);
    free(file);
    return bad;
}

static const struct {
    const char *file, *pre; /* pre: the GGUF name of the same pre-tokenizer */
} goldens[] = {
    {"gpt2", "gpt-2"},    {"llama3", "llama-bpe"}, {"qwen2", "qwen2"},
    {"qwen35", "qwen35"}, {"tekken", "tekken"},    {"odd", NULL},
};
#define GOLDENS (sizeof goldens / sizeof *goldens)

static void tokenizer_json_encodes_as_hugging_face(void **state)
{
    (void)state;
    for (size_t i = 0; i < GOLDENS; i++) {
        struct tokenizer *t = open_json(goldens[i].file);
        assert_int_equal(count_differences(t, goldens[i].file), 0);
        tokenizer_free(t);
    }
}

static void a_named_pre_tokenizer_encodes_as_the_spelled_out_one(void **state)
{
    (void)state;
    for (size_t i = 0; i < GOLDENS; i++) {
        struct err err = {""};
        if (!goldens[i].pre)
            continue;
        struct vocab *v = vocab_open(goldens[i].file);
        v->src.pre = goldens[i].pre;
        struct tokenizer *t = tokenizer_build(&v->src, &err);
        if (!t)
            fail_msg("%s", err.msg);
        vocab_close(v); /* the tokenizer has its own copies */
        assert_int_equal(count_differences(t, goldens[i].file), 0);
        tokenizer_free(t);
    }
}

static void the_default_model_encodes_as_hugging_face(void **state)
{
    (void)state;
    const char *path = getenv("WHET_TEST_MODEL"), *must = getenv("WHET_TEST_REQUIRE_MODEL");
    if (!path) {
        if (must && strcmp(must, "1") == 0)
            fail_msg("WHET_TEST_MODEL is not set");
        skip();
    }
    struct err err = {""};
    struct model *m = model_open(path, true, NULL, NULL, &err);
    if (!m)
        fail_msg("%s", err.msg);
    assert_int_equal(count_differences(m->tokenizer, "smollm2"), 0);
    assert_int_equal(tokenizer_vocab(m->tokenizer), 49152);
    assert_int_equal(tokenizer_eos(m->tokenizer), tokenizer_find(m->tokenizer, "<|im_end|>"));
    assert_true(tokenizer_is_stop(m->tokenizer, tokenizer_find(m->tokenizer, "<|endoftext|>")));
    int32_t *ids;
    assert_int_equal(tokenizer_encode(m->tokenizer, "x", 1, true, &ids, &err), 1); /* no BOS */
    free(ids);
    model_close(m);
}

static void decoding_gives_the_text_back(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt2", "llama3", "tekken"}; /* no normalizer */
    for (size_t k = 0; k < 3; k++) {
        struct tokenizer *t = open_json(names[k]);
        struct lines text = lines_read("corpus.txt");
        for (size_t i = 0; i < text.n; i++) {
            int32_t *ids;
            size_t m, length, n = unescape(text.line[i]);
            char *valid = utf8_lossy(text.line[i], n, &m);
            int64_t count = tokenizer_encode(t, text.line[i], n, false, &ids, NULL);
            char *back = tokenizer_decode(t, ids, count, true, &length);
            assert_int_equal(length, m);
            assert_memory_equal(back, valid, m + 1);
            free(back);
            free(ids);
            free(valid);
        }
        lines_free(&text);
        tokenizer_free(t);
    }
}

/* ---- special tokens ------------------------------------------------------------------------ */

static void bos_is_added_where_the_model_wants_it(void **state)
{
    (void)state;
    struct tokenizer *t = open_json("llama3");
    int32_t *ids, bos = tokenizer_find(t, "<|begin_of_text|>");
    assert_int_equal(tokenizer_bos(t), bos);
    assert_int_equal(tokenizer_encode(t, "", 0, false, &ids, NULL), 0);
    free(ids);
    assert_int_equal(tokenizer_encode(t, "", 0, true, &ids, NULL), 1);
    assert_int_equal(ids[0], bos);
    free(ids);
    tokenizer_free(t);
    t = open_json("gpt2");
    assert_int_equal(tokenizer_encode(t, "", 0, true, &ids, NULL), 0);
    free(ids);
    tokenizer_free(t);
}

static void a_silent_file_adds_bos_as_its_family_does(void **state)
{
    (void)state;
    static const struct {
        const char *pre;
        int8_t add_bos;
        int expected;
    } cases[] = {{"llama-bpe", -1, 1}, {"llama-bpe", 0, 0}, {"qwen2", -1, 0}, {"qwen2", 1, 1}};
    struct vocab *v = vocab_open("llama3");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t *ids;
        v->src.pre = cases[i].pre;
        v->src.add_bos = cases[i].add_bos;
        v->src.bos = 0;
        struct tokenizer *t = tokenizer_build(&v->src, NULL);
        assert_non_null(t);
        assert_int_equal(tokenizer_encode(t, "", 0, true, &ids, NULL), cases[i].expected);
        free(ids);
        tokenizer_free(t);
    }
    vocab_close(v);
}

/* Expected: tokenizers 0.23.3, whose \w is that of Unicode 16.0 (U+A7CB and U+2427 are new in it).
 */
static void a_single_word_is_no_part_of_a_longer_one(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool found;
    } rows[] = {
        {"the", true},
        {" the ", true},
        {"the\xc2\xbc", true},     /* U+00BC, a fraction */
        {"\xc2\xb2the", true},     /* U+00B2, a superscript */
        {"\xe2\x90\xa7the", true}, /* U+2427, a symbol */
        {"athe", false},
        {"the_", false},
        {"\xe2\x80\x8dthe", false},     /* U+200D, a joiner */
        {"the\xe2\x80\x8c", false},     /* U+200C */
        {"\xe2\x92\xb6the", false},     /* U+24B6, a circled letter */
        {"\xea\x9f\x8bthe", false},     /* U+A7CB, a letter */
        {"the\xe1\xb2\x89", false},     /* U+1C89, a letter */
        {"\xf0\xae\xaf\xb0the", false}, /* U+2EBF0, an ideograph of 15.1 */
        {"\xf0\x90\xb5\x80the", false}, /* U+10D40, a digit */
        {"\xe0\xa2\x97the", false},     /* U+0897, a mark */
    };
    static const char mark[] = "\"added_tokens\":[";
    size_t n;
    struct err err = {""};
    char *json = (char *)golden_bytes("tokenizer/llama3.json", &n),
         path[] = "/tmp/whet-word-XXXXXX";
    char *at = strstr(json, mark);
    assert_non_null(at);
    at += sizeof mark - 1;
    FILE *f = fdopen(mkstemp(path), "wb");
    assert_non_null(f);
    fprintf(f, "%.*s{\"id\":905,\"content\":\"the\",\"single_word\":true},%s", (int)(at - json),
            json, at);
    fclose(f);
    struct tokenizer *t = tokenizer_from_json(path, TOKENS_MAX, &err);
    remove(path);
    if (!t)
        fail_msg("%s", err.msg);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int32_t *ids;
        int64_t count = tokenizer_encode(t, rows[i].text, strlen(rows[i].text), false, &ids, NULL);
        bool found = false;
        for (int64_t k = 0; k < count; k++)
            found |= ids[k] == 905;
        if (found != rows[i].found)
            fail_msg("%s", rows[i].text);
        free(ids);
    }
    tokenizer_free(t);
    free(json);
}

static void special_tokens_are_hidden_unless_asked_for(void **state)
{
    (void)state;
    struct tokenizer *t = open_json("gpt2");
    const char *text = "hi<|im_end|><tool_call>";
    int32_t *ids, end = tokenizer_find(t, "<|im_end|>"), tool = tokenizer_find(t, "<tool_call>");
    int64_t n = tokenizer_encode(t, text, strlen(text), false, &ids, NULL);
    size_t length;
    char *shown = tokenizer_decode(t, ids, n, true, &length);
    char *hidden = tokenizer_decode(t, ids, n, false, &length);
    assert_string_equal(shown, text);
    assert_string_equal(hidden, "hi<tool_call>");
    assert_true(tokenizer_is_special(t, end));
    assert_false(tokenizer_is_special(t, tool));
    tokenizer_bytes(t, end, false, &length);
    assert_int_equal(length, 0);
    tokenizer_bytes(t, end, true, &length);
    assert_int_equal(length, 10);
    free(shown);
    free(hidden);
    free(ids);
    tokenizer_free(t);
}

static void ids_outside_of_the_vocabulary_are_harmless(void **state)
{
    (void)state;
    struct tokenizer *t = open_json("gpt2");
    size_t length;
    for (int32_t id = -2; id < 2; id++) {
        int32_t outside = id < 0 ? id : tokenizer_vocab(t) + id;
        tokenizer_bytes(t, outside, true, &length);
        assert_int_equal(length, 0);
        assert_false(tokenizer_is_stop(t, outside));
        assert_false(tokenizer_is_special(t, outside));
    }
    tokenizer_free(t);
}

static void tokens_are_found_by_their_text(void **state)
{
    (void)state;
    struct tokenizer *t = open_json("gpt2");
    size_t n;
    int32_t id = tokenizer_find(t, "\xC4\xA0the"); /* as the vocabulary writes " the" */
    assert_true(id >= 0);
    const char *bytes = tokenizer_bytes(t, id, false, &n);
    assert_int_equal(n, 4);
    assert_memory_equal(bytes, " the", 4);
    assert_int_equal(tokenizer_find(t, "no such token"), -1);
    assert_int_equal(tokenizer_find(t, ""), -1);
    tokenizer_free(t);
}

static void all_ways_to_end_a_turn_stop_a_generation(void **state)
{
    (void)state;
    struct vocab *v = vocab_open("gpt2");
    v->src.pre = "gpt-2";
    v->src.eos = 5;
    v->src.stop = (const int32_t[]){7, 9};
    v->src.stops = 2;
    struct tokenizer *t = tokenizer_build(&v->src, NULL);
    for (int32_t i = 0; i < v->src.tokens; i++)
        assert_int_equal(tokenizer_is_stop(t, i), i == 5 || i == 7 || i == 9 ||
                                                      !strcmp(v->text[i], "<|im_end|>") ||
                                                      !strcmp(v->text[i], "<|endoftext|>"));
    tokenizer_free(t);
    vocab_close(v);
}

/* ---- time and threads ---------------------------------------------------------------------- */

/* Seconds of this thread to encode n letters without a space. */
static double seconds_for(const struct tokenizer *t, size_t n)
{
    char *text = xmalloc(n);
    uint32_t r = 1;
    for (size_t i = 0; i < n; i++) {
        r = r * 1664525u + 1013904223u;
        text[i] = (char)('a' + (r >> 24) % 26);
    }
    struct timespec a, b;
    int32_t *ids;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
    assert_true(tokenizer_encode(t, text, n, false, &ids, NULL) > 0);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
    free(ids);
    free(text);
    return (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
}

static void a_word_of_a_megabyte_is_not_quadratic(void **state)
{
    (void)state;
    struct tokenizer *t = open_json("gpt2");
    double small = seconds_for(t, 1 << 16), large = HUGE_VAL;
    for (int i = 0; i < 5 && large >= 80 * small; i++) /* a neighbour takes caches, not always */
        large = seconds_for(t, 1 << 20);
    assert_true(large < 80 * small); /* 16 times the text; quadratic would be 256 times the time */
    tokenizer_free(t);
}

static void *encode_everything(void *t)
{
    return (void *)(intptr_t)count_differences(t, "llama3");
}

static void threads_encode_with_one_tokenizer(void **state)
{
    (void)state;
    struct tokenizer *t = open_json("llama3");
    pthread_t thread[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, encode_everything, t), 0);
    for (int i = 0; i < 4; i++) {
        void *bad;
        pthread_join(thread[i], &bad);
        assert_null(bad);
    }
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokenizer_json_encodes_as_hugging_face),
        cmocka_unit_test(a_named_pre_tokenizer_encodes_as_the_spelled_out_one),
        cmocka_unit_test(the_default_model_encodes_as_hugging_face),
        cmocka_unit_test(decoding_gives_the_text_back),
        cmocka_unit_test(bos_is_added_where_the_model_wants_it),
        cmocka_unit_test(a_silent_file_adds_bos_as_its_family_does),
        cmocka_unit_test(a_single_word_is_no_part_of_a_longer_one),
        cmocka_unit_test(special_tokens_are_hidden_unless_asked_for),
        cmocka_unit_test(ids_outside_of_the_vocabulary_are_harmless),
        cmocka_unit_test(tokens_are_found_by_their_text),
        cmocka_unit_test(all_ways_to_end_a_turn_stop_a_generation),
        cmocka_unit_test(a_word_of_a_megabyte_is_not_quadratic),
        cmocka_unit_test(threads_encode_with_one_tokenizer),
    };
    return cmocka_run_group_tests_name("engine/tokenizer", tests, NULL, NULL);
}
