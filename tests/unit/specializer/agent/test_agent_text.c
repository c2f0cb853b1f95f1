/* SPDX-License-Identifier: Apache-2.0 */
/* The rules for kernel text: what passes, what does not, and that the ways around the words of a
 * rule are closed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/safe_path.h"
#include "specializer/agent/agent_prompt.h"
#include "specializer/agent/agent_source.h"
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
        expect(AGENT_CUDA, agent_seed(MACHINE_CUDA, (enum region)r), NULL);
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
        ("static __attribute__((always_inline, aligned(64))) int f(void);\n"
         "static int f(void) { return 1; }\nstatic int g(void) { return f(); }"),
        "float a[16] __attribute__((__aligned__(sizeof(float) * 16)));",
        "int f(int *p) { __builtin_prefetch(p); return __builtin_expect(*p, 1) ? '\\'' : 0; }",
        "_Static_assert(M_MAX > 0); // \xc3\xa9 in a comment is nobody's business\n",
        ("_Static_assert(FFN % 64 == 0 && sizeof(int) == 4,\n"
         "               \"whole units: /* not a comment, nor #include <x> */ or asm()\");\n"
         "static void f(void) { _Static_assert((1), \"m\"); }"),
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
        {"_Static_assert(sizeof \"a\", 1);", "rule string"},
        {"_Static_assert(1, \"a\" \"b\");", "rule string: the message of an assertion ends it"},
        {"_Static_assert(1, \"a\"[0]);", "rule string"},
        {"_Static_assert(1, (\"a\"));", "rule string"},
        {"_Static_assert(f(1, \"a\"), 1);", "rule string"},
        {"_Static_assert(1, \"a\\n\");", "rule string"},
        {"_Static_assert(1, \"a\\\");", "rule string"},
        {"_Static_assert(1, \"a\n\");", "rule string"},
        {"_Static_assert(1, \"\xc3\xa9\");", "rule string"},
        {"_Static_assert(1, \"a", "rule string"},
        {"_Static_assert(1, L\"a\");", "rule spelling"},
        {"_Static_assert(1, \"a\"_b);", "rule string"},
        {"#define A _Static_assert(1, \"a\")\n", "rule string"},
        {"#define A _Static_assert(1,\n\"a\");", "rule"},
        {"#pragma GCC unroll _Static_assert(1,\n\"a\");", "rule brackets"},
        {"static_assert(1, \"a\");", "rule string"},
        {"void f(void) { g(1, \"a\"); }", "rule string"},
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

