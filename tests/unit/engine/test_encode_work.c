/* SPDX-License-Identifier: Apache-2.0 */
/* The work of an encoding is bounded by the length of the text, whatever the text: counted, not
 * timed, for texts that have sent tokenizers into quadratic time. */
#include "engine/encode_work.h"

#include <pthread.h>

#include "engine/added.h"
#include "engine/bpe.h"
#include "tests/unit/engine/tokens.h"
#include "tests/unit/engine/vocab.h"

/* The unit repeated to fill n bytes, cut at a whole unit. */
static char *repeat(const char *unit, size_t *n)
{
    size_t m = strlen(unit), count = *n / m;
    char *text = xmalloc(*n + 1);
    for (size_t i = 0; i < count; i++)
        memcpy(text + i * m, unit, m);
    *n = count * m;
    return text;
}

static int64_t work_of(const struct tokenizer *t, const char *unit, size_t n)
{
    struct encode_control control = {0};
    struct err err = {""};
    int32_t *ids;
    char *text = repeat(unit, &n);
    if (tokenizer_encode_cancellable(t, text, n, true, &control, &ids, &err) < 0)
        fail_msg("%s", err.msg);
    free(ids);
    free(text);
    return control.work;
}

static const char *const units[] = {
    "a",
    "A",
    "7",
    " ",
    "\n",
    "=",
    "\xC3\xA9",
    "\xE6\xBC\xA2",
    "\xE3\x80\x80",
    "a ",
    "a1",
    "aA",
    " \n",
    "\t \r\n",
    "!a",
    "'s",
    " !",
    "the",
    "\xCC\x81",
    "\xCC\x81\xCC\xA3",
    "a\xCC\xA3\xCC\x81",
    "\xCD\x84",                             /* U+0344: two marks */
    "\xE0\xBD\xB3",                         /* U+0F73: two marks that change places */
    "\xE1\x84\x80",                         /* jamo, alone and in syllables */
    "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", /* L V T */
    "\xEA\xB0\x80\xE1\x86\xA8",
    "\xF0\x9F\x91\xA9\xE2\x80\x8D", /* emoji, joiner */
    "\xF0\x9F\x87\xA9",
    "\xFF",
    "\xF0\x9F",
    "<",
    "<|im_",
    "<|im_end|>",
    " <|im_end|> ",
    "e\xCC\x81s",
};

static void work_grows_with_the_text_and_no_faster(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt2", "llama3", "qwen2", "qwen35", "tekken", "odd"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        struct tokenizer *t = open_json(names[k]);
        for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
            size_t n = SANITIZED ? 1 << 12 : 1 << 14;
            int64_t small = work_of(t, units[i], n), large = work_of(t, units[i], 4 * n);
            /* n log n: 4 times the text may need 4 * 16 / 14 times the work, or 4 * 14 / 12 */
            if (large > 5 * small + 4096 || large > 150 * 4 * (int64_t)n)
                fail_msg("%s: text %zu: %lld operations, %lld for 4 times as much", names[k], i,
                         (long long)small, (long long)large);
            assert_true(small > 0);
        }
        tokenizer_free(t);
    }
}

/* What used to take hours: 8 MiB of marks out of order, in a model that normalizes. */
static void megabytes_of_marks_are_encoded(void **state)
{
    (void)state;
    struct tokenizer *t = open_json("qwen2");
    size_t n = (SANITIZED ? 2 : 8) << 20;
    char *text = xmalloc(n);
    for (size_t i = 0; i < n; i += 2)
        memcpy(text + i, i < n / 2 ? "\xCC\x81" : "\xCC\xA3", 2);
    struct encode_control control = {0};
    int32_t *ids;
    assert_true(tokenizer_encode_cancellable(t, text, n, true, &control, &ids, NULL) > 0);
    assert_true(control.work < 150 * (int64_t)n);
    free(ids);
    free(text);
    tokenizer_free(t);
}

/* ---- added tokens -------------------------------------------------------------------------- */

static int count_piece(void *ctx, const char *piece, size_t n, int32_t id, struct err *err)
{
    (void)piece, (void)n, (void)id, (void)err;
    ++*(int64_t *)ctx;
    return 0;
}

/* A token that is a space and takes all spaces behind it is found at every space of a run: walking
 * to the end of the run each time would take 10^13 steps here. */
static void whitespace_that_strips_whitespace_is_not_quadratic(void **state)
{
    (void)state;
    struct added *a = added_open();
    added_put(a, " ", 1, 0, ADDED_RSTRIP | ADDED_LSTRIP);
    size_t n = 8 << 20;
    char *text = repeat(" ", &n);
    struct encode_control control = {0};
    int64_t pieces = 0;
    assert_int_equal(added_cut(a, text, n, count_piece, &pieces, &control, NULL), 0);
    assert_int_equal(pieces, n);
    assert_true(control.work <= 4 * (int64_t)n);
    free(text);
    added_close(a);
}

static void an_added_token_is_as_long_as_is_read_ahead_at_most(void **state)
{
    (void)state;
    struct vocab *v = vocab_open("gpt2");
    struct err err = {""};
    char text[ADDED_TEXT_MAX + 2];
    memset(text, 'a', sizeof text);
    v->src.pre = "gpt-2";
    v->text[v->src.tokens - 1] = text;
    v->length[v->src.tokens - 1] = ADDED_TEXT_MAX;
    struct tokenizer *t = tokenizer_build(&v->src, &err);
    assert_non_null(t);
    tokenizer_free(t);
    v->length[v->src.tokens - 1] = ADDED_TEXT_MAX + 1;
    assert_null(tokenizer_build(&v->src, &err));
    assert_non_null(strstr(err.msg, "513 bytes"));
    vocab_close(v);
}

