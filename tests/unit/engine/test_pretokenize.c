/* SPDX-License-Identifier: Apache-2.0 */
/* Expected cuts are written out by hand from what Hugging Face tokenizers does with the pattern. */
#include "engine/pretokenize.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/oniguruma.h"
#include "tests/unit/engine/tokens.h"

static int ignore(void *ctx, const char *word, size_t n, struct err *err)
{
    (void)ctx, (void)word, (void)n, (void)err;
    return 0;
}

struct cuts {
    char text[1024]; /* the words, each behind a '|' */
    size_t n;
};

static int collect(void *ctx, const char *word, size_t n, struct err *err)
{
    struct cuts *c = ctx;
    if (c->n + n + 2 > sizeof c->text)
        return err_set(err, "too long");
    c->text[c->n++] = '|';
    memcpy(c->text + c->n, word, n);
    c->n += n;
    c->text[c->n] = 0;
    return 0;
}

static void expect_cuts(const struct pre_step *step, int32_t steps, const char *text,
                        const char *expected)
{
    struct err err = {""};
    struct cuts cuts = {.n = 0};
    struct pretokenizer *p = pretokenizer_open(step, steps, &err);
    if (!p)
        fail_msg("%s", err.msg);
    struct pre_run *r = pre_run_begin(p, collect, &cuts, &(struct encode_control){0});
    assert_int_equal(pre_run_cut(r, text, strlen(text), &err), 0);
    pre_run_end(r);
    pretokenizer_close(p);
    assert_string_equal(cuts.text, expected);
}

static void expect_family(const char *name, const char *text, const char *expected)
{
    struct err err;
    const struct pre_family *f = pretokenize_family(name, &err);
    assert_non_null(f);
    expect_cuts(f->step, f->steps, text, expected);
}

static void expect_pattern(const char *pattern, bool drop_gaps, const char *text,
                           const char *expected)
{
    struct pre_step step = {.pattern = pattern, .drop_gaps = drop_gaps};
    expect_cuts(&step, 1, text, expected);
}

static void families_cut_numbers_and_contractions_their_own_way(void **state)
{
    (void)state;
    expect_family("gpt-2", "It's 12345  YOU'LL", "|It|'s| 12345| | YOU|'|LL");
    expect_family("smollm", "It's 123  YOU'LL", "|It|'s| |1|2|3| | YOU|'|LL");
    expect_family("llama-bpe", "It's 12345  YOU'LL", "|It|'s| |123|45| | YOU|'LL");
    expect_family("qwen2", "It's 123  YOU'LL", "|It|'s| |1|2|3| | YOU|'LL");
    expect_family("tekken", "helloWorld HTTPServer/\n", "|hello|World| HTTPServer|/\n");
}

static void an_unknown_family_is_refused_by_name(void **state)
{
    (void)state;
    struct err err = {""};
    assert_null(pretokenize_family("default", &err));
    assert_non_null(strstr(err.msg, "'default'"));
    assert_null(pretokenize_family("gpt-2 phi-2", &err));
    assert_null(pretokenize_family("", &err));
    assert_null(pretokenize_family("gpt", &err));
}

static void gaps_are_kept_or_dropped(void **state)
{
    (void)state;
    expect_pattern("[0-9]+", false, "a1b22c", "|a|1|b|22|c");
    expect_pattern("[0-9]+", true, "a1b22c", "|1|22");
}

static void empty_matches_cut_and_end(void **state)
{
    (void)state;
    expect_pattern("(?=b)", false, "abab", "|a|ba|b");
    expect_pattern("x*", false, "a\xC3\xA9xxb", "|a|\xC3\xA9|xx|b");
}

static void a_space_is_put_before_every_piece(void **state)
{
    (void)state;
    const struct pre_step steps[] = {{.pattern = "="}, {.prefix_space = true}};
    expect_cuts(steps, 2, "a= b", "| a| =| b");
}

static void ruby_constructs_mean_what_they_mean_in_ruby(void **state)
{
    (void)state;
    expect_pattern("\\p{N}{1,3}+", false, "1234567", "|1234567"); /* repeated, not possessive */
    expect_pattern("(?:ab){1,2}+", false, "abababc", "|ababab|c");
    expect_pattern("a?+a|b", false, "aab", "|aa|b");        /* ?+ is possessive in both */
    expect_pattern("\\h+", false, "xBEEF y", "|x|BEEF| y"); /* hex digits */
    expect_pattern("\\u0061", false, "bab", "|b|a|b");
    expect_pattern("\\s+", false, "a\xE1\xA0\x8E b", "|a\xE1\xA0\x8E| |b"); /* U+180E: no space */
    expect_pattern("^b$", false, "a\nb\nc", "|a\n|b|\nc");
    expect_pattern("\\P{L}+", false, "a12b", "|a|12|b");
    expect_pattern("\\p{^L}+", false, "a12b", "|a|12|b");
}

/* Digits and letter-like numbers belong to words, other numbers do not; Oniguruma takes those of
 * Latin-1 for word characters unless they are met by a class. */
