/* test_model.c - opening models: the tiny ones that transformers wrote (scripts/make-golden-model),
 * copies of them with one thing wrong, random ones, and the default model if WHET_TEST_MODEL names
 * its file. */
#include "tests/unit/unit.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/model.h"
#include "engine/quant.h"
#include "engine/tokenizer.h"
#include "tests/unit/engine/golden.h"

static struct model *open_golden(const char *name)
{
    struct err err;
    char *path = golden_path(name);
    struct model *m = model_open(path, true, NULL, NULL, &err);
    if (!m)
        fail_msg("%s", err.msg);
    free(path);
    return m;
}

/* ---- where the weights lie --------------------------------------------------------------------
 */

static void copied_weights_keep_their_addresses_and_bytes(void **state)
{
    (void)state;
    struct model *m = open_golden("tiny-llama");
    const struct weight *w = &m->layer[1].down;
    size_t bytes = (size_t)w->rows * (size_t)w->cols * 2;
    const void *at = w->data;
    char *before = malloc(bytes);
    memcpy(before, at, bytes);
    assert_int_equal(model_copy_weights(m, 1000), 0); /* more than that: they stay */
    int64_t moved = model_copy_weights(m, INT64_MAX);
    assert_true(moved > (int64_t)bytes);
    assert_ptr_equal(w->data, at);
    assert_memory_equal(at, before, bytes);
    assert_int_equal(model_copy_weights(m, INT64_MAX), 0); /* once */
    free(before);
    model_close(m);
}

static void copied_weights_survive_the_file_being_cut(void **state)
{
    (void)state;
    struct err err;
    char *from = golden_path("tiny-llama"), dir[] = "/tmp/whet-model-XXXXXX", command[600];
    assert_non_null(mkdtemp(dir));
    snprintf(command, sizeof command, "cp %s/* %s", from, dir);
    assert_int_equal(system(command), 0);
    struct model *m = model_open(dir, false, NULL, NULL, &err);
    assert_non_null(m);
    const struct weight *w = &m->layer[1].down;
    uint16_t last = ((const uint16_t *)w->data)[w->rows * w->cols - 1];
    assert_true(model_copy_weights(m, INT64_MAX) > 0);
    snprintf(command, sizeof command, "truncate -s 10 %s/*.safetensors", dir);
    assert_int_equal(system(command), 0);
    assert_int_equal(((const uint16_t *)w->data)[w->rows * w->cols - 1], last);
    model_close(m);
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
    free(from);
}

/* ---- what transformers wrote ------------------------------------------------------------------
 */

static void a_llama_directory_opens_with_its_config(void **state)
{
    (void)state;
    struct model *m = open_golden("tiny-llama");
    const struct model_shape *s = &m->shape;

    assert_int_equal(s->arch, ARCH_LLAMA);
    assert_int_equal(s->layers, 2);
    assert_int_equal(s->hidden, 64);
    assert_int_equal(s->heads, 4);
    assert_int_equal(s->kv_heads, 2);
    assert_int_equal(s->head_dim, 16);
    assert_int_equal(s->ffn, 96);
    assert_int_equal(s->vocab, 320);
    assert_int_equal(s->max_context, 512);
    assert_true(s->eps == 1e-5f && s->rope_base == 10000);
    assert_false(s->rope_interleaved);
    assert_false(s->tied_head);
    assert_true(m->head.data != m->embed.data);
    assert_true(s->scaling.llama3 && s->scaling.factor == 8 && s->scaling.low_freq_factor == 1 &&
                s->scaling.high_freq_factor == 4);
    assert_int_equal(s->scaling.original_context, 8192);
    assert_int_equal(m->layer[1].down.rows, 64);
    assert_int_equal(m->layer[1].down.cols, 96);
    assert_int_equal(m->layer[1].down.type, DTYPE_BF16);
    assert_null(m->layer[0].bq);
    assert_null(m->layer[0].q_norm);
    assert_string_equal(m->name, "tiny-llama");
    assert_string_equal(m->description, "tiny-llama, BF16, 0.2 MB");
    assert_int_equal(tokenizer_vocab(m->tokenizer), 276);
    assert_int_equal(tokenizer_eos(m->tokenizer), 257);
    assert_non_null(strstr(m->chat_template, "<|im_start|>assistant"));
    model_close(m);
}

