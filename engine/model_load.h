/* SPDX-License-Identifier: Apache-2.0 */
/* model_load.h - inside engine/model*.c: what GGUF files and Hugging Face directories share. */
#ifndef WHET_ENGINE_MODEL_LOAD_H
#define WHET_ENGINE_MODEL_LOAD_H

#include "engine/filemap.h"
#include "engine/model.h"
#include "engine/weights.h"

/* The longest chat template that is taken from a file, in bytes; published ones have some 20,000.
 */
enum { MODEL_TEMPLATE_MAX = 1 << 20 };

/* What a model keeps alive behind its pointers (struct model's `files`). */
struct model_files {
    int maps;
    struct filemap **map;
    int blocks;
    void **block; /* float copies of vectors; weights of a random model */
};

/* Hands a mapping, or malloc'ed memory, to the model; both are released by model_close(). */
void model_own_map(struct model *m, struct filemap *map);
void *model_own(struct model *m, void *block);
/* Closes all mappings, which nothing may point into any more; frees a block before its time. */
void model_disown_maps(struct model *m);
void model_disown(struct model *m, const void *block);
/* The mapping that `p` points into, or NULL. */
const struct filemap *model_map_of(const struct model *m, const void *p);
/* -1 with a message if a file was written to since it was opened. */
int model_check_files(const struct model *m, struct err *err);

/* How a file names tensors. */
enum naming { NAMING_GGUF, NAMING_HF };

/* Refuses shapes out of bounds or at odds with themselves; `file` is named in the message. */
int model_check_shape(const struct model_shape *s, const char *file, struct err *err);
/* The same of rotary frequencies alone, which model_check_shape() calls. */
int model_check_rope(const struct model_shape *s, const char *file, struct err *err);

/* The longest context, and the most that another number of a rotary scaling may be. */
enum { MODEL_CONTEXT_MOST = 1 << 24, MODEL_ROPE_MOST = 4096 };
/* The attention factor of a yarn scaling for which a file says none: 1 + scale / 10 ln(factor). */
double model_yarn_attention(double factor, double scale);
/* Makes max_context as long as a yarn scaling reaches, `factor` original contexts, if that is more.
 */
void model_yarn_context(struct model_shape *s);

/* Takes every tensor that m->shape asks for out of `w`, checking its dimensions, and refuses a
 * file with tensors left over: computing without them would be computing something else. `quant`
 * says how matrices are quantized that are, NULL for a file in which none is. */
struct hf_quant;
int model_take_tensors(struct model *m, struct weights *w, enum naming naming,
                       const struct hf_quant *quant, const char *file, struct err *err);

/* Refuses the attention's biases in a file, unless they are all zero: for a model whose config does
 * not say 'attention_bias'. */
int model_refuse_biases(const struct weights *w, const char *file, struct err *err);

/* weight_bytes, hash and description, once the tensors are in. */
void model_describe(struct model *m, const char *title);

/* The two kinds of source. `m` is empty but for path and name; on -1 the caller closes it. */
int model_open_gguf(struct model *m, bool with_tokenizer, struct err *err);
int model_open_hf(struct model *m, bool with_tokenizer, struct err *err);
/* Adds to the message why `path`, a folder or a file, may hold no model, if one can tell. */
void model_hint(const char *path, bool folder, struct err *err);

/* model_shapes.c: paths of the form random:NAME[/RANKS][:FORMAT]. */
bool model_is_random(const char *path);
/* The shapes that have a name, from 0 on; NULL behind the last. */
const struct model_shape *model_shape_at(int index, const char **name);
/* The shape of the model that such a path opens, and what part of NAME's that is (all zero: the
 * whole). -1 with a message naming the path: a name, a number of ranks or a format that is none, or
 * a cut that shard_plan() refuses. */
int model_named_shape(const char *path, struct model_shape *shape, struct shard *cut,
                      struct err *err);
struct model *model_open_named(const char *path, bool with_tokenizer, struct err *err);

#endif
