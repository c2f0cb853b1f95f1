/* The rules for kernel text: what passes, what does not, and that the ways around the words of a
 * rule are closed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "specializer/agent/agent_prompt.h"
#include "specializer/agent/agent_text.h"

static void expect(enum agent_language language, const char *text, const char *word)
{
    struct err err = {""};
    int rc = agent_text_check(text, strlen(text), language, &err);
    if (!word && rc != 0)
        fail_msg("refused: %s\n%s", err.msg, text);
    if (word && (rc == 0 || !strstr(err.msg, word)))
        fail_msg("\"%s\" and not \"%s\":\n%s", rc == 0 ? "passed" : err.msg, word, text);
}

static void every_seed_obeys_the_rules(void **state)
{
    (void)state;
    for (int r = REGION_ATTN_IN; r <= REGION_HEAD; r++) {
        const char *seed = agent_seed(MACHINE_CPU, (enum region)r);
        assert_true(strlen(seed) > 100);
        expect(AGENT_C, seed, NULL);
    }
}

static void what_kernels_need_passes(void **state)
{
    (void)state;
    static const char *const good[] = {
        "static float f(const float *restrict a) { return a[0] * 1.5e-3f + 0x1p-3f; }",
        "#define UNIT 8\n#if defined(__AVX512F__) && ISA >= 2\n#undef UNIT\n#endif\n",
        "# define A(x) ((x) + 1) // (unbalanced in a comment\n/* and \" here * / */ int a = 'x';",
        "static void f(void) {\n#pragma GCC unroll 8\n    for (int i = 0; i < 8; i++) {}\n}",
        "#pragma GCC ivdep\n",
        "static __m512 f(__m512 a) { return _mm512_fmadd_ps(a, a, _mm512_setzero_ps()); }",
        "static __attribute__((always_inline, aligned(64))) int f(void);",
        "float a[16] __attribute__((__aligned__(sizeof(float) * 16)));",
        "int f(int *p) { __builtin_prefetch(p); return __builtin_expect(*p, 1) ? '\\'' : 0; }",
        "_Static_assert(M_MAX > 0); // \xc3\xa9 in a comment is nobody's business\n",
        "int c = a ? b : d; x = a < b; y = a[b[0]]; z = -x--;",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        expect(AGENT_C, good[i], NULL);
}

