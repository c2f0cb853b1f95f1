# SPDX-License-Identifier: Apache-2.0
"""The CUDA half of fuzz-reader: two checkers that know nothing of the reader.

judge_text() reads what `g++ -E` makes of the text behind the frame's own macros: no assembly, no
strings, no reserved name but intrinsics, no call but of what the text defines or CUDA offers for
computing. judge_ptx() reads what NVRTC makes of the text in its frame (kernels/cuda/agent.cu): no
inline assembly but the frame's, no instruction, special register, function or variable beyond those
of a computation. The compiler runs in a process of its own for each text, since it may crash on one.
"""
import ctypes
import os
import re
import resource
import subprocess

from fuzz_reader_texts import REGIONS, TOKEN, seeds

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KERNELS = f"{ROOT}/kernels"
SHAPE = {"M_MAX": 2, "HIDDEN": 576, "HEADS": 9, "KV_HEADS": 3, "HEAD_DIM": 64, "FFN": 1536,
         "VOCAB": 1999, "SMS": 132, "PDL": 1}
COMPILER_CPU_S = 120
PREPROCESSOR = ["g++", "-std=c++17", "-E", "-P", "-w", "-nostdinc", "-x", "c++", f"-I{KERNELS}",
                "-D__CUDACC_RTC__", "-D__CUDA_ARCH__=900"]
NAME = re.compile(r"[A-Za-z_\u0080-\uffff$][\w\u0080-\uffff$]*$")
NUMBER = re.compile(r"(0[xX][\da-fA-F]*\.?[\da-fA-F]*([pP][+-]?\d+)?|0[bB][01]+|"
                    r"\d*\.?\d*([eE][+-]?\d+)?)[uUlLfF]{0,3}$")

# ---- what a text may not hold, behind the preprocessor ------------------------------------------

NEVER = set(
    "asm extern goto virtual operator friend decltype mutable new delete malloc free "
    "calloc realloc throw try catch typeid dynamic_cast reinterpret_cast const_cast printf "
    "vprintf assert clock clock64 globaltimer nanosleep uintptr_t intptr_t thread_local "
    "co_await co_return co_yield using namespace export import module register this alloca "
    "whet_kernel whet_info typeinfo std cooperative_groups nvcuda".split())
RESERVED = re.compile(
    r"__(device__|forceinline__|noinline__|inline__|shared__|restrict__|restrict|align__|"
    r"attribute__|CUDA_ARCH__|syncthreads(_count|_and|_or)?|syncwarp|activemask|"
    r"shfl(_up|_down|_xor)?_sync|(ballot|any|all|match_any)_sync|reduce_\w+_sync|"
    r"threadfence(_block)?|ld(g|c[gas])|stc[gs]|(exp|exp10|log|log2|pow|sin|cos|tanh)f|fdividef|"
    r"saturatef|f(add|mul|sub|div|rcp|sqrt|rsqrt|maf)_r\w*|(float|int|uint|ll|ull|double|half)2\w+|"
    r"(u?int|float)_as_(u?int|float)|(popc|clz|ffs|brev)(ll)?|byte_perm|funnelshift_\w+|dp[42]a\w*|"
    r"mul24|u?mulhi|u?sad|v(add|sub|max|min)\w*|hfma2\w*|"
    r"builtin_(assume|assume_aligned|expect|unreachable|huge_valf|inff))$")
QUALIFIER = re.compile(r"__(device|forceinline|noinline|inline|shared|restrict|align|attribute)"
                       r"(__)?$")
ATTRIBUTES = set("aligned always_inline noinline unused hot cold may_alias vector_size const pure "
                 "ext_vector_type flatten packed fallthrough".split())
LAMBDA = set("= ( , ; { } ? : & | + - * / < > ! ~ ^ % return".split())
WORDS = set(
    "static_cast if while for switch return sizeof else case do static_assert alignas "
    "alignof typeof noexcept".split())