static void qwen2_has_biases_and_a_tied_head(void **state)
{
    (void)state;
    struct model *m = open_golden("tiny-qwen2");
    double sum = 0;

    assert_int_equal(m->shape.arch, ARCH_QWEN2);
    assert_true(m->shape.tied_head);
    assert_ptr_equal(m->head.data, m->embed.data);
    assert_non_null(m->layer[1].bk);
    for (int i = 0; i < 32; i++)
        sum += fabs((double)m->layer[1].bk[i]);
    assert_true(sum > 1);
    assert_null(m->layer[1].k_norm);
    model_close(m);
}

static void qwen3_has_head_norms_and_its_own_head_size(void **state)
{
    (void)state;
    struct model *m = open_golden("tiny-qwen3");

    assert_int_equal(m->shape.arch, ARCH_QWEN3);
    assert_int_equal(m->shape.head_dim, 32);
    assert_true(m->shape.rope_base == 1e6f);
    assert_non_null(m->layer[1].q_norm);
    assert_non_null(m->layer[1].k_norm);
    assert_null(m->layer[1].bq);
    assert_int_equal(m->layer[0].wq.rows, 128);
    assert_int_equal(m->layer[0].wo.cols, 128);
    model_close(m);
}

/* Compares rows of bf16, those of `a` in interleaved rotary order within heads of `head` rows. */
static void assert_same_rows(const struct weight *a, const struct weight *b, int head)
{
    assert_int_equal(a->rows, b->rows);
    assert_int_equal(a->cols, b->cols);
    for (int r = 0; r < a->rows; r++) {
        int in_head = r % head, pair = in_head % 2 * (head / 2) + in_head / 2;
        int other = head > 1 ? r - in_head + pair : r;
        size_t bytes = (size_t)a->cols * 2;
        assert_memory_equal((const char *)a->data + (size_t)r * bytes,
                            (const char *)b->data + (size_t)other * bytes, bytes);
    }
}

static void a_gguf_file_holds_the_same_model_as_the_directory(void **state)
{
    (void)state;
    struct model *g = open_golden("tiny-llama.gguf"), *d = open_golden("tiny-llama");
    struct model_shape same = g->shape;

    assert_true(g->shape.rope_interleaved);
    same.rope_interleaved = false;
    assert_memory_equal(&same, &d->shape, sizeof same); /* Llama 3 scaling recovered as well */
    assert_same_rows(&g->embed, &d->embed, 1);
    assert_same_rows(&g->head, &d->head, 1);
    for (int i = 0; i < 2; i++) {
        const struct layer *a = &g->layer[i], *b = &d->layer[i];
        assert_same_rows(&a->wq, &b->wq, 16);
        assert_same_rows(&a->wk, &b->wk, 16);
        assert_same_rows(&a->wv, &b->wv, 1);
        assert_same_rows(&a->gate, &b->gate, 1);
        assert_same_rows(&a->up, &b->up, 1);
        assert_same_rows(&a->down, &b->down, 1);
        assert_int_equal(a->wo.type, DTYPE_F32);
        float row[64];
        dequant_row(DTYPE_BF16, b->wo.data, row, 64);
        assert_memory_equal(a->wo.data, row, sizeof row);
        assert_memory_equal(a->attn_norm, b->attn_norm, 64 * sizeof(float));
        assert_memory_equal(a->mlp_norm, b->mlp_norm, 64 * sizeof(float));
    }
    assert_string_equal(g->name, "tiny-llama");
    assert_non_null(strstr(g->description, "Tiny Llama, BF16"));
    assert_int_equal(tokenizer_vocab(g->tokenizer), tokenizer_vocab(d->tokenizer));
    assert_string_equal(g->chat_template, d->chat_template);
    model_close(g);
    model_close(d);
}