static void fractions_are_no_word_characters(void **state)
{
    (void)state;
    expect_pattern("\\w+", true, "a1٣Ⅷ⅔b", "|a1٣Ⅷ|b");
    expect_pattern("\\W+", true, "a④², b", "|④|, ");
    expect_pattern("\\w+", true, "a²½-", "|a²½");
    expect_pattern("[\\w]+", true, "a²½-", "|a");
}

/* A script is its own characters, not what is written with it: the ideographic full stop (U+3002)
 * is used with Han and Hiragana and belongs to neither. */
static void a_script_is_its_own_characters(void **state)
{
    (void)state;
    expect_pattern("\\p{Han}+", true, "漢字。漢、", "|漢字|漢");
    expect_pattern("[\\p{Hiragana}x]+", true, "かな。xな「", "|かな|xな");
    expect_pattern("\\P{Katakana}+", true, "カナ・ーカ", "|・ー");
    expect_pattern("\\p{^Latin}+", true,
                   "a\xCD\xA3"
                   "b",
                   "|\xCD\xA3"); /* U+0363: inherited */
}

static void characters_newer_than_the_library_are_what_they_are(void **state)
{
    (void)state;
    expect_pattern("\\p{L}+", true, "-\xF0\xB1\x8D\x90-", "|\xF0\xB1\x8D\x90");   /* U+31350 */
    expect_pattern("[\\p{N}]+", true, "-\xF0\x91\xBD\x90-", "|\xF0\x91\xBD\x90"); /* U+11F50 */
    expect_pattern("[^\\p{L}]+", true, "-\xF0\xB1\x8D\x90", "|-");
    expect_pattern("\\d+", true, "-\xF0\x91\xBD\x90-", "|\xF0\x91\xBD\x90");
    expect_pattern("\\p{Han}+", true, "-\xF0\xB1\x8D\x90-", "|\xF0\xB1\x8D\x90");
    expect_pattern("[\\p{P}\\p{S}]+", true, "a\xF0\x9F\xA9\xB7!",
                   "|\xF0\x9F\xA9\xB7!");                                      /* U+1FA77 */
    expect_pattern("\\p{P}+", true, "a\xF0\x91\xBD\x83", "|\xF0\x91\xBD\x83"); /* U+11F43 */
}

static void expect_refused(const char *pattern)
{
    struct err err = {""};
    struct pre_step step = {.pattern = pattern};
    if (pretokenizer_open(&step, 1, &err))
        fail_msg("%s was taken", pattern);
    if (!strstr(err.msg, pattern))
        fail_msg("'%s' does not say '%s'", err.msg, pattern);
}

static void constructs_that_would_be_misread_are_refused(void **state)
{
    (void)state;
    static const char *const patterns[] = {"[a[bc]]",  "[\\p{L}&&\\p{Lu}]",
                                           "[\\S]",    "\\bword",
                                           "(?m:.)",   "[abc",
                                           "a\\",      "a{1",
                                           "(a",       "a)",
                                           "\\p{Foo}", "\\u12",
                                           "[]a]",     "[^]a]",
                                           "a(?i)b",   "(?s:.)",
                                           "(?x: a )", "\\x{zz}",
                                           "\\xE9",    "\\pL",
                                           "\\v",      "\\N",
                                           "(?~a)",    "\\Qa\\E",
                                           "\\cA",     "a{1001}",
                                           "a{0,1001}"};
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        expect_refused(patterns[i]);
}

/* What a pattern has no need of: code, options from inside, references, ends that are moved. */
static void constructs_that_do_more_than_match_are_refused(void **state)
{
    (void)state;
    static const char *const patterns[] = {"(?=ab\\K)",
                                           "a\\Kb",
                                           "(?C)a",
                                           "(?C1)a",
                                           "(?C'x')a",
                                           "(?R)",
                                           "(a(?1)?)",
                                           "(?P<n>a)",
                                           "(?<n>a)",
                                           "(?P>n)",
                                           "(?&n)",
                                           "(a)\\1",
                                           "(a)\\k<1>",
                                           "(a)\\g<1>",
                                           "\\C",
                                           "(*FAIL)",
                                           "(*COMMIT)a",
                                           "(*UTF)a",
                                           "(*:x)a",
                                           "(?(1)a|b)",
                                           "(?|(a)|b)",
                                           "(?(R)a)",
                                           "(?#comment)a",
                                           "(?(DEFINE)a)",
                                           "(?(DEFINE)(q\\K))(?=(?1))",
                                           "a\\G",
                                           "(*LIMIT_MATCH=1)a",
                                           "(*LIMIT_HEAP=1)a",
                                           "(?^:a)",
                                           "(?'n'a)",
                                           "(*ACCEPT)"};
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        expect_refused(patterns[i]);
}