TYPES = set("char short int long float double void signed unsigned bool int32_t int64_t uint64_t "
            "const volatile size_t uint bf16 dim3 auto constexpr inline static cuda_out_args "
            "cuda_attn_in_args cuda_attn_args cuda_mlp_in_args cuda_head_args".split())
VECTOR = re.compile(r"(u?(char|short|int|long|longlong)|float|double)[1-4]$")
OFFERED = re.compile(
    r"(make_\w+|atomic(Add|Sub|Exch|Min|Max|Inc|Dec|CAS|And|Or|Xor)|mem(cpy|set)|[ul]?(min|max)|"
    r"(l|ll)?abs|f(abs|min|max|ma)f?|r?sqrtf?|exp(2|10|m1)?f?|log(2|10|1p)?f?|powf?|tanhf?|"
    r"(sin|cos)f?|sincosf|(floor|ceil|trunc|rint|round|nearbyint|lrint|copysign|ldexp)f?|"
    r"is(nan|inf|finite)|fdividef|signbit|after_previous|await_copies|best_of_all|block_sum|"
    r"cluster_(arrive|come|wait)|copies_sent|copy_(or_zero|shared|weight|word)|exp2_fast|expand8|"
    r"(from|to|pack|low|high)_bf16|id_of_rank|load_(staged|weight|x4)|peer_of|prefetch_(l2|share)|"
    r"rank_of|release_next|silu|store_(at|peer)|warp_(best|sum|sums))$")


def pair(tokens, i, step=1):
    depth = 0
    while 0 <= i < len(tokens):
        depth += (tokens[i] in "([{") - (tokens[i] in ")]}")
        if depth == 0:
            return i
        i += step
    return -1


def behind_template(tokens, i):
    """The token behind the <...> that opens at `i`, or -1 where it is a comparison."""
    depth = 0
    while i < len(tokens) and tokens[i] not in ";{})":
        if tokens[i] in "([":
            i = pair(tokens, i)
            if i < 0:
                return -1
        depth += (tokens[i] == "<") - (tokens[i] == ">")
        i += 1
        if depth == 0:
            return i
    return -1


def judge_token(tokens, i):
    t = tokens[i]
    if t in NEVER or (t.startswith("_") and not RESERVED.match(t)):
        return t
    if ('"' in t and t[0] != "'") or t in ("#", "<:", "<%", "%:", "::", "\\", "@", "`") or "$" in t:
        return f"spelling {t}"
    if t[0] not in "'_" and NAME.match(t) and not t.isascii():
        return f"spelling {t}"
    if "'" in t and not re.match(r"'(\\[abfnrtv0'\"\\]|[ -~])'$", t):
        return f"spelling {t}"
    if (t[0].isdigit() or (t[0] == "." and len(t) > 1)) and not NUMBER.match(t):
        return f"number {t}"
    if tokens[i:i + 2] == ["[", "["]:
        return "attribute [["
    if t == "[" and (tokens[i - 1] if i else ";") in LAMBDA:
        end = pair(tokens, i)
        if tokens[end + 1:end + 2] and tokens[end + 1] in ("(", "{", "<", "mutable", "noexcept"):
            return "lambda"
    if t == "__attribute__":
        end = pair(tokens, i + 1)
        inside = tokens[i + 1:end]
        names = {x.strip("_") for k, x in enumerate(inside) if NAME.match(x)
                 and sum((y == "(") - (y == ")") for y in inside[:k]) == 2}
        if end < 0 or names - ATTRIBUTES:
            return f"attribute {sorted(names)}"
    return None


def defined(tokens):
    """Functions that have a body outside of everything, and names of types."""
    functions, types, depth = set(), set(TYPES), 0
    for i, t in enumerate(tokens):
        if depth == 0 and NAME.match(t) and tokens[i + 1:i + 2] == ["("] and t not in WORDS:
            close = pair(tokens, i + 1)
            if close > 0 and tokens[close + 1:close + 2] == ["{"]:
                functions.add(t)
        depth += (t == "{") - (t == "}")
        if t in ("struct", "class", "union", "enum", "typename") and i + 1 < len(tokens):
            types.add(tokens[i + 1])
        if t == "typedef":
            end = next((k for k in range(i, len(tokens)) if tokens[k] == ";"), len(tokens))
            types |= {x for x in tokens[i:end] if NAME.match(x)}
    return functions, types - functions


