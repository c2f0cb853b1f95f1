/* SPDX-License-Identifier: Apache-2.0 */
/* hf_rope.c - what config.json says of rotary frequencies.
 *
 * rope_theta and scaling are flat fields with "rope_scaling" up to transformers 4, all in
 * "rope_parameters" since 5. Where there are both, "rope_scaling" is what all versions read.
 *
 * Programs pass over fields that they do not know. Of a scaling that means that a model is computed
 * in another way than it was made for, so what whet does not know of "linear", "dynamic" and "yarn"
 * is refused by name.
 */
#include <string.h>

#include "engine/hf_fields.h"
#include "engine/model_load.h"

/* The object, under the name that it has. */
struct scaling {
    struct hf_fields fields;
    const char *name;
};

static const char *const every_type[] = {"type", "rope_type", "rope_theta", "partial_rotary_factor",
                                         NULL};

static bool among(const char *name, const char *const *list)
{
    while (*list)
        if (!strcmp(*list++, name))
            return true;
    return false;
}

/* Fields that are neither of every type nor in `known`. */
static int refuse_others(const struct scaling *r, const char *type, const char *const *known)
{
    const cJSON *child;

    cJSON_ArrayForEach(child, r->fields.object)
    {
        if (!cJSON_IsNull(child) && !among(child->string, every_type) &&
            !among(child->string, known))
            return err_set(r->fields.err, "%s: '%s': '%.64s' of the type '%s' is not supported",
                           r->fields.file, r->name, child->string, type);
    }
    return 0;
}

/* The message of a field in the scaling, with the scaling's name. */
static int failed(const struct scaling *r)
{
    return err_prefix(r->fields.err, "%s", r->name);
}

/* A field of config.json itself counts before one in the scaling. */
static int32_t original_context(struct scaling *r, struct hf_fields *config, double fallback)
{
    static const char name[] = "original_max_position_embeddings";
    bool itself = hf_field(config, name);
    int32_t context = hf_whole(&r->fields, name, itself ? 0 : fallback);
    return hf_whole(config, name, context);
}

static int read_llama3(struct scaling *r, struct hf_fields *config, struct model_shape *s)
{
    struct hf_fields *f = &r->fields;

    s->scaling = (struct rope_scaling){
        .type = ROPE_LLAMA3,
        .factor = (float)hf_number(f, "factor", HF_REQUIRED),
        .low_freq_factor = (float)hf_number(f, "low_freq_factor", HF_REQUIRED),
        .high_freq_factor = (float)hf_number(f, "high_freq_factor", HF_REQUIRED),
        .original_context = original_context(r, config, s->max_context),
    };
    return f->failed ? failed(r) : config->failed ? -1 : 0;
}

static int read_linear(struct scaling *r, struct model_shape *s)
{
    static const char *const known[] = {"factor", "original_max_position_embeddings", NULL};

    if (refuse_others(r, "linear", known) < 0)
        return -1;
    double factor = hf_within(&r->fields, "factor", HF_REQUIRED, 1, MODEL_ROPE_MOST);
    s->scaling = (struct rope_scaling){.type = ROPE_LINEAR, .factor = (float)factor};
    return r->fields.failed ? failed(r) : 0;
}

/* Frequencies that follow the length of a text, beyond max_position_embeddings. Up to there they
 * are what they are without scaling, and there the context ends. */
static int read_dynamic(struct scaling *r)
{
    static const char *const known[] = {"factor", "original_max_position_embeddings", NULL};

    if (refuse_others(r, "dynamic", known) < 0)
        return -1;
    hf_within(&r->fields, "factor", HF_REQUIRED, 1, MODEL_ROPE_MOST);
    return r->fields.failed ? failed(r) : 0;
}

/* By what cosines and sines are multiplied. mscale counts where both are there and not 0. */
static float read_attention(struct hf_fields *f, double factor)
{
    double mscale = hf_within(f, "mscale", 0, 0, MODEL_ROPE_MOST);
    double all_dim = hf_within(f, "mscale_all_dim", 0, 0, MODEL_ROPE_MOST);
    double usual = model_yarn_attention(factor, 1);

    if (mscale > 0 && all_dim > 0)
        usual = model_yarn_attention(factor, mscale) / model_yarn_attention(factor, all_dim);
    return (float)hf_within(f, "attention_factor", usual, 1e-3, MODEL_ROPE_MOST);
}

