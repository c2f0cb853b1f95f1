/* SPDX-License-Identifier: Apache-2.0 */
/* agent_names.c - the lists behind agent_names.h. A row is a name, or with a star at its end the
 * beginning of one. */
#include "specializer/agent/agent_names.h"

#include "specializer/agent/agent_words.h"

static const char *const keywords[] = {
    "auto",     "break",     "case",          "const",       "continue", "default",
    "do",       "else",      "enum",          "for",         "if",       "inline",
    "restrict", "return",    "sizeof",        "static",      "struct",   "switch",
    "typedef",  "union",     "volatile",      "while",       "template", "class",
    "typename", "constexpr", "static_assert", "static_cast", "alignas",  "alignof",
    "typeof",   "defined",   "true",          "false",       "nullptr",  "operator",
    "public",   "private",   "protected",     "noexcept",    "_*",       NULL};

static const char *const parentheses[] = {"if",
                                          "for",
                                          "while",
                                          "switch",
                                          "return",
                                          "sizeof",
                                          "case",
                                          "else",
                                          "do",
                                          "alignas",
                                          "alignof",
                                          "typeof",
                                          "_Alignas",
                                          "_Alignof",
                                          "_Generic",
                                          "__typeof__",
                                          "_Static_assert",
                                          "defined",
                                          "__attribute__",
                                          "__align__",
                                          "static_assert",
                                          NULL};

static const char *const types_both[] = {
    "char", "short",   "int",     "long",     "float", "double",   "void",   "signed", "unsigned",
    "bool", "int32_t", "int64_t", "uint64_t", "const", "volatile", "size_t", NULL};

static const char *const types_c[] = {
    "int8_t",   "int16_t",    "uint8_t",      "uint16_t",    "uint32_t", "ptrdiff_t",
    "vf",       "restrict",   "_Bool",        "__m128*",     "__m256*",  "__m512*",
    "__mmask*", "__restrict", "__restrict__", "__tile1024i", NULL};

static const char *const types_cuda[] = {
    "bf16",       "char1",        "char2",   "char3",   "char4",  "uchar1",    "uchar2",
    "uchar3",     "uchar4",       "short1",  "short2",  "short3", "short4",    "ushort1",
    "ushort2",    "ushort3",      "ushort4", "int1",    "int2",   "int3",      "int4",
    "uint1",      "uint2",        "uint3",   "uint4",   "long1",  "long2",     "ulong1",
    "ulong2",     "float1",       "float2",  "float3",  "float4", "longlong1", "longlong2",
    "ulonglong1", "ulonglong2",   "double1", "double2", "dim3",   "uint",      "region_args",
    "__restrict", "__restrict__", NULL};

/* memory and maths: what object.c lets an object ask for, and what compilers make of one
 * instruction. */
static const char *const library_c[] = {
    "memcpy",  "memset",   "memmove",  "memcmp",    "expf",     "exp",    "exp2f",    "exp2",
    "logf",    "log",      "sqrtf",    "sqrt",      "fmaf",     "fma",    "sinf",     "cosf",
    "powf",    "tanhf",    "floorf",   "ceilf",     "rintf",    "roundf", "fmaxf",    "fminf",
    "ldexpf",  "fabsf",    "fabs",     "copysignf", "copysign", "abs",    "offsetof", "INT32_C",
    "INT64_C", "UINT32_C", "UINT64_C", NULL};

