/* SPDX-License-Identifier: Apache-2.0 */
/* test_model_config.c - what the small files of a directory leave out or say in an odd way is read
 * as transformers reads it, and tensors that nobody needs do no harm. */
#include "tests/unit/engine/model_world.h"

/* What transformers' configuration classes say of a window that is absent, and of one that is null.
 */
static void a_window_that_is_left_out_is_what_the_class_says(void **state)
{
    (void)state;
    static const struct {
        const char *golden, *arch, *window, *use, *first, *layers;
        int32_t context;
    } rows[] = {
        {"tiny-llama", "Mistral", NULL, NULL, NULL, NULL, 4096},
        {"tiny-llama", "Mistral", "null", NULL, NULL, NULL, 32768},
        {"tiny-llama", "Mistral", "100", NULL, "28", NULL, 100},
        {"tiny-llama", "Mistral", "100", "false", NULL, NULL, 100}, /* no field of that class */
        {"tiny-llama", "Mistral", "null", "true", NULL, NULL, 32768},
        {"tiny-llama", "Mistral", "100", NULL, NULL, "[\"full_attention\"]", 100},
        {"tiny-llama", "Llama", NULL, NULL, NULL, NULL, 32768},
        {"tiny-qwen2", "Qwen2", NULL, NULL, NULL, NULL, 32768},
        {"tiny-qwen2", "Qwen2", NULL, "true", "0", NULL, 4096},
        {"tiny-qwen2", "Qwen2", "100", "true", "1", NULL, 100},
        {"tiny-qwen2", "Qwen2", "100", "true", "2", NULL, 32768}, /* it has two layers */
        {"tiny-qwen3", "Qwen3", NULL, "false", "0", NULL, 32768},
        {"tiny-qwen3", "Qwen3", NULL, "true", "0", NULL, 4096},
        {"tiny-qwen3", "Qwen3", NULL, "true", NULL, NULL, 32768}, /* from layer 28 on */
        {"tiny-qwen3", "Qwen3", "null", "true", "0", NULL, 32768},
        {"tiny-qwen3", "Qwen3", "100", "true", "0", "[\"full_attention\",\"full_attention\"]",
         32768},
        {"tiny-qwen3", "Qwen3", NULL, "true", "28", "[\"full_attention\",\"sliding_attention\"]",
         4096},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *folder = copy_folder(rows[i].golden);
        struct err err = {0};
        char *arch = xasprintf("[\"%sForCausalLM\"]", rows[i].arch);
        edit(folder, "config.json", "architectures", arch);
        edit(folder, "config.json", "max_position_embeddings", "32768");
        edit(folder, "config.json", "layer_types", rows[i].layers);
        edit(folder, "config.json", "max_window_layers", rows[i].first);
        edit(folder, "config.json", "sliding_window", rows[i].window);
        edit(folder, "config.json", "use_sliding_window", rows[i].use);
        struct model *m = model_open(folder, true, NULL, NULL, &err);
        if (!m || m->shape.max_context != rows[i].context)
            fail_msg("row %zu: context %d %s", i, m ? m->shape.max_context : 0, err.msg);
        model_close(m);
        free(arch);
        remove_folder(folder);
    }
}

