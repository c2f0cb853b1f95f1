/* SPDX-License-Identifier: Apache-2.0 */
/* test_hf_quant.c - quantized checkpoints: what is not read is refused by its name, what does not
 * fit a format that loses nothing becomes numbers, and no file stays open. What the weights mean is
 * in test_model_logits.c. */
#include "tests/unit/engine/model_world.h"

#include "engine/hf_unpack.h"
#include "engine/model_load.h"

#define CT(form, weights)                                                                  \
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"" form "\",\"config_groups\":{" \
    "\"group_0\":{\"weights\":" weights "}}}"

static const struct {
    const char *checkpoint, *config, *message;
} bad_configs[] = {
    {"awq", "7", "'quantization_config' is not an object"},
    {"awq", "{}", "'quant_method': '(none)' is not supported"},
    {"awq", "{\"quant_method\":\"bitsandbytes\",\"load_in_4bit\":true}",
     "'quant_method': 'bitsandbytes' is not supported (fp8, fbgemm_fp8, awq, gptq and "
     "compressed-tensors are)"},
    {"awq", "{\"quant_method\":3}", "'quant_method': '(not a string)'"},
    {"awq", "{\"quant_method\":\"awq\",\"bits\":8}", "'bits': 8 is not supported"},
    {"awq", "{\"quant_method\":\"awq\",\"bits\":\"4\"}", "'bits' is no whole number"},
    {"awq", "{\"quant_method\":\"awq\"}", "'bits' is no whole number"},
    {"awq", "{\"quant_method\":\"awq\",\"bits\":4,\"version\":\"gemv\"}",
     "'version': 'gemv' is not supported (gemm|GEMM)"},
    {"awq", "{\"quant_method\":\"awq\",\"bits\":4,\"version\":\"ge\"}", "'version': 'ge'"},
    {"awq", "{\"quant_method\":\"awq\",\"bits\":4,\"zero_point\":false}", "'zero_point'"},
    {"awq", "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":0}", "'group_size' is 0"},
    {"awq", "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":1e300}", "'group_size'"},
    {"awq", "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":64}",
     "self_attn.q_proj.qzeros': I32 of 2 dimensions [2, 8]; expected I32 [1, 8]"},
    {"awq", "{\"quant_method\":\"fp8\"}", "self_attn.q_proj.weight' is missing"},
    {"awq", "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":32}",
     "self_attn.q_proj.qweight': I32 of 2 dimensions [64, 8]; expected I32 [8, 64]"},
    {"gptq", "{\"quant_method\":\"gptq\",\"bits\":3}", "'bits': 3 is not supported"},
    {"gptq", "{\"quant_method\":\"gptq\",\"bits\":4,\"checkpoint_format\":\"marlin\"}",
     "'checkpoint_format': 'marlin' is not supported (gptq|gptq_v2)"},
    {"fp8-block", "{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}", "'fmt': 'e5m2'"},
    {"fp8-block", "{\"quant_method\":\"fp8\",\"weight_block_size\":128}", "no pair of numbers"},
    {"fp8-block", "{\"quant_method\":\"fp8\",\"weight_block_size\":[0,128]}",
     "'weight_block_size' is no whole number of at least 1"},
    {"fp8-block", "{\"quant_method\":\"fp8\",\"weight_block_size\":[64,64]}",
     "weight_scale_inv': neither one scale nor 64 nor one a block of 64 x 64"},
    {"fp8-block", "null", "F8_E4M3 is no format of weights without"},
    {"ct-pack", "null", "self_attn.q_proj.weight' is missing"},
    {"ct-pack", CT("nvfp4-pack-quantized", "{}"), "'format': 'nvfp4-pack-quantized'"},
    {"ct-pack", "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\"}",
     "'config_groups' is no object of one group"},
    {"ct-pack", CT("pack-quantized", "7"), "'config_groups' is no object of one group"},
    {"ct-pack", CT("pack-quantized", "{\"num_bits\":8}"), "'num_bits': 8 is not supported"},
    {"ct-pack", CT("pack-quantized", "{\"num_bits\":4,\"type\":\"float\"}"), "'type': 'float'"},
    {"ct-pack", CT("pack-quantized", "{\"num_bits\":4,\"strategy\":\"tensor\"}"),
     "'strategy': 'tensor'"},
    {"ct-pack", CT("pack-quantized", "{\"num_bits\":4,\"group_size\":32,\"symmetric\":false}"),
     "self_attn.q_proj.weight_zero_point' is missing"},
    {"ct-pack-channel", CT("pack-quantized", "{\"num_bits\":4,\"symmetric\":true}"),
     "weight_zero_point' is no part of"},
    {"ct-fp8-channel", CT("float-quantized", "{\"num_bits\":4,\"type\":\"float\"}"),
     "floats of 4 bits are not supported"},
    {"ct-fp8-channel", CT("int-quantized", "{\"num_bits\":8}"), "'format': 'int-quantized'"},
};

