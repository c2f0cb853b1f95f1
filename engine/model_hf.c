/* SPDX-License-Identifier: Apache-2.0 */
/* model_hf.c - a model out of a Hugging Face directory.
 *
 *   config.json                       architecture and shape
 *   model.safetensors                 the weights, or
 *   model.safetensors.index.json      weight_map: tensor -> shard file
 *   tokenizer.json                    read by the tokenizer
 *   chat_template.jinja               or "chat_template" in tokenizer_config.json
 *
 * A config has many ways to ask for a slightly different computation (other rotary scalings,
 * windows, activations). Those that whet does not compute are refused by the
 * name of the field. Defaults of absent fields are those of the transformers configuration classes.
 */
#include "engine/model_load.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/hf_fields.h"
#include "engine/hf_quant.h"
#include "engine/json_file.h"
#include "engine/safetensors.h"
#include "engine/tokenizer.h"

enum { SHARDS_MAX = 4096 };

/* ---- JSON files ------------------------------------------------------------------------------ */

static char *inside(const struct model *m, const char *name)
{
    return xasprintf("%s/%s", m->path, name);
}

static bool has_file(const struct model *m, const char *name)
{
    char *path = inside(m, name);
    bool there = access(path, F_OK) == 0;
    free(path);
    return there;
}

/* Parses a JSON object in the directory. NULL with a message. */
static cJSON *read_json(const struct model *m, const char *name, const struct json_limits *limits,
                        struct err *err)
{
    if (file_check_within(m->path, name, err) < 0)
        return NULL;
    char *path = inside(m, name);
    cJSON *json = json_file_parse(path, limits, err);

    if (json && !cJSON_IsObject(json)) {
        err_set(err, "%s: not a JSON object", path);
        cJSON_Delete(json);
        json = NULL;
    }
    free(path);
    return json;
}

/* ---- config.json --------------------------------------------------------------------------- */

/* NULL with a message. */
static const struct arch_checkpoint *read_arch(struct hf_fields *f, struct model_shape *s)
{
    const struct arch_checkpoint *checkpoint = NULL;
    const char *name = cJSON_GetStringValue(cJSON_GetArrayItem(hf_field(f, "architectures"), 0));

    if (!name) {
        err_set(f->err, "%s: 'architectures' is missing", f->file);
        return NULL;
    }
    int arch = arch_of_checkpoint(name, &checkpoint);
    if (arch < 0) {
        char known[128];
        arch_list_checkpoints(known, sizeof known);
        err_set(f->err, "%s: 'architectures': %.64s is not supported (known: %s)", f->file, name,
                known);
        return NULL;
    }
    s->arch = (enum arch)arch;
    return checkpoint;
}

/* Within the window, windowed and full attention are the same: the context ends there. Which layers
 * have a window is listed, or they are those from max_window_layers on, of which there may be none.
 * transformers does not read "use_sliding_window" of a Mistral, whose window always applies; other
 * software does. Up to the window both compute the same.
 */
static void read_window(struct hf_fields *f, struct model_shape *s,
                        const struct arch_checkpoint *absent)
{
    const cJSON *layers = hf_field(f, "layer_types"), *type;
    int32_t window =
        hf_whole(f, "sliding_window", hf_is_null(f, "sliding_window") ? 0 : absent->window);
    bool windowed = hf_flag(f, "use_sliding_window", false) || absent->windowed;
    int32_t first = hf_whole(f, "max_window_layers", absent->first_windowed);

    if (!absent->windowed && (cJSON_GetArraySize(layers) > 0 || first >= s->layers))
        windowed = false;
    cJSON_ArrayForEach(type, layers)
    {
        const char *name = cJSON_GetStringValue(type);
        if (name && !strcmp(name, "full_attention"))
            continue;
        windowed = true;
        if (!f->failed && (!name || strcmp(name, "sliding_attention") || window == 0)) {
            err_set(f->err, "%s: 'layer_types': '%.64s' is not supported", f->file,
                    name ? name : "");
            f->failed = true;
        }
    }
    if (windowed && window > 0 && window < s->max_context)
        s->max_context = window;
}

static int refuse_variants(struct hf_fields *f)
{
    const char *act = hf_string(f, "hidden_act", "silu");
    double partial = hf_number(f, "partial_rotary_factor", 1);

    if (f->failed)
        return -1;
    if (strcmp(act, "silu"))
        return err_set(f->err, "%s: 'hidden_act': '%.64s' is not supported (silu is)", f->file,
                       act);
    if (partial != 1)
        return err_set(f->err, "%s: 'partial_rotary_factor': %g is not supported", f->file,
                       partial);
    return 0;
}