static void rope_scaling_counts_before_rope_parameters(void **state)
{
    (void)state;
    static const struct {
        const char *scaling, *theta, *message; /* message NULL: the model opens */
        float base;
    } rows[] = {
        {"{\"rope_type\":\"su\",\"factor\":4}", "5e5", "'rope_scaling': type 'su'", 0},
        {"{\"rope_type\":\"default\"}", "5e5", NULL, 5e5F},
        {"{\"rope_type\":\"default\",\"rope_theta\":3e4}", "5e5", NULL, 3e4F},
        {"{\"rope_type\":\"default\",\"rope_theta\":3e4}", NULL, NULL, 3e4F},
        {"{\"rope_type\":\"linear\",\"factor\":4}", NULL,
         "'rope_scaling' counts before 'rope_parameters', where 'rope_theta' is", 0},
        {"{}", "5e5", NULL, 2e4F},
        {"null", "5e5", NULL, 2e4F},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *folder = copy_folder("tiny-llama");
        struct err err = {0};
        edit(folder, "config.json", "rope_parameters",
             "{\"rope_type\":\"default\",\"rope_theta\":2e4}");
        edit(folder, "config.json", "rope_scaling", rows[i].scaling);
        edit(folder, "config.json", "rope_theta", rows[i].theta);
        struct model *m = model_open(folder, true, NULL, NULL, &err);
        if (rows[i].message ? m || !strstr(err.msg, rows[i].message) : !m)
            fail_msg("row %zu: %s", i, m ? "a model" : err.msg);
        if (m && m->shape.rope_base != rows[i].base)
            fail_msg("row %zu: base %g", i, (double)m->shape.rope_base);
        model_close(m);
        remove_folder(folder);
    }
}

