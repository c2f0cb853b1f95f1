/* SPDX-License-Identifier: Apache-2.0 */
/* pretokenize.c - the pre-tokenizers: named families, and PCRE2 to run their patterns.
 *
 * Patterns are compiled once with the JIT and shared; what a match writes to lives in the run, so
 * threads never meet. A step walks its piece from match to match and hands matches and (unless
 * dropped) the gaps between them to the next step by recursion, which keeps the words in order
 * without lists in between. Pieces are cut out before the next step sees them: a lookahead does
 * not look past its own piece, as in Hugging Face tokenizers.
 *
 * A pattern comes with the model, the text with a request, and together they can make a
 * backtracking matcher work for ever ((a+)+b is exponential on a run of a, (?:aa)+[bc] quadratic).
 * PCRE2's own limits count from anew at every place of the text, and its JIT does not count
 * everything. So patterns have a callout behind everything that can be matched in more than one way
 * (oniguruma.c), and the callout counts how far the matcher has moved since the last one. What a
 * pattern may spend is proportional to the text that it was given: with the patterns of real
 * models the work is from 2 to 5 steps a byte, whatever the text. The callouts take 15 ms of the
 * 65 ms that Llama 3's pattern needs for 8 MB of prose (2-core Intel Xeon, 2026-11-22).
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/pretokenize.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "engine/encode_work.h"
#include "engine/oniguruma.h"

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CASED_TAIL "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED_HEAD "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
const char *const pre_gpt2_pattern = GPT2;

/* Digits goes by Rust's char::is_numeric, which already knows Unicode 17. */
#define NUMERIC "[\\p{N}\\x{11DE0}-\\x{11DE9}\\x{16FF4}-\\x{16FF6}]"
const char *const pre_digit_pattern = NUMERIC;
const char *const pre_digits_pattern = NUMERIC "+";

#define LLAMA3   \
    CONTRACTIONS \
    "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES
#define QWEN2 \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES
#define QWEN35                                                   \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}" \
                 "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES
#define TEKKEN                                                          \
    CASED_HEAD "*" CASED_TAIL "+|" CASED_HEAD "+" CASED_TAIL "*|\\p{N}" \
               "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES

static const struct pre_family families[] = {
    {"gpt-2 phi-2 exaone4", {{GPT2, false, false}}, 1, false, false, false},
    {"smollm starcoder refact",
     {{NUMERIC, false, false}, {GPT2, false, false}},
     2,
     false,
     false,
     false},
    {"llama-bpe llama3 llama-v3 falcon3", {{LLAMA3, false, false}}, 1, true, false, true},
    {"qwen2 deepseek-r1-qwen megrez", {{QWEN2, false, false}}, 1, false, true, false},
    {"qwen35", {{QWEN35, false, false}}, 1, false, true, false},
    {"tekken", {{TEKKEN, false, false}}, 1, true, false, true},
};

static bool name_listed(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = list; *at;) {
        size_t length = strcspn(at, " ");
        if (length == n && memcmp(at, name, n) == 0)
            return true;
        at += length + (at[length] == ' ');
    }
    return false;
}

const struct pre_family *pretokenize_family(const char *name, struct err *err)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (name_listed(families[i].name, name))
            return &families[i];
    err_set(err, "tokenizer.ggml.pre: unknown pre-tokenizer '%.80s'", name);
    return NULL;
}

/* Steps of a pattern for a byte of its text, and for a text of any size, before it is stopped. */
enum { STEPS_PER_BYTE = 256, STEPS_FREE = 1 << 14 };
/* A pattern's own size, and memory of the matcher for one match, in KiB. PCRE2 counts matches of
 * its own too; that limit is never met before ours. */
enum { PATTERN_MAX = 8192, MATCH_KIB = 8192, MATCHES_MAX = 1 << 30 };

/* ---- opening ------------------------------------------------------------------------------- */

struct compiled_step {
    pcre2_code *code; /* NULL: no cut */
    bool drop_gaps, prefix_space;
    char *pattern;
};

struct pretokenizer {
    struct compiled_step *step;
    int32_t steps;
};

static pcre2_code *compile(const char *pattern, struct err *err)
{
    if (strlen(pattern) > PATTERN_MAX) {
        err_set(err, "pre-tokenizer pattern %.80s...: %zu bytes, at most %d are read", pattern,
                strlen(pattern), PATTERN_MAX);
        return NULL;
    }
    char *text = oniguruma_to_pcre2(pattern, err);
    if (!text)
        return NULL;
    int code;
    PCRE2_SIZE at;
    pcre2_compile_context *context = xmade(pcre2_compile_context_create(NULL));
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    pcre2_code *re =
        pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, options, &code, &at, context);
    pcre2_compile_context_free(context);
    free(text);
    if (!re) {
        PCRE2_UCHAR why[128];
        pcre2_get_error_message(code, why, sizeof why);
        err_set(err, "pre-tokenizer pattern %.200s: %s", pattern, (const char *)why);
        return NULL;
    }
    /* Without a JIT (an architecture it does not know) pcre2_match() interprets: slower, equal. */
    pcre2_jit_compile(re, PCRE2_JIT_COMPLETE);
    return re;
}

