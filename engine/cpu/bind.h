/* SPDX-License-Identifier: Apache-2.0 */
/* bind.h - from a model's layer to a region's argument struct.
 *
 * The backend, the cases of case.h and the bench all fill argument structs; they do it here, so a
 * weight or a norm is looked up in one place. Pure functions: any thread.
 */
#ifndef WHET_ENGINE_CPU_BIND_H
#define WHET_ENGINE_CPU_BIND_H

#include "engine/model.h"
#include "engine/plan.h"
#include "kernels/args.h"

/* The argument struct of any region. */
union region_args {
    struct embed_args embed;
    struct attn_in_args attn_in;
    struct attn_args attn;
    struct out_args out; /* attn_out and mlp_out */
    struct mlp_in_args mlp_in;
    struct mlp_args mlp;
    struct head_args head;
    struct reduce_args reduce;
};

/* Fills what comes from the model - head counts, eps, scale, norms, biases, weights of `layer` -
 * and leaves the rest (m, activations, pages, rope tables) alone. `packed` becomes NULL. */
void bind_layer(const struct model *model, enum region r, int32_t layer, union region_args *a);

/* One step's tokens, and the memory in which its regions hand each other their results. */
struct step_memory {
    int32_t m, rows, spans;
    const int32_t *tokens, *position, *kv_at, *row, *page_table;
    const struct span *span;
    const float *rope_cos, *rope_sin;
    float *x[2]; /* [m, hidden]: the residual stream */
    /* [m, hidden] Of a rank of several, else NULL: what out regions add instead of the residual,
     * and where they leave what reduce sums; where it meets the other ranks. */
    const float *zeros;
    float *partial;
    const struct reduce_area *area;
    float *q, *a, *h;        /* [m, heads*head_dim] twice, [m, ffn] */
    float *logits;           /* [rows, vocab], or [rows, the rank's rows of the head] */
    char *k_pages, *v_pages; /* of layer 0; elements as model_shape.kv_bf16 says */
    int64_t layer_bytes;     /* from a layer's pages to those of the next */
};
/* All arguments of a node of the plan: bind_layer(), and what it reads and writes in `s`. */
void bind_node(const struct model *model, const struct step_memory *s, const struct plan_node *n,
               union region_args *a);

/* Arguments of part `i` of a fused region whose own are `a`. No packed weights. */
void bind_part(enum region fused, int i, const union region_args *a, union region_args *part);

/* The weights a kernel of this region may repack, in order (attn_in: wq, wk, wv; mlp_in: gate, up;
 * mlp: gate, up, down; attn_out, mlp_out, head: w); returns how many. embed and attn: 0. */
int bind_weights(union region_args *a, enum region r, struct weight *out[3]);

int32_t bind_m(const union region_args *a, enum region r);

/* cos and sin of every position below `positions`: [positions, head_dim/2] each, computed in double
 * (scaling of frequencies and yarn's attention factor included) and rounded once. */
void rope_tables(const struct model_shape *s, int32_t positions, float *cosine, float *sine);

#endif