static void rotary_frequencies_are_those_of_transformers(void **state)
{
    (void)state;
    cJSON *golden = golden_json("rope.json"), *entry;
    int scaled = 0;

    cJSON_ArrayForEach(entry, golden)
    {
        const cJSON *s = cJSON_GetObjectItem(entry, "scaling");
        struct model_shape shape = {0};
        double f[64];
        shape.head_dim = cJSON_GetObjectItem(entry, "head_dim")->valueint;
        shape.rope_base = (float)cJSON_GetObjectItem(entry, "theta")->valuedouble;
        if (cJSON_IsArray(s)) {
            shape.scaling = (struct rope_scaling){
                true, (float)cJSON_GetArrayItem(s, 0)->valuedouble,
                (float)cJSON_GetArrayItem(s, 1)->valuedouble,
                (float)cJSON_GetArrayItem(s, 2)->valuedouble, cJSON_GetArrayItem(s, 3)->valueint};
            scaled++;
        }
        model_rope_frequencies(&shape, f);
        const cJSON *list = cJSON_GetObjectItem(entry, "frequency");
        assert_int_equal(cJSON_GetArraySize(list), shape.head_dim / 2);
        for (int i = 0; i < shape.head_dim / 2; i++) {
            double want = cJSON_GetArrayItem(list, i)->valuedouble;
            if (!(fabs(f[i] - want) <= 2e-6 * want))
                fail_msg("head %d, frequency %d: %.9g, expected %.9g", shape.head_dim, i, f[i],
                         want);
        }
    }
    assert_int_equal(scaled, 3);
    cJSON_Delete(golden);
}

struct seen {
    double last;
    int calls;
};

static void note(void *ctx, double fraction)
{
    struct seen *s = ctx;
    assert_true(fraction >= s->last && fraction <= 1);
    s->last = fraction;
    s->calls++;
}

static void progress_rises_to_one_over_all_shards(void **state)
{
    (void)state;
    struct seen seen = {0, 0};
    char *path = golden_path("tiny-llama");
    struct model *m = model_open(path, false, note, &seen, NULL);

    assert_non_null(m);
    assert_null(m->tokenizer); /* not asked for */
    assert_true(seen.last == 1);
    assert_int_equal(seen.calls, 1 + 3);
    model_close(m);
    free(path);
}

/* ---- copies with one thing wrong
 * ----------------------------------------------------------------- */

/* A folder of its own whose files are links to those of a golden model. */
static char *copy_folder(const char *name)
{
    static const char *const files[] = {"config.json",
                                        "generation_config.json",
                                        "tokenizer.json",
                                        "chat_template.jinja",
                                        "tokenizer_config.json",
                                        "model.safetensors",
                                        "model.safetensors.index.json",
                                        "model-00001-of-00003.safetensors",
                                        "model-00002-of-00003.safetensors",
                                        "model-00003-of-00003.safetensors"};
    char *folder = xstrdup("/tmp/whet-model-XXXXXX"), *from = golden_path(name);

    assert_non_null(mkdtemp(folder));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *source = xasprintf("%s/%s", from, files[i]);
        char *real = realpath(source, NULL), *link = xasprintf("%s/%s", folder, files[i]);
        if (real)
            assert_int_equal(symlink(real, link), 0);
        free(source);
        free(real);
        free(link);
    }
    free(from);
    return folder;
}

static void remove_folder(char *folder)
{
    char *command = xasprintf("rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
    free(command);
    free(folder);
}

/* Replaces a file of the folder by `text`; removes it if that is NULL. */
static void replace(const char *folder, const char *name, const char *text)
{
    char *path = xasprintf("%s/%s", folder, name);
    unlink(path);
    if (text) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs(text, f);
        fclose(f);
    }
    free(path);
}

