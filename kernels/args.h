/* SPDX-License-Identifier: Apache-2.0 */
/* args.h - what a kernel is given: one argument struct per region, shared by every backend.
 *
 * Included by the host, by CPU kernels (freestanding C) and by CUDA kernels (NVRTC), so it uses
 * nothing but the language. Pointers are of the memory that the backend computes in.
 *
 * Shapes are written [rows, columns], row-major. M = tokens in the step. The inputs of a region
 * never alias its outputs, so a candidate can run beside the incumbent on the same live inputs
 * with other outputs (shadow). Weights are [out, in]: y[m, n] = sum_k x[m, k] * w[n, k].
 */
#ifndef WHET_KERNELS_ARGS_H
#define WHET_KERNELS_ARGS_H

#ifdef __CUDACC_RTC__
typedef signed int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <stddef.h>
#include <stdint.h>
#endif

/* The regions of a step, in the order they run in a layer. */
enum region {
    REGION_EMBED,
    REGION_ATTN_IN,
    REGION_ATTN,
    REGION_ATTN_OUT,
    REGION_MLP_IN,
    REGION_MLP_OUT,
    REGION_HEAD,
    REGION_COUNT,
    /* Fused regions: neighbours that one kernel may compute; engine/plan.c says which. */
    REGION_MLP = REGION_COUNT, /* mlp_in and mlp_out */
    /* After attn_out and after mlp_out where several ranks compute a model, and nowhere else. */
    REGION_REDUCE
};
enum {
    REGION_LOCAL = REGION_REDUCE,     /* regions, fused or not, that a rank computes by itself */
    REGION_NODES = REGION_REDUCE + 1, /* and those that it does not: what may have a kernel */
};

/* Element formats of weights: number, name, values of a block and its bytes (plain formats: blocks
 * of one value). This table is where a format is added; sizes and names come from here. `t` is
 * passed through. Block formats are those of GGUF (ggml), bit for bit:
 *   Q8_0 { f16 d; int8 q[32]; }              w = d q
 *   Q4_0 { f16 d; nibble q[32]; }            w = d (q - 8)     q[i], q[i+16] share byte i
 *   Q4_1 { f16 d, m; nibble q[32]; }         w = d q + m
 *   Q5_0 { f16 d; u32 high; nibble q[32]; }  w = d (q - 16)
 *   Q5_1 { f16 d, m; u32 high; nibble q[32]; } w = d q + m
 *   IQ4_NL { f16 d; nibble q[32]; }          w = d table[q]    a table of 16 (engine/quant.c)
 *   MXFP4 { e8m0 d; nibble q[32]; }          w = d q           q: a float of 4 bits
 *   F8 { f32 d; e4m3 q[32]; }                w = d q           what FP8 checkpoints become, in
 *                                                              which more blocks have the same d
 *   Q2_K to Q6_K, IQ4_XS: super-blocks of 256 (engine/quant.c)
 * The numbers are stable: they are part of evidence keys and of -D constants. */
#define DTYPES(ROW, t)           \
    ROW(t, 0, F32, 1, 4)         \
    ROW(t, 1, F16, 1, 2)         \
    ROW(t, 2, BF16, 1, 2)        \
    ROW(t, 3, Q8_0, 32, 34)      \
    ROW(t, 4, Q4_0, 32, 18)      \
    ROW(t, 5, Q4_1, 32, 20)      \
    ROW(t, 6, Q5_0, 32, 22)      \
    ROW(t, 7, Q5_1, 32, 24)      \
    ROW(t, 8, Q4_K, 256, 144)    \
    ROW(t, 9, Q6_K, 256, 210)    \
    ROW(t, 10, Q5_K, 256, 176)   \
    ROW(t, 11, Q2_K, 256, 84)    \
    ROW(t, 12, Q3_K, 256, 110)   \
    ROW(t, 13, IQ4_NL, 32, 18)   \
    ROW(t, 14, IQ4_XS, 256, 136) \
    ROW(t, 15, MXFP4, 32, 17)    \
    ROW(t, 16, F8, 32, 36)