static struct pretokenizer *open_steps(const struct pre_step *step, int32_t steps, struct err *err)
{
    struct pretokenizer *p = xcalloc(1, sizeof *p);
    p->step = xcalloc((size_t)steps + 1, sizeof *p->step);
    for (; p->steps < steps; p->steps++) {
        const struct pre_step *from = &step[p->steps];
        struct compiled_step *to = &p->step[p->steps];
        to->drop_gaps = from->drop_gaps;
        to->prefix_space = from->prefix_space;
        if (!from->pattern)
            continue;
        to->code = compile(from->pattern, err);
        if (!to->code) {
            pretokenizer_close(p);
            return NULL;
        }
        to->pattern = xstrdup(from->pattern);
    }
    return p;
}

void pretokenizer_close(struct pretokenizer *p)
{
    if (!p)
        return;
    for (int32_t i = 0; i < p->steps; i++) {
        pcre2_code_free(p->step[i].code);
        free(p->step[i].pattern);
    }
    free(p->step);
    free(p);
}

/* ---- running ------------------------------------------------------------------------------- */

struct pre_run {
    const struct pretokenizer *p;
    pre_word_fn *word;
    void *ctx;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    pcre2_match_data **match; /* [steps] */
    char **prefixed;          /* [steps] the piece with its space, where a step adds one */
    struct encode_control *control;
    struct err *err;  /* of the match that is going on */
    size_t seen;      /* where its last callout was */
    int64_t *allowed; /* [steps] what is left of the work that the step may do */
    int32_t matching; /* the step that matches */
};

/* PCRE2's callout: 0 to go on, or the match ends with PCRE2_ERROR_CALLOUT. */
static int count_steps(pcre2_callout_block *block, void *ctx)
{
    struct pre_run *r = ctx;
    size_t at = block->current_position, moved = at > r->seen ? at - r->seen : r->seen - at;
    int64_t steps = (int64_t)moved + 1;
    r->seen = at;
    r->allowed[r->matching] -= steps;
    if (r->allowed[r->matching] < 0 || encode_work(r->control, steps, r->err))
        return PCRE2_ERROR_CALLOUT;
    return 0;
}

struct pre_run *pre_run_begin(const struct pretokenizer *p, pre_word_fn *word, void *ctx,
                              struct encode_control *control)
{
    struct pre_run *r = xcalloc(1, sizeof *r);
    *r = (struct pre_run){.p = p, .word = word, .ctx = ctx, .control = control};
    r->context = xmade(pcre2_match_context_create(NULL));
    r->stack = pcre2_jit_stack_create(32 << 10, (size_t)MATCH_KIB << 10, NULL);
    pcre2_jit_stack_assign(r->context, NULL, r->stack);
    pcre2_set_heap_limit(r->context, MATCH_KIB);
    pcre2_set_match_limit(r->context, MATCHES_MAX);
    pcre2_set_depth_limit(r->context, MATCHES_MAX);
    pcre2_set_callout(r->context, count_steps, r);
    r->allowed = xcalloc((size_t)p->steps + 1, sizeof *r->allowed);
    for (int32_t i = 0; i < p->steps; i++)
        r->allowed[i] = STEPS_FREE;
    r->match = xcalloc((size_t)p->steps, sizeof(pcre2_match_data *));
    r->prefixed = xcalloc((size_t)p->steps, sizeof *r->prefixed);
    for (int32_t i = 0; i < p->steps; i++)
        r->match[i] = xmade(pcre2_match_data_create(1, NULL));
    return r;
}

void pre_run_end(struct pre_run *r)
{
    if (!r)
        return;
    for (int32_t i = 0; i < r->p->steps; i++) {
        pcre2_match_data_free(r->match[i]);
        free(r->prefixed[i]);
    }
    free(r->match);
    free(r->prefixed);
    free(r->allowed);
    pcre2_match_context_free(r->context);
    pcre2_jit_stack_free(r->stack);
    free(r);
}

static int cut(struct pre_run *r, int32_t step, const char *text, size_t n, struct err *err);

/* Why a match ended without an answer. */
static int match_failed(const struct pre_run *r, int32_t step, int code, struct err *err)
{
    if (r->control->cancelled)
        return -1;
    const char *pattern = r->p->step[step].pattern;
    if (code == PCRE2_ERROR_CALLOUT)
        return err_set(err,
                       "pre-tokenizer pattern %.200s failed on the text: more than %d steps a "
                       "byte",
                       pattern, STEPS_PER_BYTE);
    PCRE2_UCHAR why[128];
    pcre2_get_error_message(code, why, sizeof why);
    return err_set(err, "pre-tokenizer pattern %.200s failed on the text: %s", pattern,
                   (const char *)why);
}

