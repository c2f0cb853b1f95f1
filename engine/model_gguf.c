/* SPDX-License-Identifier: Apache-2.0 */
/* model_gguf.c - a model out of one GGUF file: shape, rotary scaling, tensors (and the
 * vocabulary: model_gguf_vocab.c).
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
#include "engine/model_gguf.h"
#include "engine/quant.h"
#include "engine/tokenizer.h"
#include "engine/utf8.h"

/* ---- shape ----------------------------------------------------------------------------------- */

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
                       g->file, gguf_show(name).text, known);
    }
    s->arch = (enum arch)arch;
    s->rope_interleaved = arch_traits(s->arch)->gguf_interleaved;
    *prefix = arch_traits(s->arch)->gguf;
    return 0;
}

/* ---- rotary scaling ----------------------------------------------------------------------------
 */

static double within(struct keys *k, const char *name, double fallback, double least, double most)
{
    double v = number(k, name, fallback);

    if (k->failed || (v >= least && v <= most))
        return v;
    err_set(k->err, "%s: metadata '%s.%s' is %g, expected %g to %g", k->g->file, k->prefix, name, v,
            least, most);
    k->failed = true;
    return fallback;
}

/* Refuses a key that is there and has another value than `usual`, with which it says nothing. */
static void refuse_other(struct keys *k, const char *name, double usual)
{
    double v = number(k, name, usual);

    if (k->failed || v == usual)
        return;
    err_set(k->err, "%s: metadata '%s.%s': %g is not supported", k->g->file, k->prefix, name, v);
    k->failed = true;
}

/* The numbers that llama.cpp computes with where a file has no key for them. What it multiplies the
 * attention factor by, and what it computes that from instead of the factor, it reads for other
 * models than these or not at all, so that no two programs agree on such a file. */
static void read_yarn(struct keys *k, double factor, struct model_shape *s)
{
    static const char attention[] = "rope.scaling.yarn_attn_factor";
    static const char context[] = "rope.scaling.original_context_length";
    double given = number(k, attention, 0);

    if (given != 0 && !k->failed) {
        err_set(k->err, "%s: metadata '%s.%s': %g: programs differ in what it means", k->g->file,
                k->prefix, attention, given);
        k->failed = true;
    }
    refuse_other(k, "rope.scaling.attn_factor", 1);
    refuse_other(k, "rope.scaling.yarn_ext_factor", 1);
    refuse_other(k, "rope.scaling.yarn_log_multiplier", 0);
    s->scaling = (struct rope_scaling){
        .type = ROPE_YARN,
        .factor = (float)factor,
        .low_freq_factor =
            (float)within(k, "rope.scaling.yarn_beta_slow", 1, 1e-3, MODEL_ROPE_MOST),
        .high_freq_factor =
            (float)within(k, "rope.scaling.yarn_beta_fast", 32, 1e-3, MODEL_ROPE_MOST),
        .original_context = whole(k, context, within(k, context, REQUIRED, 1, MODEL_CONTEXT_MOST)),
        .attention_factor = (float)model_yarn_attention(factor, 1),
    };
    if (!k->failed)
        model_yarn_context(s);
}

/* As llama.cpp reads it: a file that does not say of which type is "linear", whose factor has an
 * older name, too, and divides by nothing where it is 0. */
static int read_scaling(struct keys *k, struct model_shape *s)
{
    char key[128];
    struct gguf_string type = {"linear", 6};
    const char *name = "rope.scaling.factor";

    snprintf(key, sizeof key, "%s.rope.scaling.type", k->prefix);
    if (k->failed || gguf_string(k->g, key, &type, k->err) < 0)
        return -1;
    if (gguf_equals(type, "none"))
        return 0;
    if (gguf_equals(type, "yarn")) {
        read_yarn(k, within(k, name, REQUIRED, 1, MODEL_ROPE_MOST), s);
        return k->failed ? -1 : 0;
    }
    if (!gguf_equals(type, "linear"))
        return err_set(k->err,
                       "%s: metadata '%s': '%s' is not supported (none, linear and yarn are)",
                       k->g->file, key, gguf_show(type).text);
    if (number(k, name, 0) == 0)
        name = "rope.scale_linear";
    if (k->failed || number(k, name, 0) == 0)
        return k->failed ? -1 : 0;
    double factor = within(k, name, 1, 1, MODEL_ROPE_MOST);
    if (factor != 1)
        s->scaling = (struct rope_scaling){.type = ROPE_LINEAR, .factor = (float)factor};
    return k->failed ? -1 : 0;
}

/* ---- shape, to its end -------------------------------------------------------------------------
 */

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
    return 0;
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
    if (k.failed || read_scaling(&k, s) < 0)
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
    float most = 1; /* divides by one throughout, or see below */
    for (int i = 0; i < n; i++)
        most = divisor[i] > most ? divisor[i] : most;
    if (most > 1 && s->scaling.type != ROPE_PLAIN)
        return err_set(err,
                       "%s: tensor 'rope_freqs.weight': not supported beside 'rope.scaling' in the "
                       "metadata",
                       g->file);
    if (most > 1) {
        s->scaling = (struct rope_scaling){ROPE_LLAMA3, most, 1, 4, 8192, 0, false};
        if (model_check_shape(s, g->file, err) < 0)
            return -1;
    }
    model_rope_frequencies(s, scaled);
    for (int i = 0; i < n; i++)
        if (!(fabs(plain[i] / scaled[i] - divisor[i]) <= 1e-4 * most))
            return err_set(err,
                           "%s: tensor 'rope_freqs.weight': value %d is %g, which is no "
                           "Llama 3 rope scaling",
                           g->file, i, (double)divisor[i]);
    return 0;
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
        (with_tokenizer && model_gguf_tokenizer(m, g, err) < 0))
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