#define DTYPE_NUMBER(t, number, name, block, bytes) DTYPE_##name = number,
enum dtype { DTYPES(DTYPE_NUMBER, 0) DTYPE_COUNT };

/* What the four bits of IQ4_NL and IQ4_XS stand for; of MXFP4 twice that, as whole numbers, since w
 * is one of them times 2^(e - 128): MXFP4_SCALE() are the bits of that float. */
#define IQ4_VALUES -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
#define MXFP4_VALUES 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12
#define MXFP4_SCALE(e) ((e) < 2 ? (uint32_t)0x00200000 << (e) : (uint32_t)((e)-1) << 23)

/* Values of a block and its bytes, as constants: engine/quant.h has the functions for a host. */
#define DTYPE_IF_BLOCK(t, number, name, block, bytes) (t) == number ? block:
#define DTYPE_IF_BYTES(t, number, name, block, bytes) (t) == number ? bytes:
#define DTYPE_BLOCK(t) (DTYPES(DTYPE_IF_BLOCK, t) 0)
#define DTYPE_BYTES(t) (DTYPES(DTYPE_IF_BYTES, t) 0)

/* What CPU templates read: rows in whole blocks of ROW_BLOCK values (cpu/lib/block.h), or of 256
 * that are eight such blocks with scales in common (cpu/lib/super.h). Those of TABLE_TYPE look four
 * bits up. Integers are what can be repacked in panels and multiplied in digits (cpu/lib/panel.h),
 * those of six bits or fewer also by AVX2.
 */
#define ROW_BLOCK 32
#define TABLE_TYPE(t) ((t) == DTYPE_IQ4_NL || (t) == DTYPE_IQ4_XS || (t) == DTYPE_MXFP4)
#define BLOCK_TYPE(t) ((t) <= DTYPE_Q5_1 || (t) == DTYPE_IQ4_NL || (t) == DTYPE_MXFP4)
#define SUPER_TYPE(t) (((t) >= DTYPE_Q4_K && (t) <= DTYPE_Q3_K) || (t) == DTYPE_IQ4_XS)
#define ROW_TYPE(t) (BLOCK_TYPE(t) || SUPER_TYPE(t))
#define PANEL_TYPE(t) (ROW_TYPE(t) && (t) >= DTYPE_Q8_0)
#define SMALL_TYPE(t) (PANEL_TYPE(t) && (t) != DTYPE_Q8_0 && (!TABLE_TYPE(t) || (t) == DTYPE_MXFP4))

/* A weight matrix [rows, cols]. `data` is the model's own format, row after row without padding.
 * `packed` is the copy made by the kernel's own pack function, or null if it declares none. */
struct weight {
    const void *data;
    const void *packed;
    int32_t rows, cols;
    int32_t type; /* enum dtype */
    int32_t pad_;
};

/* KV cache: pages of KV_PAGE positions. A page of one layer is [kv_heads, KV_PAGE, head_dim] for k
 * and the same for v, so one head's keys of a page are contiguous. Element: float on the CPU. */
enum { KV_PAGE = 16 };

/* One sequence's share of the step: tokens [first, first + count) of the step, which are the last
 * `count` of `context` positions. Its pages are page_table[pages_at ...]. */
struct span {
    int32_t first, count;
    int32_t context; /* positions attended to by the last token, itself included */
    int32_t pages_at;
};

/* embed: x[m, :] = table[tokens[m], :] */
struct embed_args {
    int32_t m;
    const int32_t *tokens; /* [M] */
    struct weight table;   /* [vocab, hidden] */
    float *x;              /* [M, hidden] */
};

/* attn_in: n = rmsnorm(x) * norm; q, k, v = n Wq^T + bq, ...; per-head rmsnorm of q and k if
 * q_norm is set; RoPE of q and k; k and v into their cache positions. */
