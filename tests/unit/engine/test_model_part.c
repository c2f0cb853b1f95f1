/* SPDX-License-Identifier: Apache-2.0 */
/* test_model_part.c - what a rank reads of a model's files: its own rows and columns, bit for bit,
 * and nothing else. */
#include "tests/unit/engine/model_world.h"

#include "engine/model_load.h"

static const char *const files[] = {"tiny-llama",      "tiny-qwen2",      "tiny-qwen3",
                                    "tiny-llama.gguf", "tiny-qwen2.gguf", "tiny-qwen3.gguf"};
enum { FILES = sizeof files / sizeof *files };
static const int32_t worlds[] = {2, 4}; /* of 2 KV heads: one each, and each held twice */

static struct model *open_part(const char *path, int32_t world, int32_t rank, int64_t *read)
{
    struct err err = {""};
    struct model *m = model_open_part(path, world, rank, false, NULL, NULL, read, &err);
    if (!m)
        fail_msg("%s, rank %d of %d: %s", path, rank, world, err.msg);
    return m;
}

/* ---- against slices of the whole ------------------------------------------------------------ */

static int64_t assert_slice(const struct weight *own, const struct weight *whole, int32_t row0,
                            int32_t rows, int32_t col0, int32_t cols)
{
    enum dtype t = (enum dtype)whole->type;
    int64_t row = dtype_bytes(t, whole->cols), piece = dtype_bytes(t, cols);
    assert_int_equal(own->rows, rows);
    assert_int_equal(own->cols, cols);
    assert_int_equal(own->type, whole->type);
    for (int32_t r = 0; r < rows; r++)
        assert_memory_equal((const char *)own->data + r * piece,
                            (const char *)whole->data + (row0 + r) * row + dtype_bytes(t, col0),
                            (size_t)piece);
    return rows * piece;
}

static void assert_vector(const float *own, const float *whole, int32_t from, int32_t n)
{
    assert_int_equal(!own, !whole);
    if (whole)
        assert_memory_equal(own, whole + from, (size_t)n * sizeof *own);
}

/* Bytes of a layer's matrices. */
static int64_t assert_layer(const struct model *m, const struct model *whole, int32_t i,
                            int32_t world, int32_t rank)
{
    const struct model_shape *s = &whole->shape;
    const struct layer *a = &m->layer[i], *b = &whole->layer[i];
    int32_t q = s->heads * s->head_dim / world, f = s->ffn / world;
    int32_t kv = s->kv_heads >= world ? s->kv_heads / world * s->head_dim : s->head_dim;
    int32_t kv0 = (s->kv_heads >= world ? rank : rank / (world / s->kv_heads)) * kv;
    assert_vector(a->attn_norm, b->attn_norm, 0, s->hidden);
    assert_vector(a->mlp_norm, b->mlp_norm, 0, s->hidden);
    assert_vector(a->q_norm, b->q_norm, 0, s->head_dim);
    assert_vector(a->k_norm, b->k_norm, 0, s->head_dim);
    assert_vector(a->bq, b->bq, rank * q, q);
    assert_vector(a->bk, b->bk, kv0, kv);
    assert_vector(a->bv, b->bv, kv0, kv);
    return assert_slice(&a->wq, &b->wq, rank * q, q, 0, s->hidden) +
           assert_slice(&a->wk, &b->wk, kv0, kv, 0, s->hidden) +
           assert_slice(&a->wv, &b->wv, kv0, kv, 0, s->hidden) +
           assert_slice(&a->wo, &b->wo, 0, s->hidden, rank * q, q) +
           assert_slice(&a->gate, &b->gate, rank * f, f, 0, s->hidden) +
           assert_slice(&a->up, &b->up, rank * f, f, 0, s->hidden) +
           assert_slice(&a->down, &b->down, 0, s->hidden, rank * f, f);
}