static void what_is_not_read_is_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_configs / sizeof *bad_configs; i++) {
        char *from = xasprintf("checkpoints/%s", bad_configs[i].checkpoint);
        char *folder = copy_folder(from);
        edit(folder, "config.json", "quantization_config", bad_configs[i].config);
        assert_refused(folder, bad_configs[i].config, bad_configs[i].message);
        remove_folder(folder);
        free(from);
    }
}

/* ---- the tensors ---------------------------------------------------------------------------- */

/* Where the data of a tensor begins in a safetensors file; every entry ends with its offsets. */
static uint8_t *data_of(uint8_t *file, const char *tensor)
{
    uint64_t header;
    memcpy(&header, file, sizeof header);
    char *key = xasprintf("\"%s\":", tensor), *at = memmem(file, header, key, strlen(key));
    if (!at)
        fail_msg("no %s", tensor);
    free(key);
    char *offsets = strstr(at, "\"data_offsets\":[");
    assert_non_null(offsets);
    return file + 8 + header + strtoull(offsets + 16, NULL, 10);
}

static void put_file(const char *folder, const uint8_t *data, size_t n)
{
    char *path = xasprintf("%s/model.safetensors", folder);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    free(path);
}

/* A copy of a checkpoint with `bytes` written at byte `at` of a tensor. */
static char *patched(const char *checkpoint, const char *tensor, size_t at, const char *bytes,
                     size_t n)
{
    size_t size;
    char *from = xasprintf("checkpoints/%s", checkpoint);
    char *name = xasprintf("%s/model.safetensors", from), *folder = copy_folder(from);
    uint8_t *file = golden_bytes(name, &size);
    memcpy(data_of(file, tensor) + at, bytes, n);
    put_file(folder, file, size);
    free(file);
    free(name);
    free(from);
    return folder;
}

#define Q "model.layers.0.self_attn.q_proj."

