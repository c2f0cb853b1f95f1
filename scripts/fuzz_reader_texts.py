# SPDX-License-Identifier: Apache-2.0
"""How fuzz-reader makes CUDA texts: the seeds with pieces of attacks in them, which are written in
the spellings that a reader and a compiler might read differently (disguised()), pieces that a text
may well hold, and tokens put in, taken out and changed.
"""
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
REGIONS = {"attn_in": 1, "attn": 2, "out": 5, "mlp_in": 4, "head": 6}
TOKEN = re.compile(r"(?:u8|[uUL])?(?:R\"|'(?:\\.|[^'\\])*'\w*)|"
                   r"[A-Za-z_\u0080-\uffff$][\w\u0080-\uffff$]*|"
                   r"\.?\d(?:[eEpP][+-]|'?\w|\.)*|"
                   r"\"(?:\\.|[^\"\\])*\"\w*|->|\+\+|--|<:|<%|%:|::|\S")

# What a text must never do, as a statement in its kernel.
HARM = """asm volatile("trap;");|asm("nanosleep.u32 1;");
unsigned n; asm("mov.u32 %0, %%smid;" : "=r"(n)); OUT(n)|OUT(clock64())|OUT(clock())
__nanosleep(9);|__trap();|__brkpt();|OUT(__smid())|OUT(tex1Dfetch<float>(1ull, 0))
OUT(tex2D<float>(1ull, 0.f, 0.f))|surf1Dwrite(1.f, 1ull, 0);|surf1Dwrite<float>(1.f, 1ull, 0);
OUT(surf1Dread<float>(1ull, 0))|float v; tex1Dfetch(&v, 1ull, 0); OUT(v)|printf("x");
int *p = new int; OUT(*p)|OUT(*(int *)malloc(4))|__assertfail("a", "b", 1, "c", 1);
OUT(((float (*)(float))a.x)(1))|cudaDeviceSynchronize();|__threadfence_system();
OUT(atomicAdd_system(a.work.counter, 1u))|__prof_trigger(1);|OUT(*(int *)4096)
float (*f)(float) = silu; OUT(f(1))|static __device__ int kept; OUT(kept++)
static int kept; OUT(kept++)|auto f = [](float x) { return x; }; OUT(f(1))
OUT(([]<class T>(T x) { return x; })(1))|OUT(clock64<>())|OUT(__nv_isnand(1))
OUT(__builtin_clock())|__builtin_trap();|OUT(__isShared(a.x))|OUT(__cluster_dims__)
__managed__ int k; OUT(k)|__constant__ int k = 1; OUT(k)
OUT(__usAtomicCAS_system((unsigned short *)a.y, 1, 2))|OUT(threadIdx::x)|whet_kernel(a);
extern __device__ int other; OUT(other)|extern "C" int getpid(); OUT(getpid())|goto l; l:;
struct atomicAdd_system { int n; }; OUT(atomicAdd_system(a.work.counter, 1u))
cudaGridDependencySynchronize();|cudaTriggerProgrammaticLaunchCompletion();|__exit();
OUT(__nvvm_get_smem_pointer(a.y))|OUT(__builtin_constant_p(1))|alloca(16);
OUT(__nv_ptx_builtin_ocg_clock())"""
# The same outside of functions.
OUTSIDE = """asm("trap;");|__device__ int kept;|__device__ int (kept);|__device__ int (*kept);
__device__ int kept{1};|__device__ alignas(16) int kept[2];|alignas(16) __device__ int kept[2];
int __device__ kept;|inline __device__ int kept;|static __device__ int (kept);
struct s { int n; }; __device__ s (kept);|struct s { int n; }; __device__ s (kept){1};
struct s { int n; __device__ s(int x) : n(x) {} }; __device__ s kept(3);
template <int N> __device__ int kept = N;|template <int N> __device__ int (kept);
__device__ struct { int n; } kept;|struct { int n; } __device__ kept;
struct s { static __device__ int kept; };|struct s { static int (kept); };|__constant__ int kept;
union { int kept; };|typedef float fn(float); __device__ fn *kept;
namespace { __device__ int kept; }|__global__ void other() {}
extern "C" __global__ void whet_kernel_1(const int x) {}|using f = float;
struct s { operator int() { return 1; } };|__device__ int vprintf(const char *, void *);
__device__ long long clock64();|extern "C" __device__ int getpid(void);
__device__ int f(int x) [[noreturn]];|[[gnu::constructor]] int g() { return 1; }
const int kept = 3;|int kept = 3;|__device__ __attribute__((section("x"))) int f() { return 1; }
float kept __attribute__((constructor));|template <class T> __device__ T kept;
__device__ const int kept = 3;|__device__ constexpr int kept = 3;|constexpr int kept[2] = {1, 2};
enum { kept = 1 };|__device__ float f(float);|__device__ float g(float x) { return f(x); }
template <float (*F)(float)> __device__ float g(float x) { return F(x); }
struct s { virtual int f(); };|template <class F> __device__ float g(F f) { return f(1); }
#define asm volatile|#include <stdio.h>|#pragma nv_exec_check_disable|#pragma nv_diag_suppress 1
#define OUT|#undef INFINITY|#define K 1|#line 7|#if __has_include(<x>)|#endif|#error|#pragma once
#pragma push_macro("K")|_Pragma("unroll")|__pragma(unroll)|#define A(x...) x
#define A(...) __VA_ARGS__"""
HARMLESS = """#define A(x) (x)|#define A 1|int n = 'a';|OUT(1'000)|OUT('\\'')|/* " */|// '
/* // */ int m1 = 1;|OUT(0x1p-3f)|OUT(1_x)|OUT(u8'a')|OUT(R"(x)"[0])|OUT(L'a')|OUT(1.0e+3f)
OUT(a.x[0] < 1 and a.x[1] > (2))|OUT(max(1, 2))|OUT(__ldcg(a.x))|OUT(INFINITY)
OUT(warp_sums<2>(a.x))|OUT(load_weight<1>((const uint4 *)a.x).x)|__syncthreads();
OUT(sinf(a.x[0]))|OUT(float(1))|OUT(static_cast<float>(1))|OUT(float3{1, 2, 3}.x)
OUT(make_float2(1, 2).x)|constexpr int c = 3; OUT(c)
struct s { float x; } s1; s1.x = 1; OUT(s1.x)|OUT(atomicAdd(a.work.counter, 1u))
__shared__ float sh[4]; sh[0] = 1; OUT(sh[0])|if constexpr (1) { OUT(1) }|OUT(powf(a.x[0], 2))
OUT(__reduce_add_sync(WARP_ALL, 1))|memcpy(a.y, a.x, 4);|OUT(sizeof(int))
for (int i1 : {1, 2}) OUT(i1)|switch (1) { case 1: OUT(2) }|OUT(a.x[0] bitand 1)|OUT(not 1)
OUT(+1)|OUT(rsqrtf(2))|compl 1;|int x1[2] = {1, 2}; OUT(x1[1])|OUT(1 <:0:>)|int x2<:2:>;|<% %>
??=|%:define A 1|OUT(1[a.x])|OUT((1, 2))|OUT(alignof(int))"""
# Ways to write something so that it does not look like itself.
SPLICE, UNIVERSAL = "\\\n", "\\u%04x"


