/* SPDX-License-Identifier: Apache-2.0 */
/* model_gguf.c - a model out of one GGUF file: shape, rotary scaling, tensors, vocabulary.
 *
 * Keys are "<architecture>.<name>" as the ggml project's documentation lists them. Converters
 * store the q and k rows of Llama files in interleaved rotary order and those of Qwen files as
 * they were. Llama 3 scaling arrives not as numbers but as a tensor of divisors; the numbers are
 * recovered from it and must give the same divisors back, or the file is refused.
 */
#include "engine/model_load.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/gguf.h"
#include "engine/quant.h"
#include "engine/tokenizer.h"
#include "engine/utf8.h"

/* ---- shape ----------------------------------------------------------------------------------- */

/* A string of the file for a message: its beginning, printable ASCII only. */
struct shown {
    char text[64];
};

static struct shown show(struct gguf_string s)
{
    struct shown v = {{0}};
    for (size_t i = 0; i < s.n && i < sizeof v.text - 1; i++)
        v.text[i] = s.s[i] >= ' ' && s.s[i] < 127 ? s.s[i] : '?';
    return v;
}

static bool equals(struct gguf_string s, const char *text)
{
    return s.n == strlen(text) && !memcmp(s.s, text, s.n);
}

/* Reads keys of one architecture; after the first failure the rest is not looked at. */
struct keys {
    const struct gguf *g;
    const char *prefix;
    struct err *err;
    bool failed;
};

enum { REQUIRED = -1 };

static double number(struct keys *k, const char *name, double fallback)
{
    char key[128];
    double v = fallback;

    snprintf(key, sizeof key, "%s.%s", k->prefix, name);
    if (k->failed)
        return fallback;
    int found = gguf_float(k->g, key, &v, k->err);
    if (found == 0 && fallback == REQUIRED)
        found = err_set(k->err, "%s: metadata '%s' is missing", k->g->file, key);
    k->failed = found < 0;
    return v;
}

/* A number that fits an int32 exactly. */
static int32_t whole(struct keys *k, const char *name, double fallback)
{
    double v = number(k, name, fallback);

    if (k->failed)
        return 0;
    if (v != floor(v) || v < 0 || v > INT32_MAX) {
        err_set(k->err, "%s: metadata '%s.%s': %g is no whole number in range", k->g->file,
                k->prefix, name, v);
        k->failed = true;
        return 0;
    }
    return (int32_t)v;
}

static int read_arch(const struct gguf *g, struct model_shape *s, const char **prefix,
                     struct err *err)
{
    struct gguf_string name;
    int found = gguf_string(g, "general.architecture", &name, err);

    if (found < 0)
        return -1;
    if (!found)
        return err_set(err, "%s: metadata 'general.architecture' is missing", g->file);
    int arch = arch_of_gguf(name.s, name.n);
    if (arch < 0) {
        char known[128];
        arch_list_gguf(known, sizeof known);
        return err_set(err,
                       "%s: metadata 'general.architecture': '%s' is not supported (known: %s)",
                       g->file, show(name).text, known);
    }
    s->arch = (enum arch)arch;
    s->rope_interleaved = arch_traits(s->arch)->gguf_interleaved;
    *prefix = arch_traits(s->arch)->gguf;
    return 0;
}

/* Scaling that divides positions, as llama.cpp reads it: a file that does not say of which type is
 * "linear", and the factor has an older name. */
static int refuse_scaling(struct keys *k)
{
    char key[128];
    struct gguf_string type = {"linear", 6};
    const char *name = "rope.scaling.factor";
    double factor = number(k, name, 0);

    if (factor == 0)
        factor = number(k, name = "rope.scale_linear", 0);
    snprintf(key, sizeof key, "%s.rope.scaling.type", k->prefix);
    if (k->failed || gguf_string(k->g, key, &type, k->err) < 0)
        return -1;
    if (equals(type, "none"))
        return 0;
    if (!equals(type, "linear"))
        return err_set(k->err, "%s: metadata '%s': '%s' is not supported", k->g->file, key,
                       show(type).text);
    if (factor != 0 && factor != 1)
        return err_set(k->err, "%s: metadata '%s.%s': %g: linear scaling is not supported",
                       k->g->file, k->prefix, name, factor);
    return 0;
}