/* The files have two, so that the tensor at fault tells what was expected. */
static void kv_heads_that_are_null_are_all_heads(void **state)
{
    (void)state;
    static const struct {
        const char *golden, *arch, *kv_heads, *message;
    } rows[] = {
        {"tiny-llama", "[\"LlamaForCausalLM\"]", "null", "[32, 64]; expected [64, 64]"},
        {"tiny-llama", "[\"MistralForCausalLM\"]", "null", "[32, 64]; expected [64, 64]"},
        {"tiny-llama", "[\"MistralForCausalLM\"]", NULL, "4 attention heads do not divide by 8"},
        {"tiny-qwen3", "[\"Qwen3ForCausalLM\"]", "null", "[64, 64]; expected [128, 64]"},
        {"tiny-qwen3", "[\"Qwen3ForCausalLM\"]", NULL, "4 attention heads do not divide by 32"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *folder = copy_folder(rows[i].golden);
        edit(folder, "config.json", "architectures", rows[i].arch);
        edit(folder, "config.json", "num_key_value_heads", rows[i].kv_heads);
        assert_refused(folder, rows[i].arch, rows[i].message);
        remove_folder(folder);
    }
}

/* Adds a tensor behind the last of tiny-qwen3's. */
static void add_tensor(const char *folder, const char *name, const char *dtype, const char *shape,
                       const void *bytes, uint64_t count)
{
    size_t n;
    uint64_t header, data;
    uint8_t *file = golden_bytes("tiny-qwen3/model.safetensors", &n);
    char *path = xasprintf("%s/model.safetensors", folder);

    memcpy(&header, file, 8);
    data = n - 8 - header;
    char *entry = xasprintf("{\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%d,%d]},",
                            name, dtype, shape, (int)data, (int)(data + count));
    uint64_t more = (strlen(entry) + 6) / 8 * 8, length = header + more;
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fwrite(&length, 8, 1, f);
    fprintf(f, "%-*s", (int)more + 1, entry); /* instead of the brace */
    fwrite(file + 9, 1, n - 9, f);
    fwrite(bytes, 1, count, f);
    fclose(f);
    free(entry);
    free(path);
    free(file);
}

static void tensors_that_nobody_needs_may_be_of_any_kind(void **state)
{
    (void)state;
    static const struct {
        const char *name, *dtype, *shape;
        uint64_t bytes;
        const char *message; /* NULL: the model opens */
    } rows[] = {
        {"model.layers.0.self_attn.rotary_emb.inv_freq", "F64", "[1]", 8, NULL},
        {"model.layers.0.extra", "F32", "[0]", 0, NULL},
        {"model.layers.0.extra", "F64", "[4,0]", 0, NULL},
        {"model.layers.0.extra", "F64", "[1]", 8, "'model.layers.0.extra' is no part of"},
        {"model.layers.0.extra", "F32", "[2]", 8, "'model.layers.0.extra' is no part of"},
        {"model.layers.0.self_attn.q_proj.bias", "F64", "[1]", 8, "dtype F64 is not supported"},
        {"model.layers.0.self_attn.q_proj.bias", "F32", "[0]", 0, "expected a vector of 128"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *folder = copy_folder("tiny-qwen3");
        struct err err = {0};
        edit(folder, "config.json", "attention_bias", "true");
        add_tensor(folder, rows[i].name, rows[i].dtype, rows[i].shape, "\0\0\0\0\0\0\0\0",
                   rows[i].bytes);
        struct model *m = model_open(folder, true, NULL, NULL, &err);
        if (rows[i].message ? m || !strstr(err.msg, rows[i].message) : !m)
            fail_msg("row %zu: expected '%s', got '%s'", i,
                     rows[i].message ? rows[i].message : "a model", m ? "a model" : err.msg);
        model_close(m);
        remove_folder(folder);
    }
}

/* tiny-qwen3 has no head of its own: one is added to its file, [320, 64] like the embedding. */
static void a_tied_head_that_is_stored_is_a_copy_of_the_embedding(void **state)
{
    (void)state;
    enum { BYTES = 320 * 64 * 2 };
    struct model *m = open_golden("tiny-qwen3");
    uint8_t *data = xmalloc(BYTES);

    memcpy(data, m->embed.data, BYTES);
    model_close(m);
    for (int differs = 0; differs < 2; differs++) {
        char *folder = copy_folder("tiny-qwen3");
        struct err err = {0};
        data[BYTES - 1] ^= (uint8_t)differs;
        add_tensor(folder, "lm_head.weight", "BF16", "[320,64]", data, BYTES);
        m = model_open(folder, true, NULL, NULL, &err);
        if (!differs && m)
            assert_ptr_equal(m->head.data, m->embed.data);
        if (differs ? m || !strstr(err.msg, "'lm_head.weight' is no copy of") : !m)
            fail_msg("%d: %s", differs, m ? "a model" : err.msg);
        model_close(m);
        edit(folder, "config.json", "tie_word_embeddings", "false");
        m = model_open(folder, true, NULL, NULL, &err);
        if (!m || m->head.data == m->embed.data)
            fail_msg("%d: %s", differs, m ? "tied" : err.msg);
        model_close(m);
        remove_folder(folder);
    }
    free(data);
}

/* One of tiny-qwen3's biases, without the others: what comes after the check of the config. */
static void biases_that_the_config_does_not_speak_of_are_zero(void **state)
{
    (void)state;
    static const struct {
        const char *said;
        uint8_t value;
        const char *message; /* NULL: the message is about the biases that are missing */
    } rows[] = {
        {"true", 1, NULL},
        {"false", 0, NULL},
        {"false", 1, "'model.layers.1.self_attn.k_proj.bias' is a bias, but 'attention_bias'"},
        {NULL, 1, "'model.layers.1.self_attn.k_proj.bias' is a bias, but 'attention_bias'"},
        {"1", 1, "'attention_bias' is neither true nor false"},
    };
    uint8_t bias[2 * 32 * 2] = {0};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *folder = copy_folder("tiny-qwen3");
        edit(folder, "config.json", "attention_bias", rows[i].said);
        bias[sizeof bias - 2] = rows[i].value;
        add_tensor(folder, "model.layers.1.self_attn.k_proj.bias", "BF16", "[64]", bias,
                   sizeof bias);
        assert_refused(folder, "biases",
                       rows[i].message ? rows[i].message
                                       : "layer 1 has some of the q, k, v biases but not all");
        remove_folder(folder);
    }
}

/* As of a Llama with attention_bias, whose o_proj has one, and with mlp_bias. */
static void biases_of_other_matrices_are_zero(void **state)
{
    (void)state;
    static const char *const names[] = {"self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj"};
    uint8_t bias[64 * 2] = {0};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int value = 0; value < 2; value++) {
            char *folder = copy_folder("tiny-qwen3");
            char *name = xasprintf("model.layers.1.%s.bias", names[i]);
            char *message = xasprintf("tensor '%s' is a bias that is not zero", name);
            struct err err = {0};
            edit(folder, "config.json", "attention_bias", "true");
            edit(folder, "config.json", "mlp_bias", "true");
            bias[100] = (uint8_t)value;
            add_tensor(folder, name, "BF16", "[64]", bias, sizeof bias);
            struct model *m = model_open(folder, true, NULL, NULL, &err);
            if (value ? m || !strstr(err.msg, message) : !m)
                fail_msg("%s, %d: %s", name, value, m ? "a model" : err.msg);
            model_close(m);
            free(message);
            free(name);
            remove_folder(folder);
        }
}