struct attn_in_args {
    int32_t m;
    int32_t heads, kv_heads, head_dim;
    int32_t rope_interleaved; /* 1: pairs (2i, 2i+1); 0: pairs (i, i + head_dim/2) */
    float eps;
    const float *x;                   /* [M, hidden] */
    const float *norm;                /* [hidden] */
    struct weight wq, wk, wv;         /* [heads*head_dim, hidden], [kv_heads*head_dim, hidden] */
    const float *bq, *bk, *bv;        /* or null */
    const float *q_norm, *k_norm;     /* [head_dim] or null */
    const float *rope_cos, *rope_sin; /* [max_context, head_dim/2] */
    const int32_t *position;          /* [M] */
    const int32_t *kv_at;             /* [M] cache position: page * KV_PAGE + offset */
    float *q;                         /* [M, heads*head_dim] */
    void *k_pages, *v_pages;          /* this layer's pages */
};

/* attn: a = softmax(q k^T * scale, causal) v, per sequence, grouped-query. */
struct attn_args {
    int32_t m, spans;
    int32_t heads, kv_heads, head_dim;
    float scale;    /* 1/sqrt(head_dim) */
    const float *q; /* [M, heads*head_dim] */
    const void *k_pages, *v_pages;
    const struct span *span;   /* [spans] */
    const int32_t *page_table; /* page numbers */
    float *a;                  /* [M, heads*head_dim] */
};

/* attn_out and mlp_out: y = in W^T + x */
struct out_args {
    int32_t m;
    const float *in; /* [M, K] */
    const float *x;  /* [M, hidden] residual; of a rank of several, zeros: reduce adds it */
    struct weight w; /* [hidden, K] */
    float *y;        /* [M, hidden] */
};

/* mlp_in: n = rmsnorm(x) * norm; h = silu(n Wg^T) * (n Wu^T) */
struct mlp_in_args {
    int32_t m;
    float eps;
    const float *x;         /* [M, hidden] */
    const float *norm;      /* [hidden] */
    struct weight gate, up; /* [ffn, hidden] */
    float *h;               /* [M, ffn] */
};

/* mlp: mlp_in and mlp_out in one: n = rmsnorm(x) * norm; y = (silu(n Wg^T) * (n Wu^T)) Wd^T + x */
struct mlp_args {
    int32_t m;
    float eps;
    const float *x;         /* [M, hidden] */
    const float *norm;      /* [hidden] */
    struct weight gate, up; /* [ffn, hidden] */
    struct weight down;     /* [hidden, ffn] */
    float *h;               /* [M, ffn] memory to work in: contents unspecified before and after */
    float *y;               /* [M, hidden] */
};

/* head: logits[i, :] = rmsnorm(x[row[i], :]) * norm . W^T, for the rows that need logits */
struct head_args {
    int32_t m; /* rows of logits */
    float eps;
    const int32_t *row; /* [m] row of x */
    const float *x;     /* [M, hidden] */
    const float *norm;  /* [hidden] */
    struct weight w;    /* [vocab, hidden] */
    float *logits;      /* [m, vocab] */
};

/* ---- several ranks ------------------------------------------------------------------------- */

/* What the kernels of `reduce` of all ranks have in common: flags by which they meet, and places
 * for numbers that the others read. One area may be used by one call at a time, and all its ranks
 * make the same calls in the same order.
 *
 * A call has a number c: one more than the calls of this area that ended before, and the same on
 * all ranks. Whatever kernel it is of says with it where it is, so kernels may be exchanged between
 * any two calls. [M, hidden] is cut into up to REDUCE_SLICES slices, as the kernel likes but alike
 * on all ranks; one thread or block of each rank does a slice by itself. When it has done what the
 * other ranks wait for, it sets the slice's flag of its own rank to the meeting's number,
 * REDUCE_MEETING(c, 0), in a second meeting of the same call REDUCE_MEETING(c, 1); it has met rank
 * r when r's flag is that far (REDUCE_CAME()).
 *
 * A rank has two places: that of c & 1 is this call's. Who has met all ranks in one slice of call
 * c + 1 knows that all of them have ended call c, so its place is free for call c + 2: every call
 * meets all ranks in one slice at least.
 *
 * A wait is bounded: a rank may have died. After a moment a CPU kernel asks wait(), which sleeps
 * until the flag is there (0) or the world is over (-1); a GPU kernel reads *over at times. When
 * the world is over, a kernel goes home and leaves in `out` what it likes: nobody reads it. */