/* Each of these obeyed the rules of words alone. `f` is a function that the text defines. */
#define F "static int f(int x) { return x; }\n"
static void nothing_gets_hold_of_a_function(void **state)
{
    (void)state;
    static const struct {
        const char *text, *word;
    } bad[] = {
        {"void *memcpy(void *, const void *, unsigned long);\n"
         "static long f(void) { return (long)&memcpy; }",
         "line 2: rule function: memcpy"},
        {F "static void g(void) { int (*p)(int) = f; }", "line 2: rule"},
        {F "static long g(void) { return (long)f; }", "rule function: f"},
        {F "static long g(void) { return (long)&f; }", "rule function: f"},
        {F "static int g(void) { return (f)(1); }", "rule function: f"},
        {F "static int g(void) { return (*f)(1); }", "rule function: f"},
        {F "static int g(void) { return f == 0; }", "rule function: f"},
        {F "#define G f\nstatic int g(void) { return G(1); }", "rule"},
        {F "#define CALL(g, x) g(x)\nstatic int h(void) { return CALL(f, 1); }", "rule"},
        {F "#define ID(x) x\nstatic int h(void) { return ID(f)(1); }", "rule"},
        {F "#define ONE (1)\nstatic int h(void) { return f ONE; }", "rule function: f"},
        {"static int h(long q) { return ((int (*)(int))q)(1); }", "rule call"},
        {"typedef int fn(int);\nstatic int h(void *q) { return ((fn *)q)(1); }", "rule call: fn"},
        {"typedef int (*fn)(int);", "rule call"},
        {"static int h(int g(int)) { return g(1); }", "rule call: g"},
        {"static int h(void *q[]) { return q[1](2); }", "rule call"},
        {"struct s { int n; };\nstatic int h(struct s *q) { return q->n(2); }", "rule call: n"},
        {"static int h(struct out_args a) { return a.run(2); }", "rule call: run"},
        {"int getpid(void);\nstatic int h(void) { return getpid(); }", "line 1: rule call: getpid"},
        {"static int h(void) { return system(0); }", "rule call: system"},
        {"static __typeof__(vf_add) *h;", "rule function: vf_add"},
        {"static __typeof__(_mm_add_ps) *h;", "rule function: _mm_add_ps"},
        {"static long h(void) { return (long)&__builtin_memcpy; }", "rule function"},
        {"static long h(const struct team *t) { return (long)t->barrier; }", "rule call: barrier"},
        {"static void h(const struct team *t, void *q) { t->barrier(q); }", "rule call: barrier"},
        {"static void h(void) { struct team t = {0}; t.barrier(&t); }", "rule frame: team"},
        {"static void h(void) { struct x t = {.barrier = 0}; }", "rule call: barrier"},
        {"static void *h(const struct team *t) { return t->host; }", "rule frame: host"},
        {"static const struct cpu_kernel *k;", "rule entry: cpu_kernel"},
        {"static int h(int x) { int g(int y) { return x + y; } return g(1); }", "rule call: g"},
        {F "static int h(int x) { int f(int y) { return x + y; } return f(1); }", "rule function"},
        {"static float *h(void) { return (float *)4096; }", "rule address"},
        {"static float *h(long x) { return (float *)(long)x; }", "rule address"},
        {"#define AT 4096\nstatic float *h(void) { return (float *)AT; }", "rule address"},
        {"static unsigned long h(uintptr_t x) { return x; }", "rule address: uintptr_t"},
        {"static int vf_add(int x) { return x; }", "rule frame: vf_add"},
        {"static void *memcpy(int x) { return 0; }", "rule frame: memcpy"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect(AGENT_C, bad[i].text, bad[i].word);
    static const char *const good[] = {
        F "static int g(float *p) { return f((int)(*p)) + (int)(p[0]) + sizeof(float[4]); }",
        "static void g(float (*rows)[16], const float *p) { (void)(rows); if (p) (void)p; }",
        "typedef float row[16];\nstatic float g(void *p) { return (*(row *)(p))[1]; }",
        F "#define TWICE(x) (f(x) + f((x) + 1))\nstatic int g(void) { return TWICE(2); }",
        "#define SYNC() team->barrier(team)\nstatic void g(const struct team *team) { SYNC(); }",
        "static vf g(const struct out_args *a) { return vf_load((const float *)(a->x)); }",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        expect(AGENT_C, good[i], NULL);
}

static void what_the_compiler_reads_otherwise_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *word;
    } bad[] = {
        {"int a = 1'0; asm volatile(\"nop\"); int b = '0';", "rule"},
        {"int a = 1'0;", "rule spelling: a quote directly behind"},
        {"int a = u'x';", "rule spelling: a quote directly behind"},
        {"int a = 'ab';", "rule character"},
        {"int a = '\\x41';", "rule character"},
        {"int a = '\\u0041';", "rule character"},
        {"float a = 1.0_x;", "rule number"},
        {"float a = 1.0i;", "rule number"},
        {"int a = 0x;", "rule number"},
        {"int a = 1..2;", "rule number"},
        {"[ [gnu::constructor]] static void f(void) {}", "rule spelling: [["},
        {"[/**/[gnu::constructor]] static void f(void) {}", "rule spelling: [["},
        {"[\n[gnu::constructor]] static void f(void) {}", "rule spelling: [["},
        {"#define A [gnu::constructor]\n[A] static void f(void) {}", "rule macro: A begins"},
        {"#define A\n[A[gnu::constructor]] static void f(void) {}", "rule macro: A is empty"},
        {"int a = b ? c : : d;", "rule spelling: ::"},
        {"int a; // \xe2\x80\xae turned\n", "rule character"},
        {"int a; // \xe2\x80\xa8 another line\n", "rule character"},
        {"int a; // \xff not UTF-8\n", "rule character"},
        {"int a;\f", "rule character"},
        {"int a;\v", "rule character"},
        {"// a\rint b;", "rule character"},
        {"#if 0\nstatic int f(void) {\n#endif\n}", "line 3: rule brackets: endif"},
        {"static void g(void) {\n#if 0\n}\nvoid h(void) {\n#endif\n}", "in its branch"},
        {"#if 1\nint a;\n", "no #endif"},
        {"#endif\n", "without #if"},
        {"#elifdef A\n", "rule directive"},
        {"#embed <x>\n", "rule directive"},
        {"#if __has_embed(<x>)\n#endif\n", "rule name: __has_embed"},
        {"#if 0 // \n#elif __has_include(<x>)\n#endif\n", "rule name"},
        {"int a = f(\n#define X 1\n2);", "rule directive: define is inside"},
        {"#pragma GCC unroll 4 _Pragma(x)\n", "rule name: _Pragma"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        expect(AGENT_C, bad[i].text, bad[i].word);
        expect(AGENT_CUDA, bad[i].text, bad[i].word);
    }
}

static void cplusplus_has_no_other_way_to_a_function(void **state)
{
    (void)state;
    static const struct {
        const char *text, *word;
    } bad[] = {
        {F "static int g() { auto p = f; return 0; }", "rule function: f"},
        {F "static int g() { auto p = [](int x) { return x; }; return 0; }", "rule call"},
        {F "static int g(int y) { auto p = [&](int x) { return x + y; }; return 0; }",
         "rule function: a function without a name"},
        {F "static int g() { auto p = [] { return 1; }; return 0; }",
         "rule function: a function without a name"},
        {"struct s { int operator()(int x) { return x; } };", "rule function tables: operator"},
        {"struct s { __device__ int f(int x) { return x; } };", "rule call: f"},
        {"struct s { int n; };\nstatic int g(s a) { return a.f(1); }", "rule call: f"},
        {"template <float (*G)(float)> __device__ float g(float x) { return G(x); }", "rule call"},
        {"using fn = float(float);", "rule linkage: using"},
        {"namespace { int a; }", "rule linkage: namespace"},
        {"#define A(x) int n = 'a'x\nA(;)", "line 1: rule spelling: a name directly behind"},
        {"static int g() { return ::printf(0); }", "rule"},
        {"static int g() { return cooperative::sync(0); }", "rule spelling: ::"},
        {F "static decltype(f) *p;", "rule function tables: decltype"},
        {"static int g(long x) { return *reinterpret_cast<int *>(x); }", "rule address"},
        {F "static int g() { return f<1>; }", "rule function: f"},
        {"static long g() { return (long)&fmaxf; }", "rule function: fmaxf"},
        {"static int g() { return cudaDeviceSynchronize(); }", "rule call"},
        {"static float g(float *p) { return tex1Dfetch(p, 1); }", "rule texture: tex1Dfetch"},
        {"static int g() { return __nv_isinff(1.0f); }", "rule name: __nv_isinff"},
        {"static int g() { return __builtin_nvvm_read_ptx_sreg_clock(); }", "rule name"},
        {"static void g() { __nanosleep(4); }", "rule name: __nanosleep"},
        {"static int g() { return __cvta_generic_to_shared(0); }", "rule name"},
        {"[[using gnu: constructor]] static void g() {}", "rule"},
        {"#define GRID 4\n#undef GRID\n", "rule frame: GRID cannot be taken back"},
        {"#define GRID 4\n#define GRID 8\n", "rule frame: GRID is defined twice"},
        {"#define GRID\n", "rule frame: GRID has a value"},
        {"#define SMS 1\n", "rule frame: SMS"},
        {"#define KERNEL 1\n", "rule frame: KERNEL"},
        {"static KERNEL g() {}", "rule frame: KERNEL"},
        {"#define kernel other\n", "rule macro: kernel"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect(AGENT_CUDA, bad[i].text, bad[i].word);
    static const char *const good[] = {
        "template <int N> __device__ __forceinline__ float sum(const float *p)\n"
        "{\n    float s = 0.0f;\n    for (int i = 0; i < N; i++)\n        s += p[i];\n"
        "    return s;\n}\n"
        "__device__ __forceinline__ void kernel(const struct region_args &a)\n"
        "{\n    a.y[0] = sum<4 * 2>(a.x) + float(threadIdx.x) + static_cast<float>(a.counts->m);\n"
        "    uint4 v = load_weight<0>((const uint4 *)a.w);\n    atomicAdd(a.work.counter, 1u);\n"
        "    float4 q = make_float4(0, 0, 0, __uint_as_float(v.x));\n    (void)q;\n}\n",
        "template <typename T> struct pair { T a, b; };\n"
        "__device__ __forceinline__ float g(pair<float> p) { return fmaxf(p.a, p.b); }\n",
        "struct __align__(16) quad { float v[4]; };\n"
        "__device__ __forceinline__ float g(const quad &q) { return q.v[0]; }\n",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        expect(AGENT_CUDA, good[i], NULL);
}

/* In its macro a parameter would pass for what it is called like, and what it stands for is asked
 * about nowhere; so would a type of one function in another. */
static void no_name_is_two_things(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "static int f(int x) { return x; }\n#define C(f) f(1)\n"
        "static int g(void) { return C(getpid); }",
        "#define C(f) f(1)\nstatic int f(int x) { return x; }\n"
        "static int g(int *x) { return C((*x)); }",
        "typedef int t;\n#define C(t) (t)(1)\nstatic int g(void) { return C(getpid); }",
        "#define D(x) x\n#define C(D) D(1)\nstatic int g(void) { return C(getpid); }",
        "#define C(D) D(1)\n#define D(x) x\nstatic int g(void) { return C(getpid); }",
        "#define C(x, barrier) x->barrier(x)\nstatic void g(struct s *p) { C(p, call); }",
        "#define C(team) team->barrier(team)\nstatic void g(struct s *p) { C(p); }",
        "#define C(x) struct x\nstatic void g(void) { C(team) t; }",
        "#define T team\nstatic void g(void) { struct T t; }",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect(AGENT_C, bad[i], "rule macro");
    expect(AGENT_CUDA,
           "__device__ int f(int x) { return x; }\n#define C(f) f(1)\n"
           "__device__ int g() { return C(cudaDeviceSynchronize); }",
           "rule macro: f cannot be a parameter");
    expect(AGENT_CUDA,
           "struct s { int n; };\n#define C(s) s(1)\n"
           "__device__ int g() { return C(cudaDeviceSynchronize); }",
           "rule macro: s cannot be a parameter");
    expect(AGENT_CUDA,
           "struct atomicAdd_system { int n; };\n"
           "__device__ int g(int *p) { return atomicAdd_system(p, 1); }",
           "rule scope");
    expect(AGENT_C,
           "static void f(void) { typedef int strdup; }\n"
           "static void g(char *p) { (strdup)(p); }",
           "rule scope: typedef");
    expect(AGENT_C,
           "static int f(int x) { return x; }\n#define C(x) f(x)\n"
           "static int g(int x) { return C(x); }",
           NULL);
}

static void nothing_reads_as_a_template_of_the_compilers_headers(void **state)
{
    (void)state;
    static const struct {
        const char *text, *word;
    } bad[] = {
        {"__device__ float f(void) { return tex1Dfetch<float>(1ull, 0); }", "rule texture: tex1D"},
        {"__device__ void f(void) { surf1Dwrite<float>(1.f, 1ull, 0); }", "rule texture: surf1D"},
        {"#define T tex2D\n__device__ float f(void) { return T<float>(1ull, 0.f, 0.f); }", "rule"},
        {"__device__ float f(void) { return other<float>(1ull, 0); }", "rule call: other"},
        {"__device__ float f(void) { return other<>(1ull, 0); }", "rule call: other"},
        {"__device__ float f(void) { return other<1>(1ull, 0); }", "rule call: other"},
        {"#define P (1ull, 0)\n__device__ float f(void) { return other<4> P; }",
         "rule call: other"},
        {"#define C(g) g<float>(1ull, 0)\n__device__ float f(void) { return C(other); }",
         "rule call: g"},
        {"__device__ float f(int n) { return []<class T>(T x) { return x; }(n); }",
         "rule function: a function without a name"},
        {"__device__ float f(int n) { return [n]<class T>(T x) { return x; }(n); }",
         "rule function: a function without a name"},
    };
    static const char *const good[] = {
        "__device__ bool f(int a, int b) { return a < b && b > (a + 1); }",
        "__device__ int f(int a, int b) { return a << b >> (a + 1); }",
        "__device__ bool f(int a, int b) { return a <= b || a < static_cast<int>(b); }",
        "__device__ bool f(int a, float b) { return a < float(b); }",
        "template <int N> __device__ float f(float x) { return N * x; }\n"
        "__device__ float g(const float *x) { return f<2>(x[0]) + warp_sums<2>(x); }",
        "template <class T> struct pair { T a, b; };\n"
        "__device__ float g(float x) { pair<float> p = {x, x}; return p.a < (p.b); }",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect(AGENT_CUDA, bad[i].text, bad[i].word);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        expect(AGENT_CUDA, good[i], NULL);
    char endless[4096] = "__device__ int f(int a) { return a<";
    while (strlen(endless) < sizeof endless - 8)
        strcat(endless, "a<");
    expect(AGENT_CUDA, strcat(endless, "1; }"), "rule call: a");
}

static void no_variable_hides_as_a_function(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "__device__ int (kept);",
        "static __device__ int (kept);",
        "__device__ int *(kept);",
        "__device__ alignas(16) int kept[2];",
        "__device__ alignas(16) int (kept);",
        "__device__ int kept, f(int x);",
        "struct s { int n; }; __device__ s (kept);",
        "struct s { int n; }; __device__ s (kept){1};",
        "typedef int s; __device__ s (kept);",
        "template <class T> __device__ T (kept);",
        "#define D __device__\nD int kept;",
        "#define D __device__ __align__(16)\n#define E D\nE int kept;",
        "#define A int (kept)\n__device__ A;",
        "#define B(x) int x\n__device__ B(kept);",
        "#define C kept;\n__device__ int C __device__ void f() {}",
        "#define P __device__ int (kept)\nP;",
        "#define S static\n__device__ int f(int x) { S int kept; return kept++; }",
        ("__device__ int f(int x) { return x; }\n"
         "__device__ int g() { static int f(3); return f(1); }"),
    };
    static const char *const good[] = {
        "#define DEV static __device__ __forceinline__\nDEV float f(float x) { return x; }",
        "static __device__ __noinline__ float *f(float *x) { return x; }",
        "__device__ float f(float); __device__ float f(float x) { return x; }",
        "struct s { int n; __device__ s(int x) { n = x; } __device__ s() {} };\n"
        "__device__ s f(int x) { return s(x); }",
        "template <int N> __device__ float f(float x) { return N; }\n"
        "template <> __device__ float f<3>(float x) { return x; }",
        "template <class T, int N> struct v { T a[N]; };\n"
        "__device__ v<float, 4> f() { return v<float, 4>{}; }",
        "#define REAL float\n__device__ REAL *f(REAL *x) { return x; }",
        "struct s { static constexpr int n = 3; };",
        "__device__ __attribute__((noinline)) auto f(int x) { return x; }",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect(AGENT_CUDA, bad[i], "rule state");
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        expect(AGENT_CUDA, good[i], NULL);
}

static void macros_rename_nothing(void **state)
{
    (void)state;
    static const struct {
        const char *text, *word;
    } bad[] = {
        {"#define cold constructor\nstatic __attribute__((cold)) void f(void) {}",
         "line 1: rule macro: cold"},
        {"#define ATTR(cold) __attribute__((cold))\nATTR(constructor) static void f(void) {}",
         "line 1: rule macro: cold"},
        {"#define ATTR(x) __attribute__((x))\n", "rule attribute: x"},
        {"#define static\n", "rule macro: static"},
        {"#define memcpy system\n", "rule macro: memcpy"},
        {"#define const\n", "rule macro: const"},
        {"#define run other\n", "rule macro: run"},
        {"#define layout packed_bytes\n", "rule macro: layout"},
        {"#undef AGENT_BODY\n#define AGENT_BODY x\n", "rule"},
        {"#ifdef AGENT_BODY\n#endif\n", "rule entry: AGENT_BODY"},
        {"static const char *f(void) { return AGENT_BODY; }", "rule entry: AGENT_BODY"},
        {"#undef REGION\n", "rule frame: REGION"},
        {"#undef M_MAX\n#define M_MAX 64\n", "rule frame: M_MAX"},
        {"#define HIDDEN 64\n", "rule frame: HIDDEN"},
        {"#define WTYPE_2 3\n", "rule frame: WTYPE_2"},
        {"#define HAS_BIAS 0\n", "rule frame: HAS_BIAS"},
        {"#define WHET_CPU_ABI 7\n", "rule"},
        {"#define BLOCK_BYTES(t) 1\n", "rule frame: BLOCK_BYTES"},
        {"#define INLINE extern\n", "rule"},
        {"#define PACKED 1\n", "rule frame: PACKED is defined as nothing"},
        {"#define PACKED\n#undef PACKED\n", "rule frame: PACKED"},
        {"#define PACKED\n#define PACKED\n", "rule frame: PACKED is defined twice"},
        {"#define PACKED\nstatic PACKED int a;", "rule frame: PACKED"},
        {"#define A __attribute__((constructor))\n", "rule attribute: constructor"},
        {"#define A goto\n", "rule goto"},
        {"#define A(\n", "rule macro"},
        {"#define A(x, ...) x\n", "rule macro"},
        {"#define A(x...) x\n", "rule macro"},
        {"#define A {\nstatic void f(void) A }", "rule brackets"},
        {"#define A (x\n", "rule brackets"},
        {"#undef NOBODY\n", "rule macro: NOBODY was not defined"},
        {"static int g(void) { return A(1); }\n#define A(x) x\n", "rule macro: A is used before"},
        {"#define A(x) x\n#undef A\nstatic int g(void) { return A(1); }",
         "rule macro: A is used after"},
        {"static int __attribute__((cold : : )) g(void) { return 1; }", "rule attribute: :"},
        {"#define A(x) x\n#define A 1\n", "rule macro: A takes arguments in one place"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect(AGENT_C, bad[i].text, bad[i].word);
}

static void macros_do_not_grow_without_bound(void **state)
{
    (void)state;
    char text[4096] = "#define A0 1 + 1\n";
    for (int i = 1; i < 30; i++)
        sprintf(text + strlen(text), "#define A%d A%d + A%d\n", i, i - 1, i - 1);
    strcat(text, "static const int a = A29;\n");
    expect(AGENT_C, text, "rule macro: the text expands to");
    expect(AGENT_C,
           "#define D(x) x + x\n#define E(x) D(D(D(D(x))))\n#define G(x) E(E(E(E(x))))\n"
           "static const int a = G(G(1));\n",
           "rule macro: the text expands to");
    expect(AGENT_C, "#define A B\n#define B A\n", "rule macro: A leads back to itself");
    expect(AGENT_C, "#define A(x) A(x)\n", "rule macro: A mentions itself");
    expect(AGENT_C, "#define A 1\n#if 1\n#undef A\n#define A B B\n#define B 1\n#endif\n", NULL);
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

static void text_is_written_where_its_folder_was_cleared_away(void **state)
{
    (void)state;
    struct err err = {""};
    char dir[] = "/tmp/whet-text-XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *kernels = xasprintf("%s/store.db.kernels/0123456789abcdef", dir);
    if (agent_body_write(kernels, MACHINE_CPU, "0123456789abcdef", "int x;", &err) != 0)
        fail_msg("%s", err.msg);
    safe_folder_remove(dir);
    free(kernels);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_seed_obeys_the_rules),
        cmocka_unit_test(what_kernels_need_passes),
        cmocka_unit_test(what_reaches_outside_is_refused_with_its_line),
        cmocka_unit_test(ways_around_the_words_are_closed),
        cmocka_unit_test(nothing_gets_hold_of_a_function),
        cmocka_unit_test(what_the_compiler_reads_otherwise_is_refused),
        cmocka_unit_test(cplusplus_has_no_other_way_to_a_function),
        cmocka_unit_test(no_name_is_two_things),
        cmocka_unit_test(nothing_reads_as_a_template_of_the_compilers_headers),
        cmocka_unit_test(no_variable_hides_as_a_function),
        cmocka_unit_test(macros_rename_nothing),
        cmocka_unit_test(macros_do_not_grow_without_bound),
        cmocka_unit_test(text_has_a_size),
        cmocka_unit_test(every_prefix_of_a_text_has_an_answer),
        cmocka_unit_test(text_is_written_where_its_folder_was_cleared_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