/* Bytes that the rank must have read. */
static int64_t assert_part(const struct model *m, const struct model *whole, int32_t world,
                           int32_t rank)
{
    const struct model_shape *s = &whole->shape;
    int64_t bytes = assert_slice(&m->embed, &whole->embed, 0, s->vocab, 0, s->hidden);
    int32_t n = m->head.rows, from = rank * n < s->vocab - n ? rank * n : s->vocab - n;
    int64_t head = assert_slice(&m->head, &whole->head, from, n, 0, s->hidden);
    assert_true((int64_t)n * world >= s->vocab);
    bytes += s->tied_head ? 0 : head;
    assert_vector(m->final_norm, whole->final_norm, 0, s->hidden);
    for (int32_t i = 0; i < s->layers; i++)
        bytes += assert_layer(m, whole, i, world, rank);
    assert_string_equal(m->hash, whole->hash);
    assert_string_equal(m->description, whole->description);
    return bytes;
}

static void a_rank_has_its_slices_and_read_no_more(void **state)
{
    (void)state;
    for (int i = 0; i < FILES; i++) {
        char *path = golden_path(files[i]);
        struct model *whole = open_golden(files[i]);
        for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++)
            for (int32_t rank = 0; rank < worlds[w]; rank++) {
                int64_t read = 0;
                struct model *m = open_part(path, worlds[w], rank, &read);
                assert_int_equal(read, assert_part(m, whole, worlds[w], rank));
                assert_int_equal(m->shard.rank, rank);
                assert_int_equal(m->shape.heads, 4 / worlds[w]);
                assert_false(m->shape.tied_head);
                model_close(m);
            }
        model_close(whole);
        free(path);
    }
}

static void every_format_is_cut_at_its_blocks(void **state)
{
    (void)state;
    const struct model_shape s = {ARCH_QWEN2, 1,   512,   4,    2, 128, 512,
                                  300,        256, 1e-5f, 1e4f, 0, 0,   {0}};
    for (int t = 0; t < DTYPE_COUNT; t++)
        for (int32_t rank = 0; rank < 2; rank++) {
            struct model *whole = model_random(&s, (enum dtype)t, 7);
            struct model *m = model_random(&s, (enum dtype)t, 7);
            int64_t read;
            assert_int_equal(model_take_part(m, 2, rank, NULL, NULL, &read, NULL), 0);
            assert_int_equal(read, assert_part(m, whole, 2, rank));
            model_close(m);
            model_close(whole);
        }
}

/* ---- what the process reads ------------------------------------------------------------------ */

/* Bytes that read calls of this process returned so far. */
static int64_t process_read(void)
{
    FILE *f = fopen("/proc/self/io", "r");
    long long n = -1;
    assert_non_null(f);
    assert_int_equal(fscanf(f, "rchar: %lld", &n), 1);
    fclose(f);
    return n;
}

/* The files are opened and checked first, as they are without ranks. Then the kernel counts what
 * else is read; the page of /proc itself is read by stdio in between. */
static void the_kernel_counts_no_more_than_the_part(void **state)
{
    (void)state;
    for (int i = 0; i < FILES; i++) {
        struct model *m = open_golden(files[i]);
        struct shard cut;
        assert_int_equal(shard_plan(&m->shape, 2, 1, &cut, NULL), 0);
        int64_t all = m->weight_bytes, read = 0, before = process_read();
        assert_int_equal(model_take_part(m, 2, 1, NULL, NULL, &read, NULL), 0);
        int64_t counted = process_read() - before;
        assert_in_range(counted - read, 0, 4096);
        assert_true(read < all);
        assert_null(model_map_of(m, m->layer[0].wq.data)); /* no mapping is left to read from */
        model_close(m);
    }
}

static void progress_ends_at_the_whole_part(void *ctx, double fraction)
{
    double *last = ctx;
    assert_true(fraction >= *last && fraction <= 1);
    *last = fraction;
}

static void progress_goes_to_one(void **state)
{
    (void)state;
    double last = 0;
    char *path = golden_path("tiny-llama");
    struct model *m =
        model_open_part(path, 2, 0, false, progress_ends_at_the_whole_part, &last, NULL, NULL);
    assert_non_null(m);
    assert_true(last == 1);
    model_close(m);
    free(path);
}

