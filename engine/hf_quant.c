/* SPDX-License-Identifier: Apache-2.0 */
/* hf_quant.c - "quantization_config" of a config.json.
 *
 *   {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128],     also "fbgemm_fp8"
 *    "activation_scheme": "dynamic"}
 *   {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}
 *   {"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "gptq"}
 *   {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0":
 *       {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128,
 *                    "symmetric": true},
 *       "input_activations": {"num_bits": 8, "type": "float", "dynamic": true}}}}
 *
 * Which matrices are quantized is not read here but from their tensors: "ignore",
 * "modules_to_not_convert" and their like only repeat it. What would change the numbers and is not
 * known is refused by its name.
 */
#include "engine/hf_quant.h"

#include <math.h>
#include <string.h>

#define METHODS "fp8, fbgemm_fp8, awq, gptq and compressed-tensors are"

struct section {
    const cJSON *object;
    const char *file;
    struct err *err;
};

static const cJSON *field(const struct section *s, const char *name)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(s->object, name);
    return v && !cJSON_IsNull(v) ? v : NULL;
}

/* "" where the field is absent; what is no string is no word that is known. */
static const char *text(const struct section *s, const char *name, const char *fallback)
{
    const cJSON *v = field(s, name);
    return !v ? fallback : cJSON_IsString(v) ? v->valuestring : "(not a string)";
}

/* A field that may have one of a few values; `known` lists them: "a|b". Absent is `fallback`. */
static int one_of(const struct section *s, const char *name, const char *fallback,
                  const char *known)
{
    const char *v = text(s, name, fallback), *at = known;
    size_t n = strlen(v);
    while (at && (strncmp(at, v, n) != 0 || (at[n] && at[n] != '|')))
        at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL;
    if (at)
        return 0;
    return err_set(s->err, "%s: 'quantization_config': '%s': '%.64s' is not supported (%s)",
                   s->file, name, v, known);
}

/* A whole number from `least` to 2^24. */
static int whole(const struct section *s, const char *name, const cJSON *v, int32_t least,
                 int32_t *out)
{
    if (!cJSON_IsNumber(v) || v->valuedouble != floor(v->valuedouble) || v->valuedouble < least ||
        v->valuedouble > 1 << 24)
        return err_set(s->err, "%s: 'quantization_config': '%s' is no whole number of at least %d",
                       s->file, name, least);
    *out = (int32_t)v->valuedouble;
    return 0;
}

static int four_bits(const struct section *s, const char *name)
{
    int32_t bits = 0;
    if (whole(s, name, field(s, name), 1, &bits) < 0)
        return -1;
    if (bits != 4)
        return err_set(s->err, "%s: 'quantization_config': '%s': %d is not supported (4 is)",
                       s->file, name, bits);
    return 0;
}

/* -1 stands for whole rows. */
static int read_group(const struct section *s, struct hf_quant *q)
{
    int32_t group = -1;
    const cJSON *v = field(s, "group_size");
    if (v && whole(s, "group_size", v, -1, &group) < 0)
        return -1;
    if (group == 0)
        return err_set(s->err, "%s: 'quantization_config': 'group_size' is 0", s->file);
    q->group = group < 0 ? 0 : group;
    return 0;
}

/* [rows, columns] of a block, 128 x 128 where nothing is said. */
static int read_block(const struct section *s, const char *name, struct hf_quant *q)
{
    const cJSON *v = field(s, name);
    q->block_rows = q->block_cols = 128;
    if (!v)
        return 0;
    if (!cJSON_IsArray(v) || cJSON_GetArraySize(v) != 2)
        return err_set(s->err, "%s: 'quantization_config': '%s' is no pair of numbers", s->file,
                       name);
    if (whole(s, name, cJSON_GetArrayItem(v, 0), 1, &q->block_rows) < 0)
        return -1;
    return whole(s, name, cJSON_GetArrayItem(v, 1), 1, &q->block_cols);
}

/* "fbgemm_fp8" has no other way than scales of activations that are found while serving. */
static int read_fp8(const struct section *s, struct hf_quant *q)
{
    q->method = HF_FP8;
    q->fp8_activations = strcmp(text(s, "quant_method", ""), "fbgemm_fp8") == 0 ||
                         strcmp(text(s, "activation_scheme", ""), "dynamic") == 0;
    if (one_of(s, "fmt", "e4m3", "e4m3|float8_e4m3fn") < 0)
        return -1;
    return read_block(s, "weight_block_size", q);
}

