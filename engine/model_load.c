/* SPDX-License-Identifier: Apache-2.0 */
/* model_load.c - from a directory of tensors to a struct model.
 *
 * One table says for every tensor of a layer where it goes, what shape it must have and what the
 * two kinds of files call it; the architectures differ only in which optional rows they need. A
 * tensor nobody asked for is an error: an unknown bias or an expert's matrix means that the file
 * holds another computation than the one whet would run.
 *
 * Matrices stay where they lie in the mapping. Vectors (norms, biases) become float copies.
 */
#include "engine/model_load.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/hf_quant.h"
#include "engine/quant.h"

enum dim { D_ONE, D_HIDDEN, D_HEAD, D_Q, D_KV, D_FFN, D_VOCAB };

/* Which models have a tensor: all, those of one architecture, or (biases) Qwen2 by rule and any
 * other that brings them. */
enum need { N_ALWAYS, N_BIAS, N_QK_NORM };

static const struct layer_tensor {
    size_t field;
    enum dim rows, cols; /* rows D_ONE: a vector */
    enum need need;
    const char *name[2]; /* by enum naming */
} layer_tensors[] = {
#define AT(f) offsetof(struct layer, f)
    {AT(attn_norm), D_ONE, D_HIDDEN, N_ALWAYS, {"attn_norm.weight", "input_layernorm.weight"}},
    {AT(wq), D_Q, D_HIDDEN, N_ALWAYS, {"attn_q.weight", "self_attn.q_proj.weight"}},
    {AT(wk), D_KV, D_HIDDEN, N_ALWAYS, {"attn_k.weight", "self_attn.k_proj.weight"}},
    {AT(wv), D_KV, D_HIDDEN, N_ALWAYS, {"attn_v.weight", "self_attn.v_proj.weight"}},
    {AT(wo), D_HIDDEN, D_Q, N_ALWAYS, {"attn_output.weight", "self_attn.o_proj.weight"}},
    {AT(bq), D_ONE, D_Q, N_BIAS, {"attn_q.bias", "self_attn.q_proj.bias"}},
    {AT(bk), D_ONE, D_KV, N_BIAS, {"attn_k.bias", "self_attn.k_proj.bias"}},
    {AT(bv), D_ONE, D_KV, N_BIAS, {"attn_v.bias", "self_attn.v_proj.bias"}},
    {AT(q_norm), D_ONE, D_HEAD, N_QK_NORM, {"attn_q_norm.weight", "self_attn.q_norm.weight"}},
    {AT(k_norm), D_ONE, D_HEAD, N_QK_NORM, {"attn_k_norm.weight", "self_attn.k_norm.weight"}},
    {AT(mlp_norm),
     D_ONE,
     D_HIDDEN,
     N_ALWAYS,
     {"ffn_norm.weight", "post_attention_layernorm.weight"}},
    {AT(gate), D_FFN, D_HIDDEN, N_ALWAYS, {"ffn_gate.weight", "mlp.gate_proj.weight"}},
    {AT(up), D_FFN, D_HIDDEN, N_ALWAYS, {"ffn_up.weight", "mlp.up_proj.weight"}},
    {AT(down), D_HIDDEN, D_FFN, N_ALWAYS, {"ffn_down.weight", "mlp.down_proj.weight"}},
#undef AT
};

static const char *const layer_prefix[] = {"blk.", "model.layers."};
static const char *const embed_name[] = {"token_embd.weight", "model.embed_tokens.weight"};
static const char *const norm_name[] = {"output_norm.weight", "model.norm.weight"};
static const char *const head_name[] = {"output.weight", "lm_head.weight"};

/* ---- ownership ------------------------------------------------------------------------------ */

static struct model_files *files_of(struct model *m)
{
    if (!m->files)
        m->files = xcalloc(1, sizeof(struct model_files));
    return m->files;
}

