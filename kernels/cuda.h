/* SPDX-License-Identifier: Apache-2.0 */
/* cuda.h - what a CUDA kernel is given, and what a cubin says of itself.
 *
 * Shared by the host (engine/cuda/), the eager kernels and the templates; NVRTC needs no other
 * header. One kernel region has one argument struct, passed by value as the only parameter.
 *
 * Steps are captured graphs, so nothing in an argument struct changes from step to step: what does
 * (counts, tokens, positions, pages) is read through pointers to one block at a fixed address that
 * is overwritten before each step. A graph is made for an M bucket; a step may have fewer tokens
 * than that, so a kernel masks with counts->m. Rows from m up to the bucket may hold anything,
 * may be read and written as activations, and never reach a KV page; positions, kv_at and pages_at
 * have as many entries, of which those from m on mean nothing.
 *
 * Every kernel is launched with programmatic stream serialization: each thread that reads an
 * activation or this step's KV, or writes anything, first executes griddepcontrol.wait. Weights,
 * norms, rope tables never change and may be read before it, and so may positions, kv_at, pages_at,
 * the page table, counts and the KV of earlier steps: a step's first kernel has a full edge to the
 * copy of the step's data and to the step before. Activations are read with plain loads: neither
 * `__restrict__` nor ld.global.nc.
 *
 * Weights are [out, in], rows of bf16 or in bricks of their own format (bricks.h; WTYPE says
 * which). q and k rows are stored with RoPE pairs adjacent (rows 2i, 2i+1 of a head turn together),
 * q_norm, k_norm and biases alike; gate and up rows alternate. KV pages are bf16
 * [page][kv_head][KV_PAGE][head_dim].
 */
#ifndef WHET_KERNELS_CUDA_H
#define WHET_KERNELS_CUDA_H

#include "args.h"
#include "peer.h"

#ifdef __cplusplus
#define WHET_ALIGN(n) alignas(n)
#else
#define WHET_ALIGN(n) _Alignas(n)
#endif

/* Counts of the running step. */
struct cuda_counts {
    int32_t m, rows, spans, context;
    int32_t pad_[12];
};

/* The region's own working memory: the same bytes in every run, nothing kept between kernels.
 * counter: zero at the start of every run; a kernel leaves them zero. */
struct cuda_work {
    void *work;
    unsigned *counter;
};

/* Steps of more than 64 tokens: what lies between two regions is bf16 there, and the float pointers
 * that the regions have for it are null. A kernel for so many tokens reads and writes these instead
 * (x and y are float in all steps). `map` is a CUtensorMap of the bf16 rows that the kernel's
 * product reads, 128-byte swizzled in boxes of 64 columns and cuda_kernel_info.box_rows rows: of
 * in16, or where that is null of [m_max, hidden] at work.work, where the kernel puts them itself.
 * A kernel that multiplies its input in another form than bf16 says with work_cols how many pairs
 * of bytes a row of that has: the map is of [m_max, work_cols] at work.work then, whatever in16 is.
 *
 * In steps of up to 64 tokens it is float, and may be there in bf16, too: attn_out and mlp_out with
 * box_rows get the same map of that, and mlp_in with leaves16 may be asked for it by out16.
 */
struct cuda_wide {
    WHET_ALIGN(64) uint64_t map[16];
    const void *in16;   /* attn_out: [M, heads * head_dim]; mlp_out: [M, ffn]; others: null */
    void *out16;        /* attn_in: q [M, heads * head_dim]; mlp_in: h [M, ffn]; others: null */
    int32_t float_rows; /* attn_in: as many rows of q are wanted as float, too */
    int32_t pad_[11];
};

struct cuda_embed_args {
    const struct cuda_counts *counts;
    const int32_t *tokens; /* below zero: -1 - i for drawn[i] */
    const int32_t *drawn;  /* by the rows of the step before */
    int32_t *seen;         /* [M] out: the tokens as they are */
    const void *table;     /* bf16 [vocab, hidden] */
    float *x;
    int32_t hidden;
};

/* q = rope(qnorm(n Wq^T + bq)), k and v into their pages; n = rmsnorm(x) * norm. */
struct cuda_attn_in_args {
    const struct cuda_counts *counts;
    const float *x;                   /* [M, hidden] */
    const float *norm;                /* [hidden] */
    const void *w;                    /* bf16 [(heads + 2 kv_heads) head_dim, hidden]: q, k, v */
    const void *packed;               /* the kernel's own layout of w, or null */
    const float *bias;                /* [(heads + 2 kv_heads) head_dim] or null */
    const float *q_norm, *k_norm;     /* [head_dim] or null */
    const float *rope_cos, *rope_sin; /* [positions, head_dim/2]; angles are position times row 1's,
                                       * lengths the same in all rows */
    const int32_t *position;          /* [M] */
    const int32_t *kv_at;             /* [M] page * KV_PAGE + offset */
    float *q;                         /* [M, heads * head_dim] */
    void *k_pages, *v_pages;          /* this layer's */
    struct cuda_work work;
    int32_t hidden, heads, kv_heads, head_dim;
    float eps;
    const void *next; /* weights that a later region reads, to be prefetched into L2; or null */
    int64_t next_bytes;
    struct cuda_wide wide;
};