/* Things of these architectures that whet does not compute: refused, not ignored. */
static int refuse_variants(struct keys *k, const struct model_shape *s)
{
    int64_t parts = 1;
    char key[128];
    bool causal = true;
    int32_t experts = whole(k, "expert_count", 0);
    int32_t value_dim = whole(k, "attention.value_length", s->head_dim);
    int32_t rope_dim = whole(k, "rope.dimension_count", s->head_dim);

    snprintf(key, sizeof key, "%s.attention.causal", k->prefix);
    if (k->failed || gguf_bool(k->g, key, &causal, k->err) < 0)
        return -1;
    if (gguf_int(k->g, "split.count", &parts, k->err) < 0)
        return -1;
    if (parts > 1)
        return err_set(k->err, "%s: metadata 'split.count': one of %lld parts; merge them first",
                       k->g->file, (long long)parts);
    if (experts)
        return err_set(k->err,
                       "%s: metadata '%s.expert_count': mixtures of experts are not "
                       "supported",
                       k->g->file, k->prefix);
    if (value_dim != s->head_dim)
        return err_set(k->err, "%s: metadata '%s.attention.value_length': %d, but keys have %d",
                       k->g->file, k->prefix, value_dim, s->head_dim);
    if (rope_dim != s->head_dim)
        return err_set(k->err, "%s: metadata '%s.rope.dimension_count': %d, but heads have %d",
                       k->g->file, k->prefix, rope_dim, s->head_dim);
    if (!causal)
        return err_set(k->err,
                       "%s: metadata '%s': false: a model whose tokens see those behind them "
                       "generates no text",
                       k->g->file, key);
    return refuse_scaling(k);
}

static int read_shape(const struct gguf *g, struct model_shape *s, struct err *err)
{
    const char *prefix = NULL;
    if (read_arch(g, s, &prefix, err) < 0)
        return -1;

    struct keys k = {g, prefix, err, false};
    const struct tensor *embed = weights_find(&g->weights, "token_embd.weight");
    if (!embed)
        return err_set(err, "%s: tensor 'token_embd.weight' is missing", g->file);
    s->layers = whole(&k, "block_count", REQUIRED);
    s->hidden = whole(&k, "embedding_length", REQUIRED);
    s->ffn = whole(&k, "feed_forward_length", REQUIRED);
    s->heads = whole(&k, "attention.head_count", REQUIRED);
    s->kv_heads = whole(&k, "attention.head_count_kv", s->heads);
    s->head_dim = whole(&k, "attention.key_length", s->heads > 0 ? s->hidden / s->heads : 0);
    s->max_context = whole(&k, "context_length", REQUIRED);
    s->eps = (float)number(&k, "attention.layer_norm_rms_epsilon", REQUIRED);
    s->rope_base = (float)number(&k, "rope.freq_base", 10000);
    s->vocab = whole(&k, "vocab_size", embed->dim[0] <= INT32_MAX ? (double)embed->dim[0] : 0);
    int32_t window = whole(&k, "attention.sliding_window", 0);
    if (k.failed)
        return -1;
    if (window > 0 && window < s->max_context)
        s->max_context = window; /* within the window, windowed and full attention are one */
    s->tied_head = !weights_find(&g->weights, "output.weight");
    if (model_check_shape(s, g->file, err) < 0)
        return -1;
    return refuse_variants(&k, s);
}

/* The divisors in 'rope_freqs.weight' as llama3 scaling. The family's models all have 1, 4 and
 * 8192; the factor is the largest divisor. */
static int read_rope_divisors(const struct gguf *g, struct model_shape *s, struct err *err)
{
    struct tensor *t = weights_find(&g->weights, "rope_freqs.weight");
    float divisor[512];
    double plain[512], scaled[512];
    int n = s->head_dim / 2;

    if (!t)
        return 0;
    t->used = true;
    if (t->dims != 1 || t->dim[0] != n || t->type != DTYPE_F32)
        return err_set(err, "%s: tensor 'rope_freqs.weight': expected %d values of F32", g->file,
                       n);
    dequant_row(t->type, t->data, divisor, n);
    model_rope_frequencies(s, plain);
    struct rope_scaling r = {true, 1, 1, 4, 8192};
    for (int i = 0; i < n; i++)
        r.factor = divisor[i] > r.factor ? divisor[i] : r.factor;
    if (r.factor == 1) /* divides by one throughout, or see below */
        r.llama3 = false;
    s->scaling = r;
    if (r.llama3 && model_check_shape(s, g->file, err) < 0)
        return -1;
    model_rope_frequencies(s, scaled);
    for (int i = 0; i < n; i++)
        if (!(fabs(plain[i] / scaled[i] - divisor[i]) <= 1e-4 * r.factor))
            return err_set(err,
                           "%s: tensor 'rope_freqs.weight': value %d is %g, which is no "
                           "Llama 3 rope scaling",
                           g->file, i, (double)divisor[i]);
    return 0;
}

