/* agent_words.c - the lists behind agent_text.c: what a kernel may not say, and the reserved names
 * that it may. A row is a name, or with a star at its end the beginning of one. */
#include "specializer/agent/agent_words.h"

#include <string.h>

/* Words that are refused although they are plain. */
static const char *const forbidden[][2] = {
    {"asm", "assembly"},
    {"extern", "linkage"},
    {"goto", "goto"},
    {"alloca", "stack"},
    {"thread_local", "thread"},
    {"register", "register"},
    {"whet_kernel", "entry"},
    {"whet_info", "entry"},
    {"whet_pack", "entry"},
    {"virtual", "function tables"},
    {"new", "allocation"},
    {"delete", "allocation"},
    {"malloc", "allocation"},
    {"free", "allocation"},
    {"throw", "exceptions"},
    {"try", "exceptions"},
    {"catch", "exceptions"},
    {"typeid", "exceptions"},
    {"dynamic_cast", "exceptions"},
    {"printf", "output"},
    {"clock", "clock"},
    {"clock64", "clock"},
    {"assert", "output"},
    {NULL, NULL},
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

static bool listed(const char *const *list, const char *at, size_t n)
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

const char *word_forbidden(const char *at, size_t n)
{
    for (int i = 0; forbidden[i][0]; i++)
        if (n == strlen(forbidden[i][0]) && memcmp(at, forbidden[i][0], n) == 0)
            return forbidden[i][1];
    return NULL;
}

bool word_reserved(const char *at, size_t n, enum agent_language language)
{
    static const char builtin[] = "__builtin_";
    const size_t k = sizeof builtin - 1;
    if (language == AGENT_CUDA)
        return listed(reserved_cuda, at, n);
    if (n > k && memcmp(at, builtin, k) == 0)
        return listed(builtins, at + k, n - k);
    return listed(reserved_c, at, n) && !listed(intrinsics, at, n);
}

bool word_attribute(const char *at, size_t n)
{
    if (n > 4 && memcmp(at, "__", 2) == 0 && memcmp(at + n - 2, "__", 2) == 0)
        return listed(attributes, at + 2, n - 4);
    return listed(attributes, at, n);
}

bool word_directive(const char *at, size_t n)
{
    return listed(directives, at, n);
}