def judge_call(tokens, i, functions, types):
    t, before = tokens[i], tokens[i - 1] if i else ""
    nxt = tokens[i + 1] if i + 1 < len(tokens) else ""
    known = t in functions or OFFERED.match(t) or (RESERVED.match(t) and not QUALIFIER.match(t))
    typed = t in types or VECTOR.match(t) or QUALIFIER.match(t) or t in WORDS
    behind = behind_template(tokens, i + 1) if nxt == "<" else -1
    called = nxt == "(" or (behind > 0 and tokens[behind:behind + 1] == ["("])
    member = before in (".", "->")
    if nxt == "(" and member:
        return f"call of member {t}"
    # A comparison with something in parentheses looks like a template that is called; what a text
    # or its arguments hold is then a variable, so only names that nothing declares count.
    if nxt == "<" and called and not member and not (known or typed or t == "template"):
        befores = {tokens[k - 1] for k in range(1, i) if tokens[k] == t}
        befores -= {"return", "case", "else"}
        if not any(NAME.match(b) or b in ("*", "&", ",") for b in befores):
            return f"call of template {t}"
    elif nxt == "(" and NAME.match(t) and not (known or typed):
        return f"call of {t}"
    if (t in functions or (known and not t.startswith("__"))) and not called and not member \
            and before not in ("struct", "class", "union", "enum") and t not in types:
        return f"function {t} without a call"
    return None


def judge_text(plain):
    """The first thing that a text behind the preprocessor must not hold, or None."""
    plain = re.sub(r"(?m)^#pragma (GCC )?(unroll|ivdep)\b([ \w()*+-]*)$", r" ", plain)
    tokens = TOKEN.findall(plain)
    for i in range(len(tokens)):
        what = judge_token(tokens, i)
        if what:
            return what
    functions, types = defined(tokens)
    inside = -1
    for i, t in enumerate(tokens):
        if t == "__attribute__":
            inside = pair(tokens, i + 1)
        if i <= inside:
            continue
        what = judge_call(tokens, i, functions, types) if NAME.match(t) else None
        if t == "]" and tokens[i + 1:i + 2] == ["("]:
            what = "call of an element"
        if t == ")" and tokens[i + 1:i + 2] == ["("]:
            start = pair(tokens, i, -1)
            inner = tokens[start + 1:i]
            cast = inner and all(x in ("*", "&") or x in types or VECTOR.match(x) or x in
                                 ("struct", "enum", "union", "__restrict__") for x in inner)
            before = tokens[start - 1] if start > 0 else ""
            if not cast and before not in ("if", "while", "for", "switch", "__align__", "alignas"):
                what = f"call of ({' '.join(inner)[:40]})"
        if what:
            return what
    return None


def defines(region):
    return [f"-DREGION={region}"] + [f"-D{k}={v}" for k, v in SHAPE.items()]


def preprocess(text, region):
    macros = ["-imacros", "cuda/lib/shape.cuh", "-imacros", "cuda/lib/stream.cuh"]
    r = subprocess.run([*PREPROCESSOR, *macros, *defines(region), "-"], input=text.encode(),
                       capture_output=True)
    return r.stdout.decode(errors="replace") if r.returncode == 0 else None


# ---- what its PTX may not hold ------------------------------------------------------------------

OPCODES = set(
    "add addc sub subc mul mul24 mad mad24 madc fma div rem abs neg min max sqrt rsqrt rcp "
    "sin cos ex2 lg2 tanh set setp selp slct and or xor not cnot lop3 shl shr shf mov ld "
    "ldu st cvt cvta prmt bfe bfi bfind brev clz popc copysign testp sad dp4a dp2a szext "
    "bmsk shfl vote match activemask redux bar barrier membar fence atom red bra brx call "
    "ret exit prefetch isspacep mapa cp createpolicy griddepcontrol vadd vsub vmax vmin "
    "vadd2 vsub2 vmax2 vmin2 vadd4 vsub4 vmax4 vmin4".split())
