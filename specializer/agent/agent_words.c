/* SPDX-License-Identifier: Apache-2.0 */
/* agent_words.c - the lists behind agent_text.c: what a kernel may not say, and the reserved names
 * that it may. A row is a name, or with a star at its end the beginning of one. */
#include "specializer/agent/agent_words.h"

#include <string.h>

/* Words that are refused although they are plain, in both languages. */
static const struct {
    const char *rule;
    const char *const word[24];
} forbidden[] = {
    {"assembly", {"asm"}},
    {"linkage", {"extern", "using", "namespace", "export", "import", "module"}},
    {"goto", {"goto"}},
    {"stack", {"alloca"}},
    {"thread", {"thread_local", "co_await", "co_return", "co_yield"}},
    {"register", {"register"}},
    /* What the frame says of a text, and how it is told. */
    {"entry", {"whet_*", "cpu_kernel", "cuda_kernel_info", "cuda_launch", "AGENT_*", "WHET_*"}},
    {"frame", {"KNOB", "LEGAL", "START", "BITEQ", "PRECISION", "KERNEL"}},
    {"function tables", {"virtual", "operator", "friend", "decltype", "this", "mutable"}},
    {"allocation", {"new", "delete", "malloc", "calloc", "realloc", "free"}},
    {"exceptions", {"throw", "try", "catch", "typeid", "dynamic_cast"}},
    {"address", {"uintptr_t", "intptr_t", "reinterpret_cast", "const_cast"}},
    {"output", {"printf", "assert", "vprintf", "putchar", "puts"}},
    {"clock", {"clock", "clock64", "globaltimer", "nanosleep"}},
    /* Seen by the whole machine. */
    {"scope",
     {"atomicAdd_system", "atomicSub_system", "atomicExch_system", "atomicMin_system",
      "atomicMax_system", "atomicInc_system", "atomicDec_system", "atomicCAS_system",
      "atomicAnd_system", "atomicOr_system", "atomicXor_system"}},
    /* Templates, which a name in front of a < may be. */
    {"texture",
     {"tex1D*", "tex2D*", "tex3D*", "texCubemap*", "surf1D*", "surf2D*", "surf3D*",
      "surfCubemap*"}},
};

/* Names that begin with an underscore belong to the compiler: only these. */
static const char *const reserved_c[] = {"_Static_assert", "_Alignas",      "_Alignof",
                                         "_Bool",          "_Generic",      "__restrict",
                                         "__restrict__",   "__inline",      "__inline__",
                                         "__typeof__",     "__m128",        "__m128i",
                                         "__m128d",        "__m256",        "__m256i",
                                         "__m256d",        "__m512",        "__m512i",
                                         "__m512d",        "__m128bh",      "__m256bh",
                                         "__m512bh",       "__m128h",       "__m256h",
                                         "__m512h",        "__mmask8",      "__mmask16",
                                         "__mmask32",      "__mmask64",     "__tile1024i",
                                         "__AVX*",         "__FMA__",       "__F16C__",
                                         "__SSE*",         "__BMI*",        "__x86_64__",
                                         "__aarch64__",    "__clang__",     "__GNUC__",
                                         "__LINE__",       "_mm_*",         "_mm256_*",
                                         "_mm512_*",       "_MM_HINT_*",    "_MM_SHUFFLE*",
                                         "_MM_FROUND_*",   "_MM_PERM_*",    "_MM_MANT_*",
                                         "_MM_CMPINT_*",   "_CMP_*",        "_tile_*",
                                         "_cvt*",          "_kand*",        "_kor*",
                                         "_kxor*",         "_knot*",        "_kxnor*",
                                         "_kshift*",       "_kadd*",        "_ktest*",
                                         "_load_mask*",    "_store_mask*",  "_pext_u*",
                                         "_pdep_u*",       "_lzcnt_u*",     "_tzcnt_u*",
                                         "_bzhi_u*",       "__attribute__", NULL};

static const char *const builtins[] = {"expect",        "assume_aligned",
                                       "prefetch",      "unreachable",
                                       "memcpy",        "memset",
                                       "memmove",       "memcmp",
                                       "sqrt",          "sqrtf",
                                       "fma",           "fmaf",
                                       "fabs",          "fabsf",
                                       "floor",         "floorf",
                                       "ceil",          "ceilf",
                                       "rint",          "rintf",
                                       "roundf",        "trunc",
                                       "truncf",        "copysign",
                                       "copysignf",     "fmax",
                                       "fmaxf",         "fmin",
                                       "fminf",         "exp",
                                       "expf",          "exp2f",
                                       "log",           "logf",
                                       "powf",          "tanhf",
                                       "sinf",          "cosf",
                                       "ldexpf",        "inf",
                                       "inff",          "huge_valf",
                                       "nanf",          "isnan",
                                       "isinf",         "isfinite",
                                       "isunordered",   "popcount*",
                                       "clz*",          "ctz*",
                                       "ffs*",          "bswap*",
                                       "shuffle",       "shufflevector",
                                       "convertvector", "constant_p",
                                       "offsetof",      "types_compatible_p",
                                       "choose_expr",   "elementwise_*",
                                       "reduce_*",      NULL};