static void numbers_that_are_none_are_refused_with_their_tensor(void **state)
{
    (void)state;
    static const struct {
        const char *checkpoint, *tensor;
        size_t at;
        const char *bytes;
        size_t n;
        const char *message;
    } bad[] = {
        {"awq", Q "scales", 6, "\0\x7c", 2, Q "scales': scale 3 is no finite number"},
        {"ct-pack", Q "weight_scale", 0, "\xc0\x7f", 2, Q "weight_scale': scale 0 is no finite"},
        {"fp8-block", Q "weight_scale_inv", 4, "\0\0\x80\xff", 4,
         Q "weight_scale_inv': scale 1 is no finite"},
        {"fp8-block", Q "weight", 4095, "\xff", 1, Q "weight': a weight is no number"},
        {"fp8-block", Q "weight", 0, "\x7f", 1, Q "weight': a weight is no number"},
        {"gptq-order", Q "g_idx", 4, "\2\0\0\0", 4, Q "g_idx': column 1 is in group 2 of 2"},
        {"gptq-order", Q "g_idx", 8, "\xff\xff\xff\xff", 4, "column 2 is in group -1 of 2"},
        {"ct-pack-order", Q "weight_g_idx", 252, "\0\0\0\x80", 4, "column 63 is in group -2147483"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *folder = patched(bad[i].checkpoint, bad[i].tensor, bad[i].at, bad[i].bytes, bad[i].n);
        assert_refused(folder, bad[i].tensor, bad[i].message);
        remove_folder(folder);
    }
}

/* A copy of a checkpoint with a word of its header replaced by one that is as long. */
static char *renamed(const char *checkpoint, const char *word, const char *by)
{
    size_t size;
    char *from = xasprintf("checkpoints/%s", checkpoint);
    char *name = xasprintf("%s/model.safetensors", from), *folder = copy_folder(from);
    uint8_t *file = golden_bytes(name, &size), *at = memmem(file, size, word, strlen(word));
    assert_int_equal(strlen(word), strlen(by));
    assert_non_null(at);
    memcpy(at, by, strlen(by));
    put_file(folder, file, size);
    free(file);
    free(name);
    free(from);
    return folder;
}

static void missing_and_misshapen_parts_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *checkpoint, *word, *by, *message;
    } bad[] = {
        {"awq", Q "qweight", Q "qweighs", Q "weight' is missing"},
        {"awq", Q "qzeros", Q "qzeroz", Q "qzeros' is missing"},
        {"awq", Q "scales", Q "scalez", Q "scales' is missing"},
        {"gptq-order", Q "g_idx\":{\"dtype\":\"I32\",\"shape\":[64]",
         Q "g_idx\":{\"dtype\":\"F32\",\"shape\":[64]", Q "g_idx': expected I32 [64]"},
        {"ct-pack", Q "weight_packed\":{\"dtype\":\"I32\",\"shape\":[64,8]",
         Q "weight_packed\":{\"dtype\":\"I32\",\"shape\":[8,64]",
         Q "weight_packed': I32 of 2 dimensions [8, 64]; expected I32 [64, 8]"},
        {"ct-pack", Q "weight_packed\":{\"dtype\":\"I32\"", Q "weight_packed\":{\"dtype\":\"F32\"",
         Q "weight_packed': F32 of 2 dimensions [64, 8]; expected I32 [64, 8]"},
        {"fp8-block", Q "weight_scale_inv", Q "weight_scale_inx",
         Q "weight_scale' or '_scale_inv' is missing"},
        {"fp8-block", "input_layernorm", "input_layernorn", "input_layernorm.weight' is missing"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *folder = renamed(bad[i].checkpoint, bad[i].word, bad[i].by);
        assert_refused(folder, bad[i].word, bad[i].message);
        remove_folder(folder);
    }
}

/* Of bitsandbytes, say, whose bytes are of a type that no method that is read has. */
/* A config need not say whether the head is one of its own: this one's is of 276 rows. */
static void a_quantized_head_is_a_head(void **state)
{
    (void)state;
    char *folder =
        renamed("gptq", "\"" Q "qweight\"", "\"lm_head.qweight\"                        ");
    edit(folder, "config.json", "tie_word_embeddings", NULL);
    assert_refused(folder, "lm_head", "'lm_head' [276, 64] is no whole number of words");
    remove_folder(folder);
}

static void an_unknown_method_is_named_before_its_tensors(void **state)
{
    (void)state;
    char *folder =
        renamed("awq", Q "qweight\":{\"dtype\":\"I32\"", Q "qweight\":{\"dtype\":\"U32\"");
    assert_refused(folder, "U32", Q "qweight': U32 of 2 dimensions");
    edit(folder, "config.json", "quantization_config", "{\"quant_method\":\"bitsandbytes\"}");
    assert_refused(folder, "bitsandbytes", "'quant_method': 'bitsandbytes' is not supported");
    remove_folder(folder);
}

/* A device that keeps F8 has a scale for 128 columns of a row. */
static void scales_for_fewer_columns_are_said_to_be_fine(void **state)
{
    (void)state;
    static const struct {
        const char *checkpoint;
        bool fine;
    } some[] = {{"fp8-block", true},
                {"ct-fp8-block", true},
                {"fp8-tensor", false},
                {"ct-fp8-channel", false},
                {"ct-pack", false}};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        char *name = xasprintf("checkpoints/%s", some[i].checkpoint), *path = golden_path(name);
        struct err err = {""};
        struct model *m = model_open(path, false, NULL, NULL, &err);
        if (!m)
            fail_msg("%s", err.msg);
        assert_int_equal(m->fine_scales, some[i].fine);
        model_close(m);
        free(path);
        free(name);
    }
}

