/* SPDX-License-Identifier: Apache-2.0 */
/* Vocabularies of SentencePiece. Expected ids: what Hugging Face tokenizers gives, and for the GGUF
 * file sentencepiece itself (scripts/make-golden-pieces). Expected texts: tokenizers 0.23.3. */
#include "tests/unit/unit.h"

#include <math.h>

#include "engine/bpe.h"
#include "engine/model.h"
#include "engine/tokenizer.h"
#include "engine/utf8.h"
#include "tests/unit/engine/tokens.h"

static struct model *open_gguf(void)
{
    struct err err = {""};
    char *path = golden_path("tokenizer/pieces.gguf");
    struct model *m = model_open(path, true, NULL, NULL, &err);
    if (!m)
        fail_msg("%s", err.msg);
    free(path);
    return m;
}

/* ---- encoding ------------------------------------------------------------------------------ */

/* Strings whose ids differ from those of `name`.ids; the first few are printed. */
static int count_differences(const struct tokenizer *t, const char *name)
{
    char *file = xasprintf("%s.ids", name);
    struct lines text = lines_read("pieces.txt"), expected = lines_read(file);
    assert_true(text.n >= 600);
    assert_int_equal(text.n, expected.n);
    int bad = 0;
    for (size_t i = 0; i < text.n; i++) {
        int32_t *ids;
        size_t n = unescape(text.line[i]);
        int64_t count = tokenizer_encode(t, text.line[i], n, false, &ids, NULL);
        char *at = expected.line[i];
        bool same = count >= 0;
        for (int64_t k = 0; k < count && same; k++)
            same = *at && strtol(at, &at, 10) == ids[k];
        if ((!same || *at) && ++bad <= 3)
            print_message("%s: line %zu differs\n", file, i + 1);
        free(ids);
    }
    lines_free(&text);
    lines_free(&expected);
    free(file);
    return bad;
}

static void tokenizer_json_encodes_as_hugging_face(void **state)
{
    (void)state;
    static const char *const names[] = {"pieces", "metaspace", "words", "prepend"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct tokenizer *t = open_json(names[i]);
        assert_int_equal(count_differences(t, names[i]), 0);
        tokenizer_free(t);
    }
}

static void a_gguf_file_encodes_as_the_tokenizer_json_of_the_same_model(void **state)
{
    (void)state;
    struct model *m = open_gguf();
    struct tokenizer *t = open_json("pieces");
    int32_t n = tokenizer_vocab(t);
    assert_int_equal(count_differences(m->tokenizer, "pieces"), 0);
    assert_int_equal(tokenizer_vocab(m->tokenizer), n);
    for (int32_t id = 0; id < n; id++) {
        size_t a, b;
        const char *x = tokenizer_bytes(t, id, true, &a);
        const char *y = tokenizer_bytes(m->tokenizer, id, true, &b);
        assert_int_equal(a, b);
        assert_memory_equal(x, y, a);
        assert_int_equal(tokenizer_is_special(t, id), tokenizer_is_special(m->tokenizer, id));
    }
    assert_int_equal(tokenizer_bos(m->tokenizer), tokenizer_find(t, "<s>"));
    assert_true(tokenizer_is_stop(m->tokenizer, tokenizer_find(t, "</s>")));
    tokenizer_free(t);
    model_close(m);
}

/* Both files: <s> in front of a text, as a post-processor says or as the kind of model has it. */
static void a_text_begins_with_bos(void **state)
{
    (void)state;
    struct model *m = open_gguf();
    struct tokenizer *json = open_json("pieces"), *all[] = {json, m->tokenizer};
    for (int i = 0; i < 2; i++) {
        int32_t *ids, *plain;
        int64_t n = tokenizer_encode(all[i], "int x", 5, true, &ids, NULL);
        assert_int_equal(tokenizer_encode(all[i], "int x", 5, false, &plain, NULL), n - 1);
        assert_int_equal(ids[0], 1);
        assert_memory_equal(ids + 1, plain, (size_t)(n - 1) * sizeof *ids);
        free(ids);
        free(plain);
    }
    tokenizer_free(json);
    model_close(m);
}