static const char *const attributes[] = {
    "aligned", "always_inline", "noinline",    "unused",          "hot",
    "cold",    "may_alias",     "vector_size", "ext_vector_type", "const",
    "pure",    "flatten",       "packed",      "fallthrough",     NULL};

/* Intrinsics that reach beyond a computation: control registers, caches, allocation, waiting. */
static const char *const intrinsics[] = {
    "_mm_getcsr",      "_mm_setcsr",      "_mm_malloc",      "_mm_free",   "_mm_clflush*",
    "_mm_clwb*",       "_mm_cldemote*",   "_mm_monitor*",    "_mm_mwait*", "_mm_stream_*",
    "_mm256_stream_*", "_mm512_stream_*", "_mm_maskmoveu_*", NULL};

static const char *const reserved_cuda[] = {"__device__",
                                            "__forceinline__",
                                            "__noinline__",
                                            "__inline__",
                                            "__shared__",
                                            "__restrict__",
                                            "__restrict",
                                            "__align__",
                                            "__attribute__",
                                            "__syncthreads",
                                            "__syncthreads_count",
                                            "__syncthreads_and",
                                            "__syncthreads_or",
                                            "__syncwarp",
                                            "__activemask",
                                            "__shfl_sync",
                                            "__shfl_up_sync",
                                            "__shfl_down_sync",
                                            "__shfl_xor_sync",
                                            "__ballot_sync",
                                            "__any_sync",
                                            "__all_sync",
                                            "__match_any_sync",
                                            "__reduce_*",
                                            "__threadfence",
                                            "__threadfence_block",
                                            "__ldg",
                                            "__ldcg",
                                            "__ldca",
                                            "__ldcs",
                                            "__stcg",
                                            "__stcs",
                                            "__expf",
                                            "__exp10f",
                                            "__logf",
                                            "__log2f",
                                            "__powf",
                                            "__sinf",
                                            "__cosf",
                                            "__tanhf",
                                            "__fdividef",
                                            "__saturatef",
                                            "__fadd_r*",
                                            "__fmul_r*",
                                            "__fsub_r*",
                                            "__fdiv_r*",
                                            "__frcp_r*",
                                            "__fsqrt_r*",
                                            "__frsqrt_r*",
                                            "__fmaf_r*",
                                            "__float2*",
                                            "__int2*",
                                            "__uint2*",
                                            "__ll2*",
                                            "__ull2*",
                                            "__double2*",
                                            "__half2*",
                                            "__int_as_float",
                                            "__float_as_int",
                                            "__uint_as_float",
                                            "__float_as_uint",
                                            "__popc*",
                                            "__clz*",
                                            "__ffs*",
                                            "__brev*",
                                            "__byte_perm",
                                            "__funnelshift_*",
                                            "__dp4a",
                                            "__dp2a*",
                                            "__mul24",
                                            "__mulhi",
                                            "__umulhi",
                                            "__sad",
                                            "__usad",
                                            "__vadd*",
                                            "__vsub*",
                                            "__vmax*",
                                            "__vmin*",
                                            "__hfma2*",
                                            "__CUDA_ARCH__",
                                            "__builtin_assume",
                                            "__builtin_assume_aligned",
                                            "__builtin_expect",
                                            "__builtin_unreachable",
                                            "__builtin_huge_valf",
                                            "__builtin_inff",
                                            NULL};

static const char *const directives[] = {"define", "undef", "if",    "ifdef", "ifndef",
                                         "elif",   "else",  "endif", NULL};

bool word_listed(const char *const *list, const char *at, size_t n)
{
    for (; *list; list++) {
        size_t k = strlen(*list);
        bool open = (*list)[k - 1] == '*';
        if (open ? n >= k - 1 && memcmp(at, *list, k - 1) == 0
                 : n == k && memcmp(at, *list, k) == 0)
            return true;
    }
    return false;
}

const char *word_forbidden(const char *at, size_t n, enum agent_language language)
{
    static const char *const cplusplus[] = {"using", "namespace", "export", "import", "module",
                                            "this",  "new",       "delete", "try",    NULL};
    if (language == AGENT_C && word_listed(cplusplus, at, n))
        return NULL; /* names like others */
    for (size_t i = 0; i < sizeof forbidden / sizeof *forbidden; i++)
        if (word_listed(forbidden[i].word, at, n))
            return forbidden[i].rule;
    return NULL;
}

bool word_reserved(const char *at, size_t n, enum agent_language language)
{
    static const char builtin[] = "__builtin_";
    const size_t k = sizeof builtin - 1;
    if (language == AGENT_CUDA)
        return word_listed(reserved_cuda, at, n);
    if (n > k && memcmp(at, builtin, k) == 0)
        return word_listed(builtins, at + k, n - k);
    return word_listed(reserved_c, at, n) && !word_listed(intrinsics, at, n);
}

bool word_attribute(const char *at, size_t n)
{
    if (n > 4 && memcmp(at, "__", 2) == 0 && memcmp(at + n - 2, "__", 2) == 0)
        return word_listed(attributes, at + 2, n - 4);
    return word_listed(attributes, at, n);
}

bool word_directive(const char *at, size_t n)
{
    return word_listed(directives, at, n);
}