/* A bf16 scale of 2^-60 is no half: that matrix becomes bf16, all others stay blocks. */
static void a_scale_that_is_no_half_costs_its_matrix_the_blocks(void **state)
{
    (void)state;
    struct err err = {""};
    char *folder = patched("ct-pack", Q "weight_scale", 2, "\x80\x21", 2);
    struct model *m = model_open(folder, false, NULL, NULL, &err);
    float row[64];
    if (!m)
        fail_msg("%s", err.msg);
    assert_int_equal(m->layer[0].wq.type, DTYPE_BF16);
    assert_int_equal(m->layer[0].wk.type, DTYPE_Q4_0);
    dequant_row(DTYPE_BF16, m->layer[0].wq.data, row, 64);
    for (int i = 0; i < 64; i++) /* the second group has the scale, times -8 .. 7 */
        assert_true(i < 32 ? fabsf(row[i]) < 4 : fabsf(row[i]) <= 0x1p-57f);
    model_close(m);
    remove_folder(folder);
}

static void no_file_stays_open(void **state)
{
    (void)state;
    char *path = golden_path("checkpoints/gptq");
    struct err err = {""};
    struct model *m = model_open(path, false, NULL, NULL, &err);
    if (!m)
        fail_msg("%s", err.msg);
    assert_int_equal(((const struct model_files *)m->files)->maps, 0);
    assert_ptr_equal(m->head.data, m->embed.data);
    assert_int_equal(m->embed.type, DTYPE_BF16);
    model_close(m);
    free(path);
}

/* Many rows are made by several threads, in stretches, in eights; one row alone is not. */
static void rows_do_not_depend_on_who_makes_them(void **state)
{
    (void)state;
    enum { ROWS = 1040, COLS = 512, WORDS = COLS / 8, GROUPS = COLS / 64 };
    uint32_t *code = xmalloc(sizeof(uint32_t) * ROWS * WORDS);
    float *scale = xmalloc(sizeof(float) * ROWS * GROUPS);
    int32_t index[COLS];
    size_t row = (size_t)dtype_bytes(DTYPE_Q4_0, COLS);
    uint8_t *all = xmalloc(row * ROWS), one[DTYPE_BYTES(DTYPE_Q4_0) * COLS / 32];
    for (uint32_t i = 0; i < ROWS * WORDS; i++)
        code[i] = i * 2654435761u;
    for (int i = 0; i < ROWS * GROUPS; i++)
        scale[i] = (float)(i % 1000 + 1) * 0x1p-12f;
    for (int i = 0; i < COLS; i++)
        index[i] = i / 64;
    struct source s = {.method = HF_PACKED,
                       .rows = ROWS,
                       .cols = COLS,
                       .group = 64,
                       .groups = GROUPS,
                       .code = code,
                       .scale = scale,
                       .type = DTYPE_Q4_0};
    assert_int_equal(hf_unpack_type(&s), DTYPE_Q4_0);
    assert_true(hf_unpack(&s, all));
    for (int r = 0; r < ROWS; r++) {
        struct source alone = s;
        alone.rows = 1;
        alone.code += r * WORDS;
        alone.scale += r * GROUPS;
        alone.index = index; /* and column by column */
        assert_true(hf_unpack(&alone, one));
        assert_memory_equal(one, all + row * (size_t)r, row);
    }
    free(all);
    free(scale);
    free(code);
}

/* Scales of activations and biases of zeros say nothing; a bias that says something is no part of
 * the model. */