REGISTER = re.compile(r"%(r|rd|rs|rc|rq|f|fd|p|h|hh|b|SP|SPL)\d*$|%(SP|SPL|p)$")
SPECIAL = set(
    "%tid %ntid %ctaid %nctaid %laneid %lanemask_eq %lanemask_le %lanemask_lt %lanemask_ge "
    "%lanemask_gt %warpsize %cluster_ctarank %cluster_nctarank %dynamic_smem_size".split())
# What NVRTC's own headers write in assembly: loads and stores with a cache's name, and halves of
# what is shuffled.
TOOLKIT_ASM = re.compile(r"((ld\.global(\.nc|\.c[agsv]|\.lu)+|st(\.global)?\.(c[gs]|wb|wt))\.|"
                         r"mov\.b64 [{}%\w, ]+;$)")


def frame_assembly():
    """Patterns of every asm statement of the frame, with its operands left open."""
    r = subprocess.run([*PREPROCESSOR, "-"], capture_output=True, check=True,
                       input=b'#include "cuda/lib/shape.cuh"\n#include "cuda/lib/stream.cuh"\n')
    patterns = []
    for text in re.findall(r'\basm\s*(?:volatile)?\s*\(((?:\s*"(?:\\.|[^"\\])*")+)',
                           r.stdout.decode()):
        words = "".join(re.findall(r'"((?:\\.|[^"\\])*)"', text)).replace("\\n", "\n")
        words = re.split(r"%\d", " ".join(words.split()).replace(" ;", ";"))
        patterns.append(re.compile(r"[\w%+.-]+".join(re.escape(w) for w in words) + "$"))
    return patterns


class Ptx:
    """The PTX of one text, held against what a computation has."""

    def __init__(self, assembly):
        self.assembly = assembly

    def judge(self, ptx):
        ptx = re.sub(r"/\*.*?\*/", " ", ptx, flags=re.S)
        for block in re.findall(r"// begin inline asm\n(.*?)// end inline asm", ptx, re.S):
            said = " ".join(re.sub(r"//.*", "", block).split())
            if said and not (any(p.match(said) for p in self.assembly) or
                             (TOOLKIT_ASM.match(said) and said.count(";") == 1)):
                return f"assembly {said[:80]}"
        plain = re.sub(r"//.*", "", ptx)
        statements = map(self.statement, self.code(plain))
        return self.declared(plain) or next(filter(None, statements), None)

    @staticmethod
    def declared(ptx):
        own = set(re.findall(r"\.func\s*(?:\([^)]*\))?\s*([\w$]+)\s*\([^)]*\)[^;{]*\{", ptx))
        for entry in re.findall(r"\.entry\s+([\w$]+)", ptx):
            if entry != "whet_kernel":
                return f"entry {entry}"
        for what in re.findall(r"(?m)^\s*(?:\.visible |\.weak |\.common )*\.(?:global|const)\b"
                               r"([^;={]*)", ptx):
            name = re.findall(r"([\w$]+)\s*(?:\[\d*\]\s*)?$", what.strip())
            if not name or not (name[0] == "whet_info" or name[0].startswith("__cudart_")):
                return f"variable {what.strip()}"
        for what in re.findall(r"\.extern\b([^;]*);", ptx):
            if not re.match(r"\s*\.shared .*\bdynamic_shared\[\]$", what):
                return f"extern {' '.join(what.split())[:80]}"
        for what in re.findall(r"\.(alias|call(?:targets|prototype)|(?:tex|sampler|surf)ref)\b", ptx):
            return f".{what}"
        for callee in re.findall(r"\bcall(?:\.uni)?\s+(?:\([^)]*\),)?\s*([^\s,;]+)", ptx):
            if callee not in own:
                return f"call of {callee}"
        return None

    @staticmethod
    def code(ptx):
        """Statements between the braces of functions, one by one."""
        for body in re.split(r"\n\)?\s*\{", "\n" + ptx)[1:]:
            for s in re.split(r"[;{}]", body):
                s = re.sub(r"^(\s*[$\w]+:)+", "", s.strip()).strip()
                if s and not s.startswith("."):
                    yield re.sub(r"^@!?%\w+\s+", "", s)

    @staticmethod
    def statement(s):
        opcode = re.match(r"[a-z]\w*", s)
        if not opcode:
            return None
        words = s.split()[0].split(".")
        if words[0] not in OPCODES or "sys" in words[1:]:
            return f"instruction {s.split()[0]}"
        for name in re.findall(r"%[A-Za-z_]\w*", s):
            if not REGISTER.match(name) and name not in SPECIAL:
                return f"register {name}"
        return None


