/* SPDX-License-Identifier: Apache-2.0 */
/* walk.h - a step, or one region of it, put on a stream as launches of kernels.
 *
 * The same functions run a step that has no graph, capture one that gets a graph, and run a region
 * for a hook, a bench or a probe: struct walk says with what kernels and on which memory. A walk
 * belongs to the thread that made it, and only puts work on its own stream.
 */
#ifndef WHET_ENGINE_CUDA_WALK_H
#define WHET_ENGINE_CUDA_WALK_H

#include <cuda_runtime_api.h>

#include "engine/backend.h"
#include "engine/cuda/device.h"
#include "kernels/cuda.h"
#include "kernels/eager.h"

struct kernel_choice; /* graph.h */
struct inflight;      /* step.h */
struct lt;            /* products.h */
struct step_block;    /* memory.h */

/* What a run of reduce reads and writes (kernels/args.h), and where its ranks meet. */
struct summed {
    const float *x, *residual;
    float *out;
    enum reduce_use use;
    int32_t turn; /* of a call of REDUCE_WORDS (kernels/peer.h) */
};

struct walk {
    struct backend *b;
    cudaStream_t stream;
    const struct step_block *block;
    const struct kernel_choice *choice;
    const struct step *live;          /* a live step that hooks may observe, or NULL */
    bool wide;                        /* bf16 between regions; loaded: attention of `lead` */
    bool decode;                      /* every sequence has one token */
    int32_t m, rows;                  /* to launch for; the true counts are in the block */
    int32_t context;                  /* bucket value */
    int32_t tiles, singles;           /* attention of what is not decode: in the block */
    int32_t lead;                     /* and tokens before them, which a template takes */
    const struct cuda_counts *counts; /* of attention: instead of the block's, if not NULL */
    float *x, *y;                     /* residual stream before and after the region */
    struct summed sum;                /* of reduce, instead of x and y */
    struct cuda_sum fused; /* of attn_out and mlp_out: whose numbers they add themselves */
    float *q, *a, *h;      /* float activations; NULL when wide (walk_floats) */
    float *logits;         /* [rows, head rows]: of a rank of several its own columns */
    int32_t *best;
    void *k_pages, *v_pages;   /* instead of the layer's, if not NULL */
    const int32_t *kv_at;      /* instead of the block's, if not NULL */
    bool have16[REGION_NODES]; /* the region's output is there in bf16, too */
    void *out16;               /* instead of the backend's q16, a16 or h16, if not NULL */
    bool wants16;     /* what the region leaves is read as bf16: kernels that can leave it so do */
    bool only16;      /* and as nothing else: they leave no floats then */
    const void *next; /* instead of the weights a later region reads, if not NULL */
    int64_t next_bytes;
    struct inflight *timed;        /* record its region_event around a layer of each place */
    int32_t launches[STEP_PLACES]; /* so far */
    enum region region;            /* being walked */
    int place;                     /* of its layer (formats_place()) */
    const struct lt *lt;           /* whose algorithm its product takes, or NULL */
};
/* A walk over the backend's own buffers. */
void walk_init(struct walk *w, struct backend *b, cudaStream_t stream, const struct step_block *s,
               const struct kernel_choice *c);
/* Gives a wide step float queries and outputs of attention, if a template takes them or a hook
 * compares them; once w->decode is known. */
void walk_floats(struct walk *w, bool hooked);
int launch(struct walk *w, enum primitive p, dim3 grid, int threads, int smem, const void *args,
           struct err *e);
/* In clusters of so many blocks along x; more than one: compute capability 9.0. */
int launch_clusters(struct walk *w, enum primitive p, dim3 grid, unsigned cluster, int threads,
                    int smem, const void *args, struct err *e);
int walk_region(struct walk *w, const struct kernel *k, enum region r, int32_t layer,
                struct err *e);
int walk_place(const struct walk *w, enum region r, int32_t layer);
/* What the step runs there. */
const struct kernel *walk_kernel(const struct walk *w, enum region r, int32_t layer);
/* Whether that is the layer of its place that is timed. */
bool walk_times(const struct walk *w, enum region r, int32_t layer);
/* Points a walk over the backend's own buffers at those of the residual stream that r uses. */
void walk_aim(struct walk *w, enum region r);
int walk_step(struct walk *w, struct err *e);
/* What a region's matrix is multiplied by: tokens, or the head's rows. */
int32_t walk_width(const struct walk *w, enum region r);
/* Tokens or rows to launch for: a bucket up to NARROW, a multiple of NARROW beyond. */
int32_t walk_padded(int32_t n);
/* eager.c: query heads of a block of the eager decode attention. */
int32_t decode_group(const struct backend *b);
/* Attention of a step with prompts, where `k` is a template and takes the first w->lead tokens. */
int eager_attn_beside(struct walk *w, const struct kernel *k, int32_t layer, struct err *e);

/* Makes the bf16 copy of x [M, n] unless region `from` left one. */
int need16(struct walk *w, enum region from, const float *x, void *y16, int32_t n, struct err *e);
/* Which token each row of logits [rows, vocab] has most of, to w->best. */
int eager_best(struct walk *w, const float *logits, int32_t vocab, struct err *e);
/* A region as primitive kernels and products. */
int eager_region(struct walk *w, enum region r, int32_t layer, struct err *e);

#endif
