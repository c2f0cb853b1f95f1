/* SPDX-License-Identifier: Apache-2.0 */
/* test_model_refused.c - models with one thing wrong are refused with the name of that thing, and
 * what may be missing or odd is read as transformers reads it. */
#include "tests/unit/engine/model_world.h"

static const struct {
    const char *field, *value, *message;
} bad_configs[] = {
    {"architectures", NULL, "config.json: 'architectures' is missing"},
    {"architectures", "[\"GPT2LMHeadModel\"]", "GPT2LMHeadModel is not supported"},
    {"hidden_size", NULL, "'hidden_size' is missing"},
    {"hidden_size", "\"64\"", "'hidden_size' is not a number"},
    {"hidden_size", "64.5", "'hidden_size': 64.5 is no whole number"},
    {"hidden_size", "-64", "'hidden_size': -64 is no whole number"},
    {"hidden_size", "1e30", "no whole number in range"},
    {"hidden_size", "128", "tensor 'model.embed_tokens.weight': 2 dimensions [320, 64]"},
    {"hidden_size", "1000000", "hidden size is 1000000, expected 1 to 65536"},
    {"num_hidden_layers", "0", "layers is 0"},
    {"num_hidden_layers", "1", "'model.layers.1.input_layernorm.weight' is no part of"},
    {"num_hidden_layers", "3", "'model.layers.2.input_layernorm.weight' is missing"},
    {"num_hidden_layers", "2000000000", "layers is 2000000000"},
    {"num_attention_heads", "0", "attention heads is 0"},
    {"num_attention_heads", "3", "3 attention heads do not divide by 2 kv heads"},
    {"num_attention_heads", "8", "tensor 'model.layers.0.self_attn.q_proj.weight'"},
    {"num_key_value_heads", "4", "tensor 'model.layers.0.self_attn.k_proj.weight'"},
    {"intermediate_size", "95", "tensor 'model.layers.0.mlp.gate_proj.weight'"},
    {"head_dim", "15", "head size 15 is odd"},
    {"head_dim", "32", "tensor 'model.layers.0.self_attn.q_proj.weight'"},
    {"vocab_size", "300", "tensor 'model.embed_tokens.weight'"},
    {"max_position_embeddings", "0", "context length is 0"},
    {"rms_norm_eps", "0", "norm epsilon 0"},
    {"rms_norm_eps", "[]", "'rms_norm_eps' is not a number"},
    {"hidden_act", "\"gelu\"", "'hidden_act': 'gelu' is not supported"},
    {"hidden_act", "1", "'hidden_act' is not a string"},
    {"tie_word_embeddings", "1", "'tie_word_embeddings' is neither true nor false"},
    {"quantization_config", "{\"bits\":4}", "'quantization_config'"},
    {"partial_rotary_factor", "0.5", "'partial_rotary_factor': 0.5"},
    {"layer_types", "[\"chunked_attention\"]", "'layer_types': 'chunked_attention'"},
    {"rope_parameters", "[]", "'rope_parameters' is not an object"},
    {"rope_parameters", "{\"rope_type\":\"longrope\"}", "type 'longrope' is not supported"},
    {"rope_parameters", "{\"rope_type\":\"llama3\"}", "'factor' is missing"},
    {"rope_parameters", "{\"rope_theta\":0}", "rope base 0"},
    {"rope_parameters", "{\"full_attention\":{}}", "'full_attention': scaling by kind of layer"},
    {"rope_parameters",
     "{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":1}",
     "make no sense"},
};

static void every_field_of_the_config_is_checked_and_named(void **state)
{
    (void)state;

    for (size_t i = 0; i < sizeof bad_configs / sizeof *bad_configs; i++) {
        char *folder = copy_folder("tiny-llama");
        edit(folder, "config.json", bad_configs[i].field, bad_configs[i].value);
        assert_refused(folder, bad_configs[i].field, bad_configs[i].message);
        remove_folder(folder);
    }
}