/* The pattern ends where readable memory does. */
static void the_end_of_a_pattern_is_not_read_past(void **state)
{
    (void)state;
    static const char *const patterns[] = {"\\",  "\\n", "\\p",  "\\P", "\\p{", "\\p{^", "\\x",
                                           "\\u", "\\s", "[\\n", "[",   "[^",   "(",     "(?",
                                           "(?<", "(*",  "a{",   "a{1", "a{1,"};
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *at = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(at != MAP_FAILED);
    assert_int_equal(mprotect(at + page, page, PROT_NONE), 0);
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        char *end = at + page - strlen(patterns[i]) - 1;
        memcpy(end, patterns[i], strlen(patterns[i]) + 1);
        struct err err;
        free(oniguruma_to_pcre2(end, &err));
    }
    munmap(at, 2 * page);
}

static void repeats_that_are_no_intervals_are_text(void **state)
{
    (void)state;
    expect_pattern("a{,2}b", false, "aaab", "|a|aab");
    expect_pattern("x{y}", false, "ax{y}", "|a|x{y}");
    expect_pattern("(?:ab){2}?c", false, "ababcc", "|ababc|c"); /* optional, not lazy */
    expect_pattern("a{1,2}?", false, "aa", "|a|a");
    expect_pattern("(?i)ab|c", false, "xABC", "|x|AB|C");
}

/* One pattern on one text: the result of the run. */
static int run_pattern(const char *pattern, const char *text, size_t n,
                       struct encode_control *control, struct err *err)
{
    struct pre_step step = {.pattern = pattern};
    struct pretokenizer *p = pretokenizer_open(&step, 1, err);
    if (!p)
        fail_msg("%s", err->msg);
    struct pre_run *r = pre_run_begin(p, ignore, NULL, control);
    int rc = pre_run_cut(r, text, n, err);
    pre_run_end(r);
    pretokenizer_close(p);
    return rc;
}

/* Exponential and quadratic, on texts that a model's author would not try. */
static void a_pattern_that_explodes_fails_the_text_in_bounded_work(void **state)
{
    (void)state;
    static const char *const patterns[] = {
        "(q|qq)+[^q]",
        "(q+)+[^q]",
        "(?:q?q?)*[yz]",
        "(q*)*[yz]",
        "(?:q{1,9}){1,9}[yz]",
        "(?:qq)+[yz]",
        "(?:qq?)+[yz]",
        "(q|q)(q|q)(q|q)(q|q)(q|q)(q|q)(q|q)(q|q)(q|q)(q|q)(q|q)(q|q)(q|q)(q|q)(q|q)(q|q)[yz]"};
    size_t n = 1 << 17;
    char *text = xmalloc(n);
    memset(text, 'q', n);
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        struct err err = {""};
        struct encode_control control = {0};
        if (run_pattern(patterns[i], text, n, &control, &err) != -1)
            fail_msg("%s matched in %lld steps", patterns[i], (long long)control.work);
        assert_non_null(strstr(err.msg, "failed on the text"));
        assert_true(control.work <= (int64_t)300 * (int64_t)n + (1 << 20));
        assert_false(control.cancelled);
    }
    free(text);
}

static void a_pattern_that_explodes_on_runs_is_refused_with_the_model(void **state)
{
    (void)state;
    static const char *const patterns[] = {"(a+)+$",         "(a|aa)+[^a]",
                                           "(?:\\s*)*[yz]",  "(?:.*)*[\\r;]",
                                           "(?:[^x]*)*[;:]", "(?:\\p{L}\\p{L})+[;:]"};
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        expect_refused(patterns[i]);
}

static void a_match_can_be_cancelled(void **state)
{
    (void)state;
    size_t n = 8 << 20;
    char *text = xmalloc(n);
    memset(text, 'q', n);
    atomic_bool cancel = true;
    struct encode_control control = {.cancel = &cancel, .polled = (int64_t)n};
    struct err err = {""};
    assert_int_equal(run_pattern("(?:qq?)+", text, n, &control, &err), -1);
    assert_true(control.cancelled);
    assert_non_null(strstr(err.msg, "cancelled"));
    assert_true(control.work < 2 * (int64_t)n); /* the text is counted first, then every q */
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_cut_numbers_and_contractions_their_own_way),
        cmocka_unit_test(an_unknown_family_is_refused_by_name),
        cmocka_unit_test(gaps_are_kept_or_dropped),
        cmocka_unit_test(empty_matches_cut_and_end),
        cmocka_unit_test(a_space_is_put_before_every_piece),
        cmocka_unit_test(ruby_constructs_mean_what_they_mean_in_ruby),
        cmocka_unit_test(fractions_are_no_word_characters),
        cmocka_unit_test(a_script_is_its_own_characters),
        cmocka_unit_test(characters_newer_than_the_library_are_what_they_are),
        cmocka_unit_test(constructs_that_would_be_misread_are_refused),
        cmocka_unit_test(constructs_that_do_more_than_match_are_refused),
        cmocka_unit_test(the_end_of_a_pattern_is_not_read_past),
        cmocka_unit_test(repeats_that_are_no_intervals_are_text),
        cmocka_unit_test(a_pattern_that_explodes_fails_the_text_in_bounded_work),
        cmocka_unit_test(a_pattern_that_explodes_on_runs_is_refused_with_the_model),
        cmocka_unit_test(a_match_can_be_cancelled),
    };
    return cmocka_run_group_tests_name("engine/pretokenize", tests, NULL, NULL);
}