/* Sets a field of a JSON file of the folder, or removes it if `value` is NULL. */
static void edit(const char *folder, const char *name, const char *field, const char *value)
{
    char *path = xasprintf("%s/%s", folder, name);
    FILE *f = fopen(path, "r");
    char text[65536];
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    cJSON *json = cJSON_Parse(text);
    assert_non_null(json);
    cJSON_DeleteItemFromObjectCaseSensitive(json, field);
    if (value)
        cJSON_AddItemToObject(json, field, cJSON_Parse(value));
    char *edited = cJSON_Print(json);
    replace(folder, name, edited);
    free(edited);
    cJSON_Delete(json);
    free(path);
}

static void assert_refused(const char *path, const char *what, const char *message)
{
    struct err err = {0};
    struct model *m = model_open(path, true, NULL, NULL, &err);
    if (m || !strstr(err.msg, message))
        fail_msg("%s: expected '%s', got '%s'", what, message, m ? "a model" : err.msg);
}

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
    {"rope_parameters", "{\"rope_type\":\"yarn\"}", "type 'yarn' is not supported"},
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
        {"config.json", "{\"architectures\":", "config.json: not a JSON object"},
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
    assert_refused("/tmp/whet/no/such/model.gguf", "no file", "model.gguf: No such file");
    assert_refused("/dev/null", "a device", "/dev/null: not a regular file");
}

static void a_tied_config_shares_the_embedding_whatever_lies_in_the_file(void **state)
{
    (void)state;
    char *folder = copy_folder("tiny-llama");
    struct err err;

    edit(folder, "config.json", "tie_word_embeddings", "true");
    struct model *m = model_open(folder, true, NULL, NULL, &err);
    assert_non_null(m);
    assert_ptr_equal(m->head.data, m->embed.data);
    model_close(m);
    remove_folder(folder);
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
    assert_true(m->shape.rope_base == 500000 && m->shape.scaling.llama3);
    assert_true(m->shape.scaling.factor == 32);
    model_close(m);
    remove_folder(folder);
}

/* Bytes to write `skip` behind a key or tensor name of tiny-llama.gguf: 0 is the value's type, 4 a
 * scalar value, 12 the text of a string, 16 the first item of an array, -1 the name itself. */