/* What it was trained with stands in the scaling, or in the config itself, which counts then. */
static void the_context_before_scaling_may_stand_in_the_config_itself(void **state)
{
    (void)state;
    static const struct {
        const char *in_scaling, *itself;
        int32_t context;
    } rows[] = {{",\"original_max_position_embeddings\":128", NULL, 128},
                {",\"original_max_position_embeddings\":128", "64", 64},
                {"", "64", 64},
                {"", NULL, 512}};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *folder = copy_folder("tiny-llama");
        struct err err = {0};
        char *scaling = xasprintf("{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
                                  "\"high_freq_factor\":4%s}",
                                  rows[i].in_scaling);
        edit(folder, "config.json", "rope_parameters", scaling);
        edit(folder, "config.json", "original_max_position_embeddings", rows[i].itself);
        struct model *m = model_open(folder, true, NULL, NULL, &err);
        if (!m || m->shape.scaling.original_context != rows[i].context)
            fail_msg("row %zu: %d %s", i, m ? m->shape.scaling.original_context : 0, err.msg);
        model_close(m);
        free(scaling);
        remove_folder(folder);
    }
}

/* 65 and 66 are letters, so that nothing else makes ends of them; 319 is a row of the model that
 * the vocabulary has no token for. */
static void ends_are_those_of_generation_config_or_else_of_config(void **state)
{
    (void)state;
    static const struct {
        const char *generation, *config;
        bool ends[2]; /* 65, 66 */
    } rows[] = {
        {"{\"eos_token_id\":65}", "[66]", {true, false}},
        {"{\"eos_token_id\":[319,66]}", "[65]", {false, true}},
        {"{}", "[65,66]", {false, false}},
        {NULL, "[65,66]", {true, true}},
        {NULL, "66", {false, true}},
        {NULL, "null", {false, false}},
        {NULL, NULL, {false, false}},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *folder = copy_folder("tiny-qwen3");
        struct err err = {0};
        replace(folder, "generation_config.json", rows[i].generation);
        edit(folder, "config.json", "eos_token_id", rows[i].config);
        struct model *m = model_open(folder, true, NULL, NULL, &err);
        if (!m)
            fail_msg("row %zu: %s", i, err.msg);
        assert_true(tokenizer_vocab(m->tokenizer) <= 319);
        for (int32_t k = 0; k < 2; k++)
            if (tokenizer_is_stop(m->tokenizer, 65 + k) != rows[i].ends[k])
                fail_msg("row %zu: %d", i, 65 + k);
        model_close(m);
        remove_folder(folder);
    }
    char *folder = copy_folder("tiny-qwen3");
    replace(folder, "generation_config.json", NULL);
    edit(folder, "config.json", "eos_token_id", "[65,-1]");
    assert_refused(folder, "config.json", "config.json: eos_token_id is no id");
    remove_folder(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_window_that_is_left_out_is_what_the_class_says),
        cmocka_unit_test(rope_scaling_counts_before_rope_parameters),
        cmocka_unit_test(kv_heads_that_are_null_are_all_heads),
        cmocka_unit_test(tensors_that_nobody_needs_may_be_of_any_kind),
        cmocka_unit_test(biases_that_the_config_does_not_speak_of_are_zero),
        cmocka_unit_test(biases_of_other_matrices_are_zero),
        cmocka_unit_test(the_context_before_scaling_may_stand_in_the_config_itself),
        cmocka_unit_test(a_tied_head_that_is_stored_is_a_copy_of_the_embedding),
        cmocka_unit_test(ends_are_those_of_generation_config_or_else_of_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