/* The next match at or behind `from`: 1 with its bounds, 0 for none, -1 on a limit. Whatever the
 * pattern, bounds[0] <= bounds[1] and none of them lies before `from`, or the walk would not end.
 */
static int next_match(struct pre_run *r, int32_t step, const char *text, size_t n, size_t from,
                      size_t bounds[2], struct err *err)
{
    r->err = err;
    r->seen = from;
    r->matching = step;
    int got = pcre2_match(r->p->step[step].code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK,
                          r->match[step], r->context);
    if (got == PCRE2_ERROR_NOMATCH)
        return 0;
    if (got < 0)
        return match_failed(r, step, got, err);
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(r->match[step]);
    bounds[0] = at[0];
    bounds[1] = at[1];
    if (bounds[0] < from || bounds[1] < bounds[0])
        return err_set(err,
                       "pre-tokenizer pattern %.200s failed on the text: a match that begins "
                       "behind its end or before its place",
                       r->p->step[step].pattern);
    return 1;
}

/* Hands the matches of one piece, and the gaps between them, to the next step. An empty match
 * cuts without taking anything; one right behind the last match is passed over. */
static int cut_matches(struct pre_run *r, int32_t step, const char *text, size_t n, struct err *err)
{
    bool gaps = !r->p->step[step].drop_gaps;
    size_t done = 0, from = 0, bounds[2] = {0, 0};
    int got = 0;
    while (from <= n && (got = next_match(r, step, text, n, from, bounds, err)) > 0) {
        if (bounds[0] == bounds[1] && bounds[1] == done) {
            for (from++; from < n && ((unsigned char)text[from] & 0xC0) == 0x80;)
                from++;
            continue;
        }
        if (gaps && bounds[0] > done && cut(r, step + 1, text + done, bounds[0] - done, err))
            return -1;
        if (bounds[1] > bounds[0] && cut(r, step + 1, text + bounds[0], bounds[1] - bounds[0], err))
            return -1;
        done = from = bounds[1];
    }
    if (got < 0)
        return -1;
    return gaps && n > done ? cut(r, step + 1, text + done, n - done, err) : 0;
}

static int cut(struct pre_run *r, int32_t step, const char *text, size_t n, struct err *err)
{
    if (step == r->p->steps)
        return r->word(r->ctx, text, n, err);
    const struct compiled_step *s = &r->p->step[step];
    r->allowed[step] += STEPS_PER_BYTE * (int64_t)n;
    if (encode_work(r->control, (int64_t)n, err))
        return -1;
    if (s->prefix_space && text[0] != ' ') {
        char *with = r->prefixed[step] = xrealloc(r->prefixed[step], n + 1);
        with[0] = ' ';
        memcpy(with + 1, text, n);
        text = with;
        n++;
    }
    return s->code ? cut_matches(r, step, text, n, err) : cut(r, step + 1, text, n, err);
}

int pre_run_cut(struct pre_run *r, const char *text, size_t n, struct err *err)
{
    return n ? cut(r, 0, text, n, err) : 0;
}

/* ---- opening, with a trial ------------------------------------------------------------------- */

static int drop_word(void *ctx, const char *word, size_t n, struct err *err)
{
    (void)ctx, (void)word, (void)n, (void)err;
    return 0;
}

/* A pattern that cannot do with its steps on a run of one character is refused with the model, not
 * with the first request that has such a run. */
static int try_runs(const struct pretokenizer *p, struct err *err)
{
    static const char *const runs[] = {"a",         "A",  "1",        " ",
                                       "\n",        "!",  "\xC3\xA9", "\xE6\xBC\xA2",
                                       "e\xCC\x81", "a ", " \n"},
                             *const ends[] = {"", "x", "!", " "};
    enum { TIMES = 1024 };
    char *text = xmalloc(TIMES * 4);
    int rc = 0;
    for (size_t i = 0; i < sizeof runs / sizeof *runs * 4 && rc == 0; i++) {
        const char *run = runs[i / 4], *end = ends[i % 4];
        size_t n = 0;
        for (int k = 0; k < TIMES; k++, n += strlen(run))
            memcpy(text + n, run, strlen(run));
        memcpy(text + n, end, strlen(end));
        struct encode_control control = {0};
        struct pre_run *r = pre_run_begin(p, drop_word, NULL, &control);
        rc = pre_run_cut(r, text, n + strlen(end), err);
        pre_run_end(r);
    }
    free(text);
    return rc;
}

struct pretokenizer *pretokenizer_open(const struct pre_step *step, int32_t steps, struct err *err)
{
    struct pretokenizer *p = open_steps(step, steps, err);
    if (p && try_runs(p, err)) {
        pretokenizer_close(p);
        return NULL;
    }
    return p;
}