/* Of kernels/cpu/lib, as far as agent.c includes it. */
static const char *const frame_functions_c[] = {"bits_float",
                                                "block_brain16",
                                                "block_bytes",
                                                "block_eight",
                                                "block_eight_nibbles",
                                                "block_fifth",
                                                "block_float16",
                                                "block_half16",
                                                "block_high",
                                                "block_ints",
                                                "block_less",
                                                "block_load",
                                                "block_load_half",
                                                "block_load_scaled",
                                                "block_look_up",
                                                "block_low",
                                                "block_nibbles",
                                                "block_numbers",
                                                "block_scale",
                                                "cache_row",
                                                "exp4",
                                                "exp8",
                                                "exp_step",
                                                "exponent_floats",
                                                "float_bits",
                                                "half_float",
                                                "head_norm",
                                                "keep_lanes",
                                                "key_load",
                                                "kv_load",
                                                "kv_round",
                                                "lane_dot",
                                                "lane_dot_add",
                                                "lane_exp",
                                                "lane_fma",
                                                "lane_fold",
                                                "lane_rmsnorm",
                                                "lane_silu_mul",
                                                "load_u16",
                                                "load_u32",
                                                "norm_row",
                                                "page_dots",
                                                "page_floats",
                                                "page_rows",
                                                "page_scores",
                                                "qkv_finish",
                                                "qkv_row",
                                                "qkv_store",
                                                "qkv_unit",
                                                "qkv_weight",
                                                "rotate",
                                                "row_ask",
                                                "row_at",
                                                "row_load",
                                                "row_load_eights",
                                                "row_load_half",
                                                "row_load_scaled",
                                                "row_scales",
                                                "rows_add",
                                                "rows_add_run",
                                                "rows_apart",
                                                "rows_ask",
                                                "rows_by_halves",
                                                "rows_dot",
                                                "rows_dot_all",
                                                "rows_half",
                                                "rows_half_add",
                                                "rows_run",
                                                "rows_together",
                                                "rows_together_all",
                                                "scales_load",
                                                "scales_words",
                                                "share_groups",
                                                "silu8",
                                                "super_above",
                                                "super_codes",
                                                "super_factors",
                                                "super_factors_iq4",
                                                "super_factors_k",
                                                "super_factors_q3",
                                                "super_field",
                                                "super_load",
                                                "super_look_up",
                                                "super_quad",
                                                "super_scales",
                                                "super_sides",
                                                "super_signed",
                                                "vf_add",
                                                "vf_exp",
                                                "vf_fma",
                                                "vf_fold",
                                                "vf_fold16",
                                                "vf_fold4",
                                                "vf_join4",
                                                "vf_largest",
                                                "vf_load",
                                                "vf_max",
                                                "vf_mla",
                                                "vf_mul",
                                                "vf_quarter",
                                                "vf_set",
                                                "vf_silu_mul",
                                                "vf_store",
                                                "vf_sub",
                                                "vf_zero",
                                                NULL};

/* CUDA's own, without what tells a time or a place or reaches outside the launch. */
static const char *const library_cuda[] = {
    "min",       "max",       "abs",        "labs",      "llabs",     "fabs",      "fabsf",
    "fmin",      "fminf",     "fmax",       "fmaxf",     "fma",       "fmaf",      "sqrt",
    "sqrtf",     "rsqrt",     "rsqrtf",     "exp",       "expf",      "exp2",      "exp2f",
    "exp10f",    "expm1f",    "log",        "logf",      "log2",      "log2f",     "log10f",
    "log1pf",    "pow",       "powf",       "tanh",      "tanhf",     "sin",       "sinf",
    "cos",       "cosf",      "sincosf",    "floor",     "floorf",    "ceil",      "ceilf",
    "trunc",     "truncf",    "rint",       "rintf",     "round",     "roundf",    "nearbyintf",
    "lrintf",    "copysign",  "copysignf",  "ldexpf",    "isnan",     "isinf",     "isfinite",
    "fdividef",  "umin",      "umax",       "signbit",   "memcpy",    "memset",    "make_*",
    "atomicAdd", "atomicSub", "atomicExch", "atomicMin", "atomicMax", "atomicInc", "atomicDec",
    "atomicCAS", "atomicAnd", "atomicOr",   "atomicXor", NULL};

/* Of kernels/cuda/lib, as far as agent.cu includes it. */
static const char *const frame_functions_cuda[] = {
    "after_previous", "await_copies", "best_of_all", "block_sum", "cluster_arrive", "cluster_come",
    "cluster_wait", "copies_sent", "copy_or_zero", "copy_shared", "copy_weight", "copy_word",
    "exp2_fast", "expand8", "from_bf16", "high_bf16", "id_of_rank", "load_peer", "load_staged",
    "load_weight", "load_x4", "low_bf16", "pack_bf16", "peer_of", "prefetch_l2", "prefetch_share",
    "rank_of", "release_next", "silu", "store_at", "store_peer", "to_bf16", "warp_best", "warp_sum",
    "warp_sums",
    /* mma.cuh */
    "mma_bf16", "pack_tiles", NULL};

static const char *const frame_macros_c[] = {
    "BLOCK_BYTES",     "BLOCK_HEAD",  "SCALES",      "NO_SOONER",  "ROWS_TOGETHER",
    "BLOCKS_TOGETHER", "ROW_BYTES",   "HALVES",      "ROW_SCALES", "SUPER_*",
    "MIDDLE_CODE",     "BLOCK_CODES", "LOW_BITS",    "HIGH_BITS",  "CODE_BITS",
    "CODE_TABLE",      "ROW_LOAD",    "BLOCK_SHARE", NULL};
static const char *const frame_macros_cuda[] = {"WHET_LOAD", "TILE_LAYOUT", NULL};