# Names of the seeds, of the frame and of the language, which a parameter could be called like.
KNOWN = ("dot8 store project kernel WARPS EACH PARTS a x t m f g s region_args float uint4 silu "
         "max".split())


def disguised(rng, harm):
    """One text for a piece, written as somebody would who knows that it is read."""
    tokens = TOKEN.findall(harm) or ["0"]
    k = rng.randrange(len(tokens))
    t = tokens[k]
    at = rng.randrange(1, len(t)) if len(t) > 1 else 0
    first, rest = re.match(r"(\w*)([^\n]*)", harm).groups()
    known = rng.choice(KNOWN)

    def put(*instead):
        return " ".join(tokens[:k] + list(instead) + tokens[k + 1:])

    ways = [
        lambda: harm,
        lambda: put(t[:at] + SPLICE + t[at:]),
        lambda: put(t[:at] + "\\ \n" + t[at:]),
        lambda: put(UNIVERSAL % ord(t[0]) + t[1:]),
        lambda: "/**/".join(tokens),
        lambda: "/*\n*/".join(tokens),
        lambda: " // x\n".join(tokens) + "\n",
        lambda: "1'0; " + harm + " int q = '0';",
        lambda: "'\"'; " + harm + " '\"';",
        lambda: "'\\''; " + harm + " '\\'';",
        lambda: "/*/ */ " + harm + " /*/ */",
        lambda: "/* \\*/ " + harm,
        lambda: "// \\\\ \n" + harm + "\n",
        lambda: "//??/\n" + harm + "\n",
        lambda: "/* // */" + harm + "/* */",
        lambda: "R\"(\" ) " + harm + " R\"()\"",
        lambda: "u8R\"/*(\"*/ " + harm + " //)/*\"\n",
        lambda: "\n#define A " + harm.replace("\n", " ") + "\nA\n",
        lambda: "\n#define A(x) x\nA(" + harm + ")\n",
        lambda: "\n#define A(x, y) x y\nA(" + put(",", t) + ")\n",
        lambda: f"\n#define A({known}) {known}{rest}\nA({first})\n",
        lambda: f"\n#define A({known}) {harm.replace(t, known)}\nA({t})\n",
        lambda: f"\n#define A {t}\n" + put("A"),
        lambda: f"\n#define A(x) {t[:at]}##x\n" + put(f"A({t[at:]})"),
        lambda: f"\n#define A(x) {t[:at]}/**/x\n" + put(f"A({t[at:]})"),
        lambda: "\n%:define A " + t + "\n" + put("A"),
        lambda: "\n#if 0\n'\n#else\n" + harm + "\n#endif\n",
        lambda: "\n#if 1\n" + harm + "\n#endif\n",
        lambda: "\n#ifdef NOTHING\n/*\n#endif\n" + harm + "\n//*/\n",
        lambda: "<% " + harm.replace("[", "<:").replace("]", ":>") + " %>",
        lambda: "if constexpr (true) { " + harm + " }",
        lambda: harm.replace("(", "<>(", 1),
        lambda: harm.replace("(", "<float>(", 1),
        lambda: harm.replace("(", " /*<*/ <1> (", 1),
        lambda: harm.replace("(", "{").replace(")", "}"),
        lambda: "[[maybe_unused]] " + harm,
        lambda: "[ /**/ [gnu::used]] " + harm,
        lambda: "__attribute__((unused, " + harm + "))",
        lambda: "__attribute__ /**/ ( (constructor) ) " + harm,
        lambda: "int v = sizeof(" + harm + ");",
        lambda: "static_assert((" + harm + ", true));",
        lambda: "struct z { int n = (" + harm + ", 1); };",
        lambda: "struct z { int n; __device__ z() { n = " + harm + " } } z1; OUT(z1.n)",
        lambda: "for (" + harm + ";;) break;",
        lambda: harm.replace("OUT(", "OUT((float)(", 1).replace(")", "))", 1),
        lambda: put(),
        lambda: put(t, t),
        lambda: put(rng.choice("( ) & * < > , :: ~ ! [ ] { } = -> .".split()), t),
    ]
    return rng.choice(ways)()