static void what_reaches_outside_is_refused_with_its_line(void **state)
{
    (void)state;
    static const struct {
        const char *text, *word;
    } bad[] = {
        {"int a;\nint b;\nvoid f(void) { asm(\"syscall\"); }", "line 3: rule assembly"},
        {"void f(void) { __asm__ volatile (\"nop\"); }", "rule name: __asm__"},
        {"#include <unistd.h>\n", "line 1: rule directive: #include"},
        {"int a;\n  #  include \"x\"\n", "line 2: rule directive: #include"},
        {"/* a\n b */ #include <stdio.h>\n", "rule directive"},
        {"#import <a>\n", "rule directive"},
        {"#line 7\n", "rule directive"},
        {"# 33 \"file\"\n", "rule directive"},
        {"#\nint a;", "rule directive"},
        {"#pragma GCC target(avx)\n", "rule directive"},
        {"#pragma GCC optimize(O0)\n", "rule directive"},
        {"#pragma\nint a;", "rule directive"},
        {"_Pragma(x) int a;", "rule name: _Pragma"},
        {"#if __has_include(<x>)\n#endif\n", "rule name"},
        {"extern int errno_;", "rule linkage"},
        {"static __thread int t;", "rule name: __thread"},
        {"static _Thread_local int t;", "rule name"},
        {"void f(void) __attribute__((constructor));", "rule attribute: constructor"},
        {"void f(void) __attribute__((unused, __constructor__));", "rule attribute"},
        {"void f(void) __attribute__((section(x)));", "rule attribute"},
        {"void f(void) __attribute__((ifunc(x)));", "rule attribute"},
        {"[[gnu::constructor]] void f(void);", "rule spelling: [["},
        {"void f(void) { goto *p; }", "rule goto"},
        {"void *p = malloc(4);", "rule allocation"},
        {"char *s = \"text\";", "rule string"},
        {"int f(void) { return __builtin_return_address(0) != 0; }", "rule name"},
        {"int f(void) { return __builtin_ia32_rdtsc(); }", "rule name"},
        {"int f(void) { _mm_setcsr(0x1f80); }", "rule name: _mm_setcsr"},
        {"int f(void) { _mm_clflush(p); }", "rule name"},
        {"int f(void) { return _rdtsc(); }", "rule name"},
        {"const struct cpu_kernel whet_kernel = {0};", "rule entry"},
        {"int a = __COUNTER__;", "rule name"},
        {"int a$b;", "rule character: byte 0x24"},
        {"int \xc3\xa9;", "rule character"},
        {"int a;\x01", "rule character: control"},
        {"int a; /* no end", "rule comment"},
        {"int a = 'x;\n", "rule character"},
        {"void f(void) { if (1) { }", "} missing"},
        {"void f(void) } {", "rule brackets"},
        {"void f(void) { a[(1]); }", "rule brackets"},
        {"", "rule size"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect(AGENT_C, bad[i].text, bad[i].word);
}

static void ways_around_the_words_are_closed(void **state)
{
    (void)state;
    static const struct {
        const char *text, *word;
    } bad[] = {
        {"as\\\nm(1);", "rule backslash"},
        {"// harmless \\\nint a;", "line 1: rule backslash"},
        {"/\\\n* int a; */", "rule backslash"},
        {"int a; \\ \n int b;", "rule backslash"},
        {"\\u0061sm(1);", "rule backslash"},
        {"#define GLUE(a, b) a ## b\nGLUE(as, m)(1);", "rule directive: # inside"},
        {"#define TEXT(a) #a\n", "rule directive: # inside"},
        {"%:include <x>\n", "rule spelling"},
        {"int a<:3:>;", "rule spelling"},
        {"<%%>", "rule spelling"},
        {"?\?=include <x>\n", "rule spelling"},
        {"#define __attribute__(x) x\n", "reserved name cannot be defined"},
        {"#undef __AVX512F__\n", "reserved name cannot be defined"},
        {"#define q __attribute__\nq((constructor)) void f(void);", "rule attribute"},
        {"#define A __attribute__((aligned(asm)))\n", "rule assembly"},
        {"#define A __attribute__((aligned(__asm__)))\n", "rule attribute"},
        {"#define F asm\n", "rule assembly"},
        {"int a; #include <x>\n", "rule directive: # inside"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect(AGENT_C, bad[i].text, bad[i].word);
}

static void text_has_a_size(void **state)
{
    (void)state;
    char *text = malloc(AGENT_TEXT_MOST + 2);
    memset(text, ' ', AGENT_TEXT_MOST + 1);
    text[AGENT_TEXT_MOST + 1] = 0;
    expect(AGENT_C, text, "rule size");
    text[AGENT_TEXT_MOST] = 0;
    expect(AGENT_C, text, NULL);
    memset(text, '\n', AGENT_LINES_MOST + 1);
    expect(AGENT_C, text, "lines");
    memset(text, '(', 1000);
    text[1000] = 0;
    expect(AGENT_C, text, "nested");
    free(text);
}

/* Whatever bytes: an answer within them, never a read beyond. Run under a sanitizer this finds what
 * a tokenizer does wrong at the end of a text. */
static void every_prefix_of_a_text_has_an_answer(void **state)
{
    (void)state;
    static const char text[] =
        "#define A 'x' /* c */\n#pragma GCC unroll 4\n__attribute__((aligned(8)"
        ")) static int a[] = {0x1p-3, .5e+1}; // end\n__builtin_expect(a, '\\'')";
    struct err err;
    for (size_t n = 0; n <= sizeof text - 1; n++) {
        char *copy = malloc(n + 1);
        memcpy(copy, text, n);
        int rc = agent_text_check(copy, n, AGENT_C, &err);
        assert_true(rc == 0 || rc == -1);
        free(copy);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_seed_obeys_the_rules),
        cmocka_unit_test(what_kernels_need_passes),
        cmocka_unit_test(what_reaches_outside_is_refused_with_its_line),
        cmocka_unit_test(ways_around_the_words_are_closed),
        cmocka_unit_test(text_has_a_size),
        cmocka_unit_test(every_prefix_of_a_text_has_an_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