static int read_shape(struct hf_fields *f, struct model_shape *s, const struct weights *w)
{
    const struct arch_checkpoint *absent = read_arch(f, s);

    if (!absent)
        return -1;
    s->layers = hf_whole(f, "num_hidden_layers", HF_REQUIRED);
    s->hidden = hf_whole(f, "hidden_size", HF_REQUIRED);
    s->ffn = hf_whole(f, "intermediate_size", HF_REQUIRED);
    s->heads = hf_whole(f, "num_attention_heads", HF_REQUIRED);
    bool all_heads = !absent->kv_heads || hf_is_null(f, "num_key_value_heads");
    int32_t kv_heads = all_heads ? s->heads : absent->kv_heads;
    int32_t head_dim = absent->head_dim ? absent->head_dim : s->hidden / (s->heads ? s->heads : 1);
    s->kv_heads = hf_whole(f, "num_key_value_heads", kv_heads);
    s->head_dim = hf_whole(f, "head_dim", head_dim);
    s->vocab = hf_whole(f, "vocab_size", HF_REQUIRED);
    s->max_context = hf_whole(f, "max_position_embeddings", HF_REQUIRED);
    s->eps = (float)hf_number(f, "rms_norm_eps", 1e-6);
    bool head = weights_find(w, "lm_head.weight") || hf_quant_stores(w, "lm_head.weight");
    s->tied_head = hf_flag(f, "tie_word_embeddings", !head);
    if (f->failed || hf_read_rope(f, s) < 0)
        return -1;
    read_window(f, s, absent);
    if (f->failed || refuse_variants(f) < 0)
        return -1;
    bool bias = hf_flag(f, "attention_bias", false) || arch_traits(s->arch)->qkv_bias;
    if (f->failed || (!bias && model_refuse_biases(w, f->file, f->err) < 0))
        return -1;
    return model_check_shape(s, f->file, f->err);
}

/* ---- weights ------------------------------------------------------------------------------- */

static int read_shard(struct model *m, const char *name, struct weights *w, struct err *err)
{
    if (file_check_within(m->path, name, err) < 0)
        return -1;
    char *path = inside(m, name);
    struct filemap *map = filemap_open(path, err);
    int rc = -1;

    if (map) {
        model_own_map(m, map);
        rc = safetensors_open(map, w, err);
    }
    free(path);
    return rc;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The names in the index, sorted and each once; *n of them. NULL with a message. */
static const char **shard_names(const cJSON *map, const char *file, int *n, struct err *err)
{
    size_t entries = (size_t)cJSON_GetArraySize(map), count = 0;
    const char **name = xcalloc(entries + 1, sizeof *name);
    const cJSON *entry;

    cJSON_ArrayForEach(entry, map)
    {
        const char *s = cJSON_GetStringValue(entry);
        if (!s || !s[0] || s[0] == '.' || strchr(s, '/')) {
            err_set(err, "%s: weight_map: '%.128s' is in no file of this directory", file,
                    entry->string);
            free(name);
            return NULL;
        }
        name[count++] = s;
    }
    qsort(name, count, sizeof *name, by_text);
    *n = 0;
    for (size_t i = 0; i < count; i++)
        if (i == 0 || strcmp(name[i], name[i - 1]) != 0)
            name[(*n)++] = name[i];
    if (*n > SHARDS_MAX) {
        err_set(err, "%s: weight_map: more than %d files", file, SHARDS_MAX);
        free(name);
        return NULL;
    }
    return name;
}

/* Opens every file that the index names, once; then every tensor it lists must be there. */
static int read_shards(struct model *m, const cJSON *map, const char *file, struct weights *w,
                       struct err *err)
{
    int shards, rc = 0;
    const char **shard = shard_names(map, file, &shards, err);
    const cJSON *entry;

    if (!shard)
        return -1;
    for (int i = 0; i < shards && rc == 0; i++)
        rc = read_shard(m, shard[i], w, err);
    free(shard);
    if (rc < 0 || weights_seal(w, file, err) < 0)
        return -1;
    cJSON_ArrayForEach(entry, map)
    {
        if (!weights_find(w, entry->string))
            return err_set(err, "%s: weight_map: tensor '%.128s' is not in %.128s", file,
                           entry->string, entry->valuestring);
    }
    return 0;
}

static int read_weights(struct model *m, struct weights *w, struct err *err)
{
    static const char single[] = "model.safetensors", index[] = "model.safetensors.index.json";

    if (has_file(m, single) || !has_file(m, index)) {
        if (read_shard(m, single, w, err) < 0)
            return -1;
        return weights_seal(w, m->path, err);
    }
    cJSON *json = read_json(m, index, &json_tensors, err);
    if (!json)
        return -1;
    char *file = inside(m, index);
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(json, "weight_map");
    int rc = cJSON_IsObject(map) ? read_shards(m, map, file, w, err)
                                 : err_set(err, "%s: 'weight_map' is no object", file);
    free(file);
    cJSON_Delete(json);
    return rc;
}

/* ---- tokenizer and template ---------------------------------------------------------------- */

/* A template text, or the one called "default" in a list of named ones. */
static const char *pick_template(const cJSON *v)
{
    const cJSON *entry;

    if (cJSON_IsString(v))
        return v->valuestring;
    cJSON_ArrayForEach(entry, v)
    {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "name"));
        if (name && !strcmp(name, "default"))
            return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "template"));
    }
    return NULL;
}