/* a = softmax(q k^T * scale) v for each token over positions 0 .. position[t] of its sequence,
 * whose pages are page_table[pages_at[t] ...]. */
struct cuda_attn_args {
    const struct cuda_counts *counts;
    const float *q;
    const void *k_pages, *v_pages;
    const int32_t *position, *pages_at; /* [M] */
    const int32_t *page_table;
    const struct span *span; /* [counts->spans] the same, by sequence */
    float *a;                /* [M, heads * head_dim] */
    struct cuda_work work;
    const void *next; /* as in cuda_attn_in_args */
    int64_t next_bytes;
    int32_t heads, kv_heads, head_dim;
    float scale;
    void *a16; /* the same in bf16, for kernels with leaves16: null, or a may be */
};

/* Ranks whose numbers a projection adds itself: a call of REDUCE_WORDS (peer.h) in `area`, of turn
 * `turn`. area.world 0: it has no others. */
struct cuda_sum {
    struct peer_area area;
    int32_t turn, pad_;
};

/* attn_out, mlp_out: y = in W^T + x. With a sum: y = (all ranks' in W^T, in their order) + x, the
 * bits that a kernel of `reduce` makes of what each rank has without x. */
struct cuda_out_args {
    const struct cuda_counts *counts;
    const float *in;    /* [M, k] */
    const float *x;     /* [M, n] */
    const void *w;      /* bf16 [n, k] */
    const void *packed; /* or null */
    float *y;           /* [M, n], not x */
    struct cuda_work work;
    int32_t n, k;
    const void *next; /* as in cuda_attn_in_args */
    int64_t next_bytes;
    struct cuda_sum sum; /* for kernels whose cuda_kernel_info.sums is 1; else no others */
    struct cuda_wide wide;
};

/* h = silu(g) * u; g, u = rows 2i, 2i+1 of n W^T, n = rmsnorm(x) * norm */
struct cuda_mlp_in_args {
    const struct cuda_counts *counts;
    const float *x;
    const float *norm;
    const void *w;      /* bf16 [2 ffn, hidden]: gate row i at 2i, up row i at 2i+1 */
    const void *packed; /* or null */
    float *h;           /* [M, ffn]; with leaves16 null where wide.out16 is all that is read */
    struct cuda_work work;
    int32_t hidden, ffn;
    float eps;
    const void *next; /* as in cuda_attn_in_args */
    int64_t next_bytes;
    struct cuda_wide wide;
};

/* logits[i, :] = n W^T of row[i], i < counts->rows; and the best of each: highest logit, lowest
 * id among equals, -1 if none is above minus infinity (NaN counts as that). */
struct cuda_head_args {
    const struct cuda_counts *counts;
    const int32_t *row; /* [rows] row of x */
    const float *x;
    const float *norm;
    const void *w;      /* bf16 [vocab, hidden] */
    const void *packed; /* or null */
    float *logits;      /* [rows, vocab] */
    int32_t *best;      /* [rows] */
    struct cuda_work work;
    int32_t hidden, vocab;
    float eps;
};

/* ---- a cubin ------------------------------------------------------------------------------ */

/* One launch of a kernel. The first is the function named by its candidate, launch i > 0 has "_i"
 * appended; all get the same argument struct. */
struct cuda_launch {
    int32_t grid[3];
    int32_t threads;
    int32_t smem;    /* bytes of dynamic shared memory */
    int32_t pdl;     /* 1: programmatic stream serialization (default), 0: a full edge */
    int32_t cluster; /* blocks of a cluster in x; 0 or 1: none */
    int32_t pad_;
};

enum { CUDA_LAUNCHES = 4, WHET_CUDA_ABI = 1 };

/* Exported as `extern "C" __device__ const struct cuda_kernel_info whet_info`. Grids are constants
 * of the build (shapes and M_MAX are -D). A kernel with box_rows for more than 64 tokens runs in
 * wide steps and in no others, one without in no wide ones. packed_bytes > 0: the cubin also has
 * the function `whet_pack(struct cuda_pack_args)`, launched with any grid (it strides); kernels of
 * the same region and layout name share the copy. */
struct cuda_kernel_info {
    int32_t abi, region, m_max;
    int32_t context_max; /* attn: longest context it may be given; 0: any */
    int32_t launches;
    int32_t counters; /* words of work.counter, at most CUDA_COUNTERS */
    int64_t work_bytes;
    int64_t packed_bytes;
    char layout[64];
    struct cuda_launch launch[CUDA_LAUNCHES];
    int32_t box_rows;  /* of cuda_wide.map, up to 256; 0: no map */
    int32_t work_cols; /* of cuda_wide.map; 0: as many as the region's input has */
    /* 1: of attn_out and mlp_out, heeds cuda_out_args.sum. Of reduce, is a call of REDUCE_WORDS,
     * and where the projection before it heeds a sum, that makes the call and this kernel is not
     * run. */
    int32_t sums;
    int32_t leaves16; /* 1: of attn, and of mlp_in for up to 64 tokens, heeds a16 or wide.out16 */
};

enum { CUDA_COUNTERS = 16384 };

struct cuda_pack_args {
    const void *src; /* bf16 [rows, cols]: what args.w points to */
    void *dst;       /* packed_bytes */
    int32_t rows, cols;
};

#endif