void model_own_map(struct model *m, struct filemap *map)
{
    struct model_files *f = files_of(m);
    f->map = xrealloc(f->map, (size_t)(f->maps + 1) * sizeof *f->map);
    f->map[f->maps++] = map;
}

void *model_own(struct model *m, void *block)
{
    struct model_files *f = files_of(m);
    if ((f->blocks & (f->blocks - 1)) == 0) /* room doubles at every power of two */
        f->block = xrealloc(f->block, (size_t)(f->blocks ? 2 * f->blocks : 1) * sizeof *f->block);
    return f->block[f->blocks++] = block;
}

void model_disown_maps(struct model *m)
{
    struct model_files *f = files_of(m);
    while (f->maps > 0)
        filemap_close(f->map[--f->maps]);
}

/* An empty place stays in the list: free() takes it. */
void model_disown(struct model *m, const void *block)
{
    struct model_files *f = files_of(m);
    for (int i = 0; i < f->blocks; i++)
        if (f->block[i] == block) {
            free(f->block[i]);
            f->block[i] = NULL;
            return;
        }
}

const struct filemap *model_map_of(const struct model *m, const void *p)
{
    const struct model_files *f = m->files;
    const uint8_t *at = p;
    for (int i = 0; f && i < f->maps; i++)
        if (at >= f->map[i]->data && at < f->map[i]->data + f->map[i]->size)
            return f->map[i];
    return NULL;
}

/* ---- shape ---------------------------------------------------------------------------------- */

int model_check_shape(const struct model_shape *s, const char *file, struct err *err)
{
    const struct {
        const char *name;
        int64_t value, least, most;
    } limit[] = {
        {"layers", s->layers, 1, 1024},
        {"hidden size", s->hidden, 1, 1 << 16},
        {"attention heads", s->heads, 1, 1024},
        {"kv heads", s->kv_heads, 1, 1024},
        {"head size", s->head_dim, 2, 1024},
        {"feed-forward size", s->ffn, 1, 1 << 18},
        {"vocabulary", s->vocab, 1, 1 << 20},
        {"context length", s->max_context, 1, MODEL_CONTEXT_MOST},
        {"attention width", (int64_t)s->heads * s->head_dim, 1, 1 << 18},
    };

    for (size_t i = 0; i < sizeof limit / sizeof *limit; i++)
        if (limit[i].value < limit[i].least || limit[i].value > limit[i].most)
            return err_set(err, "%s: %s is %lld, expected %lld to %lld", file, limit[i].name,
                           (long long)limit[i].value, (long long)limit[i].least,
                           (long long)limit[i].most);
    if (s->head_dim % 2)
        return err_set(err, "%s: head size %d is odd", file, s->head_dim);
    if (s->heads % s->kv_heads)
        return err_set(err, "%s: %d attention heads do not divide by %d kv heads", file, s->heads,
                       s->kv_heads);
    if (!(s->eps > 0 && s->eps < 1))
        return err_set(err, "%s: norm epsilon %g is not between 0 and 1", file, (double)s->eps);
    return model_check_rope(s, file, err);
}

static int64_t extent(const struct model_shape *s, enum dim d)
{
    switch (d) {
    case D_HIDDEN:
        return s->hidden;
    case D_HEAD:
        return s->head_dim;
    case D_Q:
        return (int64_t)s->heads * s->head_dim;
    case D_KV:
        return (int64_t)s->kv_heads * s->head_dim;
    case D_FFN:
        return s->ffn;
    case D_VOCAB:
        return s->vocab;
    default:
        return 1;
    }
}

/* ---- tensors -------------------------------------------------------------------------------- */

struct taker {
    struct model *m;
    struct weights *w;
    const struct hf_quant *quant; /* or NULL */
    const char *file;
    struct err *err;
};

/* The tensor of that name if its dimensions are right: [rows, cols], or [cols] when rows is D_ONE.
 * NULL with a message otherwise. */