/* What every build is given by -D: the SHAPE rows of its machine, and the knobs of its frame. */
#define SHAPE(name, value, help) #name,
#define KNOB(name, role, value, values, help) #name,
static const char *const given_c[] = {
#include "kernels/templates.def"

#include "kernels/cpu/agent.def"
    NULL};
#define SHAPE(name, value, help) #name,
#define KNOB(name, role, value, values, help) #name,
static const char *const given_cuda[] = {
#include "kernels/templates_cuda.def"

#include "kernels/cuda/agent.def"
    NULL};

/* Constants, and the tables that describe models and machines, on both. */
static const char *const frame_both[] = {
    "REGION*",    "HAS_*",      "WHET_*",     "DTYPE_*",    "KV_PAGE",    "K",
    "KNOB",       "LEGAL",      "START",      "AGENT_*",    "CUDA_*",     "DTYPES",
    "ROW_BLOCK",  "BLOCK_TYPE", "PANEL_TYPE", "SMALL_TYPE", "SUPER_TYPE", "ROW_TYPE",
    "TABLE_TYPE", "IQ4_VALUES", "MXFP4_*",    "REDUCE_*",   NULL};

/* What only the text itself could use is not here: a text may call something UNIT as qkv.h does. */
static const char *const frame_c[] = {
    "ISA_*", "INLINE", "UNROLLED",  "PAGES_INTO", "POLICY_*",    "BITEQ",      "PRECISION",
    "BLOCK", "LANES",  "SCALE_RUN", "ROWS_MOST",  "TOKENS_MOST", "RUN_SCALES", "PARTS",
    "NULL",  "INT*",   "UINT*",     "SIZE_*",     NULL};

static const char *const frame_cuda[] = {"ROWS_ALL", "WARP_ALL", "INFINITY", "KERNEL",
                                         "AT_*",     "NULL",     NULL};

static const char *const told_c[] = {"PACKED", NULL};
static const char *const told_cuda[] = {"THREADS",    "GRID",     "SMEM", "CLUSTER",
                                        "WORK_BYTES", "COUNTERS", NULL};

bool name_keyword(const char *at, size_t n)
{
    return word_listed(keywords, at, n);
}

bool name_takes_parentheses(const char *at, size_t n)
{
    return word_listed(parentheses, at, n);
}

bool name_type(const char *at, size_t n, enum agent_language language)
{
    return word_listed(types_both, at, n) ||
           word_listed(language == AGENT_C ? types_c : types_cuda, at, n);
}

/* Among the reserved names on the lists those that are no word of the language are functions. */
static bool is_intrinsic(const char *at, size_t n, enum agent_language language)
{
    static const char *const c[] = {"_mm_*",    "_mm256_*", "_mm512_*",     "__builtin_*",
                                    "_tile_*",  "_cvt*",    "_k*",          "_load_mask*",
                                    "_pext_*",  "_pdep_*",  "_store_mask*", "_lzcnt_*",
                                    "_tzcnt_*", "_bzhi_*",  "_MM_SHUFFLE*", NULL};
    static const char *const words[] = {"__device__",
                                        "__forceinline__",
                                        "__noinline__",
                                        "__inline__",
                                        "__shared__",
                                        "__restrict__",
                                        "__restrict",
                                        "__align__",
                                        "__attribute__",
                                        "__CUDA_ARCH__",
                                        NULL};
    if (language == AGENT_C)
        return word_listed(c, at, n);
    return n > 2 && at[0] == '_' && at[1] == '_' && !word_listed(words, at, n);
}

bool name_callable(const char *at, size_t n, enum agent_language language)
{
    const bool c = language == AGENT_C;
    return word_listed(c ? library_c : library_cuda, at, n) ||
           word_listed(c ? frame_functions_c : frame_functions_cuda, at, n) ||
           is_intrinsic(at, n, language);
}

bool name_frame_macro(const char *at, size_t n, enum agent_language language)
{
    return word_listed(language == AGENT_C ? frame_macros_c : frame_macros_cuda, at, n);
}

bool name_frame(const char *at, size_t n, enum agent_language language)
{
    return word_listed(frame_both, at, n) ||
           word_listed(language == AGENT_C ? given_c : given_cuda, at, n) ||
           word_listed(language == AGENT_C ? frame_c : frame_cuda, at, n) ||
           name_frame_macro(at, n, language);
}

bool name_told(const char *at, size_t n, enum agent_language language)
{
    return word_listed(language == AGENT_C ? told_c : told_cuda, at, n);
}