static int read_awq(const struct section *s, struct hf_quant *q)
{
    const cJSON *zero_point = field(s, "zero_point");
    q->method = HF_AWQ;
    q->zeros = true;
    if (zero_point && !cJSON_IsTrue(zero_point))
        return err_set(s->err,
                       "%s: 'quantization_config': 'zero_point': weights without zero points are "
                       "not supported",
                       s->file);
    if (one_of(s, "version", "gemm", "gemm|GEMM") < 0 || four_bits(s, "bits") < 0)
        return -1;
    return read_group(s, q);
}

/* The first version of the format stores zero points less one. */
static int read_gptq(const struct section *s, struct hf_quant *q)
{
    q->method = HF_GPTQ;
    q->zeros = true;
    if (one_of(s, "checkpoint_format", "gptq", "gptq|gptq_v2") < 0 || four_bits(s, "bits") < 0)
        return -1;
    q->zero_offset = strcmp(text(s, "checkpoint_format", "gptq"), "gptq") == 0;
    return read_group(s, q);
}

static int read_packed(const struct section *weights, struct hf_quant *q)
{
    const cJSON *symmetric = field(weights, "symmetric");
    q->method = HF_PACKED;
    q->zeros = cJSON_IsFalse(symmetric);
    if (one_of(weights, "type", "int", "int") < 0 || four_bits(weights, "num_bits") < 0 ||
        one_of(weights, "strategy", "group", "group|channel") < 0)
        return -1;
    return read_group(weights, q);
}

static int read_float(const struct section *weights, struct hf_quant *q)
{
    int32_t bits = 0;
    q->method = HF_FP8;
    if (one_of(weights, "type", "float", "float") < 0 ||
        one_of(weights, "strategy", "tensor", "tensor|channel|block") < 0 ||
        whole(weights, "num_bits", field(weights, "num_bits"), 1, &bits) < 0)
        return -1;
    if (bits != 8)
        return err_set(weights->err,
                       "%s: 'quantization_config': floats of %d bits are not supported (8 are)",
                       weights->file, bits);
    return read_block(weights, "block_structure", q);
}

/* What a group says of its inputs: null, or as of weights, with "dynamic". */
static bool dynamic_fp8(const cJSON *group, const struct section *s)
{
    const struct section inputs = {cJSON_GetObjectItemCaseSensitive(group, "input_activations"),
                                   s->file, s->err};
    const cJSON *bits = field(&inputs, "num_bits");
    return cJSON_IsTrue(field(&inputs, "dynamic")) && cJSON_IsNumber(bits) &&
           bits->valuedouble == 8 && strcmp(text(&inputs, "type", "int"), "float") == 0;
}

/* One group of layers that are quantized alike; what is not quantized has its plain tensors. */
static int read_compressed(const struct section *s, struct hf_quant *q)
{
    const cJSON *groups = field(s, "config_groups"), *group = groups ? groups->child : NULL;
    const cJSON *transforms = field(s, "transform_config");
    struct section sparse = {field(s, "sparsity_config"), s->file, s->err};
    struct section weights = {cJSON_GetObjectItemCaseSensitive(group, "weights"), s->file, s->err};

    if (one_of(s, "format", "", "float-quantized|naive-quantized|pack-quantized") < 0 ||
        one_of(&sparse, "format", "dense", "dense") < 0)
        return -1;
    if (transforms && transforms->child)
        return err_set(s->err, "%s: 'quantization_config': 'transform_config' is not supported",
                       s->file);
    if (!cJSON_IsObject(groups) || cJSON_GetArraySize(groups) != 1 ||
        !cJSON_IsObject(weights.object))
        return err_set(s->err,
                       "%s: 'quantization_config': 'config_groups' is no object of one group with "
                       "'weights'",
                       s->file);
    if (strcmp(text(s, "format", ""), "pack-quantized") == 0)
        return read_packed(&weights, q);
    q->fp8_activations = dynamic_fp8(group, s);
    return read_float(&weights, q);
}

int hf_quant_read(const cJSON *object, const char *file, struct hf_quant *q, struct err *err)
{
    static const struct {
        const char *name;
        int (*read)(const struct section *, struct hf_quant *);
    } method[] = {
        {"fp8", read_fp8},
        {"fbgemm_fp8", read_fp8},
        {"awq", read_awq},
        {"gptq", read_gptq},
        {"compressed-tensors", read_compressed},
    };
    const struct section s = {object, file, err};

    *q = (struct hf_quant){0};
    if (!cJSON_IsObject(object))
        return err_set(err, "%s: 'quantization_config' is not an object", file);
    const char *name = text(&s, "quant_method", "(none)");
    for (size_t i = 0; i < sizeof method / sizeof *method; i++)
        if (strcmp(name, method[i].name) == 0)
            return method[i].read(&s, q);
    return err_set(
        err, "%s: 'quantization_config': 'quant_method': '%.64s' is not supported (" METHODS ")",
        file, name);
}