static void missing_and_damaged_files_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *file, *text, *message;
    } cases[] = {
        {"config.json", NULL, "config.json: No such file"},
        {"config.json", "", "config.json: the file is empty"},
        {"config.json", "{\"architectures\":", "config.json: not valid JSON"},
        {"config.json", "[]", "config.json: not a JSON object"},
        {"tokenizer.json", NULL, "tokenizer.json"},
        {"tokenizer.json", "{}", "tokenizer.json"},
        {"model.safetensors.index.json", NULL, "model.safetensors: No such file"},
        {"model.safetensors.index.json", "{}", "'weight_map' is no object"},
        {"model.safetensors.index.json", "{\"weight_map\":{\"a\":\"../x\"}}",
         "weight_map: 'a' is in no file of this directory"},
        {"model.safetensors.index.json", "{\"weight_map\":{\"a\":\"x\"}}", "/x: No such file"},
        {"model.safetensors.index.json",
         "{\"weight_map\":{\"a\":\"model-00001-of-00003.safetensors\"}}",
         "tensor 'a' is not in model-00001"},
        {"model-00002-of-00003.safetensors", NULL, "model-00002-of-00003.safetensors: No such"},
        {"model-00002-of-00003.safetensors", "short", "ends inside the header length"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *folder = copy_folder("tiny-llama");
        replace(folder, cases[i].file, cases[i].text);
        assert_refused(folder, cases[i].file, cases[i].message);
        remove_folder(folder);
    }
    assert_refused("/no/such/folder/model.gguf", "no file", "model.gguf: No such file");
    assert_refused("/dev/null", "a device", "/dev/null: not a regular file");
    char *folder = copy_folder("tiny-llama"), *fifo = xasprintf("%s/fifo.gguf", folder);
    assert_int_equal(mkfifo(fifo, 0600), 0); /* nobody writes: it is not waited for */
    assert_refused(fifo, "a FIFO", "fifo.gguf: not a regular file");
    free(fifo);
    remove_folder(folder);
}