def pieces(text):
    return [p for line in text.split("\n") for p in line.split("|")]


KINDS = [pieces(HARM), pieces(OUTSIDE), pieces(HARMLESS)]
OUT = {"attn_in": "q", "attn": "a", "out": "y", "mlp_in": "h", "head": "logits"}


def seeds():
    return {name: open(f"{ROOT}/specializer/prompts/seed_{name}.cu").read() for name in REGIONS}


def written(text, name):
    """OUT(x) and a.y in the terms of the region, so that what is read there is not left out."""
    text = re.sub(r"\bOUT\(", f"a.{OUT[name]}[0] = (float)(", text)
    text = re.sub(r"(\(float\)\([^\n;]*\))(?=\s*($|[}|]))", r"\1;", text, flags=re.M)
    return re.sub(r"\ba\.y\b", f"a.{OUT[name]}", text)


def places(lines):
    """Where statements may stand, and where functions may: the lines behind which they do."""
    inside, outside, depth, code = [], [], 0, False
    for i, line in enumerate(lines):
        depth += line.count("{") - line.count("}")
        code |= depth > 0
        if depth == 0 and (line.startswith(("}", "#define")) or not line):
            outside.append(i)
        plain = "for (" not in line and "[" not in line
        if depth > 0 and line.rstrip().endswith((";", "{")) and plain:
            inside.append(i)
    return inside, outside


def mutate(rng, texts):
    """A text and the name of the seed that it was."""
    name = rng.choice(sorted(texts))
    lines = texts[name].split("\n")
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))):
        kind = rng.choice((0, 0, 0, 1, 1, 2, 2, 3))
        inside, outside = places(lines)
        if kind < 3:
            piece = rng.choice(KINDS[kind])
            if rng.random() < 0.8:
                piece = disguised(rng, piece)
            where = outside if (kind == 1) != (rng.random() < 0.1) else inside
            lines.insert((rng.choice(where) if where else 0) + 1, written(piece, name))
            lines = "\n".join(lines).split("\n")
            continue
        at = rng.randrange(len(lines))
        tokens = TOKEN.findall(lines[at]) or [""]
        k, how = rng.randrange(len(tokens)), rng.randrange(4)
        if how == 0:
            tokens[k] = disguised(rng, tokens[k])
        elif how == 1:
            tokens.insert(k, written(rng.choice(rng.choice(KINDS)), name))
        elif how == 2:
            tokens[k] = rng.choice(tokens)
        else:
            odd = "& * ( ) < > 'a' 1'0 /* */ // [ ] :: template typename".split()
            tokens.insert(k, rng.choice(odd))
        lines[at] = " ".join(tokens)
    return "\n".join(lines) + "\n", name