enum {
    REDUCE_RANKS = 64,      /* at most */
    REDUCE_SLICES = 64,     /* at most */
    REDUCE_FLAG = 16,       /* from one flag to the next, in words: a cache line of its own */
    REDUCE_FLOATS = 1 << 17 /* of a place: M * hidden is not more */
};

struct reduce_area {
    int32_t rank, world;
    /* Calls of this rank that have ended: c - 1. On a CPU whoever runs kernels adds one after each;
     * on a GPU, where the arguments of a captured call never change, the kernel does, at its end.
     */
    uint32_t *calls;
    uint32_t *flag[REDUCE_RANKS];  /* [world], each [REDUCE_SLICES * REDUCE_FLAG]; a rank writes its
                                      own alone */
    float *place[REDUCE_RANKS][2]; /* [world], each [REDUCE_FLOATS] */
    const uint32_t *over;          /* not 0: the world is over */
    /* CPU only. wait(): any thread of the team. wake(): for who has set a flag, if *sleepers of its
     * own rank, looked at after that, was not 0. */
    uint32_t *sleepers[REDUCE_RANKS];
    int (*wait)(const struct reduce_area *area, int32_t rank, int32_t slice, uint32_t meeting);
    void (*wake)(const struct reduce_area *area, int32_t slice);
    void *host; /* theirs; kernels leave it alone */
};

/* reduce: out = (the sum over ranks of x, in their order) + residual, each addition rounded to
 * float: the same bits on all ranks, and of all kernels. */
struct reduce_args {
    int32_t m, n;          /* n: hidden */
    const float *x;        /* [M, n] what this rank computed */
    const float *residual; /* [M, n] the same on all ranks */
    float *out;            /* [M, n] */
    const struct reduce_area *area;
};

/* Numbers are unsigned, and wrap. */
#define REDUCE_MEETING(call, second) (2 * (call) + (second))
#define REDUCE_CAME(flag, meeting) ((int32_t)((flag) - (meeting)) >= 0)

/* ---- CPU kernels: the interface of a shared object --------------------------------------- */

/* The threads that run one region together. Every one of them calls the kernel with its own rank;
 * `scratch` is shared by the team, 64-byte aligned, with unspecified contents. `taken` are counts
 * that are 0 when a region begins, by which ranks may take what they do next, so that a core that
 * others slow down does less; or NULL, and each rank does its share. */
enum { TEAM_COUNTS = 3 };
struct team {
    int32_t rank, size;
    void (*barrier)(const struct team *team); /* all of the team must call it */
    void *scratch;
    void *host;     /* the pool's own; kernels leave it alone */
    int32_t *taken; /* [TEAM_COUNTS], or NULL */
};

/* What a kernel object exports, under the name `whet_kernel`. */
struct cpu_kernel {
    int32_t abi;    /* WHET_CPU_ABI */
    int32_t region; /* enum region it computes */
    int32_t m_max;  /* largest m it may be given */
    /* Computes the region for args (the struct of `region` above). Called by every rank. */
    void (*run)(const void *args, const struct team *team);
    /* Bytes of team scratch that run() needs for m tokens and a team of `size`. */
    int64_t (*scratch_bytes)(int32_t m, int32_t size);
    /* Repacked weights, or all null. `layout` names the packed form: kernels with the same layout
     * share one copy. pack() fills rows [row0, row1) of the packed copy from w->data. */
    const char *layout;
    int64_t (*packed_bytes)(const struct weight *w);
    void (*pack)(const struct weight *w, void *packed, int32_t row0, int32_t row1);
};

enum { WHET_CPU_ABI = 1 };

#endif