static void a_bias_of_zeros_is_nothing(void **state)
{
    (void)state;
    struct tensor t = {.name = (char *)"model.layers.0.self_attn.o_proj.bias",
                       .dims = 1,
                       .dim = {2},
                       .type = DTYPE_F16,
                       .data = "\0\0\0\0",
                       .bytes = 4};
    assert_true(hf_quant_ignores(&t));
    t.data = "\0\0\0\1";
    assert_false(hf_quant_ignores(&t));
    t.name = (char *)"model.layers.0.self_attn.k_proj.k_scale";
    assert_true(hf_quant_ignores(&t));
    t.name = (char *)"model.layers.0.mlp.experts.0.scales";
    assert_false(hf_quant_ignores(&t));
}

/* Dynamic scales of inputs in FP8; static ones, integers and weights alone are no such wish. */
static void a_checkpoint_that_wants_fp8_activations_says_so(void **state)
{
    (void)state;
#define GROUP(format, weights, inputs)                                                         \
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"" format                            \
    "\",\"config_groups\":{\"group_0\":{\"weights\":" weights ",\"input_activations\":" inputs \
    "}}}"
#define F8 "{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"channel\"}"
    static const struct {
        const char *config;
        bool wants;
    } configs[] = {
        {"{\"quant_method\":\"fp8\",\"activation_scheme\":\"dynamic\"}", true},
        {"{\"quant_method\":\"fp8\",\"activation_scheme\":\"static\"}", false},
        {"{\"quant_method\":\"fp8\",\"activation_scheme\":1}", false},
        {"{\"quant_method\":\"fp8\"}", false},
        {"{\"quant_method\":\"fbgemm_fp8\",\"activation_scale_ub\":1200.0}", true},
        {GROUP("float-quantized", F8, "{\"num_bits\":8,\"type\":\"float\",\"dynamic\":true}"),
         true},
        {GROUP("float-quantized", F8, "{\"num_bits\":8,\"type\":\"float\",\"dynamic\":false}"),
         false},
        {GROUP("float-quantized", F8, "{\"num_bits\":8,\"type\":\"int\",\"dynamic\":true}"), false},
        {GROUP("float-quantized", F8, "{\"num_bits\":\"8\",\"dynamic\":true}"), false},
        {GROUP("float-quantized", F8, "null"), false},
        {GROUP("float-quantized", F8, "[true]"), false},
        {GROUP("pack-quantized", "{\"num_bits\":4,\"type\":\"int\"}",
               "{\"num_bits\":8,\"type\":\"float\",\"dynamic\":true}"),
         false}, /* activations in FP8 are for weights in FP8 */
    };
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        struct hf_quant q;
        struct err err = {""};
        cJSON *object = cJSON_Parse(configs[i].config);
        assert_non_null(object);
        if (hf_quant_read(object, "config.json", &q, &err) != 0)
            fail_msg("%s: %s", configs[i].config, err.msg);
        if (q.fp8_activations != configs[i].wants)
            fail_msg("%s", configs[i].config);
        cJSON_Delete(object);
    }
    static const char *const folders[] = {"checkpoints/fp8-block", "checkpoints/fp8-tensor"};
    for (int i = 0; i < 2; i++) {
        struct err err = {""};
        char *path = golden_path(folders[i]);
        struct model *m = model_open(path, false, NULL, NULL, &err);
        if (!m)
            fail_msg("%s", err.msg);
        assert_int_equal(m->fp8_activations, i == 0); /* dynamic; static */
        model_close(m);
        free(path);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_read_is_refused_by_name),
        cmocka_unit_test(numbers_that_are_none_are_refused_with_their_tensor),
        cmocka_unit_test(missing_and_misshapen_parts_are_named),
        cmocka_unit_test(a_quantized_head_is_a_head),
        cmocka_unit_test(an_unknown_method_is_named_before_its_tensors),
        cmocka_unit_test(scales_for_fewer_columns_are_said_to_be_fine),
        cmocka_unit_test(a_scale_that_is_no_half_costs_its_matrix_the_blocks),
        cmocka_unit_test(no_file_stays_open),
        cmocka_unit_test(rows_do_not_depend_on_who_makes_them),
        cmocka_unit_test(a_bias_of_zeros_is_nothing),
        cmocka_unit_test(a_checkpoint_that_wants_fp8_activations_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