static const struct {
    const char *find;
    int skip;
    const char *bytes;
    size_t n;
    const char *message;
} bad_ggufs[] = {
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

static void every_field_of_a_gguf_model_is_checked_and_named(void **state)
{
    (void)state;
    size_t n;
    uint8_t *good = golden_bytes("tiny-llama.gguf", &n);
    char path[] = "/tmp/whet-gguf-XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    for (size_t i = 0; i < sizeof bad_ggufs / sizeof *bad_ggufs; i++) {
        const char *find = bad_ggufs[i].find;
        uint8_t *bad = xmalloc(n), *at;
        char key[80]; /* with its length in front, so that no longer key matches */
        uint64_t length = strlen(find);
        memcpy(key, &length, 8);
        memcpy(key + 8, find, length);
        memcpy(bad, good, n);
        at = memmem(bad, n, key, 8 + length);
        if (!at)
            fail_msg("no '%s' in the file", find);
        memcpy(at + 8 + length + bad_ggufs[i].skip, bad_ggufs[i].bytes, bad_ggufs[i].n);
        assert_int_equal(pwrite(fd, bad, n, 0), n);
        assert_refused(path, find, bad_ggufs[i].message);
        free(bad);
    }
    close(fd);
    unlink(path);
    free(good);
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

/* ---- random models and identity
 * ------------------------------------------------------------------- */

static const struct model_shape small = {.arch = ARCH_QWEN3,
                                         .layers = 2,
                                         .hidden = 256,
                                         .heads = 4,
                                         .kv_heads = 2,
                                         .head_dim = 64,
                                         .ffn = 512,
                                         .vocab = 300,
                                         .max_context = 128,
                                         .eps = 1e-6f,
                                         .rope_base = 10000};

static void a_random_model_follows_from_its_seed(void **state)
{
    (void)state;
    for (int t = 0; t < DTYPE_COUNT; t++) {
        struct model *a = model_random(&small, (enum dtype)t, 1);
        struct model *b = model_random(&small, (enum dtype)t, 1);
        struct model *c = model_random(&small, (enum dtype)t, 2);
        size_t bytes = (size_t)dtype_bytes((enum dtype)t, 256 * 512);

        assert_int_equal(a->layer[1].up.type, t);
        assert_memory_equal(a->layer[1].up.data, b->layer[1].up.data, bytes);
        assert_true(memcmp(a->layer[1].up.data, c->layer[1].up.data, bytes) != 0);
        assert_true(memcmp(a->layer[0].up.data, a->layer[1].up.data, bytes) != 0);
        assert_string_equal(a->hash, b->hash);
        assert_string_not_equal(a->hash, c->hash);
        model_close(a);
        model_close(b);
        model_close(c);
    }
}

static void random_weights_keep_activations_in_size(void **state)
{
    (void)state;
    struct model *m = model_random(&small, DTYPE_F32, 3);
    const float *w = m->layer[0].down.data, *g = m->layer[0].mlp_norm;
    double sum = 0, square = 0;
    int off = 0;

    for (int i = 0; i < 256 * 512; i++) {
        sum += (double)w[i];
        square += (double)w[i] * (double)w[i];
    }
    assert_true(fabs(sqrt(square / (256 * 512)) * sqrt(512) - 1) < 0.02);
    assert_true(fabs(sum / (256 * 512)) < 1e-3);
    for (int i = 0; i < 256; i++)
        off += fabsf(g[i] - 1) > 0.01f && g[i] > 0 && g[i] < 2;
    assert_true(off > 200); /* gains near 1, but not 1 */
    model_close(m);
}

static void a_random_model_of_an_impossible_shape_is_refused(void **state)
{
    (void)state;
    struct model_shape s = small;

    s.hidden = 250;
    assert_null(model_random(&s, DTYPE_Q4_1, 1));
    struct model *m = model_random(&s, DTYPE_BF16, 1);
    assert_non_null(m);
    model_close(m);
    s.kv_heads = 3;
    assert_null(model_random(&s, DTYPE_BF16, 1));
}

static void the_hash_is_the_models_and_not_the_paths(void **state)
{
    (void)state;
    struct model *a = open_golden("tiny-llama"), *q = open_golden("tiny-qwen2");
    char *folder = copy_folder("tiny-llama");
    struct model *b = model_open(folder, false, NULL, NULL, NULL);

    assert_int_equal(strlen(a->hash), 16);
    assert_string_equal(a->hash, b->hash);
    assert_string_not_equal(a->hash, q->hash);
    model_close(b);
    edit(folder, "config.json", "rms_norm_eps", "0.001");
    b = model_open(folder, false, NULL, NULL, NULL);
    assert_string_not_equal(a->hash, b->hash);
    model_close(b);
    model_close(a);
    model_close(q);
    remove_folder(folder);
}

/* ---- the default model
 * ------------------------------------------------------------------------------ */

static void the_default_model_opens(void **state)
{
    (void)state;
    const char *path = getenv("WHET_TEST_MODEL");
    struct err err;
    if (!path)
        skip();
    struct model *m = model_open(path, true, NULL, NULL, &err);
    if (!m)
        fail_msg("%s", err.msg);
    const struct model_shape *s = &m->shape;

    assert_int_equal(s->layers, 30);
    assert_int_equal(s->hidden, 576);
    assert_int_equal(s->heads, 9);
    assert_int_equal(s->kv_heads, 3);
    assert_int_equal(s->head_dim, 64);
    assert_int_equal(s->ffn, 1536);
    assert_int_equal(s->vocab, 49152);
    assert_int_equal(s->max_context, 8192);
    assert_true(s->rope_base == 100000 && s->rope_interleaved && s->tied_head);
    assert_int_equal(m->embed.type, DTYPE_Q8_0);
    assert_int_equal(m->layer[29].down.type, DTYPE_Q4_1);
    assert_int_equal(m->weight_bytes, 96576768);
    assert_int_equal(tokenizer_vocab(m->tokenizer), 49152);
    assert_int_equal(tokenizer_eos(m->tokenizer), 2);
    assert_true(tokenizer_is_stop(m->tokenizer, 0)); /* <|endoftext|> */
    assert_non_null(strstr(m->chat_template, "<|im_start|>"));
    model_close(m);
}

static void a_random_model_by_name_can_be_served_and_is_always_the_same(void **state)
{
    (void)state;
    struct err err = {""};
    struct model *a = model_open("random:tiny", true, NULL, NULL, &err);
    struct model *b = model_open("random:tiny", false, NULL, NULL, &err);
    assert_non_null(a);
    assert_non_null(b);
    assert_string_equal(a->hash, b->hash); /* what a probe opens is what the server runs */
    assert_string_equal(a->path, "random:tiny");
    assert_null(b->tokenizer);
    assert_int_equal(tokenizer_vocab(a->tokenizer), a->shape.vocab);
    assert_non_null(a->chat_template);
    model_close(a);
    model_close(b);
    assert_null(model_open("random:llama-9", true, NULL, NULL, &err));
    assert_non_null(strstr(err.msg, "llama-9"));
    assert_non_null(strstr(err.msg, "qwen3-1.7b")); /* and what there is instead */
}

static void its_tokenizer_takes_any_bytes_and_every_id_has_text(void **state)
{
    (void)state;
    struct err err = {""};
    struct model *m = model_open("random:tiny", true, NULL, NULL, &err);
    const char text[] = "Ein M\xc3\xa4rchen \xe2\x9c\x93 \x7f\t\n<|im_end|>";
    int32_t *ids = NULL;
    int64_t n = tokenizer_encode(m->tokenizer, text, sizeof text - 1, true, &ids, &err);
    assert_int_equal(n, sizeof text - 1 - strlen("<|im_end|>") + 1);
    assert_true(tokenizer_is_stop(m->tokenizer, ids[n - 1]));
    size_t length;
    char *back = tokenizer_decode(m->tokenizer, ids, n, true, &length);
    assert_string_equal(back, text);
    free(back);
    free(ids);
    for (int32_t id = 0; id < m->shape.vocab; id++) {
        tokenizer_bytes(m->tokenizer, id, true, &length);
        assert_true(length > 0);
    }
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copied_weights_keep_their_addresses_and_bytes),
        cmocka_unit_test(copied_weights_survive_the_file_being_cut),
        cmocka_unit_test(a_llama_directory_opens_with_its_config),
        cmocka_unit_test(qwen2_has_biases_and_a_tied_head),
        cmocka_unit_test(qwen3_has_head_norms_and_its_own_head_size),
        cmocka_unit_test(a_gguf_file_holds_the_same_model_as_the_directory),
        cmocka_unit_test(rotary_frequencies_are_those_of_transformers),
        cmocka_unit_test(progress_rises_to_one_over_all_shards),
        cmocka_unit_test(every_field_of_the_config_is_checked_and_named),
        cmocka_unit_test(missing_and_damaged_files_are_named),
        cmocka_unit_test(a_tied_config_shares_the_embedding_whatever_lies_in_the_file),
        cmocka_unit_test(the_context_ends_where_a_sliding_window_would_begin),
        cmocka_unit_test(rope_scaling_of_older_configs_is_read),
        cmocka_unit_test(every_field_of_a_gguf_model_is_checked_and_named),
        cmocka_unit_test(divisors_that_are_no_llama3_scaling_are_refused),
        cmocka_unit_test(a_random_model_follows_from_its_seed),
        cmocka_unit_test(random_weights_keep_activations_in_size),
        cmocka_unit_test(a_random_model_of_an_impossible_shape_is_refused),
        cmocka_unit_test(the_hash_is_the_models_and_not_the_paths),
        cmocka_unit_test(the_default_model_opens),
        cmocka_unit_test(a_random_model_by_name_can_be_served_and_is_always_the_same),
        cmocka_unit_test(its_tokenizer_takes_any_bytes_and_every_id_has_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