/* What people name in the place of a model, as files beside each other or instead of them. */
static void what_is_no_model_is_told_from_its_files(void **state)
{
    (void)state;
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\n"
                                  "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32\nsize 98\n";
    static const struct {
        const char *without[3]; /* files of tiny-qwen3 that are taken away */
        const char *with, *text;
        const char *named; /* what is opened of the folder; NULL: the folder */
        const char *message;
    } rows[] = {
        {{NULL}, "model.safetensors", pointer, NULL, "; model.safetensors is a Git LFS pointer"},
        {{NULL}, "tokenizer.json", pointer, NULL, "; tokenizer.json is a Git LFS pointer"},
        {{NULL}, "m.gguf", pointer, "m.gguf", "; it is a Git LFS pointer"},
        {{"config.json"},
         "adapter_config.json",
         "{}",
         NULL,
         "No such file or directory; this is an adapter"},
        {{"config.json"}, "snapshots", "", NULL, "; this is a Hugging Face cache"},
        {{"config.json"},
         "m.gguf",
         "GGUF",
         NULL,
         "; a GGUF file is named itself: /tmp/whet-model-"},
        {{"model.safetensors"}, "pytorch_model.bin", "PK", NULL, "; pytorch_model.bin is not read"},
        {{"tokenizer.json"}, "tokenizer.model", "x", NULL, "; tokenizer.model is not read"},
        {{"tokenizer.json"}, "vocab.json", "{}", NULL, "; vocab.json and merges.txt are not read"},
        {{NULL},
         "m.gguf",
         "GGUF",
         "model.safetensors",
         "\"GGUF\"); name the folder that it lies in"},
        {{NULL}, "m.gguf", "GGUF", "x.safetensors", "x.safetensors: No such file or directory"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *folder = copy_folder("tiny-qwen3");
        for (int k = 0; rows[i].without[k]; k++)
            replace(folder, rows[i].without[k], NULL);
        replace(folder, rows[i].with, rows[i].text);
        char *path = xasprintf("%s%s%s", folder, rows[i].named ? "/" : "",
                               rows[i].named ? rows[i].named : "");
        assert_refused(path, rows[i].with, rows[i].message);
        free(path);
        remove_folder(folder);
    }
}

static void the_context_ends_where_a_sliding_window_would_begin(void **state)
{
    (void)state;
    char *folder = copy_folder("tiny-llama");
    struct err err;

    edit(folder, "config.json", "architectures", "[\"MistralForCausalLM\"]");
    edit(folder, "config.json", "sliding_window", "100");
    struct model *m = model_open(folder, true, NULL, NULL, &err);
    assert_non_null(m);
    assert_int_equal(m->shape.max_context, 100);
    model_close(m);
    edit(folder, "config.json", "architectures", "[\"LlamaForCausalLM\"]");
    m = model_open(folder, true, NULL, NULL, &err);
    assert_non_null(m);
    assert_int_equal(m->shape.max_context, 512); /* a field Llama does not have */
    model_close(m);
    remove_folder(folder);
}

/* A [PAD], say, for which the model was not made larger. tiny-qwen3 has 320 rows. */
static void added_tokens_behind_the_rows_of_a_model_are_left_out(void **state)
{
    (void)state;
    char *folder = copy_folder("tiny-qwen3");
    const char *added = "[{\"id\":256,\"content\":\"<|endoftext|>\",\"special\":true},"
                        "{\"id\":257,\"content\":\"<|im_end|>\",\"special\":true},"
                        "{\"id\":319,\"content\":\"[LAST]\",\"special\":true},"
                        "{\"id\":320,\"content\":\"[PAD]\",\"special\":true}]";
    int32_t *ids;
    edit(folder, "tokenizer.json", "added_tokens", added);
    struct model *m = model_open(folder, true, NULL, NULL, NULL);
    assert_non_null(m);
    assert_int_equal(tokenizer_vocab(m->tokenizer), 320);
    assert_int_equal(tokenizer_find(m->tokenizer, "[LAST]"), 319);
    assert_int_equal(tokenizer_find(m->tokenizer, "[PAD]"), -1);
    int64_t n = tokenizer_encode(m->tokenizer, "[PAD]", 5, false, &ids, NULL);
    assert_int_equal(n, 5); /* a text like any other */
    for (int64_t i = 0; i < n; i++)
        assert_true(ids[i] < 256);
    free(ids);
    model_close(m);
    edit(folder, "tokenizer_config.json", "eos_token", "\"[PAD]\"");
    assert_refused(folder, "[PAD]", "eos_token '[PAD]' has the id 320, but the model has 320");
    remove_folder(folder);
}

static void rope_scaling_of_older_configs_is_read(void **state)
{
    (void)state;
    char *folder = copy_folder("tiny-llama");
    struct err err;

    edit(folder, "config.json", "rope_parameters", NULL);
    edit(folder, "config.json", "rope_theta", "500000.0");
    edit(folder, "config.json", "rope_scaling",
         "{\"rope_type\":\"llama3\",\"factor\":32.0,\"low_freq_factor\":1.0,"
         "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192}");
    struct model *m = model_open(folder, true, NULL, NULL, &err);
    assert_non_null(m);
    assert_true(m->shape.rope_base == 500000 && m->shape.scaling.type == ROPE_LLAMA3);
    assert_true(m->shape.scaling.factor == 32);
    model_close(m);
    remove_folder(folder);
}

/* Bytes to write `skip` behind a key or tensor name of tiny-llama.gguf: 0 is the value's type, 4 a
 * scalar value, 12 the text of a string, 16 the first item of an array, -1 the name itself. */
struct bad_gguf {
    const char *find;
    int skip;
    const char *bytes;
    size_t n;
    const char *message;
};

static const struct bad_gguf bad_ggufs[] = {
    {"general.architecture", 12, "lxama", 5, "'general.architecture': 'lxama' is not supported"},
    {"general.architecture", -1, "x", 1, "'general.architecture' is missing"},
    {"llama.block_count", -1, "x", 1, "'llama.block_count' is missing"},
    {"llama.block_count", 4, "\1", 1, "tensor 'blk.1.attn_k.weight' is no part of"},
    {"llama.block_count", 4, "\3", 1, "tensor 'blk.2.attn_norm.weight' is missing"},
    {"llama.block_count", 4, "\xff\xff\xff\xff", 4, "'llama.block_count'"},
    {"llama.block_count", 0, "\6", 1, "'llama.block_count': 2.8026e-45 is no whole number"},
    {"llama.embedding_length", 4, "\x41", 1, "tensor 'token_embd.weight'"},
    {"llama.feed_forward_length", 4, "\x61", 1, "tensor 'blk.0.ffn_gate.weight'"},
    {"llama.attention.head_count", 4, "\0", 1, "attention heads is 0"},
    {"llama.attention.head_count_kv", 4, "\3", 1, "do not divide by 3 kv heads"},
    {"llama.attention.layer_norm_rms_epsilon", 4, "\0\0\x80\x7f", 4, "not a finite number"},
    {"llama.rope.dimension_count", 4, "\x8", 1, "'llama.rope.dimension_count': 8"},
    {"llama.rope.freq_base", 4, "\0\0\0\0", 4, "rope base 0"},
    {"llama.vocab_size", 4, "\x3f", 1, "tensor 'token_embd.weight'"},
    {"tokenizer.ggml.model", 12, "llam", 4, "'tokenizer.ggml.model': 'llam' is not supported"},
    {"tokenizer.ggml.pre", 12, "what?", 5, "what?"},
    {"tokenizer.ggml.pre", -1, "x", 1, "'tokenizer.ggml.pre' is missing"},
    {"tokenizer.ggml.tokens", -1, "x", 1, "'tokenizer.ggml.tokens' is missing"},
    {"tokenizer.ggml.merges", -1, "x", 1, "'tokenizer.ggml.merges' is missing"},
    {"tokenizer.ggml.token_type", 16, "\x9", 1, "'tokenizer.ggml.token_type': token 0 has"},
    {"tokenizer.ggml.bos_token_id", 4, "\xff\xff", 2, "'tokenizer.ggml.bos_token_id': 65535"},
    {"tokenizer.ggml.eos_token_id", 0, "\6", 1, "'tokenizer.ggml.eos_token_id': is f32"},
    {"output_norm.weight", -1, "x", 1, "tensor 'output_norm.weight' is missing"},
    {"rope_freqs.weight", 4, "\7", 1, "tensor 'rope_freqs.weight': expected 8 values"},
    {"blk.1.ffn_up.weight", -1, "x", 1, "tensor 'blk.1.ffn_up.weight' is missing"},
};

/* ... of tokenizer/pieces.gguf, a vocabulary of SentencePiece */
static const struct bad_gguf bad_pieces[] = {
    {"tokenizer.ggml.scores", -1, "x", 1, "'tokenizer.ggml.scores' is missing"},
    {"tokenizer.ggml.scores", 4, "\5", 1, "'tokenizer.ggml.scores': is i32 array"},
    {"tokenizer.ggml.scores", 16 + 4 * 300, "\0\0\xc0\x7f", 4,
     "score of token 300 is not a number"},
    {"tokenizer.ggml.unknown_token_id", 4, "\xff\xff", 2,
     "'tokenizer.ggml.unknown_token_id': 65535"},
};

static void expect_bad(int fd, const char *path, const char *golden, const struct bad_gguf *row)
{
    size_t n;
    uint8_t *bad = golden_bytes(golden, &n), *at;
    char key[80]; /* with its length in front, so that no longer key matches */
    uint64_t length = strlen(row->find);
    memcpy(key, &length, 8);
    memcpy(key + 8, row->find, length);
    at = memmem(bad, n, key, 8 + length);
    if (!at)
        fail_msg("no '%s' in the file", row->find);
    memcpy(at + 8 + length + row->skip, row->bytes, row->n);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, bad, n, 0), n);
    assert_refused(path, row->find, row->message);
    free(bad);
}