/* ---- a part by name ------------------------------------------------------------------------- */

static void assert_sizes(const struct weight *a, const struct weight *b)
{
    assert_int_equal(a->rows, b->rows);
    assert_int_equal(a->cols, b->cols);
    assert_int_equal(a->type, b->type);
}

static void assert_layer_sizes(const struct layer *a, const struct layer *b)
{
    assert_sizes(&a->wq, &b->wq);
    assert_sizes(&a->wk, &b->wk);
    assert_sizes(&a->wv, &b->wv);
    assert_sizes(&a->wo, &b->wo);
    assert_sizes(&a->gate, &b->gate);
    assert_sizes(&a->up, &b->up);
    assert_sizes(&a->down, &b->down);
}

/* random:tiny/2 has the matrices that rank 0 of two has of random:tiny, and fewer tokens to embed.
 */
static void a_part_by_name_has_a_ranks_matrices(void **state)
{
    (void)state;
    static const char *const format[] = {"", ":q8_0"};
    for (int i = 0; i < 4; i++) {
        int32_t world = i < 2 ? 2 : 4;
        struct err err = {""};
        char *whole = xasprintf("random:tiny%s", format[i % 2]);
        char *name = xasprintf("random:tiny/%d%s", world, format[i % 2]);
        struct model *rank = open_part(whole, world, 0, NULL);
        struct model *own = model_open(name, false, NULL, NULL, &err);
        assert_non_null(own);
        assert_string_equal(own->path, name);
        assert_int_equal(own->shard.world, world);
        assert_true(own->alone && !rank->alone);
        assert_sizes(&own->head, &rank->head);
        assert_int_equal(own->head.rows, own->shape.vocab);
        assert_int_equal(own->embed.rows, own->shape.vocab);
        for (int32_t l = 0; l < own->shape.layers; l++)
            assert_layer_sizes(&own->layer[l], &rank->layer[l]);
        assert_int_equal(model_take_part(own, 2, 0, NULL, NULL, NULL, &err), -1);
        assert_non_null(
            strstr(err.msg, "is one rank's part of a model, which cannot be cut again"));
        model_close(own);
        model_close(rank);
        free(name);
        free(whole);
    }
}

/* 256 columns have two scales: halves have one each, quarters a piece of one, which a device that
 * keeps F8 would look for elsewhere if there were more. */
static void a_cut_within_the_columns_of_a_scale_is_known(void **state)
{
    (void)state;
    for (int32_t world = 1; world <= 4; world *= 2) {
        struct model *m = open_part("random:tiny:f8", world, world - 1, NULL);
        assert_int_equal(m->fine_scales, world == 4);
        model_close(m);
    }
}