/* ---- vocabulary ------------------------------------------------------------------------------ */

struct vocab {
    struct gguf_string *token, *merge;
    int64_t tokens, merges;
    int32_t *type;
    int64_t types;
    const char **text, **merge_text;
    int32_t *length, *merge_length;
    uint8_t *kind;
    char *pre;
    int32_t stop[2];
};

static void vocab_free(struct vocab *v)
{
    void *all[] = {v->token,  v->merge,        v->type, v->text, v->merge_text,
                   v->length, v->merge_length, v->kind, v->pre};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static char *copy_string(struct gguf_string s)
{
    char *copy = xmalloc(s.n + 1);
    memcpy(copy, s.s, s.n);
    copy[s.n] = 0;
    return copy;
}

static int split_strings(const struct gguf_string *s, int64_t n, const char ***text,
                         int32_t **length, const char *file, const char *key, struct err *err)
{
    *text = xcalloc((size_t)n + 1, sizeof **text);
    *length = xcalloc((size_t)n + 1, sizeof **length);
    for (int64_t i = 0; i < n; i++) {
        if (s[i].n > 1 << 16)
            return err_set(err, "%s: metadata '%s': entry %lld is %zu bytes long", file, key,
                           (long long)i, s[i].n);
        (*text)[i] = s[i].s;
        (*length)[i] = (int32_t)s[i].n;
    }
    return 0;
}

static int read_kinds(const struct gguf *g, struct vocab *v, struct err *err)
{
    /* GGUF: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte */
    static const uint8_t kinds[] = {TOKEN_NORMAL,       TOKEN_NORMAL, TOKEN_CONTROL, TOKEN_CONTROL,
                                    TOKEN_USER_DEFINED, TOKEN_UNUSED, TOKEN_BYTE};
    const char *key = "tokenizer.ggml.token_type";
    int found = gguf_ints(g, key, &v->type, &v->types, err);

    if (found < 0)
        return -1;
    if (found && v->types != v->tokens)
        return err_set(err, "%s: metadata '%s': %lld entries for %lld tokens", g->file, key,
                       (long long)v->types, (long long)v->tokens);
    v->kind = xcalloc((size_t)v->tokens + 1, 1); /* TOKEN_NORMAL without the key */
    for (int64_t i = 0; i < v->types; i++) {
        if (v->type[i] < 0 || v->type[i] >= (int32_t)sizeof kinds)
            return err_set(err, "%s: metadata '%s': token %lld has unknown type %d", g->file, key,
                           (long long)i, v->type[i]);
        v->kind[i] = kinds[v->type[i]];
    }
    return 0;
}

/* An id of the vocabulary; stays `fallback` if the key is not there. */
static int read_id(const struct gguf *g, const char *name, int64_t tokens, int32_t *id,
                   struct err *err)
{
    char key[128];
    int64_t value = *id;

    snprintf(key, sizeof key, "tokenizer.ggml.%s", name);
    if (gguf_int(g, key, &value, err) < 0)
        return -1;
    if (value < -1 || value >= tokens)
        return err_set(err, "%s: metadata '%s': %lld is no token of %lld", g->file, key,
                       (long long)value, (long long)tokens);
    *id = (int32_t)value;
    return 0;
}

/* 1 or 0 as the file says; -1, what the family does, if it says nothing. */
static int read_flag(const struct gguf *g, const char *key, int8_t *flag, struct err *err)
{
    bool value;
    int found = gguf_bool(g, key, &value, err);

    *flag = found > 0 ? value : -1;
    return found < 0 ? -1 : 0;
}

static int read_special(const struct gguf *g, struct vocab *v, struct vocab_source *src,
                        struct err *err)
{
    int32_t eot = -1, eom = -1;
    bool prefix_space = false;

    src->bos = src->eos = -1;
    if (read_id(g, "bos_token_id", v->tokens, &src->bos, err) < 0 ||
        read_id(g, "eos_token_id", v->tokens, &src->eos, err) < 0 ||
        read_id(g, "eot_token_id", v->tokens, &eot, err) < 0 ||
        read_id(g, "eom_token_id", v->tokens, &eom, err) < 0 ||
        read_flag(g, "tokenizer.ggml.add_bos_token", &src->add_bos, err) < 0 ||
        read_flag(g, "tokenizer.ggml.add_eos_token", &src->add_eos, err) < 0 ||
        gguf_bool(g, "tokenizer.ggml.add_space_prefix", &prefix_space, err) < 0)
        return -1;
    if (prefix_space)
        return err_set(err, "%s: metadata 'tokenizer.ggml.add_space_prefix': not supported",
                       g->file);
    if (eot >= 0)
        v->stop[src->stops++] = eot;
    if (eom >= 0)
        v->stop[src->stops++] = eom;
    src->stop = v->stop;
    return 0;
}

static int read_vocab(const struct gguf *g, struct vocab *v, struct vocab_source *src,
                      int32_t vocab, struct err *err)
{
    const char *tokens = "tokenizer.ggml.tokens", *merges = "tokenizer.ggml.merges";
    struct gguf_string model = {"", 0}, pre = {"", 0};

    if (gguf_string(g, "tokenizer.ggml.model", &model, err) < 0 ||
        gguf_string(g, "tokenizer.ggml.pre", &pre, err) < 0)
        return -1;
    if (!equals(model, "gpt2"))
        return err_set(err,
                       "%s: metadata 'tokenizer.ggml.model': '%s' is not supported "
                       "(gpt2, the byte-level BPE, is)",
                       g->file, show(model).text);
    if (pre.n == 0)
        return err_set(err,
                       "%s: metadata 'tokenizer.ggml.pre' is missing: how the text is to be "
                       "split before BPE would be a guess",
                       g->file);
    int have_tokens = gguf_strings(g, tokens, &v->token, &v->tokens, err);
    int have_merges = have_tokens < 0 ? -1 : gguf_strings(g, merges, &v->merge, &v->merges, err);
    if (have_merges < 0)
        return -1;
    if (!have_tokens || !have_merges)
        return err_set(err, "%s: metadata '%s' is missing", g->file, have_tokens ? merges : tokens);
    if (v->tokens < 1 || v->tokens > vocab)
        return err_set(err, "%s: metadata '%s': %lld entries, but the model has %d", g->file,
                       tokens, (long long)v->tokens, vocab);
    if (split_strings(v->token, v->tokens, &v->text, &v->length, g->file, tokens, err) < 0 ||
        split_strings(v->merge, v->merges, &v->merge_text, &v->merge_length, g->file, merges, err) <
            0 ||
        read_kinds(g, v, err) < 0)
        return -1;
    v->pre = copy_string(pre);
    *src = (struct vocab_source){.tokens = (int32_t)v->tokens,
                                 .text = v->text,
                                 .length = v->length,
                                 .kind = v->kind,
                                 .merges = v->merges,
                                 .merge = v->merge_text,
                                 .merge_length = v->merge_length,
                                 .pre = v->pre};
    return read_special(g, v, src, err);
}

static int open_tokenizer(struct model *m, const struct gguf *g, struct err *err)
{
    struct vocab v = {0};
    struct vocab_source src;
    struct gguf_string template;
    int rc = read_vocab(g, &v, &src, m->shape.vocab, err);

    if (rc == 0) {
        m->tokenizer = tokenizer_build(&src, err);
        if (!m->tokenizer)
            rc = err_prefix(err, "%s: vocabulary", g->file);
    }
    vocab_free(&v);
    if (rc == 0 && (rc = gguf_string(g, "tokenizer.chat_template", &template, err)) > 0) {
        if (template.n > MODEL_TEMPLATE_MAX)
            return err_set(err, "%s: metadata 'tokenizer.chat_template': %zu bytes, at most %d",
                           g->file, template.n, MODEL_TEMPLATE_MAX);
        m->chat_template = copy_string(template);
    }
    return rc < 0 ? -1 : 0;
}

/* ---- the file -------------------------------------------------------------------------------- */

int model_open_gguf(struct model *m, bool with_tokenizer, struct err *err)
{
    struct filemap *map = filemap_open(m->path, err);
    if (!map)
        return -1;
    model_own_map(m, map);

    struct gguf *g = gguf_open(map, err);
    struct gguf_string title = {m->name, strlen(m->name)};
    int rc = -1;
    if (!g || read_shape(g, &m->shape, err) < 0 || read_rope_divisors(g, &m->shape, err) < 0 ||
        model_take_tensors(m, &g->weights, NAMING_GGUF, NULL, m->path, err) < 0 ||
        gguf_string(g, "general.name", &title, err) < 0 ||
        (with_tokenizer && open_tokenizer(m, g, err) < 0))
        goto done;
    size_t length;
    char *text = utf8_lossy(title.s, title.n < 200 ? title.n : 200, &length);
    model_describe(m, text);
    free(text);
    rc = 0;
done:
    gguf_free(g);
    return rc;
}