/* ---- cancelling ---------------------------------------------------------------------------- */

static void a_cancelled_encoding_ends_at_once(void **state)
{
    (void)state;
    struct tokenizer *t = open_json("qwen2");
    size_t n = 8 << 20;
    char *text = repeat("a", &n);
    atomic_bool cancel = true;
    struct encode_control control = {.cancel = &cancel};
    struct err err = {""};
    int32_t *ids;
    assert_int_equal(tokenizer_encode_cancellable(t, text, n, true, &control, &ids, &err), -1);
    assert_null(ids);
    assert_true(control.cancelled);
    assert_string_equal(err.msg, "the encoding was cancelled");
    assert_int_equal(control.work, 0);
    free(text);
    tokenizer_free(t);
}

static void *set_flag(void *cancel)
{
    atomic_store((atomic_bool *)cancel, true);
    return NULL;
}

/* The same text again and again, until the other thread has come to it. */
static void another_thread_cancels(void **state)
{
    (void)state;
    struct tokenizer *t = open_json("qwen2");
    size_t n = 1 << 18;
    char *text = repeat("a\xCC\xA3\xCC\x81 1", &n);
    atomic_bool cancel = false;
    struct encode_control control = {.cancel = &cancel};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, set_flag, &cancel), 0);
    for (int64_t count = 0; count >= 0;) {
        int32_t *ids;
        count = tokenizer_encode_cancellable(t, text, n, true, &control, &ids, NULL);
        free(ids);
    }
    assert_true(control.cancelled);
    pthread_join(thread, NULL);
    free(text);
    tokenizer_free(t);
}

static void a_flag_that_is_not_set_changes_nothing(void **state)
{
    (void)state;
    struct tokenizer *t = open_json("qwen2");
    size_t n = SANITIZED ? 1 << 18 : 1 << 20;
    char *text = repeat("e\xCC\x81 x", &n);
    atomic_bool cancel = false;
    struct encode_control control = {.cancel = &cancel};
    int32_t *ids, *plain;
    int64_t count = tokenizer_encode_cancellable(t, text, n, true, &control, &ids, NULL);
    assert_int_equal(tokenizer_encode(t, text, n, true, &plain, NULL), count);
    assert_memory_equal(ids, plain, (size_t)count * sizeof *ids);
    assert_false(control.cancelled);
    free(ids);
    free(plain);
    free(text);
    tokenizer_free(t);
}

/* The flag is looked at within a stage: each is called with a flag that is set, on megabytes. */
static void a_word_can_be_cancelled(void **state)
{
    (void)state;
    struct vocab *v = vocab_open("gpt2");
    v->src.pre = "gpt-2";
    struct bpe *b = bpe_open(&v->src, NULL);
    struct bpe_scratch scratch = {0};
    struct id_list ids = {0};
    struct err err = {""};
    atomic_bool cancel = true;
    struct encode_control control = {.cancel = &cancel};
    size_t n = 4 << 20;
    char *text = repeat("the", &n);
    assert_int_equal(bpe_word(b, &scratch, text, n, &ids, &control, &err), -1);
    assert_true(control.cancelled);
    assert_true(control.work < 2 * ENCODE_POLL_EVERY);
    assert_int_equal(ids.n, 0);
    bpe_scratch_free(&scratch);
    free(ids.id);
    bpe_close(b);
    free(text);
    vocab_close(v);
}

static void the_search_for_added_tokens_can_be_cancelled(void **state)
{
    (void)state;
    struct added *a = added_open();
    added_put(a, "<x>", 3, 0, 0);
    atomic_bool cancel = true;
    struct encode_control control = {.cancel = &cancel};
    struct err err = {""};
    size_t n = 4 << 20;
    char *text = repeat("a", &n);
    int64_t pieces = 0;
    assert_int_equal(added_cut(a, text, n, count_piece, &pieces, &control, &err), -1);
    assert_true(control.cancelled);
    assert_true(control.work < 2 * ENCODE_POLL_EVERY);
    assert_int_equal(pieces, 0);
    free(text);
    added_close(a);
}

int main(void)
{
    const struct CMUnitTest counted[] = {
        cmocka_unit_test(work_grows_with_the_text_and_no_faster),
        cmocka_unit_test(megabytes_of_marks_are_encoded),
        cmocka_unit_test(whitespace_that_strips_whitespace_is_not_quadratic),
        cmocka_unit_test(an_added_token_is_as_long_as_is_read_ahead_at_most),
    };
    const struct CMUnitTest cancelled[] = {
        cmocka_unit_test(a_cancelled_encoding_ends_at_once),
        cmocka_unit_test(another_thread_cancels),
        cmocka_unit_test(a_flag_that_is_not_set_changes_nothing),
        cmocka_unit_test(a_word_can_be_cancelled),
        cmocka_unit_test(the_search_for_added_tokens_can_be_cancelled),
    };
    /* What is only counted has one thread. */
    int failed = THREADS_WATCHED ? 0 : cmocka_run_group_tests(counted, NULL, NULL);
    return failed + cmocka_run_group_tests(cancelled, NULL, NULL);
}