/* 256 tokens are bytes, but for the three that no UTF-8 text has; 128 are too few. */
static void the_smallest_part_has_a_tokenizer(void **state)
{
    (void)state;
    struct err err = {""};
    const char text[] = "Ein M\xc3\xa4rchen \xe2\x9c\x93 \xff\x7f\n<|im_end|>";
    struct model *m = model_open("random:tiny/2", true, NULL, NULL, &err);
    int32_t *ids = NULL;
    assert_non_null(m);
    assert_int_equal(tokenizer_vocab(m->tokenizer), 256);
    int64_t n = tokenizer_encode(m->tokenizer, text, sizeof text - 1, true, &ids, &err);
    /* the byte that is none of UTF-8's becomes three, the last eight characters one token */
    assert_int_equal(n, sizeof text - 1 + 2 - strlen("<|im_end|>") + 1);
    assert_true(tokenizer_is_stop(m->tokenizer, ids[n - 1]));
    for (int64_t i = 0; i < n; i++)
        assert_in_range(ids[i], 0, 255);
    free(ids);
    model_close(m);
    assert_null(model_open("random:tiny/4", true, NULL, NULL, &err));
    assert_string_equal(err.msg,
                        "random:tiny/4: 128 tokens are too few for a tokenizer, which needs 256");
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void what_cannot_be_cut_is_refused_with_the_models_name(void **state)
{
    (void)state;
    struct err err = {""};
    char *path = golden_path("tiny-llama");
    assert_null(model_open_part(path, 3, 0, false, NULL, NULL, NULL, &err));
    assert_non_null(strstr(err.msg, "tiny-llama: 3 ranks: 4 attention heads do not divide"));
    assert_null(model_open_part("random:tiny:q4_k", 2, 0, false, NULL, NULL, NULL, &err));
    free(path);
}

static void a_part_of_blocks_is_refused_by_matrix(void **state)
{
    (void)state;
    const struct model_shape s = {ARCH_LLAMA, 1,   256,   4,    2, 64, 512,
                                  300,        256, 1e-5f, 1e4f, 0, 0,  {0}};
    struct model *m = model_random(&s, DTYPE_Q4_K, 7);
    struct err err = {""};
    assert_int_equal(model_take_part(m, 2, 0, NULL, NULL, NULL, &err), -1);
    assert_non_null(strstr(err.msg, "random: 2 ranks: layer 0, attn_out"));
    model_close(m);
}

static void a_file_that_was_cut_short_is_an_error(void **state)
{
    (void)state;
    struct err err = {""};
    char *folder = copy_folder("tiny-llama");
    struct model *m = model_open(folder, false, NULL, NULL, &err);
    char *command = xasprintf("truncate -s 4096 %s/*.safetensors", folder);
    assert_non_null(m);
    assert_int_equal(system(command), 0);
    assert_int_equal(model_take_part(m, 2, 0, NULL, NULL, NULL, &err), -1);
    assert_non_null(strstr(err.msg, "has become shorter"));
    model_close(m);
    free(command);
    remove_folder(folder);
}

static void world_one_is_the_model_as_ever(void **state)
{
    (void)state;
    int64_t read = 0;
    char *path = golden_path("tiny-llama.gguf");
    struct model *m = open_part(path, 1, 0, &read);
    assert_int_equal(m->shard.world, 0);
    assert_non_null(model_map_of(m, m->layer[0].wq.data));
    assert_int_equal(read, m->weight_bytes);
    model_close(m);
    free(path);
}

/* The address sanitizer sees what is read of them then, and what is freed twice. */
static void matrices_go_and_vectors_stay(void **state)
{
    (void)state;
    for (int i = 0; i < FILES; i++) {
        char *path = golden_path(files[i]);
        struct model *whole = open_golden(files[i]), *m = open_part(path, 2, 1, NULL);
        const struct layer *l = m->layer, *last = &m->layer[m->shape.layers - 1];
        model_drop_matrices(m);
        model_drop_matrices(whole);
        assert_non_null(whole->embed.data);
        assert_true(!m->embed.data && !m->head.data && !l->wq.data && !l->gate.data);
        assert_true(!last->wo.data && !last->down.data && !last->up.data);
        assert_true(m->head.rows > 0 && last->down.rows == m->shape.hidden);
        assert_vector(m->final_norm, whole->final_norm, 0, m->shape.hidden);
        assert_vector(last->mlp_norm, whole->layer[m->shape.layers - 1].mlp_norm, 0,
                      m->shape.hidden);
        model_close(m);
        model_close(whole);
        free(path);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_part_by_name_has_a_ranks_matrices),
        cmocka_unit_test(a_cut_within_the_columns_of_a_scale_is_known),
        cmocka_unit_test(the_smallest_part_has_a_tokenizer),
        cmocka_unit_test(a_rank_has_its_slices_and_read_no_more),
        cmocka_unit_test(every_format_is_cut_at_its_blocks),
        cmocka_unit_test(the_kernel_counts_no_more_than_the_part),
        cmocka_unit_test(progress_goes_to_one),
        cmocka_unit_test(what_cannot_be_cut_is_refused_with_the_models_name),
        cmocka_unit_test(a_part_of_blocks_is_refused_by_matrix),
        cmocka_unit_test(a_file_that_was_cut_short_is_an_error),
        cmocka_unit_test(world_one_is_the_model_as_ever),
        cmocka_unit_test(matrices_go_and_vectors_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