/* ---- scores -------------------------------------------------------------------------------- */

enum { LETTERS = 8 };
static const char *letter[LETTERS] = {"<unk>", "a", "b", "c", "ab", "bc", "abc", PIECE_SPACE};
static int32_t letter_length[LETTERS];
static uint8_t letter_kind[LETTERS] = {TOKEN_CONTROL}; /* the others are normal */

/* A vocabulary of these tokens, merged by their scores. */
static struct vocab_source letters(const struct vocab_pieces *pieces)
{
    for (int i = 0; i < LETTERS; i++)
        letter_length[i] = (int32_t)strlen(letter[i]);
    return (struct vocab_source){.tokens = LETTERS,
                                 .text = letter,
                                 .length = letter_length,
                                 .kind = letter_kind,
                                 .bos = -1,
                                 .eos = -1,
                                 .pieces = pieces};
}

static struct tokenizer *open_scores(const float *score, struct vocab_pieces pieces,
                                     struct err *err)
{
    pieces.score = score;
    struct vocab_source src = letters(&pieces);
    return tokenizer_build(&src, err);
}

static void expect_ids(const struct tokenizer *t, const char *text, const char *expected)
{
    char got[128] = "";
    int32_t *ids;
    int64_t n = tokenizer_encode(t, text, strlen(text), false, &ids, NULL);
    for (int64_t i = 0; i < n; i++)
        sprintf(got + strlen(got), "%d ", ids[i]);
    assert_string_equal(got, expected);
    free(ids);
}

static void the_highest_score_merges_first_and_the_leftmost_of_equals(void **state)
{
    (void)state;
    struct vocab_pieces p = {.unknown = 0, .fuse_unknown = true};
    struct err err = {""};
    /* ab and bc are the same to their scores, and abc comes of neither: it has no halves left. */
    struct tokenizer *t = open_scores((float[]){0, -5, -6, -7, -1, -1, -9, -8}, p, &err);
    expect_ids(t, "abc", "6 ");
    expect_ids(t, "abcbc", "6 5 ");
    expect_ids(t, "aab", "1 4 ");
    tokenizer_free(t);
    t = open_scores((float[]){0, -5, -6, -7, -2, -1, -9, -8}, p, &err);
    expect_ids(t, "abb", "4 2 ");
    expect_ids(t, "abc", "6 ");
    expect_ids(t, "axyc", "1 0 3 "); /* one unknown token for both */
    tokenizer_free(t);
    p.fuse_unknown = false;
    t = open_scores((float[]){0, -5, -6, -7, -2, -1, -9, -8}, p, &err);
    expect_ids(t, "axyc", "1 0 0 3 ");
    expect_ids(t, "a b", "1 7 2 ");
    tokenizer_free(t);
    p.prefix = PREFIX_EACH;
    p.normalizes = true;
    p.unknown = -1;
    t = open_scores((float[]){0, -5, -6, -7, -2, -1, -9, -8}, p, &err);
    expect_ids(t, " axb", "7 7 4 "); /* x has no token at all, and is not there */
    tokenizer_free(t);
}

static void equal_scores_go_by_place_and_not_by_id(void **state)
{
    (void)state;
    struct vocab_pieces p = {.unknown = 0};
    struct err err = {""};
    letter[6] = "ca";
    struct tokenizer *t = open_scores((float[]){0, -5, -6, -7, -1, -2, -1, -8}, p, &err);
    letter[6] = "abc";
    expect_ids(t, "cab", "6 2 ");
    expect_ids(t, "abca", "4 6 ");
    tokenizer_free(t);
}