static void every_field_of_a_gguf_model_is_checked_and_named(void **state)
{
    (void)state;
    char path[] = "/tmp/whet-gguf-XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    for (size_t i = 0; i < sizeof bad_ggufs / sizeof *bad_ggufs; i++)
        expect_bad(fd, path, "tiny-llama.gguf", &bad_ggufs[i]);
    for (size_t i = 0; i < sizeof bad_pieces / sizeof *bad_pieces; i++)
        expect_bad(fd, path, "tokenizer/pieces.gguf", &bad_pieces[i]);
    close(fd);
    unlink(path);
}

static void what_a_gguf_model_asks_for_and_is_not_computed_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *key[3], *message; /* NULL: the model opens */
        bool pieces;                  /* of the file with a SentencePiece vocabulary */
    } rows[] = {
        {{"llama.rope.scaling.factor:4"}, "'rope_freqs.weight': not supported beside"},
        {{"llama.rope.scaling.factor:1"}, NULL},
        {{"llama.rope.scaling.factor:0"}, NULL},
        {{"llama.rope.scale_linear:2"}, "'rope_freqs.weight': not supported beside"},
        {{"llama.rope.scaling.factor:4", "llama.rope.scaling.type=none"}, NULL},
        {{"llama.rope.scaling.factor:4", "llama.rope.scaling.type=linear"},
         "'rope_freqs.weight': not supported beside"},
        {{"llama.rope.scaling.type=linear"}, NULL},
        {{"llama.rope.scaling.type=longrope"}, "'llama.rope.scaling.type': 'longrope' is not"},
        {{"llama.attention.causal?0"}, "'llama.attention.causal': false"},
        {{"llama.attention.causal?1"}, NULL},
        {{"tokenizer.ggml.add_space_prefix?1"}, "'tokenizer.ggml.add_space_prefix': not supported"},
        {{"tokenizer.ggml.add_space_prefix?1"}, NULL, true},
        {{"tokenizer.ggml.remove_extra_whitespaces?1"},
         "'tokenizer.ggml.remove_extra_whitespaces': not supported",
         true},
        {{"tokenizer.ggml.remove_extra_whitespaces?0"}, NULL, true},
        {{"tokenizer.ggml.precompiled_charsmap=x"}, "'tokenizer.ggml.precompiled_charsmap'", true},
    };
    char path[] = "/tmp/whet-gguf-XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct err err = {0};
        write_gguf(fd, rows[i].pieces ? "tokenizer/pieces.gguf" : "tiny-llama.gguf", rows[i].key);
        struct model *m = model_open(path, true, NULL, NULL, &err);
        if (rows[i].message ? m || !strstr(err.msg, rows[i].message) : !m)
            fail_msg("%s: expected '%s', got '%s'", rows[i].key[0],
                     rows[i].message ? rows[i].message : "a model", m ? "a model" : err.msg);
        model_close(m);
    }
    close(fd);
    unlink(path);
}

