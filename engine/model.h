/* SPDX-License-Identifier: Apache-2.0 */
/* model.h - a model's shape and weights, whatever file they came from.
 *
 * model_open() maps the file(s) read-only; weights point into the mapping in the file's own
 * format (small vectors - norms, biases - are converted to float copies). Immutable once opened,
 * so any thread may read it. A damaged or hostile file is refused with a message naming the file
 * and the field; nothing is ever read past the mapping. A file that becomes shorter while it is
 * mapped is a bus error where its weights are read; model_copy_weights() ends that danger.
 */
#ifndef WHET_ENGINE_MODEL_H
#define WHET_ENGINE_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "config/err.h"
#include "engine/arch.h"
#include "engine/shard.h"
#include "kernels/args.h"

/* How a model's rotary frequencies are made to reach beyond the context it was trained with.
 * Numbers are part of models' hashes. */
enum rope_type { ROPE_PLAIN, ROPE_LLAMA3, ROPE_LINEAR, ROPE_YARN };

/* Frequencies are divided by `factor`: all of them (linear), or the low ones, which make less than
 * low_freq_factor turns in the original context (llama3 and yarn, where that is beta_slow). Those
 * that make more than high_freq_factor (beta_fast) are kept, those between are blended. */
struct rope_scaling {
    enum rope_type type;
    float factor, low_freq_factor, high_freq_factor;
    int32_t original_context; /* tokens */
    float attention_factor;   /* yarn: cosines and sines are multiplied by it */
    bool whole_ramp;          /* yarn: the blend's ends are not rounded to whole frequencies */
};

struct model_shape {
    enum arch arch;
    int32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, max_context;
    float eps, rope_base;
    bool rope_interleaved; /* GGUF llama files store q and k rows in interleaved order */
    bool tied_head;
    struct rope_scaling scaling;
    /* How a CPU keeps keys and values (kv_dtype.h): in bf16, or in floats. Who opens a backend says
     * so before; a GPU has bf16 whatever stands here, and no file says anything of it. */
    bool kv_bf16;
};

/* Bytes of an element of keys and values on a CPU. */
static inline int32_t kv_element_bytes(const struct model_shape *s)
{
    return s->kv_bf16 ? 2 : 4;
}

struct layer {
    const float *attn_norm;       /* [hidden] */
    struct weight wq, wk, wv, wo; /* wo: [hidden, heads*head_dim] */
    const float *bq, *bk, *bv;    /* or NULL */
    const float *q_norm, *k_norm; /* [head_dim] or NULL */
    const float *mlp_norm;        /* [hidden] */
    struct weight gate, up, down; /* down: [hidden, ffn] */
};

struct tokenizer;

struct model {
    char *path, *name, *description; /* description: "SmolLM2 135M Instruct, Q4_1, 96.6 MB" */
    struct model_shape shape;
    struct weight embed; /* [vocab, hidden] */
    struct weight head;  /* [vocab, hidden]; the embedding itself when tied */
    const float *final_norm;
    struct layer *layer;         /* [shape.layers] */
    struct tokenizer *tokenizer; /* owned */
    char *chat_template;         /* the model's own template text, or NULL */
    int64_t weight_bytes;        /* bytes of all tensors */
    bool own_formats;   /* a GPU keeps weights as they are stored (device_weights.h), else bf16 */
    bool bf16_copies;   /* and as bf16 beside them, for steps of more than OWN_MOST tokens */
    bool e4m3_products; /* and those of more than E4M3_OVER read F8 as it is all the same */
    bool fine_scales;   /* some matrix in F8 has more scales than a GPU keeps (kernels/bricks.h), so
                           those in F8 become bf16 there */
    bool fp8_activations; /* the checkpoint is made for activations in FP8, scaled while serving */
    char hash[17];        /* 16 hex digits of shape and tensor directory: the model's identity */
    struct shard shard;   /* what of a larger model this is: then the shape is the rank's own, and
                             the name, the hash and the description are the whole model's. All zero:
                             a whole model */
    bool alone;  /* a part by name (random:NAME/RANKS), which no other ranks compute with: its
                    vocabulary is its rows of the head, and it has a name of its own */
    void *files; /* the mappings; model.c's own */
};

/* Progress 0..1 of the load (page-in and conversion); called from the loading thread. */
typedef void model_progress_fn(void *ctx, double fraction);

/* Opens a .gguf file, a directory, or random weights of a known shape ("random:qwen3-1.7b",
 * "random:qwen3-1.7b:q4_k", "random:qwen3-1.7b:q4_k+q6_k"; "random:qwen3-4b/2" is what rank 0 of
 * two has of it; a vocabulary of bytes and made-up words comes with them). NULL with a message in
 * `err`. `with_tokenizer` false skips the vocabulary (the probe needs none). Without `progress`
 * pages come in when they are used. */
struct model *model_open(const char *path, bool with_tokenizer, model_progress_fn *progress,
                         void *ctx, struct err *err);
void model_close(struct model *m);

/* The same, but only what rank `rank` of `world` has of it (shard.h): nothing else of the matrices
 * is read, and what is read lies in memory of this process, in huge pages where the system has
 * them; the files are closed again. Refuses what shard_plan() and shard_check_blocks() refuse.
 * `read`, if given, is told the bytes of matrices that were read. world 1: as model_open(). */
struct model *model_open_part(const char *path, int32_t world, int32_t rank, bool with_tokenizer,
                              model_progress_fn *progress, void *ctx, int64_t *read,
                              struct err *err);
/* Makes a whole model what a rank has of it: for random ones, and for tests. */
int model_take_part(struct model *m, int32_t world, int32_t rank, model_progress_fn *progress,
                    void *ctx, int64_t *read, struct err *err);
/* Gives back what its matrices take of memory, when nobody reads them any more: their `data` is
 * NULL from then on. Does nothing to a whole model, whose matrices lie in mapped files. */
void model_drop_matrices(struct model *m);

/* Moves the weights of a model that was opened from files out of their mappings into memory of this
 * process, in huge pages, at the same addresses: faster to walk through. Does nothing if they are
 * more than `most` bytes. Before any thread reads them. Returns the bytes that were moved. */
int64_t model_copy_weights(const struct model *m, int64_t most);

/* The rotary frequencies, radians a position, scaling applied: [head_dim/2]. */
void model_rope_frequencies(const struct model_shape *shape, double *frequency);
/* What cosines and sines are multiplied by: 1, or yarn's attention factor. */
double model_rope_length(const struct model_shape *shape);

/* A model of the given shape with seeded random weights of type `t` and no tokenizer: for tests
 * and benchmarks. Weights of Q formats are quantized from the same random floats. NULL if
 * model_open() would refuse the shape or a row is no whole number of blocks of `t`. */
struct model *model_random(const struct model_shape *shape, enum dtype t, uint64_t seed);
/* The same with `more` for attn_v and ffn_down of about half of the layers, as files have them in
 * which quantizers give some matrices more bits. */
struct model *model_random_mixed(const struct model_shape *shape, enum dtype t, enum dtype more,
                                 uint64_t seed);
/* The format of "random:NAME[/RANKS]:FORMAT" (any case; bf16 without one), and *more where it is
 * FORMAT+MORE, else the same. DTYPE_COUNT: not known. */
enum dtype model_random_type(const char *path, enum dtype *more);

#endif