/* transformers takes max_position_embeddings where the original context is left out, vLLM refuses
 * that: a config in which it is the longer one would be computed wrongly. */
static int read_yarn(struct scaling *r, struct hf_fields *config, struct model_shape *s)
{
    static const char *const known[] = {"factor",
                                        "original_max_position_embeddings",
                                        "beta_fast",
                                        "beta_slow",
                                        "attention_factor",
                                        "mscale",
                                        "mscale_all_dim",
                                        "truncate",
                                        "finetuned", /* says nothing about how to compute */
                                        NULL};
    struct hf_fields *f = &r->fields;

    if (refuse_others(r, "yarn", known) < 0)
        return -1;
    double factor = hf_within(f, "factor", HF_REQUIRED, 1, MODEL_ROPE_MOST);
    s->scaling = (struct rope_scaling){
        .type = ROPE_YARN,
        .factor = (float)factor,
        .low_freq_factor = (float)hf_within(f, "beta_slow", 1, 1e-3, MODEL_ROPE_MOST),
        .high_freq_factor = (float)hf_within(f, "beta_fast", 32, 1e-3, MODEL_ROPE_MOST),
        .original_context = original_context(r, config, HF_REQUIRED),
        .attention_factor = read_attention(f, factor),
        .whole_ramp = !hf_flag(f, "truncate", true),
    };
    if (f->failed)
        return failed(r);
    if (config->failed)
        return -1;
    if (s->scaling.original_context == 0)
        return err_set(f->err, "%s: 'original_max_position_embeddings' is 0", f->file);
    model_yarn_context(s);
    return 0;
}

static int read_type(struct scaling *r, struct hf_fields *config, struct model_shape *s)
{
    struct hf_fields *f = &r->fields;
    double partial = hf_number(f, "partial_rotary_factor", 1);
    const char *type = hf_string(f, "rope_type", hf_string(f, "type", "default"));

    if (f->failed)
        return failed(r);
    if (partial != 1)
        return err_set(f->err, "%s: '%s': partial_rotary_factor %g is not supported", f->file,
                       r->name, partial);
    if (!strcmp(type, "default"))
        return 0;
    if (!strcmp(type, "llama3"))
        return read_llama3(r, config, s);
    if (!strcmp(type, "linear"))
        return read_linear(r, s);
    if (!strcmp(type, "dynamic"))
        return read_dynamic(r);
    if (!strcmp(type, "yarn"))
        return read_yarn(r, config, s);
    return err_set(f->err,
                   "%s: '%s': type '%.64s' is not supported (default, llama3, linear, dynamic and "
                   "yarn are)",
                   f->file, r->name, type);
}

/* A "rope_scaling" that somebody wrote beside "rope_parameters" replaces the base in there, too. */
static int refuse_lost_base(const struct hf_fields *config, const struct hf_fields *scaling)
{
    const cJSON *newer = hf_field(config, "rope_parameters");
    const struct hf_fields replaced = {.object = newer};

    if (newer == scaling->object || !cJSON_IsObject(newer) || !hf_field(&replaced, "rope_theta") ||
        hf_field(scaling, "rope_theta") || hf_field(config, "rope_theta"))
        return 0;
    return err_set(
        config->err,
        "%s: 'rope_scaling' counts before 'rope_parameters', where 'rope_theta' is: write "
        "the scaling into 'rope_parameters'",
        config->file);
}

int hf_read_rope(struct hf_fields *config, struct model_shape *s)
{
    const cJSON *object = hf_field(config, "rope_scaling"), *child;
    struct scaling r = {*config, "rope_scaling"};

    if (!object || (cJSON_IsObject(object) && !object->child))
        object = hf_field(config, r.name = "rope_parameters");
    s->rope_base = (float)hf_number(config, "rope_theta", 10000);
    if (config->failed)
        return -1;
    if (!object)
        return 0;
    if (!cJSON_IsObject(object))
        return err_set(config->err, "%s: '%s' is not an object", config->file, r.name);
    cJSON_ArrayForEach(child, object)
    {
        if (cJSON_IsObject(child))
            return err_set(config->err,
                           "%s: '%s': '%.64s': scaling by kind of layer is not supported",
                           config->file, r.name, child->string);
    }
    r.fields.object = object;
    if (refuse_lost_base(config, &r.fields) < 0)
        return -1;
    s->rope_base = (float)hf_number(&r.fields, "rope_theta", s->rope_base);
    return read_type(&r, config, s);
}