static void a_gguf_file_says_whether_a_space_comes_in_front(void **state)
{
    (void)state;
    static const char *const keys[][2] = {{"tokenizer.ggml.add_space_prefix?1"},
                                          {"tokenizer.ggml.add_space_prefix?0"},
                                          {"general.description=silent"}};
    static const char *const spelled[] = {" int", "int", " int"};
    char path[] = "/tmp/whet-gguf-XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    for (int i = 0; i < 3; i++) {
        char got[16] = "";
        int32_t *ids;
        size_t length;
        write_gguf(fd, "tokenizer/pieces.gguf", keys[i]);
        struct model *m = model_open(path, true, NULL, NULL, NULL);
        assert_non_null(m);
        int64_t n = tokenizer_encode(m->tokenizer, "int", 3, false, &ids, NULL);
        for (int64_t k = 0; k < n; k++) {
            const char *bytes = tokenizer_bytes(m->tokenizer, ids[k], false, &length);
            strncat(got, bytes, length);
        }
        assert_string_equal(got, spelled[i]);
        char *text = tokenizer_decode(m->tokenizer, ids, n, false, &length);
        assert_string_equal(text, "int");
        free(text);
        free(ids);
        model_close(m);
    }
    close(fd);
    unlink(path);
}

static void divisors_that_are_no_llama3_scaling_are_refused(void **state)
{
    (void)state;
    size_t n;
    uint8_t *file = golden_bytes("tiny-llama.gguf", &n);
    char path[] = "/tmp/whet-gguf-XXXXXX";
    int fd = mkstemp(path);
    static const float divisors[8] = {1, 1, 1, 1, 1, 1, 5.9f, 8};
    /* the stored ones: 1 .. 1, about 2.6, 8 - found by their last value */
    uint8_t *at = NULL;
    float eight = 8;

    for (size_t i = 0; i + 32 <= n && !at; i += 32) {
        float one = 1;
        if (!memcmp(file + i, &one, 4) && !memcmp(file + i + 4, &one, 4) &&
            !memcmp(file + i + 28, &eight, 4))
            at = file + i;
    }
    assert_non_null(at);
    memcpy(at, divisors, sizeof divisors);
    assert_int_equal(write(fd, file, n), n);
    assert_refused(path, "rope_freqs", "tensor 'rope_freqs.weight': value 6 is 5.9");
    close(fd);
    unlink(path);
    free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field_of_the_config_is_checked_and_named),
        cmocka_unit_test(missing_and_damaged_files_are_named),
        cmocka_unit_test(what_is_no_model_is_told_from_its_files),
        cmocka_unit_test(the_context_ends_where_a_sliding_window_would_begin),
        cmocka_unit_test(added_tokens_behind_the_rows_of_a_model_are_left_out),
        cmocka_unit_test(rope_scaling_of_older_configs_is_read),
        cmocka_unit_test(every_field_of_a_gguf_model_is_checked_and_named),
        cmocka_unit_test(what_a_gguf_model_asks_for_and_is_not_computed_is_refused),
        cmocka_unit_test(a_gguf_file_says_whether_a_space_comes_in_front),
        cmocka_unit_test(divisors_that_are_no_llama3_scaling_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