static struct tensor *take(struct taker *k, const char *name, enum dim rows, enum dim cols)
{
    int64_t r = extent(&k->m->shape, rows), c = extent(&k->m->shape, cols);
    struct tensor *t = weights_find(k->w, name);

    if (!t) {
        err_set(k->err, "%s: tensor '%s' is missing", k->file, name);
        return NULL;
    }
    if (t->element >= ELEMENT_F64) {
        err_set(k->err, "%s: tensor '%s': dtype %s is not supported", k->file, name,
                tensor_element_name(t));
        return NULL;
    }
    if (t->element != ELEMENT_WEIGHT) {
        err_set(k->err,
                "%s: tensor '%s': %s is no format of weights without a "
                "'quantization_config' that says so",
                k->file, name, tensor_element_name(t));
        return NULL;
    }
    if (rows == D_ONE && (t->dims != 1 || t->dim[0] != c)) {
        err_set(k->err, "%s: tensor '%s': %d dimensions, the last %lld; expected a vector of %lld",
                k->file, name, t->dims, (long long)t->dim[t->dims - 1], (long long)c);
        return NULL;
    }
    if (rows != D_ONE && (t->dims != 2 || t->dim[0] != r || t->dim[1] != c)) {
        err_set(k->err, "%s: tensor '%s': %d dimensions [%lld, %lld]; expected [%lld, %lld]",
                k->file, name, t->dims, (long long)t->dim[0],
                (long long)(t->dims > 1 ? t->dim[1] : 1), (long long)r, (long long)c);
        return NULL;
    }
    t->used = true;
    return t;
}

static int take_matrix(struct taker *k, const char *name, enum dim rows, enum dim cols,
                       struct weight *out)
{
    if (k->quant && hf_quant_stores(k->w, name))
        return hf_quant_take(k->quant, k->m, k->w, name, (int32_t)extent(&k->m->shape, rows),
                             (int32_t)extent(&k->m->shape, cols), k->file, out, k->err);
    const struct tensor *t = take(k, name, rows, cols);
    if (!t)
        return -1;
    *out = (struct weight){.data = t->data,
                           .rows = (int32_t)t->dim[0],
                           .cols = (int32_t)t->dim[1],
                           .type = (int32_t)t->type};
    return 0;
}

static int take_vector(struct taker *k, const char *name, enum dim n, const float **out)
{
    const struct tensor *t = take(k, name, D_ONE, n);
    if (!t)
        return -1;
    float *copy = model_own(k->m, xaligned((size_t)t->dim[0] * sizeof *copy));
    dequant_row(t->type, t->data, copy, t->dim[0]);
    *out = copy;
    return 0;
}

static bool needed(const struct model *m, enum need need)
{
    const struct arch_traits *of = arch_traits(m->shape.arch);
    return need == N_ALWAYS || (need == N_BIAS && of->qkv_bias) ||
           (need == N_QK_NORM && of->qk_norm);
}

static int take_layer(struct taker *k, int32_t index, enum naming naming)
{
    struct layer *l = &k->m->layer[index];
    char name[128];

    for (size_t i = 0; i < sizeof layer_tensors / sizeof *layer_tensors; i++) {
        const struct layer_tensor *d = &layer_tensors[i];
        char *field = (char *)l + d->field;
        snprintf(name, sizeof name, "%s%d.%s", layer_prefix[naming], index, d->name[naming]);
        if (!needed(k->m, d->need) && !(d->need == N_BIAS && weights_find(k->w, name)))
            continue;
        if (d->rows == D_ONE) {
            if (take_vector(k, name, d->cols, (const float **)(void *)field) < 0)
                return -1;
        } else if (take_matrix(k, name, d->rows, d->cols, (struct weight *)(void *)field) < 0) {
            return -1;
        }
    }
    if (!l->bq != !l->bk || !l->bq != !l->bv)
        return err_set(k->err, "%s: layer %d has some of the q, k, v biases but not all", k->file,
                       index);
    return 0;
}