static void impossible_scores_are_refused(void **state)
{
    (void)state;
    struct vocab_pieces p = {.unknown = 0};
    struct err err = {""};
    assert_null(open_scores((float[]){0, -5, NAN, -7, -1, -1, -9, -8}, p, &err));
    assert_non_null(strstr(err.msg, "the score of token 2 is not a number"));
    p.unknown = LETTERS;
    assert_null(open_scores((float[]){0, -5, -6, -7, -1, -1, -9, -8}, p, &err));
    assert_non_null(strstr(err.msg, "unknown id 8"));
}

/* Then a text is cut before its spaces, and its words are looked up whole. */
static void words_part_where_no_merge_reaches_over_spaces(void **state)
{
    (void)state;
    static const struct {
        const char *token;
        bool ignore_merges, part;
    } rows[] = {
        {PIECE_SPACE "a", false, true},     {PIECE_SPACE PIECE_SPACE, false, true},
        {"a" PIECE_SPACE, false, false},    {PIECE_SPACE "a", true, false},
        {"b" PIECE_SPACE "b", false, true}, /* not to be had: nothing in it is a token */
    };
    const float score[LETTERS] = {0, -5, -6, -7, -2, -1, -9, -8};
    const char *before = letter[6];
    struct vocab_pieces p = {.score = score, .unknown = 0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        letter[6] = rows[i].token;
        struct vocab_source src = letters(&p);
        src.ignore_merges = rows[i].ignore_merges;
        struct bpe *b = bpe_open(&src, NULL);
        assert_int_equal(bpe_words_part(b), rows[i].part);
        bpe_close(b);
    }
    letter[6] = before;
}

/* ---- decoding ------------------------------------------------------------------------------ */

static void expect_text(const struct tokenizer *t, const char *text, bool special,
                        const char *expected)
{
    int32_t *ids;
    size_t length;
    int64_t n = tokenizer_encode(t, text, strlen(text), true, &ids, NULL);
    char *back = tokenizer_decode(t, ids, n, special, &length);
    assert_string_equal(back, expected);
    free(back);
    free(ids);
}

static void one_space_in_front_of_a_text_is_not_of_it(void **state)
{
    (void)state;
    struct tokenizer *t = open_json("pieces");
    expect_text(t, "int main", false, "int main");
    expect_text(t, "int main", true, "<s> int main"); /* the text begins with <s> */
    expect_text(t, "  int", false, "  int");
    expect_text(t, "[INST] int [/INST] x", false, " int   x");
    expect_text(t, "\xE4\xB8\xAD\xF0\x9F\x98\x80", false, "\xE4\xB8\xAD\xF0\x9F\x98\x80");
    tokenizer_free(t);
    t = open_json("metaspace");
    expect_text(t, " int", false, "int"); /* the space is taken for the one in front */
    expect_text(t, "[INST] int", true, "<s>[INST]int");
    tokenizer_free(t);
    t = open_json("prepend");
    expect_text(t, "a the cat", true, "<s> a the cat");
    size_t n;
    int32_t id = tokenizer_find(t, "the cat"); /* looked for in the normalized text: " the cat" */
    assert_true(id >= 0);
    assert_memory_equal(tokenizer_bytes(t, id, true, &n), " the cat", 8);
    assert_int_equal(n, 8);
    assert_memory_equal(tokenizer_text(t, id, &n), "the cat", 7);
    assert_int_equal(n, 7);
    tokenizer_free(t);
}

static void tokens_are_spaces_and_bytes(void **state)
{
    (void)state;
    struct tokenizer *t = open_json("pieces");
    size_t n;
    int32_t id = tokenizer_find(t, "\xE2\x96\x81the");
    assert_true(id >= 0);
    assert_memory_equal(tokenizer_bytes(t, id, false, &n), " the", 4);
    assert_int_equal(n, 4);
    for (int byte = 0; byte < 256; byte++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", byte);
        const char *bytes = tokenizer_bytes(t, tokenizer_find(t, name), false, &n);
        assert_int_equal(n, 1);
        assert_int_equal((unsigned char)bytes[0], byte);
    }
    tokenizer_free(t);
}

