/* SPDX-License-Identifier: Apache-2.0 */
/* test_model.c - opening models: the tiny ones that transformers wrote (scripts/make-golden-model),
 * random ones, and the default model if WHET_TEST_MODEL names its file. Copies with one thing
 * wrong: test_model_refused.c. */
#include "tests/unit/engine/model_world.h"

/* ---- where the weights lie ----------------------------------------------------------------- */

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

/* ---- what transformers wrote --------------------------------------------------------------- */

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
    assert_int_equal(s->scaling.type, ROPE_LLAMA3);
    assert_true(s->scaling.factor == 8 && s->scaling.low_freq_factor == 1 &&
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
                .type = ROPE_LLAMA3,
                .factor = (float)cJSON_GetArrayItem(s, 0)->valuedouble,
                .low_freq_factor = (float)cJSON_GetArrayItem(s, 1)->valuedouble,
                .high_freq_factor = (float)cJSON_GetArrayItem(s, 2)->valuedouble,
                .original_context = cJSON_GetArrayItem(s, 3)->valueint};
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

/* ---- random models and identity ------------------------------------------------------------ */

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

/* ---- the default model --------------------------------------------------------------------- */

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

static void a_random_model_may_have_a_format(void **state)
{
    (void)state;
    struct err err = {""};
    struct model *m = model_open("random:tiny:q8_0", true, NULL, NULL, &err);
    assert_non_null(m);
    assert_int_equal(m->layer[0].wq.type, DTYPE_Q8_0);
    assert_string_equal(m->path, "random:tiny:q8_0");
    model_close(m);
    m = model_open("random:tiny:q4_0+q8_0", true, NULL, NULL, &err);
    assert_non_null(m);
    for (int i = 0; i < 2; i++) { /* the last of eight layers and more, of two the second */
        assert_int_equal(m->layer[i].down.type, i ? DTYPE_Q8_0 : DTYPE_Q4_0);
        assert_int_equal(m->layer[i].wv.type, i ? DTYPE_Q8_0 : DTYPE_Q4_0);
        assert_int_equal(m->layer[i].wk.type, DTYPE_Q4_0);
        assert_int_equal(m->layer[i].gate.type, DTYPE_Q4_0);
    }
    assert_int_equal(m->embed.type, DTYPE_Q4_0);
    model_close(m);
    enum dtype more;
    assert_int_equal(model_random_type("random:tiny", &more), DTYPE_BF16);
    assert_int_equal(more, DTYPE_BF16);
    assert_int_equal(model_random_type("random:tiny:Q4_K", &more), DTYPE_Q4_K);
    assert_int_equal(more, DTYPE_Q4_K);
    assert_int_equal(model_random_type("random:tiny/2:q4_k+Q6_K", &more), DTYPE_Q4_K);
    assert_int_equal(more, DTYPE_Q6_K);
    assert_int_equal(model_random_type("random:tiny:q9", &more), DTYPE_COUNT);
    assert_int_equal(model_random_type("random:tiny:q4_k+q9", &more), DTYPE_COUNT);
    assert_int_equal(model_random_type("random:tiny:q4_k+", &more), DTYPE_COUNT);
    assert_null(model_open("random:tiny:q9", true, NULL, NULL, &err));
    assert_non_null(strstr(err.msg, "random:tiny:q9: the format after the name is not known"));
    for (int t = 0; t < DTYPE_COUNT; t++)
        assert_non_null(strstr(err.msg, dtype_name((enum dtype)t)));
    assert_null(model_open("random:tiny:q4_k", true, NULL, NULL, &err)); /* rows of 128 */
    assert_non_null(strstr(err.msg, "not whole blocks of Q4_K"));
    assert_null(model_open("random:tin:q8_0", true, NULL, NULL, &err));
    assert_non_null(strstr(err.msg, "random:tin:q8_0 is not known"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_random_model_may_have_a_format),
        cmocka_unit_test(copied_weights_keep_their_addresses_and_bytes),
        cmocka_unit_test(copied_weights_survive_the_file_being_cut),
        cmocka_unit_test(a_llama_directory_opens_with_its_config),
        cmocka_unit_test(qwen2_has_biases_and_a_tied_head),
        cmocka_unit_test(qwen3_has_head_norms_and_its_own_head_size),
        cmocka_unit_test(a_gguf_file_holds_the_same_model_as_the_directory),
        cmocka_unit_test(rotary_frequencies_are_those_of_transformers),
        cmocka_unit_test(progress_rises_to_one_over_all_shards),
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