static int read_template(struct model *m, struct err *err)
{
    if (has_file(m, "chat_template.jinja")) {
        size_t n;
        if (file_check_within(m->path, "chat_template.jinja", err) < 0)
            return -1;
        char *path = inside(m, "chat_template.jinja");
        m->chat_template = file_read(path, MODEL_TEMPLATE_MAX, &n, err);
        free(path);
        if (!m->chat_template)
            return -1;
    } else if (has_file(m, "tokenizer_config.json")) {
        cJSON *json = read_json(m, "tokenizer_config.json", &json_added, err);
        if (!json)
            return -1;
        const char *text = pick_template(cJSON_GetObjectItemCaseSensitive(json, "chat_template"));
        bool fits = !text || strlen(text) <= MODEL_TEMPLATE_MAX;
        m->chat_template = text && fits ? xstrdup(text) : NULL;
        cJSON_Delete(json);
        if (!fits)
            return err_set(err, "%s/tokenizer_config.json: 'chat_template': more than %d bytes",
                           m->path, MODEL_TEMPLATE_MAX);
    }
    return 0;
}

static int open_tokenizer(struct model *m, struct err *err)
{
    if (file_check_within(m->path, "tokenizer.json", err) < 0)
        return -1;
    char *path = inside(m, "tokenizer.json");
    int rc = 0;

    m->tokenizer = tokenizer_from_json(path, m->shape.vocab, err);
    if (!m->tokenizer)
        rc = -1;
    else if (tokenizer_vocab(m->tokenizer) > m->shape.vocab)
        rc = err_set(err, "%s: %d tokens, but the model has %d", path,
                     tokenizer_vocab(m->tokenizer), m->shape.vocab);
    free(path);
    return rc < 0 ? -1 : read_template(m, err);
}

/* ---- the directory ------------------------------------------------------------------------- */

/* What the config says of quantized weights: before the tensors, whose types may be as unknown as
 * the method that made them. *quant is NULL if it says nothing. */
static int read_quant(const struct hf_fields *f, struct hf_quant *room,
                      const struct hf_quant **quant)
{
    const cJSON *section = hf_field(f, "quantization_config");
    *quant = section ? room : NULL;
    return section ? hf_quant_read(section, f->file, room, f->err) : 0;
}

static int take_tensors(struct model *m, struct weights *w, const struct hf_quant *quant,
                        struct err *err)
{
    if (model_take_tensors(m, w, NAMING_HF, quant, m->path, err) < 0)
        return -1;
    return quant ? hf_quant_leave_files(m, err) : 0;
}

int model_open_hf(struct model *m, bool with_tokenizer, struct err *err)
{
    struct weights w = {0};
    char *file = inside(m, "config.json");
    cJSON *config = read_json(m, "config.json", &json_config, err);
    struct hf_fields f = {config, file, err, false};
    struct hf_quant room;
    const struct hf_quant *quant;
    int rc = -1;

    if (config && read_quant(&f, &room, &quant) == 0 && read_weights(m, &w, err) == 0 &&
        read_shape(&f, &m->shape, &w) == 0 && take_tensors(m, &w, quant, err) == 0 &&
        (!with_tokenizer || open_tokenizer(m, err) == 0)) {
        m->fp8_activations = quant && quant->fp8_activations;
        model_describe(m, m->name);
        rc = 0;
    }
    weights_free(&w);
    cJSON_Delete(config);
    free(file);
    return rc;
}