/* Every text that has no added token comes back, whole and in one piece after the other. */
static void decoding_gives_the_text_back(void **state)
{
    (void)state;
    struct tokenizer *t = open_json("pieces");
    struct lines text = lines_read("pieces.txt");
    int checked = 0;
    for (size_t i = 0; i < text.n; i++) {
        struct utf8_stream stream = {.n = 0};
        int32_t *ids;
        size_t length, bytes, n = unescape(text.line[i]), m = 0;
        int64_t count = tokenizer_encode(t, text.line[i], n, true, &ids, NULL);
        char *whole = tokenizer_decode(t, ids, count, false, &length);
        char *pieces = xmalloc(3 * n + 64);
        bool begun = false, added = false;
        for (int64_t k = 0; k < count; k++) {
            const char *token = tokenizer_next_bytes(t, ids[k], false, &begun, &bytes);
            m += utf8_stream_push(&stream, token, bytes, false, pieces + m);
            added |=
                (k > 0 && tokenizer_is_special(t, ids[k])) || ids[k] == tokenizer_find(t, "<tool>");
        }
        assert_int_equal(m, length);
        assert_memory_equal(pieces, whole, m);
        if (!added && !memmem(text.line[i], n, PIECE_SPACE, PIECE_SPACE_BYTES)) {
            assert_int_equal(length, n);
            assert_memory_equal(whole, text.line[i], n);
            checked++;
        }
        free(pieces);
        free(whole);
        free(ids);
    }
    assert_true(checked > 200);
    lines_free(&text);
    tokenizer_free(t);
}

/* ---- work ---------------------------------------------------------------------------------- */

static int64_t work_for(const struct tokenizer *t, size_t n, const char *letters)
{
    struct encode_control control = {0};
    char *text = xmalloc(n);
    uint32_t r = 1;
    int32_t *ids;
    for (size_t i = 0; i < n; i++) {
        r = r * 1664525u + 1013904223u;
        text[i] = letters[(r >> 24) % strlen(letters)];
    }
    assert_true(tokenizer_encode_cancellable(t, text, n, false, &control, &ids, NULL) > 0);
    free(ids);
    free(text);
    return control.work;
}

/* A text is one word where the pre-tokenizer does not split: with merges over spaces (metaspace)
 * and, of a text without any, in every vocabulary. */
static void a_text_in_one_word_is_not_quadratic(void **state)
{
    (void)state;
    static const char *const names[] = {"pieces", "metaspace"};
    static const char *const letters[] = {"the int x", "thein", " "};
    for (size_t i = 0; i < 2; i++) {
        struct tokenizer *t = open_json(names[i]);
        for (size_t k = 0; k < 3; k++) {
            int64_t small = work_for(t, 1 << 14, letters[k]);
            assert_true(work_for(t, 1 << 18, letters[k]) < 16 * 2 * small);
        }
        tokenizer_free(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokenizer_json_encodes_as_hugging_face),
        cmocka_unit_test(a_gguf_file_encodes_as_the_tokenizer_json_of_the_same_model),
        cmocka_unit_test(a_text_begins_with_bos),
        cmocka_unit_test(the_highest_score_merges_first_and_the_leftmost_of_equals),
        cmocka_unit_test(equal_scores_go_by_place_and_not_by_id),
        cmocka_unit_test(impossible_scores_are_refused),
        cmocka_unit_test(words_part_where_no_merge_reaches_over_spaces),
        cmocka_unit_test(one_space_in_front_of_a_text_is_not_of_it),
        cmocka_unit_test(tokens_are_spaces_and_bytes),
        cmocka_unit_test(decoding_gives_the_text_back),
        cmocka_unit_test(a_text_in_one_word_is_not_quadratic),
    };
    return cmocka_run_group_tests_name("engine/tokenizer_pieces", tests, NULL, NULL);
}