/* A head that is stored although the config says that it is the embedding must be a copy of it. If
 * it is not, software differs in which of the two it takes, so whoever has the file has to say. */
static int check_tied_head(const struct taker *k, enum naming naming)
{
    const struct tensor *head = weights_find(k->w, head_name[naming]);
    const struct tensor *embed = weights_find(k->w, embed_name[naming]);

    if (!k->m->shape.tied_head || !head || head->bytes == 0)
        return 0;
    if (embed && head->element == embed->element && head->type == embed->type &&
        head->bytes == embed->bytes && !memcmp(head->data, embed->data, (size_t)head->bytes))
        return 0;
    return err_set(k->err,
                   "%s: 'tie_word_embeddings' is true, but tensor '%s' is no copy of '%s': set it "
                   "to false in config.json if the model has a head of its own, or remove the "
                   "tensor",
                   k->file, head_name[naming], embed_name[naming]);
}

/* transformers leaves such biases out, other software adds them. Some quantizers write zeros. */
int model_refuse_biases(const struct weights *w, const char *file, struct err *err)
{
    for (int64_t i = 0; i < w->tensors; i++) {
        const struct tensor *t = &w->tensor[i];
        const char *end = strstr(t->name, "_proj.bias");
        if (strstr(t->name, ".self_attn.") && end && !strcmp(end, "_proj.bias") &&
            !tensor_is_zero_bias(t))
            return err_set(err,
                           "%s: tensor '%s' is a bias, but 'attention_bias' in config.json is not "
                           "true: set it if the model was trained so, or remove the biases",
                           file, t->name);
    }
    return 0;
}

/* Tensors that may be there and say nothing whet needs. */
static bool ignorable(const struct model *m, const struct tensor *t)
{
    const char *name = t->name;
    const char *dot = strstr(name, "rotary_emb.inv_freq"); /* recomputed from the base */
    if (t->bytes == 0 || (dot && !strcmp(dot, "rotary_emb.inv_freq")) || tensor_is_zero_bias(t))
        return true;
    return m->shape.tied_head && !strcmp(name, head_name[NAMING_HF]); /* check_tied_head() */
}

static int refuse_tensor(const struct model *m, const struct tensor *t, const char *file,
                         struct err *err)
{
    const char *end = strrchr(t->name, '.');
    if (end && !strcmp(end, ".bias"))
        return err_set(err,
                       "%s: tensor '%s' is a bias that is not zero; there are biases of q, k and v "
                       "only, and without it the output would be wrong",
                       file, t->name);
    return err_set(err,
                   "%s: tensor '%s' is no part of this architecture with %d layers; without it the "
                   "output would be wrong",
                   file, t->name, m->shape.layers);
}

int model_take_tensors(struct model *m, struct weights *w, enum naming naming,
                       const struct hf_quant *quant, const char *file, struct err *err)
{
    struct taker k = {m, w, quant, file, err};

    m->layer = xcalloc((size_t)m->shape.layers, sizeof *m->layer);
    if (take_matrix(&k, embed_name[naming], D_VOCAB, D_HIDDEN, &m->embed) < 0 ||
        take_vector(&k, norm_name[naming], D_HIDDEN, &m->final_norm) < 0)
        return -1;
    m->head = m->embed;
    if (check_tied_head(&k, naming) < 0)
        return -1;
    if (!m->shape.tied_head && take_matrix(&k, head_name[naming], D_VOCAB, D_HIDDEN, &m->head) < 0)
        return -1;
    for (int32_t i = 0; i < m->shape.layers; i++)
        if (take_layer(&k, i, naming) < 0)
            return -1;
    for (int64_t i = 0; i < w->tensors; i++)
        if (!w->tensor[i].used && !ignorable(m, &w->tensor[i]) &&
            !(quant && hf_quant_ignores(&w->tensor[i])))
            return refuse_tensor(m, &w->tensor[i], file, err);
    return 0;
}