class Compiler:
    """NVRTC, and what the PTX of a text is held against."""

    def __init__(self):
        find = [f"{ROOT}/scripts/find-cuda"]
        out = subprocess.run(find, capture_output=True, text=True, check=True)
        path = dict(line.split("=", 1) for line in out.stdout.splitlines())["nvrtc"]
        self.lib = ctypes.CDLL(path)
        self.frame = open(f"{KERNELS}/cuda/agent.cu", "rb").read()
        self.judge = Ptx(frame_assembly()).judge

    def ptx(self, text, region):
        """None, where the compiler refuses it."""
        said = self.run(text, region, "compute_90a", "PTX")
        return said and said.decode(errors="replace").rstrip("\0")

    def cubin(self, text, region):
        return self.run(text, region, "sm_90a", "CUBIN")

    def run(self, text, region, arch, what):
        here, there = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                resource.setrlimit(resource.RLIMIT_CPU, (COMPILER_CPU_S, COMPILER_CPU_S))
                with os.fdopen(there, "wb") as f:
                    f.write(self.compiled(text, region, arch, what))
            finally:
                os._exit(0)
        os.close(there)
        with os.fdopen(here, "rb") as f:
            answer = f.read()
        os.waitpid(child, 0)
        return answer or None

    def compiled(self, text, region, arch, what):
        program, size = ctypes.c_void_p(), ctypes.c_size_t()
        names = (ctypes.c_char_p * 1)(b"body.cu")
        bodies = (ctypes.c_char_p * 1)(b'#line 1 "kernel"\n' + text.encode())
        options = ["-std=c++17", f"-arch={arch}", f"-I{KERNELS}", '-DAGENT_BODY="body.cu"']
        options = [o.encode() for o in options + defines(region)]
        at = ctypes.byref(program)
        self.lib.nvrtcCreateProgram(at, self.frame, b"agent.cu", 1, bodies, names)
        words = (ctypes.c_char_p * len(options))(*options)
        if self.lib.nvrtcCompileProgram(program, len(options), words) != 0:
            return b""
        getattr(self.lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        data = ctypes.create_string_buffer(size.value)
        getattr(self.lib, f"nvrtcGet{what}")(program, data)
        return data.raw


def constant(what, plain):
    """A variable of the PTX is what the text calls constant. (It can be written all the same.)"""
    name = re.match(r"variable .*?([\w$]+)(\[\d*\])?$", what)
    return name and re.search(rf"\bconst(expr)?\b[^;(){{}}]*\b{re.escape(name[1])}\b", plain)


# ---- do the checkers see anything? --------------------------------------------------------------

# Statements that the reader is never asked about, and who must find them: both, the text's checker
# alone where the compiler leaves nothing or refuses it, the PTX's alone where the text looks well.
BAD = [
    ("both", 'asm volatile("trap;");'), ("both", 'asm volatile("griddepcontrol.wait; trap;");'),
    ("both", "a.y[0] = (float)clock64();"), ("both", "__nanosleep(9);"), ("both", "__trap();"),
    ("both", 'unsigned n; asm("mov.u32 %0, %%smid;" : "=r"(n)); a.y[0] = n;'),
    ("both", 'unsigned n; asm("mov.u32 %0, %%globaltimer_lo;" : "=r"(n)); a.y[0] = n;'),
    ("both", "a.y[0] = tex1Dfetch<float>(1ull, 0);"), ("both", "surf1Dwrite<float>(1.f, 1ull, 0);"),
    ("both", "a.y[0] = *(int *)malloc(a.n);"), ("both", 'printf("x");'),
    ("both", "__prof_trigger(1);"),
    ("both", "a.y[0] = ((float (*)(float))a.x)(1);"), ("both", "__threadfence_system();"),
    ("both", '__assertfail("a", "b", 1, "c", 1);'), ("both", "__brkpt();"),
    ("both", 'as\\\nm volatile("trap;");'), ("both", '\n#define A asm\nA volatile("trap;");\n'),
    ("both", '\n#define A(x) a##x\nA(sm) volatile("trap;");\n'),
    ("both", '/* */asm/* */("trap;");'),
    ("both", "int n = 1'0; asm volatile(\"trap;\"); int k = '0'; a.y[0] = n + k;"),
    ("both", "int n = 1'0; a.y[0] = clock() + n + '0';"),
    ("text", 'a.y[0] = R"(x)"[0];'), ("text", "a.y[0] = 1'000;"), ("text", "a.y<:0:> = 1;"),
    ("text", "[[maybe_unused]] int n;"),
    ("text", "auto f = [](float x) { return x; }; a.y[0] = f(1);"),
    ("text", "__attribute__((section(1))) int n;"), ("text", "float (*f)(float) = silu;"),
    ("text", "a.y[0] = u8'a';"), ("text", "int \u00e4 = 1;"), ("text", "a.y[0] = threadIdx::x;"),
    ("ptx", "static int kept; a.y[0] = kept++;"),
]
CLEAN = [
    "a.y[0] = sinf(a.x[0]) + powf(a.x[1], 2);",
    "a.y[0] = __shfl_xor_sync(WARP_ALL, (double)a.x[0], 1);",
    "a.y[0] = a.x[0] < 1 and a.x[1] > (2);", "a.y[0] = load_weight<1>((const uint4 *)a.w).x;",
    "copy_weight(dynamic_shared, (const uint4 *)a.w); await_copies();", "store_peer(a.y, 1, 2.0f);",
    "cluster_arrive(); cluster_wait(); prefetch_l2(a.w, 64); release_next();", "__threadfence();",
    "a.y[0] = __ldcg(a.x) + warp_sums<2>(a.x); __stcg(a.y, 1.0f);", "a.y[0] = exp2_fast(a.x[0]);",
    "atomicAdd(a.work.counter, 1u); a.y[0] = __reduce_add_sync(WARP_ALL, 1u);",
]


def self_test():
    """1 if a checker misses what is known to be bad, or finds something in good texts."""
    compiler, wrong, region = Compiler(), 0, REGIONS["out"]

    def judged(text, region):
        plain, ptx = preprocess(text, region), compiler.ptx(text, region)
        return plain and judge_text(plain), ptx and compiler.judge(ptx), ptx is not None

    for name, text in seeds().items():
        in_text, in_ptx, compiled = judged(text, REGIONS[name])
        if in_text or in_ptx or not compiled:
            wrong += 1
            print(f"the seed {name}: {in_text}, {in_ptx}")
    for by, statement in BAD + [("", s) for s in CLEAN]:
        wait = "    after_previous();\n"
        text = seeds()["out"].replace(wait, f"{wait}{statement}\n")
        in_text, in_ptx, compiled = judged(text, region)
        good = (by in ("both", "text")) == bool(in_text) and (by in ("both", "ptx")) == bool(in_ptx)
        if not good or (by != "text" and not compiled):
            wrong += 1
            refused = "" if compiled else ", refused"
            print(f"{by or 'clean'}: {statement}: {in_text}, {in_ptx}{refused}")
    print(f"{len(BAD)} bad, {len(CLEAN) + len(REGIONS)} clean, {wrong} wrong")
    return 1 if wrong else 0
